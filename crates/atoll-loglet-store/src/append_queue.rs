//! The appends of a handle that orders them itself, in a store or service outside of the cluster: they wait until a procedure takes as many
//! as fit into one piece of the log. One piece of a handle is on its way at a time, so its appends stay in order (vlog-L8).

use std::collections::VecDeque;

use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::{Completer, Ticket, ticket};

use crate::handle_order::HandleOrder;
use crate::plan::Wanted;

/// The most appends that wait in a handle.
const MAX_WAITING: usize = 1024;

/// The outcome of an append.
pub type Outcome = Result<Placement, AppendError>;

/// An append that waits.
#[derive(Debug)]
pub struct Waiting {
    batch: Batch,
    not_below: Offset,
    done: Completer<Outcome>,
}

impl Waiting {
    /// Returns what it wants.
    pub fn wanted(&self) -> Wanted<'_> {
        Wanted { batch: &self.batch, not_below: self.not_below }
    }
}

/// Appends with their outcomes. Their callers get them from `tell`, which must run after the lock of the queue was released.
#[must_use]
#[derive(Debug)]
pub struct Settled(Vec<(Waiting, Outcome)>);

impl Settled {
    /// Tells the callers.
    pub fn tell(self) {
        self.0.into_iter().for_each(|(append, outcome)| append.done.complete(outcome));
    }
}

/// The appends of a handle without an outcome.
#[derive(Debug)]
pub struct AppendQueue {
    order: HandleOrder,
    waiting: VecDeque<Waiting>,
    /// The bytes of all appends without an outcome.
    bytes: usize,
    /// Whether a procedure takes them.
    running: bool,
}

impl AppendQueue {
    /// Returns the queue of a new handle, whose number the caller has drawn at random.
    pub fn new(handle: u64) -> Self {
        AppendQueue { order: HandleOrder::new(handle), waiting: VecDeque::new(), bytes: 0, running: false }
    }

    /// Adds an append, if there is room for its bytes. Returns whether the procedure must be started.
    pub fn submit(
        &mut self,
        batch: Batch,
        not_below: Offset,
        window_bytes: usize,
    ) -> (Ticket<Outcome>, bool) {
        if batch.is_empty() {
            return (Ticket::ready(Ok(Placement { runs: Vec::new() })), false);
        }
        if self.order.sealed {
            return (Ticket::ready(Err(AppendError::Sealed)), false);
        }
        let bytes = batch.bytes().len();
        let fits = self.bytes == 0 || self.bytes + bytes <= window_bytes;
        if !fits || self.waiting.len() >= MAX_WAITING || self.order.next_place().is_none() {
            return (Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy))), false);
        }
        let (done, wait) = ticket();
        self.bytes += bytes;
        self.waiting.push_back(Waiting { batch, not_below, done });
        (wait, !std::mem::replace(&mut self.running, true))
    }

    /// Returns whether none waits. The procedure must end then, and [`AppendQueue::submit`] says when to start another one.
    pub fn ends(&mut self) -> bool {
        if self.waiting.is_empty() {
            self.running = false;
        }
        !self.running
    }

    /// Takes the appends that fit into one piece of the log, and at least one.
    pub fn take(&mut self, most_bytes: usize, most_entries: usize) -> Vec<Waiting> {
        let (mut group, mut bytes, mut entries) = (Vec::new(), 0, 0);
        while let Some(next) = self.waiting.front() {
            bytes += next.batch.bytes().len();
            entries += next.batch.len();
            if (bytes > most_bytes || entries > most_entries) && !group.is_empty() {
                break;
            }
            group.extend(self.waiting.pop_front());
        }
        group
    }

    /// Gives the appends of a group their outcomes: where they are, or why none of them has a place. None says that an operation of an
    /// append may be in what was forgotten; those behind it are not placed. What waits behind a failed append is refused, because it must
    /// not overtake the retry (vlog-L8).
    pub fn settle(
        &mut self,
        group: Vec<Waiting>,
        placed: Result<Vec<Option<Placement>>, AppendError>,
    ) -> Settled {
        let failed = match &placed {
            Err(why) => Some(why.clone()),
            Ok(placed) => placed.contains(&None).then_some(AppendError::Forgotten),
        };
        let mut placements = placed.unwrap_or_default().into_iter();
        let mut forgotten = false;
        let outcome = |append| {
            let outcome = match placements.next() {
                Some(Some(placement)) => Ok(placement),
                Some(None) => {
                    forgotten = true;
                    Err(AppendError::Forgotten)
                }
                None if forgotten => Err(AppendError::NotAppended(Unavailability::Busy)),
                None => Err(failed.clone().unwrap_or(AppendError::NotAppended(Unavailability::Busy))),
            };
            (append, outcome)
        };
        let mut settled: Vec<_> = group.into_iter().map(outcome).collect();
        if let Some(why) = failed {
            let refused = match why {
                AppendError::Sealed => AppendError::Sealed,
                _ => AppendError::NotAppended(Unavailability::Busy),
            };
            settled.extend(self.waiting.drain(..).map(|append| (append, Err(refused.clone()))));
        }
        for (append, outcome) in &settled {
            self.bytes -= append.batch.bytes().len();
            self.order.settle(outcome.is_ok());
            self.order.sealed |= *outcome == Err(AppendError::Sealed);
        }
        Settled(settled)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry, OpId};

    fn batch(seq: u64) -> Batch {
        Batch::of([Entry { op: OpId { client: ClientId(1), seq }, payload: vec![0; 100].into() }])
    }

    fn outcome(ticket: &mut Ticket<Outcome>) -> Option<Outcome> {
        ticket.try_take().map(Result::unwrap)
    }

    #[test]
    fn what_waits_behind_a_failed_append_fails_too() {
        let mut queue = AppendQueue::new(1);
        let mut waits: Vec<_> = (1..=4).map(|seq| queue.submit(batch(seq), Offset::ZERO, 1 << 20)).collect();
        assert_eq!(waits.iter().map(|(_, starts)| *starts).collect::<Vec<_>>(), [true, false, false, false]);
        let group = queue.take(250, 10);
        assert_eq!(group.len(), 2, "as many as fit");
        let first = Placement::contiguous(Offset(7), 1);
        queue.settle(group, Ok(vec![Some(first.clone()), None])).tell();
        let busy = Err(AppendError::NotAppended(Unavailability::Busy));
        let all: Vec<_> = waits.iter_mut().map(|(wait, _)| outcome(wait).unwrap()).collect();
        assert_eq!(all, [Ok(first), Err(AppendError::Forgotten), busy.clone(), busy]);
        assert!(queue.ends() && queue.bytes == 0);
        assert!(queue.submit(batch(1), Offset::ZERO, 1 << 20).1, "a new procedure has to start");
    }

    #[test]
    fn the_bytes_that_wait_are_bounded_and_a_seal_is_remembered() {
        let mut queue = AppendQueue::new(1);
        let (_first, _) = queue.submit(batch(1), Offset::ZERO, 150);
        let (mut second, starts) = queue.submit(batch(2), Offset::ZERO, 150);
        assert!(!starts);
        assert_eq!(outcome(&mut second), Some(Err(AppendError::NotAppended(Unavailability::Busy))));
        let group = queue.take(1, 1);
        queue.settle(group, Err(AppendError::Sealed)).tell();
        let (mut late, _) = queue.submit(batch(3), Offset::ZERO, 150);
        assert_eq!(outcome(&mut late), Some(Err(AppendError::Sealed)));
    }
}
