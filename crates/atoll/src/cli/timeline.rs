//! A file with the time of each acknowledgement, to find pauses.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::CliError;

/// Acknowledgements that are closer together share a line, in microseconds.
const SLOT_US: u128 = 100;

/// A timeline: one line per slot, with microseconds since 1970 and the number of records acknowledged then.
pub struct Timeline {
    file: File,
    what: String,
    began_us: u128,
    count: u64,
}

impl Timeline {
    /// Creates the file, or empties an existing one.
    pub fn create(path: &Path) -> Result<Self, CliError> {
        let what = path.display().to_string();
        match File::create(path) {
            Ok(file) => Ok(Timeline { file, what, began_us: 0, count: 0 }),
            Err(error) => Err(CliError::File { what, error }),
        }
    }

    /// Notes that a record was acknowledged now.
    pub fn note(&mut self) -> Result<(), CliError> {
        let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros());
        if now_us.saturating_sub(self.began_us) >= SLOT_US {
            self.write()?;
            self.began_us = now_us;
        }
        self.count += 1;
        Ok(())
    }

    /// Writes the line of the current slot, without buffering. If this process is killed, the file lacks only the last line.
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
