//! prefixTrim and deletion (corfu §7).

use atoll_contract::{LogletError, Offset, Unavailability};
use atoll_core::Class;
use atoll_core::testing::hit;
use atoll_loglet_store::message::{Delete, Verdict as StoreVerdict};
use bytes::Bytes;

use super::{CorfuLoglet, loglet_error};
use crate::client::{Stop, nodes, refusal};
use crate::message::{TrimTo, Verdict};
use crate::projection::UnitId;
use crate::roles::{SEQUENCER, UNIT};

impl CorfuLoglet {
    /// Trims all units that answer. It is done once a unit of each chain has done it; one that was away keeps what is below until the next
    /// trim, or the deletion of the Loglet.
    pub(crate) async fn trim(&self, to: Offset) -> Result<(), LogletError> {
        let s = &self.0;
        if to == Offset::ZERO {
            return Ok(());
        }
        let stretch = s.open.projection.active();
        let mut calls = Vec::new();
        for (index, chain) in stretch.chains.iter().enumerate() {
            let addr = stretch.address_from(index, to.0);
            for unit in chain.units.iter().copied() {
                let (loglet, until) = (self.clone(), s.client.round_end());
                let one = async move { loglet.trim_unit(unit, addr, until).await };
                calls.push((index, s.client.env.launch("corfu.trim", one)));
            }
        }
        let mut done = vec![false; stretch.chains.len()];
        let mut failure = Stop::Unavailable(Unavailability::NoQuorum);
        for (index, call) in calls {
            match call.await {
                Ok(Ok(())) => done[index] = true,
                Ok(Err(stop)) => failure = if failure == Stop::Gone { failure } else { stop },
                Err(_) => {}
            }
        }
        match failure {
            Stop::Gone => Err(LogletError::Gone),
            _ if done.iter().all(|one| *one) => Ok(()),
            stop => Err(loglet_error(stop)),
        }
    }

    pub(super) async fn trim_unit(&self, unit: UnitId, to: u64, until: atoll_core::Tick) -> Result<(), Stop> {
        let s = &self.0;
        for view in [&s.open, &s.closed] {
            let request = TrimTo { log: s.client.log, config: Bytes::new(), epoch: view.epoch(), to };
            match s.client.ask(view, unit, request, until).await?.verdict {
                Verdict::Done {} => return Ok(()),
                Verdict::Sealed {} => hit("corfu.trim.sealed"),
                verdict => return Err(refusal(&verdict)),
            }
        }
        Err(Stop::Sealed)
    }

    /// Deletes the Loglet on all units that answer. Tombstones are durable on a unit of each chain at least when this returns, so no append
    /// can succeed any more. A unit that was away learns of it later, when its node finds a Loglet that no chain names.
    pub(crate) async fn delete(&self) -> Result<(), LogletError> {
        let s = &self.0;
        let until = s.client.op_end();
        let (sequencer, _) = s.open.projection.sequencer;
        s.client.env.post(sequencer, Class::Control, SEQUENCER, Delete { loglet: s.client.log });
        let units = s.open.projection.units();
        loop {
            let request = Delete { loglet: s.client.log };
            let replies = s
                .client
                .env
                .gather_role(&nodes(&units), UNIT, request, s.client.round_end(), |_| false)
                .await;
            let done: Vec<_> = replies
                .ok()
                .filter(|(_, a)| a.verdict == (StoreVerdict::Done {}))
                .map(|(node, _)| node)
                .collect();
            let chains = &s.open.projection.active().chains;
            if chains.iter().all(|chain| chain.units.iter().any(|unit| done.contains(&unit.0))) {
                return Ok(());
            }
            if !s.client.pause(until).await {
                return Err(LogletError::Unavailable(Unavailability::NoQuorum));
            }
        }
    }
}
