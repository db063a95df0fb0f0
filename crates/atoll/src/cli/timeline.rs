//! A file with the moment of each acknowledgement, for finding pauses.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::CliError;

/// Acknowledgements that are closer together share a line, in microseconds.
const SLOT_US: u128 = 100;

/// One line per moment: microseconds since 1970, and how many records were acknowledged then.
pub struct Timeline {
    file: File,
    what: String,
    began_us: u128,
    count: u64,
}

impl Timeline {
    /// A new file, or an old one emptied.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let what = path.display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Timeline { file, what, began_us: 0, count: 0 }),
            Err(error) => Err(CliError::File { what, error }),
        }
    }

    /// A record was acknowledged now.
    pub fn note(&mut self) -> Result<(), CliError> {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
        if now_us.saturating_sub(self.began_us) >= SLOT_US {
            self.write()?;
            self.began_us = now_us;
        }
        self.count += 1;
        Ok(())
    }

    /// Writes what was noted, without buffering: if this process is killed, the file still has all but the last line.
    pub fn write(&mut self) -> Result<(), CliError> {
        if self.count == 0 {
            return Ok(());
        }
        let line = format!("{} {}\n", self.began_us, self.count);
        self.count = 0;
        let what = || self.what.clone();
        self.file.write_all(line.as_bytes()).map_err(|error| CliError::File { what: what(), error })
    }
}
