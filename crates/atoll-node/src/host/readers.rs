//! Threads that read records back, and the one that makes segments ahead of time: what must block neither the node thread
//! nor the writer.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use atoll_core::{Fetch, FetchError};
use atoll_storage::{JournalReader, PrepareJob};

use super::Shared;
use super::stats::add;
use super::wake::Incoming;

#[derive(Default)]
struct Queue {
    fetches: VecDeque<Fetch>,
    stop: bool,
}

/// A bounded queue of reads. The threads have the reader, not this: handles outlive them, and must not keep the disk.
pub(crate) struct Readers {
    limit: usize,
    queue: Mutex<Queue>,
    work: Condvar,
}

impl Readers {
    pub(crate) fn new(limit: usize) -> Self {
        Readers { limit, queue: Mutex::default(), work: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a read; the refusal if too many wait already.
    pub(crate) fn put(&self, fetch: Fetch) -> Result<(), Incoming> {
        let mut queue = self.lock();
        if queue.fetches.len() >= self.limit {
            let reason = format!("{} reads wait already; try again", self.limit);
            return Err(Incoming::Fetched {
                role: fetch.role,
                tag: fetch.tag,
                got: Err(FetchError { reason }),
            });
        }
        queue.fetches.push_back(fetch);
        drop(queue);
        self.work.notify_one();
        Ok(())
    }

    /// Reads that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().fetches.len()
    }

    pub(crate) fn stop(&self) {
        self.lock().stop = true;
        self.work.notify_all();
    }

    fn next(&self) -> Option<Fetch> {
        let mut queue = self.lock();
        loop {
            if queue.stop {
                return None;
            }
            if let Some(fetch) = queue.fetches.pop_front() {
                return Some(fetch);
            }
            queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A reader thread.
pub(crate) fn read(reader: &JournalReader, shared: &Shared) {
    while let Some(Fetch { role, tag, locs }) = shared.readers.next() {
        let got = reader.read(&locs);
        if let Err(error) = &got {
            tracing::error!(%error, "reading records back failed");
        }
        add(&shared.stats.fetches, 1);
        shared.inbound.put(Incoming::Fetched { role, tag, got });
    }
}

/// The thread that makes segments and gives files back; it ends when the sender of jobs is dropped.
pub(crate) fn preparing(
    shared: Arc<Shared>,
    fill_pause: Duration,
) -> (SyncSender<PrepareJob>, impl FnOnce() + Send + 'static) {
    let (jobs, queue): (_, Receiver<PrepareJob>) = sync_channel(1);
    let run = move || {
        for job in queue {
            let began = Instant::now();
            let prepared = job.run_paced(&mut || {
                // A stop does not wait for the zeros.
                if !shared.journal.is_stopping() {
                    thread::sleep(fill_pause);
                }
            });
            shared.journal.prepared(prepared, began.elapsed());
        }
    };
    (jobs, run)
}
