//! Whose a store is. A folder that was copied from another node, or stayed when its node got a new identity, says so, and nothing of it
//! is served.

use std::fmt;

use atoll_core::{NodeId, StorageId};

use super::StoreError;

/// The node whose store it is, and the log that it follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cluster's name.
    pub cluster: String,
    /// The node.
    pub node: NodeId,
    /// Its data directory.
    pub storage: StorageId,
    /// The log.
    pub log: String,
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Owner { cluster, node, storage, log } = self;
        write!(f, "node {node} of cluster `{cluster}` with storage {storage}, for the log `{log}`")
    }
}

/// Whose a store was when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Nobody's: it was empty.
    New,
    /// This owner's.
    Same,
    /// It did not say: a program wrote it that told nobody. It is this owner's from now on.
    Adopted,
}

/// What to do about it.
const REBUILD: &str = "nothing of it is served: put back the folder that belongs here, or move this one away, and the node rebuilds its \
    state from the log and its peers";

/// A store that was not opened. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// It cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It is another one's.
    #[error("the folder `database` belongs to {found}, and this is {expected}; {REBUILD}")]
    Foreign {
        /// Whose it is, in words.
        found: String,
        /// Whose it should be.
        expected: Owner,
    },
    /// It does not say whose it is, and the one that belongs here does.
    #[error(
        "the folder `database` does not say whose it is, and the one that belongs to {expected} does; {REBUILD}"
    )]
    Unbound {
        /// Whose it should be.
        expected: Owner,
    },
}
