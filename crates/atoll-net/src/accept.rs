//! Incoming connections: a bounded number of them may be in the handshake, which decides about admission.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::conn::{Conn, Stream};
use crate::dial::{Registered, admit};
use crate::handshake::{
    HandshakeError, PROTOCOL_VERSION, Refusal, RefusalCode, read_hello, write_hello, write_refusal,
};
use crate::net::{Shared, tune};
use crate::stats::count;

/// Connections whose handshake is not complete, oldest first.
type Strangers = Arc<Mutex<BTreeMap<u64, AbortHandle>>>;

/// Removes a connection from the strangers when its handshake ends in any way.
struct Place {
    strangers: Strangers,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
    }
}

/// Accepts connections forever. All accepted connections end with this task.
pub(crate) async fn run(shared: Arc<Shared>, listener: TcpListener) {
    let strangers = Strangers::default();
    let mut tasks = JoinSet::new();
    let mut number = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        let (tcp, remote) = match accepted {
            Ok(pair) => pair,
            Err(error) => {
                // Perhaps there are no file descriptors, or the peer is gone. Another attempt may succeed after a pause.
                if let Some(times) = shared.log_accept.pass() {
                    tracing::warn!(%error, times, "accepting a connection failed");
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        count(&shared.counters.accepted);
        tune(&tcp);
        number += 1;
        let place = Place { strangers: strangers.clone(), number };
        // Lock the map before the task starts, so that the task cannot remove itself before it is inserted.
        let mut waiting = strangers.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.insert(number, tasks.spawn(serve(shared.clone(), place, tcp, remote)));
        if waiting.len() > shared.options.max_handshakes
            && let Some((_, oldest)) = waiting.pop_first()
        {
            oldest.abort();
            count(&shared.counters.evicted_handshakes);
        }
    }
}

async fn serve(shared: Arc<Shared>, place: Place, tcp: TcpStream, remote: SocketAddr) {
    let shaking = shake_hands(&shared, tcp, remote);
    let result = tokio::time::timeout(shared.options.handshake_timeout, shaking).await;
    drop(place);
    let error = match result {
        Ok(Ok((stream, registered))) => {
            let conn = registered.conn.clone();
            let ended = conn.run(stream, &shared.counters).await;
            drop(registered);
            tracing::info!(peer = %conn.peer, class = ?conn.class, from = %remote, %ended, "connection ended");
            return;
        }
        Ok(Err(error)) => error,
        Err(_) => HandshakeError::Io(std::io::ErrorKind::TimedOut.into()),
    };
    if let HandshakeError::Refused(refusal) = &error {
        count(&shared.counters.rejected_handshakes);
        if let Some(times) = shared.log_refused.pass() {
            tracing::warn!(from = %remote, times, "node refused: {refusal}");
        }
    } else {
        count(&shared.counters.rejected_garbage);
        if let Some(times) = shared.log_garbage.pass() {
            tracing::warn!(from = %remote, times, "connection refused: {error}");
        }
    }
}

async fn shake_hands<'a>(
    shared: &'a Arc<Shared>,
    tcp: TcpStream,
    remote: SocketAddr,
) -> Result<(Stream, Registered<'a>), HandshakeError> {
    let mut stream = match &shared.tls {
        None => Stream::Plain(tcp),
        Some(tls) => {
            let accepted = shared.handshakes.run(tls.get().acceptor.accept(tcp)).await;
            let accepted = accepted.inspect_err(|_| count(&shared.counters.failed_tls))?;
            Stream::Tls(Box::new(accepted.into()))
        }
    };
    let hello = match read_hello(&mut stream).await {
        Ok(hello) => hello,
        Err(error) => {
            let refusal = match &error {
                HandshakeError::Version { theirs } => Refusal {
                    code: RefusalCode::Version,
                    reason: format!(
                        "node {} speaks protocol version {PROTOCOL_VERSION}, not {theirs}",
                        shared.options.node
                    ),
                },
                HandshakeError::Decode(e) => Refusal {
                    code: RefusalCode::Malformed,
                    reason: format!("the hello is not readable: {e}"),
                },
                // A dialer has nothing to refuse. As the error of the other side, it would count as a refusal by this node.
                HandshakeError::Refused(refusal) => return Err(HandshakeError::NoHello(refusal.clone())),
                // This is not a peer, so it gets no answer.
                _ => return Err(error),
            };
            return Err(refuse(&mut stream, refusal).await);
        }
    };
    if let Err(refusal) = admit(shared, &stream, &hello, remote).await {
        return Err(refuse(&mut stream, refusal).await);
    }
    // Register the connection before sending the answer, because the peer sends requests as soon as it has the answer.
    let Some(conn): Option<Arc<Conn>> = shared.register(&hello, false, remote) else {
        return Err(std::io::Error::from(std::io::ErrorKind::ConnectionAborted).into());
    };
    let registered = Registered { shared, conn };
    write_hello(&mut stream, &shared.hello(hello.node, hello.class)).await?;
    tracing::info!(peer = %hello.node, class = ?hello.class, from = %remote, "connection accepted");
    Ok((stream, registered))
}

async fn refuse(stream: &mut Stream, refusal: Refusal) -> HandshakeError {
    // If this answer is lost, the log still has the refusal.
    let _ = write_refusal(stream, &refusal).await;
    HandshakeError::Refused(refusal)
}
