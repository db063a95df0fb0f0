//! Determines the time that this node writes into its entries (contracts X29). The log's time follows the proposers' clocks and
//! never goes back, so a single clock that is far ahead would advance it permanently. A proposer therefore compares its clock with
//! those of the other members before every entry.
//!
//! | what the other members report | what the entry carries |
//! | --- | --- |
//! | there are none, or none of their programs reports a clock | this node's clock |
//! | at least half of their clocks are at most [`Options::clock_ahead_at_most`](super::Options) behind this one | this node's clock |
//! | more than half are further behind | nothing is proposed: [`ClockAhead`] |
//! | no clock that counts is known | the node waits for [`LISTEN`] after its start; then time advances with its monotonic clock |
//!
//! A clock does not count if it is so far behind that it cannot have agreed to the log's own time. The node with the earliest of
//! the clocks that count can therefore always propose. A clock that does not advance the log's time is not compared at all.
//! Replicas do not repeat these checks when they apply an entry: each takes the time that the entry carries.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, NodeId, Tick};

use crate::mutants;

use super::Clock;

/// For this long after its start, a node that has heard no clock waits before it proposes. Peers that are up report their clocks as
/// soon as they connect.
const LISTEN: Duration = Duration::from_secs(2);

/// The wall clocks of the other members, as this node last heard them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerClocks {
    /// The clock of each member that is up, as of now, in milliseconds since the Unix epoch.
    pub reported: Vec<(NodeId, u64)>,
    /// The number of members that are up but report no clock, because their program does not support it.
    pub unreported: usize,
    /// The number of members from which nothing is heard.
    pub silent: usize,
}

/// Returns the clocks of the other members.
pub type HearClocks = Arc<dyn Fn() -> PeerClocks + Send + Sync>;

/// The clock of a node is further ahead of the other members' clocks than is allowed. The node proposes nothing until a clock is
/// corrected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockAhead {
    /// The node.
    pub node: NodeId,
    /// Its clock is at least this far ahead of the clock of each member in `of`, in milliseconds.
    pub ahead_ms: u64,
    /// The allowed difference, in milliseconds.
    pub allowed_ms: u64,
    /// The members that it is ahead of.
    pub of: Vec<NodeId>,
}

impl fmt::Display for ClockAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of: Vec<String> = self.of.iter().map(NodeId::to_string).collect();
        write!(
            f,
            "the clock of node {} is {} s ahead of that of node {}; {} s are allowed: set it right, and the node proposes again \
             by itself; use another node meanwhile",
            self.node,
            self.ahead_ms / 1000,
            of.join(" and of node "),
            self.allowed_ms / 1000
        )
    }
}

/// The result of the comparison with the other members' clocks.
#[derive(Debug, PartialEq, Eq)]
enum ClockCheck {
    Agreed,
    /// No member whose clock counts is heard.
    Unheard,
    Ahead {
        of: Vec<NodeId>,
        ahead_ms: u64,
    },
}

fn judge(own_ms: u64, log_ms: u64, peers: &PeerClocks, allowed_ms: u64) -> ClockCheck {
    let nobody = peers.reported.is_empty() && peers.unreported == 0 && peers.silent == 0;
    // A time that does not advance the log's time does no harm.
    if nobody || own_ms <= log_ms {
        return ClockCheck::Agreed;
    }
    // The log's time may be ahead of a correct clock by the allowed difference, and a correct clock may be behind another correct
    // one by the same amount.
    let counts = |ms: u64| ms.saturating_add(allowed_ms.saturating_mul(2)) >= log_ms;
    let witnesses: Vec<_> = peers.reported.iter().filter(|(_, ms)| counts(*ms)).collect();
    if witnesses.is_empty() {
        let unchecked = peers.reported.is_empty() && peers.unreported > 0;
        return if unchecked { ClockCheck::Agreed } else { ClockCheck::Unheard };
    }
    let behind: Vec<_> = witnesses.iter().filter(|(_, ms)| ms.saturating_add(allowed_ms) < own_ms).collect();
    if behind.len() * 2 <= witnesses.len() {
        return ClockCheck::Agreed;
    }
    let latest_ms = behind.iter().map(|(_, ms)| *ms).max().unwrap_or(0);
    ClockCheck::Ahead { of: behind.iter().map(|(node, _)| *node).collect(), ahead_ms: own_ms - latest_ms }
}

/// The time that an entry may carry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// This time, in milliseconds since the Unix epoch.
    At(u64),
    /// The time is not known yet; ask again soon.
    Listening,
    /// This node's clock is refused.
    Ahead(ClockAhead),
}

/// The last time that the other members' clocks agreed to (at first, the log's time), and the reading of the monotonic clock at
/// that moment.
#[derive(Clone, Copy)]
struct Agreed {
    time_ms: u64,
    /// None before the first reading, because the monotonic clock cannot be read while the node is being built.
    at: Option<Tick>,
    started: Option<Tick>,
}

/// This node's clock, checked against those of the other members.
pub(super) struct CheckedClock {
    env: Env,
    clock: Clock,
    /// None if there are no other replicas.
    peers: Option<HearClocks>,
    allowed_ms: u64,
    agreed: Mutex<Agreed>,
}

fn millis(of: Duration) -> u64 {
    u64::try_from(of.as_millis()).unwrap_or(u64::MAX)
}

impl CheckedClock {
    /// Returns what this node's own clock shows, right or wrong.
    pub(super) fn wall_ms(&self) -> u64 {
        (self.clock)()
    }

    /// `log_ms`: the log's time, as far as this node knows it.
    pub(super) fn new(
        env: Env,
        clock: Clock,
        peers: Option<HearClocks>,
        allowed: Duration,
        log_ms: u64,
    ) -> Self {
        let agreed = Mutex::new(Agreed { time_ms: log_ms, at: None, started: None });
        CheckedClock { env, clock, peers, allowed_ms: millis(allowed), agreed }
    }

    /// Returns the time that an entry may carry now, if the log's time is `log_ms`.
    pub(super) fn read(&self, log_ms: u64) -> Reading {
        let own_ms = (self.clock)();
        let Some(peers) = self.peers.as_ref().filter(|_| !mutant(mutants::DB_CLOCK_UNCHECKED)) else {
            return Reading::At(own_ms);
        };
        let now = self.env.now();
        let mut agreed = self.agreed.lock().unwrap_or_else(PoisonError::into_inner);
        let started = *agreed.started.get_or_insert(now);
        let at = *agreed.at.get_or_insert(now);
        match judge(own_ms, log_ms, &peers(), self.allowed_ms) {
            ClockCheck::Agreed => {
                *agreed = Agreed { time_ms: own_ms, at: Some(now), started: Some(started) };
                Reading::At(own_ms)
            }
            ClockCheck::Ahead { of, ahead_ms } => {
                hit("db.clock.ahead");
                let (node, allowed_ms) = (self.env.node(), self.allowed_ms);
                Reading::Ahead(ClockAhead { node, ahead_ms, allowed_ms, of })
            }
            ClockCheck::Unheard => {
                let paced_ms = agreed.time_ms.saturating_add(millis(now.since(at))).max(log_ms);
                if own_ms > paced_ms && now.since(started) < LISTEN {
                    return Reading::Listening;
                }
                hit("db.clock.unheard");
                Reading::At(own_ms.min(paced_ms))
            }
        }
    }
}

#[cfg(test)]
#[path = "clock_test.rs"]
mod tests;
