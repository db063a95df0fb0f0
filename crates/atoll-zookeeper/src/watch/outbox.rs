//! The messages other than replies that a connection must send.

use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_db::LogPos;
use futures_util::task::AtomicWaker;

use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::{EventType, perms, xid};
use crate::jute::records::{Id, ReplyHeader};
use crate::jute::reply::WatcherEvent;

/// Most bytes of events that wait for a client. A client that is further behind is disconnected, and is notified of what it missed
/// when it registers its watches again.
pub const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// Events tell that the session is connected.
const CONNECTED: i32 = 3;

/// Why a connection is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client reads too slowly.
    Behind,
    /// Its session is gone.
    SessionGone,
    /// Its session is served elsewhere.
    SessionMoved,
    /// The node has not reached the log for a long time: its clients are better served elsewhere.
    OutOfTouch,
    /// The node stops, or what its clients were promised cannot be kept.
    Closed,
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<u8>,
    count: u64,
    /// Entries of all events so far are below.
    told_below: LogPos,
    end: Option<End>,
    /// Who the client is, as scheme and id.
    ids: Vec<(String, String)>,
}

impl Inner {
    fn drain(&mut self, out: &mut Vec<u8>) -> u64 {
        if !self.events.is_empty() {
            out.append(&mut self.events);
        }
        std::mem::take(&mut self.count)
    }
}

/// The way from the threads that apply and judge to a connection. Never waits.
#[derive(Debug, Default)]
pub struct Outbox {
    inner: Mutex<Inner>,
    waker: AtomicWaker,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who the client is: events of nodes that it may not read are kept from it.
    pub fn set_ids(&self, ids: Vec<(String, String)>) {
        self.lock().ids = ids;
    }

    /// An event for the client, of an entry below `below`.
    pub fn tell(&self, below: LogPos, kind: EventType, path: &str, zxid: i64, list: &[u8]) {
        {
            let mut inner = self.lock();
            let may_read = list.is_empty() || {
                let ids: Vec<Id<'_>> = inner.ids.iter().map(|(scheme, id)| Id { scheme, id }).collect();
                acl::stored_allows(list, &ids, perms::READ)
            };
            if !may_read || inner.end.is_some() {
                return;
            }
            if inner.events.len() > MAX_WAITING_BYTES {
                inner.end = Some(End::Behind);
                inner.events = Vec::new();
            } else {
                write_event(kind, path, zxid, &mut inner.events);
                inner.count += 1;
                inner.told_below = inner.told_below.max(below);
            }
        }
        self.waker.wake();
    }

    /// The connection is to end. The first reason counts.
    pub fn end(&self, why: End) {
        self.lock().end.get_or_insert(why);
        self.waker.wake();
    }

    /// Moves what waits behind `out`; how many events.
    pub fn drain(&self, out: &mut Vec<u8>) -> u64 {
        self.lock().drain(out)
    }

    /// Moves the waiting events behind `out`, so that a reply may follow that shows the entries below `shown_below`; returns how
    /// many.
    ///
    /// # Errors
    /// The client was notified, or is about to be, of an entry that the reply would not show: answer it once entries below this are
    /// applied.
    pub fn drain_for(&self, shown_below: LogPos, out: &mut Vec<u8>) -> Result<u64, LogPos> {
        let mut inner = self.lock();
        if inner.told_below > shown_below { Err(inner.told_below) } else { Ok(inner.drain(out)) }
    }

    /// Whether the connection is to end.
    pub fn ended(&self) -> Option<End> {
        self.lock().end
    }

    /// Who is woken by the next event. Look again afterwards.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }
}

/// A notification with the length of its frame.
pub fn write_event(kind: EventType, path: &str, zxid: i64, out: &mut Vec<u8>) {
    let event = WatcherEvent { kind: kind.number(), state: CONNECTED, path };
    let length = ReplyHeader::LEAST_BYTES + WatcherEvent::LEAST_BYTES + path.len();
    // Paths are far shorter than 2 GiB.
    i32::try_from(length).unwrap_or(i32::MAX).write(out);
    ReplyHeader { xid: xid::NOTIFICATION, zxid, err: 0 }.write(out);
    event.write(out);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_the_client_was_told_of_is_shown_to_it() {
        let (outbox, mut out) = (Outbox::default(), Vec::new());
        assert_eq!(outbox.drain_for(LogPos(3), &mut out), Ok(0));
        outbox.tell(LogPos(5), EventType::NodeDataChanged, "/a", 1, &[]);
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Err(LogPos(5)), "the view does not show the event");
        assert!(out.is_empty());
        assert_eq!(outbox.drain_for(LogPos(5), &mut out), Ok(1));
        // Also once the event has gone out.
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Err(LogPos(5)));
        assert_eq!(outbox.drain_for(LogPos(6), &mut out), Ok(0));
    }

    #[test]
    fn events_that_are_kept_from_a_client_hold_up_nothing() {
        let (outbox, mut out) = (Outbox::default(), Vec::new());
        let id = Id { scheme: "digest", id: "ann:hash" };
        let others = acl::stored(&[crate::jute::records::Acl { perms: perms::ALL, id }]);
        outbox.tell(LogPos(5), EventType::NodeDataChanged, "/a", 1, &others);
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Ok(0));
    }
}
