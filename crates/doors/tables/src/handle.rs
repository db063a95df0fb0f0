//! The tables of a node, for the service and for background work.

use std::sync::{Arc, OnceLock};

use atoll_client::{Reason, proto};
use atoll_db::{BarrierError, Engine, View};
use atoll_door::NodeView;
use atoll_door::backend::Refusal;
use atoll_tables::{Tables, read};
use tokio::sync::{Notify, Semaphore};

use crate::convert;

/// The maximum number of concurrent scans. Each of them keeps the state that it shows.
const MAX_SCANS: usize = 64;
/// The maximum number of concurrent reads. Each occupies a thread and holds in memory what it has read.
pub(crate) const MAX_READS: usize = 16;

/// The tables of a node. Clones are cheap.
#[derive(Clone)]
pub(crate) struct TablesHandle {
    /// The engine that proposes commands and provides views.
    pub(crate) engine: Engine<Tables>,
    pub(crate) node: Arc<dyn NodeView>,
    /// Notified when a request leaves background work behind.
    pub(crate) kick: Arc<Notify>,
    pub(crate) scans: Arc<Semaphore>,
    pub(crate) reads: Arc<Semaphore>,
}

impl TablesHandle {
    /// Returns a view to read: after a barrier, or with `stale`, the current one of this node.
    pub(crate) async fn view(&self, stale: bool) -> Result<View, Refusal> {
        if !stale {
            let failed = |e: BarrierError| {
                Refusal::no(
                    Reason::Unavailable,
                    e.to_string(),
                    "`atoll status` shows whether enough servers are up",
                )
            };
            self.engine.barrier().await.map_err(|_| Refusal::stopping())?.map_err(failed)?;
        }
        Ok(self.engine.view())
    }

    /// Returns the definition of a table, after a barrier.
    pub(crate) async fn schema(&self, name: String) -> Result<proto::TableReply, Refusal> {
        let view = self.view(false).await?;
        let read = move || read::schema(&view, &name).map_err(|e| convert::read_refusal(&e));
        let schema = aside(&self.reads, read).await?;
        Ok(proto::TableReply { table: Some(convert::table(&schema)) })
    }

    pub(crate) fn new(engine: Engine<Tables>, node: Arc<dyn NodeView>) -> Self {
        let (scans, reads) = (Arc::new(Semaphore::new(MAX_SCANS)), Arc::new(Semaphore::new(MAX_READS)));
        TablesHandle { engine, node, kick: Arc::default(), scans, reads }
    }
}

/// Holds the tables of a node once the database is open.
#[derive(Clone, Default)]
pub(crate) struct TablesCell(Arc<OnceLock<TablesHandle>>);

impl TablesCell {
    /// Returns the tables, if they are open.
    pub(crate) fn get(&self) -> Option<&TablesHandle> {
        self.0.get()
    }

    /// Sets the tables after the database was opened. Only the first call has an effect.
    pub(crate) fn set(&self, tables: TablesHandle) {
        // A node opens its database only once, so the cell is empty.
        let _ = self.0.set(tables);
    }
}

/// Runs work that may read the disk on a blocking thread (X20). `reads` limits the number of such threads, because more of them would use
/// memory without making the disk faster.
pub(crate) async fn aside<T: Send + 'static>(
    reads: &Arc<Semaphore>,
    f: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let turn = reads.clone().acquire_owned().await.map_err(|_| Refusal::stopping())?;
    let in_turn = move || {
        let _turn = turn;
        f()
    };
    tokio::task::spawn_blocking(in_turn).await.unwrap_or_else(|_| Err(Refusal::stopping()))
}
