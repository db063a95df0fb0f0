//! Tests of three complete nodes in one process, on real sockets and disks: they create a log, append to it, extend it and read it back.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::common::free_address;
use atoll_client::proto::NodeAddRequest;
use atoll_client::{Outcome, Reason};
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_core::{Level, LevelRange, NodeId};
use atoll_door::backend::Operations;
use atoll_door_cluster::ClusterDoor;
use atoll_door_log::LogDoor;
use atoll_log::virtual_log::{LogRecord, VirtualLog};
use atoll_node::config::{Founder, NodeConfig, Roles};
use atoll_node::operations::NodeOperations;
use atoll_node::settings::Timings;
use atoll_node::{EndedBecause, RunningNode, StartError, start_with};

/// Starts a node with the doors that need no database.
pub fn start(config: NodeConfig) -> Result<RunningNode, StartError> {
    start_with(config, vec![Box::new(LogDoor), Box::new(ClusterDoor)])
}

pub fn configs(dir: &Path, nodes: u32) -> Vec<NodeConfig> {
    let founders: BTreeMap<NodeId, Founder> = (1..=nodes)
        .map(|n| (NodeId(n), Founder { peer: free_address(), grpc: None, roles: Roles::ALL }))
        .collect();
    let config = |n: u32| NodeConfig {
        node: NodeId(n),
        cluster: "test".into(),
        grpc: free_address(),
        peer: founders[&NodeId(n)].peer.clone(),
        founders: founders.clone(),
        timings: Timings::default(),
        drain_at_most: Duration::from_secs(5),
        ..NodeConfig::alone(dir.join(n.to_string()))
    };
    (1..=nodes).map(config).collect()
}

fn records(client: u64, seqs: std::ops::Range<u64>) -> Vec<LogRecord> {
    seqs.map(|seq| LogRecord {
        op: OpId { client: ClientId(client), seq },
        floor: None,
        payload: format!("record {client} {seq}").into_bytes().into(),
    })
    .collect()
}

async fn create(node: &RunningNode) -> std::sync::Arc<VirtualLog> {
    let log = node.logs().open("reef").unwrap();
    loop {
        if let Ok(Ok(_)) = log.create(LogletSpec::default()).await {
            return log;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn append(log: &VirtualLog, client: u64, seqs: std::ops::Range<u64>) -> Vec<LogPos> {
    let ticket = log.submit(records(client, seqs)).unwrap();
    tokio::time::timeout(Duration::from_secs(20), ticket).await.unwrap().unwrap().unwrap()
}

async fn read_all(log: &VirtualLog, from: ReadFrom) -> Vec<String> {
    // The node may not have found all other nodes yet.
    let tail = loop {
        match log.check_tail().await.unwrap() {
            Ok(tail) => break tail,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    let mut all = Vec::new();
    while (all.len() as u64) < tail.0 {
        let got = log.read(LogPos(all.len() as u64)..tail, 1 << 20, from).await.unwrap().unwrap();
        assert_eq!(got.first.0, all.len() as u64);
        all.extend(got.entries.iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()));
    }
    all
}

#[tokio::test]
async fn append_extend_and_read_on_three_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<RunningNode> = configs(dir.path(), 3).into_iter().map(|c| start(c).unwrap()).collect();
    let log = create(&nodes[0]).await;
    assert_eq!(append(&log, 7, 1..4).await, [LogPos(0), LogPos(1), LogPos(2)]);
    // Move the sequencer while a second appender uses the log through another node.
    let there = nodes[1].logs().open("reef").unwrap();
    let spec = LogletSpec::default().place("sequencer", [NodeId(3)]);
    log.extend(spec).await.unwrap().unwrap();
    append(&there, 8, 1..3).await;
    append(&log, 7, 4..6).await;
    let want =
        ["record 7 1", "record 7 2", "record 7 3", "record 8 1", "record 8 2", "record 7 4", "record 7 5"];
    for node in &nodes {
        let log = node.logs().open("reef").unwrap();
        assert_eq!(read_all(&log, ReadFrom::Anywhere).await, want);
    }
    assert!(log.chain().unwrap().chain.segments().len() >= 2);
    for node in &nodes {
        node.shutdown().await;
    }
}

#[tokio::test]
async fn more_founders_than_a_group_of_registers_holds_make_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<RunningNode> = configs(dir.path(), 11).into_iter().map(|c| start(c).unwrap()).collect();
    let log = tokio::time::timeout(Duration::from_secs(60), create(&nodes[10])).await.unwrap();
    assert_eq!(append(&log, 7, 1..2).await, [LogPos(0)]);
    for node in &nodes {
        node.shutdown().await;
    }
}

#[tokio::test]
async fn a_cluster_that_stops_and_starts_has_everything() {
    let dir = tempfile::tempdir().unwrap();
    let configs = configs(dir.path(), 3);
    let mut want = Vec::new();
    for round in 0..3u64 {
        let nodes: Vec<RunningNode> = configs.iter().map(|c| start(c.clone()).unwrap()).collect();
        let log = create(&nodes[(round % 3) as usize]).await;
        append(&log, 100 + round, 1..50).await;
        want.extend(
            records(100 + round, 1..50).iter().map(|r| String::from_utf8(r.payload.to_vec()).unwrap()),
        );
        assert_eq!(read_all(&log, ReadFrom::Anywhere).await, want);
        for node in &nodes {
            node.shutdown().await;
        }
    }
}

async fn reason<T: std::fmt::Debug>(
    asked: impl Future<Output = Result<T, atoll_client::Error>>,
) -> atoll_client::Reason {
    match asked.await {
        Err(atoll_client::Error::DidNotHappen(failure)) => failure.reason,
        other => panic!("{other:?} should have been refused"),
    }
}

#[tokio::test]
async fn a_newcomer_needs_the_address_of_any_one_member() {
    let dir = tempfile::tempdir().unwrap();
    let mut configs = configs(dir.path(), 4);
    let mut last = configs.pop().unwrap();
    for config in &mut configs {
        config.founders.remove(&NodeId(4));
    }
    let nodes: Vec<RunningNode> = configs.iter().map(|c| start(c.clone()).unwrap()).collect();
    let log = create(&nodes[0]).await;
    append(&log, 7, 1..4).await;
    let client = atoll_client::Client::connect(&configs[0].grpc).unwrap();
    let roles = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    assert!(client.add_node(4, &last.peer, roles(&["log"])).await.unwrap().changed);
    assert!(!client.add_node(4, &last.peer, roles(&["log"])).await.unwrap().changed);

    // Node 4 is a member, but no segment may be placed on it yet.
    let spec = atoll_client::proto::LogletSpec { servers: vec![1, 2, 4], ..Default::default() };
    assert_eq!(reason(client.extend("reef", spec.clone())).await, atoll_client::Reason::Refused);
    assert_eq!(log.refresh().await.unwrap().unwrap().chain.segments().len(), 1, "nothing was sealed");

    // The new node knows the address of only one member, and is not a founder.
    last.founders.retain(|node, _| *node == NodeId(2));
    last.roles = Roles { log: true, meta: false, sequencer: false };
    let fourth = start(last.clone()).unwrap();
    tokio::time::timeout(Duration::from_secs(60), fourth.joined()).await.unwrap().unwrap();
    assert!(!client.add_node(4, &last.peer, roles(&["log"])).await.unwrap().changed, "as it was added");
    let other = client.add_node(4, &last.peer, roles(&["log", "meta"]));
    assert_eq!(reason(other).await, atoll_client::Reason::Refused);
    assert_eq!(reason(client.add_node(5, &last.peer, vec![])).await, atoll_client::Reason::Refused);
    assert_eq!(reason(client.drain_node(9)).await, atoll_client::Reason::Refused);

    client.extend("reef", spec).await.unwrap();
    append(&log, 7, 4..6).await;
    let there = fourth.logs().open("reef").unwrap();
    let want = ["record 7 1", "record 7 2", "record 7 3", "record 7 4", "record 7 5"];
    assert_eq!(read_all(&there, ReadFrom::Anywhere).await, want);
    for node in nodes.iter().chain([&fourth]) {
        node.shutdown().await;
    }
}

fn reading(config: &NodeConfig, highest: u16) -> NodeConfig {
    let levels = LevelRange { lowest: Level::FIRST, highest: Level(highest) };
    NodeConfig { levels, ..config.clone() }
}

async fn wait_for_level(client: &atoll_client::Client, active: u32) {
    let risen = async {
        while client.levels().await.map_or(0, |levels| levels.active) != active {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), risen).await.unwrap();
}

/// Waits until a member has announced its range. A restarted member counts as joined immediately, but its announcement takes a write to the
/// register.
async fn wait_for_announcement(client: &atoll_client::Client, node: u32, highest: u32) {
    let announced = async {
        while !client
            .levels()
            .await
            .is_ok_and(|levels| levels.members.iter().any(|m| m.node == node && m.highest == highest))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), announced).await.unwrap();
}

#[tokio::test]
async fn the_level_rises_when_all_read_it_and_an_old_program_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let configs = configs(dir.path(), 3);
    let restart = async |node: RunningNode, n: usize, highest: u16| {
        node.shutdown().await;
        let node = start(reading(&configs[n], highest)).unwrap();
        tokio::time::timeout(Duration::from_secs(60), node.joined()).await.unwrap().unwrap();
        node
    };
    let mut nodes: Vec<RunningNode> = configs.iter().map(|c| start(reading(c, 2)).unwrap()).collect();
    let addresses = configs.iter().map(|c| c.grpc.clone()).collect::<Vec<_>>().join(",");
    let client = atoll_client::Client::connect(&addresses).unwrap();
    wait_for_level(&client, 2).await;
    let third = nodes.pop().unwrap();
    let (second, first) = (nodes.pop().unwrap(), nodes.pop().unwrap());
    let first = restart(first, 0, 3).await;
    let second = restart(second, 1, 3).await;
    assert_eq!(reason(client.upgrade(Some(3))).await, atoll_client::Reason::Refused);
    assert!(!client.upgrade(None).await.unwrap().changed, "node 3 is left behind");
    assert_eq!(reason(client.upgrade(Some(1))).await, atoll_client::Reason::Refused);

    // Node 3 announces that it can read the level, but is down when the level rises. So its disk does not have the new level.
    let third = restart(third, 2, 3).await;
    wait_for_announcement(&client, 3, 3).await;
    third.shutdown().await;
    let raised = client.upgrade(None).await.unwrap();
    assert!(raised.changed && raised.active == 3, "{raised:?}");
    wait_for_level(&client, 3).await;
    let third = start(reading(&configs[2], 2)).unwrap();
    let why = tokio::time::timeout(Duration::from_secs(60), third.wait()).await.unwrap();
    assert!(matches!(why, EndedBecause::Level(_) | EndedBecause::TooOld { .. }), "{why}");
    assert!(why.to_string().contains("too old") && why.to_string().contains("level 3"), "{why}");
    let third = start(reading(&configs[2], 3)).unwrap();
    tokio::time::timeout(Duration::from_secs(60), third.joined()).await.unwrap().unwrap();

    // A node whose disk has the new level does not even start.
    first.shutdown().await;
    let words = start(reading(&configs[0], 2)).err().unwrap().to_string();
    assert!(words.contains("too old") && words.contains("level 3"), "{words}");
    second.shutdown().await;
    third.shutdown().await;
}

#[tokio::test]
async fn a_change_that_the_end_of_its_node_interrupts_may_have_happened() {
    let dir = tempfile::tempdir().unwrap();
    let nodes: Vec<RunningNode> = configs(dir.path(), 3).into_iter().map(|c| start(c).unwrap()).collect();
    for node in &nodes {
        node.joined().await.unwrap();
    }
    // Without a majority, the change is neither written nor refused for a while.
    for node in &nodes[1..] {
        node.shutdown().await;
    }
    let operations = NodeOperations::new(nodes[0].parts().clone());
    let change = operations.add_node(NodeAddRequest { id: 4, address: free_address(), roles: Vec::new() });
    nodes[0].shutdown().await;
    let refusal = change.await.unwrap_err();
    assert_eq!((refusal.happened, refusal.failure.reason), (Outcome::Unknown, Reason::Abandoned));
}
