//! Writes of clients, alone or as the operations of a transaction.

use super::create::Create;
use super::state::{Keys, TreeState};
use crate::event::Event;
use crate::jute::codes::{CreateMode, ErrorCode};
use crate::jute::records::Id;
use crate::jute::reply::{Create2Reply, PathReply, StatReply};
use crate::jute::request::{CreateRequest, CreateTtlRequest, Request};
use crate::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use crate::jute::{Jute, USUAL_BYTES};

/// Who writes.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'r> {
    /// The session.
    pub session: i64,
    /// Who the client is.
    pub client: &'r [Id<'r>],
}

/// A write that was refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Why.
    Because(ErrorCode),
    /// A transaction: the results of its operations, as the reply tells them without an error of its own.
    Transaction(Vec<u8>),
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Refused::Because(code)
    }
}

fn mode(flags: i32) -> Result<CreateMode, ErrorCode> {
    CreateMode::of(flags).ok_or(ErrorCode::BadArguments)
}

impl<K: Keys> TreeState<'_, K> {
    /// Does what a client asks for; the body of the reply.
    ///
    /// # Errors
    /// It was refused.
    pub fn write(&mut self, request: &Request<'_>, who: Writer<'_>) -> Result<Vec<u8>, Refused> {
        let mut out = Vec::with_capacity(USUAL_BYTES);
        match request {
            Request::Create(r) => {
                let (path, _) = self.create(plain(r, who)?)?;
                PathReply { path: &path }.write(&mut out);
            }
            Request::Create2(r) | Request::CreateContainer(r) => {
                let (path, node) = self.create(plain(r, who)?)?;
                Create2Reply { path: &path, stat: node.stat() }.write(&mut out);
            }
            Request::CreateTtl(r) => {
                let (path, node) = self.create(with_ttl(r, who)?)?;
                Create2Reply { path: &path, stat: node.stat() }.write(&mut out);
            }
            Request::Delete(r) => self.delete(r.path, r.version, who.client)?,
            Request::SetData(r) => {
                let node = self.set_data(r.path, r.data, r.version, who.client)?;
                StatReply { stat: node.stat() }.write(&mut out);
            }
            Request::SetAcl(r) => {
                let node = self.set_acl(r.path, &r.acl, r.version, who.client)?;
                StatReply { stat: node.stat() }.write(&mut out);
            }
            Request::Multi(r) => self.multi(r, who, &mut out)?,
            Request::Import(r) => self.import(r, who.client)?.write(&mut out),
            _ => return Err(ErrorCode::Unimplemented.into()),
        }
        Ok(out)
    }

    /// All operations, or none. After a failure each result is an error: none for the operations before it, its own, and
    /// RuntimeInconsistency for those behind it.
    fn multi(
        &mut self,
        request: &MultiRequest<'_>,
        who: Writer<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        for (at, op) in request.ops.iter().enumerate() {
            if let Err(code) = self.one(op, who, out) {
                let mut results = Vec::new();
                for place in 0..request.ops.len() {
                    let error = match place.cmp(&at) {
                        std::cmp::Ordering::Less => None,
                        std::cmp::Ordering::Equal => Some(code),
                        std::cmp::Ordering::Greater => Some(ErrorCode::RuntimeInconsistency),
                    };
                    MultiResult::Error(error).write(&mut results);
                }
                MultiResult::write_end(&mut results);
                return Err(Refused::Transaction(results));
            }
        }
        // It takes a zxid all the same, and replies must not be behind it.
        if request.ops.iter().all(|op| matches!(op, MultiOp::Check(_))) {
            self.keys.emit(Event::Counted { zxid: self.zxid });
        }
        MultiResult::write_end(out);
        Ok(())
    }

    fn one(&mut self, op: &MultiOp<'_>, who: Writer<'_>, out: &mut Vec<u8>) -> Result<(), ErrorCode> {
        match op {
            MultiOp::Create(r) => {
                let (path, _) = self.create(plain(r, who)?)?;
                MultiResult::Create(&path).write(out);
            }
            MultiOp::Create2(r) | MultiOp::CreateContainer(r) => {
                let (path, node) = self.create(plain(r, who)?)?;
                MultiResult::Create2(&path, node.stat()).write(out);
            }
            MultiOp::CreateTtl(r) => {
                let create = with_ttl(r, who)?;
                // In a transaction ZooKeeper does not look at a time to live that the mode does not have.
                let ttl_ms = create.ttl_ms.filter(|_| create.mode.has_ttl());
                let (path, node) = self.create(Create { ttl_ms, ..create })?;
                MultiResult::Create2(&path, node.stat()).write(out);
            }
            MultiOp::Delete(r) => {
                self.delete(r.path, r.version, who.client)?;
                MultiResult::Delete.write(out);
            }
            MultiOp::SetData(r) => {
                let node = self.set_data(r.path, r.data, r.version, who.client)?;
                MultiResult::SetData(node.stat()).write(out);
            }
            MultiOp::Check(r) => {
                self.check(r.path, r.version, who.client)?;
                MultiResult::Check.write(out);
            }
        }
        Ok(())
    }
}

fn plain<'r>(r: &'r CreateRequest<'r>, who: Writer<'r>) -> Result<Create<'r>, ErrorCode> {
    let mode = mode(r.flags)?;
    let Writer { session, client } = who;
    Ok(Create { path: r.path, data: r.data, acl: &r.acl, mode, ttl_ms: None, session, client })
}

fn with_ttl<'r>(r: &'r CreateTtlRequest<'r>, who: Writer<'r>) -> Result<Create<'r>, ErrorCode> {
    let mode = mode(r.flags)?;
    let Writer { session, client } = who;
    Ok(Create { path: r.path, data: r.data, acl: &r.acl, mode, ttl_ms: Some(r.ttl_ms), session, client })
}
