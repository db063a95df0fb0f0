//! Options of [`crate::Net`], with the effects of values that are too small or too large.

use std::time::Duration;

use atoll_core::{Incarnation, LevelRange, Levels, NodeId, StorageId, Witness};

use crate::tls::TlsFiles;

/// Options of [`crate::Net::start`].
#[derive(Clone, Debug)]
pub struct NetOptions {
    /// The id of this node.
    pub node: NodeId,
    /// This life of the node.
    pub incarnation: Incarnation,
    /// The storage identity of its data directory.
    pub storage: StorageId,
    /// The feature levels. Nodes whose program cannot read the active level are refused.
    pub levels: Levels,
    /// How far the journals of this node and of other nodes are known to be durable. A node whose data directory was put back from an older
    /// copy is refused.
    pub witness: Witness,
    /// The name of the cluster, at most 128 bytes. Nodes of other clusters are refused.
    pub cluster: String,
    /// The cluster that this one was rescued from. Its nodes are told that their data directories are no longer part of any cluster, and
    /// stop.
    pub rescued_from: Option<String>,
    /// Where to listen, as `host:port`. Port 0 selects a free port, see [`crate::Net::local_addr`].
    pub listen: String,
    /// Files for mutual TLS. None is plaintext, which is refused beyond loopback unless the next field allows it.
    pub tls: Option<TlsFiles>,
    /// Whether the operator explicitly allows other machines to connect without TLS.
    pub allow_plaintext_beyond_loopback: bool,
    /// Limit of a connection's send queue, in bytes. When it is reached, the core is notified with [`atoll_core::Link::Full`]; below half
    /// of it, with [`atoll_core::Link::Up`]. The queue never holds more than twice this, except for a single larger frame. If it is too
    /// small, throughput falls. If it is too large, it costs memory, and a slow peer gets old messages.
    pub queue_bytes: usize,
    /// Limit for the frames of one class that wait for the host, in bytes. At the limit, the connections of that class are not read.
    pub inbox_bytes: usize,
    /// Time limit for the TLS and Atoll handshakes together.
    pub handshake_timeout: Duration,
    /// Time limit for one TCP connect.
    pub connect_timeout: Duration,
    /// The first pause after a failed connection. It doubles up to `backoff_max`; each pause is multiplied by a random factor from 0.5 to
    /// 1.5.
    pub backoff_min: Duration,
    /// The longest pause before the next attempt. If it is too large, a restarted node is found late.
    pub backoff_max: Duration,
    /// How long a connected node may take to answer when another node claims its id.
    pub duplicate_probe_timeout: Duration,
    /// The most incoming connections whose handshake is not complete. One more closes the oldest, so that garbage cannot keep peers out.
    pub max_handshakes: usize,
}

impl NetOptions {
    /// Returns the defaults for a node that listens at `listen`.
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
            rescued_from: None,
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
