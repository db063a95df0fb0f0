//! The answer to a transaction: the rows that it has read, shown with the columns that their tables had at that position of the log.
//!
//! A door converts a transaction with the schemas that its node knows before the transaction is in the log. A schema may change in between.
//! With the older one, values would be shown under wrong names, and those of a dropped column again: a row keeps their bytes until it is
//! next written.

use std::collections::BTreeSet;

use atoll_client::{Reason, proto};
use atoll_core::codec::Decode;
use atoll_db::View;
use atoll_door::backend::Refusal;
use atoll_door::grpc::AnswerRoom;
use atoll_tables::row::StoredRow;
use atoll_tables::{ReadError, Reply, Row, Schema, Value, read};
use bytes::Bytes;

use crate::convert;
use crate::handle::{TablesHandle, aside};
use crate::propose::unreadable;

/// What a transaction asked for, as far as its answer needs it.
pub(crate) struct Asked {
    /// For each operation, the key of its row, and the index of its table in `schemas`.
    pub(crate) rows: Vec<(Vec<Value>, usize)>,
    /// The tables, as this node knew them when it converted the transaction.
    pub(crate) schemas: Vec<Schema>,
    /// Whether the transaction reads anything.
    pub(crate) reads: bool,
}

/// Returns the answer to a transaction that was applied. If it is refused, the transaction has happened nevertheless.
///
/// # Errors
/// The rows are not kept, there is no room for them, or it is not certain which columns they have.
pub(crate) async fn answer(
    tables: &TablesHandle,
    asked: Asked,
    mut reply: Reply,
    room: Option<AnswerRoom>,
) -> Result<proto::TransactReply, Refusal> {
    let version = reply.done.version;
    // An earlier attempt was executed. The transaction reads nothing, so its reply is the same now.
    if reply.done.read.is_none() && !asked.reads {
        let read = vec![proto::get_reply::Found { row: None }; asked.rows.len()];
        return Ok(proto::TransactReply { version, read, tables: Vec::new() });
    }
    let Some(read) = reply.done.read.take() else {
        let words = "it was done by an earlier attempt, whose reads are not kept";
        return Err(Refusal::no(Reason::Refused, words, "read again"));
    };
    let Asked { rows, schemas, .. } = asked;
    let found = read.iter().zip(&rows).filter(|(stored, _)| stored.is_some());
    let used: BTreeSet<usize> = found.map(|(_, (_, at))| *at).collect();
    let bytes = read.iter().flatten().map(Bytes::len).sum::<usize>();
    let names = used.iter().map(|at| bytes_of_names(&schemas[*at])).sum::<usize>();
    room.map_or(Ok(()), |room| room.take(bytes + names))?;
    let schemas = as_read(tables, &rows, schemas, &used, &reply).await?;
    let show = |(stored, (key, at)): (Option<Bytes>, (Vec<Value>, usize))| {
        let certain = reply.schemas.contains_key(&schemas[at].table);
        let row = stored.map(|stored| shown(&schemas[at], certain, &key, stored)).transpose()?;
        Ok::<_, Refusal>(proto::get_reply::Found { row })
    };
    let read = read.into_iter().zip(rows).map(show).collect::<Result<_, _>>()?;
    let columns = |schema: &Schema| proto::TableColumns {
        table: schema.name.clone(),
        columns: schema.columns.iter().map(|c| c.name.clone()).collect(),
    };
    let tables = used.iter().map(|at| columns(&schemas[*at])).collect();
    Ok(proto::TransactReply { version, read, tables })
}

/// Returns the size of the names of a table's columns in an answer, in bytes.
pub(crate) fn bytes_of_names(schema: &Schema) -> usize {
    // A name has a tag and a length before it.
    schema.columns.iter().map(|c| c.name.len() + 2).sum()
}

/// Replaces those of the `used` schemas under which the rows were not read.
async fn as_read(
    tables: &TablesHandle,
    rows: &[(Vec<Value>, usize)],
    mut schemas: Vec<Schema>,
    used: &BTreeSet<usize>,
    reply: &Reply,
) -> Result<Vec<Schema>, Refusal> {
    let under = |at: usize| reply.schemas.get(&schemas[at].table).copied();
    let differing: Vec<usize> =
        used.iter().copied().filter(|at| under(*at) != Some(schemas[*at].version)).collect();
    if differing.is_empty() {
        return Ok(schemas);
    }
    let wanted = differing.iter().map(|at| {
        let keys = rows.iter().filter(|(_, of)| of == at).map(|(key, _)| key.clone());
        (schemas[*at].table, under(*at), keys.collect::<Vec<_>>())
    });
    let wanted: Vec<_> = wanted.collect();
    // The transaction is in this view, because a view is published before the callers of its commands are answered (X19).
    let (view, version) = (tables.engine.view(), reply.done.version);
    let newest = aside(&tables.reads, move || {
        let one =
            |(table, under, keys): (u32, Option<u32>, Vec<_>)| newest(&view, version, table, under, &keys);
        wanted.into_iter().map(one).collect::<Result<Vec<_>, _>>().map_err(|e| convert::read_refusal(&e))
    })
    .await?;
    for (at, newest) in differing.into_iter().zip(newest) {
        schemas[at] = newest.ok_or_else(|| not_shown(&schemas[at].name))?;
    }
    Ok(schemas)
}

/// Returns the newest schema of a table if it has the version `under` which the rows were read. Without that version, they were read by an
/// earlier attempt: returns the schema if that attempt read the same table.
fn newest(
    view: &View,
    version: u64,
    table: u32,
    under: Option<u32>,
    keys: &[Vec<Value>],
) -> Result<Option<Schema>, ReadError> {
    let Some(schema) = read::schema_by_number(view, table)? else { return Ok(None) };
    if let Some(under) = under {
        // The versions of a table only rise, and each has its own columns.
        return Ok((under == schema.version).then_some(schema));
    }
    // It may have read another table, which had this name and was dropped. It was this one if the transaction wrote a row of it: the
    // version of a row names one command, and a name stands for one table in all of a command.
    for key in keys {
        if read::get(view, &schema, key)?.is_some_and(|row| row.version == version) {
            return Ok(Some(schema));
        }
    }
    Ok(None)
}

/// Returns a row as clients get it. If it is not `certain` that the row was read under this schema, an earlier attempt read it under this
/// one or an earlier one. Ids of columns are never used again, so its values are still shown under their own names. But the value of a
/// column that was dropped since is missing, and a new column of that name would seem to have been null. Such a row is not shown.
fn shown(schema: &Schema, certain: bool, key: &[Value], stored: Bytes) -> Result<proto::TableRow, Refusal> {
    if !certain {
        let row = StoredRow::from_bytes(stored.clone()).map_err(|e| unreadable(&e.to_string()))?;
        if !row.fits(schema) {
            return Err(not_shown(&schema.name));
        }
    }
    let key = schema.key_bytes(key).map_err(|e| convert::schema_refusal(&e))?;
    Row::decode(schema, &key, stored).map(convert::row).map_err(|e| unreadable(&e.to_string()))
}

fn not_shown(table: &str) -> Refusal {
    let words = format!(
        "the rows that it read cannot be shown, because table {table:?} was changed or dropped meanwhile"
    );
    Refusal::no(Reason::Refused, words, "read again")
}
