//! The note in a data directory that was made from what a lost cluster had left: from which cluster, when, by whom and why.

use std::fmt::Write as _;

use crate::disk::{Disk, DiskError, DiskPath, read_all, replace};

/// The file name of the note.
const NOTE: &str = "rescued";
const NOTE_ASIDE: &str = "rescued.new";
const TITLE: &str = "atoll rescue";
const FORMAT: u32 = 1;
/// An upper limit for the length of a note, in bytes. A line for each log is within it.
const MAX_NOTE_BYTES: u64 = 64 << 20;
/// The longest name of an operator or a log, in bytes.
const MAX_NAME_BYTES: usize = 512;
/// The longest reason, in bytes.
const MAX_REASON_BYTES: usize = 4096;

/// What was kept of one log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptLog {
    /// Its name.
    pub name: String,
    /// The first readable position.
    pub trim: u64,
    /// The first position after what was kept. Entries that were acknowledged at or above it in the lost cluster are lost.
    pub end: u64,
}

/// See the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescueNote {
    /// The name of the lost cluster. Its nodes may never join this one with their data directories.
    pub from: String,
    /// When it was rescued, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who did it.
    pub operator: String,
    /// Why.
    pub reason: String,
    /// What was kept.
    pub logs: Vec<KeptLog>,
}

/// Why there is no note to read or write.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RescueNoteError {
    /// A disk operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The note cannot be parsed, or its checksum is wrong.
    #[error("the file `{NOTE}` is damaged: {0}")]
    Damaged(&'static str),
    /// Another version of the program wrote it.
    #[error("the file `{NOTE}` has format {0}, this program reads format {FORMAT}")]
    Format(u32),
    /// A text is empty or too long, or contains a control character.
    #[error(
        "{0}: 1 to {MAX_REASON_BYTES} bytes without control characters are allowed, for a name {MAX_NAME_BYTES}"
    )]
    Text(&'static str),
}

fn check(what: &'static str, text: &str, most: usize) -> Result<(), RescueNoteError> {
    let fine = !text.trim().is_empty() && text.len() <= most && !text.chars().any(char::is_control);
    if fine { Ok(()) } else { Err(RescueNoteError::Text(what)) }
}

impl RescueNote {
    /// Checks what people wrote.
    ///
    /// # Errors
    /// It cannot be noted.
    pub fn check_words(operator: &str, reason: &str) -> Result<(), RescueNoteError> {
        check("the operator", operator, MAX_NAME_BYTES)?;
        check("the reason", reason, MAX_REASON_BYTES)
    }

    /// Writes the note into a data directory. It is durable on return.
    ///
    /// # Errors
    /// A text cannot be noted, or the disk failed.
    pub fn write(&self, disk: &dyn Disk) -> Result<(), RescueNoteError> {
        RescueNote::check_words(&self.operator, &self.reason)?;
        for log in &self.logs {
            check("the name of a log", &log.name, MAX_NAME_BYTES)?;
        }
        replace(disk, &DiskPath::fixed(NOTE), &DiskPath::fixed(NOTE_ASIDE), self.to_text().as_bytes())?;
        Ok(())
    }

    /// Reads the note of a data directory. None if it was not made by a rescue.
    ///
    /// # Errors
    /// The note cannot be read.
    pub fn read(disk: &dyn Disk) -> Result<Option<Self>, RescueNoteError> {
        match read_all(disk, &DiskPath::fixed(NOTE), MAX_NOTE_BYTES) {
            Ok(Some(bytes)) => RescueNote::parse(&bytes).map(Some),
            Ok(None) => Err(RescueNoteError::Damaged("longer than a note can be")),
            Err(DiskError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn to_text(&self) -> String {
        let RescueNote { from, time_ms, operator, reason, logs } = self;
        let mut text = format!(
            "{TITLE}\nformat = {FORMAT}\nfrom = {from}\ntime_ms = {time_ms}\noperator = {operator}\nreason = {reason}\n"
        );
        for KeptLog { name, trim, end } in logs {
            // Writing to a string does not fail.
            let _ = writeln!(text, "log = {trim} {end} {name}");
        }
        let crc = crc32c::crc32c(text.as_bytes());
        let _ = writeln!(text, "crc32c = {crc:08x}");
        text
    }

    fn parse(bytes: &[u8]) -> Result<Self, RescueNoteError> {
        let damaged = RescueNoteError::Damaged;
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err(damaged("its first line is not a note's"));
        }
        let mut fields = lines.map(|line| line.split_once(" = ").unwrap_or((line, "")));
        let mut value =
            |key: &str| fields.next().filter(|(k, _)| *k == key).map(|(_, value)| value.to_owned());
        // The version is checked first, because another version may have a different layout after it.
        let format = value("format").and_then(|v| v.parse().ok()).ok_or(damaged("no format line"))?;
        if format != FORMAT {
            return Err(RescueNoteError::Format(format));
        }
        let from = value("from").ok_or(damaged("no line of the cluster"))?;
        let time_ms = value("time_ms").and_then(|v| v.parse().ok()).ok_or(damaged("no line of the time"))?;
        let operator = value("operator").ok_or(damaged("no line of the operator"))?;
        let reason = value("reason").ok_or(damaged("no line of the reason"))?;
        let mut logs = Vec::new();
        for (_, value) in fields.filter(|(key, _)| *key == "log") {
            let mut parts = value.splitn(3, ' ');
            let mut number = || parts.next()?.parse().ok();
            let (trim, end) = (number(), number());
            let (Some(trim), Some(end), Some(name)) = (trim, end, parts.next()) else {
                return Err(damaged("a line of a log"));
            };
            logs.push(KeptLog { name: name.to_owned(), trim, end });
        }
        let note = RescueNote { from, time_ms, operator, reason, logs };
        // There is only one way to write each note, so anything else in the file is damage.
        if note.to_text() != text {
            return Err(damaged("its checksum is wrong"));
        }
        Ok(note)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::disk::Open;
    use crate::mem_disk::MemDisk;

    fn note() -> RescueNote {
        let log = |name: &str, trim, end| KeptLog { name: name.to_owned(), trim, end };
        RescueNote {
            from: "reef".into(),
            time_ms: 1234,
            operator: "ann".into(),
            reason: "two racks burnt = gone".into(),
            logs: vec![log("db", 5, 99), log("a log", 0, 0)],
        }
    }

    #[test]
    fn it_is_durable_and_reads_back() {
        let disk = MemDisk::new();
        assert_eq!(RescueNote::read(&disk), Ok(None));
        note().write(&disk).unwrap();
        disk.crash(&mut || false);
        assert_eq!(RescueNote::read(&disk), Ok(Some(note())));
    }

    #[test]
    fn damage_is_found_in_every_bit() {
        let disk = MemDisk::new();
        note().write(&disk).unwrap();
        for offset in 0..note().to_text().len() as u64 {
            for bit in 0..8 {
                let damaged = disk.fork();
                assert!(damaged.flip_bit(&DiskPath::fixed(NOTE), offset, bit));
                assert!(RescueNote::read(&damaged).is_err(), "byte {offset} bit {bit}");
            }
        }
        let mut later = disk.open(&DiskPath::fixed(NOTE), Open::Create).unwrap();
        let text = format!("{TITLE}\nformat = 2\n");
        later.write_at(0, &[std::io::IoSlice::new(text.as_bytes())]).unwrap();
        assert_eq!(RescueNote::read(&disk), Err(RescueNoteError::Format(2)));
    }

    #[test]
    fn words_that_would_break_the_note_are_refused() {
        let disk = MemDisk::new();
        for reason in ["", "  ", "a\nlog = 1 2 b", &"x".repeat(MAX_REASON_BYTES + 1)] {
            let bad = RescueNote { reason: reason.to_owned(), ..note() };
            assert_eq!(bad.write(&disk), Err(RescueNoteError::Text("the reason")));
        }
        assert_eq!(RescueNote::check_words("a\u{1b}", "why"), Err(RescueNoteError::Text("the operator")));
        assert_eq!(RescueNote::read(&disk), Ok(None));
    }
}
