//! What this node knows of the backup, and what the parts of this module share.

use std::sync::{Arc, Mutex, OnceLock};

use atoll_backup::{BackupError, End, Folder, SnapshotInfo, Store};
use atoll_contract::Register;
use atoll_core::sync::lock;
use atoll_core::{Env, Notify};
use atoll_db::{Clock, Database};
use atoll_door::DATABASE_LOG;
use atoll_log::VirtualLog;

use super::plan::BackupPlan;
use crate::members::Members;

/// The register with the plan. Its name begins like those that belong to one cluster and do not move to another one.
pub(crate) const REGISTER: &str = "cluster/backup/db";

/// The backup, as this node sees it. Clones share it.
#[derive(Clone)]
pub struct Backups(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) env: Env,
    /// The register with the plan.
    pub(super) register: Arc<dyn Register>,
    pub(super) members: Members,
    /// Set once the database is open.
    pub(super) replica: OnceLock<Replica>,
    /// The store of all places, if a host of the node has brought one.
    store: OnceLock<Arc<dyn Store>>,
    seen: Mutex<Seen>,
    /// The plan was changed through this node, or a snapshot is there.
    pub(super) changed: Notify,
}

/// What is backed up.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) cluster: String,
    pub(super) database: Database,
    pub(super) log: Arc<VirtualLog>,
    clock: Clock,
}

impl Replica {
    pub(super) fn new(cluster: String, database: Database, log: Arc<VirtualLog>, clock: Clock) -> Self {
        Replica { cluster, database, log, clock }
    }

    /// Returns the time, in milliseconds since the Unix epoch.
    pub(super) fn wall_ms(&self) -> u64 {
        (self.clock)()
    }
}

/// What this node knows of the backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) plan: Option<BackupPlan>,
    pub(super) end: Option<End>,
    pub(super) newest: Option<SnapshotInfo>,
    /// Whether this node ships.
    pub(super) ships: bool,
    /// Whether a snapshot is on its way from this node.
    pub(super) taking: bool,
    /// Why the backup makes no progress.
    pub(super) trouble: Option<String>,
    /// The recovery point, in milliseconds, when it was last looked at.
    pub(super) behind_ms: Option<u64>,
}

/// What metrics show of the backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackupFigures {
    /// All entries below are shipped.
    pub(crate) shipped_below: Option<u64>,
    /// The recovery point, in milliseconds.
    pub(crate) behind_ms: Option<u64>,
    /// Whether the backup makes no progress.
    pub(crate) failing: bool,
}

impl Backups {
    /// Creates it for a node.
    pub(crate) fn new(env: Env, register: Arc<dyn Register>, members: Members) -> Self {
        let (replica, store) = (OnceLock::new(), OnceLock::new());
        let (seen, changed) = (Mutex::default(), Notify::default());
        Backups(Arc::new(Shared { env, register, members, replica, store, seen, changed }))
    }

    /// Keeps the objects of all places in this store. For hosts of a node that bring their own, such as a simulator.
    pub fn keep_in(&self, store: Arc<dyn Store>) {
        // The first one stays: what is shipped must not be in two stores.
        let _ = self.0.store.set(store);
    }

    /// Returns the folder of the backup at a URL.
    pub(super) fn folder_at(&self, url: &str, cluster: &str) -> Result<Folder, BackupError> {
        match self.0.store.get() {
            Some(store) => Ok(Folder::with_store(store.clone(), "", cluster, DATABASE_LOG, self.nap())),
            None => Folder::at(url, cluster, DATABASE_LOG, self.nap()),
        }
    }

    /// Returns what metrics show. None if nothing is backed up.
    pub(crate) fn figures(&self) -> Option<BackupFigures> {
        let seen = self.seen();
        seen.plan.filter(|plan| plan.on)?;
        let shipped_below = seen.end.map(|end| end.to.0);
        Some(BackupFigures { shipped_below, behind_ms: seen.behind_ms, failing: seen.trouble.is_some() })
    }

    pub(super) fn seen(&self) -> Seen {
        lock(&self.0.seen).clone()
    }

    pub(super) fn see(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut lock(&self.0.seen));
    }

    /// Waits as a backup does between two requests.
    pub(super) fn nap(&self) -> atoll_backup::Nap {
        let env = self.0.env.clone();
        Arc::new(move |pause| {
            let env = env.clone();
            Box::pin(async move { env.sleep(env.jitter(pause)).await })
        })
    }
}
