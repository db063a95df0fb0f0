//! Tests that a node which holds replicas of keyspaces and is dead for good can be drained and removed, on real sockets and disks.

use std::time::Duration;

use crate::cluster::{configs, start};
use atoll_contract::keyspace::{Attempt, Change, Changed, Guard, KeyspaceSpec};
use atoll_contract::{ClientId, OpId};
use atoll_core::NodeId;
use atoll_door::backend::Operations;
use atoll_node::RunningNode;
use atoll_node::operations::NodeOperations;
use bytes::Bytes;

const DEAD: NodeId = NodeId(3);
const KEYS: u64 = 40;

fn key(n: u64) -> Bytes {
    Bytes::from(format!("key {n}"))
}

/// Creates a keyspace with three replicas of each shard, and writes keys.
async fn fill(node: &RunningNode) {
    let keyspaces = node.parts().keyspaces.clone();
    let spec =
        KeyspaceSpec { shards: Some(4), buckets: Some(8), replicas: Some(3), ..KeyspaceSpec::default() };
    let filled = keyspaces.env().clone().launch("fill", async move {
        while keyspaces.create("reef", spec.clone()).await.is_err() {
            keyspaces.env().sleep(Duration::from_millis(50)).await;
        }
        for n in 0..KEYS {
            let (op, change) = (OpId { client: ClientId(1), seq: n + 1 }, Change::Put(key(n)));
            let written = keyspaces.write("reef", (op, Attempt::First), key(n), Guard::Always, change).await;
            assert!(matches!(written, Ok((Changed::Done(_), _))), "{written:?}");
        }
    });
    filled.await.unwrap();
}

/// Returns how many keys are there, and what the dead node holds.
async fn look(node: &RunningNode) -> (usize, Option<String>) {
    let keyspaces = node.parts().keyspaces.clone();
    let looked = keyspaces.env().clone().launch("look", async move {
        let found = keyspaces.get("reef", (0..KEYS).map(key).collect()).await.unwrap();
        let there =
            found.iter().zip(0..).filter(|((held, _), n)| held.as_ref().is_some_and(|h| h.value == key(*n)));
        (there.count(), keyspaces.held_by(DEAD).await)
    });
    looked.await.unwrap()
}

#[tokio::test]
async fn a_dead_node_with_replicas_of_keyspaces_can_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut nodes: Vec<RunningNode> = configs(dir.path(), 4).into_iter().map(|c| start(c).unwrap()).collect();
    fill(&nodes[0]).await;
    let (there, held) = look(&nodes[1]).await;
    assert_eq!(there, KEYS as usize);
    assert!(held.is_some(), "node {DEAD} holds nothing");
    let dead = nodes.remove(2);
    assert_eq!(dead.id(), DEAD);
    dead.shutdown().await;
    drop(dead);
    let operations = NodeOperations::new(nodes[0].parts().clone());
    let drained = tokio::time::timeout(Duration::from_secs(100), operations.drain_node(DEAD)).await.unwrap();
    drained.unwrap();
    assert_eq!(look(&nodes[2]).await, (KEYS as usize, None));
    operations.remove_node(DEAD).await.unwrap();
    // Three nodes are left for three replicas.
    let refused = operations.drain_node(NodeId(4)).await.unwrap_err();
    assert!(refused.failure.message.contains("cannot move"), "{}", refused.failure.message);
    for node in &nodes {
        node.shutdown().await;
    }
}
