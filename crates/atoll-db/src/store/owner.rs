//! The owner of a store. A store in a folder that was copied from another node, or that stayed when its node got a new identity,
//! names another owner, and nothing of it is served.

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
    /// It named no owner: it was written by a program that did not record one. It belongs to this owner from now on.
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
        /// The owner that it names, as text.
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
