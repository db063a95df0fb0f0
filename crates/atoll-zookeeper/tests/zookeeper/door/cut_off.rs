//! A client whose events are dropped in the middle of a turn of its connection, because too many are waiting.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use super::client::create;
use super::served::alone;
use atoll_db::{Applied, Engine};
use atoll_zookeeper::command::{AnswerHead, Command, OpenSession, SessionAnswer, WriteHead};
use atoll_zookeeper::jute::records::{ConnectRequest, Id, ReplyHeader, RequestHeader};
use atoll_zookeeper::jute::request::{AddWatchRequest, Request, SetDataRequest};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::{Options, ZooKeeper};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes of events that may wait for a client.
const MAX_WAITING_BYTES: usize = atoll_zookeeper::watch::outbox::MAX_WAITING_BYTES;

enum Step {
    Sent(Vec<u8>),
    /// This happens while the door reads.
    Meanwhile(Box<dyn FnOnce() + Send>),
}

/// A client's socket that sends the steps of a script and then closes.
struct Script {
    steps: VecDeque<Step>,
    answered: Arc<Mutex<Vec<u8>>>,
}

impl AsyncRead for Script {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            match self.steps.pop_front() {
                Some(Step::Sent(bytes)) => buf.put_slice(&bytes),
                Some(Step::Meanwhile(happens)) => {
                    happens();
                    continue;
                }
                None => {}
            }
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Script {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.answered.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn framed(frame: &[u8]) -> Step {
    Step::Sent([&i32::try_from(frame.len()).unwrap().to_be_bytes()[..], frame].concat())
}

fn asked(xid: i32, request: &Request<'_>) -> Step {
    let mut frame = RequestHeader { xid, op: request.op().number() }.to_vec();
    request.write(&mut frame);
    framed(&frame)
}

/// Applies a command, which an engine without a log does at once; returns the body of its answer.
fn done(engine: &Engine<ZooKeeper>, command: &Command<'_>) -> Vec<u8> {
    let proposed = engine.propose(command.to_bytes().into()).unwrap();
    let applied: Applied = futures_util::FutureExt::now_or_never(proposed).unwrap().unwrap().unwrap();
    let answer = applied.reply.unwrap();
    assert_eq!(AnswerHead::parse(&answer[..AnswerHead::LEAST_BYTES]).unwrap().err, 0);
    answer[AnswerHead::LEAST_BYTES..].to_vec()
}

fn write(engine: &Engine<ZooKeeper>, session: i64, request: &Request<'_>) {
    let mut body = Vec::new();
    request.write(&mut body);
    let ids = vec![Id { scheme: "ip", id: "127.0.0.1" }];
    let head = WriteHead { session, moves: 0, ids, op: request.op().number(), enforce_quota: false };
    done(engine, &Command::Write(head, &body));
}

/// A reply after dropped events would report a zxid that includes their changes, so the client would never be notified of these.
#[tokio::test]
async fn no_reply_goes_out_behind_events_that_were_dropped() {
    let (door, engine) = alone(Options::default());
    let other = done(&engine, &Command::Open(OpenSession { password: Some(&[7; 16]), timeout_ms: 9_000 }));
    let other = SessionAnswer::parse(&other).unwrap().session;
    let path = format!("/{}", "n".repeat(10_000));
    write(&engine, other, &create(&path, b""));
    let flood = move || {
        let set = Request::SetData(SetDataRequest { path: &path, data: None, version: -1 });
        (0..=MAX_WAITING_BYTES / path.len()).for_each(|_| write(&engine, other, &set));
    };
    let steps = [
        framed(&ConnectRequest::first(10_000).to_vec()),
        asked(1, &Request::AddWatch(AddWatchRequest { path: "/", mode: 1 })),
        Step::Meanwhile(Box::new(flood)),
        asked(2, &create("/x", b"")),
    ];
    let answered = Arc::new(Mutex::new(Vec::new()));
    let script = Script { steps: steps.into(), answered: answered.clone() };
    door.serve_stream(script, "127.0.0.1:1".parse().unwrap()).await;
    let answered = answered.lock().unwrap().clone();
    let (mut rest, mut xids) = (&answered[..], Vec::new());
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let (frame, more) = more.split_at(usize::try_from(i32::from_be_bytes(*length)).unwrap());
        xids.push(ReplyHeader::read(&mut Reader::new(frame)).unwrap().xid);
        rest = more;
    }
    assert!(!xids.contains(&2), "{xids:?}");
}
