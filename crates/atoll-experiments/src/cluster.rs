//! Node cores in one thread, with real roles, journals and time. The network takes no time and loses nothing, and the disks are in memory,
//! so only the work of the protocols is measured.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use atoll_core::{
    Caller, Candidate, Class, Directory, Effects, Env, Frame, Identity, Incarnation, Link, Loc, Lsn,
    NodeCore, NodeId, Outgoing, Outputs, Role, StorageId, Tick, Ticket, roles,
};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeOptions, NativeProvider, Sequencer, SequencerOptions,
};
use atoll_storage::{Journal, JournalError, JournalOptions, JournalReader, MemDisk, RecoverError};

/// Length of a journal segment, in bytes. A few segments hold everything that is not trimmed yet.
const SEGMENT_BYTES: u32 = 16 * 1024 * 1024;

/// Answers with the identity of the node. Planning a loglet needs no other part of the member role.
struct Member(Identity);

impl Role for Member {
    fn on_frame(&mut self, _: Tick, from: Caller, _: Frame, out: &mut Effects) {
        out.reply(from, self.0.clone(), Lsn::NONE);
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
}

/// A directory in which all nodes are up.
struct Everybody(Vec<NodeId>);

impl Directory for Everybody {
    fn candidates(&self) -> Vec<Candidate> {
        let one = |node: &NodeId| Candidate {
            node: *node,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            leaving: false,
            alive: true,
            failing: false,
        };
        self.0.iter().map(one).collect()
    }
}

struct Node {
    core: NodeCore,
    journal: Journal,
    reader: JournalReader,
    identity: Identity,
    /// Reused, so that a turn does not allocate.
    outputs: Outputs,
    /// Whether the core received anything since its last turn.
    fed: bool,
}

/// See the module documentation.
pub struct Cluster {
    began: Instant,
    nodes: Vec<Node>,
}

impl Cluster {
    /// Creates nodes 1 to `nodes`, each with a LogServer and a sequencer, and connects them.
    pub fn new(nodes: u32) -> Result<Self, JournalError> {
        let nodes = (1..=nodes).map(|n| Node::new(NodeId(n))).collect::<Result<Vec<_>, _>>()?;
        let mut cluster = Cluster { began: Instant::now(), nodes };
        let (ids, now) = (cluster.ids(), cluster.now());
        for node in &mut cluster.nodes {
            for peer in ids.iter().filter(|p| **p != node.identity.node) {
                node.core.set_link(now, *peer, Class::Control, Link::Up);
                node.core.set_link(now, *peer, Class::Data, Link::Up);
            }
        }
        Ok(cluster)
    }

    fn ids(&self) -> Vec<NodeId> {
        self.nodes.iter().map(|n| n.identity.node).collect()
    }

    fn now(&self) -> Tick {
        Tick(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Returns the environment of node 1, where the clients are.
    pub fn env(&self) -> Env {
        self.nodes[0].core.env()
    }

    /// Returns the configuration of a loglet on all nodes, whose sequencer is on node 1, with the clients.
    pub fn config(&self) -> NativeConfig {
        let servers = self.nodes.iter().map(|n| (n.identity.node, n.identity.storage)).collect();
        NativeConfig { servers, sequencer: (self.nodes[0].identity.node, self.nodes[0].identity.incarnation) }
    }

    /// Returns a provider that opens loglets on node 1.
    pub fn provider(&self) -> NativeProvider {
        NativeProvider::new(self.env(), Arc::new(Everybody(self.ids())), NativeOptions::default())
    }

    /// Runs turns until there is an answer. Returns None if the ticket was abandoned.
    pub fn wait<T>(&mut self, mut ticket: Ticket<T>) -> Option<T> {
        loop {
            if let Some(got) = ticket.try_take() {
                return got.ok();
            }
            self.step();
        }
    }

    /// Runs one turn of each node that has work.
    pub fn step(&mut self) {
        for i in 0..self.nodes.len() {
            let now = self.now();
            let node = &mut self.nodes[i];
            if !node.fed && node.core.next_deadline().is_none_or(|at| at > now) {
                continue;
            }
            node.fed = false;
            let mut outputs = std::mem::take(&mut node.outputs);
            node.core.turn(now, &mut outputs);
            self.carry_out(i, now, &mut outputs);
            self.nodes[i].outputs = outputs;
        }
    }

    fn carry_out(&mut self, i: usize, now: Tick, outputs: &mut Outputs) {
        let from = self.nodes[i].identity.node;
        for Outgoing { to, class, envelope } in outputs.frames.drain(..) {
            let receiver = &mut self.nodes[to.0 as usize - 1];
            receiver.core.deliver(now, from, class, envelope);
            receiver.fed = true;
        }
        self.nodes[i].keep(now, outputs);
    }

    /// Does what the other threads of a node do between turns: prepares journal segments and writes checkpoints.
    pub fn maintain(&mut self) {
        let now = self.now();
        for node in &mut self.nodes {
            node.maintain(now);
        }
        self.step();
    }
}

impl Node {
    fn new(id: NodeId) -> Result<Self, JournalError> {
        let storage = StorageId(u128::from(id.0) << 64 | 7);
        let identity = Identity {
            node: id,
            incarnation: Incarnation(u64::from(id.0) * 1000 + 1),
            storage,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        };
        let mut core = NodeCore::new(id, identity.incarnation, u64::from(id.0));
        let env = core.env();
        let server = LogServer::new(env.clone(), storage, LogServerOptions::default());
        core.add_role(atoll_native::roles::LOG_SERVER, Box::new(server));
        core.add_role(
            atoll_native::roles::SEQUENCER,
            Box::new(Sequencer::new(env, SequencerOptions::default())),
        );
        core.add_role(roles::MEMBER, Box::new(Member(identity.clone())));
        let mut options = JournalOptions::new(storage);
        options.segment_bytes = SEGMENT_BYTES;
        options.first_segment_bytes = SEGMENT_BYTES;
        options.ready_segments = 2;
        options.spare_segments = 16;
        let visit = &mut |_| Ok::<_, Infallible>(());
        let (journal, last) = match Journal::recover(Arc::new(MemDisk::new()), options, visit) {
            Ok(opened) => opened,
            Err(RecoverError::Journal(error)) => return Err(error),
        };
        core.recover_done(last);
        let reader = journal.reader();
        Ok(Node { core, journal, reader, identity, outputs: Outputs::default(), fed: true })
    }

    /// Carries out at once what a turn requests from the journal.
    fn keep(&mut self, now: Tick, outputs: &mut Outputs) {
        if let Some(batch) = outputs.journal.take() {
            atoll_core::invariant!(batch.cells.is_empty(), "this disk keeps no cells");
            let written = self.journal.write(&batch);
            let written = written.and_then(|places| self.journal.sync().map(|_| places));
            self.core.durable(now, written.map_err(|e| e.to_string()));
            self.fed = true;
        }
        for fetch in outputs.fetches.drain(..) {
            self.core.fetched(now, fetch.role, fetch.tag, self.reader.read(&fetch.locs));
            self.fed = true;
        }
        // A failed journal is closed, and reports that at the next write. Nothing more can be done about it here.
        if !outputs.freed.is_empty() {
            let _ = self.journal.free(&outputs.freed);
            outputs.freed.clear();
        }
        if let Some(checkpoint) = outputs.checkpoint.take() {
            let _ = self.journal.write_checkpoint(&checkpoint);
        }
        self.fed |= std::mem::take(&mut outputs.more);
    }

    fn maintain(&mut self, now: Tick) {
        while let Some(job) = self.journal.next_job() {
            if self.journal.prepared(job.run()).is_err() {
                break;
            }
        }
        if self.journal.wants_checkpoint() {
            self.core.request_checkpoint();
            self.fed = true;
        }
        if let Some(segment) = self.journal.sparse_segment() {
            self.core.compact(now, segment);
            self.fed = true;
        }
    }
}
