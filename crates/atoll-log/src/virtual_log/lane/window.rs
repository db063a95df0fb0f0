//! The window of a lane: how many bytes of records may be unsettled, and the callers that wait for room.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::task::Waker;

use atoll_contract::entry::ClientId;
use atoll_core::sync::lock;
use atoll_core::{Bounds, Budget, Load, Place, WaitList};

use super::super::Busy;
use super::super::append::Item;

/// The records that wait for the lane, and how to wake it.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) queue: VecDeque<Item>,
    /// All unsettled records, including those in flight and parked.
    load: Load,
    pub(super) running: bool,
    pub(super) waker: Option<Waker>,
}

/// Records that were submitted but not sent yet. Bounded by `lane_window_bytes`.
#[derive(Debug)]
pub(in crate::virtual_log) struct Lane {
    pub(super) waiting: Mutex<Waiting>,
    window: Bounds,
    /// Callers that found the window full.
    callers: WaitList,
}

impl Lane {
    pub(in crate::virtual_log) fn new(window_bytes: usize) -> Self {
        let window = Bounds { items: usize::MAX, bytes: window_bytes };
        Lane { waiting: Mutex::default(), window, callers: WaitList::default() }
    }

    /// Reserves room for a submission, in this window and in the budget that all logs share. A submission larger than the window is
    /// accepted when the lane is empty.
    pub(in crate::virtual_log) fn reserve(
        &self,
        records: usize,
        bytes: usize,
        shared: &Budget,
    ) -> Result<(), Busy> {
        let mut w = lock(&self.waiting);
        if !w.load.fits(records, bytes, self.window) {
            return Err(Busy::Log { waiting_bytes: w.load.bytes });
        }
        shared.take(w.load.bytes, bytes).map_err(|waiting_bytes| Busy::Node { waiting_bytes })?;
        w.load.add(records, bytes);
        Ok(())
    }

    /// Returns whether [`Lane::reserve`] would find room in this window.
    pub(in crate::virtual_log) fn has_room(&self, bytes: usize) -> bool {
        lock(&self.waiting).load.fits(1, bytes, self.window)
    }

    /// Queues a caller that needs room for `bytes` bytes. A caller that needs more than the whole window is admitted when the window is
    /// empty.
    pub(in crate::virtual_log) fn place(&self, bytes: usize) -> Place {
        self.callers.place(bytes.min(self.window.bytes))
    }

    /// Wakes the waiting callers for which there is room now.
    pub(in crate::virtual_log) fn admit(&self) {
        if !self.callers.is_empty() {
            self.callers.admit(self.window.bytes.saturating_sub(self.held_bytes()));
        }
    }

    pub(in crate::virtual_log) fn push(&self, items: Vec<Item>) {
        lock(&self.waiting).queue.extend(items);
    }

    /// Takes the records of these clients out of the queue.
    pub(in crate::virtual_log) fn take_of(&self, clients: &BTreeSet<ClientId>) -> Vec<Item> {
        let mut w = lock(&self.waiting);
        let (taken, left) = w.queue.drain(..).partition(|item| clients.contains(&item.op.client));
        w.queue = left;
        taken.into()
    }

    pub(super) fn release(&self, bytes: usize, shared: &Budget) {
        lock(&self.waiting).load.remove(1, bytes);
        shared.give_back(bytes);
        self.admit();
    }

    /// Returns the number of bytes of all unsettled records.
    pub(in crate::virtual_log) fn held_bytes(&self) -> usize {
        lock(&self.waiting).load.bytes
    }
}
