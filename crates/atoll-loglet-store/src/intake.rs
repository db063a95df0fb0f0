//! Appends that an orderer holds because the window of their Loglet is full. They are ordered, in the order of their arrival, as soon as
//! there is room: their senders need not try again, and no timer runs. What an orderer holds is bounded by a budget that all its Loglets
//! share.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{Budget, Caller, Load, NodeId, Tick};

use crate::handle_order::HandlePlace;
use crate::message::NotBelow;

/// Approximate memory that an append takes besides its batch, in bytes. It bounds the number of small appends.
const APPEND_BYTES: usize = 256;

/// An append before it is ordered.
#[derive(Debug)]
pub struct Arrived {
    /// Who gets the answer.
    pub caller: Caller,
    /// The place in the order of its handle.
    pub place: HandlePlace,
    /// None of its entries is below this offset.
    pub not_below: NotBelow,
    /// The entries.
    pub batch: Bytes,
    /// When it arrived.
    pub at: Tick,
}

impl Arrived {
    fn size_bytes(&self) -> usize {
        self.batch.len() + APPEND_BYTES
    }
}

/// The appends to one Loglet that wait for room; see the module documentation.
#[derive(Debug)]
pub struct Intake {
    appends: VecDeque<Arrived>,
    load: Load,
    /// The budget that all Loglets of the orderer share.
    shared: Arc<Budget>,
}

impl Intake {
    /// Returns an empty intake.
    pub fn new(shared: Arc<Budget>) -> Self {
        Intake { appends: VecDeque::new(), load: Load::default(), shared }
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.appends.is_empty()
    }

    /// Returns the number of appends that wait.
    pub fn len(&self) -> usize {
        self.appends.len()
    }

    /// Returns whether this append waits already, so that another one with its place is a second copy.
    pub fn holds(&self, node: NodeId, place: HandlePlace) -> bool {
        self.appends.iter().any(|held| held.caller.node == node && held.place == place)
    }

    /// Adds an append at the end. Returns false, and drops it, if there is no room for it.
    pub fn hold(&mut self, append: Arrived) -> bool {
        let bytes = append.size_bytes();
        if self.shared.take(self.load.bytes, bytes).is_err() {
            return false;
        }
        self.load.add(1, bytes);
        self.appends.push_back(append);
        true
    }

    /// Returns the append that has waited longest.
    pub fn first(&self) -> Option<&Arrived> {
        self.appends.front()
    }

    /// Removes and returns the append that has waited longest.
    pub fn pop(&mut self) -> Option<Arrived> {
        let append = self.appends.pop_front()?;
        self.load.remove(1, append.size_bytes());
        self.shared.give_back(append.size_bytes());
        Some(append)
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_core::Class;

    fn arrived(number: u64, bytes: usize) -> Arrived {
        Arrived {
            caller: Caller { node: NodeId(1), request: Some(number), class: Class::Data },
            place: HandlePlace { handle: 7, epoch: 0, number },
            not_below: NotBelow(None),
            batch: Bytes::from(vec![0; bytes]),
            at: Tick(number),
        }
    }

    #[test]
    fn what_is_held_is_bounded_and_keeps_its_order() {
        let shared = Arc::new(Budget::new(8 * APPEND_BYTES));
        let (mut intake, mut other) = (Intake::new(shared.clone()), Intake::new(shared.clone()));
        assert!(intake.hold(arrived(1, APPEND_BYTES)) && intake.hold(arrived(2, APPEND_BYTES)));
        assert!(!intake.hold(arrived(3, 0)), "half of the budget is left for others");
        assert!(other.hold(arrived(1, 0)));
        assert!(
            intake.holds(NodeId(1), arrived(2, 0).place) && !intake.holds(NodeId(2), arrived(2, 0).place)
        );
        assert_eq!(intake.pop().unwrap().place.number, 1);
        assert_eq!((intake.first().unwrap().place.number, intake.len()), (2, 1));
        drop(intake);
        assert_eq!(shared.used_bytes(), APPEND_BYTES);
        drop(other);
        assert_eq!(shared.used_bytes(), 0);
    }
}
