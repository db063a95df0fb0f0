//! A row as it is stored: under its encoded key, the version, then the columns that are not in the key and not null.

use std::collections::BTreeMap;

use atoll_core::codec::{Decode, DecodeError};
use atoll_core::record;
use bytes::Bytes;

use crate::key;
use crate::read::ReadError;
use crate::schema::Schema;
use crate::value::Value;

/// Values by the id of their column.
pub type Values = BTreeMap<u16, Value>;

record! {
    /// The bytes under a row's key.
    pub struct StoredRow {
        /// See [`Row::version`].
        pub version: u64,
        /// Of columns that are not in the key; none is null. Columns that were dropped may still be in it.
        pub values: Values,
    }
}

/// A row as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the command that wrote it, counted over all tables: it grows with every write, also over a delete.
    pub version: u64,
    /// One value per column, in the order of the schema.
    pub values: Vec<Value>,
}

impl Row {
    /// Puts a row together from its key and what is stored under it.
    ///
    /// # Errors
    /// It cannot be decoded.
    pub fn decode(schema: &Schema, key: &[u8], stored: Bytes) -> Result<Row, ReadError> {
        let mut row = StoredRow::from_bytes(stored).map_err(|e: DecodeError| ReadError::Damaged {
            table: schema.name.clone(),
            what: e.to_string(),
        })?;
        let key = key::decode_all(key, schema.key.len())
            .map_err(|e| ReadError::Damaged { table: schema.name.clone(), what: e.to_string() })?;
        row.values.extend(schema.key.iter().copied().zip(key));
        let values = schema.columns.iter().map(|c| row.values.remove(&c.id).unwrap_or(Value::Null));
        Ok(Row { version: row.version, values: values.collect() })
    }
}
