//! The keyspace abstraction: keys that do not wait for each other, each with a value and a version.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the [`Keyspace`] trait, and what goes in and out |
//! | `error.rs` | why an operation failed, and whether it happened |
//! | `layout.rs` | the description of a keyspace in a register: where its parts are |
//! | `provider.rs` | the provider that creates keyspaces of one engine |
//! | `leases.rs` | leases with fencing numbers, over any keyspace |
//! | `transaction.rs` | transactions of several keys |
//! | `catalog.rs` | creates, opens and deletes keyspaces by name; completes deletions that died half-way |
//! | `reference.rs` | an implementation in memory, for tests |
//! | `judge.rs` | checks what clients of a keyspace saw |
//! | `lease_judge.rs` | checks what holders of leases saw |
//!
//! # Guarantees
//!
//! - Every operation on one key is linearizable. A request for several keys is not: each key is read on its own, unless the engine has
//!   [`Ability::Snapshots`].
//! - A version is never used twice for a key, not even after the key was deleted and written again. It rises with every change of the key,
//!   by any amount.
//! - A write with a given name ([`OpId`]) takes effect at most once, whichever node it is sent through and however often. An engine
//!   remembers the outcomes of a bounded number of writes. A floor makes sure that a repeat of a forgotten one is refused, not done again.
//! - An error says whether the operation happened ([`KeyspaceError::happened`]).

mod catalog;
mod error;
#[cfg(feature = "testing")]
mod judge;
mod layout;
#[cfg(feature = "testing")]
mod lease_judge;
mod leases;
mod provider;
#[cfg(feature = "testing")]
mod reference;
mod transaction;

use std::fmt;

use bytes::Bytes;

use atoll_core::BoxFuture;

use crate::entry::OpId;

pub use catalog::{Catalog, CatalogError, MAX_KEYSPACE_NAME, REGISTER_PREFIX};
pub use error::{Happened, KeyspaceError, Unavailability};
#[cfg(feature = "testing")]
pub use judge::{Asked, Judge, Told};
pub use layout::{
    Durability, KeyPlace, KeyspaceId, Layout, LayoutState, MAX_BUCKETS, MAX_REPLICAS, MAX_SHARDS, Replica,
    ShardPlacement, place_of,
};
#[cfg(feature = "testing")]
pub use lease_judge::{LeaseAsked, LeaseJudge};
pub use leases::{
    Holder, Lease, LeaseError, Leases, MAX_LEASE_MS, MAX_OWNER_BYTES, MIN_LEASE_MS, usable_for,
};
pub use provider::{KeyspacePlanError, KeyspaceProvider, KeyspaceSpec};
#[cfg(feature = "testing")]
pub use reference::MemoryKeyspace;
pub use transaction::{Transacted, TxnLimits, TxnPart};

/// The version of a key: a number that rises with every change of the key and is never used again for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyVersion(pub u64);

impl fmt::Display for KeyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A lower bound for when the first attempt of a write was sent, in a measure of the engine (contracts X16). An engine that has forgotten
/// writes above a floor cannot tell whether the attempt was among them. 0 is below everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Floor(pub u64);

/// Whether a write is sent for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// No attempt with this name was made before, through any node. The keyspace chooses the floor.
    First,
    /// There were attempts before. The floor comes from [`Keyspace::floor`], called before the first attempt, or from
    /// [`KeyspaceError::Unknown`]. [`Floor`] 0 is always correct, but more outcomes then count as forgotten.
    Again(Floor),
}

/// A value and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The version.
    pub version: KeyVersion,
    /// The value.
    pub value: Bytes,
}

/// The condition of a write, checked at the moment at which it takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// None.
    Always,
    /// The key is not there.
    Absent,
    /// The key is there, whatever its value.
    Present,
    /// The key has this version.
    Version(KeyVersion),
    /// The key has this value.
    Value(Bytes),
}

impl Guard {
    /// Returns whether the condition holds for a key in this state.
    pub fn holds(&self, now: Option<(KeyVersion, &[u8])>) -> bool {
        match (self, now) {
            (Guard::Always, _) | (Guard::Absent, None) | (Guard::Present, Some(_)) => true,
            (Guard::Version(wanted), Some((version, _))) => *wanted == version,
            (Guard::Value(wanted), Some((_, value))) => wanted == value,
            _ => false,
        }
    }
}

/// What a write does to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The key gets this value.
    Put(Bytes),
    /// The key is deleted.
    Delete,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The key has changed. Contains its new version; for a deletion, the version at which it was deleted.
    Done(KeyVersion),
    /// Nothing has changed, because the condition does not hold, or because there was nothing to delete. Contains the state of the key.
    Not(Option<Held>),
}

/// Where a page of a listing starts, and how long it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFrom {
    /// Only keys with this prefix.
    pub prefix: Bytes,
    /// Only keys after this one.
    pub after: Option<Bytes>,
    /// At most this many keys. An engine may return fewer.
    pub limit: usize,
}

/// A page of keys in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The keys with their versions.
    pub keys: Vec<(Bytes, KeyVersion)>,
    /// Whether there may be more after the last one. A page without keys may have more after it, too: continue after `upto`.
    pub more: bool,
    /// The key up to which the page is complete, if there may be more.
    pub upto: Option<Bytes>,
}

/// What an engine may offer beyond reads, writes and listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ability {
    /// Reads of several keys, and listings, show one moment.
    Snapshots,
    /// Waiting for a change of a key.
    Watches,
    /// Conditional writes of several keys as one.
    Transactions,
}

impl Ability {
    /// All of them.
    pub const ALL: [Ability; 3] = [Ability::Snapshots, Ability::Watches, Ability::Transactions];
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ability::Snapshots => "snapshots",
            Ability::Watches => "watches",
            Ability::Transactions => "transactions of several keys",
        })
    }
}

/// The limits of a keyspace. They are checked before anything is replicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest key, in bytes. The shortest has one byte.
    pub key_bytes: usize,
    /// The longest value, in bytes.
    pub value_bytes: usize,
    /// The most keys that one read names.
    pub keys: usize,
    /// The most keys in a page of a listing.
    pub page_keys: usize,
}

impl Limits {
    /// Checks a key.
    pub fn check_key(&self, key: &[u8]) -> Result<(), KeyspaceError> {
        match key.len() {
            0 => Err(KeyspaceError::InvalidKey { bytes: 0, most: self.key_bytes }),
            bytes if bytes > self.key_bytes => Err(KeyspaceError::InvalidKey { bytes, most: self.key_bytes }),
            _ => Ok(()),
        }
    }

    /// Checks a write.
    pub fn check_write(&self, key: &[u8], guard: &Guard, change: &Change) -> Result<(), KeyspaceError> {
        self.check_key(key)?;
        let too_long = |value: &Bytes| match value.len() {
            bytes if bytes > self.value_bytes => {
                Err(KeyspaceError::ValueTooLong { bytes, most: self.value_bytes })
            }
            _ => Ok(()),
        };
        if let Guard::Value(value) = guard {
            too_long(value)?;
        }
        if let Change::Put(value) = change {
            too_long(value)?;
        }
        Ok(())
    }

    /// Checks the keys of a read.
    pub fn check_keys(&self, keys: &[Bytes]) -> Result<(), KeyspaceError> {
        if keys.len() > self.keys {
            return Err(KeyspaceError::TooManyKeys { keys: keys.len(), most: self.keys });
        }
        keys.iter().try_for_each(|key| self.check_key(key))
    }
}

/// One keyspace, as a node sees it. See the module documentation for what it guarantees.
pub trait Keyspace: Send + Sync + fmt::Debug {
    /// Returns the name of its engine.
    fn engine(&self) -> &'static str;

    /// Returns its limits.
    fn limits(&self) -> Limits;

    /// Returns what it offers beyond reads, writes and listings. It refuses everything else by name.
    fn abilities(&self) -> &'static [Ability] {
        &[]
    }

    /// Reads a key; linearizable. None if it is not there.
    fn get(&self, key: Bytes) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>>;

    /// Reads several keys, in the order of the request. Each is linearizable; together they are a snapshot only with
    /// [`Ability::Snapshots`].
    fn get_many(&self, keys: Vec<Bytes>) -> BoxFuture<'_, Result<Vec<Option<Held>>, KeyspaceError>>;

    /// Returns a floor for a write of this key whose first attempt is sent later. No server is asked.
    fn floor(&self, key: &[u8]) -> Floor;

    /// Changes a key if a condition holds; linearizable. On return, the change has the durability of the keyspace. A repeat of a write, by
    /// its name, gets the answer of the attempt that took effect, if there is one.
    fn write(
        &self,
        op: OpId,
        attempt: Attempt,
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> BoxFuture<'_, Result<Changed, KeyspaceError>>;

    /// Lists keys in order, page by page. Each page shows a key as it was at some moment during the call. A key that is there throughout
    /// is listed. The listing is a snapshot only with [`Ability::Snapshots`].
    fn list(&self, from: ListFrom) -> BoxFuture<'_, Result<Page, KeyspaceError>>;

    /// Waits until a key has another version than `seen`, or for a while, and reads it. Version 0 stands for a key that does not exist. It
    /// is monotone, may skip versions, and never misses the last one.
    fn wait_change(
        &self,
        _key: Bytes,
        _seen: KeyVersion,
    ) -> BoxFuture<'_, Result<Option<Held>, KeyspaceError>> {
        refuse(self.engine(), Ability::Watches)
    }

    /// Returns the limits of transactions, if there are any.
    fn transaction_limits(&self) -> Option<TxnLimits> {
        None
    }

    /// Reads and changes several keys at one moment if all conditions hold, or changes none of them; serializable, and linearizable as a
    /// whole. On return, the changes have the durability of the keyspace. A transaction that changes something takes effect at most once
    /// for its name, through whichever node and however often it is sent; `repeat` says that it was sent before.
    ///
    /// # Errors
    /// [`KeyspaceError::AnswerLost`] if a repeat finds that it was done, and does not know any more what the keys held that it only read.
    fn transact(
        &self,
        _op: OpId,
        _repeat: bool,
        _parts: Vec<TxnPart>,
    ) -> BoxFuture<'_, Result<Transacted, KeyspaceError>> {
        refuse(self.engine(), Ability::Transactions)
    }
}

/// Returns the refusal of something that an engine lacks.
fn refuse<'a, T: Send + 'a>(engine: &'static str, what: Ability) -> BoxFuture<'a, Result<T, KeyspaceError>> {
    Box::pin(std::future::ready(Err(KeyspaceError::Unsupported { engine, what })))
}
