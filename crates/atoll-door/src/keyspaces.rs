//! What the door of keyspaces needs from its node. As in `backend.rs`, every future only waits for work that continues without it.

use atoll_contract::OpId;
use atoll_contract::keyspace::{
    Attempt, Change, Changed, Floor, Guard, Held, KeyspaceSpec, Layout, ListFrom, Page,
};
use bytes::Bytes;

use crate::backend::Pending;

pub use atoll_contract::keyspace::MAX_KEYSPACE_NAME;

/// The maximum number of keys in one read.
pub const MAX_KEYS: usize = 256;

/// A write of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyWrite {
    /// Its name, and whether it was sent before. None: the node draws a name.
    pub name: Option<(OpId, Attempt)>,
    /// The key.
    pub key: Bytes,
    /// Its condition.
    pub guard: Guard,
    /// What it does.
    pub change: Change,
}

/// The outcome of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// What has changed.
    pub changed: Changed,
    /// A floor for later writes of this key.
    pub floor: Floor,
}

/// The outcome of the read of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// What the key holds, if it exists.
    pub held: Option<Held>,
    /// A floor for later writes of this key.
    pub floor: Floor,
}

/// The keyspaces of a cluster, through one node.
pub trait KeyspaceBackend: Send + Sync {
    /// Creates a keyspace. If the engine in `spec` is empty, it is the first one of the node.
    fn create(&self, name: String, spec: KeyspaceSpec) -> Pending<Layout>;

    /// Returns the names of all keyspaces, in order.
    fn list(&self) -> Pending<Vec<String>>;

    /// Returns the layout of a keyspace.
    fn describe(&self, name: String) -> Pending<Layout>;

    /// Deletes a keyspace. Afterwards it answers nothing.
    fn delete(&self, name: String) -> Pending<()>;

    /// Reads keys, [`MAX_KEYS`] at most. Each read is linearizable; together they are no snapshot.
    fn get(&self, name: String, keys: Vec<Bytes>) -> Pending<Vec<Found>>;

    /// Changes a key if a condition holds.
    fn write(&self, name: String, write: KeyWrite) -> Pending<Wrote>;

    /// Lists a page of keys, in order.
    fn page(&self, name: String, from: ListFrom) -> Pending<Page>;
}
