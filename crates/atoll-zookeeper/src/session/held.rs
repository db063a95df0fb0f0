//! The sessions that a node holds, in the order in which their clients can be found silent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::keeper::Expired;
use crate::watch::ConnectionId;
use crate::watch::outbox::Outbox;

/// When a client was last heard. Shared with its connection.
#[derive(Debug)]
pub struct LastSeen {
    start: Instant,
    after_ms: AtomicU64,
    waits: AtomicBool,
}

impl LastSeen {
    /// Creates a record that starts now.
    pub fn new() -> Arc<LastSeen> {
        Arc::new(LastSeen {
            start: Instant::now(),
            after_ms: AtomicU64::new(0),
            waits: AtomicBool::new(false),
        })
    }

    /// Sets whether the client waits for answers. If it does, this side is the silent one, and the client's pings may still be
    /// unread in the socket.
    pub fn set_waits(&self, waits: bool) {
        if self.waits.load(Ordering::Relaxed) == waits {
            return;
        }
        // Its silence begins when the last answer is there.
        self.touch();
        self.waits.store(waits, Ordering::Relaxed);
    }

    /// Records that the client was heard now.
    pub fn touch(&self) {
        let after = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.after_ms.store(after, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn set_after_ms(&self, after_ms: u64) {
        self.after_ms.store(after_ms, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn after_ms(&self) -> u64 {
        self.after_ms.load(Ordering::Relaxed)
    }

    pub(super) fn silent_for(&self, now: Instant) -> Duration {
        let heard = self.start + Duration::from_millis(self.after_ms.load(Ordering::Relaxed));
        now.saturating_duration_since(heard)
    }
}

/// A session that a node holds.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) moves: i64,
    pub(super) timeout: Duration,
    pub(super) heard: Arc<LastSeen>,
    pub(super) connection: Option<(ConnectionId, Arc<Outbox>)>,
    /// When to look whether its client is silent. None while its expiry is under way.
    due: Option<Instant>,
    /// Whether the session has ended, except that ephemerals are left.
    is_ending: bool,
}

impl Held {
    /// Creates a record whose full timeout starts now.
    fn new(moves: i64, timeout_ms: i32) -> Held {
        let timeout = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let is_ending = timeout_ms < 0;
        Held { moves, timeout, heard: LastSeen::new(), connection: None, due: None, is_ending }
    }
}

/// The sessions of a node. Each is looked at when its client could have been silent for its timeout, and not before: with many sessions, to
/// look at all of them a few times a second would take a noticeable part of the node's thread.
#[derive(Debug, Default)]
pub(super) struct Table {
    held: BTreeMap<i64, Held>,
    /// When to look at a session, for each that has such a time.
    due: BTreeSet<(Instant, i64)>,
}

impl Table {
    /// Adds a session, with a full timeout from now on; returns the one that it replaces.
    pub(super) fn insert(&mut self, session: i64, moves: i64, timeout_ms: i32) -> Option<Held> {
        let before = self.remove(session);
        let held = Held::new(moves, timeout_ms);
        let due = held.heard.start + held.timeout;
        self.held.insert(session, held);
        self.look_at(session, due);
        before
    }

    /// Removes a session.
    pub(super) fn remove(&mut self, session: i64) -> Option<Held> {
        let held = self.held.remove(&session)?;
        if let Some(due) = held.due {
            self.due.remove(&(due, session));
        }
        Some(held)
    }

    /// Removes the sessions that `which` chooses.
    pub(super) fn remove_all(&mut self, which: impl Fn(i64, &Held) -> bool) -> Vec<Held> {
        let chosen: Vec<i64> = self.iter().filter(|(id, held)| which(*id, held)).map(|(id, _)| id).collect();
        chosen.into_iter().filter_map(|id| self.remove(id)).collect()
    }

    /// Returns a session.
    pub(super) fn get_mut(&mut self, session: i64) -> Option<&mut Held> {
        self.held.get_mut(&session)
    }

    /// Returns the sessions in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, &Held)> {
        self.held.iter().map(|(id, held)| (*id, held))
    }

    /// Returns the sessions without their ids.
    pub(super) fn values(&self) -> impl Iterator<Item = &Held> {
        self.held.values()
    }

    /// Returns the number of sessions.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Has a session looked at when `due` is over.
    fn look_at(&mut self, session: i64, due: Instant) {
        let Some(held) = self.held.get_mut(&session) else { return };
        if let Some(before) = held.due.replace(due) {
            self.due.remove(&(before, session));
        }
        self.due.insert((due, session));
    }

    /// Returns the sessions whose clients were silent for longer than their timeouts. They are not looked at again until
    /// [`Table::judge_again`].
    pub(super) fn take_silent(&mut self, now: Instant) -> Vec<Expired> {
        let mut silent = Vec::new();
        while let Some((due, session)) = self.due.first().copied().filter(|(due, _)| *due < now) {
            self.due.remove(&(due, session));
            let Some(held) = self.held.get_mut(&session) else { continue };
            held.due = None;
            if held.heard.waits.load(Ordering::Relaxed) {
                held.heard.touch();
            }
            let silent_for = held.heard.silent_for(now);
            if silent_for > held.timeout {
                silent.push(Expired { session, moves: held.moves, is_ending: held.is_ending });
                continue;
            }
            // A client that was heard later than `now` by this clock has a full timeout.
            let next = now + held.timeout.saturating_sub(silent_for);
            self.look_at(session, next);
        }
        silent.sort_by_key(|expired| expired.session);
        silent
    }

    /// Has a session looked at again at the next call of [`Table::take_silent`], if its move count is still this one.
    pub(super) fn judge_again(&mut self, session: i64, moves: i64) {
        if let Some(held) = self.held.get(&session).filter(|held| held.moves == moves && held.due.is_none()) {
            let due = held.heard.start;
            self.look_at(session, due);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn silent(table: &mut Table, now: Instant) -> Vec<i64> {
        table.take_silent(now).into_iter().map(|expired| expired.session).collect()
    }

    /// Returns how many sessions the next call looks at.
    fn looked_at(table: &Table, now: Instant) -> usize {
        table.due.iter().take_while(|(due, _)| *due < now).count()
    }

    #[test]
    fn a_session_is_looked_at_once_in_its_timeout() {
        let mut table = Table::default();
        (0..1_000).for_each(|session| _ = table.insert(session, 0, 10_000));
        let start = Instant::now();
        assert_eq!(looked_at(&table, start + 9 * SECOND), 0);
        table.values().for_each(|held| held.heard.set_after_ms(9_000));
        assert_eq!(looked_at(&table, start + 11 * SECOND), 1_000);
        assert_eq!(silent(&mut table, start + 11 * SECOND), [0; 0]);
        assert_eq!(looked_at(&table, start + 18 * SECOND), 0);
        table.get_mut(7).unwrap().heard.set_after_ms(12_000);
        assert_eq!(silent(&mut table, start + 20 * SECOND).len(), 999);
        assert_eq!((looked_at(&table, start + 21 * SECOND), table.due.len()), (0, 1));
        assert_eq!(silent(&mut table, start + 23 * SECOND), [7]);
    }

    #[test]
    fn what_is_due_belongs_to_a_session() {
        let mut table = Table::default();
        table.insert(1, 0, 1_000);
        assert!(table.insert(1, 1, 2_000).is_some_and(|before| before.moves == 0));
        table.insert(2, 0, 1_000);
        assert_eq!(table.due.len(), 2);
        assert_eq!(table.remove_all(|id, _| id == 2).len(), 1);
        let late = Instant::now() + 3 * SECOND;
        assert_eq!(silent(&mut table, late), [1]);
        table.judge_again(1, 0);
        assert_eq!(silent(&mut table, late), [0; 0], "not by the move count of before");
        table.judge_again(1, 1);
        table.judge_again(1, 1);
        assert_eq!((silent(&mut table, late), table.due.len()), (vec![1], 0));
        assert!(table.remove(1).is_some() && table.remove(1).is_none() && table.len() == 0);
    }
}
