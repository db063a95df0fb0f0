//! Encodes and decodes segments. All numbers are little endian; blocks are [`crate::JournalOptions::block_bytes`] long.
//!
//! ```text
//! segment = header, padded to a block | batches, each from a block's start | ... | footer in the last block, once closed
//! header  = magic 8 | format u32 | block_bytes u32 | generation u64 | floor u64 | storage u128 | crc u32
//! batch   = magic 4 | crc u32 | offset u32 | count u32 | body_bytes u32 | 0 u32 | first_lsn u64 | synced_upto u64 | records
//! record  = crc u32 | len u32 | lsn u64 | owner u8 | kind u8 | 0 u16 | head_len u32 | head | payload
//! footer  = magic 4 | crc u32 | end u32 | 0 u32 | first_lsn u64 | last_lsn u64 | synced_upto u64
//! ```
//! Checksums are CRC32C. Those of batches, records and footers begin with the data directory's identity and the segment's
//! generation, so that what an earlier use of the file left behind never looks valid (native-T9). They protect against accidents, and not
//! against a client that knows both and forges bytes in its payloads: see `evidence.rs`.

use atoll_core::{Loc, Lsn, Record, RecordKind, RoleKind, StorageId, Stored};
use bytes::Bytes;

/// The version of segments that this program writes. Its bytes are laid out as in version 1, but a manifest lists the segments.
pub const SEGMENT_FORMAT: u32 = 2;
/// The version from before there was a manifest. This program reads it, too.
pub(crate) const UNLISTED_FORMAT: u32 = 1;

const SEGMENT_MAGIC: [u8; 8] = *b"ATOLSEG\n";
const BATCH_MAGIC: [u8; 4] = *b"BTCH";
const FOOTER_MAGIC: [u8; 4] = *b"FOOT";

pub(crate) const SEGMENT_HEADER_BYTES: usize = 52;
pub(crate) const BATCH_HEADER_BYTES: usize = 40;
pub(crate) const RECORD_HEADER_BYTES: usize = 24;
pub(crate) const FOOTER_BYTES: usize = 40;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// The initial value of every checksum in a segment, except the one in the segment's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    pub(crate) fn new(storage: StorageId, generation: u64) -> Seed {
        let storage = crc32c::crc32c(&storage.0.to_le_bytes());
        Seed(crc32c::crc32c_append(storage, &generation.to_le_bytes()))
    }
}

/// The first block of a segment. It is durable before the file gets a segment's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub format: u32,
    pub block_bytes: u32,
    pub generation: u64,
    /// Everything up to here was synced, in other segments, when this was written. No record in this segment has a number up to this one.
    pub floor: Lsn,
    pub storage: StorageId,
}

/// Why a segment's header was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BadHeader {
    Damaged,
    Format(u32),
}

impl SegmentHeader {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SEGMENT_HEADER_BYTES);
        out.extend(SEGMENT_MAGIC);
        out.extend(self.format.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        out.extend(self.generation.to_le_bytes());
        out.extend(self.floor.0.to_le_bytes());
        out.extend(self.storage.0.to_le_bytes());
        out.extend(crc32c::crc32c(&out).to_le_bytes());
        out
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<SegmentHeader, BadHeader> {
        if bytes.len() < SEGMENT_HEADER_BYTES || bytes[..8] != SEGMENT_MAGIC {
            return Err(BadHeader::Damaged);
        }
        // The version is checked first, because another version may have a different layout after it.
        let format = u32_at(bytes, 8);
        if format != SEGMENT_FORMAT && format != UNLISTED_FORMAT {
            return Err(BadHeader::Format(format));
        }
        let crc_at = SEGMENT_HEADER_BYTES - 4;
        if crc32c::crc32c(&bytes[..crc_at]) != u32_at(bytes, crc_at) {
            return Err(BadHeader::Damaged);
        }
        Ok(SegmentHeader {
            format,
            block_bytes: u32_at(bytes, 12),
            generation: u64_at(bytes, 16),
            floor: Lsn(u64_at(bytes, 24)),
            storage: StorageId(u128::from(u64_at(bytes, 32)) | u128::from(u64_at(bytes, 40)) << 64),
        })
    }
}

/// The header of a batch, in front of its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    /// The offset of the batch itself: a batch that was written to another offset is not valid.
    pub offset: u32,
    /// The number of records; 0 in a mark, which only carries `synced_upto`.
    pub count: u32,
    /// Bytes of all records, without padding.
    pub body_bytes: u32,
    /// The number of the first record; in a mark, of the next record that will be written.
    pub first_lsn: Lsn,
    /// Everything up to here was synced when this was written (native-T9).
    pub synced_upto: Lsn,
}

impl BatchHeader {
    pub(crate) fn to_bytes(&self, seed: Seed) -> [u8; BATCH_HEADER_BYTES] {
        let mut out = [0; BATCH_HEADER_BYTES];
        out[..4].copy_from_slice(&BATCH_MAGIC);
        out[8..12].copy_from_slice(&self.offset.to_le_bytes());
        out[12..16].copy_from_slice(&self.count.to_le_bytes());
        out[16..20].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[24..32].copy_from_slice(&self.first_lsn.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.synced_upto.0.to_le_bytes());
        let crc = crc32c::crc32c_append(seed.0, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the header at `offset` in a segment, if there is a valid one.
    pub(crate) fn parse(segment: &[u8], offset: usize, seed: Seed) -> Option<BatchHeader> {
        let bytes = segment.get(offset..offset.checked_add(BATCH_HEADER_BYTES)?)?;
        if bytes[..4] != BATCH_MAGIC || crc32c::crc32c_append(seed.0, &bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        let header = BatchHeader {
            offset: u32_at(bytes, 8),
            count: u32_at(bytes, 12),
            body_bytes: u32_at(bytes, 16),
            first_lsn: Lsn(u64_at(bytes, 24)),
            synced_upto: Lsn(u64_at(bytes, 32)),
        };
        let sane = header.offset as usize == offset
            && header.synced_upto < header.first_lsn
            && header.first_lsn.0.checked_add(header.count.into()).is_some();
        sane.then_some(header)
    }
}

/// The last block of a closed segment. It says where the batches end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    /// The offset after the last batch, on a block boundary.
    pub end: u32,
    pub first_lsn: Lsn,
    pub last_lsn: Lsn,
    pub synced_upto: Lsn,
}

impl Footer {
    pub(crate) fn to_bytes(&self, seed: Seed) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        out[..4].copy_from_slice(&FOOTER_MAGIC);
        out[8..12].copy_from_slice(&self.end.to_le_bytes());
        out[16..24].copy_from_slice(&self.first_lsn.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.last_lsn.0.to_le_bytes());
        out[32..40].copy_from_slice(&self.synced_upto.0.to_le_bytes());
        let crc = crc32c::crc32c_append(seed.0, &out[8..]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Returns the footer in a segment's last block, if there is a valid one.
    pub(crate) fn parse(bytes: &[u8], seed: Seed) -> Option<Footer> {
        let bytes = bytes.get(..FOOTER_BYTES)?;
        if bytes[..4] != FOOTER_MAGIC || crc32c::crc32c_append(seed.0, &bytes[8..]) != u32_at(bytes, 4) {
            return None;
        }
        Some(Footer {
            end: u32_at(bytes, 8),
            first_lsn: Lsn(u64_at(bytes, 16)),
            last_lsn: Lsn(u64_at(bytes, 24)),
            synced_upto: Lsn(u64_at(bytes, 32)),
        })
    }
}

/// Returns the length of a record on disk, in bytes.
pub(crate) fn record_bytes(record: &Record) -> usize {
    RECORD_HEADER_BYTES + record.head.len() + record.payload.len()
}

/// Appends a record's header and head to `out`. The checksum also covers the payload, which the caller writes after them without copying
/// it. `len` is [`record_bytes`], which the caller has checked to fit.
pub(crate) fn put_record(lsn: Lsn, record: &Record, len: u32, seed: Seed, out: &mut Vec<u8>) {
    let start = out.len();
    let kind: u8 = match record.kind {
        RecordKind::Fact => 0,
        RecordKind::Entry => 1,
    };
    out.extend([0; 4]);
    out.extend(len.to_le_bytes());
    out.extend(lsn.0.to_le_bytes());
    out.extend([record.owner.0, kind, 0, 0]);
    out.extend((record.head.len() as u32).to_le_bytes());
    out.extend_from_slice(&record.head);
    let crc = crc32c::crc32c_append(seed.0, &out[start + 4..]);
    let crc = crc32c::crc32c_append(crc, &record.payload);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Decodes the record at the start of `bytes` without copying it. Returns None if it is incomplete or damaged. `generation` and `offset`
/// become its [`Loc`].
pub(crate) fn parse_record(bytes: &Bytes, generation: u64, offset: u32, seed: Seed) -> Option<Stored> {
    if bytes.len() < RECORD_HEADER_BYTES {
        return None;
    }
    let len = u32_at(bytes, 4) as usize;
    let head_len = u32_at(bytes, 20) as usize;
    if len > bytes.len() || len < RECORD_HEADER_BYTES || head_len > len - RECORD_HEADER_BYTES {
        return None;
    }
    if crc32c::crc32c_append(seed.0, &bytes[4..len]) != u32_at(bytes, 0) {
        return None;
    }
    let kind = match bytes[17] {
        0 => RecordKind::Fact,
        1 => RecordKind::Entry,
        _ => return None,
    };
    let head_end = RECORD_HEADER_BYTES + head_len;
    Some(Stored {
        lsn: Lsn(u64_at(bytes, 8)),
        loc: Loc { segment: generation, offset_bytes: offset, len_bytes: len as u32 },
        record: Record {
            owner: RoleKind(bytes[16]),
            kind,
            head: bytes.slice(RECORD_HEADER_BYTES..head_end),
            payload: bytes.slice(head_end..len),
        },
    })
}

/// Returns `n` rounded up to whole blocks.
pub(crate) fn padded(n: usize, block_bytes: u32) -> usize {
    n.next_multiple_of(block_bytes as usize)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_old_generation_or_another_directory_never_looks_valid() {
        let record = Record {
            owner: RoleKind(1),
            kind: RecordKind::Entry,
            head: Bytes::from_static(b"head"),
            payload: Bytes::from_static(b"payload"),
        };
        let seed = Seed::new(StorageId(1), 5);
        let len = record_bytes(&record) as u32;
        let mut bytes = Vec::new();
        put_record(Lsn(9), &record, len, seed, &mut bytes);
        bytes.extend_from_slice(&record.payload);
        let bytes = Bytes::from(bytes);
        let stored = parse_record(&bytes, 5, 64, seed).unwrap();
        assert_eq!((stored.lsn, stored.record), (Lsn(9), record));
        assert_eq!(parse_record(&bytes, 6, 64, Seed::new(StorageId(1), 6)), None);
        assert_eq!(parse_record(&bytes, 5, 64, Seed::new(StorageId(2), 5)), None);
        for n in 0..bytes.len() {
            assert_eq!(parse_record(&bytes.slice(..n), 5, 64, seed), None);
        }
    }

    #[test]
    fn a_header_is_valid_only_where_it_was_written() {
        let seed = Seed::new(StorageId(1), 5);
        let header =
            BatchHeader { offset: 512, count: 1, body_bytes: 9, first_lsn: Lsn(2), synced_upto: Lsn(1) };
        let mut segment = vec![0; 2048];
        segment[512..512 + BATCH_HEADER_BYTES].copy_from_slice(&header.to_bytes(seed));
        segment.copy_within(512..1024, 1024);
        assert_eq!(BatchHeader::parse(&segment, 512, seed), Some(header));
        assert_eq!(BatchHeader::parse(&segment, 1024, seed), None);
        assert_eq!(BatchHeader::parse(&segment, 2040, seed), None);
        assert_eq!(BatchHeader::parse(&segment, usize::MAX, seed), None);
    }
}
