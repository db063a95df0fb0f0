//! How entries get from the node's executor to the applier: by a call (the simulator, and states in memory), or through a
//! bounded queue to a thread of its own (a state on disk: reads and commits wait for it, and the node must not).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use atoll_core::{Completer, Ticket, ticket};
use atoll_log::{Entry, LogPos};

use super::applier::Applier;
use super::commit::Refill;
use super::core::Core;
use crate::replica::Halt;
use crate::store::StoreError;

/// See the module's words.
pub(crate) trait Feed: Send {
    /// Hands entries over. With a ticket: hand over no more until it is completed.
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>>;
    /// Commit what there is, durably.
    fn commit(&mut self);
    /// Does a step of a refill; after the last one the replica has the state that it was filled with.
    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>>;
    /// Commits what there is and ends; done when the ticket is.
    fn close(&mut self) -> Ticket<()>;
}

/// By a call.
pub(crate) struct Direct(pub(crate) Applier);

impl Feed for Direct {
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>> {
        self.0.apply(&entries);
        None
    }

    fn commit(&mut self) {
        self.0.commit();
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        Ticket::ready(self.0.refill(step))
    }

    fn close(&mut self) -> Ticket<()> {
        self.0.commit();
        Ticket::ready(())
    }
}

#[derive(Default)]
struct Inbox {
    entries: VecDeque<Vec<Entry>>,
    bytes: usize,
    /// Wait for room.
    room: Vec<Completer<()>>,
    commit: bool,
    refills: VecDeque<(Refill, Completer<Result<LogPos, StoreError>>)>,
    /// A commit is done.
    kicked: bool,
    close: Option<Completer<()>>,
    /// The feeder is gone.
    orphaned: bool,
}

/// What the feeder, the applying thread and the committing thread share.
#[derive(Default)]
pub(crate) struct Inlet {
    inbox: Mutex<Inbox>,
    bell: Condvar,
}

enum Work {
    Entries(Vec<Entry>),
    Adopt,
    Commit,
    Refill(Refill, Completer<Result<LogPos, StoreError>>),
    Close(Completer<()>),
    End,
}

fn size_bytes(entries: &[Entry]) -> usize {
    entries.iter().map(|e| e.payload.len()).sum()
}

impl Inlet {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, how: impl FnOnce(&mut Inbox)) {
        how(&mut self.lock());
        self.bell.notify_one();
    }

    /// A commit is done: the applier takes note.
    pub(crate) fn kick(&self) {
        self.change(|inbox| inbox.kicked = true);
    }

    /// Waits for work.
    fn next(&self, max_bytes: usize) -> Work {
        let mut inbox = self.lock();
        loop {
            if let Some(entries) = inbox.entries.pop_front() {
                inbox.bytes -= size_bytes(&entries);
                let room = if inbox.bytes < max_bytes { std::mem::take(&mut inbox.room) } else { Vec::new() };
                drop(inbox);
                room.into_iter().for_each(|waits| waits.complete(()));
                return Work::Entries(entries);
            }
            if let Some((step, done)) = inbox.refills.pop_front() {
                return Work::Refill(step, done);
            }
            if std::mem::take(&mut inbox.kicked) {
                return Work::Adopt;
            }
            if let Some(done) = inbox.close.take() {
                return Work::Close(done);
            }
            if inbox.orphaned {
                return Work::End;
            }
            if std::mem::take(&mut inbox.commit) {
                return Work::Commit;
            }
            inbox = self.bell.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A broken invariant ends the thread: everybody who waits hears of it.
struct Fuse(Arc<Core>);

impl Drop for Fuse {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.halt(&Halt::Broken { at: self.0.published().below });
        }
    }
}

/// Through a queue.
pub(crate) struct Queued {
    inlet: Arc<Inlet>,
    max_bytes: usize,
}

impl Queued {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(crate) fn start(inlet: Arc<Inlet>, mut applier: Applier, max_bytes: usize) -> std::io::Result<Self> {
        let work = inlet.clone();
        std::thread::Builder::new().name("apply".into()).spawn(move || {
            let fuse = Fuse(applier.core());
            loop {
                match work.next(max_bytes) {
                    Work::Entries(entries) => applier.apply(&entries),
                    Work::Adopt => applier.adopt(false),
                    Work::Commit => applier.commit(),
                    Work::Refill(step, done) => done.complete(applier.refill(step)),
                    Work::Close(done) => {
                        applier.commit();
                        drop((applier, fuse));
                        done.complete(());
                        return;
                    }
                    Work::End => return,
                }
            }
        })?;
        Ok(Queued { inlet, max_bytes })
    }
}

impl Feed for Queued {
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>> {
        let mut wait = None;
        self.inlet.change(|inbox| {
            inbox.bytes += size_bytes(&entries);
            inbox.entries.push_back(entries);
            if inbox.bytes >= self.max_bytes {
                let (room, until) = ticket();
                inbox.room.push(room);
                wait = Some(until);
            }
        });
        wait
    }

    fn commit(&mut self) {
        self.inlet.change(|inbox| inbox.commit = true);
    }

    fn refill(&mut self, step: Refill) -> Ticket<Result<LogPos, StoreError>> {
        let (done, wait) = ticket();
        self.inlet.change(|inbox| inbox.refills.push_back((step, done)));
        wait
    }

    fn close(&mut self) -> Ticket<()> {
        let (done, wait) = ticket();
        self.inlet.change(|inbox| inbox.close = Some(done));
        wait
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.inlet.change(|inbox| inbox.orphaned = true);
    }
}
