//! The encoding of a log entry of the database, which holds commands of one proposer in order.
//!
//! Format 1, little endian: `magic [u8; 3] | format u8 | node u32 | incarnation u64 | since u64 | time_ms u64`, then for each
//! command `application u8 | version u8 | length u32 | bytes`, back to back. The client id and the entry's number are in the
//! entry's [`atoll_contract::OpId`]. Format 2 is for test builds of [`Level::NEXT`]: the level at which the entry was written,
//! `u16`, follows the time.

use atoll_contract::entry::MAX_ENTRY_BYTES;
use atoll_contract::{Entry, LogPos};
use atoll_core::testing::next_level;
use atoll_core::{Incarnation, Level, LevelRange, NodeId};
use atoll_log::{LogRead, Patched};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use atoll_contract::application::{AppId, Proposer};

use crate::part::{PART_HEADER_BYTES, PART_VERSION, PARTS, Part};

const MAGIC: [u8; 3] = [0xa7, b'd', b'b'];
const FIRST_FORMAT: u8 = 1;
const NEXT_FORMAT: u8 = 2;
const HEADER_BYTES: usize = 32;
const COMMAND_HEADER_BYTES: usize = 6;

/// The number of bytes that may follow the header in a later format.
const MORE_BYTES: usize = 2;

/// The maximum length of a command in one entry, in bytes. A longer one is cut into parts.
pub const MAX_COMMAND_BYTES: usize = MAX_ENTRY_BYTES - HEADER_BYTES - MORE_BYTES - COMMAND_HEADER_BYTES;

/// Returns the format of entries written at a level. It is also the highest format that a program with this highest level can read.
fn format_at(level: Level) -> u8 {
    if next_level(level) { NEXT_FORMAT } else { FIRST_FORMAT }
}

/// What an operator has done to an entry (virtuallog §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Surgery {
    /// It was excised: it keeps its name, and has no payload.
    Excised,
    /// Its payload was replaced.
    Replaced,
}

/// An entry as the log delivers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivered {
    /// The entry, with the name under which it was appended.
    pub(crate) entry: Entry,
    /// What an operator has done to it.
    pub(crate) surgery: Option<Surgery>,
}

impl From<Entry> for Delivered {
    fn from(entry: Entry) -> Self {
        Delivered { entry, surgery: None }
    }
}

impl Delivered {
    /// Returns the entries of a read.
    pub(crate) fn all(read: LogRead) -> Vec<Delivered> {
        let LogRead { first, entries, patched, .. } = read;
        let mut all: Vec<Delivered> = entries.into_iter().map(Delivered::from).collect();
        for Patched { at, op, excised, .. } in patched {
            let Some(it) = all.get_mut(at.since(first) as usize) else { continue };
            it.entry.op = op;
            it.surgery = Some(if excised { Surgery::Excised } else { Surgery::Replaced });
        }
        all
    }
}

/// The metadata of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) proposer: Proposer,
    /// No entry of this client id is below this position.
    pub(crate) since: LogPos,
    /// The proposer's wall clock, in milliseconds since the Unix epoch.
    pub(crate) time_ms: u64,
}

/// A command in an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Command {
    pub(crate) app: AppId,
    pub(crate) version: u8,
    pub(crate) bytes: Bytes,
}

/// Why bytes are not an entry that this program can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It does not belong to the database: something else appended it to the database's log. Every replica skips it.
    Foreign,
    /// A later version of this program wrote it, in this format.
    Newer(u8),
}

/// An entry under construction.
#[derive(Debug)]
pub(crate) struct EntryBuilder {
    bytes: BytesMut,
}

impl EntryBuilder {
    /// Begins an entry. `level`: the active level. `capacity`: the expected size of the commands, including their headers.
    pub(crate) fn new(header: &Header, capacity: usize, level: Level) -> Self {
        let format = format_at(level);
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + MORE_BYTES + capacity);
        bytes.put_slice(&MAGIC);
        bytes.put_u8(format);
        bytes.put_u32_le(header.proposer.node.0);
        bytes.put_u64_le(header.proposer.incarnation.0);
        bytes.put_u64_le(header.since.0);
        bytes.put_u64_le(header.time_ms);
        if format == NEXT_FORMAT {
            bytes.put_u16_le(level.0);
        }
        EntryBuilder { bytes }
    }

    /// Returns the size of a command in an entry, in bytes.
    pub(crate) fn size_of(command: &[u8]) -> usize {
        COMMAND_HEADER_BYTES + command.len()
    }

    /// Adds a command. The caller has checked its length against [`MAX_COMMAND_BYTES`].
    pub(crate) fn push(&mut self, app: AppId, version: u8, command: &[u8]) {
        self.bytes.reserve(COMMAND_HEADER_BYTES + command.len());
        self.bytes.put_u8(app.0);
        self.bytes.put_u8(version);
        self.bytes.put_u32_le(u32::try_from(command.len()).expect("commands are bounded"));
        self.bytes.put_slice(command);
    }

    /// Adds a part of a command. Nothing else may be in the entry.
    pub(crate) fn push_part(&mut self, part: &Part) {
        let length = PART_HEADER_BYTES + part.data.len();
        self.bytes.reserve(COMMAND_HEADER_BYTES + length);
        self.bytes.put_u8(PARTS.0);
        self.bytes.put_u8(PART_VERSION);
        self.bytes.put_u32_le(u32::try_from(length).expect("parts are bounded"));
        self.bytes.put_slice(&part.header());
        self.bytes.put_slice(&part.data);
    }

    pub(crate) fn finish(self) -> Bytes {
        self.bytes.freeze()
    }
}

/// Decodes an entry. The commands share its buffer.
pub(crate) fn parse(mut bytes: Bytes, reads: LevelRange) -> Result<(Header, Vec<Command>), Unreadable> {
    if bytes.len() < HEADER_BYTES || bytes[..3] != MAGIC {
        return Err(Unreadable::Foreign);
    }
    bytes.advance(3);
    let format = bytes.get_u8();
    match format {
        0 => return Err(Unreadable::Foreign),
        newer if newer > format_at(reads.highest) => return Err(Unreadable::Newer(newer)),
        _ => {}
    }
    let proposer =
        Proposer { node: NodeId(bytes.get_u32_le()), incarnation: Incarnation(bytes.get_u64_le()) };
    let header = Header { proposer, since: LogPos(bytes.get_u64_le()), time_ms: bytes.get_u64_le() };
    if format == NEXT_FORMAT {
        if bytes.len() < MORE_BYTES {
            return Err(Unreadable::Foreign);
        }
        bytes.advance(MORE_BYTES);
    }
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        if bytes.len() < COMMAND_HEADER_BYTES {
            return Err(Unreadable::Foreign);
        }
        let (app, version, length) = (AppId(bytes.get_u8()), bytes.get_u8(), bytes.get_u32_le() as usize);
        if length > bytes.len() {
            return Err(Unreadable::Foreign);
        }
        commands.push(Command { app, version, bytes: bytes.split_to(length) });
    }
    Ok((header, commands))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        let proposer = Proposer { node: NodeId(3), incarnation: Incarnation(9) };
        Header { proposer, since: LogPos(12), time_ms: 1_700_000_000_000 }
    }

    #[test]
    fn an_entry_reads_back_and_every_cut_is_no_entry() {
        let mut b = EntryBuilder::new(&header(), 0, Level::FIRST);
        b.push(AppId(1), 2, b"one");
        b.push(AppId(4), 1, b"");
        let bytes = b.finish();
        let (got, commands) = parse(bytes.clone(), LevelRange::OURS).expect("whole");
        assert_eq!(got, header());
        assert_eq!(commands.len(), 2);
        assert_eq!(
            (commands[0].app, commands[0].version, &commands[0].bytes[..]),
            (AppId(1), 2, &b"one"[..])
        );
        for n in 0..bytes.len() {
            let whole_commands = n == HEADER_BYTES || n == HEADER_BYTES + COMMAND_HEADER_BYTES + 3;
            assert_eq!(parse(bytes.slice(..n), LevelRange::OURS).is_err(), !whole_commands, "cut at {n}");
        }
    }

    #[test]
    fn a_later_format_is_told_from_what_is_foreign() {
        let mut bytes = EntryBuilder::new(&header(), 0, Level::FIRST).finish().to_vec();
        bytes[3] = NEXT_FORMAT + 1;
        assert_eq!(parse(bytes.into(), LevelRange::OURS), Err(Unreadable::Newer(NEXT_FORMAT + 1)));
        assert_eq!(parse(Bytes::from_static(b"hello"), LevelRange::OURS), Err(Unreadable::Foreign));
    }
}
