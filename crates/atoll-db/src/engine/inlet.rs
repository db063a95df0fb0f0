//! The queue between three threads: the feeder (the node's thread), the applying thread, and the committing thread, which reports
//! when it is done.

use std::collections::VecDeque;

use atoll_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use atoll_core::{Completer, Ticket, ticket};

struct Inbox<E, R> {
    /// With their bytes.
    entries: VecDeque<(E, usize)>,
    bytes: usize,
    /// Waiters for room.
    room: Vec<Completer<()>>,
    commit: bool,
    retry: bool,
    refills: VecDeque<R>,
    /// The applying thread has taken work that it has not finished.
    busy: bool,
    /// A commit is done.
    kicked: bool,
    /// The applying thread takes no entries until the store works again.
    blocked: bool,
    close: Option<Completer<()>>,
    /// The feeder is gone.
    orphaned: bool,
    /// The applying thread has ended: all waiters are woken with an error, and no more entries are accepted.
    ended: bool,
}

/// See the module documentation. `E` is what is applied, `R` a step of a refill with its waiter.
pub(crate) struct Inlet<E, R> {
    inbox: Mutex<Inbox<E, R>>,
    bell: Condvar,
    max_bytes: usize,
}

/// What the applying thread is to do next.
pub(crate) enum Work<E, R> {
    Entries(E),
    Adopt,
    Commit,
    Retry,
    Refill(R),
    Close(Completer<()>),
    End,
}

impl<E, R> Inlet<E, R> {
    /// Once this many bytes wait, the feeder must pause.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let inbox = Inbox {
            entries: VecDeque::new(),
            bytes: 0,
            room: Vec::new(),
            commit: false,
            retry: false,
            refills: VecDeque::new(),
            busy: false,
            kicked: false,
            blocked: false,
            close: None,
            orphaned: false,
            ended: false,
        };
        Inlet { inbox: Mutex::new(inbox), bell: Condvar::new(), max_bytes }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox<E, R>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whatever is handed over after the applying thread has gone is dropped, together with its waiter.
    fn change(&self, how: impl FnOnce(&mut Inbox<E, R>)) {
        let mut inbox = self.lock();
        if inbox.ended {
            // Unlock before `how` is dropped: a waiter woken by the drop may come here.
            return drop(inbox);
        }
        how(&mut inbox);
        drop(inbox);
        self.bell.notify_one();
    }

    /// Hands entries over. With a ticket: hand over no more until it is completed; if it is abandoned, never again.
    pub(crate) fn entries(&self, entries: E, bytes: usize) -> Option<Ticket<()>> {
        let mut inbox = self.lock();
        if inbox.ended {
            let (_gone, never) = ticket();
            return Some(never);
        }
        inbox.bytes += bytes;
        inbox.entries.push_back((entries, bytes));
        let wait = (inbox.bytes >= self.max_bytes).then(|| {
            let (room, until) = ticket();
            inbox.room.push(room);
            until
        });
        drop(inbox);
        self.bell.notify_one();
        wait
    }

    pub(crate) fn commit(&self) {
        self.change(|inbox| inbox.commit = true);
    }

    pub(crate) fn refill(&self, step: R) {
        self.change(|inbox| inbox.refills.push_back(step));
    }

    pub(crate) fn retry(&self) {
        self.change(|inbox| inbox.retry = true);
    }

    pub(crate) fn close(&self) -> Ticket<()> {
        let (done, wait) = ticket();
        self.change(|inbox| inbox.close = Some(done));
        wait
    }

    /// A commit is done: the applier takes note.
    pub(crate) fn kick(&self) {
        self.change(|inbox| inbox.kicked = true);
    }

    /// The feeder is gone.
    pub(crate) fn orphan(&self) {
        self.change(|inbox| inbox.orphaned = true);
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.lock().blocked = blocked;
    }

    /// The applier, if no entry or step that was handed over is still to be applied. For the feeder.
    pub(crate) fn take_over<'a, A>(&self, applier: &'a Mutex<A>) -> Option<MutexGuard<'a, A>> {
        let idle = {
            let inbox = self.lock();
            !inbox.busy && inbox.entries.is_empty() && inbox.refills.is_empty()
        };
        if idle { applier.try_lock().ok() } else { None }
    }

    /// The state was replaced: queued entries were read for the previous state. Those that the new one lacks are read again.
    pub(crate) fn forget_entries(&self) {
        let room = {
            let mut inbox = self.lock();
            inbox.entries.clear();
            inbox.bytes = 0;
            std::mem::take(&mut inbox.room)
        };
        room.into_iter().for_each(|waits| waits.complete(()));
    }

    /// The applying thread is gone.
    pub(crate) fn end(&self) {
        let left = {
            let mut inbox = self.lock();
            inbox.ended = true;
            let (entries, refills) = (std::mem::take(&mut inbox.entries), std::mem::take(&mut inbox.refills));
            (entries, refills, std::mem::take(&mut inbox.room), inbox.close.take())
        };
        drop(left);
    }

    /// Waits for work.
    pub(crate) fn next(&self) -> Work<E, R> {
        let mut inbox = self.lock();
        loop {
            // Until this asks again, unless it goes to sleep.
            inbox.busy = true;
            if !inbox.blocked
                && let Some((entries, bytes)) = inbox.entries.pop_front()
            {
                inbox.bytes -= bytes;
                let has_room = inbox.bytes < self.max_bytes;
                let room = if has_room { std::mem::take(&mut inbox.room) } else { Vec::new() };
                drop(inbox);
                room.into_iter().for_each(|waits| waits.complete(()));
                return Work::Entries(entries);
            }
            if let Some(step) = inbox.refills.pop_front() {
                return Work::Refill(step);
            }
            if std::mem::take(&mut inbox.kicked) {
                return Work::Adopt;
            }
            if std::mem::take(&mut inbox.retry) {
                return Work::Retry;
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
            inbox.busy = false;
            inbox = self.bell.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
