//! A new connection: four letters that ask for figures, or a client that wants a session.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atoll_core::Abandoned;
use atoll_db::ProposeError;
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::connection::{Connection, Parts};
use super::figures::{ConnectionFigures, Refusal};
use super::{Shared, frame, read_only, words};
use crate::command::{AttachSession, Command, OpenSession, PASSWORD_BYTES, SessionAnswer};
use crate::jute::Jute;
use crate::jute::codes::ErrorCode;
use crate::jute::records::{ConnectRequest, ConnectResponse};
use crate::session::keeper::LastSeen;
use crate::tree::read;
use crate::watch::ConnectionId;
use crate::watch::outbox::{End, Outbox};

/// A client says what it wants within this time.
const WITHIN: Duration = Duration::from_secs(10);
/// The log takes a session within this time, or the client tries elsewhere.
const SESSION_WITHIN: Duration = Duration::from_secs(20);
/// Longest first message.
const MAX_FIRST_BYTES: usize = 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Ended {
    /// The client closed it.
    #[error("closed by the client")]
    ByClient,
    /// It said nothing for too long, before it had a session.
    #[error("no session within {WITHIN:?}")]
    Silent,
    /// The socket failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// What it sent makes no sense.
    #[error("refused: {0}")]
    Malformed(String),
    /// It did not prove who it is.
    #[error("refused: {0}")]
    NotAuthenticated(String),
    /// It has seen changes that are not here: those of another cluster, or those from before a restore.
    #[error("refused: the client has seen zxid {seen:#x}, and the newest here is {newest:#x}")]
    Ahead {
        /// The client's.
        seen: i64,
        /// The node's.
        newest: i64,
    },
    /// The log did not take what the client asked for, or it is unknown whether it did: the client asks again.
    #[error("closed, since a command's outcome is not known or it did not happen: {0}")]
    Log(String),
    /// This side ended it.
    #[error("closed: {0:?}")]
    Here(End),
    /// There is no room for the watches that it brought along.
    #[error("closed: it brought more watches than a connection, or all of them, may have here")]
    Watches,
    /// The store cannot be read.
    #[error("closed: {0}")]
    Read(#[from] read::ReadError),
}

impl Ended {
    /// What is counted for it.
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
    shared.connections().remove(&id);
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
        First::Word(word) => {
            let answer = words::answer_in_turn(shared, word).await;
            return say_last(&mut stream, answer.as_bytes()).await;
        }
        First::Connect(length) => length,
    };
    let message = input.split_to(length);
    let asked = ConnectRequest::parse(&message).map_err(|e| Ended::Malformed(e.to_string()))?;
    shared.figures.connects.add(1);
    shared.figures.revalidated.add(u64::from(asked.session != 0));
    let mut out = Vec::new();
    let read_only = shared.is_read_only();
    let opened = match read_only {
        true => Some(read_only::admit(shared, &asked)?),
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
        // This node does not judge it.
        None if read_only => LastSeen::new(),
        None => return Err(Ended::Here(End::SessionMoved)),
    };
    figures.session.store(number, Ordering::Relaxed);
    // If the log came back or was lost before the client was in the lists, nobody would disconnect it.
    if shared.is_read_only() != read_only {
        return Err(Ended::Here(End::Closed));
    }
    write_connect(&mut out, &asked, session, &password, read_only);
    let outbox = outbox.clone();
    let parts = Parts { id, session: number, moves, input, out, outbox, heard, read_only };
    Connection::new(shared.clone(), stream, figures.clone(), parts).run().await
}

/// Sends the last message on a connection without waiting for a client that does not read it.
async fn say_last<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), Ended> {
    let said = async {
        stream.write_all(bytes).await?;
        stream.shutdown().await
    };
    Ok(tokio::time::timeout(WITHIN, said).await.map_err(|_| Ended::Here(End::Behind))??)
}

enum First {
    Word(String),
    /// The length of the message, which is there.
    Connect(usize),
}

/// Reads the first message, without its length.
async fn read_first<S: AsyncRead + Unpin>(stream: &mut S, input: &mut BytesMut) -> Result<First, Ended> {
    let mut more = async |input: &mut BytesMut, least: usize| -> Result<(), Ended> {
        while input.len() < least {
            if stream.read_buf(input).await? == 0 {
                return Err(Ended::ByClient);
            }
        }
        Ok(())
    };
    more(input, 4).await?;
    if input[..4].iter().all(u8::is_ascii_lowercase) {
        return Ok(First::Word(String::from_utf8_lossy(&input[..4]).into_owned()));
    }
    let length = usize::try_from(input.get_i32()).unwrap_or(usize::MAX);
    if !(ConnectRequest::LEAST_BYTES..=MAX_FIRST_BYTES).contains(&length) {
        return Err(Ended::Malformed(format!(
            "a first message of {length} bytes; allowed: {} to {MAX_FIRST_BYTES}",
            ConnectRequest::LEAST_BYTES
        )));
    }
    more(input, length).await?;
    Ok(First::Connect(length))
}

/// Waits until this node has applied what the client has seen, because the client must not see an older state.
async fn catch_up(shared: &Shared, seen: i64) -> Result<(), Ended> {
    let newest = || read::counters(&shared.engine.view()).map(|c| c.zxid);
    if seen <= newest()? {
        return Ok(());
    }
    shared.engine.barrier().await?.map_err(|e| Ended::Log(e.to_string()))?;
    match newest()? {
        newest if seen > newest => Err(Ended::Ahead { seen, newest }),
        _ => Ok(()),
    }
}

pub(crate) type Password = [u8; PASSWORD_BYTES];

/// Opens a session or takes over the client's own, once this node is as far as the client; None if that session is gone. A client
/// that hears nothing for that long has gone elsewhere: the connections that wait here would be too many while the log is out of
/// reach.
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

/// Opens a session or takes the client's one; None if that is gone.
async fn open(
    shared: &Shared,
    asked: &ConnectRequest<'_>,
) -> Result<Option<(SessionAnswer, Password)>, Ended> {
    let timeout_ms = shared.timeout_ms(asked);
    let mut password = [0; PASSWORD_BYTES];
    let command = if asked.session == 0 {
        if !shared.cluster.draw_password(&mut password) {
            return Err(Ended::Log("the system has no random bytes".into()));
        }
        Command::Open(OpenSession { password: Some(&password), timeout_ms }).to_bytes()
    } else {
        let Some(Ok(given)) = asked.password.map(Password::try_from) else { return Ok(None) };
        password = given;
        let session = asked.session;
        Command::Attach(AttachSession { session, password: asked.password, timeout_ms }).to_bytes()
    };
    let command = Bytes::from(command);
    let proposed = loop {
        match shared.engine.propose(command.clone()) {
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
