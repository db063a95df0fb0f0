//! Who commits to the store: the caller itself, or a thread that does it while the replica goes on (X17, X18).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use atoll_log::LogPos;

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

/// Commits one job at a time.
pub(crate) trait Committer: Send {
    /// Starts a job. None may be under way.
    fn start(&mut self, job: CommitJob, durable: bool);
    /// The outcome of the job under way; with `wait`, waits for it.
    fn outcome(&mut self, wait: bool) -> Option<Result<Committed, StoreError>>;
}

fn run(store: &mut dyn Store, job: &CommitJob, durable: bool) -> Result<Committed, StoreError> {
    store.commit(job.changes())?;
    if durable {
        store.persist()?;
    }
    let (base, below, store_bytes) = (store.snapshot(), job.below(), store.size_bytes());
    Ok(Committed { base, below, durable, store_bytes })
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
}

/// Commits in a thread of its own.
pub(crate) struct Aside {
    jobs: SyncSender<(CommitJob, bool)>,
    outcomes: Receiver<Result<Committed, StoreError>>,
    under_way: bool,
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
        let (jobs, orders) = sync_channel::<(CommitJob, bool)>(1);
        let (done, outcomes) = sync_channel(1);
        std::thread::Builder::new().name("store".into()).spawn(move || {
            while let Ok((job, durable)) = orders.recv() {
                let outcome = run(&mut *store, &job, durable);
                drop(job);
                if done.send(outcome).is_err() {
                    return;
                }
                kick();
            }
        })?;
        Ok(Aside { jobs, outcomes, under_way: false })
    }
}

impl Committer for Aside {
    fn start(&mut self, job: CommitJob, durable: bool) {
        // A thread that is gone is told by the outcome.
        self.under_way = true;
        let _ = self.jobs.send((job, durable));
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
}
