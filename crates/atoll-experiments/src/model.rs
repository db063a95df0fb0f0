//! A model of many machines: real node cores with their roles in virtual time. Processors, links and disks take as long as [`Parameters`]
//! say. A run with the same parameters, nodes and procedures gives the same results.
//!
//! - A *turn* of a node keeps one processor of its machine busy, from the arrival of what it handles until its messages leave. What arrives
//!   in the meantime waits for the next turn, as it does in the product.
//! - A message occupies its sender's link, then travels, then occupies its receiver's link.
//! - A batch of the journal occupies a processor of the machine, which another thread of the node uses, then the disk for its bytes, and is
//!   durable one sync later. A node syncs one batch at a time, as in the product.
//! - A node that has nothing to do sleeps. Waking it costs processor time, too. So does what it has under way: it is not in the caches.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use atoll_core::{
    Candidate, Class, Directory, Env, Envelope, Exchange, Incarnation, Level, Link, Loc, Lsn, NodeCore,
    NodeId, Outputs, StorageId, Tick,
};
use atoll_node::host::HostOptions;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};

mod parameters;
mod processors;
mod traffic;

pub use parameters::Parameters;
use processors::{Processors, Thread};
use traffic::Traffic;

/// What a frame has on the wire beside its head and payloads, in bytes.
const FRAME_BYTES: u64 = 32;
/// What a record has in the journal beside its head and payload, in bytes.
const RECORD_BYTES: u64 = 24;
/// The journal writes whole blocks.
const BLOCK_BYTES: u64 = 4096;
const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// Returns how long `bytes` take at a rate, in nanoseconds.
fn transfer_ns(bytes: u64, bytes_per_second: u64) -> u64 {
    let nanos = u128::from(bytes) * NANOS_PER_SECOND / u128::from(bytes_per_second.max(1));
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

/// What turns had to do, and how long this took on the machine that runs the model.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Number of turns.
    pub turns: u64,
    /// Number of steps of these turns, messages out included.
    pub steps: u64,
    /// Bytes that came in and went out.
    pub bytes: u64,
    /// Number of reads from disks, which the model does not answer.
    pub fetches: u64,
    /// Real time of these turns.
    pub took: Duration,
}

impl Work {
    /// Returns the work for each of so many operations, as JSON.
    pub fn for_each(&self, operations: u64) -> Value {
        let each = |count: u64| (count as f64 / operations.max(1) as f64 * 1e3).round() / 1e3;
        json!({ "turns": each(self.turns), "steps": each(self.steps), "bytes": each(self.bytes) })
    }
}

/// How long the resources of a node were busy, in nanoseconds of virtual time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// Its turns, and the batches of its journal.
    pub processor_ns: u64,
    /// Its link, outwards.
    pub sending_ns: u64,
    /// Its link, inwards.
    pub receiving_ns: u64,
    /// Batches of its journal, with their syncs.
    pub disk_ns: u64,
}

/// A message on its way.
struct Travelling {
    from: NodeId,
    class: Class,
    envelope: Envelope,
    bytes: u64,
}

enum Input {
    Message(Box<Travelling>),
    Durable(Vec<(Lsn, Loc)>),
}

enum Event {
    /// A node may take a turn.
    Turn,
    /// The last byte of a message is at the link of its receiver.
    Arrives(Box<Travelling>),
    /// A node gets something to handle.
    Takes(Input),
}

/// An event at a node. Events at the same time happen in the order in which they were planned.
struct Planned {
    at: u64,
    number: u64,
    node: usize,
    event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// A machine: nodes share its processors and its disk.
struct Machine {
    processors: Processors,
    /// Until when the disk transfers bytes.
    disk_until: u64,
}

struct Node {
    core: NodeCore,
    machine: usize,
    thread: Thread,
    /// Of its journal.
    journal: Thread,
    inbox: VecDeque<Input>,
    outputs: Outputs,
    /// When its next turn is planned.
    turn_at: Option<u64>,
    /// When the first thing that it will handle in its next turn was there.
    ready_at: Option<u64>,
    busy_until: u64,
    sending_until: u64,
    receiving_until: u64,
    written_bytes: u32,
    /// Requests to other nodes that wait for their replies.
    under_way: u64,
    busy: Busy,
    /// Processor time of a byte that comes in or goes out, beside [`Parameters::byte_ps`], in picoseconds.
    more_byte_ps: u64,
    work: Work,
}

impl Node {
    /// Passes on what waits for the node, as much as one turn of the product takes. Returns what came from other nodes.
    fn take_inbox(&mut self, now: Tick, limits: &HostOptions) -> Traffic {
        let (events, bytes) = (limits.events_per_turn as u64, limits.bytes_per_turn as u64);
        let mut incoming = Traffic::default();
        while incoming.frames() < events && incoming.bytes() < bytes {
            match self.inbox.pop_front() {
                None => break,
                Some(Input::Durable(written)) => self.core.durable(now, Ok(written)),
                Some(Input::Message(message)) => {
                    let Travelling { from, class, envelope, bytes } = *message;
                    incoming.add(from, class, bytes);
                    if matches!(envelope.exchange, Exchange::Reply(_)) {
                        self.under_way = self.under_way.saturating_sub(1);
                    }
                    self.core.deliver(now, from, class, envelope);
                }
            }
        }
        incoming
    }
}

/// No plan is made in a model, so nobody asks for members.
pub struct Nobody;

impl Directory for Nobody {
    fn candidates(&self) -> Vec<Candidate> {
        Vec::new()
    }
}

/// See the module documentation.
pub struct Model {
    parameters: Parameters,
    /// Of turns, as in the product.
    limits: HostOptions,
    now: u64,
    number: u64,
    events: BinaryHeap<Reverse<Planned>>,
    machines: Vec<Machine>,
    nodes: Vec<Node>,
    /// What all turns had to do.
    pub work: Work,
    /// Whether [`Work::took`] is time of the processor.
    of_processor: bool,
}

/// Returns the identity of the data directory of a node.
pub fn storage_of(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) << 64 | 7)
}

/// Returns the only life of a node.
pub fn life_of(node: NodeId) -> Incarnation {
    Incarnation(u64::from(node.0) * 1000 + 1)
}

impl Model {
    /// Creates a model without machines.
    pub fn new(parameters: Parameters) -> Self {
        let (events, work) = (BinaryHeap::new(), Work::default());
        Model {
            parameters,
            limits: HostOptions::default(),
            now: 0,
            number: 0,
            events,
            machines: Vec::new(),
            nodes: Vec::new(),
            work,
            of_processor: false,
        }
    }

    /// Adds a machine with this many processors. Returns its number.
    pub fn add_machine(&mut self, processors: usize) -> usize {
        self.machines.push(Machine { processors: Processors::new(processors), disk_until: 0 });
        self.machines.len() - 1
    }

    /// Adds a node to a machine, and returns its number; the first is 1. `roles` adds its server roles to it.
    pub fn add_node(
        &mut self,
        machine: usize,
        seed: u64,
        roles: impl FnOnce(&mut NodeCore, StorageId),
    ) -> NodeId {
        let id = NodeId(self.nodes.len() as u32 + 1);
        let mut core = NodeCore::new(id, life_of(id), seed.wrapping_add(id.0.into()));
        let env = core.env();
        // The cluster is not in the middle of an upgrade.
        assert!(env.levels().learn(Level::CURRENT).is_ok(), "this program reads its own level");
        core.set_turn_steps(self.limits.steps_per_turn);
        roles(&mut core, storage_of(id));
        core.recover_done(Lsn::NONE);
        let processors = &mut self.machines[machine].processors;
        let (thread, journal) = (processors.add_thread(), processors.add_thread());
        self.nodes.push(Node {
            core,
            machine,
            thread,
            journal,
            inbox: VecDeque::new(),
            outputs: Outputs::default(),
            turn_at: None,
            ready_at: None,
            busy_until: 0,
            sending_until: 0,
            receiving_until: 0,
            written_bytes: 0,
            under_way: 0,
            busy: Busy::default(),
            more_byte_ps: 0,
            work: Work::default(),
        });
        id
    }

    /// Connects all nodes and gives each its first turn.
    pub fn connect(&mut self) {
        let ids = 1..=self.nodes.len() as u32;
        for one in ids.clone() {
            for other in ids.clone().filter(|n| *n > one) {
                self.connect_two(NodeId(one), NodeId(other));
            }
        }
        self.start();
    }

    /// Connects two nodes with each other.
    pub fn connect_two(&mut self, one: NodeId, other: NodeId) {
        for (node, peer) in [(one, other), (other, one)] {
            for class in [Class::Control, Class::Data] {
                self.nodes[node.0 as usize - 1].core.set_link(Tick(self.now), peer, class, Link::Up);
            }
        }
    }

    /// Gives each node its first turn.
    pub fn start(&mut self) {
        for i in 0..self.nodes.len() {
            self.wake(i, self.now);
        }
    }

    /// Counts only the time of the processor as what turns take, so that it does not matter what else the machine does. To ask for it takes
    /// longer than a short turn.
    pub fn count_processor_time(&mut self) {
        self.of_processor = true;
    }

    /// Lets bytes that a node gets or sends cost it this much more processor time, in picoseconds.
    pub fn set_more_byte_ps(&mut self, node: NodeId, more_byte_ps: u64) {
        self.nodes[node.0 as usize - 1].more_byte_ps = more_byte_ps;
    }

    /// Sends a message to a node from outside of the model, from a peer that has a machine and a link of its own and whose number is none
    /// of a node's. It leaves at this time, which is not in the past.
    pub fn send_from_outside(&mut self, at: u64, from: NodeId, to: NodeId, class: Class, envelope: Envelope) {
        let bytes = frame_bytes(&envelope);
        let message = Box::new(Travelling { from, class, envelope, bytes });
        let arrives = at + self.parameters.latency_ns + transfer_ns(bytes, self.parameters.link_bytes_s);
        self.plan(arrives, to.0 as usize - 1, Event::Arrives(message));
    }

    /// Returns the environment of a node, for handles and procedures.
    pub fn env(&self, node: NodeId) -> Env {
        self.nodes[node.0 as usize - 1].core.env()
    }

    /// Returns the virtual time, in nanoseconds since the start.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns how long the resources of a node were busy since the last [`Model::forget`].
    pub fn busy(&self, node: NodeId) -> Busy {
        self.nodes[node.0 as usize - 1].busy
    }

    /// Returns the work of all turns of a node since the last [`Model::forget`].
    pub fn work_of(&self, node: NodeId) -> Work {
        self.nodes[node.0 as usize - 1].work
    }

    /// Returns which part of a time one resource of these nodes was busy, that of the busiest node.
    pub fn busiest<'a>(
        &self,
        nodes: impl Iterator<Item = &'a NodeId>,
        of: impl Fn(Busy) -> u64,
        nanos: u64,
    ) -> f64 {
        let most = nodes.map(|node| of(self.busy(*node))).max().unwrap_or(0);
        (most as f64 / nanos.max(1) as f64 * 1e3).round() / 1e3
    }

    /// Forgets what was busy so far.
    pub fn forget(&mut self) {
        self.nodes.iter_mut().for_each(|node| (node.busy, node.work) = Default::default());
        self.work = Work::default();
    }

    /// Runs until a time, in nanoseconds since the start.
    pub fn run_until(&mut self, until: u64) {
        while let Some(Reverse(planned)) = self.events.pop() {
            if planned.at > until {
                self.events.push(Reverse(planned));
                break;
            }
            self.now = planned.at;
            match planned.event {
                Event::Turn => self.turn_if_due(planned.node),
                Event::Arrives(message) => self.receive(planned.node, message),
                Event::Takes(input) => {
                    let node = &mut self.nodes[planned.node];
                    node.inbox.push_back(input);
                    node.ready_at.get_or_insert(self.now);
                    self.wake(planned.node, self.now);
                }
            }
        }
        self.now = until;
    }

    fn plan(&mut self, at: u64, node: usize, event: Event) {
        self.number += 1;
        self.events.push(Reverse(Planned { at, number: self.number, node, event }));
    }

    /// Plans a turn of a node, not before it has completed the last one.
    fn wake(&mut self, i: usize, at: u64) {
        let node = &self.nodes[i];
        if self.machines[node.machine].processors.waits(node.thread) {
            return;
        }
        let at = at.max(node.busy_until);
        if self.nodes[i].turn_at.is_none_or(|planned| planned > at) {
            self.nodes[i].turn_at = Some(at);
            self.plan(at, i, Event::Turn);
        }
    }

    /// The link of the receiver passes on one message after the other.
    fn receive(&mut self, i: usize, message: Box<Travelling>) {
        let transfer = transfer_ns(message.bytes, self.parameters.link_bytes_s);
        let node = &mut self.nodes[i];
        let end = self.now.max(node.receiving_until + transfer);
        node.receiving_until = end;
        node.busy.receiving_ns += transfer;
        self.plan(end, i, Event::Takes(Input::Message(message)));
    }

    fn turn_if_due(&mut self, i: usize) {
        if self.nodes[i].turn_at != Some(self.now) {
            // It was planned anew.
            return;
        }
        let node = &mut self.nodes[i];
        match self.machines[node.machine].processors.get(node.thread, self.now) {
            Ok(processor) => {
                node.turn_at = None;
                self.turn(i, processor);
            }
            Err(at) => {
                node.turn_at = Some(at);
                self.plan(at, i, Event::Turn);
            }
        }
    }

    fn turn(&mut self, i: usize, processor: usize) {
        let now = Tick(self.now);
        let node = &mut self.nodes[i];
        let slept = node.ready_at.take().unwrap_or(self.now) > node.busy_until;
        let mut outputs = std::mem::take(&mut node.outputs);
        outputs.steps = 0;
        let started = Stopwatch::start(self.of_processor);
        let incoming = node.take_inbox(now, &self.limits);
        node.core.turn(now, &mut outputs);
        let elapsed = started.read();
        let steps = (outputs.steps + outputs.frames.len()) as u64;
        let mut outgoing = Traffic::default();
        for frame in &outputs.frames {
            outgoing.add(frame.to, frame.class, frame_bytes(&frame.envelope));
            node.under_way += u64::from(matches!(frame.envelope.exchange, Exchange::Request(_)));
        }
        let bytes = incoming.bytes() + outgoing.bytes();
        for work in [&mut self.work, &mut node.work] {
            work.turns += 1;
            work.fetches += outputs.fetches.len() as u64;
            (work.steps, work.bytes, work.took) =
                (work.steps + steps, work.bytes + bytes, work.took + elapsed);
        }
        let Parameters { turn_ns, step_ns, wake_ns, read_ns, write_ns, byte_ps, .. } = self.parameters;
        let Parameters { step_crowd_ps, byte_crowd_fs, step_neighbour_ps, .. } = self.parameters;
        let neighbours = self.machines[node.machine].processors.neighbours(self.now);
        let took = turn_ns
            + if slept { wake_ns } else { 0 }
            + steps * step_ns
            + incoming.reads() * read_ns
            + outgoing.writes() * write_ns
            + bytes * (byte_ps + node.more_byte_ps) / 1000
            + node.under_way * (steps * step_crowd_ps / 1000 + outgoing.bytes() * byte_crowd_fs / 1_000_000)
            + neighbours * steps * step_neighbour_ps / 1000;
        let end = self.now + took;
        node.busy_until = end;
        node.busy.processor_ns += took;
        self.machines[node.machine].processors.run(node.thread, processor, end);
        self.carry_out(i, end, &mut outputs);
        let again = std::mem::take(&mut outputs.more) || !self.nodes[i].inbox.is_empty();
        self.nodes[i].outputs = outputs;
        let next = if again { Some(end) } else { self.nodes[i].core.next_deadline().map(|at| at.0) };
        if let Some(at) = next {
            self.wake(i, at);
        }
    }

    /// Sends messages and writes the journal at the end of a turn. Nobody reads, so nothing is fetched.
    fn carry_out(&mut self, i: usize, end: u64, outputs: &mut Outputs) {
        let Parameters { latency_ns, link_bytes_s, sync_ns, disk_bytes_s, .. } = self.parameters;
        for frame in outputs.frames.drain(..) {
            let bytes = frame_bytes(&frame.envelope);
            let transfer = transfer_ns(bytes, link_bytes_s);
            let node = &mut self.nodes[i];
            node.sending_until = node.sending_until.max(end) + transfer;
            node.busy.sending_ns += transfer;
            let (from, class, envelope) = (NodeId(i as u32 + 1), frame.class, frame.envelope);
            let message = Box::new(Travelling { from, class, envelope, bytes });
            let at = node.sending_until + latency_ns;
            self.plan(at, frame.to.0 as usize - 1, Event::Arrives(message));
        }
        outputs.fetches.clear();
        outputs.freed.clear();
        outputs.checkpoint = None;
        let Some(batch) = outputs.journal.take() else { return };
        let node = &mut self.nodes[i];
        let mut bytes = 0;
        let mut places = Vec::with_capacity(batch.records.len());
        for (lsn, record) in batch.records {
            let length = RECORD_BYTES + (record.head.len() + record.payload.len()) as u64;
            let (offset_bytes, len_bytes) = (node.written_bytes, u32::try_from(length).unwrap_or(u32::MAX));
            node.written_bytes = offset_bytes.wrapping_add(len_bytes);
            places.push((lsn, Loc { segment: 1, offset_bytes, len_bytes }));
            bytes += length;
        }
        let transfer = transfer_ns(bytes.next_multiple_of(BLOCK_BYTES), disk_bytes_s);
        let Parameters { batch_ns, batch_byte_ps, batch_byte_neighbour_ps, .. } = self.parameters;
        let Machine { processors, disk_until } = &mut self.machines[node.machine];
        let neighbours = processors.neighbours(end);
        let work = batch_ns + bytes * (batch_byte_ps + neighbours * batch_byte_neighbour_ps) / 1000;
        let written = if work > 0 { processors.run_next(node.journal, end, work) } else { end };
        *disk_until = written.max(*disk_until) + transfer;
        let at = *disk_until + sync_ns;
        node.busy.processor_ns += work;
        node.busy.disk_ns += at - end;
        self.plan(at, i, Event::Takes(Input::Durable(places)));
    }
}

/// Measures how long a turn takes: by the clock, or in time of the processor.
enum Stopwatch {
    Clock(Instant),
    Processor(Timespec),
}

impl Stopwatch {
    fn start(of_processor: bool) -> Self {
        match of_processor {
            true => Stopwatch::Processor(clock_gettime(ClockId::ThreadCPUTime)),
            false => Stopwatch::Clock(Instant::now()),
        }
    }

    fn read(&self) -> Duration {
        match self {
            Stopwatch::Clock(at) => at.elapsed(),
            Stopwatch::Processor(from) => {
                let now = clock_gettime(ClockId::ThreadCPUTime);
                let nanos = (now.tv_sec - from.tv_sec) * 1_000_000_000 + (now.tv_nsec - from.tv_nsec);
                Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
            }
        }
    }
}

/// Returns the length of a message on the wire.
fn frame_bytes(envelope: &Envelope) -> u64 {
    FRAME_BYTES + envelope.frame.size_bytes() as u64
}
