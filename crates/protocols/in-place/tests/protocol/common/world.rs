//! The simulated world: nodes, network, disks with cells, and time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceId, Layout, LayoutState, Replica, ShardPlacement};
use atoll_contract::plugin::Protocol;
use atoll_contract::testing::{OnWire, Oracle, Violations, Who};
use atoll_core::testing::{take_local, take_marks, watch_local};
use atoll_core::{
    Cell, CellWrite, Class, Env, Envelope, Exchange, Incarnation, JournalBatch, Link, Lsn, NodeCore, NodeId,
    Outgoing, Outputs, StorageId, Tick, roles::MEMBER,
};
use atoll_in_place::roles::ACCEPTOR;
use atoll_in_place::{Acceptor, AcceptorOptions, ENGINE, InPlacePlugin, InPlaceSpace, Options};
use bytes::Bytes;

use super::Rng;
use super::members::Member;

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
    pub cells: BTreeMap<Bytes, Bytes>,
    last: u64,
}

impl Disk {
    fn write(&mut self, write: CellWrite) {
        match write.value {
            Some(value) => self.cells.insert(write.key, value),
            None => self.cells.remove(&write.key),
        };
    }
}

pub struct Node {
    pub disk: Disk,
    pub core: Option<NodeCore>,
    pub space: Option<InPlaceSpace>,
    writing: Option<JournalBatch>,
    pub lives: u64,
}

enum Event {
    Deliver { from: NodeId, to: NodeId, class: Class, envelope: Envelope },
    Synced { node: NodeId, life: u64 },
}

/// Starts the clients of a node.
pub type OnStart = dyn FnMut(&Env, &InPlaceSpace);

pub struct World {
    pub now: Tick,
    pub rng: Rng,
    pub nodes: BTreeMap<NodeId, Node>,
    pub faults: Faults,
    pub options: Options,
    pub layout: Layout,
    /// Links that are cut, each in one direction.
    pub cut: BTreeSet<(NodeId, NodeId)>,
    oracle: Box<dyn Oracle>,
    pub verdict: Violations,
    /// The life of the asker of each request, by asker, asked node and number.
    askers: BTreeMap<(NodeId, NodeId, u64), u64>,
    pub marks: BTreeMap<&'static str, u64>,
    pub frames: u64,
    pub cells_written: u64,
    pub on_start: Option<Box<OnStart>>,
    queue: BTreeMap<(Tick, u64), Event>,
    next_event: u64,
}

pub fn storage_of(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) * 1000)
}

fn life_of(node: NodeId, lives: u64) -> u64 {
    u64::from(node.0) << 32 | lives
}

impl World {
    /// Creates nodes `1..=nodes`, the first `replicas` of which hold the only group. None of them is started.
    pub fn new(seed: u64, nodes: u32, replicas: u32, durability: Durability) -> Self {
        let _ = (take_marks(), take_local());
        watch_local(true);
        let replica = |n: u32| {
            let node = NodeId(n);
            let identity = match durability {
                Durability::Disk => storage_of(node).0,
                Durability::Memory => u128::from(life_of(node, 1)),
            };
            Replica { node, identity }
        };
        let layout = Layout {
            engine: ENGINE.to_owned(),
            id: KeyspaceId(7),
            epoch: 1,
            state: LayoutState::Normal,
            durability,
            buckets: 1,
            shards: vec![ShardPlacement { replicas: (1..=replicas).map(replica).collect() }],
            options: Bytes::new(),
        };
        let node = || Node { disk: Disk::default(), core: None, space: None, writing: None, lives: 0 };
        World {
            now: Tick(1),
            rng: Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ 0xa70),
            nodes: (1..=nodes).map(|n| (NodeId(n), node())).collect(),
            faults: Faults::NONE,
            options: Options::default(),
            layout,
            cut: BTreeSet::new(),
            oracle: InPlacePlugin::default().oracle().unwrap(),
            verdict: Violations::default(),
            askers: BTreeMap::new(),
            marks: BTreeMap::new(),
            frames: 0,
            cells_written: 0,
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
        let (now, options, layout) = (self.now, self.options, self.layout.clone());
        let node = self.nodes.get_mut(&id).unwrap();
        assert!(node.core.is_none(), "node {id} runs already");
        node.lives += 1;
        let mut core = NodeCore::new(id, Incarnation(life_of(id, node.lives)), seed);
        let acceptor = Acceptor::new(core.env(), storage_of(id), AcceptorOptions::default());
        core.add_role(ACCEPTOR, Box::new(acceptor));
        core.add_role(MEMBER, Box::new(Member { env: core.env(), storage: storage_of(id) }));
        for (key, value) in &node.disk.cells {
            core.recover_cell(Cell { owner: ACCEPTOR, key: key.clone(), value: value.clone() }).unwrap();
        }
        core.recover_cells_done(node.disk.last);
        core.recover_done(Lsn::NONE);
        for peer in peers {
            for class in [Class::Control, Class::Data] {
                core.set_link(now, peer, class, Link::Up);
            }
        }
        let env = core.env();
        let space = InPlaceSpace::new(env.clone(), layout, options);
        node.space = Some(space.clone());
        node.core = Some(core);
        node.writing = None;
        if let Some(on_start) = &mut self.on_start {
            on_start(&env, &space);
        }
        self.turn(id);
    }

    /// Simulates `kill -9` together with a power cut. Any part of the batch that is being written survives.
    pub fn crash(&mut self, id: NodeId) {
        let rng = &mut self.rng;
        let node = self.nodes.get_mut(&id).unwrap();
        let Some(core) = node.core.take() else { return };
        core.kill();
        node.space = None;
        for write in node.writing.take().map(|batch| batch.cells).unwrap_or_default() {
            node.disk.last = write.number;
            if rng.chance(50) {
                node.disk.write(write);
            }
        }
    }

    pub fn running(&self, id: NodeId) -> bool {
        self.nodes[&id].core.is_some()
    }

    pub fn space(&self, id: u32) -> InPlaceSpace {
        self.nodes[&NodeId(id)].space.clone().unwrap()
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
            for (mark, n) in take_marks() {
                *self.marks.entry(mark).or_default() += n;
            }
            for (node, _, envelope) in take_local() {
                self.show(node, node, &envelope);
            }
            self.carry_out(id, out);
            if !more {
                return;
            }
        }
    }

    /// Shows a frame to the oracle.
    fn show(&mut self, from: NodeId, to: NodeId, envelope: &Envelope) {
        let life = life_of(from, self.nodes[&from].lives);
        let to_life = match envelope.exchange {
            Exchange::Request(number) => {
                self.askers.insert((from, to, number), life);
                None
            }
            Exchange::Reply(number) => self.askers.get(&(to, from, number)).copied(),
            Exchange::Post => None,
        };
        let from = Who { node: from, life, storage: storage_of(from) };
        self.oracle.sent(OnWire { from, to, to_life, envelope }, &mut self.verdict);
    }

    fn carry_out(&mut self, id: NodeId, out: Outputs) {
        for Outgoing { to, class, envelope } in out.frames {
            self.frames += 1;
            self.show(id, to, &envelope);
            if self.rng.chance(self.faults.drop) || self.cut.contains(&(id, to)) {
                continue;
            }
            let copies = 1 + u64::from(self.rng.chance(self.faults.duplicate));
            for copy in 0..copies {
                // Copies may come much later.
                let delay = 20 + self.rng.below(self.faults.delay_us * (1 + 8 * copy));
                let envelope = envelope.clone();
                self.push(delay, Event::Deliver { from: id, to, class, envelope });
            }
        }
        if let Some(batch) = out.journal {
            assert!(batch.records.is_empty(), "an acceptor keeps cells only");
            self.cells_written += batch.cells.len() as u64;
            let delay = 20 + self.rng.below(self.faults.sync_us);
            let node = self.nodes.get_mut(&id).unwrap();
            node.writing = Some(batch);
            let life = node.lives;
            self.push(delay, Event::Synced { node: id, life });
        }
    }

    fn synced(&mut self, id: NodeId, life: u64) {
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        if node.lives != life || node.core.is_none() {
            return;
        }
        let Some(batch) = node.writing.take() else { return };
        for write in batch.cells {
            node.disk.last = write.number;
            node.disk.write(write);
        }
        node.core.as_mut().unwrap().durable(now, Ok(Vec::new()));
    }

    /// Runs the next event. Returns false if there is none and never will be.
    pub fn step(&mut self) -> bool {
        let due =
            |(id, n): (&NodeId, &Node)| n.core.as_ref().and_then(|c| c.next_deadline()).map(|at| (at, *id));
        let timer = self.nodes.iter().filter_map(due).min();
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
