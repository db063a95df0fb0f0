//! A connection between a simulated client and a door. Bytes arrive in order, after a delay, and may be lost when the connection ends.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atoll_core::{Env, Tick};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::oracle::zookeeper::model::Holder;
use crate::oracle::zookeeper::{ConnId, ZooKeeperOracle};

/// Bytes of one write of the door, and the newest zxid of its view at that time.
pub type Written = (i64, Vec<u8>);

#[derive(Debug, Default)]
struct Both {
    /// Bytes on the way to the door, with their arrival times.
    under_way: VecDeque<(Tick, Vec<u8>)>,
    arrived: VecDeque<u8>,
    /// The client's end is closed. The door reads what has arrived, then the end of the stream.
    client_gone: bool,
    door_gone: bool,
    written: VecDeque<Written>,
    door: Option<Waker>,
    client: Option<Waker>,
}

/// The state that both ends share.
#[derive(Debug)]
struct Shared {
    id: ConnId,
    env: Env,
    both: Mutex<Both>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Both> {
        self.both.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the bytes that have arrived by now readable, and wakes the door.
    fn deliver(&self) {
        let now = self.env.now();
        let mut both = self.lock();
        while both.under_way.front().is_some_and(|(at, _)| *at <= now) {
            let bytes = both.under_way.pop_front().map(|(_, bytes)| bytes).unwrap_or_default();
            both.arrived.extend(bytes);
        }
        let door = both.door.take();
        drop(both);
        door.into_iter().for_each(Waker::wake);
    }
}

/// The client's end of a connection.
#[derive(Debug)]
pub struct ClientEnd {
    shared: Arc<Shared>,
    /// The node, in one life, to which it is connected.
    pub to: Holder,
    /// Mean delay of bytes, in each direction.
    latency: Duration,
    /// When the bytes that were sent last arrive.
    last: Tick,
}

/// The door's end of a connection, which the product serves.
#[derive(Debug)]
pub struct DoorEnd {
    shared: Arc<Shared>,
    oracle: ZooKeeperOracle,
    /// The newest zxid of the node's view when the door last ran.
    at: Arc<std::sync::atomic::AtomicI64>,
}

/// Creates a connection.
pub fn pair(
    id: ConnId,
    to: Holder,
    env: &Env,
    oracle: &ZooKeeperOracle,
    at: Arc<std::sync::atomic::AtomicI64>,
    latency: Duration,
) -> (ClientEnd, DoorEnd) {
    let shared = Arc::new(Shared { id, env: env.clone(), both: Mutex::default() });
    let client = ClientEnd { shared: shared.clone(), to, latency, last: Tick(0) };
    (client, DoorEnd { shared, oracle: oracle.clone(), at })
}

impl ClientEnd {
    /// Returns the number of the connection.
    pub fn id(&self) -> ConnId {
        self.shared.id
    }

    /// Sends bytes. They arrive in order.
    pub fn send(&mut self, bytes: Vec<u8>) {
        let env = self.shared.env.clone();
        self.last = self.last.max(env.now().after(env.jitter(self.latency)));
        self.shared.lock().under_way.push_back((self.last, bytes));
        let (shared, at) = (self.shared.clone(), self.last);
        env.clone().spawn(
            "zookeeper.bytes",
            Box::pin(async move {
                env.sleep_until(at).await;
                shared.deliver();
            }),
        );
    }

    /// Returns the next bytes that the door wrote, or None once the door's end is dropped and all its bytes were read. Dropping this future
    /// loses no bytes.
    pub async fn receive(&mut self) -> Option<Written> {
        let shared = self.shared.clone();
        let is_there = std::future::poll_fn(|cx| {
            let mut both = shared.lock();
            if !both.written.is_empty() || both.door_gone {
                return Poll::Ready(());
            }
            both.client = Some(cx.waker().clone());
            Poll::Pending
        });
        is_there.await;
        shared.env.sleep(shared.env.jitter(self.latency)).await;
        shared.lock().written.pop_front()
    }

    /// Closes the client's end. With `Some(later)`, all bytes in flight arrive no earlier than that, and then the end. With None they are
    /// lost, and the door sees the end at once.
    pub fn leave(self, later: Option<Duration>) {
        let shared = self.shared.clone();
        let env = shared.env.clone();
        if later.is_none() {
            let mut both = shared.lock();
            both.under_way.clear();
            both.arrived.clear();
        } else {
            // Hold up all bytes in flight.
            let until = env.now().after(later.unwrap_or_default());
            shared.lock().under_way.iter_mut().for_each(|(at, _)| *at = until.max(*at));
        }
        let end = async move {
            shared.env.sleep(later.unwrap_or_default()).await;
            shared.env.sleep(Duration::from_millis(1)).await;
            shared.lock().client_gone = true;
            shared.deliver();
        };
        env.spawn("zookeeper.end", Box::pin(end));
    }
}

impl AsyncRead for DoorEnd {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut both = self.shared.lock();
        let n = both.arrived.len().min(into.remaining());
        if n == 0 && !both.client_gone {
            both.door = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let bytes: Vec<u8> = both.arrived.drain(..n).collect();
        drop(both);
        into.put_slice(&bytes);
        if n > 0 {
            self.oracle.heard(self.shared.id, self.shared.env.now().0);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for DoorEnd {
    fn poll_write(self: Pin<&mut Self>, _cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let at = self.at.load(std::sync::atomic::Ordering::Relaxed);
        let mut both = self.shared.lock();
        both.written.push_back((at, bytes.to_vec()));
        let client = both.client.take();
        drop(both);
        client.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for DoorEnd {
    fn drop(&mut self) {
        let mut both = self.shared.lock();
        both.door_gone = true;
        let client = both.client.take();
        drop(both);
        client.into_iter().for_each(Waker::wake);
    }
}
