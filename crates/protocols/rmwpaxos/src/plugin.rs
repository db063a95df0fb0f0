//! The protocol as a plug-in.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::Versioned;
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_core::testing::{Listed, Mutant};
use atoll_core::{DecodeError, Format, NodeCore, RoleKind};

use crate::find_group::FindGroup;
use crate::keep_group::KeepGroup;
use crate::late::LateRegisters;
use crate::roles::ACCEPTOR;
use crate::{Acceptor, Options, RmwRegisters, message, mutants, remains};

/// RMWPaxos registers, with their settings.
#[derive(Clone, Debug, Default)]
pub struct RmwPlugin {
    /// The options of the proposers.
    pub proposers: Options,
}

impl Protocol for RmwPlugin {
    fn name(&self) -> &'static str {
        "rmwpaxos"
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        vec![200..=299]
    }

    fn roles(&self) -> &'static [RoleName] {
        &[RoleName { id: ACCEPTOR, name: "acceptor" }]
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

    fn registers_in(
        &self,
        role: RoleKind,
        checkpoint: Bytes,
    ) -> Result<BTreeMap<String, Versioned>, DecodeError> {
        if role == ACCEPTOR { remains::registers_in(checkpoint) } else { Ok(BTreeMap::new()) }
    }

    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed {
        let acceptor = Acceptor::new(host.env.node(), host.storage, None);
        let known = acceptor.known_group();
        core.add_role(ACCEPTOR, Box::new(acceptor));
        let registers = LateRegisters::default();
        let find = FindGroup {
            env: host.env.clone(),
            storage: host.storage,
            known: known.clone(),
            cluster: host.cluster.clone(),
        };
        let keep = KeepGroup {
            env: host.env.clone(),
            cluster: host.cluster.clone(),
            registers: registers.clone(),
            known,
            storage: host.storage,
            every: host.look_every,
        };
        let (settled, options) = (registers.clone(), self.proposers);
        let run = async move {
            let group = find.run().await;
            settled.settle(RmwRegisters::new(find.env.clone(), group, options));
            find.cluster.changed().notify();
            keep.run().await;
        };
        Installed {
            registers: Some(Arc::new(registers)),
            procedures: vec![("rmw.keep_group", Box::pin(run))],
            ..Installed::default()
        }
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}
