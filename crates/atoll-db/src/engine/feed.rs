//! Passes entries from the node's executor to the applier: by a call (in the simulator), or through a bounded queue to a separate
//! thread. That thread may wait for the disk; the node's thread must not. When the other thread is idle, the node's thread itself
//! applies small batches that need no disk access. This takes less time than waking the other thread, and the answers have to
//! return to the node's thread anyway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_contract::LogPos;
use atoll_core::{Completer, Env, Tick, Ticket, ticket};

use super::applier::Applier;
use super::commit::Refill;
use super::core::Core;
use super::inlet;
use crate::entry::Delivered;
use crate::replica::Halt;
use crate::store::StoreError;

/// The maximum number of bytes of entries that the node's thread applies itself. If this is larger, sockets wait longer. If it is
/// smaller, the other thread is woken more often.
const HERE_BYTES: usize = 16 * 1024;
/// After the node's thread has failed to apply a batch, it leaves this many batches to the other thread.
const SKIP: u32 = 32;

/// See the module documentation.
pub(crate) trait Feed: Send {
    /// Hands over entries. If it returns a ticket, the caller must wait for it before it hands over more.
    fn entries(&mut self, entries: Vec<Delivered>) -> Option<Ticket<()>>;
    /// Returns when the oldest entries were handed over that are not applied. None if all are.
    fn waits_since(&self) -> Option<Tick>;
    /// Starts a durable commit of everything that is applied.
    fn commit(&mut self);
    /// Performs a step of a refill. The last step replaces the replica's state.
    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>>;
    /// Drops the entries that are not applied, and yields the position of the next one, from which the caller must hand them over again.
    /// With `resumes`, a replica that has halted at an entry continues.
    fn rewind(&mut self, resumes: bool) -> Ticket<LogPos>;
    /// Retries the operations of the store that failed.
    fn retry(&mut self);
    /// Durably commits everything that is applied and ends the applier. The ticket completes when both are done.
    fn close(&mut self) -> Ticket<()>;
}

/// Applies entries in the caller's thread.
pub(crate) struct Direct {
    applier: Applier,
    /// Completed when the applier can take entries again.
    room: Option<Completer<()>>,
}

impl Direct {
    pub(crate) fn new(applier: Applier) -> Self {
        Direct { applier, room: None }
    }

    fn make_room(&mut self) {
        if !self.applier.is_blocked()
            && let Some(room) = self.room.take()
        {
            room.complete(());
        }
    }
}

impl Feed for Direct {
    fn entries(&mut self, entries: Vec<Delivered>) -> Option<Ticket<()>> {
        self.applier.apply(&entries);
        self.applier.is_blocked().then(|| {
            let (room, until) = ticket();
            self.room = Some(room);
            until
        })
    }

    /// Entries that wait are kept by the applier until the store works. That takes the replica out of service, which says more.
    fn waits_since(&self) -> Option<Tick> {
        None
    }

    fn commit(&mut self) {
        self.applier.commit(false);
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        let done = self.applier.refill(step);
        self.make_room();
        Ticket::ready(done)
    }

    fn rewind(&mut self, resumes: bool) -> Ticket<LogPos> {
        let next = self.applier.rewind(resumes);
        self.make_room();
        Ticket::ready(next)
    }

    fn retry(&mut self) {
        self.applier.retry();
        self.make_room();
    }

    fn close(&mut self) -> Ticket<()> {
        self.applier.commit(true);
        Ticket::ready(())
    }
}

/// Work that is not an entry, and its waiter.
pub(crate) enum Step {
    Refill(Refill, Completer<Result<LogPos, StoreError>>),
    Rewind { resumes: bool, done: Completer<LogPos> },
}

/// The queue that the feeder, the applying thread and the committing thread share.
pub(crate) type Inlet = inlet::Inlet<Vec<Delivered>, Step>;
type Work = inlet::Work<Vec<Delivered>, Step>;

fn size_bytes(entries: &[Delivered]) -> usize {
    entries.iter().map(|e| e.entry.payload.len()).sum()
}

/// Ends the inlet when the thread ends. After a panic, halts the replica first, so that all waiters are notified.
struct Fuse(Arc<Core>, Arc<Inlet>);

impl Drop for Fuse {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.halt(&Halt::Broken { at: self.0.published().below });
        }
        self.1.end();
    }
}

/// The applier, used by one thread at a time. None once it is closed or has panicked.
type Shared = Arc<Mutex<Option<Applier>>>;

/// Passes entries through a queue to a separate thread.
pub(crate) struct Queued {
    env: Env,
    inlet: Arc<Inlet>,
    applier: Shared,
    core: Arc<Core>,
    /// The number of batches that the node's thread still leaves to the other thread, because it recently failed to apply one.
    skip: u32,
}

/// Performs one piece of work. Returns false if it was the last one.
fn work_on(applier: &Shared, inlet: &Inlet, work: Work) -> bool {
    let mut slot = applier.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(it) = slot.as_mut() else { return false };
    match work {
        Work::Entries(entries) => it.apply(&entries),
        Work::Adopt => {
            it.adopt(false);
            it.go_on();
        }
        Work::Commit => it.commit(false),
        Work::Retry => it.retry(),
        Work::Refill(Step::Rewind { resumes, done }) => {
            let next = it.rewind(resumes);
            inlet.forget_entries();
            done.complete(next);
        }
        Work::Refill(Step::Refill(step, done)) => {
            let replaces = matches!(step, Refill::Finish);
            let outcome = it.refill(step);
            if replaces && outcome.is_ok() {
                inlet.forget_entries();
            }
            done.complete(outcome);
        }
        Work::Close(done) => {
            it.commit(true);
            *slot = None;
            drop(slot);
            done.complete(());
            return false;
        }
        Work::End => {
            *slot = None;
            return false;
        }
    }
    inlet.set_blocked(it.is_blocked());
    true
}

impl Queued {
    /// Starts the thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(env: Env, inlet: Arc<Inlet>, applier: Applier) -> std::io::Result<Self> {
        let core = applier.core();
        let applier = Arc::new(Mutex::new(Some(applier)));
        let (work, its) = (inlet.clone(), applier.clone());
        let fuse = Fuse(core.clone(), inlet.clone());
        std::thread::Builder::new().name("apply".into()).spawn(move || {
            let _fuse = fuse;
            while work_on(&its, &work, work.next()) {}
        })?;
        Ok(Queued { env, inlet, applier, core, skip: 0 })
    }

    /// Applies entries in the caller's thread as far as possible without waiting. Returns how many of them need no further
    /// handling.
    fn apply_here(&mut self, entries: &[Delivered]) -> usize {
        if self.skip > 0 {
            self.skip -= 1;
            return 0;
        }
        if size_bytes(entries) > HERE_BYTES {
            return 0;
        }
        let Some(mut slot) = self.inlet.take_over(&self.applier) else { return 0 };
        let Some(applier) = slot.as_mut() else { return 0 };
        match catch_unwind(AssertUnwindSafe(|| applier.apply_in_memory(entries))) {
            Ok(done) => {
                if done < entries.len() {
                    self.skip = SKIP;
                }
                done
            }
            // As in the other thread, a panic halts the replica but not the node.
            Err(_) => {
                *slot = None;
                self.core.halt(&Halt::Broken { at: self.core.published().below });
                entries.len()
            }
        }
    }
}

impl Feed for Queued {
    fn entries(&mut self, mut entries: Vec<Delivered>) -> Option<Ticket<()>> {
        let done = self.apply_here(&entries);
        if done == entries.len() {
            return None;
        }
        entries.drain(..done);
        let bytes = size_bytes(&entries);
        self.inlet.entries(entries, bytes, self.env.now())
    }

    fn waits_since(&self) -> Option<Tick> {
        self.inlet.waits_since()
    }

    fn commit(&mut self) {
        self.inlet.commit();
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        let (done, wait) = ticket();
        self.inlet.refill(Step::Refill(step, done));
        wait
    }

    fn rewind(&mut self, resumes: bool) -> Ticket<LogPos> {
        let (done, wait) = ticket();
        self.inlet.refill(Step::Rewind { resumes, done });
        wait
    }

    fn retry(&mut self) {
        self.inlet.retry();
    }

    fn close(&mut self) -> Ticket<()> {
        self.inlet.close()
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.inlet.orphan();
    }
}
