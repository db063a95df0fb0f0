//! Who writes to the store: the caller itself, or a thread that does it while the replica goes on (X17, X18).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use atoll_log::LogPos;
use bytes::Bytes;

use crate::replica::CommitJob;
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

fn run(store: &mut dyn Store, job: &CommitJob, durable: bool) -> Result<Committed, StoreError> {
    store.commit(job.changes())?;
    if durable {
        store.persist()?;
    }
    let (base, below, store_bytes) = (store.snapshot(), job.below(), store.size_bytes());
    Ok(Committed { base, below, durable, store_bytes })
}

fn refill(store: &mut dyn Store, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
    match step {
        Refill::Begin => store.begin_refill()?,
        Refill::Items(items) => store.refill(items)?,
        Refill::Finish => store.finish_refill()?,
    }
    Ok(store.snapshot())
}

/// Commits in the caller's thread.
pub(crate) struct Here {
    store: Box<dyn Store>,
    outcome: Option<Result<Committed, StoreError>>,
}

impl Here {
    pub(crate) fn new(store: Box<dyn Store>) -> Self {
        Here { store, outcome: None }
    }
}

impl Committer for Here {
    fn start(&mut self, job: CommitJob, durable: bool) {
        self.outcome = Some(run(&mut *self.store, &job, durable));
    }

    fn outcome(&mut self, _wait: bool) -> Option<Result<Committed, StoreError>> {
        self.outcome.take()
    }

    fn refill(&mut self, step: Refill) -> Result<Arc<dyn StoreSnapshot>, StoreError> {
        refill(&mut *self.store, step)
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
    /// The system gives no thread.
    pub(crate) fn start(
        mut store: Box<dyn Store>,
        kick: impl Fn() + Send + 'static,
    ) -> std::io::Result<Self> {
        let (jobs, orders) = sync_channel::<Job>(1);
        let (done, outcomes) = sync_channel(1);
        let thread = std::thread::Builder::new().name("store".into()).spawn(move || {
            while let Ok(job) = orders.recv() {
                match job {
                    Job::Commit(job, durable) => {
                        let outcome = run(&mut *store, &job, durable);
                        drop(job);
                        if done.send(outcome).is_err() {
                            return;
                        }
                        kick();
                    }
                    // Nobody who waits has gone: the applier waits for each step.
                    Job::Refill(step, answer) => drop(answer.send(refill(&mut *store, step))),
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
