//! What a Loglet also offers if each of its positions is decided on its own, once and for all (CORFU, TOCS 31(4), Figure 1).

use atoll_core::{BoxFuture, NodeId};

use super::{LogletSpec, Unavailability};
use crate::position::Offset;

/// What is at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionState {
    /// An entry.
    Data,
    /// It was a hole and was filled. Readers skip it.
    Junk,
    /// It was trimmed, alone or with everything below it.
    Trimmed,
    /// Nothing yet.
    Unwritten,
}

/// How far a Loglet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Everything below is decided.
    pub complete: Offset,
    /// The offset above every one that is written anywhere.
    pub written: Offset,
    /// The offset that an appender gets next. None if nobody who gives out offsets answers.
    pub next: Option<Offset>,
}

impl Reach {
    /// Returns the offset above every one that an append may have.
    pub fn end(&self) -> Offset {
        self.next.map_or(self.written, |next| next.max(self.written))
    }
}

/// Which nodes keep the positions of a Loglet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The epoch in which the nodes serve.
    pub epoch: u64,
    /// The node that gives out offsets.
    pub sequencer: NodeId,
    /// How many consecutive offsets are on the same chain.
    pub stripe: u32,
    /// The nodes with copies of the same offsets, head first, chain after chain.
    pub chains: Vec<Vec<NodeId>>,
}

/// A change of the layout. The next Loglet has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// A node takes the place of another one in its chain.
    Unit {
        /// The node to replace. It may be down.
        old: NodeId,
        /// The node that takes its place.
        new: NodeId,
    },
    /// A node gives out the offsets.
    Sequencer(NodeId),
}

/// Why an operation on one position failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteOnceError {
    /// It did not happen.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// Some copies may have changed. Repeating it does no harm.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The Loglet was sealed meanwhile. Nothing happened; repeat it once the chain says where the Loglet ends.
    #[error("the loglet is sealed")]
    Sealed,
    /// The Loglet was deleted permanently.
    #[error("the loglet was deleted")]
    Gone,
    /// No append can have got this offset yet: this one is the next. Nothing happened.
    #[error("the offset is beyond {0}")]
    Beyond(Offset),
}

/// See the module documentation. All operations may be repeated.
pub trait WriteOnce: Send + Sync {
    /// Returns what is at an offset. An append that is under way may decide [`PositionState::Unwritten`] at any time.
    fn look(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>>;

    /// Decides an offset that an append has got and not written: it is junk afterwards, or what the append had begun to write.
    /// Returns what is there.
    fn fill(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>>;

    /// Trims one offset, on all copies. Decides it first if necessary. Junk stays junk: it takes no space.
    /// Returns what is there afterwards.
    fn trim_one(&self, at: Offset) -> BoxFuture<'_, Result<PositionState, WriteOnceError>>;

    /// Returns how far the Loglet goes.
    fn reach(&self) -> BoxFuture<'_, Result<Reach, WriteOnceError>>;

    /// Returns which nodes keep it.
    fn layout(&self) -> Layout;

    /// Returns what the next Loglet should be like so that it has this change. None if `old` is no unit, or `new` is one already.
    fn replacing(&self, change: Replace) -> Option<LogletSpec>;
}
