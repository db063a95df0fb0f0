//! Pads (virtuallog §10): a blocked appender fills the stripes that lag behind, at once and without a timer. A pad takes up a position and
//! holds no record, so readers skip it.

use std::sync::Arc;
use std::task::Poll;

use atoll_contract::{AppendError, Batch, LogletError};
use atoll_core::testing::{hit, mutant};

use crate::mutants;
use crate::stripes::Stripes;

/// The most pads in one append.
const MAX_PADS: u64 = 1024;
/// A stripe that seems to lack more than this is asked for the last ones first. Others may have filled it, without the knowledge of this
/// handle; the answer then says so. Otherwise it says how many are missing. A stripe that cannot be told which offsets are meant is asked
/// for its tail, however many it seems to lack: it would append all pads.
const FIRST_PADS: u64 = 8;

/// Starts to pad these stripes, which count as being padded.
pub(crate) fn start_padding(stripes: &Arc<Stripes>, idle: Vec<usize>) {
    if mutant(mutants::STRIPED_NO_PADS) {
        return;
    }
    for stripe in idle {
        stripes.env.spawn("striped.pad", Box::pin(pad(stripes.clone(), stripe)));
    }
}

/// Pads a stripe until no blocked append waits for it.
async fn pad(stripes: Arc<Stripes>, stripe: usize) {
    let mut is_known = false;
    loop {
        // Whoever has just got an answer may append again in this turn, perhaps to this stripe.
        after_others().await;
        let (filled, lacks) = stripes.still_lacks(stripe);
        if lacks == 0 {
            return;
        }
        let (mut from, mut count) = (filled, lacks.min(MAX_PADS));
        let fills_once = stripes.parts[stripe].fills_once();
        is_known = !is_known && (lacks > FIRST_PADS || !fills_once);
        if is_known {
            hit("striped.pads.ask");
            if !fills_once {
                check(&stripes, stripe).await;
                continue;
            }
            (from, count) = (filled.plus(lacks - FIRST_PADS), FIRST_PADS);
        }
        hit("striped.pads");
        let pads = Batch::pads(count as usize);
        // Other handles may ask for the same. The stripe fills each offset once (striped-I7).
        match stripes.parts[stripe].append_above(pads, from).await {
            Ok(Ok(placed)) => {
                let end = placed.offsets().max().map(|last| last.plus(1));
                stripes.learn(stripe, end.unwrap_or_default());
            }
            Ok(Err(AppendError::Sealed)) => stripes.found_sealed(),
            Ok(Err(AppendError::NotAppended(_))) => pause(&stripes).await,
            // The pads may be there. Nobody else may ever append, so this must not wait for another append to tell.
            Ok(Err(AppendError::Unknown(_) | AppendError::Forgotten)) => {
                hit("striped.pads.unknown");
                check(&stripes, stripe).await;
            }
            // The node is stopping.
            Err(_) => return,
        }
    }
}

/// Learns the tail of a stripe.
async fn check(stripes: &Arc<Stripes>, stripe: usize) {
    match stripes.parts[stripe].check_tail().await {
        Ok(tail) => stripes.learn_tail(stripe, &tail),
        Err(LogletError::Gone) => stripes.found_sealed(),
        Err(LogletError::Unavailable(_)) => pause(stripes).await,
    }
}

async fn pause(stripes: &Stripes) {
    stripes.env.sleep(stripes.env.jitter(stripes.options.retry)).await;
}

/// Lets the procedures that are ready continue first.
async fn after_others() {
    let mut is_later = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut is_later, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
