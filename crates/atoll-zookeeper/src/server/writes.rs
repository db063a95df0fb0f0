//! Requests that go into the log. A command contains the request as the client sent it, and the client's ids. Requests are first
//! checked as far as possible without the state, so that one that must fail never reaches the log.

use atoll_db::{Busy, Proposed};
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Connection;
use super::figures::Refusal;
use super::frame;
use super::handshake::Ended;
use crate::acl::{self, Length};
use crate::command::{Command, WriteHead};
use crate::jute::codes::{CreateMode, ErrorCode, OpCode, xid};
use crate::jute::records::{Acl, Id};
use crate::jute::request::{AuthRequest, ImportRequest, Request};
use crate::jute::transaction::MultiOp;
use crate::jute::{Jute, Reader};
use crate::path;
use crate::tree::create::lifetime;
use crate::tree::quota;
use crate::tree::state::is_foreign_zxid;

/// Most ids of one connection.
const MAX_IDS: usize = 64;
/// Most bytes of these ids in total. They are part of every write.
const MAX_IDS_BYTES: usize = 4 * 1024;
/// Most ACLs of a transaction that this thread makes whole because their length is not clear without that. They have duplicates.
const MAX_UNCLEAR: usize = 64;

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
    // The list that most clients send needs no check.
    match list == [acl::OPEN] {
        true => Ok(()),
        false if acl::is_long_made_whole(list, client) => Err(ErrorCode::InvalidAcl),
        false => acl::made_whole(list, client).map(drop),
    }
}

/// Checks a transaction, in addition to the checks when it is applied. It refuses modes that ZooKeeper does not know, and anything
/// that would be expensive on all nodes.
fn check_multi(ops: &[MultiOp<'_>], client: &[Id<'_>]) -> Result<(), ErrorCode> {
    // To ZooKeeper, an unknown mode is no valid operation, so the whole transaction is refused.
    if !ops.iter().all(has_mode) {
        return Err(ErrorCode::MarshallingError);
    }
    let mut unclear = 0;
    ops.iter().try_for_each(|op| {
        let (path, data, list) = match op {
            MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => {
                (r.path, r.data, &r.acl)
            }
            MultiOp::CreateTtl(r) => (r.path, r.data, &r.acl),
            MultiOp::SetData(r) => return check_text(r.path, r.data),
            _ => return Ok(()),
        };
        check_text(path, data)?;
        if path::is_deep(path) {
            return Err(ErrorCode::BadArguments);
        }
        let is_long = match acl::length_made_whole(list, client) {
            Length::Short => false,
            Length::Long => true,
            Length::Unclear => {
                unclear += 1;
                unclear > MAX_UNCLEAR || acl::is_long_made_whole(list, client)
            }
        };
        if is_long { Err(ErrorCode::InvalidAcl) } else { Ok(()) }
    })
}

/// Checks data that is a text about a quota.
fn check_text(path: &str, data: Option<&[u8]>) -> Result<(), ErrorCode> {
    match data.is_some_and(|data| data.len() > quota::MAX_TEXT_BYTES) && quota::is_text(path) {
        true => Err(ErrorCode::BadArguments),
        false => Ok(()),
    }
}

/// Checks an import. It bypasses all ACLs, so only the superuser may request it, and it must not exhaust the zxid epochs.
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

/// Checks a request. Of a transaction, only what `check_multi` covers is checked here. Other faults of its operations are among its
/// results when it is applied.
fn check(op: OpCode, body: &[u8], client: &[Id<'_>]) -> Result<(), ErrorCode> {
    let request = Request::read(op, &mut Reader::new(body)).map_err(|_| ErrorCode::MarshallingError)?;
    match request.ok_or(ErrorCode::Unimplemented)? {
        Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => {
            check_text(r.path, r.data)?;
            check_create(r.path, r.flags, None, &r.acl, client)
        }
        Request::CreateTtl(r) => {
            check_text(r.path, r.data)?;
            check_create(r.path, r.flags, Some(r.ttl_ms), &r.acl, client)
        }
        Request::SetAcl(r) => path::valid(r.path).and_then(|_| check_list(&r.acl, client)),
        Request::Delete(r) if path::is_special(r.path) => Err(ErrorCode::BadArguments),
        Request::Delete(r) => path::parent(r.path).map(drop),
        Request::SetData(r) => path::valid(r.path).and_then(|_| check_text(r.path, r.data)),
        // The ACLs are checked when the transaction is applied.
        Request::Multi(r) => check_multi(&r.ops, client),
        Request::Import(r) => check_import(&r, client),
        _ => Err(ErrorCode::Unimplemented),
    }
}

/// Returns the body of a superuser's request without `auth` in its ACLs, or None if it may stay as it is. See
/// [`acl::leave_out_super`].
fn without_auth(op: OpCode, body: &[u8], client: &[Id<'_>]) -> Option<Vec<u8>> {
    if !acl::is_super(client) {
        return None;
    }
    let mut request = Request::read(op, &mut Reader::new(body)).ok()??;
    let changed = match &mut request {
        Request::Create(r) | Request::Create2(r) | Request::CreateContainer(r) => {
            acl::leave_out_super(&mut r.acl, client)
        }
        Request::CreateTtl(r) => acl::leave_out_super(&mut r.acl, client),
        Request::SetAcl(r) => acl::leave_out_super(&mut r.acl, client),
        Request::Multi(r) => r.ops.iter_mut().fold(false, |changed, op| match op {
            MultiOp::Create(r) | MultiOp::Create2(r) | MultiOp::CreateContainer(r) => {
                acl::leave_out_super(&mut r.acl, client) || changed
            }
            MultiOp::CreateTtl(r) => acl::leave_out_super(&mut r.acl, client) || changed,
            _ => changed,
        }),
        _ => false,
    };
    changed.then(|| {
        let mut out = Vec::with_capacity(2 * body.len());
        request.write(&mut out);
        out
    })
}

/// Returns whether a write may add data. A transaction may if one of its operations may.
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
    /// Proposes a write. Returns `Busy` if the log's queue has no room.
    ///
    /// # Errors
    /// The write is refused and did not happen.
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
        let without_auth = without_auth(op, body, &ids);
        let body = without_auth.as_deref().unwrap_or(body);
        let enforce_quota = self.shared.options.enforce_quota;
        let head =
            WriteHead { session: self.session, moves: self.moves, ids, op: op.number(), enforce_quota };
        let command = Command::Write(head, body).to_bytes();
        if command.len() > self.shared.engine.max_command_bytes() {
            return Err(ErrorCode::BadArguments);
        }
        Ok(self.propose_behind(command))
    }

    /// Proposes the end of the session. Returns `Busy` if the log's queue has no room.
    pub(crate) fn propose_close(&mut self) -> Result<Proposed, Busy> {
        let command = super::housekeeping::end_of(&self.shared, self.session, self.moves, true);
        self.propose_behind(command.to_bytes())
    }

    /// Proposes a command that is applied only if the earlier ones of this connection are, as ZooKeeper's clients expect.
    fn propose_behind(&mut self, command: Vec<u8>) -> Result<Proposed, Busy> {
        if self.pending.is_empty() {
            self.losses = self.shared.engine.losses();
        }
        self.shared.engine.propose_behind(self.losses, command.into())
    }

    /// Handles an authentication. A failed one ends the connection, as clients expect.
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
            // The address is already among the ids, and proves nothing.
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
