//! The owner of a store. If the folder was copied from another node, or was left in place when its node got a new identity, the
//! store names another owner, and nothing in it is served.

use std::fmt;

use atoll_core::{NodeId, StorageId};

use super::StoreError;

/// The node that owns a store, and the log that the store follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The cluster's name.
    pub cluster: String,
    /// The node.
    pub node: NodeId,
    /// The identity of its data directory.
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

/// The owner of a store when it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// None: the store was empty.
    New,
    /// This owner.
    Same,
    /// The store named no owner, because an earlier program that did not record one wrote it. It belongs to this owner from now on.
    Adopted,
}

/// Tells the operator what to do.
const REPLACE: &str = "nothing in it is served: put back the folder that belongs here, or move this one away; the node then gets its \
    state from the log and its peers";

/// Why a store was not accepted. It was not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store belongs to another owner.
    #[error("the folder `database` belongs to {found}, and this is {expected}; {REPLACE}")]
    Foreign {
        /// The owner that the store names, as text.
        found: String,
        /// The expected owner.
        expected: Owner,
    },
    /// The store names no owner, although the store that belongs here does.
    #[error("the folder `database` names no owner, unlike the one that belongs to {expected}; {REPLACE}")]
    Unbound {
        /// The expected owner.
        expected: Owner,
    },
}
