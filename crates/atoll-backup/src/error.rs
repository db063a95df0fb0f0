//! Why a backup cannot be written or read.

use atoll_contract::LogPos;
use atoll_object_store::{BadUrl, StoreError};

use crate::source::SourceError;

/// What the bytes of an object are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Damaged(pub &'static str);

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackupError {
    /// The place is not one.
    #[error(transparent)]
    Url(#[from] BadUrl),
    /// The store gives no result.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is to be shipped is not there.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// There is no backup.
    #[error("there is no backup of log `{log}` of cluster `{cluster}` at this place")]
    None {
        /// The cluster.
        cluster: String,
        /// The log.
        log: String,
    },
    /// There is another backup.
    #[error(
        "the backup at this place belongs to another cluster, also called `{cluster}`, or to an earlier life of it; use another place"
    )]
    Other {
        /// The name of the cluster.
        cluster: String,
    },
    /// It has no snapshot yet, or none any more.
    #[error("the backup has no snapshot yet: nothing can be restored from it")]
    Empty,
    /// An object is damaged.
    #[error("the object {name} is damaged, or is not what its name says: {error}")]
    Damaged {
        /// Its name.
        name: String,
        /// What is wrong.
        error: Damaged,
    },
    /// An object is missing.
    #[error("the object {0} is missing, and later ones are there")]
    Missing(String),
    /// Entries are missing.
    #[error(
        "the backup does not have the entries {from} to {to} (exclusive): they were trimmed before they could be shipped"
    )]
    Gap {
        /// The first missing position.
        from: LogPos,
        /// The first position after them.
        to: LogPos,
    },
    /// It begins later.
    #[error(
        "the backup begins with the state below {below}, at {time_ms} ms; nothing earlier can be restored"
    )]
    TooEarly {
        /// The position.
        below: LogPos,
        /// The time.
        time_ms: u64,
    },
    /// It ends earlier.
    #[error("the backup ends below {below}, at {time_ms} ms; to restore all of it, name `latest`")]
    TooLate {
        /// The position.
        below: LogPos,
        /// The time.
        time_ms: u64,
    },
    /// Another node has written the same snapshot.
    #[error("another node has shipped this snapshot")]
    Overtaken,
}

impl BackupError {
    /// Returns whether an object of the backup is not there, or is not what it was.
    pub fn is_lost(&self) -> bool {
        matches!(self, BackupError::Damaged { .. } | BackupError::Missing(_))
    }

    /// Returns whether the same may succeed soon.
    pub fn passes(&self) -> bool {
        match self {
            BackupError::Store(error) => error.passes(),
            BackupError::Source(error) => !matches!(error, SourceError::Trimmed(_)),
            BackupError::Overtaken => true,
            _ => false,
        }
    }
}
