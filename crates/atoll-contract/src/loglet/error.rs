//! Why an operation on a Loglet failed, and whether it took effect.

use crate::position::Offset;
use crate::register;

/// Why an operation cannot be answered now. It says nothing about other operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    /// Too many requests are under way; try again when some of them are done.
    #[error("too many requests are in progress")]
    Busy,
    /// Not enough servers answered in time.
    #[error("not enough servers answered")]
    NoQuorum,
    /// The sequencer did not answer, or its connection broke.
    #[error("the sequencer does not answer")]
    NoSequencer,
    /// The sequencer is in another life than the one that the configuration names (native-T6).
    #[error("the sequencer was restarted and has stopped serving this loglet")]
    WrongSequencer,
    /// The disk is full. Operations succeed again once there is space.
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

/// Why an append has no positions, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The append did not happen and will not happen.
    #[error("not appended: {0}")]
    NotAppended(Unavailability),
    /// The Loglet is sealed or deleted. The entries may still be in it (vlog-V2): search it for them before you append them elsewhere.
    #[error("the loglet is sealed; the entries may be in it")]
    Sealed,
    /// An earlier attempt of one of these entries may be in the Loglet, too long ago to be remembered. Nothing was appended this time;
    /// search for the entry from the floor on (X16).
    #[error("an earlier attempt may be in the log; scan for it")]
    Forgotten,
    /// The append may have happened, or may still happen.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
}

/// Why another operation on a Loglet failed. All are safe to repeat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogletError {
    /// The operation cannot be answered at the moment.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// The Loglet was deleted permanently (vlog-L7).
    #[error("the loglet was deleted")]
    Gone,
}

/// Why a read returned no entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Offsets below this one were trimmed.
    #[error("trimmed below offset {0}")]
    Trimmed(Offset),
    /// The range is empty, or is above every tail that the caller has obtained (vlog-L6).
    #[error("offset {0} is not below a known tail")]
    BeyondTail(Offset),
    /// No server that has the entry answered; or the read was restricted to this node's disk, and the entry is not there.
    #[error("unavailable: {0}")]
    Unavailable(Unavailability),
    /// The Loglet was deleted permanently (vlog-L7).
    #[error("the loglet was deleted")]
    Gone,
    /// A copy is damaged, and no other server answered.
    #[error("damaged: {0}")]
    Damaged(String),
}
