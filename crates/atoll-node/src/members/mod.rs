//! Who belongs to the cluster, and who of them is up, as this node sees it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the view: members, liveness, this node's own state; [`Members`] is a [`Directory`] |
//! | `table.rs` | the table of members as it stands in its register |
//! | `role.rs` | the role that answers who this node is, and keeps the table over restarts |
//! | `detector.rs` | the role that tells who is up: heartbeats and broken connections |
//! | `gossip.rs` | the role that gossips about who is up, by a library |
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
pub mod meta_group;
pub mod role;
pub mod table;
pub mod upgrade;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::{Candidate, Directory, Identity, Incarnation, NodeId, Tick};

use crate::bell::Bell;
use table::MemberTable;

/// What this node knows of a peer's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness {
    /// Not suspected.
    pub alive: bool,
    /// Since when, on this node's clock.
    pub since: Tick,
    /// The life it last told of.
    pub incarnation: Option<Incarnation>,
    /// It said that it is leaving: its sequencers are to be moved.
    pub leaving: bool,
    /// Its disk takes no entries for want of space.
    pub full: bool,
    /// The others have lost it, as gossip has it.
    pub lost_by_gossip: bool,
}

/// What a peer says of itself with every sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its life.
    pub incarnation: Incarnation,
    /// It is about to stop.
    pub leaving: bool,
    /// Its disk takes no entries for want of space.
    pub full: bool,
}

impl Liveness {
    fn unknown(now: Tick) -> Self {
        Liveness {
            alive: false,
            since: now,
            incarnation: None,
            leaving: false,
            full: false,
            lost_by_gossip: false,
        }
    }
}

#[derive(Debug)]
struct Inner {
    me: Identity,
    table: MemberTable,
    peers: BTreeMap<NodeId, Liveness>,
    leaving: bool,
    full: bool,
    newest_table: u64,
}

/// The view. Cheap to clone; all clones are one. It rings its bell at every change.
#[derive(Clone, Debug)]
pub struct Members {
    inner: Arc<Mutex<Inner>>,
    /// Rings when somebody came, went, or is to be treated otherwise.
    pub changed: Bell,
}

impl Members {
    /// A view in which `table` is all that is known.
    pub fn new(me: Identity, table: MemberTable) -> Self {
        let inner = Inner { me, table, peers: BTreeMap::new(), leaving: false, full: false, newest_table: 0 };
        Members { inner: Arc::new(Mutex::new(inner)), changed: Bell::default() }
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
        me
    }

    /// From now on this node takes nothing new: it is about to stop.
    pub fn leave(&self) {
        self.lock().leaving = true;
        self.changed.ring();
    }

    /// The journal is closed for good: nothing new can be kept here.
    pub fn fail(&self) {
        self.lock().me.failed = true;
        self.changed.ring();
    }

    /// The disk takes no entries for want of space, or takes them again.
    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
        self.changed.ring();
    }

    /// Whether this node's disk takes no entries for want of space.
    pub fn is_full(&self) -> bool {
        self.lock().full
    }

    /// The same of any node, as it last said.
    pub fn has_full_disk(&self, node: NodeId) -> bool {
        let inner = self.lock();
        if node == inner.me.node { inner.full } else { inner.peers.get(&node).is_some_and(|p| p.full) }
    }

    /// Whether [`Members::leave`] was called.
    pub fn is_leaving(&self) -> bool {
        self.lock().leaving
    }

    /// The members.
    pub fn table(&self) -> MemberTable {
        self.lock().table.clone()
    }

    /// Takes a newer table; false if it is not newer.
    pub fn adopt(&self, table: MemberTable) -> bool {
        {
            let mut inner = self.lock();
            if table.version <= inner.table.version {
                return false;
            }
            inner.table = table;
        }
        self.changed.ring();
        true
    }

    /// The version of the newest table that anybody told of.
    pub fn newest_table(&self) -> u64 {
        self.lock().newest_table
    }

    /// A peer has a table of this version; rings if that is news.
    pub fn heard_of_table(&self, version: u64) {
        let news = {
            let mut inner = self.lock();
            let news = version > inner.newest_table.max(inner.table.version);
            inner.newest_table = inner.newest_table.max(version);
            news
        };
        if news {
            self.changed.ring();
        }
    }

    /// The peers: every member but this node.
    pub fn peers(&self) -> Vec<NodeId> {
        let inner = self.lock();
        inner.table.nodes.keys().copied().filter(|n| *n != inner.me.node).collect()
    }

    /// What is known of a peer's life; None before its first sign.
    pub fn liveness(&self, node: NodeId) -> Option<Liveness> {
        self.lock().peers.get(&node).copied()
    }

    /// Whether a node counts as up: this one always, others if they are not suspected.
    pub fn is_alive(&self, node: NodeId) -> bool {
        let inner = self.lock();
        node == inner.me.node || inner.peers.get(&node).is_some_and(|p| p.alive)
    }

    /// Records a sign of a peer's life, or its absence; rings if that is news.
    pub fn note(&self, now: Tick, node: NodeId, alive: bool, told: Option<Told>) {
        let news = {
            let mut inner = self.lock();
            let before = inner.peers.get(&node).copied();
            let known = before.unwrap_or(Liveness::unknown(now));
            let after = Liveness {
                alive,
                since: if before.is_some() && known.alive == alive { known.since } else { now },
                incarnation: told.map(|t| t.incarnation).or(known.incarnation),
                leaving: told.map_or(known.leaving && alive, |t| t.leaving),
                full: told.map_or(known.full, |t| t.full),
                // A sign of life in band outweighs what others say.
                lost_by_gossip: known.lost_by_gossip && told.is_none(),
            };
            inner.peers.insert(node, after);
            before != Some(after)
        };
        if news {
            self.changed.ring();
        }
    }

    /// What gossip says of a peer. It informs only: `alive` stays what the evidence in band says.
    pub fn gossip_says(&self, now: Tick, node: NodeId, up: bool) {
        self.lock().peers.entry(node).or_insert(Liveness::unknown(now)).lost_by_gossip = !up;
        self.changed.ring();
    }
}

impl Directory for Members {
    fn candidates(&self) -> Vec<Candidate> {
        let inner = self.lock();
        let mut table = inner.table.nodes.clone();
        // Before the table was ever read. A node that was removed since, and still runs, must not lay segments on itself.
        if inner.table.version == 0 {
            table
                .entry(inner.me.node)
                .or_insert_with(|| table::Member::of(&inner.me, String::new(), String::new(), String::new()));
        }
        table
            .iter()
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
                }
            })
            .collect()
    }
}
