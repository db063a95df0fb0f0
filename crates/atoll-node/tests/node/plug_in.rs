//! Tests of a node with a door that it does not know.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::common::free_address;
use atoll_core::{BoxFuture, Measure};
use atoll_door::{Clients, Door, DoorError, DoorUp, Figures, Serving};
use atoll_node::{NodeConfig, start_with};
use tokio::io::AsyncWriteExt;

/// A door that tells each client how many connections it may have, and which nodes serve the database.
struct Bell {
    address: String,
}

struct Rung;

impl Figures for Rung {
    fn measures(&self) -> Vec<Measure> {
        vec![Measure { name: "bell_rung_total", label: None, value: 7.0 }]
    }

    fn under_other_names(&self) -> String {
        "# TYPE bell gauge\nbell 5\n".to_owned()
    }
}

impl Door for Bell {
    fn name(&self) -> &'static str {
        "bell"
    }

    fn has_listeners(&self) -> bool {
        true
    }

    fn figures(&self) -> Option<Arc<dyn Figures>> {
        Some(Arc::new(Rung))
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async move {
            let listener = up.listeners.open("bell", &self.address, Clients::Anybody).await?;
            let stopped = up.stopped();
            let serve = async move {
                while let Ok((mut socket, _)) = listener.accept().await {
                    let words =
                        format!("{} {:?} {}", up.connections, up.node.serving(), up.database.is_some());
                    let _ = socket.write_all(words.as_bytes()).await;
                }
            };
            Ok(Box::pin(async move {
                tokio::select! {
                    () = serve => {}
                    () = stopped => {}
                }
            }) as Serving)
        })
    }
}

/// Sends `request`, and returns everything that comes back.
async fn ask(address: &str, request: &'static str) -> String {
    let address = address.to_owned();
    let asking = tokio::task::spawn_blocking(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    });
    asking.await.unwrap()
}

#[tokio::test]
async fn a_door_listens_and_has_metrics_without_a_database() {
    let dir = tempfile::tempdir().unwrap();
    let (address, metrics) = (free_address(), free_address());
    let config = NodeConfig { metrics: Some(metrics.clone()), ..NodeConfig::alone(dir.path()) };
    let node = start_with(config, vec![Box::new(Bell { address: address.clone() })]).unwrap();
    node.joined().await.unwrap();
    let words = ask(&address, "").await;
    let (connections, rest) = words.split_once(' ').unwrap();
    assert!(connections.parse::<usize>().unwrap() >= 64, "{words}");
    assert_eq!(rest, "[NodeId(1)] false", "a door without applications needs no database");
    let text = ask(&metrics, "GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(text.contains("atoll_bell_rung_total 7.0"), "{text}");
    assert!(text.contains("\nbell 5\n"), "{text}");
    node.shutdown().await;
    assert!(TcpStream::connect(&address).is_err(), "the door is closed");
}
