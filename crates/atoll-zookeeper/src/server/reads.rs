//! Requests that are answered from the view.

use atoll_db::View;
use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

use super::Shared;
use super::connection::Connection;
use super::frame;
use super::handshake::Ended;
use super::pending::Pending;
use super::walk::{Asking, Elsewhere, Walk};
use crate::acl;
use crate::jute::codes::{ErrorCode, OpCode, perms, xid};
use crate::jute::records::{Acl, Id, ReplyHeader, RequestHeader};
use crate::jute::reply::{GetAclReply, StatReply, WhoAmIReply};
use crate::jute::request::Request;
use crate::jute::{Jute, Reader};
use crate::tree::read::{self, ReadError};
use crate::watch::NotSet;
use crate::watch::table::Kind;

/// Appends a reply: the body that `body` writes, or an error reply if it is refused. Any other error ends the connection.
fn replied(
    out: &mut Vec<u8>,
    xid: i32,
    zxid: i64,
    body: impl FnOnce(&mut Vec<u8>) -> Result<(), ReadError>,
) -> Result<(), Ended> {
    let at = out.len();
    let mut done = Ok(());
    frame::write(out, |out| {
        ReplyHeader { xid, zxid, err: 0 }.write(out);
        done = body(out);
    });
    match done {
        Ok(()) => Ok(()),
        Err(ReadError::Refused(code)) => {
            out.truncate(at);
            frame::error(out, xid, zxid, code);
            Ok(())
        }
        // This node's store cannot be read, but another node's may be. The client goes there when this connection ends.
        Err(error) => {
            out.truncate(at);
            Err(Ended::Read(error))
        }
    }
}

/// Writes the body of getACL's reply. Clients that may read but not administer the node see no password hashes.
fn write_acl(view: &View, path: &str, client: &[Id<'_>], out: &mut Vec<u8>) -> Result<(), ReadError> {
    let node = read::readable(view, path, client, perms::READ | perms::ADMIN)?;
    let list = acl::of_stored(&node.acl);
    if acl::stored_allows(&node.acl, client, perms::ADMIN) {
        GetAclReply { acl: list, stat: node.stat() }.write(out);
    } else {
        let masked = acl::masked(&list);
        let acl =
            masked.iter().map(|(perms, scheme, id)| Acl { perms: *perms, id: Id { scheme, id } }).collect();
        GetAclReply { acl, stat: node.stat() }.write(out);
    }
    Ok(())
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
            Request::Exists(r) if !r.watch => self.answer_from_view(xid, bytes, |view, client, out| {
                let node = read::readable(view, r.path, client, perms::READ)?;
                StatReply { stat: node.stat() }.write(out);
                Ok(())
            }),
            Request::GetData(r) if !r.watch => self.answer_from_view(xid, bytes, |view, client, out| {
                let (node, data) = read::data(view, r.path, client)?;
                data.as_deref().write(out);
                node.stat().write(out);
                Ok(())
            }),
            Request::GetChildren(r) | Request::GetChildren2(r) if !r.watch => {
                let Some(view) = self.view(bytes) else { return Ok(()) };
                self.answer_children(xid, &view, r.path, op == OpCode::GetChildren2)
            }
            Request::Exists(_) | Request::GetData(_) | Request::GetChildren(_) | Request::GetChildren2(_) => {
                self.serve_watching(xid, &request, bytes)
            }
            Request::SetWatches(_)
            | Request::SetWatches2(_)
            | Request::AddWatch(_)
            | Request::CheckWatches(_)
            | Request::RemoveWatches(_) => self.serve_watches(xid, &request, bytes),
            Request::GetAcl(r) => {
                self.answer_from_view(xid, bytes, |view, client, out| write_acl(view, r.path, client, out))
            }
            Request::MultiRead(_) => self.walk_from_view(xid, bytes, |shared, asking| {
                Walk::many(shared, asking, Bytes::copy_from_slice(body))
            }),
            Request::GetAllChildrenNumber(r) => {
                self.walk_from_view(xid, bytes, |shared, asking| Walk::count(shared, asking, r.path))
            }
            Request::GetEphemerals(r) => {
                let session = self.session;
                self.walk_from_view(xid, bytes, |shared, asking| {
                    Walk::ephemerals(shared, asking, session, r.path)
                })
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
        self.replied(1);
        Ok(())
    }

    /// Answers a request for which no state is needed.
    pub(crate) fn answer(
        &mut self,
        xid: i32,
        body: impl FnOnce(&[Id<'_>], &mut Vec<u8>) -> Result<(), ReadError>,
    ) -> Result<(), Ended> {
        self.replied(1);
        let zxid = self.zxid;
        let mut out = std::mem::take(&mut self.out);
        let done = replied(&mut out, xid, zxid, |out| body(&self.client(), out));
        self.out = out;
        done
    }

    /// Answers a request from the view of this turn.
    pub(crate) fn answer_from_view(
        &mut self,
        xid: i32,
        bytes: &[u8],
        body: impl FnOnce(&View, &[Id<'_>], &mut Vec<u8>) -> Result<(), ReadError>,
    ) -> Result<(), Ended> {
        let Some(view) = self.view(bytes) else { return Ok(()) };
        self.answer(xid, |client, out| body(&view, client, out))
    }

    /// Answers a request with the children of a node.
    pub(crate) fn answer_children(
        &mut self,
        xid: i32,
        view: &View,
        path: &str,
        with_stat: bool,
    ) -> Result<(), Ended> {
        self.walk(xid, view, |shared, asking| Walk::children(shared, asking, path, with_stat))
    }

    /// Answers a read of many keys from the view of this turn.
    fn walk_from_view(
        &mut self,
        xid: i32,
        bytes: &[u8],
        begin: impl FnOnce(&Shared, &Asking<'_>) -> Result<Walk, ReadError>,
    ) -> Result<(), Ended> {
        let Some(view) = self.view(bytes) else { return Ok(()) };
        self.walk(xid, &view, begin)
    }

    /// Answers a read of many keys, at once if it is quick and otherwise from another thread. Later requests wait for it.
    fn walk(
        &mut self,
        xid: i32,
        view: &View,
        begin: impl FnOnce(&Shared, &Asking<'_>) -> Result<Walk, ReadError>,
    ) -> Result<(), Ended> {
        let zxid = self.zxid;
        let begun = begin(&self.shared, &Asking { view, ids: &self.ids, xid, zxid });
        let stepped = begun.and_then(|mut walk| Ok((walk.step_here(&self.shared)?, walk)));
        match stepped {
            Ok((Some(reply), _)) => {
                self.out.extend_from_slice(&reply);
                self.replied(1);
                Ok(())
            }
            Ok((None, walk)) => {
                let elsewhere = Elsewhere::begin(self.shared.clone(), walk);
                self.pending.push_first(Pending::Elsewhere(elsewhere));
                Ok(())
            }
            Err(ReadError::Refused(code)) => self.answer_error(xid, code),
            // This node's store cannot be read, but another node's may be. The client goes there when this connection ends.
            Err(error) => Err(Ended::Read(error)),
        }
    }

    /// Puts a request off until the view shows everything that the client was already notified of.
    pub(crate) fn put_off(&mut self, bytes: &[u8], not_yet: crate::watch::NotYet) {
        let applied = self.shared.engine.wait_applied(not_yet.0);
        self.pending.push_first(Pending::View { frame: Bytes::copy_from_slice(bytes), applied });
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
