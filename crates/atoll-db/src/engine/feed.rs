//! How entries get from the node's executor to the applier: by a call (the simulator, and states in memory), or through a
//! bounded queue to a thread of its own (a state on disk: reads and commits wait for it, and the node must not).

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use atoll_core::{Completer, Ticket, ticket};
use atoll_log::Entry;

use super::applier::Applier;

/// See the module's words.
pub(crate) trait Feed: Send {
    /// Hands entries over. With a ticket: hand over no more until it is completed.
    fn entries(&mut self, entries: Vec<Entry>) -> Option<Ticket<()>>;
    /// Nothing came for a while: commit what there is.
    fn idle(&mut self);
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

    fn idle(&mut self) {
        self.0.commit();
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
    idle: bool,
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
    Idle,
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
            if std::mem::take(&mut inbox.kicked) {
                return Work::Adopt;
            }
            if let Some(done) = inbox.close.take() {
                return Work::Close(done);
            }
            if inbox.orphaned {
                return Work::End;
            }
            if std::mem::take(&mut inbox.idle) {
                return Work::Idle;
            }
            inbox = self.bell.wait(inbox).unwrap_or_else(PoisonError::into_inner);
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
            loop {
                match work.next(max_bytes) {
                    Work::Entries(entries) => applier.apply(&entries),
                    Work::Adopt => applier.adopt(false),
                    Work::Idle => applier.commit(),
                    Work::Close(done) => {
                        applier.commit();
                        drop(applier);
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

    fn idle(&mut self) {
        self.inlet.change(|inbox| inbox.idle = true);
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
