//! Settings of [`crate::Net`], with what too small and too large does.

use std::time::Duration;

use atoll_core::{Incarnation, LevelRange, Levels, NodeId, StorageId, Witness};

use crate::tls::TlsFiles;

/// Settings of [`crate::Net::start`].
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// This node.
    pub node: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Its data directory.
    pub storage: StorageId,
    /// Feature levels: nodes whose program does not read the active one are refused.
    pub levels: Levels,
    /// How far the journals of this node and of the others have come: one whose data directory was put back from an older copy
    /// is refused.
    pub witness: Witness,
    /// Name of the cluster: nodes of another one are refused. At most 128 bytes.
    pub cluster: String,
    /// Where to listen, `host:port`; port 0 takes a free one, see [`crate::Net::local_addr`].
    pub listen: String,
    /// Mutual TLS; None is plaintext, which is refused beyond loopback unless the next field allows it.
    pub tls: Option<TlsFiles>,
    /// The operator explicitly allowed other machines to connect without TLS.
    pub allow_plaintext_beyond_loopback: bool,
    /// A connection's send queue, in bytes, from which the core is told [`atoll_core::Link::Full`]; half of it is
    /// [`atoll_core::Link::Up`] again. Twice this is never exceeded. Too small: throughput; too large: memory, and old
    /// messages to a slow peer.
    pub queue_bytes: usize,
    /// Frames of one class that wait for the host, in bytes; above it that class's connections are not read.
    pub inbox_bytes: usize,
    /// Time for TLS and the exchange of names, together.
    pub handshake_timeout: Duration,
    /// Time for one TCP connect.
    pub connect_timeout: Duration,
    /// First pause after a connection failed; doubles up to `backoff_max`, each pause drawn from half to three halves.
    pub backoff_min: Duration,
    /// Longest pause before the next attempt. Too large: a restarted node is found late.
    pub backoff_max: Duration,
    /// How long a connected node has to answer when another one claims its id.
    pub duplicate_probe_timeout: Duration,
    /// Connections that have not introduced themselves; the oldest goes when one more comes, so that garbage cannot
    /// keep peers out.
    pub max_handshakes: usize,
}

impl NetOptions {
    /// Defaults for a node that listens at `listen`.
    pub fn new(
        node: NodeId,
        incarnation: Incarnation,
        storage: StorageId,
        cluster: impl Into<String>,
        listen: impl Into<String>,
    ) -> Self {
        NetOptions {
            node,
            incarnation,
            storage,
            levels: Levels::new(LevelRange::OURS, true),
            witness: Witness::default(),
            cluster: cluster.into(),
            listen: listen.into(),
            tls: None,
            allow_plaintext_beyond_loopback: false,
            queue_bytes: 16 << 20,
            inbox_bytes: 16 << 20,
            handshake_timeout: Duration::from_secs(3),
            connect_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_millis(500),
            duplicate_probe_timeout: Duration::from_millis(500),
            max_handshakes: 64,
        }
    }
}
