//! How operations on a virtual log fail, and whether they took effect.

use atoll_core::Level;

use crate::chain::ChainError;
use crate::surgery::SurgeryFault;
use atoll_contract::loglet::{LogletId, PlanError, Unavailability};
use atoll_contract::position::LogPos;
use atoll_contract::register::RegisterError;

/// Why a read-only operation failed. It is always safe to repeat the operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// No log of this name was ever created.
    #[error("there is no log with this name")]
    NoSuchLog,
    /// Not available at the moment.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// The value in the register is not a chain that this program can read.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// A Loglet of the chain cannot be opened by this program.
    #[error("a loglet of the chain cannot be opened: {0}")]
    Open(PlanError),
    /// The position is beyond the tail, which is given.
    #[error("the position is beyond the tail, {0}")]
    BeyondTail(LogPos),
    /// The log was ended permanently, at this tail.
    #[error("the log was ended at {0}")]
    Ended(LogPos),
    /// The log was deleted, with everything in it.
    #[error("the log was deleted")]
    Deleted,
    /// The log was trimmed below this position, above the tail that the sender of a record knew. A copy that the record may have got
    /// through another node could no longer be found.
    #[error("the log was trimmed below {0}, above the tail that the sender knew")]
    Outdated(LogPos),
    /// Surgery on this position is under way: nobody may read it until that has ended.
    #[error("position {0} is held: surgery on it is under way")]
    Held(LogPos),
}

/// Why a read returned no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogReadError {
    /// Positions below this one were trimmed: start from there, or from a snapshot.
    #[error("trimmed below position {0}")]
    Trimmed(LogPos),
    /// A copy is damaged, and no server answered with a good one.
    #[error("damaged: {0}")]
    Damaged(String),
    /// An error that any operation may return; [`LogError::BeyondTail`] if there is nothing to read yet.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// Why a submission has no positions, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogAppendError {
    /// A payload exceeds [`atoll_contract::entry::MAX_ENTRY_BYTES`]: nothing was appended.
    #[error("a record has {0} bytes; at most 1000000 are allowed")]
    TooLarge(usize),
    /// None of the records was appended, and none will be.
    #[error("not appended: {0}")]
    NotAppended(LogError),
    /// Some of the records may have been appended below this position and trimmed since. The outcome can no longer be determined.
    #[error("unknown outcome: the part of the log that it may be in was trimmed, below {0}")]
    Trimmed(LogPos),
    /// Some of the records may be in the log at this position, but no copy of it can be read. The outcome cannot be determined.
    #[error("unknown outcome: position {at}, where it may be, cannot be read: {what}")]
    Damaged {
        /// The unreadable position.
        at: LogPos,
        /// The error that its copies gave.
        what: String,
    },
    /// Some of the records may have been appended; the others will not be.
    #[error("unknown outcome: {0}")]
    Unknown(LogError),
}

/// Why a trim was not confirmed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrimError {
    /// Nothing was trimmed.
    #[error("not trimmed: {0}")]
    NotTrimmed(LogError),
    /// The new trim position may have been written, or may still be. Whether it was is seen in the chain.
    #[error("unknown outcome: {0}")]
    Unknown(LogError),
}

/// The limit on work in flight is reached, and the submission was not taken. Try again when some of it is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// The limit of this log, through this node.
    #[error("not appended: {waiting_bytes} bytes already wait for this log at this node, the maximum")]
    Log {
        /// Bytes that were waiting.
        waiting_bytes: usize,
    },
    /// The limit of all logs together, through this node.
    #[error("not appended: {waiting_bytes} bytes already wait for all logs at this node, the maximum")]
    Node {
        /// Bytes that were waiting.
        waiting_bytes: usize,
    },
}

/// The steps of a reconfiguration (virtuallog §4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reading the chain (vlog-E1). Nothing was changed.
    ReadChain,
    /// Sealing the active Loglet (vlog-E2). If it is sealed, the first node that finds it so rolls the log forward.
    Seal,
    /// Finding the sealed tail (vlog-E3). The Loglet is sealed, and the first node that finds it so rolls the log forward.
    CheckTail,
    /// Writing the new chain (vlog-E6). It may have been written.
    Install,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Step::ReadChain => "reading the chain; nothing was changed",
            Step::Seal => "sealing; the log continues, in a new segment if the seal succeeded",
            Step::CheckTail => "finding the sealed tail; the log continues in a new segment",
            Step::Install => "writing the new chain; whether it was written is unknown",
        })
    }
}

/// Why a requested change of the chain was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReconfigError {
    /// Nothing was changed: the requested configuration is not possible.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Nothing was changed: no log of this name was created.
    #[error("there is no log with this name")]
    NoSuchLog,
    /// Nothing was changed, or the next chain would break a rule.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// Servers did not answer in time.
    #[error("unavailable ({why}) while {step}")]
    Unavailable {
        /// The step that failed.
        step: Step,
        /// Why.
        why: Unavailability,
    },
    /// Nothing was created: the registers take no more logs. What is left of them is for the logs that exist.
    #[error("the registers have no room for another log; none was created")]
    NoRoom,
    /// Nothing was changed: no segment of the chain has this Loglet.
    #[error("no segment of the chain has loglet {0}")]
    NoSuchSegment(LogletId),
    /// Nothing was changed: only a sealed segment can be rebuilt; extend first.
    #[error("loglet {0} is the active one; extend the log first")]
    NotSealed(LogletId),
    /// Nothing was changed: the copy of a segment could not be made, or differs from its source.
    #[error("the copy was not made: {0}")]
    Copy(String),
    /// Nothing was changed: the log was ended permanently.
    #[error("the log was ended at {0}")]
    Ended(LogPos),
    /// Nothing was changed: the log was deleted.
    #[error("the log was deleted")]
    Deleted,
    /// Nothing was changed: some member cannot read the new format.
    #[error("this needs feature level {needs}, and the cluster is at level {active}")]
    Level {
        /// The level from which the format may be written.
        needs: Level,
        /// The active level of the cluster.
        active: Level,
    },
}

/// Why surgery on an entry was not done. Nothing was changed, unless the outcome of a write is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SurgeryError {
    /// The request breaks a limit.
    #[error(transparent)]
    Fault(#[from] SurgeryFault),
    /// The position does not exist yet.
    #[error("position {at} is beyond the tail, {tail}")]
    BeyondTail {
        /// The position.
        at: LogPos,
        /// The tail.
        tail: LogPos,
    },
    /// The position was trimmed.
    #[error("position {at} was trimmed; the log begins at {trim}")]
    Trimmed {
        /// The position.
        at: LogPos,
        /// The first readable position.
        trim: LogPos,
    },
    /// There is nothing at the position that a reader would take.
    #[error("position {0} holds no record")]
    Nothing(LogPos),
    /// Another surgery is under way.
    #[error("another surgery is under way, at position {at}, begun by {operator:?}: {reason}")]
    UnderWay {
        /// Its position.
        at: LogPos,
        /// Who began it.
        operator: String,
        /// Why.
        reason: String,
    },
    /// Another operator has taken the surgery over, or given it up.
    #[error("the surgery on position {0} was taken over, or given up, by another operator")]
    Overtaken(LogPos),
    /// The entry cannot be read.
    #[error("the entry at position {at} cannot be read: {error}")]
    Read {
        /// The position.
        at: LogPos,
        /// Why.
        error: LogReadError,
    },
    /// The chain could not be read or changed.
    #[error(transparent)]
    Chain(#[from] ReconfigError),
}

impl From<LogError> for SurgeryError {
    fn from(error: LogError) -> Self {
        SurgeryError::Chain(error.into())
    }
}

impl From<ChainError> for SurgeryError {
    fn from(error: ChainError) -> Self {
        match error {
            ChainError::Surgery(fault) => SurgeryError::Fault(fault),
            other => SurgeryError::Chain(other.into()),
        }
    }
}

impl From<RegisterError> for LogError {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::NotWritten(why) | RegisterError::Unknown(why) => LogError::Unavailable(why.into()),
            RegisterError::TooLarge(bytes) => ChainError::TooLong(bytes).into(),
            RegisterError::InvalidName(_) => LogError::NoSuchLog,
        }
    }
}

impl From<LogError> for ReconfigError {
    fn from(e: LogError) -> Self {
        match e {
            LogError::NoSuchLog => ReconfigError::NoSuchLog,
            LogError::Deleted => ReconfigError::Deleted,
            LogError::Unavailable(why) => ReconfigError::Unavailable { step: Step::ReadChain, why },
            LogError::Chain(e) => ReconfigError::Chain(e),
            LogError::Open(e) => ReconfigError::Plan(e),
            LogError::BeyondTail(at) | LogError::Ended(at) | LogError::Outdated(at) => {
                ReconfigError::Ended(at)
            }
            LogError::Held(_) => {
                ReconfigError::Unavailable { step: Step::ReadChain, why: Unavailability::Busy }
            }
        }
    }
}

impl From<LogError> for TrimError {
    fn from(e: LogError) -> Self {
        TrimError::NotTrimmed(e)
    }
}

impl From<ReconfigError> for TrimError {
    /// Converts the error of the write that raises the trim position.
    fn from(e: ReconfigError) -> Self {
        TrimError::NotTrimmed(match e {
            ReconfigError::Unavailable { step: Step::Install, why } => {
                return TrimError::Unknown(LogError::Unavailable(why));
            }
            ReconfigError::NoSuchLog => LogError::NoSuchLog,
            ReconfigError::Deleted => LogError::Deleted,
            ReconfigError::Chain(e) => LogError::Chain(e),
            ReconfigError::Plan(e) => LogError::Open(e),
            ReconfigError::Ended(at) => LogError::Ended(at),
            ReconfigError::Unavailable { why, .. } => LogError::Unavailable(why),
            ReconfigError::NoRoom => LogError::Unavailable(Unavailability::DiskFull),
            ReconfigError::NoSuchSegment(_)
            | ReconfigError::NotSealed(_)
            | ReconfigError::Copy(_)
            | ReconfigError::Level { .. } => LogError::Unavailable(Unavailability::NoQuorum),
        })
    }
}
