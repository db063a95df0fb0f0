//! Opens the database of a node: its log, its store in the data directory, and the applications of its doors.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_db::{
    Applications, Bound, Checked, Cluster, Database, FjallStore, Health, HearClocks, MemoryStore, OpenError,
    Owner, OwnerError, ReadReplicas, ReplicaParts, Store, StoreError, Threads,
};
use atoll_door::Door;

use crate::assembly::NodeParts;
use crate::config::NodeConfig;

pub use crate::replica::{DatabaseCell, DatabaseState, is_in_service, report_to_members};
pub use atoll_door::DATABASE_LOG as LOG;

/// The folder of its store in the data directory.
pub(crate) const FOLDER: &str = "database";
/// A file next to that folder. It records the owner that the store has declared.
const BOUND: &str = "database.owner";
/// How often this node checks for events of the database that it should log.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// How long a stopping node waits until everything applied is committed. The next start replays the rest.
const CLOSE_WITHIN: Duration = Duration::from_secs(10);

/// Returns the time of the system's clock in milliseconds since the Unix epoch.
pub(crate) fn wall_clock_ms() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)
}

/// Opens the store in a data directory. It must belong to this owner.
pub(crate) fn open_store(
    state: &DatabaseState,
    data: &Path,
    owner: &Owner,
) -> Result<Box<dyn Store>, OwnerError> {
    Ok(match state {
        DatabaseState::OnDisk { cache_bytes } => {
            let mut store = FjallStore::open(&data.join(FOLDER), *cache_bytes)?;
            bind(&mut store, data, owner)?;
            Box::new(store)
        }
        DatabaseState::InMemory => Box::new(MemoryStore::volatile()),
    })
}

/// Makes this node the owner of the store, or verifies that it is. The file next to the folder records that the store has declared this
/// owner. From then on, a store that declares no owner is a different store, or an older copy of the folder.
fn bind(store: &mut FjallStore, data: &Path, owner: &Owner) -> Result<(), OwnerError> {
    let failed = |error: std::io::Error| StoreError::lasting("was bound to its node", error.to_string());
    let (note, text) = (data.join(BOUND), format!("{owner}\n"));
    let was_bound = match std::fs::read(&note) {
        Ok(noted) => noted == text.as_bytes(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
        Err(error) => return Err(failed(error).into()),
    };
    match store.bind(owner, was_bound)? {
        Bound::Same => {}
        Bound::New if was_bound => {
            tracing::warn!(
                "the folder `{FOLDER}` is empty or gone: the state comes from the log and the peers"
            );
        }
        Bound::New => {}
        Bound::Adopted => {
            tracing::info!("the folder `{FOLDER}` named no owner; this node has claimed it")
        }
    }
    if !was_bound {
        let aside = data.join(format!("{BOUND}.new"));
        let mut file = std::fs::File::create(&aside).map_err(failed)?;
        file.write_all(text.as_bytes()).map_err(failed)?;
        file.sync_all().map_err(failed)?;
        std::fs::rename(&aside, &note).map_err(failed)?;
        std::fs::File::open(data).and_then(|folder| folder.sync_all()).map_err(failed)?;
    }
    Ok(())
}

fn options(config: &NodeConfig) -> atoll_db::Options {
    let mut options = config.database_options.clone();
    if config.database == DatabaseState::InMemory {
        options.keep_entries = u64::MAX;
    }
    options
}

/// Returns the function that provides the clock readings which the other nodes report in heartbeats.
pub fn hear_clocks(parts: &NodeParts) -> HearClocks {
    let (env, members) = (parts.env.clone(), parts.members.clone());
    Arc::new(move || members.peer_clocks(env.now()))
}

/// Returns the function that reads the table of members in its register.
pub fn read_replicas(parts: &NodeParts) -> ReadReplicas {
    let changes = parts.changes.clone();
    Arc::new(move || {
        let changes = changes.clone();
        Box::pin(async move {
            let table = changes.refresh().await.map_err(|error| error.to_string())?;
            let replicas = table.nodes.iter().filter(|(_, m)| Cluster::may_have_replica(m.meta, m.sequencer));
            Ok(replicas.map(|(node, _)| *node).collect())
        })
    })
}

/// Opens the database with the applications of these doors. None on a node that keeps no replica, or whose doors have no applications.
///
/// # Errors
/// The store cannot be opened, or threads cannot be started.
pub(crate) fn open(
    config: &NodeConfig,
    parts: &NodeParts,
    doors: &mut [Box<dyn Door>],
) -> Result<Option<Database>, OpenError> {
    if !config.replica {
        return Ok(None);
    }
    let mut apps = Applications::new();
    for door in doors {
        door.applications(&mut apps);
    }
    if apps.is_empty() {
        return Ok(None);
    }
    let owner = Owner {
        cluster: config.cluster.clone(),
        node: config.node,
        storage: parts.identity().storage,
        log: LOG.to_owned(),
    };
    let log = parts.logs.open(LOG).expect("a name that logs may have");
    let replica_parts = ReplicaParts {
        env: parts.env.clone(),
        log,
        store: open_store(&config.database, &config.data, &owner)?,
        clock: Arc::new(wall_clock_ms),
        cluster: Some(Cluster {
            directory: Arc::new(parts.members.clone()),
            shelf: parts.database.shelf.clone(),
            out_of_service: report_to_members(&parts.members),
            clocks: hear_clocks(parts),
            replicas: read_replicas(parts),
        }),
        threads: Threads::Own,
        options: options(config),
    };
    let database = Database::open(apps, replica_parts)?;
    parts.database.set(database.clone());
    parts.members.say_apply_delay(parts.database.apply_delay());
    Ok(Some(database))
}

/// Logs the events of the database that an operator should know. Runs forever.
pub(crate) async fn watch(database: Database) {
    // Clear the result of the start check, so that it is logged even if the check has already ended.
    let mut before = Health { checked: None, ..database.health() };
    loop {
        tokio::time::sleep(WATCH_EVERY).await;
        let now = database.health();
        if let Some(halt) = now.halted.as_ref().filter(|_| before.halted.is_none()) {
            tracing::error!(%halt, "the database has stopped applying entries on this node; local reads continue");
        }
        match (&before.store_trouble, &now.store_trouble) {
            (None, Some(error)) => {
                tracing::warn!(%error, "an operation of the database's store failed; trying again")
            }
            (Some(_), None) => tracing::info!("the store of the database works again"),
            _ => {}
        }
        match (&before.out_of_service, &now.out_of_service) {
            (None, Some(why)) => {
                tracing::error!(%why, "the replica of this node is out of service; other nodes take over its sessions")
            }
            (Some(_), None) => tracing::info!("the replica of this node is in service again"),
            _ => {}
        }
        let new = usize::try_from(now.found_total - before.found_total).unwrap_or(usize::MAX);
        for finding in now.found.iter().skip(now.found.len().saturating_sub(new)) {
            tracing::error!(%finding, "the database of this node or of another one is wrong");
        }
        match (&before.checked, &now.checked) {
            (None, Some(Checked::Unanswered)) => tracing::warn!(
                "the replica serves a state that was not compared, because no peer sent its hash in time"
            ),
            (None, Some(checked)) => tracing::info!(%checked, "the state was compared after the start"),
            _ => {}
        }
        if now.withheld.is_some() && before.withheld.is_none() {
            tracing::error!(
                "the state of this replica is wrong; it serves nobody until a peer has refilled it"
            );
        }
        match (&before.refilling, &now.refilling) {
            (_, Some(r)) => {
                tracing::info!(peer = %r.from, keys = r.keys, bytes = r.bytes, "the replica is being refilled by a peer");
            }
            (Some(_), None) => tracing::info!(below = %now.applied_below, "the replica was refilled"),
            (None, None) => {}
        }
        if let Some(trouble) = now.trouble.as_ref().filter(|t| before.trouble.as_ref() != Some(t)) {
            tracing::warn!(trouble, "the database cannot read its log at the moment");
        }
        before = now;
    }
}

/// Commits what has been applied, as far as possible within [`CLOSE_WITHIN`].
pub(crate) async fn close(parts: &NodeParts) {
    let Some(database) = parts.database.get() else { return };
    if tokio::time::timeout(CLOSE_WITHIN, database.close()).await.is_err() {
        tracing::warn!("the database was not committed in time; the next start replays more of its log");
    }
}
