//! Lets callers that find a bounded window full wait for room, in the order in which they came.
//!
//! The owner of the window counts what is taken, and calls [`WaitList::admit`] whenever something is given back. A caller registers with
//! [`Place::wait`], then checks for room, and sleeps if there is none. Because it registers before it checks, it misses no room that is
//! given back in between.

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, lock};

#[derive(Debug)]
struct Waiter {
    units: usize,
    waker: Waker,
    /// Whether it was woken and has not checked for room since.
    woken: bool,
}

#[derive(Debug, Default)]
struct Inside {
    next_place: u64,
    /// At most one for each place that callers hold.
    waiters: BTreeMap<u64, Waiter>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The number of waiters, so that [`WaitList::admit`] takes no lock if nobody waits.
    waiters: AtomicUsize,
    inside: Mutex<Inside>,
}

/// A list of waiting callers; see the module documentation. Clones share one list.
#[derive(Clone, Debug, Default)]
pub struct WaitList(Arc<Shared>);

impl WaitList {
    /// Returns whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.waiters.load(Ordering::SeqCst) == 0
    }

    /// Returns a place for a caller that wants `units` of the window. Its position in the list is set by the first [`Place::wait`].
    pub fn place(&self, units: usize) -> Place {
        Place { list: self.clone(), units, at: None }
    }

    /// Wakes the first callers, as many as fit together into the `free_units` of the window. A caller that wants more than is free blocks
    /// those behind it, so that it gets its turn. Call this after each release, without holding the window's lock.
    pub fn admit(&self, free_units: usize) {
        if self.is_empty() {
            return;
        }
        let mut wakers = Vec::new();
        {
            let mut left = free_units;
            for waiter in lock(&self.0.inside).waiters.values_mut() {
                let Some(less) = left.checked_sub(waiter.units) else { break };
                left = less;
                if !std::mem::replace(&mut waiter.woken, true) {
                    wakers.push(waiter.waker.clone());
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// A caller's place in the list; dropping it leaves the list. If a caller was woken and leaves, the owner of the window should call
/// [`WaitList::admit`] again, because the caller may leave room that it was woken for.
#[derive(Debug)]
pub struct Place {
    list: WaitList,
    units: usize,
    at: Option<u64>,
}

impl Place {
    /// Registers this task to be woken once there may be room. The caller must check for room after this call, not before it.
    pub fn wait(&mut self, cx: &Context<'_>) {
        let shared = &self.list.0;
        let mut inside = lock(&shared.inside);
        let at = *self.at.get_or_insert_with(|| {
            inside.next_place += 1;
            inside.next_place
        });
        let waiter = Waiter { units: self.units, waker: cx.waker().clone(), woken: false };
        inside.waiters.insert(at, waiter);
        // Stored under the lock, so that concurrent changes cannot overwrite each other.
        shared.waiters.store(inside.waiters.len(), Ordering::SeqCst);
    }

    /// Returns whether this place is the first in the list.
    pub fn is_first(&self) -> bool {
        let inside = lock(&self.list.0.inside);
        let first = inside.waiters.keys().next();
        self.at.is_some() && first.copied() == self.at
    }

    /// Leaves the list.
    pub fn leave(&mut self) {
        let Some(at) = self.at.take() else { return };
        let shared = &self.list.0;
        let mut inside = lock(&shared.inside);
        let waiter = inside.waiters.remove(&at);
        shared.waiters.store(inside.waiters.len(), Ordering::SeqCst);
        drop(inside);
        // Dropped without the lock, because dropping a waker may run foreign code.
        drop(waiter);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Caller {
        place: Place,
        woken: Arc<Count>,
    }

    impl Caller {
        fn new(list: &WaitList, units: usize) -> Self {
            let mut caller = Caller { place: list.place(units), woken: Arc::default() };
            caller.wait();
            caller
        }

        fn wait(&mut self) {
            let waker = Waker::from(self.woken.clone());
            self.place.wait(&Context::from_waker(&waker));
        }

        fn times(&self) -> u32 {
            self.woken.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn the_first_ones_that_fit_are_woken_once() {
        let list = WaitList::default();
        let callers = [3, 4, 2].map(|units| Caller::new(&list, units));
        list.admit(2);
        assert_eq!(callers.each_ref().map(Caller::times), [0, 0, 0], "nobody overtakes the first");
        list.admit(8);
        list.admit(8);
        assert_eq!(callers.each_ref().map(Caller::times), [1, 1, 0]);
        list.admit(9);
        assert_eq!(callers.each_ref().map(Caller::times), [1, 1, 1]);
    }

    #[test]
    fn who_finds_no_room_keeps_its_place() {
        let list = WaitList::default();
        let mut first = Caller::new(&list, 5);
        let second = Caller::new(&list, 5);
        list.admit(5);
        first.wait();
        list.admit(5);
        assert_eq!((first.times(), second.times()), (2, 0));
        assert!(first.place.is_first() && !second.place.is_first());
        drop(first);
        list.admit(5);
        assert_eq!(second.times(), 1);
        assert!(second.place.is_first());
    }

    #[test]
    fn who_leaves_leaves_nothing_behind() {
        let list = WaitList::default();
        let callers = [1, 2, 3].map(|units| Caller::new(&list, units));
        drop(callers);
        assert!(lock(&list.0.inside).waiters.is_empty());
        assert!(list.is_empty());
        list.admit(100);
    }
}
