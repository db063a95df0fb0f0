//! Rows, and their stored form: under the encoded key, the version, followed by the columns that are not in the key and not null.

use std::collections::BTreeMap;

use atoll_core::codec::{Decode, DecodeError};
use atoll_core::record;
use bytes::Bytes;

use crate::key;
use crate::read::ReadError;
use crate::schema::Schema;
use crate::value::Value;

/// Values by the ids of their columns.
pub type Values = BTreeMap<u16, Value>;

record! {
    /// A row as it is stored under its key.
    pub struct StoredRow {
        /// See [`Row::version`].
        pub version: u64,
        /// The values of columns that are not in the key. None of them is null. Columns that were dropped may still occur.
        pub values: Values,
    }
}

impl StoredRow {
    /// Returns whether the schema has the columns of all values. It does not if a column was dropped since the row was written.
    pub fn fits(&self, schema: &Schema) -> bool {
        self.values.keys().all(|id| schema.columns.iter().any(|c| c.id == *id))
    }
}

/// A row as it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The number of the write that stored the row, counted over all tables. It rises with every write, even if the row was deleted
    /// in between.
    pub version: u64,
    /// One value per column, in the order of the schema.
    pub values: Vec<Value>,
}

impl Row {
    /// Builds a row from its key and its stored form.
    ///
    /// # Errors
    /// The key or the stored form cannot be decoded.
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
