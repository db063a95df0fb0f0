//! What the store removes goes a piece at a time.
//!
//! The store merges its files and removes the old ones, hundreds of MiB at once. Where the file system discards what it frees, every
//! sync of the device waits meanwhile, those of the journal too: a second and more. So each of the store's files has a second name, in a
//! folder aside. Once the store has removed its own, which it does when nobody reads the file any more, the file is cut off from its end,
//! and goes.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// In the folder of the store.
const FOLDER: &str = "removed";
/// What a file loses at once.
const PIECE_BYTES: u64 = 1024 * 1024;
/// How often new files are looked for. One that lives shorter is removed at once.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// In this time as much goes as is left at its beginning, or a little less: the more there is, the faster it goes, however fast the store
/// removes.
const PACE: Duration = Duration::from_secs(10);
/// Between two pieces, at least.
const REST: Duration = Duration::from_millis(1);

/// The thread that gives back what the store has removed. It ends when this is dropped, and what is left is left for the next one.
#[derive(Debug)]
pub(crate) struct Leftovers {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Leftovers {
    /// For a store that is open.
    ///
    /// # Errors
    /// The folder cannot be made or read, or the system gives no thread.
    pub(crate) fn of(store: &Path) -> io::Result<Self> {
        let mut aside = Aside::open(store)?;
        let (stop, stopped) = channel::<()>();
        let thread = std::thread::Builder::new().name("leftovers".into()).spawn(move || {
            let mut left = Vec::new();
            let mut since_look = LOOK_EVERY;
            loop {
                if since_look >= LOOK_EVERY {
                    since_look = Duration::ZERO;
                    left = match aside.look() {
                        Ok(left) => left,
                        Err(error) => {
                            tracing::warn!(%error, "files that the store removes go at once, and may hold up syncs");
                            return;
                        }
                    };
                }
                let pause = pause_before(left.iter().map(|(_, bytes)| bytes).sum());
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => since_look += pause,
                    _ => return,
                }
                if let Err(error) = aside.cut(&mut left) {
                    tracing::warn!(%error, "a file that the store has removed stays for now");
                    left.clear();
                }
            }
        })?;
        Ok(Leftovers { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Leftovers {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It has told already why it ended.
            let _ = thread.join();
        }
    }
}

fn pause_before(left_bytes: u64) -> Duration {
    match u32::try_from(left_bytes.div_ceil(PIECE_BYTES)).unwrap_or(u32::MAX) {
        0 => LOOK_EVERY,
        pieces => (PACE / pieces).clamp(REST, LOOK_EVERY),
    }
}

/// The folder of second names.
struct Aside {
    store: PathBuf,
    folder: PathBuf,
    names: BTreeSet<OsString>,
}

impl Aside {
    fn open(store: &Path) -> io::Result<Self> {
        let folder = store.join(FOLDER);
        fs::create_dir_all(&folder)?;
        let names = entries(&folder)?.iter().map(DirEntry::file_name).collect();
        let mut aside = Aside { store: store.to_owned(), folder, names };
        // Whatever else lies here is not ours to remove.
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

    /// Gives second names to new files; those that have no other any more, with their lengths.
    fn look(&mut self) -> io::Result<Vec<(OsString, u64)>> {
        for file in entries(&self.store)? {
            self.name(file.file_name())?;
        }
        for keyspace in entries(&self.store.join("keyspaces"))? {
            for file in entries(&keyspace.path().join("tables"))? {
                let mut name = keyspace.file_name();
                name.push("-");
                name.push(file.file_name());
                self.name(name)?;
            }
        }
        let mut left = Vec::new();
        for name in &self.names {
            let meta = fs::symlink_metadata(self.folder.join(name))?;
            if meta.nlink() == 1 && !self.is_stored(name, &meta)? {
                left.push((name.clone(), meta.len()));
            }
        }
        Ok(left)
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
        let Some(first) = self.first_name(&name).filter(|_| !self.names.contains(&name)) else {
            return Ok(());
        };
        let second = self.folder.join(&name);
        match fs::hard_link(&first, &second) {
            Ok(()) if fs::symlink_metadata(&second)?.nlink() < 2 && first.exists() => {
                fs::remove_file(&second)?;
                Err(io::Error::new(
                    ErrorKind::Unsupported,
                    "the file system does not count the names of a file",
                ))
            }
            Ok(()) => {
                self.names.insert(name);
                Ok(())
            }
            // The store was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Takes a piece off the last file, or removes what is left of it. Synced, so that the file system does not put the pieces together.
    fn cut(&mut self, left: &mut Vec<(OsString, u64)>) -> io::Result<()> {
        let Some((name, bytes)) = left.last_mut() else { return Ok(()) };
        let path = self.folder.join(&*name);
        *bytes = bytes.saturating_sub(PIECE_BYTES);
        if *bytes > 0 {
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(*bytes)?;
            return file.sync_data();
        }
        fs::remove_file(path)?;
        self.names.remove(&*name);
        left.pop();
        Ok(())
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
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn bytes_in(folder: &Path) -> Vec<(OsString, u64)> {
        let mut found: Vec<_> =
            entries(folder).unwrap().iter().map(|e| (e.file_name(), e.metadata().unwrap().len())).collect();
        found.sort();
        found
    }

    #[test]
    fn a_file_goes_in_pieces_once_the_store_has_removed_it_and_never_before() {
        let dir = tempfile::tempdir().unwrap();
        let tables = dir.path().join("keyspaces/0/tables");
        fs::create_dir_all(&tables).unwrap();
        fs::write(tables.join("7"), vec![1; 3 * MIB]).unwrap();
        fs::write(dir.path().join("0.jnl"), vec![2; MIB]).unwrap();
        fs::write(dir.path().join("version"), b"3").unwrap();
        let mut aside = Aside::open(dir.path()).unwrap();
        assert_eq!(aside.look().unwrap(), [], "the store has them all");
        let all = [("0-7".into(), 3 * MIB as u64), ("0.jnl".into(), MIB as u64)];
        assert_eq!(bytes_in(&aside.folder), all);
        fs::remove_file(tables.join("7")).unwrap();
        let mut left = aside.look().unwrap();
        assert_eq!(left, [("0-7".into(), 3 * MIB as u64)]);
        aside.cut(&mut left).unwrap();
        assert_eq!(left, [("0-7".into(), 2 * MIB as u64)]);

        // The next life finds a part, and another file by the same name, which waits for its turn; and one that is nobody's.
        fs::write(tables.join("7"), b"new").unwrap();
        fs::write(aside.folder.join("7"), b"a stranger").unwrap();
        let mut aside = Aside::open(dir.path()).unwrap();
        let mut left = aside.look().unwrap();
        assert_eq!(left, [("0-7".into(), 2 * MIB as u64)]);
        while !left.is_empty() {
            aside.cut(&mut left).unwrap();
        }
        assert_eq!(fs::read(tables.join("7")).unwrap(), b"new");
        assert_eq!(aside.look().unwrap(), []);
        let all = [("0-7".into(), 3), ("0.jnl".into(), MIB as u64), ("7".into(), 10)];
        assert_eq!(bytes_in(&aside.folder), all);
    }

    /// As some file systems do for all of their files.
    #[test]
    fn a_file_that_the_store_has_is_not_cut_whatever_the_count_of_its_names() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("3.jnl"), b"in use").unwrap();
        let mut aside = Aside::open(dir.path()).unwrap();
        assert_eq!(aside.look().unwrap(), []);
        let name = OsStr::new("3.jnl");
        let meta = fs::symlink_metadata(aside.folder.join(name)).unwrap();
        assert!(aside.is_stored(name, &meta).unwrap());
        let other = fs::symlink_metadata(dir.path()).unwrap();
        assert!(!aside.is_stored(name, &other).unwrap());
        fs::remove_file(dir.path().join("3.jnl")).unwrap();
        assert!(!aside.is_stored(name, &meta).unwrap());
    }

    #[test]
    fn the_more_is_left_the_faster_it_goes() {
        assert_eq!(pause_before(0), LOOK_EVERY);
        assert_eq!(pause_before(1), LOOK_EVERY);
        assert_eq!(pause_before(1000 * PIECE_BYTES), PACE / 1000);
        assert_eq!(pause_before(u64::MAX), REST);
    }
}
