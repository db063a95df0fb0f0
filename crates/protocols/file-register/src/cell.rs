//! One file's content, replaced as a whole.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::MAX_CONTENT_BYTES;

/// A cell cannot be read or replaced; the reason names the file.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {doing}: {error}")]
pub struct CellError {
    /// The file.
    pub path: PathBuf,
    /// The step that failed.
    pub doing: &'static str,
    /// The error of the operating system.
    pub error: std::io::Error,
}

/// Bytes that are replaced atomically and durably.
pub trait Cell: Send {
    /// Returns the content; None if it was never written.
    fn load(&self) -> Result<Option<Bytes>, CellError>;

    /// Replaces the content. On `Ok`, the new content is durable. After an error, or a crash during the call, the cell holds either the
    /// old or the new content, complete.
    fn replace(&mut self, content: &[u8]) -> Result<(), CellError>;
}

/// A [`Cell`] in a file. A replacement writes a temporary file, syncs it, renames it over the old one, and syncs the folder.
#[derive(Debug)]
pub struct FileCell {
    path: PathBuf,
    aside: PathBuf,
}

impl FileCell {
    /// Creates a cell in the file at this path, whose folder must exist. Reads and writes nothing yet. A file that an earlier crash left
    /// beside it is ignored, and overwritten by the next replacement.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let mut aside = path.clone().into_os_string();
        aside.push(".new");
        FileCell { path, aside: aside.into() }
    }

    fn failed(&self, doing: &'static str) -> impl Fn(std::io::Error) -> CellError {
        let path = self.path.clone();
        move |error| CellError { path: path.clone(), doing, error }
    }

    fn folder(&self) -> &Path {
        match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        }
    }
}

impl Cell for FileCell {
    fn load(&self) -> Result<Option<Bytes>, CellError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.failed("open")(e)),
        };
        let mut content = Vec::new();
        // One byte more than the limit is enough to detect content that is too long.
        file.take(MAX_CONTENT_BYTES as u64 + 1).read_to_end(&mut content).map_err(self.failed("read"))?;
        Ok(Some(content.into()))
    }

    fn replace(&mut self, content: &[u8]) -> Result<(), CellError> {
        let mut file = File::create(&self.aside).map_err(self.failed("create aside"))?;
        file.write_all(content).map_err(self.failed("write aside"))?;
        // Sync before the rename: otherwise a crash could leave the name on a file without content.
        file.sync_all().map_err(self.failed("sync aside"))?;
        fs::rename(&self.aside, &self.path).map_err(self.failed("rename over"))?;
        // The rename itself is durable only with its folder.
        File::open(self.folder()).and_then(|f| f.sync_all()).map_err(self.failed("sync folder"))
    }
}
