//! The chain of a log moves out of the cluster and back, and what keeps it from moving.
//!
//! The store is in the memory of a node, so that several nodes with the same URL see different stores: a mistake that must be noticed.

use std::path::Path;

use atoll_client::Reason;
use atoll_core::{Level, LevelRange};
use atoll_door::backend::{Backend, Refusal};
use atoll_node::backend::NodeBackend;
use atoll_node::operations::NodeOperations;
use atoll_node::places::{ChainMoveError, ConfiguredPlaceError};
use atoll_node::{NodeConfig, RunningNode};

use crate::cluster::configs;
use crate::own_log::embedded::append_and_read;

const LOG: &str = "main";

fn with_place(config: NodeConfig, name: &str, url: &str) -> NodeConfig {
    NodeConfig { places: [(name.to_owned(), url.to_owned())].into(), ..config }
}

/// Returns a node that stands alone, with a log and a place for its chain.
async fn alone(data: &Path) -> RunningNode {
    append_and_read(data.to_str().unwrap(), "hello").await.unwrap();
    let node = atoll_node::start(with_place(NodeConfig::alone(data), "m", "memory:///chains")).unwrap();
    node.joined().await.unwrap();
    node
}

fn backend(node: &RunningNode) -> NodeBackend {
    let parts = node.parts().clone();
    let operations = std::sync::Arc::new(NodeOperations::new(parts.clone()));
    NodeBackend::new(parts.env, parts.logs, parts.places, parts.changes, operations)
}

async fn move_chain(node: &RunningNode, to: &str) -> Result<String, Refusal> {
    let log = backend(node).log(LOG)?;
    Ok(log.move_chain(to.to_owned()).await?.registers)
}

#[tokio::test]
async fn a_chain_moves_out_of_the_cluster_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let node = alone(dir.path()).await;
    for to in ["m", "m", "home", "m"] {
        assert_eq!(move_chain(&node, to).await.as_deref(), Ok(if to == "home" { "" } else { to }));
        let backend = backend(&node);
        let chain = backend.log(LOG).unwrap().extend(Default::default()).await.unwrap();
        assert_eq!(
            (chain.registers.is_empty(), backend.list().await),
            (to == "home", Ok(vec![LOG.to_owned()]))
        );
        let status = backend.operations().status().await.unwrap();
        assert!(status.healthy && status.logs[0].registers == chain.registers, "{status:?}");
    }
    node.shutdown().await;
    // The next life has another memory, and a configuration without the place.
    let node = atoll_node::start(NodeConfig::alone(dir.path())).unwrap();
    node.joined().await.unwrap();
    let refused = move_chain(&node, "home").await.unwrap_err();
    let words = "its chain is in the registers \"m\", which the configuration of this node does not have";
    assert!(refused.failure.message.contains(words), "{refused:?}");
    let status = backend(&node).operations().status().await.unwrap();
    assert!(!status.healthy && status.logs.iter().any(|log| log.reason.contains(words)), "{status:?}");
    node.shutdown().await;
    let lost = with_place(NodeConfig::alone(dir.path()), "m", "memory:///chains");
    let node = atoll_node::start(lost).unwrap();
    node.joined().await.unwrap();
    assert!(move_chain(&node, "home").await.is_err(), "its store has lost it");
    node.shutdown().await;
}

#[tokio::test]
async fn what_cannot_move_is_refused_and_stays() {
    let dir = tempfile::tempdir().unwrap();
    let node = alone(dir.path()).await;
    let refused = move_chain(&node, "elsewhere").await.unwrap_err().failure;
    assert_eq!(refused.reason, Reason::Refused);
    assert!(refused.message.contains("no registers \"elsewhere\"; it has home, m"), "{refused:?}");
    let none = backend(&node).log("none").unwrap().move_chain("m".to_owned()).await.unwrap_err();
    assert_eq!(none.failure.reason, Reason::NoSuchLog);
    node.shutdown().await;
    for (name, url) in
        [("home", "memory:///a"), ("a/b", "memory:///a"), ("m", "file:///tmp"), ("m", "memory:///../a")]
    {
        let started = atoll_node::start(with_place(NodeConfig::alone(dir.path()), name, url)).map(|_| ());
        assert!(started.is_err_and(|error| error.to_string().contains("registers")), "{name} {url}");
    }
    assert!(ConfiguredPlaceError::TooMany(99).to_string().contains("99"));
}

/// Starts three nodes of a cluster, and creates a log.
async fn three(dir: &Path, change: impl Fn(usize, NodeConfig) -> NodeConfig) -> Vec<RunningNode> {
    let configs = configs(dir, 3).into_iter().enumerate().map(|(i, config)| change(i, config));
    let nodes: Vec<RunningNode> = configs.map(|config| atoll_node::start(config).unwrap()).collect();
    for node in &nodes {
        node.joined().await.unwrap();
    }
    while backend(&nodes[0]).create(LOG, Default::default()).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    nodes
}

async fn refused(nodes: Vec<RunningNode>) -> ChainMoveError {
    let moved = {
        let places = nodes[0].parts().places.clone();
        nodes[0].parts().env.launch("move", async move { places.move_chain(LOG, "m").await }).await.unwrap()
    };
    let chain = backend(&nodes[1]).log(LOG).unwrap().chain(None).await.unwrap();
    assert_eq!(chain.registers, "", "it is where it was");
    for node in nodes {
        node.shutdown().await;
    }
    moved.unwrap_err()
}

#[tokio::test]
async fn no_chain_moves_to_where_a_node_would_not_find_it() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = three(dir.path(), |i, config| match i {
        0 => with_place(config, "m", "memory:///chains"),
        1 => with_place(config, "m", "memory:///others"),
        _ => config,
    });
    let words = refused(nodes.await).await.to_string();
    assert!(words.contains("node 2 has memory:///others there, and this node memory:///chains"), "{words}");
    assert!(words.contains("node 3 has none with this name"), "{words}");
}

#[tokio::test]
async fn a_url_that_means_another_store_on_another_node_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = three(dir.path(), |_, config| with_place(config, "m", "memory:///chains")).await;
    let words = refused(nodes).await.to_string();
    for part in ["node 2 sees another store", "node 3 sees another store"] {
        assert!(words.contains(part), "{words}");
    }
}

#[tokio::test]
async fn no_chain_moves_while_a_member_has_an_older_program() {
    let dir = tempfile::tempdir().unwrap();
    let nodes = three(dir.path(), |i, config| {
        let config = with_place(config, "m", "memory:///chains");
        if i < 2 {
            config
        } else {
            NodeConfig { levels: LevelRange { highest: Level(1), ..config.levels }, ..config }
        }
    });
    let error = refused(nodes.await).await;
    assert_eq!(error, ChainMoveError::Level { since: Level(2), active: Level(1) });
}
