//! Tests of single positions through the public API of a node.
#![allow(clippy::unwrap_used)]

#[path = "../../../atoll-node/tests/node/common.rs"]
mod common;

use std::path::Path;

use atoll_client::proto::LogletSpec;
use atoll_client::{Cell, Client, Error, Reason, Replacement};
use atoll_door_corfu::CorfuDoor;
use atoll_node::{NodeConfig, RunningNode, start_with};
use bytes::Bytes;
use common::free_address;

/// A kind of Loglet that has single positions, and the one that a log gets otherwise.
const KIND: &str = "corfu";

async fn node(dir: &Path) -> (RunningNode, Client) {
    let address = free_address();
    let config = NodeConfig { grpc: address.clone(), ..NodeConfig::alone(dir) };
    let doors: Vec<Box<dyn atoll_door::Door>> = vec![Box::new(CorfuDoor), Box::new(atoll_door_log::LogDoor)];
    let node = start_with(config, doors).unwrap();
    node.joined().await.unwrap();
    (node, Client::connect(&address).unwrap())
}

fn reason<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (Reason, String) {
    match outcome.unwrap_err() {
        Error::DidNotHappen(failure) => (failure.reason, failure.message),
        other => panic!("{other}"),
    }
}

fn spec(kind: &str) -> LogletSpec {
    LogletSpec { kind: Some(kind.to_owned()), ..LogletSpec::default() }
}

fn data(text: &'static str) -> Cell {
    Cell::Data(Bytes::from(text))
}

#[tokio::test]
async fn positions_are_written_once_read_and_trimmed() {
    let dir = tempfile::tempdir().unwrap();
    let (node, client) = node(dir.path()).await;
    client.create_log("reef", spec(KIND)).await.unwrap();
    let log = client.corfu("reef").unwrap();
    for (n, text) in ["a", "b", "c"].into_iter().enumerate() {
        assert_eq!(log.append(text).await.unwrap(), n as u64);
    }
    let read = async |at| log.read(at).await.unwrap();
    assert_eq!((read(0).await, read(2).await), (data("a"), data("c")));
    assert!(log.trim(1).await.unwrap());
    assert!(log.trim(1).await.unwrap(), "idempotent");
    assert_eq!((read(0).await, read(1).await), (data("a"), Cell::Trimmed(true)));
    assert!(!log.fill(1).await.unwrap(), "it was trimmed before");

    // All other readers pass it.
    let mut reader = client.log("reef").unwrap().read(atoll_client::ReadOptions::from(0));
    let mut all = Vec::new();
    while let Some(batch) = reader.next().await.unwrap() {
        all.extend(batch.records.iter().map(|record| record.payload.clone()));
    }
    assert_eq!(all, [Bytes::from("a"), Bytes::from("c")]);

    let shown = log.show().await.unwrap();
    assert_eq!((shown.complete, shown.written, shown.next), (3, 3, Some(3)));
    assert_eq!((shown.start, shown.sequencer, shown.chains.len()), (0, 1, 1));
    assert_eq!(shown.chains[0].units, [1]);
    log.trim_prefix(2).await.unwrap();
    assert_eq!((read(0).await, read(2).await), (Cell::Trimmed(true), data("c")));
    assert_eq!(log.show().await.unwrap().trim, 2);

    // Its positions continue in the next segment, and those of the one before stay as they are.
    let moved = log.replace(Replacement::Sequencer(1)).await.unwrap();
    assert_ne!(moved.loglet, shown.loglet);
    assert_eq!((moved.start, log.append("d").await.unwrap()), (3, 3));
    assert_eq!((read(2).await, read(3).await), (data("c"), data("d")));
    assert!(log.trim(2).await.unwrap());
    assert_eq!((read(2).await, read(3).await), (Cell::Trimmed(true), data("d")));
    node.shutdown().await;
}

#[tokio::test]
async fn bad_input_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (node, client) = node(dir.path()).await;
    let sand = client.corfu("sand").unwrap();
    let no_log = [
        reason(sand.append("a").await).0,
        reason(sand.read(0).await).0,
        reason(sand.fill(0).await).0,
        reason(sand.trim(0).await).0,
        reason(sand.trim_prefix(0).await).0,
        reason(sand.show().await).0,
        reason(sand.replace(Replacement::Sequencer(1)).await).0,
    ];
    assert_eq!(no_log, [Reason::NoSuchLog; 7]);
    assert!(client.list_logs().await.unwrap().is_empty(), "nothing was created");

    client.log("plain").unwrap().append("x").await.unwrap();
    let plain = client.corfu("plain").unwrap();
    for (why, words) in [
        reason(plain.append("a").await),
        reason(plain.read(0).await),
        reason(plain.fill(0).await),
        reason(plain.trim(0).await),
        reason(plain.show().await),
    ] {
        assert_eq!(why, Reason::Refused);
        assert!(words.starts_with("a segment of kind"), "{words}");
        assert!(words.ends_with("has no operations on single positions"), "{words}");
    }

    client.create_log("reef", spec(KIND)).await.unwrap();
    let log = client.corfu("reef").unwrap();
    assert_eq!(log.append("a").await.unwrap(), 0);
    let beyond = (Reason::BeyondTail, "position 7 is beyond the tail, which is 1".to_owned());
    assert_eq!(reason(log.read(7).await), beyond);
    assert_eq!(reason(log.fill(7).await), beyond);
    assert_eq!(reason(log.trim(7).await), beyond);
    assert_eq!(reason(log.read(u64::MAX).await).0, Reason::BeyondTail);
    assert_eq!(reason(log.trim_prefix(9).await).0, Reason::BeyondTail);
    assert_eq!(reason(log.fill(0).await), (Reason::Conflict, "position 0 is already written".to_owned()));
    let stranger = reason(log.replace(Replacement::Unit { old: 4, new: 1 }).await);
    let words = "nothing was changed: node 4 is not a unit of the active segment".to_owned();
    assert_eq!(stranger, (Reason::Refused, words));
    let (why, words) = reason(log.replace(Replacement::Unit { old: 1, new: 4 }).await);
    assert!(why == Reason::Refused && words.contains("node 4 is not a member"), "{words}");
    assert_eq!(reason(log.append(vec![0; 1_000_001]).await).0, Reason::TooLarge);
    assert_eq!(log.append("b").await.unwrap(), 1, "it works as before");
    assert_eq!(reason(client.corfu("db").unwrap().fill(0).await).0, Reason::Refused);
    assert!(client.corfu("a b").is_err());
    node.shutdown().await;
}
