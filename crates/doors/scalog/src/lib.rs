//! The door of Scalog's own interface (`atoll-client/proto/atoll/scalog/v1/scalog.proto`): shards of logs. It serves the logs of every kind
//! that keeps its records in shards.
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | adds the service to the gRPC listener |
//! | `service.rs` | the gRPC service |
//! | `append.rs` | appends, to a shard that the caller or a policy chooses |
//! | `subscribe.rs` | the stream of records, which a subscriber may stop reading |
//! | `convert.rs` | converts messages to the terms of the contract and back; checks requests |

mod append;
mod convert;
mod service;
mod subscribe;

use atoll_client::scalog_proto::scalog_service_server::ScalogServiceServer;
use atoll_door::Door;
use atoll_door::grpc::Services;

use service::ScalogApi;

/// The longest request that is accepted: an append of the longest record.
const MAX_REQUEST_BYTES: usize = 1024 * 1024 + 4096;

/// Serves the shards of the logs of the node.
#[derive(Debug, Default)]
pub struct ScalogDoor;

impl Door for ScalogDoor {
    fn name(&self) -> &'static str {
        "shards"
    }

    fn services(&mut self, services: &mut Services) {
        let api = ScalogApi::new(services.shared());
        services.add(ScalogServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES));
    }
}
