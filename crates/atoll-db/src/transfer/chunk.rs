//! The snapshot format of a database's state: chunks of entries in key order. A chunk of format 1, little endian:
//! `magic [u8; 4] | format u8 | plain length u32 | crc32c u32 of what follows | zstd frame`; the frame contains,
//! for each entry, `key length u32 | value length u32 | key | value`. In format 2, for test builds of [`Level::NEXT`], the level at which
//! the chunk was written, `u16`, precedes the first entry of the frame.

use atoll_core::testing::next_level;
use atoll_core::{Level, LevelRange};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const MAGIC: [u8; 4] = *b"AtSn";
const FIRST_FORMAT: u8 = 1;
const NEXT_FORMAT: u8 = 2;
/// The number of bytes that precede the entries in the later format.
const MORE_BYTES: usize = 2;
const HEADER_BYTES: usize = 13;
const ENTRY_HEADER_BYTES: usize = 8;
/// The maximum size of the entries in a chunk before compression. It has room for one entry of the maximum length.
pub(super) const MAX_PLAIN_BYTES: usize = 1_010_000;
/// The maximum size of an entry that has a chunk of its own, before compression. Doors bound what they write far below
/// [`MAX_PLAIN_BYTES`], but earlier ones left a gap: a transaction of ZooKeeper could store an access control list of 5 MB. Every
/// replica has such an entry, so a peer must be able to pass it on.
const MAX_LONE_BYTES: usize = 16 * 1024 * 1024;
/// The level of compression. It is fast and reduces text to about a third of its size.
const LEVEL: i32 = 1;

/// Why bytes are not a valid chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// They are too short, or not part of a state snapshot.
    #[error("not a chunk of a snapshot")]
    NoChunk,
    /// A later version of this program wrote the chunk.
    #[error("a chunk of format {0}; this program reads up to {1}")]
    Newer(u8, u8),
    /// The chunk is damaged.
    #[error("checksum {found:08x}, expected {expected:08x}")]
    Damaged {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// The decompressed frame does not have the length in the header, or does not contain valid entries.
    #[error("a chunk that cannot be decompressed: {0}")]
    Malformed(&'static str),
}

/// The entries of a chunk, in key order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chunk(pub Vec<(Bytes, Bytes)>);

/// Returns the format of chunks written at a level. It is also the highest format that a program with this highest level can read.
fn format_at(level: Level) -> u8 {
    if next_level(level) { NEXT_FORMAT } else { FIRST_FORMAT }
}

/// Returns the size of an entry in a chunk before compression, in bytes.
pub(super) fn size_of(key: &[u8], value: &[u8]) -> usize {
    ENTRY_HEADER_BYTES + key.len() + value.len()
}

impl Chunk {
    /// Encodes the chunk at the active level. It may contain about a megabyte of entries at most.
    pub fn encode(&self, level: Level) -> Bytes {
        let format = format_at(level);
        let plain_bytes: usize = self.0.iter().map(|(k, v)| size_of(k, v)).sum();
        let mut plain = BytesMut::with_capacity(MORE_BYTES + plain_bytes);
        if format == NEXT_FORMAT {
            plain.put_u16_le(level.0);
        }
        for (key, value) in &self.0 {
            plain.put_u32_le(key.len() as u32);
            plain.put_u32_le(value.len() as u32);
            plain.put_slice(key);
            plain.put_slice(value);
        }
        // This fails only for an invalid compression level or without memory.
        let packed = zstd::bulk::compress(&plain, LEVEL).unwrap_or_default();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + packed.len());
        out.put_slice(&MAGIC);
        out.put_u8(format);
        out.put_u32_le(plain.len() as u32);
        out.put_u32_le(crc32c::crc32c(&packed));
        out.put_slice(&packed);
        out.freeze()
    }

    /// Decodes a chunk.
    ///
    /// # Errors
    /// See [`ChunkError`]. Nothing is allocated beyond a chunk's limit.
    pub fn decode(bytes: Bytes, reads: LevelRange) -> Result<Chunk, ChunkError> {
        Chunk::unpack(bytes, reads, MAX_PLAIN_BYTES)
    }

    /// Decodes a chunk that a peer has sent from its state. Unlike [`Chunk::decode`], accepts a longer chunk if it has only one entry.
    /// Commands must not use this: replicas with earlier programs would decide otherwise.
    ///
    /// # Errors
    /// See [`ChunkError`]. Nothing is allocated beyond the limit of an entry.
    pub fn decode_from_peer(bytes: Bytes, reads: LevelRange) -> Result<Chunk, ChunkError> {
        let chunk = Chunk::unpack(bytes, reads, MAX_LONE_BYTES)?;
        let size: usize = chunk.0.iter().map(|(key, value)| size_of(key, value)).sum();
        if size > MAX_PLAIN_BYTES + MORE_BYTES && chunk.0.len() > 1 {
            return Err(ChunkError::Malformed("longer than any chunk of several entries"));
        }
        Ok(chunk)
    }

    fn unpack(mut bytes: Bytes, reads: LevelRange, most_bytes: usize) -> Result<Chunk, ChunkError> {
        if bytes.len() < HEADER_BYTES || bytes[..4] != MAGIC {
            return Err(ChunkError::NoChunk);
        }
        bytes.advance(4);
        let format = bytes.get_u8();
        let newest = format_at(reads.highest);
        if !(FIRST_FORMAT..=newest).contains(&format) {
            return Err(ChunkError::Newer(format, newest));
        }
        let (plain_bytes, expected) = (bytes.get_u32_le() as usize, bytes.get_u32_le());
        let found = crc32c::crc32c(&bytes);
        if found != expected {
            return Err(ChunkError::Damaged { found, expected });
        }
        if plain_bytes > most_bytes + MORE_BYTES {
            return Err(ChunkError::Malformed("longer than any chunk"));
        }
        let plain = zstd::bulk::decompress(&bytes, plain_bytes)
            .map_err(|_| ChunkError::Malformed("not a frame of this length"))?;
        if plain.len() != plain_bytes {
            return Err(ChunkError::Malformed("shorter than it says"));
        }
        let mut plain = Bytes::from(plain);
        if format == NEXT_FORMAT {
            if plain.len() < MORE_BYTES {
                return Err(ChunkError::Malformed("no level"));
            }
            plain.advance(MORE_BYTES);
        }
        let mut entries: Vec<(Bytes, Bytes)> = Vec::new();
        while !plain.is_empty() {
            if plain.len() < ENTRY_HEADER_BYTES {
                return Err(ChunkError::Malformed("half an entry"));
            }
            let (key, value) = (plain.get_u32_le() as usize, plain.get_u32_le() as usize);
            if key.saturating_add(value) > plain.len() {
                return Err(ChunkError::Malformed("half an entry"));
            }
            let entry = (plain.split_to(key), plain.split_to(value));
            if entries.last().is_some_and(|(before, _)| *before >= entry.0) {
                return Err(ChunkError::Malformed("keys out of order"));
            }
            entries.push(entry);
        }
        Ok(Chunk(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk() -> Chunk {
        let entry = |n: u8| (Bytes::from(vec![n; 3]), Bytes::from(vec![n; usize::from(n)]));
        Chunk((0..100).map(entry).collect())
    }

    #[test]
    fn a_chunk_reads_back_and_every_damage_is_noticed() {
        let bytes = chunk().encode(Level::FIRST);
        assert_eq!(Chunk::decode(bytes.clone(), LevelRange::OURS), Ok(chunk()));
        for n in 0..bytes.len() {
            assert!(Chunk::decode(bytes.slice(..n), LevelRange::OURS).is_err(), "cut at {n}");
            let mut damaged = bytes.to_vec();
            damaged[n] ^= 0x10;
            assert!(Chunk::decode(damaged.into(), LevelRange::OURS).is_err(), "altered at {n}");
        }
        assert_eq!(
            Chunk::decode(Chunk::default().encode(Level::FIRST), LevelRange::OURS),
            Ok(Chunk::default())
        );
    }

    #[test]
    fn keys_out_of_order_and_false_lengths_are_refused() {
        let mut entries = chunk().0;
        entries.swap(3, 4);
        assert_eq!(
            Chunk::decode(Chunk(entries).encode(Level::FIRST), LevelRange::OURS),
            Err(ChunkError::Malformed("keys out of order"))
        );
        let mut lying = chunk().encode(Level::FIRST).to_vec();
        lying[5..9].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            Chunk::decode(lying.into(), LevelRange::OURS),
            Err(ChunkError::Malformed("longer than any chunk"))
        );
    }

    #[test]
    fn one_long_entry_is_taken_from_a_peer_and_nothing_else_that_is_long() {
        let entry = |n: u8, length| (Bytes::from(vec![n]), Bytes::from(vec![n; length]));
        let pack = |entries: &[_]| Chunk(entries.to_vec()).encode(Level::FIRST);
        let long = Err(ChunkError::Malformed("longer than any chunk"));
        let lone = vec![entry(1, MAX_LONE_BYTES - ENTRY_HEADER_BYTES - 1)];
        assert_eq!(Chunk::decode(pack(&lone), LevelRange::OURS), long);
        assert_eq!(Chunk::decode_from_peer(pack(&lone), LevelRange::OURS), Ok(Chunk(lone)));
        let longer = vec![entry(1, MAX_LONE_BYTES + MORE_BYTES)];
        assert_eq!(Chunk::decode_from_peer(pack(&longer), LevelRange::OURS), long);
        for pair in [[entry(1, MAX_PLAIN_BYTES), entry(2, 1)], [entry(1, 1), entry(2, MAX_PLAIN_BYTES)]] {
            assert!(Chunk::decode_from_peer(pack(&pair), LevelRange::OURS).is_err(), "several entries");
        }
    }
}
