//! The protocol as a plug-in.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Duties;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName, set_to};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{Format, NodeCore};

use crate::provider::{KIND, duties};
use crate::roles::{CLERK, MIRROR, STORE};
use crate::{Clerk, ClerkOptions, Holder, HolderOptions, Side, TrioOptions, TrioProvider, message, mutants};

/// Trio loglets, with their settings.
#[derive(Clone, Debug, Default)]
pub struct TrioPlugin {
    /// The options of handles.
    pub handles: TrioOptions,
    /// The options of the clerk.
    pub clerk: ClerkOptions,
    /// The options of the store and the mirror.
    pub holders: HolderOptions,
}

impl Protocol for TrioPlugin {
    fn name(&self) -> &'static str {
        KIND
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![600..=619]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[
            RoleName { id: CLERK, name: "trio clerk" },
            RoleName { id: STORE, name: "trio store" },
            RoleName { id: MIRROR, name: "trio mirror" },
        ]
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

    fn set(&mut self, setting: &str, value: u64) -> bool {
        match setting {
            "step_bytes" => {
                set_to(&mut self.handles.step_bytes, value) && set_to(&mut self.holders.step_bytes, value)
            }
            "dedupe_spans" => set_to(&mut self.holders.dedupe_spans, value),
            "window_bytes" => {
                set_to(&mut self.clerk.window_bytes, value) && set_to(&mut self.holders.window_bytes, value)
            }
            _ => false,
        }
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let env = &host.env;
        core.add_role(CLERK, Box::new(Clerk::new(env.clone(), self.clerk.clone())));
        for (role, side) in [(STORE, Side::Store), (MIRROR, Side::Mirror)] {
            let holder = Holder::new(side, env.clone(), host.storage, self.holders.clone());
            core.add_role(role, Box::new(holder));
        }
        let provider = TrioProvider::new(env.clone(), host.directory.clone(), self.handles.clone());
        Installed { loglets: Some(Arc::new(provider)), ..Installed::default() }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
