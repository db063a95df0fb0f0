//! What other threads pass to the node thread.

use atoll_core::{FetchError, Loc, Lsn, NodeCore, RoleKind, Space, Stored};

/// An event for the core. Their number is bounded by the work in progress: one batch, one checkpoint, queued reads, waiting callers.
pub(crate) enum Incoming {
    /// The batch is durable, or the journal is closed and accepts nothing more.
    Durable(Result<Vec<(Lsn, Loc)>, String>),
    /// The journal now accepts more, or less.
    Space(Space),
    /// A checkpoint is due.
    WantsCheckpoint,
    /// This journal segment is sparse and should be compacted.
    Compact(u64),
    /// A read has completed or failed.
    Fetched { role: RoleKind, tag: u64, got: Result<Vec<Stored>, FetchError> },
    /// A caller wants to run this on the core.
    Inject(Box<dyn FnOnce(&mut NodeCore) + Send>),
    /// Stop cleanly.
    Stop,
}
