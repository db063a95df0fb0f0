//! Simulates a cluster in one thread on virtual time. Everything that happens follows from one seed.
//!
//! | file | what it is |
//! | --- | --- |
//! | `queue.rs` | the planned events, in order |
//! | `network.rs` | connections, latencies, partitions, faults of frames |
//! | `host.rs`, `disk.rs`, `clock.rs` | a process, its journal on a simulated disk, its clock |
//! | `clients.rs` | procedures outside of the nodes: load, operators, the source of faults |
//! | `links.rs` | connections between processes |
//! | `fault.rs`, `faults.rs` | the faults, and how they are injected |
//! | `put_back.rs` | data directories put back as a whole, and the peers that detect it |
//! | `observer.rs` | what the oracles see |
//! | `trace.rs` | a hash of the run, and its text |
//! | `weather.rs` | delays, clocks and sizes, apart from the faults |
//! | `writes.rs` | what a journal writes and syncs |

pub mod clients;
pub mod clock;
mod disk;
pub mod envelope;
pub mod fault;
mod faults;
mod host;
mod links;
pub mod network;
pub mod observer;
mod put_back;
pub mod queue;
pub mod trace;
mod weather;
mod writes;

use std::io::Write;

use atoll_core::{
    Class, Env, Exchange, Fetch, Frame, Incarnation, NodeCore, NodeId, Outgoing, Outputs, Tick,
};

use crate::rng::Rng;
use clients::{Cluster, Life};
use clock::Clock;
use disk::{HostDisk, OpenError};
use host::{Host, Input, Process};
use network::Network;
use observer::{Observer, OnWire, Violations, Who};
use queue::{Answer, Event, Queue};
use trace::Trace;

pub use weather::Weather;

/// How many events at one moment of virtual time make a run count as spinning.
const EVENTS_PER_INSTANT: u64 = 200_000;
/// How many consecutive turns that use their whole step budget make a node count as spinning.
const CUT_TURNS: u32 = 20;
/// Bytes of a checkpoint that one turn assembles: few, so that most checkpoints take many turns and the state changes meanwhile.
const CHECKPOINT_STEP_BYTES: usize = 512;
/// Mean time between two turns that assemble a checkpoint, if nothing else causes a turn.
const CHECKPOINT_STEP_NS: u64 = 200_000;

/// Assembles nodes: their roles, and the handles that clients use.
pub trait Assembly: Send {
    /// What clients can reach on a node.
    type Handles: Clone + Send + 'static;

    /// Returns a core with its roles, ready to recover. All its randomness comes from `seed`.
    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, Self::Handles);

    /// Starts the procedures of a recovered node.
    fn start(&mut self, _core: &mut NodeCore, _who: &Who, _handles: &Self::Handles) {}

    /// Returns a message as text, for traces that are written out.
    fn describe(&self, frame: &Frame) -> String {
        format!("kind {} for {}, {} bytes", frame.kind, frame.target, frame.size_bytes())
    }
}

/// Counts of what happened in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Events handled.
    pub events: u64,
    /// Frames sent between nodes.
    pub frames: u64,
    /// Faults injected, without those of single frames.
    pub faults: u64,
    /// Faults of single frames.
    pub frame_faults: u64,
    /// Turns of nodes.
    pub turns: u64,
    /// Syncs of journals.
    pub syncs: u64,
}

/// A simulated cluster, its clients and its oracles.
pub struct World<A: Assembly> {
    now: u64,
    queue: Queue,
    rng: Rng,
    weather: Weather,
    hosts: Vec<Host>,
    net: Network,
    clients: NodeCore,
    clients_at: Option<u64>,
    cluster: Cluster<A::Handles>,
    assembly: A,
    observers: Vec<Box<dyn Observer>>,
    /// The violations found.
    pub verdict: Violations,
    trace: Trace,
    totals: Totals,
    instant: (u64, u64),
    memory: put_back::Memory,
    /// Empty between two turns. Kept to reuse its allocation.
    frames: Vec<Outgoing>,
}

impl<A: Assembly> World<A> {
    /// Creates a world of machines without processes, with node ids 1 to `hosts`. All randomness comes from `seed`.
    pub fn new(
        seed: u64,
        hosts: usize,
        weather: Weather,
        assembly: A,
        out: Option<Box<dyn Write + Send>>,
    ) -> Self {
        // Discards what an earlier run on this thread left behind.
        atoll_core::testing::watch_local(true);
        let mut rng = Rng::new(seed ^ 0x0005_eed0_fa11_ab1e);
        let mut net = Network::new(hosts, weather.latency_ns, rng.fork());
        net.queue_bytes = weather.queue_bytes;
        let hosts_made = (0..hosts)
            .map(|index| Host {
                index,
                node: NodeId(index as u32 + 1),
                process: None,
                life: 0,
                disk: HostDisk::new(NodeId(index as u32 + 1), weather.segment_bytes),
                paused: false,
                backlog: Default::default(),
                next_turn: None,
                writing: None,
                upkeep_planned: false,
                refused: None,
                closed: false,
                disk_slower: 1,
                disk_hung: false,
                sync_waits: false,
                wipes: 0,
                first_storage: None,
                put_back: false,
                rotten: false,
            })
            .collect();
        World {
            now: 0,
            queue: Queue::default(),
            weather,
            hosts: hosts_made,
            net,
            clients: NodeCore::new(NodeId(u32::MAX), Incarnation(0), rng.bits()),
            clients_at: None,
            cluster: Cluster::new(hosts),
            assembly,
            observers: Vec::new(),
            verdict: Violations::default(),
            trace: Trace::new(out),
            totals: Totals::default(),
            instant: (0, 0),
            memory: put_back::Memory::default(),
            frames: Vec::new(),
            rng,
        }
    }

    /// Adds an oracle.
    pub fn observe(&mut self, observer: Box<dyn Observer>) {
        self.observers.push(observer);
    }

    /// Returns the executor of the clients.
    pub fn clients(&self) -> Env {
        self.clients.env()
    }

    /// Returns the cluster as clients see it.
    pub fn cluster(&self) -> Cluster<A::Handles> {
        self.cluster.clone()
    }

    /// Returns the virtual time in ns.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the hash of the trace so far and the number of its events.
    pub fn trace_hash(&self) -> (u64, u64) {
        self.trace.hash()
    }

    /// Returns the counts so far.
    pub fn totals(&self) -> Totals {
        let syncs = self.hosts.iter().map(|h| h.disk.syncs()).sum();
        Totals { frames: self.net.frames, frame_faults: self.net.faults, syncs, ..self.totals }
    }

    /// Sets the identities that the disks get when they are first used.
    pub fn name_disks(&mut self, storages: &[u128]) {
        for (host, storage) in self.hosts.iter_mut().zip(storages) {
            host.first_storage = Some(*storage);
        }
    }

    /// Describes what every node is doing, for the report of a run that makes no progress.
    pub fn stuck(&self) -> String {
        let of = |h: &Host| match &h.process {
            Some(p) => {
                let mut names: Vec<&str> = p.core.running().collect();
                names.dedup();
                format!("node {} runs {names:?}", h.node)
            }
            None => format!("node {} is down ({:?})", h.node, h.refused),
        };
        let clients: Vec<&str> = self.clients.running().collect();
        let nodes = self.hosts.iter().map(of).collect::<Vec<_>>().join("; ");
        format!("clients run {clients:?} until {:?}; {nodes}", self.clients.next_deadline())
    }

    /// Starts every node within a few virtual milliseconds.
    pub fn boot_all(&mut self) {
        for host in 0..self.hosts.len() {
            let at = self.now + self.rng.below(3_000_000);
            self.queue.push(at, Event::Boot { host, life: 0 });
        }
    }

    /// Runs until the time `until`, a violation, or `done`. Returns true only if `done` returned true.
    pub fn run(&mut self, until: u64, done: &mut dyn FnMut() -> bool) -> bool {
        self.clients_turn();
        loop {
            if !self.verdict.failures.is_empty() {
                return false;
            }
            if done() {
                return true;
            }
            match self.queue.next_at() {
                Some(at) if at <= until => {}
                _ => {
                    self.now = self.now.max(until);
                    return false;
                }
            }
            let Some((at, event)) = self.queue.pop() else { return false };
            self.now = at;
            if self.instant.0 != at {
                self.instant = (at, 0);
            }
            self.instant.1 += 1;
            if self.instant.1 > EVENTS_PER_INSTANT {
                let stuck: Vec<_> = self.hosts.iter().filter_map(|h| h.process.as_ref()).collect();
                let names: Vec<&str> = stuck.iter().flat_map(|p| p.core.running()).collect();
                self.verdict.fail(format!("SPIN: time stands still; procedures: {names:?}"));
                return false;
            }
            self.totals.events += 1;
            self.handle(event);
        }
    }

    /// Tells the oracles that the run is over.
    pub fn finish(&mut self) {
        for o in &mut self.observers {
            o.finished(self.now, &mut self.verdict);
        }
        self.trace.flush();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Turn { host } => {
                if self.hosts[host].next_turn == Some(self.now) {
                    self.hosts[host].next_turn = None;
                    self.turn(host);
                }
            }
            Event::Clients => {
                if self.clients_at == Some(self.now) {
                    self.clients_at = None;
                    self.clients_turn();
                }
            }
            Event::Arrive { conn, to_peer, bytes, copy } => self.arrive(conn, to_peer, bytes, copy),
            Event::Dial { slot, life } => self.dial(slot, life),
            Event::Down { conn } => self.connection_down(conn),
            Event::Silent { conn } => self.silent(conn),
            Event::Unacknowledged { conn } => self.net.cut(self.now, conn, &mut self.queue),
            Event::Written { host, life } => self.written(host, life),
            Event::Synced { host, life } => self.synced(host, life),
            Event::Fetched { host, life, answer } => self.input_of(host, life, Input::Fetched(*answer)),
            Event::Upkeep { host, life } => self.upkeep(host, life),
            Event::Boot { host, life } => {
                if self.hosts[host].process.is_none() && self.hosts[host].life == life {
                    self.boot(host);
                }
            }
            Event::Resume { host, life } => self.resume(host, life),
        }
    }

    /// Delivers an input to a process if it is still in the same life.
    fn input_of(&mut self, host: usize, life: u64, input: Input) {
        if self.hosts[host].life == life {
            self.input(host, input);
        }
    }

    fn input(&mut self, host: usize, input: Input) {
        let h = &mut self.hosts[host];
        let Some(process) = &mut h.process else { return };
        if h.paused {
            h.backlog.push_back(input);
            return;
        }
        process.apply(self.now, input);
        self.show_local(host);
        let soon = self.now + 1_000 + self.rng.below(15_000);
        self.plan_turn(host, soon);
    }

    fn plan_turn(&mut self, host: usize, at: u64) {
        let h = &mut self.hosts[host];
        if h.next_turn.is_none_or(|planned| planned > at) {
            h.next_turn = Some(at);
            self.queue.push(at, Event::Turn { host });
        }
    }

    fn turn(&mut self, host: usize) {
        let now = self.now;
        let h = &mut self.hosts[host];
        let Some(process) = &mut h.process else { return };
        if h.paused {
            return;
        }
        let mut out = Outputs { frames: std::mem::take(&mut self.frames), ..Outputs::default() };
        let tick = process.clock.tick(now);
        process.core.turn(tick, &mut out);
        process.woken.take();
        process.cut_turns = if out.more { process.cut_turns + 1 } else { 0 };
        if process.cut_turns > CUT_TURNS {
            let names: Vec<&str> = process.core.running().collect();
            self.verdict.fail(format!("SPIN: node {} uses every step budget; procedures: {names:?}", h.node));
            return;
        }
        self.totals.turns += 1;
        self.trace.event(now, host as u64, 1, out.steps as u64);
        let life = h.life;
        self.show_local(host);
        let mut frames = std::mem::take(&mut out.frames);
        for outgoing in frames.drain(..) {
            if self.fuse_burnt(host) {
                if matches!(outgoing.envelope.exchange, Exchange::Reply(_)) {
                    // The data is synced, but no reply is sent.
                    atoll_core::testing::hit("sim.crash.between_sync_and_reply");
                }
                return;
            }
            self.send(host, outgoing);
        }
        self.frames = frames;
        self.after_turn(host, life, out);
        self.clients_if_due();
    }

    /// Shows the oracles the messages that a node sent to itself.
    fn show_local(&mut self, host: usize) {
        let shown = atoll_core::testing::take_local();
        let Some(who) = self.hosts[host].who() else { return };
        // A node whose directory was put back sends nothing to other nodes: it ends when it first connects.
        if self.hosts[host].put_back {
            return;
        }
        for (node, class, envelope) in shown {
            self.trace.event(self.now, host as u64, 15, u64::from(envelope.frame.kind));
            if self.trace.is_written() {
                let words = self.assembly.describe(&envelope.frame);
                let exchange = envelope.exchange;
                self.trace.line(self.now, format_args!("{node} to itself {exchange:?} {words}"));
            }
            let to_life = matches!(envelope.exchange, Exchange::Reply(_)).then_some(who.life);
            let seen = OnWire { at: self.now, from: &who, to: node, to_life, class, envelope: &envelope };
            for o in &mut self.observers {
                o.sent(seen, &mut self.verdict);
            }
        }
    }

    fn after_turn(&mut self, host: usize, life: u64, out: Outputs) {
        let now = self.now;
        if let Some(batch) = out.journal {
            let took = self.rng.tail(self.weather.write_ns) * self.hosts[host].disk_slower;
            self.trace.event(now, host as u64, 2, batch.records.len() as u64);
            self.hosts[host].writing = Some(batch);
            self.queue.push(now + took, Event::Written { host, life });
        }
        for Fetch { role, tag, locs } in out.fetches {
            let got = self.hosts[host].disk.read(&locs);
            if got.is_err() {
                atoll_core::testing::hit("sim.read.failed");
            }
            self.trace.event(now, host as u64, 3, locs.len() as u64);
            let took = self.rng.tail(self.weather.write_ns * 3) * self.hosts[host].disk_slower;
            let answer = Box::new(Answer { role, tag, got });
            self.queue.push(now + took, Event::Fetched { host, life, answer });
        }
        if !out.freed.is_empty() {
            self.hosts[host].disk.free(&out.freed);
        }
        if let Some(checkpoint) = out.checkpoint {
            self.trace.event(now, host as u64, 4, checkpoint.covers.0);
            self.hosts[host].disk.checkpoint(checkpoint);
            self.upkeep_soon(host);
        }
        let Some(process) = &self.hosts[host].process else { return };
        if out.more {
            self.plan_turn(host, now + 1);
        } else if process.core.is_checkpointing() {
            let at = now + self.rng.tail(CHECKPOINT_STEP_NS);
            self.plan_turn(host, at);
        } else if let Some(tick) = process.core.next_deadline() {
            let at = process.clock.when(tick).max(now + 1);
            self.plan_turn(host, at);
        }
    }

    fn clients_if_due(&mut self) {
        if self.clients.next_deadline().is_some_and(|t| t.0 <= self.now) {
            self.clients_turn();
        }
    }

    fn clients_turn(&mut self) {
        let mut out = Outputs::default();
        self.clients.turn(Tick(self.now), &mut out);
        self.trace.event(self.now, 0xffff, 5, out.steps as u64);
        if out.more {
            self.verdict.fail("SPIN: the clients use their whole step budget");
        }
        for host in 0..self.hosts.len() {
            if self.hosts[host].process.as_ref().is_some_and(|p| p.woken.take()) {
                self.input(host, Input::Nudge);
            }
        }
        let (faults, failures) = {
            let mut state = self.cluster.state();
            (std::mem::take(&mut state.faults), std::mem::take(&mut state.failures))
        };
        self.verdict.failures.extend(failures);
        for fault in faults {
            self.inject(fault);
        }
        if let Some(Tick(at)) = self.clients.next_deadline() {
            let at = at.max(self.now + 1);
            if self.clients_at.is_none_or(|planned| planned > at || planned <= self.now) {
                self.clients_at = Some(at);
                self.queue.push(at, Event::Clients);
            }
        }
    }

    fn host_of(&self, node: NodeId) -> Option<usize> {
        let index = (node.0 as usize).checked_sub(1)?;
        (index < self.hosts.len()).then_some(index)
    }

    /// Updates what clients see of a host.
    fn publish(&self, host: usize) {
        let h = &self.hosts[host];
        let mut state = self.cluster.state();
        state.health[host] = clients::Health {
            up: h.process.is_some(),
            paused: h.paused,
            refused: h.refused.clone(),
            closed: h.closed,
            wipes: h.wipes,
            rotten: h.rotten,
            put_back: h.put_back,
            storage: h.process.as_ref().map(|p| p.storage),
        };
    }

    fn boot(&mut self, host: usize) {
        let (now, seed) = (self.now, self.rng.bits());
        let incarnation = Incarnation(self.rng.bits());
        let clock = Clock::skewed(&mut self.rng, self.weather.skew_permille);
        let new_storage = u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits());
        let h = &mut self.hosts[host];
        let new_storage = h.first_storage.take().unwrap_or(new_storage);
        h.life += 1;
        h.closed = false;
        h.paused = false;
        h.backlog.clear();
        h.writing = None;
        h.next_turn = None;
        h.upkeep_planned = false;
        let storage = match h.disk.identify(new_storage) {
            Ok(storage) => storage,
            Err(why) => return self.refuse(host, why),
        };
        let who = Who { host, node: h.node, life: h.life, incarnation, storage };
        let (mut core, handles) = self.assembly.assemble(&who, seed);
        core.set_checkpoint_step(CHECKPOINT_STEP_BYTES);
        if let Err(why) = h.disk.recover(storage, &mut core) {
            core.kill();
            return self.refuse(host, why);
        }
        h.refused = None;
        h.rotten = false;
        let life = h.life;
        let mut process = Process::new(core, incarnation, who.storage, clock);
        process.apply(now, Input::Nudge);
        self.assembly.start(&mut process.core, &who, &handles);
        let env = process.core.env();
        h.process = Some(process);
        self.trace.event(now, host as u64, 11, life);
        let found = self.hosts[host].disk.take_recovered();
        let (last, count) = (found.records.last().map(|(lsn, _)| *lsn), found.records.len());
        self.trace.line(
            now,
            format_args!("host {host} starts life {life}, recovered {count} records up to {last:?}"),
        );
        let put_back = self.hosts[host].put_back;
        for o in self.observers.iter_mut().filter(|_| !put_back) {
            o.booted(now, &who, &found, &mut self.verdict);
        }
        self.cluster.state().lives[host] = Some(Life { node: who.node, life, env, handles });
        self.publish(host);
        for peer in (0..self.hosts.len()).filter(|p| *p != host) {
            for class in [Class::Control, Class::Data] {
                let slot = self.net.slot(host, peer, class);
                let at = now + self.rng.below(10_000_000);
                self.queue.push(at, Event::Dial { slot, life });
            }
        }
        self.upkeep_soon(host);
        self.input(host, Input::Nudge);
    }

    fn refuse(&mut self, host: usize, why: OpenError) {
        self.trace.event(self.now, host as u64, 12, 0);
        self.trace.line(self.now, format_args!("host {host} refuses to start: {why:?}"));
        let h = &mut self.hosts[host];
        match why {
            OpenError::Again => {
                // A supervisor restarts it.
                let (at, life) = (self.now + self.rng.range(50_000_000, 300_000_000), h.life);
                h.disk.kill_process();
                self.queue.push(at, Event::Boot { host, life });
            }
            OpenError::ForGood(why) => h.refused = Some(why),
        }
        self.publish(host);
    }

    fn resume(&mut self, host: usize, life: u64) {
        let h = &mut self.hosts[host];
        if h.life != life || !h.paused {
            return;
        }
        h.paused = false;
        let backlog = std::mem::take(&mut h.backlog);
        self.trace.event(self.now, host as u64, 13, backlog.len() as u64);
        self.publish(host);
        for input in backlog {
            self.input(host, input);
        }
        self.input(host, Input::Nudge);
    }
}
