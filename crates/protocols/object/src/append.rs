//! append: the batches that wait become one object, which takes the next index by a conditional put. An appender that loses the index reads
//! what took it, and tries the one behind with what is then new. One object of a handle is on its way at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Completer, Tick, Ticket, ticket};
use atoll_loglet_store::handle_order::HandleOrder;
use atoll_loglet_store::remembered_ops::RememberedOps;

use crate::known::At;
use crate::loglet::{Shared, unavailable};
use crate::mutants;
use crate::object::{Entries, Note, Stamp};
use crate::plan::{self, Plan, Wanted};
use crate::shelf::{Fault, Look};
use crate::store::StoreError;

/// The most entries of an object. The node's thread looks each of them up.
const MAX_ENTRIES: usize = 4096;
/// The most appends that wait in a handle.
const MAX_WAITING: usize = 1024;
/// How many objects an appender reads to learn their operations, when it begins, and at most to catch up.
const READ_BACK: u64 = 32;
/// After this many indexes lost in a row, the appender searches for the end.
const LOSSES: u32 = 4;

/// For how long an appender relies on what it knows about the end of the log.
const FRESH: Duration = Duration::from_secs(10);

/// An append that waits for its object.
#[derive(Debug)]
struct Waiting {
    batch: Batch,
    not_below: Offset,
    done: Completer<Result<Placement, AppendError>>,
}

/// The operations in the log, and up to which object they are known.
#[derive(Debug)]
struct Memory {
    ops: RememberedOps,
    next: At,
}

/// The appends of a handle.
#[derive(Debug)]
pub(crate) struct Appends {
    order: HandleOrder,
    waiting: VecDeque<Waiting>,
    /// The bytes of all appends without an answer.
    bytes: usize,
    /// Whether a procedure puts objects. It has the memory then.
    running: bool,
    memory: Option<Memory>,
    /// When the next object may be put.
    due: Tick,
    /// Distinguishes this handle's objects from all others.
    writer: u64,
    objects: u64,
}

impl Appends {
    /// Returns the appends of a new handle, whose number the caller has drawn at random.
    pub(crate) fn new(writer: u64) -> Self {
        Appends {
            order: HandleOrder::new(writer),
            waiting: VecDeque::new(),
            bytes: 0,
            running: false,
            memory: None,
            due: Tick(0),
            writer,
            objects: 0,
        }
    }
}

/// What became of a put.
enum Outcome {
    /// The object is in the log. The mark of its block, which may ask for a seal.
    Stored(Option<Note>),
    /// Something else has the index, or there is a seal.
    Lost,
    /// The index was deleted. The object was put too late, or was trimmed before this appender learned that it was there.
    Void,
    /// Time is up, or the store refuses.
    Failed(Fault),
}

impl Shared {
    pub(crate) fn submit(
        self: &Arc<Self>,
        batch: Batch,
        not_below: Offset,
    ) -> Ticket<Result<Placement, AppendError>> {
        if batch.is_empty() {
            return Ticket::ready(Ok(Placement { runs: Vec::new() }));
        }
        let (wait, starts) = {
            let mut appends = lock(&self.appends);
            if appends.order.sealed {
                return Ticket::ready(Err(AppendError::Sealed));
            }
            let bytes = batch.bytes().len();
            let fits = appends.bytes == 0 || appends.bytes + bytes <= self.options.window_bytes;
            if !fits || appends.waiting.len() >= MAX_WAITING || appends.order.next_place().is_none() {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            }
            let (done, wait) = ticket();
            appends.bytes += bytes;
            appends.waiting.push_back(Waiting { batch, not_below, done });
            (wait, !std::mem::replace(&mut appends.running, true))
        };
        if starts {
            let shared = self.clone();
            self.env.spawn("object.append", Box::pin(async move { shared.put_all().await }));
        }
        wait
    }

    fn answer(&self, append: Waiting, result: Result<Placement, AppendError>) {
        {
            let mut appends = lock(&self.appends);
            appends.bytes -= append.batch.bytes().len();
            appends.order.settle(result.is_ok());
            appends.order.sealed |= result == Err(AppendError::Sealed);
        }
        append.done.complete(result);
    }

    /// Puts objects as long as appends wait.
    async fn put_all(&self) {
        let mut memory = lock(&self.appends).memory.take();
        while let Some(group) = self.next_group(&mut memory).await {
            let result = self.place(&group, &mut memory).await;
            let why = result.as_ref().err().cloned();
            let placed = result.unwrap_or_default();
            for (i, append) in group.into_iter().enumerate() {
                let result = match (&why, placed.get(i)) {
                    (Some(why), _) => Err(why.clone()),
                    (None, Some(Some(placement))) => Ok(placement.clone()),
                    (None, Some(None)) => Err(AppendError::Forgotten),
                    (None, None) => Err(AppendError::NotAppended(Unavailability::Busy)),
                };
                self.answer(append, result);
            }
            // What waits behind a failed append must not overtake its retry (vlog-L8).
            if let Some(why) = why.or_else(|| placed.contains(&None).then_some(AppendError::Forgotten)) {
                let refused = match why {
                    AppendError::Sealed => AppendError::Sealed,
                    _ => AppendError::NotAppended(Unavailability::Busy),
                };
                let all = std::mem::take(&mut lock(&self.appends).waiting);
                all.into_iter().for_each(|append| self.answer(append, Err(refused.clone())));
            }
        }
    }

    /// Returns the appends of the next object, once it may be put. If none waits, gives the memory back and returns None.
    async fn next_group(&self, memory: &mut Option<Memory>) -> Option<Vec<Waiting>> {
        loop {
            let due = {
                let mut appends = lock(&self.appends);
                if appends.waiting.is_empty() {
                    appends.running = false;
                    appends.memory = memory.take();
                    return None;
                }
                if self.env.now() >= appends.due {
                    return Some(self.cut(&mut appends.waiting));
                }
                appends.due
            };
            self.env.sleep_until(due).await;
        }
    }

    fn cut(&self, waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        let (mut group, mut bytes, mut entries) = (Vec::new(), 0, 0);
        while let Some(next) = waiting.front() {
            bytes += next.batch.bytes().len();
            entries += next.batch.len();
            let fits = bytes <= self.config.batch_bytes as usize && entries <= MAX_ENTRIES;
            if !fits && !group.is_empty() {
                break;
            }
            group.extend(waiting.pop_front());
        }
        group
    }

    /// Puts the new entries of these appends into the log, and returns where they are. None for one that may be in what was forgotten;
    /// those behind it are left out. On an error, none of them counts as placed.
    async fn place(
        &self,
        group: &[Waiting],
        memory: &mut Option<Memory>,
    ) -> Result<Vec<Option<Placement>>, AppendError> {
        let start = self.env.now();
        let until = start.after(self.options.append_timeout);
        let interval = Duration::from_millis(self.config.interval_ms.into());
        // Whether a put of these entries may still succeed, or has.
        let mut doubt = false;
        let mut losses = 0;
        // A node that knows nothing new may be so far behind that its index is deleted. It would find out, but only after a put with an
        // unknown outcome. Errors show below.
        if self.known().looked.after(FRESH) <= start {
            let _ = self.follow().await;
        }
        let result = loop {
            let state = match self.catch_up(memory, until).await {
                Ok(state) => state,
                Err(Fault::Gone) => break Err(AppendError::Sealed),
                Err(fault) => break Err(unsure(doubt, &fault)),
            };
            if self.known().sealed() {
                break Err(AppendError::Sealed);
            }
            let wanted = group.iter().map(|w| Wanted { batch: &w.batch, not_below: w.not_below });
            let plan = Plan::of(&mut state.ops, wanted, state.next.first);
            if plan.found {
                hit("object.append.found");
            }
            if plan.batches.is_empty() {
                break Ok(plan.placed);
            }
            let entries = self.object(state.next, &plan);
            match self.put_object(&entries, until, &mut doubt).await {
                Outcome::Stored(mark) => {
                    self.stored(entries, state);
                    self.help_to_seal(mark).await;
                    break Ok(plan.placed);
                }
                Outcome::Lost => {
                    hit("object.append.lost");
                    losses += 1;
                    // Fails again below, if it fails.
                    if losses % LOSSES == 0 {
                        let _ = self.follow().await;
                    }
                }
                Outcome::Void => break Err(AppendError::Unknown(Unavailability::NoQuorum)),
                Outcome::Failed(Fault::Gone) => break Err(AppendError::Sealed),
                Outcome::Failed(fault) => break Err(unsure(doubt, &fault)),
            }
        };
        // A node that wins an index has the head start for the next one, so it lets the others have it.
        let due =
            if losses > 0 { self.env.now().after(self.env.jitter(interval)) } else { start.after(interval) };
        lock(&self.appends).due = due;
        result
    }

    fn object(&self, at: At, plan: &Plan) -> Arc<Entries> {
        let stamp = {
            let mut appends = lock(&self.appends);
            appends.objects += 1;
            Stamp { writer: appends.writer, nonce: appends.objects }
        };
        let batches = plan.batches.clone();
        Arc::new(Entries { index: at.index, first: at.first, count: plan.count, stamp, batches })
    }

    /// Takes an index for an object. One that was put without an answer is put again, at the same index, until somebody has that index:
    /// then an earlier attempt cannot succeed any more.
    async fn put_object(&self, entries: &Arc<Entries>, until: Tick, doubt: &mut bool) -> Outcome {
        let (object, id, at) = (entries.clone(), self.id, At { index: entries.index, first: entries.first });
        let encoded = self.shelf.compute(entries.bytes(), move || object.encode(id)).await;
        let Ok(Some(bytes)) = encoded else { return Outcome::Failed(Fault::Store(StoreError::Busy)) };
        loop {
            let mut fault = Fault::Store(StoreError::NoAnswer);
            match self.shelf.take(at.index, bytes.clone()).await {
                Ok(true) => {
                    *doubt = true;
                    return self.put_counts(at.index, until).await;
                }
                Ok(false) => fault = Fault::Store(StoreError::Busy),
                Err(StoreError::NoAnswer) if mutant(mutants::OBJECT_SILENCE_IS_NO) => {
                    return Outcome::Failed(fault);
                }
                Err(StoreError::NoAnswer) => {
                    *doubt = true;
                    hit("object.append.read_back");
                }
                Err(error) => fault = Fault::Store(error),
            }
            if fault.passes() {
                match self.look(at).await {
                    Ok(Look::Entries(found)) if found.stamp == entries.stamp => {
                        return self.put_counts(at.index, until).await;
                    }
                    Ok(Look::Entries(_) | Look::Seal { .. }) => {
                        *doubt = false;
                        return Outcome::Lost;
                    }
                    Ok(Look::Absent) => {}
                    Err(Fault::Deleted) => return self.outdated(*doubt).await,
                    Err(error) => fault = error,
                }
            }
            if let Err(fault) = self.again(until, fault).await {
                return Outcome::Failed(fault);
            }
        }
    }

    /// Finds out whether an object counts that this appender has put: its block must not be marked as deleted (object-O3).
    async fn put_counts(&self, index: u64, until: Tick) -> Outcome {
        if mutant(mutants::OBJECT_BELIEVES_PUTS) {
            return Outcome::Stored(None);
        }
        loop {
            match self.shelf.mark(self.shelf.block(index)).await {
                Ok(Some(Note::Deleted(_))) => return self.outdated(true).await,
                Ok(mark) => return Outcome::Stored(mark),
                Err(fault) => {
                    if let Err(fault) = self.again(until, fault).await {
                        return Outcome::Failed(fault);
                    }
                }
            }
        }
    }

    /// Learns where the log continues, because the index of an object is deleted. `doubt` says whether the object may have been put.
    async fn outdated(&self, doubt: bool) -> Outcome {
        hit("object.append.void");
        match self.rebase().await {
            Err(Fault::Gone) => Outcome::Failed(Fault::Gone),
            // Other errors show in the next append, which then meets the same mark.
            _ if doubt => Outcome::Void,
            _ => Outcome::Lost,
        }
    }

    /// Learns that an own object is in the log.
    fn stored(&self, entries: Arc<Entries>, memory: &mut Memory) {
        plan::note(&mut memory.ops, &entries.batches, entries.first);
        memory.ops.forget_below(entries.end());
        memory.next = At { index: entries.index + 1, first: entries.end() };
        // An error says that somebody has seen it already, and more.
        let _ = self.learn(&entries);
        self.shelf.keep(entries);
    }

    /// Makes the memory know all operations up to the end of the log, as far as it is known.
    async fn catch_up<'m>(
        &self,
        memory: &'m mut Option<Memory>,
        until: Tick,
    ) -> Result<&'m mut Memory, Fault> {
        loop {
            let far =
                |memory: &Memory| self.known().next().index.saturating_sub(memory.next.index) > READ_BACK;
            let done = match memory.as_mut() {
                Some(known) if !far(known) => self.read_on(known).await,
                _ => self.begin().await.map(|fresh| *memory = Some(fresh)),
            };
            let Err(fault) = done else { break };
            *memory = None;
            self.again(until, fault).await?;
        }
        // The loop ends with a memory.
        memory.as_mut().ok_or(Fault::Store(StoreError::Busy))
    }

    async fn read_on(&self, memory: &mut Memory) -> Result<(), Fault> {
        while memory.next.index < self.known().next().index {
            let Look::Entries(entries) = self.look(memory.next).await? else { return Err(Fault::Deleted) };
            if !mutant(mutants::OBJECT_IGNORES_OTHERS) {
                plan::note(&mut memory.ops, &entries.batches, entries.first);
            }
            memory.ops.forget_below(entries.end());
            memory.next = At { index: entries.index + 1, first: entries.end() };
        }
        Ok(())
    }

    /// Returns a memory of the newest objects.
    async fn begin(&self) -> Result<Memory, Fault> {
        self.follow().await?;
        let (base, next) = self.known().ends();
        let from = base.index.max(next.index.saturating_sub(READ_BACK));
        let at = match from {
            from if from == base.index => base,
            from => match self.shelf.look(from).await? {
                Look::Entries(entries) => At { index: from, first: entries.first },
                _ => return Err(Fault::Deleted),
            },
        };
        let mut memory = Memory { ops: RememberedOps::new(self.options.dedupe_spans, at.first), next: at };
        self.read_on(&mut memory).await?;
        Ok(memory)
    }
}

/// Returns the error of appends whose put may still succeed, or cannot.
fn unsure(doubt: bool, fault: &Fault) -> AppendError {
    let why = unavailable(fault);
    if doubt { AppendError::Unknown(why) } else { AppendError::NotAppended(why) }
}
