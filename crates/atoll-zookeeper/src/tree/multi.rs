//! Writes of clients, alone or as the operations of a transaction.

use super::create::Create;
use super::state::{Keys, TreeState};
use super::weight::MAX_WEIGHT_BYTES;
use crate::event::Event;
use crate::jute::codes::{CreateMode, ErrorCode};
use crate::jute::records::Id;
use crate::jute::reply::{Create2Reply, PathReply, StatReply};
use crate::jute::request::{CreateRequest, CreateTtlRequest, Request};
use crate::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use crate::jute::{Jute, USUAL_BYTES};

/// The client that writes.
#[derive(Clone, Copy, Debug)]
pub struct Writer<'r> {
    /// The client's session.
    pub session: i64,
    /// The client's ids.
    pub client: &'r [Id<'r>],
}

/// A write that was refused as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The reason.
    Because(ErrorCode),
    /// A transaction failed. These are the results of its operations, for a reply whose header reports no error.
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
    /// Performs a client's write; returns the body of the reply.
    ///
    /// # Errors
    /// The write was refused.
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

    /// Performs all operations or none. After a failure, every result is an error: no error code for the operations before the
    /// failed one, the reason for the failed one, and RuntimeInconsistency for the rest.
    fn multi(
        &mut self,
        request: &MultiRequest<'_>,
        who: Writer<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Refused> {
        if self.is_bounded {
            self.weight.expect(request.ops.len());
        }
        for (at, op) in request.ops.iter().enumerate() {
            let done = self.one(op, who, out).and_then(|()| self.check_weight());
            if let Err(code) = done {
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
        // A transaction that only checks still uses up a zxid, and replies must not report an older one.
        if request.ops.iter().all(|op| matches!(op, MultiOp::Check(_))) {
            self.keys.emit(Event::Counted { zxid: self.zxid });
        }
        MultiResult::write_end(out);
        Ok(())
    }

    /// Returns BadArguments if the transaction has become too heavy.
    fn check_weight(&self) -> Result<(), ErrorCode> {
        if self.is_bounded && self.weight.bytes() > MAX_WEIGHT_BYTES {
            return Err(ErrorCode::BadArguments);
        }
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
                // In a transaction, ZooKeeper ignores a time to live if the mode has none.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::event::Change;
    use crate::jute::records::Acl;
    use crate::jute::request::{SetDataRequest, VersionRequest};
    use crate::testing::Map;

    #[test]
    fn a_transaction_judges_each_list_once_and_its_events_share_it() {
        let mut map = Map::default();
        let mut state = TreeState::open(&mut map, 0);
        let entry = |perms, scheme, id| Acl { perms, id: Id { scheme, id } };
        let names: Vec<String> = (0..63).map(|n| format!("a{n}:x")).collect();
        let client: Vec<Id<'_>> = names.iter().map(|id| Id { scheme: "digest", id }).collect();
        let who = Writer { session: 1, client: &client };
        let paths: Vec<String> = (0..10).map(|n| format!("/a{n}")).collect();
        for (n, path) in (0..).zip(&paths) {
            // None of these entries is for the client, except for the last one.
            let acl: Vec<Acl<'_>> =
                (0..850).map(|m| entry((n * 1_000 + m) << 5 | 31, "digest", ":")).collect();
            let acl = [acl, vec![entry(31, "world", "anyone")]].concat();
            let create = CreateRequest { path, data: None, acl, flags: 0 };
            state.write(&Request::Create(create), who).unwrap();
        }
        let check = |path| MultiOp::Check(VersionRequest { path, version: -1 });
        let set = |path| MultiOp::SetData(SetDataRequest { path, data: Some(b"1"), version: -1 });
        let ops = (0..100).flat_map(|_| paths.iter().flat_map(|path| [check(path), set(path)])).collect();
        state.write(&Request::Multi(MultiRequest { ops }), who).unwrap();
        // The parent's list is the open one.
        assert_eq!(state.judged.count(), paths.len());
        let lists: BTreeSet<*const u8> = map
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Node { change: Change::DataSet, acl, .. } => Some(acl.as_ptr()),
                _ => None,
            })
            .collect();
        assert_eq!(lists.len(), paths.len());
    }
}
