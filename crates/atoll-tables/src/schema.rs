//! The schema: tables, their columns and indices, and the allowed changes of them.

use atoll_core::codec::{Decode, DecodeError, Encode, Reader};
use atoll_core::{choice, record};
use bytes::{Bytes, BytesMut};

use crate::key;
use crate::row::Values;
use crate::value::Value;
use crate::{MAX_COLUMNS, MAX_INDICES, MAX_KEY_BYTES, MAX_KEY_COLUMNS, MAX_NAME_BYTES};

/// The type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ColumnType {
    /// True or false.
    Bool,
    /// A signed 64-bit integer.
    Int64,
    /// A 64-bit floating-point number, without NaN.
    Float64,
    /// UTF-8 text.
    Text,
    /// Arbitrary bytes.
    Bytes,
    /// A point in time, in microseconds since the Unix epoch.
    Timestamp,
}

/// All types, with the names by which users specify them.
pub const TYPES: [(ColumnType, &str); 6] = [
    (ColumnType::Bool, "bool"),
    (ColumnType::Int64, "int64"),
    (ColumnType::Float64, "float64"),
    (ColumnType::Text, "text"),
    (ColumnType::Bytes, "bytes"),
    (ColumnType::Timestamp, "timestamp"),
];

impl ColumnType {
    /// Returns the name of the type.
    pub fn name(self) -> &'static str {
        TYPES[usize::from(self.tag()) - 1].1
    }

    /// Returns the number of the type in keys, rows and schemas. It must never change.
    pub(crate) fn tag(self) -> u8 {
        match self {
            ColumnType::Bool => 1,
            ColumnType::Int64 => 2,
            ColumnType::Float64 => 3,
            ColumnType::Text => 4,
            ColumnType::Bytes => 5,
            ColumnType::Timestamp => 6,
        }
    }

    pub(crate) fn of_tag(tag: u8) -> Result<Self, DecodeError> {
        let at = usize::from(tag).checked_sub(1).and_then(|at| TYPES.get(at));
        at.map(|(kind, _)| *kind).ok_or(DecodeError::Invalid {
            what: "column type",
            value: tag.into(),
            allowed: "1 to 6",
        })
    }
}

impl Encode for ColumnType {
    fn encode(&self, out: &mut BytesMut) {
        self.tag().encode(out);
    }
}

impl Decode for ColumnType {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        ColumnType::of_tag(u8::decode(from)?)
    }
}

record! {
    /// The definition of a column, as a user requests it.
    pub struct ColumnDefinition {
        /// The name, unique in the table.
        pub name: String,
        /// Its type.
        pub kind: ColumnType,
        /// Whether it may hold null.
        pub nullable: bool,
    }
}

record! {
    /// The definition of an index, as a user requests it.
    pub struct IndexDefinition {
        /// The name, unique in the table.
        pub name: String,
        /// The columns by which it orders the rows, the most significant one first.
        pub columns: Vec<String>,
        /// If true, no two rows may have the same values in these columns, unless one of the values is null.
        pub unique: bool,
    }
}

record! {
    /// The definition of a table, as a user requests it.
    pub struct TableDefinition {
        /// The name, unique among tables.
        pub name: String,
        /// The columns; at least one.
        pub columns: Vec<ColumnDefinition>,
        /// The columns of the primary key, which must not be nullable.
        pub key: Vec<String>,
        /// Secondary indices.
        pub indices: Vec<IndexDefinition>,
    }
}

choice! {
    /// A change of a table.
    pub enum Change {
        /// Adds a column. Existing rows hold null in it.
        0 = AddColumn { column: ColumnDefinition },
        /// Drops a column. Its values can no longer be read; their space in a row is freed when the row is next written.
        1 = DropColumn { name: String },
        /// Adds an index. It is built in the background and can be queried once it is ready.
        2 = AddIndex { index: IndexDefinition },
        /// Drops an index. It can no longer be queried, and its entries are deleted in the background.
        3 = DropIndex { name: String },
    }
}

record! {
    /// A column.
    pub struct Column {
        /// The id, which is never reused for another column of the table.
        pub id: u16,
        /// Its name.
        pub name: String,
        /// Its type.
        pub kind: ColumnType,
        /// Whether it may hold null.
        pub nullable: bool,
    }
}

choice! {
    /// The state of an index.
    pub enum IndexState {
        /// The index is complete: it has an entry for each row.
        0 = Ready {},
        /// The index is being built. It has the rows whose encoded keys are below `next`, and all rows written since the build
        /// began.
        1 = Building { next: Bytes },
        /// The index could not be built. It is not maintained and should be dropped.
        2 = Failed { reason: String },
        /// Its entries are being deleted.
        3 = Dropping {},
    }
}

record! {
    /// A secondary index.
    pub struct Index {
        /// The id, which is never reused for another index of the table.
        pub id: u16,
        /// Its name.
        pub name: String,
        /// The ids of its columns, in order.
        pub columns: Vec<u16>,
        /// See [`IndexDefinition::unique`].
        pub unique: bool,
        /// Its state.
        pub state: IndexState,
    }
}

record! {
    /// A table.
    pub struct Schema {
        /// The number of the table, which is never reused for another table.
        pub table: u32,
        /// Its name.
        pub name: String,
        /// The version of the schema, which rises with every change.
        pub version: u32,
        /// The columns, in the order in which they were added.
        pub columns: Vec<Column>,
        /// The ids of the columns of the primary key, in order.
        pub key: Vec<u16>,
        /// Secondary indices.
        pub indices: Vec<Index>,
        /// The next column's id.
        pub next_column: u16,
        /// The next index's id.
        pub next_index: u16,
    }
}

/// Why a table, a change or a value is not allowed. The message names what is wrong and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// A name is not allowed.
    #[error(
        "{what} cannot be named {name:?}: 1 to {MAX_NAME_BYTES} letters, digits, '_', '-' and '.' are allowed, a letter or '_' first"
    )]
    Name {
        /// What has the name: a table, a column or an index.
        what: &'static str,
        /// The name that was given, possibly shortened.
        name: String,
    },
    /// There are too few or too many of something.
    #[error("{got} {what}; {least} to {most} are allowed")]
    Count {
        /// What was counted.
        what: &'static str,
        /// Their number.
        got: usize,
        /// The allowed minimum.
        least: usize,
        /// The allowed maximum.
        most: usize,
    },
    /// A name occurs twice.
    #[error("there are two {what} named {name:?}")]
    Twice {
        /// What has the name: columns or indices.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The table has no column with this name.
    #[error("table {table:?} has no column {column:?}; it has {known}")]
    NoColumn {
        /// The table.
        table: String,
        /// The requested column.
        column: String,
        /// The existing ones, as text.
        known: String,
    },
    /// The table has no index with this name.
    #[error("table {table:?} has no index {index:?}; it has {known}")]
    NoIndex {
        /// The table.
        table: String,
        /// The requested index.
        index: String,
        /// The existing ones, as text.
        known: String,
    },
    /// A column of the primary key is nullable.
    #[error("column {0:?} is in the primary key and cannot be nullable")]
    NullableKey(String),
    /// An added column is not nullable.
    #[error("a column that is added later must be nullable, because existing rows hold null in {0:?}")]
    AddedNotNullable(String),
    /// The primary key or an index contains the column, so it cannot be dropped.
    #[error("column {column:?} is in {by}")]
    Needed {
        /// The column.
        column: String,
        /// What contains it, as text.
        by: String,
    },
    /// The ids of columns or indices of the table have run out.
    #[error("table {0:?} has had 65,535 columns or indices over its lifetime, the maximum")]
    Ids(String),
    /// A value is null, but the column is not nullable.
    #[error("column {0:?} cannot be null")]
    Null(String),
    /// A value has the wrong type.
    #[error("column {column:?} holds {wanted}, not {got}")]
    Type {
        /// The column.
        column: String,
        /// The type of the column.
        wanted: &'static str,
        /// The type of the given value.
        got: &'static str,
    },
    /// A value is NaN.
    #[error("column {0:?}: NaN is not allowed")]
    NotANumber(String),
    /// A key has too few or too many values.
    #[error("the primary key of {table:?} is ({key}); {got} values were given")]
    KeyLength {
        /// The table.
        table: String,
        /// The columns of its key, as text.
        key: String,
        /// The number of given values.
        got: usize,
    },
    /// An encoded key or index entry is too long.
    #[error("{what} has {bytes} bytes encoded; at most {MAX_KEY_BYTES} are allowed")]
    KeyTooLong {
        /// The key or the index, as text.
        what: String,
        /// Its encoded length.
        bytes: usize,
    },
}

fn check_name(what: &'static str, name: &str) -> Result<(), SchemaError> {
    let head = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
    let fits =
        name.len() <= MAX_NAME_BYTES && name.bytes().next().is_some_and(head) && name.bytes().all(allowed);
    match fits {
        true => Ok(()),
        false => Err(SchemaError::Name { what, name: name.chars().take(MAX_NAME_BYTES + 1).collect() }),
    }
}

fn count(what: &'static str, got: usize, least: usize, most: usize) -> Result<(), SchemaError> {
    match (least..=most).contains(&got) {
        true => Ok(()),
        false => Err(SchemaError::Count { what, got, least, most }),
    }
}

impl Schema {
    /// Returns the schema of a new table.
    ///
    /// # Errors
    /// The definition is not allowed.
    pub fn new(table: u32, definition: &TableDefinition) -> Result<Schema, SchemaError> {
        check_name("a table", &definition.name)?;
        count("columns", definition.columns.len(), 1, MAX_COLUMNS)?;
        let mut schema = Schema {
            table,
            name: definition.name.clone(),
            version: 1,
            columns: Vec::new(),
            key: Vec::new(),
            indices: Vec::new(),
            next_column: 1,
            next_index: 1,
        };
        for column in &definition.columns {
            schema.add_column(column)?;
        }
        schema.key = schema.ids("columns in the primary key", &definition.key)?;
        for id in &schema.key {
            let column = schema.column_of(*id);
            if column.nullable {
                return Err(SchemaError::NullableKey(column.name.clone()));
            }
        }
        for index in &definition.indices {
            schema.add_index(index, IndexState::Ready {})?;
        }
        Ok(schema)
    }

    /// Returns the schema after a change. Background work that the change needs begins with it.
    ///
    /// # Errors
    /// The change is not allowed.
    pub fn changed(&self, change: &Change) -> Result<Schema, SchemaError> {
        let mut new = self.clone();
        new.version = self.version.saturating_add(1);
        match change {
            Change::AddColumn { column } if !column.nullable => {
                return Err(SchemaError::AddedNotNullable(column.name.clone()));
            }
            Change::AddColumn { column } => new.add_column(column)?,
            Change::DropColumn { name } => {
                let id = self.column(name)?.id;
                if let Some(by) = self.needs(id) {
                    return Err(SchemaError::Needed { column: name.clone(), by });
                }
                new.columns.retain(|c| c.id != id);
            }
            Change::AddIndex { index } => {
                new.add_index(index, IndexState::Building { next: Bytes::new() })?
            }
            Change::DropIndex { name } => {
                let id = self.index(name)?.id;
                for index in new.indices.iter_mut().filter(|i| i.id == id) {
                    index.state = IndexState::Dropping {};
                }
            }
        }
        Ok(new)
    }

    fn add_column(&mut self, column: &ColumnDefinition) -> Result<(), SchemaError> {
        check_name("a column", &column.name)?;
        count("columns", self.columns.len() + 1, 1, MAX_COLUMNS)?;
        if self.columns.iter().any(|c| c.name == column.name) {
            return Err(SchemaError::Twice { what: "columns", name: column.name.clone() });
        }
        let id = self.next_column;
        self.next_column = id.checked_add(1).ok_or_else(|| SchemaError::Ids(self.name.clone()))?;
        let ColumnDefinition { name, kind, nullable } = column.clone();
        self.columns.push(Column { id, name, kind, nullable });
        Ok(())
    }

    fn add_index(&mut self, index: &IndexDefinition, state: IndexState) -> Result<(), SchemaError> {
        check_name("an index", &index.name)?;
        count("indices", self.indices.len() + 1, 0, MAX_INDICES)?;
        if self.indices.iter().any(|i| i.name == index.name) {
            return Err(SchemaError::Twice { what: "indices", name: index.name.clone() });
        }
        let columns = self.ids("columns in an index", &index.columns)?;
        let id = self.next_index;
        self.next_index = id.checked_add(1).ok_or_else(|| SchemaError::Ids(self.name.clone()))?;
        self.indices.push(Index { id, name: index.name.clone(), columns, unique: index.unique, state });
        Ok(())
    }

    fn ids(&self, what: &'static str, names: &[String]) -> Result<Vec<u16>, SchemaError> {
        count(what, names.len(), 1, MAX_KEY_COLUMNS)?;
        let mut ids = Vec::new();
        for name in names {
            let id = self.column(name)?.id;
            if ids.contains(&id) {
                return Err(SchemaError::Twice { what, name: name.clone() });
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Returns what contains a column, as text. None if the column can be dropped.
    fn needs(&self, id: u16) -> Option<String> {
        if self.key.contains(&id) {
            return Some("the primary key".to_owned());
        }
        let index = self.indices.iter().find(|i| i.columns.contains(&id))?;
        Some(match index.state {
            IndexState::Dropping {} => format!("index {:?}, which is being dropped", index.name),
            _ => format!("index {:?}; drop that first", index.name),
        })
    }

    /// Returns a column by its name.
    ///
    /// # Errors
    /// There is no column with this name.
    pub fn column(&self, name: &str) -> Result<&Column, SchemaError> {
        self.columns.iter().find(|c| c.name == name).ok_or_else(|| SchemaError::NoColumn {
            table: self.name.clone(),
            column: name.to_owned(),
            known: self.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Returns an index by its name. An index that is being dropped does not count.
    ///
    /// # Errors
    /// There is no index with this name.
    pub fn index(&self, name: &str) -> Result<&Index, SchemaError> {
        let mut there = self.indices.iter().filter(|i| i.state != IndexState::Dropping {});
        there.clone().find(|i| i.name == name).ok_or_else(|| SchemaError::NoIndex {
            table: self.name.clone(),
            index: name.to_owned(),
            known: match there.next() {
                None => "none".to_owned(),
                Some(first) => there.fold(first.name.clone(), |all, i| format!("{all}, {}", i.name)),
            },
        })
    }

    /// Returns a column of the primary key or of an index. Such columns are never dropped.
    pub(crate) fn column_of(&self, id: u16) -> &Column {
        self.columns.iter().find(|c| c.id == id).expect("a column that is needed is not dropped")
    }

    /// Returns true if a column is in the primary key.
    pub fn is_key(&self, id: u16) -> bool {
        self.key.contains(&id)
    }

    /// Returns a value in the form in which the column stores it.
    ///
    /// # Errors
    /// The column does not accept the value.
    pub fn fit(column: &Column, value: Value) -> Result<Value, SchemaError> {
        match value.kind() {
            None if column.nullable => Ok(Value::Null),
            None => Err(SchemaError::Null(column.name.clone())),
            Some(kind) if kind != column.kind => Err(SchemaError::Type {
                column: column.name.clone(),
                wanted: column.kind.name(),
                got: kind.name(),
            }),
            Some(_) => value.canonical().ok_or_else(|| SchemaError::NotANumber(column.name.clone())),
        }
    }

    /// Encodes a primary key. `values` has one value for each column of the key.
    ///
    /// # Errors
    /// The values do not fit the columns, or the encoded key is too long.
    pub fn key_bytes(&self, values: &[Value]) -> Result<Bytes, SchemaError> {
        if values.len() != self.key.len() {
            let key = self.key.iter().map(|id| self.column_of(*id).name.as_str()).collect::<Vec<_>>();
            return Err(SchemaError::KeyLength {
                table: self.name.clone(),
                key: key.join(", "),
                got: values.len(),
            });
        }
        let fitted = self.key.iter().zip(values).map(|(id, v)| Schema::fit(self.column_of(*id), v.clone()));
        let key = key::encoded(&fitted.collect::<Result<Vec<_>, _>>()?);
        if key.len() > MAX_KEY_BYTES {
            let what = format!("the primary key of a row of {:?}", self.name);
            return Err(SchemaError::KeyTooLong { what, bytes: key.len() });
        }
        Ok(key)
    }

    /// Returns the encoded columns of a row's entry in an index, and whether one of them is null. `values` has the whole row,
    /// without nulls.
    ///
    /// # Errors
    /// The encoded columns are too long.
    pub(crate) fn index_bytes(&self, index: &Index, values: &Values) -> Result<(Bytes, bool), SchemaError> {
        let of = |id: &u16| values.get(id).unwrap_or(&Value::Null);
        let bytes = key::encoded(index.columns.iter().map(of));
        if bytes.len() > MAX_KEY_BYTES {
            let what = format!("an entry of index {:?}", index.name);
            return Err(SchemaError::KeyTooLong { what, bytes: bytes.len() });
        }
        Ok((bytes, index.columns.iter().any(|id| of(id).is_null())))
    }
}
