//! Why a Loglet's operation failed, and whether it happened.

use crate::position::Offset;
use crate::register;

/// Why an operation has no good answer now. Says nothing about other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    /// Too much is under way; try again when some of it is done.
    #[error("too many requests are under way")]
    Busy,
    /// Not enough servers answered in time.
    #[error("not enough servers answered")]
    NoQuorum,
    /// The sequencer did not answer, or its connection broke.
    #[error("the sequencer does not answer")]
    NoSequencer,
    /// The sequencer is another life than the configuration names (native-T6).
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

impl From<register::Unavailability> for Unavailability {
    fn from(why: register::Unavailability) -> Self {
        match why {
            register::Unavailability::Busy => Unavailability::Busy,
            register::Unavailability::NoQuorum => Unavailability::NoQuorum,
            register::Unavailability::DiskFull => Unavailability::DiskFull,
            register::Unavailability::StorageFailed => Unavailability::StorageFailed,
            register::Unavailability::Stopping => Unavailability::Stopping,
        }
    }
}

/// Why an append has no positions, and whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// It did not happen and will not.
    #[error("not appended: {0}")]
    NotAppended(Unavailability),
    /// The Loglet is sealed, or gone. The entries may be part of it all the same (vlog-V2): scan, then append elsewhere.
    #[error("the loglet is sealed; the entries may be in it")]
    Sealed,
    /// An earlier attempt of one of these entries may be there, too old to be remembered: nothing was appended now;
    /// scan for it from the floor (X16).
    #[error("an earlier attempt may be in the log; scan for it")]
    Forgotten,
    /// It may have happened, or may still.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
}

/// Why another operation on a Loglet failed. All are safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogletError {
    /// Not available at the moment.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// Deleted for ever (vlog-L7).
    #[error("the loglet was deleted")]
    Gone,
}

/// Why a read gave no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Offsets below this one were trimmed.
    #[error("trimmed below offset {0}")]
    Trimmed(Offset),
    /// The range is empty, or lies beyond every tail that was obtained (vlog-L6).
    #[error("offset {0} is not below a known tail")]
    BeyondTail(Offset),
    /// No server that has the entry answered; or it is not on this node's disk and only that was asked.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// Deleted for ever (vlog-L7).
    #[error("the loglet was deleted")]
    Gone,
    /// A copy is damaged, and no other answered.
    #[error("damaged: {0}")]
    Damaged(String),
}
