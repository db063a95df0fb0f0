//! Framed TCP between the nodes of a cluster. It carries [`atoll_core::Outgoing`] envelopes over a real network.
//!
//! Each ordered pair of nodes has one connection per [`atoll_core::Class`]. The side that sends requests and posts dials it, and replies
//! travel back on the connection of their request. Control and data have separate connections, so that a seal never queues behind entries
//! (contracts X11). This crate does not retry, reorder or store messages. When a connection breaks and loses some, the core is notified
//! with [`atoll_core::Link::Down`].
//!
//! | file | what it is |
//! | --- | --- |
//! | `wire.rs` | the frame codec: bytes to envelopes and back, limits checked before anything is allocated |
//! | `bodies.rs` | memory for the bodies of frames, which is used again |
//! | `handshake.rs` | the handshake: magic, version, cluster, identity, limits; refusals with a reason |
//! | `conn.rs` | one connection: a bounded send queue, a writer that coalesces frames, a reader |
//! | `inbox.rs` | events for the host, bounded per class, control first |
//! | `net.rs` | [`Net`]: routes envelopes, keeps the address book |
//! | `dial.rs`, `accept.rs` | how connections are made: back-off and address lookup; admission and protection from floods |
//! | `tls.rs`, `listen.rs` | mutual TLS from PEM files; no listener beyond loopback without TLS, unless the operator allows it |
//! | `stats.rs` | counters, and a limit for repeated log lines |
//!
//! Everything runs as tasks of the runtime on which [`Net::start`] is called.

mod accept;
pub mod bodies;
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
