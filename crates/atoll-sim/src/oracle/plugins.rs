//! The oracles that the protocols bring along. The simulator names none of them: it takes them from the list of protocols, and shows each
//! of them all messages of protocols and all records: protocols share some messages, and each oracle picks those that are its own.

use std::ops::RangeInclusive;

use atoll_contract::plugin::{Protocol, Protocols};
use atoll_contract::testing::{Chosen, Group, OnWire, Oracle, Violations, Who};
use atoll_contract::{LogletId, Offset, OpId, PartLoglet};
use atoll_core::{Lsn, NodeId, Record, RoleKind};
use bytes::Bytes;

#[derive(Debug)]
struct Plugin {
    /// The name of the protocol, which is also the kind of its Loglets.
    name: &'static str,
    /// The numbers of its messages, and of the replies to them.
    wire_ids: Vec<RangeInclusive<u16>>,
    oracle: Box<dyn Oracle>,
}

impl Plugin {
    fn of(protocol: &dyn Protocol) -> Option<Self> {
        Some(Plugin { name: protocol.name(), wire_ids: protocol.wire_ids(), oracle: protocol.oracle()? })
    }
}

/// See the module documentation.
#[derive(Debug)]
pub struct Plugins {
    all: Vec<Plugin>,
    protocols: Protocols,
}

impl Default for Plugins {
    fn default() -> Self {
        Plugins::new(&atoll_protocols::all())
    }
}

impl Plugins {
    /// Creates the oracles of these protocols.
    pub fn new(protocols: &Protocols) -> Self {
        let mut plugins: Vec<Plugin> = protocols.iter().filter_map(Plugin::of).collect();
        // Several oracles may report a violation in one batch of records. Which one is first must not depend on the order of the list.
        plugins.sort_by_key(|plugin| plugin.wire_ids.iter().map(|ids| *ids.start()).min());
        Plugins { all: plugins, protocols: protocols.clone() }
    }

    /// Returns what a Loglet of this kind is made of.
    fn parts(&self, kind: &str, config: &Bytes) -> Vec<PartLoglet> {
        let protocol = self.protocols.iter().find(|protocol| protocol.name() == kind);
        protocol.map_or(Vec::new(), |protocol| protocol.parts(config))
    }

    fn of_kind(&mut self, kind: &str) -> Option<&mut Plugin> {
        self.all.iter_mut().find(|plugin| plugin.name == kind)
    }

    /// A node has started.
    pub fn booted(&mut self, who: &Who) {
        for plugin in &mut self.all {
            plugin.oracle.booted(who);
        }
    }

    /// A frame leaves a node.
    pub fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        let kind = wire.frame().kind;
        let owns = |plugin: &Plugin| plugin.wire_ids.iter().any(|ids| ids.contains(&kind));
        if self.all.iter().any(owns) {
            self.all.iter_mut().for_each(|plugin| plugin.oracle.sent(wire, verdict));
        }
    }

    /// Journal records became durable.
    pub fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for plugin in &mut self.all {
            plugin.oracle.synced(who, records, verdict);
        }
    }

    /// A node found a part of a checkpoint on its disk.
    pub fn found(&mut self, who: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        for plugin in &mut self.all {
            plugin.oracle.found(who, role, state, verdict);
        }
    }

    /// The run is over.
    pub fn finished(&mut self, verdict: &mut Violations) {
        for plugin in &mut self.all {
            plugin.oracle.finished(verdict);
        }
    }

    /// A chain contains a Loglet of this kind.
    pub fn chained(&mut self, kind: &str, loglet: LogletId, config: &Bytes) {
        if let Some(plugin) = self.of_kind(kind) {
            plugin.oracle.chained(loglet, config);
        }
        let parts = self.parts(kind, config);
        for (number, part) in (1..).zip(parts) {
            self.chained(&part.kind, loglet.part(number), &part.config);
        }
    }

    /// A client was told the tail of a Loglet of this kind.
    pub fn tail_reported(
        &mut self,
        kind: &str,
        loglet: LogletId,
        at: Offset,
        sealed: bool,
        verdict: &mut Violations,
    ) {
        if let Some(plugin) = self.of_kind(kind) {
            plugin.oracle.tail_reported(loglet, at, sealed, verdict);
        }
    }

    /// A client was told that an entry is at an offset of a Loglet of this kind.
    pub fn acknowledged(
        &mut self,
        kind: &str,
        loglet: LogletId,
        at: Offset,
        op: OpId,
        verdict: &mut Violations,
    ) {
        if let Some(plugin) = self.of_kind(kind) {
            plugin.oracle.acknowledged(loglet, at, op, verdict);
        }
    }

    /// A stop of a Loglet of this kind was installed in a chain.
    pub fn installed(&mut self, kind: &str, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        if let Some(plugin) = self.of_kind(kind) {
            plugin.oracle.installed(loglet, stop, verdict);
        }
    }

    /// Returns the nodes on whose disks a Loglet of this kind is sealed. Empty if no oracle knows the kind.
    pub fn sealed_on(&self, kind: &str, loglet: LogletId) -> Vec<NodeId> {
        let plugin = self.all.iter().find(|plugin| plugin.name == kind);
        plugin.map_or(Vec::new(), |plugin| plugin.oracle.sealed_on(loglet))
    }

    /// Takes the versions of registers that were chosen since the last call. Those of one register are in rising order.
    pub fn take_chosen(&mut self) -> Vec<Chosen> {
        self.all.iter_mut().flat_map(|plugin| plugin.oracle.take_chosen()).collect()
    }

    /// Returns the newest group of nodes that hold registers, according to the synced records.
    pub fn newest_group(&self) -> Option<Group> {
        self.all.iter().find_map(|plugin| plugin.oracle.group())
    }

    /// Returns whether a hand-over of the registers is in progress.
    pub fn is_handing_over(&self) -> bool {
        self.all.iter().any(|plugin| plugin.oracle.is_handing_over())
    }

    /// Returns whether somebody has at least proposed a hand-over. It may be chosen at any time, and then cannot be undone.
    pub fn may_be_handing_over(&self) -> bool {
        self.all.iter().any(|plugin| plugin.oracle.may_be_handing_over())
    }

    /// Returns how many reconfigurations there were that no chain shows.
    pub fn reconfigurations(&self) -> u64 {
        self.all.iter().map(|plugin| plugin.oracle.reconfigurations()).sum()
    }
}
