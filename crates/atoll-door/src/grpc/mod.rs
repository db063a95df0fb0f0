//! The gRPC listener, which all doors share: its connections, and the limits that apply to each request before a service handles it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `services.rs` | the services that doors add, and what they all share |
//! | `serving.rs` | accepts connections, TLS, HTTP/2 |
//! | `connections.rs` | tracks connections, and closes idle ones to make room |
//! | `gate.rs` | decides which calls are admitted |
//! | `requests.rs` | asks the gate; limits requests in progress, and messages that are being received |
//! | `answer.rs` | room for large answers |
//! | `limits.rs`, `budget.rs` | counts and limits what all clients share |
//! | `tls.rs` | certificates |

mod answer;
mod budget;
mod connections;
mod gate;
mod limits;
mod requests;
mod services;
mod serving;
mod tls;

use std::future::Future;

use atoll_client::proto;
use tokio::net::TcpListener;

pub use answer::AnswerRoom;
pub use budget::{Budget, Share};
pub use connections::{Connection, Rest, connection_of};
pub use gate::{Authorisation, Caller, Gate, caller_of};
pub use limits::{Limits, MAX_CONNECTIONS};
pub use services::{MAX_SMALL_REQUEST_BYTES, Services, Shared};
pub use tls::{Certificates, DoorTls, DoorTlsError, DoorTlsFiles};

/// Why the gRPC listener could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The compiled API definitions are damaged.
    #[error("gRPC reflection: {0}")]
    Reflection(#[source] tonic_reflection::server::Error),
}

/// Serves these services until `stop` completes. Then appends in progress are still answered, and streams end with the reason "stopping",
/// so that their clients continue at another node.
pub async fn serve_grpc(
    listener: TcpListener,
    mut services: Services,
    tls: Option<DoorTls>,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .map_err(ServeError::Reflection)?;
    services.add(reflection);
    let (routes, shared, stop_now) = services.into_parts();
    let serving = serving::serve(listener, routes, tls, shared);
    tokio::pin!(serving, stop);
    tokio::select! {
        () = &mut serving => return Ok(()),
        () = &mut stop => {}
    }
    stop_now.send_replace(true);
    serving.await;
    Ok(())
}
