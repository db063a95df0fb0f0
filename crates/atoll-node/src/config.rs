//! The configuration that a node is started with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use atoll_core::{LevelRange, NodeId, StorageId};
use atoll_db::Options as DatabaseOptions;
use atoll_door::Authorisation;
use atoll_log::virtual_log::Options as LogOptions;
use atoll_net::TlsFiles;

use crate::members::table::{Member, MemberTable};
use crate::replica::DatabaseState;
use crate::settings::Timings;

/// The roles of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Whether it stores entries.
    pub log: bool,
    /// Whether it stores registers.
    pub meta: bool,
    /// Whether it orders appends.
    pub sequencer: bool,
}

impl Roles {
    /// All roles.
    pub const ALL: Roles = Roles { log: true, meta: true, sequencer: true };
}

/// A founder of the cluster, or for a node that joins later, a member through which it finds the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Its address for other nodes, as host:port.
    pub peer: String,
    /// Its address for clients, if configured.
    pub grpc: Option<String>,
    /// Its roles.
    pub roles: Roles,
}

/// The default of [`NodeConfig::least_free_bytes`]. It leaves room for operations in progress, and for a store that rewrites files before
/// it frees space.
pub const LEAST_FREE_BYTES: u64 = 256 << 20;

/// The whole configuration of a node. Whoever creates it has already checked it.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// The id of this node.
    pub node: NodeId,
    /// The name of the cluster.
    pub cluster: String,
    /// The data directory.
    pub data: PathBuf,
    /// The roles of this node.
    pub roles: Roles,
    /// The feature levels that it can read. These are the levels of this program; tests may set others.
    pub levels: LevelRange,
    /// The address of the gRPC listener, which all doors share, as host:port.
    pub grpc: String,
    /// The address for other nodes, as host:port.
    pub peer: String,
    /// The address where metrics are served, if they are.
    pub metrics: Option<String>,
    /// The founders of the cluster, which may or may not include this node. Empty for a standalone node.
    pub founders: BTreeMap<NodeId, Founder>,
    /// The files for mutual TLS between nodes and for TLS of the gRPC listener.
    pub tls: Option<TlsFiles>,
    /// Whether the operator explicitly allows other machines to connect without TLS.
    pub plaintext_beyond_loopback: bool,
    /// Whether calls at the gRPC listener need grants, and who needs none.
    pub authorisation: Authorisation,
    /// When a peer counts as gone, and other timings.
    pub timings: Timings,
    /// How long a stopping node waits for its sequencers to move.
    pub drain_at_most: Duration,
    /// Whether this node keeps a replica of the database, if its doors have applications.
    pub replica: bool,
    /// Where the state of the database is stored.
    pub database: DatabaseState,
    /// The settings of the database's engine.
    pub database_options: DatabaseOptions,
    /// If the disk of the data directory has fewer free bytes than this, the database's doors refuse requests that make its data grow. 0
    /// disables this.
    pub least_free_bytes: u64,
    /// Once the cluster has this many logs, clients of this node cannot create more.
    pub most_logs: usize,
    /// How many unused logs stay open on this node.
    pub idle_logs: usize,
    /// How many records a shard of a log may get before it counts as full. A log whose shards are all full gets another shard, if enough
    /// nodes are free. 0 disables this.
    pub full_shard_records: u64,
    /// The places outside of the cluster where chains of logs can be, as URLs by name. The same on all nodes.
    pub places: BTreeMap<String, String>,
    /// On how many threads of their own the doors run. With 0, they run on the thread of the node.
    pub door_threads: usize,
    /// For tests only: omits syncs, to show that they are necessary.
    pub syncs_off: bool,
}

impl NodeConfig {
    /// Returns the configuration of a standalone node, for a program that wants a durable log in its own process. The node has all roles,
    /// it listens on free loopback ports, and it serves no metrics. The fields may be changed afterwards.
    pub fn alone(data: impl Into<PathBuf>) -> Self {
        NodeConfig {
            node: NodeId(1),
            cluster: "atoll".to_owned(),
            data: data.into(),
            roles: Roles::ALL,
            levels: LevelRange::OURS,
            grpc: "127.0.0.1:0".to_owned(),
            peer: "127.0.0.1:0".to_owned(),
            metrics: None,
            founders: BTreeMap::new(),
            tls: None,
            plaintext_beyond_loopback: false,
            authorisation: Authorisation::default(),
            timings: Timings::default(),
            drain_at_most: Duration::from_secs(10),
            replica: true,
            database: DatabaseState::default(),
            database_options: DatabaseOptions::default(),
            least_free_bytes: LEAST_FREE_BYTES,
            most_logs: LogOptions::default().most_logs,
            idle_logs: LogOptions::default().idle_logs,
            full_shard_records: 0,
            places: BTreeMap::new(),
            door_threads: 0,
            syncs_off: false,
        }
    }

    /// Returns the table of members to use until the register has been read.
    pub fn first_table(&self) -> MemberTable {
        let row = |peer: &str, grpc: Option<&str>, roles: Roles| Member {
            peer: peer.to_owned(),
            grpc: grpc.unwrap_or_default().to_owned(),
            metrics: String::new(),
            storage: StorageId(0),
            log: roles.log,
            sequencer: roles.sequencer,
            meta: roles.meta,
            draining: false,
        };
        let mut nodes: BTreeMap<NodeId, Member> =
            self.founders.iter().map(|(n, f)| (*n, row(&f.peer, f.grpc.as_deref(), f.roles))).collect();
        if nodes.is_empty() {
            nodes.insert(self.node, row(&self.peer, Some(&self.grpc), self.roles));
        }
        MemberTable { version: 0, nodes, ..MemberTable::default() }
    }

    /// Returns the founders with the role `meta`, in ascending order. For a standalone node, returns the node itself.
    pub fn meta_founders(&self) -> Vec<NodeId> {
        if self.founders.is_empty() {
            return vec![self.node];
        }
        self.founders.iter().filter(|(_, f)| f.roles.meta).map(|(n, _)| *n).collect()
    }
}
