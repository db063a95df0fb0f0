//! Decides whether a replica may show the state that its store held at startup. It may do so only once that state has been compared
//! with the state of a peer (by `transfer/inquiry.rs`; see docs/decisions/0013-compared-before-it-serves.md), or the time for that
//! has passed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_contract::LogPos;
use atoll_core::{Completer, NodeId, Ticket, ticket};

use crate::replica::HashAt;

/// The number of positions for which this replica keeps its hash during the comparison. It applies far fewer entries while a peer
/// answers.
const TRAIL: usize = 16 * 1024;

/// The outcome of the start check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// There was nothing to compare: the store was empty, or this replica is the only one.
    Nothing,
    /// A peer has the same state.
    Agrees {
        /// The peer.
        peer: NodeId,
        /// Both states include all entries below this position.
        below: LogPos,
    },
    /// The state was replaced with that of a peer: it was wrong, or the log no longer had the entries that it lacked.
    Refilled,
    /// A peer has a different state, and it is impossible to decide which one is right.
    Undecided,
    /// No peer could be asked, or none answered in time. This replica serves the state that it has.
    Unanswered,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Checked::Nothing => write!(f, "there was nothing to compare"),
            Checked::Agrees { peer, below } => {
                write!(f, "node {peer} has the same state of entries below {below}")
            }
            Checked::Refilled => write!(f, "the state came from a peer"),
            Checked::Undecided => write!(f, "a peer has another state, and nobody can tell whose is right"),
            Checked::Unanswered => write!(f, "NOT COMPARED: no peer sent its hash in time"),
        }
    }
}

/// This replica's hash at the position of a peer, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mine {
    /// The hash.
    Hash(u128),
    /// The replica has not reached the position yet.
    NotYet,
    /// The hash is not kept: the replica passed the position before it was started, or too long ago.
    Past,
}

#[derive(Debug, Default)]
struct Inner {
    /// The hashes at the most recent positions that the replica reached, in ascending order. Kept only during the comparison.
    trail: VecDeque<HashAt>,
    now: Option<HashAt>,
    outcome: Option<Checked>,
    waiting: Vec<Completer<()>>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Check {
    under_way: AtomicBool,
    inner: Mutex<Inner>,
}

impl Check {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the check of the state with the hash `now`. The replica does not show its state until [`Check::end`]. Must be called
    /// before the first read.
    pub(crate) fn begin(&self, now: HashAt) {
        let mut inner = self.lock();
        inner.trail = VecDeque::from([now]);
        inner.now = Some(now);
        self.under_way.store(true, Ordering::Release);
    }

    /// Returns true while the check is under way. The state must not be shown meanwhile.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }

    /// Records the positions that the replica has passed, in order, and its current one, `now`.
    pub(crate) fn passed(&self, trail: Vec<HashAt>, now: HashAt) {
        let mut inner = self.lock();
        inner.now = Some(now);
        if self.is_under_way() {
            inner.trail.extend(trail);
            let more = inner.trail.len().saturating_sub(TRAIL);
            inner.trail.drain(..more);
        }
    }

    /// Returns the current position of the replica and its hash there.
    pub(crate) fn now(&self) -> Option<HashAt> {
        self.lock().now
    }

    /// Returns the hash of the state that includes all entries below `below`.
    pub(crate) fn at(&self, below: LogPos) -> Mine {
        let inner = self.lock();
        match inner.trail.binary_search_by_key(&below, |at| at.below) {
            Ok(index) => Mine::Hash(inner.trail[index].hash),
            Err(index) if index == inner.trail.len() => Mine::NotYet,
            Err(_) => Mine::Past,
        }
    }

    /// Ends the check and wakes all its waiters. A second call does nothing.
    pub(crate) fn end(&self, outcome: Checked) {
        let waiting = {
            let mut inner = self.lock();
            if inner.outcome.is_some() {
                return;
            }
            inner.outcome = Some(outcome);
            inner.trail = VecDeque::new();
            self.under_way.store(false, Ordering::Release);
            std::mem::take(&mut inner.waiting)
        };
        waiting.into_iter().for_each(|done| done.complete(()));
    }

    /// Completes when the check has ended, or immediately if none is under way.
    pub(crate) fn wait(&self) -> Ticket<()> {
        let mut inner = self.lock();
        if !self.is_under_way() {
            return Ticket::ready(());
        }
        let (done, wait) = ticket();
        inner.waiting.retain(|done| !done.is_abandoned());
        inner.waiting.push(done);
        wait
    }

    /// Returns the outcome, or None while the check is under way.
    pub(crate) fn outcome(&self) -> Option<Checked> {
        self.lock().outcome.clone()
    }

    /// Returns true if this replica was itself compared successfully, was refilled, or began empty. Its hash then outweighs that of
    /// a replica that was just started.
    pub(crate) fn vouches(&self) -> bool {
        matches!(self.lock().outcome, Some(Checked::Nothing | Checked::Agrees { .. } | Checked::Refilled))
    }
}
