//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::provider::ENGINE;
use crate::roles::REPLICA;
use crate::{BizurNode, BizurProvider, ClientOptions, NodeOptions, message, mutants};

/// Keyspaces on Bizur, with their settings.
#[derive(Clone, Debug, Default)]
pub struct BizurPlugin {
    /// The options of clients.
    pub clients: ClientOptions,
    /// The options of nodes.
    pub node: NodeOptions,
}

impl Protocol for BizurPlugin {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![1200..=1299]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: REPLICA, name: "replica of keyspaces" }]
    }

    fn formats(&self) -> Vec<Format> {
        message::FORMATS.to_vec()
    }

    fn mutants(&self) -> &'static [Mutant] {
        mutants::ALL
    }

    fn coverage(&self) -> &'static [Listed] {
        mutants::COVERAGE
    }

    #[cfg(feature = "testing")]
    fn oracle(&self) -> Option<Box<dyn atoll_contract::testing::Oracle>> {
        Some(crate::testing::oracle())
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let node = BizurNode::new(host.env.clone(), host.storage, self.node.clone());
        core.add_role(REPLICA, Box::new(node));
        let provider = BizurProvider::new(host.env.clone(), host.directory.clone(), self.clients);
        Installed { keyspaces: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
