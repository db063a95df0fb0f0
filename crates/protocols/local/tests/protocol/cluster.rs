//! The test cluster with the store of local loglets on every node.

use atoll_contract::conformance::cluster;
use atoll_core::*;
use atoll_local::roles::LOCAL_STORE;
use atoll_local::{LocalOptions, LocalProvider, LocalStore, LocalStoreOptions};

pub use cluster::{Cluster, batch};

pub fn new(nodes: u32, seed: u64) -> Cluster {
    Cluster::new(nodes, seed, |core: &mut NodeCore, storage: StorageId| {
        let store = LocalStore::new(core.env(), storage, LocalStoreOptions::default());
        core.add_role(LOCAL_STORE, Box::new(store));
    })
}

pub fn provider(c: &Cluster, at: u32) -> LocalProvider {
    LocalProvider::new(c.env(at), c.directory(), LocalOptions::default())
}
