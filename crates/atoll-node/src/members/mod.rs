//! Which nodes belong to the cluster, and which of them are up, as this node sees it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the view: members, liveness, this node's own state; [`Members`] is a [`Directory`] |
//! | `liveness.rs` | what is known about the life of a peer, and what a node reports about its own |
//! | `reach.rs` | which members reach each other, as they report |
//! | `table.rs` | the table of members as it stands in its register |
//! | `role.rs` | the role that answers who this node is, and keeps the table across restarts |
//! | `detector.rs` | the role that determines which nodes are up: heartbeats and broken connections |
//! | `gossip.rs` | the role that gossips about which nodes are up, by a library |
//! | `bootstrap.rs` | finding the group of acceptors, and making the first one |
//! | `late.rs` | registers that are handed out before the group is known |
//! | `meta_group.rs` | keeps the group in step with the members |
//! | `levels.rs` | the table of feature levels, and the role that keeps the active one |
//! | `upgrade.rs` | announcing and raising them |
//! | `change.rs` | joining, adding, draining, removing: conditional writes of the table |

pub mod bootstrap;
pub mod change;
pub mod detector;
pub mod gossip;
pub mod late;
pub mod levels;
pub mod liveness;
pub mod meta_group;
pub mod reach;
pub mod role;
pub mod roles;
pub mod table;
pub mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::testing::{hit, mutant};
use atoll_core::{Candidate, Directory, Identity, NodeId, Notify, Tick};
use atoll_db::{Clock, PeerClocks};

use reach::{Reach, Row};
use table::MemberTable;

use crate::mutants;

pub use liveness::{Health, Liveness, Report};

/// Most halted replicas that a node names. Nothing needs the number of the others.
pub const MAX_HALTED_TOLD: usize = 8;

/// A clock that prints as a fixed text in `Debug` output.
#[derive(Clone)]
struct Wall(Clock);

impl std::fmt::Debug for Wall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a wall clock")
    }
}

#[derive(Debug)]
struct Inner {
    me: Identity,
    /// Shared with its readers: every round of every procedure reads it, and it seldom changes.
    table: Arc<MemberTable>,
    peers: BTreeMap<NodeId, Liveness>,
    leaving: bool,
    full: bool,
    hanging: bool,
    /// The health of the disk, and since when.
    health: (Health, Tick),
    /// Peers that this node cannot work with, and until when that holds without new evidence.
    distrusted: BTreeMap<NodeId, Tick>,
    /// Replicas that have halted here, by the name of their log.
    halted: BTreeSet<String>,
    newest_table: u64,
    /// This node's wall clock, if it reports one.
    wall: Option<Wall>,
    /// What the wall clocks of the peers showed, and when that was heard.
    walls: BTreeMap<NodeId, (u64, Tick)>,
}

/// The view. Cheap to clone; all clones are one. It notifies at every change.
#[derive(Clone, Debug)]
pub struct Members {
    inner: Arc<Mutex<Inner>>,
    /// Notified when a member came or went, or must be treated differently.
    pub changed: Notify,
}

impl Members {
    /// A view in which `table` is all that is known.
    pub fn new(me: Identity, table: MemberTable) -> Self {
        let inner = Inner {
            me,
            table: Arc::new(table),
            peers: BTreeMap::new(),
            leaving: false,
            full: false,
            hanging: false,
            health: (Health::Fine, Tick(0)),
            distrusted: BTreeMap::new(),
            halted: BTreeSet::new(),
            newest_table: 0,
            wall: None,
            walls: BTreeMap::new(),
        };
        Members { inner: Arc::new(Mutex::new(inner)), changed: Notify::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This node, as it answers [`atoll_core::Identify`].
    pub fn identity(&self) -> Identity {
        let inner = self.lock();
        let drained = inner.table.nodes.get(&inner.me.node).is_some_and(|n| n.draining);
        let mut me = inner.me.clone();
        me.draining = inner.leaving || drained;
        me.failed = inner.health.0 >= Health::Hanging;
        me
    }

    /// From now on this node takes nothing new: it is about to stop.
    pub fn leave(&self) {
        self.lock().leaving = true;
        self.changed.notify();
    }

    /// The journal is closed for good: nothing new can be kept here.
    pub fn fail(&self, now: Tick) {
        self.set_health(now, |inner| inner.me.failed = true);
    }

    /// The disk takes no entries for lack of space, or takes them again.
    pub fn set_full(&self, now: Tick, full: bool) {
        self.set_health(now, |inner| inner.full = full);
    }

    /// The disk has not synced what it was given for a long time, or syncs again.
    pub fn set_hanging(&self, now: Tick, hanging: bool) {
        self.set_health(now, |inner| inner.hanging = hanging);
    }

    fn set_health(&self, now: Tick, change: impl FnOnce(&mut Inner)) {
        {
            let mut inner = self.lock();
            change(&mut inner);
            let health = match () {
                () if inner.me.failed => Health::Closed,
                // A batch that waits for room is no sign of a disk that hangs.
                () if inner.full => Health::Full,
                () if inner.hanging => Health::Hanging,
                () => Health::Fine,
            };
            if inner.health.0 == health {
                return;
            }
            inner.health = (health, now);
        }
        self.changed.notify();
    }

    /// The health of this node's disk.
    pub fn health(&self) -> Health {
        self.lock().health.0
    }

    /// The health of any node's disk, as that node last reported it, and since when on this node's clock.
    pub fn health_of(&self, node: NodeId) -> (Health, Tick) {
        let inner = self.lock();
        match inner.peers.get(&node) {
            _ if node == inner.me.node => inner.health,
            Some(peer) => (peer.health, peer.health_since),
            None => (Health::Fine, Tick(0)),
        }
    }

    /// A replica of the database on `log` has halted on this node, or runs again. Heartbeats carry it; notifies if it is news.
    pub fn set_halted(&self, log: &str, halted: bool) {
        let news = {
            let mut inner = self.lock();
            if halted { inner.halted.insert(log.to_owned()) } else { inner.halted.remove(log) }
        };
        if news {
            self.changed.notify();
        }
    }

    /// The replicas that have halted on this node, by the name of their log.
    pub fn halted(&self) -> Vec<String> {
        self.lock().halted.iter().cloned().collect()
    }

    /// The replicas that have halted on any node, as it last said; of a peer at most [`MAX_HALTED_TOLD`].
    pub fn halted_on(&self, node: NodeId) -> Vec<String> {
        if node == self.lock().me.node {
            return self.halted();
        }
        self.lock().peers.get(&node).map(|p| p.halted.clone()).unwrap_or_default()
    }

    /// From now on heartbeats report what this clock shows, so that others can tell whether theirs are wrong.
    pub fn say_wall(&self, wall: Clock) {
        self.lock().wall = Some(Wall(wall));
    }

    /// What this node's clock shows, milliseconds since the Unix epoch, if others are to know.
    pub fn wall_ms(&self) -> Option<u64> {
        let wall = self.lock().wall.clone();
        wall.map(|Wall(wall)| wall())
    }

    /// What a peer's clock shows, or that it does not say so.
    pub fn heard_wall(&self, now: Tick, node: NodeId, ms: Option<u64>) {
        let mut inner = self.lock();
        match ms {
            Some(ms) => inner.walls.insert(node, (ms, now)),
            None => inner.walls.remove(&node),
        };
    }

    /// What the clocks of the other members show now. Members without a replica of the database do not count: if only their clocks were
    /// right, no node could propose.
    pub fn peer_clocks(&self, now: Tick) -> PeerClocks {
        let inner = self.lock();
        let mut clocks = PeerClocks::default();
        let has_replica = |m: &table::Member| m.meta || m.sequencer;
        for (node, _) in inner.table.nodes.iter().filter(|(n, m)| **n != inner.me.node && has_replica(m)) {
            let is_up = inner.peers.get(node).is_some_and(|p| p.alive);
            match inner.walls.get(node) {
                Some((ms, heard)) if is_up => {
                    let since_ms = u64::try_from(now.since(*heard).as_millis()).unwrap_or(u64::MAX);
                    clocks.told.push((*node, ms.saturating_add(since_ms)));
                }
                None if is_up => clocks.untold += 1,
                _ => clocks.silent += 1,
            }
        }
        clocks
    }

    /// Records that this node cannot work with a member although it hears it: the member's data does not come through, or its sequencer
    /// does not answer. Holds until `until`, or longer with new evidence. `node` may be this node itself.
    pub fn distrust(&self, node: NodeId, until: Tick) {
        let news = self.lock().distrusted.insert(node, until).is_none();
        if news {
            self.changed.notify();
        }
    }

    /// What this node reports about the others.
    pub fn own_row(&self, now: Tick) -> Row {
        let mut inner = self.lock();
        inner.distrusted.retain(|_, until| *until > now);
        let reaches = inner.peers.iter().filter(|(_, p)| p.alive).map(|(n, _)| *n).collect();
        Row { reaches, distrusts: inner.distrusted.keys().copied().collect() }
    }

    /// Which members reach each other, as far as this node knows.
    pub fn reach(&self) -> Reach {
        let inner = self.lock();
        let reaches = inner.peers.iter().filter(|(_, p)| p.alive).map(|(n, _)| *n).collect();
        let own = Row { reaches, distrusts: inner.distrusted.keys().copied().collect() };
        let alive = inner.peers.iter().filter(|(_, p)| p.alive);
        let rows =
            alive.map(|(n, p)| (*n, Row { reaches: p.reaches.clone(), distrusts: p.distrusts.clone() }));
        Reach { rows: rows.chain([(inner.me.node, own)]).collect() }
    }

    /// The members that this node reaches and that report that they reach a majority: it vouches for them to the others.
    pub fn vouches(&self) -> Vec<NodeId> {
        let inner = self.lock();
        let members = &inner.table.nodes;
        let reached = |p: &Liveness| 1 + p.reaches.iter().filter(|n| members.contains_key(n)).count();
        let with_most = |p: &Liveness| p.alive && reach::is_majority(reached(p), members.len());
        inner.peers.iter().filter(|(_, p)| with_most(p)).map(|(n, _)| *n).collect()
    }

    /// Whether the cluster considers a node up: this node reaches it, a peer vouches for it, or a majority of the members reaches it. If
    /// this node alone has lost a peer, it must not treat the peer as gone. The same holds if two halves of a cluster are connected only
    /// through one node. Neither half can count the members on the other side, so the connecting node vouches for both.
    pub fn is_up(&self, node: NodeId) -> bool {
        if self.is_alive(node) {
            return true;
        }
        let vouched = |p: &Liveness| p.alive && p.vouches.contains(&node);
        if !mutant(mutants::POLICY_NO_VOUCHING) && self.lock().peers.values().any(vouched) {
            hit("members.vouched");
            return true;
        }
        let all: Vec<NodeId> = self.lock().table.nodes.keys().copied().collect();
        reach::is_majority(self.reach().reached_by(node, &all), all.len())
    }

    /// Whether [`Members::leave`] was called.
    pub fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// The members.
    pub fn table(&self) -> Arc<MemberTable> {
        self.lock().table.clone()
    }

    /// Takes a newer table; false if it is not newer.
    pub fn adopt(&self, table: MemberTable) -> bool {
        {
            let mut inner = self.lock();
            if table.version <= inner.table.version {
                return false;
            }
            inner.table = Arc::new(table);
        }
        self.changed.notify();
        true
    }

    /// The version of the newest table that any node has reported.
    pub fn newest_table(&self) -> u64 {
        self.lock().newest_table
    }

    /// A peer has a table of this version; notifies if that is news.
    pub fn heard_of_table(&self, version: u64) {
        let news = {
            let mut inner = self.lock();
            let news = version > inner.newest_table.max(inner.table.version);
            inner.newest_table = inner.newest_table.max(version);
            news
        };
        if news {
            self.changed.notify();
        }
    }

    /// The peers: every member but this node.
    pub fn peers(&self) -> Vec<NodeId> {
        let inner = self.lock();
        inner.table.nodes.keys().copied().filter(|n| *n != inner.me.node).collect()
    }

    /// What is known of a peer's life; None before its first sign.
    pub fn liveness(&self, node: NodeId) -> Option<Liveness> {
        self.lock().peers.get(&node).cloned()
    }

    /// Whether a node counts as up: this one always, others if they are not suspected.
    pub fn is_alive(&self, node: NodeId) -> bool {
        let inner = self.lock();
        node == inner.me.node || inner.peers.get(&node).is_some_and(|p| p.alive)
    }

    /// Records a sign of a peer's life, or its absence; notifies if that is news.
    pub fn note(&self, now: Tick, node: NodeId, alive: bool, told: Option<Report>) {
        let news = {
            let mut inner = self.lock();
            let before = inner.peers.get(&node).cloned();
            let after = before.clone().unwrap_or(Liveness::unknown(now)).after(now, alive, told);
            let news = before.as_ref() != Some(&after);
            inner.peers.insert(node, after);
            news
        };
        if news {
            self.changed.notify();
        }
    }

    /// What gossip says about a peer. It only informs: `alive` stays what the in-band evidence says.
    pub fn gossip_says(&self, now: Tick, node: NodeId, up: bool) {
        self.lock().peers.entry(node).or_insert(Liveness::unknown(now)).lost_by_gossip = !up;
        self.changed.notify();
    }
}

impl Directory for Members {
    fn candidates(&self) -> Vec<Candidate> {
        let inner = self.lock();
        let nodes = &inner.table.nodes;
        // Before the table was ever read. A node that was removed since, and still runs, must not lay segments on itself.
        let myself = (inner.table.version == 0 && !nodes.contains_key(&inner.me.node))
            .then(|| table::Member::of(&inner.me, String::new(), String::new(), String::new()));
        let (below, above) = (nodes.range(..inner.me.node), nodes.range(inner.me.node..));
        below
            .chain(myself.iter().map(|m| (&inner.me.node, m)))
            .chain(above)
            .map(|(node, m)| {
                let mine = *node == inner.me.node;
                let peer = inner.peers.get(node);
                Candidate {
                    node: *node,
                    log: m.log,
                    sequencer: m.sequencer,
                    meta: m.meta,
                    draining: m.draining,
                    leaving: (mine && inner.leaving) || peer.is_some_and(|p| p.leaving),
                    alive: (mine && !inner.me.failed) || peer.is_some_and(|p| p.alive && !p.lost_by_gossip),
                    failing: match peer {
                        _ if mine => inner.health.0 != Health::Fine,
                        peer => peer.is_some_and(|p| p.health != Health::Fine),
                    },
                }
            })
            .collect()
    }

    fn reaches(&self, one: NodeId, other: NodeId) -> bool {
        self.reach().works(one, other)
    }
}
