//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Duties;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::provider::{KIND, duties};
use crate::roles::{LOG_SERVER, SEQUENCER};
use crate::{
    LogServer, LogServerOptions, NativeOptions, NativeProvider, Sequencer, SequencerOptions, message, mutants,
};

/// NativeLoglets, with their settings.
#[derive(Clone, Debug, Default)]
pub struct NativePlugin {
    /// The options of handles.
    pub handles: NativeOptions,
    /// The options of the LogServer.
    pub server: LogServerOptions,
    /// The options of the sequencer.
    pub sequencer: SequencerOptions,
}

impl Protocol for NativePlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![100..=199]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: LOG_SERVER, name: "LogServer" }, RoleName { id: SEQUENCER, name: "sequencer" }]
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
            "step_bytes" => set_to(&mut self.handles.step_bytes, value),
            "replicas" => set_to(&mut self.handles.replicas, value),
            "dedupe_spans" => set_to(&mut self.sequencer.dedupe_spans, value),
            "window_bytes" => set_to(&mut self.sequencer.window_bytes, value),
            _ => false,
        }
    }

    /// Returns true for several members, because a majority of several servers survives the loss of one.
    fn is_first_choice(&self, members: usize) -> bool {
        members > 1
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let env = &host.env;
        let server = LogServer::new(env.clone(), host.storage, self.server.clone());
        core.add_role(LOG_SERVER, Box::new(server));
        core.add_role(SEQUENCER, Box::new(Sequencer::new(env.clone(), self.sequencer.clone())));
        let provider = NativeProvider::new(env.clone(), host.directory.clone(), self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
