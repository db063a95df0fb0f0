//! The order of one handle's appends (vlog-L8).
//!
//! Each append carries an epoch and a number, and the orderer accepts the numbers of an epoch without a gap. When one append fails, the
//! rest of its epoch is refused, by the orderer or here, and a new epoch begins once the whole old one is answered. So no append overtakes
//! a failed one, whatever the network does.

use atoll_contract::{AppendError, Placement, Unavailability};
use atoll_core::testing::hit;
use atoll_core::{CallError, Unsent};

use crate::message::Ordered;

atoll_core::record! {
    /// The position of an append in the order of its handle.
    #[derive(Copy)]
    pub struct HandlePlace {
        /// The handle; drawn at random.
        pub handle: u64,
        /// Incremented when the handle starts again after a failed append.
        pub epoch: u64,
        /// The number of the append in its epoch, from 0.
        pub number: u64,
    }
}

/// The sending side.
#[derive(Debug)]
pub struct HandleOrder {
    place: HandlePlace,
    in_flight: usize,
    /// Whether an append of this epoch failed.
    broken: bool,
    /// Whether the orderer has answered, and so knows the configuration.
    pub configured: bool,
    /// Whether the Loglet is sealed. A seal is permanent, so no request is needed to find out again.
    pub sealed: bool,
}

impl HandleOrder {
    /// Returns the order of a new handle, whose number the caller has drawn at random.
    pub fn new(handle: u64) -> Self {
        let place = HandlePlace { handle, epoch: 0, number: 0 };
        HandleOrder { place, in_flight: 0, broken: false, configured: false, sealed: false }
    }

    /// Returns the position of the next append; None while an append of an epoch with a failure is unanswered.
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

    /// Records that an append was answered, or that its caller no longer waits. `took` says whether it was accepted.
    pub fn settle(&mut self, took: bool) {
        self.in_flight -= 1;
        self.broken |= !took;
    }
}

/// Returns what the answer of an orderer means for the append.
pub fn answered(outcome: Ordered) -> Result<Placement, AppendError> {
    let not = |why| Err(AppendError::NotAppended(why));
    match outcome {
        Ordered::Committed { runs } => Ok(Placement { runs }),
        Ordered::Sealed {} => Err(AppendError::Sealed),
        Ordered::Forgotten {} => Err(AppendError::Forgotten),
        Ordered::WrongSequencer {} => not(Unavailability::WrongSequencer),
        Ordered::Busy {} | Ordered::Unconfigured {} => not(Unavailability::Busy),
        Ordered::StorageFailed {} => not(Unavailability::StorageFailed),
        Ordered::TooLarge {} => not(Unavailability::TooLarge),
        Ordered::DiskFull {} => not(Unavailability::DiskFull),
        Ordered::NoQuorum {} => Err(AppendError::Unknown(Unavailability::NoQuorum)),
        Ordered::NoSpace {} => Err(AppendError::Unknown(Unavailability::DiskFull)),
    }
}

/// Returns the error of an append without an answer. `None` means that no answer came in time.
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
