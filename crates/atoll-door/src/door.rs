//! The trait of a door, and what an open node offers to a door.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::BoxFuture;
use atoll_core::testing::Mutant;
use atoll_db::{Applications, Database};
use tokio::sync::watch;

use crate::backend::Backend;
use crate::grpc::{Gate, Limits, Services};
use crate::listeners::{ListenError, Listeners};
use crate::metrics::Figures;
use crate::node_view::NodeView;

/// The future that serves an open door.
pub type Serving = BoxFuture<'static, ()>;

/// Why a door did not open.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// A listener was not opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Something else that only the door knows: its settings or its state cannot be used.
    #[error("{what}: {error}")]
    Own {
        /// What cannot be used.
        what: &'static str,
        /// Why.
        error: Box<dyn Error + Send + Sync>,
    },
}

/// What an open node offers to a door.
#[derive(Clone)]
pub struct DoorUp {
    /// The database, which provides the engines. None on a node that keeps no replica of it.
    pub database: Option<Database>,
    /// The node and its cluster.
    pub node: Arc<dyn NodeView>,
    /// Opens the listeners of the door.
    pub listeners: Listeners,
    /// How many connections the listeners of the door may have together. More could use up the files that the disk needs.
    pub connections: usize,
    /// Becomes true when the node is stopping.
    pub stopping: watch::Receiver<bool>,
}

impl DoorUp {
    /// Completes when the node is stopping.
    pub fn stopped(&self) -> impl Future<Output = ()> + Send + use<> {
        stopped(self.stopping.clone())
    }
}

/// Completes when `stopping` becomes true.
pub async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the node was dropped, so stop as well.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// A door as a plug-in: a crate of its own that joins a node through one line in the list of doors. Clients connect to it.
///
/// The node calls its methods in the order in which they are listed here. [`Door::open`] and all serving run on the threads of the doors if
/// the node has any, otherwise on the node's own thread. A door that only serves gRPC needs no listener. A door with a
/// protocol of its own opens its listeners in [`Door::open`]:
///
/// ```
/// use atoll_core::BoxFuture;
/// use atoll_door::{Clients, Door, DoorError, DoorUp, Serving};
/// use tokio::io::AsyncWriteExt;
///
/// /// Tells every client how many nodes serve the database.
/// struct CountDoor {
///     address: String,
/// }
///
/// impl Door for CountDoor {
///     fn name(&self) -> &'static str {
///         "count"
///     }
///
///     fn has_listeners(&self) -> bool {
///         true
///     }
///
///     fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
///         Box::pin(async move {
///             let listener = up.listeners.open("count", &self.address, Clients::Anybody).await?;
///             let stopped = up.stopped();
///             let serve = async move {
///                 while let Ok((mut socket, _)) = listener.accept().await {
///                     let count = up.node.serving().len();
///                     // An error only means that the client has disconnected.
///                     let _ = socket.write_all(format!("{count}\n").as_bytes()).await;
///                 }
///             };
///             Ok(Box::pin(async move {
///                 tokio::select! {
///                     () = serve => {}
///                     () = stopped => {}
///                 }
///             }) as Serving)
///         })
///     }
/// }
///
/// let doors: Vec<Box<dyn Door>> = vec![Box::new(CountDoor { address: "127.0.0.1:0".into() })];
/// assert_eq!(doors[0].name(), "count");
/// ```
///
/// A real door also limits its connections to [`DoorUp::connections`], and what each client may use.
pub trait Door: Send {
    /// Returns its name. No two doors of a node share one.
    fn name(&self) -> &'static str;

    /// Returns the known bugs that tests can switch on in it.
    fn mutants(&self) -> &'static [Mutant] {
        &[]
    }

    /// Whether it opens listeners for clients. It then gets a share of the open files of the process, see [`DoorUp::connections`].
    fn has_listeners(&self) -> bool {
        false
    }

    /// Adds its services to those of the gRPC listener, which already serves while the database opens.
    fn services(&mut self, _services: &mut Services) {}

    /// Returns the source of its own metrics, if it has any. `/metrics` already serves them while the database opens.
    fn figures(&self) -> Option<Arc<dyn Figures>> {
        None
    }

    /// Adds its applications to those of the database, and keeps their slots. Not called on a node that keeps no replica.
    fn applications(&mut self, _apps: &mut Applications) {}

    /// Proposes what its clients need after the last acknowledged writes of the cluster may have been lost. It is called after
    /// [`Door::applications`], by the rescue of a cluster, before any client is served. By default, nothing.
    fn after_rescue(&self, _database: &Database) -> BoxFuture<'static, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }

    /// Proposes what its clients need after the database was restored from a backup. For `age`, clients may have gone on behind the
    /// restored state. By default, the same as [`Door::after_rescue`].
    fn after_restore(&self, database: &Database, _age: Duration) -> BoxFuture<'static, Result<(), String>> {
        self.after_rescue(database)
    }

    /// Opens the door, after the database was opened. The returned future serves until the node is stopping.
    ///
    /// # Errors
    /// It cannot be opened. The node then does not start.
    fn open(self: Box<Self>, _up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async { Ok(nothing()) })
    }
}

/// Returns what serves a door that has nothing to do once it is open.
pub fn nothing() -> Serving {
    Box::pin(async {})
}

/// Collects the gRPC services of these doors.
pub fn services_of(
    doors: &mut [Box<dyn Door>],
    backend: Arc<dyn Backend>,
    limits: Limits,
    gate: Arc<Gate>,
) -> Services {
    let mut services = Services::new(backend, limits, gate);
    for door in doors {
        door.services(&mut services);
    }
    services
}
