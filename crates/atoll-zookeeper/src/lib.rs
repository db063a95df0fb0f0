//! The ZooKeeper door: ZooKeeper's 3.9 wire protocol over a replicated tree of znodes, for unmodified clients.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `jute/` | the codec of the wire protocol |
//! | `path.rs`, `acl.rs` | paths, access control |
//! | `command.rs`, `event.rs` | the commands in the log, and the events that they emit |
//! | `tree/` | the replicated state, as an `atoll_db::Application` |
//! | `session/` | sessions: their replicated state, and the expiry of silent clients |
//! | `watch/` | watches, per node |
//! | `server/` | the door and its connections |
//! | `client.rs` | a small client, for imports from other ensembles |
//! | `testing.rs` | a replica's store as a map in memory, for tests |
//! | `mutants.rs` | known bugs, for tests |

pub mod acl;
pub mod client;
pub mod command;
pub mod event;
pub mod jute;
pub mod mutants;
pub mod path;
pub mod server;
pub mod session;
#[cfg(feature = "testing")]
pub mod testing;
pub mod tree;
pub mod watch;

pub use server::admin::AdminOptions;
pub use server::digest_md5::Users;
pub use server::membership::Addresses;
pub use server::monitor::{Metric, exposition};
pub use server::options::{ConnectionThrottle, DEFAULT_WORDS, Options};
pub use server::tls::{ClientCertificates, TlsError, TlsFiles};
pub use server::{Cluster, Door, KNOWN_WORDS, Listening};
pub use tree::ZooKeeper;
pub use tree::read::ReadError;
