//! The doors of a node: the public gRPC API (`atoll-client/proto/atoll/v1/`), the metrics endpoint, and ZooKeeper's protocol.
//!
//! They run on the tokio runtime of the node's thread, over listeners that the caller opened. A door checks limits, submits work and awaits
//! the outcome. It never runs a procedure itself: a handler is dropped when its client disconnects, so a reconfiguration could stop between
//! seal and install (contracts X8).
//!
//! | file | what it is |
//! | --- | --- |
//! | `backend.rs` | what a door needs from the node, as traits |
//! | `virtual_log.rs` | those traits over the node's virtual logs |
//! | `grpc/` | connections, and limits of what a request may cost |
//! | `limits.rs` | limits of the lists and texts in requests, checked before any work |
//! | `log_service.rs` | create, list, append, check tail, trim |
//! | `append_stream.rs` | the streaming append: the hot path |
//! | `read.rs` | the streaming read |
//! | `chain_service.rs`, `cluster_service.rs` | reconfiguration, status, membership |
//! | `database_service.rs` | the replica of this node |
//! | `tables/` | tables, on the database |
//! | `metrics.rs` | `GET /metrics` |
//! | `zookeeper.rs` | the door for ZooKeeper clients, on the database |

mod append_stream;
pub mod backend;
mod chain_service;
mod cluster_service;
mod database_service;
mod grpc;
mod limits;
mod log_service;
pub mod metrics;
mod read;
pub mod tables;
mod virtual_log;
pub mod zookeeper;

use std::future::Future;
use std::sync::Arc;

use atoll_client::proto;
use atoll_client::proto::chain_service_server::ChainServiceServer;
use atoll_client::proto::cluster_service_server::ClusterServiceServer;
use atoll_client::proto::database_service_server::DatabaseServiceServer;
use atoll_client::proto::log_service_server::LogServiceServer;
use atoll_client::proto::table_service_server::TableServiceServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::service::Routes;

pub use backend::{Backend, LogBackend, LogRecords, Operations, ReadRecords, Refusal, Submitted};
pub use grpc::{DoorTls, DoorTlsError, Limits, MAX_CONNECTIONS};
pub use virtual_log::NodeBackend;

/// The longest request that is accepted: an append message of the maximum size, with its framing.
const MAX_REQUEST_BYTES: usize = atoll_client::MAX_MESSAGE_BYTES + 256 * 1024;
/// The limit for services whose requests contain only names and options.
const MAX_SMALL_REQUEST_BYTES: usize = 64 * 1024;
/// The limit for tables: a transaction of the maximum size, with room for names.
const MAX_TABLE_REQUEST_BYTES: usize = 2 * 1024 * 1024;

/// Why the gRPC door could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The compiled API definitions are damaged.
    #[error("gRPC reflection: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// The state that all services share.
#[derive(Clone)]
struct Shared {
    backend: Arc<dyn Backend>,
    limits: Arc<Limits>,
    /// Becomes true when the node is stopping.
    stopping: watch::Receiver<bool>,
}

/// Serves the public API until `stop` completes. Then appends in progress are still answered, and streams end with the reason "stopping",
/// so that their clients continue at another node.
pub async fn serve_grpc(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    tls: Option<DoorTls>,
    limits: Limits,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let (stop_now, stopping) = watch::channel(false);
    let limits = Arc::new(limits);
    let shared = Shared { backend, limits: limits.clone(), stopping: stopping.clone() };
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    let small = MAX_SMALL_REQUEST_BYTES;
    let routes = Routes::new(
        LogServiceServer::new(log_service::Door::new(shared.clone()))
            .max_decoding_message_size(MAX_REQUEST_BYTES),
    )
    .add_service(
        ChainServiceServer::new(chain_service::Door::new(shared.clone())).max_decoding_message_size(small),
    )
    .add_service(
        ClusterServiceServer::new(cluster_service::Door::new(shared.clone()))
            .max_decoding_message_size(small),
    )
    .add_service(
        DatabaseServiceServer::new(database_service::Door::new(shared.clone()))
            .max_decoding_message_size(small),
    )
    .add_service(
        TableServiceServer::new(tables::Door::new(shared)).max_decoding_message_size(MAX_TABLE_REQUEST_BYTES),
    )
    .add_service(reflection)
    .prepare();
    let serving = grpc::serve(listener, routes, tls, limits, stopping);
    tokio::pin!(serving, stop);
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = &mut stop => {}
    }
    stop_now.send_replace(true);
    serving.await;
    Ok(())
}
