//! Watches: per node, in memory. A client sets them where it is connected, and brings them along when it moves to another node.
//!
//! Order (contracts X19): events are put into the connections' outboxes on the thread that applies, before the view that shows
//! their effects is published. A connection takes a view first, then the events in its outbox, then answers from the view: the
//! client therefore hears of a change before it reads it. Nor may a client read a state older than the events that it has received:
//! if it reads again because of an event, it would keep the old state for good. Where the outbox is ahead of the view, the read
//! waits ([`outbox::Outbox::drain_for`]).
//!
//! A watch must not miss a change between the view that its read was answered from and its registration, and must not fire for a
//! change that the read shows. It is therefore registered under the lock that events take, together with a view that shows all
//! events that were handed out so far ([`Watches::leave`]). Clients know of their watch only once they have the reply: an event of
//! it in front of the reply would be lost. So earlier events are taken under the same lock, and later ones go out behind the reply.
//!
//! | file | what it is |
//! | --- | --- |
//! | `table.rs` | who watches what; which of them a change concerns |
//! | `outbox.rs` | what must be sent to a connection |
//! | `reset.rs` | setWatches: a client that comes from elsewhere |

pub mod outbox;
pub mod reset;
pub mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_db::{LogPos, View};

use crate::event::Event;
use outbox::{End, Outbox};
use table::{Kind, Limits, Table};

/// How many watches of a closed connection are forgotten at once.
const PARTED_AT_ONCE: usize = 1_000;

/// A connection's number on its node, never used again.
pub type ConnectionId = u64;

#[derive(Debug, Default)]
struct Inner {
    table: Table,
    /// Events of entries below were handed out.
    told_below: LogPos,
}

/// All watches of a node.
#[derive(Debug)]
pub struct Watches(Mutex<Inner>, Limits);

/// The view does not show yet what was handed out: it will once entries below are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet(pub LogPos);

/// Why watches were not left. None of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotLeft {
    /// The view is not there yet.
    NotYet(NotYet),
    /// The connection, or the node, has as many as it may have.
    Full,
}

/// Watches that were left.
#[derive(Debug)]
pub struct Left {
    /// The view from which their read must be answered.
    pub view: View,
    /// For each whether it is new.
    pub new: Vec<bool>,
    /// Events that were moved.
    pub events: u64,
}

impl Watches {
    /// None yet; what they may take.
    pub fn new(limits: Limits) -> Self {
        Watches(Mutex::default(), limits)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection.
    pub fn join(&self, id: ConnectionId, outbox: Arc<Outbox>) {
        self.lock().table.join(id, outbox);
    }

    /// A connection is gone: forgets some of its watches and returns whether those were all. There may be many, and other threads
    /// wait meanwhile.
    pub fn part(&self, id: ConnectionId) -> bool {
        self.lock().table.part(id, PARTED_AT_ONCE)
    }

    /// Sets watches and returns the view that their read must be answered from: from that view on no event is missed. Moves the
    /// connection's earlier events behind `out`; its next event belongs behind the reply.
    ///
    /// # Errors
    /// The view is not there yet, or there is no room; nothing was left.
    pub fn leave<'p>(
        &self,
        id: ConnectionId,
        watches: impl IntoIterator<Item = (Kind, &'p str)> + Clone,
        out: &mut Vec<u8>,
        view: impl FnOnce() -> View,
    ) -> Result<Left, NotLeft> {
        let mut inner = self.lock();
        let view = view();
        if view.below() < inner.told_below {
            return Err(NotLeft::NotYet(NotYet(inner.told_below)));
        }
        if !inner.table.has_room(id, watches.clone(), self.1) {
            return Err(NotLeft::Full);
        }
        let new = watches.into_iter().map(|(kind, path)| inner.table.add(id, kind, path)).collect();
        let events = inner.table.drain(id, out);
        Ok(Left { view, new, events })
    }

    /// Takes watches of one connection away; whether one was there.
    pub fn take<'p>(&self, id: ConnectionId, watches: impl IntoIterator<Item = (Kind, &'p str)>) -> bool {
        let mut inner = self.lock();
        watches.into_iter().fold(false, |any, (kind, path)| inner.table.remove(id, kind, path) | any)
    }

    /// Whether a connection has the watch.
    pub fn has(&self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        self.lock().table.has(id, kind, path)
    }

    /// Hands out events of entries below `below`.
    pub fn tell(&self, below: LogPos, events: &[Event]) {
        let mut inner = self.lock();
        inner.told_below = inner.told_below.max(below);
        for event in events {
            inner.table.tell(below, event);
        }
    }

    /// Ends all connections of the node.
    pub fn end_all(&self, why: End) {
        self.lock().table.end_all(why);
    }

    /// Looks at the table, for figures and lists.
    pub fn look<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.lock().table)
    }
}
