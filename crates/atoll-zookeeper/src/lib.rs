//! The ZooKeeper door: the 3.9 wire protocol over a replicated tree of znodes, for unchanged clients.
//!
//! | folder | what it is |
//! | --- | --- |
//! | `jute/` | the codec of the wire |
//! | `path.rs`, `acl.rs` | paths, access control |
//! | `command.rs`, `event.rs` | what goes into the log, and what comes out besides answers |
//! | `tree/` | the replicated state, as an `atoll_db::Application` |
//! | `session/` | sessions: their part of the state, and who judges that a client is gone |
//! | `watch/` | watches, per node |
//! | `server/` | connections |
//! | `client.rs` | a small client, for imports from other ensembles |
//! | `testing.rs` | a replica's store as a plain map, for tests |
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
pub use server::options::{ConnectionThrottle, Options};
pub use server::tls::{ClientCertificates, TlsError, TlsFiles};
pub use server::{Cluster, Door, KNOWN_WORDS, Listening};
pub use tree::ZooKeeper;
pub use tree::read::ReadError;
