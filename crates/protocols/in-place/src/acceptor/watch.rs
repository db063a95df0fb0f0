//! Watchers of keys (§10): an acceptor tells them that it has voted. They read the key then, because a vote need not be chosen.
//!
//! A watcher costs nothing but memory, of which there is a limit. A watcher that is not taken, or that loses its connection, reads the key
//! after a while anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, Lsn, Tick};
use bytes::Bytes;

use super::Acceptor;
use crate::ballot::Ballot;
use crate::message::{GroupKey, Watch, Watched};

/// The most watchers of an acceptor.
const MAX_WATCHERS: usize = 64 * 1024;
/// The longest time for which a watcher waits.
const LONGEST_MS: u32 = 60_000;

#[derive(Debug)]
struct Watcher {
    key: (GroupKey, Bytes),
    caller: Caller,
    seen: Ballot,
}

/// The watchers of an acceptor.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    /// In the order in which their time is over.
    by_end: BTreeMap<(Tick, u64), Watcher>,
    by_key: BTreeMap<(GroupKey, Bytes), BTreeSet<(Tick, u64)>>,
    next: u64,
}

impl Watchers {
    /// Returns when the next watcher has waited for long enough.
    pub(super) fn next_end(&self) -> Option<Tick> {
        self.by_end.first_key_value().map(|((end, _), _)| *end)
    }

    fn remove(&mut self, end: (Tick, u64)) -> Option<Watcher> {
        let watcher = self.by_end.remove(&end)?;
        if let Some(ends) = self.by_key.get_mut(&watcher.key) {
            ends.remove(&end);
            if ends.is_empty() {
                self.by_key.remove(&watcher.key);
            }
        }
        Some(watcher)
    }

    /// The acceptor has voted for a key. Tells those who know only of older votes, once the vote is durable.
    pub(super) fn voted(&mut self, group: GroupKey, key: &Bytes, voted: Ballot, lsn: Lsn, out: &mut Effects) {
        // Most keys have no watchers, and then nothing is copied.
        if self.by_key.is_empty() {
            return;
        }
        let ends = self.by_key.get(&(group, key.clone())).cloned().unwrap_or_default();
        for end in ends {
            if self.by_end.get(&end).is_some_and(|watcher| watcher.seen < voted)
                && let Some(watcher) = self.remove(end)
            {
                hit("in-place.acceptor.notifies");
                out.reply(watcher.caller, Watched { changed: true }, lsn);
            }
        }
    }

    /// Answers those whose time is over.
    pub(super) fn expire(&mut self, now: Tick, out: &mut Effects) {
        while let Some(end) = self.by_end.first_key_value().map(|(end, _)| *end).filter(|(at, _)| *at <= now)
        {
            if let Some(watcher) = self.remove(end) {
                out.reply(watcher.caller, Watched { changed: false }, Lsn::NONE);
            }
        }
    }

    /// A group is gone: its watchers look for themselves.
    pub(super) fn dropped(&mut self, group: GroupKey, lsn: Lsn, out: &mut Effects) {
        let of_group = self.by_key.range((group, Bytes::new())..).take_while(|((of, _), _)| *of == group);
        let ends: Vec<(Tick, u64)> = of_group.flat_map(|(_, ends)| ends.iter().copied()).collect();
        for watcher in ends.into_iter().filter_map(|end| self.remove(end)) {
            out.reply(watcher.caller, Watched { changed: true }, lsn);
        }
    }
}

impl Acceptor {
    pub(super) fn on_watch(&mut self, now: Tick, from: Caller, m: Watch, out: &mut Effects) {
        let (voted, lsn) = match self.admit(m.group, m.identity) {
            Ok(group) => {
                group.slots.get(&m.key).map_or((Ballot::ZERO, Lsn::NONE), |s| (s.voted, s.voted_lsn))
            }
            Err(_) => return out.reply(from, Watched { changed: false }, Lsn::NONE),
        };
        if voted > m.seen || self.watchers.by_end.len() >= MAX_WATCHERS {
            return out.reply(from, Watched { changed: voted > m.seen }, lsn);
        }
        let end = now.after(Duration::from_millis(m.for_ms.min(LONGEST_MS).into()));
        let (key, seen, number) = (Bytes::copy_from_slice(&m.key), m.seen, self.watchers.next);
        self.watchers.next += 1;
        let watcher = Watcher { key: (m.group, key), caller: from, seen };
        self.watchers.by_key.entry(watcher.key.clone()).or_default().insert((end, number));
        self.watchers.by_end.insert((end, number), watcher);
    }
}
