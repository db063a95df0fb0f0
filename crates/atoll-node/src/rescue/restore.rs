//! Makes the data directory of a new cluster from a backup, up to a chosen moment. No node of the old cluster is needed, and the backup is
//! only read.
//!
//! The state is made first, in a store of its own: a snapshot, and the entries behind it, one after the other. Its hash is compared with
//! that of the old replicas wherever one stood. What follows is the same as in a rescue of a cluster whose log has no entries left, and of
//! which only this state remains: a node of the new cluster starts alone, its log begins where the state ends, and its doors propose what
//! their clients need.

use std::path::Path;
use std::time::Duration;

use atoll_backup::{Backup, BackupError, Entry, Moment, Run, Runs, SnapshotInfo};
use atoll_contract::{LogPos, LogletId, Nonce, Version};
use atoll_core::LevelRange;
use atoll_core::testing::{hit, mutant};
use atoll_db::backup::{Beyond, Filling, RebuildError, Replaying};
use atoll_db::{Applications, FjallStore, HashAt, Options, Store, StoreError};
use atoll_door::Door;
use atoll_log::Chain;

use super::error::RescueError;
use super::folder::Work;
use super::plan::{Fate, LogPlan, Plan};
use super::rebuild::{self, Filled};
use crate::backup::restored;
use crate::config::{NodeConfig, Roles};
use crate::database;
use crate::replica::DatabaseState;

/// The cache of the store while the state is made.
const CACHE_BYTES: u64 = 64 << 20;
/// So many damaged snapshots are passed over at most.
const MOST_PASSED_OVER: usize = 8;
/// To compare the state with the next hash behind the chosen moment, at most this much memory is used.
const MOST_BEYOND_BYTES: usize = 256 << 20;

/// Why nothing was restored. The new data directory is not there.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup cannot be read, or does not have the moment.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// The state cannot be made.
    #[error("the state: {0}")]
    State(#[from] RebuildError),
    /// The state is not the one that the replicas had.
    #[error(
        "the state below {below} has the hash {found:032x}, and the replicas had {expected:032x} there: the backup, or this program, is wrong. An earlier moment may be right; --accept-wrong-hash restores this one as it is"
    )]
    Differs {
        /// The position.
        below: LogPos,
        /// The hash of the restored state.
        found: u128,
        /// The hash in the backup.
        expected: u128,
    },
    /// A snapshot is damaged, and the ones before it do not help.
    #[error("{damaged}; from snapshot {earlier}, before it, the moment cannot be restored either: {error}")]
    NoneBefore {
        /// What is wrong with the first one.
        damaged: Box<RestoreError>,
        /// The number of the last one that was tried.
        earlier: u64,
        /// Why it does not help.
        error: Box<RestoreError>,
    },
    /// An entry was written by a later program.
    #[error("the entry at {0} has something that only a later version of this program knows")]
    Newer(LogPos),
    /// The new node keeps its state in memory.
    #[error("a restore needs the state on the disk: set `database.state` to \"disk\"")]
    InMemory,
    /// The new node keeps no replica, or has no applications.
    #[error("the first node of the new cluster keeps no database")]
    NoDatabase,
    /// The new directory cannot be made.
    #[error(transparent)]
    Rescue(#[from] RescueError),
}

impl From<StoreError> for RestoreError {
    fn from(error: StoreError) -> Self {
        RestoreError::State(error.into())
    }
}

impl RestoreError {
    /// Returns whether a snapshot is not what it should be, so that an earlier one may do.
    fn is_of_the_snapshot(&self) -> bool {
        match self {
            RestoreError::Backup(error) => error.is_lost(),
            RestoreError::State(error) => error.is_of_the_snapshot(),
            _ => false,
        }
    }
}

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The snapshot is being read.
    Snapshot {
        /// So many bytes of it.
        bytes: u64,
        /// Of so many.
        of: u64,
    },
    /// Entries are being applied.
    Entries {
        /// All below this position are.
        below: LogPos,
        /// The first position of them.
        from: LogPos,
        /// The last position of the backup, or the chosen one.
        to: LogPos,
    },
    /// The new node is being made.
    Node,
}

/// Where a restore comes from, and up to which moment.
pub struct Chosen {
    /// The backup.
    pub backup: Backup,
    /// The moment.
    pub moment: Moment,
    /// Whether a state is restored although its hash is not that of the replicas. For an operator who has nothing better.
    pub accept_wrong_hash: bool,
}

/// What was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The cluster that was backed up.
    pub cluster: String,
    /// The snapshot with which it began.
    pub snapshot: SnapshotInfo,
    /// The state has all entries below.
    pub below: LogPos,
    /// The time of the last of them, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// The hash of the state as replicas show it.
    pub hash: u128,
    /// The highest position at which the state was compared with that of the replicas of the old cluster. If it is not below `below`,
    /// everything that was restored is proven.
    pub compared_below: LogPos,
    /// The first position at which the state was not that of the replicas, and this was accepted.
    pub differs_below: Option<LogPos>,
    /// The later snapshots that were damaged, and what was wrong with each. The state was made from more entries instead, which is as good.
    pub passed_over: Vec<(u64, String)>,
}

/// A restore in progress.
struct Restore<'a> {
    backup: &'a Backup,
    moment: Moment,
    report: &'a mut (dyn FnMut(Progress) + Send),
    compared_below: LogPos,
    accept_wrong_hash: bool,
    differs_below: Option<LogPos>,
}

/// Makes the state at a moment, in a store that is empty. On return the store has it durably.
///
/// # Errors
/// There is no such state. What is in the store is of no use.
pub async fn state_from_backup(
    from: &Chosen,
    store: Box<dyn Store>,
    apps: Applications,
    reads: LevelRange,
    options: &Options,
    report: &mut (dyn FnMut(Progress) + Send),
) -> Result<Restored, RestoreError> {
    let restore = Restore {
        backup: &from.backup,
        moment: from.moment,
        report,
        compared_below: LogPos::ZERO,
        accept_wrong_hash: from.accept_wrong_hash,
        differs_below: None,
    };
    restore.make_state(store, apps, reads, options).await
}

/// Makes the data directory of `config` from a backup. `apps` and `doors` are those of the new node. On return it can be started. Runs on
/// the current runtime, which must be of one thread.
///
/// # Errors
/// Nothing was restored.
pub async fn from_backup(
    config: NodeConfig,
    from: &Chosen,
    apps: Applications,
    mut doors: Vec<Box<dyn Door>>,
    report: &mut (dyn FnMut(Progress) + Send),
) -> Result<Restored, RestoreError> {
    if config.roles != Roles::ALL {
        return Err(RescueError::Roles.into());
    }
    if config.database == DatabaseState::InMemory {
        return Err(RestoreError::InMemory);
    }
    if !config.replica || apps.is_empty() {
        return Err(RestoreError::NoDatabase);
    }
    let cluster = from.backup.about.cluster.clone();
    if cluster == config.cluster {
        return Err(RescueError::SameCluster(cluster).into());
    }
    // Refused before anything is made.
    from.backup.snapshot_for(from.moment)?;
    let work = Work::begin(&config.data, &[])?;
    let folder = work.copy_of(0).join(database::FOLDER);
    let made = match open(&folder) {
        Ok(store) => {
            state_from_backup(from, store, apps, config.levels, &config.database_options, report).await
        }
        Err(error) => Err(error),
    };
    let done = match made {
        Ok(restored) => {
            report(Progress::Node);
            make_node(&work, &config, &folder, &restored, &mut doors).await.map(|()| restored)
        }
        Err(error) => Err(error),
    };
    match done {
        Ok(restored) => {
            work.finish()?;
            Ok(restored)
        }
        Err(error) => {
            // If it stays, the next attempt removes it.
            let _ = work.discard();
            Err(error)
        }
    }
}

/// Opens a new store.
fn open(folder: &Path) -> Result<Box<dyn Store>, RestoreError> {
    std::fs::create_dir_all(folder).map_err(RescueError::file(folder))?;
    Ok(Box::new(FjallStore::open(folder, CACHE_BYTES)?))
}

impl<'a> Restore<'a> {
    async fn make_state(
        mut self,
        store: Box<dyn Store>,
        apps: Applications,
        reads: LevelRange,
        options: &Options,
    ) -> Result<Restored, RestoreError> {
        let mut filling = Filling::begin(store, reads)?;
        let mut damaged: Vec<(u64, RestoreError)> = Vec::new();
        let (mut snapshot, mut earlier) = self.backup.snapshots_for(self.moment)?;
        let error = loop {
            match self.fill(&mut filling, snapshot).await {
                Ok(()) => break None,
                Err(error) if error.is_of_the_snapshot() => damaged.push((snapshot.number, error)),
                Err(error) => return Err(error),
            }
            match earlier.next().filter(|_| damaged.len() <= MOST_PASSED_OVER) {
                Some(next) => snapshot = next,
                None => break damaged.pop(),
            }
            hit("restore.passed_over");
            filling.begin_again()?;
        };
        if let Some((number, error)) = error {
            return Err(none_before(damaged, number, error));
        }
        let passed_over = damaged.iter().map(|(number, error)| (*number, error.to_string())).collect();
        let snapshot = snapshot.clone();
        self.compared_below = snapshot.head.below;
        let state = filling.open(apps, options)?;
        let replayed = self.replay(state, &snapshot).await;
        let (state, mut runs, rest) = replayed.map_err(|error| match error {
            RestoreError::Backup(_) => none_before(damaged, snapshot.number, error),
            other => other,
        })?;
        let (below, time_ms, hash) = (state.next(), state.time_ms(), state.shown_hash());
        self.go_beyond(state.finish()?, &mut runs, rest).await?;
        let cluster = self.backup.about.cluster.clone();
        let (compared_below, differs_below) = (self.compared_below, self.differs_below);
        let made =
            Restored { cluster, snapshot, below, time_ms, hash, compared_below, differs_below, passed_over };
        Ok(made)
    }

    /// Fills a store with a snapshot.
    async fn fill(&mut self, filling: &mut Filling, snapshot: &SnapshotInfo) -> Result<(), RestoreError> {
        let head = &snapshot.head;
        let mut bytes = 0;
        for number in 0..head.pieces {
            for piece in self.backup.pieces(snapshot, number).await? {
                bytes += piece.len() as u64;
                filling.add(piece)?;
            }
            (self.report)(Progress::Snapshot { bytes, of: head.bytes.max(bytes) });
        }
        Ok(filling.finish(head.below, head.hash)?)
    }

    /// Applies the entries up to the moment. Returns the state, and what follows in the backup.
    async fn replay(
        &mut self,
        mut state: Replaying,
        snapshot: &SnapshotInfo,
    ) -> Result<(Replaying, Runs<'a>, Option<(Run, Vec<Entry>)>), RestoreError> {
        let from = snapshot.head.below;
        let end = self.backup.end.map_or(from, |end| end.to);
        let to = match self.moment {
            Moment::Position(to) if mutant(atoll_backup::mutants::RESTORE_ENDS_EARLY) => {
                LogPos(to.0.saturating_sub(1))
            }
            Moment::Position(to) => to,
            Moment::Latest | Moment::Time(_) => end,
        };
        let mut runs = self.backup.runs(snapshot);
        let mut time_ms = snapshot.head.time_ms;
        while state.next() < to {
            let Some((run, mut entries)) = runs.next().await? else { break };
            if mutant(atoll_backup::mutants::RESTORE_SKIPS_ENTRY)
                && let [.., before, last] = &mut entries[..]
            {
                last.clone_from(before);
            }
            let mut entries = entries.into_iter();
            while let Some(entry) = entries.next() {
                time_ms = time_ms.max(entry.time_ms);
                if state.next() >= to || matches!(self.moment, Moment::Time(ms) if time_ms > ms) {
                    let rest = std::iter::once(entry).chain(entries).collect();
                    return Ok((state, runs, Some((run, rest))));
                }
                let at = state.next();
                state.apply(restored(entry).ok_or(RestoreError::Newer(at))?)?;
            }
            self.compare(&run, state.hash())?;
            (self.report)(Progress::Entries { below: state.next(), from, to });
        }
        Ok((state, runs, None))
    }

    /// Compares the state at the end of a run with that of the replica that stood there.
    fn compare(&mut self, run: &Run, now: HashAt) -> Result<(), RestoreError> {
        let Some(expected) = run.hash else { return Ok(()) };
        if expected == now.hash && now.below == run.to {
            // Once it differed, equal hashes later would prove nothing about what is between.
            if self.differs_below.is_none() {
                self.compared_below = run.to;
            }
            return Ok(());
        }
        if !self.accept_wrong_hash {
            return Err(RestoreError::Differs { below: run.to, found: now.hash, expected });
        }
        self.differs_below.get_or_insert(run.to);
        Ok(())
    }

    /// Applies what follows in the backup, in memory, up to the next position with a hash.
    async fn go_beyond(
        &mut self,
        mut beyond: Beyond,
        runs: &mut Runs<'_>,
        rest: Option<(Run, Vec<Entry>)>,
    ) -> Result<(), RestoreError> {
        if self.compared_below >= beyond.hash().below {
            return Ok(());
        }
        let mut next = rest;
        while beyond.bytes() < MOST_BEYOND_BYTES {
            let (run, entries) = match next.take() {
                Some(rest) => rest,
                None => match runs.next().await {
                    Ok(Some(read)) => read,
                    // What follows is lost, but the state is whole.
                    Ok(None) | Err(BackupError::Gap { .. }) => return Ok(()),
                    Err(error) => return Err(error.into()),
                },
            };
            for entry in entries {
                let at = beyond.hash().below;
                beyond.apply(restored(entry).ok_or(RestoreError::Newer(at))?)?;
            }
            let before = self.compared_below;
            self.compare(&run, beyond.hash())?;
            if self.compared_below > before || self.differs_below.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Returns the error of a restore that has come to this snapshot because later ones are damaged.
fn none_before(damaged: Vec<(u64, RestoreError)>, earlier: u64, error: RestoreError) -> RestoreError {
    match damaged.into_iter().next() {
        Some((_, first)) => {
            RestoreError::NoneBefore { damaged: Box::new(first), earlier, error: Box::new(error) }
        }
        None => error,
    }
}

/// Makes the new data directory around the state.
async fn make_node(
    work: &Work,
    config: &NodeConfig,
    folder: &Path,
    restored: &Restored,
    doors: &mut [Box<dyn Door>],
) -> Result<(), RestoreError> {
    let broken = |error| RescueError::Chain { log: database::LOG.to_owned(), error };
    // Only a beginning: what the log really is on comes from the plan.
    let chain = Chain::first(Nonce(1), LogletId(1), "none", bytes::Bytes::new()).map_err(broken)?;
    let log = LogPlan {
        name: database::LOG.to_owned(),
        fate: Fate::Kept,
        version: Version(1),
        trim: restored.below,
        end: restored.below,
        acknowledged: restored.below,
        covered: Vec::new(),
        cut_at: None,
        time_ms: Some(restored.time_ms),
        bytes: 0,
        notes: Vec::new(),
        chain,
        segments: Vec::new(),
    };
    let plan = Plan {
        from: restored.cluster.clone(),
        survivors: Vec::new(),
        logs: vec![log],
        not_rescued: Vec::new(),
    };
    let age = database::wall_clock_ms().saturating_sub(restored.time_ms);
    let filled = Filled { plan: &plan, state: Some(folder), restored_age: Some(Duration::from_millis(age)) };
    Ok(rebuild::run(work, config, &[], &filled, doors).await?)
}
