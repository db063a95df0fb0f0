//! A log that counts the entries that it hands out: what a reader really reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use atoll_core::BoxFuture;

use crate::shared_log::{LogError, SharedLog, Slot};

/// The log, and the count.
#[derive(Debug)]
pub struct CountedLog {
    log: Arc<dyn SharedLog>,
    entries: AtomicU64,
}

impl CountedLog {
    /// Returns a log that has handed out nothing yet.
    pub fn new(log: Arc<dyn SharedLog>) -> Self {
        CountedLog { log, entries: AtomicU64::new(0) }
    }

    /// Returns how many entries were read through it.
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    fn count(&self, slot: &Slot) {
        self.entries.fetch_add(u64::from(matches!(slot, Slot::Data(_))), Ordering::Relaxed);
    }
}

impl SharedLog for CountedLog {
    fn append(&self, data: Bytes) -> BoxFuture<'_, Result<u64, LogError>> {
        self.log.append(data)
    }

    fn read(&self, position: u64) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            let slot = self.log.read(position).await?;
            self.count(&slot);
            Ok(slot)
        })
    }

    fn read_range(&self, from: u64, to: u64) -> BoxFuture<'_, Result<Vec<Slot>, LogError>> {
        Box::pin(async move {
            let slots = self.log.read_range(from, to).await?;
            slots.iter().for_each(|slot| self.count(slot));
            Ok(slots)
        })
    }

    fn fill(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        self.log.fill(position)
    }

    fn trim(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        self.log.trim(position)
    }

    fn trim_prefix(&self, to: u64) -> BoxFuture<'_, Result<(), LogError>> {
        self.log.trim_prefix(to)
    }

    fn tail(&self) -> BoxFuture<'_, Result<u64, LogError>> {
        self.log.tail()
    }
}
