//! Builds a replica on a log: opens, starts and closes it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_contract::LogPos;
use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, Candidate, Directory, Env, NodeId, Tick, Ticket};
use atoll_log::VirtualLog;

use super::applier::{Applier, BEHIND_ENTRIES};
use super::clock::{CheckedClock, HearClocks};
use super::commit::{Aside, Committer, Here};
use super::core::Core;
use super::feed::{Direct, Feed, Inlet, Queued};
use super::propose::{LogPath, ToLog};
use super::{Checked, Engine, Health, Options, OutOfService, Stopped};
use crate::hosted::{Applications, Slot};
use crate::mutants;
use crate::replica::{Halt, HashAt, Replica};
use crate::store::{OwnerError, Store, StoreError};
use crate::transfer::{Inquiry, Shelf, Source, Upkeep};
use atoll_contract::application::{Application, Proposer};

/// The wall clock, in milliseconds since the Unix epoch. It may jump. The time of the log nevertheless never goes back, nor far
/// ahead of the other nodes' clocks.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The threads that apply commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// The node's own thread applies and commits, as in the simulator.
    None,
    /// One thread applies, and another one commits.
    Own,
}

/// The parts that a replica is opened with.
pub struct ReplicaParts {
    /// The node's executor.
    pub env: Env,
    /// The log. It is created if it does not exist.
    pub log: Arc<VirtualLog>,
    /// The local store.
    pub store: Box<dyn Store>,
    /// The wall clock.
    pub clock: Clock,
    /// The other replicas. None for a standalone replica, whose log is never trimmed.
    pub cluster: Option<Cluster>,
    /// The threads that apply commands.
    pub threads: Threads,
    /// The settings of the engine.
    pub options: Options,
}

/// The replica's access to the other replicas.
#[derive(Clone)]
pub struct Cluster {
    /// The members, and which of them are up.
    pub directory: Arc<dyn Directory>,
    /// The shelf through which the server role, which answers the other replicas, finds this replica.
    pub shelf: Shelf,
    /// Called with whether this replica is out of service, once at first and then at every change, so that the other nodes learn of
    /// it (X26).
    pub out_of_service: Arc<dyn Fn(bool) + Send + Sync>,
    /// The clocks of the other members.
    pub clocks: HearClocks,
    /// Reads the table of members where it is kept, and returns those that may have a replica. The result is at least as new as the call.
    pub replicas: ReadReplicas,
}

/// See [`Cluster::replicas`]. The error says why the table cannot be read.
pub type ReadReplicas = Arc<dyn Fn() -> BoxFuture<'static, Result<Vec<NodeId>, String>> + Send + Sync>;

impl Cluster {
    /// Whether a member with these roles may have a replica.
    pub fn may_have_replica(meta: bool, sequencer: bool) -> bool {
        meta || sequencer
    }

    /// Returns the other members that have a replica, up or not. A member that has only the role `log` has no replica, so it is
    /// useless to ask it or wait for it.
    pub(crate) fn peers(&self, me: NodeId) -> Vec<Candidate> {
        let mut members = self.directory.candidates();
        members.retain(|c| c.node != me && Cluster::may_have_replica(c.meta, c.sequencer));
        members
    }
}

impl fmt::Debug for ReplicaParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "parts of a replica of {:?} over {:?}", self.log, self.store)
    }
}

/// Why a database was not opened. The store was not changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store belongs to another owner.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// A thread could not be started.
    #[error("starting threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// A replicated database, on this node. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pub(crate) core: Arc<Core>,
    pub(super) to: Arc<ToLog>,
    feed: Arc<Mutex<Box<dyn Feed>>>,
    pub(super) cluster: Option<Cluster>,
    pub(crate) threads: Threads,
    pub(super) options: Options,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "database on {:?}", self.to.log)
    }
}

impl Database {
    /// Opens the state in the store and starts the replica, which then proposes, follows the log, and applies its entries. A state
    /// that the store already had is shown only after it has been compared with that of a peer ([`Engine::checked`]). It may be
    /// behind the log; a barrier waits until it is not.
    ///
    /// # Errors
    /// The store cannot be read, or a thread could not be started.
    pub fn open(apps: Applications, parts: ReplicaParts) -> Result<Database, OpenError> {
        let ReplicaParts { env, log, store, clock, cluster, threads, options } = parts;
        let (replica, published) = Replica::open(apps, env.levels().reads(), store.snapshot())?;
        let (from, now) = (replica.next(), replica.hash_now());
        let proposer = Proposer { node: env.node(), incarnation: env.incarnation() };
        let levels = env.levels().clone();
        let clocks = cluster.as_ref().map(|cluster| cluster.clocks.clone());
        let allowed = options.clock_ahead_at_most;
        let clock = CheckedClock::new(env.clone(), clock, clocks, allowed, published.time_ms);
        let to = Arc::new(ToLog::new(env, log, clock, options.clone()));
        let core = Core::new(proposer, levels, Box::new(LogPath(to.clone())), published, options.bounds());
        let applier = |committer| Applier::new(replica, core.clone(), committer, &options);
        let feed: Box<dyn Feed> = match threads {
            Threads::None => {
                let here: Box<dyn Committer> = Box::new(Here::new(store, &options)?);
                Box::new(Direct::new(applier(here)))
            }
            Threads::Own => {
                let inlet = Arc::new(Inlet::new(options.max_unapplied_bytes));
                let kicks = inlet.clone();
                let aside = Aside::start(store, &options, move || kicks.kick())?;
                Box::new(Queued::start(to.env.clone(), inlet, applier(Box::new(aside)))?)
            }
        };
        let db = Database { core, to, feed: Arc::new(Mutex::new(feed)), cluster, threads, options };
        let env = &db.to.env;
        db.core.check.passed(Vec::new(), now);
        match db.cluster.as_ref().filter(|_| from > LogPos::ZERO && !mutant(mutants::DB_SERVES_UNCHECKED)) {
            Some(cluster) => {
                db.core.check.begin(now);
                env.spawn("db.check", Box::pin(db.inquiry(cluster, threads == Threads::Own).run()));
            }
            None => db.core.check.end(Checked::Nothing),
        }
        if let Some(cluster) = &db.cluster {
            let (source, upkeep) = (db.source(threads), db.upkeep(cluster, threads == Threads::Own));
            cluster.shelf.fill(source);
            env.spawn("db.upkeep", Box::pin(upkeep.run()));
        }
        env.spawn("db.propose", Box::pin(db.to.clone().send(db.core.clone())));
        env.spawn("db.retry", Box::pin(db.clone().retry()));
        env.spawn("db.progress", Box::pin(db.clone().watch_progress()));
        env.spawn("db.tailer", Box::pin(db.clone().run_tailer(from)));
        Ok(db)
    }

    /// Returns the engine of an application that was added to the [`Applications`] of this database.
    pub fn engine<A: Application>(&self, slot: &Slot<A>) -> Engine<A> {
        Engine::new(self.core.clone(), slot.clone())
    }

    /// Returns the progress and condition of this replica.
    pub fn health(&self) -> Health {
        self.core.health()
    }

    /// See [`Engine::wait_applied`].
    pub fn wait_applied(&self, below: LogPos) -> Ticket<Result<LogPos, Stopped>> {
        self.core.wait_applied(below)
    }

    /// Returns for how long the oldest entry that this replica has read from the log has been waiting to be applied: about as long as
    /// a write of this node's clients waits for those before it. Zero if nothing waits, and while the replica catches up, because
    /// then its entries are old whatever the other nodes do.
    pub fn apply_delay(&self, now: Tick) -> Duration {
        let lacks = self.core.known_tail().0.saturating_sub(self.core.published().below.0);
        let since = self.feed(|feed| feed.waits_since()).filter(|_| lacks < BEHIND_ENTRIES);
        since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// Returns the position below which all entries are durable in this replica's store. The log may lose these entries as long as
    /// the store's disk survives. Zero if the store is in memory.
    pub fn held_below(&self) -> LogPos {
        match self.core.published().layers.base.is_in_memory() {
            true => LogPos::ZERO,
            false => self.core.health().durable_below,
        }
    }

    /// Returns state hashes of this replica; see [`Engine::hashes`].
    pub fn hashes(&self) -> Vec<HashAt> {
        self.core.samples()
    }

    /// Requests a scrub of the store at the next upkeep, even if none is due. [`Health::scrubbed`] shows the result. Has no effect
    /// on a replica that was opened without a cluster.
    pub fn scrub(&self) {
        self.core.ask_for_scrub();
    }

    /// Returns why this replica has halted, if it has.
    pub fn halted(&self) -> Option<Halt> {
        self.core.halted()
    }

    /// See [`Engine::out_of_service`].
    pub fn out_of_service(&self) -> Option<OutOfService> {
        self.core.out_of_service()
    }

    /// Durably commits everything that is applied, and stops applying. The ticket completes when both are done. After such a clean
    /// stop, the next start has nothing to replay. The store's folder can be opened again once all engines and views are dropped,
    /// too.
    pub fn close(&self) -> Ticket<()> {
        self.feed(|feed| feed.close())
    }

    pub(crate) fn feed<T>(&self, f: impl FnOnce(&mut dyn Feed) -> T) -> T {
        f(&mut **self.feed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn source(&self, threads: Threads) -> Source {
        let (core, log) = (self.core.clone(), self.to.log.clone());
        Source { core, log, commit: self.committing(), threads: threads == Threads::Own }
    }

    fn upkeep(&self, cluster: &Cluster, threads: bool) -> Upkeep {
        Upkeep {
            env: self.to.env.clone(),
            core: self.core.clone(),
            log: self.to.log.clone(),
            cluster: cluster.clone(),
            commit: self.committing(),
            threads,
            options: self.options.clone(),
            scrubbing: Arc::default(),
            silent: BTreeMap::new(),
            surgery: None,
        }
    }

    fn inquiry(&self, cluster: &Cluster, threads: bool) -> Inquiry {
        Inquiry {
            env: self.to.env.clone(),
            core: self.core.clone(),
            cluster: cluster.clone(),
            threads,
            answers_within: self.options.answers_within,
            read_within: self.options.read_within,
        }
    }

    fn committing(&self) -> Box<dyn Fn() + Send + Sync> {
        // Capturing the database would create a reference cycle: it refers to the shelf, and the shelf to this closure.
        let feed = self.feed.clone();
        Box::new(move || feed.lock().unwrap_or_else(PoisonError::into_inner).commit())
    }
}
