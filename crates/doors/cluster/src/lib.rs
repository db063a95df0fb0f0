//! The door for operators: gRPC services that show and change the cluster, and show the replica of the database on this node.
//!
//! | file | what it is |
//! | --- | --- |
//! | `backup_service.rs` | the backup of the database |
//! | `cluster_service.rs` | status, membership and feature levels |
//! | `database_service.rs` | the replica of this node |

mod backup_service;
mod cluster_service;
mod database_service;

use atoll_client::proto::backup_service_server::BackupServiceServer;
use atoll_client::proto::cluster_service_server::ClusterServiceServer;
use atoll_client::proto::database_service_server::DatabaseServiceServer;
use atoll_door::Door;
use atoll_door::grpc::{MAX_SMALL_REQUEST_BYTES, Services};

use backup_service::BackupApi;
use cluster_service::ClusterApi;
use database_service::DatabaseApi;

/// Serves operators. It needs no database: a node without one says so.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClusterDoor;

impl Door for ClusterDoor {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn services(&mut self, services: &mut Services) {
        let small = MAX_SMALL_REQUEST_BYTES;
        let (cluster, database) = (ClusterApi::new(services.shared()), DatabaseApi::new(services.shared()));
        let backup = BackupApi::new(services.shared());
        services.add(BackupServiceServer::new(backup).max_decoding_message_size(small));
        services.add(ClusterServiceServer::new(cluster).max_decoding_message_size(small));
        services.add(DatabaseServiceServer::new(database).max_decoding_message_size(small));
    }
}
