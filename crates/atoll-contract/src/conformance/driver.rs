//! Runs nodes in one thread on virtual time, with a network that loses nothing and a journal that is durable at once. This is enough for
//! the conformance suites; the simulator covers faults.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use atoll_core::node_core::RecoverError;
use atoll_core::{
    Cell, CellWrite, Class, Env, Envelope, FetchError, Incarnation, Link, Loc, Lsn, NodeCore, NodeId,
    Outputs, Record, RoleKind, Stored, Tick,
};
use bytes::Bytes;

/// The one-way latency between two nodes, unless set otherwise.
pub const DEFAULT_LATENCY: Duration = Duration::from_micros(50);
/// The virtual time after which a future that is still pending counts as stuck.
const STUCK_AFTER: Duration = Duration::from_secs(3600);
/// The number of rounds at one instant after which the driver reports an endless loop.
const MAX_TURNS_PER_INSTANT: u32 = 100_000;

/// The state that outlives a node's process.
#[derive(Default)]
struct Journal {
    records: BTreeMap<Lsn, Stored>,
    by_place: BTreeMap<Loc, Lsn>,
    last: Lsn,
    cells: BTreeMap<(RoleKind, Bytes), Bytes>,
    last_cell: u64,
    segment: u64,
    next_offset: u32,
    lives: u64,
}

struct Host {
    core: NodeCore,
    journal: Journal,
    /// Whether the node got input since its last turn.
    fed: bool,
}

impl Journal {
    fn write(&mut self, lsn: Lsn, record: Record) -> (Lsn, Loc) {
        let len_bytes = (record.head.len() + record.payload.len()).max(1) as u32;
        if self.segment == 0 || self.next_offset.checked_add(len_bytes).is_none() {
            (self.segment, self.next_offset) = (self.segment + 1, 0);
        }
        let loc = Loc { segment: self.segment, offset_bytes: self.next_offset, len_bytes };
        self.next_offset += len_bytes;
        self.last = lsn;
        self.by_place.insert(loc, lsn);
        self.records.insert(lsn, Stored { lsn, loc, record });
        (lsn, loc)
    }

    fn overwrite(&mut self, cell: CellWrite) {
        let CellWrite { number, owner, key, value } = cell;
        self.last_cell = number;
        match value {
            Some(value) => self.cells.insert((owner, key), value),
            None => self.cells.remove(&(owner, key)),
        };
    }

    fn read(&self, loc: Loc) -> Result<Stored, FetchError> {
        let stored = self.by_place.get(&loc).and_then(|lsn| self.records.get(lsn)).cloned();
        stored.ok_or_else(|| FetchError { reason: format!("nothing is at {loc:?}") })
    }
}

/// Nodes on virtual time; see the module documentation.
pub struct Driver {
    now: Tick,
    seed: u64,
    latency: Duration,
    nodes: BTreeMap<NodeId, Host>,
    wires: BTreeMap<(Tick, u64), (NodeId, NodeId, Class, Envelope)>,
    sent: u64,
    turns_at_now: u32,
}

impl Driver {
    /// Returns a driver without nodes. All randomness comes from the seed.
    pub fn new(seed: u64) -> Self {
        Driver {
            now: Tick(0),
            seed,
            latency: DEFAULT_LATENCY,
            nodes: BTreeMap::new(),
            wires: BTreeMap::new(),
            sent: 0,
            turns_at_now: 0,
        }
    }

    /// Sets the one-way message latency from now on.
    pub fn set_latency(&mut self, latency: Duration) {
        self.latency = latency;
    }

    /// Adds a node whose roles `assemble` installs, and connects it to all others.
    pub fn add_node(&mut self, node: NodeId, assemble: impl FnOnce(&mut NodeCore)) -> Env {
        let mut core = self.new_core(node, 0);
        assemble(&mut core);
        core.recover_done(Lsn::NONE);
        self.nodes.insert(node, Host { core, journal: Journal::default(), fed: true });
        self.connect(node);
        self.env(node)
    }

    /// Kills a node and restarts it with the same journal. All its links break and come up again.
    pub fn restart(
        &mut self,
        node: NodeId,
        assemble: impl FnOnce(&mut NodeCore),
    ) -> Result<Env, RecoverError> {
        let Some(old) = self.nodes.remove(&node) else { return Ok(self.add_node(node, assemble)) };
        let mut journal = old.journal;
        journal.lives += 1;
        old.core.kill();
        self.wires.retain(|_, (from, to, _, _)| *from != node && *to != node);
        let others: Vec<NodeId> = self.nodes.keys().copied().collect();
        for other in others {
            self.link(other, node, Link::Down);
        }
        let mut core = self.new_core(node, journal.lives);
        assemble(&mut core);
        for stored in journal.records.values() {
            core.recover_record(stored.clone())?;
        }
        for ((owner, key), value) in &journal.cells {
            core.recover_cell(Cell { owner: *owner, key: key.clone(), value: value.clone() })?;
        }
        core.recover_cells_done(journal.last_cell);
        core.recover_done(journal.last);
        self.nodes.insert(node, Host { core, journal, fed: true });
        self.connect(node);
        Ok(self.env(node))
    }

    /// Returns the handle of a node. Panics if there is no such node.
    pub fn env(&self, node: NodeId) -> Env {
        self.core(node).env()
    }

    /// Returns the core of a node, for its roles and measures. Panics if there is no such node.
    pub fn core(&self, node: NodeId) -> &NodeCore {
        match self.nodes.get(&node) {
            Some(host) => &host.core,
            None => panic!("node {node} is not in this driver"),
        }
    }

    /// Returns the current virtual time.
    pub fn now(&self) -> Tick {
        self.now
    }

    /// Runs a future as a procedure of a node until it ends. Panics if nothing more happens, or after an hour of virtual time.
    pub fn block_on<T: Send + 'static>(
        &mut self,
        node: NodeId,
        f: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let mut wait = self.env(node).launch("block_on", f);
        let limit = self.now.after(STUCK_AFTER);
        loop {
            match wait.try_take() {
                Some(Ok(value)) => return value,
                Some(Err(e)) => panic!("the procedure was dropped: {e}"),
                None => {}
            }
            if !self.step(limit) {
                let running: Vec<_> =
                    self.nodes.values().flat_map(|h| h.core.running().collect::<Vec<_>>()).collect();
                panic!("nothing happens any more, or for an hour; procedures: {running:?}");
            }
        }
    }

    /// Runs for a span of virtual time.
    pub fn run_for(&mut self, d: Duration) {
        let until = self.now.after(d);
        while self.step(until) {}
        self.now = until;
    }

    /// Does what is due, or advances the time to the next event. Returns false if there is none up to `limit`.
    pub fn step(&mut self, limit: Tick) -> bool {
        if self.turn_all() {
            self.turns_at_now += 1;
            assert!(self.turns_at_now < MAX_TURNS_PER_INSTANT, "the nodes spin at {:?}", self.now);
            return true;
        }
        self.turns_at_now = 0;
        let wire = self.wires.keys().next().map(|(at, _)| *at);
        let timer = self.nodes.values().filter_map(|h| h.core.next_deadline()).min();
        match [wire, timer].into_iter().flatten().min() {
            Some(next) if next <= limit => {
                self.now = self.now.max(next);
                true
            }
            _ => false,
        }
    }

    /// Delivers what is due and runs one turn of each node that has work. Returns false if none has.
    fn turn_all(&mut self) -> bool {
        let mut worked = false;
        while let Some(first) = self.wires.first_entry()
            && first.key().0 <= self.now
        {
            let (from, to, class, envelope) = first.remove();
            if let Some(host) = self.nodes.get_mut(&to) {
                host.core.deliver(self.now, from, class, envelope);
                host.fed = true;
            }
        }
        let nodes: Vec<NodeId> = self.nodes.keys().copied().collect();
        for node in nodes {
            let Some(host) = self.nodes.get_mut(&node) else { continue };
            if !host.fed && host.core.next_deadline().is_none_or(|d| d > self.now) {
                continue;
            }
            (worked, host.fed) = (true, false);
            let mut out = Outputs::default();
            host.core.turn(self.now, &mut out);
            self.carry_out(node, out);
        }
        worked
    }

    fn carry_out(&mut self, node: NodeId, out: Outputs) {
        let Some(host) = self.nodes.get_mut(&node) else { return };
        for f in out.frames {
            self.sent += 1;
            self.wires.insert((self.now.after(self.latency), self.sent), (node, f.to, f.class, f.envelope));
        }
        let journal = &mut host.journal;
        for loc in out.freed {
            if let Some(lsn) = journal.by_place.remove(&loc) {
                journal.records.remove(&lsn);
            }
        }
        if let Some(batch) = out.journal {
            let written = batch.records.into_iter().map(|(lsn, record)| journal.write(lsn, record)).collect();
            batch.cells.into_iter().for_each(|cell| journal.overwrite(cell));
            host.core.durable(self.now, Ok(written));
            host.fed = true;
        }
        for fetch in out.fetches {
            let got = fetch.locs.iter().map(|loc| host.journal.read(*loc)).collect();
            host.core.fetched(self.now, fetch.role, fetch.tag, got);
            host.fed = true;
        }
    }

    fn new_core(&self, node: NodeId, lives: u64) -> NodeCore {
        let seed = self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(node.0) << 32) ^ lives;
        NodeCore::new(node, Incarnation(seed | 1), seed)
    }

    fn connect(&mut self, node: NodeId) {
        let others: Vec<NodeId> = self.nodes.keys().copied().filter(|n| *n != node).collect();
        for other in others {
            self.link(node, other, Link::Up);
            self.link(other, node, Link::Up);
        }
    }

    fn link(&mut self, from: NodeId, to: NodeId, link: Link) {
        if let Some(host) = self.nodes.get_mut(&from) {
            for class in [Class::Control, Class::Data] {
                host.core.set_link(self.now, to, class, link);
            }
            host.fed = true;
        }
    }
}
