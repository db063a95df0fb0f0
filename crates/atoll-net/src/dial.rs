//! Keeps a connection to a peer, with one task per peer and class.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::{Class, NodeId};
use tokio::net::TcpStream;
use tokio::sync::Notify;

use crate::conn::{Conn, Ended, Stream};
use crate::handshake::{HandshakeError, Hello, Refusal, RefusalCode, read_hello, write_hello};
use crate::inbox::NetEvent;
use crate::net::{Shared, tune};
use crate::stats::count;
use crate::tls::{TlsError, name_of_node};

/// A connection that lasted this long counts as good, so the next attempt comes soon.
const GOOD: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
enum DialError {
    #[error("looking up {0}: {1}")]
    LookUp(String, std::io::Error),
    #[error("{0} does not resolve to an address")]
    NoAddress(String),
    #[error("connecting to {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    #[error("TLS with {0}: {1}")]
    Tls(SocketAddr, std::io::Error),
    #[error(transparent)]
    Name(#[from] TlsError),
    #[error("{0}: {1}")]
    Handshake(SocketAddr, HandshakeError),
    #[error("{0} answers as node {1} of cluster {2:?}")]
    WrongNode(SocketAddr, NodeId, String),
    #[error("{0}: {1}")]
    NotAdmitted(SocketAddr, Refusal),
    #[error("{0}: no handshake in time")]
    TimedOut(SocketAddr),
    #[error("the peer was removed")]
    Removed,
}

/// Unregisters the connection when its task ends in any way.
pub(crate) struct Registered<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) conn: Arc<Conn>,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.shared.unregister(&self.conn);
    }
}

/// Connects, and reconnects whenever the connection ends, until the task is aborted. Each attempt resolves the name again, because the peer
/// may have moved.
pub(crate) async fn run(shared: Arc<Shared>, peer: NodeId, class: Class, address: String, back: Arc<Notify>) {
    let mut backoff = Backoff::new(&shared, peer, class);
    let mut last_refusal = None;
    let mut complained = String::new();
    loop {
        let began = Instant::now();
        match connect(&shared, peer, class, &address).await {
            Ok((stream, conn)) => {
                count(&shared.counters.dialed);
                (last_refusal, complained) = (None, String::new());
                let registered = Registered { shared: &shared, conn };
                tracing::info!(%peer, ?class, at = %registered.conn.remote, "connected");
                let ended: Ended = registered.conn.run(stream, &shared.counters).await;
                drop(registered);
                tracing::info!(%peer, ?class, %ended, "disconnected");
                if began.elapsed() >= GOOD {
                    backoff.reset();
                }
            }
            Err(error) => {
                count(&shared.counters.failed_dials);
                let text = error.to_string();
                if let DialError::Tls(..) = &error {
                    count(&shared.counters.failed_tls);
                }
                if let DialError::Handshake(_, HandshakeError::Refused(refusal)) = error
                    && last_refusal.as_ref() != Some(&refusal)
                {
                    let event = NetEvent::Refused { by: peer, refusal: refusal.clone() };
                    shared.inbox.put(class, [event]);
                    last_refusal = Some(refusal);
                }
                // An unreachable peer causes the same error each time, so log it once.
                if text != complained {
                    tracing::warn!(%peer, ?class, "no connection: {text}");
                    complained = text;
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = back.notified() => {}
        }
    }
}

async fn connect(
    shared: &Arc<Shared>,
    peer: NodeId,
    class: Class,
    address: &str,
) -> Result<(Stream, Arc<Conn>), DialError> {
    let found: Vec<SocketAddr> =
        tokio::net::lookup_host(address).await.map_err(|e| DialError::LookUp(address.into(), e))?.collect();
    let mut failed = DialError::NoAddress(address.into());
    for remote in found {
        let connecting = tokio::time::timeout(shared.options.connect_timeout, TcpStream::connect(remote));
        let tcp = match connecting.await {
            Ok(Ok(tcp)) => tcp,
            Ok(Err(e)) => {
                failed = DialError::Connect(remote, e);
                continue;
            }
            Err(_) => {
                failed = DialError::Connect(remote, std::io::ErrorKind::TimedOut.into());
                continue;
            }
        };
        tune(&tcp);
        let shaking = shake_hands(shared, peer, class, address, remote, tcp);
        return match tokio::time::timeout(shared.options.handshake_timeout, shaking).await {
            Ok(result) => result,
            Err(_) => Err(DialError::TimedOut(remote)),
        };
    }
    Err(failed)
}

/// Checks the peer's certificate, then its hello.
pub(crate) async fn admit(
    shared: &Shared,
    stream: &Stream,
    hello: &Hello,
    remote: SocketAddr,
) -> Result<(), Refusal> {
    if !stream.is_from(hello.node) {
        let name = name_of_node(hello.node);
        let reason = format!(
            "node {} (from {remote}) shows a certificate without the name {name:?}: it is not that node's",
            hello.node
        );
        return Err(Refusal { code: RefusalCode::Certificate, reason });
    }
    shared.admit(hello, remote).await
}

async fn shake_hands(
    shared: &Arc<Shared>,
    peer: NodeId,
    class: Class,
    address: &str,
    remote: SocketAddr,
    tcp: TcpStream,
) -> Result<(Stream, Arc<Conn>), DialError> {
    let mut stream = match &shared.tls {
        None => Stream::Plain(tcp),
        Some(tls) => {
            let tls = tls.get();
            let name = tls.name_for(address)?;
            let stream = tls.connector.connect(name, tcp).await.map_err(|e| DialError::Tls(remote, e))?;
            Stream::Tls(Box::new(stream.into()))
        }
    };
    let failed = |e| DialError::Handshake(remote, e);
    write_hello(&mut stream, &shared.hello(peer, class)).await.map_err(|e| failed(e.into()))?;
    let answer: Hello = read_hello(&mut stream).await.map_err(failed)?;
    if answer.node != peer || answer.cluster != shared.options.cluster || answer.class != class {
        return Err(DialError::WrongNode(remote, answer.node, answer.cluster));
    }
    admit(shared, &stream, &answer, remote)
        .await
        .map_err(|refusal| DialError::NotAdmitted(remote, refusal))?;
    let conn = shared.register(&answer, true, remote).ok_or(DialError::Removed)?;
    Ok((stream, conn))
}

/// Pauses between attempts. They double, and are randomised so that nodes do not retry at the same time.
struct Backoff {
    min: Duration,
    max: Duration,
    now: Duration,
    random: u64,
}

impl Backoff {
    fn new(shared: &Shared, peer: NodeId, class: Class) -> Self {
        let o = &shared.options;
        let salt = u64::from(peer.0) << 1 | u64::from(class == Class::Data);
        let random = (o.incarnation.0 ^ salt.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        Backoff { min: o.backoff_min, max: o.backoff_max, now: o.backoff_min, random }
    }

    fn reset(&mut self) {
        self.now = self.min;
    }

    fn next(&mut self) -> Duration {
        // xorshift64 is good enough for this.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let nanos = u64::try_from(self.now.as_nanos()).unwrap_or(u64::MAX / 4).max(1);
        self.now = (self.now * 2).min(self.max);
        Duration::from_nanos(nanos / 2 + self.random % nanos)
    }
}
