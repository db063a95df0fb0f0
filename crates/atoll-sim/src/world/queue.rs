//! Future events, in order of time; events at the same moment are in the order in which they were planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use atoll_core::{FetchError, RoleKind, Stored};
use bytes::Bytes;

/// Something that is going to happen in the world.
#[derive(Debug)]
pub enum Event {
    /// A host takes a turn.
    Turn {
        /// Which.
        host: usize,
    },
    /// The clients take a turn.
    Clients,
    /// A frame arrives.
    Arrive {
        /// On which connection.
        conn: u64,
        /// Towards the side that was dialed.
        to_peer: bool,
        /// The envelope.
        bytes: Bytes,
        /// A second copy: not part of what the connection counts.
        copy: bool,
    },
    /// A host tries to connect.
    Dial {
        /// Which connection, see `Network::slot`.
        slot: usize,
        /// The life of the dialer that tries.
        life: u64,
    },
    /// A broken connection is noticed by the side that dialed it.
    Down {
        /// Which.
        conn: u64,
    },
    /// Whether the other side of a connection has been silent for too long.
    Silent {
        /// Which.
        conn: u64,
    },
    /// The journal's thread has written a batch.
    Written {
        /// Where.
        host: usize,
        /// In which life.
        life: u64,
    },
    /// The journal's thread has synced it.
    Synced {
        /// Where.
        host: usize,
        /// In which life.
        life: u64,
    },
    /// Records were read.
    Fetched {
        /// Where.
        host: usize,
        /// In which life.
        life: u64,
        /// What was read.
        answer: Box<Answer>,
    },
    /// The journal takes care of its space.
    Upkeep {
        /// Where.
        host: usize,
        /// In which life.
        life: u64,
    },
    /// A dead host starts.
    Boot {
        /// Which.
        host: usize,
        /// Its last life, to start it once only.
        life: u64,
    },
    /// A stopped host goes on.
    Resume {
        /// Which.
        host: usize,
        /// In which life.
        life: u64,
    },
}

/// The answer to a read of stored records.
#[derive(Debug)]
pub struct Answer {
    /// Who asked.
    pub role: RoleKind,
    /// Its tag.
    pub tag: u64,
    /// The records.
    pub got: Result<Vec<Stored>, FetchError>,
}

/// When an event happens, its number in the order of planning, and its slot. Ordered by these, the earliest first.
type Planned = Reverse<(u64, u64, usize)>;

/// The plan. Events stay in place while their turn comes nearer: moving them within the heap would cost more than everything else
/// here.
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

    /// When the next event is.
    pub fn next_at(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    /// The next event.
    pub fn pop(&mut self) -> Option<(u64, Event)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        self.events[place].take().map(|event| (at, event))
    }
}
