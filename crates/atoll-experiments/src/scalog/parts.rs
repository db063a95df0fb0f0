//! What nodes of these experiments are made of: the protocols' own plug-ins, installed as a node installs them.

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::cluster::{Cluster, Roster};
use atoll_contract::plugin::{Host, Protocol};
use atoll_contract::{Kinds, Loglet, LogletId, LogletProvider, PlanError, Registry};
use atoll_core::{BoxFuture, Candidate, Directory, NodeCore, NodeId, Notify, StorageId};
use atoll_corfu::CorfuPlugin;
use atoll_native::NativePlugin;
use atoll_scalog::ScalogPlugin;
use bytes::Bytes;

/// How long a shard of an emulation may stand still before an orderer ends it. Orderers look for such shards, as they always do, and find
/// none.
pub const NEVER_STUCK: Duration = Duration::from_secs(3600);

/// No plan is made, and no register is used, so nobody asks for members.
#[derive(Debug, Default)]
struct Nobody(Notify);

impl Directory for Nobody {
    fn candidates(&self) -> Vec<Candidate> {
        Vec::new()
    }
}

impl Cluster for Nobody {
    fn founders(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn roster(&self) -> Roster {
        Roster::default()
    }

    fn is_alive(&self, _: NodeId) -> bool {
        true
    }

    fn changed(&self) -> Notify {
        self.0.clone()
    }

    fn ask_members(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn reread_members(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(false))
    }
}

/// What a node can open. It must live as long as its node.
#[derive(Clone, Debug)]
pub struct Parts(Registry);

impl Parts {
    /// Adds the roles of native, CORFU and Scalog to a node.
    pub fn install(core: &mut NodeCore, storage: StorageId) -> Self {
        let host = Host {
            env: core.env(),
            storage,
            directory: Arc::new(Nobody::default()),
            cluster: Arc::new(Nobody::default()),
            kinds: Kinds::default(),
            look_every: Duration::from_secs(1),
        };
        let mut scalog = ScalogPlugin::default();
        scalog.orderers.stuck_after = NEVER_STUCK;
        let plugins: [Box<dyn Protocol>; 3] =
            [Box::new(NativePlugin::default()), Box::new(CorfuPlugin::default()), Box::new(scalog)];
        let installed = plugins.iter().filter_map(|plugin| plugin.install(core, &host).loglets);
        let registry = installed.fold(Registry::new(), Registry::with);
        host.kinds.fill(&registry);
        Parts(registry)
    }

    /// Returns a handle to a Loglet.
    pub fn open(&self, kind: &str, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        let provider: &Arc<dyn LogletProvider> = self.0.provider(kind)?;
        provider.open(id, config)
    }
}
