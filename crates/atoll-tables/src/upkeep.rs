//! Background work: builds indices, and empties indices and tables that were dropped. Each command in the log does a bounded step.
//! While an index is being built, every write updates it, whether or not the build has reached the row. No write therefore has to
//! wait, and a step only adds missing entries. Any node may propose the steps: a step that is late finds that the work has
//! progressed, and does nothing.
//!
//! Scans have to skip deleted keys until the store has merged its files. A step of a deletion therefore reports how far it got, and
//! the next one begins there. Without this, applying the deletion of n keys would take time quadratic in n.

use atoll_contract::application::{Direction, KeyRange, StoreError, View};
use atoll_core::codec::Decode;
use bytes::Bytes;

use crate::application::{Refused, TableState};
use crate::command::Done;
use crate::row::Values;
use crate::schema::{Index, IndexState, Schema};
use crate::{key, layout, transaction};

/// The maximum number of rows or entries that one step handles.
pub const MAX_STEP_ROWS: u32 = 256;

/// A pending piece of background work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The table.
    pub table: u32,
    /// The index, or 0 for a table that was dropped.
    pub index: u16,
    /// The progress of the work, which the next step must name. For a deletion this is always empty here, which is correct but
    /// slower than the position in the reply to the previous step.
    pub from: Bytes,
}

/// Returns the pending background work, in no particular order.
///
/// # Errors
/// The store cannot be read.
pub fn pending(view: &View) -> Result<Vec<Pending>, StoreError> {
    let mut all = Vec::new();
    for item in view.scan(&layout::all_pending(), Direction::Forward) {
        let (key, _) = item?;
        let number = |at: std::ops::Range<usize>| key.get(at).map(<[u8]>::to_vec).unwrap_or_default();
        let (Ok(table), Ok(index)) = (<[u8; 4]>::try_from(number(1..5)), <[u8; 2]>::try_from(number(5..7)))
        else {
            continue;
        };
        let (table, index) = (u32::from_be_bytes(table), u16::from_be_bytes(index));
        let schema = view.get(&layout::schema(table))?.and_then(|bytes| Schema::from_bytes(bytes).ok());
        let state = schema.and_then(|s| s.indices.into_iter().find(|i| i.id == index)).map(|i| i.state);
        let from = match state {
            Some(IndexState::Building { next }) => next,
            _ => Bytes::new(),
        };
        all.push(Pending { table, index, from });
    }
    Ok(all)
}

/// Applies one step.
pub(crate) fn step(
    state: &mut TableState<'_, '_>,
    table: u32,
    index: u16,
    from: &Bytes,
    rows: u32,
) -> Result<Done, Refused> {
    let rows = rows.clamp(1, MAX_STEP_ROWS) as usize;
    let version = state.counters.version;
    let done = |more| Ok(Done { version, read: Some(Vec::new()), more });
    let work = layout::pending(table, index);
    if state.tx.get(&work).is_none() {
        return done(false);
    }
    // The reply to a step of a deletion says how far it got, and the next step should name that position.
    let came = |more, to: Option<Bytes>| Ok(Done { version, read: Some(vec![to]), more });
    if index == 0 {
        let (entries, all_rows) = (layout::entries_prefix(table), layout::row_prefix(table));
        let mut to = None;
        let in_rows = from.starts_with(&all_rows);
        let mut more = !in_rows && empty(state, &entries, from, rows, &mut to);
        if !more {
            more = empty(state, &all_rows, from, rows, &mut to);
        }
        if !more {
            state.tx.delete(&work);
        }
        return came(more, to);
    }
    let schema = state.schema(table).expect("work on an index goes with its table");
    let Some(at) = schema.indices.iter().position(|i| i.id == index) else { return done(false) };
    let mut schema = (*schema).clone();
    let next = match &schema.indices[at].state {
        IndexState::Building { next } if next == from => {
            fill(state, &schema, &schema.indices[at].clone(), next, rows)
        }
        IndexState::Building { .. } => return done(true),
        IndexState::Dropping {} => {
            let mut to = None;
            let more = empty(state, &layout::entry_prefix(table, index), from, rows, &mut to);
            if !more {
                schema.indices.remove(at);
                state.set_schema(schema);
                state.tx.delete(&work);
            }
            return came(more, to);
        }
        IndexState::Ready {} | IndexState::Failed { .. } => {
            state.tx.delete(&work);
            return done(false);
        }
    };
    let more = matches!(next, IndexState::Building { .. });
    schema.indices[at].state = next;
    state.set_schema(schema);
    if !more {
        state.tx.delete(&work);
    }
    done(more)
}

/// Deletes some keys with a prefix, starting at `from` if that has the prefix: all keys before it have been deleted, and none is
/// added there any more. Returns true if the limit was reached, so that there may be more. Sets `to` to the last deleted key, if
/// there is one.
fn empty(
    state: &mut TableState<'_, '_>,
    prefix: &[u8],
    from: &Bytes,
    rows: usize,
    to: &mut Option<Bytes>,
) -> bool {
    let mut range = KeyRange::prefix(prefix);
    if from.starts_with(prefix) {
        range.start = from.clone();
    }
    let found = state.tx.range(&range, Direction::Forward, rows);
    for (key, _) in &found {
        state.tx.delete(key);
    }
    *to = found.last().map(|(key, _)| key.clone()).or_else(|| to.take());
    found.len() == rows
}

/// Adds the entries of some rows to an index. Returns the new state of the index.
fn fill(
    state: &mut TableState<'_, '_>,
    schema: &Schema,
    index: &Index,
    next: &Bytes,
    rows: usize,
) -> IndexState {
    let prefix = layout::row_prefix(schema.table);
    let mut range = KeyRange::prefix(&prefix);
    range.start = layout::joined(&prefix, next);
    let found = state.tx.range(&range, Direction::Forward, rows);
    for (row_key, stored) in &found {
        let row_key = row_key.slice(prefix.len()..);
        let put = whole(schema, &row_key, stored)
            .and_then(|values| transaction::entry_key(schema, index, &values, &row_key))
            .and_then(|entry| transaction::put_entry(state, schema, index, &entry, &row_key));
        if let Err(refused) = put {
            return IndexState::Failed { reason: refused.message };
        }
    }
    match found.last() {
        Some((last, _)) if found.len() == rows => {
            IndexState::Building { next: layout::joined(&last[prefix.len()..], &[0]) }
        }
        _ => IndexState::Ready {},
    }
}

fn whole(schema: &Schema, row_key: &[u8], stored: &Bytes) -> Result<Values, Refused> {
    let row = transaction::decode(Some(stored)).expect("there is one");
    let key = key::decode_all(row_key, schema.key.len()).expect("damaged state: the key of a row");
    let mut values = row.values;
    values.extend(schema.key.iter().copied().zip(key));
    Ok(values)
}
