//! Encodes and decodes the files of cells. All numbers are little endian, and checksums are CRC32C.
//!
//! ```text
//! file    = header, padded to a block | slots
//! slot    = version 0 | version 1, each block_bytes << class long
//! header  = magic 8 | format u32 | block_bytes u32 | class u32 | 0 u32 | storage u128 | crc u32
//! version = head | key | value | zeros | tail in its last bytes
//! head    = magic 4 | crc u32 | turn u64 | stamp u64 | number u64 | synced_upto u64 | body crc u32 | value_bytes u32 | key_bytes u16
//!           | owner u8 | kind u8 | 0 u32
//! tail    = magic 4 | crc u32 | turn u64 | stamp u64
//! ```
//! The checksums of a version begin with the data directory's identity and the place of the version, so that a version that was written to
//! another place is not valid. The tail repeats what recovery needs to know about a version whose head is damaged: whether it was synced.

use atoll_core::{RoleKind, StorageId};

/// The version of cell files that this program writes, and the only one that it reads.
pub const CELL_FORMAT: u32 = 1;

const FILE_MAGIC: [u8; 8] = *b"ATOLCEL\n";
const HEAD_MAGIC: [u8; 4] = *b"CELL";
const TAIL_MAGIC: [u8; 4] = *b"TAIL";

/// No directory ever has as many writes.
const MOST: u64 = 1 << 62;
pub(crate) const FILE_HEADER_BYTES: usize = 44;
pub(crate) const HEAD_BYTES: usize = 56;
pub(crate) const TAIL_BYTES: usize = 24;

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The first block of a file of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub block_bytes: u32,
    pub class: u8,
    pub storage: StorageId,
}

/// Why a file's header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Damaged,
    Format(u32),
}

impl FileHeader {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        out.extend(FILE_MAGIC);
        out.extend(CELL_FORMAT.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        out.extend(u32::from(self.class).to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.storage.0.to_le_bytes());
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<FileHeader, BadHeader> {
        if bytes.len() < FILE_HEADER_BYTES || bytes[..8] != FILE_MAGIC {
            return Err(BadHeader::Damaged);
        }
        // The version is checked first, because another version may have a different layout after it.
        let format = u32_at(bytes, 8);
        if format != CELL_FORMAT {
            return Err(BadHeader::Format(format));
        }
        let crc_at = FILE_HEADER_BYTES - 4;
        if crc32c::crc32c(&bytes[..crc_at]) != u32_at(bytes, crc_at) {
            return Err(BadHeader::Damaged);
        }
        Ok(FileHeader {
            block_bytes: u32_at(bytes, 12),
            class: u8::try_from(u32_at(bytes, 16)).map_err(|_| BadHeader::Damaged)?,
            storage: StorageId(u128::from(u64_at(bytes, 24)) | u128::from(u64_at(bytes, 32)) << 64),
        })
    }
}

/// The initial value of the checksums of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    /// `side` is 0 or 1: the first or the second version of the slot.
    pub(crate) fn new(storage: StorageId, class: u8, slot: u32, side: u8) -> Seed {
        let storage = crc32c::crc32c(&storage.0.to_le_bytes());
        let [a, b, c, d] = slot.to_le_bytes();
        Seed(crc32c::crc32c_append(storage, &[class, side, a, b, c, d]))
    }
}

/// What a version says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The key has this value.
    Value,
    /// The key has no value any more.
    Deleted,
    /// The key lives in another slot now. This one says nothing about it.
    Released,
}

impl Kind {
    fn to_byte(self) -> u8 {
        match self {
            Kind::Value => 0,
            Kind::Deleted => 1,
            Kind::Released => 2,
        }
    }

    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Value, Kind::Deleted, Kind::Released].into_iter().find(|kind| kind.to_byte() == byte)
    }
}

/// A version without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// How many versions the slot has had, with this one. The version is on the side `turn % 2`.
    pub turn: u64,
    /// This version is synced if and only if the write with this number is. It is the version's own number, except in what recovery
    /// writes: that is synced before the next write.
    pub stamp: u64,
    /// The number of the write; of a release, the number of the last write before it.
    pub number: u64,
    /// All writes up to here were synced when this was written.
    pub synced_upto: u64,
    pub owner: RoleKind,
    pub kind: Kind,
    pub key_bytes: u16,
    pub value_bytes: u32,
}

impl Head {
    fn body_bytes(&self) -> usize {
        usize::from(self.key_bytes) + self.value_bytes as usize
    }

    /// Returns the bytes in front of the body and those at the end of the version.
    pub(crate) fn to_bytes(
        self,
        key: &[u8],
        value: &[u8],
        seed: Seed,
    ) -> ([u8; HEAD_BYTES], [u8; TAIL_BYTES]) {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&HEAD_MAGIC);
        head[8..16].copy_from_slice(&self.turn.to_le_bytes());
        head[16..24].copy_from_slice(&self.stamp.to_le_bytes());
        head[24..32].copy_from_slice(&self.number.to_le_bytes());
        head[32..40].copy_from_slice(&self.synced_upto.to_le_bytes());
        let body = crc32c::crc32c_append(crc32c::crc32c_append(seed.0, key), value);
        head[40..44].copy_from_slice(&body.to_le_bytes());
        head[44..48].copy_from_slice(&self.value_bytes.to_le_bytes());
        head[48..50].copy_from_slice(&self.key_bytes.to_le_bytes());
        head[50] = self.owner.0;
        head[51] = self.kind.to_byte();
        let crc = crc32c::crc32c_append(seed.0, &head[8..]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
        let mut tail = [0; TAIL_BYTES];
        tail[..4].copy_from_slice(&TAIL_MAGIC);
        tail[8..16].copy_from_slice(&self.turn.to_le_bytes());
        tail[16..24].copy_from_slice(&self.stamp.to_le_bytes());
        let crc = crc32c::crc32c_append(seed.0, &tail[8..]);
        tail[4..8].copy_from_slice(&crc.to_le_bytes());
        (head, tail)
    }

    fn parse(bytes: &[u8], seed: Seed) -> Option<Head> {
        if bytes[..4] != HEAD_MAGIC
            || crc32c::crc32c_append(seed.0, &bytes[8..HEAD_BYTES]) != u32_at(bytes, 4)
        {
            return None;
        }
        let head = Head {
            turn: u64_at(bytes, 8),
            stamp: u64_at(bytes, 16),
            number: u64_at(bytes, 24),
            synced_upto: u64_at(bytes, 32),
            owner: RoleKind(bytes[50]),
            kind: Kind::from_byte(bytes[51])?,
            key_bytes: u16_at(bytes, 48),
            value_bytes: u32_at(bytes, 44),
        };
        [head.turn, head.stamp, head.number].into_iter().all(|n| n < MOST).then_some(head)
    }
}

/// One side of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side<'a> {
    /// It was never written.
    Empty,
    /// It holds a whole version, because head and body say everything. The turn and the stamp in its tail are those of the head, unless
    /// a write was torn: of this version, or of a later one that has changed nothing but the end.
    Whole { head: Head, key: &'a [u8], value: &'a [u8], tail: Option<(u64, u64)> },
    /// It does not. What is left of head and tail names these turns and stamps, in no order.
    Damaged { told: [Option<(u64, u64)>; 2] },
}

impl Side<'_> {
    /// Returns whether a head or a tail shows that somebody wrote a version here.
    pub(crate) fn was_written(&self) -> bool {
        match self {
            Side::Empty => false,
            Side::Whole { .. } => true,
            Side::Damaged { told } => told.iter().any(Option::is_some),
        }
    }

    /// Decodes one side of a slot, which is at least a head and a tail long.
    pub(crate) fn parse(bytes: &[u8], seed: Seed) -> Side<'_> {
        let tail = &bytes[bytes.len() - TAIL_BYTES..];
        let head = Head::parse(bytes, seed);
        let is_tail = tail[..4] == TAIL_MAGIC && crc32c::crc32c_append(seed.0, &tail[8..]) == u32_at(tail, 4);
        let tail_told = is_tail.then(|| (u64_at(tail, 8), u64_at(tail, 16)));
        let head_told = head.map(|head| (head.turn, head.stamp));
        if let Some(head) = head
            && let Some((key, value)) = body(bytes, &head, seed)
        {
            return Side::Whole { head, key, value, tail: tail_told };
        }
        if head.is_none() && bytes[..HEAD_BYTES].iter().chain(tail).all(|byte| *byte == 0) {
            return Side::Empty;
        }
        Side::Damaged { told: [head_told, tail_told] }
    }
}

/// Returns key and value, if their checksum is right.
fn body<'a>(bytes: &'a [u8], head: &Head, seed: Seed) -> Option<(&'a [u8], &'a [u8])> {
    let end = HEAD_BYTES + head.body_bytes();
    if end > bytes.len() - TAIL_BYTES {
        return None;
    }
    let whole = &bytes[HEAD_BYTES..end];
    if crc32c::crc32c_append(seed.0, whole) != u32_at(bytes, 40) {
        return None;
    }
    Some(whole.split_at(head.key_bytes.into()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SEED: Seed = Seed(7);

    fn area(head: Head, key: &[u8], value: &[u8], seed: Seed) -> Vec<u8> {
        let mut area = vec![0; 512];
        let (front, tail) = head.to_bytes(key, value, seed);
        area[..HEAD_BYTES].copy_from_slice(&front);
        area[HEAD_BYTES..HEAD_BYTES + key.len()].copy_from_slice(key);
        area[HEAD_BYTES + key.len()..HEAD_BYTES + key.len() + value.len()].copy_from_slice(value);
        area[512 - TAIL_BYTES..].copy_from_slice(&tail);
        area
    }

    fn head(key: &[u8], value: &[u8]) -> Head {
        let (key_bytes, value_bytes) = (key.len() as u16, value.len() as u32);
        let (owner, kind) = (RoleKind(3), Kind::Value);
        Head { turn: 5, stamp: 9, number: 9, synced_upto: 8, owner, kind, key_bytes, value_bytes }
    }

    #[test]
    fn a_version_reads_back_where_it_was_written_and_nowhere_else() {
        let (key, value) = (b"key", b"value");
        let seed = Seed::new(StorageId(1), 2, 3, 1);
        let area = area(head(key, value), key, value, seed);
        assert_eq!(
            Side::parse(&area, seed),
            Side::Whole { head: head(key, value), key, value, tail: Some((5, 9)) }
        );
        let others = [(2, 2, 3, 1), (1, 1, 3, 1), (1, 2, 4, 1), (1, 2, 3, 0)];
        for (storage, class, slot, side) in others {
            let seed = Seed::new(StorageId(storage), class, slot, side);
            assert_eq!(Side::parse(&area, seed), Side::Damaged { told: [None, None] });
        }
        assert_eq!(Side::parse(&[0; 512], seed), Side::Empty);
    }

    /// A single wrong bit never hides which write a damaged version held, so recovery can tell rot from a torn write.
    #[test]
    fn a_flipped_bit_leaves_the_version_whole_or_its_number_known() {
        let (key, value) = (b"key", &[9; 300]);
        let whole = area(head(key, value), key, value, SEED);
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            match Side::parse(&damaged, SEED) {
                Side::Whole { head: found, key: k, value: v, .. } => {
                    assert_eq!((found, k, v), (head(key, value), &key[..], &value[..]), "bit {bit}");
                }
                Side::Damaged { told } => assert!(told.contains(&Some((5, 9))), "bit {bit}"),
                Side::Empty => panic!("bit {bit} empties it"),
            }
        }
    }

    #[test]
    fn lengths_beyond_the_version_are_damage() {
        let long = Head { value_bytes: u32::MAX, ..head(b"key", b"") };
        let area = area(long, b"key", b"", SEED);
        assert_eq!(Side::parse(&area, SEED), Side::Damaged { told: [Some((5, 9)); 2] });
    }

    #[test]
    fn headers_of_other_versions_and_damaged_ones_are_refused() {
        let header = FileHeader { block_bytes: 512, class: 3, storage: StorageId(77) };
        let bytes = header.to_bytes();
        assert_eq!(bytes.len(), FILE_HEADER_BYTES);
        assert_eq!(FileHeader::parse(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::parse(&damaged).is_err(), "bit {bit}");
        }
        let mut other = bytes;
        other[8] = 2;
        assert_eq!(FileHeader::parse(&other), Err(BadHeader::Format(2)));
    }
}
