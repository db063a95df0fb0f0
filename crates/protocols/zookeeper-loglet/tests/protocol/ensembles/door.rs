//! Atoll's own ZooKeeper door over a state in memory, in this process.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::NodeId;
use atoll_db::{Applications, MemoryStore, Solo};
use atoll_zookeeper::{Cluster, Door as ZooKeeperDoor, Options, ZooKeeper};

struct Alone;

impl Cluster for Alone {
    fn living(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// A door that serves until the process ends.
pub struct Door {
    pub address: String,
}

impl Door {
    pub fn open() -> Self {
        let (opened, address) = mpsc::channel();
        std::thread::spawn(move || {
            let mut applications = Applications::new();
            let slot = applications.add(ZooKeeper);
            let solo = Solo::open(applications, Box::new(MemoryStore::new())).unwrap();
            let clock = solo.clock();
            clock.set_ms(now_ms());
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                opened.send(listener.local_addr().unwrap().to_string()).unwrap();
                tokio::spawn(async move {
                    loop {
                        clock.set_ms(now_ms());
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                });
                let options = Options { max_connections_of_address: 0, ..Options::default() };
                let door = ZooKeeperDoor::open(solo.engine(&slot), Arc::new(Alone), options).unwrap();
                door.serve(listener, std::future::pending()).await;
            });
        });
        Door { address: address.recv().unwrap() }
    }
}
