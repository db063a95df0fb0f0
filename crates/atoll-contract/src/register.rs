//! The register abstraction: a versioned value with a conditional write. Each log stores its chain in one register (virtuallog §8).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{BoxFuture, NodeId};

/// The number of writes to a register; 0 if it was never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A unique number of one write, by which its writer finds out whether the write happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

/// A value and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// The version; 0 if the register was never written.
    pub version: Version,
    /// The value; empty if the register was never written.
    pub value: Bytes,
    /// The nonce of the write that made this version.
    pub nonce: Nonce,
}

/// The outcome of a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The write is done; contains the new version.
    Yes(Version),
    /// The write is not done: the register is at another version, whose value is returned.
    Conflict(Versioned),
}

/// Why a register cannot answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    /// Too many requests are under way; try again when some of them are done.
    #[error("too many requests are in progress")]
    Busy,
    /// Not enough of the register group's nodes answered in time.
    #[error("not enough servers answered")]
    NoQuorum,
    /// The disk is full. The register works again once there is space.
    #[error("a disk is full")]
    DiskFull,
    /// The journal, or the file, is closed after a failed write or sync.
    #[error("storage failed")]
    StorageFailed,
    /// This process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

/// Why a register operation has no answer, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The operation did not happen. A read fails only with this error.
    #[error("not done: {0}")]
    NotWritten(Unavailability),
    /// The operation may have happened: read the register and look for the nonce.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The value exceeds [`MAX_VALUE_BYTES`]; nothing was written.
    #[error("the value has {0} bytes; at most {MAX_VALUE_BYTES} are allowed")]
    TooLarge(usize),
    /// No register can have this name; nothing was written.
    #[error("the name of the register has {0} bytes; 1 to {MAX_NAME_BYTES} are allowed")]
    InvalidName(usize),
}

/// The longest value of a register, in bytes.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;
/// The longest value of a register that can move from one store to another, in bytes: a move adds to it where the register is.
pub const MAX_MOVABLE_BYTES: usize = MAX_VALUE_BYTES - 512;
/// The longest name of a register, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// One linearizable register.
pub trait Register: Send + Sync + fmt::Debug {
    /// Reads the newest value; linearizable.
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>>;

    /// Writes the value if the version is `expected` (0: never written). The new version is `expected` + 1, and the write is durable on
    /// return. A retry with the same nonce gets the answer of the first attempt.
    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>>;
}

/// The name of a register that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name of the register.
    pub name: String,
    /// A mark of the value at the time of the listing; another value has another mark. None if it is not known.
    pub mark: Option<u128>,
}

/// A collection of registers, by name.
pub trait Registers: Send + Sync + fmt::Debug {
    /// Returns a handle to the register with this name. This is cheap; the first write creates the register.
    fn register(&self, name: &str) -> Arc<dyn Register>;

    /// Lists the names of written registers that start with `prefix`, in order. A register created during the call may be
    /// missing. If a mark is unchanged, the register was not written since a read that followed the first listing of that mark.
    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>>;

    /// Drops the local state of registers that were only read and are no longer in use. Call this from time to time.
    fn sweep(&self) {}
}

/// The nodes that hold the registers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// Counts the changes of the group; the first group has epoch 1.
    pub epoch: u64,
    /// The nodes of the group, in the order of their ids.
    pub nodes: Vec<NodeId>,
}

/// Registers that a group of nodes holds together. A node that starts has to find the group first. Until then, every operation fails and is
/// certain not to have happened.
pub trait ClusterRegisters: Registers {
    /// Returns the group, as this node knows it, or None if it has not found one yet.
    fn holders(&self) -> Option<Holders>;

    /// Returns how many registers have local state on this node.
    fn open_registers(&self) -> usize;
}
