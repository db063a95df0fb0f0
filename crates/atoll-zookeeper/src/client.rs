//! A small ZooKeeper client for Atoll's own programs, which read from one ensemble and write to another. It keeps no session across
//! connections and sets no watches. It repeats all requests whose replies it lost.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use crate::jute::codes::{OpCode, xid};
use crate::jute::records::{ConnectRequest, ConnectResponse, ReplyHeader, RequestHeader};
use crate::jute::request::{AuthRequest, Request};
use crate::jute::{Jute, JuteError, Reader};
use crate::server::frame;

/// The session timeout to request, which is longer than any pause between two calls.
const SESSION_TIMEOUT_MS: i32 = 30_000;
/// If a server does not accept a connection within this time, the next server is tried.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(200);
/// Longest reply: the largest node or list of children that a server holds, with some margin.
const MAX_REPLY_BYTES: usize = 256 << 20;

/// The servers to connect to, and the client's credentials.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The servers, as HOST:PORT. If one fails, the next is tried.
    pub servers: Vec<String>,
    /// Schemes with their credentials: `user:password` for `digest`.
    pub auth: Vec<(String, String)>,
    /// A call fails if no server has answered it within this time.
    pub within: Duration,
}

/// The reason why a call has no reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No server answered in time. It is unknown whether the requests happened.
    #[error("{servers}: no answer within {within:?}: {last}")]
    NoAnswer {
        /// The servers.
        servers: String,
        /// The time limit.
        within: Duration,
        /// The last error.
        last: io::Error,
    },
    /// The server refuses the authentication. The requests did not happen.
    #[error("{server} rejected the authentication with scheme {scheme}: error {code}")]
    Auth {
        /// The server.
        server: String,
        /// The scheme.
        scheme: String,
        /// An [`ErrorCode`](crate::jute::codes::ErrorCode).
        code: i32,
    },
    /// The server's bytes are not a ZooKeeper reply. It is unknown whether the requests happened.
    #[error("{server} does not speak ZooKeeper's protocol: {error}")]
    Foreign {
        /// The server.
        server: String,
        /// The reason.
        error: JuteError,
    },
}

/// The reason why requests that are sent once at most have no reply.
#[derive(Debug, thiserror::Error)]
pub enum OnceError {
    /// They were not sent, so they did not happen.
    #[error("not sent: {0}")]
    NotSent(ClientError),
    /// They were sent. It is unknown whether they happened, or will.
    #[error("unknown whether it happened: {0}")]
    Lost(ClientError),
}

/// The reply to a request.
#[derive(Clone, Debug)]
pub struct Reply {
    /// 0, or an [`ErrorCode`](crate::jute::codes::ErrorCode).
    pub err: i32,
    /// The zxid of the newest change that the server knew of.
    pub zxid: i64,
    /// The body of the reply.
    pub body: Bytes,
}

enum Failed {
    Io(io::Error),
    Final(ClientError),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Failed::Io(error)
    }
}

struct Link {
    stream: BufReader<TcpStream>,
    server: String,
    xid: i32,
}

/// See the module documentation.
pub struct Client {
    options: ClientOptions,
    link: Option<Link>,
    next: usize,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client of {}", self.options.servers.join(","))
    }
}

impl Client {
    /// Creates a client, which connects at the first call.
    pub fn new(options: ClientOptions) -> Client {
        Client { options, link: None, next: 0 }
    }

    /// Sends several requests at once; returns their replies in the same order. If a connection fails, all requests are sent again,
    /// so they must be safe to repeat. All replies are held in memory.
    ///
    /// # Errors
    /// No server answered in time, or one refused the authentication or sent malformed data. See [`ClientError`].
    pub async fn calls(&mut self, requests: &[Request<'_>]) -> Result<Vec<Reply>, ClientError> {
        let until = Instant::now() + self.options.within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let done = timeout(left, self.try_calls(requests)).await;
            let late = || io::Error::new(io::ErrorKind::TimedOut, "the server is silent");
            let error = match done.unwrap_or_else(|_| Err(late().into())) {
                Ok(replies) => return Ok(replies),
                Err(Failed::Final(error)) => return Err(error),
                Err(Failed::Io(error)) => error,
            };
            self.link = None;
            if Instant::now() + PAUSE >= until {
                let servers = self.options.servers.join(",");
                return Err(ClientError::NoAnswer { servers, within: self.options.within, last: error });
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends one request.
    ///
    /// # Errors
    /// See [`Client::calls`].
    pub async fn call(&mut self, request: Request<'_>) -> Result<Reply, ClientError> {
        let mut replies = self.calls(std::slice::from_ref(&request)).await?;
        Ok(replies.swap_remove(0))
    }

    /// Sends several requests at once, and never again. If there is no connection, one is opened first, to the next server.
    ///
    /// # Errors
    /// No server accepted a connection in time, or a reply was lost. See [`OnceError`].
    pub async fn calls_once(&mut self, requests: &[Request<'_>]) -> Result<Vec<Reply>, OnceError> {
        let until = Instant::now() + self.options.within;
        let late = || io::Error::new(io::ErrorKind::TimedOut, "the server is silent");
        let mut link = match self.link.take() {
            Some(link) => link,
            None => match timeout(self.options.within, self.connect())
                .await
                .unwrap_or_else(|_| Err(late().into()))
            {
                Ok(link) => link,
                Err(failed) => return Err(OnceError::NotSent(self.error(failed))),
            },
        };
        let left = until.saturating_duration_since(Instant::now());
        match timeout(left, link.ask(requests)).await.unwrap_or_else(|_| Err(late().into())) {
            Ok(replies) => {
                self.link = Some(link);
                Ok(replies)
            }
            Err(failed) => Err(OnceError::Lost(self.error(failed))),
        }
    }

    fn error(&self, failed: Failed) -> ClientError {
        match failed {
            Failed::Final(error) => error,
            Failed::Io(last) => {
                let servers = self.options.servers.join(",");
                ClientError::NoAnswer { servers, within: self.options.within, last }
            }
        }
    }

    /// Closes the session if that takes at most a second. Otherwise the session expires.
    pub async fn close(mut self) {
        if let Some(mut link) = self.link.take() {
            // Nobody waits for the result.
            let _ = timeout(Duration::from_secs(1), link.ask(&[Request::CloseSession])).await;
        }
    }

    async fn try_calls(&mut self, requests: &[Request<'_>]) -> Result<Vec<Reply>, Failed> {
        if self.link.is_none() {
            self.link = Some(self.connect().await?);
        }
        match &mut self.link {
            Some(link) => link.ask(requests).await,
            None => Ok(Vec::new()),
        }
    }

    async fn connect(&mut self) -> Result<Link, Failed> {
        let servers = &self.options.servers;
        let Some(server) = servers.get(self.next % servers.len().max(1)).cloned() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no server was named").into());
        };
        self.next += 1;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, format!("{server} accepts no connection"));
        let stream = timeout(CONNECT_WITHIN, TcpStream::connect(&server)).await.map_err(late)??;
        stream.set_nodelay(true)?;
        let mut link = Link { stream: BufReader::with_capacity(64 * 1024, stream), server, xid: 0 };
        timeout(CONNECT_WITHIN, link.begin(&self.options.auth)).await.map_err(|_| {
            io::Error::new(io::ErrorKind::TimedOut, format!("{} opens no session", link.server))
        })??;
        Ok(link)
    }
}

impl Link {
    async fn begin(&mut self, auth: &[(String, String)]) -> Result<(), Failed> {
        let first = ConnectRequest::first(SESSION_TIMEOUT_MS);
        let mut out = Vec::new();
        frame::write(&mut out, |out| first.write(out));
        self.stream.write_all(&out).await?;
        let frame = self.frame().await?;
        let answer = ConnectResponse::parse(&frame).map_err(|error| self.foreign(error))?;
        if answer.timeout_ms <= 0 {
            return Err(
                io::Error::new(io::ErrorKind::ConnectionRefused, "the server opens no session").into()
            );
        }
        for (scheme, secret) in auth {
            let asked = AuthRequest { kind: 0, scheme, auth: Some(secret.as_bytes()) };
            out.clear();
            frame::write(&mut out, |out| {
                RequestHeader { xid: xid::AUTH, op: OpCode::Auth.number() }.write(out);
                asked.write(out);
            });
            self.stream.write_all(&out).await?;
            let reply = self.reply(xid::AUTH).await?;
            if reply.err != 0 {
                let (server, scheme) = (self.server.clone(), scheme.clone());
                return Err(Failed::Final(ClientError::Auth { server, scheme, code: reply.err }));
            }
        }
        Ok(())
    }

    async fn ask(&mut self, requests: &[Request<'_>]) -> Result<Vec<Reply>, Failed> {
        let (mut out, first) = (Vec::new(), self.xid);
        for request in requests {
            self.xid = self.xid.wrapping_add(1) & i32::MAX;
            frame::write(&mut out, |out| {
                RequestHeader { xid: self.xid, op: request.op().number() }.write(out);
                request.write(out);
            });
        }
        self.stream.write_all(&out).await?;
        let mut replies = Vec::with_capacity(requests.len());
        let mut expected = first;
        for _ in requests {
            expected = expected.wrapping_add(1) & i32::MAX;
            replies.push(self.reply(expected).await?);
        }
        Ok(replies)
    }

    async fn reply(&mut self, expected: i32) -> Result<Reply, Failed> {
        let frame = self.frame().await?;
        let mut from = Reader::new(&frame);
        let header = ReplyHeader::read(&mut from).map_err(|error| self.foreign(error))?;
        if header.xid != expected {
            let error = JuteError::Unknown { what: "xid of a reply", value: header.xid };
            return Err(self.foreign(error));
        }
        Ok(Reply { err: header.err, zxid: header.zxid, body: frame.slice_ref(from.rest()) })
    }

    async fn frame(&mut self) -> Result<Bytes, Failed> {
        let length = self.stream.read_i32().await?;
        let what = "frame";
        match usize::try_from(length) {
            Ok(n) if n <= MAX_REPLY_BYTES => {
                let mut frame = Vec::new();
                // The buffer grows as data arrives, so a large length alone allocates nothing.
                (&mut self.stream).take(n as u64).read_to_end(&mut frame).await?;
                if frame.len() < n {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                Ok(frame.into())
            }
            _ => Err(self.foreign(JuteError::Length { what, length })),
        }
    }

    fn foreign(&self, error: JuteError) -> Failed {
        Failed::Final(ClientError::Foreign { server: self.server.clone(), error })
    }
}
