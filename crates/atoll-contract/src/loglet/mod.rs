//! The Loglet abstraction (Delos Figure 2, virtuallog.md §2): a log with a fixed configuration that can be sealed.

mod error;
pub mod offsets;
mod provider;
pub mod reason;
pub mod sharded;
mod spec;
pub mod write_once;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use atoll_core::{BoxFuture, Ticket};

use crate::entry::{Batch, Entry};
use crate::position::Offset;

pub use error::{AppendError, LogletError, ReadError, Unavailability};
pub use provider::{
    Binding, Duties, Duty, Extent, Kinds, LogletProvider, Part, PartLoglet, Progress, Registry, Remains,
    RoleOfKind,
};
pub use reason::{Evidence, Reason, Trouble, Urgency};
pub use sharded::{ShardAppendError, Sharded, ShardedError};
pub use spec::{LogletSpec, PlanError};
pub use write_once::{WriteOnce, WriteOnceError};

/// The name of a Loglet. It is globally unique and never reused (virtuallog §1), because the losers of an install have already created
/// their Loglets. The virtual log encodes in it the reconfiguration that the Loglet was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogletId(pub u128);

/// The place of a part's number in a [`LogletId`].
const PART_SHIFT: u32 = 80;
/// The bits of a part's number.
const PART_BITS: u128 = 0xff << PART_SHIFT;

impl LogletId {
    /// Returns the id of a part of this Loglet, which must not be a part itself. Parts are numbered from 1 on. A part shares all other bits
    /// with the whole. Whoever finds a part on a disk can therefore tell whose part it is, and which log the whole was made for.
    #[must_use]
    pub fn part(self, number: u8) -> Self {
        LogletId(self.whole().0 | u128::from(number) << PART_SHIFT)
    }

    /// Returns the number of this part; 0 for a Loglet that is not a part.
    pub fn number(self) -> u8 {
        ((self.0 & PART_BITS) >> PART_SHIFT) as u8
    }

    /// Returns the id of the Loglet that this is a part of, or this id.
    #[must_use]
    pub fn whole(self) -> Self {
        LogletId(self.0 & !PART_BITS)
    }
}

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

/// What a reader of a sealed segment needs, opaque to the virtual log (vlog-L9). Empty for native and local Loglets.
pub type SealedConfig = Bytes;

/// The end of a Loglet: the first offset that cannot be read yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Every offset below is readable. Acknowledged offsets are below every sealed tail (vlog-L3).
    pub at: Offset,
    /// Set once the Loglet is sealed. Sealed tails may differ between calls (vlog-L5): only the installed one counts.
    pub sealed: Option<SealedConfig>,
}

/// The offsets of a batch's entries, in the order of the batch, as runs of consecutive offsets. There is one run unless an earlier attempt
/// has already appended some of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The first offset and the number of entries of each run.
    pub runs: Vec<(Offset, u32)>,
}

impl Placement {
    /// Returns a placement of `count` entries at consecutive offsets from `first` on.
    pub fn contiguous(first: Offset, count: u32) -> Self {
        Placement { runs: vec![(first, count)] }
    }

    /// Returns the offset of each entry.
    pub fn offsets(&self) -> impl Iterator<Item = Offset> + '_ {
        self.runs.iter().flat_map(|(first, n)| (0..u64::from(*n)).map(|i| first.plus(i)))
    }
}

/// Which copies a read may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadFrom {
    /// This node's copy if it has one, otherwise any server's.
    Anywhere,
    /// Only this node's disk.
    LocalOnly,
}

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadBatch {
    /// Consecutive entries from the start of the range on, at least one. Some may be pads ([`Entry::is_pad`]): they take up offsets, but
    /// hold no client's record. Whoever passes entries on to users leaves them out.
    pub entries: Vec<Entry>,
    /// How many of them came from another node.
    pub remote: u64,
}

/// A log with a fixed configuration (vlog-L1–vlog-L9).
pub trait Loglet: Send + Sync + fmt::Debug {
    /// Appends all entries of a batch. The answer comes once they are durable on this Loglet's quorum (vlog-L1). The batch is queued before
    /// this returns. If [`Loglet::keeps_order`] returns true, the entries of a batch land in order, all or none of them, and appends of
    /// one caller keep their order. Otherwise, the entries of one batch may land in any order, and some may be in the Loglet although the
    /// answer is an error other than `NotAppended`. If the window is full, the batch should wait for room. If nothing more can wait, the
    /// answer is `NotAppended(Busy)`.
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>>;

    /// Like [`Loglet::append`], for a caller that knows that none of these entries is below `not_below`: it either knew a tail of at least
    /// that offset before the first attempt, or has searched for the entries up to there. A Loglet that has forgotten operations at or
    /// above that offset answers [`AppendError::Forgotten`]. The caller must then search further, up to a tail that it checks afterwards.
    ///
    /// A batch of pads ([`Batch::pads`]) asks that as many offsets from `not_below` on be filled, if [`Loglet::fills_once`] returns true. A
    /// pad whose offset is taken already, by whatever entry, is not appended; its placement is that offset. So callers that want the same
    /// offsets filled fill them once, and a retry fills nothing twice. If the Loglet ends below `not_below`, the pads are appended there.
    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        let _ = not_below;
        self.append(batch)
    }

    /// Returns whether appends in flight, and the entries of one batch, land in the order of the calls (vlog-L8).
    fn keeps_order(&self) -> bool;

    /// Returns whether pads fill the offsets that they are for, and those once ([`Loglet::append_above`]). Otherwise, all pads are appended
    /// at the end. A node that does not know yet what the others can read says false at first.
    fn fills_once(&self) -> bool {
        false
    }

    /// Returns a tail above every append acknowledged before the call. An open tail is never above a sealed one (vlog-L3, vlog-L4).
    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>>;

    /// Waits until the tail may be above `above`, or the Loglet is sealed, and returns the known tail. This is a hint, not a check: the
    /// tail is readable, but a higher one may exist. It may return early although nothing has changed.
    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>>;

    /// Like [`Loglet::wait_tail`], for a caller that reads from `above` on next. A Loglet may return the first of these entries with an
    /// open tail, about `max_bytes` of them, which saves a request. None may come, although the tail is above `above`.
    fn wait_entries(
        &self,
        above: Offset,
        max_bytes: usize,
    ) -> BoxFuture<'_, Result<(Tail, Vec<Entry>), LogletError>> {
        let _ = max_bytes;
        Box::pin(async move { Ok((self.wait_tail(above).await?, Vec::new())) })
    }

    /// Returns the highest tail that this node knows without asking a server: a lower bound for later searches.
    fn known_tail(&self) -> Offset;

    /// Reads entries from `range.start` up to `range.end` (exclusive), about `max_bytes` of them, but at least one entry. The range must be
    /// below a tail or stop that the caller has obtained (vlog-L6). Every offset of it has an entry, which may be a pad.
    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>>;

    /// Permanently gives up the offsets below `to`, which is at most a known tail. Idempotent.
    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Permanently ends appends. The seal is durable on the seal quorum on return. Idempotent (vlog-L2).
    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Returns the operations on single offsets, if this Loglet has any.
    fn write_once(&self) -> Option<&dyn WriteOnce> {
        None
    }

    /// Returns the operations on shards, if this Loglet has any.
    fn sharded(&self) -> Option<&dyn Sharded> {
        None
    }
}
