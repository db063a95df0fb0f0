//! The published state, and everyone who waits for the replica: the callers of commands, and the waiters for a position. The
//! applying thread publishes the state and answers the waiters; any thread may wait. Every waiter is answered exactly once, even if
//! the replica halts.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::{LogPos, OpId};
use atoll_core::sync::{Arc, Mutex, lock};
use atoll_core::wait_list::{Place, WaitList};
use atoll_core::{Bounds, Load};

/// The callers of the commands of one entry.
#[derive(Debug)]
pub(crate) struct Waiting<C> {
    pub(crate) op: OpId,
    pub(crate) callers: Vec<C>,
    /// The size of their commands in bytes.
    pub(crate) bytes: usize,
}

/// A state of a replica that can be published.
pub(crate) trait Shown {
    /// Returns the first position that the state does not include.
    fn below(&self) -> LogPos;
}

/// A waiter for a position.
pub(crate) trait Waits {
    /// Returns true if nobody would receive the result any more.
    fn is_abandoned(&self) -> bool;
}

struct Inside<C, R, H> {
    halted: Option<H>,
    /// Entries of this node that are not applied yet, in the order of the log. Bounded, because their commands are.
    waiting: VecDeque<Waiting<C>>,
    /// The commands without an answer, sent or not.
    load: Load,
    /// Waiters for a position. Bounded by the tickets that callers hold.
    applied: BTreeMap<LogPos, Vec<R>>,
}

/// See the module documentation. `P` is the state, `C` a caller of a command, `R` a waiter for a position, and `H` the reason for a
/// halt.
pub(crate) struct Crowd<P, C, R, H> {
    published: Mutex<Arc<P>>,
    inside: Mutex<Inside<C, R, H>>,
    /// Limits on the commands that wait for an answer.
    bounds: Bounds,
    /// The waiters for room for a command.
    refused: WaitList,
}

impl<P: Shown, C, R: Waits, H: Clone> Crowd<P, C, R, H> {
    pub(crate) fn new(published: Arc<P>, bounds: Bounds) -> Self {
        let inside = Inside {
            halted: None,
            waiting: VecDeque::new(),
            load: Load::default(),
            applied: BTreeMap::new(),
        };
        let refused = WaitList::default();
        Crowd { published: Mutex::new(published), inside: Mutex::new(inside), bounds, refused }
    }

    pub(crate) fn published(&self) -> Arc<P> {
        lock(&self.published).clone()
    }

    /// Returns the first position that the published state does not include.
    pub(crate) fn below(&self) -> LogPos {
        lock(&self.published).below()
    }

    pub(crate) fn halted(&self) -> Option<H> {
        lock(&self.inside).halted.clone()
    }

    /// Returns the number of commands that wait for an answer.
    pub(crate) fn commands(&self) -> usize {
        lock(&self.inside).load.items
    }

    /// Registers waiters that are to be answered once all entries below `below` are visible.
    ///
    /// # Errors
    /// The waiters must be answered now. Returns them with their answer.
    pub(crate) fn when_applied(&self, below: LogPos, who: Vec<R>) -> Result<(), (Vec<R>, Result<LogPos, H>)> {
        let mut inside = lock(&self.inside);
        // The position is read under the waiters' lock, so that any later publication finds the new waiters.
        let now = self.below();
        if now >= below {
            return Err((who, Ok(now)));
        }
        if let Some(halt) = &inside.halted {
            return Err((who, Err(halt.clone())));
        }
        let waiting = inside.applied.entry(below).or_default();
        waiting.retain(|w| !w.is_abandoned());
        waiting.extend(who);
        Ok(())
    }

    /// Reserves room for a command that awaits an answer.
    ///
    /// # Errors
    /// There is no room. Returns the number and the bytes of the waiting commands.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), (usize, usize)> {
        let mut inside = lock(&self.inside);
        if !inside.load.fits(1, bytes, self.bounds) {
            return Err((inside.load.items, inside.load.bytes));
        }
        inside.load.add(1, bytes);
        Ok(())
    }

    /// Returns true if [`Crowd::reserve`] would find room.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        lock(&self.inside).load.fits(1, bytes, self.bounds)
    }

    /// Returns a place in the queue of waiters for room, for a command of `bytes` bytes.
    pub(crate) fn place(&self, bytes: usize) -> Place {
        self.refused.place(bytes.min(self.bounds.bytes))
    }

    /// Wakes the waiters for which there is room now.
    pub(crate) fn admit(&self) {
        if self.refused.is_empty() {
            return;
        }
        let free_bytes = lock(&self.inside).load.free_bytes(self.bounds);
        if let Some(free_bytes) = free_bytes {
            self.refused.admit(free_bytes);
        }
    }

    /// Wakes all waiters for room: their commands will be refused for another reason.
    pub(crate) fn admit_all(&self) {
        self.refused.admit(usize::MAX);
    }

    /// Returns the room of commands that were answered without having been sent.
    pub(crate) fn release(&self, commands: usize, bytes: usize) {
        lock(&self.inside).load.remove(commands, bytes);
        self.admit();
    }

    /// Registers the callers of an entry of this node that is about to be sent.
    ///
    /// # Errors
    /// The replica has halted and will not apply the entry. The entry must not be sent, and its callers must be answered.
    pub(crate) fn expect(&self, waiting: Waiting<C>) -> Result<(), (Waiting<C>, H)> {
        let mut inside = lock(&self.inside);
        if let Some(halt) = inside.halted.clone() {
            inside.load.remove(waiting.callers.len(), waiting.bytes);
            drop(inside);
            self.admit();
            return Err((waiting, halt));
        }
        inside.waiting.push_back(waiting);
        Ok(())
    }

    /// Removes and returns the callers of an entry that was read from the log. Entries arrive in the order of their proposals, but
    /// some may never arrive.
    pub(crate) fn take(&self, op: OpId) -> Option<Waiting<C>> {
        let mut inside = lock(&self.inside);
        let place = inside.waiting.iter().position(|w| w.op == op)?;
        let waiting = inside.waiting.remove(place)?;
        inside.load.remove(waiting.callers.len(), waiting.bytes);
        drop(inside);
        self.admit();
        Some(waiting)
    }

    /// Returns the entries whose callers are waiting.
    pub(crate) fn ops(&self) -> Vec<OpId> {
        lock(&self.inside).waiting.iter().map(|w| w.op).collect()
    }

    /// Publishes a state to all readers. Returns the waiters that it satisfies.
    pub(crate) fn publish(&self, published: Arc<P>) -> impl Iterator<Item = R> + use<P, C, R, H> {
        let below = published.below();
        let mut inside = lock(&self.inside);
        let old = std::mem::replace(&mut *lock(&self.published), published);
        let later = inside.applied.split_off(&below.plus(1));
        let passed = std::mem::replace(&mut inside.applied, later);
        drop(inside);
        // Dropping the last reference to an old state may free much memory, so it happens outside the locks.
        drop(old);
        passed.into_values().flatten()
    }

    /// Records that the replica continues after a halt.
    pub(crate) fn resume(&self) {
        lock(&self.inside).halted = None;
    }

    /// Records that the replica has halted. Returns the waiters for entries and the waiters for positions, which must be answered.
    pub(crate) fn halt(&self, halt: &H) -> (VecDeque<Waiting<C>>, impl Iterator<Item = R> + use<P, C, R, H>) {
        let mut inside = lock(&self.inside);
        inside.halted = Some(halt.clone());
        let waiting = std::mem::take(&mut inside.waiting);
        for gone in &waiting {
            inside.load.remove(gone.callers.len(), gone.bytes);
        }
        let applied = std::mem::take(&mut inside.applied);
        drop(inside);
        self.admit();
        (waiting, applied.into_values().flatten())
    }
}
