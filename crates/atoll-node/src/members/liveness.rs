//! What this node knows about the state of a peer, and what a node reports about its own.

use std::time::Duration;

use atoll_contract::cluster::Health;
use atoll_core::{Incarnation, NodeId, Tick};

/// What a peer reports about itself in every heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its life.
    pub incarnation: Incarnation,
    /// Whether it is about to stop.
    pub leaving: bool,
    /// The health of its disk.
    pub health: Health,
    /// The members that it hears and that hear it, in ascending order, without itself.
    pub reaches: Vec<NodeId>,
    /// The members among these that it cannot work with: the data connection is down, or their sequencers do not answer appends.
    pub distrusts: Vec<NodeId>,
    /// The first [`super::MAX_HALTED_TOLD`] halted database replicas on it, by the name of their log.
    pub halted: Vec<String>,
    /// The members that it reaches and that themselves report reaching a majority.
    pub vouches: Vec<NodeId>,
    /// For how long the oldest unapplied entry has been waiting at its replica of the database, in whole milliseconds.
    pub apply_delay: Duration,
}

/// What this node knows about the state of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Whether this node and the peer hear each other.
    pub alive: bool,
    /// When `alive` last changed, on this node's clock.
    pub since: Tick,
    /// The incarnation that it last reported; None if it was never heard from.
    pub incarnation: Option<Incarnation>,
    /// Whether it last reported that it is about to stop. Its sequencers are then moved.
    pub leaving: bool,
    /// The health that it last reported for its disk.
    pub health: Health,
    /// Since when, on this node's clock.
    pub health_since: Tick,
    /// See [`Report::reaches`].
    pub reaches: Vec<NodeId>,
    /// See [`Report::distrusts`].
    pub distrusts: Vec<NodeId>,
    /// See [`Report::halted`].
    pub halted: Vec<String>,
    /// See [`Report::vouches`].
    pub vouches: Vec<NodeId>,
    /// See [`Report::apply_delay`].
    pub apply_delay: Duration,
    /// Whether the other nodes have lost it, according to gossip.
    pub lost_by_gossip: bool,
}

impl Liveness {
    pub(super) fn unknown(now: Tick) -> Self {
        Liveness {
            alive: false,
            since: now,
            incarnation: None,
            leaving: false,
            health: Health::Fine,
            health_since: now,
            reaches: Vec::new(),
            distrusts: Vec::new(),
            halted: Vec::new(),
            vouches: Vec::new(),
            apply_delay: Duration::ZERO,
            lost_by_gossip: false,
        }
    }

    /// Returns the state after a sign of life, or after its absence.
    pub(super) fn after(self, now: Tick, alive: bool, report: Option<Report>) -> Self {
        let since = if self.alive == alive { self.since } else { now };
        let Some(report) = report else {
            return Liveness { alive, since, leaving: self.leaving && alive, ..self };
        };
        Liveness {
            alive,
            since,
            incarnation: Some(report.incarnation),
            leaving: report.leaving,
            health: report.health,
            health_since: if self.health == report.health { self.health_since } else { now },
            reaches: report.reaches,
            distrusts: report.distrusts,
            halted: report.halted,
            vouches: report.vouches,
            apply_delay: report.apply_delay,
            // An in-band sign of life outweighs gossip.
            lost_by_gossip: false,
        }
    }
}
