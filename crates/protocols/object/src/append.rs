//! append: the batches that wait become one object, which takes the next index by a conditional put. An appender that loses the index reads
//! what took it, and tries the one behind with what is then new. One object of a handle is on its way at a time.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{AppendError, Batch, Offset, Placement, Unavailability};
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Tick, Ticket};
use atoll_loglet_store::append_queue::{AppendQueue, Outcome as Appended, Waiting};
use atoll_loglet_store::plan::{self, Plan};
use atoll_loglet_store::remembered_ops::RememberedOps;

use crate::known::At;
use crate::loglet::{Shared, unavailable};
use crate::mutants;
use crate::object::{Entries, Note, Stamp};
use crate::shelf::{Fault, Look};
use crate::store::StoreError;

/// The most entries of an object. The node's thread looks each of them up.
const MAX_ENTRIES: usize = 4096;
/// How many objects an appender reads to learn their operations, when it begins, and at most to catch up.
const READ_BACK: u64 = 32;
/// After this many indexes lost in a row, the appender searches for the end.
const LOSSES: u32 = 4;

/// For how long an appender relies on what it knows about the end of the log.
const FRESH: Duration = Duration::from_secs(10);

/// The operations in the log, and up to which object they are known.
#[derive(Debug)]
struct Memory {
    ops: RememberedOps,
    next: At,
}

/// The appends of a handle.
#[derive(Debug)]
pub(crate) struct Appends {
    queue: AppendQueue,
    /// None while a procedure puts objects: it has the memory then.
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
        Appends { queue: AppendQueue::new(writer), memory: None, due: Tick(0), writer, objects: 0 }
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
    pub(crate) fn submit(self: &Arc<Self>, batch: Batch, not_below: Offset) -> Ticket<Appended> {
        let (wait, starts) = lock(&self.appends).queue.submit(batch, not_below, self.options.window_bytes);
        if starts {
            let shared = self.clone();
            self.env.spawn("object.append", Box::pin(async move { shared.put_all().await }));
        }
        wait
    }

    /// Puts objects as long as appends wait.
    async fn put_all(&self) {
        let mut memory = lock(&self.appends).memory.take();
        while let Some(group) = self.next_group(&mut memory).await {
            let placed = self.place(&group, &mut memory).await;
            let settled = lock(&self.appends).queue.settle(group, placed);
            settled.tell();
        }
    }

    /// Returns the appends of the next object, once it may be put. If none waits, gives the memory back and returns None.
    async fn next_group(&self, memory: &mut Option<Memory>) -> Option<Vec<Waiting>> {
        loop {
            let due = {
                let mut appends = lock(&self.appends);
                if appends.queue.ends() {
                    appends.memory = memory.take();
                    return None;
                }
                if self.env.now() >= appends.due {
                    return Some(appends.queue.take(self.config.batch_bytes as usize, MAX_ENTRIES));
                }
                appends.due
            };
            self.env.sleep_until(due).await;
        }
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
            let wanted = group.iter().map(Waiting::wanted);
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
                Err(error) if error.is_unknown() => {
                    *doubt = true;
                    fault = Fault::Store(error);
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
