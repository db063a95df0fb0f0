//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Duties;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::provider::{KIND, duties};
use crate::roles::LOCAL_STORE;
use crate::{LocalOptions, LocalProvider, LocalStore, LocalStoreOptions, message, mutants};

/// LocalLoglets, with their settings.
#[derive(Clone, Debug, Default)]
pub struct LocalPlugin {
    /// The options of handles.
    pub handles: LocalOptions,
    /// The options of the store.
    pub store: LocalStoreOptions,
}

impl Protocol for LocalPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![300..=399]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: LOCAL_STORE, name: "local store" }]
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
            "dedupe_spans" => set_to(&mut self.store.dedupe_spans, value),
            "window_bytes" => set_to(&mut self.store.window_bytes, value),
            _ => false,
        }
    }

    /// Returns true for a standalone node, which then needs no sequencer and no quorum. Its logs can be extended to other kinds later.
    fn is_first_choice(&self, members: usize) -> bool {
        members <= 1
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let store = LocalStore::new(host.env.clone(), host.storage, self.store.clone());
        core.add_role(LOCAL_STORE, Box::new(store));
        let provider = LocalProvider::new(host.env.clone(), host.directory.clone(), self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
