//! The streaming append (contracts §3.1): receives messages, submits each to the log in order, and replies in order.
//!
//! The stream is one state machine that the HTTP/2 connection polls; it has no task and no channel. Its memory is bounded: while too much
//! is unanswered, it receives no further message, and the client's flow-control window closes (X12).

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use atoll_client::proto::append_stream_reply::{Failed, Opened, Outcome};
use atoll_client::proto::append_stream_request::{Open, What};
use atoll_client::proto::{AppendStreamReply, AppendStreamRequest, Happened, Records};
use atoll_client::{HEARTBEAT, Reason};
use atoll_contract::{ClientId, LogPos};
use atoll_core::{Bounds, Gate, Load, Pipeline};
use atoll_door::backend::{LogBackend, LogRecords, Pending, Refusal, Room, Submitted};
use atoll_door::grpc::{Caller, Connection, Rest, Shared};
use atoll_door::stopped;
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::names::open_for_append;
use crate::records::{check_records, runs};

/// The maximum numbers of unanswered messages and payload bytes of one stream. The last message may exceed the number of bytes.
const UNANSWERED: Bounds = Bounds { items: 128, bytes: 4 * 1024 * 1024 };
/// The maximum number of outcomes in one reply.
const OUTCOMES_PER_REPLY: usize = 256;

/// How long the opening of a stream waits for the tail.
const FIND_TAIL_WITHIN: Duration = Duration::from_millis(100);

/// A message that has not been answered yet.
enum Unanswered {
    /// Queued at the log.
    Pending { outcome: Pending<Vec<LogPos>>, bytes: usize },
    /// Refused before it reached the log.
    Refused(Refusal),
}

impl Unanswered {
    /// Returns the bytes of its payloads that count as unanswered.
    fn bytes(&self) -> usize {
        match self {
            Unanswered::Pending { bytes, .. } => *bytes,
            Unanswered::Refused(_) => 0,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Vec<LogPos>, Refusal>> {
        match self {
            Unanswered::Pending { outcome, .. } => outcome.as_mut().poll(cx),
            Unanswered::Refused(refusal) => Poll::Ready(Err(refusal.clone())),
        }
    }
}

/// The log and the client of a stream.
struct Lane {
    log: Arc<dyn LogBackend>,
    client: ClientId,
    last_seq: u64,
    /// The highest tail that this stream has reported to the client, including the positions in replies. A new record may reach this node
    /// late, after the client has given up on this node and sent the record through another one. Even then, no copy of it lies below this
    /// tail (X16).
    known: LogPos,
}

/// The replies of one stream. Polling it does all of the work.
pub(crate) struct AppendStream {
    shared: Shared,
    caller: Caller,
    connection: Arc<Connection>,
    /// Held while nothing is unanswered. An idle stream must not keep its connection open when there is no room for others: an older
    /// client never ends it.
    rest: Option<Rest>,
    requests: Streaming<AppendStreamRequest>,
    /// The opening, which the first message starts.
    opening: Option<Pending<(Lane, LogPos)>>,
    lane: Option<Lane>,
    /// At most one message waits: one for which the log has no room. No later message may overtake it (X15). The log's lane sends records
    /// again, so the messages in flight are not kept.
    messages: Pipeline<LogRecords, Unanswered>,
    /// The messages in flight.
    unanswered: Load,
    /// Closed while the log has no room for that message.
    gate: Gate<Room>,
    /// Whether no more requests are received, because the client has finished, an error occurred, or the node is stopping.
    closed: bool,
    /// The status that ends the stream once everything is answered.
    last_word: Option<Status>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    heartbeat: Pin<Box<Sleep>>,
    last_reply: Instant,
    done: bool,
}

impl AppendStream {
    pub(crate) fn new(
        shared: Shared,
        caller: Caller,
        connection: Arc<Connection>,
        requests: Streaming<AppendStreamRequest>,
    ) -> Self {
        let stopped = Box::pin(stopped(shared.stopping.clone()));
        AppendStream {
            shared,
            caller,
            connection,
            rest: None,
            requests,
            opening: None,
            lane: None,
            messages: Pipeline::default(),
            unanswered: Load::default(),
            gate: Gate::default(),
            closed: false,
            last_word: None,
            stopped,
            heartbeat: Box::pin(sleep(HEARTBEAT)),
            last_reply: Instant::now(),
            done: false,
        }
    }

    /// Receives the available messages within the limits. Returns the reply to the opening when that is ready.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Option<AppendStreamReply> {
        if let Some(opened) = self.poll_opening(cx) {
            return Some(opened);
        }
        if !self.closed && self.stopped.as_mut().poll(cx).is_ready() {
            // Records that were not submitted were not appended by this node, so the client can send them to another one.
            self.close(Some(Refusal::stopping().into()));
            self.messages.waiting_mut().clear();
            self.gate.open();
            self.opening = None;
        }
        while !self.closed {
            if self.gate.poll_open(cx).is_pending() {
                return None;
            }
            if let Some(records) = self.messages.waiting_mut().pop_front() {
                self.hand_in(records);
                continue;
            }
            if self.unanswered.is_full(UNANSWERED) || self.opening.is_some() {
                return None;
            }
            let request = match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return None,
                Poll::Ready(None) => {
                    self.close(None);
                    return None;
                }
                Poll::Ready(Some(Err(status))) => {
                    self.close(Some(status));
                    return None;
                }
                Poll::Ready(Some(Ok(request))) => request,
            };
            self.rest = None;
            match (request.what, &self.lane) {
                (Some(What::Open(open)), None) => {
                    self.open(open);
                    if let Some(opened) = self.poll_opening(cx) {
                        return Some(opened);
                    }
                }
                (Some(What::Records(records)), Some(_)) => self.take_records(records),
                _ => self.close(Some(
                    Refusal::no(
                        Reason::Invalid,
                        "the first message opens the stream, each further one carries records",
                        "see AppendStream in the API definition",
                    )
                    .into(),
                )),
            }
        }
        None
    }

    fn open(&mut self, open: Open) {
        if open.client == 0 {
            let refusal = Refusal::no(Reason::Invalid, "no client id", "draw one at random, once per life");
            return self.close(Some(refusal.into()));
        }
        let (shared, caller) = (self.shared.clone(), self.caller.clone());
        self.opening = Some(Box::pin(async move {
            let log = open_for_append(&shared, &caller, &open.log).await?;
            let tail = match open.known_tail {
                Some(tail) => LogPos(tail).max(log.known_tail()),
                // A tail that this node learned long ago would also be safe, but a later search for lost records would start from it.
                None => match timeout(FIND_TAIL_WITHIN, log.check_tail()).await {
                    Ok(Ok(tail)) => tail,
                    _ => log.known_tail(),
                },
            };
            Ok((Lane { log, client: ClientId(open.client), last_seq: 0, known: tail }, tail))
        }));
    }

    /// Polls the opening. Returns the reply to it when the log is open.
    fn poll_opening(&mut self, cx: &mut Context<'_>) -> Option<AppendStreamReply> {
        match self.opening.as_mut()?.as_mut().poll(cx) {
            Poll::Pending => None,
            Poll::Ready(Ok((lane, tail))) => {
                self.opening = None;
                self.lane = Some(lane);
                let opened = Opened { known_tail: tail.0, node: self.shared.backend.node().0 };
                Some(AppendStreamReply { opened: Some(opened), outcomes: Vec::new() })
            }
            Poll::Ready(Err(refusal)) => {
                self.opening = None;
                self.close(Some(refusal.into()));
                None
            }
        }
    }

    fn close(&mut self, last_word: Option<Status>) {
        self.closed = true;
        self.last_word = last_word;
    }

    fn take_records(&mut self, records: Records) {
        let Some(lane) = &mut self.lane else { return };
        match check_records(lane.client, records) {
            Ok(records) if records.first_seq <= lane.last_seq => {
                let refusal = Refusal::no(
                    Reason::Invalid,
                    format!("sequence {} after {}", records.first_seq, lane.last_seq),
                    "within a stream, sequences grow",
                );
                self.in_flight(Unanswered::Refused(refusal), 0);
            }
            Ok(mut records) => {
                lane.last_seq = records.first_seq + records.payloads.len() as u64 - 1;
                records.known = Some(lane.known);
                self.hand_in(records);
            }
            Err(refusal) => self.in_flight(Unanswered::Refused(refusal), 0),
        }
    }

    fn hand_in(&mut self, records: LogRecords) {
        let Some(lane) = &self.lane else { return };
        let bytes = records.payload_bytes();
        match lane.log.submit(records) {
            Submitted::Pending(outcome) => {
                self.gate.open();
                self.in_flight(Unanswered::Pending { outcome, bytes }, bytes);
            }
            Submitted::Busy(records, _) => {
                self.gate.close(lane.log.room(records.payloads.len(), bytes));
                self.messages.push(records);
            }
        }
    }

    fn in_flight(&mut self, message: Unanswered, bytes: usize) {
        self.unanswered.add(1, bytes);
        self.messages.sent(message);
    }

    /// Removes the messages with a known outcome from the front, and returns the outcomes.
    fn take_outcomes(&mut self, cx: &mut Context<'_>) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        while outcomes.len() < OUTCOMES_PER_REPLY
            && let Poll::Ready(Some((message, result))) = self.messages.poll_first(cx, Unanswered::poll)
        {
            self.unanswered.remove(1, message.bytes());
            outcomes.push(match result {
                Ok(positions) => {
                    if let (Some(lane), Some(last)) = (&mut self.lane, positions.last()) {
                        lane.known = lane.known.max(last.plus(1));
                    }
                    Outcome { runs: runs(&positions), failed: None }
                }
                Err(refusal) => failed(&refusal),
            });
        }
        outcomes
    }

    /// Ready when the client needs a heartbeat because it has received no reply for [`HEARTBEAT`].
    fn poll_heartbeat(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            ready!(self.heartbeat.as_mut().poll(cx));
            // Replies do not reset the timer. Reset it here if there was a reply in the meantime.
            let due = self.last_reply + HEARTBEAT;
            if due <= Instant::now() {
                return Poll::Ready(());
            }
            self.heartbeat.set(sleep_until(due));
        }
    }

    fn reply(&mut self, reply: AppendStreamReply) -> Poll<Option<Result<AppendStreamReply, Status>>> {
        self.last_reply = Instant::now();
        Poll::Ready(Some(Ok(reply)))
    }
}

fn failed(refusal: &Refusal) -> Outcome {
    let happened = match refusal.happened {
        atoll_client::Outcome::No => Happened::No,
        atoll_client::Outcome::Yes => Happened::Yes,
        atoll_client::Outcome::Unknown => Happened::Unknown,
    };
    let failure = &refusal.failure;
    Outcome {
        runs: Vec::new(),
        failed: Some(Failed {
            happened: happened.into(),
            reason: failure.reason.into(),
            message: failure.message.clone(),
            next: failure.next.clone(),
        }),
    }
}

impl Stream for AppendStream {
    type Item = Result<AppendStreamReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        if let Some(opened) = this.take_in(cx) {
            return this.reply(opened);
        }
        let outcomes = this.take_outcomes(cx);
        if !outcomes.is_empty() {
            return this.reply(AppendStreamReply { opened: None, outcomes });
        }
        if this.closed && this.messages.flights().is_empty() {
            this.done = true;
            return Poll::Ready(this.last_word.take().map(Err));
        }
        if this.messages.is_idle() && this.opening.is_none() {
            this.rest.get_or_insert_with(|| this.connection.rest());
            return Poll::Pending;
        }
        ready!(this.poll_heartbeat(cx));
        this.heartbeat.set(sleep(HEARTBEAT));
        this.reply(AppendStreamReply::default())
    }
}
