//! What a lane adds up: the size of the batch that it cuts, and the failures of the batches that it sent.

use std::collections::BTreeSet;

use atoll_contract::entry::{ClientId, ENTRY_HEADER_BYTES, MAX_BATCH_ENTRIES};
use atoll_contract::loglet::{AppendError, Unavailability};

use super::super::append::Item;

/// The size of a batch under construction.
#[derive(Default)]
pub(super) struct BatchSize {
    bytes: usize,
    entries: usize,
}

impl BatchSize {
    /// Adds a record if it fits, and returns whether it did. The first record always fits.
    pub(super) fn takes(&mut self, item: &Item, limit_bytes: usize) -> bool {
        let bytes = self.bytes + item.payload.len() + ENTRY_HEADER_BYTES;
        let entries = self.entries + 1;
        if self.entries > 0 && (bytes > limit_bytes || entries > MAX_BATCH_ENTRIES) {
            return false;
        }
        (self.bytes, self.entries) = (bytes, entries);
        true
    }
}

/// The clients that already have an ordered record in flight, where only one of each may be.
pub(super) struct Alone {
    keeps_order: bool,
    clients: BTreeSet<ClientId>,
}

impl Alone {
    /// `keeps_order`: whether the Loglet keeps the order of a batch, so that nothing has to be left out.
    pub(super) fn new(keeps_order: bool) -> Self {
        Alone { keeps_order, clients: BTreeSet::new() }
    }

    /// Notes a record that is in flight in an earlier batch.
    pub(super) fn is_in_flight(&mut self, item: &Item) {
        if !self.keeps_order {
            self.clients.extend(item.goes_alone());
        }
    }

    /// Returns whether the batch may have this record as well. A record that is refused ends the batch, because later records must not
    /// precede it.
    pub(super) fn admits(&mut self, item: &Item) -> bool {
        self.keeps_order || item.goes_alone().is_none_or(|client| self.clients.insert(client))
    }
}

/// The most serious of several failures.
#[derive(Default)]
pub(super) struct Worst {
    pub(super) sealed: bool,
    pub(super) forgotten: bool,
    pub(super) why: Option<Unavailability>,
}

impl Worst {
    /// Adds a failure. Returns true if it says that nothing was appended.
    pub(super) fn add(&mut self, failed: Option<&AppendError>) -> bool {
        match failed {
            Some(AppendError::Sealed) => self.sealed = true,
            Some(AppendError::Forgotten) => self.forgotten = true,
            Some(AppendError::NotAppended(why)) => {
                self.why = self.why.or(Some(*why));
                return true;
            }
            Some(AppendError::Unknown(why)) => self.why = Some(*why),
            None => {}
        }
        false
    }
}
