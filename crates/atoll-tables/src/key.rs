//! The encoding of keys. The bytes have the same order as the values, column by column, and no encoded value is a prefix of
//! another.
//!
//! A value is encoded as `tag u8`, which is 0 for null, followed by its bytes. A bool is one byte. Integers and timestamps are big
//! endian with the sign bit flipped. Floats are the same, but with all bits flipped if they are negative. In text and bytes, 00
//! becomes 00 FF, and 00 00 marks the end.

use bytes::{BufMut, Bytes, BytesMut};

use crate::schema::ColumnType;
use crate::value::Value;

const SIGN: u64 = 1 << 63;
const ESCAPED: u8 = 0xff;
const END: u8 = 0x00;

/// The error for bytes that are not the encoding of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("damaged key: {0}")]
pub struct KeyError(pub &'static str);

/// Appends encoded values to `out`.
pub fn encode<'a>(values: impl IntoIterator<Item = &'a Value>, out: &mut BytesMut) {
    for value in values {
        out.put_u8(value.kind().map_or(0, ColumnType::tag));
        match value {
            Value::Null => {}
            Value::Bool(b) => out.put_u8(u8::from(*b)),
            Value::Int64(n) | Value::Timestamp(n) => out.put_u64(n.cast_unsigned() ^ SIGN),
            Value::Float64(f) => {
                let bits = f.to_bits();
                out.put_u64(if bits & SIGN == 0 { bits ^ SIGN } else { !bits });
            }
            Value::Text(text) => escape(text.as_bytes(), out),
            Value::Bytes(bytes) => escape(bytes, out),
        }
    }
}

/// Returns the encoding of values.
pub fn encoded<'a>(values: impl IntoIterator<Item = &'a Value>) -> Bytes {
    let mut out = BytesMut::new();
    encode(values, &mut out);
    out.freeze()
}

fn escape(bytes: &[u8], out: &mut BytesMut) {
    for byte in bytes {
        out.put_u8(*byte);
        if *byte == END {
            out.put_u8(ESCAPED);
        }
    }
    out.put_slice(&[END, END]);
}

/// Decodes `count` values, which must take up all of `bytes`.
///
/// # Errors
/// The bytes are not the encoding of so many values.
pub fn decode_all(mut bytes: &[u8], count: usize) -> Result<Vec<Value>, KeyError> {
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(decode(&mut bytes)?);
    }
    if bytes.is_empty() { Ok(values) } else { Err(KeyError("bytes are left over")) }
}

fn take<'a>(from: &mut &'a [u8], n: usize) -> Result<&'a [u8], KeyError> {
    let (head, rest) = from.split_at_checked(n).ok_or(KeyError("it ends within a value"))?;
    *from = rest;
    Ok(head)
}

fn number(from: &mut &[u8]) -> Result<u64, KeyError> {
    let bytes = take(from, 8)?.try_into().map_err(|_| KeyError("it ends within a number"))?;
    Ok(u64::from_be_bytes(bytes))
}

fn decode(from: &mut &[u8]) -> Result<Value, KeyError> {
    let tag = take(from, 1)?[0];
    if tag == 0 {
        return Ok(Value::Null);
    }
    Ok(match ColumnType::of_tag(tag).map_err(|_| KeyError("no such type"))? {
        ColumnType::Bool => match take(from, 1)?[0] {
            0 => Value::Bool(false),
            1 => Value::Bool(true),
            _ => return Err(KeyError("a bool is 0 or 1")),
        },
        ColumnType::Int64 => Value::Int64((number(from)? ^ SIGN).cast_signed()),
        ColumnType::Timestamp => Value::Timestamp((number(from)? ^ SIGN).cast_signed()),
        ColumnType::Float64 => {
            let bits = number(from)?;
            Value::Float64(f64::from_bits(if bits & SIGN == 0 { !bits } else { bits ^ SIGN }))
        }
        ColumnType::Text => {
            let bytes = unescape(from)?;
            Value::Text(String::from_utf8(bytes).map_err(|_| KeyError("text is not UTF-8"))?)
        }
        ColumnType::Bytes => Value::Bytes(unescape(from)?.into()),
    })
}

fn unescape(from: &mut &[u8]) -> Result<Vec<u8>, KeyError> {
    let mut out = Vec::new();
    loop {
        let byte = take(from, 1)?[0];
        if byte == END {
            match take(from, 1)?[0] {
                END => return Ok(out),
                ESCAPED => {}
                _ => return Err(KeyError("00 is followed by 00 or FF")),
            }
        }
        out.push(byte);
    }
}
