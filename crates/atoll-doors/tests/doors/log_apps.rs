//! Tests of the applications of a shared log over the Rust client, against a door with a log in memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::memory::{Logs, MemoryLog, MemoryNode, services};
use atoll_client::{Client, Options, Reason};
use atoll_contract::{ClientId, Unavailability};
use atoll_door::{Limits, Refusal, serve_grpc};
use atoll_log_apps::client_log::ClientLog;
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::shared_log::{LogError, SharedLog, Slot};
use atoll_log_apps::store::{MapLimits, Store, StoreMap, StoreOptions};
use bytes::Bytes;
use tokio::net::TcpListener;

/// Opens a door, and returns a client of it with the log behind the door. Appends give up soon.
async fn open() -> (Client, Arc<MemoryLog>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let logs = Logs::default();
    let log = logs.lock().unwrap().entry("apps".to_owned()).or_default().clone();
    let node = Arc::new(MemoryNode { id: 1, logs, ..MemoryNode::default() });
    let services = services(node, Limits::default());
    tokio::spawn(async move { serve_grpc(listener, services, None, std::future::pending()).await.unwrap() });
    let options = Options { operation_timeout: Duration::from_millis(500), ..Options::default() };
    (Client::with_options(&address.to_string(), options).unwrap(), log)
}

fn data(text: &'static str) -> Slot {
    Slot::Data(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn slots_are_records_pads_trimmed_or_above_the_tail() {
    let (client, behind) = open().await;
    let log = ClientLog::new(client.log("apps").unwrap());
    assert_eq!(log.append(Bytes::from_static(b"a")).await, Ok(0));
    behind.pad();
    behind.pad();
    assert_eq!(log.append(Bytes::from_static(b"b")).await, Ok(3));
    behind.pad();
    assert_eq!(log.tail().await, Ok(5));

    let all = [data("a"), Slot::Junk, Slot::Junk, data("b"), Slot::Junk];
    assert_eq!(log.read_range(0, 5).await.unwrap(), all);
    assert_eq!(log.read_range(0, 9).await.unwrap(), all, "what is above the tail is left out");
    assert_eq!(log.read_range(2, 4).await.unwrap(), all[2..4]);
    assert_eq!(log.read_range(5, 7).await.unwrap(), [Slot::Unwritten, Slot::Unwritten]);
    assert_eq!(log.read_range(3, 3).await.unwrap(), []);
    for (position, slot) in (0..).zip(all.into_iter().chain([Slot::Unwritten])) {
        assert_eq!(log.read(position).await, Ok(slot), "{position}");
    }
    assert_eq!(log.read(u64::MAX).await, Ok(Slot::Unwritten));

    log.trim_prefix(2).await.unwrap();
    assert_eq!(log.read_range(0, 5).await.unwrap(), [Slot::Trimmed, Slot::Trimmed]);
    assert_eq!(log.read(1).await, Ok(Slot::Trimmed));
    assert_eq!(log.read(3).await, Ok(data("b")));
    assert_eq!(log.fill(4).await, Ok(()), "decided already");
    assert!(matches!(log.fill(5).await, Err(LogError::Unsupported(_))));
    assert!(matches!(log.trim(3).await, Err(LogError::Unsupported(_))));
}

#[tokio::test]
async fn a_long_range_comes_in_pieces() {
    let (client, _) = open().await;
    let log = ClientLog::new(client.log("apps").unwrap());
    let record = |n: u8| Bytes::from(vec![n; 900_000]);
    for n in 0..20 {
        log.append(record(n)).await.unwrap();
    }
    let (mut at, mut pieces) = (0, 0);
    while at < 20 {
        let slots = log.read_range(at, 20).await.unwrap();
        assert!((1..=10).contains(&slots.len()), "{} records are more than 8 MB", slots.len());
        for slot in slots {
            assert_eq!(slot, Slot::Data(record(at as u8)));
            at += 1;
        }
        pieces += 1;
    }
    assert!(pieces > 1);
}

#[tokio::test]
async fn an_append_says_whether_it_happened() {
    let (client, behind) = open().await;
    let log = ClientLog::new(client.log("apps").unwrap());
    let append = || log.append(Bytes::from_static(b"x"));
    *behind.refuse.lock().unwrap() = Some(Refusal::no(Reason::DiskFull, "the disk is full", ""));
    assert_eq!(append().await, Err(LogError::Unavailable(Unavailability::DiskFull)));
    *behind.refuse.lock().unwrap() = Some(Refusal::no(Reason::LogDeleted, "the log was deleted", ""));
    assert!(matches!(append().await, Err(LogError::Gone(words)) if words.contains("deleted")));
    *behind.refuse.lock().unwrap() = None;
    behind.mute.store(true, Ordering::Relaxed);
    assert_eq!(append().await, Err(LogError::Unknown(None)));
    assert_eq!(behind.entries().len(), 1, "it happened nevertheless");
}

#[tokio::test]
async fn clients_of_the_store_with_their_own_maps_see_each_other() {
    let (client, behind) = open().await;
    let store = |number: u64| {
        let log = Arc::new(ClientLog::new(client.log("apps").unwrap()));
        let map = Arc::new(Player::new(log, StoreMap::new(MapLimits::default()), PlayOptions::default()));
        (map.clone(), Store::new(map, ClientId(number), StoreOptions::default()))
    };
    let ((one, first), (two, second)) = (store(1), store(2));
    let keys = [Bytes::from_static(b"left"), Bytes::from_static(b"right")];
    for n in 0..40u64 {
        let writer = if n % 2 == 0 { &first } else { &second };
        let reader = if n % 3 == 0 { &first } else { &second };
        let value = Bytes::from(n.to_string());
        let writes = keys.iter().map(|key| (key.clone(), Some(value.clone()))).collect();
        behind.pad();
        let index = writer.multi_put(writes).await.unwrap();
        let (at, values) = reader.multi_get(&keys).await.unwrap();
        assert!(at >= index);
        assert_eq!(values, [Some(value.clone()), Some(value)]);
    }
    one.play().await.unwrap();
    two.play().await.unwrap();
    assert_eq!(one.hash(), two.hash());
    assert_eq!(one.applied(), behind.entries().len() as u64);
}
