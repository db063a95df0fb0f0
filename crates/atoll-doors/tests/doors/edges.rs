//! Tests of the doors with unexpected peers: TLS, garbage, plain HTTP.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::memory::{MemoryNode, services};
use atoll_client::proto::log_service_client::LogServiceClient;
use atoll_client::{Client, Options, Reason, Tls, proto};
use atoll_core::Measure;
use atoll_door::metrics::{Figures, serve_metrics};
use atoll_door::{DATABASE_LOG, DoorTls, Limits, serve_grpc};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;

struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn ca(&self) -> Vec<u8> {
        self.0.pem().into()
    }

    /// Returns a certificate and a key for a host.
    fn issue(&self, host: &str) -> (Vec<u8>, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![host.into()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate.pem().into(), key.serialize_pem().into())
    }
}

async fn door(tls: Option<DoorTls>) -> SocketAddr {
    door_with(tls, Limits::default()).await
}

async fn door_with(tls: Option<DoorTls>, limits: Limits) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let node = Arc::new(MemoryNode { id: 1, grpc: vec![address.to_string()], ..MemoryNode::default() });
    let services = services(node, limits);
    tokio::spawn(async move { serve_grpc(listener, services, tls, std::future::pending()).await.unwrap() });
    address
}

fn client(address: SocketAddr, tls: Option<Tls>) -> Client {
    let options = Options { operation_timeout: Duration::from_millis(500), tls, ..Options::default() };
    Client::with_options(&address.to_string(), options).unwrap()
}

#[tokio::test]
async fn with_tls_only_clients_of_the_authority_are_served() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (certificate, key) = ours.issue("127.0.0.1");
    let config = DoorTls::new(&certificate, &key, &ours.ca()).unwrap();
    let address = door(Some(config)).await;
    let tls = |authority: &Authority, of: &Authority| Tls {
        ca: authority.ca(),
        identity: Some(of.issue("client")),
        domain: None,
    };

    let good = client(address, Some(tls(&ours, &ours)));
    assert_eq!(good.log("main").unwrap().append("x").await, Ok(0));

    let anonymous = Tls { ca: ours.ca(), identity: None, domain: None };
    let other_name = Tls { domain: Some("elsewhere".into()), ..tls(&ours, &ours) };
    let strangers =
        [None, Some(anonymous), Some(tls(&ours, &theirs)), Some(tls(&theirs, &ours)), Some(other_name)];
    for (i, stranger) in strangers.into_iter().enumerate() {
        let error = client(address, stranger).status().await.expect_err(&format!("stranger {i}"));
        assert_eq!(error.failure().reason, Reason::Unavailable, "stranger {i}: {error}");
    }
    assert!(good.status().await.unwrap().healthy);
    assert_eq!(good.log("main").unwrap().check_tail().await, Ok(1), "nothing of the strangers got in");
}

#[tokio::test]
async fn garbage_costs_its_connection_and_nothing_else() {
    let address = door(None).await;
    let good = client(address, None);
    let log = good.log("main").unwrap();
    assert_eq!(log.append("a").await, Ok(0));
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    // A frame header that announces 16 MB, and a settings frame of invalid length.
    let oversized = [&preface[..], &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat();
    let odd = [&preface[..], &[0, 0, 5, 4, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5]].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 4096], vec![0xff; 4096], oversized, odd] {
        tokio::task::spawn_blocking(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            // The door may close before it has read everything.
            let _ = socket.write_all(&garbage);
            let _ = socket.shutdown(std::net::Shutdown::Write);
            let _ = socket.read_to_end(&mut Vec::new());
        })
        .await
        .unwrap();
    }
    assert_eq!(log.append("b").await, Ok(1));
}

#[tokio::test]
async fn messages_beyond_the_limit_are_refused_and_the_door_stays_open() {
    let address = door(None).await;
    let mut bare = LogServiceClient::connect(format!("http://{address}")).await.unwrap();
    let append = |payloads: Vec<bytes::Bytes>| proto::AppendRequest {
        log: "main".into(),
        client: 0,
        records: Some(proto::Records { first_seq: 0, payloads, floor: None }),
        known_tail: None,
    };
    let long = bytes::Bytes::from(vec![1; 1_000_001]);
    let status = bare.append(append(vec![long.clone()])).await.unwrap_err();
    assert_eq!(status.metadata().get("atoll-reason").unwrap(), "too-large");
    // This exceeds the size up to which messages are decoded.
    let status = bare.append(append(vec![long; 6])).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::OutOfRange, "{status}");
    assert_eq!(bare.append(append(vec!["x".into()])).await.unwrap().into_inner().runs[0].first, 0);
}

struct Fixed;

impl Figures for Fixed {
    fn measures(&self) -> Vec<Measure> {
        vec![Measure { name: "appends_total", label: Some(("log", "main".into())), value: 3.0 }]
    }
}

#[tokio::test]
async fn metrics_are_served_over_http_and_nothing_else_is() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_metrics(listener, Arc::new(Fixed), std::future::pending()));
    let ask = |line: &'static str| {
        tokio::task::spawn_blocking(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            write!(socket, "{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            socket.read_to_string(&mut answer).unwrap();
            answer
        })
    };
    let answer = ask("GET /metrics").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.contains("application/openmetrics-text"), "{answer}");
    assert!(answer.contains("atoll_appends_total{log=\"main\"} 3.0"), "{answer}");
    assert!(ask("GET /").await.unwrap().starts_with("HTTP/1.1 404"));
    assert!(ask("POST /metrics").await.unwrap().starts_with("HTTP/1.1 405"));
}

/// More clients than may be connected at once keep their connections, and never read. Whoever asks gets an answer.
#[tokio::test]
async fn clients_that_never_read_do_not_keep_others_from_the_metrics() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve_metrics(listener, Arc::new(Fixed), std::future::pending()));
    let answer = tokio::task::spawn_blocking(move || {
        let connect = || std::net::TcpStream::connect(address).unwrap();
        let silent: Vec<_> = (0..200).map(|_| connect()).collect();
        let mut socket = connect();
        write!(socket, "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        drop(silent);
        answer
    });
    assert!(answer.await.unwrap().starts_with("HTTP/1.1 200"));
}

/// No replica could apply what a client appends to this log. If a client trimmed entries that no store has, they would be lost.
#[tokio::test]
async fn the_log_of_the_database_is_not_written_or_trimmed_by_clients() {
    let client = client(door(None).await, None);
    let log = client.log(DATABASE_LOG).unwrap();
    let refused = log.append("x").await.unwrap_err();
    assert_eq!(refused.failure().reason, Reason::Refused, "{refused}");
    let refused = log.trim(1).await.unwrap_err();
    assert_eq!(refused.failure().reason, Reason::Refused, "{refused}");
}
