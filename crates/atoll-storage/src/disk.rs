//! The interface between the journal and a disk: a directory of files, positioned reads and writes, and syncs. There are two
//! implementations: [`crate::RealDisk`] and, for the simulator, [`crate::MemDisk`].

use std::fmt;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// A path below the root of a [`Disk`]: components of letters, digits, `.`, `_` and `-`, joined by `/`. Empty is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskPath(String);

impl DiskPath {
    /// Returns the root directory of the disk.
    pub fn root() -> Self {
        DiskPath(String::new())
    }

    /// Returns the path `text`, or None if a component is empty, consists of dots, or contains a character that is not allowed.
    pub fn new(text: &str) -> Option<Self> {
        let fine = |part: &str| {
            !part.is_empty()
                && part.bytes().any(|b| b != b'.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        text.split('/').all(fine).then(|| DiskPath(text.to_owned()))
    }

    /// Returns a path that is a constant of the program, or built from one.
    pub(crate) fn fixed(text: &str) -> Self {
        debug_assert!(Self::new(text).is_some(), "{text}");
        DiskPath(text.to_owned())
    }

    /// Returns the text, which has no slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the parent directory, which is the root for a name without a slash.
    pub fn parent(&self) -> DiskPath {
        DiskPath(self.0.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned())
    }
}

impl fmt::Display for DiskPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "." } else { &self.0 })
    }
}

/// The operation that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names say it.
pub enum DiskOp {
    Open,
    Read,
    Write,
    Sync,
    SetLen,
    List,
    CreateDir,
    Rename,
    Remove,
    SyncDir,
    FreeBytes,
    Lock,
}

/// A disk operation that failed. What a failed write or sync left behind is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiskError {
    /// The file system is full, or the quota is used up. The file is unchanged, or part of the write has extended it.
    #[error("{path}: no space left on the disk ({op:?})")]
    NoSpace {
        /// The operation that failed.
        op: DiskOp,
        /// The file.
        path: String,
    },
    /// The file does not exist. Nothing happened.
    #[error("{path}: no such file")]
    NotFound {
        /// The file.
        path: String,
    },
    /// Another process has the directory open. Nothing happened.
    #[error("{path}: in use by another process; a data directory belongs to one process at a time")]
    Locked {
        /// The lock file.
        path: String,
    },
    /// Any other error of the operating system. Whether the operation happened is unknown.
    #[error("{path}: {op:?} failed: {reason}")]
    Io {
        /// The operation that failed.
        op: DiskOp,
        /// The file.
        path: String,
        /// The operating system's message.
        reason: String,
    },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// Opens an existing file for reading.
    Read,
    /// Opens an existing file for reading and writing.
    Write,
    /// Creates a file for reading and writing, or empties an existing one. The name is durable after [`Disk::sync_dir`].
    Create,
}

/// A directory of files.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError>;

    /// Returns the names of the files in a directory, sorted. The list is empty if the directory does not exist.
    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError>;

    /// Creates a directory; succeeds if it exists already. The directory is durable after [`Disk::sync_dir`] of its parent.
    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError>;

    /// Renames a file atomically and replaces an existing file of the new name. The change is durable after [`Disk::sync_dir`].
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError>;

    /// Removes a file. The change is durable after [`Disk::sync_dir`].
    fn remove(&self, path: &DiskPath) -> Result<(), DiskError>;

    /// Makes the current names in this directory durable: they survive a power cut once this returns.
    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError>;

    /// Returns how many bytes may still be allocated. This is a hint, because other programs write, too.
    fn free_bytes(&self) -> Result<u64, DiskError>;

    /// Opens an existing file for writes that no thread waits for. Returns None if the disk or the file system has no such writes.
    fn open_direct(&self, _path: &DiskPath) -> Option<Box<dyn DirectFile>> {
        None
    }

    /// Returns a descriptor that becomes readable when a write of a [`DirectFile`] of this disk ends. None if there are no such files.
    fn direct_signal(&self) -> Option<OwnedFd> {
        None
    }
}

/// The unit of writes to a [`DirectFile`] in bytes: at least the logical block of any usual device.
pub const DIRECT_BLOCK_BYTES: usize = 4096;
/// The longest write to a [`DirectFile`], in bytes.
pub const DIRECT_BYTES: usize = 4 * DIRECT_BLOCK_BYTES;

/// An open file whose writes are durable when they end, and that no thread has to wait for. All direct files of a disk together have one
/// write under way at most. The bytes that it covers must not be written in another way meanwhile.
pub trait DirectFile: Send + Sync {
    /// Starts to write all slices of `from` one after the other, starting at `offset`, and copies them. The offset and the sum of the
    /// lengths are multiples of [`DIRECT_BLOCK_BYTES`], and the sum is at most [`DIRECT_BYTES`]. After an error, nothing is under way, and
    /// any part may have been written.
    fn begin(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Returns the result of the write that is under way, once: Ok means that it is durable. None if it has not ended. After an error, any
    /// part may have been written.
    fn poll(&mut self) -> Option<Result<(), DiskError>>;

    /// Waits for about `patience` at most until the write that is under way has ended, and returns the same as [`DirectFile::poll`].
    fn wait_at_most(&mut self, patience: Duration) -> Option<Result<(), DiskError>>;

    /// Waits until the write that is under way has ended, and returns the same as [`DirectFile::poll`].
    fn wait(&mut self) -> Result<(), DiskError>;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads from `offset` until `into` is full or the file ends, and returns how many bytes it read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError>;

    /// Writes all slices of `from` one after the other, starting at `offset`. After an error, any part may have been written.
    fn write_at(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Makes everything written, and the length, durable: both survive a power cut once this returns (fdatasync).
    fn sync_data(&mut self) -> Result<(), DiskError>;

    /// Drops cached bytes that are synced, so that reads return what the medium holds. After a failed sync, the cache may hold bytes that
    /// were never written (native-T22). This is a hint.
    fn forget_cached(&mut self);

    /// Cuts the file, or extends it with zeros, which need not be allocated.
    fn set_len(&mut self, len: u64) -> Result<(), DiskError>;

    /// Returns the length of the file in bytes.
    fn len(&self) -> Result<u64, DiskError>;

    /// Returns whether the file has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }
}

/// Reads a whole file. Returns None if it is longer than `limit` bytes.
pub(crate) fn read_all(disk: &dyn Disk, path: &DiskPath, limit: u64) -> Result<Option<Vec<u8>>, DiskError> {
    let file = disk.open(path, Open::Read)?;
    let len = file.len()?;
    if len > limit {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(Some(bytes))
}

/// Replaces a file atomically: a power cut leaves the old file or the new one. The new file is durable on return. After
/// [`DiskError::NoSpace`] the old file is unchanged.
pub(crate) fn replace(
    disk: &dyn Disk,
    path: &DiskPath,
    aside: &DiskPath,
    bytes: &[u8],
) -> Result<(), DiskError> {
    let written = (|| {
        let mut file = disk.open(aside, Open::Create)?;
        file.write_at(0, &[IoSlice::new(bytes)])?;
        file.sync_data()
    })();
    if let Err(error) = written {
        if matches!(error, DiskError::NoSpace { .. }) {
            remove_if_there(disk, aside)?;
        }
        return Err(error);
    }
    disk.rename(aside, path)?;
    disk.sync_dir(&path.parent())
}

/// Removes a file that may not exist: a full disk may have had no room even for its name.
pub(crate) fn remove_if_there(disk: &dyn Disk, path: &DiskPath) -> Result<(), DiskError> {
    match disk.remove(path) {
        Err(DiskError::NotFound { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_root() {
        for bad in ["", "/", "a/", "/a", "..", "a/../b", ".", "a b", "a\0"] {
            assert_eq!(DiskPath::new(bad), None, "{bad:?}");
        }
        let path = DiskPath::new("journal/0a.seg");
        assert_eq!(path.map(|p| p.parent()), DiskPath::new("journal"));
    }
}
