//! Threads for disk operations that must block neither the node thread nor the writer: reading records, preparing journal segments, giving
//! back files, and writing checkpoints.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use atoll_core::{Fetch, FetchError};
use atoll_storage::{CheckpointJob, JournalReader, PrepareJob};

use super::incoming::Incoming;
use super::shared::{Readers, Shared};
use super::stats::add;

/// Queues a read. If too many wait already, returns the refusal.
pub(crate) fn ask(readers: &Readers, fetch: Fetch) -> Result<(), Incoming> {
    readers.put(fetch).map_err(|Fetch { role, tag, .. }| {
        let reason = format!("{} reads wait already; try again", readers.limit());
        Incoming::Fetched { role, tag, got: Err(FetchError { reason }) }
    })
}

/// Runs a reader thread.
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

/// Returns the queue and the body of the thread that writes checkpoints in the background. The thread ends when the queue's sender is
/// dropped.
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

/// Returns the pause between two pieces of a job. There are no more pauses once the host is stopping.
fn rest(shared: &Shared, pause: Duration) -> impl FnMut() {
    move || {
        if !shared.journal.is_stopping() {
            thread::sleep(pause);
        }
    }
}

/// Returns the queue and the body of the thread that prepares segments and gives files back. The thread ends when the queue's sender is
/// dropped.
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
