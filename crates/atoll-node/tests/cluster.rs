//! Three whole nodes in one process, on real sockets and disks: a log is made, appended to, extended, and read back.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use atoll_core::NodeId;
use atoll_log::virtual_log::{LogRecord, VirtualLog};
use atoll_log::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_node::config::{Founder, NodeConfig, Roles};
use atoll_node::settings::Timings;
use atoll_node::{RunningNode, start};

fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

fn configs(dir: &Path, nodes: u32) -> Vec<NodeConfig> {
    let founders: BTreeMap<NodeId, Founder> = (1..=nodes)
        .map(|n| (NodeId(n), Founder { peer: free_port(), grpc: None, roles: Roles::ALL }))
        .collect();
    let config = |n: u32| NodeConfig {
        node: NodeId(n),
        cluster: "test".into(),
        data: dir.join(n.to_string()),
        roles: Roles::ALL,
        grpc: free_port(),
        peer: founders[&NodeId(n)].peer.clone(),
        metrics: None,
        founders: founders.clone(),
        tls: None,
        plaintext_beyond_loopback: false,
        timings: Timings::default(),
        drain_at_most: Duration::from_secs(5),
        syncs_off: false,
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
    let tail = log.check_tail().await.unwrap().unwrap();
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
    // Another sequencer, under a second appender on another node.
    let there = nodes[1].logs().open("reef").unwrap();
    let spec = LogletSpec { sequencer: Some(NodeId(3)), ..LogletSpec::default() };
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
