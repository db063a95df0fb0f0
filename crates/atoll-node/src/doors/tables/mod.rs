//! The door of tables (`atoll-client/proto/atoll/v1/table.proto`) on the database of the node.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | adds the application to the database, and does its background work |
//! | `service.rs` | the gRPC service |
//! | `scan.rs` | streams ranges of rows |
//! | `convert.rs` | converts messages to commands and back |

mod convert;
mod scan;
mod service;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::BoxFuture;
use atoll_core::codec::Encode;
use atoll_db::{Applications, Engine, Slot};
use atoll_tables::{Body, Command, Pending, Tables, pending};
use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};

pub(super) use service::Door;

use crate::database::{DatabaseDoor, DatabaseUp, Serving};
use crate::space::Space;
use crate::start::StartError;

/// How often a node checks whether background work has stalled. The node that received the request does the work at once, so this interval
/// matters only if that node is gone.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of rows in one step of background work. Other commands are applied between two steps.
const STEP_ROWS: u32 = 128;
/// The maximum number of concurrent scans. Each of them keeps the state that it shows.
const MAX_SCANS: usize = 64;

/// The tables of a node, for its doors. Clones are cheap.
#[derive(Clone, Debug)]
pub struct TablesHandle {
    /// The engine that proposes commands and provides views.
    pub engine: Engine<Tables>,
    space: Space,
    kick: Arc<Notify>,
    scans: Arc<Semaphore>,
}

/// Holds the tables of a node once the database is open.
#[derive(Clone, Debug, Default)]
pub struct TablesCell(Arc<OnceLock<TablesHandle>>);

impl TablesCell {
    /// Returns the tables, if they are open.
    pub fn get(&self) -> Option<&TablesHandle> {
        self.0.get()
    }
}

/// Adds the tables to the database. The gRPC door, which is already open, serves them.
#[derive(Debug, Default)]
pub struct TablesDoor {
    slot: Option<Slot<Tables>>,
}

impl DatabaseDoor for TablesDoor {
    fn add(&mut self, apps: &mut Applications) {
        self.slot = Some(apps.add(Tables::default()));
    }

    fn open(self: Box<Self>, up: DatabaseUp) -> BoxFuture<'static, Result<Serving, StartError>> {
        Box::pin(async move {
            let Some(slot) = &self.slot else { return Ok(Box::pin(async {}) as Serving) };
            let space = up.parts.database.space.clone();
            let handle = TablesHandle::new(up.database.engine(slot), space);
            // A node opens its database only once, so the cell is empty.
            let _ = up.parts.tables.0.set(handle.clone());
            let mut stopping = up.stopping;
            Ok(Box::pin(async move {
                tokio::select! {
                    () = handle.keep_up() => {}
                    // An error means that the node was dropped.
                    _ = stopping.wait_for(|stop| *stop) => {}
                }
            }) as Serving)
        })
    }
}

impl TablesHandle {
    fn new(engine: Engine<Tables>, space: Space) -> Self {
        TablesHandle { engine, space, kick: Arc::default(), scans: Arc::new(Semaphore::new(MAX_SCANS)) }
    }

    /// Does background work that was requested at this node, or that makes no progress at other nodes.
    async fn keep_up(&self) {
        let mut last: Vec<Pending> = Vec::new();
        loop {
            let asked = tokio::time::timeout(LOOK_EVERY, self.kick.notified()).await.is_ok();
            let Ok(waiting) = pending(&self.engine.view()) else { continue };
            if waiting.is_empty() || !(asked || waiting.iter().any(|one| last.contains(one))) {
                last = waiting;
                continue;
            }
            if let Err(error) = self.work().await {
                tracing::warn!(error = %error.failure, "tables: work in the background waits");
            }
            last.clear();
        }
    }

    /// Proposes steps until no background work is pending.
    async fn work(&self) -> Result<(), super::Refusal> {
        // The work of the last step, and the key where the next step continues.
        let mut came: Option<(u32, u16, Bytes)> = None;
        loop {
            let waiting = pending(&self.engine.view()).map_err(|e| convert::store_refusal(&e))?;
            let Some(Pending { table, index, mut from }) = waiting.into_iter().next() else { return Ok(()) };
            if let Some((of, at, to)) = came.take().filter(|_| from.is_empty())
                && (of, at) == (table, index)
            {
                from = to;
            }
            let body = Body::Step { table, index, from, rows: STEP_ROWS };
            let command = Command { client: 0, seq: 0, body };
            let done = service::propose(&self.engine, command.to_bytes()).await?;
            let to = done.read.and_then(|read| read.into_iter().flatten().next());
            came = to.map(|to| (table, index, to));
        }
    }
}
