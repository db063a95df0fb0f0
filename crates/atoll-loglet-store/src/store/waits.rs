//! A bounded number of requests that wait for a tail. Each is answered when its tail is reached, when the Loglet is sealed or deleted, or
//! when its patience ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::{Caller, Tick};

/// The longest time that a request may wait.
const MAX_PATIENCE: Duration = Duration::from_secs(30);

/// One waiting request.
#[derive(Clone, Copy, Debug)]
pub struct Waiter {
    /// The caller.
    pub caller: Caller,
    /// The Loglet whose tail it waits for.
    pub loglet: LogletId,
    /// The tail to wait for.
    pub target: Offset,
    /// Whether only the known tail counts, not the local one.
    pub known_only: bool,
    /// Set if the answer has entries, the first of them just below `target`: about how many bytes.
    pub reads: Option<u32>,
}

/// All waiting requests of a role.
#[derive(Debug)]
pub struct Waits {
    waiters: BTreeMap<u64, (Waiter, Tick)>,
    by_loglet: BTreeSet<(LogletId, u64)>,
    ends: BTreeSet<(Tick, u64)>,
    next: u64,
    limit: usize,
}

impl Waits {
    /// Returns an empty list that holds at most `limit` requests.
    pub fn new(limit: usize) -> Self {
        let (waiters, by_loglet, ends) = Default::default();
        Waits { waiters, by_loglet, ends, next: 0, limit }
    }

    /// Adds a request. Returns false if there are too many: the caller then answers it at once.
    pub fn push(&mut self, now: Tick, patience: Duration, waiter: Waiter) -> bool {
        if self.waiters.len() >= self.limit {
            return false;
        }
        let (id, until) = (self.next, now.after(patience.min(MAX_PATIENCE)));
        self.next += 1;
        self.by_loglet.insert((waiter.loglet, id));
        self.ends.insert((until, id));
        self.waiters.insert(id, (waiter, until));
        true
    }

    fn remove(&mut self, id: u64) -> Option<Waiter> {
        let (waiter, until) = self.waiters.remove(&id)?;
        self.by_loglet.remove(&(waiter.loglet, id));
        self.ends.remove(&(until, id));
        Some(waiter)
    }

    /// Removes and returns the requests of a Loglet for which `due` holds, in the order of their arrival.
    pub fn take(&mut self, loglet: LogletId, due: impl Fn(&Waiter) -> bool) -> Vec<Waiter> {
        let ids: Vec<u64> = self
            .by_loglet
            .range((loglet, 0)..=(loglet, u64::MAX))
            .map(|(_, id)| *id)
            .filter(|id| self.waiters.get(id).is_none_or(|(w, _)| due(w)))
            .collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Removes and returns the requests whose patience has ended.
    pub fn take_ended(&mut self, now: Tick) -> Vec<Waiter> {
        let ids: Vec<u64> = self.ends.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        ids.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Removes and returns all requests.
    pub fn take_all(&mut self) -> Vec<Waiter> {
        self.take_ended(Tick(u64::MAX))
    }

    /// Returns when the patience of the next request ends.
    pub fn next_end(&self) -> Option<Tick> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// Returns how many requests wait.
    pub fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Returns whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}
