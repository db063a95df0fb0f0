//! Tests of subscribers to a log in shards (Scalog's interface) that stop reading.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::{MemoryNode, services};
use atoll_client::proto;
use atoll_client::proto::log_service_client::LogServiceClient;
use atoll_client::scalog_proto::SubscribeRequest;
use atoll_client::scalog_proto::scalog_service_client::ScalogServiceClient;
use atoll_door::{Limits, serve_grpc};
use tokio::net::TcpListener;
use tokio::time::timeout;
use tonic::transport::Channel;

const LOG: &str = "reef";
const SOON: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(20);
const RECORDS: u64 = 60;
/// The most bytes that the door keeps for a subscriber: two replies of 256 KiB that wait, one that is being sent, and something for each of
/// their records.
const OF_SUBSCRIBER: f64 = 3.0 * 257.0 * 1024.0;

async fn door(limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let grpc = vec![address.to_string()];
    let node = Arc::new(MemoryNode { id: 1, grpc, has_shards: true, ..MemoryNode::default() });
    let services = services(node, limits);
    tokio::spawn(async move { serve_grpc(listener, services, None, std::future::pending()).await.unwrap() });
    address
}

async fn append(address: SocketAddr, count: usize) {
    let payloads = vec![bytes::Bytes::from(vec![7; 64 * 1024]); count];
    let records = proto::Records { first_seq: 0, payloads, floor: None };
    let request =
        proto::AppendRequest { log: LOG.into(), client: 0, records: Some(records), known_tail: None };
    let mut logs = LogServiceClient::connect(format!("http://{address}")).await.unwrap();
    timeout(PATIENCE, logs.append(request)).await.unwrap().unwrap();
}

async fn client(address: SocketAddr) -> ScalogServiceClient<Channel> {
    ScalogServiceClient::connect(format!("http://{address}")).await.unwrap()
}

type Stream = tonic::Streaming<atoll_client::scalog_proto::SubscribeReply>;

async fn subscribe(address: SocketAddr, from: u64) -> Stream {
    let request = SubscribeRequest { log: LOG.into(), from };
    client(address).await.subscribe(request).await.unwrap().into_inner()
}

/// Reads records, which must follow each other from `next` on, until there are `upto` or the stream ends with an error.
async fn read(stream: &mut Stream, mut next: u64, upto: u64) -> (u64, Option<tonic::Status>) {
    while next < upto {
        match timeout(PATIENCE, stream.message()).await.unwrap() {
            Ok(Some(reply)) => {
                for record in reply.records {
                    assert_eq!(record.position, next);
                    next += 1;
                }
            }
            Ok(None) => panic!("it looked as if the log ended at {next}"),
            Err(status) => return (next, Some(status)),
        }
    }
    (next, None)
}

fn held(limits: &Limits, name: &str) -> f64 {
    limits.measures().into_iter().find(|m| m.name == name).unwrap().value
}

async fn until(what: &str, done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn who_stops_reading_costs_little_and_is_told_to_continue_later() {
    let mut limits = Limits::default();
    limits.unread_at_most = SOON;
    let address = door(limits.clone()).await;
    append(address, RECORDS as usize).await;
    let mut stopped = Vec::new();
    for _ in 0..8 {
        stopped.push(subscribe(address, 0).await);
    }
    // Others append and read meanwhile, and the door keeps little for those that do not.
    append(address, 1).await;
    let mut all = subscribe(address, 0).await;
    let (count, failure) = read(&mut all, 0, RECORDS + 1).await;
    assert!(failure.is_none(), "{failure:?}");
    assert_eq!(count, RECORDS + 1);
    let unread = held(&limits, "grpc_unread_bytes");
    assert!(unread <= 9.0 * OF_SUBSCRIBER, "{unread} bytes are kept for 8 subscribers that do not read");
    until("the streams that nobody reads have not ended", || {
        held(&limits, "grpc_unread_bytes") <= 9.0 * OF_SUBSCRIBER / 3.0
    })
    .await;
    for mut stream in stopped {
        let (next, status) = read(&mut stream, 0, RECORDS + 1).await;
        let status = status.expect("it got all records, although it had not read for long");
        assert_eq!(status.metadata().get("atoll-reason").unwrap(), "busy", "{status}");
        assert!(status.message().contains("the subscriber took none of its records within"), "{status}");
        // It continues where it stopped.
        let (count, failure) = read(&mut subscribe(address, next).await, next, RECORDS + 1).await;
        assert!(failure.is_none() && count == RECORDS + 1, "{failure:?}");
    }
    drop(all);
    until("streams that were dropped still count", || {
        held(&limits, "grpc_reads") == 0.0 && held(&limits, "grpc_unread_bytes") == 0.0
    })
    .await;
}

#[tokio::test]
async fn who_reads_again_in_time_misses_nothing() {
    let limits = Limits::default();
    let address = door(limits.clone()).await;
    append(address, RECORDS as usize).await;
    let mut slow = subscribe(address, 0).await;
    until("nothing was read ahead", || held(&limits, "grpc_unread_bytes") > 0.0).await;
    let mut next = 0;
    for upto in [20, 40, RECORDS + 5] {
        let (at, failure) = read(&mut slow, next, upto.min(RECORDS)).await;
        assert!(failure.is_none(), "{failure:?}");
        next = at;
        append(address, 5).await;
        tokio::time::sleep(SOON).await;
    }
    let (at, failure) = read(&mut slow, next, RECORDS + 15).await;
    assert!(failure.is_none() && at == RECORDS + 15, "{failure:?}");
}
