//! The queue of a lane: its records in order, those that wait and those that are sent but unanswered. It does no I/O.

use std::task::Waker;

use atoll_pipeline::{Bounds, Cut, Load, Pipeline};
use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Settled;
use crate::error::{Error, Failure, is_worth_retrying};
use crate::proto::append_stream_reply::{Failed, Outcome};
use crate::proto::{Happened, Records};

/// The maximum number of records and payload bytes in a message of this client. A single long record may exceed the bytes.
const MESSAGE_RECORDS: usize = 1024;
const MESSAGE_BYTES: usize = 256 * 1024;
/// The maximum number of unanswered messages on a stream. Batches form while the stream is full; a record is not delayed on an idle
/// stream.
const MESSAGES_UNANSWERED: usize = 16;

/// A record in the lane.
#[derive(Debug)]
struct Op {
    /// Together with the client id, the name of the record. It is the same for every attempt.
    seq: u64,
    payload: Bytes,
    /// The room that it takes in the window.
    bytes: usize,
    deadline: Instant,
    /// A tail that was known before the first attempt. None before that attempt.
    floor: Option<u64>,
    /// Whether an earlier attempt may have succeeded.
    doubtful: bool,
    /// None once the caller has its outcome.
    to: Option<oneshot::Sender<Settled>>,
}

impl Op {
    /// Returns true if there is no further attempt, because the record was sent at least once and no caller waits for the outcome
    /// any more. A record is sent once even if its caller has gone away.
    fn is_over(&self) -> bool {
        self.floor.is_some() && self.to.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// The work that a change of the queue leaves to be done outside its lock.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// Callers to notify, with the outcomes of their records.
    pub(super) told: Vec<(oneshot::Sender<Settled>, Settled)>,
    /// The records that were settled, and left the window.
    pub(super) settled: Load,
    /// The bytes for which the window has room now.
    pub(super) free_bytes: Option<usize>,
    /// Wakes the stream, which can send.
    pub(super) outbox: Option<Waker>,
}

/// The error for a stream that is no longer the current one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamOver;

/// The consequence of an outcome for the stream on which it arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// There is none.
    Fine,
    /// This node cannot append the records now. Everything unsettled must be sent to another node.
    GoElsewhere(Failure),
    /// The server violated the protocol.
    Nonsense(&'static str),
}

/// The queue. Sequence numbers are strictly ascending from the first record in flight to the last one that waits.
#[derive(Debug)]
pub(super) struct Queue {
    last_seq: u64,
    /// The messages in flight are the unanswered ones. The records of each message are consecutive.
    records: Pipeline<Op, Vec<Op>>,
    /// The window: all unsettled records.
    load: Load,
    bounds: Bounds,
    /// The highest tail that follows from any reply. None before the first reply.
    known_tail: Option<u64>,
    /// The number of the stream that may take records. It rises when a stream begins or ends.
    generation: u64,
    streaming: bool,
    /// Whether the server has opened the stream.
    opened: bool,
    outbox: Option<Waker>,
    /// Since when the node has to answer the oldest message, or the opening of the stream.
    busy_since: Option<Instant>,
    closing: bool,
    aftermath: Aftermath,
}

impl Queue {
    /// Returns an empty queue that admits records within these bounds.
    pub(super) fn new(bounds: Bounds) -> Self {
        Queue {
            last_seq: 0,
            records: Pipeline::default(),
            load: Load::default(),
            bounds,
            known_tail: None,
            generation: 0,
            streaming: false,
            opened: false,
            outbox: None,
            busy_since: None,
            closing: false,
            aftermath: Aftermath::default(),
        }
    }

    /// Returns whether there is room for a record that takes so many bytes of the window.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.load.fits(1, bytes, self.bounds)
    }

    /// Returns the bytes for which the window has room now.
    pub(super) fn free_bytes(&self) -> Option<usize> {
        self.load.free_bytes(self.bounds)
    }

    /// Adds a record at the end. Returns true if the driver must be woken because there is no stream. The caller has checked that there
    /// is room.
    pub(super) fn push(
        &mut self,
        payload: Bytes,
        bytes: usize,
        deadline: Instant,
        to: oneshot::Sender<Settled>,
    ) -> bool {
        self.last_seq += 1;
        self.load.add(1, bytes);
        let (seq, floor, doubtful) = (self.last_seq, None, false);
        self.records.push(Op { seq, payload, bytes, deadline, floor, doubtful, to: Some(to) });
        self.wake_outbox();
        !self.streaming
    }

    /// Returns the work that is to be done outside the lock.
    pub(super) fn take_aftermath(&mut self) -> Aftermath {
        let mut after = std::mem::take(&mut self.aftermath);
        self.load.remove(after.settled.items, after.settled.bytes);
        after.free_bytes = self.free_bytes();
        after
    }

    /// Records that no more records will be added.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.closing && self.is_idle()
    }

    /// Returns true if no record waits and none is unanswered.
    pub(super) fn is_idle(&self) -> bool {
        self.records.is_idle()
    }

    /// Returns the highest tail that follows from any reply. None before the first reply.
    pub(super) fn known_tail(&self) -> Option<u64> {
        self.known_tail
    }

    /// Returns since when the node has to answer. None if it does not have to.
    pub(super) fn busy_since(&self) -> Option<Instant> {
        self.busy_since
    }

    /// Returns the payload bytes that are sent but unanswered.
    pub(super) fn unanswered_bytes(&self) -> usize {
        self.records.flights().iter().flatten().map(|op| op.payload.len()).sum()
    }

    /// Begins a stream and returns its number.
    pub(super) fn begin_stream(&mut self, now: Instant) -> u64 {
        debug_assert!(self.records.flights().is_empty(), "the last stream was ended");
        self.generation += 1;
        self.streaming = true;
        self.opened = false;
        self.busy_since = Some(now);
        self.generation
    }

    /// Records that the server has opened the stream.
    pub(super) fn opened(&mut self, known_tail: u64) {
        self.opened = true;
        self.known_tail = self.known_tail.max(Some(known_tail));
        if self.records.flights().is_empty() {
            self.busy_since = None;
        }
        self.wake_outbox();
    }

    /// Ends the stream. Its unsettled records move to the front of the waiting ones, in the same order. `not_taken`: the records
    /// without an answer certainly did not happen.
    pub(super) fn end_stream(&mut self, not_taken: bool) {
        self.generation += 1;
        self.streaming = false;
        self.opened = false;
        self.busy_since = None;
        self.take_back(|op| {
            op.doubtful |= !not_taken;
            if !op.doubtful {
                // The record counts as never sent, so the log need not be searched for it.
                op.floor = None;
            }
        });
        self.wake_outbox();
    }

    /// Ends the stream if no record waits and none is unanswered. Returns false, and changes nothing, otherwise. A record that is added
    /// later finds no stream, so [`Queue::push`] tells its caller to wake the driver. What is known of the tail stays.
    pub(super) fn end_idle_stream(&mut self) -> bool {
        let idle = self.is_idle();
        if idle {
            self.end_stream(true);
        }
        idle
    }

    /// Moves all sent records to the front of the waiting ones, except those whose outcome no caller waits for any more.
    fn take_back(&mut self, mark: impl Fn(&mut Op)) {
        let (records, aftermath) = (&mut self.records, &mut self.aftermath);
        records.take_back(|mut message| {
            message.iter_mut().for_each(&mark);
            Self::keep(aftermath, message)
        });
    }

    /// Drops the records for which there is no further attempt, and releases their room.
    fn keep(aftermath: &mut Aftermath, mut message: Vec<Op>) -> Vec<Op> {
        message.retain(|op| {
            let over = op.is_over();
            if over {
                Self::forget(aftermath, op);
            }
            !over
        });
        message
    }

    /// Releases the room of a record whose caller has gone away.
    fn forget(aftermath: &mut Aftermath, op: &Op) {
        if op.to.is_some() {
            aftermath.settled.add(1, op.bytes);
        }
    }

    /// Answers the caller of a record, and releases the record's room. The record may stay in the queue until its message is
    /// answered.
    fn tell(aftermath: &mut Aftermath, op: &mut Op, outcome: Settled) {
        if let Some(to) = op.to.take() {
            aftermath.told.push((to, outcome));
            aftermath.settled.add(1, op.bytes);
        }
    }

    /// Returns the next message for stream `generation`. None if there is none now; the waker is then kept. An error if the stream
    /// has ended.
    pub(super) fn next_message(
        &mut self,
        generation: u64,
        now: Instant,
        waker: &Waker,
    ) -> Result<Option<Records>, StreamOver> {
        if generation != self.generation {
            return Err(StreamOver);
        }
        // Before the stream is open, nothing is sent. The node takes the tail that it knows when it opens the stream for one that was known
        // before these records went to anybody. If they came with the opening and lay in a stopped node, they might have been appended
        // through another node below that tail, and would then be appended again (X16).
        let message = match self.known_tail {
            Some(tail) if self.opened && self.records.flights().len() < MESSAGES_UNANSWERED => {
                self.take_message(tail)
            }
            _ => None,
        };
        let Some((records, message)) = message else {
            self.outbox = Some(waker.clone());
            return Ok(None);
        };
        if self.records.flights().is_empty() {
            self.busy_since = Some(now);
        }
        self.records.sent(message);
        Ok(Some(records))
    }

    /// Removes a run of consecutive records from the front. They are either all on their first attempt or all on a later one,
    /// because only the latter carry a floor and are searched for.
    fn take_message(&mut self, tail: u64) -> Option<(Records, Vec<Op>)> {
        let mut bytes = 0;
        let judge = |op: &Op, message: &[Op]| {
            if op.is_over() {
                return Cut::Drop;
            }
            if let Some(last) = message.last() {
                let full = message.len() >= MESSAGE_RECORDS || bytes + op.payload.len() > MESSAGE_BYTES;
                if full || op.seq != last.seq + 1 || op.floor.is_some() != last.floor.is_some() {
                    return Cut::Stop;
                }
            }
            bytes += op.payload.len();
            Cut::Take
        };
        let aftermath = &mut self.aftermath;
        let mut message = self.records.cut(judge, |op| Self::forget(aftermath, &op));
        let first = message.first()?;
        let mut records = Records {
            first_seq: first.seq,
            floor: message.iter().filter_map(|op| op.floor).min(),
            payloads: Vec::with_capacity(message.len()),
        };
        for op in &mut message {
            op.floor.get_or_insert(tail);
            records.payloads.push(op.payload.clone());
        }
        Some((records, message))
    }

    /// Settles the oldest unanswered message.
    pub(super) fn settle(&mut self, outcome: Outcome, now: Instant) -> Settlement {
        let Some(message) = self.records.land() else {
            return Settlement::Nonsense("an outcome for no message");
        };
        if let Some(failed) = outcome.failed {
            return self.settle_failed(message, failed, now);
        }
        let count: u64 = outcome.runs.iter().map(|run| u64::from(run.count)).sum();
        if count != message.len() as u64 {
            self.records.flights_mut().push_front(message);
            return Settlement::Nonsense("positions for another number of records than were sent");
        }
        let positions = outcome
            .runs
            .iter()
            .flat_map(|run| (0..u64::from(run.count)).map(|i| run.first.saturating_add(i)));
        for (mut op, position) in message.into_iter().zip(positions) {
            self.known_tail = self.known_tail.max(Some(position.saturating_add(1)));
            Self::tell(&mut self.aftermath, &mut op, Ok(position));
        }
        self.answered(now);
        Settlement::Fine
    }

    fn settle_failed(&mut self, message: Vec<Op>, failed: Failed, now: Instant) -> Settlement {
        let reason = failed.reason();
        let certain = failed.happened() == Happened::No;
        let failure = Failure::new(reason, failed.message, failed.next);
        if is_worth_retrying(reason) {
            self.take_back(|op| op.doubtful = true);
            let mut message = message;
            for op in &mut message {
                // Whether this attempt took effect may be known, but doubt about earlier attempts remains.
                op.doubtful |= !certain;
                if !op.doubtful {
                    // The record counts as never sent. It gets a newer floor, above which the log is not trimmed yet.
                    op.floor = None;
                }
            }
            let message = Self::keep(&mut self.aftermath, message);
            message.into_iter().rev().for_each(|op| self.records.waiting_mut().push_front(op));
            return Settlement::GoElsewhere(failure);
        }
        for mut op in message {
            let outcome = match certain && !op.doubtful {
                true => Error::DidNotHappen(failure.clone()),
                false => Error::Unknown(failure.clone()),
            };
            Self::tell(&mut self.aftermath, &mut op, Err(outcome));
        }
        self.answered(now);
        Settlement::Fine
    }

    fn answered(&mut self, now: Instant) {
        self.busy_since = if self.records.flights().is_empty() { None } else { Some(now) };
        self.wake_outbox();
    }

    /// Answers the callers whose deadline has passed. Deadlines ascend with the sequence numbers.
    pub(super) fn expire(&mut self, now: Instant, why: &Failure) {
        for op in self.records.flights_mut().iter_mut().flatten() {
            if op.deadline > now {
                return;
            }
            Self::tell(&mut self.aftermath, op, Err(Error::Unknown(why.clone())));
        }
        while self.records.waiting().front().is_some_and(|op| op.deadline <= now) {
            let Some(mut op) = self.records.waiting_mut().pop_front() else { break };
            let outcome = match op.doubtful {
                true => Error::Unknown(why.clone()),
                false => Error::DidNotHappen(why.clone()),
            };
            Self::tell(&mut self.aftermath, &mut op, Err(outcome));
        }
    }

    /// Answers the callers of all waiting records, because no node accepts this lane.
    pub(super) fn refuse(&mut self, happened: crate::error::Outcome, why: &Failure) {
        while let Some(mut op) = self.records.waiting_mut().pop_front() {
            let outcome = match happened == crate::error::Outcome::No && !op.doubtful {
                true => Error::DidNotHappen(why.clone()),
                false => Error::Unknown(why.clone()),
            };
            Self::tell(&mut self.aftermath, &mut op, Err(outcome));
        }
    }

    fn wake_outbox(&mut self) {
        if let Some(waker) = self.outbox.take() {
            self.aftermath.outbox = Some(waker);
        }
    }
}

#[cfg(test)]
#[path = "queue_test.rs"]
mod tests;
