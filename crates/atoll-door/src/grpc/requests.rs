//! What every request of the gRPC door is subject to: the gate, and limits of the number of requests in progress, and of the time and
//! memory of incomplete messages.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use atoll_client::Reason;
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::Status;
use tonic::codegen::Service;
use tonic::service::Routes;

use super::answer::AnswerRoom;
use super::budget::Share;
use super::connections::{Connection, Connections, Working};
use super::gate::{Caller, Gate};
use super::limits::Limits;
use crate::backend::Refusal;

/// Messages up to this size do not count against the budget. Most messages are that small, and the number of requests is limited anyway.
const SMALL_BYTES: usize = 16 * 1024;
/// The flag and the length in front of each message (gRPC over HTTP/2).
const PREFIX_BYTES: usize = 5;

/// The services, for the requests of one connection.
#[derive(Clone)]
pub(super) struct Requests {
    pub(super) routes: Routes,
    pub(super) connections: Arc<Connections>,
    pub(super) connection: Arc<Connection>,
    pub(super) limits: Arc<Limits>,
    pub(super) gate: Arc<Gate>,
    /// The name in the client's certificate, if it has shown one.
    pub(super) certificate: Option<Arc<str>>,
}

type Answer = Response<tonic::body::Body>;

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let Some(place) = self.limits.requests.take(self.connection.address, 1) else {
            let busy = busy("too many requests are in progress on this node").into_http();
            return Box::pin(std::future::ready(Ok(busy)));
        };
        let under_way = UnderWay { _place: place, _working: self.connections.working(&self.connection) };
        let held = Arc::new(Held::default());
        let (mut parts, body) = request.into_parts();
        let caller = match self.admit(&parts) {
            Ok(caller) => caller,
            Err(status) => return Box::pin(std::future::ready(Ok(status.into_http()))),
        };
        parts.extensions.insert(caller.clone());
        parts.extensions.insert(self.connection.clone());
        let room = AnswerRoom::new(self.limits.clone(), self.connection.clone());
        parts.extensions.insert(room.clone());
        let measured = Measured {
            body,
            message: Message::default(),
            until: None,
            held: held.clone(),
            connection: self.connection.clone(),
            limits: self.limits.clone(),
            caller: caller.clone(),
        };
        let operation = caller.is_operation().then(|| Operation { caller: caller.clone(), outcome: None });
        let answer = self.routes.clone().call(Request::from_parts(parts, tonic::body::Body::new(measured)));
        Box::pin(async move {
            let answer = answer.await?;
            held.answered();
            if let Some(mut operation) = operation {
                operation.outcome = Some(outcome_of(answer.headers()));
            }
            Ok(answer.map(|body| {
                let answered = Answered { body, caller, ended: false, _room: room, _under_way: under_way };
                tonic::body::Body::new(answered)
            }))
        })
    }
}

impl Requests {
    /// Finds out who asks, and whether it may ask at all.
    fn admit(&self, parts: &hyper::http::request::Parts) -> Result<Caller, Status> {
        let path = parts.uri.path().trim_start_matches('/');
        let unknown = || Status::unimplemented("this node knows no such method");
        let method = atoll_auth::method(path).ok_or_else(unknown)?;
        let certificate = self.certificate.as_deref();
        Ok(self.gate.admit(method, &parts.headers, certificate, self.connection.address)?)
    }
}

/// An operation under way. However it ends, the audit log has a line of it.
struct Operation {
    caller: Caller,
    /// None: the client has gone before it had an answer.
    outcome: Option<String>,
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.caller.ended(self.outcome.as_deref().unwrap_or("unknown"));
    }
}

/// Returns how a call has ended, in one word.
fn outcome_of(headers: &hyper::HeaderMap) -> String {
    let word = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match (word("grpc-status"), word("atoll-reason")) {
        (None | Some("0"), _) => "done".to_owned(),
        (Some(_), Some(reason)) => reason.to_owned(),
        (Some(code), None) => format!("status {code}"),
    }
}

fn busy(what: &str) -> Status {
    Refusal::no(Reason::Busy, what, "try again later, or at another node").into()
}

/// Counts a request as in progress. Kept until the whole reply was sent.
struct UnderWay {
    _place: Share,
    _working: Working,
}

/// The body of a reply. Dropping it ends the request.
struct Answered {
    body: tonic::body::Body,
    caller: Caller,
    /// Whether the reply was ended because its client has lost a right.
    ended: bool,
    _room: AnswerRoom,
    _under_way: UnderWay,
}

impl Body for Answered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let shows_something = matches!(&frame, Some(Ok(frame)) if frame.is_data());
        match self.caller.still() {
            Err(refusal) if shows_something => {
                self.ended = true;
                Poll::Ready(Some(Ok(Frame::trailers(trailers_of(refusal.into())))))
            }
            _ => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.ended || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Returns the trailers that end a reply with this status.
fn trailers_of(status: Status) -> hyper::HeaderMap {
    let mut headers = status.into_http::<tonic::body::Body>().into_parts().0.headers;
    headers.remove(hyper::header::CONTENT_TYPE);
    headers
}

/// The share of the door's message memory that a request holds.
#[derive(Default)]
struct Held(Mutex<Holding>);

#[derive(Default)]
struct Holding {
    share: Option<Share>,
    /// Whether the service has replied. From then on, a complete message no longer counts.
    answered: bool,
    complete: bool,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Holding> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answered(&self) {
        let mut holding = self.lock();
        holding.answered = true;
        if holding.complete {
            holding.share = None;
        }
    }
}

/// Tracks where the messages in a body begin and end.
#[derive(Debug, Default)]
struct Message {
    prefix: [u8; PREFIX_BYTES],
    in_prefix: usize,
    /// How many bytes of the message have arrived, and how many are missing.
    here: usize,
    left: usize,
}

impl Message {
    /// Processes the next bytes of the body.
    fn pass(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            if self.left > 0 {
                let n = self.left.min(data.len());
                self.left -= n;
                self.here += n;
                data = &data[n..];
            } else {
                if self.in_prefix == 0 {
                    self.here = 0;
                }
                let n = (PREFIX_BYTES - self.in_prefix).min(data.len());
                self.prefix[self.in_prefix..self.in_prefix + n].copy_from_slice(&data[..n]);
                self.in_prefix += n;
                data = &data[n..];
                if self.in_prefix < PREFIX_BYTES {
                    continue;
                }
                let [_, length @ ..] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
                self.in_prefix = 0;
            }
        }
    }

    /// Whether a message has arrived only in part.
    fn is_begun(&self) -> bool {
        self.left > 0 || self.in_prefix > 0
    }
}

/// The body of a request. It fails if a message is not complete in time, or if the door has no memory left for it.
struct Measured {
    body: Incoming,
    message: Message,
    /// When the incomplete message must be complete.
    until: Option<Pin<Box<Sleep>>>,
    held: Arc<Held>,
    connection: Arc<Connection>,
    limits: Arc<Limits>,
    caller: Caller,
}

impl Measured {
    fn account(&mut self, data: &[u8]) -> Result<(), Status> {
        self.message.pass(data);
        let begun = self.message.is_begun();
        match (begun, &self.until) {
            (true, None) => {
                self.until = Some(Box::pin(sleep_until(Instant::now() + self.limits.message_within)));
            }
            (false, Some(_)) => self.until = None,
            _ => {}
        }
        let bytes = if self.message.here > SMALL_BYTES { self.message.here } else { 0 };
        let mut holding = self.held.lock();
        holding.complete = !begun;
        if bytes == 0 || (holding.complete && holding.answered) {
            holding.share = None;
            return Ok(());
        }
        let room = match &mut holding.share {
            Some(share) => {
                share.shrink_to(bytes);
                let more = bytes - share.amount();
                share.grow(more)
            }
            none => {
                *none = self.limits.message_bytes.take(self.connection.address, bytes);
                none.is_some()
            }
        };
        if room { Ok(()) } else { Err(busy("too many large messages are on their way to this node")) }
    }
}

impl Body for Measured {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            return Poll::Ready(match frame {
                Some(Ok(frame)) => Some(match frame.data_ref().map(|data| this.account(data)) {
                    Some(Err(status)) => Err(status),
                    _ => this.caller.still().map(|()| frame).map_err(Status::from),
                }),
                Some(Err(error)) => Some(Err(Status::from_error(Box::new(error)))),
                None => None,
            });
        }
        let Some(until) = &mut this.until else { return Poll::Pending };
        ready!(until.as_mut().poll(cx));
        let words = format!("a message was not complete {:?} after it began", this.limits.message_within);
        Poll::Ready(Some(Err(Refusal::no(Reason::Invalid, words, "send messages as a whole").into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_followed_however_they_are_cut() {
        let mut body = Vec::new();
        for length in [0u32, 3, 70_000, 0, 1] {
            body.push(0);
            body.extend(length.to_be_bytes());
            body.extend(std::iter::repeat_n(7, length as usize));
        }
        for cut in [1, 2, 5, 6, 4_096, body.len()] {
            let mut message = Message::default();
            let mut longest = 0;
            for piece in body.chunks(cut) {
                message.pass(piece);
                longest = longest.max(message.here);
            }
            assert!(!message.is_begun(), "{cut}");
            // The piece that ends the longest message may also begin the next one.
            assert!(longest + cut >= 70_000, "{cut}: {longest}");
            message.pass(&[0]);
            assert!(message.is_begun(), "{cut}");
        }
    }
}
