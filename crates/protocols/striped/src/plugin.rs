//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::PartLoglet;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Encode, Format, NodeCore};

use crate::config::{self, Mode, StripedConfig};
use crate::provider::KIND;
use crate::{StripedOptions, StripedProvider, mutants};

/// The configuration in the chain.
const FORMATS: &[Format] = &[Format::stored::<StripedConfig>("StripedConfig").like(|| {
    let stripe = || PartLoglet { kind: "native".to_owned(), config: Bytes::from_static(b"config") };
    StripedConfig { mode: Mode::Rotating, stripes: vec![stripe(), stripe()] }.to_bytes()
})];

/// Striped Loglets, with their settings. They have no roles and no messages: their stripes do everything.
#[derive(Clone, Debug, Default)]
pub struct StripedPlugin {
    /// The options of handles and of new Loglets.
    pub options: StripedOptions,
}

impl Protocol for StripedPlugin {
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

    fn parts(&self, config: &Bytes) -> Vec<PartLoglet> {
        config::parse(config).map_or_else(|_| Vec::new(), |config| config.stripes)
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
            "stripes" => set_to(&mut self.options.stripes, value),
            _ => false,
        }
    }

    fn install(&self, _core: &mut NodeCore, host: &Host) -> Installed {
        let provider = StripedProvider::new(host.env.clone(), host.kinds.clone(), self.options.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
