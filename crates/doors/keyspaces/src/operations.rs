//! The stream of operations on single keys: hands each to the node when it arrives, and answers each when it is done, in any order.
//!
//! The stream is one state machine that the HTTP/2 connection polls; it has no task and no channel. Its memory is bounded: while too much
//! is unanswered, it receives no further message, and the client's flow-control window closes (X12).

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_auth::Right;
use atoll_client::Reason;
use atoll_client::keyspace_proto as proto;
use atoll_client::keyspace_proto::operate_reply::{Answer, Failed, answer::Outcome};
use atoll_client::keyspace_proto::operate_request::{Operation, operation::What};
use atoll_contract::keyspace::Change;
use atoll_core::{Bounds, Load};
use atoll_door::Refusal;
use atoll_door::backend::{KeyspaceBackend, Pending};
use atoll_door::grpc::{Caller, Connection, Rest, Shared};
use atoll_door::keyspaces::KeyWrite;
use atoll_door::limits::check_list;
use atoll_door::stopped;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::convert;

/// The maximum number of operations in one message.
const MAX_OPERATIONS: usize = 256;
/// The maximum numbers of unanswered operations of one stream, and of their bytes. The last message may exceed both.
const UNANSWERED: Bounds = Bounds { items: 1024, bytes: 4 * 1024 * 1024 };
/// What an answer may have to show counts as so many bytes: the longest value of all engines.
const SHOWN_BYTES: usize = 32 * 1024;
/// What a refusal counts as until it is answered.
const REFUSAL_BYTES: usize = 512;
/// The maximum number of answers in one message, and of their bytes. The last answer may exceed them.
const MAX_ANSWERS: usize = 256;
const MAX_ANSWER_BYTES: usize = 256 * 1024;

/// An operation under way: its answer, and the bytes that it counts for.
type UnderWay = Pin<Box<dyn Future<Output = (Answer, usize)> + Send>>;

/// The answers of one stream. Polling it does all of the work.
pub(crate) struct OperationStream {
    keyspaces: Arc<dyn KeyspaceBackend>,
    caller: Caller,
    connection: Arc<Connection>,
    /// Held while nothing is unanswered: an idle stream must not keep its connection open when there is no room for others.
    rest: Option<Rest>,
    requests: Streaming<proto::OperateRequest>,
    under_way: FuturesUnordered<UnderWay>,
    unanswered: Load,
    /// Refusals that were known at once. They are unanswered, too: a client that only sends what is refused, and does not read, is bounded.
    ready: VecDeque<Answer>,
    closed: bool,
    /// The status that ends the stream once everything is answered.
    last_word: Option<Status>,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    done: bool,
}

impl OperationStream {
    pub(crate) fn new(
        keyspaces: Arc<dyn KeyspaceBackend>,
        shared: &Shared,
        caller: Caller,
        connection: Arc<Connection>,
        requests: Streaming<proto::OperateRequest>,
    ) -> Self {
        OperationStream {
            keyspaces,
            caller,
            connection,
            rest: None,
            requests,
            under_way: FuturesUnordered::new(),
            unanswered: Load::default(),
            ready: VecDeque::new(),
            closed: false,
            last_word: None,
            stopped: Box::pin(stopped(shared.stopping.clone())),
            done: false,
        }
    }

    /// Receives the available messages within the limits.
    fn take_in(&mut self, cx: &mut Context<'_>) {
        if !self.closed && self.stopped.as_mut().poll(cx).is_ready() {
            self.close(Some(Refusal::stopping().into()));
        }
        while !self.closed && !self.unanswered.is_full(UNANSWERED) {
            match Pin::new(&mut self.requests).poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(None) => self.close(None),
                Poll::Ready(Some(Err(status))) => self.close(Some(status)),
                Poll::Ready(Some(Ok(request))) => {
                    self.rest = None;
                    match check_list("operations of a message", request.operations.len(), MAX_OPERATIONS) {
                        Ok(()) => request.operations.into_iter().for_each(|operation| self.start(operation)),
                        Err(refusal) => self.close(Some(refusal.into())),
                    }
                }
            }
        }
    }

    fn close(&mut self, last_word: Option<Status>) {
        self.closed = true;
        self.last_word = last_word;
    }

    fn start(&mut self, Operation { number, what }: Operation) {
        let (pending, bytes) = match self.begin(what) {
            Ok(begun) => begun,
            Err(refusal) => {
                self.unanswered.add(1, REFUSAL_BYTES);
                return self.ready.push_back(failed(number, &refusal));
            }
        };
        self.unanswered.add(1, bytes);
        self.under_way.push(Box::pin(async move {
            let answer = match pending.await {
                Ok(outcome) => Answer { number, outcome: Some(outcome) },
                Err(refusal) => failed(number, &refusal),
            };
            (answer, bytes)
        }));
    }

    /// Hands an operation to the node. Returns its outcome, and the bytes that it counts for.
    fn begin(&self, what: Option<What>) -> Result<(Pending<Outcome>, usize), Refusal> {
        match what {
            Some(What::Put(put)) => {
                // The buffer of the message is shared with the key. A copy keeps only the value.
                let change = Change::Put(Bytes::copy_from_slice(&put.value));
                self.write(put.keyspace, put.write, put.key, put.condition, change)
            }
            Some(What::Delete(delete)) => {
                self.write(delete.keyspace, delete.write, delete.key, delete.condition, Change::Delete)
            }
            Some(What::Get(get)) => {
                convert::check_name_with(&self.caller, Right::Read, &get.keyspace)?;
                convert::check_keys(&get.keys)?;
                check_list("keys of a read in a stream", get.keys.len(), 1)?;
                let bytes = SHOWN_BYTES + get.keys.iter().map(Bytes::len).sum::<usize>();
                let found = self.keyspaces.get(get.keyspace, get.keys);
                let outcome = async move {
                    let found = found.await?.into_iter().map(convert::found).collect();
                    Ok(Outcome::Got(proto::GetReply { found }))
                };
                Ok((Box::pin(outcome), bytes))
            }
            None => {
                let words = "an operation that says nothing, or that this node does not know";
                Err(Refusal::no(Reason::Invalid, words, ""))
            }
        }
    }

    fn write(
        &self,
        keyspace: String,
        name: Option<proto::WriteName>,
        key: Bytes,
        condition: Option<proto::Condition>,
        change: Change,
    ) -> Result<(Pending<Outcome>, usize), Refusal> {
        convert::check_name_with(&self.caller, Right::Write, &keyspace)?;
        convert::check_keys(std::slice::from_ref(&key))?;
        let shown = if condition.is_some() { SHOWN_BYTES } else { 0 };
        let (name, guard) = (convert::write_name(name)?, convert::guard(condition)?);
        let bytes = shown + key.len() + if let Change::Put(value) = &change { value.len() } else { 0 };
        let wrote = self.keyspaces.write(keyspace, KeyWrite { name, key, guard, change });
        let outcome = async move { Ok(Outcome::Wrote(convert::wrote(wrote.await?))) };
        Ok((Box::pin(outcome), bytes))
    }

    /// Returns the answers that are there, as many as fit into a message.
    fn take_answers(&mut self, cx: &mut Context<'_>) -> Vec<Answer> {
        let (mut answers, mut bytes) = (Vec::new(), 0);
        while answers.len() < MAX_ANSWERS && bytes < MAX_ANSWER_BYTES {
            let answer = match self.ready.pop_front() {
                Some(answer) => {
                    self.unanswered.remove(1, REFUSAL_BYTES);
                    answer
                }
                None => match self.under_way.poll_next_unpin(cx) {
                    Poll::Ready(Some((answer, counted))) => {
                        self.unanswered.remove(1, counted);
                        answer
                    }
                    Poll::Ready(None) | Poll::Pending => break,
                },
            };
            bytes += shown_bytes(&answer);
            answers.push(answer);
        }
        answers
    }
}

fn failed(number: u64, refusal: &Refusal) -> Answer {
    let failure = &refusal.failure;
    let failed = Failed {
        happened: refusal.happened.text().to_owned(),
        reason: failure.reason.word().to_owned(),
        message: failure.message.clone(),
        next: failure.next.clone(),
    };
    Answer { number, outcome: Some(Outcome::Failed(failed)) }
}

fn shown_bytes(answer: &Answer) -> usize {
    match &answer.outcome {
        Some(Outcome::Wrote(wrote)) => wrote.current.as_ref().map_or(0, |held| held.value.len()),
        Some(Outcome::Got(got)) => {
            got.found.iter().flat_map(|found| &found.held).map(|held| held.value.len()).sum()
        }
        _ => 0,
    }
}

impl Stream for OperationStream {
    type Item = Result<proto::OperateReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.done {
            return Poll::Ready(None);
        }
        this.take_in(cx);
        // If the stream is full and has no answers, the next one wakes it, and it takes in more after that.
        let answers = this.take_answers(cx);
        if !answers.is_empty() {
            return Poll::Ready(Some(Ok(proto::OperateReply { answers })));
        }
        if this.under_way.is_empty() {
            if this.closed {
                this.done = true;
                return Poll::Ready(this.last_word.take().map(Err));
            }
            this.rest.get_or_insert_with(|| this.connection.rest());
        }
        Poll::Pending
    }
}
