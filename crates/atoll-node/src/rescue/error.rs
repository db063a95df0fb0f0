//! Why a cluster was not rescued.

use std::path::{Path, PathBuf};

use atoll_contract::LogPos;
use atoll_core::NodeId;
use atoll_db::{OwnerError, StoreError};
use atoll_log::ChainError;
use atoll_storage::{DiskError, IdentityError, RescueNoteError};

use crate::start::StartError;

/// Why a cluster was not rescued. The old data directories are as they were, and the new one is not there.
#[derive(Debug, thiserror::Error)]
pub enum RescueError {
    /// Files cannot be read or written.
    #[error("{path}: {error}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system says.
        error: std::io::Error,
    },
    /// A data directory is in use, or its disk fails.
    #[error("data directory: {0}")]
    Disk(#[from] DiskError),
    /// The marker of a data directory cannot be read.
    #[error("{path}: {error}")]
    Marker {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        error: IdentityError,
    },
    /// A folder is no data directory.
    #[error("{0} is not the data directory of a node: it has no marker")]
    NoData(PathBuf),
    /// The new node has too few roles.
    #[error(
        "the only node of the new cluster needs all roles; add `log`, `meta` and `sequencer` to `node.roles`"
    )]
    Roles,
    /// Two of the data directories cannot be rescued together.
    #[error("{0} belongs to cluster `{1}`, and {2} to `{3}`")]
    OtherCluster(PathBuf, String, PathBuf, String),
    /// A node is given twice.
    #[error("{0} and {1} are both data directories of node {2}; only the newer one may be used")]
    Twice(PathBuf, PathBuf, NodeId),
    /// The new cluster has the name of the old one.
    #[error(
        "the new cluster needs another name than `{0}`: only that keeps the lost nodes, whose data directories name `{0}`, out for good; \
         change `node.cluster` in the configuration file"
    )]
    SameCluster(String),
    /// The new data directory is already there.
    #[error("{0} is there already and is not empty; the rescued data goes to a new folder (`node.data`)")]
    NotEmpty(PathBuf),
    /// A folder of this name was not made by a rescue.
    #[error("{0} is there already, and no rescue has made it; move it away")]
    NotOurs(PathBuf),
    /// There is too little room.
    #[error("{path}: a copy and the new data need about {needed} bytes, and {free} are free")]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// How many bytes are needed.
        needed: u64,
        /// How many are there.
        free: u64,
    },
    /// The data of a node cannot be recovered: it is damaged, and the error names the place.
    #[error("{path}: {error}")]
    Damaged {
        /// The data directory.
        path: PathBuf,
        /// The file and offset, and what is wrong.
        error: Box<StartError>,
    },
    /// The registers of a node cannot be read.
    #[error("{path}: the registers are damaged: {error}")]
    Registers {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        error: atoll_core::DecodeError,
    },
    /// The chain of a log cannot be read.
    #[error("the chain of log `{log}`: {error}")]
    Chain {
        /// The log.
        log: String,
        /// What is wrong.
        error: ChainError,
    },
    /// Where the chain of a log is cannot be read.
    #[error("the register of log `{log}`: {why}")]
    Moved {
        /// The log.
        log: String,
        /// What is wrong.
        why: String,
    },
    /// No chain of any log is left.
    #[error("none of these data directories knows a log; a node with the role `meta` is needed")]
    NoLogs,
    /// Entries that a node has cannot be read.
    #[error("log `{log}`: entries at {at} cannot be read although a node should have them; try again")]
    Unreadable {
        /// The log.
        log: String,
        /// The first of them.
        at: LogPos,
    },
    /// Entries are missing in the middle of a log.
    #[error(
        "log `{log}`: the positions {from} to {to} (exclusive) are in none of the data directories, and later ones are; \
         `--cut-at-holes` gives up everything from {from} on{covered}"
    )]
    Hole {
        /// The log.
        log: String,
        /// The first missing position.
        from: LogPos,
        /// The first position after them.
        to: LogPos,
        /// What the replica of the database has of it.
        covered: String,
    },
    /// The log of the database begins after the state that is left.
    #[error(
        "log `{log}` begins at {trim}, and the newest state of the database that is left has only the entries below {next}: \
         a data directory with a replica is needed"
    )]
    NoState {
        /// The log.
        log: String,
        /// Where it begins.
        trim: LogPos,
        /// Where the state ends.
        next: LogPos,
    },
    /// The state of the database cannot be read.
    #[error("the database: {0}")]
    Store(#[from] StoreError),
    /// The state of the database belongs to another node.
    #[error("the database: {0}")]
    Owner(#[from] OwnerError),
    /// The new node does not start.
    #[error("the new data directory: {0}")]
    Start(#[from] Box<StartError>),
    /// The new node, or a node that reads an old directory, has ended.
    #[error("a node has ended while it was used")]
    Stopped,
    /// A step was not done in time.
    #[error("{0}: not done in time; try again")]
    Late(&'static str),
    /// Entries were not copied.
    #[error("log `{log}`: {what}")]
    Copy {
        /// The log.
        log: String,
        /// What went wrong.
        what: String,
    },
    /// The state of the database did not reach the end of its log.
    #[error("the state of the database: {0}")]
    Database(String),
    /// The note cannot be written.
    #[error(transparent)]
    Note(#[from] RescueNoteError),
    /// Threads cannot be started.
    #[error("the threads of the rescue: {0}")]
    Threads(std::io::Error),
}

impl RescueError {
    pub(crate) fn file(path: &Path) -> impl Fn(std::io::Error) -> RescueError + '_ {
        move |error| RescueError::File { path: path.to_owned(), error }
    }
}
