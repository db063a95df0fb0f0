//! Threads that read records back, and the one that makes segments ahead of time: what must block neither the node thread
//! nor the writer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use atoll_core::{Fetch, FetchError};
use atoll_storage::{CheckpointJob, JournalReader, PrepareJob};

use super::Shared;
use super::incoming::Incoming;
use super::queue::Queue;
use super::stats::add;

/// A bounded queue of reads. The threads own the reader, the queue does not: handles outlive the threads, and must not keep the disk open.
pub(crate) type Readers = Queue<Fetch>;

/// Queues a read; the refusal if too many wait already.
pub(crate) fn ask(readers: &Readers, fetch: Fetch) -> Result<(), Incoming> {
    readers.put(fetch).map_err(|Fetch { role, tag, .. }| {
        let reason = format!("{} reads wait already; try again", readers.limit());
        Incoming::Fetched { role, tag, got: Err(FetchError { reason }) }
    })
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

/// The thread that writes checkpoints aside; it ends when the sender of jobs is dropped.
pub(crate) fn checkpointing(
    shared: Arc<Shared>,
    pause: Duration,
) -> (SyncSender<CheckpointJob>, impl FnOnce() + Send + 'static) {
    let (jobs, queue): (_, Receiver<CheckpointJob>) = sync_channel(1);
    let run = move || {
        for job in queue {
            shared.journal.written_aside(job.run_paced(&mut rest(&shared, pause)));
        }
    };
    (jobs, run)
}

/// A pause between two pieces of work that can wait. A stop does not wait for it.
fn rest(shared: &Shared, pause: Duration) -> impl FnMut() {
    move || {
        if !shared.journal.is_stopping() {
            thread::sleep(pause);
        }
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
            let prepared = job.run_paced(&mut rest(&shared, fill_pause));
            shared.journal.prepared(prepared, began.elapsed());
        }
    };
    (jobs, run)
}
