//! The objects of a Loglet as bytes: objects of the log, which are entries or the seal; marks of blocks; trims; and what is left of a
//! deleted Loglet. All numbers are little endian, and each object has checksums.
//!
//! ```text
//! log     magic "AtOb" | format u8 | kind u8 | 0 u16 | loglet u128 | index u64 | first offset u64 | entries u32 | plain bytes u32 |
//!         body bytes u32 | writer u64 | nonce u64 | crc32c of the body u32 | crc32c of the head u32 | body
//! body    a zstd frame of: for each batch, its length u32 and its bytes
//! note    magic "AtNo" | format u8 | kind u8 | 0 u16 | loglet u128 | number u64 | value u64 | crc32c u32
//! ```

use atoll_contract::{Batch, LogletId, Offset};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const LOG_MAGIC: &[u8; 4] = b"AtOb";
const NOTE_MAGIC: &[u8; 4] = b"AtNo";
const FORMAT: u8 = 1;
/// The length of the head of an object of the log.
pub(crate) const HEAD_BYTES: usize = 76;
const NOTE_BYTES: usize = 44;
/// The most bytes of batches in an object: the largest setting, and a batch of maximum size.
const MAX_PLAIN_BYTES: usize = 20 * 1024 * 1024;
/// The level of compression: the fastest one that compresses well.
const LEVEL: i32 = 1;

/// What the bytes of an object are not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an object is damaged, or is not what its name says: {0}")]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Distinguishes an object from what others put at the same index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The handle that wrote it, drawn at random.
    pub(crate) writer: u64,
    /// The number of the object at its writer.
    pub(crate) nonce: u64,
}

/// What an object of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Entries,
    Seal,
}

/// The head of an object of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: Kind,
    pub(crate) loglet: LogletId,
    pub(crate) index: u64,
    /// The offset of the first entry; of a seal, the tail.
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) stamp: Stamp,
    plain_bytes: u32,
    body_bytes: u32,
    body_crc: u32,
}

impl Head {
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(self.count.into())
    }

    /// Reads and checks a head; what follows it is not looked at.
    pub(crate) fn decode(bytes: &[u8], loglet: LogletId, index: u64) -> Result<Self, Damaged> {
        let mut head = bytes.get(..HEAD_BYTES).ok_or(Damaged("it is too short"))?;
        let crc = crc32c::crc32c(&head[..HEAD_BYTES - 4]);
        if &head[..4] != LOG_MAGIC {
            return Err(Damaged("it is not an object of a log"));
        }
        head.advance(4);
        let (format, kind) = (head.get_u8(), head.get_u8());
        head.advance(2);
        if format != FORMAT {
            return Err(Damaged("it has another format"));
        }
        let kind = match kind {
            1 => Kind::Entries,
            2 => Kind::Seal,
            _ => return Err(Damaged("it is of no known kind")),
        };
        let found = Head {
            kind,
            loglet: LogletId(head.get_u128_le()),
            index: head.get_u64_le(),
            first: Offset(head.get_u64_le()),
            count: head.get_u32_le(),
            plain_bytes: head.get_u32_le(),
            body_bytes: head.get_u32_le(),
            stamp: Stamp { writer: head.get_u64_le(), nonce: head.get_u64_le() },
            body_crc: head.get_u32_le(),
        };
        if head.get_u32_le() != crc {
            return Err(Damaged("the checksum of its head is wrong"));
        }
        if (found.loglet, found.index) != (loglet, index) {
            return Err(Damaged("it belongs elsewhere"));
        }
        if (kind == Kind::Entries) != (found.count > 0) {
            return Err(Damaged("its number of entries is wrong"));
        }
        if found.first.0.checked_add(found.count.into()).is_none() {
            return Err(Damaged("its offsets are wrong"));
        }
        Ok(found)
    }

    fn encode(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(HEAD_BYTES + self.body_bytes as usize);
        out.extend_from_slice(LOG_MAGIC);
        out.put_u8(FORMAT);
        out.put_u8(match self.kind {
            Kind::Entries => 1,
            Kind::Seal => 2,
        });
        out.put_u16_le(0);
        out.put_u128_le(self.loglet.0);
        out.put_u64_le(self.index);
        out.put_u64_le(self.first.0);
        out.put_u32_le(self.count);
        out.put_u32_le(self.plain_bytes);
        out.put_u32_le(self.body_bytes);
        out.put_u64_le(self.stamp.writer);
        out.put_u64_le(self.stamp.nonce);
        out.put_u32_le(self.body_crc);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out
    }
}

/// An object of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    pub(crate) index: u64,
    pub(crate) first: Offset,
    pub(crate) count: u32,
    pub(crate) stamp: Stamp,
    pub(crate) batches: Vec<Batch>,
}

impl Entries {
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(self.count.into())
    }

    /// Returns the length of its batches.
    pub(crate) fn bytes(&self) -> usize {
        self.batches.iter().map(|b| b.bytes().len()).sum()
    }

    /// Returns the object as bytes. None if it has too many bytes of entries, or cannot be compressed.
    pub(crate) fn encode(&self, loglet: LogletId) -> Option<Bytes> {
        let mut plain = BytesMut::with_capacity(self.bytes() + 4 * self.batches.len());
        for batch in &self.batches {
            plain.put_u32_le(batch.bytes().len() as u32);
            plain.extend_from_slice(batch.bytes());
        }
        if plain.len() > MAX_PLAIN_BYTES {
            return None;
        }
        let body = zstd::bulk::compress(&plain, LEVEL).ok()?;
        let head = Head {
            kind: Kind::Entries,
            loglet,
            index: self.index,
            first: self.first,
            count: self.count,
            stamp: self.stamp,
            plain_bytes: plain.len() as u32,
            body_bytes: body.len() as u32,
            body_crc: crc32c::crc32c(&body),
        };
        let mut out = head.encode();
        out.extend_from_slice(&body);
        Some(out.freeze())
    }

    fn decode(head: &Head, body: &[u8]) -> Result<Self, Damaged> {
        if body.len() != head.body_bytes as usize || crc32c::crc32c(body) != head.body_crc {
            return Err(Damaged("the checksum of its entries is wrong"));
        }
        if head.plain_bytes as usize > MAX_PLAIN_BYTES {
            return Err(Damaged("it claims too many bytes"));
        }
        let plain = zstd::bulk::decompress(body, head.plain_bytes as usize);
        let mut plain = Bytes::from(plain.map_err(|_| Damaged("its entries cannot be decompressed"))?);
        let (mut batches, mut count) = (Vec::new(), 0);
        while plain.len() >= 4 {
            let len = plain.get_u32_le() as usize;
            if len > plain.len() {
                return Err(Damaged("a batch ends too early"));
            }
            let batch = Batch::parse(plain.split_to(len)).map_err(|_| Damaged("a batch is malformed"))?;
            count += batch.len();
            batches.push(batch);
        }
        match plain.is_empty() && count == head.count as usize {
            true => Ok(Entries {
                index: head.index,
                first: head.first,
                count: head.count,
                stamp: head.stamp,
                batches,
            }),
            false => Err(Damaged("it does not have the entries of its head")),
        }
    }
}

/// An object of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LogObject {
    Entries(Entries),
    /// The Loglet ends here.
    Seal {
        tail: Offset,
    },
}

impl LogObject {
    pub(crate) fn decode(bytes: &Bytes, loglet: LogletId, index: u64) -> Result<Self, Damaged> {
        let head = Head::decode(bytes, loglet, index)?;
        match head.kind {
            Kind::Entries => Entries::decode(&head, &bytes[HEAD_BYTES..]).map(LogObject::Entries),
            Kind::Seal => Ok(LogObject::Seal { tail: head.first }),
        }
    }
}

/// Returns the bytes of a seal at an index.
pub(crate) fn seal(loglet: LogletId, index: u64, tail: Offset, stamp: Stamp) -> Bytes {
    let (count, plain_bytes, body_bytes, body_crc) = (0, 0, 0, crc32c::crc32c(&[]));
    let kind = Kind::Seal;
    Head { kind, loglet, index, first: tail, count, stamp, plain_bytes, body_bytes, body_crc }
        .encode()
        .freeze()
}

/// What a small object says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Somebody wants to seal, and lost an index to appends. It is the mark of a block.
    Sealing,
    /// The objects of a block are deleted, or will be. The block ended at this offset. It is the mark of that block.
    Deleted(Offset),
    /// Offsets below this one are given up.
    Trim(Offset),
    /// The Loglet is deleted. Its seal was at this index.
    Gone(u64),
}

impl Note {
    fn parts(self) -> (u8, u64) {
        match self {
            Note::Sealing => (1, 0),
            Note::Deleted(end) => (2, end.0),
            Note::Trim(to) => (3, to.0),
            Note::Gone(index) => (4, index),
        }
    }

    /// Returns the bytes of the note with this number, which is also in its name.
    pub(crate) fn encode(self, loglet: LogletId, number: u64) -> Bytes {
        let mut out = BytesMut::with_capacity(NOTE_BYTES);
        let (kind, value) = self.parts();
        out.extend_from_slice(NOTE_MAGIC);
        out.put_u8(FORMAT);
        out.put_u8(kind);
        out.put_u16_le(0);
        out.put_u128_le(loglet.0);
        out.put_u64_le(number);
        out.put_u64_le(value);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.freeze()
    }

    pub(crate) fn decode(bytes: &[u8], loglet: LogletId, number: u64) -> Result<Self, Damaged> {
        if bytes.len() != NOTE_BYTES || &bytes[..4] != NOTE_MAGIC {
            return Err(Damaged("it is not a note"));
        }
        let crc = crc32c::crc32c(&bytes[..NOTE_BYTES - 4]);
        let mut rest = &bytes[4..];
        let (format, kind) = (rest.get_u8(), rest.get_u8());
        rest.advance(2);
        let (of, found, value) = (LogletId(rest.get_u128_le()), rest.get_u64_le(), rest.get_u64_le());
        if rest.get_u32_le() != crc || format != FORMAT {
            return Err(Damaged("the checksum or the format of a note is wrong"));
        }
        if (of, found) != (loglet, number) {
            return Err(Damaged("it belongs elsewhere"));
        }
        match kind {
            1 => Ok(Note::Sealing),
            2 => Ok(Note::Deleted(Offset(value))),
            3 => Ok(Note::Trim(Offset(value))),
            4 => Ok(Note::Gone(value)),
            _ => Err(Damaged("a note is of no known kind")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::{ClientId, Entry, OpId};

    const ID: LogletId = LogletId(77);

    fn entries() -> Entries {
        let entry =
            |seq| Entry { op: OpId { client: ClientId(1), seq }, payload: vec![seq as u8; 40].into() };
        let batches = vec![Batch::of([entry(1), entry(2)]), Batch::of([entry(3)])];
        Entries { index: 5, first: Offset(9), count: 3, stamp: Stamp { writer: 1, nonce: 2 }, batches }
    }

    #[test]
    fn an_object_is_what_it_was() {
        let bytes = entries().encode(ID).unwrap();
        assert_eq!(LogObject::decode(&bytes, ID, 5), Ok(LogObject::Entries(entries())));
        let head = Head::decode(&bytes[..HEAD_BYTES], ID, 5).unwrap();
        assert_eq!(
            (head.first, head.end(), head.stamp),
            (Offset(9), Offset(12), Stamp { writer: 1, nonce: 2 })
        );
        let seal = seal(ID, 6, Offset(12), Stamp { writer: 1, nonce: 3 });
        assert_eq!(seal.len(), HEAD_BYTES);
        assert_eq!(LogObject::decode(&seal, ID, 6), Ok(LogObject::Seal { tail: Offset(12) }));
        for note in [Note::Sealing, Note::Deleted(Offset(7)), Note::Trim(Offset(8)), Note::Gone(4)] {
            assert_eq!(Note::decode(&note.encode(ID, 3), ID, 3), Ok(note));
        }
    }

    #[test]
    fn an_object_with_a_changed_bit_or_a_lost_end_or_another_name_is_refused() {
        let bytes = entries().encode(ID).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.to_vec();
            changed[at] ^= 0x10;
            assert!(LogObject::decode(&changed.into(), ID, 5).is_err(), "byte {at}");
            assert!(LogObject::decode(&bytes.slice(..at), ID, 5).is_err(), "the first {at} bytes");
        }
        assert_eq!(LogObject::decode(&bytes, ID, 6), Err(Damaged("it belongs elsewhere")));
        assert_eq!(LogObject::decode(&bytes, LogletId(78), 5), Err(Damaged("it belongs elsewhere")));
        let note = Note::Trim(Offset(3)).encode(ID, 0);
        for at in 0..note.len() {
            let mut changed = note.to_vec();
            changed[at] ^= 1;
            assert!(Note::decode(&changed, ID, 0).is_err(), "byte {at}");
        }
        assert!(Note::decode(&note, ID, 1).is_err());
    }
}
