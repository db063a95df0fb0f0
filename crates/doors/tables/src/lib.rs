//! The door of tables (`atoll-client/proto/atoll/v1/table.proto`) on the database of the node.
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | adds the application to the database, and the service to the gRPC listener |
//! | `service.rs` | the gRPC service |
//! | `write.rs` | transactions, and changes of tables |
//! | `answer.rs` | shows the rows that a transaction has read |
//! | `scan.rs` | streams ranges of rows |
//! | `convert.rs` | converts messages to commands and back |
//! | `propose.rs` | proposes commands |
//! | `background.rs` | background work |
//! | `handle.rs` | the tables of a node, once they are open |

mod answer;
mod background;
mod convert;
mod handle;
mod propose;
mod scan;
mod service;
mod write;

use atoll_client::proto::table_service_server::TableServiceServer;
use atoll_core::BoxFuture;
use atoll_core::testing::Mutant;
use atoll_db::{Applications, Slot};
use atoll_door::grpc::Services;
use atoll_door::{Door, DoorError, DoorUp, Serving, nothing};
use atoll_tables::Tables;

use background::keep_up;
use handle::{TablesCell, TablesHandle};
use service::TableApi;

/// The longest request that is accepted: a transaction of the maximum size, with room for names.
const MAX_REQUEST_BYTES: usize = 2 * 1024 * 1024;

/// Serves the tables. The service already answers while the database opens, and on a node that keeps no replica: it says that the node has
/// no tables.
#[derive(Default)]
pub struct TablesDoor {
    slot: Option<Slot<Tables>>,
    tables: TablesCell,
}

impl Door for TablesDoor {
    fn name(&self) -> &'static str {
        "tables"
    }

    fn mutants(&self) -> &'static [Mutant] {
        atoll_tables::mutants::ALL
    }

    fn services(&mut self, services: &mut Services) {
        let api = TableApi::new(services.shared(), self.tables.clone());
        services.add(TableServiceServer::new(api).max_decoding_message_size(MAX_REQUEST_BYTES));
    }

    fn applications(&mut self, apps: &mut Applications) {
        self.slot = Some(apps.add(Tables::default()));
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async move {
            let (Some(slot), Some(database)) = (&self.slot, &up.database) else { return Ok(nothing()) };
            let handle = TablesHandle::new(database.engine(slot), up.node.clone());
            self.tables.set(handle.clone());
            let stopped = up.stopped();
            Ok(Box::pin(async move {
                tokio::select! {
                    () = keep_up(&handle) => {}
                    () = stopped => {}
                }
            }) as Serving)
        })
    }
}
