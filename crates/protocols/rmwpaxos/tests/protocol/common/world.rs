//! The simulated world: nodes, network, disks and time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::testing::take_marks;
use atoll_core::{
    Checkpoint, Class, Env, Envelope, Incarnation, JournalBatch, Link, Loc, Lsn, NodeCore, NodeId, Outgoing,
    Outputs, Record, Space, StorageId, Stored, Tick,
};
use atoll_rmwpaxos::{Acceptor, DEFAULT_CAPACITY_BYTES, GroupConfig, Member, Options, RmwRegisters};

use super::Rng;
use super::oracle::Protocol;

/// The faults of the network and the disks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Percentage of frames that are lost.
    pub drop: u64,
    /// Percentage of frames that are duplicated.
    pub duplicate: u64,
    /// Longest delay of a frame, in microseconds. Frames may arrive out of order.
    pub delay_us: u64,
    /// Longest sync, in microseconds.
    pub sync_us: u64,
}

impl Faults {
    pub const NONE: Faults = Faults { drop: 0, duplicate: 0, delay_us: 200, sync_us: 200 };
    pub const CHAOS: Faults = Faults { drop: 6, duplicate: 6, delay_us: 6_000, sync_us: 4_000 };
}

#[derive(Default)]
pub struct Disk {
    pub records: Vec<(Lsn, Record)>,
    pub checkpoint: Option<Checkpoint>,
    last: Lsn,
}

pub struct Node {
    pub id: NodeId,
    pub storage: StorageId,
    pub disk: Disk,
    pub core: Option<NodeCore>,
    pub registers: Option<RmwRegisters>,
    writing: Option<JournalBatch>,
    pub lives: u64,
}

enum Event {
    Deliver { from: NodeId, to: NodeId, class: Class, envelope: Envelope },
    Synced { node: NodeId, life: u64 },
}

/// Starts the clients of a node.
pub type OnStart = dyn FnMut(&Env, &RmwRegisters);

pub struct World {
    pub now: Tick,
    pub rng: Rng,
    pub nodes: BTreeMap<NodeId, Node>,
    pub faults: Faults,
    pub options: Options,
    /// The capacity of the acceptors of nodes that start from now on.
    pub capacity_bytes: usize,
    pub initial: GroupConfig,
    /// Links that are cut, each in one direction.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    pub oracle: Protocol,
    pub marks: BTreeMap<&'static str, u64>,
    /// Kills this node in the turn in which it hits this mark.
    pub kill_at: Option<(NodeId, &'static str)>,
    pub frames: u64,
    /// Called whenever a node starts, to start its clients.
    pub on_start: Option<Box<OnStart>>,
    queue: BTreeMap<(Tick, u64), Event>,
    next_event: u64,
}

pub fn storage_of(node: u32, generation: u32) -> StorageId {
    StorageId(u128::from(node) * 1000 + u128::from(generation))
}

pub fn member(node: u32) -> Member {
    Member { node: NodeId(node), storage: storage_of(node, 0) }
}

pub fn members(nodes: &[u32]) -> Vec<Member> {
    nodes.iter().map(|n| member(*n)).collect()
}

impl World {
    /// Creates nodes `1..=nodes`, of which the first `group` form the first group. None of them is started.
    pub fn new(seed: u64, nodes: u32, group: &[u32]) -> Self {
        let _ = take_marks();
        let node = |n: u32| Node {
            id: NodeId(n),
            storage: storage_of(n, 0),
            disk: Disk::default(),
            core: None,
            registers: None,
            writing: None,
            lives: 0,
        };
        World {
            now: Tick(1),
            rng: Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xa70),
            nodes: (1..=nodes).map(|n| (NodeId(n), node(n))).collect(),
            faults: Faults::NONE,
            options: Options::default(),
            capacity_bytes: DEFAULT_CAPACITY_BYTES,
            initial: GroupConfig::new(1, members(group)).unwrap(),
            cut: BTreeSet::new(),
            oracle: Protocol::default(),
            marks: BTreeMap::new(),
            kill_at: None,
            frames: 0,
            on_start: None,
            queue: BTreeMap::new(),
            next_event: 0,
        }
    }

    pub fn start_all(&mut self) {
        let ids: Vec<NodeId> = self.nodes.keys().copied().collect();
        ids.into_iter().for_each(|id| self.start(id));
    }

    /// Starts or restarts a node from its disk.
    pub fn start(&mut self, id: NodeId) {
        let peers: Vec<NodeId> = self.nodes.keys().copied().filter(|n| *n != id).collect();
        let seed = self.rng.next();
        let initial = self.initial.clone();
        let options = self.options;
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        assert!(node.core.is_none(), "node {id} runs already");
        node.lives += 1;
        let incarnation = Incarnation(u64::from(id.0) << 32 | node.lives);
        let mut core = NodeCore::new(id, incarnation, seed);
        let acceptor =
            Acceptor::new(id, node.storage, Some(initial.clone())).with_capacity_bytes(self.capacity_bytes);
        let known = acceptor.known_group();
        core.add_role(atoll_rmwpaxos::roles::ACCEPTOR, Box::new(acceptor));
        if let Some(checkpoint) = node.disk.checkpoint.clone() {
            core.recover_checkpoint(checkpoint).unwrap();
        }
        for (lsn, record) in &node.disk.records {
            let stored = Stored { lsn: *lsn, loc: loc(*lsn), record: record.clone() };
            core.recover_record(stored).unwrap();
        }
        core.recover_done(node.disk.last);
        for peer in peers {
            for class in [Class::Control, Class::Data] {
                core.set_link(now, peer, class, Link::Up);
            }
        }
        let env = core.env();
        let registers = RmwRegisters::new(env.clone(), known.get().unwrap_or(initial), options);
        node.registers = Some(registers.clone());
        node.core = Some(core);
        node.writing = None;
        if let Some(on_start) = &mut self.on_start {
            on_start(&env, &registers);
        }
        self.turn(id);
    }

    /// Simulates `kill -9` together with a power cut. Any prefix of the batch that is being written survives.
    pub fn crash(&mut self, id: NodeId) {
        let rng = &mut self.rng;
        let node = self.nodes.get_mut(&id).unwrap();
        let Some(core) = node.core.take() else { return };
        core.kill();
        node.registers = None;
        if let Some(batch) = node.writing.take() {
            let keep = rng.below(batch.records.len() as u64 + 1) as usize;
            let kept: Vec<_> = batch.records.into_iter().take(keep).collect();
            self.oracle.facts(id, node.storage, &kept);
            if let Some((lsn, _)) = kept.last() {
                node.disk.last = *lsn;
            }
            node.disk.records.extend(kept);
        }
    }

    /// Crashes a node and loses its disk. The next start has a new storage identity, as if from a new marker file.
    pub fn wipe(&mut self, id: NodeId) {
        self.crash(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.disk = Disk::default();
        node.storage = StorageId(node.storage.0 + 1);
    }

    /// Closes the journal of a node, as after a failed sync. Its process keeps answering.
    pub fn close_journal(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.writing = None;
        node.core.as_mut().unwrap().set_space(self.now, Space::Closed);
        self.turn(id);
    }

    pub fn running(&self, id: NodeId) -> bool {
        self.nodes[&id].core.is_some()
    }

    pub fn registers(&self, id: u32) -> RmwRegisters {
        self.nodes[&NodeId(id)].registers.clone().unwrap()
    }

    pub fn env(&self, id: u32) -> Env {
        self.nodes[&NodeId(id)].core.as_ref().unwrap().env()
    }

    fn push(&mut self, after_us: u64, event: Event) {
        let at = self.now.after(Duration::from_micros(after_us));
        self.queue.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    /// Runs turns of a node until it has no more work, and carries out what they request.
    fn turn(&mut self, id: NodeId) {
        loop {
            let now = self.now;
            let Some(core) = self.nodes.get_mut(&id).and_then(|n| n.core.as_mut()) else { return };
            let mut out = Outputs::default();
            core.turn(now, &mut out);
            let more = out.more;
            let marks = take_marks();
            let kill = self.kill_at.is_some_and(|(n, mark)| n == id && marks.contains_key(mark));
            for (mark, n) in marks {
                *self.marks.entry(mark).or_default() += n;
            }
            if kill {
                // Nothing that this turn sent has left the process.
                self.kill_at = None;
                self.crash(id);
                return;
            }
            self.carry_out(id, out);
            if !more {
                return;
            }
        }
    }

    fn carry_out(&mut self, id: NodeId, out: Outputs) {
        let storage = self.nodes[&id].storage;
        for Outgoing { to, class, envelope } in out.frames {
            self.frames += 1;
            self.oracle.sent(id, storage, to, &envelope);
            if self.rng.chance(self.faults.drop) || self.cut.contains(&(id, to)) {
                continue;
            }
            let copies = 1 + u64::from(self.rng.chance(self.faults.duplicate));
            for copy in 0..copies {
                // Duplicates may come much later.
                let delay = 20 + self.rng.below(self.faults.delay_us * (1 + 8 * copy));
                let envelope = envelope.clone();
                self.push(delay, Event::Deliver { from: id, to, class, envelope });
            }
        }
        if let Some(batch) = out.journal {
            assert!(batch.cells.is_empty(), "this disk keeps no cells");
            let delay = 20 + self.rng.below(self.faults.sync_us);
            let node = self.nodes.get_mut(&id).unwrap();
            node.writing = Some(batch);
            let life = node.lives;
            self.push(delay, Event::Synced { node: id, life });
        }
        if let Some(checkpoint) = out.checkpoint {
            self.oracle.checkpoint(id, storage, &checkpoint);
            let disk = &mut self.nodes.get_mut(&id).unwrap().disk;
            disk.records.retain(|(lsn, _)| *lsn > checkpoint.covers);
            disk.checkpoint = Some(checkpoint);
        }
    }

    fn synced(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        if node.lives != life || node.core.is_none() {
            return;
        }
        let Some(batch) = node.writing.take() else { return };
        self.oracle.facts(id, node.storage, &batch.records);
        let places = batch.records.iter().map(|(lsn, _)| (*lsn, loc(*lsn))).collect();
        node.disk.last = batch.records.last().unwrap().0;
        node.disk.records.extend(batch.records);
        let core = node.core.as_mut().unwrap();
        core.durable(now, Ok(places));
        if self.rng.chance(2) {
            core.request_checkpoint();
        }
    }

    /// Runs the next event. Returns false if there is none and never will be.
    pub fn step(&mut self) -> bool {
        let due = |n: &Node| n.core.as_ref().and_then(|c| c.next_deadline()).map(|at| (at, n.id));
        let timer = self.nodes.values().filter_map(due).min();
        let event = self.queue.keys().next().copied();
        match (timer, event) {
            (None, None) => return false,
            (Some((at, id)), event) if event.is_none_or(|(e, _)| at < e) => {
                self.now = self.now.max(at);
                self.turn(id);
            }
            (_, Some(key)) => {
                self.now = self.now.max(key.0);
                match self.queue.remove(&key).unwrap() {
                    Event::Deliver { from, to, class, envelope } => {
                        let now = self.now;
                        if let Some(core) = self.nodes.get_mut(&to).and_then(|n| n.core.as_mut()) {
                            core.deliver(now, from, class, envelope);
                            self.turn(to);
                        }
                    }
                    Event::Synced { node, life } => {
                        self.synced(node, life);
                        self.turn(node);
                    }
                }
            }
            (Some(_), None) => unreachable!(),
        }
        true
    }

    pub fn run_for(&mut self, d: Duration) {
        let end = self.now.after(d);
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }

    /// Runs a procedure on a node to its end. Returns None if the node dies, or after a minute.
    pub fn run_on<T: Send + 'static>(
        &mut self,
        id: u32,
        f: impl std::future::Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let slot = Arc::new(Mutex::new(None));
        let put = slot.clone();
        let run = async move {
            let got = f.await;
            *put.lock().unwrap() = Some(got);
        };
        self.env(id).spawn("test", Box::pin(run));
        let end = self.now.after(Duration::from_secs(60));
        while self.now < end && self.running(NodeId(id)) && slot.lock().unwrap().is_none() && self.step() {}
        slot.lock().unwrap().take()
    }
}

fn loc(lsn: Lsn) -> Loc {
    Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 1 }
}
