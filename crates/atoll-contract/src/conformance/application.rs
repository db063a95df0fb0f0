//! What every [`Application`] must keep, whatever it does: its effects depend on nothing but the command, the state, and where and when
//! the command is applied.

use bytes::Bytes;

use crate::application::{Application, ApplyAt, MapState, Mark, Rejected, Tx, WriteState};

/// A replica of one application, over a state in memory.
struct Replica<A> {
    app: A,
    state: MapState,
}

impl<A: Application> Replica<A> {
    fn start(make: &dyn Fn() -> A) -> Self {
        let mut replica = Replica { app: make(), state: MapState::default() };
        replica.open(0);
        replica
    }

    fn open(&mut self, time_ms: u64) {
        let view = self.state.view(A::ID, crate::LogPos::ZERO, time_ms);
        self.app.opened(&view).unwrap_or_else(|error| panic!("a state in memory cannot be read: {error}"));
    }

    /// Applies a command as an engine does: what is rejected leaves nothing behind. Returns the reply and the number of events.
    fn apply(&mut self, at: &ApplyAt, command: &[u8]) -> (Result<Bytes, Rejected>, usize) {
        let (start, mut events) = (self.state.mark(), Vec::new());
        let reply = self.app.apply(at, command, &mut Tx::new(A::ID, &mut self.state, &mut events));
        if reply.is_err() {
            self.take_back(&start, events.len());
            events.clear();
        }
        (reply, events.len())
    }

    fn take_back(&mut self, to: &Mark, events: usize) {
        let wrote = self.state.mark() != *to;
        self.state.rollback(to);
        if wrote || events > 0 {
            self.app.undone();
        }
    }

    /// Applies a command whose entry is then rolled back.
    fn try_in_vain(&mut self, at: &ApplyAt, command: &[u8]) {
        let (start, mut events) = (self.state.mark(), Vec::new());
        let _ = self.app.apply(at, command, &mut Tx::new(A::ID, &mut self.state, &mut events));
        self.take_back(&start, events.len());
    }
}

/// Applies commands at three replicas and returns the replies. One runs undisturbed. One is started anew before each command, so whatever
/// it does not have in its state is lost. One first applies each command, and the one after it, in vain. All must give the same replies
/// and have the same states.
///
/// # Panics
/// Two replicas differ, or a command wrote a key of another application.
pub fn conforms<A: Application>(
    make: &dyn Fn() -> A,
    commands: &[(ApplyAt, Bytes)],
) -> Vec<Result<Bytes, Rejected>> {
    let [mut steady, mut restarted, mut disturbed] = [(); 3].map(|()| Replica::start(make));
    let mut replies = Vec::with_capacity(commands.len());
    for (n, (at, command)) in commands.iter().enumerate() {
        restarted.app = make();
        restarted.open(at.time_ms);
        disturbed.try_in_vain(at, command);
        if let Some((later, next)) = commands.get(n + 1) {
            disturbed.try_in_vain(later, next);
        }
        let expected = steady.apply(at, command);
        for (who, replica) in [("restarted", &mut restarted), ("disturbed", &mut disturbed)] {
            let got = replica.apply(at, command);
            assert_eq!(got, expected, "{who}: the reply and the number of events of command {n}, at {at:?}");
            assert_eq!(replica.state, steady.state, "{who}: the state after command {n}, at {at:?}");
        }
        replies.push(expected.0);
    }
    let foreign = steady.state.rows().keys().find(|key| key.first() != Some(&A::ID.0));
    assert_eq!(foreign, None, "a key of another application");
    replies
}

#[cfg(test)]
mod tests {
    use atoll_core::{Incarnation, NodeId};

    use super::*;
    use crate::LogPos;
    use crate::application::{AppId, Proposer, StoreError, View};

    /// Counts its commands under one key. Each bug breaks a rule of [`Application`].
    #[derive(Clone, Copy, PartialEq)]
    enum Bug {
        None,
        CountsOnlyInMemory,
        KeepsWhatWasUndone,
    }

    struct Counter {
        bug: Bug,
        count: u64,
    }

    impl Application for Counter {
        type Event = ();
        const ID: AppId = AppId(9);
        const NAME: &'static str = "counter";

        fn apply(&mut self, _: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
            self.count += 1;
            let count = Bytes::copy_from_slice(&self.count.to_be_bytes());
            if self.bug != Bug::CountsOnlyInMemory {
                tx.put(b"count", count.clone());
            }
            tx.emit(());
            if command == b"no" { Err(Rejected(count)) } else { Ok(count) }
        }

        fn opened(&mut self, view: &View) -> Result<(), StoreError> {
            let count = view.get(b"count")?;
            self.count = count.map_or(0, |count| count.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)));
            Ok(())
        }

        fn undone(&mut self) {
            if self.bug != Bug::KeepsWhatWasUndone {
                self.count -= 1;
            }
        }
    }

    fn run(bug: Bug) -> Vec<Result<Bytes, Rejected>> {
        let proposer = Proposer { node: NodeId(1), incarnation: Incarnation(1) };
        let commands: Vec<_> = ["yes", "no", "yes"]
            .into_iter()
            .zip(0..)
            .map(|(command, n)| {
                let at = ApplyAt { position: LogPos(n), index: 0, proposer, time_ms: n, version: 1 };
                (at, Bytes::from_static(command.as_bytes()))
            })
            .collect();
        conforms(&|| Counter { bug, count: 0 }, &commands)
    }

    #[test]
    fn a_good_application_passes() {
        let last = run(Bug::None).pop();
        assert_eq!(last, Some(Ok(Bytes::copy_from_slice(&2u64.to_be_bytes()))));
    }

    #[test]
    #[should_panic(expected = "restarted: the reply")]
    fn a_state_outside_of_the_store_is_found() {
        run(Bug::CountsOnlyInMemory);
    }

    #[test]
    #[should_panic(expected = "disturbed: the reply")]
    fn a_cache_that_keeps_what_was_undone_is_found() {
        run(Bug::KeepsWhatWasUndone);
    }
}
