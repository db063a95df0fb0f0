//! A new connection: it sends either a four-letter word or a request for a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::Abandoned;
use atoll_core::level::since;
use atoll_db::ProposeError;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

use super::connection::{Connection, Parts};
use super::figures::{ConnectionFigures, Refusal};
use super::words::{self, Word};
use super::{Shared, frame, read_only};
use crate::command::{AttachSession, Command, OpenSession, PASSWORD_BYTES, SessionAnswer};
use crate::jute::Jute;
use crate::jute::codes::{ErrorCode, OpCode};
use crate::jute::records::{ConnectRequest, ConnectResponse};
use crate::session::LastSeen;
use crate::session::secret::Secret;
use crate::tree::read;
use crate::watch::ConnectionId;
use crate::watch::outbox::{End, Outbox};

/// The first message must arrive within this time. The last one must be sent within it.
const WITHIN: Duration = Duration::from_secs(10);
/// Opening or resuming a session may take this long. After that the client should try another node.
const SESSION_WITHIN: Duration = Duration::from_secs(20);
/// Longest first message, without its length field.
const MAX_FIRST_BYTES: usize = 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The client closed it.
    #[error("closed by the client")]
    ByClient,
    /// It sent no complete first message in time.
    #[error("no session within {WITHIN:?}")]
    Silent,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The client sent malformed data.
    #[error("refused: {0}")]
    Malformed(String),
    /// The client failed to authenticate.
    #[error("refused: {0}")]
    NotAuthenticated(String),
    /// The client has seen changes that are not here. They belong to another cluster, or precede a restore.
    #[error("refused: the client has seen zxid {seen:#x}, but the newest one here is {newest:#x}")]
    Ahead {
        /// The newest zxid that the client has seen.
        seen: i64,
        /// The newest zxid on this node.
        newest: i64,
    },
    /// A command of the client was not applied, or its outcome is unknown. The client must ask again.
    #[error("closed, because a command did not happen or its outcome is unknown: {0}")]
    Log(String),
    /// This node ended the connection.
    #[error("closed: {0:?}")]
    Here(End),
    /// The client sent an operation that ZooKeeper's clients never send.
    #[error("closed: the operation {0} is unknown")]
    Unknown(i32),
    /// There is no room for the watches that the client brought.
    #[error(
        "closed: it registered more watches than one connection, or all connections together, may have on this node"
    )]
    Watches,
    /// The store cannot be read.
    #[error("closed: {0}")]
    Read(#[from] read::ReadError),
}

impl Ended {
    /// Returns the counter to increment for this end, if there is one.
    fn refusal(&self) -> Option<Refusal> {
        match self {
            Ended::Malformed(_) => Some(Refusal::Frame),
            Ended::NotAuthenticated(_) => Some(Refusal::Authentication),
            Ended::Ahead { .. } => Some(Refusal::Ahead),
            Ended::Silent => Some(Refusal::Silent),
            _ => None,
        }
    }
}

impl From<ProposeError> for Ended {
    fn from(error: ProposeError) -> Self {
        Ended::Log(error.to_string())
    }
}

impl From<Abandoned> for Ended {
    fn from(error: Abandoned) -> Self {
        Ended::Log(error.to_string())
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    shared: Arc<Shared>,
    stream: S,
    id: ConnectionId,
    figures: Arc<ConnectionFigures>,
) {
    let peer = figures.peer;
    let outbox = Arc::new(Outbox::default());
    let ended = converse(&shared, stream, id, &figures, &outbox).await;
    while !shared.watches.part(id) {
        tokio::task::yield_now().await;
    }
    shared.sessions.unbind(figures.session.load(Ordering::Relaxed), id);
    shared.figures.count_outstanding(&figures, 0);
    if ended.is_err() && figures.session.load(Ordering::Relaxed) != 0 {
        shared.figures.dropped.add(1);
    }
    shared.connections().remove(id);
    match ended {
        Ok(()) | Err(Ended::ByClient | Ended::Io(_) | Ended::Here(_)) => {
            if matches!(ended, Err(Ended::Here(End::Behind))) {
                shared.figures.refuse(Refusal::Slow);
            }
            tracing::debug!(%peer, ?ended, "a ZooKeeper client's connection ended");
        }
        Err(error) => {
            let refusal = error.refusal();
            refusal.into_iter().for_each(|refusal| shared.figures.refuse(refusal));
            tracing::info!(%peer, "a ZooKeeper client's connection: {error}");
        }
    }
}

async fn converse<S: AsyncRead + AsyncWrite + Unpin>(
    shared: &Arc<Shared>,
    mut stream: S,
    id: ConnectionId,
    figures: &Arc<ConnectionFigures>,
    outbox: &Arc<Outbox>,
) -> Result<(), Ended> {
    let mut input = BytesMut::with_capacity(4096);
    let first = tokio::time::timeout(WITHIN, read_first(&mut stream, &mut input));
    let length = match first.await.map_err(|_| Ended::Silent)?? {
        First::Word(name) => {
            shared.figures.received.add(1);
            figures.received.add(1);
            let mask = match words::has_mask(shared, &name) {
                true => {
                    let read = tokio::time::timeout(WITHIN, read_mask(&mut stream, &mut input));
                    Some(read.await.map_err(|_| Ended::Silent)??)
                }
                false => None,
            };
            let word = Word { name, mask };
            let answer = words::answer_in_turn(shared, word).await;
            return say_last(&mut stream, answer.as_bytes()).await;
        }
        First::Connect(length) => length,
    };
    let received_at = Instant::now();
    let message = input.split_to(length);
    let asked = ConnectRequest::parse(&message).map_err(|e| Ended::Malformed(e.to_string()))?;
    shared.figures.connects.add(1);
    shared.figures.revalidated.add(u64::from(asked.session != 0));
    let mut out = Vec::new();
    let read_only = shared.is_read_only();
    let opened = match read_only {
        true => Some(read_only::admit(shared, &asked).await?),
        false => open_in_time(shared, &asked).await?,
    };
    let Some((session, password)) = opened else {
        let none = SessionAnswer { session: 0, moves: 0, timeout_ms: 0 };
        write_connect(&mut out, &asked, none, &[0; PASSWORD_BYTES], false);
        return say_last(&mut stream, &out).await;
    };
    let SessionAnswer { session: number, moves, .. } = session;
    shared.watches.join(id, outbox.clone());
    let heard = match shared.sessions.bind(number, moves, id, outbox) {
        Some(heard) => heard,
        // The client's silence on this node does not expire the session.
        None if read_only => LastSeen::new(),
        None => return Err(Ended::Here(End::SessionMoved)),
    };
    figures.opened(number, session.timeout_ms);
    // If the log was lost or came back before this connection was registered, nothing else would disconnect the client.
    if shared.is_read_only() != read_only {
        return Err(Ended::Here(End::Closed));
    }
    write_connect(&mut out, &asked, session, &password, read_only);
    count_connect(shared, figures, received_at);
    let outbox = outbox.clone();
    let parts = Parts { id, session: number, moves, input, out, outbox, heard, read_only };
    Connection::new(shared.clone(), stream, figures.clone(), parts).run().await
}

/// Counts the request for a session, which was received at `received_at` and is answered now.
fn count_connect(shared: &Shared, figures: &ConnectionFigures, received_at: Instant) {
    for count in [&shared.figures.received, &shared.figures.sent, &figures.received, &figures.sent] {
        count.add(1);
    }
    let us = u64::try_from(received_at.elapsed().as_micros()).unwrap_or(u64::MAX);
    figures.latency.add_many(us, 1);
    let at = shared.figures.started.elapsed();
    figures.last.set(Some(OpCode::CreateSession), 0, shared.zxid(), at);
}

/// Sends the last message on a connection and closes it. Gives up after [`WITHIN`] if the client does not read.
async fn say_last<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), Ended> {
    let said = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    Ok(tokio::time::timeout(WITHIN, said).await.map_err(|_| Ended::Here(End::Behind))??)
}

enum First {
    Word(String),
    /// The length of the message. All of it is in the buffer.
    Connect(usize),
}

/// Reads the first message and removes its length field.
async fn read_first<S: AsyncRead + Unpin>(stream: &mut S, input: &mut BytesMut) -> Result<First, Ended> {
    read_more(stream, input, 4).await?;
    if input[..4].iter().all(u8::is_ascii_lowercase) {
        return Ok(First::Word(String::from_utf8_lossy(&input.split_to(4)).into_owned()));
    }
    let length = usize::try_from(input.get_i32()).unwrap_or(usize::MAX);
    if !(ConnectRequest::LEAST_BYTES..=MAX_FIRST_BYTES).contains(&length) {
        return Err(Ended::Malformed(format!(
            "a first message of {length} bytes; allowed: {} to {MAX_FIRST_BYTES}",
            ConnectRequest::LEAST_BYTES
        )));
    }
    read_more(stream, input, length).await?;
    Ok(First::Connect(length))
}

/// Reads until the input has at least so many bytes.
async fn read_more<S: AsyncRead + Unpin>(
    stream: &mut S,
    input: &mut BytesMut,
    least: usize,
) -> Result<(), Ended> {
    while input.len() < least {
        if stream.read_buf(input).await? == 0 {
            return Err(Ended::ByClient);
        }
    }
    Ok(())
}

/// Reads the trace mask behind the word that sets it.
async fn read_mask<S: AsyncRead + Unpin>(stream: &mut S, input: &mut BytesMut) -> Result<i64, Ended> {
    read_more(stream, input, 8).await?;
    Ok(input.get_i64())
}

/// Waits until this node has applied all changes that the client has seen, because a client must never see an older state.
async fn catch_up(shared: &Shared, seen: i64) -> Result<(), Ended> {
    let newest = || shared.read(shared.engine.view(), read::counters);
    if seen <= newest().await?.zxid {
        return Ok(());
    }
    shared.engine.barrier().await?.map_err(|e| Ended::Log(e.to_string()))?;
    match newest().await?.zxid {
        newest if seen > newest => Err(Ended::Ahead { seen, newest }),
        _ => Ok(()),
    }
}

pub(crate) type Password = [u8; PASSWORD_BYTES];

/// Opens a session or resumes the client's own, once this node has applied everything that the client has seen. Returns None if
/// that session is gone. The wait is bounded: a client that gets no answer for that long has gone to another node, and while the
/// log is out of reach too many connections would wait here.
async fn open_in_time(
    shared: &Shared,
    asked: &ConnectRequest<'_>,
) -> Result<Option<(SessionAnswer, Password)>, Ended> {
    let opened = async {
        catch_up(shared, asked.last_zxid_seen).await?;
        open(shared, asked).await
    };
    let opened = tokio::time::timeout(SESSION_WITHIN, opened).await;
    opened.map_err(|_| Ended::Log(format!("no answer within {SESSION_WITHIN:?}")))?
}

/// Opens a session or resumes the client's own. Returns None if that session is gone.
async fn open(
    shared: &Shared,
    asked: &ConnectRequest<'_>,
) -> Result<Option<(SessionAnswer, Password)>, Ended> {
    let timeout_ms = shared.timeout_ms(asked);
    let level = shared.engine.level();
    // Nobody who reads the log or the state learns the password.
    let said = |password: &Password| match level >= since::HASHED_PASSWORDS {
        true => Secret::hash_of(password),
        false => Secret::Plain(*password),
    };
    let mut password = [0; PASSWORD_BYTES];
    let command = if asked.session == 0 {
        if !shared.cluster.draw_password(&mut password) {
            return Err(Ended::Log("the system has no random bytes".into()));
        }
        Command::Open(OpenSession { password: Some(said(&password).bytes()), timeout_ms }).to_bytes()
    } else {
        let Some(Ok(given)) = asked.password.map(Password::try_from) else { return Ok(None) };
        password = given;
        let session = asked.session;
        Command::Attach(AttachSession { session, password: Some(said(&password).bytes()), timeout_ms })
            .to_bytes()
    };
    let command = Bytes::from(command);
    let proposed = loop {
        match shared.engine.propose_at(level, command.clone()) {
            Ok(proposed) => break proposed,
            Err(busy) => {
                shared.figures.throttled.add(1);
                shared.engine.room(&busy).await;
            }
        }
    };
    let applied = proposed.await??;
    let answer = applied.reply.unwrap_or_else(|rejected| rejected.0);
    let head = frame::head(&answer);
    if head.err == ErrorCode::SessionExpired.number() {
        return Ok(None);
    }
    let body = answer.get(crate::command::AnswerHead::LEAST_BYTES..).unwrap_or_default();
    match SessionAnswer::parse(body) {
        Ok(session) if head.err == 0 => Ok(Some((session, password))),
        _ => Err(Ended::Log(format!("a session was refused with {}", head.err))),
    }
}

fn write_connect(
    out: &mut Vec<u8>,
    asked: &ConnectRequest<'_>,
    session: SessionAnswer,
    password: &Password,
    read_only: bool,
) {
    let response = ConnectResponse {
        protocol_version: 0,
        timeout_ms: session.timeout_ms,
        session: session.session,
        password: Some(password),
        read_only: asked.read_only.map(|_| read_only),
    };
    frame::write(out, |out| response.write(out));
}
