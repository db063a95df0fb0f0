//! An operator who begins a backup, and one who restores it: to positions, to times and to its end. The restored state is compared with
//! the cells that the oracle of the database knows from what the replicas have applied, so no part of the backup vouches for another one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_backup::{Backup, BackupError, Folder, Moment, Nap, SnapshotInfo};
use atoll_client::proto;
use atoll_core::testing::hit;
use atoll_db::backup::committed_view;
use atoll_db::{Applications, LogPos, MemoryStore, Options};
use atoll_door::backend::BackupBackend;
use atoll_node::database::LOG;
use atoll_node::rescue::{Chosen, RestoreError, Restored, state_from_backup};
use atoll_object::testing::Memory;

use crate::oracle::database::DatabaseOracle;
use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::scenario::replicas::CLUSTER;
use crate::workload::database::{CELLS, Cells};
use crate::world::clients::Life;

/// A place that nobody contacts: the nodes keep their backup in the memory of the process.
const URL: &str = "s3://backups/reef";
/// How many moments are restored at the end, of each kind.
const MOMENTS: u64 = 6;

/// What the operator wants.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// How often entries are shipped.
    pub every: Duration,
    /// How often snapshots are.
    pub snapshots: Duration,
    /// For how long every moment can be restored. None: forever.
    pub keep: Option<Duration>,
    /// How many entries the log keeps for the backup.
    pub hold: u64,
}

/// See the module documentation. Clones share their state.
#[derive(Clone)]
pub struct Keeper {
    stage: Stage<NodeHandles>,
    oracle: DatabaseOracle,
    store: Memory,
    terms: Terms,
}

/// Whether a restore has found that objects were deleted meanwhile.
fn was_given_up(error: &RestoreError) -> bool {
    match error {
        RestoreError::Backup(BackupError::Missing(_)) => true,
        RestoreError::NoneBefore { damaged, error, .. } => was_given_up(damaged) && was_given_up(error),
        _ => false,
    }
}

/// What came of a restore.
type Made = Result<(Restored, BTreeMap<u64, u64>), RestoreError>;

impl Keeper {
    /// Returns the operators of a run.
    pub fn new(stage: Stage<NodeHandles>, oracle: DatabaseOracle, store: Memory, terms: Terms) -> Self {
        Keeper { stage, oracle, store, terms }
    }

    fn any(&self) -> Option<Life<NodeHandles>> {
        self.stage.cluster.any_from(self.stage.below(64) as usize % self.stage.cluster.hosts())
    }

    fn fail(&self, what: String) {
        self.stage.cluster.fail(format!("BACKUP: {what}"));
    }

    /// Begins the backup, through any node that can.
    pub async fn start(self) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let request = proto::StartBackupRequest {
            url: URL.to_owned(),
            every_ms: Some(ms(self.terms.every)),
            snapshot_every_ms: Some(ms(self.terms.snapshots)),
            keep_ms: Some(self.terms.keep.map_or(u64::MAX, ms)),
            hold_entries: Some(self.terms.hold),
        };
        loop {
            if let Some(life) = self.any() {
                let started = life.handles.0.backups.start(request.clone());
                if let Some(Ok(_)) = self.stage.cluster.ask(&life, started).await {
                    return;
                }
            }
            self.stage.pause(Duration::from_millis(200)).await;
        }
    }

    fn folder(&self) -> Folder {
        let env = self.stage.env.clone();
        let nap: Nap = Arc::new(move |pause| {
            let env = env.clone();
            Box::pin(async move { env.sleep(pause).await })
        });
        Folder::with_store(self.store.of(&self.stage.env), "", CLUSTER, LOG, nap)
    }

    async fn open(&self) -> Result<Backup, BackupError> {
        Backup::open(self.folder()).await
    }

    /// Restores a moment, into a store of its own. The state, and the cells in it.
    async fn make(&self, backup: &Backup, moment: Moment) -> Made {
        let store = MemoryStore::new();
        let mut apps = Applications::new();
        apps.add(Cells);
        let reads = self.stage.env.levels().reads();
        let chosen = Chosen { backup: backup.clone(), moment, accept_wrong_hash: false };
        let options = Options { catch_up_commit_bytes: 20_000, ..Options::default() };
        let into = Box::new(store.clone());
        let made = state_from_backup(&chosen, into, apps, reads, &options, &mut |_| {}).await?;
        let view = committed_view(Cells, reads, &store)?;
        let mut cells = BTreeMap::new();
        for key in 0..CELLS {
            let value = view.get(&key.to_le_bytes())?;
            if let Some(id) = value.and_then(|bytes| bytes[..].try_into().map(u64::from_le_bytes).ok()) {
                cells.insert(key, id);
            }
        }
        Ok((made, cells))
    }

    /// Compares a restored state with what the replicas had there.
    fn judge(&self, backup: &Backup, moment: Moment, (made, cells): &(Restored, BTreeMap<u64, u64>)) {
        let end = backup.end.map_or(LogPos::ZERO, |end| end.to);
        let expected = match moment {
            Moment::Latest => self.oracle.cells_below(end),
            Moment::Position(at) => self.oracle.cells_below(at),
            // Entries that were shipped later may have the same time.
            Moment::Time(ms) => self.oracle.cells_at(ms, end),
        };
        if *cells != expected {
            self.fail(format!(
                "{moment} was restored, below {}: the cells are {cells:x?}, and the replicas had {expected:x?}",
                made.below
            ));
        }
        if matches!(moment, Moment::Position(at) if at != made.below) {
            self.fail(format!("{moment} was restored, and the state ends at {}", made.below));
        }
    }

    /// Draws a moment of a backup.
    fn draw(&self, backup: &Backup, at_time: bool) -> Option<Moment> {
        let (first, end) = (&backup.snapshots.first()?.head, backup.end?);
        if at_time {
            let span = end.time_ms.saturating_sub(first.time_ms);
            return Some(Moment::Time(first.time_ms + self.stage.below(span + 1)));
        }
        Some(Moment::Position(first.below.plus(self.stage.below(end.to.since(first.below) + 1))))
    }

    /// Restores moments while the store fails. Whatever is restored is right; that nothing can be restored is no violation then.
    pub async fn restore_meanwhile(self, every: Duration) {
        while !self.stage.over.is_up() {
            self.stage.pause(every).await;
            let Ok(backup) = self.open().await else { continue };
            let Some(moment) = self.draw(&backup, self.stage.below(2) == 0) else { continue };
            match self.make(&backup, moment).await {
                Ok(made) => {
                    hit("sim.backup.restored_under_faults");
                    self.judge(&backup, moment, &made);
                }
                // What is read from the store may be wrong, but not what is in it.
                Err(RestoreError::Differs { below, found, expected }) => self.fail(format!(
                    "{moment}: the state below {below} has hash {found:x}, and the replicas had {expected:x}"
                )),
                Err(_) => {}
            }
            self.stage.report();
        }
    }

    /// Demands that the backup has everything soon, and that every moment of it can be restored, except those that it says it lacks.
    pub async fn demand(self) {
        let newest = self.oracle.now().map_or(LogPos::ZERO, |(at, _)| at.plus(1));
        let backup = loop {
            self.stage.waits_for(format!("the backup to have everything below {newest}"));
            match self.open().await {
                Ok(backup) if backup.end.is_some_and(|end| end.to >= newest) => break backup,
                Ok(_) | Err(BackupError::None { .. }) => {}
                Err(error) if error.passes() => {}
                Err(error) => return self.fail(format!("it cannot be opened: {error}")),
            }
            self.stage.pause(Duration::from_millis(200)).await;
        };
        if backup.snapshots.len() > 1 {
            hit("sim.backup.several_snapshots");
        }
        let has_gaps = backup.snapshots.iter().skip(1).any(|snapshot| !snapshot.head.joined);
        let positions = (0..MOMENTS).filter_map(|_| self.draw(&backup, false));
        let times = (0..MOMENTS).filter_map(|_| self.draw(&backup, true));
        let snapshots = backup.snapshots.iter().map(|snapshot| Moment::Position(snapshot.head.below));
        let all: Vec<Moment> = positions.chain(times).chain(snapshots).chain([Moment::Latest]).collect();
        for moment in all {
            self.stage.waits_for(format!("a restore of {moment}"));
            match self.make(&backup, moment).await {
                Ok(made) => {
                    hit(match moment {
                        Moment::Time(_) => "sim.backup.restored_at_time",
                        Moment::Position(_) | Moment::Latest => "sim.backup.restored_at_position",
                    });
                    self.judge(&backup, moment, &made);
                }
                Err(RestoreError::Backup(BackupError::Gap { .. })) if has_gaps => {}
                Err(error) if self.terms.keep.is_some() && was_given_up(&error) => {}
                Err(error) => {
                    let head = |s: &SnapshotInfo| (s.number, s.head.below, s.head.run, s.head.joined);
                    let snapshots: Vec<_> = backup.snapshots.iter().map(head).collect();
                    self.fail(format!(
                        "{moment} cannot be restored: {error}; the snapshots (number, below, run, joined) are {snapshots:?}"
                    ));
                }
            }
        }
        self.stage.report();
    }
}
