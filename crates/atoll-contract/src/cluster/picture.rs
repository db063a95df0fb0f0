//! What one node knows about the cluster at one moment. It is a value, so a test can draw any picture.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_core::{Candidate, Incarnation, NodeId, StorageId, Tick};

use super::{Health, Reach};

/// What a node knows about the life of a member. It knows its own best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Life {
    /// Whether this node and the member hear each other.
    pub hears: bool,
    /// Since when, on this node's clock.
    pub since: Tick,
    /// Whether the cluster considers the member up: this node hears it, a peer vouches for it, or a majority of the members reaches it.
    pub is_up: bool,
    /// The life that the member last reported; None if it was never heard from.
    pub incarnation: Option<Incarnation>,
}

/// What a node knows about one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sight {
    /// What it may do, and whether it seems to be fit for it.
    pub candidate: Candidate,
    /// The identity of its data directory; 0 until it has joined.
    pub storage: StorageId,
    /// What is known about its life; None if nothing is known yet.
    pub life: Option<Life>,
    /// The health that it last reported for its disk.
    pub disk: Health,
    /// Since when, on this node's clock.
    pub disk_since: Tick,
}

/// What one node knows about the cluster at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// The node whose knowledge this is.
    pub me: NodeId,
    /// The time of the picture, on its clock.
    pub now: Tick,
    /// How long a member that holds entries may be gone, or its disk fail, before another one should take its place.
    pub patience: Duration,
    /// Whether the table of members has been read. As long as it has not, a node that is not in the picture may still be a member.
    pub is_complete: bool,
    /// The members. Also contains `me` before the table has been read.
    pub members: BTreeMap<NodeId, Sight>,
    /// Which members reach each other, and which of them can work with each other.
    pub reach: Reach,
}

impl Picture {
    /// Whether a node is no longer a member. A node with an old table may have placed a Loglet on it while it was being removed.
    pub fn is_removed(&self, node: NodeId) -> bool {
        self.is_complete && !self.members.contains_key(&node)
    }

    /// Returns the members as candidates for the roles of a Loglet.
    pub fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        self.members.values().map(|sight| &sight.candidate)
    }

    /// Returns how many members can work with a node.
    pub fn use_of(&self, node: NodeId) -> usize {
        self.members.keys().filter(|member| self.reach.works(**member, node)).count()
    }

    /// Whether a moment is so long ago that the picture's patience is over.
    pub fn is_long_ago(&self, since: Tick) -> bool {
        self.now.since(since) >= self.patience
    }

    /// Returns the nodes that a new Loglet should avoid: those that seem to be down, failing, or about to leave.
    pub fn unfit(&self) -> impl Iterator<Item = NodeId> {
        self.candidates().filter(|c| !is_fit(c)).map(|c| c.node)
    }

    /// Whether some member that may hold entries is fit for it, and is not one of these.
    pub fn has_spare_holder(&self, besides: &[NodeId]) -> bool {
        self.candidates().any(|c| c.log && is_fit(c) && !besides.contains(&c.node))
    }

    /// Returns the members other than `node` that may order appends and are fit for it.
    pub fn other_orderers(&self, node: NodeId) -> impl Iterator<Item = NodeId> {
        self.candidates().filter(move |c| c.sequencer && is_fit(c) && c.node != node).map(|c| c.node)
    }

    /// Whether a Loglet with this many holders can now be placed without the draining nodes.
    pub fn can_do_without_drained(&self, holders: usize) -> bool {
        can_do_without_drained(self.candidates(), holders)
    }
}

/// Whether a node seems to be up, with a disk that works, and is to stay.
fn is_fit(c: &Candidate) -> bool {
    c.alive && !c.failing && !c.draining && !c.leaving
}

/// Whether a Loglet with this many holders can now be placed without the draining nodes. If not, the next Loglet would be placed on them
/// again.
pub fn can_do_without_drained<'a>(candidates: impl Iterator<Item = &'a Candidate>, holders: usize) -> bool {
    let staying: Vec<&Candidate> = candidates.filter(|c| c.log && !c.draining).collect();
    let wanted = holders.min(staying.len());
    let wanted = if wanted.is_multiple_of(2) { wanted.saturating_sub(1) } else { wanted };
    wanted > 0 && staying.iter().filter(|c| c.alive && !c.failing).count() >= wanted
}

/// Tests begin with a cluster in which all is well, and then break something.
#[cfg(feature = "testing")]
impl Picture {
    /// Returns the picture that member 1 has of members 1 to `count`, 100 seconds after its start. They all reach each other, and each
    /// has its id as the number of its life and of its data directory.
    pub fn all_well(count: u32) -> Self {
        let nodes = || (1..=count).map(NodeId);
        let sight = |node: NodeId| {
            let candidate = Candidate {
                node,
                log: true,
                sequencer: true,
                meta: true,
                draining: false,
                leaving: false,
                alive: true,
                failing: false,
            };
            let incarnation = Some(Incarnation(node.0.into()));
            let life = Some(Life { hears: true, since: Tick(0), is_up: true, incarnation });
            let storage = StorageId(node.0.into());
            (node, Sight { candidate, storage, life, disk: Health::Fine, disk_since: Tick(0) })
        };
        let row = |node: NodeId| {
            let reaches = nodes().filter(|other| *other != node).collect();
            (node, super::reach::Row { reaches, distrusts: Vec::new() })
        };
        Picture {
            me: NodeId(1),
            now: Tick(100_000_000_000),
            patience: Duration::from_secs(5),
            is_complete: true,
            members: nodes().map(sight).collect(),
            reach: Reach { rows: nodes().map(row).collect() },
        }
    }

    /// Changes what is known about a member.
    #[must_use]
    pub fn with(mut self, node: u32, change: impl FnOnce(&mut Sight)) -> Self {
        if let Some(sight) = self.members.get_mut(&NodeId(node)) {
            change(sight);
        }
        self
    }

    /// Lets a member be gone since a moment: nobody hears it.
    #[must_use]
    pub fn without(mut self, node: u32, since: Tick) -> Self {
        self.reach.rows.remove(&NodeId(node));
        for row in self.reach.rows.values_mut() {
            row.reaches.retain(|other| other.0 != node);
        }
        self.with(node, |sight| {
            sight.candidate.alive = false;
            sight.life = sight.life.map(|life| Life { hears: false, is_up: false, since, ..life });
        })
    }
}
