//! Reading a view: tables, rows by key, ranges by primary key and by index in both directions, in pages at one version.

use atoll_core::codec::Decode;
use atoll_db::{Direction, KeyRange, StoreError, View};
use bytes::Bytes;

use crate::layout;
use crate::row::Row;
use crate::schema::{IndexState, Schema, SchemaError};
use crate::value::Value;
use crate::{application::Counters, key};

/// Why something could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No such table.
    #[error("there is no table {0:?}")]
    NoSuchTable(String),
    /// The query does not fit the table.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// A bound with more values than the key or index has columns, or a null that the key cannot have.
    #[error("a bound has {got} values; {by:?} has {columns} columns")]
    Bound {
        /// Index, or "the primary key".
        by: String,
        /// How many columns it has.
        columns: usize,
        /// How many values were given.
        got: usize,
    },
    /// The index cannot be used.
    #[error("index {index:?} is {state}")]
    NotReady {
        /// Which.
        index: String,
        /// How far it is, as text.
        state: String,
    },
    /// The stored data cannot be understood.
    #[error("table {table:?}: {what}")]
    Damaged {
        /// Which.
        table: String,
        /// What is wrong.
        what: String,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn schema_by_number(view: &View, table: u32) -> Result<Option<Schema>, ReadError> {
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

/// A table.
///
/// # Errors
/// There is none of this name, or it cannot be read.
pub fn schema(view: &View, name: &str) -> Result<Schema, ReadError> {
    let missing = || ReadError::NoSuchTable(name.to_owned());
    let table = view.get(&layout::name(name))?.ok_or_else(missing)?;
    schema_by_number(view, number(name, table)?)?.ok_or_else(missing)
}

/// All tables, in the order of their names.
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

/// The version of the last write.
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

/// A row by its primary key; None if there is none.
///
/// # Errors
/// The key does not fit, or the row cannot be read.
pub fn get(view: &View, schema: &Schema, key: &[Value]) -> Result<Option<Row>, ReadError> {
    let key = schema.key_bytes(key)?;
    let stored = view.get(&layout::row(schema.table, &key))?;
    stored.map(|stored| Row::decode(schema, &key, stored)).transpose()
}

/// One end of a range: values of the first columns of the key or index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// As many as wanted, none for no bound.
    pub values: Vec<Value>,
    /// Whether rows that begin with these values are left out.
    pub exclusive: bool,
}

/// Which rows, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// By which index; None: by the primary key.
    pub index: Option<String>,
    /// The lower end.
    pub lower: Bound,
    /// The upper end.
    pub upper: Bound,
    /// From which end.
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
    /// In the order asked for.
    pub rows: Vec<Row>,
    /// Their encoded bytes.
    pub bytes: usize,
    /// Whether the range has ended; otherwise there may be more.
    pub ended: bool,
}

/// A range of rows of one view, read page by page. All pages show the same state.
#[derive(Debug)]
pub struct Scan {
    view: View,
    schema: Schema,
    /// Of which index the entries are; None: rows themselves.
    index: Option<u16>,
    items: atoll_db::Scan,
}

/// The range of encoded keys under a prefix.
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
    /// The query does not fit the table.
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

    /// The table, as it is in the view.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// The next rows: at most `rows`, and no more once they have `bytes` encoded bytes.
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

/// How far an index is.
pub fn words(state: &IndexState) -> String {
    match state {
        IndexState::Ready {} => "ready".to_owned(),
        IndexState::Building { .. } => "being built".to_owned(),
        IndexState::Failed { reason } => format!("failed: {reason}"),
        IndexState::Dropping {} => "being dropped".to_owned(),
    }
}
