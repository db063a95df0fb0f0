//! Feeds the oracles that observe frames and disks. They share one lock, because one needs what another learns.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::testing::Chosen;
use atoll_contract::{LogPos, OpId};
use atoll_core::{Lsn, Record, StorageId};
use atoll_log::virtual_log::Segment;

use crate::oracle::chain::ChainOracle;
use crate::oracle::plugins::Plugins;
use crate::world::observer::{Found, Observer, OnWire, Violations, Who};

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Inner {
    /// The oracles of the protocols.
    pub plugins: Plugins,
    /// The oracle of chains.
    pub chain: ChainOracle,
    /// The last journal record of each disk that the oracles know to be durable.
    durable: BTreeMap<StorageId, Lsn>,
}

impl Inner {
    fn durable(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        if let Some((last, _)) = records.last() {
            self.durable.insert(who.storage, *last);
        }
        self.plugins.synced(&who.into(), records, verdict);
        for chosen in self.plugins.take_chosen() {
            self.chain.chosen(&chosen, &mut self.plugins, verdict);
        }
    }

    /// A register was written in a store outside of the cluster.
    pub fn chosen(&mut self, chosen: &Chosen, verdict: &mut Violations) {
        self.chain.chosen(chosen, &mut self.plugins, verdict);
    }

    /// A client was told that its append to a log is at this position.
    pub fn acknowledged(&mut self, log: &str, at: LogPos, op: OpId, verdict: &mut Violations) {
        let segments = self.chain.newest(log).into_iter().flat_map(|chain| chain.segments());
        let is_in = |s: &&Segment| s.start <= at && s.stop.is_none_or(|stop| at < stop);
        let place = segments.filter(is_in).map(|s| (s.kind.clone(), s.loglet, s.offset_of(at))).last();
        if let Some((kind, loglet, offset)) = place {
            self.plugins.acknowledged(&kind, loglet, offset, op, verdict);
        }
    }

    /// Returns how many changes of chains there were, and other reconfigurations that the protocols count.
    pub fn reconfigurations(&self) -> u64 {
        self.chain.extends() + self.plugins.reconfigurations()
    }
}

/// Cheap to clone. One clone is the world's observer; clients hold others.
#[derive(Clone, Debug, Default)]
pub struct WireOracle(Arc<Mutex<Inner>>);

impl WireOracle {
    /// Locks the oracles.
    pub fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for WireOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        self.lock().plugins.sent(wire.into(), verdict);
    }

    fn synced(&mut self, _at: u64, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        self.lock().durable(who, records, verdict);
    }

    fn booted(&mut self, _at: u64, who: &Who, found: &Found, verdict: &mut Violations) {
        let inner = &mut *self.lock();
        inner.plugins.booted(&who.into());
        // Records that were written but not synced may have survived. From now on they are on the disk.
        let seen = inner.durable.get(&who.storage).copied().unwrap_or(Lsn::NONE);
        let news = found.records.partition_point(|(lsn, _)| *lsn <= seen);
        inner.durable(who, &found.records[news..], verdict);
        for (role, state) in &found.checkpoint {
            inner.plugins.found(&who.into(), *role, state, verdict);
        }
    }

    fn finished(&mut self, _at: u64, verdict: &mut Violations) {
        self.lock().plugins.finished(verdict);
    }
}
