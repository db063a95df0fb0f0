//! ZooKeeper's AdminServer. `GET /commands` lists the commands, and `GET /commands/NAME` runs one and answers in JSON. The commands
//! `snapshot` and `restore` transfer the whole tree.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | what requests share: options, limits |
//! | `http.rs` | HTTP requests: routes, permissions, bodies |
//! | `commands.rs` | commands that only report |
//! | `snapshot.rs` | produces a tree snapshot |
//! | `restore.rs` | replaces the tree with a tree snapshot, on all nodes |

pub(super) mod commands;
mod http;
pub(super) mod restore;
mod snapshot;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use atoll_core::sync::lock;

use super::Shared;

pub(super) use http::serve;

/// The options of the admin server. The comments give ZooKeeper's names for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminOptions {
    /// `admin.snapshot.enabled`: whether `snapshot` is allowed.
    pub snapshot: bool,
    /// `admin.restore.enabled`: whether `restore` is allowed.
    pub restore: bool,
    /// `admin.snapshot.intervalInMS`: at most one snapshot is taken in this time; zero for no limit.
    pub snapshot_every: Duration,
    /// `admin.restore.intervalInMS`: the same for restores.
    pub restore_every: Duration,
}

impl Default for AdminOptions {
    fn default() -> Self {
        let every = Duration::from_secs(300);
        AdminOptions { snapshot: true, restore: true, snapshot_every: every, restore_every: every }
    }
}

/// The state that requests share.
struct Admin {
    shared: Arc<Shared>,
    snapshots: Limit,
    restores: Limit,
    /// The last snapshot that this node took: its zxid, and its time in milliseconds since the Unix epoch.
    last_snapshot: Mutex<Option<(i64, i64)>>,
}

impl Admin {
    fn new(shared: Arc<Shared>) -> Admin {
        let options = &shared.options.admin;
        let (snapshots, restores) = (Limit::new(options.snapshot_every), Limit::new(options.restore_every));
        Admin { snapshots, restores, shared, last_snapshot: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct Turn {
    /// Whether an operation is under way.
    busy: bool,
    began: Option<Instant>,
}

/// Limits an operation to one at a time and one per interval.
#[derive(Debug)]
struct Limit {
    every: Duration,
    turn: Arc<Mutex<Turn>>,
}

/// The reason why an operation may not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limited {
    /// Another one is under way.
    Busy,
    /// The last one began too recently. The next one may begin after this time.
    After(Duration),
}

/// The permission to run one operation, until it is dropped. It counts toward the interval only if [`Taken::counts`] was called.
#[derive(Debug)]
struct Taken {
    turn: Arc<Mutex<Turn>>,
    before: Option<Instant>,
    counts: bool,
}

impl Limit {
    fn new(every: Duration) -> Limit {
        Limit { every, turn: Arc::default() }
    }

    fn take(&self, now: Instant) -> Result<Taken, Limited> {
        let mut turn = lock(&self.turn);
        if turn.busy {
            return Err(Limited::Busy);
        }
        let ago = turn.began.map(|began| now.saturating_duration_since(began));
        if let Some(left) = ago.and_then(|ago| self.every.checked_sub(ago)).filter(|left| !left.is_zero()) {
            return Err(Limited::After(left));
        }
        let before = turn.began.replace(now);
        turn.busy = true;
        Ok(Taken { turn: self.turn.clone(), before, counts: false })
    }
}

impl Taken {
    /// Makes the operation count toward the interval, because from here on it has effects.
    fn counts(&mut self) {
        self.counts = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut turn = lock(&self.turn);
        turn.busy = false;
        if !self.counts {
            turn.began = self.before;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_at_a_time_and_one_within_an_interval() {
        let (limit, now) = (Limit::new(Duration::from_secs(10)), Instant::now());
        let later = |s| now + Duration::from_secs(s);
        let mut first = limit.take(now).unwrap();
        first.counts();
        assert_eq!(limit.take(later(20)).unwrap_err(), Limited::Busy);
        drop(first);
        assert_eq!(limit.take(later(4)).unwrap_err(), Limited::After(Duration::from_secs(6)));
        // An operation that does not count is as if it had not started.
        drop(limit.take(later(10)).unwrap());
        limit.take(later(11)).unwrap().counts();
        assert_eq!(limit.take(later(12)).unwrap_err(), Limited::After(Duration::from_secs(9)));
        let none = Limit::new(Duration::ZERO);
        none.take(now).unwrap().counts();
        none.take(now).unwrap().counts();
    }
}
