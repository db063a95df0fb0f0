//! Which nodes belong to the cluster, and which of them are up, as this node sees it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the view: members, liveness, this node's own state; [`Members`] is a [`Directory`] |
//! | `liveness.rs` | what is known about the life of a peer, and what a node reports about its own |
//! | `table.rs` | the table of members, as stored in its register |
//! | `role.rs` | the role that answers who this node is, and keeps the table across restarts |
//! | `detector.rs` | the role that determines which nodes are up, from heartbeats and broken connections |
//! | `gossip.rs` | the role that gossips about which nodes are up, using the library foca |
//! | `cluster.rs` | the members as the procedures of a protocol see them |
//! | `levels.rs` | the table of feature levels, and the role that keeps the active one |
//! | `upgrade.rs` | announces and raises feature levels |
//! | `change.rs` | joins, adds, drains and removes members by conditional writes of the table |

pub mod change;
pub mod cluster;
pub mod detector;
pub mod gossip;
pub mod levels;
pub mod liveness;
pub mod role;
pub mod roles;
pub mod table;
pub mod upgrade;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Candidate, Directory, Identity, NodeId, Notify, Tick};
use atoll_db::{Clock, PeerClocks};
use atoll_door::DATABASE_LOG;

use atoll_contract::cluster::reach::{self, Reach, Row};
use atoll_contract::register::Version;
use table::MemberTable;

use crate::logs::MAX_NAME_BYTES;
use crate::mutants;

pub use atoll_contract::cluster::Health;
pub use liveness::{Liveness, Report};

/// The maximum number of halted replicas that a node names in its heartbeats. No reader needs the ones beyond it.
pub const MAX_HALTED_TOLD: usize = 8;
/// The maximum number of logs for which this node keeps news of other members. The guardian takes the news within milliseconds.
pub(crate) const MAX_TOLD_CHAINS: usize = 1024;

/// Wraps a clock so that it implements `Debug`. The output is a fixed text.
#[derive(Clone)]
struct Wall(Clock);

impl std::fmt::Debug for Wall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a wall clock")
    }
}

/// For how long the oldest unapplied entry has been waiting at this node's replica of the database, at the given time.
pub type ApplyDelay = Arc<dyn Fn(Tick) -> Duration + Send + Sync>;

#[derive(Clone)]
struct Delay(ApplyDelay);

impl std::fmt::Debug for Delay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the delay of a replica")
    }
}

#[derive(Debug)]
struct Inner {
    me: Identity,
    /// In an `Arc` so that readers get it without a copy: every round of every procedure reads it, and it seldom changes.
    table: Arc<MemberTable>,
    /// Members only, see [`Inner::forget_strangers`].
    peers: BTreeMap<NodeId, Liveness>,
    leaving: bool,
    full: bool,
    hanging: bool,
    /// The health of the disk, and when it last changed.
    health: (Health, Tick),
    /// Members that this node cannot work with, and perhaps this node. Each entry expires at its time unless there is new evidence.
    distrusted: BTreeMap<NodeId, Tick>,
    /// Replicas that have halted on this node, by the name of their log.
    halted: BTreeSet<String>,
    newest_table: u64,
    /// By log, the newest version of its chain that a member has reported. The guardian takes them. At most [`MAX_TOLD_CHAINS`].
    told_chains: BTreeMap<String, Version>,
    /// This node's wall clock, if it reports one.
    wall: Option<Wall>,
    /// The last wall-clock reading that each member reported, and when this node received it.
    walls: BTreeMap<NodeId, (u64, Tick)>,
    /// The delay of this node's replica of the database, if there is one.
    delay: Option<Delay>,
}

impl Inner {
    /// Whether a node is a member. Nothing is kept about other nodes.
    fn is_member(&self, node: NodeId) -> bool {
        self.table.nodes.contains_key(&node) || mutant(mutants::POLICY_KEEPS_REMOVED)
    }

    /// Drops what is known about nodes that are no longer members. The detector does not watch such a node any more, so its last report
    /// would stay alive forever: it would vouch for members that have died since, and slow down writes by its last delay.
    fn forget_strangers(&mut self) {
        if mutant(mutants::POLICY_KEEPS_REMOVED) {
            return;
        }
        let table = self.table.clone();
        let stays = |node: &NodeId| table.nodes.contains_key(node);
        self.peers.retain(|node, _| stays(node));
        self.walls.retain(|node, _| stays(node));
        let me = self.me.node;
        self.distrusted.retain(|node, _| *node == me || stays(node));
    }
}

/// This node's view of the cluster. Clones are cheap and share the same state. Every change except a clock reading notifies `changed`.
#[derive(Clone, Debug)]
pub struct Members {
    inner: Arc<Mutex<Inner>>,
    /// Notified when a member is added or removed, or when what is known about a member changes.
    pub changed: Notify,
}

impl Members {
    /// Creates a view that knows nothing but `table`.
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
            told_chains: BTreeMap::new(),
            wall: None,
            walls: BTreeMap::new(),
            delay: None,
        };
        Members { inner: Arc::new(Mutex::new(inner)), changed: Notify::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this node's answer to [`atoll_core::Identify`].
    pub fn identity(&self) -> Identity {
        let inner = self.lock();
        let drained = inner.table.nodes.get(&inner.me.node).is_some_and(|n| n.draining);
        let mut me = inner.me.clone();
        me.draining = inner.leaving || drained;
        me.failed = inner.health.0 >= Health::Hanging;
        me
    }

    /// Marks this node as leaving: it is about to stop and accepts no new duties.
    pub fn leave(&self) {
        self.lock().leaving = true;
        self.changed.notify();
    }

    /// Records that the journal is closed until the node is restarted, so that nothing new can be stored here.
    pub fn fail(&self, now: Tick) {
        self.set_health(now, |inner| inner.me.failed = true);
    }

    /// Records whether the disk refuses entries for lack of space.
    pub fn set_full(&self, now: Tick, full: bool) {
        self.set_health(now, |inner| inner.full = full);
    }

    /// Records whether the disk hangs: it has not synced what it was given for a long time.
    pub fn set_hanging(&self, now: Tick, hanging: bool) {
        self.set_health(now, |inner| inner.hanging = hanging);
    }

    fn set_health(&self, now: Tick, change: impl FnOnce(&mut Inner)) {
        {
            let mut inner = self.lock();
            change(&mut inner);
            let health = match () {
                () if inner.me.failed => Health::Closed,
                // A batch that waits for space does not mean that the disk hangs, so `full` comes first.
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

    /// Returns the health of this node's disk.
    pub fn health(&self) -> Health {
        self.lock().health.0
    }

    /// Returns the health that a node last reported for its disk, and since when, on this node's clock. A node that was never heard from
    /// counts as fine.
    pub fn health_of(&self, node: NodeId) -> (Health, Tick) {
        let inner = self.lock();
        match inner.peers.get(&node) {
            _ if node == inner.me.node => inner.health,
            Some(peer) => (peer.health, peer.health_since),
            None => (Health::Fine, Tick(0)),
        }
    }

    /// Records whether the replica of the database on `log` has halted on this node. Heartbeats report it to the other nodes. Notifies on a
    /// change.
    pub fn set_halted(&self, log: &str, halted: bool) {
        let news = {
            let mut inner = self.lock();
            if halted { inner.halted.insert(log.to_owned()) } else { inner.halted.remove(log) }
        };
        if news {
            self.changed.notify();
        }
    }

    /// Returns the replicas that have halted on this node, by the name of their log.
    pub fn halted(&self) -> Vec<String> {
        self.lock().halted.iter().cloned().collect()
    }

    /// Returns the halted replicas that a node last reported, by the name of their log. For a peer, these are at most [`MAX_HALTED_TOLD`].
    pub fn halted_on(&self, node: NodeId) -> Vec<String> {
        if node == self.lock().me.node {
            return self.halted();
        }
        self.lock().peers.get(&node).map(|p| p.halted.clone()).unwrap_or_default()
    }

    /// Makes heartbeats report the readings of this clock, so that other nodes can detect that their own clocks are wrong.
    pub fn say_wall(&self, wall: Clock) {
        self.lock().wall = Some(Wall(wall));
    }

    /// Returns the reading of this node's clock in milliseconds since the Unix epoch, or None if this node does not report one.
    pub fn wall_ms(&self) -> Option<u64> {
        let wall = self.lock().wall.clone();
        wall.map(|Wall(wall)| wall())
    }

    /// Records the clock reading that a member reported. With None, it removes the last one, because the member no longer reports its
    /// clock. Readings of nodes that are not members are ignored.
    pub fn heard_wall(&self, now: Tick, node: NodeId, ms: Option<u64>) {
        let mut inner = self.lock();
        match ms {
            Some(ms) if inner.is_member(node) => inner.walls.insert(node, (ms, now)),
            _ => inner.walls.remove(&node),
        };
    }

    /// Returns what the clocks of the other members show now, extrapolated from their last readings. Members without a replica of the
    /// database do not count: if only their clocks were right, no node could propose.
    pub fn peer_clocks(&self, now: Tick) -> PeerClocks {
        let inner = self.lock();
        let mut clocks = PeerClocks::default();
        let has_replica = |m: &table::Member| m.meta || m.sequencer;
        for (node, _) in inner.table.nodes.iter().filter(|(n, m)| **n != inner.me.node && has_replica(m)) {
            let is_up = inner.peers.get(node).is_some_and(|p| p.alive);
            match inner.walls.get(node) {
                Some((ms, heard)) if is_up => {
                    let since_ms = u64::try_from(now.since(*heard).as_millis()).unwrap_or(u64::MAX);
                    clocks.reported.push((*node, ms.saturating_add(since_ms)));
                }
                None if is_up => clocks.unreported += 1,
                _ => clocks.silent += 1,
            }
        }
        clocks
    }

    /// Makes heartbeats report the delay of this node's replica of the database, so that other nodes put large writes into the log no
    /// faster than this one applies them.
    pub fn say_apply_delay(&self, delay: ApplyDelay) {
        self.lock().delay = Some(Delay(delay));
    }

    /// Returns the delay of this node's replica of the database; zero if there is none.
    pub fn apply_delay(&self, now: Tick) -> Duration {
        let delay = self.lock().delay.clone();
        delay.map_or(Duration::ZERO, |Delay(delay)| delay(now))
    }

    /// Returns the longest delay that the replicas of the database on other nodes last reported. Only nodes that are alive count, and
    /// only those whose replica is in service: one that is stuck must not slow down the others for long.
    pub fn longest_apply_delay(&self) -> Duration {
        let inner = self.lock();
        let serves = |p: &&Liveness| p.alive && !p.halted.iter().any(|log| log == DATABASE_LOG);
        inner.peers.values().filter(serves).map(|p| p.apply_delay).max().unwrap_or_default()
    }

    /// Records that this node cannot work with a member although it hears it: the data connection is down, or the member's sequencer does
    /// not answer. The record expires at `until` unless a later call extends it. `node` may be this node itself. A node that is not a
    /// member is ignored.
    pub fn distrust(&self, node: NodeId, until: Tick) {
        let news = {
            let mut inner = self.lock();
            let counts = node == inner.me.node || inner.is_member(node);
            counts && inner.distrusted.insert(node, until).is_none()
        };
        if news {
            self.changed.notify();
        }
    }

    /// Returns what this node reports about the other members, and drops expired distrust.
    pub fn own_row(&self, now: Tick) -> Row {
        let mut inner = self.lock();
        inner.distrusted.retain(|_, until| *until > now);
        let reaches = inner.peers.iter().filter(|(_, p)| p.alive).map(|(n, _)| *n).collect();
        Row { reaches, distrusts: inner.distrusted.keys().copied().collect() }
    }

    /// Returns which members reach each other, as far as this node knows.
    pub fn reach(&self) -> Reach {
        let inner = self.lock();
        let reaches = inner.peers.iter().filter(|(_, p)| p.alive).map(|(n, _)| *n).collect();
        let own = Row { reaches, distrusts: inner.distrusted.keys().copied().collect() };
        let alive = inner.peers.iter().filter(|(_, p)| p.alive);
        let rows =
            alive.map(|(n, p)| (*n, Row { reaches: p.reaches.clone(), distrusts: p.distrusts.clone() }));
        Reach { rows: rows.chain([(inner.me.node, own)]).collect() }
    }

    /// Returns the members that this node reaches and that themselves report reaching a majority. Heartbeats vouch for them to the other
    /// nodes.
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

    /// Whether [`Members::leave`] has been called.
    pub fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// Returns the table of members.
    pub fn table(&self) -> Arc<MemberTable> {
        self.lock().table.clone()
    }

    /// Replaces the table if `table` is newer, forgets what is known about nodes that are no longer members, and notifies. Returns false if
    /// it is not newer.
    pub fn adopt(&self, table: MemberTable) -> bool {
        {
            let mut inner = self.lock();
            if table.version <= inner.table.version {
                return false;
            }
            inner.table = Arc::new(table);
            inner.forget_strangers();
        }
        self.changed.notify();
        true
    }

    /// Returns the version of the newest table that any peer has reported.
    pub fn newest_table(&self) -> u64 {
        self.lock().newest_table
    }

    /// Records that a peer has a table of this version. Notifies if it is newer than any version known so far.
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

    /// Records that a chain has this version, and notifies. Drops the news if there is too much of it, or if no log can have this name: it
    /// only saves time.
    pub fn heard_of_chain(&self, log: String, version: Version) {
        if log.len() > MAX_NAME_BYTES {
            return;
        }
        {
            let told = &mut self.lock().told_chains;
            if told.len() >= MAX_TOLD_CHAINS && !told.contains_key(&log) {
                return;
            }
            let newest = told.entry(log).or_insert(version);
            *newest = version.max(*newest);
        }
        self.changed.notify();
    }

    /// Takes what was recorded by [`Members::heard_of_chain`].
    pub fn take_told_chains(&self) -> BTreeMap<String, Version> {
        std::mem::take(&mut self.lock().told_chains)
    }

    /// Returns the peers: every member except this node.
    pub fn peers(&self) -> Vec<NodeId> {
        let inner = self.lock();
        inner.table.nodes.keys().copied().filter(|n| *n != inner.me.node).collect()
    }

    /// Whether a node is a member, according to this node's table.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.lock().is_member(node)
    }

    /// Returns what is known about a member, or None if neither the detector nor gossip has reported on it yet. None also for a node that
    /// is not a member.
    pub fn liveness(&self, node: NodeId) -> Option<Liveness> {
        self.lock().peers.get(&node).cloned()
    }

    /// Whether this node itself considers a node alive. It always considers itself alive.
    pub fn is_alive(&self, node: NodeId) -> bool {
        let inner = self.lock();
        node == inner.me.node || inner.peers.get(&node).is_some_and(|p| p.alive)
    }

    /// Records a sign of life from a member, or its absence. Notifies if anything has changed. A node that is not a member is ignored: a
    /// heartbeat may still arrive after its sender was removed.
    pub fn note(&self, now: Tick, node: NodeId, alive: bool, report: Option<Report>) {
        let news = {
            let mut inner = self.lock();
            if !inner.is_member(node) {
                return;
            }
            let before = inner.peers.get(&node).cloned();
            let after = before.clone().unwrap_or(Liveness::unknown(now)).after(now, alive, report);
            let news = before.as_ref() != Some(&after);
            inner.peers.insert(node, after);
            news
        };
        if news {
            self.changed.notify();
        }
    }

    /// Records what gossip says about a member, and notifies. Gossip only informs: it does not change `alive`, which in-band evidence
    /// decides. A node that is not a member is ignored.
    pub fn gossip_says(&self, now: Tick, node: NodeId, up: bool) {
        {
            let mut inner = self.lock();
            if !inner.is_member(node) {
                return;
            }
            inner.peers.entry(node).or_insert(Liveness::unknown(now)).lost_by_gossip = !up;
        }
        self.changed.notify();
    }
}

impl Directory for Members {
    fn candidates(&self) -> Vec<Candidate> {
        let inner = self.lock();
        let nodes = &inner.table.nodes;
        // This node lists itself only until it has read the table. After that, a node that was removed but still runs must not place
        // segments on itself.
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
