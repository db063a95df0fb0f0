//! append (the paper's §4.2.2, virtuallog §10): each record goes to the stripe that its name determines. The append is acknowledged once
//! its stripes have it and all earlier positions, on all stripes, are filled.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use atoll_contract::{AppendError, Batch, BatchBuilder, Offset, Placement, Unavailability};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Abandoned, Elapsed, Ticket};

use crate::invariants::may_acknowledge;
use crate::layout::Layout;
use crate::loglet::StripedLoglet;
use crate::mutants;
use crate::stripes::{Freed, Stripes};

type AppendResult = Result<Placement, AppendError>;

/// The part of a batch that goes to one stripe.
struct Share {
    stripe: usize,
    answer: Ticket<AppendResult>,
    done: Option<AppendResult>,
}

/// A batch on its way to its stripes.
struct Dealt {
    /// The stripe of each record, in the order of the batch.
    places: Vec<usize>,
    shares: Vec<Share>,
}

impl StripedLoglet {
    /// Starts an append. The records are queued at their stripes before this returns.
    pub(crate) fn start_append(&self, batch: &Batch, not_below: Offset) -> Ticket<AppendResult> {
        let stripes = &self.0;
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        if stripes.is_sealed() {
            return Ticket::ready(Err(AppendError::Sealed));
        }
        let dealt = deal(stripes, batch, not_below);
        let stripes = stripes.clone();
        self.0.env.launch("striped.append", async move { finish(stripes, dealt).await })
    }
}

/// Sends each record to its stripe.
fn deal(stripes: &Stripes, batch: &Batch, not_below: Offset) -> Dealt {
    let layout = stripes.layout;
    let places: Vec<usize> = batch.ops().map(|op| layout.stripe_of(op)).collect();
    let send = |stripe: usize, share: Batch| {
        stripes.sent(stripe);
        let answer = stripes.parts[stripe].append_above(share, layout.below(stripe, not_below));
        Share { stripe, answer, done: None }
    };
    if places.iter().all(|stripe| *stripe == places[0]) {
        let whole = send(places[0], batch.clone());
        return Dealt { places, shares: vec![whole] };
    }
    let mut builders: Vec<BatchBuilder> = stripes.parts.iter().map(|_| BatchBuilder::new()).collect();
    for (entry, stripe) in batch.entries().zip(&places) {
        builders[*stripe].push(entry.op, &entry.payload);
    }
    let shares = builders.into_iter().enumerate().filter(|(_, share)| !share.is_empty());
    let shares = shares.map(|(stripe, share)| send(stripe, share.finish())).collect();
    Dealt { places, shares }
}

/// Waits for the stripes' answers, and then until all earlier positions are filled.
async fn finish(stripes: Arc<Stripes>, mut dealt: Dealt) -> AppendResult {
    std::future::poll_fn(|cx| {
        for share in dealt.shares.iter_mut().filter(|share| share.done.is_none()) {
            let Poll::Ready(got) = Pin::new(&mut share.answer).poll(cx) else { continue };
            let got = got.unwrap_or(Err(AppendError::Unknown(Unavailability::Stopping)));
            let end = got.as_ref().ok().and_then(|placed| placed.offsets().max()).map(|last| last.plus(1));
            stripes.answered(share.stripe, end);
            share.done = Some(got);
        }
        if dealt.shares.iter().all(|share| share.done.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    let placed = match outcome(stripes.layout, dealt) {
        Ok(placed) => placed,
        Err(error) => {
            if error == AppendError::Sealed {
                stripes.found_sealed();
            }
            return Err(error);
        }
    };
    let end = placed.offsets().max().map_or(Offset::ZERO, |last| last.plus(1));
    if mutant(mutants::STRIPED_ACKS_EARLY) {
        return Ok(placed);
    }
    until_filled(&stripes, end).await?;
    may_acknowledge(end, stripes.known_tail());
    Ok(placed)
}

/// Waits until every position below `end` is filled. Meanwhile, the stripes that lag behind with nothing on its way to them are padded.
async fn until_filled(stripes: &Arc<Stripes>, end: Offset) -> Result<(), AppendError> {
    let Some(mut blocked) = stripes.block(end) else { return Ok(()) };
    hit("striped.append.blocked");
    match stripes.env.within(stripes.options.append_timeout, &mut blocked.freed).await {
        Ok(Ok(Freed::Filled)) => Ok(()),
        Ok(Ok(Freed::Sealed)) => {
            // The stripe that is sealed will not be filled. Its records may still be below the sealed tail (vlog-V2).
            hit("striped.append.sealed_while_blocked");
            Err(AppendError::Sealed)
        }
        Ok(Err(Abandoned)) => Err(AppendError::Unknown(Unavailability::Stopping)),
        Err(Elapsed) => {
            hit("striped.append.still_blocked");
            stripes.give_up(&blocked);
            Err(AppendError::Unknown(Unavailability::NoSequencer))
        }
    }
}

/// Returns what the answers of the stripes amount to. All must have answered.
fn outcome(layout: Layout, dealt: Dealt) -> AppendResult {
    let mut worst: Option<AppendError> = None;
    let mut placed: Vec<std::vec::IntoIter<Offset>> = vec![Vec::new().into_iter(); layout.stripes()];
    let mut some_placed = false;
    for share in dealt.shares {
        match share.done.unwrap_or(Err(AppendError::Unknown(Unavailability::Stopping))) {
            Ok(placement) => {
                some_placed = true;
                placed[share.stripe] = placement.offsets().collect::<Vec<_>>().into_iter();
            }
            Err(error) => worst = Some(worst.map_or(error.clone(), |other| graver(other, error))),
        }
    }
    match worst {
        // "Not appended" must not hide that other records of the batch were.
        Some(AppendError::NotAppended(why)) if some_placed => return Err(AppendError::Unknown(why)),
        Some(error) => return Err(error),
        None => {}
    }
    let mut runs: Vec<(Offset, u32)> = Vec::new();
    for stripe in dealt.places {
        let Some(at) = placed[stripe].next() else {
            return Err(AppendError::Unknown(Unavailability::NoSequencer));
        };
        let at = layout.whole(stripe, at);
        match runs.last_mut() {
            Some((first, count)) if first.plus((*count).into()) == at => *count += 1,
            _ => runs.push((at, 1)),
        }
    }
    Ok(Placement { runs })
}

/// Returns the error of two that leaves more open. After Sealed and Forgotten, the caller searches for the records.
fn graver(one: AppendError, other: AppendError) -> AppendError {
    let rank = |error: &AppendError| match error {
        AppendError::NotAppended(_) => 0,
        AppendError::Unknown(_) => 1,
        AppendError::Forgotten => 2,
        AppendError::Sealed => 3,
    };
    match (&one, &other) {
        (AppendError::NotAppended(_), AppendError::NotAppended(_)) => one,
        _ if rank(&one) >= rank(&other) => one,
        _ => other,
    }
}
