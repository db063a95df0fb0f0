//! What this node knows about the life of a peer, and what a node reports about its own.

use atoll_core::{Incarnation, NodeId, Tick};

/// The health of a node's disk, from best to worst. The process answers in each of these states, but code that places segments, takes over
/// sessions or trims must not count on a disk that is not [`Health::Fine`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Health {
    /// It keeps what it is given.
    #[default]
    Fine,
    /// It takes no entries for lack of space, but it still takes facts.
    Full,
    /// It was given something to keep and has not synced it within `disk_hangs_after`. It may recover by itself.
    Hanging,
    /// The journal is closed after a failed write or sync, until the process is restarted.
    Closed,
}

impl Health {
    /// Its number in heartbeats.
    pub fn code(self) -> u8 {
        match self {
            Health::Fine => 0,
            Health::Full => 1,
            Health::Hanging => 2,
            Health::Closed => 3,
        }
    }

    /// The state for a number. A number that a later version introduced becomes a state that this node does not count on.
    pub fn of_code(code: u8) -> Self {
        match code {
            0 => Health::Fine,
            1 => Health::Full,
            3 => Health::Closed,
            _ => Health::Hanging,
        }
    }

    /// The state as `atoll status` names it, and the reason; None for a disk that is fine.
    pub fn words(self) -> Option<(&'static str, &'static str)> {
        match self {
            Health::Fine => None,
            Health::Full => Some(("full", "its disk takes no entries; trim logs or give it room")),
            Health::Hanging => Some(("hanging", "its disk has not synced what it was given for long")),
            Health::Closed => Some(("failed", "its journal is closed after a failed write or sync")),
        }
    }
}

/// What a peer reports about itself with every sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Its life.
    pub incarnation: Incarnation,
    /// It is about to stop.
    pub leaving: bool,
    /// The health of its disk.
    pub health: Health,
    /// The members that it hears and that hear it, in order; itself not among them.
    pub reaches: Vec<NodeId>,
    /// Of these, the members that it cannot work with: their connection for data is broken, or appends to their sequencers
    /// have no answer.
    pub distrusts: Vec<NodeId>,
    /// Replicas of databases on it that have halted, by the name of their log: the first [`super::MAX_HALTED_TOLD`] of them.
    pub halted: Vec<String>,
    /// The members that it reaches and that report that they reach a majority of the members.
    pub vouches: Vec<NodeId>,
}

/// What this node knows of a peer's life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Not suspected: this node hears it, and is heard by it.
    pub alive: bool,
    /// Since when, on this node's clock.
    pub since: Tick,
    /// The life that it last reported; None if it was never heard from.
    pub incarnation: Option<Incarnation>,
    /// It said that it is leaving: its sequencers are to be moved.
    pub leaving: bool,
    /// The health of its disk, as it last reported.
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
    /// According to gossip, the others have lost it.
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
            lost_by_gossip: false,
        }
    }

    /// What is known after a sign of life, or its absence.
    pub(super) fn after(self, now: Tick, alive: bool, told: Option<Report>) -> Self {
        let since = if self.alive == alive { self.since } else { now };
        let Some(told) = told else {
            return Liveness { alive, since, leaving: self.leaving && alive, ..self };
        };
        Liveness {
            alive,
            since,
            incarnation: Some(told.incarnation),
            leaving: told.leaving,
            health: told.health,
            health_since: if self.health == told.health { self.health_since } else { now },
            reaches: told.reaches,
            distrusts: told.distrusts,
            halted: told.halted,
            vouches: told.vouches,
            // An in-band sign of life outweighs what others report.
            lost_by_gossip: false,
        }
    }
}
