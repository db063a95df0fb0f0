//! The records of a lane, in order: those that wait, those that are sent and unanswered. No I/O.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Settled;
use crate::error::{Error, Failure, is_worth_retrying};
use crate::proto::append_stream_reply::{Failed, Outcome};
use crate::proto::{Happened, Records};

/// Most records and payload bytes of a message that this client makes; one long record may exceed the bytes.
const MESSAGE_RECORDS: usize = 1024;
const MESSAGE_BYTES: usize = 256 * 1024;
/// Unanswered messages on a stream. Batches form behind a full stream; nothing waits on an idle one.
const MESSAGES_UNANSWERED: usize = 16;

/// One record on its way.
#[derive(Debug)]
struct Op {
    /// Its name, with the client's: the same for every attempt.
    seq: u64,
    payload: Bytes,
    units: usize,
    deadline: Instant,
    /// A tail known before the first attempt; none before that.
    floor: Option<u64>,
    /// An attempt may have worked.
    doubtful: bool,
    /// None once the caller was told.
    to: Option<oneshot::Sender<Settled>>,
}

impl Op {
    /// The record was sent once, and no caller waits for the outcome any more: there is no further attempt. A record whose caller went away
    /// before the first attempt is sent all the same.
    fn is_over(&self) -> bool {
        self.floor.is_some() && self.to.as_ref().is_none_or(oneshot::Sender::is_closed)
    }
}

/// What follows from a change of the queue, to be done outside of its lock.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    /// Callers to notify, with their outcomes.
    pub(super) told: Vec<(oneshot::Sender<Settled>, Settled)>,
    /// Room that records gave back by leaving.
    pub(super) units: usize,
    /// The stream can send.
    pub(super) outbox: Option<Waker>,
}

/// The stream is not the present one any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamOver;

/// What an outcome means for the stream it came on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Settlement {
    /// Nothing.
    Fine,
    /// This node cannot do it now: everything unsettled goes elsewhere.
    GoElsewhere(Failure),
    /// The server broke the protocol.
    Nonsense(&'static str),
}

/// The records. Sequences grow strictly from the front of `sent` through `waiting`.
#[derive(Debug, Default)]
pub(super) struct Queue {
    last_seq: u64,
    waiting: VecDeque<Op>,
    /// A message each; its records are consecutive.
    sent: VecDeque<Vec<Op>>,
    /// The highest tail that any reply let us conclude. None before the first reply.
    known_tail: Option<u64>,
    /// Which stream may take records; grows with each.
    generation: u64,
    streaming: bool,
    outbox: Option<Waker>,
    /// When the oldest unanswered message, or the opening, became so.
    busy_since: Option<Instant>,
    closing: bool,
    aftermath: Aftermath,
}

impl Queue {
    /// A new record, behind all others. True if the driver must be woken: there is no stream.
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

    /// What was left to do outside of the lock.
    pub(super) fn take_aftermath(&mut self) -> Aftermath {
        std::mem::take(&mut self.aftermath)
    }

    /// No more records will come.
    pub(super) fn close(&mut self) {
        self.closing = true;
    }

    pub(super) fn is_finished(&self) -> bool {
        self.closing && self.is_idle()
    }

    /// Nothing waits and nothing is unanswered.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.sent.is_empty()
    }

    /// The highest tail that any reply let us conclude; None before the first.
    pub(super) fn known_tail(&self) -> Option<u64> {
        self.known_tail
    }

    /// Since when the node owes an answer.
    pub(super) fn busy_since(&self) -> Option<Instant> {
        self.busy_since
    }

    /// Payload bytes that are sent and unanswered.
    pub(super) fn unanswered_bytes(&self) -> usize {
        self.sent.iter().flatten().map(|op| op.payload.len()).sum()
    }

    /// A new stream; its number.
    pub(super) fn begin_stream(&mut self, now: Instant) -> u64 {
        debug_assert!(self.sent.is_empty(), "the last stream was ended");
        self.generation += 1;
        self.streaming = true;
        self.busy_since = Some(now);
        self.generation
    }

    /// The server let the stream begin.
    pub(super) fn opened(&mut self, known_tail: u64) {
        self.known_tail = self.known_tail.max(Some(known_tail));
        if self.sent.is_empty() {
            self.busy_since = None;
        }
        self.wake_outbox();
    }

    /// The stream is over: the records that it had not settled go to the front of the waiting ones, in the same order. `not_taken`: the
    /// server said that records without an answer did not happen.
    pub(super) fn end_stream(&mut self, not_taken: bool) {
        self.generation += 1;
        self.streaming = false;
        self.busy_since = None;
        self.take_back(|op| {
            op.doubtful |= !not_taken;
            if !op.doubtful {
                // The record counts as never sent: it need not be searched for.
                op.floor = None;
            }
        });
        self.wake_outbox();
    }

    /// Moves everything sent to the front of the waiting records, except for records whose outcome no caller waits for any more.
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

    /// A record leaves without telling its caller.
    fn forget(&mut self, op: Op) {
        if op.to.is_some() {
            self.aftermath.units += op.units;
        }
    }

    /// A record leaves, or stays only to be counted: its caller is told.
    fn tell(aftermath: &mut Aftermath, op: &mut Op, outcome: Settled) {
        if let Some(to) = op.to.take() {
            aftermath.told.push((to, outcome));
            aftermath.units += op.units;
        }
    }

    /// The next message for stream `generation`; None if there is none now (the waker is kept), Err if the stream is over.
    pub(super) fn next_message(
        &mut self,
        generation: u64,
        now: Instant,
        waker: &Waker,
    ) -> Result<Option<Records>, StreamOver> {
        if generation != self.generation {
            return Err(StreamOver);
        }
        // Without a tail there is no floor, and without a floor a record could not be sent a second time.
        let message = match self.known_tail {
            Some(tail) if self.sent.len() < MESSAGES_UNANSWERED => self.take_message(tail),
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

    /// Takes a run of consecutive records off the front, all on their first attempt or all on a further one: only the
    /// latter carry a floor and are searched for.
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

    /// The outcome of the oldest unanswered message.
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
                // The outcome of this attempt is known; earlier doubt remains.
                op.doubtful |= !certain;
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

    /// Tells the callers whose deadline has passed. Deadlines grow with the sequence.
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

    /// No node serves a lane like this one: tells all callers.
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
