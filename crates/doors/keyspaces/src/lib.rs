//! The door of keyspaces (`atoll-client/proto/atoll/keyspace/v1/keyspace.proto`).
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | adds the service to the gRPC listener |
//! | `service.rs` | the gRPC service |
//! | `operations.rs` | the stream of operations on single keys: the hot path |
//! | `keys.rs` | streams the keys of a keyspace |
//! | `watch.rs` | streams the changes of a key |
//! | `convert.rs` | converts messages to the terms of the contract and back; checks the limits of requests |

mod convert;
mod keys;
mod operations;
mod service;
mod watch;

use atoll_client::keyspace_proto::keyspace_service_server::KeyspaceServiceServer;
use atoll_door::Door;
use atoll_door::grpc::Services;

use service::KeyspaceApi;

/// The longest request that is accepted. A read of many long keys is the longest.
const MAX_REQUEST_BYTES: usize = 512 * 1024;

/// Serves the keyspaces of the node.
#[derive(Debug, Default)]
pub struct KeyspacesDoor;

impl Door for KeyspacesDoor {
    fn name(&self) -> &'static str {
        "keyspaces"
    }

    fn services(&mut self, services: &mut Services) {
        let api = KeyspaceApi::new(services.shared());
        services.add(KeyspaceServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES));
    }
}
