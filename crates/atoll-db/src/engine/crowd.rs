//! The published state and everybody who waits for the replica: callers of commands, and waiters for a position to be passed. The
//! applying thread publishes and answers; any thread may wait. Every waiter is answered exactly once, however the replica ends.

use std::collections::{BTreeMap, VecDeque};

use atoll_contract::{LogPos, OpId};
use atoll_core::sync::{Arc, Mutex, lock};
use atoll_core::wait_list::{Place, WaitList};

/// Callers of an entry's commands.
#[derive(Debug)]
pub(crate) struct Waiting<C> {
    pub(crate) op: OpId,
    pub(crate) callers: Vec<C>,
    /// The size of their commands.
    pub(crate) bytes: usize,
}

/// A state of a replica.
pub(crate) trait Shown {
    /// Entries below are in it.
    fn below(&self) -> LogPos;
}

/// A waiter for a position.
pub(crate) trait Waits {
    /// Whether nobody would receive the result any more.
    fn is_abandoned(&self) -> bool;
}

/// How much may wait for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) commands: usize,
    pub(crate) bytes: usize,
}

struct Inside<C, R, H> {
    halted: Option<H>,
    /// Entries of this node that are not applied yet, in the order of the log. Bounded by what may wait at the path.
    waiting: VecDeque<Waiting<C>>,
    /// Commands that are not answered, on their way or not yet, and their bytes.
    commands: usize,
    bytes: usize,
    /// Waiters for a position to be passed. Bounded by the callers' tickets.
    applied: BTreeMap<LogPos, Vec<R>>,
}

/// See the module documentation. `P` is the state, `C` a caller of a command, `R` a waiter for a position, `H` why the replica
/// halted.
pub(crate) struct Crowd<P, C, R, H> {
    published: Mutex<Arc<P>>,
    inside: Mutex<Inside<C, R, H>>,
    bounds: Bounds,
    /// Who found no room for a command.
    refused: WaitList,
}

impl<P: Shown, C, R: Waits, H: Clone> Crowd<P, C, R, H> {
    pub(crate) fn new(published: Arc<P>, bounds: Bounds) -> Self {
        let inside = Inside {
            halted: None,
            waiting: VecDeque::new(),
            commands: 0,
            bytes: 0,
            applied: BTreeMap::new(),
        };
        let refused = WaitList::default();
        Crowd { published: Mutex::new(published), inside: Mutex::new(inside), bounds, refused }
    }

    pub(crate) fn published(&self) -> Arc<P> {
        lock(&self.published).clone()
    }

    /// Entries below are visible.
    pub(crate) fn below(&self) -> LogPos {
        lock(&self.published).below()
    }

    pub(crate) fn halted(&self) -> Option<H> {
        lock(&self.inside).halted.clone()
    }

    /// Commands that wait for an answer.
    pub(crate) fn commands(&self) -> usize {
        lock(&self.inside).commands
    }

    /// Registers waiters to be answered once entries below `below` are visible.
    ///
    /// # Errors
    /// They must be answered now: the waiters, and the answer.
    pub(crate) fn when_applied(&self, below: LogPos, who: Vec<R>) -> Result<(), (Vec<R>, Result<LogPos, H>)> {
        let mut inside = lock(&self.inside);
        // Under the waiters' lock: whatever is published after this finds them.
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
    /// There is no room: the number and the bytes of the commands that wait.
    pub(crate) fn reserve(&self, bytes: usize) -> Result<(), (usize, usize)> {
        let mut inside = lock(&self.inside);
        if !inside.fits(bytes, self.bounds) {
            return Err((inside.commands, inside.bytes));
        }
        (inside.commands, inside.bytes) = (inside.commands + 1, inside.bytes + bytes);
        Ok(())
    }

    /// Whether [`Crowd::reserve`] would find room.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        lock(&self.inside).fits(bytes, self.bounds)
    }

    /// A place among those that wait for room for a command of so many bytes.
    pub(crate) fn place(&self, bytes: usize) -> Place {
        self.refused.place(bytes.min(self.bounds.bytes))
    }

    /// Wakes those that find room now.
    pub(crate) fn admit(&self) {
        if self.refused.is_empty() {
            return;
        }
        let free_bytes = {
            let inside = lock(&self.inside);
            match inside.commands < self.bounds.commands {
                true => Some(self.bounds.bytes.saturating_sub(inside.bytes)),
                false => None,
            }
        };
        if let Some(free_bytes) = free_bytes {
            self.refused.admit(free_bytes);
        }
    }

    /// Wakes all of them: they will be refused.
    pub(crate) fn admit_all(&self) {
        self.refused.admit(usize::MAX);
    }

    /// Gives back the room of commands that were answered without ever being sent.
    pub(crate) fn release(&self, commands: usize, bytes: usize) {
        lock(&self.inside).gone(commands, bytes);
        self.admit();
    }

    /// An entry of this node is about to leave.
    ///
    /// # Errors
    /// The replica has halted and will not see the entry: it must not be sent, and its callers must be notified.
    pub(crate) fn expect(&self, waiting: Waiting<C>) -> Result<(), (Waiting<C>, H)> {
        let mut inside = lock(&self.inside);
        if let Some(halt) = inside.halted.clone() {
            inside.gone(waiting.callers.len(), waiting.bytes);
            drop(inside);
            self.admit();
            return Err((waiting, halt));
        }
        inside.waiting.push_back(waiting);
        Ok(())
    }

    /// The callers of an entry that came by in the log. Entries come in the order of their proposals, but some may never come.
    pub(crate) fn take(&self, op: OpId) -> Option<Waiting<C>> {
        let mut inside = lock(&self.inside);
        let place = inside.waiting.iter().position(|w| w.op == op)?;
        let waiting = inside.waiting.remove(place)?;
        inside.gone(waiting.callers.len(), waiting.bytes);
        drop(inside);
        self.admit();
        Some(waiting)
    }

    /// The entries that are waited for.
    pub(crate) fn ops(&self) -> Vec<OpId> {
        lock(&self.inside).waiting.iter().map(|w| w.op).collect()
    }

    /// Publishes a state for all readers; returns those that waited for it.
    pub(crate) fn publish(&self, published: Arc<P>) -> impl Iterator<Item = R> + use<P, C, R, H> {
        let below = published.below();
        let mut inside = lock(&self.inside);
        let old = std::mem::replace(&mut *lock(&self.published), published);
        let later = inside.applied.split_off(&below.plus(1));
        let passed = std::mem::replace(&mut inside.applied, later);
        drop(inside);
        // Dropping the last reference to an old state may free a lot.
        drop(old);
        passed.into_values().flatten()
    }

    /// The replica stops before an entry. Returns the waiters for entries and the waiters for positions.
    pub(crate) fn halt(&self, halt: &H) -> (VecDeque<Waiting<C>>, impl Iterator<Item = R> + use<P, C, R, H>) {
        let mut inside = lock(&self.inside);
        inside.halted = Some(halt.clone());
        let waiting = std::mem::take(&mut inside.waiting);
        for gone in &waiting {
            inside.gone(gone.callers.len(), gone.bytes);
        }
        let applied = std::mem::take(&mut inside.applied);
        drop(inside);
        self.admit();
        (waiting, applied.into_values().flatten())
    }
}

impl<C, R, H> Inside<C, R, H> {
    /// A command that is larger than the room is accepted when nothing else waits.
    fn fits(&self, bytes: usize, bounds: Bounds) -> bool {
        self.commands < bounds.commands && (self.commands == 0 || self.bytes + bytes <= bounds.bytes)
    }

    fn gone(&mut self, commands: usize, bytes: usize) {
        self.commands -= commands;
        self.bytes -= bytes;
    }
}
