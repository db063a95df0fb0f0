//! Whole nodes, as the product assembles them, with membership, failure detection, policy and logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_core::{Frame, NodeCore, NodeId, StorageId};
use atoll_log::virtual_log::VirtualLog;
use atoll_node::assembly::{self, NodeParts, Options};
use atoll_node::members::table::{Member, MemberTable};

use crate::scenario::parts::{STEP_BYTES, describe, identity};
use crate::scenario::upgrade::Programs;
use crate::world::Assembly;
use crate::world::observer::Who;

/// Assembles nodes with `atoll_node::assembly`.
#[derive(Clone, Debug)]
pub struct Nodes {
    /// How many hosts are members from the start. The others join when they are added.
    pub members: usize,
    /// How many of the first members hold registers.
    pub founders: usize,
    /// Options of the nodes.
    pub options: Options,
    /// The program that each host runs.
    pub programs: Programs,
    /// Counts starts. Each life gets the count as its start time.
    pub starts: u64,
}

/// What clients use on a node.
#[derive(Clone)]
pub struct NodeHandles(pub NodeParts);

impl std::fmt::Debug for NodeHandles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}", self.0.identity().node)
    }
}

impl NodeHandles {
    /// Returns the log with a name, on this node.
    pub fn log(&self, name: &str) -> Option<Arc<VirtualLog>> {
        self.0.logs.open(name).ok()
    }
}

impl Nodes {
    fn row(&self, host: usize, storage: StorageId) -> Member {
        Member {
            peer: format!("host{host}:1"),
            grpc: format!("host{host}:2"),
            metrics: String::new(),
            storage,
            log: true,
            sequencer: true,
            meta: host < self.founders,
            draining: false,
        }
    }
}

impl Assembly for Nodes {
    type Handles = NodeHandles;

    fn describe(&self, frame: &Frame) -> String {
        describe(frame)
    }

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, NodeHandles) {
        self.starts += 1;
        let mut identity = identity(who);
        identity.meta = who.host < self.founders;
        let rows: BTreeMap<NodeId, Member> =
            (0..self.members).map(|host| (NodeId(host as u32 + 1), self.row(host, StorageId(0)))).collect();
        let mut options = self.options.clone();
        options.protocols.set("step_bytes", STEP_BYTES.into());
        let parts = assembly::Parts {
            identity,
            levels: self.programs.of(who.host),
            seed,
            started_ms: self.starts,
            first_table: MemberTable { version: 0, nodes: rows, ..MemberTable::default() },
            row: self.row(who.host, who.storage),
            meta_founders: (1..=self.founders as u32).map(NodeId).collect(),
            options,
        };
        let assembly = assembly::assemble(parts).expect("the protocols of the product fit together");
        (assembly.core, NodeHandles(assembly.node))
    }

    fn start(&mut self, _core: &mut NodeCore, _who: &Who, handles: &NodeHandles) {
        handles.0.start();
    }
}
