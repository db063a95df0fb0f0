//! Runs a cluster in one thread on virtual time: node cores, a network that loses, duplicates and reorders messages, and disks that sync
//! late and lose what was not synced. It is deliberately small; the full simulator is another crate. Wrong use by a test panics.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{
    Abandoned, Caller, Candidate, Cell, CellWrite, Checkpoint, Class, Directory, Effects, Env, Envelope,
    Fetch, FetchError, Frame, Identity, Incarnation, Link, Loc, Lsn, NodeCore, NodeId, Outgoing, Outputs,
    RecordKind, Role, RoleKind, Space, StorageId, Stored, Tick, Ticket, roles,
};
use bytes::Bytes;

use crate::entry::{Batch, ClientId, Entry, OpId};

pub struct Rng(pub u64);

impl Rng {
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// The faults of the network, in percent.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub drop: u64,
    pub double: u64,
    pub reorder: bool,
}

enum Event {
    Arrive { to: NodeId, from: NodeId, class: Class, envelope: Envelope },
    Synced { node: NodeId, life: u64 },
    Fetched { node: NodeId, life: u64, fetch: Fetch },
}

/// The member role: answers every message with the identity of the node.
struct Member(Identity);

impl Role for Member {
    fn on_frame(&mut self, _: Tick, from: Caller, _: Frame, out: &mut Effects) {
        out.reply(from, self.0.clone(), Lsn::NONE);
    }
    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
}

/// A directory in which all members are up and may hold everything.
pub struct All(pub Vec<NodeId>);

impl Directory for All {
    fn candidates(&self) -> Vec<Candidate> {
        let one = |n: &NodeId| Candidate {
            node: *n,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            leaving: false,
            failing: false,
            alive: true,
        };
        self.0.iter().map(one).collect()
    }
}

#[derive(Default)]
pub struct Disk {
    pub records: BTreeMap<Lsn, Stored>,
    writing: Vec<Stored>,
    pub cells: BTreeMap<(RoleKind, Bytes), Bytes>,
    writing_cells: Vec<CellWrite>,
    last_cell: u64,
    pub checkpoint: Option<Checkpoint>,
    pub last: Lsn,
    pub space: Option<Space>,
}

impl Disk {
    fn forget_unsynced(&mut self) {
        self.writing.clear();
        self.writing_cells.clear();
    }
}

pub struct Node {
    pub core: Option<NodeCore>,
    pub env: Env,
    pub storage: StorageId,
    pub disk: Disk,
    pub life: u64,
}

/// Adds the roles of a node. Called at each start of the node.
pub type Assemble = Arc<dyn Fn(&mut NodeCore, StorageId)>;

pub struct Cluster {
    pub now: Tick,
    pub nodes: BTreeMap<NodeId, Node>,
    pub rng: Rng,
    pub faults: Faults,
    pub sync: Duration,
    /// Pairs (from, to) of nodes between which every message is lost silently.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    pub steps: u64,
    assemble: Assemble,
    events: BTreeMap<(Tick, u64), Event>,
    next_event: u64,
    fifo: BTreeMap<(NodeId, NodeId, Class), Tick>,
}

impl Cluster {
    pub fn new(nodes: u32, seed: u64, assemble: impl Fn(&mut NodeCore, StorageId) + 'static) -> Self {
        let mut c = Cluster {
            now: Tick(1),
            nodes: BTreeMap::new(),
            rng: Rng(seed),
            faults: Faults::default(),
            sync: Duration::from_micros(100),
            cut: BTreeSet::new(),
            assemble: Arc::new(assemble),
            steps: 0,
            events: BTreeMap::new(),
            next_event: 0,
            fifo: BTreeMap::new(),
        };
        c.add_nodes(nodes);
        c
    }

    fn add_nodes(&mut self, nodes: u32) {
        for n in 1..=nodes {
            self.boot(NodeId(n), Disk::default(), StorageId(u128::from(n) * 1000 + 1), 1);
        }
        self.link_all();
    }

    fn boot(&mut self, id: NodeId, mut disk: Disk, storage: StorageId, life: u64) {
        let incarnation = Incarnation(u64::from(id.0) * 1000 + life);
        let mut core = NodeCore::new(id, incarnation, self.rng.draw());
        let env = core.env();
        (self.assemble)(&mut core, storage);
        let identity = Identity {
            node: id,
            incarnation,
            storage,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        };
        core.add_role(roles::MEMBER, Box::new(Member(identity)));
        disk.forget_unsynced();
        if let Some(checkpoint) = disk.checkpoint.clone() {
            core.recover_checkpoint(checkpoint).unwrap();
        }
        let covers = disk.checkpoint.as_ref().map_or(Lsn::NONE, |c| c.covers);
        for (lsn, stored) in &disk.records {
            if stored.record.kind == RecordKind::Entry || *lsn > covers {
                core.recover_record(stored.clone()).unwrap();
            }
        }
        for ((owner, key), value) in &disk.cells {
            core.recover_cell(Cell { owner: *owner, key: key.clone(), value: value.clone() }).unwrap();
        }
        core.recover_cells_done(disk.last_cell);
        core.recover_done(disk.last);
        if let Some(space) = disk.space {
            core.set_space(self.now, space);
        }
        self.nodes.insert(id, Node { core: Some(core), env, storage, disk, life });
    }

    fn link_all(&mut self) {
        let up: Vec<NodeId> = self.nodes.iter().filter(|(_, n)| n.core.is_some()).map(|(i, _)| *i).collect();
        for a in &up {
            for b in &up {
                if a != b {
                    self.set_link(*a, *b, Link::Up);
                }
            }
        }
    }

    pub fn set_link(&mut self, at: NodeId, peer: NodeId, link: Link) {
        let now = self.now;
        if let Some(core) = &mut self.nodes.get_mut(&at).unwrap().core {
            core.set_link(now, peer, Class::Control, link);
            core.set_link(now, peer, Class::Data, link);
        }
        self.turn(at);
    }

    /// Kills a node. Everything that is not synced is lost.
    pub fn kill(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        if let Some(core) = node.core.take() {
            core.kill();
        }
        node.disk.forget_unsynced();
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|n| *n != id).collect();
        for other in others {
            self.set_link(other, id, Link::Down);
        }
    }

    pub fn restart(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).unwrap();
        assert!(node.core.is_none(), "kill it first");
        self.boot(id, node.disk, node.storage, node.life + 1);
        self.link_all();
        self.turn(id);
    }

    /// Restarts a killed node on an empty disk with a new storage identity.
    pub fn wipe(&mut self, id: NodeId) {
        let node = self.nodes.remove(&id).unwrap();
        assert!(node.core.is_none(), "kill it first");
        self.boot(id, Disk::default(), StorageId(node.storage.0 + 1), node.life + 1);
        self.link_all();
        self.turn(id);
    }

    pub fn set_space(&mut self, id: NodeId, space: Space) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        node.disk.space = Some(space);
        node.core.as_mut().unwrap().set_space(now, space);
        self.turn(id);
    }

    pub fn checkpoint(&mut self, id: NodeId) {
        self.nodes.get_mut(&id).unwrap().core.as_mut().unwrap().request_checkpoint();
        self.turn(id);
    }

    pub fn compact(&mut self, id: NodeId, segment: u64) {
        let now = self.now;
        self.nodes.get_mut(&id).unwrap().core.as_mut().unwrap().compact(now, segment);
        self.turn(id);
    }

    pub fn env(&self, id: u32) -> Env {
        self.nodes[&NodeId(id)].env.clone()
    }

    /// Returns all nodes, as a provider sees them.
    pub fn directory(&self) -> Arc<dyn Directory> {
        Arc::new(All(self.nodes.keys().copied().collect()))
    }

    fn push(&mut self, after: Duration, event: Event) {
        let at = self.now.after(after);
        self.events.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    fn send(&mut self, from: NodeId, out: Outgoing) {
        let Outgoing { to, class, envelope } = out;
        let copies = 1 + usize::from(self.rng.chance(self.faults.double));
        for _ in 0..copies {
            if self.rng.chance(self.faults.drop) || self.cut.contains(&(from, to)) {
                continue;
            }
            let delay = Duration::from_micros(20 + self.rng.below(60));
            let mut at = self.now.after(delay);
            if self.faults.reorder && self.rng.chance(20) {
                at = at.after(Duration::from_micros(self.rng.below(3000)));
            } else if !self.faults.reorder {
                let last = self.fifo.entry((from, to, class)).or_default();
                at = at.max(Tick(last.0 + 1));
                *last = at;
            }
            let event = Event::Arrive { to, from, class, envelope: envelope.clone() };
            self.events.insert((at, self.next_event), event);
            self.next_event += 1;
        }
    }

    pub fn turn(&mut self, id: NodeId) {
        let now = self.now;
        let mut out = Outputs::default();
        loop {
            let Some(core) = &mut self.nodes.get_mut(&id).unwrap().core else { return };
            out.more = false;
            core.turn(now, &mut out);
            if !out.more {
                break;
            }
        }
        self.steps += out.steps as u64;
        for frame in out.frames {
            self.send(id, frame);
        }
        let node = self.nodes.get_mut(&id).unwrap();
        let life = node.life;
        for loc in out.freed {
            let lsn = Lsn(loc.segment * 10_000 + u64::from(loc.offset_bytes));
            let gone = node.disk.records.remove(&lsn);
            assert!(gone.is_some(), "{loc:?} freed twice on node {id}");
        }
        if let Some(checkpoint) = out.checkpoint {
            node.disk.records.retain(|lsn, s| s.record.kind == RecordKind::Entry || *lsn > checkpoint.covers);
            node.disk.checkpoint = Some(checkpoint);
        }
        if let Some(batch) = out.journal {
            node.disk.writing_cells = batch.cells;
            node.disk.writing = batch
                .records
                .into_iter()
                .map(|(lsn, record)| {
                    let len_bytes = (record.head.len() + record.payload.len()) as u32;
                    let (segment, offset_bytes) = (lsn.0 / 10_000, (lsn.0 % 10_000) as u32);
                    Stored { lsn, loc: Loc { segment, offset_bytes, len_bytes }, record }
                })
                .collect();
            let sync = self.sync + Duration::from_micros(self.rng.below(100));
            self.push(sync, Event::Synced { node: id, life });
        }
        for fetch in out.fetches {
            self.push(Duration::from_micros(50), Event::Fetched { node: id, life, fetch });
        }
    }

    /// Processes the next event or deadline. Returns false if nothing will ever happen.
    pub fn step(&mut self) -> bool {
        let due = self
            .nodes
            .iter()
            .filter_map(|(id, n)| Some((n.core.as_ref()?.next_deadline()?.max(self.now), *id)))
            .min();
        let event = self.events.keys().next().map(|k| k.0);
        match (due, event) {
            (Some((at, id)), e) if e.is_none_or(|e| at <= e) => {
                self.now = self.now.max(at);
                self.turn(id);
            }
            (_, Some(at)) => {
                self.now = self.now.max(at);
                let (_, event) = self.events.pop_first().unwrap();
                self.happen(event);
            }
            _ => return false,
        }
        true
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Arrive { to, from, class, envelope } => {
                if let Some(core) = &mut self.nodes.get_mut(&to).unwrap().core {
                    core.deliver(now, from, class, envelope);
                }
                self.turn(to);
            }
            Event::Synced { node, life } => {
                let n = self.nodes.get_mut(&node).unwrap();
                if n.life == life
                    && let Some(core) = &mut n.core
                {
                    let mut written = Vec::new();
                    for stored in n.disk.writing.drain(..) {
                        written.push((stored.lsn, stored.loc));
                        n.disk.last = stored.lsn;
                        n.disk.records.insert(stored.lsn, stored);
                    }
                    for CellWrite { number, owner, key, value } in n.disk.writing_cells.drain(..) {
                        n.disk.last_cell = number;
                        match value {
                            Some(value) => n.disk.cells.insert((owner, key), value),
                            None => n.disk.cells.remove(&(owner, key)),
                        };
                    }
                    core.durable(now, Ok(written));
                }
                self.turn(node);
            }
            Event::Fetched { node, life, fetch } => {
                let n = self.nodes.get_mut(&node).unwrap();
                if n.life == life
                    && let Some(core) = &mut n.core
                {
                    let find = |loc: &Loc| {
                        let lsn = Lsn(loc.segment * 10_000 + u64::from(loc.offset_bytes));
                        n.disk.records.get(&lsn).cloned()
                    };
                    let got: Option<Vec<Stored>> = fetch.locs.iter().map(find).collect();
                    let got = got.ok_or(FetchError { reason: "recycled".into() });
                    core.fetched(now, fetch.role, fetch.tag, got);
                }
                self.turn(node);
            }
        }
    }

    pub fn run_for(&mut self, d: Duration) {
        let until = self.now.after(d);
        loop {
            let due = self.nodes.values().filter_map(|n| n.core.as_ref()?.next_deadline()).min();
            let next = [due, self.events.keys().next().map(|k| k.0)].into_iter().flatten().min();
            if next.is_none_or(|at| at > until) {
                self.now = until;
                return;
            }
            self.step();
        }
    }

    /// Runs until a ticket is complete. Returns None after `limit` of virtual time, or if the ticket is abandoned or nothing more happens.
    pub fn wait<T>(&mut self, mut ticket: Ticket<T>, limit: Duration) -> Option<T> {
        let until = self.now.after(limit);
        loop {
            match ticket.try_take() {
                _ if self.now > until => return None,
                Some(Ok(value)) => return Some(value),
                Some(Err(Abandoned)) => return None,
                None if !self.step() => return None,
                None => {}
            }
        }
    }

    /// Runs a future on a node to completion. Panics if it takes more than a minute of virtual time.
    pub fn on<T: Send + 'static>(&mut self, at: u32, f: impl Future<Output = T> + Send + 'static) -> T {
        let ticket = self.env(at).launch("test", f);
        self.wait(ticket, Duration::from_secs(60)).expect("ends within a minute of virtual time")
    }
}

pub fn batch(client: u64, first_seq: u64, payloads: &[&str]) -> Batch {
    Batch::of(payloads.iter().enumerate().map(|(i, p)| Entry {
        op: OpId { client: ClientId(client), seq: first_seq + i as u64 },
        payload: Bytes::copy_from_slice(p.as_bytes()),
    }))
}
