//! A keyspace in the memory of one process: the reference for the conformance suite, and a stand-in for tests of what is built on
//! keyspaces.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_core::BoxFuture;
use atoll_core::sync::lock;

use super::{
    Ability, Attempt, Change, Changed, Floor, Guard, Held, KeyVersion, Keyspace, KeyspaceError, Limits,
    ListFrom, Page, Transacted, TxnLimits, TxnPart,
};
use crate::entry::OpId;

#[derive(Debug, Default)]
struct State {
    clock: u64,
    keys: BTreeMap<Bytes, Held>,
    /// The version that each write made.
    done: BTreeMap<OpId, KeyVersion>,
    /// What each transaction that changed something did.
    transacted: BTreeMap<OpId, Vec<Changed>>,
}

impl State {
    /// Changes a key, and returns its new version.
    fn change(&mut self, key: Bytes, change: Change) -> KeyVersion {
        self.clock += 1;
        let version = KeyVersion(self.clock);
        match change {
            Change::Put(value) => self.keys.insert(key, Held { version, value }),
            Change::Delete => self.keys.remove(&key),
        };
        version
    }
}

const LIMITS: TxnLimits = TxnLimits { keys: 64, bytes: 256 * 1024 };

/// See the module documentation. Clones share one state.
#[derive(Clone, Debug, Default)]
pub struct MemoryKeyspace(Arc<Mutex<State>>);

impl MemoryKeyspace {
    /// Returns an empty keyspace.
    pub fn new() -> Self {
        Self::default()
    }

    fn write_now(
        &self,
        op: OpId,
        key: Bytes,
        guard: &Guard,
        change: Change,
    ) -> Result<Changed, KeyspaceError> {
        self.limits().check_write(&key, guard, &change)?;
        let state = &mut *lock(&self.0);
        if let Some(version) = state.done.get(&op) {
            return Ok(Changed::Done(*version));
        }
        let now = state.keys.get(&key).cloned();
        let holds = guard.holds(now.as_ref().map(|held| (held.version, &held.value[..])));
        if !holds || (change == Change::Delete && now.is_none()) {
            return Ok(Changed::Not(now));
        }
        let version = state.change(key, change);
        state.done.insert(op, version);
        Ok(Changed::Done(version))
    }

    fn transact_now(&self, op: OpId, parts: Vec<TxnPart>) -> Result<Transacted, KeyspaceError> {
        LIMITS.check(&self.limits(), &parts)?;
        let state = &mut *lock(&self.0);
        if let Some(outcome) = state.transacted.get(&op) {
            return Ok(Transacted::Done(outcome.clone()));
        }
        let held: Vec<Option<Held>> = parts.iter().map(|part| state.keys.get(&part.key).cloned()).collect();
        let holds = |(part, held): (&TxnPart, &Option<Held>)| {
            let finds = part.change != Some(Change::Delete) || held.is_some();
            finds && part.guard.holds(held.as_ref().map(|held| (held.version, &held.value[..])))
        };
        if !parts.iter().zip(&held).all(holds) {
            return Ok(Transacted::Not(held));
        }
        let is_read_only = parts.iter().all(|part| part.change.is_none());
        let change = |(part, held): (TxnPart, Option<Held>)| match part.change {
            Some(change) => Changed::Done(state.change(part.key, change)),
            None => Changed::Not(held),
        };
        let outcome: Vec<Changed> = parts.into_iter().zip(held).map(change).collect();
        if !is_read_only {
            state.transacted.insert(op, outcome.clone());
        }
        Ok(Transacted::Done(outcome))
    }

    fn list_now(&self, from: &ListFrom) -> Page {
        let state = lock(&self.0);
        let start = match &from.after {
            Some(after) if *after >= from.prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(from.prefix.clone()),
        };
        let limit = from.limit.clamp(1, self.limits().page_keys);
        let range = state.keys.range((start, Bound::Unbounded));
        let mut found = range.take_while(|(key, _)| key.starts_with(&from.prefix));
        let keys: Vec<_> =
            found.by_ref().take(limit).map(|(key, held)| (key.clone(), held.version)).collect();
        let more = found.next().is_some();
        let upto = keys.last().filter(|_| more).map(|(key, _)| key.clone());
        Page { keys, more, upto }
    }
}

impl Keyspace for MemoryKeyspace {
    fn engine(&self) -> &'static str {
        "reference"
    }

    fn limits(&self) -> Limits {
        Limits { key_bytes: 1024, value_bytes: 32 * 1024, keys: 256, page_keys: 1000 }
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Transactions]
    }

    fn transaction_limits(&self) -> Option<TxnLimits> {
        Some(LIMITS)
    }

    fn transact(
        &self,
        op: OpId,
        _repeat: bool,
        parts: Vec<TxnPart>,
    ) -> BoxFuture<'_, Result<Transacted, KeyspaceError>> {
        Box::pin(async move { self.transact_now(op, parts) })
    }

    fn get(&self, key: Bytes) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_key(&key)?;
            Ok(lock(&self.0).keys.get(&key).cloned())
        })
    }

    fn get_many(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Result<Vec<Option<Held>>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_keys(&keys)?;
            let state = lock(&self.0);
            Ok(keys.iter().map(|key| state.keys.get(key).cloned()).collect())
        })
    }

    fn floor(&self, _key: &[u8]) -> Floor {
        Floor(0)
    }

    fn write(
        &self,
        op: OpId,
        _attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> BoxFuture<'_, Result<Changed, KeyspaceError>> {
        Box::pin(async move { self.write_now(op, key, &guard, change) })
    }

    fn list(&self, from: ListFrom) -> BoxFuture<'_, Result<Page, KeyspaceError>> {
        Box::pin(async move { Ok(self.list_now(&from)) })
    }
}
