//! The door of CORFU's own interface (`atoll-client/proto/atoll/corfu/v1/corfu.proto`): single positions of logs. It serves the logs of
//! every kind that has operations on single positions.
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | adds the service to the gRPC listener |
//! | `service.rs` | the gRPC service |
//! | `convert.rs` | converts messages to the terms of the contract and back; checks requests |

mod convert;
mod service;

use atoll_client::corfu_proto::corfu_service_server::CorfuServiceServer;
use atoll_door::Door;
use atoll_door::grpc::Services;

use service::CorfuApi;

/// The longest request that is accepted: an append of the longest entry.
const MAX_REQUEST_BYTES: usize = 1024 * 1024 + 4096;

/// Serves single positions of the logs of the node.
#[derive(Debug, Default)]
pub struct CorfuDoor;

impl Door for CorfuDoor {
    fn name(&self) -> &'static str {
        "positions"
    }

    fn services(&mut self, services: &mut Services) {
        let api = CorfuApi::new(services.shared());
        services.add(CorfuServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES));
    }
}
