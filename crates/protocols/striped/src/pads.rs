//! Pads (virtuallog §10): a blocked appender fills the stripes that lag behind, at once and without a timer. A pad takes up a position and
//! holds no record, so readers skip it.

use std::sync::Arc;

use atoll_contract::{AppendError, Batch, LogletError};
use atoll_core::testing::{hit, mutant};

use crate::mutants;
use crate::stripes::Stripes;

/// The most pads in one append.
const MAX_PADS: u64 = 1024;
/// A stripe that seems to lack more than this is asked for its tail first. This handle may just not know how far others have filled it, and
/// pads that nobody needs would leave the other stripes behind.
const CHECK_ABOVE: u64 = 8;

/// Starts to pad each stripe that a blocked append waits for, unless something is on its way to it already.
pub(crate) fn start_padding(stripes: &Arc<Stripes>) {
    if mutant(mutants::STRIPED_NO_PADS) {
        return;
    }
    for stripe in stripes.take_idle() {
        stripes.env.spawn("striped.pad", Box::pin(pad(stripes.clone(), stripe)));
    }
}

/// Pads a stripe until no blocked append waits for it.
async fn pad(stripes: Arc<Stripes>, stripe: usize) {
    let mut is_checked = false;
    loop {
        let lacks = stripes.still_lacks(stripe);
        if lacks == 0 {
            return;
        }
        if lacks > CHECK_ABOVE && !is_checked {
            hit("striped.pads.check");
            is_checked = true;
            check(&stripes, stripe).await;
            continue;
        }
        is_checked = false;
        hit("striped.pads");
        let pads = Batch::pads(lacks.min(MAX_PADS) as usize);
        match stripes.parts[stripe].append(pads).await {
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
async fn check(stripes: &Stripes, stripe: usize) {
    match stripes.parts[stripe].check_tail().await {
        Ok(tail) => stripes.learn_tail(stripe, &tail),
        Err(LogletError::Gone) => stripes.found_sealed(),
        Err(LogletError::Unavailable(_)) => pause(stripes).await,
    }
}

async fn pause(stripes: &Stripes) {
    stripes.env.sleep(stripes.env.jitter(stripes.options.retry)).await;
}
