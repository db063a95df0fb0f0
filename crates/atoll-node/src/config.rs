//! What a node is started with.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use atoll_core::{LevelRange, NodeId, StorageId};
use atoll_db::Options as DatabaseOptions;
use atoll_log::virtual_log::Options as LogOptions;
use atoll_net::TlsFiles;
use atoll_zookeeper::{Options as ZooKeeperOptions, TlsFiles as ZooKeeperTls};

use crate::database::DatabaseState;
use crate::members::table::{Member, MemberTable};
use crate::settings::Timings;

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// It keeps entries.
    pub log: bool,
    /// It keeps registers.
    pub meta: bool,
    /// It orders appends.
    pub sequencer: bool,
}

impl Roles {
    /// All of them.
    pub const ALL: Roles = Roles { log: true, meta: true, sequencer: true };
}

/// A member at the cluster's birth, or one through which a later node finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founder {
    /// Where nodes reach it: host:port.
    pub peer: String,
    /// Where clients reach it, if configured.
    pub grpc: Option<String>,
    /// What it does.
    pub roles: Roles,
}

/// See [`NodeConfig::least_free_bytes`]: room for what is under way, and for a store that is rewritten while it gives room back.
pub const LEAST_FREE_BYTES: u64 = 256 << 20;

/// Everything; checked already where it came from.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// This node.
    pub node: NodeId,
    /// The cluster's name.
    pub cluster: String,
    /// Its data directory.
    pub data: PathBuf,
    /// What it does.
    pub roles: Roles,
    /// The feature levels that it reads: those of this program, but in tests of others.
    pub levels: LevelRange,
    /// Where clients reach it: host:port.
    pub grpc: String,
    /// Where nodes reach it: host:port.
    pub peer: String,
    /// Where metrics are read, if anywhere.
    pub metrics: Option<String>,
    /// Where clients of ZooKeeper come in, if anywhere.
    pub zookeeper: Option<String>,
    /// The same with TLS, if anywhere, and its files.
    pub zookeeper_tls: Option<(String, ZooKeeperTls)>,
    /// Where the commands of ZooKeeper's AdminServer are served, if anywhere.
    pub zookeeper_admin: Option<String>,
    /// How that door behaves.
    pub zookeeper_options: ZooKeeperOptions,
    /// The members at the cluster's birth, this node among them or not; empty for a node that stands alone.
    pub founders: BTreeMap<NodeId, Founder>,
    /// Mutual TLS between nodes, and TLS for clients.
    pub tls: Option<TlsFiles>,
    /// The operator explicitly allowed other machines to connect without TLS.
    pub plaintext_beyond_loopback: bool,
    /// When a peer counts as gone.
    pub timings: Timings,
    /// How long a stopping node waits for its sequencers to move.
    pub drain_at_most: Duration,
    /// The state of the database, on a node that has doors for it.
    pub database: DatabaseState,
    /// Settings of the database's engine.
    pub database_options: DatabaseOptions,
    /// If the data directory's disk has fewer free bytes than this, the database's doors refuse requests that make its data grow; 0 for
    /// never.
    pub least_free_bytes: u64,
    /// Once the cluster has this many logs, clients of this node cannot create more.
    pub most_logs: usize,
    /// How many unused logs stay open on this node.
    pub idle_logs: usize,
    /// Test switch: leave syncs out, to show that they matter.
    pub syncs_off: bool,
}

impl NodeConfig {
    /// A node that stands alone, for a program that wants a durable log in its own process: every role, doors at free
    /// ports of loopback, no metrics. The rest may be set afterwards.
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
            zookeeper: None,
            zookeeper_tls: None,
            zookeeper_admin: None,
            zookeeper_options: ZooKeeperOptions::default(),
            founders: BTreeMap::new(),
            tls: None,
            plaintext_beyond_loopback: false,
            timings: Timings::default(),
            drain_at_most: Duration::from_secs(10),
            database: DatabaseState::default(),
            database_options: DatabaseOptions::default(),
            least_free_bytes: LEAST_FREE_BYTES,
            most_logs: LogOptions::default().most_logs,
            idle_logs: LogOptions::default().idle_logs,
            syncs_off: false,
        }
    }

    /// The table of members before any register was read.
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

    /// The founders with registers, in order; this node if it stands alone.
    pub fn meta_founders(&self) -> Vec<NodeId> {
        if self.founders.is_empty() {
            return vec![self.node];
        }
        self.founders.iter().filter(|(_, f)| f.roles.meta).map(|(n, _)| *n).collect()
    }
}
