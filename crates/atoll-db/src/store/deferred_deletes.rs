//! Removes the store's old files a piece at a time.
//!
//! The store merges its files and removes the old ones, hundreds of MiB at once. Where the file system discards the space that it
//! frees, every sync of the device waits meanwhile, including those of the journal: for a second or more. Each of the store's files
//! therefore gets a second name, in a separate folder. Once the store has removed its own name, which it does when nobody reads the
//! file any more, the file is truncated piece by piece from its end, and finally removed.
//!
//! The amount that waits there is bounded: a tenth of it is removed each second, in larger pieces where syncs are slow. At most 2
//! GiB are held back, and nothing on a disk that reports that it is full or has less free space than the waiting files would give:
//! then files are removed whole at the next look, since a slow disk is better than a full one. Files that the store removes between
//! two looks come on top, as does a file that the system refuses to give up.

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

/// In the folder of the store.
const FOLDER: &str = "removed";
/// Where the store removes more than 200 MiB a second for long, more would wait.
const BOUNDS: Bounds = Bounds { piece_bytes: 1024 * 1024, waiting_bytes: 2 * 1024 * 1024 * 1024 };
/// How often to look for new files. A file that lives for less time is removed at once.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// In this time, as much is removed as is left at its beginning, or a little less: the more there is, the faster it is removed,
/// however fast the store removes files.
const PACE: Duration = Duration::from_secs(10);
/// Between two pieces, at least.
const REST: Duration = Duration::from_millis(1);
/// A file that could not be truncated in this many looks (ten seconds) is removed whole, which asks less of the system.
const LOOKS_BEFORE_WHOLE: u32 = 50;

/// The thread that gives back what the store has removed. It ends when this is dropped; the next one continues with whatever is
/// left.
#[derive(Debug)]
pub(crate) struct DeferredDeletes {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DeferredDeletes {
    /// For a store that is open.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the system gives no thread.
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
            // No error ends it, and a panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// No error ends it: a file with a second name keeps its bytes for as long as nobody cuts it.
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
                    tracing::warn!(%error, "some files that the store removes go at once, and may hold up syncs, or stay for now");
                    warned = true;
                }
                None if warned => {
                    tracing::info!("files that the store removes go a piece at a time again");
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

/// What a disk has to bear. Tests pass smaller ones.
#[derive(Clone, Copy)]
struct Bounds {
    /// The size of a piece while little is left or the disk is fast: the larger a piece, the longer other syncs wait for it.
    piece_bytes: u64,
    /// How many bytes may wait for their turn. Anything beyond is removed in whole files.
    waiting_bytes: u64,
}

impl Bounds {
    fn pause(self, left_bytes: u64) -> Duration {
        match u32::try_from(left_bytes.div_ceil(self.piece_bytes)).unwrap_or(u32::MAX) {
            0 => LOOK_EVERY,
            pieces => (PACE / pieces).clamp(REST, LOOK_EVERY),
        }
    }

    /// As many bytes as the pace demands for the time since the last piece, including the time to sync that piece. One long wait,
    /// for whatever reason, is not made up for: the next piece would be huge.
    fn piece(self, left_bytes: u64, since_last: Duration) -> u64 {
        let due = u128::from(left_bytes) * since_last.min(LOOK_EVERY).as_nanos() / PACE.as_nanos();
        u64::try_from(due).unwrap_or(u64::MAX).max(self.piece_bytes)
    }
}

/// What a look has found.
#[derive(Debug, Default)]
struct Look {
    /// Files that only have their second name any more, with their lengths.
    left: Vec<(OsString, u64)>,
    /// The first thing that went wrong. What it was about is skipped until the next look.
    error: Option<io::Error>,
    /// The disk has reported that it is full: others need the space more than the waiting files do.
    is_full: bool,
}

impl Look {
    fn bytes(&self) -> u64 {
        self.left.iter().map(|(_, bytes)| bytes).sum()
    }

    /// The result, or a default and a note of the error. The store removes files meanwhile, so a missing file is no error.
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
    /// Files that the store has removed but that cannot be cut, with the number of looks in which that was so. They are kept apart,
    /// so that the other files do not wait for them.
    stuck: BTreeMap<OsString, u32>,
    /// The file system says how many names a file has. Where it does not, second names are no use.
    counts_names: bool,
    /// Of the disk, for those without privileges.
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
        // Any other file in this folder is not ours to remove.
        aside.names = aside.names.iter().filter(|name| aside.first_name(name).is_some()).cloned().collect();
        Ok(aside)
    }

    /// Where the store has the file of a second name: its log `N.jnl`, or table `N-M`, number M of tree N.
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

    /// Gives second names to new files; collects the files that have no other name any more. Failures are retried at the next look.
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
            // Somebody who removed the files may have removed the folder, too; then no file would ever get a second name again.
            look.pass(fs::create_dir_all(&self.folder));
        }
        // Less room than what waits would give.
        look.is_full |= (self.free_bytes)(&self.folder).is_some_and(|free| free < look.bytes());
        let (stuck, left) = look.left.into_iter().partition(|(name, _)| self.stuck.contains_key(name));
        look.left = left;
        for (name, bytes) in stuck {
            let rest = bytes.saturating_sub(self.bounds.piece_bytes);
            self.shorten(name, rest, &mut look);
        }
        look
    }

    /// The second names, given or not, of all that the store has, and of whatever else lies there.
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

    /// The length of a file that the store does not have any more.
    fn bytes_left(&self, name: &OsStr) -> io::Result<Option<u64>> {
        let meta = fs::symlink_metadata(self.folder.join(name))?;
        Ok((meta.nlink() == 1 && !self.is_stored(name, &meta)?).then_some(meta.len()))
    }

    /// Whether the store has this very file. The number of its names says so, too, where the file system counts right: nothing
    /// that is in use may ever be cut.
    fn is_stored(&self, name: &OsStr, meta: &Metadata) -> io::Result<bool> {
        let Some(first) = self.first_name(name) else { return Ok(true) };
        match fs::symlink_metadata(first) {
            Ok(stored) => Ok((stored.dev(), stored.ino()) == (meta.dev(), meta.ino())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a file its second name, if it is one to have such and has none.
    fn name(&mut self, name: OsString) -> io::Result<()> {
        let Some(first) = self.first_name(&name).filter(|_| self.counts_names && !self.names.contains(&name))
        else {
            return Ok(());
        };
        let second = self.folder.join(&name);
        // Not found: the store was faster.
        fs::hard_link(&first, &second)?;
        // Whatever happens from here on, the name exists.
        self.names.insert(name.clone());
        let meta = fs::symlink_metadata(&second)?;
        self.counts_names = meta.nlink() >= 2 || !self.is_stored(&name, &meta)?;
        Ok(())
    }

    /// Removes all second names: each of them keeps its file's bytes, and it cannot be known when to cut it. Files that the store
    /// has stay under their own names.
    fn let_go(&mut self, look: &mut Look) {
        for name in self.names.clone() {
            self.shorten(name, 0, look);
        }
        let unsupported = "the file system does not count the names of a file";
        look.pass(Err(io::Error::new(ErrorKind::Unsupported, unsupported)))
    }

    /// Takes a piece off the last files, or whole ones while too much waits.
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

    /// Leaves so much of a file, or nothing. Synced, so that the file system does not put the pieces together.
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
                // Report only the first failure, not every attempt.
                if failures == 0 {
                    tracing::warn!(file = %path.display(), %error, "a file that the store has removed stays for now");
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

/// What is in a folder, which may be gone.
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
