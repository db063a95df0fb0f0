//! append: the batches that wait become one message, which is published with the condition that the newest message of the log is the one
//! that the appender knows. If it is another one, the appender reads on and plans anew. One message of a handle is on its way at a time.

use std::sync::Arc;

use atoll_contract::entry::MAX_BATCH_BYTES;
use atoll_contract::{AppendError, Batch, Offset, Placement};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Tick, Ticket};
use atoll_loglet_store::append_queue::{AppendQueue, Outcome, Waiting};
use atoll_loglet_store::plan::Plan;
use bytes::{Bytes, BytesMut};

use crate::known::{Known, Trouble};
use crate::layout::{Body, Damaged, Entries, Message, Stamp};
use crate::loglet::Shared;
use crate::mutants;
use crate::service::{Fault, Subject};

/// The most entries of a message. The node's thread looks each of them up.
const MAX_ENTRIES: usize = 4096;

/// The appends of a handle.
#[derive(Debug)]
pub(crate) struct Appends {
    queue: AppendQueue,
    /// The number of this handle's newest message.
    nonce: u64,
}

impl Appends {
    pub(crate) fn new(writer: u64) -> Self {
        Appends { queue: AppendQueue::new(writer), nonce: 0 }
    }
}

/// A message on its way into the log.
struct Attempt {
    message: Message,
    data: Bytes,
    /// The message that must be the newest one.
    expected: u64,
    placed: Vec<Option<Placement>>,
    /// Whether a publish of it may have happened, or still may.
    doubt: bool,
}

/// What an appender does next.
enum Next {
    /// Publishes this.
    Publish(Attempt),
    /// Nothing: all entries are in the log.
    Placed(Vec<Option<Placement>>),
    /// Gives up.
    Fail(AppendError),
}

impl Shared {
    pub(crate) fn submit(self: &Arc<Self>, batch: Batch, not_below: Offset) -> Ticket<Outcome> {
        let (wait, starts) = lock(&self.appends).queue.submit(batch, not_below, self.options.window_bytes);
        if starts {
            let shared = self.clone();
            self.env.spawn("service.append", Box::pin(async move { shared.append_all().await }));
        }
        wait
    }

    /// Publishes messages as long as appends wait.
    async fn append_all(&self) {
        loop {
            let group = {
                let mut appends = lock(&self.appends);
                if appends.queue.ends() {
                    return;
                }
                appends.queue.take(MAX_BATCH_BYTES, MAX_ENTRIES)
            };
            let placed = self.place(&group).await;
            let is_placed = placed.is_ok();
            let settled = lock(&self.appends).queue.settle(group, placed);
            settled.tell();
            let crowded = self.known(|known| known.crowded_until > self.env.now()) == Ok(true);
            if is_placed && crowded {
                // Whoever has just appended knows the newest message first, so it lets the others read it.
                self.env.sleep(self.env.jitter(self.options.courtesy)).await;
            }
        }
    }

    pub(crate) fn next_stamp(&self) -> Stamp {
        let mut appends = lock(&self.appends);
        appends.nonce += 1;
        Stamp { writer: self.writer, nonce: appends.nonce }
    }

    /// Puts the new entries of these appends into the log, and returns where they are. None for one that may be in what was forgotten;
    /// those behind it are left out. On an error, none of them counts as placed.
    async fn place(&self, group: &[Waiting]) -> Result<Vec<Option<Placement>>, AppendError> {
        let until = self.env.now().after(self.options.append_timeout);
        let mut attempt: Option<Attempt> = None;
        loop {
            let trouble = match self.begin().await.and_then(|()| self.next_step(group, attempt.take())) {
                Ok(Next::Placed(placed)) => return Ok(placed),
                Ok(Next::Fail(why)) => return Err(why),
                Ok(Next::Publish(mut next)) => match self.try_append(&mut next).await {
                    Ok(()) => return Ok(next.placed),
                    Err(trouble) => {
                        attempt = next.doubt.then_some(next);
                        trouble
                    }
                },
                Err(trouble) => trouble,
            };
            if mutant(mutants::SERVICE_SILENCE_IS_NO) && trouble == Trouble::Service(Fault::NoAnswer) {
                return Err(unsure(false, &trouble));
            }
            if trouble == Trouble::Gone {
                return Err(AppendError::Sealed);
            }
            let refused = trouble == Trouble::Service(Fault::Refused);
            let doubt = attempt.is_some();
            let more = self.learn_why(refused, until).await;
            if more == Ok(true) || more == Err(Trouble::Gone) {
                continue;
            }
            if refused && more.is_ok() && self.env.now() < until {
                // The message that is in the way is not durable yet.
                self.env.sleep(self.env.jitter(self.options.courtesy)).await;
                continue;
            }
            let trouble = more.err().filter(|more| !more.passes()).unwrap_or(trouble);
            if let Err(trouble) = self.again(until, trouble).await {
                return Err(unsure(doubt, &trouble));
            }
        }
    }

    /// Reads on after a publish without success. Returns whether something new was there.
    async fn learn_why(&self, refused: bool, until: Tick) -> Result<bool, Trouble> {
        if refused {
            hit("service.append.behind");
        }
        if self.env.now() >= until {
            return Ok(false);
        }
        let before = self.known(|known| known.last);
        self.follow().await?;
        Ok(self.known(|known| known.last) != before)
    }

    /// Decides what to do after an attempt in doubt, or first.
    fn next_step(&self, group: &[Waiting], attempt: Option<Attempt>) -> Result<Next, Trouble> {
        let stamp = self.next_stamp();
        self.known(|known| {
            if let Some(attempt) = attempt {
                if known.own == Some(attempt.message.stamp.nonce) {
                    hit("service.append.found");
                    return Ok(Next::Placed(attempt.placed));
                }
                if known.last == attempt.expected {
                    // Nobody has the place yet. Of all publishes that expect the same, at most one succeeds.
                    return Ok(Next::Publish(attempt));
                }
                if known.since > attempt.expected {
                    // The handle has begun anew, and skipped the place.
                    let lost = Trouble::Service(Fault::NoAnswer);
                    return Ok(Next::Fail(unsure(true, &lost)));
                }
                // Another message has the place, so the attempt cannot succeed any more (service-S4).
                hit("service.append.over");
            }
            if known.sealed {
                return Ok(Next::Fail(AppendError::Sealed));
            }
            let plan = Plan::of(&mut known.ops, group.iter().map(Waiting::wanted), known.next);
            if plan.batches.is_empty() {
                return Ok(Next::Placed(plan.placed));
            }
            self.attempt(known, stamp, plan).map(Next::Publish)
        })?
    }

    fn attempt(&self, known: &Known, stamp: Stamp, plan: Plan) -> Result<Attempt, Trouble> {
        let batch = joined(&plan.batches).ok_or(Damaged("its entries are too many"))?;
        let entries =
            Entries { previous: known.last, first: known.next, trim: known.trim, batch: Some(batch) };
        let message = Message { stamp, body: Body::Entries(entries) };
        let data = message.encode(self.config.token);
        Ok(Attempt { message, data, expected: known.last, placed: plan.placed, doubt: false })
    }

    /// Publishes a message.
    async fn try_append(&self, attempt: &mut Attempt) -> Result<(), Trouble> {
        let expected = (!mutant(mutants::SERVICE_APPENDS_BLINDLY)).then_some(attempt.expected);
        match self.publish(Subject::Log, expected, attempt.data.clone()).await {
            Ok(seq) => {
                self.stored(seq, attempt)?;
                Ok(())
            }
            Err(fault) => {
                attempt.doubt |= fault == Fault::NoAnswer;
                Err(fault.into())
            }
        }
    }

    /// Learns that a message of this handle is in the log. Between the message that it expected and this one, there are only marks.
    fn stored(&self, seq: u64, attempt: &Attempt) -> Result<(), Trouble> {
        // A handle that has begun anew in the meantime reads the message itself.
        let mut known = lock(&self.known);
        if let Some(known) = known.as_mut().filter(|known| known.upto < seq && known.last == attempt.expected)
        {
            known.learn(seq, &attempt.message, self.writer)?;
        }
        drop(known);
        self.keep(seq, attempt.message.clone());
        self.tails.learn(attempt.message.entries().map_or(Offset::ZERO, Entries::end));
        Ok(())
    }
}

/// Joins batches into one. None if it would exceed the limits.
pub(crate) fn joined(batches: &[Batch]) -> Option<Batch> {
    if let [batch] = batches {
        return Some(batch.clone());
    }
    let mut all = BytesMut::with_capacity(batches.iter().map(|batch| batch.bytes().len()).sum());
    batches.iter().for_each(|batch| all.extend_from_slice(batch.bytes()));
    Batch::parse(all.freeze()).ok()
}

/// Returns the error of appends whose message may still get into the log, or cannot.
fn unsure(doubt: bool, trouble: &Trouble) -> AppendError {
    let why = trouble.unavailability();
    if doubt { AppendError::Unknown(why) } else { AppendError::NotAppended(why) }
}
