//! The door of logs (`atoll-client/proto/atoll/v1/log.proto`): gRPC services that use and reconfigure them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `log_service.rs` | create, list, append, check tail, trim |
//! | `append_stream.rs` | the streaming append: the hot path |
//! | `read.rs` | the streaming read |
//! | `chain_service.rs` | shows and reconfigures chains |
//! | `names.rs` | opens logs by name, and protects the log of the database |
//! | `policy_service.rs` | declares and shows the policies of logs |
//! | `records.rs` | checks and converts what requests contain |

mod append_stream;
mod chain_service;
mod log_service;
mod names;
mod policy_service;
mod read;
mod records;

use atoll_client::proto::chain_service_server::ChainServiceServer;
use atoll_client::proto::log_service_server::LogServiceServer;
use atoll_client::proto::policy_service_server::PolicyServiceServer;
use atoll_door::Door;
use atoll_door::grpc::{MAX_SMALL_REQUEST_BYTES, Services};

use chain_service::ChainApi;
use log_service::LogApi;
use policy_service::PolicyApi;

/// The longest request that is accepted: an append message of the maximum size, with its framing.
const MAX_REQUEST_BYTES: usize = atoll_client::MAX_MESSAGE_BYTES + 256 * 1024;

/// Serves the logs of the node. It needs no database.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogDoor;

impl Door for LogDoor {
    fn name(&self) -> &'static str {
        "log"
    }

    fn services(&mut self, services: &mut Services) {
        let (log, chain) = (LogApi::new(services.shared()), ChainApi::new(services.shared()));
        services.add(LogServiceServer::new(log).max_decoding_message_size(MAX_REQUEST_BYTES));
        services.add(ChainServiceServer::new(chain).max_decoding_message_size(MAX_SMALL_REQUEST_BYTES));
        let policy = PolicyApi::new(services.shared());
        services.add(PolicyServiceServer::new(policy).max_decoding_message_size(MAX_SMALL_REQUEST_BYTES));
    }
}
