//! Tests of writes on an engine without a log. The places for reads are a gate: while a test holds all of them, a call waits before it
//! reads a schema, and the test can change the table meanwhile.
#![allow(clippy::unwrap_used)]

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use atoll_client::Outcome;
use atoll_client::proto::{Cell, cell, operation};
use atoll_core::{Incarnation, NodeId};
use atoll_db::{Applications, MemoryStore, Solo};
use atoll_door::NodeView;
use atoll_tables::{Change, ColumnDefinition, ColumnType, TableDefinition, Tables, read};
use tokio::sync::OwnedSemaphorePermit;

use super::*;
use crate::handle::MAX_READS;

/// A node that stands alone.
struct Alone;

impl NodeView for Alone {
    fn node(&self) -> NodeId {
        NodeId(1)
    }

    fn members(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }

    fn peers(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn serving(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }

    fn life(&self, _node: NodeId) -> Option<Incarnation> {
        None
    }

    fn longest_apply_delay(&self) -> Duration {
        Duration::ZERO
    }

    fn orders_database(&self) -> bool {
        true
    }

    fn is_short_of_space(&self) -> bool {
        false
    }

    fn peer_address(&self) -> String {
        String::new()
    }
}

fn column(name: &str, kind: ColumnType, nullable: bool) -> ColumnDefinition {
    ColumnDefinition { name: name.to_owned(), kind, nullable }
}

fn fish() -> TableDefinition {
    TableDefinition {
        name: "fish".to_owned(),
        columns: vec![
            column("n", ColumnType::Int64, false),
            column("colour", ColumnType::Text, true),
            column("size", ColumnType::Text, true),
        ],
        key: vec!["n".to_owned()],
        indices: Vec::new(),
    }
}

/// Returns tables with the table [`fish`], which has the row 1, red, big.
async fn tables() -> TablesHandle {
    let mut applications = Applications::new();
    let slot = applications.add(Tables::default());
    let solo = Solo::open(applications, Box::new(MemoryStore::new())).unwrap();
    let tables = TablesHandle::new(solo.engine(&slot), Arc::new(Alone));
    change(&tables, None, Body::CreateTable { table: fish() }).await.unwrap();
    transact(&tables, request(0, vec![put(1)]), None).await.unwrap();
    tables
}

async fn changed(tables: &TablesHandle, to: Change) {
    change(tables, None, Body::ChangeTable { name: "fish".to_owned(), change: to }).await.unwrap();
}

fn drop_column(name: &str) -> Change {
    Change::DropColumn { name: name.to_owned() }
}

fn add_column(name: &str) -> Change {
    Change::AddColumn { column: column(name, ColumnType::Text, true) }
}

fn text(text: &str) -> Cell {
    Cell { value: Some(cell::Value::TextValue(text.to_owned())) }
}

fn int(n: i64) -> Cell {
    Cell { value: Some(cell::Value::Int64Value(n)) }
}

fn operation(action: operation::Action) -> proto::Operation {
    proto::Operation { table: "fish".to_owned(), action: Some(action) }
}

fn put(n: i64) -> proto::Operation {
    let named = |column: &str, value| proto::NamedCell { column: column.to_owned(), value: Some(value) };
    let cells = vec![named("n", int(n)), named("colour", text("red")), named("size", text("big"))];
    operation(operation::Action::Put(operation::Put { cells, merge: false, expect: None }))
}

fn read_of(n: i64) -> proto::Operation {
    let key = Some(proto::RowKey { cells: vec![int(n)] });
    operation(operation::Action::Read(operation::Read { key }))
}

fn delete(n: i64) -> proto::Operation {
    let key = Some(proto::RowKey { cells: vec![int(n)] });
    operation(operation::Action::Delete(operation::Delete { key, expect: None }))
}

/// Returns a transaction, named unless `seq` is 0.
fn request(seq: u64, operations: Vec<proto::Operation>) -> proto::TransactRequest {
    let write = (seq > 0).then_some(proto::WriteName { client: 7, seq });
    proto::TransactRequest { write, operations }
}

/// Takes all places for reads, as soon as nobody else has one.
async fn gate(tables: &TablesHandle) -> OwnedSemaphorePermit {
    tables.reads.clone().acquire_many_owned(u32::try_from(MAX_READS).unwrap()).await.unwrap()
}

/// Polls a future once. It must not be ready.
async fn begin(mut future: Pin<&mut impl Future>) {
    let pending = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it does not wait at the gate");
}

/// Returns the names of the columns and the cells of the first row in an answer.
fn first(reply: &proto::TransactReply) -> (Vec<&str>, Vec<Cell>) {
    assert_eq!(reply.tables.len(), 1, "{reply:?}");
    assert_eq!(reply.tables[0].table, "fish");
    let columns = reply.tables[0].columns.iter().map(String::as_str).collect();
    (columns, reply.read[0].row.as_ref().unwrap().cells.clone())
}

#[tokio::test]
async fn rows_are_shown_with_the_columns_under_which_they_were_read() {
    let tables = tables().await;
    let reply = transact(&tables, request(0, vec![read_of(1), put(2)]), None).await.unwrap();
    assert_eq!(first(&reply), (vec!["n", "colour", "size"], vec![int(1), text("red"), text("big")]));

    let held = gate(&tables).await;
    let mut call = pin!(transact(&tables, request(0, vec![read_of(1), delete(2)]), None));
    begin(call.as_mut()).await;
    changed(&tables, drop_column("colour")).await;
    changed(&tables, add_column("smell")).await;
    drop(held);
    let reply = call.await.unwrap();
    assert_eq!(first(&reply), (vec!["n", "size", "smell"], vec![int(1), text("big"), Cell { value: None }]));
}

#[tokio::test]
async fn rows_whose_columns_are_not_known_any_more_are_not_shown() {
    let tables = tables().await;
    let (ops, of, schemas) = operations_of(&tables.engine.view(), vec![read_of(1), delete(1)]).unwrap();
    changed(&tables, drop_column("colour")).await;
    let rows = ops.iter().map(|op| op.key.clone()).zip(of).collect();
    let transaction = command(None, Body::Transaction { ops }).unwrap();
    let reply = propose(&tables.engine, transaction).await.unwrap();
    changed(&tables, drop_column("size")).await;
    // The door knows the columns before and after, but not those under which the row was read.
    let refusal = answer(&tables, Asked { rows, schemas, reads: true }, reply, None).await.unwrap_err();
    assert_eq!(refusal.failure.reason, Reason::Refused);
    assert!(refusal.failure.message.contains("\"fish\""), "{refusal:?}");
}

#[tokio::test]
async fn a_transaction_that_is_sent_again_shows_only_what_is_certain() {
    let tables = tables().await;
    let first_time = transact(&tables, request(1, vec![read_of(1), put(2)]), None).await.unwrap();
    let again = || transact(&tables, request(1, vec![read_of(1), put(2)]), None);
    assert_eq!(again().await.unwrap(), first_time);
    changed(&tables, add_column("smell")).await;
    let added = again().await.unwrap();
    let cells = vec![int(1), text("red"), text("big"), Cell { value: None }];
    assert_eq!(first(&added), (vec!["n", "colour", "size", "smell"], cells));
    // Now the row that was read has a value whose column is gone. A new column of this name must not seem to have been null.
    changed(&tables, drop_column("size")).await;
    changed(&tables, add_column("size")).await;
    assert_eq!(again().await.unwrap_err().happened, Outcome::Yes);
    change(&tables, None, Body::DropTable { name: "fish".to_owned() }).await.unwrap();
    change(&tables, None, Body::CreateTable { table: fish() }).await.unwrap();
    assert_eq!(again().await.unwrap_err().happened, Outcome::Yes);
}

#[tokio::test]
async fn a_change_that_was_made_is_not_denied() {
    let tables = tables().await;
    // From here on, the node reads nothing any more, as if it were stopping.
    tables.reads.close();
    let body = Body::ChangeTable { name: "fish".to_owned(), change: add_column("smell") };
    let refusal = change_and_show(&tables, None, body, "fish".to_owned()).await.unwrap_err();
    assert_eq!((refusal.happened, refusal.failure.reason), (Outcome::Yes, Reason::Stopping));
    assert!(read::schema(&tables.engine.view(), "fish").unwrap().column("smell").is_ok());
    // What is wrong before that did not happen.
    let body = Body::ChangeTable { name: "fish".to_owned(), change: add_column("smell") };
    let refusal = change_and_show(&tables, None, body, "fish".to_owned()).await.unwrap_err();
    assert_eq!(refusal.happened, Outcome::No);
}
