//! The queue of a lane: its records in order, those that wait and those that are sent but unanswered. It does no I/O.

use std::collections::VecDeque;
use std::task::Waker;

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
    units: usize,
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
    /// The room that settled records have released.
    pub(super) units: usize,
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

/// The queue. Sequence numbers are strictly ascending from the front of `sent` to the end of `waiting`.
#[derive(Debug, Default)]
pub(super) struct Queue {
    last_seq: u64,
    waiting: VecDeque<Op>,
    /// The unanswered messages. The records of each message are consecutive.
    sent: VecDeque<Vec<Op>>,
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
    /// Adds a record at the end. Returns true if the driver must be woken because there is no stream.
    pub(super) fn push(
        &mut self,
        payload: Bytes,
        units: usize,
        deadline: Instant,
        to: oneshot::Sender<Settled>,
    ) -> bool {
        self.last_seq += 1;
        let (seq, floor, doubtful) = (self.last_seq, None, false);
        self.waiting.push_back(Op { seq, payload, units, deadline, floor, doubtful, to: Some(to) });
        self.wake_outbox();
        !self.streaming
    }

    /// Returns the work that is to be done outside the lock.
    pub(super) fn take_aftermath(&mut self) -> Aftermath {
        std::mem::take(&mut self.aftermath)
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
        self.waiting.is_empty() && self.sent.is_empty()
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
        self.sent.iter().flatten().map(|op| op.payload.len()).sum()
    }

    /// Begins a stream and returns its number.
    pub(super) fn begin_stream(&mut self, now: Instant) -> u64 {
        debug_assert!(self.sent.is_empty(), "the last stream was ended");
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
        if self.sent.is_empty() {
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
        while let Some(message) = self.sent.pop_back() {
            for mut op in message.into_iter().rev() {
                mark(&mut op);
                self.put_back(op);
            }
        }
    }

    fn put_back(&mut self, op: Op) {
        if op.is_over() {
            self.forget(op);
        } else {
            self.waiting.push_front(op);
        }
    }

    /// Drops a record whose caller has gone away, and releases its room.
    fn forget(&mut self, op: Op) {
        if op.to.is_some() {
            self.aftermath.units += op.units;
        }
    }

    /// Answers the caller of a record, and releases the record's room. The record may stay in the queue until its message is
    /// answered.
    fn tell(aftermath: &mut Aftermath, op: &mut Op, outcome: Settled) {
        if let Some(to) = op.to.take() {
            aftermath.told.push((to, outcome));
            aftermath.units += op.units;
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
            Some(tail) if self.opened && self.sent.len() < MESSAGES_UNANSWERED => self.take_message(tail),
            _ => None,
        };
        let Some((records, message)) = message else {
            self.outbox = Some(waker.clone());
            return Ok(None);
        };
        if self.sent.is_empty() {
            self.busy_since = Some(now);
        }
        self.sent.push_back(message);
        Ok(Some(records))
    }

    /// Removes a run of consecutive records from the front. They are either all on their first attempt or all on a later one,
    /// because only the latter carry a floor and are searched for.
    fn take_message(&mut self, tail: u64) -> Option<(Records, Vec<Op>)> {
        let mut message: Vec<Op> = Vec::new();
        let mut records = Records::default();
        let mut bytes = 0;
        while let Some(op) = self.waiting.front() {
            if !op.is_over()
                && let Some(last) = message.last()
            {
                let full = message.len() >= MESSAGE_RECORDS || bytes + op.payload.len() > MESSAGE_BYTES;
                if full || op.seq != last.seq + 1 || op.floor.is_some() != records.floor.is_some() {
                    break;
                }
            }
            let Some(mut op) = self.waiting.pop_front() else { break };
            if op.is_over() {
                self.forget(op);
                continue;
            }
            if message.is_empty() {
                records.first_seq = op.seq;
                records.floor = op.floor;
            } else {
                records.floor = records.floor.min(op.floor);
            }
            op.floor.get_or_insert(tail);
            bytes += op.payload.len();
            records.payloads.push(op.payload.clone());
            message.push(op);
        }
        if message.is_empty() { None } else { Some((records, message)) }
    }

    /// Settles the oldest unanswered message.
    pub(super) fn settle(&mut self, outcome: Outcome, now: Instant) -> Settlement {
        let Some(message) = self.sent.pop_front() else {
            return Settlement::Nonsense("an outcome for no message");
        };
        if let Some(failed) = outcome.failed {
            return self.settle_failed(message, failed, now);
        }
        let count: u64 = outcome.runs.iter().map(|run| u64::from(run.count)).sum();
        if count != message.len() as u64 {
            self.sent.push_front(message);
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
            for mut op in message.into_iter().rev() {
                // Whether this attempt took effect may be known, but doubt about earlier attempts remains.
                op.doubtful |= !certain;
                if !op.doubtful {
                    // The record counts as never sent. It gets a newer floor, above which the log is not trimmed yet.
                    op.floor = None;
                }
                self.put_back(op);
            }
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
        self.busy_since = if self.sent.is_empty() { None } else { Some(now) };
        self.wake_outbox();
    }

    /// Answers the callers whose deadline has passed. Deadlines ascend with the sequence numbers.
    pub(super) fn expire(&mut self, now: Instant, why: &Failure) {
        for op in self.sent.iter_mut().flatten() {
            if op.deadline > now {
                return;
            }
            Self::tell(&mut self.aftermath, op, Err(Error::Unknown(why.clone())));
        }
        while self.waiting.front().is_some_and(|op| op.deadline <= now) {
            let Some(mut op) = self.waiting.pop_front() else { break };
            let outcome = match op.doubtful {
                true => Error::Unknown(why.clone()),
                false => Error::DidNotHappen(why.clone()),
            };
            Self::tell(&mut self.aftermath, &mut op, Err(outcome));
        }
    }

    /// Answers the callers of all waiting records, because no node accepts this lane.
    pub(super) fn refuse(&mut self, happened: crate::error::Outcome, why: &Failure) {
        while let Some(mut op) = self.waiting.pop_front() {
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
