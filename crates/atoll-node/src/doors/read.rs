//! The streaming read.
//!
//! Records that were read and that the client has not taken wait in memory. They count against the share of the client's address. A reader
//! that takes nothing for a long time is given up: its stream ends with an error, never as if everything had been read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto::{ReadReply, ReadRequest, Record};
use atoll_contract::LogPos;
use tokio::sync::{Notify, watch};
use tokio_stream::Stream;
use tonic::Status;

use super::backend::{LogBackend, ReadRecords, Refusal};
use super::grpc::{Connection, Limits, Share};

/// Payload bytes of one reply, but for a longer single record.
const REPLY_BYTES: usize = 512 * 1024;
/// Approximate memory of a record in addition to its payload.
const RECORD_BYTES: usize = 64;
/// Replies read ahead of the client.
const REPLIES_AHEAD: usize = 2;
/// The pause after a wait for the tail that brought nothing: such waits are hints and may end early.
const NOTHING_NEW: Duration = Duration::from_millis(1);
/// Readers of one connection that may be given up before the connection is closed: the last reply to each stays in memory until then.
const GIVEN_UP_AT_MOST: usize = 16;

/// Replies between the reading task and the client.
#[derive(Default)]
struct Queue {
    replies: VecDeque<(ReadReply, Share)>,
    /// Set when the reading is over, with the status if it failed.
    ended: Option<Option<Status>>,
    /// The client's side is gone.
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Channel {
    queue: Mutex<Queue>,
    /// Rung when the client takes a reply, or goes.
    taken: Notify,
}

impl Channel {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(mut queue: MutexGuard<'_, Queue>) {
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ready when there is room for a reply; false if the client's side is gone.
    async fn room(&self) -> bool {
        self.until(|queue| queue.closed || queue.replies.len() < REPLIES_AHEAD).await;
        !self.lock().closed
    }

    /// Ready when the client's side is gone.
    async fn closed(&self) {
        self.until(|queue| queue.closed).await;
    }

    /// Ready when nothing is in line.
    async fn drained(&self) {
        self.until(|queue| queue.closed || queue.replies.is_empty()).await;
    }

    async fn until(&self, done: impl Fn(&Queue) -> bool) {
        loop {
            // It notices every notification from here on.
            let taken = self.taken.notified();
            if done(&self.lock()) {
                return;
            }
            taken.await;
        }
    }

    fn put(&self, reply: ReadReply, share: Share) {
        let mut queue = self.lock();
        queue.replies.push_back((reply, share));
        Self::wake(queue);
    }

    /// Ends the stream after the queued replies or, for a reader that does not read, instead of them.
    fn end(&self, status: Option<Status>, unread: bool) {
        let mut queue = self.lock();
        if unread {
            queue.replies.clear();
        }
        queue.ended = Some(status);
        Self::wake(queue);
    }
}

/// The client's side.
pub(super) struct Replies {
    channel: Arc<Channel>,
    /// The share of the reply that was handed out last: that reply may wait to be sent until the next one is asked for.
    last: Option<Share>,
    /// This reader's place among those of the door.
    _place: Share,
}

impl Stream for Replies {
    type Item = Result<ReadReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.last = None;
        let channel = self.channel.clone();
        let mut queue = channel.lock();
        if let Some((reply, share)) = queue.replies.pop_front() {
            drop(queue);
            self.last = Some(share);
            channel.taken.notify_waiters();
            return Poll::Ready(Some(Ok(reply)));
        }
        match &mut queue.ended {
            Some(status) => Poll::Ready(status.take().map(Err)),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        self.channel.lock().closed = true;
        self.channel.taken.notify_waiters();
    }
}

/// Streams records of a log as requested. A task reads them; it ends when the stream is dropped.
///
/// # Errors
/// Too many reads are under way.
pub(super) fn stream(
    log: Arc<dyn LogBackend>,
    request: ReadRequest,
    connection: Arc<Connection>,
    limits: Arc<Limits>,
    mut stopping: watch::Receiver<bool>,
) -> Result<Replies, Refusal> {
    let place = limits
        .reads
        .take(connection.address, 1)
        .ok_or_else(|| busy("too many reads are under way on this node"))?;
    let channel = Arc::new(Channel::default());
    let replies = Replies { channel: channel.clone(), last: None, _place: place };
    tokio::spawn(async move {
        let reader = Reading { channel: &channel, connection: &connection, limits: &limits };
        let outcome = tokio::select! {
            outcome = reader.run(&*log, request) => outcome,
            () = channel.closed() => return,
            _ = stopping.wait_for(|stop| *stop) => Err(Ended::Refused(Refusal::stopping())),
        };
        let unread = match outcome {
            Err(Ended::Unread) => true,
            Ok(()) => reader.end(None).await,
            Err(Ended::Refused(refusal)) => reader.end(Some(refusal.into())).await,
        };
        if unread {
            channel.end(Some(unread_for(limits.unread_at_most).into()), true);
            if connection.give_up() > GIVEN_UP_AT_MOST {
                tracing::warn!(of = %connection.address, "a gRPC client that does not read is cut off");
                connection.close();
            }
        }
    });
    Ok(replies)
}

fn busy(what: &str) -> Refusal {
    Refusal::no(Reason::Busy, what, "try again later, or at another node")
}

fn unread_for(within: Duration) -> Refusal {
    let words = format!("the client took none of the records that were read for it within {within:?}");
    Refusal::no(Reason::Busy, words, "go on behind the last record that came; read as fast as records come")
}

/// Why reading stopped early.
enum Ended {
    Refused(Refusal),
    /// The client takes nothing.
    Unread,
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Ended::Refused(refusal)
    }
}

struct Reading<'a> {
    channel: &'a Channel,
    connection: &'a Connection,
    limits: &'a Limits,
}

impl Reading<'_> {
    /// Ends the stream after the queued replies; true if the client does not take them.
    async fn end(&self, status: Option<Status>) -> bool {
        self.channel.end(status, false);
        tokio::time::timeout(self.limits.unread_at_most, self.channel.drained()).await.is_err()
    }

    async fn run(&self, log: &dyn LogBackend, request: ReadRequest) -> Result<(), Ended> {
        let mut tail = log.check_tail().await?;
        let mut at = request.from.map_or_else(|| log.trim_point().min(tail), LogPos);
        check_bounds(&request, at, tail)?;
        let by_limit = match request.limit {
            0 => u64::MAX,
            limit => at.0.saturating_add(limit),
        };
        let without_follow = if request.follow { u64::MAX } else { tail.0 };
        let end = LogPos(request.to.unwrap_or(u64::MAX).min(by_limit).min(without_follow));
        while at < end {
            if at >= tail {
                let newer = log.wait_tail(at).await?;
                if newer <= at {
                    tokio::time::sleep(NOTHING_NEW).await;
                }
                tail = tail.max(newer);
                continue;
            }
            let room = tokio::time::timeout(self.limits.unread_at_most, self.channel.room());
            if !room.await.map_err(|_| Ended::Unread)? {
                return Ok(());
            }
            let share = self.limits.read_bytes.take_within(
                self.connection.address,
                REPLY_BYTES,
                self.limits.room_within,
            );
            let mut share = share.await.ok_or_else(|| {
                busy("the records that wait for readers on this node, or for those of this address, take all of the memory for them")
            })?;
            let got = log.read(at..end.min(tail), REPLY_BYTES, request.local_only).await?;
            at = got.first.plus(got.entries.len() as u64);
            let bytes = got.entries.iter().map(|e| e.payload.len() + RECORD_BYTES).sum();
            share.shrink_to(bytes);
            self.channel.put(reply(got), share);
        }
        Ok(())
    }
}

fn check_bounds(request: &ReadRequest, at: LogPos, tail: LogPos) -> Result<(), Refusal> {
    let beyond = |what, position| {
        Err(Refusal::no(
            Reason::BeyondTail,
            format!("{what} {position} is beyond the tail, which is {tail}"),
            "read up to the tail, or follow the log",
        ))
    };
    match request.to {
        Some(to) if to < at.0 => {
            let message = format!("the range from {at} to {to} ends before it starts");
            return Err(Refusal::no(Reason::Invalid, message, ""));
        }
        Some(to) if to > tail.0 && !request.follow => return beyond("position", LogPos(to)),
        _ => {}
    }
    if at > tail && !request.follow { beyond("position", at) } else { Ok(()) }
}

fn reply(got: ReadRecords) -> ReadReply {
    let records = got.entries.into_iter().map(|entry| Record {
        payload: entry.payload,
        client: entry.op.client.0,
        seq: entry.op.seq,
    });
    ReadReply { first: got.first.0, records: records.collect(), remote: got.remote }
}
