//! How a door behaves.

use std::time::Duration;

use super::admin::AdminOptions;
use super::digest_md5::Users;

/// How a door behaves. The names in the comments are ZooKeeper's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `tickTime`, milliseconds; the bounds of session timeouts come from it where they are not given.
    pub tick_ms: i32,
    /// `minSessionTimeout`, milliseconds.
    pub min_session_timeout_ms: i32,
    /// `maxSessionTimeout`, milliseconds.
    pub max_session_timeout_ms: i32,
    /// `jute.maxbuffer`: longest frame that is taken, bytes.
    pub max_buffer_bytes: usize,
    /// Longest reply, in bytes: a longer read is refused. ZooKeeper leaves that to the `jute.maxbuffer` of its clients.
    pub max_reply_bytes: usize,
    /// Memory for the watches of one connection, in bytes; each watch counts with its whole path and 128 bytes. Beyond it, a
    /// request that would leave a watch is refused. ZooKeeper has no such limit.
    pub max_watch_bytes_of_connection: usize,
    /// The same of all connections.
    pub max_watch_bytes: usize,
    /// `maxClientCnxns`: connections of one address; 0 for no limit.
    pub max_connections_of_address: usize,
    /// `maxCnxns`: connections of everybody; 0 for no limit.
    pub max_connections: usize,
    /// Requests of one connection that may wait for their answers; more are left in the socket.
    pub max_outstanding: usize,
    /// `globalOutstandingLimit`: requests of all connections that may wait for their answers. Beyond it a connection that has one leaves
    /// the next in the socket; 0 for no limit.
    pub max_outstanding_of_all: usize,
    /// `zookeeper.connection_throttle_*`: how fast new connections may come; None for no limit.
    pub connection_throttle: Option<ConnectionThrottle>,
    /// `zookeeper.DigestAuthenticationProvider.superDigest`: who may everything, as `user:hash`.
    pub super_digest: Option<String>,
    /// `X509AuthenticationProvider.superUser`: the subject of a certificate, whose holder may everything.
    pub x509_super: Option<String>,
    /// Users of SASL's DIGEST-MD5: ZooKeeper has them in the section `Server` of its JAAS file.
    pub sasl_users: Users,
    /// `superUser`: the one of them who may everything.
    pub sasl_super: Option<String>,
    /// `4lw.commands.whitelist`; `*` stands for all.
    pub words: Vec<String>,
    /// `enforceQuota`: whether hard quotas refuse writes that come through this door.
    pub enforce_quota: bool,
    /// `readonlymode.enabled`: whether a node that has lost the log serves reads to clients that ask for that.
    pub read_only_mode: bool,
    /// `znode.container.checkIntervalMs`; zero for never.
    pub reap_every: Duration,
    /// Most ephemerals that one command deletes at the end of a session.
    pub ephemerals_at_once: i32,
    /// The admin commands.
    pub admin: AdminOptions,
}

/// A token bucket: each new connection takes a token, and no connection is admitted while the bucket is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionThrottle {
    /// `connection_throttle_tokens`: how many there may be.
    pub tokens: u64,
    /// `connection_throttle_fill_time`: how often some come back.
    pub fill_every: Duration,
    /// `connection_throttle_fill_count`: and how many.
    pub fill_count: u64,
}

/// Words that are answered unless the configuration says otherwise: those that cost little and show no paths of clients.
pub const DEFAULT_WORDS: [&str; 14] = [
    "conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "isro", "mntr", "ruok", "srst", "srvr", "stat",
    "wchs",
];

impl Default for Options {
    fn default() -> Self {
        Options {
            tick_ms: 2_000,
            min_session_timeout_ms: 4_000,
            max_session_timeout_ms: 40_000,
            max_buffer_bytes: 0xf_ffff,
            max_reply_bytes: 32 << 20,
            max_watch_bytes_of_connection: 64 << 20,
            max_watch_bytes: 512 << 20,
            max_connections_of_address: 60,
            max_connections: 0,
            max_outstanding: 1_000,
            max_outstanding_of_all: 20_000,
            connection_throttle: None,
            super_digest: None,
            enforce_quota: false,
            x509_super: None,
            sasl_users: Users::default(),
            sasl_super: None,
            read_only_mode: false,
            words: DEFAULT_WORDS.map(str::to_owned).to_vec(),
            reap_every: Duration::from_secs(10),
            ephemerals_at_once: 1_000,
            admin: AdminOptions::default(),
        }
    }
}
