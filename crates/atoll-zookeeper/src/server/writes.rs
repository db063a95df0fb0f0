//! Requests that go into the log in the form in which they came, with the identity of their client. They are first checked as far
//! as possible without the state, so a request that cannot be done costs the log nothing.

use atoll_db::{Busy, MAX_COMMAND_BYTES, Proposed};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::figures::Refusal;
use super::frame;
use super::handshake::Ended;
use crate::acl;
use crate::command::{Command, WriteHead};
use crate::jute::codes::{CreateMode, ErrorCode, OpCode, xid};
use crate::jute::records::{Acl, Id};
use crate::jute::request::{AuthRequest, ImportRequest, Request};
use crate::jute::transaction::MultiOp;
use crate::jute::{Jute, Reader};
use crate::path;
use crate::tree::create::lifetime;
use crate::tree::state::is_foreign_zxid;

/// Most authentications of one connection.
const MAX_IDS: usize = 64;
/// The total bytes of these authentications, which travel with every write.
const MAX_IDS_BYTES: usize = 4 * 1024;

fn check_create(
    path: &str,
    flags: i32,
    ttl_ms: Option<i64>,
    list: &[Acl<'_>],
    client: &[Id<'_>],
) -> Result<(), ErrorCode> {
    lifetime(CreateMode::of(flags).ok_or(ErrorCode::BadArguments)?, ttl_ms, 0)?;
    path::parent(path)?;
    if path::is_deep(path) {
        return Err(ErrorCode::BadArguments);
    }
    check_list(list, client)
}

fn check_list(list: &[Acl<'_>], client: &[Id<'_>]) -> Result<(), ErrorCode> {
    // What most clients send needs no work.
    match list == [acl::OPEN] {
        true => Ok(()),
        false if acl::is_long(list) || acl::is_long(&acl::made_whole(list, client)?) => {
            Err(ErrorCode::InvalidAcl)
        }
        false => Ok(()),
    }
}

/// What a door accepts in a transaction, besides the checks where it is applied: no mode that ZooKeeper does not know, and nothing
/// that would be expensive on all nodes.
fn check_multi(ops: &[MultiOp<'_>]) -> Result<(), ErrorCode> {
    // Unknown modes are no operations to ZooKeeper, and the whole is refused.
    if !ops.iter().all(has_mode) {
        return Err(ErrorCode::MarshallingError);
    }
    ops.iter().try_for_each(|op| {
        let (path, list) = match op {
            MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => (r.path, &r.acl),
            MultiOp::CreateTtl(r) => (r.path, &r.acl),
            _ => return Ok(()),
        };
        match () {
            () if path::is_deep(path) => Err(ErrorCode::BadArguments),
            () if acl::is_long(list) => Err(ErrorCode::InvalidAcl),
            () => Ok(()),
        }
    })
}

/// An import bypasses all access control lists: only the superuser may do it, and no import may use up the epochs.
fn check_import(asked: &ImportRequest<'_>, client: &[Id<'_>]) -> Result<(), ErrorCode> {
    match () {
        () if !acl::is_super(client) => Err(ErrorCode::NoAuth),
        () if !is_foreign_zxid(asked.newest) => Err(ErrorCode::BadArguments),
        () if asked.nodes.iter().any(|node| path::is_deep(node.path)) => Err(ErrorCode::BadArguments),
        () if asked.nodes.iter().any(|node| acl::is_long(&node.acl)) => Err(ErrorCode::InvalidAcl),
        () => Ok(()),
    }
}

fn has_mode(op: &MultiOp<'_>) -> bool {
    let (flags, with_ttl) = match op {
        MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => (r.flags, false),
        MultiOp::CreateTtl(r) => (r.flags, true),
        _ => return true,
    };
    CreateMode::of(flags).is_some_and(|mode| with_ttl || !mode.has_ttl())
}

/// Checks a request. A faulty operation of a transaction is reported among its results, where it is applied.
fn check(op: OpCode, body: &[u8], client: &[Id<'_>]) -> Result<(), ErrorCode> {
    let request = Request::read(op, &mut Reader::new(body)).map_err(|_| ErrorCode::MarshallingError)?;
    match request.ok_or(ErrorCode::Unimplemented)? {
        Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => {
            check_create(r.path, r.flags, None, &r.acl, client)
        }
        Request::CreateTtl(r) => check_create(r.path, r.flags, Some(r.ttl_ms), &r.acl, client),
        Request::SetAcl(r) => path::valid(r.path).and_then(|_| check_list(&r.acl, client)),
        Request::Delete(r) if path::is_special(r.path) => Err(ErrorCode::BadArguments),
        Request::Delete(r) => path::parent(r.path).map(drop),
        Request::SetData(r) => path::valid(r.path).map(drop),
        // Whose it may be is judged where it is applied.
        Request::Multi(r) => check_multi(&r.ops),
        Request::Import(r) => check_import(&r, client),
        _ => Err(ErrorCode::Unimplemented),
    }
}

/// Whether a write may make the data grow. A transaction may, if one of its operations may.
fn may_grow(op: OpCode, body: &[u8]) -> bool {
    match Request::read(op, &mut Reader::new(body)) {
        Ok(Some(Request::Delete(_))) => false,
        Ok(Some(Request::SetData(r))) => r.data.is_some_and(|data| !data.is_empty()),
        Ok(Some(Request::Multi(r))) => r.ops.iter().any(|op| match op {
            MultiOp::Delete(_) | MultiOp::Check(_) => false,
            MultiOp::SetData(r) => r.data.is_some_and(|data| !data.is_empty()),
            _ => true,
        }),
        _ => true,
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Hands a write to the log, if its queue has room.
    ///
    /// # Errors
    /// It is refused, and did not happen.
    pub(crate) fn propose_write(
        &mut self,
        op: OpCode,
        body: &[u8],
    ) -> Result<Result<Proposed, Busy>, ErrorCode> {
        let ids = self.client();
        check(op, body, &ids)?;
        if self.shared.cluster.is_short_of_space() && may_grow(op, body) {
            self.shared.figures.refuse(Refusal::Disk);
            return Err(ErrorCode::SystemError);
        }
        let enforce_quota = self.shared.options.enforce_quota;
        let head =
            WriteHead { session: self.session, moves: self.moves, ids, op: op.number(), enforce_quota };
        let command = Command::Write(head, body).to_bytes();
        if command.len() > MAX_COMMAND_BYTES {
            return Err(ErrorCode::BadArguments);
        }
        Ok(self.shared.engine.propose(command.into()))
    }

    /// Hands the end of the session to the log, if its queue has room.
    pub(crate) fn propose_close(&mut self) -> Result<Proposed, Busy> {
        let command = super::housekeeping::end_of(&self.shared, self.session, self.moves, true);
        self.shared.engine.propose(command.to_bytes().into())
    }

    /// Takes an authentication. A wrong one ends the connection, as clients expect.
    pub(crate) fn authenticate(&mut self, body: &[u8]) -> Result<(), Ended> {
        let Ok(asked) = AuthRequest::parse(body) else {
            self.refuse(xid::AUTH, ErrorCode::MarshallingError);
            return Ok(());
        };
        let secret = asked.auth.and_then(|auth| std::str::from_utf8(auth).ok()).unwrap_or_default();
        match asked.scheme {
            "digest" if !secret.is_empty() => {
                let digest = acl::digest_id(secret);
                if self.shared.options.super_digest.as_ref() == Some(&digest) {
                    self.add_id(acl::SUPER, "");
                }
                self.add_id("digest", &digest);
            }
            // The address is known already, and proves nothing.
            "ip" => {}
            scheme => {
                frame::error(&mut self.out, xid::AUTH, self.zxid, ErrorCode::AuthFailed);
                return Err(Ended::NotAuthenticated(format!("authentication by {scheme:?} failed")));
            }
        }
        self.reply_in_turn(|out, zxid| frame::reply(out, xid::AUTH, zxid, |_| {}));
        Ok(())
    }

    pub(crate) fn add_id(&mut self, scheme: &str, id: &str) {
        let known = self.ids.iter().any(|(s, i)| s == scheme && i == id);
        let bytes: usize = self.ids.iter().map(|(s, i)| s.len() + i.len()).sum();
        let fits = self.ids.len() < MAX_IDS && bytes + scheme.len() + id.len() <= MAX_IDS_BYTES;
        if !known && fits {
            self.ids.push((scheme.to_owned(), id.to_owned()));
            self.ids_changed();
        }
    }
}
