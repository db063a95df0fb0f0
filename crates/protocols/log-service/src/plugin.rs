//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Format, NodeCore};

use crate::config::LogServiceConfig;
use crate::mutants;
use crate::provider::KIND;
use crate::{LogServiceOptions, LogServiceProvider};

/// The configuration in the chain.
const FORMATS: &[Format] = &[Format::stored::<LogServiceConfig>("LogServiceConfig").like(|| {
    let (servers, prefix) = ("host:4222".to_owned(), "atoll".to_owned());
    LogServiceConfig { servers, prefix, token: 1, replicas: 3 }.to_bytes()
})];

/// Loglets in a log service, with their settings. They have no roles and no messages: the service does everything.
#[derive(Clone, Debug, Default)]
pub struct LogServicePlugin {
    /// The options of handles.
    pub options: LogServiceOptions,
    /// The service of all nodes that get this value or a copy of it.
    #[cfg(feature = "testing")]
    pub memory: crate::testing::Memory,
}

impl LogServicePlugin {
    #[cfg(not(feature = "testing"))]
    fn provider(&self, host: &Host) -> LogServiceProvider {
        LogServiceProvider::new(host.env.clone(), self.options.clone())
    }

    /// In tests, a service in memory is possible, too.
    #[cfg(feature = "testing")]
    fn provider(&self, host: &Host) -> LogServiceProvider {
        let (memory, timeout) = (self.memory.of(&host.env), self.options.request_timeout);
        let services = crate::nats::Services::default();
        LogServiceProvider::over(host.env.clone(), self.options.clone(), move |servers| match servers {
            crate::config::MEMORY => memory.clone(),
            real => services.service(real, timeout),
        })
    }
}

impl Protocol for LogServicePlugin {
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

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => set_to(&mut self.options.step_bytes, value),
            "dedupe_spans" => set_to(&mut self.options.dedupe_spans, value),
            "window_bytes" => set_to(&mut self.options.window_bytes, value),
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
