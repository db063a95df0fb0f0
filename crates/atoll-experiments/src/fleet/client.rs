//! A session of a client: one connection, requests in order, and events.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::holder::shared_now_ns;
use super::wire::{self, EVENT, PING, Reply, Request, SET_WATCHES, Ticket};

/// How long a connection or an answer may take. Nothing healthy takes as long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The times at which events arrived, of all sessions together, in nanoseconds on the clock that processes share.
#[derive(Debug, Default)]
pub struct Events {
    times: Mutex<Vec<u64>>,
}

impl Events {
    fn note(&self) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(shared_now_ns());
    }

    /// Returns the times since the last call, in order.
    pub fn take(&self) -> Vec<u64> {
        std::mem::take(&mut self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns how many there are since the last [`Events::take`].
    pub fn count(&self) -> usize {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<VecDeque<oneshot::Sender<Reply>>>,
    is_lost: AtomicBool,
    lost: Notify,
    last_zxid: AtomicI64,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<oneshot::Sender<Reply>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct Writer {
    half: OwnedWriteHalf,
    xid: i32,
}

/// A connection with a session.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    writer: tokio::sync::Mutex<Writer>,
    /// Its session.
    pub ticket: Ticket,
    /// How long the session lives without a message.
    pub timeout: Duration,
}

fn broken(words: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, words.to_owned())
}

async fn message(from: &mut BufReader<OwnedReadHalf>) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    from.read_exact(&mut prefix).await?;
    let length = wire::length(prefix).ok_or_else(|| broken("a message of such a length is none"))?;
    let mut body = vec![0; length];
    from.read_exact(&mut body).await?;
    Ok(body)
}

async fn within<T>(what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(PATIENCE, what).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Gives answers to those who wait for them, in order, until the connection ends.
async fn read(mut from: BufReader<OwnedReadHalf>, shared: Arc<Shared>, events: Arc<Events>) {
    while let Ok(body) = message(&mut from).await {
        let Some(reply) = wire::reply(&body) else { break };
        shared.last_zxid.fetch_max(reply.zxid, Ordering::Relaxed);
        match reply.xid {
            EVENT => events.note(),
            PING => {}
            _ => {
                let Some(waits) = shared.waiting().pop_front() else { break };
                // Nobody may wait any more.
                let _ = waits.send(reply);
            }
        }
    }
    shared.is_lost.store(true, Ordering::Release);
    shared.waiting().clear();
    shared.lost.notify_waiters();
}

impl Client {
    /// Opens a session at a server, or comes back with one. An expired session is an error of the kind `NotConnected`.
    pub async fn open(
        address: &str,
        ticket: &Ticket,
        last_zxid: i64,
        timeout: Duration,
        events: &Arc<Events>,
    ) -> io::Result<Client> {
        within(async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (from, mut half) = stream.into_split();
            let mut from = BufReader::with_capacity(1024, from);
            half.write_all(&wire::connect(ticket, last_zxid, timeout)).await?;
            let body = message(&mut from).await?;
            let (ticket, timeout) = wire::connected(&body).ok_or_else(|| broken("no answer to a connect"))?;
            if ticket.id == 0 {
                return Err(io::Error::new(io::ErrorKind::NotConnected, "the session has expired"));
            }
            let shared = Arc::<Shared>::default();
            shared.last_zxid.store(last_zxid, Ordering::Relaxed);
            tokio::spawn(read(from, shared.clone(), events.clone()));
            Ok(Client { shared, writer: Writer { half, xid: 0 }.into(), ticket, timeout })
        })
        .await
    }

    /// Sends requests, and waits for all answers.
    pub async fn ask(&self, requests: &[Request<'_>]) -> io::Result<Vec<Reply>> {
        let mut waits = Vec::with_capacity(requests.len());
        {
            let mut writer = self.writer.lock().await;
            let mut bytes = Vec::new();
            {
                let mut waiting = self.shared.waiting();
                for request in requests {
                    writer.xid += 1;
                    let xid =
                        if matches!(request, Request::SetWatches(..)) { SET_WATCHES } else { writer.xid };
                    bytes.extend_from_slice(&wire::request(xid, *request));
                    let (sender, receiver) = oneshot::channel();
                    waiting.push_back(sender);
                    waits.push(receiver);
                }
            }
            within(writer.half.write_all(&bytes)).await?;
        }
        if self.shared.is_lost.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        within(async {
            let mut replies = Vec::with_capacity(waits.len());
            for wait in waits {
                replies.push(wait.await.map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?);
            }
            Ok(replies)
        })
        .await
    }

    /// The same for one request, whose error is an error.
    pub async fn one(&self, request: Request<'_>) -> io::Result<Reply> {
        let reply = self.ask(&[request]).await?.pop().ok_or_else(|| broken("no answer"))?;
        match reply.error {
            0 => Ok(reply),
            error => Err(broken(&format!("{request:?} was answered with the error {error}"))),
        }
    }

    /// Sends a ping, and does not wait for its answer.
    pub async fn ping(&self) -> io::Result<()> {
        let mut writer = self.writer.lock().await;
        within(writer.half.write_all(&wire::request(PING, Request::Ping))).await
    }

    /// Returns the last change that a server has told the session of.
    pub fn last_zxid(&self) -> i64 {
        self.shared.last_zxid.load(Ordering::Relaxed)
    }

    /// Waits until the connection has ended.
    pub async fn lost(&self) {
        let lost = self.shared.lost.notified();
        tokio::pin!(lost);
        lost.as_mut().enable();
        if !self.shared.is_lost.load(Ordering::Acquire) {
            lost.await;
        }
    }
}
