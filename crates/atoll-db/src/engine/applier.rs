//! Entries in, answers out.

use std::sync::Arc;

use atoll_log::Entry;

use super::Applied;
use super::ProposeError;
use super::core::{Core, Waiting};
use crate::replica::{Halt, Outcome, Replica};

/// Overlay that is committed when it is larger.
const COMMIT_ABOVE_BYTES: usize = 4 * 1024 * 1024;

/// Drives a replica on behalf of a core. One per replica, on one thread.
pub(crate) struct Applier {
    replica: Replica,
    core: Arc<Core>,
}

struct Answer {
    waiting: Waiting,
    outcome: Outcome,
    position: atoll_log::LogPos,
    time_ms: u64,
}

impl Applier {
    pub(crate) fn new(replica: Replica, core: Arc<Core>) -> Self {
        Applier { replica, core }
    }

    /// Applies entries that follow each other, from the first that is not applied on: hands their events over, publishes the
    /// state, answers their
    /// callers, in this order (X19). On a halt, what was applied before it is published, and everybody hears of the halt.
    pub(crate) fn apply(&mut self, entries: &[Entry]) -> Result<(), Halt> {
        let mut answers = Vec::new();
        let (mut commands, mut rejected) = (0, 0);
        let mut halted = None;
        for entry in entries {
            let position = self.replica.next();
            match self.replica.apply(entry) {
                Ok(outcome) => {
                    if let Outcome::Applied(replies) = &outcome {
                        commands += replies.len() as u64;
                        rejected += replies.iter().filter(|r| r.is_err()).count() as u64;
                    }
                    if let Some(waiting) = self.core.take_waiting(entry.op) {
                        let time_ms = self.replica.time_ms();
                        answers.push(Answer { waiting, outcome, position, time_ms });
                    }
                }
                Err(halt) => {
                    halted = Some(halt);
                    break;
                }
            }
        }
        self.core.publish(self.replica.publish());
        for answer in answers {
            answer.give();
        }
        if halted.is_none() && self.replica.overlay_bytes() > COMMIT_ABOVE_BYTES {
            halted = self.commit().err();
        }
        self.report(commands, rejected);
        match halted {
            Some(halt) => {
                self.core.halt(&halt);
                Err(halt)
            }
            None => Ok(()),
        }
    }

    /// Commits everything that is applied to the store, durably.
    pub(crate) fn commit(&mut self) -> Result<(), Halt> {
        self.replica.commit()?;
        self.replica.persist()?;
        self.core.publish(self.replica.publish());
        let at = self.replica.next();
        self.core.figures(|f| f.committed_below = at);
        Ok(())
    }

    fn report(&self, commands: u64, rejected: u64) {
        let (overlay, store) = (self.replica.overlay_bytes() as u64, self.replica.store_bytes());
        let foreign = self.replica.foreign();
        self.core.figures(|f| {
            f.commands += commands;
            f.rejected += rejected;
            f.overlay_bytes = overlay;
            f.store_bytes = store;
            f.foreign_entries = foreign;
        });
    }
}

impl Answer {
    fn give(self) {
        let (position, time_ms) = (self.position, self.time_ms);
        let callers = self.waiting.callers;
        match self.outcome {
            Outcome::Applied(replies) => {
                for ((index, caller), reply) in (0..).zip(callers).zip(replies) {
                    caller.complete(Ok(Applied { position, index, time_ms, reply }));
                }
            }
            // A first copy would have answered them: it was left out, or is in front of what this replica has seen.
            Outcome::Copy => {
                for caller in callers {
                    caller.complete(Err(ProposeError::Skipped(position)));
                }
            }
            Outcome::Refused | Outcome::Foreign => {
                for caller in callers {
                    caller.complete(Err(ProposeError::Refused));
                }
            }
        }
    }
}
