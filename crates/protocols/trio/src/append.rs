//! append, on the side of the handle: per batch, one message to the clerk and one answer.

use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::{CallError, Elapsed, Ticket};
use atoll_loglet_store::handle_order::{answered, unanswered};
use atoll_loglet_store::message::{Appended, NotBelow};

use crate::loglet::{Shared, TrioLoglet};
use crate::message::Append;

impl TrioLoglet {
    /// Starts an append. It is queued on the connection before this returns.
    pub(crate) fn start_append(
        &self,
        batch: Batch,
        not_below: Offset,
    ) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let s = &self.0;
        let call = {
            // Hold the lock while queueing, so that the numbers leave in the order in which they are drawn.
            let mut order = lock(&s.order);
            if order.sealed {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            let Some(place) = order.next_place() else {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            };
            let (config, batch) = (s.config_bytes.clone(), batch.bytes().clone());
            let not_below = NotBelow::say(&s.env, not_below);
            s.env.call(s.config.clerk.0, Append { loglet: s.id, config, place, not_below, batch })
        };
        let shared = s.clone();
        s.env.launch("trio.append", async move {
            let answer = shared.env.within(shared.options.append_timeout, call).await;
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
    let answer = answer.map_err(|Elapsed| None).and_then(|answer| answer.map_err(Some));
    let answer = answer.map_err(unanswered)?;
    let placement = answered(answer.outcome)?;
    shared.tails.learn(answer.known_tail);
    Ok(placement)
}
