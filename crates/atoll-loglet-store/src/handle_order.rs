//! The order of one handle's appends (vlog-L8).
//!
//! Each append carries an epoch and a number, and the orderer takes the numbers of an epoch without a gap. When one append
//! fails, the rest of its epoch is refused, by the orderer or here, and a new epoch begins once the whole old one is answered.
//! So nothing overtakes a failed append, whatever the network does.

use atoll_contract::{AppendError, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{CallError, Unsent};

atoll_core::record! {
    /// The place of an append in the order of its handle.
    #[derive(Copy)]
    pub struct HandlePlace {
        /// The handle; drawn at random.
        pub handle: u64,
        /// Incremented when the handle starts again after a failed append.
        pub epoch: u64,
        /// Counts the appends of an epoch from 0.
        pub number: u64,
    }
}

/// The sending side.
#[derive(Debug)]
pub struct HandleOrder {
    place: HandlePlace,
    in_flight: usize,
    /// An append of this epoch failed.
    broken: bool,
    /// The orderer has answered, so it knows the configuration.
    pub configured: bool,
    /// The loglet is sealed, which is permanent: no need to ask again.
    pub sealed: bool,
}

impl HandleOrder {
    /// The order of a handle whose number is drawn at random.
    pub fn new(handle: u64) -> Self {
        let place = HandlePlace { handle, epoch: 0, number: 0 };
        HandleOrder { place, in_flight: 0, broken: false, configured: false, sealed: false }
    }

    /// The place of the next append; None while appends behind a failed one are still unanswered.
    pub fn next_place(&mut self) -> Option<HandlePlace> {
        if self.broken {
            if self.in_flight > 0 {
                return None;
            }
            hit("lane.new_epoch");
            self.place.epoch += 1;
            self.place.number = 0;
            self.broken = false;
        }
        let place = self.place;
        self.place.number += 1;
        self.in_flight += 1;
        Some(place)
    }

    /// Records that an append was answered, or given up.
    pub fn settle(&mut self, took: bool) {
        self.in_flight -= 1;
        self.broken |= !took;
    }
}

/// The meaning of a missing answer to an append; `None`: it did not come in time.
pub fn unanswered(error: Option<CallError>) -> AppendError {
    match error {
        Some(CallError::NotSent(Unsent::QueueFull(_))) => AppendError::NotAppended(Unavailability::Busy),
        Some(CallError::NotSent(Unsent::Stopping)) => AppendError::NotAppended(Unavailability::Stopping),
        Some(CallError::NotSent(Unsent::NotConnected(_)) | CallError::Refused { .. }) => {
            AppendError::NotAppended(Unavailability::NoSequencer)
        }
        Some(CallError::Lost(_) | CallError::Malformed { .. }) | None => {
            hit("append.unknown");
            AppendError::Unknown(Unavailability::NoSequencer)
        }
    }
}
