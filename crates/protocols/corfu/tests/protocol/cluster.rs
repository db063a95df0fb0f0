//! The test cluster with a unit and a sequencer on every node.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

use std::time::Duration;

use atoll_contract::conformance::cluster;
use atoll_core::*;
use atoll_corfu::roles::{SEQUENCER, UNIT};
use atoll_corfu::{ClientOptions, CorfuProvider, Projection, Sequencer, SequencerOptions, Unit, UnitOptions};

pub use cluster::{Cluster, batch};

/// Adds the roles to a node.
pub fn assemble(core: &mut NodeCore, storage: StorageId) {
    let env = core.env();
    core.add_role(UNIT, Box::new(Unit::new(env.clone(), storage, UnitOptions::default())));
    core.add_role(SEQUENCER, Box::new(Sequencer::new(env, SequencerOptions::default())));
}

pub fn new(nodes: u32, seed: u64) -> Cluster {
    Cluster::new(nodes, seed, assemble)
}

pub fn provider(c: &Cluster, at: u32) -> CorfuProvider {
    let options = ClientOptions {
        append_timeout: Duration::from_millis(400),
        round_timeout: Duration::from_millis(60),
        op_timeout: Duration::from_secs(2),
        ..ClientOptions::default()
    };
    CorfuProvider::new(c.env(at), c.directory(), options)
}

/// Returns a projection with these chains, and the sequencer on a node in its current life.
pub fn projection(c: &Cluster, sequencer: u32, chains: &[&[u32]]) -> Projection {
    let unit = |n: &u32| (NodeId(*n), c.nodes[&NodeId(*n)].storage);
    let chains = chains.iter().map(|chain| chain.iter().map(unit).collect()).collect();
    Projection::simple(1, (NodeId(sequencer), c.env(sequencer).incarnation()), 4, chains)
}
