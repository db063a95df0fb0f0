//! A ZooKeeper door over a state in memory, without a log, for trying clients against the door alone.
//!
//!     cargo run --release -p atoll-zookeeper --example alone -- 127.0.0.1:2181

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::NodeId;
use atoll_db::{Applications, MemoryStore, Solo};
use atoll_zookeeper::{Cluster, Door, Options, ZooKeeper};

struct Alone;

impl Cluster for Alone {
    fn living(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2181".to_owned());
    let mut applications = Applications::new();
    let slot = applications.add(ZooKeeper);
    let solo = Solo::open(applications, Box::new(MemoryStore::new()))?;
    let clock = solo.clock();
    clock.set_ms(now_ms());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await?;
        println!("serving ZooKeeper clients at {}", listener.local_addr()?);
        tokio::spawn(async move {
            loop {
                clock.set_ms(now_ms());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let options = Options { max_connections_of_address: 0, ..Options::default() };
        let door = Door::open(solo.engine(&slot), Arc::new(Alone), options)?;
        door.serve(listener, std::future::pending()).await;
        Ok(())
    })
}
