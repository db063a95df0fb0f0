//! Typed values and their order.

use std::cmp::Ordering;

use atoll_core::codec::{Decode, DecodeError, Encode, Reader};
use bytes::{Bytes, BytesMut};

use crate::schema::ColumnType;

/// The value of a column in a row. Equality and order are those of the encoded key: null is first, and floats are in IEEE total
/// order.
#[derive(Clone, Debug)]
pub enum Value {
    /// Null.
    Null,
    /// True or false. False is lower.
    Bool(bool),
    /// A signed integer.
    Int64(i64),
    /// A floating-point number, never NaN and never -0 in a table.
    Float64(f64),
    /// UTF-8 text, ordered by its bytes.
    Text(String),
    /// Arbitrary bytes.
    Bytes(Bytes),
    /// A point in time, in microseconds since the Unix epoch (UTC). Negative before it.
    Timestamp(i64),
}

impl Value {
    /// Returns the type of the value, or None for null.
    pub fn kind(&self) -> Option<ColumnType> {
        Some(match self {
            Value::Null => return None,
            Value::Bool(_) => ColumnType::Bool,
            Value::Int64(_) => ColumnType::Int64,
            Value::Float64(_) => ColumnType::Float64,
            Value::Text(_) => ColumnType::Text,
            Value::Bytes(_) => ColumnType::Bytes,
            Value::Timestamp(_) => ColumnType::Timestamp,
        })
    }

    /// Returns true if the value is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Returns the canonical form of the value: -0 becomes 0. None for NaN, because users would not expect it to have a place in an
    /// order.
    pub fn canonical(self) -> Option<Value> {
        match self {
            Value::Float64(f) if f.is_nan() => None,
            Value::Float64(f) => Some(Value::Float64(f + 0.0)),
            other => Some(other),
        }
    }

    fn tag(&self) -> u8 {
        self.kind().map_or(0, ColumnType::tag)
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
            (Value::Int64(a), Value::Int64(b)) | (Value::Timestamp(a), Value::Timestamp(b)) => a.cmp(b),
            (Value::Float64(a), Value::Float64(b)) => a.total_cmp(b),
            (Value::Text(a), Value::Text(b)) => a.cmp(b),
            (Value::Bytes(a), Value::Bytes(b)) => a.cmp(b),
            (a, b) => a.tag().cmp(&b.tag()),
        }
    }
}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Value {}

impl Encode for Value {
    fn encode(&self, out: &mut BytesMut) {
        self.tag().encode(out);
        match self {
            Value::Null => {}
            Value::Bool(b) => b.encode(out),
            Value::Int64(n) | Value::Timestamp(n) => n.cast_unsigned().encode(out),
            Value::Float64(f) => f.to_bits().encode(out),
            Value::Text(text) => text.encode(out),
            Value::Bytes(bytes) => bytes.encode(out),
        }
    }
}

impl Decode for Value {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let tag = u8::decode(from)?;
        if tag == 0 {
            return Ok(Value::Null);
        }
        Ok(match ColumnType::of_tag(tag)? {
            ColumnType::Bool => Value::Bool(bool::decode(from)?),
            ColumnType::Int64 => Value::Int64(u64::decode(from)?.cast_signed()),
            ColumnType::Float64 => Value::Float64(f64::from_bits(u64::decode(from)?)),
            ColumnType::Text => Value::Text(String::decode(from)?),
            // The bytes are copied, because a slice would keep the whole command or row in memory (X13).
            ColumnType::Bytes => Value::Bytes(Bytes::copy_from_slice(&Bytes::decode(from)?)),
            ColumnType::Timestamp => Value::Timestamp(u64::decode(from)?.cast_signed()),
        })
    }
}
