//! Accepts and serves the connections of the gRPC door.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use atoll_socket::LimitedWarning;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::service::Routes;

use super::connections::{Connection, Connections, Place};
use super::gate::Gate;
use super::limits::Limits;
use super::requests::Requests;
use super::services::Shared;
use super::tls::{DoorTls, certificate_name};

/// The flow-control windows of requests. Data that the door does not read stays in memory: at most one stream window per stream, and at
/// most one connection window plus one frame per connection in total. The door's budgets do not count it. With the maximum number of
/// connections, that is 160 MB.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 256 * 1024;
/// The size of the replies that one stream buffers in addition to the message that is being sent, in bytes.
const SEND_BUFFER_BYTES: usize = 64 * 1024;
/// The longest HTTP/2 frame that is accepted, in bytes.
const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// The longest head of a request, in bytes.
const MAX_HEAD_BYTES: u32 = 16 * 1024;
/// The maximum number of concurrent requests of one connection. HTTP/2 announces it to the client.
const STREAMS_OF_CONNECTION: u32 = 256;
/// A client that does not answer a ping in time is gone, and its streams are closed.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// How long connections may take to finish requests after the stop.
const GRACE: Duration = Duration::from_secs(5);
/// The pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The length of the preface that every HTTP/2 client sends first.
const PREFACE_BYTES: usize = 24;

/// Everything that a connection's task needs.
#[derive(Clone)]
struct Serving {
    routes: Routes,
    tls: Option<DoorTls>,
    limits: Arc<Limits>,
    gate: Arc<Gate>,
    connections: Arc<Connections>,
    stopping: watch::Receiver<bool>,
}

/// Accepts and serves connections until `stopping` becomes true. Then waits for requests in progress, for at most [`GRACE`].
pub(super) async fn serve(listener: TcpListener, routes: Routes, tls: Option<DoorTls>, shared: Shared) {
    let Shared { limits, gate, mut stopping, .. } = shared;
    let connections = Connections::new(limits.connections, limits.connections_of_address);
    let door = Serving { routes, tls, limits, gate, connections, stopping: stopping.clone() };
    let mut tasks = JoinSet::new();
    let (mut refused, mut failed) = (LimitedWarning::default(), LimitedWarning::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
            _ = stopping.wait_for(|stop| *stop) => break,
        };
        let (tcp, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Either no file descriptors are left or the client has already disconnected. Retry after a pause.
                if let Some(times) = failed.pass() {
                    tracing::warn!(%error, times, "the gRPC door cannot accept");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Some(place) = door.connections.admit(from.ip()) else {
            if let Some(times) = refused.pass() {
                tracing::warn!(%from, times, "a gRPC client was refused: too many connections have requests in progress");
            }
            continue;
        };
        // A small reply must not wait for the next one. If this fails, the connection itself will show it.
        let _ = atoll_socket::tune(&tcp);
        tasks.spawn(door.clone().connection(tcp, place));
    }
    drop(listener);
    let all = async { while tasks.join_next().await.is_some() {} };
    // Connections that are still open after that are closed, and their clients continue at another node.
    let _ = tokio::time::timeout(GRACE, all).await;
}

impl Serving {
    async fn connection(self, tcp: TcpStream, place: Place) {
        let connection = place.connection.clone();
        let greet_by = Instant::now() + self.limits.greet_within;
        let serving = async {
            match &self.tls {
                None => self.http(tcp, &connection, None, greet_by).await,
                Some(tls) => {
                    // A client that fails the handshake, or does not complete it in time, gets no answer.
                    if let Ok(Ok(stream)) = timeout_at(greet_by, tls.accept(tcp)).await {
                        let shown = stream.get_ref().1.peer_certificates();
                        let name = shown.and_then(|chain| certificate_name(chain.first()?));
                        self.http(stream, &connection, name, greet_by).await;
                    }
                }
            }
        };
        tokio::select! {
            () = serving => {}
            () = connection.ended() => {}
        }
    }

    async fn http<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        connection: &Arc<Connection>,
        certificate: Option<Arc<str>>,
        greet_by: Instant,
    ) {
        let requests = Requests {
            routes: self.routes.clone(),
            connections: self.connections.clone(),
            connection: connection.clone(),
            limits: self.limits.clone(),
            gate: self.gate.clone(),
            certificate,
        };
        let stream = Greeting { stream, read: 0, connection: connection.clone() };
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .max_header_list_size(MAX_HEAD_BYTES)
            .max_concurrent_streams(STREAMS_OF_CONNECTION)
            .keep_alive_interval(Some(PING_INTERVAL))
            .keep_alive_timeout(PING_TIMEOUT);
        let mut serving = pin!(builder.serve_connection(TokioIo::new(stream), requests));
        tokio::select! {
            _ = serving.as_mut() => return,
            () = sleep_until(greet_by) => {
                if !connection.has_greeted() {
                    return;
                }
            }
        }
        let mut stopping = self.stopping.clone();
        tokio::select! {
            // Errors of a connection are ignored: they only mean that the client disconnected.
            _ = serving.as_mut() => return,
            _ = stopping.wait_for(|stop| *stop) => {}
        }
        serving.as_mut().graceful_shutdown();
        let _ = serving.await;
    }
}

/// A stream that reports when the client has sent the HTTP/2 preface.
struct Greeting<S> {
    stream: S,
    read: usize,
    connection: Arc<Connection>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeting<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.read < PREFACE_BYTES {
            self.read += buf.filled().len() - before;
            if self.read >= PREFACE_BYTES {
                self.connection.greet();
            }
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
