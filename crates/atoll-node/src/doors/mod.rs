//! The doors of a node: the public gRPC API (`atoll-client/proto/atoll/v1/`), the metrics endpoint, ZooKeeper's wire.
//!
//! They run on the node thread's tokio runtime, over listeners that the caller opened. A door checks limits, hands work in
//! and awaits the outcome; it never runs a procedure itself, because a handler is dropped when its client goes away, and a
//! reconfiguration would stop between seal and install (contracts X8).
//!
//! | file | what it is |
//! | --- | --- |
//! | `backend.rs` | what a door needs of the node, as traits |
//! | `virtual_log.rs` | those traits over the node's virtual logs |
//! | `log_service.rs` | create, list, append, check tail, trim |
//! | `append_stream.rs` | the streaming append: the hot path |
//! | `read.rs` | the streaming read |
//! | `chain_service.rs`, `cluster_service.rs` | reconfiguration, status, membership |
//! | `database_service.rs` | the replica of this node |
//! | `tables/` | tables, on the database |
//! | `metrics.rs` | `GET /metrics` |
//! | `zookeeper.rs` | the door of ZooKeeper's clients, on the database |

mod append_stream;
pub mod backend;
mod chain_service;
mod cluster_service;
mod database_service;
mod log_service;
pub mod metrics;
mod read;
pub mod tables;
mod virtual_log;
pub mod zookeeper;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::proto;
use atoll_client::proto::chain_service_server::ChainServiceServer;
use atoll_client::proto::cluster_service_server::ClusterServiceServer;
use atoll_client::proto::database_service_server::DatabaseServiceServer;
use atoll_client::proto::log_service_server::LogServiceServer;
use atoll_client::proto::table_service_server::TableServiceServer;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Server, ServerTlsConfig};

pub use backend::{Backend, LogBackend, LogRecords, Operations, ReadRecords, Refusal, Submitted};
pub use virtual_log::NodeBackend;

/// Flow-control windows: larger than what a stream may have unanswered, so that they never stop one.
const STREAM_WINDOW_BYTES: u32 = 8 * 1024 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Longest HTTP/2 frame that is taken.
const MAX_FRAME_BYTES: u32 = 1024 * 1024;
/// Longest message that is taken: an append message at its limit, with its framing.
const MAX_REQUEST_BYTES: usize = atoll_client::MAX_MESSAGE_BYTES + 256 * 1024;
/// A client that does not answer a ping is gone; its streams are closed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// After the stop, connections have this long to finish what is under way.
const GRACE: Duration = Duration::from_secs(5);

/// A door that could not serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The TLS settings do not go together.
    #[error("TLS of the gRPC door: {0}")]
    Tls(#[source] tonic::transport::Error),
    /// The compiled API definitions are damaged.
    #[error("gRPC reflection: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// Accepting connections failed.
    #[error("gRPC door: {0}")]
    Transport(#[source] tonic::transport::Error),
}

/// What all services share.
#[derive(Clone)]
struct Shared {
    backend: Arc<dyn Backend>,
    /// True once the node is stopping.
    stopping: watch::Receiver<bool>,
}

/// Serves the public API until `stop` is done: then appends under way are answered, streams end with the reason "stopping",
/// and clients go on elsewhere.
pub async fn serve_grpc(
    listener: TcpListener,
    backend: Arc<dyn Backend>,
    tls: Option<ServerTlsConfig>,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let (stop_now, stopping) = watch::channel(false);
    let shared = Shared { backend, stopping };
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    let mut builder = Server::builder();
    if let Some(tls) = tls {
        builder = builder.tls_config(tls).map_err(ServeError::Tls)?;
    }
    let router = builder
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(MAX_FRAME_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT))
        .add_service(
            LogServiceServer::new(log_service::Door::new(shared.clone()))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(ChainServiceServer::new(chain_service::Door::new(shared.clone())))
        .add_service(ClusterServiceServer::new(cluster_service::Door::new(shared.clone())))
        .add_service(DatabaseServiceServer::new(database_service::Door::new(shared.clone())))
        .add_service(
            TableServiceServer::new(tables::Door::new(shared)).max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(reflection);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let mut stopped = stop_now.subscribe();
    let serving = router.serve_with_incoming_shutdown(incoming, async move {
        // The sender lives as long as this function.
        let _ = stopped.wait_for(|stop| *stop).await;
    });
    tokio::pin!(serving, stop);
    tokio::select! {
        result = &mut serving => return result.map_err(ServeError::Transport),
        () = &mut stop => {}
    }
    stop_now.send_replace(true);
    match tokio::time::timeout(GRACE, serving).await {
        Ok(result) => result.map_err(ServeError::Transport),
        // What is still open is cut off; its clients go on elsewhere.
        Err(_) => Ok(()),
    }
}
