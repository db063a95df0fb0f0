//! A replica put together over a log: opened, started, closed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_contract::LogPos;
use atoll_core::testing::mutant;
use atoll_core::{Candidate, Directory, Env, NodeId, Ticket};
use atoll_log::VirtualLog;

use super::applier::Applier;
use super::clock::{CheckedClock, HearClocks};
use super::commit::{Aside, Committer, Here};
use super::core::Core;
use super::feed::{Direct, Feed, Inlet, Queued};
use super::propose::{LogPath, ToLog};
use super::{Checked, Engine, Health, Options, OutOfService};
use crate::application::{Application, Proposer};
use crate::hosted::{Applications, Slot};
use crate::mutants;
use crate::replica::{Halt, HashAt, Replica};
use crate::store::{OwnerError, Store, StoreError};
use crate::transfer::{Inquiry, Patrol, Shelf, Source};

/// The wall clock, milliseconds since the Unix epoch. It may jump; what is applied never goes back, nor far ahead of the others' clocks.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Where commands are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// In the node's own thread: in the simulator.
    None,
    /// In a thread of its own, and commits in another.
    Own,
}

/// What a replica stands on.
pub struct Ground {
    /// The node's executor.
    pub env: Env,
    /// The log, which is made if there is none.
    pub log: Arc<VirtualLog>,
    /// The local store.
    pub store: Box<dyn Store>,
    /// The wall clock.
    pub clock: Clock,
    /// The other replicas; None for one that stands alone, whose log is never trimmed.
    pub cluster: Option<Cluster>,
    /// Where commands are applied.
    pub threads: Threads,
    /// Settings.
    pub options: Options,
}

/// The other replicas, as this one sees them.
#[derive(Clone)]
pub struct Cluster {
    /// Who they are and who is up.
    pub directory: Arc<dyn Directory>,
    /// Where the replica's role, which answers the others, finds it.
    pub shelf: Shelf,
    /// Notified whether this replica is out of service, at first and whenever that changes: the other nodes must learn of it (X26).
    pub out_of_service: Arc<dyn Fn(bool) + Send + Sync>,
    /// What their clocks show.
    pub clocks: HearClocks,
}

impl Cluster {
    /// The other members that have a replica, up or not. A member that only keeps entries has none: asking it or waiting for it is
    /// useless.
    pub(crate) fn peers(&self, me: NodeId) -> Vec<Candidate> {
        let mut members = self.directory.candidates();
        members.retain(|c| c.node != me && (c.meta || c.sequencer));
        members
    }
}

impl fmt::Debug for Ground {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ground of {:?} over {:?}", self.log, self.store)
    }
}

/// Why a database was not opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store is another's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The system gives no thread.
    #[error("starting threads: {0}")]
    Threads(#[from] std::io::Error),
}

/// A replicated database, on this node. Cheap to clone.
#[derive(Clone)]
pub struct Database {
    pub(super) core: Arc<Core>,
    pub(super) to: Arc<ToLog>,
    feed: Arc<Mutex<Box<dyn Feed>>>,
    pub(super) cluster: Option<Cluster>,
    pub(super) options: Options,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "database on {:?}", self.to.log)
    }
}

impl Database {
    /// Opens the state that the store has and starts the replica: from here on it proposes, follows the log, and applies. An older
    /// state is shown only once it was compared with that of a peer ([`Engine::checked`]), and it may be behind the log: a barrier
    /// finds out.
    ///
    /// # Errors
    /// The store cannot be read, or there are no threads.
    pub fn open(apps: Applications, ground: Ground) -> Result<Database, OpenError> {
        let Ground { env, log, store, clock, cluster, threads, options } = ground;
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
                Box::new(Queued::start(inlet, applier(Box::new(aside)))?)
            }
        };
        let db = Database { core, to, feed: Arc::new(Mutex::new(feed)), cluster, options };
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
            let (source, patrol) = (db.source(threads), db.patrol(cluster, threads == Threads::Own));
            cluster.shelf.fill(source);
            env.spawn("db.patrol", Box::pin(patrol.run()));
        }
        env.spawn("db.propose", Box::pin(db.to.clone().send(db.core.clone())));
        env.spawn("db.retry", Box::pin(db.clone().retry()));
        env.spawn("db.progress", Box::pin(db.clone().watch_progress()));
        env.spawn("db.learn", Box::pin(db.clone().learn(from)));
        Ok(db)
    }

    /// The engine of an application that was added before.
    pub fn engine<A: Application>(&self, slot: &Slot<A>) -> Engine<A> {
        Engine::new(self.core.clone(), slot.clone())
    }

    /// How far this replica is.
    pub fn health(&self) -> Health {
        self.core.health()
    }

    /// Entries below this position are on the disk of this replica's store, so the log may lose them as long as the disk survives.
    /// Zero if the state is in memory.
    pub fn held_below(&self) -> LogPos {
        match self.core.published().layers.base.is_in_memory() {
            true => LogPos::ZERO,
            false => self.core.health().durable_below,
        }
    }

    /// Hashes of the state of this replica, see [`Engine::hashes`].
    pub fn hashes(&self) -> Vec<HashAt> {
        self.core.samples()
    }

    /// Requests that the store be read again as a whole at the next patrol, and not only when that is due. [`Health::scrubbed`]
    /// shows the result. It has no effect on a replica that was opened without a cluster.
    pub fn scrub(&self) {
        self.core.ask_for_scrub();
    }

    /// Why this replica applies no more, if so.
    pub fn halted(&self) -> Option<Halt> {
        self.core.halted()
    }

    /// See [`Engine::out_of_service`].
    pub fn out_of_service(&self) -> Option<OutOfService> {
        self.core.out_of_service()
    }

    /// Durably commits what is applied and stops applying. For a clean stop: the next start has nothing to replay. The store's
    /// folder can be opened again once the engines and their views are dropped, too.
    pub fn close(&self) -> Ticket<()> {
        self.feed(|feed| feed.close())
    }

    pub(super) fn feed<T>(&self, f: impl FnOnce(&mut dyn Feed) -> T) -> T {
        f(&mut **self.feed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn source(&self, threads: Threads) -> Source {
        let core = self.core.clone();
        Source { core, commit: self.committing(), threads: threads == Threads::Own }
    }

    fn patrol(&self, cluster: &Cluster, threads: bool) -> Patrol {
        Patrol {
            env: self.to.env.clone(),
            core: self.core.clone(),
            log: self.to.log.clone(),
            cluster: cluster.clone(),
            commit: self.committing(),
            threads,
            options: self.options.clone(),
            silent: BTreeMap::new(),
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
