//! Whether a replica may show what its store had when it was started: only once the state was compared with that of a peer
//! (`transfer/inquiry.rs` does that; docs/decisions/0013-compared-before-it-serves.md).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_contract::LogPos;
use atoll_core::{Completer, NodeId, Ticket, ticket};

use crate::replica::HashAt;

/// Positions at which this replica remembers its hash while it is compared: many more than it applies while a peer answers.
const TRAIL: usize = 16 * 1024;

/// What came of the comparison after the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checked {
    /// There was nothing to compare: the store was empty, or this replica is the only one.
    Nothing,
    /// A peer has the same state.
    Agrees {
        /// The peer.
        peer: NodeId,
        /// Of entries below.
        below: LogPos,
    },
    /// It was wrong, or the log has lost what it lacked: it gets the state of a peer.
    Refilled,
    /// A peer has another state, and nobody can tell whose is right.
    Undecided,
    /// No peer could be asked, or none had an answer in time: it serves what it has.
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
            Checked::Unanswered => write!(f, "NOT COMPARED: no peer could tell its hash in time"),
        }
    }
}

/// What this replica has for the position of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mine {
    /// This hash.
    Hash(u128),
    /// It is not there yet.
    NotYet,
    /// It was there before it was started, or too long ago.
    Past,
}

#[derive(Debug, Default)]
struct Inner {
    /// Its hash at the last positions that it was at, rising; kept only while it is compared.
    trail: VecDeque<HashAt>,
    now: Option<HashAt>,
    outcome: Option<Checked>,
    waiting: Vec<Completer<()>>,
}

/// See the module's words.
#[derive(Debug, Default)]
pub(crate) struct Check {
    under_way: AtomicBool,
    inner: Mutex<Inner>,
}

impl Check {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The replica has this state, and does not show it until [`Check::end`]. Before anybody reads.
    pub(crate) fn begin(&self, now: HashAt) {
        let mut inner = self.lock();
        inner.trail = VecDeque::from([now]);
        inner.now = Some(now);
        self.under_way.store(true, Ordering::Release);
    }

    /// True while nothing of this replica may be shown for this reason.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Acquire)
    }

    /// The replica was at these positions, one after the other, and is at `now`.
    pub(crate) fn passed(&self, trail: Vec<HashAt>, now: HashAt) {
        let mut inner = self.lock();
        inner.now = Some(now);
        if self.is_under_way() {
            inner.trail.extend(trail);
            let more = inner.trail.len().saturating_sub(TRAIL);
            inner.trail.drain(..more);
        }
    }

    /// Where the replica is.
    pub(crate) fn now(&self) -> Option<HashAt> {
        self.lock().now
    }

    /// Its hash of entries below a position.
    pub(crate) fn at(&self, below: LogPos) -> Mine {
        let inner = self.lock();
        match inner.trail.binary_search_by_key(&below, |at| at.below) {
            Ok(index) => Mine::Hash(inner.trail[index].hash),
            Err(index) if index == inner.trail.len() => Mine::NotYet,
            Err(_) => Mine::Past,
        }
    }

    /// Ends the check and wakes everybody who waits for it. A second call does nothing.
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

    /// Completes when the check has ended.
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

    /// None: it is under way.
    pub(crate) fn outcome(&self) -> Option<Checked> {
        self.lock().outcome.clone()
    }

    /// True if this replica was compared itself, was refilled, or began empty: its hash then outweighs that of one that was just started.
    pub(crate) fn vouches(&self) -> bool {
        matches!(self.lock().outcome, Some(Checked::Nothing | Checked::Agrees { .. } | Checked::Refilled))
    }
}
