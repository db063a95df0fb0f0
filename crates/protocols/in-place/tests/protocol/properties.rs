//! Properties of states and commands: codecs, limits, and commands that take effect once.

use std::collections::{BTreeMap, BTreeSet};

use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Decode, Encode};
use atoll_in_place::{
    Command, Content, InvalidCommand, KeyState, MAX_MEMBERS, MAX_NAME_BYTES, MAX_STATE_BYTES,
    MAX_VALUE_BYTES, Named, Outcome, REMEMBERED, REMEMBERED_REPEATS, Refusal, Reply, WireGuard,
};
use bytes::Bytes;
use proptest::prelude::*;

fn named(seq: u64, command: Command) -> Named {
    Named { op: OpId { client: ClientId(1), seq }, command, floor: None, repeat: false }
}

/// Executes a command on a state.
fn run(state: &mut KeyState, seq: u64, command: Command) -> Reply {
    let (next, reply) = named(seq, command).apply(state);
    *state = next.unwrap_or(state.clone());
    reply
}

fn outcome(state: &mut KeyState, seq: u64, command: Command) -> Outcome {
    run(state, seq, command).outcome
}

fn text(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn name() -> impl Strategy<Value = Bytes> {
    (0u8..5).prop_map(|n| Bytes::from(vec![b'a' + n; 1 + n as usize]))
}

fn guards() -> impl Strategy<Value = WireGuard> {
    prop_oneof![
        4 => Just(WireGuard::Always {}),
        1 => Just(WireGuard::Absent {}),
        1 => Just(WireGuard::Present {}),
        1 => (0u64..30).prop_map(|version| WireGuard::Version { version }),
        1 => name().prop_map(|value| WireGuard::Value { value }),
    ]
}

fn commands() -> impl Strategy<Value = Command> {
    prop_oneof![
        Just(Command::Get {}),
        (guards(), name()).prop_map(|(guard, value)| Command::Put { guard, value }),
        guards().prop_map(|guard| Command::Delete { guard }),
        (0u64..5).prop_map(|amount| Command::Add { amount }),
        Just(Command::Add { amount: u64::MAX - 2 }),
        (0u64..5).prop_map(|amount| Command::Subtract { amount }),
        name().prop_map(|member| Command::Insert { member }),
        name().prop_map(|member| Command::Remove { member }),
        name().prop_map(|owner| Command::Acquire { owner }),
        (0u64..30).prop_map(|fence| Command::Release { fence }),
        (name(), 1u64..10, prop::option::of(0u64..30)).prop_map(|(owner, for_ms, expired)| Command::Lease {
            owner,
            for_ms,
            expired
        }),
        (0u64..30).prop_map(|fence| Command::EndLease { fence }),
        (name(), 1u32..4).prop_map(|(party, parties)| Command::Arrive { party, parties }),
        name().prop_map(|candidate| Command::Stand { candidate }),
        (0u64..30).prop_map(|term| Command::Resign { term }),
        (name(), name()).prop_map(|(field, value)| Command::SetField { field, value }),
        name().prop_map(|field| Command::RemoveField { field }),
    ]
}

proptest! {
    /// Whatever the commands: the state comes back from its bytes and passes its own checks, the clock rises by one for each command that
    /// is recorded, a repeat changes nothing and gets the first answer, and equal inputs have equal outcomes.
    #[test]
    fn commands_take_effect_once(commands in prop::collection::vec(commands(), 0..120)) {
        set_mutant(Mutant::NONE);
        let mut state = KeyState::absent(3);
        for (n, command) in commands.into_iter().enumerate() {
            let mut named = named(n as u64 + 1, command);
            named.repeat = n % 3 == 0;
            let (next, reply) = named.apply(&state);
            prop_assert_eq!(&named.apply(&state), &(next.clone(), reply.clone()));
            match &reply.outcome {
                Outcome::Done { version, .. } => {
                    let next = next.as_ref().unwrap();
                    prop_assert_eq!((next.clock, next.version), (state.clock + 1, *version));
                    prop_assert_eq!(next.held(), reply.held.clone());
                    // A later attempt finds it, and so does one with the lowest correct floor.
                    named.floor = Some(state.clock);
                    let (again, repeated) = named.apply(next);
                    prop_assert_eq!(again, None);
                    prop_assert_eq!(&repeated.outcome, &reply.outcome);
                }
                _ => prop_assert_eq!(&next, &None),
            }
            if let Outcome::Refused(_) = &reply.outcome {
                // With an earlier attempt, the refusal is recorded, and the content stays.
                named.floor = Some(state.clock);
                let recorded = named.apply(&state).0.unwrap();
                prop_assert_eq!((&recorded.content, recorded.version), (&state.content, state.version));
                prop_assert_eq!(named.apply(&recorded).1.outcome, Outcome::Refused(Refusal::Earlier));
            }
            state = next.unwrap_or(state);
            prop_assert!(state.done.len() <= REMEMBERED && state.repeats.len() <= REMEMBERED_REPEATS);
            prop_assert!(state.done.iter().all(|done| done.clock > state.forgotten));
            let bytes = state.to_bytes();
            prop_assert!(bytes.len() <= MAX_STATE_BYTES);
            prop_assert_eq!(KeyState::read(&bytes, 0), Ok(state.clone()));
        }
        let bytes = state.to_bytes();
        for n in 1..bytes.len() {
            prop_assert!(KeyState::read(&bytes.slice(..n), 0).is_err());
        }
    }

    /// A set and a map do what a set and a map do.
    #[test]
    fn sets_and_maps_are_such(steps in prop::collection::vec((any::<bool>(), name(), name()), 0..60)) {
        set_mutant(Mutant::NONE);
        let (mut set, mut map) = (KeyState::absent(0), KeyState::absent(0));
        let (mut wanted, mut fields) = (BTreeSet::new(), BTreeMap::new());
        for (n, (adds, field, value)) in steps.into_iter().enumerate() {
            let seq = n as u64 + 1;
            if adds {
                run(&mut set, seq, Command::Insert { member: field.clone() });
                run(&mut map, seq, Command::SetField { field: field.clone(), value: value.clone() });
                wanted.insert(field.clone());
                fields.insert(field, value);
            } else {
                run(&mut set, seq, Command::Remove { member: field.clone() });
                run(&mut map, seq, Command::RemoveField { field: field.clone() });
                wanted.remove(&field);
                fields.remove(&field);
            }
        }
        if let Content::Set { members } = &set.content {
            prop_assert_eq!(members, &wanted.into_iter().collect::<Vec<_>>());
        } else {
            prop_assert!(wanted.is_empty());
        }
        if let Content::Map { entries } = &map.content {
            prop_assert_eq!(entries, &fields.into_iter().collect::<Vec<_>>());
        } else {
            prop_assert!(fields.is_empty());
        }
    }

    /// Bytes that are no state are refused, or are a state that passes its own checks; nothing panics.
    #[test]
    fn damaged_states_are_refused_or_consistent(at in 0usize..400, bit in 0u8..8) {
        set_mutant(Mutant::NONE);
        let mut state = KeyState::absent(0);
        for n in 1..6 {
            run(&mut state, n, Command::Insert { member: text(&format!("m{n}")) });
        }
        let mut bytes = state.to_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(read) = KeyState::read(&Bytes::from(bytes.clone()), 0) {
            prop_assert_eq!(read.to_bytes(), Bytes::from(bytes));
            prop_assert_eq!(read.content.check(), Ok(()));
        }
    }

    /// Commands come back from their bytes, and every truncation is refused.
    #[test]
    fn commands_come_back(command in commands()) {
        let bytes = command.to_bytes();
        prop_assert_eq!(Command::from_bytes(bytes.clone()), Ok(command));
        for n in 0..bytes.len() {
            prop_assert!(Command::from_bytes(bytes.slice(..n)).is_err());
        }
    }
}

#[test]
fn a_command_that_was_forgotten_is_not_done_again() {
    set_mutant(Mutant::NONE);
    let mut state = KeyState::absent(0);
    for seq in 1..=REMEMBERED as u64 + 1 {
        assert_eq!(
            outcome(&mut state, seq, Command::Add { amount: 1 }),
            Outcome::Done { version: seq, number: seq }
        );
    }
    let mut first = named(1, Command::Add { amount: 1 });
    first.floor = Some(0);
    let (next, reply) = first.apply(&state);
    assert_eq!((next, reply.outcome), (None, Outcome::Forgotten { clock: REMEMBERED as u64 + 1 }));
    // A command that was first sent when the key had a clock that is remembered was not among the forgotten ones.
    first.op.seq = 99;
    first.floor = Some(1);
    assert!(matches!(first.apply(&state).1.outcome, Outcome::Done { .. }));
}

/// The attempt before a repeat may be held up, and knows no floor. So a repeat is remembered until as many others have followed.
#[test]
fn a_repeat_is_remembered_longer_than_other_commands() {
    set_mutant(Mutant::NONE);
    let mut state = KeyState::absent(0);
    let mut repeat = named(1, Command::Add { amount: 1 });
    (repeat.repeat, repeat.floor) = (true, Some(0));
    state = repeat.apply(&state).0.unwrap();
    let mut refused = named(2, Command::Subtract { amount: 5 });
    (refused.repeat, refused.floor) = (true, Some(0));
    state = refused.apply(&state).0.unwrap();
    for seq in 3..100 {
        run(&mut state, seq, Command::Add { amount: 1 });
    }
    let late = |state: &KeyState, seq, command| {
        let (next, reply) = named(seq, command).apply(state);
        (next.is_some(), reply.outcome)
    };
    let done = Outcome::Done { version: 1, number: 1 };
    assert_eq!(late(&state, 1, Command::Add { amount: 1 }), (false, done));
    // Its condition holds now, and its caller was told that it did not.
    let refused = Outcome::Refused(Refusal::Earlier);
    assert_eq!(late(&state, 2, Command::Subtract { amount: 5 }), (false, refused));
    for seq in 0..REMEMBERED_REPEATS as u64 - 1 {
        let mut repeat = named(1000 + seq, Command::Add { amount: 1 });
        repeat.repeat = true;
        state = repeat.apply(&state).0.unwrap();
    }
    assert!(late(&state, 1, Command::Add { amount: 1 }).0, "the bound");
    assert!(!late(&state, 2, Command::Subtract { amount: 5 }).0);
}

#[test]
fn locks_leases_and_offices_have_rising_numbers() {
    set_mutant(Mutant::NONE);
    let (a, b) = (text("a"), text("b"));
    let mut lock = KeyState::absent(7);
    let acquire = |owner: &Bytes| Command::Acquire { owner: owner.clone() };
    assert_eq!(outcome(&mut lock, 1, acquire(&a)), Outcome::Done { version: 8, number: 8 });
    assert_eq!(outcome(&mut lock, 2, acquire(&a)), Outcome::Same { number: 8 });
    let taken = Outcome::Refused(Refusal::Taken { by: a.clone(), fence: 8 });
    assert_eq!(outcome(&mut lock, 3, acquire(&b)), taken);
    let not_holder = Outcome::Refused(Refusal::NotHolder { given: 7, last: 8 });
    assert_eq!(outcome(&mut lock, 4, Command::Release { fence: 7 }), not_holder);
    assert!(matches!(outcome(&mut lock, 5, Command::Release { fence: 8 }), Outcome::Done { .. }));
    assert_eq!(outcome(&mut lock, 6, acquire(&b)), Outcome::Done { version: 10, number: 10 });
    // Not even a deletion makes a number come again.
    assert!(matches!(
        outcome(&mut lock, 7, Command::Delete { guard: WireGuard::Always {} }),
        Outcome::Done { .. }
    ));
    assert_eq!(outcome(&mut lock, 8, acquire(&a)), Outcome::Done { version: 12, number: 12 });

    let mut key = KeyState::absent(0);
    let lease = |owner: &Bytes, expired| Command::Lease { owner: owner.clone(), for_ms: 100, expired };
    assert_eq!(outcome(&mut key, 1, lease(&a, None)), Outcome::Done { version: 1, number: 1 });
    assert_eq!(outcome(&mut key, 2, lease(&a, None)), Outcome::Done { version: 2, number: 1 }, "renewed");
    let taken = Outcome::Refused(Refusal::Taken { by: a.clone(), fence: 1 });
    assert_eq!(outcome(&mut key, 3, lease(&b, None)), taken.clone());
    assert_eq!(outcome(&mut key, 4, lease(&b, Some(1))), taken, "it was renewed since");
    assert_eq!(outcome(&mut key, 5, lease(&b, Some(2))), Outcome::Done { version: 3, number: 3 });
    assert!(matches!(outcome(&mut key, 6, Command::EndLease { fence: 1 }), Outcome::Refused(_)));
    assert!(matches!(outcome(&mut key, 7, Command::EndLease { fence: 3 }), Outcome::Done { .. }));
    assert_eq!(outcome(&mut key, 8, lease(&a, None)), Outcome::Done { version: 5, number: 5 });

    let mut office = KeyState::absent(0);
    let stand = |candidate: &Bytes| Command::Stand { candidate: candidate.clone() };
    assert_eq!(outcome(&mut office, 1, stand(&a)), Outcome::Done { version: 1, number: 1 });
    assert!(matches!(outcome(&mut office, 2, stand(&b)), Outcome::Refused(Refusal::Taken { .. })));
    assert!(matches!(outcome(&mut office, 3, Command::Resign { term: 1 }), Outcome::Done { .. }));
    assert!(matches!(outcome(&mut office, 4, Command::Resign { term: 1 }), Outcome::Refused(_)));
    assert_eq!(outcome(&mut office, 5, stand(&b)), Outcome::Done { version: 3, number: 3 });
}

#[test]
fn a_barrier_opens_again_and_again() {
    set_mutant(Mutant::NONE);
    let mut key = KeyState::absent(0);
    let arrive = |party: &str, parties| Command::Arrive { party: text(party), parties };
    let opened = |key: &KeyState| match key.content {
        Content::Barrier { opened, .. } => opened,
        _ => panic!("a barrier"),
    };
    assert_eq!(outcome(&mut key, 1, arrive("a", 2)), Outcome::Done { version: 1, number: 1 });
    assert_eq!(outcome(&mut key, 2, arrive("a", 2)), Outcome::Same { number: 1 });
    assert_eq!(opened(&key), 0);
    let other = Outcome::Refused(Refusal::OtherParties { parties: 2, given: 3 });
    assert_eq!(outcome(&mut key, 3, arrive("b", 3)), other);
    assert_eq!(outcome(&mut key, 4, arrive("b", 2)), Outcome::Done { version: 2, number: 1 });
    assert_eq!(opened(&key), 1);
    assert_eq!(outcome(&mut key, 5, arrive("a", 2)), Outcome::Done { version: 3, number: 2 });
}

#[test]
fn limits_name_what_is_wrong() {
    set_mutant(Mutant::NONE);
    let long = |n: usize| Bytes::from(vec![b'x'; n]);
    let says = |command: Command| command.check().unwrap_err().to_string();
    let put = |value| Command::Put { guard: WireGuard::Always {}, value };
    assert_eq!(says(put(long(MAX_VALUE_BYTES + 1))), "the value has 32769 bytes; at most 32768 are allowed");
    assert_eq!(put(long(MAX_VALUE_BYTES)).check(), Ok(()));
    assert_eq!(says(Command::Acquire { owner: Bytes::new() }), "the owner has 0 bytes; 1 to 128 are allowed");
    let insert = Command::Insert { member: long(MAX_NAME_BYTES + 1) };
    assert_eq!(says(insert), "the member has 129 bytes; 1 to 128 are allowed");
    let lease = Command::Lease { owner: text("a"), for_ms: 0, expired: None };
    assert_eq!(says(lease), "the time of a lease is 0; 1 to 3600000 ms is allowed");
    let arrive = Command::Arrive { party: text("a"), parties: 257 };
    assert!(matches!(arrive.check(), Err(InvalidCommand::Number { value: 257, .. })));
    // Another type, and ranges.
    let mut key = KeyState::absent(0);
    run(&mut key, 1, Command::Add { amount: 1 });
    let Outcome::Refused(why) = outcome(&mut key, 2, Command::Acquire { owner: text("a") }) else { panic!() };
    assert_eq!(why.to_string(), "the key holds a counter, and the command is for a lock");
    let Outcome::Refused(why) = outcome(&mut key, 3, Command::Subtract { amount: 2 }) else { panic!() };
    assert_eq!(why.to_string(), "the counter is 1, and would leave the range of 0 to 2^64 - 1");
    // A full set, and a map that is too long.
    let mut set = KeyState::absent(0);
    for n in 0..MAX_MEMBERS as u64 {
        run(&mut set, n + 1, Command::Insert { member: text(&format!("m{n}")) });
    }
    let Outcome::Refused(why) = outcome(&mut set, 999, Command::Insert { member: text("one more") }) else {
        panic!()
    };
    assert_eq!(why.to_string(), "a set has no room: 256 members are allowed");
    let mut map = KeyState::absent(0);
    let set_field = |field: &str| Command::SetField { field: text(field), value: long(20_000) };
    assert!(matches!(outcome(&mut map, 1, set_field("a")), Outcome::Done { .. }));
    let Outcome::Refused(why) = outcome(&mut map, 2, set_field("b")) else { panic!() };
    assert_eq!(why.to_string(), "a map has no room: 32832 bytes are allowed");
}
