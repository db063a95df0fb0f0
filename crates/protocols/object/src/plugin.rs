//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Format, NodeCore};

use crate::config::ObjectConfig;
use crate::mutants;
use crate::provider::KIND;
use crate::{ObjectOptions, ObjectProvider};

/// The configuration in the chain.
const FORMATS: &[Format] = &[Format::stored::<ObjectConfig>("ObjectConfig")
    .like(|| ObjectConfig::at("s3://bucket/prefix", 1).to_bytes())];

/// ObjectLoglets, with their settings. They have no roles and no messages: every node works on the objects itself.
#[derive(Clone, Debug, Default)]
pub struct ObjectPlugin {
    /// The options of handles.
    pub options: ObjectOptions,
    /// The store of all nodes that get this value or a copy of it.
    #[cfg(feature = "testing")]
    pub memory: crate::testing::Memory,
}

impl ObjectPlugin {
    #[cfg(not(feature = "testing"))]
    fn provider(&self, host: &Host) -> ObjectProvider {
        ObjectProvider::new(host.env.clone(), self.options.clone())
    }

    /// In tests, a location in memory is possible, too.
    #[cfg(feature = "testing")]
    fn provider(&self, host: &Host) -> ObjectProvider {
        ObjectProvider::with_memory(host.env.clone(), self.options.clone(), self.memory.of(&host.env))
    }
}

impl Protocol for ObjectPlugin {
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
        mutants::COVERAGE
    }

    fn duties(&self, _config: &Bytes) -> atoll_contract::Duties {
        atoll_contract::Duties::default()
    }

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.options.step_bytes, value),
            "dedupe_spans" => set_to(&mut self.options.dedupe_spans, value),
            "window_bytes" => set_to(&mut self.options.window_bytes, value),
            "interval_ms" => set_to(&mut self.options.interval_ms, value),
            "block_objects" => set_to(&mut self.options.block_objects, value),
            #[cfg(feature = "testing")]
            fault => self.memory.faults.set_one(fault, value),
            #[cfg(not(feature = "testing"))]
            _ => false,
        }
    }

    fn install(&self, _core: &mut NodeCore, host: &Host) -> Installed {
        Installed { loglets: Some(Arc::new(self.provider(host))), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
