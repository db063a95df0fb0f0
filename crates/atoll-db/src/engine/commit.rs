//! Who writes to the store: the caller itself, or a thread that does it while the replica goes on (X17, X18).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use atoll_log::LogPos;
use bytes::Bytes;

use super::{OpenError, Options};
use crate::replica::{CommitJob, Ranges};
use crate::store::{Store, StoreError, StoreSnapshot};

/// A commit that was done.
#[derive(Debug)]
pub(crate) struct Committed {
    pub(crate) base: Arc<dyn StoreSnapshot>,
    /// Entries below are in the store.
    pub(crate) below: LogPos,
    /// And durable.
    pub(crate) durable: bool,
    pub(crate) store_bytes: u64,
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
    /// Starts a job. None may be under way.
    fn start(&mut self, job: CommitJob, durable: bool);
    /// The outcome of the job under way; with `wait`, waits for it.
    fn outcome(&mut self, wait: bool) -> Option<Result<Committed, StoreError>>;
    /// Does a step of a refill, and waits for it. No commit may be under way. What the store shows then.
    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError>;
}

/// A store, and the hashes of its ranges, which change with every commit.
struct Kept {
    store: Box<dyn Store>,
    ranges: Ranges,
    range_keys: u64,
}

impl Kept {
    fn new(store: Box<dyn Store>, range_keys: u64) -> Result<Self, StoreError> {
        let ranges = Ranges::read(&*store.snapshot(), range_keys)?;
        Ok(Kept { store, ranges, range_keys })
    }

    fn run(&mut self, job: &mut CommitJob, durable: bool) -> Result<Committed, StoreError> {
        let store = &mut *self.store;
        store.commit(job.take_changes(&mut self.ranges))?;
        self.ranges.divide(&*store.snapshot())?;
        let divided = self.ranges.take_changes();
        if !divided.is_empty() {
            store.commit(divided)?;
        }
        if durable {
            store.persist()?;
        }
        let (base, below, store_bytes) = (store.snapshot(), job.below(), store.size_bytes());
        Ok(Committed { base, below, durable, store_bytes })
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        match step {
            Refill::Begin => self.store.begin_refill()?,
            Refill::Items(items) => self.store.refill(items)?,
            Refill::Finish => {
                self.store.finish_refill()?;
                self.ranges = Ranges::read(&*self.store.snapshot(), self.range_keys)?;
            }
        }
        Ok(self.store.snapshot())
    }
}

/// Commits in the caller's thread.
pub(crate) struct Here {
    kept: Kept,
    outcome: Option<Result<Committed, StoreError>>,
}

impl Here {
    /// Over a store.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn new(store: Box<dyn Store>, options: &Options) -> Result<Self, StoreError> {
        Ok(Here { kept: Kept::new(store, options.range_keys)?, outcome: None })
    }
}

impl Committer for Here {
    fn start(&mut self, mut job: CommitJob, durable: bool) {
        self.outcome = Some(self.kept.run(&mut job, durable));
    }

    fn outcome(&mut self, _wait: bool) -> Option<Result<Committed, StoreError>> {
        self.outcome.take()
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        self.kept.refill(step)
    }
}

enum Job {
    Commit(CommitJob, bool),
    Refill(Refill, SyncSender<Result<Arc<dyn StoreSnapshot>, StoreError>>),
}

/// Commits in a thread of its own.
pub(crate) struct Aside {
    /// None once it is to end.
    jobs: Option<SyncSender<Job>>,
    outcomes: Receiver<Result<Committed, StoreError>>,
    under_way: bool,
    thread: Option<JoinHandle<()>>,
}

fn thread_gone() -> StoreError {
    StoreError { doing: "committed", reason: "its thread is gone; its words are on stderr".to_owned() }
}

impl Aside {
    /// Starts the thread; `kick` is called when a job is done.
    ///
    /// # Errors
    /// The system gives no thread, or the store cannot be read.
    pub(crate) fn start(
        store: Box<dyn Store>,
        options: &Options,
        kick: impl Fn() + Send + 'static,
    ) -> Result<Self, OpenError> {
        let mut kept = Kept::new(store, options.range_keys)?;
        let (jobs, orders) = sync_channel::<Job>(1);
        let (done, outcomes) = sync_channel(1);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while let Ok(job) = orders.recv() {
                match job {
                    Job::Commit(mut job, durable) => {
                        let outcome = kept.run(&mut job, durable);
                        drop(job);
                        if done.send(outcome).is_err() {
                            return;
                        }
                        kick();
                    }
                    // Nobody who waits has gone: the applier waits for each step.
                    Job::Refill(step, answer) => drop(answer.send(kept.refill(step))),
                }
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
        // A thread that is gone is told by the outcome.
        self.under_way = true;
        self.send(Job::Commit(job, durable));
    }

    fn outcome(&mut self, wait: bool) -> Option<Result<Committed, StoreError>> {
        if !self.under_way {
            return None;
        }
        let outcome = if wait {
            self.outcomes.recv().unwrap_or_else(|_| Err(thread_gone()))
        } else {
            match self.outcomes.try_recv() {
                Ok(outcome) => outcome,
                Err(TryRecvError::Empty) => return None,
                Err(TryRecvError::Disconnected) => Err(thread_gone()),
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
    /// The store is closed when this returns: its folder may be opened again.
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // Its panic was told by the outcome that it owes.
            let _ = thread.join();
        }
    }
}
