//! Tests of tables through the public API of a node, including a restart.
#![allow(clippy::unwrap_used)]

#[path = "../../../atoll-node/tests/node/common.rs"]
mod common;

use std::path::Path;

use atoll_client::proto::table_service_client::TableServiceClient;
use atoll_client::proto::{
    self, Cell, Operation, RowKey, ScanRequest, cell, change_table_request, expect, operation,
};
use atoll_client::{Client, Error, Reason, Tables};
use atoll_door_tables::TablesDoor;
use atoll_node::{NodeConfig, RunningNode, start_with};
use common::free_address;

async fn node(dir: &Path, address: &str) -> (RunningNode, Tables) {
    node_with(NodeConfig { grpc: address.to_owned(), ..NodeConfig::alone(dir) }).await
}

async fn node_with(config: NodeConfig) -> (RunningNode, Tables) {
    let address = config.grpc.clone();
    let node = start_with(config, vec![Box::new(TablesDoor::default())]).unwrap();
    node.joined().await.unwrap();
    (node, Client::connect(&address).unwrap().tables())
}

fn text(text: &str) -> Cell {
    Cell { value: Some(cell::Value::TextValue(text.to_owned())) }
}

fn int(n: i64) -> Cell {
    Cell { value: Some(cell::Value::Int64Value(n)) }
}

fn fish() -> proto::Table {
    let column = |name: &str, kind: proto::ColumnKind, nullable| proto::TableColumn {
        name: name.to_owned(),
        kind: kind.into(),
        nullable,
    };
    proto::Table {
        name: "fish".to_owned(),
        columns: vec![
            column("kind", proto::ColumnKind::Text, false),
            column("n", proto::ColumnKind::Int64, false),
            column("colour", proto::ColumnKind::Text, true),
        ],
        key: vec!["kind".to_owned(), "n".to_owned()],
        ..proto::Table::default()
    }
}

fn key(kind: &str, n: i64) -> Option<RowKey> {
    Some(RowKey { cells: vec![text(kind), int(n)] })
}

fn put(kind: &str, n: i64, colour: &str, expect: Option<expect::What>) -> Operation {
    let named = |column: &str, value| proto::NamedCell { column: column.to_owned(), value: Some(value) };
    let cells = vec![named("kind", text(kind)), named("n", int(n)), named("colour", text(colour))];
    let expect = Some(proto::Expect { what: expect });
    let action = operation::Action::Put(operation::Put { cells, merge: false, expect });
    Operation { table: "fish".to_owned(), action: Some(action) }
}

fn reason<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (Reason, String) {
    match outcome.unwrap_err() {
        Error::DidNotHappen(failure) => (failure.reason, failure.message),
        other => panic!("{other}"),
    }
}

async fn scan(tables: &Tables, request: ScanRequest) -> (Vec<proto::TableRow>, bool) {
    let mut rows = tables.scan(ScanRequest { table: "fish".to_owned(), ..request }).await.unwrap();
    let (mut all, mut ended) = (Vec::new(), false);
    while let Some(reply) = rows.next().await.unwrap() {
        all.extend(reply.rows);
        ended = reply.ended;
    }
    (all, ended)
}

#[tokio::test]
async fn rows_go_in_and_come_out_and_outlive_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (first, tables) = node(dir.path(), &address).await;
    tables.create(fish()).await.unwrap();
    let puts = (0..900).map(|n| put("cod", n, if n % 3 == 0 { "red" } else { "grey" }, None)).collect();
    let version = tables.transact(puts).await.unwrap().version;
    let index = proto::TableIndex {
        name: "by_colour".to_owned(),
        columns: vec!["colour".to_owned()],
        ..proto::TableIndex::default()
    };
    tables.change("fish", change_table_request::Change::AddIndex(index)).await.unwrap();
    // The index is built in the background. Each check is a call, so this is not a busy loop.
    while tables.describe("fish").await.unwrap().indices[0].state != "ready" {}
    let check = |expect| Operation {
        table: "fish".to_owned(),
        action: Some(operation::Action::Check(operation::Check { key: key("cod", 5), expect: Some(expect) })),
    };
    let read = Operation {
        table: "fish".to_owned(),
        action: Some(operation::Action::Read(operation::Read { key: key("cod", 5) })),
    };
    let holds = check(proto::Expect { what: Some(expect::What::Version(version)) });
    let reply = tables.transact(vec![holds, read, put("dab", 1, "red", None)]).await.unwrap();
    assert_eq!(reply.read[1].row.as_ref().unwrap().cells, [text("cod"), int(5), text("grey")]);
    assert_eq!(reply.version, version + 2, "the change of the table is a write, too");
    first.shutdown().await;
    // The handles of the node keep the store open.
    drop(first);

    let (second, tables) = node(dir.path(), &address).await;
    let request = proto::GetRequest {
        table: "fish".to_owned(),
        keys: vec![key("cod", 5).unwrap(), key("eel", 1).unwrap()],
        stale: false,
    };
    let found = tables.get(request).await.unwrap().found;
    assert_eq!(found[0].row.as_ref().unwrap().version, version);
    assert_eq!(found[1].row, None);
    let bound = |cells| Some(proto::RangeBound { cells, exclusive: false });
    let red = ScanRequest {
        index: Some("by_colour".to_owned()),
        lower: bound(vec![text("red")]),
        upper: bound(vec![text("red")]),
        backward: true,
        ..ScanRequest::default()
    };
    let (rows, ended) = scan(&tables, red.clone()).await;
    assert_eq!((rows.len(), ended), (301, true));
    assert_eq!((&rows[0].cells[0], &rows[1].cells[1]), (&text("dab"), &int(897)));
    let (rows, ended) = scan(&tables, ScanRequest { limit_rows: 7, ..red.clone() }).await;
    assert_eq!((rows.len(), ended), (7, false));
    let (rows, ended) = scan(&tables, ScanRequest { limit_bytes: 1, ..red }).await;
    assert_eq!((rows.len(), ended), (1, false));
    assert_eq!(scan(&tables, ScanRequest::default()).await.0.len(), 901);
    second.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_is_said_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (node, tables) = node(dir.path(), &free_address()).await;
    let missing = reason(tables.describe("fish").await);
    assert_eq!(missing.0, Reason::NoSuchTable);
    tables.create(fish()).await.unwrap();
    assert_eq!(reason(tables.create(fish()).await).0, Reason::Refused);
    let bad_key = proto::Table { name: "x".to_owned(), key: vec!["colour".to_owned()], ..fish() };
    assert!(reason(tables.create(bad_key).await).1.contains("\"colour\""));
    assert_eq!(reason(tables.transact(Vec::new()).await).0, Reason::Invalid);
    let many = (0..1_001).map(|n| put("cod", n, "red", None)).collect();
    assert_eq!(reason(tables.transact(many).await).0, Reason::TooLarge);
    let mut wrong = put("cod", 1, "red", None);
    wrong.table = "birds".to_owned();
    assert_eq!(reason(tables.transact(vec![wrong]).await).0, Reason::NoSuchTable);
    let absent = || Some(expect::What::Absent(true));
    tables.transact(vec![put("cod", 1, "red", absent())]).await.unwrap();
    let twice =
        reason(tables.transact(vec![put("eel", 1, "red", None), put("cod", 1, "red", absent())]).await);
    assert_eq!(twice.0, Reason::Conflict);
    assert!(twice.1.contains("operation 2"), "{}", twice.1);
    let typed = Operation {
        table: "fish".to_owned(),
        action: Some(operation::Action::Delete(operation::Delete {
            key: Some(RowKey { cells: vec![text("cod"), text("1")] }),
            expect: None,
        })),
    };
    let typed = reason(tables.transact(vec![typed]).await);
    assert!(typed.0 == Reason::Invalid && typed.1.contains("int64"), "{}", typed.1);
    assert_eq!(scan(&tables, ScanRequest::default()).await.0.len(), 1);
    node.shutdown().await;
}

/// If a large write is sent again, the reply is the same as the first time. It is not an error about lost reads, because the write read
/// nothing.
#[tokio::test]
async fn a_write_that_is_sent_again_is_answered_as_the_first_time() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, tables) = node(dir.path(), &address).await;
    tables.create(fish()).await.unwrap();
    let mut service = TableServiceClient::connect(format!("http://{address}")).await.unwrap();
    let write = Some(proto::WriteName { client: 9, seq: 1 });
    let operations = (0..500).map(|n| put("cod", n, "red", None)).collect();
    let request = proto::TransactRequest { write, operations };
    let first = service.transact(request.clone()).await.unwrap().into_inner();
    let second = service.transact(request).await.unwrap().into_inner();
    assert_eq!(first, second);
    node.shutdown().await;
}

#[tokio::test]
async fn a_client_whose_writes_have_all_come_to_nothing_may_still_write() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, tables) = node(dir.path(), &address).await;
    tables.create(fish()).await.unwrap();
    let other = Client::connect(&address).unwrap().tables();
    let absent = || Some(expect::What::Absent(true));
    tables.transact(vec![put("cod", 1, "red", None)]).await.unwrap();
    for _ in 0..40 {
        assert_eq!(reason(other.transact(vec![put("cod", 1, "red", absent())]).await).0, Reason::Conflict);
    }
    other.transact(vec![put("cod", 2, "red", absent())]).await.unwrap();
    assert_eq!(scan(&tables, ScanRequest::default()).await.0.len(), 2);
    node.shutdown().await;
}

#[tokio::test]
async fn doors_on_threads_of_their_own_serve_as_those_on_the_thread_of_the_node() {
    let dir = tempfile::tempdir().unwrap();
    let config = NodeConfig { grpc: free_address(), door_threads: 8, ..NodeConfig::alone(dir.path()) };
    let (node, tables) = node_with(config.clone()).await;
    tables.create(fish()).await.unwrap();
    let puts = (0..64).map(|n| tables.transact(vec![put("cod", n, "red", None)]));
    for put in futures_util::future::join_all(puts).await {
        put.unwrap();
    }
    assert_eq!(scan(&tables, ScanRequest::default()).await.0.len(), 64);
    node.shutdown().await;
    drop(node);
    // The listeners and the directory are free again, and nothing is lost.
    let (node, tables) = node_with(config).await;
    assert_eq!(scan(&tables, ScanRequest::default()).await.0.len(), 64);
    node.shutdown().await;
}
