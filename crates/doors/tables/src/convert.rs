//! Converts messages to commands and back. Everything is checked against this node's current state of the table, so that errors are
//! reported before anything is replicated. When a command is applied, it is checked again against the state at that position of the log.

use atoll_client::Reason;
use atoll_client::proto::{self, cell, expect, operation};
use atoll_db::{Direction, StoreError, View};
use atoll_door::backend::Refusal;
use atoll_tables::{
    Action, Bound, Change, ColumnDefinition, ColumnType, Expect, IndexDefinition, IndexState, Op, Query,
    ReadError, RejectKind, Rejection, Row, Schema, SchemaError, TableDefinition, Value, Values, read,
};

fn invalid(message: impl Into<String>, next: &str) -> Refusal {
    Refusal::no(Reason::Invalid, message, next)
}

pub(crate) fn store_refusal(error: &StoreError) -> Refusal {
    Refusal::no(Reason::StorageFailed, error.to_string(), "use another node")
}

pub(crate) fn schema_refusal(error: &SchemaError) -> Refusal {
    let reason = match error {
        SchemaError::KeyTooLong { .. } => Reason::TooLarge,
        _ => Reason::Invalid,
    };
    Refusal::no(reason, error.to_string(), "")
}

pub(crate) fn read_refusal(error: &ReadError) -> Refusal {
    match error {
        ReadError::NoSuchTable(_) => {
            Refusal::no(Reason::NoSuchTable, error.to_string(), "`atoll table list` shows the tables")
        }
        ReadError::Schema(error) => schema_refusal(error),
        ReadError::Bound { .. } => {
            invalid(error.to_string(), "give values for the first columns of the key or index, or for fewer")
        }
        ReadError::NotReady { .. } => {
            Refusal::no(Reason::Refused, error.to_string(), "`atoll table show` shows when it is ready")
        }
        ReadError::Damaged { .. } => Refusal::no(Reason::Damaged, error.to_string(), "ask another node"),
        ReadError::Store(error) => store_refusal(error),
    }
}

/// Converts a rejection to the refusal that clients get.
pub(crate) fn rejection_refusal(rejection: Rejection) -> Refusal {
    let message = match rejection.op {
        Some(op) => format!("operation {}: {}", op + 1, rejection.message),
        None => rejection.message,
    };
    match rejection.kind {
        RejectKind::Invalid => invalid(message, ""),
        RejectKind::NoSuchTable => {
            Refusal::no(Reason::NoSuchTable, message, "`atoll table list` shows the tables")
        }
        RejectKind::TableExists => {
            Refusal::no(Reason::Refused, message, "choose another name, or drop that one")
        }
        RejectKind::Conflict => {
            Refusal::no(Reason::Conflict, message, "read the row again, and decide again")
        }
        RejectKind::Duplicate => Refusal::no(Reason::Conflict, message, ""),
        RejectKind::TooLarge => Refusal::no(Reason::TooLarge, message, ""),
        RejectKind::Forgotten => {
            let next = "if an earlier attempt had no answer, read what it would have written";
            Refusal::no(Reason::Forgotten, message, next)
        }
    }
}

pub(crate) fn value(cell: Option<proto::Cell>) -> Value {
    match cell.and_then(|c| c.value) {
        None => Value::Null,
        Some(cell::Value::BoolValue(b)) => Value::Bool(b),
        Some(cell::Value::Int64Value(n)) => Value::Int64(n),
        Some(cell::Value::Float64Value(f)) => Value::Float64(f),
        Some(cell::Value::TextValue(text)) => Value::Text(text),
        Some(cell::Value::BytesValue(bytes)) => Value::Bytes(bytes),
        Some(cell::Value::TimestampUs(n)) => Value::Timestamp(n),
    }
}

fn values(cells: Vec<proto::Cell>) -> Vec<Value> {
    cells.into_iter().map(|c| value(Some(c))).collect()
}

fn cell(value: Value) -> proto::Cell {
    let value = match value {
        Value::Null => None,
        Value::Bool(b) => Some(cell::Value::BoolValue(b)),
        Value::Int64(n) => Some(cell::Value::Int64Value(n)),
        Value::Float64(f) => Some(cell::Value::Float64Value(f)),
        Value::Text(text) => Some(cell::Value::TextValue(text)),
        Value::Bytes(bytes) => Some(cell::Value::BytesValue(bytes)),
        Value::Timestamp(n) => Some(cell::Value::TimestampUs(n)),
    };
    proto::Cell { value }
}

pub(crate) fn row(row: Row) -> proto::TableRow {
    proto::TableRow { version: row.version, cells: row.values.into_iter().map(cell).collect() }
}

fn kind(kind: ColumnType) -> proto::ColumnKind {
    match kind {
        ColumnType::Bool => proto::ColumnKind::Bool,
        ColumnType::Int64 => proto::ColumnKind::Int64,
        ColumnType::Float64 => proto::ColumnKind::Float64,
        ColumnType::Text => proto::ColumnKind::Text,
        ColumnType::Bytes => proto::ColumnKind::Bytes,
        ColumnType::Timestamp => proto::ColumnKind::Timestamp,
    }
}

fn column_definition(column: proto::TableColumn) -> Result<ColumnDefinition, Refusal> {
    let wanted = match column.kind() {
        proto::ColumnKind::Unspecified => {
            let next = "types are bool, int64, float64, text, bytes, timestamp";
            return Err(invalid(format!("column {:?} has no type that is known", column.name), next));
        }
        proto::ColumnKind::Bool => ColumnType::Bool,
        proto::ColumnKind::Int64 => ColumnType::Int64,
        proto::ColumnKind::Float64 => ColumnType::Float64,
        proto::ColumnKind::Text => ColumnType::Text,
        proto::ColumnKind::Bytes => ColumnType::Bytes,
        proto::ColumnKind::Timestamp => ColumnType::Timestamp,
    };
    Ok(ColumnDefinition { name: column.name, kind: wanted, nullable: column.nullable })
}

fn index_definition(index: proto::TableIndex) -> IndexDefinition {
    IndexDefinition { name: index.name, columns: index.columns, unique: index.unique }
}

pub(crate) fn definition(table: proto::Table) -> Result<TableDefinition, Refusal> {
    let definition = TableDefinition {
        name: table.name,
        columns: table.columns.into_iter().map(column_definition).collect::<Result<_, _>>()?,
        key: table.key,
        indices: table.indices.into_iter().map(index_definition).collect(),
    };
    Schema::new(0, &definition).map_err(|e| schema_refusal(&e))?;
    Ok(definition)
}

pub(crate) fn change(change: proto::change_table_request::Change) -> Result<Change, Refusal> {
    use proto::change_table_request::Change as Wanted;
    Ok(match change {
        Wanted::AddColumn(column) => Change::AddColumn { column: column_definition(column)? },
        Wanted::DropColumn(name) => Change::DropColumn { name },
        Wanted::AddIndex(index) => Change::AddIndex { index: index_definition(index) },
        Wanted::DropIndex(name) => Change::DropIndex { name },
    })
}

pub(crate) fn table(schema: &Schema) -> proto::Table {
    let name =
        |id: &u16| schema.columns.iter().find(|c| c.id == *id).map(|c| c.name.clone()).unwrap_or_default();
    let column = |c: &atoll_tables::Column| proto::TableColumn {
        name: c.name.clone(),
        kind: kind(c.kind).into(),
        nullable: c.nullable,
    };
    let index = |i: &atoll_tables::Index| proto::TableIndex {
        name: i.name.clone(),
        columns: i.columns.iter().map(name).collect(),
        unique: i.unique,
        state: read::words(&i.state),
    };
    let kept = schema.indices.iter().filter(|i| i.state != IndexState::Dropping {});
    proto::Table {
        name: schema.name.clone(),
        version: schema.version,
        columns: schema.columns.iter().map(column).collect(),
        key: schema.key.iter().map(name).collect(),
        indices: kept.map(index).collect(),
    }
}

/// Converts a primary key and checks it against the schema.
pub(crate) fn key(schema: &Schema, key: Option<proto::RowKey>) -> Result<Vec<Value>, Refusal> {
    let values = values(key.unwrap_or_default().cells);
    schema.key_bytes(&values).map_err(|e| schema_refusal(&e))?;
    Ok(values)
}

fn expectation(expect: Option<proto::Expect>) -> Expect {
    match expect.and_then(|e| e.what) {
        Some(expect::What::Absent(true)) => Expect::Absent {},
        Some(expect::What::Present(true)) => Expect::Present {},
        Some(expect::What::Version(version)) => Expect::Version { version },
        Some(expect::What::Absent(false) | expect::What::Present(false)) | None => Expect::Any {},
    }
}

fn put(schema: &Schema, put: operation::Put) -> Result<Op, Refusal> {
    let mut named = Values::new();
    for one in put.cells {
        let column = schema.column(&one.column).map_err(|e| schema_refusal(&e))?;
        let value = Schema::fit(column, value(one.value)).map_err(|e| schema_refusal(&e))?;
        if named.insert(column.id, value).is_some() {
            return Err(invalid(format!("column {:?} is named twice", one.column), ""));
        }
    }
    let key: Vec<Value> = schema.key.iter().map(|id| named.remove(id).unwrap_or(Value::Null)).collect();
    schema.key_bytes(&key).map_err(|e| schema_refusal(&e))?;
    if !put.merge {
        // A column without a value must allow null. Report the error now rather than when the command is applied.
        for column in schema.columns.iter().filter(|c| !schema.is_key(c.id) && !named.contains_key(&c.id)) {
            Schema::fit(column, Value::Null).map_err(|e| schema_refusal(&e))?;
        }
    }
    let action = Action::Put { expect: expectation(put.expect), values: named, merge: put.merge };
    Ok(Op { table: schema.table, key, action })
}

/// Converts an operation. Also returns the index of its table in `known`, and adds the table there if it is new.
pub(crate) fn operation(
    view: &View,
    operation: proto::Operation,
    known: &mut Vec<Schema>,
) -> Result<(Op, usize), Refusal> {
    let at = match known.iter().position(|s| s.name == operation.table) {
        Some(at) => at,
        None => {
            known.push(read::schema(view, &operation.table).map_err(|e| read_refusal(&e))?);
            known.len() - 1
        }
    };
    let schema = &known[at];
    let op = |of, action| Ok::<_, Refusal>(Op { table: schema.table, key: key(schema, of)?, action });
    let op = match operation.action {
        Some(operation::Action::Read(read)) => op(read.key, Action::Read {})?,
        Some(operation::Action::Check(check)) => {
            op(check.key, Action::Check { expect: expectation(check.expect) })?
        }
        Some(operation::Action::Delete(delete)) => {
            op(delete.key, Action::Delete { expect: expectation(delete.expect) })?
        }
        Some(operation::Action::Put(wanted)) => put(schema, wanted)?,
        None => return Err(invalid("it does nothing", "set read, check, put or delete")),
    };
    Ok((op, at))
}

pub(crate) fn query(request: &proto::ScanRequest) -> Query {
    let bound = |bound: &Option<proto::RangeBound>| {
        let bound = bound.clone().unwrap_or_default();
        Bound { values: values(bound.cells), exclusive: bound.exclusive }
    };
    Query {
        index: request.index.clone(),
        lower: bound(&request.lower),
        upper: bound(&request.upper),
        direction: if request.backward { Direction::Backward } else { Direction::Forward },
    }
}
