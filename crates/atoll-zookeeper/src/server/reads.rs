//! Requests that are answered from the view.

use atoll_db::View;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::frame;
use super::handshake::Ended;
use super::job::Job;
use super::part::Part;
use super::pending::Pending;
use super::walk::{Asking, Elsewhere, Walk};
use super::watching::NewWatch;
use crate::jute::codes::{ErrorCode, OpCode, xid};
use crate::jute::records::{Id, ReplyHeader, RequestHeader};
use crate::jute::reply::WhoAmIReply;
use crate::jute::request::Request;
use crate::jute::{Jute, Reader};
use crate::tree::read::{OnlyInMemory, ReadError};
use crate::watch::NotSet;
use crate::watch::table::Kind;

/// Appends a reply: the body that `body` writes, or an error reply with the returned code if the client is refused. Appends nothing
/// if there is another error.
fn replied(
    out: &mut Vec<u8>,
    xid: i32,
    zxid: i64,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), ReadError>,
) -> Result<Option<ErrorCode>, ReadError> {
    let at = out.len();
    let mut done = Ok(());
    frame::write(out, |out| {
        ReplyHeader { xid, zxid, err: 0 }.write(out);
        done = body(out);
    });
    match done {
        Ok(()) => Ok(None),
        Err(ReadError::Refused(code)) => {
            out.truncate(at);
            frame::error(out, xid, zxid, code);
            Ok(Some(code))
        }
        Err(error) => {
            out.truncate(at);
            Err(error)
        }
    }
}

/// Returns the user's name: of a digest, the part before the hash.
fn user<'a>(scheme: &str, id: &'a str) -> &'a str {
    if scheme == "digest" { id.split(':').next().unwrap_or_default() } else { id }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Answers a request whose predecessors are all answered, or puts it off.
    pub(crate) fn serve(&mut self, bytes: &[u8]) -> Result<(), Ended> {
        let mut from = Reader::new(bytes);
        let header = RequestHeader::read(&mut from).map_err(|e| Ended::Malformed(e.to_string()))?;
        let op = OpCode::of(header.op).ok_or_else(|| Ended::Malformed("an unknown operation".to_owned()))?;
        let body = from.rest();
        let request = match Request::read(op, &mut from) {
            Ok(Some(request)) => request,
            Ok(None) => return self.answer_error(header.xid, ErrorCode::Unimplemented),
            Err(_) => return self.answer_error(header.xid, ErrorCode::MarshallingError),
        };
        let xid = header.xid;
        match &request {
            Request::Ping => self.answer(xid::PING, |_, _| Ok(())),
            Request::Exists(r) if !r.watch => self.part_from_view(xid, bytes, Part::Stat, r.path),
            Request::GetData(r) if !r.watch => self.part_from_view(xid, bytes, Part::Data, r.path),
            Request::GetChildren(r) | Request::GetChildren2(r) if !r.watch => {
                let path = r.path.to_owned();
                self.walk_from_view(xid, bytes, Job::Children { path, with_stat: op == OpCode::GetChildren2 })
            }
            Request::Exists(_) | Request::GetData(_) | Request::GetChildren(_) | Request::GetChildren2(_) => {
                self.serve_watching(xid, &request, bytes)
            }
            Request::SetWatches(_)
            | Request::SetWatches2(_)
            | Request::AddWatch(_)
            | Request::CheckWatches(_)
            | Request::RemoveWatches(_) => self.serve_watches(xid, &request, bytes),
            Request::GetAcl(r) => self.part_from_view(xid, bytes, Part::Acl, r.path),
            Request::MultiRead(_) => self.walk_from_view(xid, bytes, Job::many(Bytes::copy_from_slice(body))),
            Request::GetAllChildrenNumber(r) => {
                self.walk_from_view(xid, bytes, Job::CountBelow(r.path.to_owned()))
            }
            Request::GetEphemerals(r) => {
                let (session, top) = (self.session, r.path.to_owned());
                self.walk_from_view(xid, bytes, Job::Ephemerals { session, top })
            }
            Request::WhoAmI => self.answer(xid, |client, out| {
                let user = |id: &Id<'_>| (id.scheme.to_owned(), user(id.scheme, id.id).to_owned());
                let users: Vec<(String, String)> = client.iter().map(user).collect();
                let clients = users.iter().map(|(scheme, id)| Id { scheme, id }).collect();
                WhoAmIReply { clients }.write(out);
                Ok(())
            }),
            Request::Reconfig(_) => self.answer_error(xid, ErrorCode::ReconfigDisabled),
            _ => self.answer_error(xid, ErrorCode::Unimplemented),
        }
    }

    pub(crate) fn answer_error(&mut self, xid: i32, code: ErrorCode) -> Result<(), Ended> {
        frame::error(&mut self.out, xid, self.zxid, code);
        self.replied();
        Ok(())
    }

    /// Answers a request for which no state is needed.
    pub(crate) fn answer(
        &mut self,
        xid: i32,
        body: impl FnOnce(&[Id<'_>], &mut Vec<u8>) -> Result<(), ReadError>,
    ) -> Result<(), Ended> {
        self.try_answer(xid, body)?;
        Ok(())
    }

    /// Answers a request, and returns the error that the answer reports, if it does.
    ///
    /// # Errors
    /// There is no answer.
    fn try_answer(
        &mut self,
        xid: i32,
        body: impl FnOnce(&[Id<'_>], &mut Vec<u8>) -> Result<(), ReadError>,
    ) -> Result<Option<ErrorCode>, ReadError> {
        let zxid = self.zxid;
        let mut out = std::mem::take(&mut self.out);
        let done = replied(&mut out, xid, zxid, |out| body(&self.client(), out));
        self.out = out;
        if done.is_ok() {
            self.replied();
        }
        done
    }

    /// Answers a read of one node from the view of this turn.
    fn part_from_view(&mut self, xid: i32, bytes: &[u8], part: Part, path: &str) -> Result<(), Ended> {
        let Some(view) = self.view(bytes) else { return Ok(()) };
        self.read_part(xid, &view, (part, path), None)
    }

    /// Answers a read of one node, at once if it is in memory and otherwise from another thread. Later requests wait for it.
    pub(crate) fn read_part(
        &mut self,
        xid: i32,
        view: &View,
        (part, path): (Part, &str),
        watch: Option<NewWatch>,
    ) -> Result<(), Ended> {
        match self.try_answer(xid, |client, out| part.write(&OnlyInMemory(view), path, client, out)) {
            Ok(refused) => {
                self.settle(watch, refused);
                Ok(())
            }
            Err(ReadError::OnDisk) => {
                let job = Job::Part(part, path.to_owned());
                let asking = Asking { view, ids: &self.ids, xid, zxid: self.zxid };
                let walk = Walk::new(&self.shared, &asking, job);
                self.go_elsewhere(walk, watch);
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Answers a read in steps from the view of this turn.
    fn walk_from_view(&mut self, xid: i32, bytes: &[u8], job: Job) -> Result<(), Ended> {
        let Some(view) = self.view(bytes) else { return Ok(()) };
        self.walk(xid, &view, job, None)
    }

    /// Answers a read in steps, at once if it is quick and otherwise from another thread. Later requests wait for it.
    pub(crate) fn walk(
        &mut self,
        xid: i32,
        view: &View,
        job: Job,
        watch: Option<NewWatch>,
    ) -> Result<(), Ended> {
        let asking = Asking { view, ids: &self.ids, xid, zxid: self.zxid };
        let mut walk = Walk::new(&self.shared, &asking, job);
        match walk.step_here(&self.shared) {
            Ok(Some(reply)) => {
                self.out.extend_from_slice(&reply);
                self.replied();
                Ok(())
            }
            Ok(None) => {
                self.go_elsewhere(walk, watch);
                Ok(())
            }
            Err(ReadError::Refused(code)) => {
                self.settle(watch, Some(code));
                self.answer_error(xid, code)
            }
            // This node's store cannot be read, but another node's may be. The client goes there when this connection ends.
            Err(error) => Err(error.into()),
        }
    }

    fn go_elsewhere(&mut self, walk: Walk, watch: Option<NewWatch>) {
        let read = Elsewhere::begin(self.shared.clone(), walk);
        self.pending.push_first(self.asked, Pending::Elsewhere { read, watch });
    }

    /// Puts a request off until the view shows everything that the client was already notified of.
    pub(crate) fn put_off(&mut self, bytes: &[u8], not_yet: crate::watch::NotYet) {
        let applied = self.shared.engine.wait_applied(not_yet.0);
        self.pending.push_first(self.asked, Pending::View { frame: Bytes::copy_from_slice(bytes), applied });
    }

    /// Registers a watch, and returns the view that the read must use together with whether the watch is new.
    pub(crate) fn set_watch(&mut self, watch: (Kind, &str)) -> Result<(View, bool), NotSet> {
        let engine = self.shared.engine.clone();
        let newest = self.shared.zxid();
        let set = self.shared.watches.set(self.id, [watch], &mut self.out, || engine.view())?;
        self.show(set.view.clone(), set.events, newest);
        Ok((set.view, set.new == [true]))
    }
}
