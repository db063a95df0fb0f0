//! What the node thread passes to the journal thread.

use std::time::Duration;

use atoll_core::{Checkpoint, JournalBatch, Loc};
use atoll_storage::{Aside, Prepared};

use super::port::{Left, Port};

/// Work for the writer. The core bounds it: one batch, one checkpoint, and freed locations of existing entries.
#[derive(Default)]
pub(crate) struct Work {
    pub(super) batch: Option<JournalBatch>,
    pub(super) freed: Vec<Loc>,
    pub(super) checkpoint: Option<Checkpoint>,
    /// The last checkpoint, after it was written in the background.
    pub(super) aside: Option<Aside>,
    /// The result of the last job of the preparing thread, and how long the job took.
    pub(super) prepared: Option<(Prepared, Duration)>,
    /// Set if the node thread has written a batch, so that the journal thread wakes up and marks it later.
    pub(super) unmarked: bool,
    /// Set if a batch that the node thread has begun is under way, so that the journal thread waits for it.
    pub(super) flying: bool,
}

impl Left for Work {
    fn is_empty(&self) -> bool {
        self.batch.is_none()
            && self.freed.is_empty()
            && self.checkpoint.is_none()
            && self.aside.is_none()
            && self.prepared.is_none()
            && !self.unmarked
            && !self.flying
    }
}

/// Through this, the node thread passes work to the journal thread.
pub(crate) type JournalPort = Port<Work>;

impl Port<Work> {
    /// Passes the output of a turn to the journal thread.
    pub(crate) fn put(
        &self,
        batch: Option<JournalBatch>,
        freed: &mut Vec<Loc>,
        checkpoint: Option<Checkpoint>,
    ) {
        if batch.is_none() && freed.is_empty() && checkpoint.is_none() {
            return;
        }
        self.leave(|work| {
            if batch.is_some() {
                atoll_core::invariant!(work.batch.is_none(), "two batches under way");
                work.batch = batch;
            }
            work.freed.append(freed);
            work.checkpoint = checkpoint.or(work.checkpoint.take());
        });
    }

    pub(crate) fn prepared(&self, prepared: Prepared, took: Duration) {
        self.leave(|work| work.prepared = Some((prepared, took)));
    }

    pub(crate) fn written_aside(&self, aside: Aside) {
        self.leave(|work| work.aside = Some(aside));
    }
}
