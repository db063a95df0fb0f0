//! Measures the CPU time per record of the gRPC door and of the Rust client. Behind the door is only a log in memory that answers after
//! about a millisecond. `cargo run --release -p atoll-doors --example door_cost`.
#![allow(clippy::unwrap_used, dead_code, missing_docs)]

#[path = "../tests/doors/memory.rs"]
mod memory;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_client::Client;
use atoll_door::{Limits, serve_grpc};
use bytes::Bytes;
use memory::{Logs, MemoryLog, MemoryNode, services};

const DOOR: &str = "door";
const SECONDS: u64 = 3;
const RECORD_BYTES: usize = 1024;

/// Returns the CPU time of the threads with this name, or of all threads, in nanoseconds.
fn cpu_ns(name: Option<&str>) -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    threads
        .filter(|t| {
            let comm = std::fs::read_to_string(t.path().join("comm")).unwrap_or_default();
            name.is_none_or(|name| comm.trim() == name)
        })
        .filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok())
        .filter_map(|s| s.split_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

fn main() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let log = Arc::new(MemoryLog::default());
    log.forgetful.store(true, Ordering::Relaxed);
    *log.delay.lock().unwrap() = Some(Duration::from_micros(500));
    let logs = Logs::default();
    logs.lock().unwrap().insert("main".to_owned(), log);
    let node = Arc::new(MemoryNode { id: 1, logs, grpc: vec![address.clone()], ..MemoryNode::default() });
    let door = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let services = services(node, Limits::default());
            serve_grpc(listener, services, None, std::future::pending()).await.unwrap();
        });
    };
    std::thread::Builder::new().name(DOOR.to_owned()).spawn(door).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for depth in [1, 16, 64, 256] {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, measure(&address, depth));
    }
}

async fn measure(address: &str, depth: usize) {
    let log = Client::connect(address).unwrap().log("main").unwrap();
    log.append("first").await.unwrap();
    let payload = Bytes::from(vec![7; RECORD_BYTES]);
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let before = (cpu_ns(Some(DOOR)), cpu_ns(None));
    let mut workers = Vec::new();
    for _ in 0..depth {
        let (log, payload) = (log.clone(), payload.clone());
        workers.push(tokio::task::spawn_local(async move {
            let mut done = 0u64;
            while Instant::now() < until {
                log.append(payload.clone()).await.unwrap();
                done += 1;
            }
            done
        }));
    }
    let mut records = 0;
    for worker in workers {
        records += worker.await.unwrap();
    }
    let after = (cpu_ns(Some(DOOR)), cpu_ns(None));
    let door = (after.0 - before.0) as f64 / 1e3 / records as f64;
    let client = (after.1 - before.1) as f64 / 1e3 / records as f64 - door;
    println!(
        "depth {depth:>3}: {:>7} records/s, CPU per record: door {door:.2} us, client and workers {client:.2} us",
        records / SECONDS
    );
}
