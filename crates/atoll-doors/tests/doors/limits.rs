//! Tests of the limits of one client at the gRPC door: connections, memory, lists.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::{MemoryNode, services};
use atoll_client::proto::chain_service_client::ChainServiceClient;
use atoll_client::proto::cluster_service_client::ClusterServiceClient;
use atoll_client::proto::log_service_client::LogServiceClient;
use atoll_client::proto::{self, append_stream_request::What};
use atoll_door::{DoorTls, Limits, serve_grpc};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::transport::Channel;

const SOON: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(20);

async fn door(tls: Option<DoorTls>, limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let node = Arc::new(MemoryNode { id: 1, grpc: vec![address.to_string()], ..MemoryNode::default() });
    let services = services(node, limits);
    tokio::spawn(async move { serve_grpc(listener, services, tls, std::future::pending()).await.unwrap() });
    address
}

async fn logs(address: SocketAddr) -> LogServiceClient<Channel> {
    LogServiceClient::connect(format!("http://{address}")).await.unwrap()
}

fn append(log: &str, payloads: Vec<bytes::Bytes>) -> proto::AppendRequest {
    let records = proto::Records { first_seq: 0, payloads, floor: None };
    proto::AppendRequest { log: log.into(), client: 0, records: Some(records), known_tail: None }
}

/// Whether the door closes the connection, possibly after it has sent something.
async fn is_closed(mut socket: TcpStream) -> bool {
    let mut nothing = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut nothing)).await.is_ok()
}

fn door_tls() -> DoorTls {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".into()]).unwrap().signed_by(&key, &authority).unwrap();
    DoorTls::new(certificate.pem().as_bytes(), key.serialize_pem().as_bytes(), authority.pem().as_bytes())
        .unwrap()
}

#[tokio::test]
async fn who_says_nothing_or_half_a_greeting_is_cut_off() {
    let limits = || {
        let mut limits = Limits::default();
        limits.greet_within = SOON;
        limits
    };
    for address in [door(None, limits()).await, door(Some(door_tls()), limits()).await] {
        for greeting in [&b""[..], b"PRI * HTTP/2.0\r\n\r\nSM", b"\x16\x03\x01\x02\x00\x01"] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(greeting).await.unwrap();
            assert!(is_closed(socket).await, "{greeting:?}");
        }
    }
}

#[tokio::test]
async fn a_crowd_of_silent_connections_keeps_nobody_out() {
    let address = door(None, Limits::default().with_connections(16)).await;
    let mut works = logs(address).await;
    works.append(append("main", vec!["a".into()])).await.unwrap();
    let mut crowd = Vec::new();
    for _ in 0..200 {
        crowd.push(TcpStream::connect(address).await.unwrap());
        // The connection that is in use is not closed to make room, because its last request is more recent than theirs.
        works.append(append("main", vec!["b".into()])).await.unwrap();
    }
    let mut comes_later = logs(address).await;
    comes_later.append(append("main", vec!["c".into()])).await.unwrap();
    let first = crowd.swap_remove(0);
    assert!(is_closed(first).await, "it made room");
}

#[tokio::test]
async fn lists_are_refused_by_their_length_before_any_work() {
    let address = door(None, Limits::default()).await;
    let mut chains = ChainServiceClient::connect(format!("http://{address}")).await.unwrap();
    let spec = |n: usize| proto::LogletSpec { servers: vec![1; n], ..Default::default() };
    let extend = |n| proto::ExtendRequest { log: "main".into(), loglet: Some(spec(n)) };
    assert!(chains.extend(extend(3)).await.is_ok());
    let status = chains.extend(extend(65)).await.unwrap_err();
    assert_eq!(status.metadata().get("atoll-reason").unwrap(), "too-large");
    assert!(status.message().contains("65 servers") && status.message().contains("at most 64"), "{status}");
    // A list of 400,000 nodes exceeds the size limit of the request, so it is not even decoded.
    let status = chains.extend(extend(400_000)).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status}");
    let mut cluster = ClusterServiceClient::connect(format!("http://{address}")).await.unwrap();
    let add = proto::NodeAddRequest { id: 4, address: "a:1".into(), roles: vec!["log".into(); 10_000] };
    assert!(cluster.node_add(add).await.unwrap_err().message().contains("10000 roles"));
    let mut log = logs(address).await;
    let long = proto::CheckTailRequest { log: "x".repeat(1 << 20) };
    let status = log.check_tail(long).await.unwrap_err();
    assert!(
        status.message().len() < 300,
        "an answer does not repeat what came in: {}",
        status.message().len()
    );
}

/// Appends 60 records of 64 KiB.
async fn large_log(address: SocketAddr) {
    let record = bytes::Bytes::from(vec![7; 64 * 1024]);
    logs(address).await.append(append("main", vec![record; 60])).await.unwrap();
}

fn held(limits: &Limits, name: &str) -> f64 {
    limits.measures().into_iter().find(|m| m.name == name).unwrap().value
}

#[tokio::test]
async fn streams_that_nobody_reads_are_bounded_and_given_up_with_an_error() {
    let mut limits = Limits::default();
    limits.unread_at_most = SOON;
    let address = door(None, limits.clone()).await;
    large_log(address).await;
    let read = || proto::ReadRequest { log: "main".into(), ..Default::default() };
    // Several streams share a connection, where they also block each other in the client. Others have a connection of their own.
    let (mut unread, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let mut client = logs(address).await;
        for _ in 0..8 {
            unread.push(client.read(read()).await.unwrap().into_inner());
        }
        slow.push(logs(address).await.read(read()).await.unwrap().into_inner());
    }
    // Meanwhile another client reads everything.
    let mut all = logs(address).await.read(read()).await.unwrap().into_inner();
    let mut records = 0;
    while let Some(reply) = timeout(PATIENCE, all.message()).await.unwrap().unwrap() {
        records += reply.records.len();
    }
    assert_eq!(records, 60);
    // The unread streams end with an error, never as if they had reached the end.
    let given_up = async {
        // Only one reply of 512 KiB per stream is left then, which is already being sent. Nothing is queued.
        while held(&limits, "grpc_unread_bytes") > 36.0 * 525_000.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, given_up).await.unwrap();
    for mut stream in slow {
        let mut got = 0;
        let status = loop {
            match timeout(PATIENCE, stream.message()).await.unwrap() {
                Ok(Some(reply)) => got += reply.records.len(),
                Ok(None) => panic!("it looked as if the log ended after {got} of 60 records"),
                Err(status) => break status,
            }
        };
        assert_eq!(status.metadata().get("atoll-reason").unwrap(), "busy", "{status}");
        assert!(status.message().contains("took none"), "{status}");
    }
    drop(unread);
    let gone = async {
        while held(&limits, "grpc_reads") > 0.0 || held(&limits, "grpc_unread_bytes") > 0.0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
}

#[tokio::test]
async fn more_reads_than_one_address_may_have_are_refused_as_busy() {
    let limits = Limits::default();
    let address = door(None, limits.clone()).await;
    large_log(address).await;
    let follow =
        || proto::ReadRequest { log: "main".into(), from: Some(60), follow: true, ..Default::default() };
    let mut open = Vec::new();
    let refused = 'all: loop {
        let mut client = logs(address).await;
        for _ in 0..200 {
            match client.read(follow()).await {
                Ok(stream) => open.push(stream),
                Err(status) => break 'all status,
            }
        }
    };
    assert_eq!(refused.metadata().get("atoll-reason").unwrap(), "busy", "{refused}");
    assert_eq!((open.len(), held(&limits, "grpc_reads")), (512, 512.0));
    assert!(logs(address).await.append(append("main", vec!["x".into()])).await.is_ok());
}

#[tokio::test]
async fn streams_of_appends_that_are_at_rest_keep_nobody_out() {
    let address = door(None, Limits::default().with_connections(16)).await;
    let mut open = Vec::new();
    for client in 1..=4 {
        let start = proto::append_stream_request::Open { log: "main".into(), client, known_tail: Some(0) };
        let records = proto::Records { first_seq: 1, payloads: vec!["a".into()], floor: None };
        let whats = [What::Open(start), What::Records(records)];
        let requests = whats.map(|what| proto::AppendStreamRequest { what: Some(what) });
        // Like an older client, which never ends a stream of appends.
        let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
        let mut replies = logs(address).await.append_stream(requests).await.unwrap().into_inner();
        while timeout(PATIENCE, replies.message()).await.unwrap().unwrap().unwrap().outcomes.is_empty() {}
        open.push(replies);
    }
    // The address has as many connections as it may have.
    let comes_later = async {
        loop {
            if let Ok(mut late) = LogServiceClient::connect(format!("http://{address}")).await
                && late.append(append("main", vec!["b".into()])).await.is_ok()
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, comes_later).await.expect("nobody made room");
    let first =
        timeout(PATIENCE, open[0].message()).await.expect("the one that was idle for longest made room");
    assert!(first.is_err(), "{first:?}");
    assert!(timeout(SOON, open[1].message()).await.is_err(), "the others stay");
}
