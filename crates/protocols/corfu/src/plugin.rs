//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Duties;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::client::ClientOptions;
use crate::provider::{CorfuProvider, KIND, duties};
use crate::roles::{SEQUENCER, UNIT};
use crate::{Sequencer, SequencerOptions, Unit, UnitOptions, message, mutants};

/// CORFU Loglets, with their settings.
#[derive(Clone, Debug, Default)]
pub struct CorfuPlugin {
    /// The options of handles.
    pub clients: ClientOptions,
    /// The options of units.
    pub units: UnitOptions,
    /// The options of sequencers.
    pub sequencers: SequencerOptions,
}

impl Protocol for CorfuPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![640..=679]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: UNIT, name: "corfu unit" }, RoleName { id: SEQUENCER, name: "corfu sequencer" }]
    }

    fn formats(&self) -> Vec<Format> {
        message::FORMATS.to_vec()
    }

    fn duties(&self, config: &Bytes) -> Duties {
        duties(config)
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

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.clients.step_bytes, value),
            "dedupe_spans" => set_to(&mut self.sequencers.remembered, value),
            "window_bytes" => set_to(&mut self.units.window_bytes, value),
            _ => false,
        }
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let env = &host.env;
        core.add_role(UNIT, Box::new(Unit::new(env.clone(), host.storage, self.units.clone())));
        core.add_role(SEQUENCER, Box::new(Sequencer::new(env.clone(), self.sequencers.clone())));
        let provider = CorfuProvider::new(env.clone(), host.directory.clone(), self.clients.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
