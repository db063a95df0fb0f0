//! Tests of a node with a database: each life of the node reads what the earlier ones wrote, while the Loglets below change.

#[path = "../../examples/counter_map.rs"]
#[allow(dead_code)] // Its `main`.
mod counter_map;

use std::time::{Duration, Instant};

use crate::common::free_address;
use atoll_contract::{LogPos, LogletSpec};
use atoll_core::NodeId;
use atoll_db::{AppId, Application, ApplyAt, Engine, Rejected, StoreError, Tx, View};
use atoll_node::config::{Founder, Roles};
use atoll_node::{DatabaseState, NodeConfig, RunningNode, embed, start_with};
use bytes::Bytes;

/// An application whose commands are `key=value`. A command replaces the value, and the reply is the old one.
struct Puts;

impl Application for Puts {
    type Event = ();
    const ID: AppId = AppId(9);
    const NAME: &'static str = "puts";

    fn apply(&mut self, _: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        let at = command.iter().position(|b| *b == b'=').ok_or(Rejected(Bytes::new()))?;
        let old = tx.get(&command[..at]).unwrap_or_default();
        tx.put(&command[..at], Bytes::copy_from_slice(&command[at + 1..]));
        Ok(old)
    }

    fn opened(&mut self, _: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

async fn node(config: NodeConfig) -> (RunningNode, Engine<Puts>) {
    let (door, engine) = embed(Puts);
    let node = start_with(config, vec![door]).unwrap();
    node.joined().await.unwrap();
    (node, engine.await.unwrap())
}

async fn put(engine: &Engine<Puts>, command: &str) -> Bytes {
    let command = Bytes::copy_from_slice(command.as_bytes());
    engine.propose(command).unwrap().await.unwrap().unwrap().reply.unwrap()
}

#[tokio::test]
async fn what_one_life_writes_the_next_one_reads() {
    let dir = tempfile::tempdir().unwrap();
    for life in 0..3u8 {
        let (node, engine) = node(NodeConfig::alone(dir.path())).await;
        let before = if life == 0 { String::new() } else { (life - 1).to_string() };
        assert_eq!(put(&engine, &format!("life={life}")).await, before);
        let log = node.logs().open(atoll_node::database::LOG).unwrap();
        log.extend(LogletSpec::default()).await.unwrap().unwrap();
        put(&engine, "after=extend").await;
        let at = engine.barrier().await.unwrap().unwrap();
        assert!(engine.view().below() >= at);
        assert_eq!(engine.view().get(b"life").unwrap().unwrap(), life.to_string());
        if life == 1 {
            // The next life must replay the state from the log alone.
            drop(engine);
            node.shutdown().await;
            std::fs::remove_dir_all(dir.path().join("database")).unwrap();
        } else {
            node.shutdown().await;
        }
    }
}

#[tokio::test]
async fn the_counter_map_counts_over_native_and_local() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    assert_eq!(counter_map::count(dir).await.unwrap(), [("kelp".to_owned(), 3), ("reef".to_owned(), 1)]);
    assert_eq!(counter_map::count(dir).await.unwrap(), [("kelp".to_owned(), 6), ("reef".to_owned(), 2)]);
}

fn cluster(root: &std::path::Path, state: &DatabaseState) -> Vec<NodeConfig> {
    let founders: std::collections::BTreeMap<_, _> = (1..=3)
        .map(|n| (NodeId(n), Founder { peer: free_address(), grpc: None, roles: Roles::ALL }))
        .collect();
    let config = |n: u32| NodeConfig {
        node: NodeId(n),
        peer: founders[&NodeId(n)].peer.clone(),
        founders: founders.clone(),
        database: state.clone(),
        ..NodeConfig::alone(root.join(n.to_string()))
    };
    (1..=3).map(config).collect()
}

#[tokio::test]
async fn three_nodes_show_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes = Vec::new();
    for config in cluster(dir.path(), &DatabaseState::InMemory) {
        nodes.push(tokio::spawn(node(config)));
    }
    let mut up = Vec::new();
    for node in nodes {
        up.push(node.await.unwrap());
    }
    for (n, (_, engine)) in up.iter().enumerate() {
        put(engine, &format!("from{n}=here")).await;
    }
    for (_, engine) in &up {
        engine.barrier().await.unwrap().unwrap();
        for n in 0..3 {
            assert_eq!(engine.view().get(format!("from{n}").as_bytes()).unwrap().unwrap(), "here");
        }
    }
    for (node, _) in up {
        node.shutdown().await;
    }
}

/// Waits until the condition holds. A test that hangs panics with `what`, and with what is there instead.
async fn until(what: &str, there: impl AsyncFn() -> String, mut so: impl FnMut() -> bool) {
    let wait = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), wait).await;
    if ended.is_err() {
        panic!("{what}; there is {}", there().await);
    }
}

#[tokio::test]
async fn a_node_that_lost_its_state_fetches_it_from_a_peer() {
    let dir = tempfile::tempdir().unwrap();
    let configs: Vec<NodeConfig> = cluster(dir.path(), &DatabaseState::default())
        .into_iter()
        .map(|config| NodeConfig {
            database_options: atoll_db::Options {
                upkeep_every: Duration::from_millis(50),
                keep_entries: 20,
                commit_above_bytes: 10_000,
                ..Default::default()
            },
            ..config
        })
        .collect();
    let mut starting = Vec::new();
    for config in &configs {
        starting.push(tokio::spawn(node(config.clone())));
    }
    let mut up = Vec::new();
    for node in starting {
        up.push(node.await.unwrap());
    }
    for n in 0..100 {
        put(&up[0].1, &format!("key{n}={n}")).await;
    }
    let (third, engine) = up.pop().unwrap();
    let had = engine.view().below();
    drop(engine);
    third.shutdown().await;
    drop(third);
    std::fs::remove_dir_all(configs[2].data.join("database")).unwrap();
    for n in 100..200 {
        put(&up[0].1, &format!("key{n}={n}")).await;
    }
    let log = up[0].0.logs().open(atoll_node::database::LOG).unwrap();
    let there = async || {
        let limit = Duration::from_secs(20);
        let refreshed = tokio::time::timeout(limit, log.refresh()).await;
        let trimmed = tokio::time::timeout(limit, log.trim(LogPos(had.0 + 1))).await;
        let seen = |(node, engine): &(RunningNode, Engine<Puts>)| {
            format!("{:?}, which sees {:?}", engine.health(), node.parts().members.liveness(NodeId(3)))
        };
        format!(
            "{log:?}, {refreshed:?}, {trimmed:?}, it had {had}, {:?}",
            up.iter().map(seen).collect::<Vec<_>>()
        )
    };
    let is_trimmed = || log.chain().is_some_and(|chain| chain.chain.trim() > had);
    until("the log is trimmed above what the third node had", there, is_trimmed).await;

    let (third, engine) = node(configs[2].clone()).await;
    engine.barrier().await.unwrap().unwrap();
    for n in 0..200 {
        assert_eq!(engine.view().get(format!("key{n}").as_bytes()).unwrap().unwrap(), n.to_string());
    }
    assert_eq!(engine.health().refills, 1);
    put(&engine, "and=on").await;
    up.push((third, engine));
    for (node, _) in up {
        node.shutdown().await;
    }
}

/// `cargo test --release -p atoll-node --test node database::speed -- --ignored --nocapture`: three nodes in one process, closed loops.
#[tokio::test]
#[ignore = "a measurement"]
async fn speed() {
    for state in [DatabaseState::InMemory, DatabaseState::default()] {
        let dir = tempfile::tempdir().unwrap();
        let mut starting = Vec::new();
        for config in cluster(dir.path(), &state) {
            starting.push(tokio::spawn(node(config)));
        }
        let mut up = Vec::new();
        for node in starting {
            up.push(node.await.unwrap());
        }
        for depth in [1, 64, 256] {
            let (until, started, cpu) =
                (Instant::now() + Duration::from_secs(4), Instant::now(), cpu_seconds());
            let mut loops = Vec::new();
            for i in 0..depth {
                let engine = up[i % 3].1.clone();
                loops.push(tokio::spawn(async move {
                    let (mut n, value) = (0usize, "v".repeat(1024));
                    let mut slowest = Duration::ZERO;
                    while Instant::now() < until {
                        let began = Instant::now();
                        put(&engine, &format!("{}={value}", (i * 7919 + n * 104_729) % 10_000)).await;
                        slowest = slowest.max(began.elapsed());
                        n += 1;
                    }
                    (n, slowest)
                }));
            }
            let (mut done, mut slowest) = (0, Duration::ZERO);
            for l in loops {
                let (n, s) = l.await.unwrap();
                (done, slowest) = (done + n, slowest.max(s));
            }
            let (took, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            println!(
                "{state:?} depth {depth}: {:.0} puts/s, {:.1} us CPU each, slowest {slowest:?}",
                done as f64 / took,
                cpu * 1e6 / done as f64
            );
        }
        for (node, _) in up {
            node.shutdown().await;
        }
    }
}

/// Returns the user and system time of this process in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}
