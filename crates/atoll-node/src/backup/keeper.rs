//! The procedure that ships, takes snapshots, and deletes what is too old.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_backup::{BackupError, Folder, Shipper, SourceError, Taken, retain, take};
use atoll_contract::LogPos;
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{Directory, Env, NodeId, Tick};
use atoll_db::{Clock, Cluster, Database};
use atoll_log::VirtualLog;

use super::plan::BackupPlan;
use super::source::ReplicaSource;
use super::state::{Backups, Replica, Seen};
use crate::kept;
use crate::replica::is_in_service;

/// How often the plan is read.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How long a read of the register may take.
const ANSWER: Duration = Duration::from_secs(2);
/// The pause between two attempts at a snapshot.
const TAKE_AGAIN: Duration = Duration::from_secs(10);
/// The pause between two rounds of retention.
const RETAIN_EVERY: Duration = Duration::from_secs(30);
/// How long a snapshot waits until what is applied is committed, and how often it looks.
const COMMIT_WITHIN: Duration = Duration::from_secs(10);
const COMMIT_LOOK: Duration = Duration::from_millis(20);
/// A node ships although another one should, once the backup has not moved for so many intervals for each node before it.
const PATIENCE: u32 = 4;

/// A snapshot on its way: None while it is.
type Taking = Arc<Mutex<Option<Result<Taken, BackupError>>>>;

/// See the module documentation.
pub(super) struct Keeper {
    backups: Backups,
    open: Option<Open>,
}

/// A backup that this node follows.
struct Open {
    plan: BackupPlan,
    folder: Folder,
    source: Arc<ReplicaSource>,
    shipper: Shipper,
    taking: Option<Taking>,
    taken: Option<Taken>,
    /// No snapshot that is on its way lacks entries below.
    taken_from: LogPos,
    /// The log has lost what is to be shipped.
    gap: bool,
    take_after: Tick,
    retain_after: Tick,
    /// Where the backup ended, and since when.
    stands: (LogPos, Tick),
}

impl Backups {
    /// Starts the procedure on a node whose database is open. `clock` is the wall clock, in milliseconds since the Unix epoch.
    pub fn begin(&self, cluster: String, database: Database, log: Arc<VirtualLog>, clock: Clock) {
        if self.0.replica.set(Replica::new(cluster, database, log, clock)).is_ok() {
            let keeper = Keeper { backups: self.clone(), open: None };
            self.0.env.spawn("backup", Box::pin(keeper.run()));
        }
    }
}

impl Keeper {
    /// Runs until the node stops.
    async fn run(mut self) {
        let env = self.backups.0.env.clone();
        let Some(replica) = self.backups.0.replica.get().cloned() else { return };
        let (mut found, mut looked) = (None, None);
        loop {
            let seen = self.backups.0.changed.count();
            let fresh = looked.is_some_and(|(at, count)| count == seen && env.now().since(at) < LOOK_EVERY);
            if !fresh {
                looked = Some((env.now(), seen));
                // If the plan cannot be read, the known one stays in force: the store may answer although the registers do not.
                if let Ok(Ok(plan)) = env.within(ANSWER, kept::read(&*self.backups.0.register)).await {
                    found = plan;
                }
            }
            self.backups.see(|seen| seen.plan.clone_from(&found));
            let pause = match found.clone().filter(|plan| plan.on) {
                Some(plan) => {
                    let every = plan.every();
                    if let Err(error) = self.round(&replica, plan).await {
                        hit("backup.trouble");
                        self.backups.see(|seen| seen.trouble = Some(error.to_string()));
                    }
                    let behind_ms = self.backups.behind(&replica).await;
                    self.backups.see(|seen| seen.behind_ms = behind_ms);
                    every
                }
                None => {
                    self.open = None;
                    replica.database.keep_from(None);
                    self.backups.see(|seen| {
                        *seen = Seen { plan: seen.plan.take(), ..Seen::default() };
                    });
                    LOOK_EVERY
                }
            };
            let _ = env.within(env.jitter(pause), self.backups.0.changed.after(seen)).await;
        }
    }

    async fn round(&mut self, replica: &Replica, plan: BackupPlan) -> Result<(), BackupError> {
        if self.open.as_ref().is_none_or(|open| open.plan.id != plan.id || open.plan.url != plan.url) {
            self.open = None;
            self.open = Some(self.backups.open(replica, &plan).await?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        open.plan = plan;
        let (env, now) = (&self.backups.0.env, self.backups.0.env.now());
        let followed = open.shipper.follow().await;
        // Also while the store does not answer, so that the bound moves on.
        open.hold(replica);
        followed?;
        let ships = open.is_my_turn(&self.backups, now);
        let mut done = Ok(());
        if ships {
            done = open.ship(env.random(), replica.wall_ms()).await;
            if done.is_ok() {
                done = open.keep_snapshots(&self.backups, replica.wall_ms()).await;
            }
        }
        open.hold(replica);
        let (end, newest, taking) =
            (open.shipper.end(), open.shipper.newest().cloned(), open.taking.is_some());
        self.backups.see(|seen| {
            (seen.end, seen.newest, seen.ships, seen.taking) = (end, newest, ships, taking);
            if done.is_ok() {
                seen.trouble = None;
            }
        });
        done
    }
}

impl Backups {
    async fn open(&self, replica: &Replica, plan: &BackupPlan) -> Result<Open, BackupError> {
        let folder = self.folder_at(&plan.url, &replica.cluster)?;
        let shipper = Shipper::open(folder.clone(), plan.id, replica.wall_ms()).await?;
        let source = ReplicaSource {
            database: replica.database.clone(),
            log: replica.log.clone(),
            reads: self.0.env.levels().reads(),
        };
        let now = self.0.env.now();
        Ok(Open {
            plan: plan.clone(),
            folder,
            source: Arc::new(source),
            shipper,
            taking: None,
            taken: None,
            taken_from: LogPos::ZERO,
            gap: false,
            take_after: now,
            retain_after: now,
            stands: (LogPos::ZERO, now),
        })
    }

    /// Returns how many nodes should ship rather than this one.
    fn rank(&self) -> u32 {
        let (me, members) = (self.0.env.node(), &self.0.members);
        let before = |node: NodeId| node < me && is_in_service(members, node);
        let candidates = members.candidates().into_iter();
        let replicas = candidates.filter(|c| c.alive && Cluster::may_have_replica(c.meta, c.sequencer));
        replicas.filter(|c| before(c.node)).count() as u32
    }
}

/// Commits what the replica has applied by now, so that the snapshot has it. Without that, it could be the state of long ago, and a restore
/// would have all entries since to apply. A store that is slow or fails is not waited for long: what it has committed is a state, too, and
/// the entries behind it are in the log.
async fn commit_applied(env: &Env, database: &Database) {
    let (to, until) = (database.health().applied_below, env.now().after(COMMIT_WITHIN));
    while database.health().committed_below < to && env.now() < until {
        database.commit();
        env.sleep(COMMIT_LOOK).await;
    }
}

impl Open {
    /// Whether this node ships: it is the first one in service, or those before it do not get on.
    fn is_my_turn(&mut self, backups: &Backups, now: Tick) -> bool {
        let to = self.shipper.end().map_or(LogPos::ZERO, |end| end.to);
        let behind =
            self.source.database.vouched().is_some_and(|at| at.below > to) || self.shipper.newest().is_none();
        if to != self.stands.0 || !behind {
            self.stands = (to, now);
        }
        let rank = backups.rank();
        rank == 0 || now.since(self.stands.1) >= self.plan.every() * PATIENCE * rank
    }

    async fn ship(&mut self, writer: u64, wall: u64) -> Result<(), BackupError> {
        let shipped = self.shipper.ship(&*self.source, writer, wall).await;
        match shipped {
            Ok(_) => {
                self.gap = false;
                Ok(())
            }
            Err(BackupError::Source(SourceError::Trimmed(_))) => {
                hit("backup.gap");
                self.gap = true;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Takes a snapshot if one is due, adds one that is there, and deletes what is too old.
    async fn keep_snapshots(&mut self, backups: &Backups, wall: u64) -> Result<(), BackupError> {
        let env = &backups.0.env;
        let ended = self.taking.as_ref().and_then(|taking| lock(taking).take());
        if let Some(ended) = ended {
            self.taking = None;
            self.take_after = env.now().after(TAKE_AGAIN);
            self.taken = Some(ended?);
        }
        if let Some(taken) = self.taken.take() {
            match self.shipper.add(&taken, self.gap, wall).await {
                Ok(true) => {
                    hit("backup.snapshot");
                    self.gap = false;
                }
                // The runs up to it come first.
                Ok(false) => self.taken = Some(taken),
                Err(BackupError::Overtaken) => {}
                // It is of an old state. The next one may be of a later one.
                Err(error @ BackupError::Source(_)) => return Err(error),
                Err(error) => {
                    self.taken = Some(taken);
                    return Err(error);
                }
            }
        }
        let age = self.shipper.newest().map(|newest| wall.saturating_sub(newest.head.made_ms));
        let due = self.gap || age.is_none_or(|age| age >= self.plan.snapshot_every_ms);
        if due && self.taking.is_none() && self.taken.is_none() && env.now() >= self.take_after {
            self.begin_snapshot(backups);
        }
        if env.now() >= self.retain_after && self.plan.keep_ms < u64::MAX {
            self.retain_after = env.now().after(RETAIN_EVERY);
            retain(&self.folder, self.plan.id, self.plan.keep_ms, wall).await?;
        }
        Ok(())
    }

    /// Begins a snapshot in the background: it may take minutes, and entries are still shipped meanwhile.
    fn begin_snapshot(&mut self, backups: &Backups) {
        self.taken_from = self.source.database.health().committed_below;
        let taking = Taking::default();
        self.taking = Some(taking.clone());
        let (folder, source) = (self.folder.clone(), self.source.clone());
        let (id, number, writer) = (self.plan.id, self.shipper.next_snapshot(), backups.0.env.random());
        let me = backups.clone();
        let work = async move {
            commit_applied(&me.0.env, &source.database).await;
            let taken = take(&folder, id, number, &*source, writer).await;
            *lock(&taking) = Some(taken);
            me.0.changed.notify();
        };
        backups.0.env.spawn("backup.snapshot", Box::pin(work));
    }

    /// Keeps the log from losing what is not shipped, up to a bound.
    fn hold(&self, replica: &Replica) {
        let from = match self.shipper.end().filter(|_| !self.gap) {
            Some(end) => end.to,
            // Entries behind the snapshot that is on its way.
            None if self.taking.is_some() || self.taken.is_some() => self.taken_from,
            None => return replica.database.keep_from(None),
        };
        let tail = replica.database.health().known_tail;
        let least = LogPos(tail.0.saturating_sub(self.plan.hold_entries));
        replica.database.keep_from(Some(from.max(least)));
    }
}
