//! Future events, ordered by time. Events at the same moment keep the order in which they were planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use atoll_core::{FetchError, RoleKind, Stored};
use bytes::Bytes;

/// Something that is going to happen in the world.
#[derive(Debug)]
pub enum Event {
    /// A host takes a turn.
    Turn {
        /// The host.
        host: usize,
    },
    /// The clients take a turn.
    Clients,
    /// A frame arrives.
    Arrive {
        /// The connection.
        conn: u64,
        /// True if it goes to the side that was dialed.
        to_peer: bool,
        /// The encoded envelope.
        bytes: Bytes,
        /// Whether it is a second copy, which does not count toward the bytes in flight.
        copy: bool,
    },
    /// A host tries to connect.
    Dial {
        /// The slot of the connection, see `Network::slot`.
        slot: usize,
        /// The life of the dialer that planned this attempt.
        life: u64,
    },
    /// The side that dialed a connection notices that it broke.
    Down {
        /// The connection.
        conn: u64,
    },
    /// A connection breaks if its frames are held up, or one of its sides is paused, by now.
    Silent {
        /// The connection.
        conn: u64,
    },
    /// A connection breaks, because a packet was not acknowledged for too long.
    Unacknowledged {
        /// The connection.
        conn: u64,
    },
    /// The journal's thread writes a batch.
    Written {
        /// The host.
        host: usize,
        /// Its life; in a later one the event has no effect.
        life: u64,
    },
    /// The journal's thread syncs the batch that it wrote.
    Synced {
        /// The host.
        host: usize,
        /// Its life; in a later one the event has no effect.
        life: u64,
    },
    /// A read of stored records ends.
    Fetched {
        /// The host.
        host: usize,
        /// Its life; in a later one the event has no effect.
        life: u64,
        /// The result.
        answer: Box<Answer>,
    },
    /// The journal prepares segments and asks for checkpoints and compaction.
    Upkeep {
        /// The host.
        host: usize,
        /// Its life; in a later one the event has no effect.
        life: u64,
    },
    /// A dead host starts.
    Boot {
        /// The host.
        host: usize,
        /// Its last life, so that it is started only once.
        life: u64,
    },
    /// A paused process continues.
    Resume {
        /// The host.
        host: usize,
        /// Its life; in a later one the event has no effect.
        life: u64,
    },
}

/// The answer to a read of stored records.
#[derive(Debug)]
pub struct Answer {
    /// The role that asked.
    pub role: RoleKind,
    /// The tag of its request.
    pub tag: u64,
    /// The records.
    pub got: Result<Vec<Stored>, FetchError>,
}

/// The time of an event, its number in the order of planning, and its index in `events`. The earliest comes first.
type Planned = Reverse<(u64, u64, usize)>;

/// The planned events. The heap orders only small keys, because moving whole events would cost more than everything else here.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Planned>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    next: u64,
}

impl Queue {
    /// Plans an event.
    pub fn push(&mut self, at: u64, event: Event) {
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.heap.push(Reverse((at, self.next, place)));
        self.next += 1;
    }

    /// Returns the time of the next event.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// Removes and returns the next event, with its time.
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place].take().map(|event| (at, event))
    }
}
