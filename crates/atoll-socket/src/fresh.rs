//! Values that are made from files, such as the certificates of a listener, and made again when the files change.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::{Duration, SystemTime};

/// How often the files are looked at.
const CHECKED_EVERY: Duration = Duration::from_secs(2);

/// What tells that a file is not the same any more: when it was written, its length, and its number in the file system. Tools that rotate
/// certificates often put another file in its place.
type Stamp = (Option<SystemTime>, u64, u64);

/// A value that is made from files. A thread of its own looks at them, because whoever needs the value must not wait for a disk. If they
/// cannot be used, for example because only one of a pair has been replaced yet, the value stays as it is, and the next look tries again.
#[derive(Debug)]
pub struct Fresh<T> {
    current: RwLock<Arc<T>>,
}

impl<T: Send + Sync + 'static> Fresh<T> {
    /// Makes the value from the files, and again whenever one of them changes, as long as somebody has it. `what` names it in log messages.
    ///
    /// # Errors
    /// The value cannot be made now.
    pub fn from_files<E: Display>(
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + 'static,
    ) -> Result<Arc<Fresh<T>>, E> {
        Fresh::checked_every(CHECKED_EVERY, what, files, make)
    }

    fn checked_every<E: Display>(
        every: Duration,
        what: &'static str,
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, E> + Send + 'static,
    ) -> Result<Arc<Fresh<T>>, E> {
        // Before the files are read: a change in between is found at the next look.
        let stamps = stamps(&files);
        let fresh = Arc::new(Fresh { current: RwLock::new(Arc::new(make()?)) });
        let watch = Watch { value: Arc::downgrade(&fresh), what, files, stamps, make, failed: None };
        let spawned = std::thread::Builder::new().name("files".to_owned()).spawn(move || watch.run(every));
        if let Err(error) = spawned {
            tracing::warn!(what, %error, "changes of the files are not noticed until the next start");
        }
        Ok(fresh)
    }

    /// Returns the value as it is now.
    pub fn get(&self) -> Arc<T> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Looks at the files of a value.
struct Watch<T, M> {
    value: Weak<Fresh<T>>,
    what: &'static str,
    files: Vec<PathBuf>,
    stamps: Vec<Stamp>,
    make: M,
    /// What was wrong with the files at the last look, so that it is reported once.
    failed: Option<String>,
}

impl<T, E: Display, M: Fn() -> Result<T, E>> Watch<T, M> {
    /// Runs until nobody has the value any more.
    fn run(mut self, every: Duration) {
        loop {
            std::thread::sleep(every);
            let Some(value) = self.value.upgrade() else { return };
            self.look(&value);
        }
    }

    fn look(&mut self, value: &Fresh<T>) {
        let now = stamps(&self.files);
        if now == self.stamps {
            return;
        }
        match (self.make)() {
            Ok(made) => {
                *value.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(made);
                self.stamps = now;
                self.failed = None;
                tracing::info!(what = self.what, "the files have changed and were read again");
            }
            Err(error) => {
                let error = error.to_string();
                if self.failed.as_ref() != Some(&error) {
                    tracing::warn!(what = self.what, %error, "the files have changed and cannot be used; what was read before stays in use");
                    self.failed = Some(error);
                }
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok();
        found.map_or((None, 0, 0), |found| (found.modified().ok(), found.len(), number_of(&found)))
    };
    files.iter().map(stamp).collect()
}

#[cfg(unix)]
fn number_of(file: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(file)
}

#[cfg(not(unix))]
fn number_of(_file: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A pair of files that only fit together if both have the same content.
    fn pair(files: &[PathBuf]) -> Result<String, String> {
        let [one, two] = [0, 1].map(|n: usize| std::fs::read_to_string(&files[n]).map_err(|e| e.to_string()));
        let (one, two) = (one?, two?);
        if one == two { Ok(one) } else { Err(format!("{one} is not {two}")) }
    }

    #[test]
    fn a_value_follows_its_files_as_soon_as_they_can_be_used() {
        let folder = tempfile::tempdir().unwrap();
        let files: Vec<_> = ["cert", "key"].iter().map(|name| folder.path().join(name)).collect();
        let write = |n: usize, content: &str| {
            let new = folder.path().join("new");
            std::fs::write(&new, content).unwrap();
            std::fs::rename(new, &files[n]).unwrap();
        };
        write(0, "1");
        let made = || {
            let its = files.clone();
            Fresh::checked_every(Duration::from_millis(1), "a pair", files.clone(), move || pair(&its))
        };
        assert!(made().is_err(), "without the second file");
        write(1, "1");
        let fresh = made().unwrap();
        assert_eq!(*fresh.get(), "1");
        let mut watch = {
            let (its, value) = (files.clone(), Arc::downgrade(&fresh));
            let stamps = stamps(&files);
            Watch {
                value,
                what: "a pair",
                files: files.clone(),
                stamps,
                make: move || pair(&its),
                failed: None,
            }
        };
        write(0, "2");
        watch.look(&fresh);
        assert_eq!((fresh.get().as_str(), watch.failed.as_deref()), ("1", Some("2 is not 1")));
        write(1, "2");
        watch.look(&fresh);
        assert_eq!((fresh.get().as_str(), &watch.failed), ("2", &None));
        std::fs::remove_file(&files[1]).unwrap();
        watch.look(&fresh);
        assert_eq!(*fresh.get(), "2", "files that are gone change nothing");
    }
}
