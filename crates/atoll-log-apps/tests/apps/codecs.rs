//! What is written can be read, and what cannot be read is refused with a reason.

use atoll_contract::{ClientId, OpId};
use atoll_core::{Decode, Encode};
use atoll_log_apps::entry::{self, AppEntry, Parts};
use atoll_log_apps::history::History;
use atoll_log_apps::market::{Analysis, Kind, UserEvent};
use atoll_log_apps::mirror::MirrorRecord;
use atoll_log_apps::sessions::{Known, Sessions, Stamp};
use atoll_log_apps::sharded_store::{PlaceMap, PutRecord};
use atoll_log_apps::smr::Commands;
use atoll_log_apps::store::StoreRecord;
use atoll_log_apps::streams::{FieldWrites, StreamIndex, StreamRecord};
use atoll_log_apps::transactions::{Read, TxnRecord};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..20).prop_map(Bytes::from)
}

fn op() -> impl Strategy<Value = OpId> {
    any::<(u64, u64)>().prop_map(|(client, seq)| OpId { client: ClientId(client), seq })
}

fn stamp() -> impl Strategy<Value = Stamp> {
    (op(), any::<u64>()).prop_map(|(op, began)| Stamp { op, began })
}

fn store_record() -> impl Strategy<Value = StoreRecord> {
    prop_oneof![
        (op(), bytes(), bytes()).prop_map(|(op, key, value)| StoreRecord::Value { op, key, value }),
        (stamp(), vec((bytes(), option::of(any::<u64>())), 0..5))
            .prop_map(|(stamp, writes)| StoreRecord::Commit { stamp, writes }),
        (stamp(), any::<u64>()).prop_map(|(stamp, to)| StoreRecord::Rollback { stamp, to }),
        (bytes(), any::<u64>(), bytes()).prop_map(|(key, old, value)| StoreRecord::Move { key, old, value }),
        any::<(u64, u64)>().prop_map(|(below, keep)| StoreRecord::Collect { below, keep }),
    ]
}

fn put_record() -> impl Strategy<Value = PutRecord> {
    prop_oneof![
        (stamp(), bytes(), option::of(bytes())).prop_map(|(stamp, key, value)| PutRecord::Put {
            stamp,
            key,
            value
        }),
        (bytes(), any::<u64>(), bytes()).prop_map(|(key, old, value)| PutRecord::Move { key, old, value }),
    ]
}

fn stream_record() -> impl Strategy<Value = StreamRecord> {
    prop_oneof![
        (op(), vec((bytes(), bytes()), 0..5)).prop_map(|(op, parts)| StreamRecord::Update { op, parts }),
        (bytes(), any::<u64>(), bytes()).prop_map(|(stream, index, state)| StreamRecord::Checkpoint {
            stream,
            index,
            state
        }),
    ]
}

fn user_event() -> impl Strategy<Value = UserEvent> {
    let kind =
        prop_oneof![Just(Kind::View {}), Just(Kind::Cart {}), Just(Kind::Purchase {}), Just(Kind::Search {})];
    ("[a-z]{0,8}", "[a-z]{0,8}", kind, "[a-z]{1,4}/[a-z]{1,4}", any::<u64>(), any::<u64>()).prop_map(
        |(user, session, kind, item, price_cents, time_ms)| UserEvent {
            user,
            session,
            kind,
            item,
            price_cents,
            time_ms,
        },
    )
}

fn txn_record() -> impl Strategy<Value = TxnRecord> {
    let read = prop_oneof![
        (bytes(), any::<u64>()).prop_map(|(key, version)| Read::Key { key, version }),
        (bytes(), bytes()).prop_map(|(from, to)| Read::Range { from, to }),
    ];
    prop_oneof![
        (stamp(), any::<u64>(), vec(read, 0..4), vec((bytes(), option::of(bytes())), 0..4)).prop_map(
            |(stamp, snapshot, reads, writes)| TxnRecord::Intent { stamp, snapshot, reads, writes }
        ),
        (stamp(), "[a-z]{0,8}", bytes()).prop_map(|(stamp, procedure, arguments)| TxnRecord::Call {
            stamp,
            procedure,
            arguments
        }),
        any::<u64>().prop_map(|below| TxnRecord::Forget { below }),
    ]
}

fn mirror_record() -> impl Strategy<Value = MirrorRecord> {
    prop_oneof![
        (any::<u64>(), vec(option::of(bytes()), 0..5))
            .prop_map(|(first, slots)| MirrorRecord::Copies { first, slots }),
        "[a-z]{0,8}".prop_map(|by| MirrorRecord::Promote { by }),
    ]
}

/// Checks a round trip, and that every shorter text is refused.
fn holds<T: Encode + Decode + PartialEq + std::fmt::Debug>(value: &T) {
    let encoded = value.to_bytes();
    assert_eq!(T::from_bytes(encoded.clone()).as_ref(), Ok(value));
    for end in 0..encoded.len() {
        assert!(T::from_bytes(encoded.slice(..end)).is_err(), "{value:?} was read from {end} bytes");
    }
    let sealed = entry::record(value);
    assert_eq!(AppEntry::open(sealed), Ok(AppEntry::Record { body: encoded }));
}

proptest! {
    #[test]
    fn records_survive(store in store_record(), put in put_record(), stream in stream_record(), event in user_event(), txn in txn_record(), mirror in mirror_record(),
                       commands in vec((stamp(), bytes()), 0..5)) {
        holds(&store);
        holds(&put);
        holds(&stream);
        holds(&event);
        holds(&txn);
        holds(&mirror);
        holds(&Commands { commands });
    }

    #[test]
    fn noise_is_refused_or_read(noise in vec(any::<u8>(), 0..80)) {
        let noise = Bytes::from(noise);
        drop(AppEntry::open(noise.clone()));
        drop(StoreRecord::from_bytes(noise.clone()));
        drop(PutRecord::from_bytes(noise.clone()));
        drop(PlaceMap::from_bytes(noise.clone()));
        drop(StreamRecord::from_bytes(noise.clone()));
        drop(StreamIndex::from_bytes(noise.clone()));
        drop(FieldWrites::from_bytes(noise.clone()));
        drop(UserEvent::from_bytes(noise.clone()));
        drop(Analysis::from_bytes(noise.clone()));
        drop(TxnRecord::from_bytes(noise.clone()));
        drop(MirrorRecord::from_bytes(noise.clone()));
        drop(Commands::from_bytes(noise.clone()));
        drop(Sessions::<Bytes>::from_bytes(noise.clone()));
        drop(History::<u64>::from_bytes(noise));
    }

    /// A checkpoint in any order of its parts, with copies, is read as it was written.
    #[test]
    fn checkpoints_survive(state in vec(any::<u8>(), 0..5), times in 0usize..200_000, order in any::<u64>()) {
        let state = Bytes::from(state.repeat(times.min(600_000 / state.len().max(1))));
        let id = OpId { client: ClientId(3), seq: order };
        let mut entries = entry::checkpoint(id, 17, &state);
        entries.extend(entries.clone());
        let at = order as usize % entries.len();
        entries.rotate_left(at);
        let mut parts = Parts::new(1 << 20);
        let found = entries.into_iter().find_map(|data| parts.take(&AppEntry::open(data).unwrap()));
        prop_assert_eq!(found, Some((17, state)));
    }

    /// A history with a floor answers as one that keeps everything.
    #[test]
    fn histories_forget_only_what_they_may(
        changes in vec((0u8..4, option::of(any::<u64>()), 0u8..5), 1..60), limit in 1u64..20)
    {
        let (mut small, mut large) = (History::new(limit), History::new(u64::MAX));
        for (index, (key, value, forget)) in (1u64..).zip(changes) {
            let key = Bytes::from(vec![key]);
            small.put(key.clone(), index, value);
            large.put(key, index, value);
            if forget == 0 {
                small.forget(index / 2);
            }
            for at in small.floor()..=index {
                for key in 0u8..4 {
                    prop_assert_eq!(small.get(&[key], at), large.get(&[key], at));
                }
                prop_assert_eq!(small.changed_above(at), large.changed_above(at));
                prop_assert_eq!(small.range(&[0], &[9], at).collect::<Vec<_>>(),
                                large.range(&[0], &[9], at).collect::<Vec<_>>());
                prop_assert_eq!(small.has_changed(&[1], &[3], at), large.has_changed(&[1], &[3], at));
            }
            prop_assert!(small.changed_above(small.floor()).len() as u64 <= limit.max(1));
            let copy = History::<u64>::from_bytes(small.to_bytes()).unwrap();
            prop_assert_eq!(copy.to_bytes(), small.to_bytes());
        }
    }

    /// Against a table that remembers everything: what took effect is never fresh again.
    #[test]
    fn sessions_never_let_an_operation_happen_twice(
        ops in vec((0u64..5, 1u64..6, 0u64..40), 1..80), clients in 1u32..4, max_ops in 1u32..4)
    {
        let mut sessions = Sessions::<u64>::new(clients, max_ops);
        let mut all = std::collections::BTreeMap::new();
        for (position, (client, seq, back)) in (0u64..).zip(ops) {
            let op = OpId { client: ClientId(client), seq };
            // Every copy of an operation is at or above where it began.
            let began = all.get(&op).map_or(position, |(_, began)| *began).saturating_sub(back * u64::from(!all.contains_key(&op)));
            match sessions.check(&Stamp { op, began }) {
                Known::Fresh => {
                    prop_assert!(all.insert(op, (position + 1, began)).is_none(), "{:?} happens twice", op);
                    sessions.record(op, position + 1, position + 1);
                }
                Known::Done(index) => prop_assert_eq!(all.get(&op).map(|(index, _)| *index), Some(index)),
                Known::Forgotten => {}
            }
            let copy = Sessions::<u64>::from_bytes(sessions.to_bytes()).unwrap();
            prop_assert_eq!(&copy, &sessions);
        }
    }
}

#[test]
fn an_entry_of_a_newer_format_is_refused() {
    let mut data = entry::record(&TxnRecord::Forget { below: 1 }).to_vec();
    data[0] = 2;
    let error = AppEntry::open(Bytes::from(data)).unwrap_err();
    assert!(error.to_string().contains("format of an application's entry"), "{error}");
}
