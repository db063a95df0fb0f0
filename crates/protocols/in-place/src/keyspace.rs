//! The keyspace as keys and values: the [`Keyspace`] trait over commands on registers.
//!
//! A key with a content of another type shows its encoded content as its value. A put replaces it.

use atoll_contract::OpId;
use atoll_contract::keyspace::{
    Ability, Attempt, Change, Changed, Floor, Guard, Held, KeyVersion, Keyspace, KeyspaceError, Limits,
    ListFrom, Page, Transacted, TxnLimits, TxnPart, Unavailability,
};
use atoll_core::BoxFuture;
use bytes::Bytes;

use crate::command::{Command, Outcome, Refusal};
use crate::content::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::list::{self, MAX_PAGE_KEYS};
use crate::space::{CommandError, InPlaceSpace};
use crate::{txn, watch};

/// The name of the engine.
pub const ENGINE: &str = "in-place";
/// The most keys of one read.
const MAX_KEYS: usize = 256;

fn error(error: CommandError) -> KeyspaceError {
    match error {
        CommandError::NotDone(why) => KeyspaceError::NotDone(why),
        CommandError::Unknown { why, floor } => KeyspaceError::Unknown { why, floor },
        CommandError::Full => KeyspaceError::Full { what: "a majority of the replicas", most: 0 },
        CommandError::Forgotten => KeyspaceError::Forgotten,
        CommandError::Refused(_) => KeyspaceError::ConditionFailed,
        CommandError::Key { bytes, most } => KeyspaceError::InvalidKey { bytes, most },
        // The limits of the contract are checked first, and are not wider.
        CommandError::Invalid(_) => KeyspaceError::ValueTooLong { bytes: 0, most: MAX_VALUE_BYTES },
    }
}

/// The value may share the buffer of a message, so it is copied for whoever keeps it (X13).
fn copied(held: Held) -> Held {
    Held { value: Bytes::copy_from_slice(&held.value), ..held }
}

fn copied_all(outcome: Transacted) -> Transacted {
    let changed = |changed| match changed {
        Changed::Not(held) => Changed::Not(held.map(copied)),
        done @ Changed::Done(_) => done,
    };
    match outcome {
        Transacted::Done(all) => Transacted::Done(all.into_iter().map(changed).collect()),
        Transacted::Not(held) => Transacted::Not(held.into_iter().map(|held| held.map(copied)).collect()),
    }
}

impl InPlaceSpace {
    async fn get_one(&self, key: Bytes) -> Result<Option<Held>, KeyspaceError> {
        self.limits().check_key(&key)?;
        let held = self.read(key).await.map_err(error)?.held;
        Ok(held.map(copied))
    }

    async fn write_one(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> Result<Changed, KeyspaceError> {
        self.limits().check_write(&key, &guard, &change)?;
        let guard = guard.into();
        let command = match change {
            Change::Put(value) => Command::Put { guard, value },
            Change::Delete => Command::Delete { guard },
        };
        let reply = self.execute(op, attempt, key, command).await.map_err(error)?;
        match reply.outcome {
            Outcome::Done { version, .. } => Ok(Changed::Done(KeyVersion(version))),
            Outcome::Refused(Refusal::Condition) | Outcome::Same { .. } => Ok(Changed::Not(reply.held)),
            Outcome::Refused(_) | Outcome::Locked { .. } => Err(KeyspaceError::ConditionFailed),
            Outcome::Forgotten { .. } => Err(KeyspaceError::Forgotten),
        }
    }
}

impl Keyspace for InPlaceSpace {
    fn engine(&self) -> &'static str {
        ENGINE
    }

    fn limits(&self) -> Limits {
        let (key_bytes, value_bytes) = (MAX_KEY_BYTES, MAX_VALUE_BYTES);
        Limits { key_bytes, value_bytes, keys: MAX_KEYS, page_keys: MAX_PAGE_KEYS }
    }

    fn abilities(&self) -> &'static [Ability] {
        &[Ability::Watches, Ability::Transactions]
    }

    fn wait_change(
        &self,
        key: Bytes,
        seen: KeyVersion,
    ) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_key(&key)?;
            let Some(_permit) = self.0.may_begin() else {
                return Err(KeyspaceError::NotDone(Unavailability::Busy));
            };
            let until = self.0.env.now().after(self.0.options.watch_for);
            let held = watch::wait(self, &key, seen, until).await.map_err(KeyspaceError::NotDone)?;
            Ok(held.map(copied))
        })
    }

    fn get(&self, key: Bytes) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        Box::pin(self.get_one(key))
    }

    fn get_many(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Result<Vec<Option<Held>>, KeyspaceError>> {
        Box::pin(async move {
            self.limits().check_keys(&keys)?;
            // Most reads are of one key: they need no procedures beside this one.
            if let [key] = keys.as_slice() {
                return Ok(vec![self.get_one(key.clone()).await?]);
            }
            let mut asked = Vec::with_capacity(keys.len());
            for key in keys {
                let me = self.clone();
                asked.push(self.0.env.launch("in-place.get", async move { me.get_one(key).await }));
            }
            let mut found = Vec::with_capacity(asked.len());
            for ticket in asked {
                found.push(ticket.await.unwrap_or(Err(KeyspaceError::NotDone(Unavailability::Stopping)))?);
            }
            Ok(found)
        })
    }

    fn floor(&self, key: &[u8]) -> Floor {
        InPlaceSpace::floor(self, key)
    }

    fn write(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> BoxFuture<'_, Result<Changed, KeyspaceError>> {
        Box::pin(self.write_one(op, attempt, key, guard, change))
    }

    fn transaction_limits(&self) -> Option<TxnLimits> {
        Some(txn::LIMITS)
    }

    fn transact(
        &self,
        op: OpId,
        repeat: bool,
        parts: Vec<TxnPart>,
    ) -> BoxFuture<'_, Result<Transacted, KeyspaceError>> {
        Box::pin(async move {
            txn::LIMITS.check(&self.limits(), &parts)?;
            Ok(copied_all(self.transact_parts(op, repeat, parts).await?))
        })
    }

    fn list(&self, from: ListFrom) -> BoxFuture<'_, Result<Page, KeyspaceError>> {
        Box::pin(async move {
            let longest = from.prefix.len().max(from.after.as_ref().map_or(0, Bytes::len));
            if longest > MAX_KEY_BYTES {
                return Err(KeyspaceError::InvalidKey { bytes: longest, most: MAX_KEY_BYTES });
            }
            list::list(self, from).await.map_err(KeyspaceError::NotDone)
        })
    }
}
