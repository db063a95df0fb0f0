//! The contents of a log: entries, and batches of entries. A batch keeps the same encoding on its whole way, from the appender through
//! sequencer and LogServers to the disk and back, and is not decoded on the way.
//!
//! Batch bytes: for each entry `client u64 | seq u64 | length u32 | payload`, little endian, back to back.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Reader};

/// The longest payload of one entry, in bytes.
pub const MAX_ENTRY_BYTES: usize = 1_000_000;
/// The longest encoded batch, in bytes; an entry of maximum size fits.
pub const MAX_BATCH_BYTES: usize = MAX_ENTRY_BYTES + ENTRY_HEADER_BYTES;
/// The most entries in a batch.
pub const MAX_BATCH_ENTRIES: usize = 16 * 1024;
/// The bytes of an encoded entry before its payload.
pub const ENTRY_HEADER_BYTES: usize = 20;

/// The number of an appending client. The client draws it at random, once per life. 0 is reserved for the log's own use and is never
/// deduplicated; its sequence number 0 names pads ([`OpId::PAD`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// The name of one append: the client increments `seq` for each, starting at 1. A retry of the same operation, through any
/// node, carries the same name (vlog-V2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId {
    /// The appending client.
    pub client: ClientId,
    /// The number of the operation at its client.
    pub seq: u64,
}

impl OpId {
    /// The name of every pad: an entry that fills an offset for which no client has a record. Readers skip pads. Only Loglets append
    /// them, for example when one stripe of a striped log lags behind the others.
    pub const PAD: OpId = OpId { client: ClientId(0), seq: 0 };

    /// Returns whether this is the name of a pad.
    pub fn is_pad(self) -> bool {
        self == OpId::PAD
    }
}

impl Encode for OpId {
    fn encode(&self, out: &mut BytesMut) {
        self.client.0.encode(out);
        self.seq.encode(out);
    }
}

impl Decode for OpId {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        Ok(OpId { client: ClientId(u64::decode(from)?), seq: u64::decode(from)? })
    }
}

/// A record of a log and its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name of the append.
    pub op: OpId,
    /// The record: the user's bytes.
    pub payload: Bytes,
}

impl Entry {
    /// Returns a pad.
    pub fn pad() -> Self {
        Entry { op: OpId::PAD, payload: Bytes::new() }
    }

    /// Returns whether this is a pad, which holds no client's record.
    pub fn is_pad(&self) -> bool {
        self.op.is_pad()
    }
}

/// Entries in their encoded form. Cheap to clone and to forward.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    bytes: Bytes,
    count: u32,
}

/// A batch under construction.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: BytesMut,
    count: u32,
}

impl BatchBuilder {
    /// Returns an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether an entry with a payload of this length still fits into the limits.
    pub fn fits(&self, payload_bytes: usize) -> bool {
        (self.count as usize) < MAX_BATCH_ENTRIES
            && self.bytes.len() + ENTRY_HEADER_BYTES + payload_bytes <= MAX_BATCH_BYTES
    }

    /// Adds an entry and copies its payload. Panics if it does not fit; call [`BatchBuilder::fits`] first.
    pub fn push(&mut self, op: OpId, payload: &[u8]) {
        assert!(self.fits(payload.len()), "limits are checked before anything is batched");
        self.bytes.reserve(ENTRY_HEADER_BYTES + payload.len());
        self.bytes.put_u64_le(op.client.0);
        self.bytes.put_u64_le(op.seq);
        self.bytes.put_u32_le(payload.len() as u32);
        self.bytes.extend_from_slice(payload);
        self.count += 1;
    }

    /// Returns the number of entries so far.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether there is no entry yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the encoded length so far, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the batch.
    pub fn finish(self) -> Batch {
        Batch { bytes: self.bytes.freeze(), count: self.count }
    }
}

impl Batch {
    /// Returns a batch of these entries. Panics if they exceed the limits.
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut b = BatchBuilder::new();
        for e in entries {
            b.push(e.op, &e.payload);
        }
        b.finish()
    }

    /// Returns a batch of `count` pads. Panics if they exceed the limits.
    pub fn pads(count: usize) -> Self {
        Batch::of(std::iter::repeat_with(Entry::pad).take(count))
    }

    /// Parses a batch from a socket or a disk. Checks that it has only whole entries, at least one, and is within the limits.
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        if bytes.len() > MAX_BATCH_BYTES {
            return Err(DecodeError::Invalid {
                what: "batch",
                value: bytes.len() as u64,
                allowed: "at most 1000020 bytes",
            });
        }
        let mut rest: &[u8] = &bytes;
        let mut count: u32 = 0;
        while !rest.is_empty() {
            if rest.len() < ENTRY_HEADER_BYTES {
                let needed = ENTRY_HEADER_BYTES;
                return Err(DecodeError::Short { what: "batch entry", needed, left: rest.len() });
            }
            let length = (&rest[16..20]).get_u32_le() as usize;
            if length > rest.len() - ENTRY_HEADER_BYTES {
                let left = rest.len() - ENTRY_HEADER_BYTES;
                return Err(DecodeError::Short { what: "batch entry", needed: length, left });
            }
            rest = &rest[ENTRY_HEADER_BYTES + length..];
            count += 1;
        }
        if count == 0 || count as usize > MAX_BATCH_ENTRIES {
            return Err(DecodeError::Invalid {
                what: "batch entries",
                value: count.into(),
                allowed: "1 to 16384",
            });
        }
        Ok(Batch { bytes, count })
    }

    /// Returns the number of entries; at least one in every batch that was parsed.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns true for a batch that was built without entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the encoded batch.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the entries. Their payloads share the batch's buffer.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= self.bytes.len() {
                return None;
            }
            let mut head = &self.bytes[at..at + ENTRY_HEADER_BYTES];
            let op = OpId { client: ClientId(head.get_u64_le()), seq: head.get_u64_le() };
            let length = head.get_u32_le() as usize;
            let start = at + ENTRY_HEADER_BYTES;
            at = start + length;
            Some(Entry { op, payload: self.bytes.slice(start..at) })
        })
    }

    /// Returns the names of the entries, without reading payloads.
    pub fn ops(&self) -> impl Iterator<Item = OpId> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            if at >= self.bytes.len() {
                return None;
            }
            let mut head = &self.bytes[at..at + ENTRY_HEADER_BYTES];
            let op = OpId { client: ClientId(head.get_u64_le()), seq: head.get_u64_le() };
            at += ENTRY_HEADER_BYTES + head.get_u32_le() as usize;
            Some(op)
        })
    }

    /// Returns the entries `[from, to)` of this batch as a batch that shares the buffer. Panics unless `from < to <= len`.
    #[must_use]
    pub fn slice(&self, from: usize, to: usize) -> Batch {
        assert!(from < to && to <= self.len(), "a slice of a batch has entries of it");
        let (mut at, mut start) = (0, 0);
        for i in 0..to {
            if i == from {
                start = at;
            }
            at += ENTRY_HEADER_BYTES + (&self.bytes[at + 16..at + 20]).get_u32_le() as usize;
        }
        Batch { bytes: self.bytes.slice(start..at), count: (to - from) as u32 }
    }
}
