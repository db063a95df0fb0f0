//! The door of grants and tokens (`atoll-client/proto/atoll/v1/auth.proto`), on the database of the node. It also tells the gate of the
//! listener what is granted.
//!
//! | file | what it is |
//! | --- | --- |
//! | `lib.rs` | adds the application to the database, and the service to the gRPC listener |
//! | `service.rs` | the gRPC service |
//! | `follow.rs` | reads the grants and tokens whenever they have changed |

mod follow;
mod service;

use std::sync::{Arc, OnceLock};

use atoll_auth::Auth;
use atoll_client::proto::auth_service_server::AuthServiceServer;
use atoll_core::BoxFuture;
use atoll_db::{Applications, Engine, Slot};
use atoll_door::grpc::{MAX_SMALL_REQUEST_BYTES, Services};
use atoll_door::{Door, DoorError, DoorUp, Gate, Serving, nothing};

use service::AuthApi;

/// The engine of the application, once it is open.
type Cell = Arc<OnceLock<Engine<Auth>>>;

/// Serves grants and tokens. The service already answers while the database opens, and on a node that keeps no replica: it says that the
/// node has none.
#[derive(Default)]
pub struct AuthDoor {
    slot: Option<Slot<Auth>>,
    engine: Cell,
    gate: Option<Arc<Gate>>,
}

impl Door for AuthDoor {
    fn name(&self) -> &'static str {
        "auth"
    }

    fn services(&mut self, services: &mut Services) {
        let shared = services.shared();
        self.gate = Some(shared.gate.clone());
        let api = AuthApi::new(shared.gate, self.engine.clone());
        services.add(AuthServiceServer::new(api).max_decoding_message_size(MAX_SMALL_REQUEST_BYTES));
    }

    fn applications(&mut self, apps: &mut Applications) {
        self.slot = Some(apps.add(Auth));
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async move {
            let (Some(slot), Some(database)) = (&self.slot, &up.database) else { return Ok(nothing()) };
            let Some(gate) = self.gate else { return Ok(nothing()) };
            let engine = database.engine(slot);
            // The cell is empty, because this is the only call.
            let _ = self.engine.set(engine.clone());
            let stopped = up.stopped();
            Ok(Box::pin(async move {
                tokio::select! {
                    () = follow::follow(&engine, &gate) => {}
                    () = stopped => {}
                }
            }) as Serving)
        })
    }
}
