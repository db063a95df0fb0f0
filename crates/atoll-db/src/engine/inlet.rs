//! The queue between three threads: the feeder (the node's thread), the applying thread, and the committing thread, which reports
//! when it is done.

use std::collections::VecDeque;

use atoll_core::sync::{Condvar, Mutex, MutexGuard, PoisonError};
// On its own, because the checker of threads replaces the import below.
use atoll_core::Tick;
use atoll_core::{Completer, Ticket, ticket};

struct Inbox<E, R> {
    /// The queued entries, each with its size in bytes and when it was queued.
    entries: VecDeque<(E, usize, Tick)>,
    /// When the entries were queued that the applying thread has taken and not finished.
    taken: Option<Tick>,
    bytes: usize,
    /// Waiters for room.
    room: Vec<Completer<()>>,
    commit: bool,
    retry: bool,
    refills: VecDeque<R>,
    /// The applying thread has taken work that it has not finished.
    busy: bool,
    /// A commit has ended.
    kicked: bool,
    /// The applying thread takes no entries until the store works again.
    blocked: bool,
    close: Option<Completer<()>>,
    /// The feeder is gone.
    orphaned: bool,
    /// The applying thread has ended: all tickets are abandoned, and no more work is accepted.
    ended: bool,
}

/// See the module documentation. `E` is what is applied, `R` a step of a refill with its waiter.
pub(crate) struct Inlet<E, R> {
    inbox: Mutex<Inbox<E, R>>,
    bell: Condvar,
    max_bytes: usize,
}

/// The next piece of work for the applying thread.
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
    /// `max_bytes`: once this many bytes of entries are queued, the feeder must pause.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let inbox = Inbox {
            entries: VecDeque::new(),
            taken: None,
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

    /// Changes the inbox and wakes the applying thread. Once that thread has ended, drops `how`, which abandons the ticket in it.
    fn change(&self, how: impl FnOnce(&mut Inbox<E, R>)) {
        let mut inbox = self.lock();
        if inbox.ended {
            // Unlock before `how` is dropped, because a waiter that the drop wakes may call this.
            return drop(inbox);
        }
        how(&mut inbox);
        drop(inbox);
        self.bell.notify_one();
    }

    /// Hands over entries at this time. If it returns a ticket, the feeder must wait for it before it hands over more. If the ticket is
    /// abandoned, the applier has ended.
    pub(crate) fn entries(&self, entries: E, bytes: usize, now: Tick) -> Option<Ticket<()>> {
        let mut inbox = self.lock();
        if inbox.ended {
            let (_gone, never) = ticket();
            return Some(never);
        }
        inbox.bytes += bytes;
        inbox.entries.push_back((entries, bytes, now));
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

    /// Notifies the applying thread that a commit has ended.
    pub(crate) fn kick(&self) {
        self.change(|inbox| inbox.kicked = true);
    }

    /// Notifies the applying thread that the feeder is gone.
    pub(crate) fn orphan(&self) {
        self.change(|inbox| inbox.orphaned = true);
    }

    pub(crate) fn set_blocked(&self, blocked: bool) {
        self.lock().blocked = blocked;
    }

    /// Returns the applier for use in the feeder's thread. None if it is in use, or if entries or steps of a refill are queued.
    pub(crate) fn take_over<'a, A>(&self, applier: &'a Mutex<A>) -> Option<MutexGuard<'a, A>> {
        let idle = {
            let inbox = self.lock();
            !inbox.busy && inbox.entries.is_empty() && inbox.refills.is_empty()
        };
        if idle { applier.try_lock().ok() } else { None }
    }

    /// Returns when the oldest entries were handed over that the applying thread has not finished. None if it has finished all.
    pub(crate) fn waits_since(&self) -> Option<Tick> {
        let inbox = self.lock();
        inbox.taken.or_else(|| inbox.entries.front().map(|(_, _, at)| *at))
    }

    /// Drops the queued entries after the state was replaced. The feeder reads those that the new state lacks again.
    pub(crate) fn forget_entries(&self) {
        let room = {
            let mut inbox = self.lock();
            inbox.entries.clear();
            inbox.bytes = 0;
            std::mem::take(&mut inbox.room)
        };
        room.into_iter().for_each(|waits| waits.complete(()));
    }

    /// Records that the applying thread has ended, drops its queue, and abandons all tickets.
    pub(crate) fn end(&self) {
        let left = {
            let mut inbox = self.lock();
            inbox.ended = true;
            let (entries, refills) = (std::mem::take(&mut inbox.entries), std::mem::take(&mut inbox.refills));
            (entries, refills, std::mem::take(&mut inbox.room), inbox.close.take())
        };
        drop(left);
    }

    /// Waits for the next piece of work. For the applying thread.
    pub(crate) fn next(&self) -> Work<E, R> {
        let mut inbox = self.lock();
        loop {
            // The thread counts as busy until it calls this again or sleeps.
            inbox.busy = true;
            inbox.taken = None;
            if !inbox.blocked
                && let Some((entries, bytes, at)) = inbox.entries.pop_front()
            {
                inbox.taken = Some(at);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entries_that_are_not_finished_count() {
        let inlet = Inlet::<&str, ()>::new(100);
        assert_eq!(inlet.waits_since(), None);
        assert!(
            inlet.entries("first", 1, Tick(5)).is_none() && inlet.entries("second", 1, Tick(9)).is_none()
        );
        assert_eq!(inlet.waits_since(), Some(Tick(5)));
        assert!(matches!(inlet.next(), Work::Entries("first")));
        assert_eq!(inlet.waits_since(), Some(Tick(5)), "it is being applied");
        assert!(matches!(inlet.next(), Work::Entries("second")));
        assert_eq!(inlet.waits_since(), Some(Tick(9)));
        inlet.commit();
        assert!(matches!(inlet.next(), Work::Commit));
        assert_eq!(inlet.waits_since(), None);
    }
}
