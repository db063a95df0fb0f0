//! The Loglet abstraction (Delos Figure 2, virtuallog.md §2): a log with a fixed configuration that can be sealed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{BoxFuture, NodeId, Ticket};

use crate::entry::{Batch, Entry};
use crate::position::Offset;

/// The name of a Loglet: globally unique, never used again (virtuallog §1), because losers of an install race have
/// provisioned theirs already. The virtual log says in it which change it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogletId(pub u128);

impl fmt::Display for LogletId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl atoll_core::Encode for LogletId {
    fn encode(&self, out: &mut bytes::BytesMut) {
        self.0.encode(out);
    }
}

impl atoll_core::Decode for LogletId {
    fn decode(from: &mut atoll_core::Reader) -> Result<Self, atoll_core::DecodeError> {
        Ok(LogletId(u128::decode(from)?))
    }
}

/// What a reader of a sealed segment needs, opaque to the virtual log (L9). Empty for native and local.
pub type SealedConfig = Bytes;

/// The end of a Loglet: the first offset that is not readable yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Every offset below is readable; acknowledged offsets are below every sealed tail (L3).
    pub at: Offset,
    /// Set once the Loglet is sealed. Sealed tails may differ between calls (L5): only the installed one counts.
    pub sealed: Option<SealedConfig>,
}

/// Where the entries of a batch went, in the order of the batch: runs of consecutive offsets. One run, unless some
/// entries were there already from an earlier attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// First offset and length of each run.
    pub runs: Vec<(Offset, u32)>,
}

impl Placement {
    /// Consecutive offsets from `first`.
    pub fn contiguous(first: Offset, count: u32) -> Self {
        Placement { runs: vec![(first, count)] }
    }

    /// One offset per entry.
    pub fn offsets(&self) -> impl Iterator<Item = Offset> + '_ {
        self.runs.iter().flat_map(|(first, n)| (0..u64::from(*n)).map(|i| first.plus(i)))
    }
}

/// Why an operation has no good answer now. Says nothing about other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Why {
    /// Too much is under way; try again when some of it is done.
    #[error("too many requests are under way")]
    Busy,
    /// Not enough servers answered in time.
    #[error("not enough servers answered")]
    NoQuorum,
    /// The sequencer did not answer, or its connection broke.
    #[error("the sequencer does not answer")]
    NoSequencer,
    /// The sequencer is another life than the configuration names (native T6).
    #[error("the sequencer was restarted and has stopped serving this loglet")]
    WrongSequencer,
    /// The disk is full; ends by itself when space returns.
    #[error("a disk is full")]
    DiskFull,
    /// The journal is closed after a failed write or sync.
    #[error("storage failed")]
    StorageFailed,
    /// The batch exceeds a limit.
    #[error("the batch exceeds the limits")]
    TooLarge,
    /// This process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

/// Why an append has no positions, and whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It did not happen and will not.
    #[error("not appended: {0}")]
    NotAppended(Why),
    /// The Loglet is sealed, or gone. The entries may be part of it all the same (V2): scan, then append elsewhere.
    #[error("the loglet is sealed; the entries may be in it")]
    Sealed,
    /// An earlier attempt of one of these entries may be there, too old to be remembered: nothing was appended now;
    /// scan for it from the floor (X16).
    #[error("an earlier attempt may be in the log; scan for it")]
    Forgotten,
    /// It may have happened, or may still.
    #[error("unknown outcome: {0}")]
    Unknown(Why),
}

/// Why another operation on a Loglet failed. All are safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogletError {
    /// Not available at the moment.
    #[error("unavailable: {0}")]
    Unavailable(Why),
    /// Deleted for ever (L7).
    #[error("the loglet was deleted")]
    Gone,
}

/// Why a read gave no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Offsets below this one were trimmed.
    #[error("trimmed below offset {0}")]
    Trimmed(Offset),
    /// The range is empty, or lies beyond every tail that was obtained (L6).
    #[error("offset {0} is not below a known tail")]
    BeyondTail(Offset),
    /// No server that has the entry answered; or it is not on this node's disk and only that was asked.
    #[error("unavailable: {0}")]
    Unavailable(Why),
    /// Deleted for ever (L7).
    #[error("the loglet was deleted")]
    Gone,
    /// A copy is damaged, and no other answered.
    #[error("damaged: {0}")]
    Damaged(String),
}

/// Which copies a read may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// This node's if it has one, else any server's.
    Anywhere,
    /// This node's disk alone.
    LocalOnly,
}

/// What a read gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBatch {
    /// Consecutive entries from the start of the range: one at least.
    pub entries: Vec<Entry>,
    /// How many of them came from another node.
    pub remote: u64,
}

/// A log with a fixed configuration (virtuallog L1–L9).
pub trait Loglet: Send + Sync + fmt::Debug {
    /// Appends all entries of a batch, in order, or none. Answered when they are durable on this Loglet's quorum (L1).
    /// Queued before this returns: appends of one caller keep their order where [`Loglet::keeps_order`] says so. A full
    /// window is `NotAppended(Busy)`.
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>>;

    /// Like [`Loglet::append`], by a caller who knows that none of these entries is below `not_below`: a tail of that much was known
    /// before the first attempt, or the caller has looked for them up to there. A Loglet that has forgotten operations at and above
    /// that offset answers [`AppendError::Forgotten`]: look further up to a tail that is checked afterwards.
    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        let _ = not_below;
        self.append(batch)
    }

    /// Whether appends in flight land in the order of the calls (L8).
    fn keeps_order(&self) -> bool;

    /// A tail above every append acknowledged before the call; an open one is never above a sealed one (L3, L4).
    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>>;

    /// Waits until the tail may be above `above`, or the Loglet is sealed; then what is known. A hint, not a check: the
    /// tail is readable, but later ones may exist. May return early with nothing new.
    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>>;

    /// The highest tail that this node knows of without asking: a floor for later scans.
    fn known_tail(&self) -> Offset;

    /// Entries from `range.start`, at most up to `range.end` (not in it) and about `max_bytes`, one at least. The range must be
    /// below a tail or stop that the caller obtained (L6).
    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>>;

    /// Gives up offsets below `to` (not `to` itself), for ever. `to` is at most a known tail. Idempotent.
    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Ends appends for ever; durable on the seal quorum when it returns. Idempotent (L2).
    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>>;
}

/// What an operator, or a policy, wants the next Loglet to be. What is None is the provider's choice, usually as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogletSpec {
    /// "native", "local".
    pub kind: Option<String>,
    /// Exactly these servers.
    pub servers: Option<Vec<NodeId>>,
    /// Exactly this sequencer.
    pub sequencer: Option<NodeId>,
    /// Not these, if it can be helped: they are thought to have failed or are being drained.
    pub avoid: Vec<NodeId>,
}

/// Why there is no configuration for what was wanted. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No provider has this name.
    #[error("no loglet kind {wanted:?}; known kinds: {known}")]
    UnknownKind {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// Some of the nodes wanted did not answer.
    #[error("node {0} does not answer; name servers that are up (see `atoll status`)")]
    NodeDown(NodeId),
    /// Fewer servers answer than are needed.
    #[error("{up} of {wanted} servers answer; a segment needs all of its servers up when it is made")]
    TooFew {
        /// Servers that answered.
        up: usize,
        /// Servers needed.
        wanted: usize,
    },
    /// The specification contradicts the kind's rules.
    #[error("{what}: {allowed}")]
    Invalid {
        /// What was wrong.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A configuration in the chain does not decode.
    #[error("a loglet configuration in the chain is not readable: {0}")]
    Unreadable(#[from] atoll_core::DecodeError),
}

/// Makes Loglets of one kind from opaque configurations.
pub trait LogletProvider: Send + Sync + fmt::Debug {
    /// The name in the chain: "native", "local".
    fn kind(&self) -> &'static str;

    /// A configuration for what is wanted; `previous` is the active segment's if it is of the same kind.
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>>;

    /// Tells the servers about a new Loglet. Idempotent; only an optimisation, they also learn from the first message.
    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// A handle. Cheap; no server is asked.
    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError>;

    /// A handle to a sealed Loglet, with the sealed configuration that was installed (L9). Most kinds need none.
    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        _sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        self.open(id, config)
    }

    /// A new, sealed Loglet that holds exactly these entries from offset 0 on, for `reconfig_modify` (virtuallog §7).
    /// `copy_from(range, max_bytes)` is read through the source Loglet. Durable on a quorum when it returns.
    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>>;

    /// Deletes a Loglet's data on all servers that answer, and leaves tombstones (L7, V6). Idempotent.
    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// The configuration in words: fields and values, for `atoll chain show`.
    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)>;

    /// The nodes that hold entries, and the sequencer if there is one: for failure detection and membership.
    fn members(&self, config: &Bytes) -> Members;
}

/// The nodes behind one Loglet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Nodes that hold entries, with the identity of the data directory that was configured.
    pub servers: Vec<(NodeId, atoll_core::StorageId)>,
    /// The node that orders appends, and its life.
    pub sequencer: Option<(NodeId, atoll_core::Incarnation)>,
}

/// The kinds of Loglets that this process can open.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Arc<dyn LogletProvider>>,
}

impl Registry {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind; replaces one of the same name.
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn LogletProvider>) -> Self {
        self.providers.insert(provider.kind(), provider);
        self
    }

    /// The provider of a kind.
    pub fn provider(&self, kind: &str) -> Result<&Arc<dyn LogletProvider>, PlanError> {
        self.providers.get(kind).ok_or_else(|| PlanError::UnknownKind {
            wanted: kind.to_owned(),
            known: self.providers.keys().copied().collect::<Vec<_>>().join(", "),
        })
    }

    /// All kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }
}
