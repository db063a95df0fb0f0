//! Runs three nodes in one process, and threads that write, read, scan and wait, for a check with ThreadSanitizer (docs/threads.md). `cargo
//! run -p atoll-node --example busy_threads -- DIR SECONDS`.
#![allow(clippy::unwrap_used)]

#[path = "../tests/node/common.rs"]
mod common;
#[path = "counter_map.rs"]
#[allow(dead_code)] // Its `main`.
mod counter_map;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_core::NodeId;
use atoll_db::Engine;
use atoll_log::virtual_log::LogRecord;
use atoll_node::config::{Founder, Roles};
use atoll_node::database::LOG;
use atoll_node::{NodeConfig, RunningNode, embed, start_with};
use bytes::Bytes;
use counter_map::{CounterMap, all, count_up};

const NODES: u32 = 3;
/// The number of threads that use the database of each node.
const USERS: u64 = 3;
/// The size of a record in the other log, which is not the database's, in bytes.
const RECORD_BYTES: usize = 4096;

type Node = (RunningNode, Engine<CounterMap>);

fn configs(root: &Path) -> Vec<NodeConfig> {
    let founder = || Founder { peer: common::free_address(), grpc: None, roles: Roles::ALL };
    let founders: BTreeMap<_, _> = (1..=NODES).map(|n| (NodeId(n), founder())).collect();
    let config = |n: u32| NodeConfig {
        node: NodeId(n),
        peer: founders[&NodeId(n)].peer.clone(),
        founders: founders.clone(),
        ..NodeConfig::alone(root.join(n.to_string()))
    };
    (1..=NODES).map(config).collect()
}

async fn start(config: NodeConfig) -> Node {
    let (door, engine) = embed(CounterMap);
    let node = start_with(config, vec![door]).unwrap();
    node.joined().await.unwrap();
    (node, engine.await.unwrap())
}

/// Increments a counter and reads all of them, in a thread that is not the node's.
async fn count(engine: &Engine<CounterMap>, name: &str, stop: &AtomicBool, done: &AtomicU64) {
    let mut last = 0;
    while !stop.load(Ordering::Relaxed) {
        // A move of the log may leave an outcome unknown, so the sum may grow by more than one.
        if let Ok(sum) = count_up(engine, name, 1).await {
            assert!(sum > last, "{name} went back from {last} to {sum}");
            last = sum;
        }
        // If the machine stalls, the log may be unreachable for longer than a barrier waits.
        let Ok(seen) = all(engine).await else { continue };
        let own = seen.iter().find(|(found, _)| found == name).map_or(0, |(_, n)| *n);
        assert!(own >= last, "{name} is {last}, and {own} was seen");
        done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Appends to another log, and reads all of it from time to time. The reader threads read what is no longer in memory.
async fn append(node: &RunningNode, stop: &AtomicBool, done: &AtomicU64) {
    let log = node.logs().open("beside").unwrap();
    let _ = log.create(LogletSpec::default()).await;
    let client = ClientId(node.parts().env.random().max(1));
    let mut seq = 0;
    while !stop.load(Ordering::Relaxed) {
        let waits: Vec<_> = (0..32)
            .filter_map(|_| {
                seq += 1;
                let payload = Bytes::from(vec![seq as u8; RECORD_BYTES]);
                log.submit(vec![LogRecord { op: OpId { client, seq }, floor: None, payload }]).ok()
            })
            .collect();
        for wait in waits {
            let _ = wait.await;
        }
        let (mut at, Ok(Ok(tail))) = (LogPos::ZERO, log.check_tail().await) else { continue };
        while at < tail && !stop.load(Ordering::Relaxed) {
            let Ok(Ok(read)) = log.read(at..tail, 1 << 20, ReadFrom::Anywhere).await else { break };
            at = read.next();
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
}

fn in_thread<F: Future<Output = ()>>(f: impl FnOnce() -> F + Send + 'static) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(f());
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut words = std::env::args().skip(1);
    let (Some(dir), Some(Ok(seconds))) = (words.next(), words.next().map(|word| word.parse())) else {
        return eprintln!("usage: busy_threads DIR SECONDS");
    };
    let starting: Vec<_> =
        configs(dir.as_ref()).into_iter().map(|config| tokio::spawn(start(config))).collect();
    let mut nodes = Vec::new();
    for node in starting {
        nodes.push(Arc::new(node.await.unwrap()));
    }
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut users = Vec::new();
    for (n, node) in nodes.iter().enumerate() {
        let (its, ends, rounds) = (node.clone(), stop.clone(), done.clone());
        users.push(in_thread(move || async move { append(&its.0, &ends, &rounds).await }));
        for user in 0..USERS {
            let (its, ends, rounds) = (node.clone(), stop.clone(), done.clone());
            let name = format!("{n}-{user}");
            users.push(in_thread(move || async move { count(&its.1, &name, &ends, &rounds).await }));
        }
    }
    for _ in 0..seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Move the log while all threads use it.
        let _ = nodes[0].0.logs().open(LOG).unwrap().extend(LogletSpec::default()).await;
    }
    stop.store(true, Ordering::Relaxed);
    for user in users {
        user.join().unwrap();
    }
    println!("{} rounds", done.load(Ordering::Relaxed));
    for node in nodes {
        if let Ok((node, engine)) = Arc::try_unwrap(node) {
            drop(engine);
            node.shutdown().await;
        }
    }
}
