//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Format, NodeCore};

use crate::layout::{BucketNode, TailNode, TrimNode};
use crate::provider::KIND;
use crate::{ZooKeeperConfig, ZooKeeperOptions, ZooKeeperProvider, mutants};

/// The configuration in the chain, and the data of znodes.
const FORMATS: &[Format] = &[
    Format::stored::<ZooKeeperConfig>("ZooKeeperConfig")
        .like(|| ZooKeeperConfig { connect: "host:2181".to_owned(), root: "/atoll".to_owned() }.to_bytes()),
    Format::stored::<TailNode>("TailNode"),
    Format::stored::<TrimNode>("TrimNode"),
    Format::stored::<BucketNode>("BucketNode"),
];

/// Loglets in ZooKeeper, with their settings. They have no roles and no messages: the ensemble does everything.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperPlugin {
    /// The options of handles.
    pub handles: ZooKeeperOptions,
}

impl Protocol for ZooKeeperPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        Vec::new()
    }

    fn roles(&self) -> &'static [RoleName] {
        &[]
    }

    fn formats(&self) -> Vec<Format> {
        FORMATS.to_vec()
    }

    fn mutants(&self) -> &'static [Mutant] {
        mutants::ALL
    }

    fn coverage(&self) -> &'static [Listed] {
        &[]
    }

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.handles.step_bytes, value),
            "window_bytes" => set_to(&mut self.handles.window_bytes, value),
            _ => false,
        }
    }

    fn install(&self, _core: &mut NodeCore, host: &Host) -> Installed {
        let provider = ZooKeeperProvider::new(host.env.clone(), self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
