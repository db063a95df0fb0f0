//! What the journal sees of a disk: a directory of files, positioned reads and writes, syncs. Two implementations:
//! [`crate::RealDisk`] and, for the simulator, [`crate::MemDisk`].

use std::fmt;
use std::io::IoSlice;

/// A path below the root of a [`Disk`]: components of letters, digits, `.`, `_` and `-`, joined by `/`. Empty is the root.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskPath(String);

impl DiskPath {
    /// The directory that the disk stands for.
    pub fn root() -> Self {
        DiskPath(String::new())
    }

    /// The path of `text`, or None if a component is empty, `.`, `..`, or has another character than those allowed.
    pub fn new(text: &str) -> Option<Self> {
        let fine = |part: &str| {
            !part.is_empty()
                && part.bytes().any(|b| b != b'.')
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        };
        text.split('/').all(fine).then(|| DiskPath(text.to_owned()))
    }

    /// A path known when the program was written.
    pub(crate) fn fixed(text: &str) -> Self {
        debug_assert!(Self::new(text).is_some(), "{text}");
        DiskPath(text.to_owned())
    }

    /// The text, without a slash at either end.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The directory that holds it; the root for a name without a slash.
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
    /// The file system is full, or the quota used up. The file is as it was, or longer by a part.
    #[error("{path}: no space left on the disk ({op:?})")]
    NoSpace {
        /// What was being done.
        op: DiskOp,
        /// To which file.
        path: String,
    },
    /// There is no such file. Nothing happened.
    #[error("{path}: no such file")]
    NotFound {
        /// Which.
        path: String,
    },
    /// Another process has the directory open. Nothing happened.
    #[error("{path}: in use by another process; a data directory belongs to one process at a time")]
    Locked {
        /// The lock file.
        path: String,
    },
    /// Anything else that the operating system reports. Whether it happened is unknown.
    #[error("{path}: {op:?} failed: {reason}")]
    Io {
        /// What was being done.
        op: DiskOp,
        /// To which file.
        path: String,
        /// The operating system's message.
        reason: String,
    },
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Open {
    /// An existing file, to read.
    Read,
    /// An existing file, to read and write.
    Write,
    /// A new file, to read and write; an existing one is made empty. The name is durable after [`Disk::sync_dir`].
    Create,
}

/// A directory of files.
pub trait Disk: Send + Sync {
    /// Opens a file.
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError>;

    /// Names of the files in a directory, sorted; none if the directory is not there.
    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError>;

    /// Makes a directory; succeeds if it exists already. Durable after [`Disk::sync_dir`] of its parent.
    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError>;

    /// Renames a file in one step; an existing file of the new name is replaced. Durable after [`Disk::sync_dir`].
    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError>;

    /// Removes a file. Durable after [`Disk::sync_dir`].
    fn remove(&self, path: &DiskPath) -> Result<(), DiskError>;

    /// Names in this directory, as they are now, survive a power cut once this returns.
    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError>;

    /// Bytes that may still be allocated. A hint: others write, too.
    fn free_bytes(&self) -> Result<u64, DiskError>;
}

/// An open file.
pub trait File: Send + Sync {
    /// Reads from `offset` until `into` is full or the file ends; returns how many bytes it read.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError>;

    /// Writes all of `from`, one slice after the other, from `offset`. On an error any part may be written.
    fn write_at(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError>;

    /// Everything written, and the length, survives a power cut once this returns (fdatasync).
    fn sync_data(&mut self) -> Result<(), DiskError>;

    /// Forgets what memory knows of synced bytes, so that reads show what the medium holds. After a failed sync, memory
    /// may show bytes that were never written (native-T22). A hint.
    fn forget_cached(&mut self);

    /// Cuts the file, or extends it with zeros, which need not be allocated.
    fn set_len(&mut self, len: u64) -> Result<(), DiskError>;

    /// Its length in bytes.
    fn len(&self) -> Result<u64, DiskError>;

    /// Whether it has no bytes.
    fn is_empty(&self) -> Result<bool, DiskError> {
        Ok(self.len()? == 0)
    }
}

/// Reads a whole file of at most `limit` bytes; None if it is longer.
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

/// Replaces a file in one step: a power cut leaves the old one or the new one. Durable on return.
/// On [`DiskError::NoSpace`] the old one is untouched.
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

/// A full disk may have had no room for the name itself.
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
