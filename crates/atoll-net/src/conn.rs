//! One connection: a bounded send queue, a writer that coalesces, a reader.

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

/// Most bytes and frames given to the socket at once; what follows waits its turn in the bounded queue.
const BATCH_BYTES: usize = 512 * 1024;
const BATCH_FRAMES: usize = 512;
/// Slices of one `writev`.
const SLICES: usize = 128;
/// What a queued frame costs in addition to its bytes.
const FRAME_OVERHEAD_BYTES: usize = 64;

/// A socket, with or without TLS.
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::TlsStream<TcpStream>>),
}

impl Stream {
    /// Whether the other side showed a certificate of `node`; true without TLS.
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
    #[error("bytes that are no frame: {0}")]
    BadFrame(#[from] WireError),
    #[error("a {0} where none belongs")]
    WrongWay(&'static str),
    #[error("the peer has more than {0} requests in flight, which is the limit of the handshake")]
    TooManyRequests(u32),
    #[error("{0}")]
    Asked(&'static str),
}

#[derive(Debug, Default)]
struct SendQueue {
    frames: VecDeque<Wire>,
    /// Bytes of frames in the queue and at the writer.
    bytes: usize,
    /// The core was told that the queue is full.
    full: bool,
    closed: Option<&'static str>,
    /// No more frames; the writer ends when it has written what is there.
    ending: bool,
}

/// Not queued: the queue is at twice its limit, or the connection is closed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Dropped;

/// A connection that has shaken hands.
#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) peer: NodeId,
    pub(crate) class: Class,
    /// This side dialed it, and sends requests and posts on it; else it sends replies.
    pub(crate) dialed: bool,
    /// Tells this connection from the peer's earlier ones in the numbers of its requests.
    pub(crate) generation: u16,
    pub(crate) remote: SocketAddr,
    pub(crate) identity: Identity,
    /// What both sides take.
    pub(crate) limits: Limits,
    /// Requests without a reply: ours on a connection that we dialed, otherwise the peer's. The replying side counts a reply before it
    /// leaves, and the requesting side when it arrives, so a side that keeps to the limit is never seen above it.
    in_flight: AtomicU32,
    inbox: Arc<Inbox>,
    queue_bytes: usize,
    queue: Mutex<SendQueue>,
    work: Notify,
    close: Notify,
    pongs: AtomicU64,
    /// A pong came, or the connection was closed.
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

    /// Queues a frame; never waits. Tells the host when the queue reaches its limit with it.
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
            self.tell(Link::Full);
        }
        drop(queue);
        if first {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Takes a place among the requests in flight; false if all are taken.
    pub(crate) fn begin_request(&self) -> bool {
        let limit = self.limits.requests;
        let more = |n: u32| (n < limit).then_some(n + 1);
        self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// A request was answered, or not sent after all.
    pub(crate) fn end_request(&self) {
        let _ = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    }

    /// Called with the queue locked, so that full and up reach the host in the order in which they were true.
    fn tell(&self, link: Link) {
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

    /// Ends the connection now; what is queued is lost.
    pub(crate) fn close(&self, why: &'static str) {
        self.lock().closed.get_or_insert(why);
        self.close.notify_one();
        self.heard.notify_waiters();
    }

    /// Ends the connection when what is queued is written.
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

    /// Whether the peer answers; false if the connection ends first. The caller sets the time limit.
    pub(crate) async fn answers(&self) -> bool {
        let before = self.pongs.load(Ordering::Acquire);
        // If the queue is too full for a ping, either the peer drains it, or there will be no answer.
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

    /// Carries frames until the connection ends.
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
        // The smaller of both sides' limits: the peer knows them, too, and keeps to them.
        let mut assembler = Assembler::new(self.limits);
        let mut events = Vec::new();
        loop {
            let result = self.open_frames(&mut assembler, &mut events, counters);
            if !events.is_empty() {
                // Also what came before a bad frame: it is whole and in order.
                self.inbox.put(self.class, events.drain(..));
            }
            if let Err(ended) = result {
                return ended;
            }
            self.inbox.room(self.class).await;
            match assembler.read(&mut r).await {
                Ok(0) if assembler.is_empty() => return Ended::Eof,
                Ok(0) => return Ended::Torn,
                Ok(n) => add(&counters.bytes_in, n),
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
                    // The limit of the queue also limits a flood of pings.
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

    /// Requests and posts come in on connections that the peer dialed, replies on those that we dialed. A request gets
    /// the number of this connection on top, so that its reply cannot reach a later life of the peer, which counts its
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
                // Let every task that is ready queue its frames first: without this, every batch is one frame and costs five times as much.
                // A lone frame does not wait, because yielding means a look at all sockets.
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

    /// Tells the host if the queue was full and is below half with this.
    fn written(&self, cost: usize) {
        let mut queue = self.lock();
        queue.bytes -= cost;
        if queue.full && queue.bytes < self.queue_bytes / 2 && queue.closed.is_none() {
            queue.full = false;
            self.tell(Link::Up);
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
