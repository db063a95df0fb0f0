//! The errors of proposals and barriers. Each one says whether the operation happened.

use atoll_contract::LogPos;
use atoll_log::{LogAppendError, LogError};

use super::ClockAhead;
use crate::replica::Halt;

/// The limit of waiting commands is reached. The command was not accepted and did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not proposed: {commands} commands of {bytes} bytes already wait at this node, the maximum")]
pub struct Busy {
    /// Commands that were waiting.
    pub commands: usize,
    /// The total size of these commands in bytes.
    pub bytes: usize,
    /// The size of the refused command in bytes, which is the room to wait for with [`super::Engine::room`].
    pub refused_bytes: usize,
}

/// Why a proposal got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// It did not happen: the command is too long.
    #[error("a command has {bytes} bytes; at most {allowed} are allowed")]
    TooLarge {
        /// The length of the command.
        bytes: usize,
        /// The maximum at the cluster's feature level.
        allowed: usize,
    },
    /// It did not happen and never will: the log did not append it.
    #[error("not proposed: {0}")]
    NotProposed(LogError),
    /// It did not happen and never will: an earlier command of this node was lost, and applying this one would break their order.
    /// It can be proposed again.
    #[error("refused, because an earlier command of this node was lost; it did not happen")]
    Refused,
    /// It did not happen and never will: this replica has halted.
    #[error("not proposed: this replica stopped: {0}")]
    Stopped(Halt),
    /// It did not happen and never will: this replica was found to be wrong.
    #[error("not proposed: this replica is wrong and is being refilled by a peer; use another node")]
    Withheld,
    /// It did not happen and never will: this replica makes no progress.
    #[error("not proposed: this replica cannot advance beyond log position {0}; use another node")]
    Stalled(LogPos),
    /// It did not happen and never will: the clock of this node, whose time the entry would carry, is far ahead.
    #[error("not proposed: {0}")]
    ClockAhead(ClockAhead),
    /// It did not happen and never will: an operator has excised the entry with it.
    #[error(
        "an operator has excised the entry at log position {0}, which had this command; it did not happen"
    )]
    Excised(LogPos),
    /// Unknown: it may have happened, or may still happen.
    #[error("unknown outcome: {0}")]
    Unknown(LogAppendError),
    /// Unknown: it was sent to the log, but this replica halted before it could apply it. Other replicas may apply it.
    #[error("unknown outcome: this replica stopped: {0}")]
    Halted(Halt),
    /// Unknown: this replica was refilled from a state snapshot that may include the command, so its reply is lost.
    #[error("unknown outcome: this replica was refilled from a snapshot at log position {0}")]
    Skipped(LogPos),
    /// Unknown: an operator has replaced the entry with it. The replacement may have the same command.
    #[error(
        "unknown outcome: an operator has replaced the entry at log position {0}, which had this command"
    )]
    Replaced(LogPos),
    /// Unknown: it was applied here after this replica was found to be wrong, so its reply cannot be relied on.
    #[error("unknown outcome: this replica is wrong and is being refilled by a peer")]
    Doubtful,
}

impl ProposeError {
    /// Returns true if the command certainly did not happen and never will.
    pub fn did_not_happen(&self) -> bool {
        match self {
            ProposeError::TooLarge { .. }
            | ProposeError::NotProposed(_)
            | ProposeError::Refused
            | ProposeError::Withheld
            | ProposeError::Stalled(_)
            | ProposeError::ClockAhead(_)
            | ProposeError::Excised(_)
            | ProposeError::Stopped(_) => true,
            ProposeError::Unknown(_)
            | ProposeError::Halted(_)
            | ProposeError::Skipped(_)
            | ProposeError::Replaced(_)
            | ProposeError::Doubtful => false,
        }
    }
}

/// Why a barrier was not reached. A barrier changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BarrierError {
    /// The tail check of the log failed.
    #[error("the tail of the log is not known: {0}")]
    Log(#[from] LogError),
    /// The replica halted before it reached the barrier.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// This replica was found to be wrong.
    #[error("this replica is wrong and is being refilled by a peer; use another node")]
    Withheld,
}

/// The replica has halted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this replica stopped: {0}")]
pub struct Stopped(pub Halt);
