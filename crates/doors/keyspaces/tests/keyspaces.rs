//! Tests of keyspaces through the public API of a node, including a restart.
#![allow(clippy::unwrap_used)]

#[path = "../../../atoll-node/tests/node/common.rs"]
mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use atoll_client::keyspace_proto::condition::What;
use atoll_client::keyspace_proto::keyspace_service_client::KeyspaceServiceClient;
use atoll_client::keyspace_proto::operate_reply::answer::Outcome;
use atoll_client::keyspace_proto::operate_request::{Operation, operation};
use atoll_client::keyspace_proto::{self as proto, Durability};
use atoll_client::{Client, Error, Keyspace, Keyspaces, Reason};
use atoll_door_keyspaces::KeyspacesDoor;
use atoll_node::{NodeConfig, RunningNode, start_with};
use bytes::Bytes;
use common::free_address;

async fn node(dir: &Path, address: &str) -> (RunningNode, Keyspaces) {
    let config = NodeConfig { grpc: address.to_owned(), ..NodeConfig::alone(dir) };
    let node = start_with(config, vec![Box::new(KeyspacesDoor)]).unwrap();
    node.joined().await.unwrap();
    (node, Client::connect(address).unwrap().keyspaces())
}

fn request(name: &str, durability: Durability) -> proto::CreateKeyspaceRequest {
    proto::CreateKeyspaceRequest {
        name: name.to_owned(),
        durability: durability.into(),
        shards: Some(4),
        buckets: Some(8),
        ..Default::default()
    }
}

fn reason<T: std::fmt::Debug>(outcome: Result<T, Error>) -> (Reason, String) {
    match outcome.unwrap_err() {
        Error::DidNotHappen(failure) => (failure.reason, failure.message),
        other => panic!("{other}"),
    }
}

fn key(n: usize) -> Bytes {
    Bytes::from(format!("k{n:04}"))
}

async fn value(keys: &Keyspace, key: Bytes) -> Option<Bytes> {
    keys.get(vec![key]).await.unwrap().remove(0).map(|held| held.value)
}

async fn list(keys: &Keyspace, prefix: &str, after: &str, limit: u64) -> Vec<Bytes> {
    let (prefix, after) = (Bytes::from(prefix.to_owned()), Bytes::from(after.to_owned()));
    let mut pages = keys.keys(prefix, after, limit).await.unwrap();
    let mut all = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        all.extend(page.into_iter().map(|entry| entry.key));
    }
    all
}

#[tokio::test]
async fn keys_go_in_and_come_out_and_outlive_the_node_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (first, keyspaces) = node(dir.path(), &address).await;
    let made = keyspaces.create(request("reef", Durability::Disk)).await.unwrap();
    assert_eq!((made.shards.len(), made.buckets, made.durability()), (4, 8, Durability::Disk));
    assert_eq!(reason(keyspaces.create(request("reef", Durability::Disk)).await).0, Reason::Refused);
    assert_eq!(keyspaces.list().await.unwrap(), ["reef"]);
    assert_eq!(keyspaces.describe("reef").await.unwrap(), made);

    let keys = keyspaces.open("reef");
    for n in 0..300 {
        assert!(keys.put(key(n), Bytes::from(format!("v{n}")), None).await.unwrap().done);
    }
    assert_eq!(value(&keys, key(7)).await, Some(Bytes::from_static(b"v7")));
    assert_eq!(list(&keys, "k", "", 0).await, (0..300).map(key).collect::<Vec<_>>());
    assert_eq!(list(&keys, "k00", "k0097", 10).await, [key(98), key(99)]);
    assert_eq!(list(&keys, "", "", 3).await, [key(0), key(1), key(2)]);

    drop(keyspaces);
    first.shutdown().await;
    let (second, keyspaces) = node(dir.path(), &address).await;
    let keys = keyspaces.open("reef");
    assert_eq!(value(&keys, key(7)).await, Some(Bytes::from_static(b"v7")));
    keyspaces.delete("reef").await.unwrap();
    assert_eq!(reason(keys.get(vec![key(7)]).await).0, Reason::NoSuchKeyspace);
    assert_eq!(reason(keyspaces.delete("reef").await).0, Reason::NoSuchKeyspace);
    // The open handle of the node belongs to the deleted keyspace. It is replaced.
    keyspaces.create(request("reef", Durability::Disk)).await.unwrap();
    assert_eq!(value(&keys, key(7)).await, None);
    second.shutdown().await;
}

#[tokio::test]
async fn conditions_hold_or_show_what_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let (node, keyspaces) = node(dir.path(), &free_address()).await;
    keyspaces.create(request("locks", Durability::Memory)).await.unwrap();
    let keys = keyspaces.open("locks");
    let put = |value: &'static str, what| keys.put(key(1), Bytes::from_static(value.as_bytes()), what);
    let first = put("a", Some(What::Absent(true))).await.unwrap();
    assert!(first.done);
    let again = put("b", Some(What::Absent(true))).await.unwrap();
    assert!(!again.done);
    assert_eq!(again.current.unwrap(), proto::Held { version: first.version, value: "a".into() });
    let second = put("b", Some(What::Version(first.version))).await.unwrap();
    assert!(second.done && second.version > first.version);
    assert!(!put("c", Some(What::Version(first.version))).await.unwrap().done);
    assert!(!keys.delete(key(1), Some(What::Value("a".into()))).await.unwrap().done);
    assert!(keys.delete(key(1), Some(What::Value("b".into()))).await.unwrap().done);
    assert!(!keys.delete(key(1), None).await.unwrap().done, "there is nothing to delete");
    assert_eq!(value(&keys, key(1)).await, None);
    node.shutdown().await;
}

#[tokio::test]
async fn a_write_that_is_sent_again_is_done_once() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, keyspaces) = node(dir.path(), &address).await;
    keyspaces.create(request("reef", Durability::Disk)).await.unwrap();
    let mut raw = KeyspaceServiceClient::connect(format!("http://{address}")).await.unwrap();
    let put = |again| proto::PutRequest {
        keyspace: "reef".into(),
        write: Some(proto::WriteName { client: 7, seq: 1, again, floor: 0 }),
        key: key(1),
        value: "a".into(),
        condition: Some(proto::Condition { what: Some(What::Absent(true)) }),
    };
    let first = raw.put(put(false)).await.unwrap().into_inner();
    let second = raw.put(put(true)).await.unwrap().into_inner();
    assert!(first.done && second.done);
    assert_eq!(first.version, second.version);
    node.shutdown().await;
}

fn part(
    n: usize,
    condition: Option<What>,
    change: Option<proto::transact_part::Change>,
) -> proto::TransactPart {
    let condition = condition.map(|what| proto::Condition { what: Some(what) });
    proto::TransactPart { key: key(n), condition, change, floor: 0 }
}

/// Creates a keyspace with each engine, and returns them: first those that have transactions, then the names of engines that refuse them,
/// with their words.
async fn with_each_engine(keyspaces: &Keyspaces) -> (Vec<Keyspace>, Vec<(String, String)>) {
    let create = |engine: &str| proto::CreateKeyspaceRequest {
        engine: engine.to_owned(),
        buckets: None,
        ..request(&format!("on-{engine}"), Durability::Disk)
    };
    let (_, words) = reason(keyspaces.create(create("sand")).await);
    let (mut able, mut unable) = (Vec::new(), Vec::new());
    for engine in words.rsplit_once(": ").unwrap().1.split(", ") {
        keyspaces.create(create(engine)).await.unwrap();
        let keyspace = keyspaces.open(&format!("on-{engine}"));
        match keyspace.transact(vec![part(0, None, None)]).await {
            Ok(_) => able.push(keyspace),
            refused => unable.push((engine.to_owned(), reason(refused).1)),
        }
    }
    (able, unable)
}

#[tokio::test]
async fn an_engine_without_transactions_refuses_them_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let (node, keyspaces) = node(dir.path(), &free_address()).await;
    let (able, unable) = with_each_engine(&keyspaces).await;
    assert!(!able.is_empty() && !unable.is_empty());
    for (engine, words) in unable {
        assert_eq!(words, format!("keyspaces of the engine {engine:?} have no transactions of several keys"));
    }
    node.shutdown().await;
}

#[tokio::test]
async fn several_keys_change_together_or_not_at_all() {
    use proto::transact_part::Change::{Delete, Put};
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, keyspaces) = node(dir.path(), &address).await;
    let bank = with_each_engine(&keyspaces).await.0.remove(0);
    let put = |value: &'static str| Some(Put(value.into()));
    let absent = || Some(What::Absent(true));
    let open = vec![part(1, absent(), put("100")), part(2, absent(), put("50"))];
    let made = bank.transact(open.clone()).await.unwrap();
    assert!(
        made.done && made.outcomes.iter().all(|outcome| outcome.version > 0 && outcome.current.is_none())
    );
    let refused = bank.transact(open).await.unwrap();
    let value = |outcome: &proto::transact_reply::Outcome| outcome.current.clone().unwrap().value;
    assert!(!refused.done);
    assert_eq!(refused.outcomes.iter().map(value).collect::<Vec<_>>(), ["100", "50"]);
    let version = |n: usize| Some(What::Version(made.outcomes[n].version));
    let moved =
        bank.transact(vec![part(1, version(0), put("90")), part(2, version(1), put("60"))]).await.unwrap();
    assert!(moved.done);
    let parts = vec![part(1, None, None), part(2, None, Some(Delete(true))), part(3, None, None)];
    let last = bank.transact(parts).await.unwrap();
    assert!(last.done && last.outcomes[2].current.is_none());
    assert_eq!(value(&last.outcomes[0]), "90");
    assert_eq!(self::value(&bank, key(2)).await, None);

    // A repeat is done once.
    let mut raw = KeyspaceServiceClient::connect(format!("http://{address}")).await.unwrap();
    let send = |again| proto::TransactRequest {
        keyspace: bank.name().to_owned(),
        write: Some(proto::WriteName { client: 7, seq: 1, again, floor: 0 }),
        parts: vec![part(4, absent(), put("a"))],
    };
    let first = raw.transact(send(false)).await.unwrap().into_inner();
    let second = raw.transact(send(true)).await.unwrap().into_inner();
    assert!(first.done && second.done);
    assert_eq!(first.outcomes[0].version, second.outcomes[0].version);

    let (why, words) = reason(bank.transact(Vec::new()).await);
    assert_eq!(
        (why, words.as_str()),
        (Reason::Invalid, "the transaction names no key; it must name at least one")
    );
    let many = (0..65).map(|n| part(n, None, None)).collect();
    assert_eq!(reason(bank.transact(many).await).0, Reason::TooLarge);
    let (why, words) = reason(bank.transact(vec![part(1, None, put("a")), part(1, None, None)]).await);
    assert!(why == Reason::Invalid && words.contains("names the key \"k0001\" twice"), "{words}");
    let long = vec![0; 30_000];
    let long = (0..9).map(|n| part(n, None, Some(Put(long.clone().into())))).collect();
    let (why, words) = reason(bank.transact(long).await);
    assert!(why == Reason::TooLarge && words.ends_with("at most 262144 are allowed"), "{words}");
    assert_eq!(reason(bank.transact(vec![part(1, None, Some(Delete(false)))]).await).0, Reason::Invalid);
    node.shutdown().await;
}

#[tokio::test]
async fn a_watch_shows_changes_in_order_and_never_misses_the_last() {
    let dir = tempfile::tempdir().unwrap();
    let (node, keyspaces) = node(dir.path(), &free_address()).await;
    keyspaces.create(request("reef", Durability::Memory)).await.unwrap();
    let keys = keyspaces.open("reef");
    let mut watch = keys.watch(key(1), None).await.unwrap();
    assert_eq!(watch.next().await.unwrap(), None, "the key does not exist yet");
    let mut last = 0;
    for n in 0..20 {
        last = keys.put(key(1), Bytes::from(format!("{n}")), None).await.unwrap().version;
    }
    let (mut seen, mut shown) = (0, Vec::new());
    while seen < last {
        let held = watch.next().await.unwrap().unwrap();
        assert!(held.version > seen);
        seen = held.version;
        shown.push(held.value);
    }
    assert_eq!(shown.last(), Some(&Bytes::from_static(b"19")));
    let mut later = keys.watch(key(1), Some(last)).await.unwrap();
    keys.delete(key(1), None).await.unwrap();
    assert_eq!(later.next().await.unwrap(), None);
    assert_eq!(watch.next().await.unwrap(), None);
    assert_eq!(reason(keys.watch(Bytes::new(), None).await).0, Reason::Invalid);
    node.shutdown().await;
}

#[tokio::test]
async fn leases_have_one_holder_and_rising_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (node, keyspaces) = node(dir.path(), &free_address()).await;
    keyspaces.create(request("locks", Durability::Memory)).await.unwrap();
    let keys = keyspaces.open("locks");
    let acquire = |owner: &'static str, for_ms, wait| {
        keys.acquire_lease(key(1), Bytes::from_static(owner.as_bytes()), for_ms, Duration::from_millis(wait))
    };
    assert_eq!(reason(keys.lease_holder(key(1)).await).0, Reason::LeaseNotHeld);
    assert_eq!(reason(keys.renew_lease(key(1), 7, 1_000).await).0, Reason::LeaseNotHeld);
    assert_eq!(reason(keys.release_lease(key(1), 7).await).0, Reason::LeaseNotHeld);

    let one = acquire("a", 60_000, 0).await.unwrap();
    let holder = keys.lease_holder(key(1)).await.unwrap();
    assert_eq!((&holder.owner[..], holder.lease.unwrap().fencing), (&b"a"[..], one.fencing));
    let (why, words) = reason(acquire("b", 60_000, 50).await);
    assert!(why == Reason::Conflict && words.contains("held by b\"a\" with the fencing number"), "{words}");
    let short = keys.renew_lease(key(1), one.fencing, 300).await.unwrap();
    assert_eq!((short.fencing, short.for_ms), (one.fencing, 300));
    let two = acquire("b", 60_000, 20_000).await.unwrap();
    assert!(two.fencing > one.fencing, "it expired for a contender");
    assert_eq!(reason(keys.renew_lease(key(1), one.fencing, 300).await).0, Reason::LeaseNotHeld);
    keys.release_lease(key(1), two.fencing).await.unwrap();
    assert!(acquire("a", 300, 0).await.unwrap().fencing > two.fencing);

    assert_eq!(reason(acquire("", 300, 0).await).0, Reason::Invalid);
    assert_eq!(reason(acquire("a", 99, 0).await).0, Reason::Invalid);
    keys.put(key(2), "plain".into(), None).await.unwrap();
    let plain = keys.acquire_lease(key(2), "a".into(), 300, Duration::ZERO).await;
    assert_eq!(reason(plain).0, Reason::Refused);
    node.shutdown().await;
}

#[tokio::test]
async fn bad_input_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (node, keyspaces) = node(dir.path(), &free_address()).await;
    let create = |change: fn(&mut proto::CreateKeyspaceRequest)| {
        let mut request = request("reef", Durability::Disk);
        change(&mut request);
        keyspaces.create(request)
    };
    let (why, words) = reason(create(|r| r.engine = "sand".into()).await);
    assert!(why == Reason::Invalid && words.starts_with("no engine \"sand\"; known engines: "), "{words}");
    assert_eq!(reason(create(|r| r.durability = 0).await).0, Reason::Invalid);
    assert_eq!(reason(create(|r| r.replicas = Some(3)).await).0, Reason::Refused);
    assert_eq!(reason(create(|r| r.replicas = Some(0)).await).0, Reason::Invalid);
    assert_eq!(reason(create(|r| r.shards = Some(1025)).await).0, Reason::Invalid);
    assert_eq!(reason(create(|r| r.name = "a\nb".into()).await).0, Reason::Invalid);
    assert_eq!(reason(create(|r| r.name = "n".repeat(201)).await).0, Reason::TooLarge);
    let option = |r: &mut proto::CreateKeyspaceRequest| drop(r.options.insert("speed".into(), "9".into()));
    assert!(reason(create(option).await).1.contains("have no option \"speed\""));
    assert!(keyspaces.list().await.unwrap().is_empty(), "nothing was created");

    create(|_| {}).await.unwrap();
    let keys = keyspaces.open("reef");
    assert_eq!(reason(keys.put(Bytes::new(), "v".into(), None).await).0, Reason::Invalid);
    assert_eq!(reason(keys.put(vec![b'k'; 2000].into(), "v".into(), None).await).0, Reason::Invalid);
    assert_eq!(reason(keys.put(key(1), vec![0; 100_000].into(), None).await).0, Reason::TooLarge);
    assert_eq!(reason(keys.get(vec![key(1); 257]).await).0, Reason::TooLarge);
    let (why, words) = reason(keyspaces.open("sand").get(vec![key(1)]).await);
    assert_eq!((why, words.as_str()), (Reason::NoSuchKeyspace, "there is no keyspace \"sand\""));
    node.shutdown().await;
}

#[test]
fn clients_and_nodes_agree_on_the_shard_of_a_key() {
    for n in 0..2000 {
        let key = key(n);
        for shards in [1, 3, 64, 1024] {
            let of_nodes = atoll_contract::keyspace::place_of(&key, shards, 7).shard;
            assert_eq!(atoll_client::shard_of(&key, shards as usize), of_nodes as usize, "{key:?}");
        }
    }
}

/// Runs operations on one stream. Returns what became of each: its version, whether it found a key, or the reason of its failure.
async fn operate(address: &str, operations: Vec<Operation>) -> BTreeMap<u64, String> {
    let mut raw = KeyspaceServiceClient::connect(format!("http://{address}")).await.unwrap();
    let request = proto::OperateRequest { operations };
    let mut replies = raw.operate(tokio_stream::iter([request])).await.unwrap().into_inner();
    let mut became = BTreeMap::new();
    while let Some(reply) = replies.message().await.unwrap() {
        for answer in reply.answers {
            let words = match answer.outcome.unwrap() {
                Outcome::Wrote(wrote) => format!("done {}", wrote.done),
                Outcome::Got(got) => format!("held {}", got.found[0].held.is_some()),
                Outcome::Failed(failed) => format!("{} {}", failed.happened, failed.reason),
            };
            assert!(became.insert(answer.number, words).is_none(), "{} is answered twice", answer.number);
        }
    }
    became
}

#[tokio::test]
async fn every_operation_of_a_stream_is_answered_on_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, keyspaces) = node(dir.path(), &address).await;
    keyspaces.create(request("reef", Durability::Disk)).await.unwrap();
    let reef = || "reef".to_owned();
    let put = |keyspace, n, absent: bool| {
        let condition = absent.then_some(proto::Condition { what: Some(What::Absent(true)) });
        let request = proto::PutRequest { keyspace, write: None, key: key(n), value: "a".into(), condition };
        operation::What::Put(request)
    };
    let get = |keys| operation::What::Get(proto::GetRequest { keyspace: reef(), keys });
    let first = [put(reef(), 1, false), put("none".into(), 1, false), get(vec![key(1), key(2)])];
    let mut operations: Vec<_> = first.into_iter().map(Some).chain([None]).zip(7..).collect();
    operations.extend((100..600).map(|n| (Some(put(reef(), n, false)), n as u64)).take(200));
    let operations = operations.into_iter().map(|(what, number)| Operation { number, what }).collect();
    let became = operate(&address, operations).await;
    assert_eq!(became.len(), 204);
    let of = |number: u64| became[&number].as_str();
    assert_eq!((of(7), of(8)), ("done true", "no no-such-keyspace"));
    assert_eq!((of(9), of(10)), ("no too-large", "no invalid"));
    assert!((100..300).all(|number| of(number) == "done true"));
    let again = [put(reef(), 1, true), get(vec![key(1)]), get(vec![key(2)])];
    let again = again.into_iter().zip(1..).map(|(what, number)| Operation { number, what: Some(what) });
    let became = operate(&address, again.collect()).await;
    assert_eq!(became.into_values().collect::<Vec<_>>(), ["done false", "held true", "held false"]);
    // The client's own stream. A value that is too long for it is refused by name, and does no harm to others.
    let keys = keyspaces.open("reef");
    let (long, short) = (Bytes::from(vec![0; 100_000]), Bytes::from_static(b"b"));
    let (long, short) = tokio::join!(keys.put(key(3), long, None), keys.put(key(4), short, None));
    assert_eq!((reason(long).0, short.unwrap().done), (Reason::TooLarge, true));
    node.shutdown().await;
}

/// Sends operations on one stream, each in a message of its own. Returns how many were sent before the first answer was read, how many were
/// unanswered at most from then on, and how many were answered.
async fn unanswered(address: &str, what: operation::What, count: u64) -> (u64, u64, u64) {
    // Small windows: what the client's own buffers hold counts, too.
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut raw = KeyspaceServiceClient::new(endpoint.connect().await.unwrap());
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let messages = tokio_stream::iter((0..count).map(move |number| {
        counted.fetch_add(1, Ordering::Relaxed);
        proto::OperateRequest { operations: vec![Operation { number, what: Some(what.clone()) }] }
    }));
    let mut replies = raw.operate(messages).await.unwrap().into_inner();
    // Until nothing more is taken.
    let mut before = u64::MAX;
    while before != sent.load(Ordering::Relaxed) {
        before = sent.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let (mut most, mut answered) = (0, 0);
    while let Some(reply) = replies.message().await.unwrap() {
        most = most.max(sent.load(Ordering::Relaxed) - answered);
        answered += reply.answers.len() as u64;
    }
    (before, most, answered)
}

#[tokio::test]
async fn what_a_stream_has_not_answered_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let address = free_address();
    let (node, keyspaces) = node(dir.path(), &address).await;
    keyspaces.create(request("reef", Durability::Memory)).await.unwrap();
    let long = Bytes::from(vec![b'k'; 1000]);
    keyspaces.open("reef").put(long.clone(), Bytes::from(vec![0; 4096]), None).await.unwrap();
    let get = |keys| operation::What::Get(proto::GetRequest { keyspace: "reef".to_owned(), keys });
    // The client reads nothing: of 4 MiB, each read counts for the longest value that it might show. The rest is in windows and buffers.
    let (sent, _, answered) = unanswered(&address, get(vec![long.clone()]), 6_000).await;
    assert!(sent < 2_000, "{sent} operations were taken from a client that reads no answers");
    assert_eq!(answered, 6_000, "the stream continues once the client reads");
    // What is refused at once counts until it is answered, too.
    let (_, most, answered) = unanswered(&address, get(vec![long.clone(), long]), 20_000).await;
    assert!(most < 4_000, "{most} operations were unanswered");
    assert_eq!(answered, 20_000);
    node.shutdown().await;
}
