//! One connection: a bounded send queue, a writer that coalesces frames, a reader.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atoll_core::{Class, Envelope, Exchange, Link, NodeId};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::handshake::Identity;
use crate::inbox::{Inbox, NetEvent};
use crate::stats::{Counters, add, count};
use crate::tls::is_of_node;
use crate::wire::{Assembler, Limits, REQUEST_BITS, Wire, WireError, WriteBatch};

/// The most bytes and frames that one batch of writes takes from the queue.
const BATCH_BYTES: usize = 512 * 1024;
const BATCH_FRAMES: usize = 512;
/// The most slices of one `writev`.
const SLICES: usize = 128;
/// The cost of a queued frame in addition to its bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// A socket, with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Stream {
    /// Returns whether the other side presented a certificate of `node`. Always true without TLS.
    pub(crate) fn is_from(&self, node: NodeId) -> bool {
        match self {
            Stream::Plain(_) => true,
            Stream::Tls(tls) => {
                let shown = tls.get_ref().1.peer_certificates();
                is_of_node(shown.and_then(|chain| chain.first()), node)
            }
        }
    }
}

macro_rules! on_stream {
    ($self:ident, $s:ident => $e:expr) => {
        match $self.get_mut() {
            Stream::Plain($s) => $e,
            Stream::Tls($s) => $e,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        on_stream!(self, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        on_stream!(self, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        on_stream!(self, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        on_stream!(self, s => Pin::new(s).poll_shutdown(cx))
    }
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    #[error("closed by the peer")]
    Eof,
    #[error("closed by the peer inside a frame")]
    Torn,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("not a frame: {0}")]
    BadFrame(#[from] WireError),
    #[error("an unexpected {0}")]
    WrongWay(&'static str),
    #[error("the peer has more than {0} requests in flight, which is the limit of the handshake")]
    TooManyRequests(u32),
    #[error("{0}")]
    Asked(&'static str),
}

#[derive(Debug, Default)]
struct SendQueue {
    frames: VecDeque<Wire>,
    /// Bytes of the frames in the queue and in the writer.
    bytes: usize,
    /// Whether the core was notified that the queue is full.
    full: bool,
    closed: Option<&'static str>,
    /// Whether no more frames are accepted. The writer ends when the queue is empty.
    ending: bool,
}

/// The frame was not queued: it would exceed twice the limit of the queue, or the connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dropped;

/// A connection after its handshake.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) peer: NodeId,
    pub(crate) class: Class,
    /// Whether this side dialed. It then sends requests and posts; otherwise it sends replies.
    pub(crate) dialed: bool,
    /// Distinguishes this connection from earlier ones of the same peer, in the numbers of the peer's requests.
    pub(crate) generation: u16,
    pub(crate) remote: SocketAddr,
    pub(crate) identity: Identity,
    /// The limits that satisfy both sides.
    pub(crate) limits: Limits,
    /// Requests without a reply: this node's on a connection that it dialed, otherwise the peer's. The replying side counts a reply before
    /// sending it, the requesting side when it arrives. A requester within the limit therefore never appears to exceed it.
    in_flight: AtomicU32,
    inbox: Arc<Inbox>,
    queue_bytes: usize,
    queue: Mutex<SendQueue>,
    work: Notify,
    close: Notify,
    pongs: AtomicU64,
    /// Notified when a pong arrives or the connection is closed.
    heard: Notify,
}

impl Conn {
    #[allow(clippy::too_many_arguments)] // Two callers, each with all of them at hand.
    pub(crate) fn new(
        peer: NodeId,
        class: Class,
        dialed: bool,
        generation: u16,
        remote: SocketAddr,
        identity: Identity,
        limits: Limits,
        inbox: Arc<Inbox>,
        queue_bytes: usize,
    ) -> Self {
        Conn {
            peer,
            class,
            dialed,
            generation,
            remote,
            identity,
            limits,
            in_flight: AtomicU32::new(0),
            inbox,
            queue_bytes,
            queue: Mutex::default(),
            work: Notify::new(),
            close: Notify::new(),
            pongs: AtomicU64::new(0),
            heard: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SendQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a frame without waiting. Notifies the host if the queue reaches its limit with this frame.
    pub(crate) fn push(&self, wire: Wire) -> Result<(), Dropped> {
        let cost = wire.encoded_bytes() + FRAME_OVERHEAD_BYTES;
        let mut queue = self.lock();
        let no_room = queue.bytes > 0 && queue.bytes + cost > 2 * self.queue_bytes;
        if queue.closed.is_some() || queue.ending || no_room {
            return Err(Dropped);
        }
        queue.bytes += cost;
        queue.frames.push_back(wire);
        let first = queue.frames.len() == 1;
        let now_full = !queue.full && queue.bytes >= self.queue_bytes;
        if now_full {
            queue.full = true;
            self.notify(Link::Full);
        }
        drop(queue);
        if first {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Counts a request as in flight. Returns false if the limit is reached.
    pub(crate) fn begin_request(&self) -> bool {
        let limit = self.limits.requests;
        let more = |n: u32| (n < limit).then_some(n + 1);
        self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Ends the count of a request that was answered, or not sent after all.
    pub(crate) fn end_request(&self) {
        let _ = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    }

    /// Must be called with the queue locked, so that `Full` and `Up` reach the host in the right order.
    fn notify(&self, link: Link) {
        if self.dialed {
            self.inbox.put(self.class, [NetEvent::Link { peer: self.peer, class: self.class, link }]);
        }
    }

    pub(crate) fn queued_bytes(&self) -> usize {
        self.lock().bytes
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed.is_some()
    }

    /// Closes the connection now. What is queued is lost.
    pub(crate) fn close(&self, why: &'static str) {
        self.lock().closed.get_or_insert(why);
        self.close.notify_one();
        self.heard.notify_waiters();
    }

    /// Ends the connection when everything in the queue is written.
    pub(crate) fn finish(&self) {
        self.lock().ending = true;
        self.work.notify_one();
    }

    /// Waits until the connection is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let mut heard = std::pin::pin!(self.heard.notified());
            heard.as_mut().enable();
            if self.is_closed() {
                return;
            }
            heard.await;
        }
    }

    /// Sends a ping and waits for a pong. Returns false if the connection ends first. The caller sets the time limit.
    pub(crate) async fn answers(&self) -> bool {
        let before = self.pongs.load(Ordering::Acquire);
        // If the queue has no room for a ping, frames are still queued. A peer that does not read them does not answer.
        let _ = self.push(Wire::Ping(before & ((1 << REQUEST_BITS) - 1)));
        loop {
            let mut heard = std::pin::pin!(self.heard.notified());
            heard.as_mut().enable();
            if self.is_closed() {
                return false;
            }
            if self.pongs.load(Ordering::Acquire) != before {
                return true;
            }
            heard.await;
        }
    }

    /// Reads and writes frames until the connection ends.
    pub(crate) async fn run(&self, stream: Stream, counters: &Counters) -> Ended {
        let ended = match stream {
            Stream::Plain(mut tcp) => {
                let (r, w) = tcp.split();
                self.both_ways(r, w, counters).await
            }
            Stream::Tls(tls) => {
                let (r, w) = tokio::io::split(*tls);
                self.both_ways(r, w, counters).await
            }
        };
        match &ended {
            Ended::BadFrame(_) | Ended::WrongWay(_) => count(&counters.broken_by_bad_frame),
            Ended::TooManyRequests(_) => count(&counters.broken_by_too_many_requests),
            Ended::Eof | Ended::Torn | Ended::Io(_) | Ended::Asked(_) => {}
        }
        self.close("the connection has ended");
        ended
    }

    async fn both_ways<R, W>(&self, r: R, w: W, counters: &Counters) -> Ended
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let asked = async {
            loop {
                if let Some(why) = self.lock().closed {
                    return Ended::Asked(why);
                }
                self.close.notified().await;
            }
        };
        tokio::select! {
            biased;
            why = asked => why,
            why = self.read_loop(r, counters) => why,
            why = self.write_loop(w, counters) => why,
        }
    }

    async fn read_loop<R: AsyncRead + Unpin>(&self, mut r: R, counters: &Counters) -> Ended {
        // The smaller limits of both sides, which the peer knows, too.
        let mut assembler = Assembler::new(self.limits, self.inbox.bodies.clone());
        let mut events = Vec::new();
        loop {
            let result = self.open_frames(&mut assembler, &mut events, counters);
            if !events.is_empty() {
                // Deliver also the frames before an invalid one. They are complete and in order.
                self.inbox.put(self.class, events.drain(..));
            }
            if let Err(ended) = result {
                return ended;
            }
            self.inbox.room(self.class).await;
            match assembler.read(&mut r).await {
                Ok(0) if assembler.is_empty() => return Ended::Eof,
                Ok(0) => return Ended::Torn,
                Ok(n) => {
                    count(&counters.reads);
                    add(&counters.bytes_in, n);
                }
                Err(e) => return e.into(),
            }
        }
    }

    fn open_frames(
        &self,
        assembler: &mut Assembler,
        events: &mut Vec<NetEvent>,
        counters: &Counters,
    ) -> Result<(), Ended> {
        let mut frames = 0;
        let result = loop {
            match assembler.next() {
                Ok(None) => break Ok(()),
                Err(e) => break Err(e.into()),
                Ok(Some(Wire::Ping(n))) => {
                    // The limit of the queue also bounds the answers to a flood of pings.
                    let _ = self.push(Wire::Pong(n));
                }
                Ok(Some(Wire::Pong(_))) => {
                    self.pongs.fetch_add(1, Ordering::AcqRel);
                    self.heard.notify_waiters();
                }
                Ok(Some(Wire::Envelope(envelope))) => match self.receive(envelope) {
                    Ok(envelope) => {
                        events.push(NetEvent::Frame { from: self.peer, class: self.class, envelope })
                    }
                    Err(ended) => break Err(ended),
                },
            }
            frames += 1;
        };
        add(&counters.frames_in, frames);
        result
    }

    /// Checks the direction of a frame: requests and posts arrive on connections that the peer dialed, replies on those that this node
    /// dialed. Adds the number of this connection to a request, so that the reply cannot reach a later life of the peer, which counts its
    /// requests from zero again.
    fn receive(&self, envelope: Envelope) -> Result<Envelope, Ended> {
        let exchange = match (self.dialed, envelope.exchange) {
            (true, Exchange::Reply(n)) => {
                self.end_request();
                Exchange::Reply(n)
            }
            (true, Exchange::Post) => return Err(Ended::WrongWay("post")),
            (true, Exchange::Request(_)) => return Err(Ended::WrongWay("request")),
            (false, Exchange::Reply(_)) => return Err(Ended::WrongWay("reply")),
            (false, Exchange::Post) => Exchange::Post,
            (false, Exchange::Request(_)) if !self.begin_request() => {
                return Err(Ended::TooManyRequests(self.limits.requests));
            }
            (false, Exchange::Request(n)) => {
                Exchange::Request(n | u64::from(self.generation) << REQUEST_BITS)
            }
        };
        Ok(Envelope { exchange, frame: envelope.frame })
    }

    async fn write_loop<W: AsyncWrite + Unpin>(&self, mut w: W, counters: &Counters) -> Ended {
        let mut batch = WriteBatch::default();
        let mut busy = false;
        loop {
            if busy {
                // Let every task that is ready queue its frames first. Otherwise every batch would be one frame and cost five times as
                // much. A single frame does not wait, because yielding polls all sockets.
                tokio::task::yield_now().await;
            }
            let (frames, cost) = self.take(&mut batch);
            if frames == 0 {
                if self.lock().ending {
                    let _ = w.shutdown().await;
                    return Ended::Asked("this node ends the connection");
                }
                self.work.notified().await;
                continue;
            }
            busy = frames > 1;
            if let Err(e) = write_all(&mut w, &mut batch, counters).await {
                return e.into();
            }
            add(&counters.frames_out, frames);
            add(&counters.bytes_out, batch.bytes());
            batch.clear();
            self.written(cost);
        }
    }

    fn take(&self, batch: &mut WriteBatch) -> (usize, usize) {
        let mut queue = self.lock();
        let (mut frames, mut cost) = (0, 0);
        while frames < BATCH_FRAMES && batch.bytes() < BATCH_BYTES {
            let Some(wire) = queue.frames.pop_front() else { break };
            cost += wire.encoded_bytes() + FRAME_OVERHEAD_BYTES;
            batch.push(wire);
            frames += 1;
        }
        (frames, cost)
    }

    /// Notifies the host if the queue was full and is now below half of its limit.
    fn written(&self, cost: usize) {
        let mut queue = self.lock();
        queue.bytes -= cost;
        if queue.full && queue.bytes < self.queue_bytes / 2 && queue.closed.is_none() {
            queue.full = false;
            self.notify(Link::Up);
        }
    }
}

async fn write_all<W: AsyncWrite + Unpin>(
    w: &mut W,
    batch: &mut WriteBatch,
    counters: &Counters,
) -> std::io::Result<()> {
    loop {
        let n = std::future::poll_fn(|cx| {
            let mut slices = [IoSlice::new(&[]); SLICES];
            match batch.slices(&mut slices) {
                0 => Poll::Ready(Ok(None)),
                used => Pin::new(&mut *w).poll_write_vectored(cx, &slices[..used]).map_ok(Some),
            }
        });
        match n.await? {
            None => return w.flush().await,
            Some(0) => return Err(std::io::ErrorKind::WriteZero.into()),
            Some(n) => {
                count(&counters.writes);
                batch.advance(n);
            }
        }
    }
}
