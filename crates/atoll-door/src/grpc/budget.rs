//! Counts and limits what all clients of a door share, in total and per address.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The last of this many equal parts is reserved for addresses that hold little.
const KEPT_PART: usize = 4;
/// An address holds little if it has at most one of this many equal parts.
const SMALL_PART: usize = 64;

#[derive(Debug, Default)]
struct Used {
    total: usize,
    by_address: BTreeMap<IpAddr, usize>,
}

/// A limit on the number of things, or of bytes, that clients may hold at the same time.
#[derive(Debug)]
pub struct Budget {
    total: usize,
    of_address: usize,
    used: Mutex<Used>,
    freed: Notify,
}

/// A part of a budget. Dropping it returns the part.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    address: IpAddr,
    amount: usize,
}

/// Maps all addresses that count as one to the same address. For IPv6, these are the addresses of one /64, because a single host usually
/// has all of it.
pub(super) fn group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

impl Budget {
    /// Creates a budget of `total` for all clients, of which one address gets at most `of_address`. A quarter is reserved for addresses
    /// that hold no more than a 64th each.
    pub fn new(total: usize, of_address: usize) -> Arc<Self> {
        Arc::new(Budget { total, of_address, used: Mutex::default(), freed: Notify::new() })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, address: IpAddr, amount: usize) -> bool {
        let mut used = self.used();
        let of_address = used.by_address.get(&address).copied().unwrap_or(0);
        if used.total + amount > self.total || of_address + amount > self.of_address {
            return false;
        }
        // A few addresses that use all they may must not lock out clients that need little.
        let is_small = of_address + amount <= self.total / SMALL_PART;
        if used.total + amount > self.total - self.total / KEPT_PART && !is_small {
            return false;
        }
        used.total += amount;
        used.by_address.insert(address, of_address + amount);
        true
    }

    fn release(&self, address: IpAddr, amount: usize) {
        let mut used = self.used();
        used.total = used.total.saturating_sub(amount);
        if let Some(of_address) = used.by_address.get_mut(&address) {
            *of_address = of_address.saturating_sub(amount);
            if *of_address == 0 {
                used.by_address.remove(&address);
            }
        }
        drop(used);
        self.freed.notify_waiters();
    }

    /// Reserves `amount` for this address. Returns None if less is left.
    pub fn take(self: &Arc<Self>, address: IpAddr, amount: usize) -> Option<Share> {
        let address = group(address);
        self.reserve(address, amount).then(|| Share { budget: self.clone(), address, amount })
    }

    /// Like [`Budget::take`], but waits until enough is left. Returns None if that takes longer than `within`.
    pub async fn take_within(
        self: &Arc<Self>,
        address: IpAddr,
        amount: usize,
        within: Duration,
    ) -> Option<Share> {
        let until = Instant::now() + within;
        loop {
            // Registered before the attempt, so that no release in between is missed.
            let freed = self.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if let Some(share) = self.take(address, amount) {
                return Some(share);
            }
            tokio::time::timeout_at(until, freed).await.ok()?;
        }
    }

    /// Returns the total that clients hold now.
    pub fn held(&self) -> usize {
        self.used().total
    }
}

impl Share {
    /// Returns the size of the share.
    pub(super) fn amount(&self) -> usize {
        self.amount
    }

    /// Grows the share by `more`. If less is left, returns false and changes nothing.
    pub(super) fn grow(&mut self, more: usize) -> bool {
        let grown = self.budget.reserve(self.address, more);
        if grown {
            self.amount += more;
        }
        grown
    }

    /// Returns what exceeds `amount` to the budget.
    pub fn shrink_to(&mut self, amount: usize) {
        if let Some(surplus) = self.amount.checked_sub(amount).filter(|n| *n > 0) {
            self.amount = amount;
            self.budget.release(self.address, surplus);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.release(self.address, self.amount);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 0, 2));

    #[test]
    fn one_address_gets_its_part_and_all_no_more_than_there_is() {
        let budget = Budget::new(640, 384);
        let mut first = budget.take(A, 256).unwrap();
        assert!(budget.take(A, 192).is_none(), "its part is 384");
        assert!(first.grow(128) && !first.grow(1));
        let second = budget.take(B, 96).unwrap();
        assert!(budget.take(B, 1).is_none(), "the last quarter is not for who has that much");
        let others: Vec<_> =
            (1..=16).map(|n| budget.take(IpAddr::from([10, 0, 0, n]), 10).unwrap()).collect();
        assert_eq!(budget.held(), 640);
        assert!(budget.take(IpAddr::from([10, 0, 0, 17]), 1).is_none(), "all are held");
        first.shrink_to(1);
        assert_eq!(budget.held(), 257);
        drop((first, second, others));
        assert_eq!((budget.held(), budget.used().by_address.len()), (0, 0));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let one = |text: &str| group(text.parse().unwrap());
        assert_eq!(one("2001:db8::1"), one("2001:db8::ffff:1"));
        assert_ne!(one("2001:db8::1"), one("2001:db8:0:1::1"));
        assert_eq!(one("::ffff:127.0.0.1"), A);
    }

    #[tokio::test]
    async fn who_waits_gets_what_others_give_back() {
        let budget = Budget::new(1, 1);
        let held = budget.take(A, 1).unwrap();
        assert!(budget.take_within(B, 1, Duration::from_millis(1)).await.is_none());
        let waiting = budget.clone();
        let waiter = tokio::spawn(async move { waiting.take_within(B, 1, Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiter.await.unwrap().is_some());
    }
}
