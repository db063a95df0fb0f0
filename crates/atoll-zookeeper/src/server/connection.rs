//! An established connection, which works in turns: each answers what is ready, takes new requests, and sends the output.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::Ticket;
use atoll_core::testing::mutant;
use atoll_db::View;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::figures::{ConnectionFigures, Refusal};
use super::handshake::Ended;
use super::pending::{Asked, Pending, Queue};
use super::sasl::Sasl;
use super::turn::{Member, Turn};
use super::{Shared, counted, frame, read_only, turn};
use crate::acl;
use crate::command::is_write;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::{Id, RequestHeader};
use crate::jute::{Jute, Reader};
use crate::mutants;
use crate::session::LastSeen;
use crate::watch::ConnectionId;
use crate::watch::outbox::{End, Outbox};

/// Above this many unsent bytes of replies, no further requests are read (contracts X12).
pub(super) const MAX_UNSENT_BYTES: usize = 256 * 1024;
/// The frame of an import may be longer by this many bytes: its node has its whole Stat, and an ACL that was set apart from the data.
const IMPORT_MORE_BYTES: usize = 64 * 1024;
/// Once waiting requests hold this many bytes, no further requests are taken. The one that crosses the limit still is.
const MAX_WAITING_BYTES: usize = 1024 * 1024;
/// Output bytes per turn, approximately: the last write may exceed it.
const FLUSH_BYTES: usize = 512 * 1024;
/// Capacity that the output buffer keeps after a large reply.
const KEPT_BYTES: usize = 64 * 1024;
/// How long to try to send the final message before giving up.
const LINGER: Duration = Duration::from_secs(5);

/// The parts that the handshake hands to a new connection.
pub(crate) struct Parts {
    pub(crate) id: ConnectionId,
    pub(crate) session: i64,
    /// The session's move count while this connection serves it.
    pub(crate) moves: i64,
    pub(crate) input: BytesMut,
    pub(crate) out: Vec<u8>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) heard: Arc<LastSeen>,
    /// Whether the client is served without the log.
    pub(crate) read_only: bool,
}

/// See the module documentation.
pub(crate) struct Connection<S> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: ConnectionId,
    pub(crate) session: i64,
    pub(crate) moves: i64,
    /// The client's ids, as scheme and id.
    pub(crate) ids: Vec<(String, String)>,
    /// Whether these suffice for this door.
    is_admitted: bool,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) out: Vec<u8>,
    pub(crate) pending: Queue,
    /// The losses of the engine when no request was unanswered the last time.
    pub(super) losses: u64,
    pub(crate) figures: Arc<ConnectionFigures>,
    /// The request that is being taken or answered.
    pub(super) asked: Asked,
    /// The last request of this turn that was answered.
    pub(super) answered: Option<Asked>,
    /// The zxid that replies report. Events of all changes up to it are sent before the reply, because a client that moves to
    /// another node presents this zxid there and is notified only of later changes. It never decreases: clients keep the zxid of
    /// their last reply.
    pub(crate) zxid: i64,
    /// The view of this turn. It is dropped once a write of the client is answered.
    pub(super) view: Option<View>,
    stream: S,
    input: BytesMut,
    sent: usize,
    /// When the socket last delivered data, and how many reads were answered at once since they were last counted.
    read_at: Instant,
    served: u64,
    pub(crate) sasl: Sasl,
    heard: Arc<LastSeen>,
    /// Whether the client is served without the log.
    read_only: bool,
    pub(super) turn: Turn,
    turns: Member,
    /// Completes when the write that could not be proposed may be retried.
    busy: Option<Busy>,
    /// Room for that write, once it was obtained.
    pub(super) room: Option<OwnedSemaphorePermit>,
    /// The subtree that a write would make every node count, and whether it is small enough.
    counted: Option<(String, bool)>,
    /// The permit for a large reply that is being sent, and the client's deadline for reading it.
    pub(super) large: Option<(OwnedSemaphorePermit, Pin<Box<Sleep>>)>,
    /// How often the node of the request that is being served was looked up.
    pub(super) look_ups: u8,
    /// The client has sent CloseSession. No further requests are taken.
    closing: bool,
    /// The client has sent an operation that this door does not know. No further requests are taken.
    has_erred: bool,
    /// Set once nothing more will be queued for the client: flush, then end with this result.
    pub(super) said: Option<Result<(), Ended>>,
    /// The deadline for that flush.
    linger: Option<Pin<Box<Sleep>>>,
}

/// Completes when a write may be tried again.
type Busy = Pin<Box<dyn Future<Output = Woken> + Send>>;

/// The result of waiting to propose a write.
enum Woken {
    /// Room for the write. None if it only had to wait for the log's queue.
    Room(Option<OwnedSemaphorePermit>),
    /// The subtree that the write would make every node count, and whether it is small enough.
    Counted(String, bool),
}

/// The result of taking a frame.
enum Taken {
    Done,
    /// The request cannot be proposed yet and must be retried later.
    Busy,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(shared: Arc<Shared>, stream: S, figures: Arc<ConnectionFigures>, parts: Parts) -> Self {
        let Parts { id, session, moves, input, out, outbox, heard, read_only } = parts;
        let turns = shared.crowd.join();
        let mut connection = Connection {
            shared,
            id,
            session,
            moves,
            ids: vec![("ip".to_owned(), figures.peer.ip().to_canonical().to_string())],
            is_admitted: false,
            outbox,
            out,
            pending: Queue::default(),
            losses: 0,
            figures,
            asked: Asked { op: None, xid: 0 },
            answered: None,
            zxid: 0,
            view: None,
            stream,
            input,
            sent: 0,
            read_at: Instant::now(),
            served: 0,
            sasl: Sasl::default(),
            heard,
            read_only,
            turn: turns.begin(),
            turns,
            busy: None,
            room: None,
            counted: None,
            large: None,
            look_ups: 0,
            closing: false,
            has_erred: false,
            said: None,
            linger: None,
        };
        connection.know_by_certificate();
        connection.ids_changed();
        connection
    }

    /// Runs the connection until it ends.
    pub(crate) async fn run(mut self) -> Result<(), Ended> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn know_by_certificate(&mut self) {
        let Some(subject) = self.figures.subject.get() else { return };
        if self.shared.options.x509_super.as_ref() == Some(subject) {
            self.ids.push((acl::SUPER.to_owned(), String::new()));
        }
        self.ids.push(("x509".to_owned(), subject.clone()));
    }

    pub(crate) fn ids_changed(&mut self) {
        let required = &self.shared.options.required_schemes;
        self.is_admitted =
            required.is_empty() || self.ids.iter().any(|(scheme, _)| required.contains(scheme));
        self.outbox.set_ids(&self.ids);
    }

    /// Answers the request of a client that has not proved who it is, and ends the connection, as ZooKeeper does.
    fn demand_identity(&mut self, xid: i32) -> Result<Taken, Ended> {
        let zxid = self.shared.zxid();
        frame::error(&mut self.out, xid, zxid, ErrorCode::SessionClosedRequireSaslAuth);
        let schemes = self.shared.options.required_schemes.join(" or ");
        Err(Ended::NotAuthenticated(format!("a request without an identity; needed: {schemes}")))
    }

    /// Returns the client's ids.
    pub(crate) fn client(&self) -> Vec<Id<'_>> {
        self.ids.iter().map(|(scheme, id)| Id { scheme, id }).collect()
    }

    /// Runs one turn: answers requests that are ready, takes new ones, and sends the output.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        self.outbox.register(cx.waker());
        self.turn = self.turns.begin();
        let done = self.take_turn(cx);
        self.turns.end(&self.turn);
        // An idle client holds no view (contracts X27).
        self.forget_view();
        done
    }

    fn take_turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        self.forget_view();
        loop {
            // Check this first. Requests that the client sent here before it moved to another node must not be executed without its
            // knowledge, and no reply may go out if an event that should precede it was dropped.
            if let Some(end) = self.outbox.ended().filter(|_| !self.closing) {
                return Poll::Ready(Err(Ended::Here(end)));
            }
            let advanced = self.advance(cx).and_then(|()| self.settle_writes(cx));
            if let Err(ended) = advanced {
                self.said.get_or_insert(Err(ended));
            }
            // A client that does not read its replies does not count as waiting: it delays the answers to its other requests
            // itself.
            let waits = !self.pending.is_empty() || self.busy.is_some();
            self.heard.set_waits(waits && self.out.len() < MAX_UNSENT_BYTES);
            self.count_outstanding();
            self.report_answered();
            // If the client does not read, events stay in the outbox, which ends the connection when there are too many. While
            // another thread makes a read, events of changes that its view does not show wait until its reply has gone out. Nothing
            // follows the last message: an event of a watch whose read has just failed would be one too many.
            let may_pass = !self.pending.is_elsewhere() || mutant(mutants::ZK_EVENTS_PASS_READS);
            if self.out.len() < MAX_UNSENT_BYTES && may_pass && self.said.is_none() {
                self.drain_events();
            }
            // Check again before the replies of this turn go out. Events of changes up to the zxids in these replies may have been
            // dropped, and the client would never learn of those changes, whichever node it registers its watches at.
            if let Some(end) = self.outbox.ended().filter(|_| !self.closing) {
                return Poll::Ready(Err(Ended::Here(end)));
            }
            let had = self.out.len();
            let flushed = match self.flush(cx) {
                Ok(flushed) => flushed,
                Err(error) => return Poll::Ready(Err(error.into())),
            };
            if flushed {
                if let Some(said) = self.said.take() {
                    return Poll::Ready(said);
                }
                self.large = None;
                // Reading had stopped because of unsent output. Resume it.
                if had >= MAX_UNSENT_BYTES && !self.turn.is_over() {
                    continue;
                }
            } else if self.large.as_mut().is_some_and(|(_, late)| late.as_mut().poll(cx).is_ready()) {
                return Poll::Ready(Err(Ended::Here(End::Behind)));
            } else if self.said.is_some() {
                let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
                if linger.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(Ended::Here(End::Behind)));
                }
            }
            return Poll::Pending;
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        loop {
            self.poll_busy(cx);
            self.answer_ready(cx)?;
            if self.said.is_some() {
                return Ok(());
            }
            let waited = self.busy.is_some();
            let frames = self.take_frames(cx)?;
            self.count_taken();
            if self.turn.is_over() {
                turn::poll_after_the_others(cx);
                return Ok(());
            }
            // A request that was just taken may already be ready, and nothing would wake this task for it.
            if frames > 0 || (waited && self.busy.is_none()) {
                continue;
            }
            if !self.may_take() || self.busy.is_some() || !self.read(cx)? {
                if self.is_held_back() {
                    self.shared.figures.held_back.add(1);
                }
                return Ok(());
            }
        }
    }

    /// Returns whether a write still waits to be proposed. This task is woken when it may be retried.
    fn poll_busy(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(busy) = &mut self.busy else { return false };
        let Poll::Ready(woken) = busy.as_mut().poll(cx) else { return true };
        self.busy = None;
        match woken {
            Woken::Room(room) => self.room = room,
            Woken::Counted(top, is_small) => self.counted = Some((top, is_small)),
        }
        false
    }

    /// Returns whether another request may be taken.
    fn may_take(&self) -> bool {
        !self.closing
            && !self.has_erred
            && self.pending.len() < self.shared.options.max_outstanding
            && self.pending.bytes() < MAX_WAITING_BYTES
            && self.out.len() < MAX_UNSENT_BYTES
            && !self.is_held_back()
    }

    /// Returns whether too many requests of all connections are unanswered, or too many writes wait for the log. A connection
    /// without pending requests may always take one, so every connection makes progress. A connection with pending requests is
    /// woken by their answers.
    fn is_held_back(&self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let most = self.shared.options.max_outstanding_of_all as u64;
        let all = || self.shared.figures.outstanding.load(Ordering::Relaxed);
        (most > 0 && all() >= most) || !self.shared.window.has_room(self.shared.engine.waiting_commands())
    }

    /// Counts the reads that were answered since the last call. Each gets the time since the socket last delivered data as its
    /// latency, because reading the clock for each of them would be noticeable.
    fn count_taken(&mut self) {
        self.count_outstanding();
        let served = std::mem::take(&mut self.served);
        if served > 0 {
            let us = u64::try_from(self.read_at.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.shared.figures.read_us.add_many(us, served);
            self.figures.latency.add_many(us, served);
        }
    }

    /// Reports the last request that was answered, once in a turn, because reading the clock for each would be noticeable.
    fn report_answered(&mut self) {
        if let Some(asked) = self.answered.take() {
            let at = self.shared.figures.started.elapsed();
            self.figures.last.set(asked.op, asked.xid, self.zxid, at);
        }
    }

    fn count_outstanding(&self) {
        self.shared.figures.count_outstanding(&self.figures, self.pending.len() as u64);
    }

    /// Reads what the socket has; returns false if it has nothing.
    fn read(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.input.capacity() - self.input.len() < 4096 {
            self.input.reserve(16 * 1024);
        }
        let reading = std::pin::pin!(self.stream.read_buf(&mut self.input));
        match std::future::Future::poll(reading, cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(Ended::ByClient),
            Poll::Ready(Ok(n)) => {
                self.heard.touch();
                self.shared.figures.received_bytes.add(n as u64);
                self.read_at = Instant::now();
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(error.into()),
        }
    }

    /// Returns the length of the next frame, or None if the frame is incomplete. Fails if the length is out of bounds.
    fn whole_frame(&mut self) -> Result<Option<usize>, Ended> {
        let Some(head) = self.input.first_chunk::<4>() else { return Ok(None) };
        let length = i32::from_be_bytes(*head);
        let mut most = self.shared.options.max_buffer_bytes;
        let length_of = usize::try_from(length);
        if length_of.is_ok_and(|length| length > most && length <= most + IMPORT_MORE_BYTES)
            && acl::is_super(&self.client())
        {
            let Some(head) = self.input.first_chunk::<12>() else { return Ok(None) };
            if head[8..] == OpCode::Import.number().to_be_bytes() {
                most += IMPORT_MORE_BYTES;
            }
        }
        match length_of {
            Ok(length) if length <= most => {
                let missing = (4 + length).saturating_sub(self.input.len());
                if missing > 0 {
                    self.input.reserve(missing);
                    return Ok(None);
                }
                Ok(Some(length))
            }
            _ => Err(Ended::Malformed(format!("a frame of {length} bytes; allowed: 0 to {most}"))),
        }
    }

    /// Takes the requests that are in the buffer; returns how many.
    fn take_frames(&mut self, cx: &mut Context<'_>) -> Result<usize, Ended> {
        let mut taken = 0;
        while !self.turn.is_over() && !self.poll_busy(cx) && self.may_take() {
            let Some(length) = self.whole_frame()? else { break };
            // Split the frame off while `take` examines it. If the request cannot be taken yet, the frame is put back.
            let whole = self.input.split_to(4 + length);
            let had = self.out.len();
            match self.take(&whole[4..])? {
                Taken::Done => taken += 1,
                Taken::Busy => {
                    let rest = std::mem::replace(&mut self.input, whole);
                    self.input.unsplit(rest);
                }
            }
            self.turn.did(length + self.out.len().saturating_sub(had));
        }
        let n = taken as u64;
        self.shared.figures.received.add(n);
        self.figures.received.add(n);
        Ok(taken)
    }

    /// Takes one request: proposes it, answers it, or queues it behind the others.
    fn take(&mut self, bytes: &[u8]) -> Result<Taken, Ended> {
        let mut from = Reader::new(bytes);
        let header = RequestHeader::read(&mut from).map_err(|e| Ended::Malformed(e.to_string()))?;
        let op = OpCode::of(header.op);
        if !self.is_admitted && !matches!(op, Some(OpCode::Auth | OpCode::Sasl)) {
            return self.demand_identity(header.xid);
        }
        self.asked = Asked { op, xid: header.xid };
        // ZooKeeper's clients never send these three. It ends the connection of one that does, after the answer.
        let Some(op) = op.filter(|op| !matches!(op, OpCode::Notification | OpCode::Check)) else {
            self.pending.push(self.asked, Pending::Unknown { xid: header.xid, op: header.op });
            self.has_erred = true;
            return Ok(Taken::Done);
        };
        match op {
            OpCode::CloseSession if self.read_only => {
                self.pending.push(self.asked, read_only::closed(header.xid, self.shared.zxid()));
                self.closing = true;
            }
            op if self.read_only && !read_only::serves(op) => self.refuse(header.xid, ErrorCode::NotReadOnly),
            OpCode::Auth => self.authenticate(from.rest())?,
            OpCode::Sasl => self.sasl(header.xid, from.rest())?,
            op if is_write(op) || op == OpCode::CloseSession => {
                return Ok(self.take_write(op, header.xid, from.rest(), bytes));
            }
            OpCode::Sync => self.sync(header.xid, from.rest()),
            _ if self.pending.is_empty() => {
                self.serve(bytes)?;
                self.served += 1;
            }
            _ => self.pending.push(self.asked, Pending::Behind(Bytes::copy_from_slice(bytes))),
        }
        Ok(Taken::Done)
    }

    /// Proposes a write, or holds it back (see `order.rs`).
    fn take_write(&mut self, op: OpCode, xid: i32, body: &[u8], bytes: &[u8]) -> Taken {
        let pending = if self.pending.holds_back(op, body) {
            Pending::Held(Bytes::copy_from_slice(bytes))
        } else {
            match self.propose(op, xid, body) {
                Some(pending) => pending,
                None => return Taken::Busy,
            }
        };
        self.pending.push(self.asked, pending);
        self.closing |= op == OpCode::CloseSession;
        Taken::Done
    }

    /// Proposes a write. Returns None if the write must wait first, for room or until its subtree is counted; `busy` then completes
    /// when it may be retried.
    fn propose(&mut self, op: OpCode, xid: i32, body: &[u8]) -> Option<Pending> {
        if op == OpCode::CloseSession {
            let proposed = self.propose_close().map_err(|busy| self.wait_for_room(&busy, None));
            return Some(Pending::Close { xid, proposed: proposed.ok()? });
        }
        match self.is_countable(op, body) {
            Some(Ok(())) => {}
            Some(Err(code)) => return Some(self.refused(xid, code)),
            None => return None,
        }
        let go_alone = self.shared.window.is_slow();
        let room = match self.shared.room.take(op, body.len(), go_alone, self.room.take()) {
            Ok(room) => room,
            Err(wait) => {
                self.shared.figures.throttled.add(1);
                self.busy = Some(Box::pin(async { Woken::Room(wait.await) }));
                return None;
            }
        };
        match self.propose_write(op, body) {
            Ok(Ok(proposed)) => Some(Pending::Write { xid, at: Instant::now(), proposed, room }),
            Ok(Err(busy)) => {
                self.wait_for_room(&busy, room);
                None
            }
            Err(code) => Some(self.refused(xid, code)),
        }
    }

    /// Arranges for a refused write to be retried once the log has room for all of it. The write keeps `place` meanwhile.
    fn wait_for_room(&mut self, busy: &atoll_db::Busy, place: Option<OwnedSemaphorePermit>) {
        self.shared.figures.throttled.add(1);
        let free = self.shared.engine.room(busy);
        self.busy = Some(Box::pin(async move {
            free.await;
            Woken::Room(place)
        }));
    }

    fn refused(&self, xid: i32, code: ErrorCode) -> Pending {
        self.shared.figures.refuse(Refusal::Request);
        let mut reply = Vec::new();
        frame::error(&mut reply, xid, 0, code);
        Pending::Reply(reply)
    }

    /// Returns Ok if the write makes no node count a subtree, if that subtree is small enough, or if the client is the superuser.
    /// Returns None while the subtree is being counted.
    fn is_countable(&mut self, op: OpCode, body: &[u8]) -> Option<Result<(), ErrorCode>> {
        let top = match counted::subject(op, body) {
            Ok(Some(top)) if !acl::is_super(&self.client()) => top,
            Ok(_) => return Some(Ok(())),
            Err(code) => return Some(Err(code)),
        };
        match self.counted.take() {
            Some((known, is_small)) if known == top => {
                Some(if is_small { Ok(()) } else { Err(ErrorCode::BadArguments) })
            }
            _ => {
                let shared = self.shared.clone();
                self.busy = Some(Box::pin(async move {
                    let is_small = counted::is_small(shared, &top).await;
                    Woken::Counted(top, is_small)
                }));
                None
            }
        }
    }

    /// Proposes held-back writes that no longer need to wait.
    pub(super) fn release_held(&mut self) {
        while self.busy.is_none()
            && let Some((place, bytes)) = self.pending.next_held()
        {
            let mut from = Reader::new(&bytes);
            // The frame was parsed once before.
            let Ok(header) = RequestHeader::read(&mut from) else { return };
            let Some(op) = OpCode::of(header.op) else { return };
            match self.propose(op, header.xid, from.rest()) {
                Some(pending) => self.pending.release(place, pending),
                None => return,
            }
        }
    }

    /// Starts a `sync`: a barrier, like etcd's read index. After the answer, this client's reads see everything that was
    /// acknowledged to any client before the sync was sent.
    fn sync(&mut self, xid: i32, body: &[u8]) {
        match <&str as Jute>::parse(body) {
            Ok(path) => {
                let engine = &self.shared.engine;
                let barrier = match mutant(mutants::ZK_SYNC_WITHOUT_BARRIER) {
                    true => Ticket::ready(Ok(engine.view().below())),
                    false => engine.barrier(),
                };
                self.pending.push(self.asked, Pending::Sync { xid, path: path.to_owned(), barrier });
            }
            Err(_) => self.refuse(xid, ErrorCode::MarshallingError),
        }
    }

    /// Writes output until the socket takes no more; returns whether all of it was sent.
    fn flush(&mut self, cx: &mut Context<'_>) -> std::io::Result<bool> {
        let most = self.sent + FLUSH_BYTES;
        while self.sent < self.out.len() {
            // Otherwise a client that reads as fast as this thread writes would occupy the thread for the whole reply.
            if self.sent >= most {
                turn::poll_after_the_others(cx);
                return Ok(false);
            }
            match Pin::new(&mut self.stream).poll_write(cx, &self.out[self.sent..]) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.sent += n;
                    // The client is reading, though slowly. Its pings stay in the socket until it has read enough.
                    if self.out.len() >= MAX_UNSENT_BYTES {
                        self.heard.touch();
                    }
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        self.sent = 0;
        self.out.clear();
        self.out.shrink_to(KEPT_BYTES);
        // TLS has its own buffer.
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(flushed) => flushed.map(|()| true),
        }
    }
}
