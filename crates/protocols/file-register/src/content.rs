//! The content of the cell: magic, format version, CRC32C of the rest, the registers.

use std::collections::BTreeMap;

use atoll_core::{Decode, Encode};
use bytes::{BufMut, Bytes, BytesMut};

use super::{MAX_CONTENT_BYTES, OpenError};
use atoll_rmwpaxos::RegisterState;

const MAGIC: &[u8; 8] = b"ATOLLREG";
const FORMAT: u16 = 1;
const HEADER_BYTES: usize = 8 + 2 + 4;

pub(super) fn encode(states: &BTreeMap<String, RegisterState>) -> Bytes {
    let body = states.to_bytes();
    let mut out = BytesMut::with_capacity(HEADER_BYTES + body.len());
    out.put_slice(MAGIC);
    out.put_u16_le(FORMAT);
    out.put_u32_le(crc32c::crc32c(&body));
    out.put_slice(&body);
    out.freeze()
}

pub(super) fn decode(bytes: Bytes) -> Result<BTreeMap<String, RegisterState>, OpenError> {
    if bytes.len() > MAX_CONTENT_BYTES {
        return Err(OpenError::Damaged("it is longer than any content"));
    }
    let Some((head, _)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(OpenError::Damaged("it is shorter than its header"));
    };
    if !head.starts_with(MAGIC) {
        return Err(OpenError::Damaged("it does not begin as registers do"));
    }
    let found = u16::from_le_bytes([head[8], head[9]]);
    if found != FORMAT {
        return Err(OpenError::Format { found, known: FORMAT });
    }
    let crc = u32::from_le_bytes([head[10], head[11], head[12], head[13]]);
    let body = bytes.slice(HEADER_BYTES..);
    if crc32c::crc32c(&body) != crc {
        return Err(OpenError::Damaged("its checksum does not hold"));
    }
    let raw = BTreeMap::<String, RegisterState>::from_bytes(body)?;
    // The same limits as on the wire.
    for state in raw.values() {
        state.check()?;
    }
    Ok(raw)
}
