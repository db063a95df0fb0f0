//! Callers that found a bounded window full wait for room, in the order in which they came.
//!
//! The window stays the owner's: it counts what is taken, and calls [`WaitList::admit`] whenever something is given back. A caller
//! takes a [`Place`], looks whether there is room, and sleeps if there is none. As it has its place before it looks, no room that is
//! given back in between is missed.

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Arc, Mutex, lock};

#[derive(Debug)]
struct Waiter {
    units: usize,
    waker: Waker,
    /// It was woken, and has not looked since.
    woken: bool,
}

#[derive(Debug, Default)]
struct Inside {
    next_place: u64,
    /// Bounded by the places that callers hold.
    waiters: BTreeMap<u64, Waiter>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The length of the list, so that a window that nobody waits for costs no lock.
    waiters: AtomicUsize,
    inside: Mutex<Inside>,
}

/// See the module documentation. Clones are one list.
#[derive(Clone, Debug, Default)]
pub struct WaitList(Arc<Shared>);

impl WaitList {
    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.0.waiters.load(Ordering::SeqCst) == 0
    }

    /// A place at the end, for a caller that wants `units` of the window.
    pub fn place(&self, units: usize) -> Place {
        Place { list: self.clone(), units, at: None }
    }

    /// The window has `free_units` now: wakes the first callers, as many as fit into them together. A caller that wants more than is
    /// free holds up those behind it, so that it gets its turn. Call it after each release, outside of the window's lock.
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

/// A caller's place. Dropping it leaves the list. A caller that was woken and leaves should let the owner of the window call
/// [`WaitList::admit`] once more: it may have been woken for room that it does not take.
#[derive(Debug)]
pub struct Place {
    list: WaitList,
    units: usize,
    at: Option<u64>,
}

impl Place {
    /// Wakes this task once there may be room. The caller must look for room after this call, not before it.
    pub fn wait(&mut self, cx: &Context<'_>) {
        let shared = &self.list.0;
        let mut inside = lock(&shared.inside);
        let at = *self.at.get_or_insert_with(|| {
            inside.next_place += 1;
            inside.next_place
        });
        let waiter = Waiter { units: self.units, waker: cx.waker().clone(), woken: false };
        inside.waiters.insert(at, waiter);
        // Under the lock: the length is changed by one at a time.
        shared.waiters.store(inside.waiters.len(), Ordering::SeqCst);
    }

    /// Whether nobody is in front of this place.
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
        // A waker may run foreign code when it is dropped.
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
