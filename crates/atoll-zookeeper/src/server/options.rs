//! The options of a door.

use std::path::PathBuf;
use std::time::Duration;

use super::admin::AdminOptions;
use super::digest_md5::Users;

/// The options of a door. The comments give ZooKeeper's names for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `tickTime`, in milliseconds. The default bounds of session timeouts derive from it.
    pub tick_ms: i32,
    /// `minSessionTimeout`, in milliseconds.
    pub min_session_timeout_ms: i32,
    /// `maxSessionTimeout`, in milliseconds.
    pub max_session_timeout_ms: i32,
    /// `jute.maxbuffer`: longest request frame that is accepted, in bytes.
    pub max_buffer_bytes: usize,
    /// Longest reply, in bytes. A read with a longer reply is refused. ZooKeeper leaves this to the `jute.maxbuffer` of its
    /// clients.
    pub max_reply_bytes: usize,
    /// Most memory for the watches of one connection, in bytes. Each watch counts as its whole path plus 400 bytes. Requests that
    /// would exceed this by registering a watch are refused. ZooKeeper has no such limit.
    pub max_watch_bytes_of_connection: usize,
    /// The same for all connections together.
    pub max_watch_bytes: usize,
    /// `maxClientCnxns`: most connections from one address; 0 for no limit.
    pub max_connections_of_address: usize,
    /// `maxCnxns`: most connections in total; 0 for no limit.
    pub max_connections: usize,
    /// Most unanswered requests of one connection. Further ones are left in the socket.
    pub max_outstanding: usize,
    /// `globalOutstandingLimit`: most unanswered requests of all connections; 0 for no limit. Above it, a connection that has an
    /// unanswered request leaves the next one in the socket.
    pub max_outstanding_of_all: usize,
    /// `zookeeper.connection_throttle_*`: rate limit for new connections; None for no limit.
    pub connection_throttle: Option<ConnectionThrottle>,
    /// `zookeeper.DigestAuthenticationProvider.superDigest`: the superuser, as `user:hash`.
    pub super_digest: Option<String>,
    /// `X509AuthenticationProvider.superUser`: the subject of a certificate whose holder is a superuser.
    pub x509_super: Option<String>,
    /// Users for SASL's DIGEST-MD5. ZooKeeper lists them in the `Server` section of its JAAS file.
    pub sasl_users: Users,
    /// `superUser`: the SASL user who is a superuser.
    pub sasl_super: Option<String>,
    /// `enforce.auth.schemes`: a client must have proved an identity of one of these schemes before it makes any other request. If there
    /// are none, clients may stay anonymous.
    pub required_schemes: Vec<String>,
    /// `4lw.commands.whitelist`: the allowed four-letter words; `*` allows all.
    pub words: Vec<String>,
    /// `enforceQuota`: whether hard quotas refuse writes that come through this door.
    pub enforce_quota: bool,
    /// `readonlymode.enabled`: whether a node that has lost the log serves reads to clients that ask for it.
    pub read_only_mode: bool,
    /// `znode.container.checkIntervalMs`: how often to delete empty containers and expired znodes; zero for never.
    pub reap_every: Duration,
    /// Most ephemerals that one command deletes at the end of a session.
    pub ephemerals_at_once: i32,
    /// `dataDir`: the folder with the node's data, which `conf` tells. None if there is none.
    pub data_folder: Option<PathBuf>,
    /// The options of the admin commands.
    pub admin: AdminOptions,
}

/// A token bucket: each new connection takes a token, and no connection is admitted while the bucket is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionThrottle {
    /// `connection_throttle_tokens`: the size of the bucket.
    pub tokens: u64,
    /// `connection_throttle_fill_time`: how often tokens are added.
    pub fill_every: Duration,
    /// `connection_throttle_fill_count`: how many tokens are added each time.
    pub fill_count: u64,
}

/// The four-letter words that are allowed by default: ZooKeeper's. With `read_only_mode`, `isro` is allowed, too, because clients look for
/// a node that can write with it.
pub const DEFAULT_WORDS: [&str; 1] = ["srvr"];

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
            required_schemes: Vec::new(),
            read_only_mode: false,
            words: DEFAULT_WORDS.map(str::to_owned).to_vec(),
            reap_every: Duration::from_secs(10),
            ephemerals_at_once: 1_000,
            data_folder: None,
            admin: AdminOptions::default(),
        }
    }
}
