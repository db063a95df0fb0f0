//! append (native §4): one frame to the sequencer per batch, one answer.
//!
//! Appends of one handle land in the order of the calls (L8). Each carries an epoch and a number; the sequencer takes the
//! numbers of an epoch without a gap. When one fails, the rest of its epoch is refused by the sequencer or by this handle,
//! and a new epoch begins once all of the old one are answered: so nothing overtakes what failed.

use atoll_core::testing::{Mutant, hit, mutant};
use atoll_core::{CallError, Elapsed, Ticket, Unsent};
use atoll_log::{AppendError, Batch, Placement, Why};

use super::loglet::{NativeLoglet, Shared, lock};
use super::message::{Append, Appended, Ordered};

/// The order of one handle's appends.
#[derive(Debug)]
pub(crate) struct AppendState {
    lane: u64,
    epoch: u64,
    next_number: u64,
    in_flight: usize,
    /// An append of this epoch failed.
    broken: bool,
    /// The sequencer has answered: it knows the configuration.
    configured: bool,
    /// Sealed is for ever; no need to ask again.
    sealed: bool,
}

impl AppendState {
    pub fn new(lane: u64) -> Self {
        AppendState {
            lane,
            epoch: 0,
            next_number: 0,
            in_flight: 0,
            broken: false,
            configured: false,
            sealed: false,
        }
    }
}

impl NativeLoglet {
    /// Queued on the connection before this returns.
    pub(crate) fn start_append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let group = &self.0.group;
        let (node, life) = group.config.sequencer;
        let call = {
            // Held over the queueing: the numbers leave in the order in which they are drawn.
            let mut state = lock(&self.0.append);
            if state.sealed {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            if state.broken {
                if state.in_flight > 0 {
                    return Ticket::ready(Err(AppendError::NotAppended(Why::Busy)));
                }
                hit("native.append.new_epoch");
                (state.epoch, state.next_number, state.broken) = (state.epoch + 1, 0, false);
            }
            let message = Append {
                loglet: group.id,
                config: if state.configured { Default::default() } else { group.config_bytes.clone() },
                life,
                lane: state.lane,
                epoch: state.epoch,
                number: state.next_number,
                batch: batch.bytes().clone(),
            };
            state.next_number += 1;
            state.in_flight += 1;
            group.env.call(node, message)
        };
        let shared = self.0.clone();
        group.env.launch("native.append", async move {
            let env = &shared.group.env;
            let answer = env.within(shared.group.options.append_timeout, call).await;
            let result = outcome(&shared, answer);
            let mut state = lock(&shared.append);
            state.in_flight -= 1;
            state.broken |= result.is_err();
            state.sealed |= matches!(result, Err(AppendError::Sealed));
            drop(state);
            result
        })
    }
}

/// What an answer, or its absence, says about the append.
fn outcome(
    shared: &Shared,
    answer: Result<Result<Appended, CallError>, Elapsed>,
) -> Result<Placement, AppendError> {
    let not = |why| Err(AppendError::NotAppended(why));
    let answer = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(CallError::NotSent(Unsent::QueueFull(_)))) => return not(Why::Busy),
        Ok(Err(CallError::NotSent(Unsent::Stopping))) => return not(Why::Stopping),
        Ok(Err(CallError::NotSent(Unsent::NotConnected(_)) | CallError::Refused { .. })) => {
            return not(Why::NoSequencer);
        }
        Ok(Err(CallError::Lost(_) | CallError::Malformed { .. })) | Err(Elapsed) => {
            hit("native.append.unknown");
            // A lost append, or a sequencer of another life: it needs to be told the configuration again.
            lock(&shared.append).configured = false;
            return Err(AppendError::Unknown(Why::NoSequencer));
        }
    };
    let configured = !matches!(answer.outcome, Ordered::Unconfigured {} | Ordered::WrongSequencer {});
    lock(&shared.append).configured = configured;
    match answer.outcome {
        Ordered::Committed { runs } => {
            shared.learn(answer.known_tail);
            Ok(Placement { runs })
        }
        Ordered::Sealed {} => {
            if mutant(Mutant::NativeT19) {
                shared.learn_sealed(answer.known_tail);
            }
            Err(AppendError::Sealed)
        }
        Ordered::Forgotten {} => Err(AppendError::Forgotten),
        Ordered::WrongSequencer {} => not(Why::WrongSequencer),
        Ordered::Busy {} | Ordered::Unconfigured {} => not(Why::Busy),
        Ordered::TooLarge {} => not(Why::TooLarge),
        Ordered::DiskFull {} => not(Why::DiskFull),
        Ordered::NoQuorum {} => Err(AppendError::Unknown(Why::NoQuorum)),
        Ordered::NoSpace {} => Err(AppendError::Unknown(Why::DiskFull)),
    }
}
