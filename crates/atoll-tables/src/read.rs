//! Reads from a view: tables, rows by key, and ranges by primary key or by index, in both directions, page by page at one version.

use atoll_contract::application::{Direction, KeyRange, StoreError, View};
use atoll_core::codec::Decode;
use bytes::Bytes;

use crate::layout;
use crate::row::Row;
use crate::schema::{IndexState, Schema, SchemaError};
use crate::value::Value;
use crate::{application::Counters, key};

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no table with this name.
    #[error("there is no table {0:?}")]
    NoSuchTable(String),
    /// The query does not fit the table.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A bound has more values than the key or index has columns.
    #[error("a bound has {got} values; {by:?} has {columns} columns")]
    Bound {
        /// The name of the index, or "the primary key".
        by: String,
        /// The number of its columns.
        columns: usize,
        /// The number of given values.
        got: usize,
    },
    /// The index cannot be used.
    #[error("index {index:?} is {state}")]
    NotReady {
        /// The index.
        index: String,
        /// The state of the index, as text.
        state: String,
    },
    /// The stored data cannot be decoded.
    #[error("table {table:?}: {what}")]
    Damaged {
        /// The table.
        table: String,
        /// What is damaged, and how.
        what: String,
    },
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the schema of a table by its number, or None if the table was dropped.
///
/// # Errors
/// It cannot be read.
pub fn schema_by_number(view: &View, table: u32) -> Result<Option<Schema>, ReadError> {
    let Some(bytes) = view.get(&layout::schema(table))? else { return Ok(None) };
    let damaged = |e: atoll_core::codec::DecodeError| ReadError::Damaged {
        table: table.to_string(),
        what: format!("its schema: {e}"),
    };
    Schema::from_bytes(bytes).map(Some).map_err(damaged)
}

fn number(name: &str, bytes: Bytes) -> Result<u32, ReadError> {
    u32::from_bytes(bytes)
        .map_err(|e| ReadError::Damaged { table: name.to_owned(), what: format!("its number: {e}") })
}

/// Returns the schema of a table.
///
/// # Errors
/// There is no table with this name, or its schema cannot be read.
pub fn schema(view: &View, name: &str) -> Result<Schema, ReadError> {
    let missing = || ReadError::NoSuchTable(name.to_owned());
    let table = view.get(&layout::name(name))?.ok_or_else(missing)?;
    schema_by_number(view, number(name, table)?)?.ok_or_else(missing)
}

/// Returns the schemas of all tables, in the order of their names.
///
/// # Errors
/// They cannot be read.
pub fn schemas(view: &View) -> Result<Vec<Schema>, ReadError> {
    let mut all = Vec::new();
    for item in view.scan(&layout::names(), Direction::Forward) {
        let (name, table) = item?;
        let name = String::from_utf8_lossy(&name[1..]).into_owned();
        all.extend(schema_by_number(view, number(&name, table)?)?);
    }
    Ok(all)
}

/// Returns the version of the last write, or 0 if there was none.
///
/// # Errors
/// It cannot be read.
pub fn version(view: &View) -> Result<u64, ReadError> {
    let Some(bytes) = view.get(&layout::COUNTERS_KEY)? else { return Ok(0) };
    let damaged = |e: atoll_core::codec::DecodeError| ReadError::Damaged {
        table: String::new(),
        what: format!("the counters: {e}"),
    };
    Ok(Counters::from_bytes(bytes).map_err(damaged)?.version)
}

/// Returns a row by its primary key, or None if there is no such row.
///
/// # Errors
/// The key does not fit the table, or the row cannot be read.
pub fn get(view: &View, schema: &Schema, key: &[Value]) -> Result<Option<Row>, ReadError> {
    let key = schema.key_bytes(key)?;
    let stored = view.get(&layout::row(schema.table, &key))?;
    stored.map(|stored| Row::decode(schema, &key, stored)).transpose()
}

/// One end of a range: values of the leading columns of the key or index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// Values of any number of leading columns. Without a value, the range has no bound at this end.
    pub values: Vec<Value>,
    /// Whether rows that begin with these values are excluded.
    pub exclusive: bool,
}

/// The rows to read, and their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The index to read by, or None for the primary key.
    pub index: Option<String>,
    /// The lower end.
    pub lower: Bound,
    /// The upper end.
    pub upper: Bound,
    /// The direction in which to read.
    pub direction: Direction,
}

impl Default for Query {
    fn default() -> Self {
        let (lower, upper) = Default::default();
        Query { index: None, lower, upper, direction: Direction::Forward }
    }
}

/// Some rows of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The rows, in the requested order.
    pub rows: Vec<Row>,
    /// The total encoded size of the rows in bytes.
    pub bytes: usize,
    /// Whether the range has ended. Otherwise there may be more rows.
    pub ended: bool,
}

/// A range of rows of one view, read page by page. All pages show the same state.
#[derive(Debug)]
pub struct Scan {
    view: View,
    schema: Schema,
    /// The index whose entries are read, or None if the rows themselves are read.
    index: Option<u16>,
    items: atoll_contract::application::Scan,
}

/// Returns the range of encoded keys, under a prefix, between two bounds.
fn range(prefix: &[u8], lower: &Bound, upper: &Bound) -> KeyRange {
    let whole = KeyRange::prefix(prefix);
    let at = |bound: &Bound| layout::joined(prefix, &key::encoded(&bound.values));
    let behind = |bound: &Bound| KeyRange::prefix(&at(bound)).end.unwrap_or_default();
    let start = match (lower.values.is_empty(), lower.exclusive) {
        (true, _) => whole.start,
        (false, false) => at(lower),
        (false, true) => behind(lower),
    };
    let end = match (upper.values.is_empty(), upper.exclusive) {
        (true, _) => whole.end,
        (false, true) => Some(at(upper)),
        (false, false) => Some(behind(upper)),
    };
    KeyRange { start, end }
}

fn fitted(schema: &Schema, by: &str, columns: &[u16], bound: &Bound) -> Result<Bound, ReadError> {
    if bound.values.len() > columns.len() {
        let (columns, got) = (columns.len(), bound.values.len());
        return Err(ReadError::Bound { by: by.to_owned(), columns, got });
    }
    let values = columns.iter().zip(&bound.values);
    let values = values.map(|(id, value)| Schema::fit(schema.column_of(*id), value.clone()));
    Ok(Bound { values: values.collect::<Result<_, _>>()?, exclusive: bound.exclusive })
}

impl Scan {
    /// Begins to read a range.
    ///
    /// # Errors
    /// The query does not fit the table, or the index is not ready.
    pub fn new(view: &View, schema: Schema, query: &Query) -> Result<Scan, ReadError> {
        let (index, columns, by) = match &query.index {
            None => (None, schema.key.clone(), "the primary key".to_owned()),
            Some(name) => {
                let index = schema.index(name)?;
                if index.state != (IndexState::Ready {}) {
                    return Err(ReadError::NotReady { index: name.clone(), state: words(&index.state) });
                }
                (Some(index.id), index.columns.clone(), name.clone())
            }
        };
        let lower = fitted(&schema, &by, &columns, &query.lower)?;
        let upper = fitted(&schema, &by, &columns, &query.upper)?;
        let prefix = match index {
            None => layout::row_prefix(schema.table),
            Some(index) => layout::entry_prefix(schema.table, index),
        };
        let range = range(&prefix, &lower, &upper);
        // A range whose bounds are reversed is empty.
        let range = if range.is_empty() { KeyRange::new(prefix.clone(), prefix) } else { range };
        let items = view.scan(&range, query.direction);
        Ok(Scan { view: view.clone(), schema, index, items })
    }

    /// Returns the schema of the table, as of the view.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the next rows: at most `rows` of them, and none after their encoded size has reached `bytes`.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn page(&mut self, rows: usize, bytes: usize) -> Result<Page, ReadError> {
        let mut page = Page::default();
        while page.rows.len() < rows && page.bytes < bytes {
            let Some(item) = self.items.next() else {
                page.ended = true;
                break;
            };
            let (key, value) = item?;
            let (row_key, stored) = match self.index {
                None => (key.slice(layout::row_prefix(self.schema.table).len()..), value),
                Some(_) => {
                    let stored = self.view.get(&layout::row(self.schema.table, &value))?;
                    let missing = || ReadError::Damaged {
                        table: self.schema.name.clone(),
                        what: "an index has an entry without a row".to_owned(),
                    };
                    (value, stored.ok_or_else(missing)?)
                }
            };
            page.bytes += row_key.len() + stored.len();
            page.rows.push(Row::decode(&self.schema, &row_key, stored)?);
        }
        Ok(page)
    }
}

/// Describes the state of an index.
pub fn words(state: &IndexState) -> String {
    match state {
        IndexState::Ready {} => "ready".to_owned(),
        IndexState::Building { .. } => "being built".to_owned(),
        IndexState::Failed { reason } => format!("failed: {reason}"),
        IndexState::Dropping {} => "being dropped".to_owned(),
    }
}
