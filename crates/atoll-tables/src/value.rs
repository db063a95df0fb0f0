//! Typed values, and the order among them.

use std::cmp::Ordering;

use atoll_core::codec::{Decode, DecodeError, Encode, Reader};
use bytes::{Bytes, BytesMut};

use crate::schema::ColumnType;

/// What is in a column of a row. Equality and order are those of the encoded key: null first, floats by IEEE total order.
#[derive(Clone, Debug)]
pub enum Value {
    /// Nothing.
    Null,
    /// True or false; false is lower.
    Bool(bool),
    /// A signed integer.
    Int64(i64),
    /// A floating-point number, never NaN and never -0 in a table.
    Float64(f64),
    /// UTF-8, ordered by its bytes.
    Text(String),
    /// Any bytes.
    Bytes(Bytes),
    /// Microseconds since the Unix epoch, UTC; negative before it.
    Timestamp(i64),
}

impl Value {
    /// Its type; None for null.
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

    /// Whether it is null.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The canonical form of a number that has two forms: -0 becomes 0. None for NaN, which has no place in an order that users
    /// see.
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
            // Not a slice of a command or a row, which it would keep in memory (X13).
            ColumnType::Bytes => Value::Bytes(Bytes::copy_from_slice(&Bytes::decode(from)?)),
            ColumnType::Timestamp => Value::Timestamp(u64::decode(from)?.cast_signed()),
        })
    }
}
