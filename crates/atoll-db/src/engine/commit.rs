//! Commits to the store: in the caller's thread, or in a separate thread while the replica continues to apply entries (X17, X18).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use atoll_contract::LogPos;
use atoll_core::testing::hit;
use bytes::Bytes;

use super::{OpenError, Options};
use crate::replica::{CommitJob, Ranges, StateRecord};
use crate::store::{Change, Store, StoreError, StoreSnapshot};

/// A commit that succeeded.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) base: Arc<dyn StoreSnapshot>,
    /// Entries below are in the store.
    pub(crate) below: LogPos,
    /// Entries below `below` are also durable.
    pub(crate) durable: bool,
    pub(crate) store_bytes: u64,
}

/// A commit that failed. The job is kept, and [`Committer::again`] retries it if the error is temporary.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// The state that the store shows now. The store may have been reopened, which makes earlier snapshots unreadable. None if this
    /// is unknown.
    pub(crate) base: Option<Arc<dyn StoreSnapshot>>,
}

/// A step of a refill (see [`Store::begin_refill`]).
#[derive(Debug)]
pub(crate) enum Refill {
    Begin,
    Items(Vec<(Bytes, Bytes)>),
    Finish,
}

/// Commits one job at a time.
pub(crate) trait Committer: Send {
    /// Starts a job. No job may be under way or wait for a retry.
    fn start(&mut self, job: CommitJob, durable: bool);
    /// Retries the job that failed.
    fn again(&mut self);
    /// Returns the outcome of the current job, once. None if there is no job or it has not ended. With `wait`, waits for its end.
    fn outcome(&mut self, wait: bool) -> Option<Result<Committed, Failed>>;
    /// Performs a step of a refill and waits for it. No commit may be under way. The last step drops a commit that failed. Returns
    /// a snapshot of the store after the step.
    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError>;
}

/// A job that has not succeeded yet and may have to be retried.
struct Owed {
    job: CommitJob,
    durable: bool,
    /// The changes from dividing ranges, once they have been divided.
    divided: Option<Vec<Change>>,
}

/// A store and the hashes of its ranges, which every commit updates.
struct HashedStore {
    store: Box<dyn Store>,
    ranges: Ranges,
    range_keys: u64,
    owed: Option<Owed>,
    /// Entries below are certain to be in the store.
    below: LogPos,
    /// The last operation failed.
    failed: bool,
}

impl HashedStore {
    fn new(store: Box<dyn Store>, range_keys: u64) -> Result<Self, StoreError> {
        let ranges = Ranges::read(&*store.snapshot(), range_keys)?;
        let below = StateRecord::read(&*store.snapshot())?.next;
        Ok(HashedStore { store, ranges, range_keys, owed: None, below, failed: false })
    }

    fn run(&mut self, job: CommitJob, durable: bool) -> Result<Committed, Failed> {
        self.owed = Some(Owed { job, durable, divided: None });
        self.attempt()
    }

    /// Performs the current job from its beginning. After a failure it is unknown how much of the job the store has; writing a
    /// change twice is harmless.
    fn attempt(&mut self) -> Result<Committed, Failed> {
        match self.pay() {
            Ok(done) => {
                (self.owed, self.failed, self.below) = (None, false, done.below);
                Ok(done)
            }
            Err(error) => {
                hit("db.commit.failed");
                self.failed = true;
                Err(Failed { error, base: Some(self.store.snapshot()) })
            }
        }
    }

    /// Reopens the store after a failure and checks that it still has every committed entry.
    fn check_kept(&mut self) -> Result<(), StoreError> {
        self.store.reopen()?;
        let next = StateRecord::read(&*self.store.snapshot())?.next;
        if next < self.below {
            let reason =
                format!("entries below {} were committed, and only those below {next} are there", self.below);
            return Err(StoreError::lasting("was opened again", reason));
        }
        Ok(())
    }

    fn pay(&mut self) -> Result<Committed, StoreError> {
        if self.failed {
            self.check_kept()?;
        }
        let store = &mut *self.store;
        let Some(owed) = &mut self.owed else { return Err(nothing_owed()) };
        store.commit(owed.job.changes(&mut self.ranges))?;
        if owed.divided.is_none() {
            self.ranges.divide(&*store.snapshot())?;
            owed.divided = Some(self.ranges.take_changes());
        }
        if let Some(divided) = owed.divided.as_ref().filter(|d| !d.is_empty()) {
            store.commit(divided.clone())?;
        }
        if owed.durable {
            store.persist()?;
        }
        let (base, below, store_bytes) = (store.snapshot(), owed.job.below(), store.size_bytes());
        Ok(Committed { base, below, durable: owed.durable, store_bytes })
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        match step {
            Refill::Begin => self.store.begin_refill()?,
            Refill::Items(items) => self.store.refill(items)?,
            Refill::Finish => {
                self.store.finish_refill()?;
                self.ranges = Ranges::read(&*self.store.snapshot(), self.range_keys)?;
                // The job belongs to the state that was replaced.
                self.owed = None;
                self.below = StateRecord::read(&*self.store.snapshot())?.next;
            }
        }
        Ok(self.store.snapshot())
    }
}

/// Commits in the caller's thread.
pub(crate) struct Here {
    kept: HashedStore,
    outcome: Option<Result<Committed, Failed>>,
}

impl Here {
    /// Creates a committer for a store.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) fn new(store: Box<dyn Store>, options: &Options) -> Result<Self, StoreError> {
        Ok(Here { kept: HashedStore::new(store, options.range_keys)?, outcome: None })
    }
}

impl Committer for Here {
    fn start(&mut self, job: CommitJob, durable: bool) {
        self.outcome = Some(self.kept.run(job, durable));
    }

    fn again(&mut self) {
        self.outcome = Some(self.kept.attempt());
    }

    fn outcome(&mut self, _wait: bool) -> Option<Result<Committed, Failed>> {
        self.outcome.take()
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        self.kept.refill(step)
    }
}

enum Job {
    Commit(CommitJob, bool),
    Again,
    Refill(Refill, SyncSender<Result<Arc<dyn StoreSnapshot>, StoreError>>),
}

/// Commits in its own thread.
pub(crate) struct Aside {
    /// None tells the thread to end.
    jobs: Option<SyncSender<Job>>,
    outcomes: Receiver<Result<Committed, Failed>>,
    under_way: bool,
    thread: Option<JoinHandle<()>>,
}

fn nothing_owed() -> StoreError {
    StoreError::lasting("committed", "there was nothing to commit")
}

fn thread_gone() -> StoreError {
    StoreError::lasting("committed", "its thread has ended; the reason is on stderr")
}

impl Aside {
    /// Starts the thread. It calls `kick` when a commit has ended.
    ///
    /// # Errors
    /// The thread cannot be started, or the store cannot be read.
    pub(crate) fn start(
        store: Box<dyn Store>,
        options: &Options,
        kick: impl Fn() + Send + 'static,
    ) -> Result<Self, OpenError> {
        let mut kept = HashedStore::new(store, options.range_keys)?;
        let (jobs, orders) = sync_channel::<Job>(1);
        let (done, outcomes) = sync_channel(1);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while let Ok(job) = orders.recv() {
                let outcome = match job {
                    Job::Commit(job, durable) => kept.run(job, durable),
                    Job::Again => kept.attempt(),
                    Job::Refill(step, answer) => {
                        // The receiver still exists: the applier waits for each step.
                        drop(answer.send(kept.refill(step)));
                        continue;
                    }
                };
                if done.send(outcome).is_err() {
                    return;
                }
                kick();
            }
        })?;
        Ok(Aside { jobs: Some(jobs), outcomes, under_way: false, thread: Some(thread) })
    }

    fn send(&self, job: Job) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok())
    }
}

impl Committer for Aside {
    fn start(&mut self, job: CommitJob, durable: bool) {
        // If the thread is gone, the outcome reports it.
        self.under_way = true;
        self.send(Job::Commit(job, durable));
    }

    fn again(&mut self) {
        self.under_way = true;
        self.send(Job::Again);
    }

    fn outcome(&mut self, wait: bool) -> Option<Result<Committed, Failed>> {
        if !self.under_way {
            return None;
        }
        let gone = || Err(Failed { error: thread_gone(), base: None });
        let outcome = if wait {
            self.outcomes.recv().unwrap_or_else(|_| gone())
        } else {
            match self.outcomes.try_recv() {
                Ok(outcome) => outcome,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => gone(),
            }
        };
        self.under_way = false;
        Some(outcome)
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        let (answer, wait) = sync_channel(1);
        if !self.send(Job::Refill(step, answer)) {
            return Err(thread_gone());
        }
        wait.recv().unwrap_or_else(|_| Err(thread_gone()))
    }
}

impl Drop for Aside {
    /// Waits until the thread has ended and the store is closed. Its folder can then be opened again.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, [`Committer::outcome`] has reported that.
            let _ = thread.join();
        }
    }
}
