//! The stream of records. A task reads ahead of the subscriber, but never by more than a few replies, which count against the share of the
//! subscriber's address. If the subscriber takes nothing for a long time, its stream ends with an error.
//!
//! A subscriber of an idle log gets an empty reply each time the node has checked the tail. If the check fails, the stream ends, so that
//! the subscriber continues at a node that reaches the log.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, ready};

use atoll_client::Reason;
use atoll_client::scalog_proto::{Record, SubscribeReply};
use atoll_contract::LogPos;
use atoll_core::sync::lock;
use atoll_door::backend::{LogBackend, Refusal};
use atoll_door::grpc::{Connection, Limits, Share, Shared};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::Stream;
use tonic::Status;

/// The maximum payload of one reply in bytes. A single longer record still fits.
const REPLY_BYTES: usize = 256 * 1024;
/// The approximate memory of a record in addition to its payload, in bytes.
const RECORD_BYTES: usize = 64;
/// How many replies are read ahead of the subscriber.
const REPLIES_AHEAD: usize = 2;
/// How many unread streams a connection may have before it is closed. The reply that each of them is being sent stays in memory until then.
const GIVEN_UP_AT_MOST: usize = 16;

type Reply = (Result<SubscribeReply, Status>, Option<Share>);

/// Replies that wait for the subscriber; None once it was given up. Then nobody may take the stream's next reply for long, so the task that
/// reads frees them.
type Queue = Arc<Mutex<Option<mpsc::Receiver<Reply>>>>;

/// The subscriber's side: the stream of replies.
pub(crate) struct Records {
    replies: Queue,
    /// Set once the subscriber has read nothing for too long.
    given_up: Arc<OnceLock<Status>>,
    ended: bool,
    /// The share of the last reply that was returned. Until the next poll, that reply may still wait to be sent.
    last: Option<Share>,
    /// This subscriber's share of the door's limit on reads.
    _place: Share,
}

impl Stream for Records {
    type Item = Result<SubscribeReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.last = None;
        if self.ended {
            return Poll::Ready(None);
        }
        if let Some(status) = self.given_up.get().cloned() {
            self.ended = true;
            return Poll::Ready(Some(Err(status)));
        }
        let next = match &mut *lock(&self.replies) {
            Some(replies) => ready!(replies.poll_recv(cx)),
            None => None,
        };
        match next {
            Some((reply, share)) => {
                self.last = share;
                Poll::Ready(Some(reply))
            }
            None => {
                self.ended = true;
                // It may have been given up in between.
                Poll::Ready(self.given_up.get().cloned().map(Err))
            }
        }
    }
}

/// Why reading stopped early.
enum Ended {
    Refused(Refusal),
    /// The subscriber did not take the replies in time.
    Unread,
    /// The subscriber's side was dropped.
    Gone,
}

impl From<Refusal> for Ended {
    fn from(refusal: Refusal) -> Self {
        Ended::Refused(refusal)
    }
}

fn busy(what: &str) -> Refusal {
    Refusal::no(Reason::Busy, what, "try again later, or at another node")
}

/// Streams the records of a log from a position on. A task reads them, and ends when the stream is dropped.
///
/// # Errors
/// Too many reads are in progress.
pub(crate) fn stream(
    log: Arc<dyn LogBackend>,
    from: LogPos,
    connection: Arc<Connection>,
    shared: &Shared,
) -> Result<Records, Refusal> {
    let (limits, mut stopping) = (shared.limits.clone(), shared.stopping.clone());
    let place = limits.reads.take(connection.address, 1);
    let place = place.ok_or_else(|| busy("too many reads are in progress on this node"))?;
    let (send, replies) = mpsc::channel(REPLIES_AHEAD);
    let (replies, given_up) = (Arc::new(Mutex::new(Some(replies))), Arc::new(OnceLock::new()));
    let waiting = replies.clone();
    let records = Records { replies, given_up: given_up.clone(), ended: false, last: None, _place: place };
    tokio::spawn(async move {
        let reader = Reader { send: &send, connection: &connection, limits: &limits };
        let outcome = tokio::select! {
            outcome = reader.run(&*log, from) => outcome,
            () = send.closed() => Err(Ended::Gone),
            _ = stopping.wait_for(|stop| *stop) => Err(Ended::Refused(Refusal::stopping())),
        };
        let unread = match outcome {
            Err(Ended::Refused(refusal)) => {
                let last = (Err(Status::from(refusal)), None);
                timeout(limits.unread_at_most, send.send(last)).await.is_err()
            }
            Err(Ended::Unread) => true,
            Ok(()) | Err(Ended::Gone) => false,
        };
        if unread {
            let words = format!("the subscriber took none of its records within {:?}", limits.unread_at_most);
            let next = "continue after the last record that you received, and read as fast as records arrive";
            // It was not set before: only this task does it, and only once.
            let _ = given_up.set(Refusal::no(Reason::Busy, words, next).into());
            *lock(&waiting) = None;
            if connection.give_up() > GIVEN_UP_AT_MOST {
                tracing::warn!(of = %connection.address, "disconnecting a gRPC client that does not read");
                connection.close();
            }
        }
    });
    Ok(records)
}

struct Reader<'a> {
    send: &'a mpsc::Sender<Reply>,
    connection: &'a Connection,
    limits: &'a Limits,
}

impl Reader<'_> {
    async fn run(&self, log: &dyn LogBackend, from: LogPos) -> Result<(), Ended> {
        let (mut at, mut tail) = (from, log.check_tail().await?);
        loop {
            if at >= tail {
                self.sign_of_life(at);
                tail = self.tail_above(log, at).await?;
                continue;
            }
            let room = timeout(self.limits.unread_at_most, self.send.reserve()).await;
            let Ok(room) = room.map_err(|_| Ended::Unread)? else { return Ok(()) };
            let bytes = &self.limits.read_bytes;
            let share = bytes.take_within(self.connection.address, REPLY_BYTES, self.limits.room_within);
            let mut share = share.await.ok_or_else(|| {
                busy("records that wait for readers on this node, or at this address, fill the memory reserved for them")
            })?;
            let got = log.read(at..tail, REPLY_BYTES, false).await?;
            share.shrink_to(got.entries.iter().map(|e| e.payload.len() + RECORD_BYTES).sum());
            let next = got.first.plus(got.entries.len() as u64);
            let placed = (got.first.0..).zip(got.entries).filter(|(_, entry)| !entry.is_pad());
            let records = placed.map(|(position, entry)| Record { position, data: entry.payload }).collect();
            room.send((Ok(SubscribeReply { records, next: next.0 }), Some(share)));
            at = next;
        }
    }

    /// Waits until the tail is above `at`, and returns it. Fails if a check of the tail fails in the meantime.
    async fn tail_above(&self, log: &dyn LogBackend, at: LogPos) -> Result<LogPos, Ended> {
        let mut wait = log.wait_tail(at);
        loop {
            tokio::select! {
                newer = &mut wait => return Ok(newer?),
                () = sleep(self.limits.check_followed) => {}
            }
            // A node that is cut off from the others would wait as long as the cut, although other nodes serve the log.
            let tail = log.check_tail().await?;
            if tail > at {
                return Ok(tail);
            }
            self.sign_of_life(at);
        }
    }

    /// Tells the subscriber that there is no record yet. Not sent to one that has not taken its last reply: it will see that one.
    fn sign_of_life(&self, at: LogPos) {
        if self.send.capacity() == REPLIES_AHEAD {
            // If the subscriber is gone, the task ends by itself.
            let _ = self.send.try_send((Ok(SubscribeReply { records: Vec::new(), next: at.0 }), None));
        }
    }
}
