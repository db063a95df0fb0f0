//! The operations on single keys that go to one node: all that wait go out in one message, and their answers come in any order.
//!
//! While there is something to do, a task keeps a stream to the node open. If the stream fails, so do its operations: whoever waits for one
//! asks another node.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_stream::Stream;
use tonic::Code;

use crate::connections::{Connections, unreachable_node};
use crate::error::{Failure, Outcome, parse, reason_of};
use crate::keyspace_proto::keyspace_service_client::KeyspaceServiceClient;
use crate::keyspace_proto::operate_reply::{Answer, answer};
use crate::keyspace_proto::operate_request::{Operation, operation::What};
use crate::keyspace_proto::{OperateReply, OperateRequest};
use crate::proto::Reason;

/// The maximum number of operations in one message, as the nodes allow it.
const MAX_OPERATIONS: usize = 256;
/// The maximum number of bytes of keys and values in one message. The last operation may exceed it.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;
/// The largest operation that goes into a stream. A node refuses a larger one, and its stream must not end for that.
pub(crate) const MAX_OPERATION_BYTES: usize = 64 * 1024;
/// The maximum number of operations that wait for a node. Others go another way.
const MAX_WAITING: usize = 65_536;
/// How long a stream with nothing to do stays open.
const IDLE: Duration = Duration::from_secs(2);
/// How long a node that has no such streams, because its program is older, is not asked again. Its operations go another way.
const WITHOUT_STREAMS: Duration = Duration::from_secs(60);

/// What became of an operation. The error says whether it happened.
pub(crate) type Settled = Result<answer::Outcome, (Outcome, Failure)>;

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(What, oneshot::Sender<Settled>)>,
    under_way: BTreeMap<u64, oneshot::Sender<Settled>>,
    last_number: u64,
    /// Counts the streams. The sending half of an earlier one ends.
    stream: u64,
    /// Wakes the sending half of the stream.
    waker: Option<Waker>,
    /// Whether a task keeps a stream open.
    is_driven: bool,
    /// Until when the node counts as one that has no streams.
    without_streams: Option<Instant>,
}

/// A node, and the operations that go to it.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its only address.
    pub(crate) connections: Connections,
    state: Mutex<State>,
}

/// Returns the bytes of the key and the value of an operation.
pub(crate) fn bytes_of(what: &What) -> usize {
    match what {
        What::Put(put) => put.key.len() + put.value.len(),
        What::Delete(delete) => delete.key.len(),
        What::Get(get) => get.keys.iter().map(Bytes::len).sum(),
    }
}

impl Node {
    pub(crate) fn new(connections: Connections) -> Self {
        Node { connections, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the node can be expected to take streams.
    pub(crate) fn has_streams(&self) -> bool {
        self.state().without_streams.is_none_or(|until| until <= Instant::now())
    }

    /// Performs one attempt of an operation. Must be called within a tokio runtime.
    pub(crate) async fn operate(self: &Arc<Self>, what: What, until: Instant) -> Settled {
        let (to, outcome) = oneshot::channel();
        let (waker, begins) = {
            let mut state = self.state();
            if state.waiting.len() >= MAX_WAITING {
                return Err((Outcome::No, self.failure("too many operations wait for it")));
            }
            state.waiting.push_back((what, to));
            (state.waker.take(), !std::mem::replace(&mut state.is_driven, true))
        };
        waker.into_iter().for_each(Waker::wake);
        if begins {
            tokio::spawn(drive(self.clone()));
        }
        match timeout_at(until, outcome).await {
            Ok(Ok(settled)) => settled,
            Ok(Err(_)) => Err((Outcome::Unknown, self.failure("the stream was abandoned"))),
            Err(_) => Err((Outcome::Unknown, self.failure("no answer in time"))),
        }
    }

    fn failure(&self, why: &str) -> Failure {
        unreachable_node(self.connections.text(0), why)
    }

    /// Takes the next message of a stream. None: nothing waits.
    fn next_message(&self, waker: &Waker) -> Option<OperateRequest> {
        let mut state = self.state();
        let (mut operations, mut bytes) = (Vec::new(), 0);
        while operations.len() < MAX_OPERATIONS
            && bytes < MAX_MESSAGE_BYTES
            && let Some((what, to)) = state.waiting.pop_front()
        {
            // Nobody waits for it any more.
            if to.is_closed() {
                continue;
            }
            state.last_number += 1;
            let number = state.last_number;
            state.under_way.insert(number, to);
            bytes += bytes_of(&what);
            operations.push(Operation { number, what: Some(what) });
        }
        if operations.is_empty() {
            state.waker = Some(waker.clone());
            return None;
        }
        Some(OperateRequest { operations })
    }

    fn settle(&self, reply: OperateReply) {
        for Answer { number, outcome } in reply.answers {
            let Some(to) = self.state().under_way.remove(&number) else { continue };
            let settled = match outcome {
                Some(answer::Outcome::Failed(failed)) => {
                    let failure = Failure::new(reason_of(&failed.reason), failed.message, failed.next);
                    Err((Outcome::of(&failed.happened), failure))
                }
                Some(outcome) => Ok(outcome),
                None => Err((Outcome::Unknown, self.failure("an answer that this client does not know"))),
            };
            // A caller that has gone away does not need the outcome.
            let _ = to.send(settled);
        }
    }

    /// Ends a stream. Returns whether another one is needed, for operations that came while an idle one ended.
    fn end(&self, end: Result<(), (Outcome, Failure)>) -> bool {
        let (under_way, waiting) = {
            let mut state = self.state();
            state.stream += 1;
            state.waker.take().into_iter().for_each(Waker::wake);
            if end.is_ok() && !state.waiting.is_empty() {
                return true;
            }
            state.is_driven = false;
            (std::mem::take(&mut state.under_way), std::mem::take(&mut state.waiting))
        };
        if let Err((happened, failure)) = end {
            for to in under_way.into_values() {
                let _ = to.send(Err((happened, failure.clone())));
            }
            for (_, to) in waiting {
                let _ = to.send(Err((Outcome::No, failure.clone())));
            }
        }
        false
    }

    /// Runs one stream until it fails, or has nothing to do for a while.
    async fn stream(self: &Arc<Self>) -> Result<(), (Outcome, Failure)> {
        let channel = self.connections.channel(0).await.map_err(|failure| (Outcome::No, failure))?;
        let outbox = Outbox { node: self.clone(), stream: self.state().stream };
        let mut client = KeyspaceServiceClient::new(channel);
        let mut replies = match client.operate(outbox).await {
            Ok(replies) => replies.into_inner(),
            Err(status) => {
                if status.code() == Code::Unimplemented {
                    self.state().without_streams = Some(Instant::now() + WITHOUT_STREAMS);
                }
                return Err(ended(&status));
            }
        };
        loop {
            match timeout(IDLE, replies.message()).await {
                Ok(Ok(Some(reply))) => self.settle(reply),
                Ok(Ok(None)) => return Err((Outcome::Unknown, self.failure("it ended the stream"))),
                Ok(Err(status)) => return Err(ended(&status)),
                Err(_) => {
                    let state = self.state();
                    if state.under_way.is_empty() && state.waiting.is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// Returns what the end of a stream says of its operations. Whatever the reason, another node is worth a try: one of an older version has
/// no such streams.
fn ended(status: &tonic::Status) -> (Outcome, Failure) {
    let (happened, failure) = parse(status);
    (happened, Failure { reason: Reason::Unavailable, ..failure })
}

/// The task that keeps a stream to a node open. If it is dropped before its end, because its runtime is, its operations fail, and the next
/// one starts another task.
struct Driving(Option<Arc<Node>>);

impl Drop for Driving {
    fn drop(&mut self) {
        if let Some(node) = self.0.take() {
            node.end(Err((Outcome::Unknown, node.failure("the stream was abandoned"))));
        }
    }
}

async fn drive(node: Arc<Node>) {
    let mut driving = Driving(Some(node.clone()));
    loop {
        let end = node.stream().await;
        if !node.end(end) {
            // Another task may drive it already.
            driving.0 = None;
            return;
        }
    }
}

/// The sending half of a stream. The HTTP/2 connection polls it whenever it can send.
struct Outbox {
    node: Arc<Node>,
    stream: u64,
}

impl Stream for Outbox {
    type Item = OperateRequest;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.node.state().stream != self.stream {
            return Poll::Ready(None);
        }
        self.node.next_message(cx.waker()).map_or(Poll::Pending, |message| Poll::Ready(Some(message)))
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tonic::service::Routes;
    use tonic::transport::{Server, server::TcpIncoming};

    use super::*;
    use crate::keyspace_proto::{DeleteRequest, WriteReply};
    use crate::options::Options;

    fn delete(key: &'static str) -> What {
        What::Delete(DeleteRequest { key: Bytes::from_static(key.as_bytes()), ..DeleteRequest::default() })
    }

    /// Returns a node whose streams this test plays.
    fn node() -> Arc<Node> {
        let node = Node::new(Connections::new("127.0.0.1:1", Options::default()).expect("valid"));
        node.state().is_driven = true;
        Arc::new(node)
    }

    fn wrote(version: u64) -> answer::Outcome {
        answer::Outcome::Wrote(WriteReply { done: true, version, ..WriteReply::default() })
    }

    #[tokio::test]
    async fn what_waits_goes_out_together_and_is_answered_in_any_order() {
        let (node, until) = (node(), Instant::now() + Duration::from_secs(60));
        let cx = &mut Context::from_waker(Waker::noop());
        let (mut first, mut second) =
            (pin!(node.operate(delete("a"), until)), pin!(node.operate(delete("b"), until)));
        assert!(first.as_mut().poll(cx).is_pending() && second.as_mut().poll(cx).is_pending());
        let gone = tokio::time::timeout(Duration::ZERO, node.operate(delete("c"), until)).await;
        assert!(gone.is_err());
        let message = node.next_message(Waker::noop()).expect("two operations");
        let numbers: Vec<u64> = message.operations.iter().map(|operation| operation.number).collect();
        assert_eq!(numbers.len(), 2, "nobody waits for the third");
        assert!(node.next_message(Waker::noop()).is_none());
        let answer = |number, version| Answer { number, outcome: Some(wrote(version)) };
        node.settle(OperateReply { answers: vec![answer(numbers[1], 2), answer(77, 3)] });
        assert!(first.as_mut().poll(cx).is_pending());
        assert_eq!(second.await, Ok(wrote(2)));
        node.settle(OperateReply { answers: vec![answer(numbers[0], 1)] });
        assert_eq!(first.await, Ok(wrote(1)));
    }

    #[tokio::test]
    async fn a_stream_that_fails_leaves_doubt_only_about_what_it_carried() {
        let (node, until) = (node(), Instant::now() + Duration::from_secs(60));
        let cx = &mut Context::from_waker(Waker::noop());
        let mut carried = pin!(node.operate(delete("a"), until));
        assert!(carried.as_mut().poll(cx).is_pending());
        let outbox = Outbox { node: node.clone(), stream: node.state().stream };
        let mut outbox = pin!(outbox);
        assert!(matches!(outbox.as_mut().poll_next(cx), Poll::Ready(Some(_))));
        let mut waiting = pin!(node.operate(delete("b"), until));
        assert!(waiting.as_mut().poll(cx).is_pending());
        assert!(!node.end(Err((Outcome::Unknown, node.failure("broken pipe")))));
        assert_eq!(carried.await.map_err(|(happened, _)| happened), Err(Outcome::Unknown));
        assert_eq!(waiting.await.map_err(|(happened, _)| happened), Err(Outcome::No));
        assert!(matches!(outbox.as_mut().poll_next(cx), Poll::Ready(None)), "the next stream has its own");
    }

    #[tokio::test]
    async fn what_came_while_an_idle_stream_ended_needs_another_one() {
        let (node, until) = (node(), Instant::now() + Duration::from_secs(60));
        assert!(!node.end(Ok(())));
        node.state().is_driven = true;
        let mut waiting = pin!(node.operate(delete("a"), until));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(node.end(Ok(())) && node.state().is_driven);
    }

    #[tokio::test]
    async fn a_node_of_an_older_program_is_left_to_other_ways_for_a_while() {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = incoming.local_addr().expect("its address").to_string();
        // It answers every call as a server does that has no such method.
        tokio::spawn(Server::builder().add_routes(Routes::default()).serve_with_incoming(incoming));
        let node = Arc::new(Node::new(Connections::new(&address, Options::default()).expect("valid")));
        assert!(node.has_streams());
        let got = node.operate(delete("a"), Instant::now() + Duration::from_secs(60)).await;
        let got = got.map_err(|(happened, failure)| (happened, failure.reason));
        assert_eq!((got, node.has_streams()), (Err((Outcome::No, Reason::Unavailable)), false));
    }

    #[test]
    fn a_stream_whose_runtime_has_ended_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let node = Arc::new(Node::new(Connections::new(&address, Options::default()).expect("valid")));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let carrier = node.clone();
        // Nobody answers it.
        let asked = runtime.block_on(async move {
            carrier.operate(delete("a"), Instant::now() + Duration::from_millis(20)).await
        });
        assert_eq!(asked.map_err(|(happened, _)| happened), Err(Outcome::Unknown));
        assert!(node.state().is_driven);
        drop(runtime);
        assert!(!node.state().is_driven, "the next operation would wait for a task that is gone");
    }
}
