//! Records what clients did and saw. All events have one order, because the driver has one thread.

use std::sync::{Arc, Mutex};

use atoll_core::sync::lock;

/// One operation, with the numbers of its begin and its end. A lower number means an earlier moment.
#[derive(Clone, Debug)]
pub(super) struct Event<T> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) what: T,
}

#[derive(Debug)]
struct Record<T> {
    clock: u64,
    events: Vec<Event<T>>,
}

/// The history of a test. Cheap to clone; all clones share one state.
#[derive(Debug)]
pub(super) struct History<T>(Arc<Mutex<Record<T>>>);

impl<T> Clone for History<T> {
    fn clone(&self) -> Self {
        History(self.0.clone())
    }
}

impl<T: Clone> History<T> {
    pub(super) fn new() -> Self {
        History(Arc::new(Mutex::new(Record { clock: 0, events: Vec::new() })))
    }

    /// Records the start of an operation and returns its number.
    pub(super) fn begin(&self) -> u64 {
        let mut r = lock(&self.0);
        r.clock += 1;
        r.clock
    }

    /// Records how the operation ended.
    pub(super) fn end(&self, start: u64, what: T) {
        let mut r = lock(&self.0);
        r.clock += 1;
        let end = r.clock;
        r.events.push(Event { start, end, what });
    }

    pub(super) fn events(&self) -> Vec<Event<T>> {
        lock(&self.0).events.clone()
    }
}

/// A small random generator for the choices of a test. The product draws its randomness from the node.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1)
    }

    pub(super) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides.max(1)
    }
}
