//! readNext (the paper's §4.2.2): each position is read from its stripe. A longer range is read from all of its stripes at the same time.

use std::ops::Range;
use std::sync::Arc;

use atoll_contract::{Entry, Offset, ReadBatch, ReadError, ReadFrom, Unavailability};
use atoll_core::Ticket;

use crate::layout::Layout;
use crate::stripes::Stripes;

/// What was read from one stripe, and how much of it is still to be handed out.
struct Got {
    entries: std::vec::IntoIter<Entry>,
    /// How many of the entries came from another node. If only some did, it is not known which.
    remote: u64,
    used: u64,
}

/// Reads consecutive entries from `range.start` on.
pub(crate) async fn read(
    stripes: &Arc<Stripes>,
    range: Range<Offset>,
    max_bytes: usize,
    from: ReadFrom,
) -> Result<ReadBatch, ReadError> {
    if range.is_empty() {
        return Err(ReadError::BeyondTail(range.start));
    }
    let layout = stripes.layout;
    let count = range.end.since(range.start).min(layout.stripes() as u64);
    let share_bytes = max_bytes / count as usize;
    let mut asked: Vec<(usize, Ticket<Result<ReadBatch, ReadError>>)> = Vec::with_capacity(count as usize);
    for first in (0..count).map(|i| range.start.plus(i)) {
        let (stripe, at) = layout.place(first);
        let (part, inner) = (stripes.parts[stripe].clone(), at..layout.below(stripe, range.end));
        let reading = async move { part.read(inner, share_bytes, from).await };
        asked.push((stripe, stripes.env.launch("striped.read", reading)));
    }
    let mut got: Vec<Option<Got>> = (0..layout.stripes()).map(|_| None).collect();
    for (i, (stripe, reading)) in asked.into_iter().enumerate() {
        match reading.await.unwrap_or(Err(ReadError::Unavailable(Unavailability::Stopping))) {
            Ok(read) => {
                got[stripe] = Some(Got { entries: read.entries.into_iter(), remote: read.remote, used: 0 });
            }
            // The entries before this one are good.
            Err(_) if i > 0 => {}
            Err(error) => return Err(of_whole(layout, stripe, range.start, error)),
        }
    }
    let mut entries = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let Some(stripe) = got[layout.place(at).0].as_mut() else { break };
        let Some(entry) = stripe.entries.next() else { break };
        stripe.used += 1;
        entries.push(entry);
        at = at.plus(1);
    }
    let remote = got.iter().flatten().map(|stripe| stripe.remote.min(stripe.used)).sum();
    Ok(ReadBatch { entries, remote })
}

/// Translates the error of a stripe for a read that began at `asked`.
fn of_whole(layout: Layout, stripe: usize, asked: Offset, error: ReadError) -> ReadError {
    match error {
        // The last trimmed offset of this stripe is certain. More of the other stripes may be trimmed.
        ReadError::Trimmed(to) => {
            let last = layout.whole(stripe, Offset(to.0.saturating_sub(1)));
            ReadError::Trimmed(last.max(asked).plus(1))
        }
        ReadError::BeyondTail(_) => ReadError::BeyondTail(asked),
        other => other,
    }
}
