//! Framed TCP between the nodes of a cluster: what carries [`atoll_core::Outgoing`] envelopes on a real network.
//!
//! For each ordered pair of nodes and each [`atoll_core::Class`] there is one connection, dialed by the side that sends
//! requests and posts; replies travel back on the connection that their request came by. Control and data are separate
//! connections, so that a seal never queues behind entries (contracts X11). Nothing here retries, reorders or remembers
//! a message: what a broken connection loses, the core learns as [`atoll_core::Link::Down`].
//!
//! | file | what it is |
//! | --- | --- |
//! | `wire.rs` | the frame codec: bytes to envelopes and back, limits checked before anything is allocated |
//! | `handshake.rs` | who are you: magic, version, cluster, identity, limits; refusals with a reason |
//! | `conn.rs` | one connection: bounded send queue, coalescing writer, reader |
//! | `inbox.rs` | events for the host, bounded per class, control first |
//! | `net.rs` | [`Net`]: routes envelopes, keeps the address book |
//! | `dial.rs`, `accept.rs` | how connections come about: back-off and look-up, admission and floods |
//! | `tls.rs`, `listen.rs` | mutual TLS from PEM files; no plaintext listener beyond loopback |
//! | `stats.rs` | counters, and log lines that a flood cannot multiply |
//!
//! Threads and clocks: everything runs as tasks of the runtime that [`Net::start`] is called on.

mod accept;
mod conn;
mod dial;
mod handshake;
mod inbox;
mod listen;
mod net;
mod options;
mod stats;
mod tls;
pub mod wire;

pub use handshake::{Identity, PROTOCOL_VERSION, Refusal, RefusalCode};
pub use inbox::{NetEvent, NetEvents};
pub use listen::{ListenRefused, check_listener};
pub use net::{Net, StartError};
pub use options::NetOptions;
pub use stats::NetStats;
pub use tls::{Tls, TlsError, TlsFiles};
