//! Events for the host: two bounded queues, control before data.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use atoll_core::{Class, Envelope, Link, NodeId};
use tokio::sync::Notify;

use crate::bodies::Bodies;
use crate::handshake::{Identity, Refusal};

/// What happened on the network. Frames and links of one peer and class are delivered in the order in which they happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetEvent {
    /// An envelope for [`atoll_core::NodeCore::deliver`].
    Frame {
        /// The sender.
        from: NodeId,
        /// The class of the connection.
        class: Class,
        /// The message. The number of a request includes a mark of its connection; use it unchanged in the reply.
        envelope: Envelope,
    },
    /// The state of a connection that this node dials, for [`atoll_core::NodeCore::set_link`].
    Link {
        /// The peer.
        peer: NodeId,
        /// The class of the connection.
        class: Class,
        /// Its new state.
        link: Link,
    },
    /// A peer has connected for the first time, or in another life than before.
    Peer {
        /// The peer.
        peer: NodeId,
        /// Its life and the identity of its data directory.
        identity: Identity,
    },
    /// A peer refuses this node. Reported once per reason. [`crate::RefusalCode::Duplicate`] means that another node has this id, so this
    /// process should stop.
    Refused {
        /// The peer.
        by: NodeId,
        /// The reason.
        refusal: Refusal,
    },
}

impl NetEvent {
    /// Returns roughly how much memory the event takes.
    pub fn size_bytes(&self) -> usize {
        const FIXED: usize = 128;
        match self {
            NetEvent::Frame { envelope, .. } => FIXED + envelope.frame.size_bytes(),
            _ => FIXED,
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<NetEvent>,
    bytes: usize,
}

#[derive(Debug, Default)]
struct InboxState {
    queues: [Queue; 2],
    waker: Option<Waker>,
    closed: bool,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    limit_bytes: usize,
    state: Mutex<InboxState>,
    /// Notified when a queue that was at its limit is below it again.
    room: [Notify; 2],
    /// Memory for the bodies of the frames that arrive.
    pub(crate) bodies: Arc<Bodies>,
}

fn index(class: Class) -> usize {
    match class {
        Class::Control => 0,
        Class::Data => 1,
    }
}

impl Inbox {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Inbox {
            limit_bytes,
            state: Mutex::default(),
            room: [Notify::new(), Notify::new()],
            bodies: Arc::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put(&self, class: Class, events: impl IntoIterator<Item = NetEvent>) {
        let waker = {
            let mut state = self.lock();
            let queue = &mut state.queues[index(class)];
            for event in events {
                queue.bytes += event.size_bytes();
                queue.events.push_back(event);
            }
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until the queue of the class is below its limit. A reader waits only for the host, never for a writer (contracts X12).
    pub(crate) async fn room(&self, class: Class) {
        loop {
            let mut below = std::pin::pin!(self.room[index(class)].notified());
            below.as_mut().enable();
            if self.lock().queues[index(class)].bytes < self.limit_bytes {
                return;
            }
            below.await;
        }
    }

    pub(crate) fn waiting(&self) -> [(Class, usize, usize); 2] {
        let state = self.lock();
        [Class::Control, Class::Data].map(|c| {
            let queue = &state.queues[index(c)];
            (c, queue.events.len(), queue.bytes)
        })
    }

    pub(crate) fn close(&self) {
        let waker = {
            let mut state = self.lock();
            state.closed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// The receiving end of the events. It must have only one reader.
#[derive(Debug)]
pub struct NetEvents(pub(crate) Arc<Inbox>);

impl NetEvents {
    /// Becomes ready when an event waits, or when the network is closed.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.closed || state.queues.iter().any(|q| !q.events.is_empty()) {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns whether the network is closed. No more events follow those that wait.
    pub fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Returns whether an event waits.
    pub fn has_waiting(&self) -> bool {
        self.0.lock().queues.iter().any(|q| !q.events.is_empty())
    }

    /// Moves waiting events to the end of `into` and returns how many. Control events come first, but a quarter of the limits is reserved
    /// for data. Stops after `max_events`, or after the event that reaches `max_bytes`.
    pub fn drain(&mut self, into: &mut Vec<NetEvent>, max_events: usize, max_bytes: usize) -> usize {
        let before = into.len();
        let mut room = [false; 2];
        {
            let mut state = self.0.lock();
            let mut left_bytes = max_bytes;
            for i in [0, 1] {
                let others = if i == 0 { state.queues[1].events.len() } else { 0 };
                let most = max_events - (into.len() - before) - others.min(max_events / 4);
                let queue = &mut state.queues[i];
                let was_over = queue.bytes >= self.0.limit_bytes;
                let reserve = if others > 0 { max_bytes / 4 } else { 0 };
                for _ in 0..most {
                    if left_bytes <= reserve {
                        break;
                    }
                    let Some(event) = queue.events.pop_front() else { break };
                    queue.bytes -= event.size_bytes();
                    left_bytes = left_bytes.saturating_sub(event.size_bytes());
                    into.push(event);
                }
                room[i] = was_over && queue.bytes < self.0.limit_bytes;
            }
        }
        for (room, notify) in room.into_iter().zip(&self.0.room) {
            if room {
                notify.notify_waiters();
            }
        }
        into.len() - before
    }

    /// Returns the next event, control first, or None once the network is closed and all events were taken.
    pub async fn next(&mut self) -> Option<NetEvent> {
        std::future::poll_fn(|cx| self.poll_ready(cx)).await;
        let mut one = Vec::with_capacity(1);
        self.drain(&mut one, 1, usize::MAX);
        one.pop()
    }

    /// Returns the events that wait, per class: number and bytes.
    pub fn waiting(&self) -> [(Class, usize, usize); 2] {
        self.0.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(peer: u32, class: Class) -> NetEvent {
        NetEvent::Link { peer: NodeId(peer), class, link: Link::Up }
    }

    #[test]
    fn control_comes_first_and_data_is_not_starved() {
        let inbox = Arc::new(Inbox::new(1 << 20));
        let mut events = NetEvents(inbox.clone());
        inbox.put(Class::Data, (0..100).map(|i| link(i, Class::Data)));
        inbox.put(Class::Control, (0..100).map(|i| link(i, Class::Control)));
        let mut got = Vec::new();
        assert_eq!(events.drain(&mut got, 40, usize::MAX), 40);
        let expected: Vec<_> =
            (0..30).map(|i| link(i, Class::Control)).chain((0..10).map(|i| link(i, Class::Data))).collect();
        assert_eq!(got, expected);
        let mut rest = Vec::new();
        while events.drain(&mut rest, 7, 300) > 0 {}
        assert_eq!(rest.len(), 160);
        assert!(events.waiting().iter().all(|(_, n, bytes)| *n == 0 && *bytes == 0));
    }
}
