//! The unanswered requests of a connection, in order.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use atoll_core::Ticket;
use atoll_core::testing::mutant;
use atoll_db::{BarrierError, LogPos, Proposed, Stopped};
use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::frame;
use super::handshake::Ended;
use super::order::{Touched, shows, touched};
use super::walk::{Elsewhere, Listed};
use super::watching::{Again, NewWatch};
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::RequestHeader;
use crate::jute::{Jute, Reader};
use crate::mutants;

/// An unanswered request, and what it waits for.
pub(crate) enum Pending {
    /// A write that is held back until an earlier read is answered, because that read must not show it: its frame.
    Held(Bytes),
    /// A write that waits until it is applied. A large one holds its room in the log until then.
    Write { xid: i32, at: Instant, proposed: Proposed, room: Option<OwnedSemaphorePermit> },
    /// A write that was applied before its turn to be answered: its answer.
    Applied { xid: i32, answer: Bytes },
    /// A CloseSession that waits until it is applied.
    Close { xid: i32, proposed: Proposed },
    /// A sync that waits until this node has applied everything that was acknowledged to any client before it.
    Sync { xid: i32, path: String, barrier: Ticket<Result<LogPos, BarrierError>> },
    /// A request that is answered from the view once all earlier ones are answered: its frame.
    Behind(Bytes),
    /// The same, when it must also wait until the view shows everything that the client was already notified of.
    View { frame: Bytes, applied: Ticket<Result<LogPos, Stopped>> },
    /// A request that sets a watch and is served again once its node was looked up, and the number of times that it was.
    LookUp { frame: Bytes, looked_up: JoinHandle<()>, times: u8 },
    /// Watches that are registered over several turns. They wait until the view shows everything that the client was already
    /// notified of, or until the next nodes are in memory.
    Watches { again: Again, wait: Option<Wait> },
    /// A read on other threads, which is long or needs the disk, with the watch that it sets. It waits for its reply.
    Elsewhere { read: Elsewhere, watch: Option<NewWatch> },
    /// A reply that is complete, and waits until all earlier requests are answered.
    Reply(Vec<u8>),
    /// An operation that this door does not know. Its answer is the last one of the connection.
    Unknown { xid: i32, op: i32 },
}

/// What watches wait for before the next of them are registered.
pub(crate) enum Wait {
    Applied(Ticket<Result<LogPos, Stopped>>),
    LookedUp(JoinHandle<()>),
}

/// What the connection must do for the first request.
pub(crate) enum Ready {
    /// Send this answer: the command was applied or refused. The proposal is there unless [`Queue::settle_writes`] returned it before.
    Answer { xid: i32, answer: Bytes, proposed: Option<Settled> },
    /// Send this answer: the session has ended.
    Closed { xid: i32, answer: Bytes },
    /// Answer the sync: this node has applied what it had to.
    Synced { xid: i32, path: String },
    /// Answer this frame from the view.
    Serve(Bytes),
    /// Answer this frame from the view. Its node was looked up so many times.
    LookedUp(Bytes, u8),
    /// Send this complete reply.
    Reply(Vec<u8>),
    /// Refuse this operation, and end the connection.
    Unknown { xid: i32, op: i32 },
    /// Register the next watches.
    Watches(Again),
    /// Send this complete reply, which was read from an earlier view. The watch goes if it reports an error.
    Listed(Listed, Option<NewWatch>),
}

/// A write whose command was applied or refused.
pub(crate) struct Settled {
    /// When it was proposed.
    pub(crate) at: Instant,
    /// What a large write held meanwhile.
    pub(crate) room: Option<OwnedSemaphorePermit>,
    /// Whether it was refused because of a quota.
    pub(crate) above_quota: bool,
}

/// Returns the operation and the body of a frame.
fn parts(frame: &[u8]) -> (Option<OpCode>, &[u8]) {
    let mut from = Reader::new(frame);
    let header = RequestHeader::read(&mut from);
    (header.ok().and_then(|h| OpCode::of(h.op)), from.rest())
}

/// What a client asked for: the operation, if it is a known one, and the client's number of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) op: Option<OpCode>,
    pub(crate) xid: i32,
}

/// A queue of unanswered requests. Its owner limits its size.
#[derive(Default)]
pub(crate) struct Queue {
    queue: VecDeque<(Asked, Pending)>,
    bytes: usize,
    held: usize,
}

impl Pending {
    /// Returns the number of bytes on the heap that the request holds.
    fn bytes(&self) -> usize {
        match self {
            Pending::Held(frame)
            | Pending::Behind(frame)
            | Pending::View { frame, .. }
            | Pending::LookUp { frame, .. } => frame.len(),
            Pending::Reply(reply) => reply.len(),
            Pending::Applied { answer, .. } => answer.len(),
            Pending::Watches { again, .. } => again.bytes(),
            Pending::Sync { path, .. } => path.len(),
            _ => 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Ready, Ended>> {
        Poll::Ready(Ok(match self {
            // The owner releases it.
            Pending::Held(_) => return Poll::Pending,
            Pending::Write { xid, .. } => {
                let xid = *xid;
                let (answer, settled) = ready!(self.poll_write(cx))?;
                Ready::Answer { xid, answer, proposed: Some(settled) }
            }
            Pending::Applied { xid, answer } => {
                Ready::Answer { xid: *xid, answer: std::mem::take(answer), proposed: None }
            }
            Pending::Close { xid, proposed } => {
                let applied = ready!(Pin::new(proposed).poll(cx))??;
                Ready::Closed { xid: *xid, answer: applied.reply.unwrap_or_else(|rejected| rejected.0) }
            }
            Pending::Sync { xid, path, barrier } => {
                ready!(Pin::new(barrier).poll(cx))?.map_err(|e| Ended::Log(e.to_string()))?;
                Ready::Synced { xid: *xid, path: std::mem::take(path) }
            }
            Pending::Behind(frame) => Ready::Serve(std::mem::take(frame)),
            Pending::View { frame, applied } => {
                ready!(Pin::new(applied).poll(cx))?.map_err(|e| Ended::Log(e.to_string()))?;
                Ready::Serve(std::mem::take(frame))
            }
            Pending::LookUp { frame, looked_up, times } => {
                // What could not be looked up is read again, and its error ends the connection.
                drop(ready!(Pin::new(looked_up).poll(cx)));
                Ready::LookedUp(std::mem::take(frame), *times)
            }
            Pending::Watches { again, wait } => {
                match wait {
                    None => {}
                    Some(Wait::Applied(applied)) => {
                        ready!(Pin::new(applied).poll(cx))?.map_err(|e| Ended::Log(e.to_string()))?;
                    }
                    // A node that could not be looked up is read again, and its error ends the connection.
                    Some(Wait::LookedUp(looked_up)) => drop(ready!(Pin::new(looked_up).poll(cx))),
                }
                Ready::Watches(std::mem::take(again))
            }
            Pending::Elsewhere { read, watch } => Ready::Listed(ready!(read.poll(cx))?, watch.take()),
            Pending::Reply(reply) => Ready::Reply(std::mem::take(reply)),
            Pending::Unknown { xid, op } => Ready::Unknown { xid: *xid, op: *op },
        }))
    }
}

impl Pending {
    /// Polls a write that waits until it is applied. Anything else is never ready.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<Result<(Bytes, Settled), Ended>> {
        let Pending::Write { at, proposed, room, .. } = self else { return Poll::Pending };
        let applied = ready!(Pin::new(proposed).poll(cx))??;
        let answer = applied.reply.unwrap_or_else(|rejected| rejected.0);
        let above_quota = frame::head(&answer).err == ErrorCode::QuotaExceeded.number();
        Poll::Ready(Ok((answer, Settled { at: *at, room: room.take(), above_quota })))
    }
}

impl Queue {
    /// Appends a request.
    pub(crate) fn push(&mut self, asked: Asked, pending: Pending) {
        self.bytes += pending.bytes();
        self.held += usize::from(matches!(pending, Pending::Held(_)));
        self.queue.push_back((asked, pending));
    }

    /// Returns whether a write must be held back, because of a read that must not show it or because another write is held back.
    pub(crate) fn holds_back(&self, op: OpCode, body: &[u8]) -> bool {
        !mutant(mutants::ZK_READS_PASS_WRITES)
            && (self.held > 0 || self.is_shown(touched(op, body), self.queue.len()))
    }

    /// Returns whether one of the first `before` requests is a read that would show the write.
    fn is_shown(&self, write: Touched<'_>, before: usize) -> bool {
        self.queue.iter().take(before).any(|(_, pending)| match pending {
            Pending::Behind(frame) | Pending::View { frame, .. } | Pending::LookUp { frame, .. } => {
                let (op, body) = parts(frame);
                shows(op.map_or(Touched::Nothing, |op| touched(op, body)), write)
            }
            Pending::Watches { .. } => shows(Touched::Everything, write),
            _ => false,
        })
    }

    /// Returns the first held-back write, with its place, if it may proceed now.
    pub(crate) fn next_held(&self) -> Option<(usize, Bytes)> {
        if self.held == 0 {
            return None;
        }
        let is_held = |(_, pending): &(Asked, Pending)| matches!(pending, Pending::Held(_));
        let place = self.queue.iter().position(is_held)?;
        let Some((_, Pending::Held(frame))) = self.queue.get(place) else { return None };
        let (op, body) = parts(frame);
        let write = op.map_or(Touched::Everything, |op| touched(op, body));
        (!self.is_shown(write, place)).then(|| (place, frame.clone()))
    }

    /// Returns the next write that was applied although an earlier request is unanswered, and keeps its answer. Other clients wait for
    /// what a large write holds, so it must not hold it until this client has read the replies that come first.
    pub(crate) fn settle_writes(&mut self, cx: &mut Context<'_>) -> Option<Result<Settled, Ended>> {
        // Writes are applied in order, so those behind the first unsettled one are not settled either.
        let mut pending = self.queue.iter_mut().map(|(_, pending)| pending);
        let write = pending.find(|pending| matches!(pending, Pending::Write { .. }))?;
        let Poll::Ready(done) = write.poll_write(cx) else { return None };
        let (answer, settled) = match done {
            Ok(done) => done,
            Err(ended) => return Some(Err(ended)),
        };
        if let Pending::Write { xid, .. } = write {
            self.bytes += answer.len();
            *write = Pending::Applied { xid: *xid, answer };
        }
        Some(Ok(settled))
    }

    /// Replaces the held-back write at `place` by what it waits for next.
    pub(crate) fn release(&mut self, place: usize, pending: Pending) {
        if let Some((_, held)) = self.queue.get_mut(place) {
            self.bytes = self.bytes + pending.bytes() - held.bytes();
            self.held -= 1;
            *held = pending;
        }
    }

    /// Puts the request that was taken last, and is not done yet, back in front.
    pub(crate) fn push_first(&mut self, asked: Asked, pending: Pending) {
        self.bytes += pending.bytes();
        self.queue.push_front((asked, pending));
    }

    /// Returns whether the first request is being read on another thread.
    pub(crate) fn is_elsewhere(&self) -> bool {
        matches!(self.queue.front(), Some((_, Pending::Elsewhere { .. })))
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the number of bytes on the heap that the requests hold.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes the first request when it is ready, and returns it with what to do for it. Returns None if the queue is empty.
    pub(crate) fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<Option<(Asked, Result<Ready, Ended>)>> {
        let Some((asked, first)) = self.queue.front_mut() else { return Poll::Ready(None) };
        let (asked, bytes) = (*asked, first.bytes());
        let done = ready!(first.poll(cx));
        self.queue.pop_front();
        self.bytes -= bytes;
        Poll::Ready(Some((asked, done)))
    }
}
