//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_core::NodeCore;

use crate::provider::KIND;
use crate::roles::LOCAL_STORE;
use crate::{LocalOptions, LocalProvider, LocalStore, LocalStoreOptions};

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

    /// Returns true for a standalone node, which then needs no sequencer and no quorum. Its logs can be extended to other kinds later.
    fn is_first_choice(&self, members: usize) -> bool {
        members <= 1
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let store = LocalStore::new(host.env.clone(), host.storage, self.store.clone());
        core.add_role(LOCAL_STORE, Box::new(store));
        let provider = LocalProvider::new(host.env.clone(), host.directory.clone(), self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), procedures: Vec::new() }
    }
}
