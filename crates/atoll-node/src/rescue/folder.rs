//! The folder in which the new data directory grows, and the copies of the old ones.

use std::fs::{self, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_storage::{Identity, RealDisk, Syncs};

use super::error::RescueError;

/// What the name of the folder for the work ends with. It is beside the new data directory, so that the last step is a rename.
const WORK: &str = ".rescue";
/// A file that only folders for this work have.
const TAG: &str = "atoll-rescue";
/// The new data directory, while it grows.
const NEW: &str = "new";
/// Not copied: it belongs to the process that has the directory open.
const LOCK: &str = "lock";

/// An old data directory. It stays locked while this is there.
pub(super) struct Old {
    pub(super) path: PathBuf,
    pub(super) marker: Identity,
    bytes: u64,
    _lock: Arc<RealDisk>,
}

/// Locks the old data directories, and checks that they fit together and that the new cluster has a name of its own.
pub(super) fn lock_all(from: &[PathBuf], new_cluster: &str) -> Result<Vec<Old>, RescueError> {
    let mut all: Vec<Old> = Vec::new();
    for path in from {
        // Every data directory has this file, and opening another folder would create it there.
        if !path.join(LOCK).is_file() {
            return Err(RescueError::NoData(path.clone()));
        }
        let lock = RealDisk::open(path, Syncs::Real)?;
        let marker =
            Identity::read(&lock).map_err(|error| RescueError::Marker { path: path.clone(), error })?;
        let Some(marker) = marker else { return Err(RescueError::NoData(path.clone())) };
        if marker.cluster == new_cluster {
            return Err(RescueError::SameCluster(marker.cluster));
        }
        if let Some(first) = all.first().filter(|first| first.marker.cluster != marker.cluster) {
            let first = (first.path.clone(), first.marker.cluster.clone());
            return Err(RescueError::OtherCluster(first.0, first.1, path.clone(), marker.cluster));
        }
        if let Some(twin) = all.iter().find(|old| old.marker.node == marker.node) {
            return Err(RescueError::Twice(twin.path.clone(), path.clone(), marker.node));
        }
        let bytes = bytes_in(path)?;
        all.push(Old { path: path.clone(), marker, bytes, _lock: Arc::new(lock) });
    }
    Ok(all)
}

/// The folder in which the new data directory grows.
pub(super) struct Work {
    folder: PathBuf,
    into: PathBuf,
}

impl Work {
    /// Begins, and removes what an earlier rescue that did not end has left.
    pub(super) fn begin(into: &Path, old: &[Old]) -> Result<Self, RescueError> {
        if !is_empty(into) {
            return Err(RescueError::NotEmpty(into.to_owned()));
        }
        let mut name = into.file_name().unwrap_or_default().to_owned();
        name.push(WORK);
        let work = Work { folder: into.with_file_name(name), into: into.to_owned() };
        if work.folder.exists() {
            if !work.folder.join(TAG).is_file() && !is_empty(&work.folder) {
                return Err(RescueError::NotOurs(work.folder));
            }
            work.remove()?;
        }
        // As private as a data directory: it has copies of some.
        let private = fs::DirBuilder::new().recursive(true).mode(0o700).create(&work.folder);
        private.map_err(RescueError::file(&work.folder))?;
        File::create(work.folder.join(TAG)).map_err(RescueError::file(&work.folder))?;
        work.check_room(old)?;
        Ok(work)
    }

    /// The copies take as much as the old directories, and the new one about as much as the largest of them.
    fn check_room(&self, old: &[Old]) -> Result<(), RescueError> {
        let bytes = old.iter().map(|old| old.bytes);
        let needed = bytes.clone().sum::<u64>() + bytes.max().unwrap_or(0);
        let stat =
            rustix::fs::statvfs(&self.folder).map_err(|e| RescueError::file(&self.folder)(e.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        if free < needed {
            let path = self.folder.clone();
            self.remove()?;
            return Err(RescueError::NoRoom { path, needed, free });
        }
        Ok(())
    }

    /// Where the copy of an old directory is.
    pub(super) fn copy_of(&self, i: usize) -> PathBuf {
        self.folder.join(format!("copy-{i}"))
    }

    /// Where the new directory grows.
    pub(super) fn new_folder(&self) -> PathBuf {
        self.folder.join(NEW)
    }

    /// Gives the new directory its name, durably, and removes the copies.
    pub(super) fn finish(self) -> Result<(), RescueError> {
        sync_all(&self.new_folder())?;
        fs::rename(self.new_folder(), &self.into).map_err(RescueError::file(&self.into))?;
        sync_parent(&self.into)?;
        self.remove()
    }

    /// Removes everything.
    pub(super) fn discard(self) -> Result<(), RescueError> {
        self.remove()
    }

    fn remove(&self) -> Result<(), RescueError> {
        // The tag goes last, so that a later rescue knows the rest.
        for entry in fs::read_dir(&self.folder).map_err(RescueError::file(&self.folder))? {
            let path = entry.map_err(RescueError::file(&self.folder))?.path();
            if path.is_dir() {
                fs::remove_dir_all(&path).map_err(RescueError::file(&path))?;
            }
        }
        fs::remove_dir_all(&self.folder).map_err(RescueError::file(&self.folder))
    }
}

/// Whether nothing is in a folder, or it is not there.
fn is_empty(folder: &Path) -> bool {
    folder.read_dir().map_or_else(|_| !folder.exists(), |mut entries| entries.next().is_none())
}

/// Copies a data directory, durably. The old one is only read.
pub(super) fn copy(from: &Path, to: &Path) -> Result<(), RescueError> {
    copy_folder(from, to)?;
    let lock = to.join(LOCK);
    fs::remove_file(&lock).map_err(RescueError::file(&lock))
}

fn copy_folder(from: &Path, to: &Path) -> Result<(), RescueError> {
    fs::create_dir_all(to).map_err(RescueError::file(to))?;
    for entry in fs::read_dir(from).map_err(RescueError::file(from))? {
        let entry = entry.map_err(RescueError::file(from))?;
        let (old, new) = (entry.path(), to.join(entry.file_name()));
        if old.is_dir() {
            copy_folder(&old, &new)?;
        } else {
            fs::copy(&old, &new).map_err(RescueError::file(&old))?;
            File::open(&new).and_then(|file| file.sync_all()).map_err(RescueError::file(&new))?;
        }
    }
    sync_folder(to)
}

/// Moves a folder within the work.
pub(super) fn move_folder(from: &Path, to: &Path) -> Result<(), RescueError> {
    fs::rename(from, to).map_err(RescueError::file(from))?;
    sync_parent(to)
}

fn bytes_in(folder: &Path) -> Result<u64, RescueError> {
    let mut sum = 0;
    for entry in fs::read_dir(folder).map_err(RescueError::file(folder))? {
        let path = entry.map_err(RescueError::file(folder))?.path();
        sum += if path.is_dir() {
            bytes_in(&path)?
        } else {
            fs::metadata(&path).map_err(RescueError::file(&path))?.len()
        };
    }
    Ok(sum)
}

/// Returns when the newest file below a folder was written, in milliseconds since the Unix epoch.
pub(super) fn last_write_ms(folder: &Path) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    let of = |path: PathBuf| if path.is_dir() { last_write_ms(&path) } else { modified_ms(&path) };
    entries.filter_map(|entry| of(entry.path())).max()
}

fn modified_ms(path: &Path) -> Option<u64> {
    let at = fs::metadata(path).ok()?.modified().ok()?;
    u64::try_from(at.duration_since(std::time::UNIX_EPOCH).ok()?.as_millis()).ok()
}

/// Syncs a folder and all that is in it.
fn sync_all(folder: &Path) -> Result<(), RescueError> {
    for entry in fs::read_dir(folder).map_err(RescueError::file(folder))? {
        let path = entry.map_err(RescueError::file(folder))?.path();
        if path.is_dir() {
            sync_all(&path)?;
        } else {
            File::open(&path).and_then(|file| file.sync_all()).map_err(RescueError::file(&path))?;
        }
    }
    sync_folder(folder)
}

fn sync_folder(folder: &Path) -> Result<(), RescueError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(RescueError::file(folder))
}

fn sync_parent(path: &Path) -> Result<(), RescueError> {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => sync_folder(Path::new(".")),
        Some(parent) => sync_folder(parent),
        None => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_core::{NodeId, StorageId};

    fn data(root: &Path, name: &str, cluster: &str, node: u32) -> PathBuf {
        let path = root.join(name);
        let disk = RealDisk::open(&path, Syncs::OffForTests).unwrap();
        Identity::open(&disk, cluster, NodeId(node), || StorageId(node.into())).unwrap();
        fs::create_dir_all(path.join("database/deep")).unwrap();
        fs::write(path.join("database/deep/file"), name).unwrap();
        // The store has a lock of its own, which it needs.
        fs::write(path.join("database/lock"), "").unwrap();
        path
    }

    #[test]
    fn only_directories_of_one_cluster_and_different_nodes_are_taken() {
        let root = tempfile::tempdir().unwrap();
        let one = data(root.path(), "one", "reef", 1);
        let two = data(root.path(), "two", "reef", 2);
        let twin = data(root.path(), "twin", "reef", 1);
        let other = data(root.path(), "other", "atoll", 3);
        let lock = |from: &[&PathBuf], cluster| {
            let from: Vec<_> = from.iter().map(|p| (*p).clone()).collect();
            lock_all(&from, cluster).map(|all| all.len()).map_err(|e| e.to_string())
        };
        assert_eq!(lock(&[&one, &two], "new"), Ok(2));
        assert!(lock(&[&one, &twin], "new").unwrap_err().contains("both data directories of node 1"));
        assert!(lock(&[&one, &other], "new").unwrap_err().contains("belongs to cluster `reef`"));
        assert!(lock(&[&one], "reef").unwrap_err().contains("needs another name"));
        let nothing = root.path().join("nothing");
        assert!(lock(&[&nothing], "new").unwrap_err().contains("not the data directory"));
        assert!(!nothing.exists(), "nothing is created");
        fs::create_dir(&nothing).unwrap();
        assert!(lock(&[&nothing], "new").unwrap_err().contains("not the data directory"));
        assert_eq!(fs::read_dir(&nothing).unwrap().count(), 0, "nothing is created");
        let held = RealDisk::open(&one, Syncs::OffForTests).unwrap();
        assert!(lock(&[&one], "new").unwrap_err().contains("lock"), "a node runs on it");
        drop(held);
    }

    #[test]
    fn the_new_directory_gets_its_name_last_and_a_rest_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let one = data(root.path(), "one", "reef", 1);
        let into = root.path().join("new-data");
        let old = lock_all(std::slice::from_ref(&one), "new").unwrap();
        let work = Work::begin(&into, &old).unwrap();
        copy(&one, &work.copy_of(0)).unwrap();
        assert_eq!(fs::read(work.copy_of(0).join("database/deep/file")).unwrap(), b"one");
        assert!(!work.copy_of(0).join(LOCK).exists() && work.copy_of(0).join("database/lock").exists());
        assert!(!into.exists());
        drop(work); // As after a crash.
        let work = Work::begin(&into, &old).unwrap();
        assert!(!work.copy_of(0).exists());
        fs::create_dir(work.new_folder()).unwrap();
        fs::write(work.new_folder().join("node"), "n").unwrap();
        work.finish().unwrap();
        assert_eq!(fs::read(into.join("node")).unwrap(), b"n");
        let names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(matches!(Work::begin(&into, &old), Err(RescueError::NotEmpty(_))));
        let (taken, theirs) = (root.path().join("taken"), root.path().join(format!("taken{WORK}")));
        fs::create_dir(&theirs).unwrap();
        fs::write(theirs.join("file"), "theirs").unwrap();
        assert!(matches!(Work::begin(&taken, &old), Err(RescueError::NotOurs(_))));
        assert_eq!(fs::read(theirs.join("file")).unwrap(), b"theirs");
    }
}
