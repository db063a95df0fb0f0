//! Tests of the connections of the Rust client's appends: they end when they are idle, and nothing else does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::memory::{Logs, MemoryNode, services};
use atoll_client::{Client, Options};
use atoll_door::{Limits, serve_grpc};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(20);

/// A door behind a proxy that counts the connections.
struct Counted {
    address: SocketAddr,
    logs: Logs,
    open: Arc<AtomicUsize>,
    ever: Arc<AtomicUsize>,
}

impl Counted {
    async fn open() -> Counted {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let door = listener.local_addr().unwrap();
        let logs = Logs::default();
        let node = Arc::new(MemoryNode { id: 1, logs: logs.clone(), ..MemoryNode::default() });
        let services = services(node, Limits::default());
        tokio::spawn(
            async move { serve_grpc(listener, services, None, std::future::pending()).await.unwrap() },
        );
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = proxy.local_addr().unwrap();
        let counts = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let (open, ever) = counts.clone();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = proxy.accept().await.unwrap();
                let open = counts.0.clone();
                open.fetch_add(1, Ordering::Relaxed);
                counts.1.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let mut door = TcpStream::connect(door).await.unwrap();
                    client.set_nodelay(true).unwrap();
                    door.set_nodelay(true).unwrap();
                    // However the connection ends, it has ended.
                    let _ = copy_bidirectional(&mut client, &mut door).await;
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
        Counted { address, logs, open, ever }
    }

    fn client(&self, append_idle: Duration) -> Client {
        let options = Options { append_idle, ..Options::default() };
        Client::with_options(&self.address.to_string(), options).unwrap()
    }
}

#[tokio::test]
async fn idle_lanes_give_their_connections_back_and_go_on_where_they_were() {
    let door = Counted::open().await;
    let client = door.client(Duration::from_millis(50));
    let logs: Vec<_> = (0..40).map(|n| client.log(&format!("log-{n}")).unwrap()).collect();
    for round in 0..2 {
        for log in &logs {
            assert_eq!(log.append(format!("{round}")).await, Ok(round));
        }
        let idle = async {
            while door.open.load(Ordering::Relaxed) > 0 {
                tokio::task::yield_now().await;
            }
        };
        timeout(PATIENCE, idle).await.expect("idle lanes keep their connections");
    }
    assert!(door.ever.load(Ordering::Relaxed) >= 2 * logs.len(), "each append found its lane idle");
}

#[tokio::test]
async fn a_lane_with_an_append_under_way_keeps_its_connection() {
    let door = Counted::open().await;
    let behind = door.logs.lock().unwrap().entry("main".to_owned()).or_default().clone();
    // Ten times as long as a lane may be idle.
    *behind.delay.lock().unwrap() = Some(Duration::from_millis(500));
    let log = door.client(Duration::from_millis(50)).log("main").unwrap();
    assert_eq!(log.append("a").await, Ok(0));
    assert_eq!(door.ever.load(Ordering::Relaxed), 1);
}

/// The pauses are about as long as a lane may be idle, so that appends meet streams that are just ending.
#[tokio::test]
async fn appends_beside_the_end_of_idle_streams_land_once_and_in_order() {
    let door = Counted::open().await;
    let client = door.client(Duration::from_millis(50));
    let lanes = (0..16u64).map(|lane| {
        let log = client.log(&format!("log-{lane}")).unwrap();
        tokio::spawn(async move {
            for i in 0..20u64 {
                tokio::time::sleep(Duration::from_millis(40 + (lane * 7 + i * 3) % 80)).await;
                let first = log.submit((2 * i).to_string()).await.unwrap();
                assert_eq!(log.append((2 * i + 1).to_string()).await, Ok(2 * i + 1));
                assert_eq!(first.await, Ok(2 * i));
            }
        })
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.await.unwrap();
    }
    for log in door.logs.lock().unwrap().values() {
        let payloads: Vec<_> = log.entries().iter().map(|e| e.payload.to_vec()).collect();
        assert_eq!(payloads, (0..40).map(|n| n.to_string().into_bytes()).collect::<Vec<_>>());
    }
    assert!(door.ever.load(Ordering::Relaxed) > 16, "streams have ended in between");
}
