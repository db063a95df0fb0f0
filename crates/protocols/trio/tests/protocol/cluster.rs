//! The test cluster with the three roles on every node.

use atoll_contract::conformance::cluster;
use atoll_core::*;
use atoll_trio::roles::{CLERK, MIRROR, STORE};
use atoll_trio::{Clerk, ClerkOptions, Holder, HolderOptions, Side, TrioConfig, TrioOptions, TrioProvider};

pub use cluster::{Cluster, batch};

/// Adds the three roles to a node.
pub fn assemble(core: &mut NodeCore, storage: StorageId) {
    let env = core.env();
    core.add_role(CLERK, Box::new(Clerk::new(env.clone(), ClerkOptions::default())));
    let options = HolderOptions { step_bytes: 64, ..HolderOptions::default() };
    for (role, side) in [(STORE, Side::Store), (MIRROR, Side::Mirror)] {
        core.add_role(role, Box::new(Holder::new(side, env.clone(), storage, options.clone())));
    }
}

pub fn new(nodes: u32, seed: u64) -> Cluster {
    Cluster::new(nodes, seed, assemble)
}

pub fn provider(c: &Cluster, at: u32) -> TrioProvider {
    TrioProvider::new(c.env(at), c.directory(), TrioOptions::default())
}

/// Returns the configuration with these nodes in their current lives.
pub fn config(c: &Cluster, clerk: u32, store: u32, mirror: u32) -> TrioConfig {
    let holder = |n: u32| (NodeId(n), c.nodes[&NodeId(n)].storage);
    TrioConfig {
        clerk: (NodeId(clerk), c.env(clerk).incarnation()),
        store: holder(store),
        mirror: holder(mirror),
    }
}
