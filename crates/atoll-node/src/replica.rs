//! The replica of the database on this node: where it is stored, whether it is open, and whether it is in service.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use atoll_core::NodeId;
use atoll_core::testing::mutant;
use atoll_db::{Database, Shelf};
use atoll_door::DATABASE_LOG;

use crate::members::{ApplyDelay, Members};
use crate::mutants;
use crate::space_alarm::SpaceAlarm;

/// Where the state of the database is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseState {
    /// In the data directory. It may be larger than memory.
    OnDisk {
        /// The size of the read cache in bytes, in addition to the kernel's page cache.
        cache_bytes: u64,
    },
    /// In memory. Every start replays the log, or fetches the state from a peer. This node does not trim the log: if all nodes keep their
    /// state in memory and stop, only the log still has it.
    InMemory,
}

impl Default for DatabaseState {
    fn default() -> Self {
        DatabaseState::OnDisk { cache_bytes: 128 << 20 }
    }
}

/// The database of a node, once it is open.
#[derive(Clone, Debug, Default)]
pub struct DatabaseCell {
    open: Arc<OnceLock<Database>>,
    /// Where the server role that answers peers finds the replica.
    pub shelf: Shelf,
    /// Whether the disk has room for more data.
    pub space_alarm: SpaceAlarm,
}

impl DatabaseCell {
    /// Returns the database, if it is open.
    pub fn get(&self) -> Option<&Database> {
        self.open.get()
    }

    /// Sets the database after it was opened. Only the first call has an effect.
    pub fn set(&self, database: Database) {
        // There is no second call, because the store refuses to be opened twice.
        let _ = self.open.set(database);
    }

    /// Returns the function that tells for how long entries wait at the replica. It does not keep the database open: the database refers to
    /// the members, and they to this function.
    pub fn apply_delay(&self) -> ApplyDelay {
        let open = Arc::downgrade(&self.open);
        Arc::new(move |now| {
            let cell = open.upgrade();
            let database = cell.as_ref().and_then(|cell| cell.get());
            database.map_or(Duration::ZERO, |database| database.apply_delay(now))
        })
    }
}

/// Returns the function with which the database makes this node's heartbeats report whether its replica is out of service.
pub fn report_to_members(members: &Members) -> Arc<dyn Fn(bool) + Send + Sync> {
    let members = members.clone();
    Arc::new(move |out| members.set_halted(DATABASE_LOG, out))
}

/// Whether a node's replica of the database is in service, according to the node's own reports. A node can be up while its replica is out
/// of service (X26).
pub fn is_in_service(members: &Members, node: NodeId) -> bool {
    mutant(mutants::ZK_HALTED_KEEPS_SESSIONS)
        || !members.halted_on(node).iter().any(|log| log == DATABASE_LOG)
}
