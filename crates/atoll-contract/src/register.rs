//! The Register abstraction: a versioned value with conditional write. Each log's chain is kept in one (virtuallog §8).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::BoxFuture;

/// How often a register was written. 0: never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A unique mark of one write, by which its writer finds out whether it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

/// A value and its version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versioned {
    /// 0 if it was never written.
    pub version: Version,
    /// Empty if it was never written.
    pub value: Bytes,
    /// Of the write that made this version.
    pub nonce: Nonce,
}

/// The answer to a conditional write that was decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// Done; the new version.
    Yes(Version),
    /// Not done: the register is at another version, this one.
    Conflict(Versioned),
}

/// Why a register has no answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailability {
    /// Too much is under way; try again when some of it is done.
    #[error("too many requests are under way")]
    Busy,
    /// Not enough of the nodes that hold registers answered in time.
    #[error("not enough servers answered")]
    NoQuorum,
    /// The disk is full; ends by itself when space returns.
    #[error("a disk is full")]
    DiskFull,
    /// The journal, or the file, is closed after a failed write or sync.
    #[error("storage failed")]
    StorageFailed,
    /// This process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

/// Why a register operation has no answer, and whether it happened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// It did not happen. Reads fail only like this.
    #[error("not done: {0}")]
    NotWritten(Unavailability),
    /// It may have happened: read, and look for the nonce.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The value exceeds [`MAX_VALUE_BYTES`]; it did not happen.
    #[error("the value has {0} bytes; at most {MAX_VALUE_BYTES} are allowed")]
    TooLarge(usize),
    /// No register can have this name; it did not happen.
    #[error("the name of the register has {0} bytes; 1 to {MAX_NAME_BYTES} are allowed")]
    InvalidName(usize),
}

/// Longest value of a register, in bytes.
pub const MAX_VALUE_BYTES: usize = 256 * 1024;
/// Longest name of a register, in bytes.
pub const MAX_NAME_BYTES: usize = 256;

/// One linearizable register.
pub trait Register: Send + Sync + fmt::Debug {
    /// The newest value: linearizable.
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>>;

    /// Writes if the version is `expected` (0: never written); the new version is `expected` + 1. Durable when it returns.
    /// The same nonce again answers as the first time.
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
    /// Its name.
    pub name: String,
    /// Of the value that it had: another value has another mark. None: not known.
    pub mark: Option<u128>,
}

/// A space of registers by name.
pub trait Registers: Send + Sync + fmt::Debug {
    /// The register of a name. Cheap; nothing is created before the first write.
    fn register(&self, name: &str) -> Arc<dyn Register>;

    /// Names of the registers that were written and start with `prefix`, in order. A register being created meanwhile may be
    /// missing. A mark that is as it was says that a register was not written since the value was read which followed that mark.
    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>>;

    /// Lets go of what is kept here of registers that were only read and that nobody uses. To be called now and then.
    fn sweep(&self) {}
}
