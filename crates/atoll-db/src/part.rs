//! Long commands. A command that does not fit into an entry of the log is cut into parts, one in each of consecutive entries of its
//! proposer. Replicas keep the parts in the state, and apply the command when they have applied the entry with the last part
//! (`replica/parts.rs`).
//!
//! In an entry, a part has the form of a command of the application [`PARTS`]. Its bytes, little endian:
//! `application u8 | version u8 | number u32 | parts u32 | length of the command u32`, then its piece of the command.

use bytes::{Buf, BufMut, Bytes};

use atoll_contract::application::AppId;

use crate::entry::{Command, MAX_COMMAND_BYTES};

/// The number under which parts are in entries and in the store. No application has it.
pub(crate) const PARTS: AppId = AppId(u8::MAX);
/// The version of this form.
pub(crate) const PART_VERSION: u8 = 1;
pub(crate) const PART_HEADER_BYTES: usize = 14;
/// The maximum length of a command that is cut into parts, in bytes. Replicas keep one such command of each node at a time, until its last
/// part.
pub const MAX_LONG_COMMAND_BYTES: usize = 17 * 1024 * 1024;
/// The maximum number of parts of a command.
pub(crate) const MAX_PARTS: u32 = 64 * 1024;
/// The maximum size of a part, so that it fits into an entry.
pub(crate) const MAX_PART_BYTES: usize = MAX_COMMAND_BYTES - PART_HEADER_BYTES;

/// A part of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The application of the command.
    pub(crate) app: AppId,
    /// The version of the command.
    pub(crate) version: u8,
    /// The number of the part, from 0.
    pub(crate) number: u32,
    /// The number of parts of the command.
    pub(crate) of: u32,
    /// The length of the command, in bytes.
    pub(crate) bytes: u32,
    /// This part of the command.
    pub(crate) data: Bytes,
}

impl Part {
    /// Returns the bytes that precede the data.
    pub(crate) fn header(&self) -> [u8; PART_HEADER_BYTES] {
        let mut header = [0; PART_HEADER_BYTES];
        let mut out = &mut header[..];
        out.put_u8(self.app.0);
        out.put_u8(self.version);
        out.put_u32_le(self.number);
        out.put_u32_le(self.of);
        out.put_u32_le(self.bytes);
        header
    }

    /// Returns the part in a command of [`PARTS`]. None if it is malformed.
    pub(crate) fn of(command: &Command) -> Option<Part> {
        let mut data = command.bytes.clone();
        if data.len() < PART_HEADER_BYTES {
            return None;
        }
        let (app, version) = (AppId(data.get_u8()), data.get_u8());
        let (number, of, bytes) = (data.get_u32_le(), data.get_u32_le(), data.get_u32_le());
        let is_valid = number < of && of <= MAX_PARTS && bytes as usize <= MAX_LONG_COMMAND_BYTES;
        is_valid.then_some(Part { app, version, number, of, bytes, data })
    }

    /// Returns whether it is the last part of its command.
    pub(crate) fn is_last(&self) -> bool {
        self.number + 1 == self.of
    }
}

/// Cuts a command into parts of about equal size.
#[derive(Debug)]
pub(crate) struct Cutter {
    app: AppId,
    version: u8,
    command: Bytes,
    each: usize,
    of: u32,
    next: u32,
}

impl Cutter {
    /// `part_bytes`: the size of a part, if that does not give too many of them. The caller has checked the length of the command
    /// against [`MAX_LONG_COMMAND_BYTES`].
    pub(crate) fn new(app: AppId, version: u8, command: Bytes, part_bytes: usize) -> Self {
        let least = command.len().div_ceil(MAX_PARTS as usize);
        let most = part_bytes.clamp(1, MAX_PART_BYTES).max(least);
        // Equal parts, so that none is so small that the node's thread would apply a whole long command.
        let each = command.len().div_ceil(command.len().div_ceil(most).max(1)).max(1);
        let of = u32::try_from(command.len().div_ceil(each).max(1)).unwrap_or(MAX_PARTS);
        Cutter { app, version, command, each, of, next: 0 }
    }

    /// Returns the length of the command, in bytes.
    pub(crate) fn command_bytes(&self) -> usize {
        self.command.len()
    }

    /// Returns the next part, or None after the last one.
    pub(crate) fn next(&mut self) -> Option<Part> {
        if self.next == self.of {
            return None;
        }
        let number = self.next;
        let from = (number as usize * self.each).min(self.command.len());
        let to = (from + self.each).min(self.command.len());
        self.next += 1;
        let bytes = u32::try_from(self.command.len()).expect("commands are bounded");
        let data = self.command.slice(from..to);
        Some(Part { app: self.app, version: self.version, number, of: self.of, bytes, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{EntryBuilder, Header, parse};
    use atoll_contract::LogPos;
    use atoll_contract::application::Proposer;
    use atoll_core::{Level, LevelRange};

    fn cut(length: usize, part_bytes: usize) -> Vec<Part> {
        let command = Bytes::from((0..length).map(|n| n as u8).collect::<Vec<_>>());
        let mut cutter = Cutter::new(AppId(3), 2, command, part_bytes);
        std::iter::from_fn(|| cutter.next()).collect()
    }

    #[test]
    fn the_parts_are_the_command_and_none_is_small() {
        for (length, part_bytes) in [
            (1, 1),
            (10, 3),
            (100, 99),
            (1_048_540, 512 * 1024),
            (MAX_LONG_COMMAND_BYTES, 1),
            (MAX_LONG_COMMAND_BYTES, usize::MAX),
        ] {
            let parts = cut(length, part_bytes);
            let whole: Vec<u8> = parts.iter().flat_map(|part| part.data.iter().copied()).collect();
            assert!(whole.iter().enumerate().all(|(n, byte)| *byte == n as u8) && whole.len() == length);
            let last = parts.last().map_or(0, |part| part.data.len());
            assert!(parts.iter().all(|part| part.data.len() <= MAX_PART_BYTES && part.data.len() >= last));
            assert!(
                parts.len() <= MAX_PARTS as usize && parts.iter().filter(|part| part.is_last()).count() == 1
            );
        }
        let least = cut(1_048_540, 512 * 1024).iter().map(|part| part.data.len()).min();
        assert!(least.is_some_and(|bytes| bytes > 500_000), "{least:?}");
    }

    #[test]
    fn a_part_reads_back_from_its_entry() {
        let header = Header { proposer: Proposer::default(), since: LogPos(1), time_ms: 7 };
        for part in cut(1000, 300) {
            let mut entry = EntryBuilder::new(&header, 0, Level::CURRENT);
            entry.push_part(&part);
            let (_, commands) = parse(entry.finish(), LevelRange::OURS).expect("whole");
            let [command] = &commands[..] else { panic!("{commands:?}") };
            assert_eq!((command.app, Part::of(command)), (PARTS, Some(part)));
            let short = Command { bytes: command.bytes.slice(..PART_HEADER_BYTES - 1), ..command.clone() };
            assert_eq!(Part::of(&short), None);
        }
    }
}
