//! What can go wrong, and whether it happened.

use atoll_contract::LogPos;
use atoll_log::{LogAppendError, LogError};

use super::ClockAhead;
use crate::entry::MAX_COMMAND_BYTES;
use crate::replica::Halt;

/// As many commands wait as may: nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{commands} commands of {bytes} bytes wait at this node, which is the most; not proposed")]
pub struct Busy {
    /// Commands that were waiting.
    pub commands: usize,
    /// Their bytes.
    pub bytes: usize,
    /// Bytes of the command that was not taken: the room to wait for (see [`super::Engine::room`]).
    pub refused_bytes: usize,
}

/// Why a proposal has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It did not happen.
    #[error("a command has {bytes} bytes; at most {MAX_COMMAND_BYTES} are allowed")]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It did not happen, and will not.
    #[error("not proposed: {0}")]
    NotProposed(LogError),
    /// It did not happen, and will not: an earlier command of this node was lost, and order would be broken. Propose it again.
    #[error("refused, since an earlier command of this node was lost; it did not happen")]
    Refused,
    /// It did not happen, and will not: this replica applies no more.
    #[error("not proposed: this replica stopped: {0}")]
    Stopped(Halt),
    /// It did not happen, and will not: this replica was found to be wrong.
    #[error(
        "not proposed: this replica was found to be wrong and fetches the state from a peer; go on at another node"
    )]
    Withheld,
    /// It did not happen, and will not: this replica makes no progress.
    #[error("not proposed: this replica gets no further than log position {0}; go on at another node")]
    Stalled(LogPos),
    /// It did not happen, and will not: the time that it would have is not to be believed.
    #[error("not proposed: {0}")]
    ClockAhead(ClockAhead),
    /// It may have happened, or may yet.
    #[error("unknown outcome: {0}")]
    Unknown(LogAppendError),
    /// It was appended, and whether it has an effect depends on what becomes of the log: this replica stopped in front of it.
    #[error("unknown outcome: this replica stopped: {0}")]
    Halted(Halt),
    /// It may be in the log; this replica has skipped over it by a snapshot, and the answer is lost.
    #[error("unknown outcome: this replica was refilled from a snapshot at log position {0}")]
    Skipped(LogPos),
    /// It was applied here, after this replica was found to be wrong: the answer is not to be relied on.
    #[error("unknown outcome: this replica was found to be wrong and fetches the state from a peer")]
    Doubtful,
}

impl ProposeError {
    /// True if the command surely did not happen and never will.
    pub fn did_not_happen(&self) -> bool {
        match self {
            ProposeError::TooLarge { .. }
            | ProposeError::NotProposed(_)
            | ProposeError::Refused
            | ProposeError::Withheld
            | ProposeError::Stalled(_)
            | ProposeError::ClockAhead(_)
            | ProposeError::Stopped(_) => true,
            ProposeError::Unknown(_)
            | ProposeError::Halted(_)
            | ProposeError::Skipped(_)
            | ProposeError::Doubtful => false,
        }
    }
}

/// Why a barrier was not reached. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// The tail of the log could not be found.
    #[error("the tail of the log is not known: {0}")]
    Log(#[from] LogError),
    /// The replica does not get there.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// This replica was found to be wrong.
    #[error("this replica was found to be wrong and fetches the state from a peer; go on at another node")]
    Withheld,
}

/// The replica applies no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica stopped: {0}")]
pub struct Stopped(pub Halt);
