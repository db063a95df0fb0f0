//! A limit on the bytes that all users on a node hold together.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::wait_list::{Place, WaitList};

/// A limit that all logs of a node share. Queries are cheap and work from any thread.
#[derive(Debug)]
pub struct Budget {
    used_bytes: AtomicUsize,
    limit_bytes: usize,
    callers: WaitList,
}

impl Budget {
    /// Returns an unused budget of `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Budget { used_bytes: AtomicUsize::new(0), limit_bytes, callers: WaitList::default() }
    }

    /// Takes `bytes` more for a user that already holds `own_bytes`; a refusal returns the bytes in use. No user may hold more than it
    /// leaves free, so a few stuck users never exhaust the budget, and another user still finds room. A request larger than the budget is
    /// granted only while nothing else is taken.
    pub fn take(&self, own_bytes: usize, bytes: usize) -> Result<(), usize> {
        let mut used = self.used_bytes();
        loop {
            if !self.fits(used, own_bytes, bytes) {
                return Err(used);
            }
            let next = used.saturating_add(bytes);
            match self.used_bytes.compare_exchange_weak(used, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => used = now,
            }
        }
    }

    /// Returns whether [`Budget::take`] would succeed.
    pub fn has_room(&self, own_bytes: usize, bytes: usize) -> bool {
        self.fits(self.used_bytes(), own_bytes, bytes)
    }

    fn fits(&self, used: usize, own_bytes: usize, bytes: usize) -> bool {
        used == 0 || own_bytes.saturating_add(bytes) <= self.limit_bytes.saturating_sub(used)
    }

    /// Takes bytes without a check: the caller has already checked, and nothing else was taken in between.
    pub fn add(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Returns bytes that were taken, and wakes everyone who waits for room.
    pub fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::SeqCst);
        // Whether a waiter fits depends on what its user already holds, so all of them are woken to check for themselves.
        self.callers.admit(usize::MAX);
    }

    /// Returns the bytes that are taken now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::SeqCst)
    }

    /// Returns a place in the list of waiters, all of which are woken whenever bytes are given back. A user may have at most one.
    pub fn place(&self) -> Place {
        self.callers.place(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_until_something_is_given_back() {
        let budget = Budget::new(100);
        assert_eq!(budget.take(0, 50), Ok(()));
        assert_eq!(budget.take(50, 1), Err(50), "it would leave less than it holds");
        assert_eq!(budget.take(0, 25), Ok(()), "another finds room");
        assert_eq!(budget.take(0, 26), Err(75));
        budget.give_back(75);
        assert_eq!(budget.take(0, 500), Ok(()), "alone, it is taken whatever its size");
        assert_eq!(budget.take(0, 1), Err(500));
        budget.give_back(500);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn users_that_are_stuck_leave_room_for_the_next() {
        let budget = Budget::new(1 << 20);
        // Each user takes half of what is free. After nine users, about two thousandths are left, which is room for one more.
        for _ in 0..9 {
            let mut own = 0;
            while budget.take(own, 1000).is_ok() {
                own += 1000;
            }
            assert!(own >= 1000, "the next one is shut out at {} bytes", budget.used_bytes());
        }
        assert!(budget.used_bytes() <= 1 << 20);
    }
}
