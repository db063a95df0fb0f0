//! An established connection: one turn after the other.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_core::Ticket;
use atoll_core::testing::{Mutant, mutant};
use atoll_db::View;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep};

use super::figures::{ConnectionFigures, Refusal};
use super::handshake::Ended;
use super::pending::{Pending, Queue, Ready};
use super::sasl::Sasl;
use super::{Shared, frame, read_only};
use crate::acl;
use crate::command::is_write;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::{Id, RequestHeader};
use crate::jute::reply::PathReply;
use crate::jute::{Jute, Reader};
use crate::session::keeper::Heard;
use crate::watch::outbox::{End, Outbox};
use crate::watch::{ConnectionId, NotYet};

/// Replies that wait for the socket beyond this stop the reading of requests (contracts X12).
const MAX_UNSENT_BYTES: usize = 256 * 1024;
/// Memory that waiting requests may hold, besides the one that goes beyond it.
const MAX_WAITING_BYTES: usize = 1024 * 1024;
/// Requests in a row before the other connections of the thread get their turn.
const MAX_IN_A_TURN: usize = 512;
/// What is kept for the next turn of an output buffer that was large.
const KEPT_BYTES: usize = 64 * 1024;
/// What was said last is sent within this time, or not at all.
const LINGER: Duration = Duration::from_secs(5);
/// How soon a write that found the log's queue full is tried again.
const BUSY_FOR: Duration = Duration::from_millis(1);

/// What a connection begins with.
pub(crate) struct Parts {
    pub(crate) id: ConnectionId,
    pub(crate) session: i64,
    /// The move by which the connection serves it.
    pub(crate) moves: i64,
    pub(crate) input: BytesMut,
    pub(crate) out: Vec<u8>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) heard: Arc<Heard>,
    /// The client is served without the log.
    pub(crate) read_only: bool,
}

/// See the module's words.
pub(crate) struct Connection<S> {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: ConnectionId,
    pub(crate) session: i64,
    pub(crate) moves: i64,
    /// Who the client is.
    pub(crate) ids: Vec<(String, String)>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) out: Vec<u8>,
    pub(crate) pending: Queue,
    pub(crate) figures: Arc<ConnectionFigures>,
    /// The newest change that replies tell. Events of changes up to it stand in front of them: a client that goes elsewhere brings it
    /// along, and is told of later ones only. Never goes back: clients keep that of their last reply.
    pub(crate) zxid: i64,
    /// The view of this turn, until a write of the client is answered.
    view: Option<View>,
    stream: S,
    input: BytesMut,
    sent: usize,
    /// When the socket gave something last, and reads that were answered at once since they were counted.
    read_at: Instant,
    served: u64,
    pub(crate) sasl: Sasl,
    heard: Arc<Heard>,
    /// The client is served without the log.
    read_only: bool,
    busy: Option<Pin<Box<Sleep>>>,
    /// The client has asked for the end: nothing more is taken from it.
    closing: bool,
    /// All is said: flush, then end.
    said: Option<Result<(), Ended>>,
    /// And not longer than this.
    linger: Option<Pin<Box<Sleep>>>,
}

/// What became of a frame.
enum Taken {
    Done,
    /// The log's queue is full: again later.
    Busy,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(crate) fn new(shared: Arc<Shared>, stream: S, figures: Arc<ConnectionFigures>, parts: Parts) -> Self {
        let Parts { id, session, moves, input, out, outbox, heard, read_only } = parts;
        let mut connection = Connection {
            shared,
            id,
            session,
            moves,
            ids: vec![("ip".to_owned(), figures.peer.ip().to_canonical().to_string())],
            outbox,
            out,
            pending: Queue::default(),
            figures,
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
            busy: None,
            closing: false,
            said: None,
            linger: None,
        };
        connection.know_by_certificate();
        connection.ids_changed();
        connection
    }

    /// Until it ends.
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
        self.outbox.set_ids(self.ids.clone());
    }

    /// Who the client is.
    pub(crate) fn client(&self) -> Vec<Id<'_>> {
        self.ids.iter().map(|(scheme, id)| Id { scheme, id }).collect()
    }

    /// One turn: answers what is ready, takes what was sent, sends what there is.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Ended>> {
        self.outbox.register(cx.waker());
        self.forget_view();
        loop {
            // First of all: what the client sent here before it went elsewhere is not done behind its back, and nothing is answered
            // that an event which was dropped should stand in front of.
            if let Some(end) = self.outbox.ended().filter(|_| !self.closing) {
                return Poll::Ready(Err(Ended::Here(end)));
            }
            if let Err(ended) = self.advance(cx) {
                self.said.get_or_insert(Err(ended));
            }
            // Nor does a client wait that does not read what it was answered: requests behind that have no answer through its own fault.
            self.heard.set_waits(!self.pending.is_empty() && self.out.len() < MAX_UNSENT_BYTES);
            self.count_outstanding();
            // What the client does not read keeps events in the outbox, which cuts it off when they are too many. Events behind the view
            // that a long read is answered from go out behind its reply.
            if self.out.len() < MAX_UNSENT_BYTES && !self.pending.is_elsewhere() {
                self.drain_events();
            }
            // Again, before the replies of this turn go out: events may have been dropped in front of them, of changes up to the zxids that
            // they tell. The client would never hear of those, wherever it brings its watches.
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
                // Reading had stopped for what could not be sent: it goes on.
                if had >= MAX_UNSENT_BYTES {
                    continue;
                }
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
        let mut taken = 0;
        loop {
            self.answer_ready(cx)?;
            if self.said.is_some() {
                return Ok(());
            }
            let frames = self.take_frames(cx)?;
            self.count_taken();
            taken += frames;
            if taken > MAX_IN_A_TURN {
                cx.waker().wake_by_ref();
                return Ok(());
            }
            // What was taken may be ready already: nobody would wake this task for it.
            if frames > 0 {
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

    /// Whether another request may be taken.
    fn may_take(&self) -> bool {
        !self.closing
            && self.pending.len() < self.shared.options.max_outstanding
            && self.pending.bytes() < MAX_WAITING_BYTES
            && self.out.len() < MAX_UNSENT_BYTES
            && !self.is_held_back()
    }

    /// Too many requests of all connections have no answer. A connection without any may always take one, so that each goes on; one that
    /// has some is woken by their answers.
    fn is_held_back(&self) -> bool {
        let most = self.shared.options.max_outstanding_of_all as u64;
        let all = || self.shared.figures.outstanding.load(Ordering::Relaxed);
        most > 0 && !self.pending.is_empty() && all() >= most
    }

    /// What was taken in one go counts as one: a look at the clock for each read would be felt.
    fn count_taken(&mut self) {
        self.count_outstanding();
        let served = std::mem::take(&mut self.served);
        if served > 0 {
            let us = u64::try_from(self.read_at.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.shared.figures.read_us.add_many(us, served);
        }
    }

    fn count_outstanding(&self) {
        self.shared.figures.count_outstanding(&self.figures, self.pending.len() as u64);
    }

    /// Reads what the socket has; false if it has nothing.
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

    /// The length of the next frame, if all of it is there.
    fn whole_frame(&mut self) -> Result<Option<usize>, Ended> {
        let Some(head) = self.input.first_chunk::<4>() else { return Ok(None) };
        let length = i32::from_be_bytes(*head);
        let most = self.shared.options.max_buffer_bytes;
        match usize::try_from(length) {
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

    /// Takes requests that are there; how many.
    fn take_frames(&mut self, cx: &mut Context<'_>) -> Result<usize, Ended> {
        if let Some(busy) = &mut self.busy {
            if busy.as_mut().poll(cx).is_pending() {
                return Ok(0);
            }
            self.busy = None;
        }
        let mut taken = 0;
        while self.may_take() && taken <= MAX_IN_A_TURN {
            let Some(length) = self.whole_frame()? else { break };
            // Out of the buffer while it is looked at, so that it can be kept or given back.
            let whole = self.input.split_to(4 + length);
            match self.take(&whole[4..])? {
                Taken::Done => taken += 1,
                Taken::Busy => {
                    let rest = std::mem::replace(&mut self.input, whole);
                    self.input.unsplit(rest);
                    self.shared.figures.throttled.add(1);
                    let mut sleep = Box::pin(tokio::time::sleep(BUSY_FOR));
                    if sleep.as_mut().poll(cx).is_pending() {
                        self.busy = Some(sleep);
                    }
                    break;
                }
            }
        }
        let n = taken as u64;
        self.shared.figures.received.add(n);
        self.figures.received.add(n);
        Ok(taken)
    }

    /// Takes one request: into the log, to its answer, or behind the others.
    fn take(&mut self, bytes: &[u8]) -> Result<Taken, Ended> {
        let mut from = Reader::new(bytes);
        let header = RequestHeader::read(&mut from).map_err(|e| Ended::Malformed(e.to_string()))?;
        let Some(op) = OpCode::of(header.op) else {
            self.refuse(header.xid, ErrorCode::Unimplemented);
            return Ok(Taken::Done);
        };
        match op {
            OpCode::CloseSession if self.read_only => {
                self.pending.push(read_only::closed(header.xid, self.shared.zxid()));
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
            _ => self.pending.push(Pending::Behind(Bytes::copy_from_slice(bytes))),
        }
        Ok(Taken::Done)
    }

    /// Hands a write to the log, or holds it back (see `order.rs`).
    fn take_write(&mut self, op: OpCode, xid: i32, body: &[u8], bytes: &[u8]) -> Taken {
        let pending = if self.pending.holds_back(op, body) {
            Pending::Held(Bytes::copy_from_slice(bytes))
        } else {
            match self.propose(op, xid, body) {
                Some(pending) => pending,
                None => return Taken::Busy,
            }
        };
        self.pending.push(pending);
        self.closing |= op == OpCode::CloseSession;
        Taken::Done
    }

    /// Hands a write to the log; None if its queue is full.
    fn propose(&mut self, op: OpCode, xid: i32, body: &[u8]) -> Option<Pending> {
        if op == OpCode::CloseSession {
            return Some(Pending::Close { xid, proposed: self.propose_close()? });
        }
        match self.propose_write(op, body) {
            Ok(proposed) => Some(Pending::Write { xid, at: Instant::now(), proposed: proposed? }),
            Err(code) => {
                self.shared.figures.refuse(Refusal::Request);
                let mut reply = Vec::new();
                frame::error(&mut reply, xid, 0, code);
                Some(Pending::Reply(reply))
            }
        }
    }

    /// Hands writes to the log that need not be held back any more.
    fn release_held(&mut self) {
        while let Some((place, bytes)) = self.pending.next_held() {
            let mut from = Reader::new(&bytes);
            // It was read once already.
            let Ok(header) = RequestHeader::read(&mut from) else { return };
            let Some(op) = OpCode::of(header.op) else { return };
            match self.propose(op, header.xid, from.rest()) {
                Some(pending) => self.pending.release(place, pending),
                None => {
                    self.shared.figures.throttled.add(1);
                    self.busy = Some(Box::pin(tokio::time::sleep(BUSY_FOR)));
                    return;
                }
            }
        }
    }

    fn sync(&mut self, xid: i32, body: &[u8]) {
        match <&str as Jute>::parse(body) {
            Ok(path) => {
                let engine = &self.shared.engine;
                let barrier = match mutant(Mutant::ZkSyncWithoutBarrier) {
                    true => Ticket::ready(Ok(engine.view().below())),
                    false => engine.barrier(),
                };
                self.pending.push(Pending::Sync { xid, path: path.to_owned(), barrier });
            }
            Err(_) => self.refuse(xid, ErrorCode::MarshallingError),
        }
    }

    /// A request that is refused here, in its turn.
    pub(crate) fn refuse(&mut self, xid: i32, code: ErrorCode) {
        self.shared.figures.refuse(Refusal::Request);
        self.reply_in_turn(|out, zxid| frame::error(out, xid, zxid, code));
    }

    /// A reply behind those of all earlier requests.
    pub(crate) fn reply_in_turn(&mut self, write: impl FnOnce(&mut Vec<u8>, i64)) {
        if self.pending.is_empty() {
            self.drain_events();
            self.replied(1);
            write(&mut self.out, self.zxid);
        } else {
            let mut reply = Vec::new();
            // Its zxid is set when its turn comes.
            write(&mut reply, 0);
            self.pending.push(Pending::Reply(reply));
        }
    }

    pub(crate) fn replied(&mut self, n: u64) {
        self.shared.figures.sent.add(n);
        self.figures.sent.add(n);
    }

    /// Answers requests from the first on, as far as they are ready.
    fn answer_ready(&mut self, cx: &mut Context<'_>) -> Result<(), Ended> {
        while self.out.len() < MAX_UNSENT_BYTES {
            self.release_held();
            let Poll::Ready(Some(ready)) = self.pending.poll_first(cx) else { break };
            match ready? {
                Ready::Answer { xid, answer, at } => {
                    let err = frame::head(&answer).err;
                    if err == ErrorCode::SessionMoved.number() || err == ErrorCode::SessionExpired.number() {
                        return Err(Ended::Here(End::SessionMoved));
                    }
                    if err == ErrorCode::QuotaExceeded.number() {
                        self.shared.figures.refuse(Refusal::Quota);
                    }
                    let us = at.map_or(0, |at| at.elapsed().as_micros());
                    self.shared.figures.write_us.add(u64::try_from(us).unwrap_or(u64::MAX));
                    self.after_write();
                    self.zxid = self.zxid.max(frame::head(&answer).zxid);
                    frame::answer(&mut self.out, xid, self.zxid, &answer);
                    self.replied(1);
                }
                Ready::Closed { xid, answer } => {
                    self.after_write();
                    self.zxid = self.zxid.max(frame::head(&answer).zxid);
                    frame::answer(&mut self.out, xid, self.zxid, &answer);
                    self.replied(1);
                    self.said = Some(Ok(()));
                    return Ok(());
                }
                Ready::Synced { xid, path } => {
                    let newest = self.shared.zxid();
                    self.after_write();
                    self.told_up_to(newest);
                    frame::reply(&mut self.out, xid, self.zxid, |out| PathReply { path: &path }.write(out));
                    self.replied(1);
                }
                Ready::Serve(bytes) => self.serve(&bytes)?,
                Ready::Listed(reply) => {
                    let at = self.out.len();
                    self.out.extend_from_slice(&reply);
                    frame::set_zxid(&mut self.out[at..], self.zxid);
                    self.replied(1);
                }
                Ready::Reply(reply) => {
                    self.drain_events();
                    let at = self.out.len();
                    self.out.extend_from_slice(&reply);
                    frame::set_zxid(&mut self.out[at..], self.zxid);
                    self.replied(1);
                }
            }
        }
        Ok(())
    }

    /// A write was applied: its events go out before its reply, and later reads see it.
    fn after_write(&mut self) {
        self.forget_view();
        self.drain_events_first();
    }

    /// The next read takes a newer view.
    pub(crate) fn forget_view(&mut self) {
        if !mutant(Mutant::ZkServesBehindSession) {
            self.view = None;
        }
    }

    /// The view of this turn. Events of what it shows stand in front of whatever is answered from it, and no others (contracts X19). None
    /// if the request was put off: the client knows of something that the newest view does not show yet.
    pub(crate) fn view(&mut self, bytes: &[u8]) -> Option<View> {
        if self.view.is_none() {
            let newest = self.shared.zxid();
            let view = self.shared.engine.view();
            let drained = match mutant(Mutant::ZkEventsAfterReplies) {
                true => Ok(0),
                false => self.outbox.drain_for(view.below(), &mut self.out),
            };
            match drained {
                Ok(events) => self.show(view, events, newest),
                Err(below) => self.put_off(bytes, NotYet(below)),
            }
        }
        self.view.clone()
    }

    /// Makes a view the one of this turn; so many events of what it shows were put in front. `newest` was read before they were.
    pub(crate) fn show(&mut self, view: View, events: u64, newest: i64) {
        self.view = Some(view);
        self.told_up_to(newest);
        self.replied(events);
    }

    /// All events of changes up to `newest` were put in front: it was read before the outbox was.
    pub(crate) fn told_up_to(&mut self, newest: i64) {
        // An outbox that has ended may have been told less.
        if self.outbox.ended().is_none() {
            self.zxid = self.zxid.max(newest);
        }
    }

    /// In front of a reply.
    pub(crate) fn drain_events_first(&mut self) {
        if !mutant(Mutant::ZkEventsAfterReplies) {
            self.drain_events();
        }
    }

    /// Sends events, also of what the view of this turn does not show.
    fn drain_events(&mut self) {
        // Taken first: events of changes up to it are in the outbox by now.
        let newest = self.shared.zxid();
        let events = self.outbox.drain(&mut self.out);
        if events > 0 {
            // Otherwise a write's reply has the write's own zxid, as some clients take it to be.
            self.told_up_to(newest);
            self.forget_view();
            self.replied(events);
        }
    }

    /// Sends what there is, as far as the socket takes it; whether that was all.
    fn flush(&mut self, cx: &mut Context<'_>) -> std::io::Result<bool> {
        while self.sent < self.out.len() {
            match Pin::new(&mut self.stream).poll_write(cx, &self.out[self.sent..]) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.sent += n;
                    // The client reads, if slowly. Its pings lie in the socket until it has read enough.
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
        // TLS has a buffer of its own.
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(flushed) => flushed.map(|()| true),
        }
    }
}
