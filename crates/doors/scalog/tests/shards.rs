//! Tests of shards through the public API of a node.
#![allow(clippy::unwrap_used)]

#[path = "../../../atoll-node/tests/node/common.rs"]
mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_client::proto::LogletSpec;
use atoll_client::{Client, Error, Reason, ShardPolicy, ShardRecord};
use atoll_door_scalog::ScalogDoor;
use atoll_node::{NodeConfig, RunningNode, start_with};
use bytes::Bytes;
use common::free_address;

/// A kind of Loglet that has shards, and the one that a log gets otherwise.
const KIND: &str = "scalog";

async fn node(dir: &Path) -> (RunningNode, Client) {
    let address = free_address();
    let config = NodeConfig { grpc: address.clone(), ..NodeConfig::alone(dir) };
    let doors: Vec<Box<dyn atoll_door::Door>> = vec![Box::new(ScalogDoor), Box::new(atoll_door_log::LogDoor)];
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

fn spec() -> LogletSpec {
    LogletSpec { kind: Some(KIND.to_owned()), ..LogletSpec::default() }
}

fn data(text: &'static str) -> ShardRecord {
    ShardRecord::Data(Bytes::from(text))
}

#[tokio::test]
async fn records_go_where_policies_say_and_are_read_by_position() {
    let dir = tempfile::tempdir().unwrap();
    let (node, client) = node(dir.path()).await;
    client.create_log("reef", spec()).await.unwrap();
    let log = client.scalog("reef").unwrap();
    assert_eq!(log.append("a").await.unwrap(), (0, None));
    for (position, policy) in (1..).zip([ShardPolicy::Nearest, ShardPolicy::RoundRobin]) {
        log.set_shard_policy(policy);
        assert_eq!(log.append("b").await.unwrap(), (position, Some(0)));
    }
    assert_eq!(log.append_to_shard(0, "d").await.unwrap(), 3);
    let read = async |at, shard| log.read_record(at, shard).await.unwrap();
    assert_eq!((read(0, None).await, read(3, Some(0)).await), (data("a"), data("d")));
    assert_eq!(read(0, Some(7)).await, ShardRecord::Elsewhere(true));

    let shown = log.shards().await.unwrap();
    assert_eq!((shown.tail, shown.node, shown.shards.len()), (4, 1, 1));
    assert_eq!((shown.shards[0].nodes.clone(), shown.shards[0].records), (vec![1], 4));

    // A subscriber sees what others append, and continues after a trim.
    let mut subscription = log.subscribe(2);
    assert_eq!(subscription.next().await.unwrap(), (2, Bytes::from("b")));
    assert_eq!(subscription.next().await.unwrap(), (3, Bytes::from("d")));
    client.log("reef").unwrap().append("e").await.unwrap();
    assert_eq!(subscription.next().await.unwrap(), (4, Bytes::from("e")));
    log.trim(2).await.unwrap();
    assert_eq!(
        (read(1, None).await, read(1, Some(0)).await),
        (ShardRecord::Trimmed(true), ShardRecord::Trimmed(true))
    );
    assert_eq!(reason(log.subscribe(0).next().await).0, Reason::Trimmed);
    node.shutdown().await;
}

/// A policy of a user may do anything, and a subscriber may stop reading: others go on.
#[tokio::test]
async fn wrong_policies_and_subscribers_that_do_not_read_harm_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (node, client) = node(dir.path()).await;
    client.create_log("reef", spec()).await.unwrap();
    let (log, other) = (client.scalog("reef").unwrap(), client.scalog("reef").unwrap());
    let mut idle = other.subscribe(0);
    other.append("first").await.unwrap();
    assert_eq!(idle.next().await.unwrap().0, 0);
    log.set_shard_policy(ShardPolicy::Custom(Arc::new(|_, _| panic!("a bug of the user"))));
    assert_eq!(reason(log.append("x").await), (Reason::Invalid, "the policy panicked".to_owned()));
    log.set_shard_policy(ShardPolicy::Custom(Arc::new(|_, _| 9)));
    let words = "the policy chose shard 9, which takes no records".to_owned();
    assert_eq!(reason(log.append("x").await), (Reason::Invalid, words));
    // Far more than what is read ahead of the subscriber.
    let long = Bytes::from(vec![b'x'; 256 * 1024]);
    for _ in 0..24 {
        tokio::time::timeout(Duration::from_secs(20), other.append(long.clone())).await.unwrap().unwrap();
    }
    log.set_shard_policy(ShardPolicy::Custom(Arc::new(|_, live| live[0].number)));
    assert_eq!(log.append("last").await.unwrap(), (25, Some(0)));
    // It gets everything once it reads again.
    for at in 1..=25 {
        assert_eq!(idle.next().await.unwrap().0, at);
    }
    node.shutdown().await;
}

#[tokio::test]
async fn bad_input_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (node, client) = node(dir.path()).await;
    let sand = client.scalog("sand").unwrap();
    let no_log = [
        reason(sand.append("a").await).0,
        reason(sand.append_to_shard(0, "a").await).0,
        reason(sand.read_record(0, None).await).0,
        reason(sand.read_record(0, Some(0)).await).0,
        reason(sand.subscribe(0).next().await).0,
        reason(sand.trim(0).await).0,
        reason(sand.shards().await).0,
        reason(sand.add_shard(None, &[]).await).0,
        reason(sand.finalize_shard(0, 0).await).0,
    ];
    assert_eq!(no_log, [Reason::NoSuchLog; 9]);
    assert!(client.list_logs().await.unwrap().is_empty(), "nothing was created");

    client.log("plain").unwrap().append("x").await.unwrap();
    let plain = client.scalog("plain").unwrap();
    for (why, words) in [
        reason(plain.append("a").await),
        reason(plain.append_to_shard(0, "a").await),
        reason(plain.read_record(0, Some(0)).await),
        reason(plain.subscribe(0).next().await),
        reason(plain.shards().await),
        reason(plain.add_shard(None, &[]).await),
        reason(plain.finalize_shard(0, 0).await),
    ] {
        assert_eq!(why, Reason::Refused);
        assert!(words.starts_with("a segment of kind") && words.ends_with("has no shards"), "{words}");
    }

    client.create_log("reef", spec()).await.unwrap();
    let log = client.scalog("reef").unwrap();
    assert_eq!(log.append("a").await.unwrap().0, 0);
    assert_eq!(reason(log.read_record(7, None).await).0, Reason::BeyondTail);
    assert_eq!(reason(log.read_record(7, Some(0)).await).0, Reason::BeyondTail);
    assert_eq!(reason(log.read_record(u64::MAX, None).await).0, Reason::BeyondTail);
    assert_eq!(reason(log.trim(9).await).0, Reason::BeyondTail);
    let other = (Reason::Conflict, "shard 7 takes no records".to_owned());
    assert_eq!(reason(log.append_to_shard(7, "b").await), other);
    assert_eq!(reason(log.append(vec![0; 1_000_001]).await).0, Reason::TooLarge);
    let refused = |words: &str| (Reason::Refused, format!("nothing was changed: {words}"));
    let last = "shard 0 is the last one that takes records and is not about to end; add another one first";
    assert_eq!(reason(log.finalize_shard(0, 0).await), refused(last));
    assert_eq!(reason(log.finalize_shard(5, 0).await), refused("there is no shard 5 that takes records"));
    let unknown = refused("node 9 is unknown, or does not answer");
    assert_eq!(reason(log.add_shard(None, &[9]).await), unknown);
    let taken = refused("node 1 is a server of shard 0, which takes records");
    assert_eq!(reason(log.add_shard(None, &[1]).await), taken);
    let used = refused("shard 0 exists, or existed; numbers are never used again");
    assert_eq!(reason(log.add_shard(Some(0), &[1]).await), used);
    let nobody = refused("0 nodes are up that keep no shard that takes records; a shard has 1");
    assert_eq!(reason(log.add_shard(None, &[]).await), nobody);
    assert_eq!(reason(log.add_shard(None, &[0]).await).0, Reason::Invalid);
    assert_eq!(log.append("b").await.unwrap().0, 1, "it works as before");
    // The client asks for the shards first, and this node has no database. `convert.rs` refuses to append to the log of one.
    assert_eq!(reason(client.scalog("db").unwrap().append("x").await).0, Reason::NoSuchLog);
    assert!(client.scalog("a b").is_err());
    node.shutdown().await;
}
