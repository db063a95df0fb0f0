//! Checks vlog-VL8 from outside the nodes: if a reconfigurer dies, another node completes its reconfiguration.
//!
//! The oracle sees which nodes are up, the seal bits on disks, and the chains that the registers choose. If the active Loglet of the newest
//! chain is sealed on a server that is up, somebody has started a reconfiguration. While majorities of its servers and of the acceptors are
//! up, it must be completed soon. The oracle does not see the network, so scenarios that use it must not cut links.

use std::collections::{BTreeMap, BTreeSet};

use atoll_contract::LogletId;
use atoll_core::testing::hit;
use atoll_core::{Lsn, NodeId, Record};

use crate::oracle::wire::WireOracle;
use crate::world::observer::{Found, Observer, OnWire, Violations, Who};

/// How long a reconfiguration may stay incomplete, counted from the last start or death of a node. With the timings of the scenarios,
/// detection and one roll forward take about a second. The rest is for proposers that outbid each other.
const WITHIN_NS: u64 = 10_000_000_000;
/// How often the oracle checks, in virtual time.
const LOOK_EVERY_NS: u64 = 50_000_000;

/// See the module documentation.
#[derive(Debug)]
pub struct CompletionOracle {
    wire: WireOracle,
    up: BTreeSet<NodeId>,
    /// When a node last started or died.
    quiet_since: u64,
    /// By log, the incomplete reconfiguration: the sealed active Loglet, and since when.
    begun: BTreeMap<String, (LogletId, u64)>,
    next_look: u64,
}

impl CompletionOracle {
    /// Creates an oracle that uses what `wire` sees.
    pub fn new(wire: WireOracle) -> Self {
        CompletionOracle { wire, up: BTreeSet::new(), quiet_since: 0, begun: BTreeMap::new(), next_look: 0 }
    }

    fn is_majority_up(&self, nodes: &[NodeId]) -> bool {
        nodes.iter().filter(|n| self.up.contains(n)).count() * 2 > nodes.len()
    }

    fn look(&mut self, at: u64, verdict: &mut Violations) {
        if at < self.next_look {
            return;
        }
        self.next_look = at + LOOK_EVERY_NS;
        let wire = self.wire.clone();
        let inner = wire.lock();
        let acceptors: Vec<NodeId> =
            inner.plugins.newest_group().iter().flat_map(|g| g.members.iter().map(|m| m.node)).collect();
        for (name, chain) in inner.chain.newest_of_all() {
            let Some(last) = chain.segments().last() else { continue };
            let active = last.loglet;
            let sealed = inner.plugins.sealed_on(&last.kind, active);
            if !sealed.iter().any(|node| self.up.contains(node)) {
                if self.begun.remove(name).is_some_and(|(begun, _)| begun != active) {
                    hit("sim.vl8.completed");
                }
                continue;
            }
            let since = match self.begun.get(name) {
                Some((loglet, since)) if *loglet == active => *since,
                _ => at,
            };
            self.begun.insert(name.to_owned(), (active, since));
            let servers = inner.chain.serving(name).map_or(Vec::new(), |(servers, _)| servers);
            let could = self.is_majority_up(&servers) && self.is_majority_up(&acceptors);
            let waited = at - since.max(self.quiet_since);
            if could && waited > WITHIN_NS {
                verdict.fail(format!(
                    "vlog-VL8 not completed: {name}: loglet {active} is active and sealed on {sealed:?}; for {} ms nobody has died, and \
                     majorities of {servers:?} and {acceptors:?} are up: {:?}",
                    waited / 1_000_000,
                    self.up
                ));
            }
        }
    }
}

impl Observer for CompletionOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        self.look(wire.at, verdict);
    }

    fn synced(&mut self, at: u64, _who: &Who, _records: &[(Lsn, Record)], verdict: &mut Violations) {
        self.look(at, verdict);
    }

    fn booted(&mut self, at: u64, who: &Who, _found: &Found, _verdict: &mut Violations) {
        self.up.insert(who.node);
        self.quiet_since = at;
    }

    fn died(&mut self, at: u64, who: &Who, _verdict: &mut Violations) {
        self.up.remove(&who.node);
        self.quiet_since = at;
    }
}
