//! Tests of a start that fails after the node is up: nothing of the node stays behind.

use atoll_core::BoxFuture;
use atoll_db::{AppId, Application, ApplyAt, Rejected, StoreError, Tx, View};
use atoll_door::{Clients, Door, DoorError, DoorUp, Serving, nothing};
use atoll_node::{NodeConfig, embed, start_with};
use bytes::Bytes;

/// An application that keeps the last command.
struct Last;

impl Application for Last {
    type Event = ();
    const ID: AppId = AppId(9);
    const NAME: &'static str = "last";

    fn apply(&mut self, _: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        tx.put(b"last", Bytes::copy_from_slice(command));
        Ok(Bytes::new())
    }

    fn opened(&mut self, _: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A door that listens at a fixed address.
struct Fixed {
    address: String,
}

impl Door for Fixed {
    fn name(&self) -> &'static str {
        "fixed"
    }

    fn open(self: Box<Self>, up: DoorUp) -> BoxFuture<'static, Result<Serving, DoorError>> {
        Box::pin(async move {
            up.listeners.open("fixed", &self.address, Clients::Anybody).await?;
            Ok(nothing())
        })
    }
}

#[tokio::test]
async fn a_door_that_does_not_open_leaves_the_directory_free() {
    let dir = tempfile::tempdir().unwrap();
    let occupied = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fixed = || Box::new(Fixed { address: occupied.local_addr().unwrap().to_string() });
    for _ in 0..2 {
        let (door, engine) = embed(Last);
        let failed = start_with(NodeConfig::alone(dir.path()), vec![door, fixed()]);
        let words = failed.err().unwrap().to_string();
        assert!(words.contains("fixed") && words.contains("is another process listening"), "{words}");
        drop(engine);
    }
    let (door, engine) = embed(Last);
    let node = start_with(NodeConfig::alone(dir.path()), vec![door]).unwrap();
    node.joined().await.unwrap();
    let engine = engine.await.unwrap();
    engine.propose(Bytes::from_static(b"here")).unwrap().await.unwrap().unwrap().reply.unwrap();
    node.shutdown().await;
}
