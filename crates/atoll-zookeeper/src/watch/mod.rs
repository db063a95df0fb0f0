//! The watches of a node, in memory. A client registers them where it is connected, and again where it reconnects.
//!
//! Order (contracts X19): the applying thread puts events into the connections' outboxes before it publishes the view that shows
//! their effects. A connection first takes a view, then sends the events in its outbox, and then answers from the view, so a client
//! is notified of a change before it reads the change. Nor may a client read a state older than the events that it has received: if
//! it reads again because of an event, it would keep the old state forever. If the outbox is ahead of the view, the read waits
//! ([`outbox::Outbox::drain_for`]).
//!
//! A watch must not miss a change between the view that answers its read and its registration, and must not fire for a change that
//! the read shows. It is therefore registered under the lock that handing out events takes, together with a view that shows all
//! events handed out so far ([`Watches::set`]). A client knows of its watch only once it has the reply, so it would ignore an
//! event of that watch that preceded the reply. Earlier events are therefore taken under the same lock, and later ones are sent
//! after the reply.
//!
//! | file | what it is |
//! | --- | --- |
//! | `table.rs` | the watches, by path and by connection; finds those that a change concerns |
//! | `batch.rs` | the notifications of a transaction, on their way to the outboxes |
//! | `outbox.rs` | the events that must be sent on a connection |
//! | `reset.rs` | setWatches: a client that reconnects with its watches |

mod batch;
pub mod outbox;
pub mod reset;
pub mod table;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_db::{LogPos, View};

use crate::event::Event;
use outbox::{End, Outbox};
use table::{Kind, Limits, Table};

/// Watches of a closed connection to remove at once.
const PARTED_AT_ONCE: usize = 100;

/// A connection's number on its node. Never reused.
pub type ConnectionId = u64;

#[derive(Debug, Default)]
struct Inner {
    table: Table,
    /// Events of all entries below this position were handed out.
    sent_below: LogPos,
}

/// All watches of a node.
#[derive(Debug)]
pub struct Watches(Mutex<Inner>, Limits);

/// The view does not show all events that were handed out yet. It does once all entries below this position are applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotYet(pub LogPos);

/// The reason why watches were not registered. None of them was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// The view is not new enough yet.
    NotYet(NotYet),
    /// The connection, or the node, has as many watches as it may have.
    Full,
}

/// Watches that were registered.
#[derive(Debug)]
pub struct WatchesSet {
    /// The view from which the read must be answered.
    pub view: View,
    /// For each watch, whether it is new.
    pub new: Vec<bool>,
    /// The number of events that were moved to the output.
    pub events: u64,
}

impl Watches {
    /// Creates an empty set of watches with these limits.
    pub fn new(limits: Limits) -> Self {
        Watches(Mutex::default(), limits)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new connection.
    pub fn join(&self, id: ConnectionId, outbox: Arc<Outbox>) {
        self.lock().table.join(id, outbox);
    }

    /// Removes some watches of a connection that is gone; returns whether none is left. There may be many, and other threads wait
    /// meanwhile.
    pub fn part(&self, id: ConnectionId) -> bool {
        self.lock().table.part(id, PARTED_AT_ONCE)
    }

    /// Registers watches, and returns the view that their read must be answered from: no event after that view is missed. Moves the
    /// connection's earlier events to the end of `out`. The next event must be sent after the reply.
    ///
    /// # Errors
    /// The view is not new enough yet, or there is no room. No watch was registered.
    pub fn set<'p>(
        &self,
        id: ConnectionId,
        watches: impl IntoIterator<Item = (Kind, &'p str)> + Clone,
        out: &mut Vec<u8>,
        view: impl FnOnce() -> View,
    ) -> Result<WatchesSet, NotSet> {
        let mut inner = self.lock();
        let view = view();
        if view.below() < inner.sent_below {
            return Err(NotSet::NotYet(NotYet(inner.sent_below)));
        }
        if !inner.table.has_room(id, watches.clone(), self.1) {
            return Err(NotSet::Full);
        }
        let new = watches.into_iter().map(|(kind, path)| inner.table.add(id, kind, path)).collect();
        let events = inner.table.drain(id, out);
        Ok(WatchesSet { view, new, events })
    }

    /// Removes watches of a connection; returns whether at least one existed.
    pub fn take<'p>(&self, id: ConnectionId, watches: impl IntoIterator<Item = (Kind, &'p str)>) -> bool {
        let mut inner = self.lock();
        watches.into_iter().fold(false, |any, (kind, path)| inner.table.remove(id, kind, path) | any)
    }

    /// Returns whether a connection has the watch.
    pub fn has(&self, id: ConnectionId, kind: Kind, path: &str) -> bool {
        self.lock().table.has(id, kind, path)
    }

    /// Triggers the watches that these events concern. They are the events of entries below `below`.
    pub fn trigger(&self, below: LogPos, events: &[Event]) {
        let mut inner = self.lock();
        inner.sent_below = inner.sent_below.max(below);
        inner.table.trigger(below, events);
    }

    /// Ends all connections of the node.
    pub fn end_all(&self, why: End) {
        self.lock().table.end_all(why);
    }

    /// Passes the table to `look`, for figures and lists. Events wait meanwhile.
    pub fn look<T>(&self, look: impl FnOnce(&Table) -> T) -> T {
        look(&self.lock().table)
    }
}
