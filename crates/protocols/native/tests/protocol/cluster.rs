//! The test cluster with the roles of this protocol on every node.

use std::ops::{Deref, DerefMut};

use atoll_contract::LogletId;
use atoll_contract::conformance::cluster;
use atoll_core::*;
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{
    LogServer, LogServerOptions, NativeConfig, NativeLoglet, NativeOptions, NativeProvider, Sequencer,
    SequencerOptions,
};

pub use cluster::{Faults, batch};

/// The options of both roles.
#[derive(Clone, Default)]
pub struct RoleOptions {
    pub server: LogServerOptions,
    pub sequencer: SequencerOptions,
}

pub struct Cluster(cluster::Cluster);

impl Deref for Cluster {
    type Target = cluster::Cluster;

    fn deref(&self) -> &cluster::Cluster {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut cluster::Cluster {
        &mut self.0
    }
}

impl Cluster {
    pub fn new(nodes: u32, seed: u64) -> Self {
        Cluster::with(nodes, seed, RoleOptions::default())
    }

    pub fn with(nodes: u32, seed: u64, options: RoleOptions) -> Self {
        let assemble = move |core: &mut NodeCore, storage: StorageId| {
            let (env, options) = (core.env(), options.clone());
            core.add_role(LOG_SERVER, Box::new(LogServer::new(env.clone(), storage, options.server)));
            core.add_role(SEQUENCER, Box::new(Sequencer::new(env, options.sequencer)));
        };
        Cluster(cluster::Cluster::new(nodes, seed, assemble))
    }

    pub fn config(&self, servers: &[u32], sequencer: u32) -> NativeConfig {
        let servers = servers.iter().map(|n| (NodeId(*n), self.nodes[&NodeId(*n)].storage)).collect();
        let env = self.env(sequencer);
        NativeConfig::new(servers, (env.node(), env.incarnation())).unwrap()
    }

    pub fn provider(&self, at: u32) -> NativeProvider {
        self.provider_with(at, NativeOptions::default())
    }

    pub fn provider_with(&self, at: u32, options: NativeOptions) -> NativeProvider {
        NativeProvider::new(self.env(at), self.directory(), options)
    }

    pub fn open(&self, at: u32, id: u128, config: &NativeConfig) -> NativeLoglet {
        self.provider(at).open_native(LogletId(id), &config.to_bytes()).unwrap()
    }
}
