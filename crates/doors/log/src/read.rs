//! The streaming read.
//!
//! Records that were read but that the client has not received yet wait in memory. They count against the share of the client's address. If
//! a client takes nothing for a long time, its stream ends with an error, never as if everything had been read.
//!
//! A reader that follows an idle log gets an empty reply now and then, each time the node has checked the tail. If the check fails, the
//! stream ends, so that the client continues at a node that reaches the log.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atoll_client::Reason;
use atoll_client::proto::{ReadReply, ReadRequest, Record};
use atoll_contract::LogPos;
use atoll_door::backend::{LogBackend, ReadRecords, Refusal};
use atoll_door::grpc::{Connection, Limits, Share};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::Stream;
use tonic::Status;

/// The maximum payload of one reply in bytes. A single longer record still fits.
const REPLY_BYTES: usize = 512 * 1024;
/// The approximate memory of a record in addition to its payload, in bytes.
const RECORD_BYTES: usize = 64;
/// How many replies are read ahead of the client.
const REPLIES_AHEAD: usize = 2;
/// How many unread streams a connection may have before it is closed. The last reply of each stays in memory until then.
const GIVEN_UP_AT_MOST: usize = 16;

/// The replies that the reading task has queued for the client.
#[derive(Default)]
struct Queue {
    replies: VecDeque<(ReadReply, Share)>,
    /// Set when reading has ended, with the status if it failed.
    ended: Option<Option<Status>>,
    /// Whether the client's side was dropped.
    closed: bool,
    waker: Option<Waker>,
}

#[derive(Default)]
struct Channel {
    queue: Mutex<Queue>,
    /// Notified when the client takes a reply, or its side is dropped.
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

    /// Waits until there is room for a reply. Returns false if the client's side was dropped.
    async fn room(&self) -> bool {
        self.until(|queue| queue.closed || queue.replies.len() < REPLIES_AHEAD).await;
        !self.lock().closed
    }

    /// Waits until the client's side is dropped.
    async fn closed(&self) {
        self.until(|queue| queue.closed).await;
    }

    /// Waits until no reply is queued, or the client's side is dropped.
    async fn drained(&self) {
        self.until(|queue| queue.closed || queue.replies.is_empty()).await;
    }

    async fn until(&self, done: impl Fn(&Queue) -> bool) {
        loop {
            // Created before the check, so that no notification in between is missed.
            let taken = self.taken.notified();
            if done(&self.lock()) {
                return;
            }
            taken.await;
        }
    }

    /// Whether no reply waits for the client.
    fn is_empty(&self) -> bool {
        self.lock().replies.is_empty()
    }

    fn put(&self, reply: ReadReply, share: Share) {
        let mut queue = self.lock();
        queue.replies.push_back((reply, share));
        Self::wake(queue);
    }

    /// Ends the stream after the queued replies or, if `unread` is set, drops them.
    fn end(&self, status: Option<Status>, unread: bool) {
        let mut queue = self.lock();
        if unread {
            queue.replies.clear();
        }
        queue.ended = Some(status);
        Self::wake(queue);
    }
}

/// The client's side: the stream of replies.
pub(crate) struct Replies {
    channel: Arc<Channel>,
    /// The share of the last reply that was returned. Until the next poll, that reply may still wait to be sent.
    last: Option<Share>,
    /// This reader's share of the door's limit on reads.
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

/// Streams the requested records of a log. A task reads them, and ends when the stream is dropped.
///
/// # Errors
/// Too many reads are in progress.
pub(crate) fn stream(
    log: Arc<dyn LogBackend>,
    request: ReadRequest,
    connection: Arc<Connection>,
    limits: Arc<Limits>,
    mut stopping: watch::Receiver<bool>,
) -> Result<Replies, Refusal> {
    let place = limits
        .reads
        .take(connection.address, 1)
        .ok_or_else(|| busy("too many reads are in progress on this node"))?;
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
                tracing::warn!(of = %connection.address, "disconnecting a gRPC client that does not read");
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
    let words = format!("the client took none of its records within {within:?}");
    Refusal::no(
        Reason::Busy,
        words,
        "continue after the last record that you received, and read as fast as records arrive",
    )
}

/// Why reading stopped early.
enum Ended {
    Refused(Refusal),
    /// The client did not take the replies in time.
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
    /// Ends the stream after the queued replies. Returns true if the client does not take them in time.
    async fn end(&self, status: Option<Status>) -> bool {
        self.channel.end(status, false);
        tokio::time::timeout(self.limits.unread_at_most, self.channel.drained()).await.is_err()
    }

    async fn run(&self, log: &dyn LogBackend, request: ReadRequest) -> Result<(), Ended> {
        let mut tail = log.check_tail().await?;
        let mut at = request.from.map_or_else(|| log.trim_point().min(tail), LogPos);
        check_bounds(&request, at, tail)?;
        let mut left = if request.limit == 0 { u64::MAX } else { request.limit };
        let without_follow = if request.follow { u64::MAX } else { tail.0 };
        let end = LogPos(request.to.unwrap_or(u64::MAX).min(without_follow));
        if at >= tail && at < end {
            self.sign_of_life(at);
        }
        while at < end && left > 0 {
            if at >= tail {
                tail = self.tail_above(log, &request.log, at).await?;
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
                busy("records that wait for readers on this node, or at this address, fill the memory reserved for them")
            })?;
            let within_limit = LogPos(at.0.saturating_add(left));
            let got = log.read(at..end.min(tail).min(within_limit), REPLY_BYTES, request.local_only).await?;
            at = got.first.plus(got.entries.len() as u64);
            let bytes = got.entries.iter().map(|e| e.payload.len() + RECORD_BYTES).sum();
            share.shrink_to(bytes);
            let mut replies = replies(got);
            left -= replies.iter().map(|reply| reply.records.len() as u64).sum::<u64>();
            let last = replies.pop();
            for reply in replies {
                // The share of the last reply covers all of them.
                if let Some(none) = self.limits.read_bytes.take(self.connection.address, 0) {
                    self.channel.put(reply, none);
                }
            }
            if let Some(last) = last {
                self.channel.put(last, share);
            }
        }
        Ok(())
    }

    /// Waits until the tail is above `at`, and returns it. Fails if a check of the tail fails in the meantime.
    async fn tail_above(&self, log: &dyn LogBackend, name: &str, at: LogPos) -> Result<LogPos, Ended> {
        let mut wait = log.wait_tail(at);
        // On a node that is cut off from the others, the wait would last as long as the cut, although other nodes serve the log. It
        // continues during the check, so that a slow check delays no record.
        let mut check = pin!(self.check(log, name));
        loop {
            tokio::select! {
                newer = &mut wait => return Ok(newer?),
                tail = &mut check => {
                    let tail = tail?;
                    if tail > at {
                        return Ok(tail);
                    }
                    self.sign_of_life(at);
                    check.set(self.check(log, name));
                }
            }
        }
    }

    /// Checks the tail when it is time.
    async fn check(&self, log: &dyn LogBackend, name: &str) -> Result<LogPos, Refusal> {
        sleep_until(next_check(name, self.limits.check_followed, Instant::now())).await;
        log.check_tail().await
    }

    /// Tells the client that this node has just checked the tail, and that there is no record yet. Not sent to a client that has not taken
    /// its last reply: it will see that one.
    fn sign_of_life(&self, at: LogPos) {
        if !self.channel.is_empty() {
            return;
        }
        if let Some(share) = self.limits.read_bytes.take(self.connection.address, 0) {
            self.channel.put(ReadReply { first: at.0, ..ReadReply::default() }, share);
        }
    }
}

/// Returns when the followers of this log check its tail next. All of them do so at the same moments, because those that check together
/// share one check. Different logs have different moments.
fn next_check(log: &str, every: Duration, now: Instant) -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(|| now);
    let mut hasher = DefaultHasher::new();
    log.hash(&mut hasher);
    let every_ns = every.as_nanos().max(1);
    let phase = u128::from(hasher.finish()) % every_ns;
    let since_last = (now.saturating_duration_since(start).as_nanos() + phase) % every_ns;
    now + Duration::from_nanos(u64::try_from(every_ns - since_last).unwrap_or(u64::MAX))
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

/// Returns one reply for each run of records without pads between them.
fn replies(got: ReadRecords) -> Vec<ReadReply> {
    let mut replies: Vec<ReadReply> = Vec::new();
    let (mut at, mut pads) = (got.first.0, 0);
    let mut remote = got.remote;
    for entry in got.entries {
        if entry.is_pad() {
            pads += 1;
        } else {
            if pads > 0 || replies.is_empty() {
                replies.push(ReadReply {
                    first: at,
                    pads,
                    remote: std::mem::take(&mut remote),
                    ..Default::default()
                });
                pads = 0;
            }
            if let Some(reply) = replies.last_mut() {
                let (client, seq) = (entry.op.client.0, entry.op.seq);
                reply.records.push(Record { payload: entry.payload, client, seq });
            }
        }
        at += 1;
    }
    if pads > 0 {
        replies.push(ReadReply { first: at, pads, ..Default::default() });
    }
    replies
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry, OpId};

    #[test]
    fn pads_split_what_was_read_into_runs() {
        let record = |seq| Entry { op: OpId { client: ClientId(9), seq }, payload: Default::default() };
        let entries =
            vec![Entry::pad(), record(1), record(2), Entry::pad(), Entry::pad(), record(3), Entry::pad()];
        let got = replies(ReadRecords { first: LogPos(5), entries, remote: 2 });
        let runs: Vec<(u64, u64, usize)> = got.iter().map(|r| (r.first, r.pads, r.records.len())).collect();
        assert_eq!(runs, [(6, 1, 2), (10, 2, 1), (12, 1, 0)]);
        assert_eq!(got.iter().map(|r| r.remote).sum::<u64>(), 2);
        let plain = replies(ReadRecords { first: LogPos(0), entries: vec![record(1), record(2)], remote: 0 });
        assert_eq!((plain.len(), plain[0].records.len(), plain[0].pads), (1, 2, 0));
    }

    #[test]
    fn followers_of_a_log_check_its_tail_together_and_never_late() {
        let (start, every) = (Instant::now(), Duration::from_secs(5));
        let due = next_check("main", every, start);
        assert!(due > start && due <= start + every);
        for ms in [0, 1, 700, 4_999] {
            let joins = start + Duration::from_millis(ms);
            let expected = if joins < due { due } else { due + every };
            assert_eq!(next_check("main", every, joins), expected, "{ms}");
        }
        assert_eq!(next_check("main", every, due), due + every);
        assert_ne!(next_check("other", every, start), due);
    }
}
