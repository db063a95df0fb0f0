//! The contract of doors: how clients reach a node, through plug-ins that the node does not know.
//!
//! Doors run on the tokio runtime of the node's thread. A door checks limits, submits work and awaits the outcome. It never runs a
//! procedure itself: a handler is dropped when its client disconnects, so a reconfiguration could stop between seal and install
//! (contracts X8).
//!
//! | file | what it is |
//! | --- | --- |
//! | `door.rs` | the trait of a door, and what an open node offers to a door |
//! | `backend.rs` | what the gRPC services of doors need from their node, as traits |
//! | `keyspaces.rs` | reads and writes of keyspaces, as doors hand them to their node |
//! | `positions.rs` | operations on single positions of logs, as doors hand them to their node |
//! | `node_view.rs` | the node and its cluster, as doors see them |
//! | `listeners.rs` | opens listeners; none beyond loopback without TLS, unless the operator allows it |
//! | `grpc/` | the gRPC listener, which all doors share: connections, and limits of what a request may cost |
//! | `metrics.rs` | `GET /metrics`, for the metrics of the node and of all doors |
//! | `audit.rs` | the audit log |
//! | `limits.rs` | limits of the lists and texts in requests, checked before any work |
//! | `spec.rs` | converts the specification of a Loglet in a request |
//! | `embedded.rs` | a door without a socket, for a program that runs a node in its own process |
//!
//! The doors themselves are crates in `crates/doors`, and `atoll-doors` lists those of the program.

pub mod audit;
pub mod backend;
mod door;
mod embedded;
pub mod grpc;
pub mod keyspaces;
pub mod limits;
mod listeners;
pub mod metrics;
mod node_view;
pub mod positions;
pub mod shards;
pub mod spec;

pub use audit::Audit;
pub use backend::{
    Backend, DATABASE_LOG, LogBackend, LogRecords, Operations, Pending, ReadRecords, Refusal, Room, Submitted,
};
pub use door::{Door, DoorError, DoorUp, Serving, nothing, services_of, stopped};
pub use embedded::embed;
pub use grpc::{
    Authorisation, Caller, Certificates, DoorTls, DoorTlsError, DoorTlsFiles, Gate, Limits, Services, Shared,
    caller_of, serve_grpc,
};
pub use listeners::{Clients, ListenError, Listeners};
pub use metrics::Figures;
pub use node_view::NodeView;
