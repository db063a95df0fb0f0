//! Removes the store's old files piece by piece.
//!
//! The store merges its files and removes the old ones, hundreds of MiB at once. If the file system discards the freed space, every
//! sync of the device, including those of the journal, waits for a second or more. Each of the store's files therefore gets a
//! second name in a separate folder. The store removes its own name when nobody reads the file any more. The file is then truncated
//! piece by piece from its end, and finally removed.
//!
//! The amount of waiting data is bounded. A tenth of it is removed each second, in larger pieces if syncs are slow, and at most 2
//! GiB wait. Nothing waits on a disk that reports that it is full, or that has less free space than the waiting files would
//! release: whole files are then removed at the next scan, because a slow disk is better than a full one. Two amounts are not
//! counted: files that the store removes between two scans, and files that the system refuses to remove.

#![allow(clippy::disallowed_types, clippy::disallowed_methods)] // A thread of its own and real time: this is about a real disk.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The name of the folder for second names, inside the folder of the store.
const FOLDER: &str = "removed";
/// Files beyond the 2 GiB are removed whole. The limit is reached if the store removes more than 200 MiB a second for long.
const BOUNDS: Bounds = Bounds { piece_bytes: 1024 * 1024, waiting_bytes: 2 * 1024 * 1024 * 1024 };
/// The interval between scans for new files. A file that exists for a shorter time gets no second name and is removed at once.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// In this time, about as much data is removed as was waiting at its beginning. The more data is waiting, the faster it is removed,
/// so the removal keeps up with the store.
const PACE: Duration = Duration::from_secs(10);
/// The minimum pause between two pieces.
const REST: Duration = Duration::from_millis(1);
/// A file that could not be truncated in this many scans (ten seconds) is removed whole, which the system may still allow.
const LOOKS_BEFORE_WHOLE: u32 = 50;

/// The thread that releases the space of the files that the store has removed. It ends when this is dropped. The next one continues
/// with the remaining files.
#[derive(Debug)]
pub(crate) struct DeferredDeletes {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DeferredDeletes {
    /// Starts the thread for a store that is open.
    ///
    /// # Errors
    /// The folder cannot be created or read, or the thread cannot be started.
    pub(crate) fn of(store: &Path) -> io::Result<Self> {
        let aside = Aside::open(store, BOUNDS)?;
        let (stop, stopped) = channel::<()>();
        let thread =
            std::thread::Builder::new().name("deferred-delete".into()).spawn(move || run(aside, &stopped))?;
        Ok(DeferredDeletes { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for DeferredDeletes {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The thread does not end with an error, and a panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Runs until it is stopped. No error ends it, because a file with a second name takes up space until it is removed.
fn run(mut aside: Aside, stopped: &Receiver<()>) {
    let mut look = Look::default();
    let mut next_look = Instant::now();
    let mut last_cut = Instant::now();
    let mut warned = false;
    loop {
        if Instant::now() >= next_look {
            look = aside.look();
            next_look = Instant::now() + LOOK_EVERY;
            match look.error.take() {
                Some(error) if !warned => {
                    tracing::warn!(%error, "some files that the store removes are deleted at once, which may delay syncs, or are kept for now");
                    warned = true;
                }
                None if warned => {
                    tracing::info!("files that the store removes are deleted piece by piece again");
                    warned = false;
                }
                _ => {}
            }
        }
        let pause = aside.bounds.pause(look.bytes());
        let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) else { return };
        let piece = aside.bounds.piece(look.bytes(), last_cut.elapsed());
        last_cut = Instant::now();
        aside.cut(&mut look, piece);
    }
}

/// Limits on the load of the disk. Tests use smaller ones.
#[derive(Clone, Copy)]
struct Bounds {
    /// The size of a piece while little data is waiting or the disk is fast. The larger a piece, the longer other syncs wait for
    /// it.
    piece_bytes: u64,
    /// The maximum number of waiting bytes. Anything beyond is removed in whole files.
    waiting_bytes: u64,
}

impl Bounds {
    fn pause(self, left_bytes: u64) -> Duration {
        match u32::try_from(left_bytes.div_ceil(self.piece_bytes)).unwrap_or(u32::MAX) {
            0 => LOOK_EVERY,
            pieces => (PACE / pieces).clamp(REST, LOOK_EVERY),
        }
    }

    /// Returns the size of the next piece: as many bytes as the pace requires for the time since the last piece, including the sync
    /// of that piece. A single long wait, whatever its reason, does not count in full, because the next piece would be huge.
    fn piece(self, left_bytes: u64, since_last: Duration) -> u64 {
        let due = u128::from(left_bytes) * since_last.min(LOOK_EVERY).as_nanos() / PACE.as_nanos();
        u64::try_from(due).unwrap_or(u64::MAX).max(self.piece_bytes)
    }
}

/// The result of a scan of the folder.
#[derive(Debug, Default)]
struct Look {
    /// Files that have only their second name left, with their lengths in bytes.
    left: Vec<(OsString, u64)>,
    /// The first error. The file concerned is skipped until the next scan.
    error: Option<io::Error>,
    /// The disk is full or nearly full, so the space of the waiting files is needed at once.
    is_full: bool,
}

impl Look {
    fn bytes(&self) -> u64 {
        self.left.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the value of a result. For an error, records it and returns the default value. A missing file is no error, because
    /// the store removes files meanwhile.
    fn pass<T: Default>(&mut self, result: io::Result<T>) -> T {
        result.unwrap_or_else(|error| {
            if error.kind() != ErrorKind::NotFound {
                self.is_full |= says_full(&error);
                self.error.get_or_insert(error);
            }
            T::default()
        })
    }
}

fn says_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The folder of second names.
struct Aside {
    store: PathBuf,
    folder: PathBuf,
    names: BTreeSet<OsString>,
    bounds: Bounds,
    /// Files that the store has removed but that cannot be truncated, with the number of scans in which this failed. They are kept
    /// separately, so that the other files do not wait for them.
    stuck: BTreeMap<OsString, u32>,
    /// Whether the file system reports how many names a file has. If it does not, second names are useless.
    counts_names: bool,
    /// Returns the free space of the disk, in bytes, for unprivileged processes.
    free_bytes: fn(&Path) -> Option<u64>,
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(folder).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

impl Aside {
    fn open(store: &Path, bounds: Bounds) -> io::Result<Self> {
        let folder = store.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let names = entries(&folder)?.iter().map(DirEntry::file_name).collect();
        let (store, stuck) = (store.to_owned(), BTreeMap::new());
        let mut aside = Aside { store, folder, names, bounds, stuck, counts_names: true, free_bytes };
        // Other files in this folder do not belong to the store and must not be removed.
        aside.names = aside.names.iter().filter(|name| aside.first_name(name).is_some()).cloned().collect();
        Ok(aside)
    }

    /// Returns the path under which the store has the file with this second name: `N.jnl` is its log, and `N-M` is table M of tree
    /// N. None if the name is neither.
    fn first_name(&self, name: &OsStr) -> Option<PathBuf> {
        let name = name.to_str()?;
        let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        if let Some(number) = name.strip_suffix(".jnl") {
            return is_number(number).then(|| self.store.join(name));
        }
        let (tree, table) = name.split_once('-')?;
        let both = is_number(tree) && is_number(table);
        both.then(|| self.store.join("keyspaces").join(tree).join("tables").join(table))
    }

    /// Gives second names to new files, and collects the files that have no other name left. Failures are retried at the next scan.
    fn look(&mut self) -> Look {
        let mut look = Look::default();
        for name in self.in_store(&mut look) {
            let named = self.name(name);
            look.pass(named);
        }
        if !self.counts_names {
            self.let_go(&mut look);
            return look;
        }
        let mut gone = Vec::new();
        for name in &self.names {
            match self.bytes_left(name) {
                Ok(Some(bytes)) => look.left.push((name.clone(), bytes)),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => gone.push(name.clone()),
                Err(error) => look.pass(Err(error)),
            }
        }
        if !gone.is_empty() {
            for name in gone {
                self.forget(&name);
            }
            // Whoever removed the files may have removed the folder, too. Without the folder, no file would get a second name
            // again.
            look.pass(fs::create_dir_all(&self.folder));
        }
        // The disk also counts as full if it has less free space than the waiting files would release.
        look.is_full |= (self.free_bytes)(&self.folder).is_some_and(|free| free < look.bytes());
        let (stuck, left) = look.left.into_iter().partition(|(name, _)| self.stuck.contains_key(name));
        look.left = left;
        for (name, bytes) in stuck {
            let rest = bytes.saturating_sub(self.bounds.piece_bytes);
            self.shorten(name, rest, &mut look);
        }
        look
    }

    /// Returns the second names, whether they exist or not, of all files in the store's folders, including files that are not the
    /// store's.
    fn in_store(&self, look: &mut Look) -> Vec<OsString> {
        let mut names: Vec<_> = look.pass(entries(&self.store)).iter().map(DirEntry::file_name).collect();
        for keyspace in look.pass(entries(&self.store.join("keyspaces"))) {
            for file in look.pass(entries(&keyspace.path().join("tables"))) {
                let mut name = keyspace.file_name();
                name.push("-");
                name.push(file.file_name());
                names.push(name);
            }
        }
        names
    }

    /// Returns the length of a file that the store no longer has, or None if the store still has it.
    fn bytes_left(&self, name: &OsStr) -> io::Result<Option<u64>> {
        let meta = fs::symlink_metadata(self.folder.join(name))?;
        Ok((meta.nlink() == 1 && !self.is_stored(name, &meta)?).then_some(meta.len()))
    }

    /// Returns true if the store still has this file. This is checked in addition to the number of names, in case the file system
    /// counts them wrong, because a file in use must never be truncated.
    fn is_stored(&self, name: &OsStr, meta: &Metadata) -> io::Result<bool> {
        let Some(first) = self.first_name(name) else { return Ok(true) };
        match fs::symlink_metadata(first) {
            Ok(stored) => Ok((stored.dev(), stored.ino()) == (meta.dev(), meta.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a file its second name, if the file is eligible and has none.
    fn name(&mut self, name: OsString) -> io::Result<()> {
        let Some(first) = self.first_name(&name).filter(|_| self.counts_names && !self.names.contains(&name))
        else {
            return Ok(());
        };
        let second = self.folder.join(&name);
        // If the file is not found, the store has already removed it.
        fs::hard_link(&first, &second)?;
        // The name exists from here on, even if the rest fails.
        self.names.insert(name.clone());
        let meta = fs::symlink_metadata(&second)?;
        self.counts_names = meta.nlink() >= 2 || !self.is_stored(&name, &meta)?;
        Ok(())
    }

    /// Removes all second names, because each of them keeps its file's space allocated, and it is unknown when the file can be
    /// truncated. Files that the store still has remain under their own names.
    fn let_go(&mut self, look: &mut Look) {
        for name in self.names.clone() {
            self.shorten(name, 0, look);
        }
        let unsupported = "the file system does not count the names of a file";
        look.pass(Err(io::Error::new(ErrorKind::Unsupported, unsupported)))
    }

    /// Truncates the last files by `piece` bytes in total, or removes whole files while too much is waiting.
    fn cut(&mut self, look: &mut Look, piece: u64) {
        let waiting_bytes = if look.is_full { 0 } else { self.bounds.waiting_bytes };
        let beyond = look.bytes().saturating_sub(waiting_bytes);
        let mut due = if beyond > 0 { beyond } else { piece };
        while due > 0
            && let Some((name, bytes)) = look.left.pop()
        {
            let rest = if beyond > 0 { 0 } else { bytes.saturating_sub(due) };
            due = due.saturating_sub(bytes);
            self.shorten(name, rest, look);
        }
    }

    /// Truncates a file to `rest` bytes, or removes it if that is 0. The truncation is synced, so that the file system does not
    /// combine several of them.
    fn shorten(&mut self, name: OsString, rest: u64, look: &mut Look) {
        let path = self.folder.join(&name);
        let failures = self.stuck.get(&name).copied().unwrap_or(0);
        let rest = if failures < LOOKS_BEFORE_WHOLE { rest } else { 0 };
        let done = match rest {
            0 => fs::remove_file(&path),
            _ => OpenOptions::new().write(true).open(&path).and_then(|file| {
                file.set_len(rest)?;
                file.sync_data()
            }),
        };
        match done {
            Ok(()) if rest > 0 => {
                self.stuck.remove(&name);
                look.left.push((name, rest));
            }
            Err(error) if error.kind() != ErrorKind::NotFound => {
                look.is_full |= says_full(&error);
                // Log only the first failure, not every attempt.
                if failures == 0 {
                    tracing::warn!(file = %path.display(), %error, "a file that the store has removed is kept for now");
                }
                self.stuck.insert(name, failures.saturating_add(1));
            }
            _ => self.forget(&name),
        }
    }

    fn forget(&mut self, name: &OsStr) {
        self.names.remove(name);
        self.stuck.remove(name);
    }
}

/// Returns the entries of a folder. If the folder does not exist, there are none.
fn entries(folder: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(folder) {
        Ok(entries) => entries.collect(),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[path = "deferred_deletes_test.rs"]
mod tests;
