//! Encodes envelopes as bytes. A frame is encoded when it is sent and decoded when it arrives, as on a real connection.

use atoll_core::{Decode, DecodeError, Encode, Envelope, Exchange, Frame, Reader, RoleKind};
use bytes::{BufMut, Bytes, BytesMut};

/// Bits of a request number that belong to the asker. The receiver uses the upper bits to mark the connection.
pub const REQUEST_BITS: u32 = 48;

/// Encodes an envelope.
pub fn encode(envelope: &Envelope) -> Bytes {
    let mut out =
        BytesMut::with_capacity(32 + envelope.frame.size_bytes() + 4 * envelope.frame.payloads.len());
    let (tag, number) = match envelope.exchange {
        Exchange::Post => (0u8, 0),
        Exchange::Request(n) => (1, n),
        Exchange::Reply(n) => (2, n),
    };
    out.put_u8(tag);
    out.put_u64_le(number);
    out.put_u16_le(envelope.frame.kind);
    envelope.frame.target.encode(&mut out);
    envelope.frame.head.encode(&mut out);
    envelope.frame.payloads.encode(&mut out);
    out.freeze()
}

/// Decodes what [`encode`] wrote.
pub fn decode(bytes: Bytes) -> Result<Envelope, DecodeError> {
    let mut from = Reader::new(bytes);
    let tag = u8::decode(&mut from)?;
    let number = u64::decode(&mut from)?;
    let exchange = match tag {
        0 => Exchange::Post,
        1 => Exchange::Request(number),
        2 => Exchange::Reply(number),
        n => return Err(DecodeError::Invalid { what: "exchange", value: n.into(), allowed: "0, 1, 2" }),
    };
    let kind = u16::decode(&mut from)?;
    let target = RoleKind::decode(&mut from)?;
    let head = Bytes::decode(&mut from)?;
    let payloads = Vec::<Bytes>::decode(&mut from)?;
    from.finish("envelope")?;
    Ok(Envelope { exchange, frame: Frame { kind, target, head, payloads } })
}
