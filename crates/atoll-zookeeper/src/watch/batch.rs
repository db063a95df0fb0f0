//! Notifications of several changes, collected before they are put into the outboxes. A transaction may change 30,000 nodes that
//! hundreds of clients watch, and the replica applies nothing meanwhile (contracts X25).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use super::ConnectionId;
use super::outbox::write_event;
use crate::acl::Readers;
use crate::jute::codes::EventType;

/// Once the notifications have this many bytes, they are put into the outboxes.
const FULL_BYTES: usize = 256 * 1024;

/// Spreads numbers that follow one another.
#[derive(Debug, Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0 ^ u64::from(*byte)));
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// A notification in its encoded form, and who may receive it.
#[derive(Debug)]
struct Note {
    frame: Range<usize>,
    readers: Arc<Readers>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// The frames of the notifications, one behind the other.
    frames: Vec<u8>,
    notes: Vec<Note>,
    /// For each connection, the places in `notes` of those that concern it, in order.
    of: HashMap<ConnectionId, Vec<u32>, BuildHasherDefault<Spread>>,
}

impl Batch {
    /// Records that the notification that is added next concerns a connection. Recording it twice has no effect.
    pub(super) fn concerns(&mut self, id: ConnectionId) {
        // A batch ends at `FULL_BYTES`, so there are not so many.
        let next = u32::try_from(self.notes.len()).unwrap_or(u32::MAX);
        let places = self.of.entry(id).or_default();
        if places.last() != Some(&next) {
            places.push(next);
        }
    }

    /// Adds a notification.
    pub(super) fn add(&mut self, kind: EventType, path: &str, zxid: i64, readers: Arc<Readers>) {
        let start = self.frames.len();
        write_event(kind, path, zxid, &mut self.frames);
        self.notes.push(Note { frame: start..self.frames.len(), readers });
    }

    /// Returns whether the notifications should be put into the outboxes.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() >= FULL_BYTES
    }

    /// Passes each connection, with the frames of its notifications and who may receive them, to `each`. Then it is empty.
    pub(super) fn drain(
        &mut self,
        mut each: impl for<'n> FnMut(ConnectionId, &mut dyn ExactSizeIterator<Item = (&'n [u8], &'n Readers)>),
    ) {
        let mut all: Vec<(ConnectionId, Vec<u32>)> = self.of.drain().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        for (id, places) in all {
            let note = |place: &u32| {
                let Note { frame, readers } = &self.notes[*place as usize];
                (&self.frames[frame.clone()], &**readers)
            };
            each(id, &mut places.iter().map(note));
        }
        self.notes.clear();
        self.frames.clear();
    }
}
