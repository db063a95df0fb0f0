//! What other threads hand to the node thread.

use atoll_core::{FetchError, Loc, Lsn, NodeCore, RoleKind, Space, Stored};

/// Something for the core. Bounded by what is under way: one batch, one checkpoint, queued reads, waiting callers.
pub(crate) enum Incoming {
    /// The batch is durable, or the journal is closed.
    Durable(Result<Vec<(Lsn, Loc)>, String>),
    /// What the journal takes has changed.
    Space(Space),
    /// A checkpoint is due.
    WantsCheckpoint,
    /// This segment is sparse.
    Compact(u64),
    /// A read has ended.
    Fetched { role: RoleKind, tag: u64, got: Result<Vec<Stored>, FetchError> },
    /// A caller wants access to the core.
    Inject(Box<dyn FnOnce(&mut NodeCore) + Send>),
    /// A clean stop.
    Stop,
}
