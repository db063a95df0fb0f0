//! The messages of a log as bytes. All numbers are little endian.
//!
//! ```text
//! magic "AtLs" | format u8 | kind u8 | 0 u16 | token u128 | writer u64 | nonce u64 | previous u64 | first offset u64 | trim u64 |
//! entries u32 | crc32c of all of this and of the body u32 | body
//! ```
//!
//! *Token* is that of the stream. *Writer* is a handle, and *nonce* the number of the message at it. The writer of entries knows everything
//! below them, so it says what that is: *previous* is the sequence of the message of the log before this one, *first offset* is where the
//! entries begin, and *trim* is the highest trim so far. A seal and a trim are published without a condition, by somebody who may not know
//! everything; their *previous* is 0. The body is a batch of entries.

use atoll_contract::{Batch, Offset};
use bytes::{Buf, BufMut, Bytes, BytesMut};

const MAGIC: &[u8; 4] = b"AtLs";
const FORMAT: u8 = 1;
/// The bytes before the entries.
pub(crate) const HEAD_BYTES: usize = 72;

/// What the bytes of a message are not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of the log service is damaged, or is not where it belongs: {0}")]
pub(crate) struct Damaged(pub(crate) &'static str);

/// Distinguishes a message from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The handle that wrote it, drawn at random.
    pub(crate) writer: u64,
    /// The number of the message at its writer.
    pub(crate) nonce: u64,
}

/// Entries, and what their writer knew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entries {
    /// The sequence of the message of the log before this one.
    pub(crate) previous: u64,
    /// The offset of the first entry.
    pub(crate) first: Offset,
    /// The highest trim so far.
    pub(crate) trim: Offset,
    /// None in the first message of a log, which makes it one.
    pub(crate) batch: Option<Batch>,
}

impl Entries {
    pub(crate) fn count(&self) -> u64 {
        self.batch.as_ref().map_or(0, |batch| batch.len() as u64)
    }

    pub(crate) fn end(&self) -> Offset {
        self.first.plus(self.count())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.bytes().len())
    }
}

/// What a message of the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Entries(Entries),
    /// The log ends with the entries before this message.
    Seal,
    /// Offsets below this one are given up.
    Trim(Offset),
}

/// A message of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) stamp: Stamp,
    pub(crate) body: Body,
}

impl Message {
    pub(crate) fn encode(&self, token: u128) -> Bytes {
        let none = || (0, Offset::ZERO, None);
        let (kind, trim, (previous, first, batch)) = match &self.body {
            Body::Entries(e) => (1, e.trim, (e.previous, e.first, e.batch.as_ref())),
            Body::Seal => (2, Offset::ZERO, none()),
            Body::Trim(to) => (3, *to, none()),
        };
        let body = batch.map(Batch::bytes).map_or(&[][..], |bytes| &bytes[..]);
        let mut out = BytesMut::with_capacity(HEAD_BYTES + body.len());
        out.extend_from_slice(MAGIC);
        out.put_u8(FORMAT);
        out.put_u8(kind);
        out.put_u16_le(0);
        out.put_u128_le(token);
        out.put_u64_le(self.stamp.writer);
        out.put_u64_le(self.stamp.nonce);
        out.put_u64_le(previous);
        out.put_u64_le(first.0);
        out.put_u64_le(trim.0);
        out.put_u32_le(batch.map_or(0, Batch::len) as u32);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&out), body);
        out.put_u32_le(crc);
        out.extend_from_slice(body);
        out.freeze()
    }

    pub(crate) fn decode(bytes: &Bytes, token: u128) -> Result<Self, Damaged> {
        let head = bytes.get(..HEAD_BYTES).ok_or(Damaged("it is too short"))?;
        let body = bytes.slice(HEAD_BYTES..);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..HEAD_BYTES - 4]), &body);
        if &head[..4] != MAGIC {
            return Err(Damaged("it is not a message of a log"));
        }
        let mut rest = &head[4..];
        let (format, kind) = (rest.get_u8(), rest.get_u8());
        rest.advance(2);
        let of = rest.get_u128_le();
        let stamp = Stamp { writer: rest.get_u64_le(), nonce: rest.get_u64_le() };
        let (previous, first) = (rest.get_u64_le(), Offset(rest.get_u64_le()));
        let (trim, count) = (Offset(rest.get_u64_le()), rest.get_u32_le());
        if rest.get_u32_le() != crc {
            return Err(Damaged("its checksum is wrong"));
        }
        if format != FORMAT {
            return Err(Damaged("it has another format"));
        }
        if of != token {
            return Err(Damaged("it belongs to another stream"));
        }
        let body = match kind {
            1 => {
                let batch = match count {
                    0 => None,
                    _ => Some(Batch::parse(body).map_err(|_| Damaged("its entries are malformed"))?),
                };
                let found = batch.as_ref().map_or(0, Batch::len);
                if found != count as usize || first.0.checked_add(count.into()).is_none() {
                    return Err(Damaged("it does not have the entries of its head"));
                }
                Body::Entries(Entries { previous, first, trim, batch })
            }
            2 => Body::Seal,
            3 => Body::Trim(trim),
            _ => return Err(Damaged("it is of no known kind")),
        };
        Ok(Message { stamp, body })
    }

    /// Returns the entries, if it has some or is the first message.
    pub(crate) fn entries(&self) -> Option<&Entries> {
        match &self.body {
            Body::Entries(entries) => Some(entries),
            Body::Seal | Body::Trim(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::entry::MAX_BATCH_BYTES;
    use atoll_contract::{ClientId, Entry, OpId};

    fn messages() -> Vec<Message> {
        let entry =
            |seq| Entry { op: OpId { client: ClientId(1), seq }, payload: vec![seq as u8; 40].into() };
        let entries = |batch| Entries { previous: 4, first: Offset(9), trim: Offset(2), batch };
        let some = entries(Some(Batch::of([entry(1), entry(2)])));
        let bodies = [Body::Entries(some), Body::Entries(entries(None)), Body::Seal, Body::Trim(Offset(8))];
        bodies.into_iter().map(|body| Message { stamp: Stamp { writer: 1, nonce: 2 }, body }).collect()
    }

    #[test]
    fn a_message_is_what_it_was_and_any_change_is_noticed() {
        for message in messages() {
            let bytes = message.encode(7);
            assert_eq!(Message::decode(&bytes, 7), Ok(message));
            assert_eq!(Message::decode(&bytes, 8), Err(Damaged("it belongs to another stream")));
            for at in 0..bytes.len() {
                let mut changed = bytes.to_vec();
                changed[at] ^= 0x10;
                assert!(Message::decode(&changed.into(), 7).is_err(), "byte {at}");
                assert!(Message::decode(&bytes.slice(..at), 7).is_err(), "the first {at} bytes");
            }
        }
    }

    #[test]
    fn the_largest_batch_fits_into_a_message_of_nats() {
        /// The limit of a server with default settings (`max_payload`).
        const PAYLOAD_BYTES: usize = 1024 * 1024;
        /// The names of the stream and of the headers, and the numbers in them.
        const HEADER_BYTES: usize = 512;
        const { assert!(HEAD_BYTES + MAX_BATCH_BYTES + HEADER_BYTES < PAYLOAD_BYTES) };
        assert_eq!(messages()[2].encode(7).len(), HEAD_BYTES);
    }
}
