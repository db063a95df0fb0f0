//! Events that wait to be sent on a connection, and the reason to end it.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Mutex, MutexGuard, PoisonError};

use atoll_db::LogPos;
use futures_util::task::AtomicWaker;

use super::batch::Spread;
use crate::acl::{Client, Readers};
use crate::jute::Jute;
use crate::jute::codes::{EventType, xid};
use crate::jute::records::ReplyHeader;
use crate::jute::reply::WatcherEvent;

/// Most bytes of events that may wait for a client. A client that is further behind is disconnected. When it registers its watches
/// again, it is notified of what it missed.
pub const MAX_WAITING_BYTES: usize = 4 * 1024 * 1024;
/// Memory for events that a connection keeps while none wait.
const KEPT_BYTES: usize = 4 * 1024;
/// The session state that events carry: connected.
const CONNECTED: i32 = 3;

/// The reason to end a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client reads too slowly.
    Behind,
    /// Its session is gone.
    SessionGone,
    /// Its session is served elsewhere.
    SessionMoved,
    /// This node has not reached the log for a long time, so the client should use another node.
    OutOfTouch,
    /// This node is stopping, or its clients must reconnect, for example because events are missing.
    Closed,
}

#[derive(Debug, Default)]
struct Inner {
    events: Vec<u8>,
    count: u64,
    /// All entries whose events were queued are below this position.
    sent_below: LogPos,
    end: Option<End>,
    client: Client,
}

impl Inner {
    /// Returns whether there is something to do for the connection.
    fn push<'n>(&mut self, below: LogPos, events: impl IntoIterator<Item = (&'n [u8], &'n Readers)>) -> bool {
        let (had, mut last) = (self.count, None::<(&Readers, bool)>);
        // By the address of the readers, which stay where they are.
        let mut judged = HashMap::<usize, bool, BuildHasherDefault<Spread>>::default();
        for (frame, readers) in events {
            if self.end.is_some() {
                break;
            }
            // Events that follow one another mostly concern nodes with the same ACL.
            let may = match last {
                Some((last, may)) if std::ptr::eq(last, readers) => may,
                _ => *judged
                    .entry(std::ptr::from_ref(readers).addr())
                    .or_insert_with(|| readers.include(&self.client)),
            };
            last = Some((readers, may));
            if !may {
                continue;
            }
            if self.events.len() > MAX_WAITING_BYTES {
                self.end = Some(End::Behind);
                self.events = Vec::new();
                return true;
            }
            self.events.extend_from_slice(frame);
            self.count += 1;
            self.sent_below = self.sent_below.max(below);
        }
        self.count > had
    }

    fn drain(&mut self, out: &mut Vec<u8>) -> u64 {
        if !self.events.is_empty() {
            out.append(&mut self.events);
            self.events.shrink_to(KEPT_BYTES);
        }
        std::mem::take(&mut self.count)
    }
}

/// The channel from the threads that apply and that expire sessions to a connection. Never blocks.
#[derive(Debug, Default)]
pub struct Outbox {
    inner: Mutex<Inner>,
    waker: AtomicWaker,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the client's ids. It gets no events of nodes that it may not read.
    pub fn set_ids(&self, ids: &[(String, String)]) {
        self.lock().client = Client::new(ids);
    }

    /// Queues an event of an entry below `below` for the client, as [`Outbox::push_all`] does.
    pub fn push(&self, below: LogPos, kind: EventType, path: &str, zxid: i64, readers: &Readers) {
        let mut frame = Vec::new();
        write_event(kind, path, zxid, &mut frame);
        self.push_all(below, [(&frame[..], readers)]);
    }

    /// Queues events of entries below `below` for the client, each with its frame and the node's readers. Drops an event if the client
    /// is not one of them, and all of them if the connection is to end. If too many bytes are waiting, the connection ends.
    pub fn push_all<'n>(&self, below: LogPos, events: impl IntoIterator<Item = (&'n [u8], &'n Readers)>) {
        let is_new = self.lock().push(below, events);
        if is_new {
            self.waker.wake();
        }
    }

    /// Asks the connection to end. The first reason counts.
    pub fn end(&self, why: End) {
        self.lock().end.get_or_insert(why);
        self.waker.wake();
    }

    /// Moves the waiting events to the end of `out`; returns their number.
    pub fn drain(&self, out: &mut Vec<u8>) -> u64 {
        self.lock().drain(out)
    }

    /// Moves the waiting events to the end of `out`, so that a reply may follow that shows the entries below `shown_below`. Returns
    /// the number of events.
    ///
    /// # Errors
    /// The client was notified, or is about to be, of an entry that the reply would not show. The request must wait until this node
    /// has applied all entries below the returned position.
    pub fn drain_for(&self, shown_below: LogPos, out: &mut Vec<u8>) -> Result<u64, LogPos> {
        let mut inner = self.lock();
        if inner.sent_below > shown_below { Err(inner.sent_below) } else { Ok(inner.drain(out)) }
    }

    /// Returns the reason to end the connection, if it is to end.
    pub fn ended(&self) -> Option<End> {
        self.lock().end
    }

    /// Sets who is woken by the next event or by the end. Check both again afterwards.
    pub fn register(&self, waker: &std::task::Waker) {
        self.waker.register(waker);
    }
}

/// Writes a notification, with the length of its frame.
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
    use bytes::Bytes;

    use super::*;
    use crate::acl;
    use crate::jute::codes::perms;
    use crate::jute::records::{Acl, Id};

    #[test]
    fn what_the_client_was_told_of_is_shown_to_it() {
        let (outbox, mut out) = (Outbox::default(), Vec::new());
        assert_eq!(outbox.drain_for(LogPos(3), &mut out), Ok(0));
        outbox.push(LogPos(5), EventType::NodeDataChanged, "/a", 1, &Readers::of(&Bytes::new()));
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Err(LogPos(5)), "the view does not show the event");
        assert!(out.is_empty());
        assert_eq!(outbox.drain_for(LogPos(5), &mut out), Ok(1));
        // This also holds after the event has gone out.
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Err(LogPos(5)));
        assert_eq!(outbox.drain_for(LogPos(6), &mut out), Ok(0));
    }

    #[test]
    fn events_that_are_kept_from_a_client_hold_up_nothing() {
        let (outbox, mut out) = (Outbox::default(), Vec::new());
        let id = Id { scheme: "digest", id: "ann:hash" };
        let others = Readers::of(&acl::stored(&[Acl { perms: perms::ALL, id }]).into());
        outbox.push(LogPos(5), EventType::NodeDataChanged, "/a", 1, &others);
        assert_eq!(outbox.drain_for(LogPos(4), &mut out), Ok(0));
    }

    #[test]
    fn events_follow_the_ids_that_a_client_has_now_until_the_end() {
        let (outbox, mut out) = (Outbox::default(), Vec::new());
        let entry = |id| Acl { perms: perms::READ, id: Id { scheme: "digest", id } };
        let [ann, bob] = ["ann:hash", "bob:hash"].map(|id| Readers::of(&acl::stored(&[entry(id)]).into()));
        let ids = |id: &str| [("digest".to_owned(), id.to_owned())];
        let push = |readers| outbox.push(LogPos(5), EventType::NodeDataChanged, "/a", 1, readers);
        outbox.set_ids(&ids("ann:hash"));
        (0..100).for_each(|_| push(&ann));
        assert_eq!(outbox.drain(&mut out), 100);
        // Other ids may read other nodes.
        outbox.set_ids(&ids("bob:hash"));
        push(&ann);
        push(&bob);
        assert_eq!(outbox.drain(&mut out), 1);
        outbox.end(End::Behind);
        (0..100).for_each(|_| push(&bob));
        assert_eq!(outbox.drain(&mut out), 0);
    }
}
