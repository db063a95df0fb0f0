//! append (native §4): per batch, one frame to the sequencer and one answer.

use bytes::Bytes;

use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::testing::mutant;
use atoll_core::{CallError, Elapsed, Ticket};
use atoll_loglet_store::handle_order::{answered, unanswered};

use crate::mutants;

use super::loglet::{NativeLoglet, Shared};
use super::message::{Append, Appended, NotBelow, Ordered};
use atoll_core::sync::lock;

impl NativeLoglet {
    /// Starts an append. It is queued on the connection before this returns.
    pub(crate) fn start_append(
        &self,
        batch: Batch,
        not_below: Offset,
    ) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let group = &self.0.group;
        let (node, life) = group.config.sequencer;
        let call = {
            // Hold the lock while queueing, so that the numbers leave in the order in which they are drawn.
            let mut order = lock(&self.0.order);
            if order.sealed {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            let Some(place) = order.next_place() else {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            };
            let config = if order.configured { Bytes::new() } else { group.config_bytes.clone() };
            let batch = batch.bytes().clone();
            let not_below = NotBelow::say(&group.env, not_below);
            let message = Append { loglet: group.id, config, life, place, not_below, batch };
            group.env.call(node, message)
        };
        let shared = self.0.clone();
        group.env.launch("native.append", async move {
            let env = &shared.group.env;
            let answer = env.within(shared.group.options.append_timeout, call).await;
            let result = outcome(&shared, answer);
            let mut order = lock(&shared.order);
            order.settle(result.is_ok());
            order.sealed |= matches!(result, Err(AppendError::Sealed));
            drop(order);
            result
        })
    }
}

/// Returns what an answer, or the lack of one, means for the append.
fn outcome(
    shared: &Shared,
    answer: Result<Result<Appended, CallError>, Elapsed>,
) -> Result<Placement, AppendError> {
    let answer = match answer.map_err(|Elapsed| None).and_then(|answer| answer.map_err(Some)) {
        Ok(answer) => answer,
        Err(error) => {
            // The append was lost, or the sequencer is in another life. Send it the configuration again.
            lock(&shared.order).configured = false;
            return Err(unanswered(error));
        }
    };
    let configured = !matches!(answer.outcome, Ordered::Unconfigured {} | Ordered::WrongSequencer {});
    lock(&shared.order).configured = configured;
    if matches!(answer.outcome, Ordered::Sealed {}) && mutant(mutants::NATIVE_T19) {
        shared.tails.learn_sealed(answer.known_tail);
    }
    let placement = answered(answer.outcome)?;
    shared.tails.learn(answer.known_tail);
    Ok(placement)
}
