//! The entries in flight of one loglet: ordered, but not yet globally committed. Payloads are shared, never copied (native-T20).

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Offset;
use atoll_core::Budget;

/// A batch with its offsets: one Store, and one record on every server.
#[derive(Debug)]
pub(super) struct InFlight {
    pub first: Offset,
    pub count: u32,
    pub batch: Bytes,
    /// Number of bytes of all batches since the loglet began, including this one.
    end_bytes: u64,
}

impl InFlight {
    pub fn end(&self) -> Offset {
        self.first.plus(self.count.into())
    }
}

/// The batches of `[known tail, next)`, in order.
#[derive(Debug)]
pub(super) struct Window {
    /// The budget that the windows of all loglets share.
    shared: Arc<Budget>,
    runs: VecDeque<InFlight>,
    /// Number of bytes of all batches that have left the window.
    left_bytes: u64,
    /// Number of bytes of all batches since the loglet began.
    total_bytes: u64,
}

impl Window {
    pub fn new(shared: Arc<Budget>) -> Self {
        Window { shared, runs: VecDeque::new(), left_bytes: 0, total_bytes: 0 }
    }

    pub fn push(&mut self, first: Offset, count: u32, batch: Bytes) {
        self.shared.add(batch.len());
        self.total_bytes += batch.len() as u64;
        self.runs.push_back(InFlight { first, count, batch, end_bytes: self.total_bytes });
    }

    /// Drops committed batches.
    pub fn commit(&mut self, known_tail: Offset) {
        while let Some(run) = self.runs.front() {
            if run.end() > known_tail {
                return;
            }
            self.left_bytes = run.end_bytes;
            self.shared.give_back(run.batch.len());
            self.runs.pop_front();
        }
    }

    /// Returns the first run that ends above `at`.
    pub fn run_at(&self, at: Offset) -> Option<&InFlight> {
        self.runs.get(self.index_of(at))
    }

    fn index_of(&self, at: Offset) -> usize {
        // The run is nearly always the newest or the oldest.
        match self.runs.back() {
            Some(last) if last.first <= at => self.runs.len() - usize::from(last.end() > at),
            _ => self.runs.partition_point(|run| run.end() <= at),
        }
    }

    /// Returns the number of bytes of the runs in `[from, to)`. Both must be bounds of runs.
    pub fn bytes_between(&self, from: Offset, to: Offset) -> u64 {
        let upto = |at: Offset| match self.index_of(at).checked_sub(1).and_then(|i| self.runs.get(i)) {
            Some(run) => run.end_bytes,
            None => self.left_bytes,
        };
        upto(to).saturating_sub(upto(from))
    }

    pub fn len_bytes(&self) -> u64 {
        self.total_bytes - self.left_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn clear(&mut self) {
        self.shared.give_back(self.len_bytes() as usize);
        self.runs.clear();
        self.left_bytes = self.total_bytes;
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.clear();
    }
}
