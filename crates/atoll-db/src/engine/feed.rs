//! How entries get from the node's executor to the applier: by a call (in the simulator), or through a bounded queue to a separate
//! thread, which may wait for the disk while the node must not. When that thread is idle, the node's thread itself applies small
//! batches that need nothing but memory: waking the other thread takes longer, and the answer has to come back to the node's thread
//! anyway.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use atoll_contract::{Entry, LogPos};
use atoll_core::{Completer, Ticket, ticket};

use super::applier::Applier;
use super::commit::Refill;
use super::core::Core;
use super::inlet;
use crate::replica::Halt;
use crate::store::StoreError;

/// Most bytes of entries that the node's thread applies itself. More: sockets wait longer. Fewer: the other thread is woken more
/// often.
const HERE_BYTES: usize = 16 * 1024;
/// How many batches the node's thread does not try to apply after it could not.
const SKIP: u32 = 32;

/// See the module documentation.
pub(crate) trait Feed: Send {
    /// Hands entries over. With a ticket: hand over no more until it is completed.
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>>;
    /// Commit what there is, durably.
    fn commit(&mut self);
    /// Does a step of a refill; after the last one the replica has the state that it was filled with.
    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>>;
    /// Repeats what the store could not do.
    fn retry(&mut self);
    /// Commits what there is and ends; done when the ticket is.
    fn close(&mut self) -> Ticket<()>;
}

/// By a call.
pub(crate) struct Direct {
    applier: Applier,
    /// Completed once the store works again.
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
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>> {
        self.applier.apply(&entries);
        self.applier.is_blocked().then(|| {
            let (room, until) = ticket();
            self.room = Some(room);
            until
        })
    }

    fn commit(&mut self) {
        self.applier.commit(false);
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        let done = self.applier.refill(step);
        self.make_room();
        Ticket::ready(done)
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

/// A step of a refill, and its waiter.
type Step = (Refill, Completer<Result<LogPos, StoreError>>);
/// What the feeder, the applying thread and the committing thread share.
pub(crate) type Inlet = inlet::Inlet<Vec<Entry>, Step>;
type Work = inlet::Work<Vec<Entry>, Step>;

fn size_bytes(entries: &[Entry]) -> usize {
    entries.iter().map(|e| e.payload.len()).sum()
}

/// Notifies all waiters when the thread ends, perhaps because of a broken invariant.
struct Fuse(Arc<Core>, Arc<Inlet>);

impl Drop for Fuse {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.halt(&Halt::Broken { at: self.0.published().below });
        }
        self.1.end();
    }
}

/// The applier, which one thread at a time uses; None once it is closed or broken.
type Shared = Arc<Mutex<Option<Applier>>>;

/// Through a queue.
pub(crate) struct Queued {
    inlet: Arc<Inlet>,
    applier: Shared,
    core: Arc<Core>,
    /// How many more times the node's thread does not try to apply by itself, because it recently could not.
    skip: u32,
}

/// Performs one piece of work; false if it was the last one.
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
        Work::Refill((step, done)) => {
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
    /// The system gives no thread.
    pub(crate) fn start(inlet: Arc<Inlet>, applier: Applier) -> std::io::Result<Self> {
        let core = applier.core();
        let applier = Arc::new(Mutex::new(Some(applier)));
        let (work, its) = (inlet.clone(), applier.clone());
        let fuse = Fuse(core.clone(), inlet.clone());
        std::thread::Builder::new().name("apply".into()).spawn(move || {
            let _fuse = fuse;
            while work_on(&its, &work, work.next()) {}
        })?;
        Ok(Queued { inlet, applier, core, skip: 0 })
    }

    /// Applies entries in the caller's thread, as far as possible without waiting for anything; returns how many.
    fn apply_here(&mut self, entries: &[Entry]) -> usize {
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
            // As in the other thread: the replica is at its end, the node is not.
            Err(_) => {
                *slot = None;
                self.core.halt(&Halt::Broken { at: self.core.published().below });
                entries.len()
            }
        }
    }
}

impl Feed for Queued {
    fn entries(&mut self, mut entries: Vec<Entry>) -> Option<Ticket<()>> {
        let done = self.apply_here(&entries);
        if done == entries.len() {
            return None;
        }
        entries.drain(..done);
        let bytes = size_bytes(&entries);
        self.inlet.entries(entries, bytes)
    }

    fn commit(&mut self) {
        self.inlet.commit();
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        let (done, wait) = ticket();
        self.inlet.refill((step, done));
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
