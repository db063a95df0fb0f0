//! Implements a disk as a directory of the file system.

use std::fs;
use std::io::{self, IoSlice, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
#[cfg(target_os = "linux")]
use std::{
    os::fd::OwnedFd,
    os::unix::fs::OpenOptionsExt,
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
};

#[cfg(target_os = "linux")]
use rustix::fs::OFlags;
use rustix::fs::{Advice, fadvise, statvfs};

#[cfg(target_os = "linux")]
use crate::disk::{DIRECT_BLOCK_BYTES, DirectFile};
use crate::disk::{Disk, DiskError, DiskOp, DiskPath, File, Open};
#[cfg(target_os = "linux")]
use crate::ring::Ring;

/// The name of the lock file in a data directory.
const LOCK: &str = "lock";
/// The mode of a new data directory: nobody else may look into it.
const PRIVATE: u32 = 0o700;
/// The name of a file that exists only while direct writes are tried.
#[cfg(target_os = "linux")]
const TRIAL: &str = "direct-trial";
/// Slices per `writev` call; the kernel accepts no more.
const MAX_SLICES: usize = 1024;

/// Whether syncs reach the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syncs {
    /// Every sync reaches the medium.
    Real,
    /// Every sync returns at once, so a power cut loses data that was acknowledged. Use it only to show that a test of durability can fail
    /// (X6).
    OffForTests,
}

/// Why [`Disk::open_direct`] of a [`RealDisk`] opens nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{step}: {reason}")]
pub struct NoDirectWrites {
    /// What was refused.
    step: &'static str,
    /// The operating system's message.
    reason: String,
}

/// A directory of the file system. It is locked against other processes until this value and all its clones are dropped.
#[derive(Clone)]
pub struct RealDisk {
    root: PathBuf,
    syncs: Syncs,
    #[cfg(target_os = "linux")]
    ring: Arc<OnceLock<Arc<Mutex<Ring>>>>,
    /// Never read: dropping the last clone releases the lock.
    _lock: Arc<fs::File>,
}

impl RealDisk {
    /// Opens a directory, creates it if necessary, and locks its lock file. Only the user of this process can read a new directory: the
    /// data of all clients and the hashes of their passwords will be in there. The mode of a directory that exists stays as it is.
    ///
    /// # Errors
    /// Returns [`DiskError::Locked`] if another process (or another `RealDisk`) holds the lock.
    pub fn open(root: &Path, syncs: Syncs) -> Result<Self, DiskError> {
        let text = root.display().to_string();
        let create = fs::DirBuilder::new().recursive(true).mode(PRIVATE).create(root);
        create.map_err(|e| error(DiskOp::CreateDir, &text, &e))?;
        let lock_path = root.join(LOCK);
        let lock_text = lock_path.display().to_string();
        let lock = fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|e| error(DiskOp::Lock, &lock_text, &e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(DiskError::Locked { path: lock_text }),
            Err(fs::TryLockError::Error(e)) => return Err(error(DiskOp::Lock, &lock_text, &e)),
        }
        Ok(RealDisk {
            root: root.to_owned(),
            syncs,
            #[cfg(target_os = "linux")]
            ring: Arc::default(),
            _lock: Arc::new(lock),
        })
    }

    /// Makes [`Disk::open_direct`] work from now on, for this value and its clones, if a trial write to a file of its own succeeds. The
    /// file is removed again.
    ///
    /// # Errors
    /// The kernel does not permit io_uring, the file system refuses `O_DIRECT`, or the trial write failed. Syncs that are switched off
    /// refuse it, too, because these writes are always durable. Everything else of the disk works as before.
    #[cfg(target_os = "linux")]
    pub fn use_direct_writes(&self) -> Result<(), NoDirectWrites> {
        let refused = |step: &'static str| move |e: io::Error| NoDirectWrites { step, reason: e.to_string() };
        if self.syncs != Syncs::Real {
            return Err(NoDirectWrites { step: "syncs", reason: "switched off".to_owned() });
        }
        let mut ring = Ring::new().map_err(refused("io_uring"))?;
        let path = self.root.join(TRIAL);
        let tried = (|| {
            fs::File::create(&path).map_err(refused("the file of the trial"))?;
            let file = open_direct(&path).map_err(refused("O_DIRECT"))?;
            let block = [0x5a; DIRECT_BLOCK_BYTES];
            let written = ring.begin(&file, 0, &[IoSlice::new(&block)]).and_then(|()| ring.wait());
            written.map_err(refused("the write of the trial"))?;
            match fs::read(&path).map_err(refused("reading the trial back"))? == block {
                true => Ok(()),
                false => Err(refused("reading the trial back")(io::ErrorKind::InvalidData.into())),
            }
        })();
        // If it stays, it takes a block, and the next start overwrites it.
        let _ = fs::remove_file(&path);
        tried?;
        let _ = self.ring.set(Arc::new(Mutex::new(ring)));
        Ok(())
    }

    /// Returns an error: there is no io_uring here.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(target_os = "linux"))]
    pub fn use_direct_writes(&self) -> Result<(), NoDirectWrites> {
        Err(NoDirectWrites { step: "io_uring", reason: "only on Linux".to_owned() })
    }

    /// Returns the directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn full(&self, path: &DiskPath) -> PathBuf {
        self.root.join(path.as_str())
    }

    fn text(&self, path: &DiskPath) -> String {
        self.full(path).display().to_string()
    }
}

fn error(op: DiskOp, path: &str, e: &io::Error) -> DiskError {
    let path = path.to_owned();
    match e.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => DiskError::NoSpace { op, path },
        io::ErrorKind::NotFound => DiskError::NotFound { path },
        _ => DiskError::Io { op, path, reason: e.to_string() },
    }
}

impl Disk for RealDisk {
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(how != Open::Read).create(how == Open::Create).truncate(how == Open::Create);
        let text = self.text(path);
        let file = options.open(self.full(path)).map_err(|e| error(DiskOp::Open, &text, &e))?;
        Ok(Box::new(RealFile { file, path: text, syncs: self.syncs, cursor: 0 }))
    }

    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError> {
        let text = self.text(dir);
        let fail = |e: io::Error| error(DiskOp::List, &text, &e);
        let entries = match fs::read_dir(self.full(dir)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(fail)?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            if entry.file_type().map_err(fail)?.is_file() {
                // The journal uses no name that is not UTF-8.
                names.extend(entry.file_name().into_string());
            }
        }
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        fs::create_dir_all(self.full(dir)).map_err(|e| error(DiskOp::CreateDir, &self.text(dir), &e))
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        fs::rename(self.full(from), self.full(to)).map_err(|e| error(DiskOp::Rename, &self.text(from), &e))
    }

    fn remove(&self, path: &DiskPath) -> Result<(), DiskError> {
        fs::remove_file(self.full(path)).map_err(|e| error(DiskOp::Remove, &self.text(path), &e))
    }

    // fsync of the directory.
    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        if self.syncs == Syncs::OffForTests {
            return Ok(());
        }
        let synced = fs::File::open(self.full(dir)).and_then(|d| d.sync_all());
        synced.map_err(|e| error(DiskOp::SyncDir, &self.text(dir), &e))
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let root = DiskPath::root();
        let stat = statvfs(&self.root).map_err(|e| error(DiskOp::FreeBytes, &self.text(&root), &e.into()))?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    #[cfg(target_os = "linux")]
    fn open_direct(&self, path: &DiskPath) -> Option<Box<dyn DirectFile>> {
        let ring = self.ring.get()?.clone();
        let file = open_direct(&self.full(path)).ok()?;
        Some(Box::new(RealDirectFile { file, ring, path: self.text(path) }))
    }

    #[cfg(target_os = "linux")]
    fn direct_signal(&self) -> Option<OwnedFd> {
        lock(self.ring.get()?).signal().ok()
    }
}

/// Opens an existing file whose writes bypass the page cache and are durable when they end.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path) -> io::Result<fs::File> {
    let flags = OFlags::DIRECT | OFlags::DSYNC;
    fs::OpenOptions::new().write(true).custom_flags(flags.bits().cast_signed()).open(path)
}

#[cfg(target_os = "linux")]
fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The ring is shared by all direct files of a disk; only the file that has begun a write may ask for its end.
#[cfg(target_os = "linux")]
struct RealDirectFile {
    file: fs::File,
    ring: Arc<Mutex<Ring>>,
    path: String,
}

#[cfg(target_os = "linux")]
impl DirectFile for RealDirectFile {
    fn begin(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let begun = lock(&self.ring).begin(&self.file, offset, from);
        begun.map_err(|e| error(DiskOp::Write, &self.path, &e))
    }

    fn poll(&mut self) -> Option<Result<(), DiskError>> {
        let ended = lock(&self.ring).poll()?;
        Some(ended.map_err(|e| error(DiskOp::Write, &self.path, &e)))
    }

    fn wait_at_most(&mut self, patience: Duration) -> Option<Result<(), DiskError>> {
        let ended = lock(&self.ring).wait_at_most(patience)?;
        Some(ended.map_err(|e| error(DiskOp::Write, &self.path, &e)))
    }

    fn wait(&mut self) -> Result<(), DiskError> {
        let ended = lock(&self.ring).wait();
        ended.map_err(|e| error(DiskOp::Write, &self.path, &e))
    }
}

struct RealFile {
    file: fs::File,
    path: String,
    syncs: Syncs,
    /// The file's current offset, where the next `writev` goes. Positioned vectored writes are not stable in the standard library, and a
    /// journal mostly continues where its last write ended.
    cursor: u64,
}

impl RealFile {
    fn write_slices(&mut self, offset: u64, from: &[IoSlice<'_>]) -> io::Result<()> {
        if self.cursor != offset {
            self.cursor = self.file.seek(SeekFrom::Start(offset))?;
        }
        for chunk in from.chunks(MAX_SLICES) {
            let mut owned = chunk.to_vec();
            let mut rest = owned.as_mut_slice();
            IoSlice::advance_slices(&mut rest, 0);
            while !rest.is_empty() {
                match self.file.write_vectored(rest) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(n) => {
                        self.cursor += n as u64;
                        IoSlice::advance_slices(&mut rest, n);
                    }
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(error(DiskOp::Read, &self.path, &e)),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let written = self.write_slices(offset, from);
        written.map_err(|e| {
            self.cursor = u64::MAX;
            error(DiskOp::Write, &self.path, &e)
        })
    }

    // fdatasync.
    fn sync_data(&mut self) -> Result<(), DiskError> {
        match self.syncs {
            Syncs::OffForTests => Ok(()),
            Syncs::Real => self.file.sync_data().map_err(|e| error(DiskOp::Sync, &self.path, &e)),
        }
    }

    fn forget_cached(&mut self) {
        // This is only advice: if the kernel ignores it, reads still come from the page cache.
        let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn set_len(&mut self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len).map_err(|e| error(DiskOp::SetLen, &self.path, &e))
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.metadata().map(|m| m.len()).map_err(|e| error(DiskOp::Read, &self.path, &e))
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_new_data_directory_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let root = folder.path().join("a").join("b");
        drop(RealDisk::open(&root, Syncs::Real).unwrap());
        assert_eq!((mode(&root), mode(&folder.path().join("a"))), (0o700, 0o700));
        // What an operator has set stays.
        fs::set_permissions(&root, fs::Permissions::from_mode(0o750)).unwrap();
        drop(RealDisk::open(&root, Syncs::Real).unwrap());
        assert_eq!(mode(&root), 0o750);
    }

    /// No other test sees whether the device's cache is flushed: a write that bypasses the page cache is in the file at once, without it,
    /// too.
    #[test]
    fn direct_writes_are_synced_writes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, []).unwrap();
        // Some file systems refuse it; then nothing is written directly.
        let Ok(file) = open_direct(&path) else { return };
        let flags = rustix::fs::fcntl_getfl(&file).unwrap();
        assert!(flags.contains(OFlags::DIRECT | OFlags::DSYNC), "{flags:?}");
    }
}
