//! What a connection is to be sent besides replies.

use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::task::AtomicWaker;

use crate::acl;
use crate::jute::Jute;
use crate::jute::codes::{EventType, perms, xid};
use crate::jute::records::{Id, ReplyHeader};
use crate::jute::reply::WatcherEvent;

/// Most bytes of events that wait for a client. A client that is further behind is cut off, and told what it missed when it registers its
/// watches again.
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
    /// The node has not reached the log for long: its clients are better off elsewhere.
    OutOfTouch,
    /// The node stops, or what its clients were promised cannot be kept.
    Closed,
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<u8>,
    count: u64,
    end: Option<End>,
    /// Who the client is, as scheme and id.
    ids: Vec<(String, String)>,
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

    /// An event for the client.
    pub fn tell(&self, kind: EventType, path: &str, zxid: i64, list: &[u8]) {
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
        let mut inner = self.lock();
        if !inner.events.is_empty() {
            out.append(&mut inner.events);
        }
        std::mem::take(&mut inner.count)
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
