//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::roles::ACCEPTOR;
use crate::{Acceptor, AcceptorOptions, ENGINE, InPlaceProvider, Options, message, mutants};

/// Keyspaces in place, with their settings.
#[derive(Clone, Debug, Default)]
pub struct InPlacePlugin {
    /// The options of nodes that use keyspaces.
    pub options: Options,
    /// The options of acceptors.
    pub acceptor: AcceptorOptions,
}

impl Protocol for InPlacePlugin {
    fn name(&self) -> &'static str {
        ENGINE
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![1300..=1399]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: ACCEPTOR, name: "acceptor of keys" }]
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
        core.add_role(ACCEPTOR, Box::new(Acceptor::new(host.env.clone(), host.storage, self.acceptor)));
        let provider = InPlaceProvider::new(host.env.clone(), host.directory.clone(), self.options);
        Installed { keyspaces: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
