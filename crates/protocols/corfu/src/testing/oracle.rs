//! Checks CORFU Loglets from outside the nodes, using only frames and synced journal records. Of the protocol, the oracle uses only the
//! messages, the records and the projection.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | corfu-K1 | an address of a data directory never gets a second content |
//! | corfu-K2 | the units of a chain have the same data at an address |
//! | corfu-K3, vlog-L3 | what is on all units of a chain before their seals is below every sealed tail that is returned and every stop that is installed |
//! | corfu-C4, corfu-C12 | every position that a sequencer hands out is below the next one that it reports |
//! | vlog-L4 | no open tail is above a sealed one |
//! | corfu-K6 | no unit serves a request of an epoch below the one that was on its disk when the request was sent; epochs on a disk never fall |
//! | corfu-K8, corfu-C12 | everything below an open tail is on the tails of the chains |
//! | corfu-C16 | data is kept only in data directories that the projection names |
//! | vlog-VL1 | a stop is installed only if a unit of each chain is sealed |
//! | vlog-VL10 | after a tombstone, the disk stores nothing more of that Loglet |

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_contract::testing::{OnWire, Oracle, Violations, Who, digest};
use atoll_contract::{LogletId, Offset};
use atoll_core::{
    Decode, Exchange, Frame, Lsn, Message, NodeId, Reader, Record, RecordKind, RoleKind, StorageId,
};

use crate::intervals::Intervals;
use crate::message as msg;
use crate::projection::{Chain, Projection};
use crate::roles::UNIT;
use crate::unit::facts::{CellHead, Fact, Saved};

/// What is on one data directory of one Loglet.
#[derive(Debug, Default)]
struct Directory {
    epoch: u64,
    tombstone: bool,
    /// Everything that is not unwritten.
    written: Intervals,
    /// Data that came before the seal.
    early: Intervals,
    /// Digests of the data, by first address.
    cells: BTreeMap<u64, u64>,
}

#[derive(Debug, Default)]
struct Ghost {
    projection: Option<Projection>,
    chained: bool,
    open_tail: u64,
    sealed_tail: Option<u64>,
    directories: BTreeMap<StorageId, Directory>,
}

/// A request in flight: sender, its life, receiver, number.
type Request = (NodeId, u64, NodeId, u64);

/// All CORFU Loglets of a run.
#[derive(Debug, Default)]
pub(super) struct CorfuOracle {
    loglets: BTreeMap<LogletId, Ghost>,
    /// The epoch of each request, and the epoch that was on the disk of the receiver when it was sent.
    asked: BTreeMap<Request, (LogletId, u64, u64)>,
    storages: BTreeMap<NodeId, StorageId>,
}

impl Oracle for CorfuOracle {
    fn booted(&mut self, who: &Who) {
        self.storages.insert(who.node, who.storage);
    }

    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        match wire.envelope.exchange {
            Exchange::Request(number) => {
                let key = (wire.from.node, wire.from.life, wire.to, number);
                let Some((log, epoch)) = asked_epoch(wire.frame()) else { return };
                let Some(storage) = self.storages.get(&wire.to) else { return };
                let directory = self.loglets.get(&log).and_then(|ghost| ghost.directories.get(storage));
                self.asked.insert(key, (log, epoch, directory.map_or(0, |d| d.epoch)));
            }
            Exchange::Reply(number) => {
                check_grants(wire.from.node, wire.frame(), verdict);
                let key = (wire.to, wire.to_life.unwrap_or(0), wire.from.node, number);
                let Some((log, epoch, durable)) = self.asked.remove(&key) else { return };
                if epoch < durable && is_served(wire.frame()) {
                    verdict.fail(format!(
                        "corfu-K6 served in another epoch: loglet {log}: node {} serves epoch {epoch}, epoch {durable} is on its disk",
                        wire.from.node
                    ));
                }
            }
            Exchange::Post => {}
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == UNIT) {
            let read = match record.kind {
                RecordKind::Entry => self.synced_cell(who, record, verdict),
                RecordKind::Fact => self.synced_fact(who, record, verdict),
            };
            if read.is_none() {
                verdict.fail("HARNESS: a record of a storage unit does not decode as the oracle knows it");
            }
        }
    }

    fn found(&mut self, who: &Who, role: RoleKind, state: &Bytes, verdict: &mut Violations) {
        if role == UNIT && !state.is_empty() && self.found_facts(who, state).is_none() {
            verdict.fail("HARNESS: a checkpoint of a storage unit does not decode as the oracle knows it");
        }
    }

    fn chained(&mut self, loglet: LogletId, config: &Bytes) {
        self.learn(loglet, config);
        self.loglets.entry(loglet).or_default().chained = true;
    }

    fn tail_reported(&mut self, loglet: LogletId, at: Offset, sealed: bool, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get_mut(&loglet) else { return };
        ghost.orders_tails(loglet, at.0, sealed, verdict);
        if sealed {
            ghost.covers_acks(loglet, at, "sealed tail", verdict);
        } else {
            ghost.is_complete(loglet, at, verdict);
        }
    }

    fn installed(&mut self, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        let Some(ghost) = self.loglets.get(&loglet) else { return };
        if !ghost.is_sealed() {
            verdict.fail(format!(
                "vlog-VL1 installed without seal: loglet {loglet}: a stop at {stop} is in the chain, and a chain of units has no sealed one"
            ));
        }
        ghost.covers_acks(loglet, stop, "stop", verdict);
    }

    fn sealed_on(&self, loglet: LogletId) -> Vec<NodeId> {
        let Some((ghost, projection)) =
            self.loglets.get(&loglet).and_then(|g| Some((g, g.projection.as_ref()?)))
        else {
            return Vec::new();
        };
        let sealed = |s: &StorageId| ghost.directories.get(s).is_some_and(|d| d.epoch > 1);
        projection.units().into_iter().filter(|(_, s)| sealed(s)).map(|(node, _)| node).collect()
    }

    fn reconfigurations(&self) -> u64 {
        self.loglets.values().filter(|ghost| !ghost.chained && ghost.is_sealed()).count() as u64
    }
}

/// Returns the Loglet and the epoch of a request to a unit that is served in one epoch only.
fn asked_epoch(frame: &Frame) -> Option<(LogletId, u64)> {
    macro_rules! epoch_of {
        ($($type:ty),*) => {
            match frame.kind {
                $(<$type>::KIND => {
                    let m = <$type>::from_frame(frame.clone()).ok()?;
                    Some((m.log, m.epoch))
                })*
                _ => None,
            }
        };
    }
    epoch_of!(msg::Write, msg::Fill, msg::Erase, msg::TrimTo, msg::Probe, msg::Look)
}

fn is_served(frame: &Frame) -> bool {
    let verdict = match frame.kind {
        msg::UnitAnswer::KIND => msg::UnitAnswer::from_frame(frame.clone()).ok().map(|m| m.verdict),
        msg::Seen::KIND => msg::Seen::from_frame(frame.clone()).ok().map(|m| m.verdict),
        _ => None,
    };
    verdict == Some(msg::Verdict::Done {})
}

/// Checks that a sequencer counts what it hands out.
fn check_grants(node: NodeId, frame: &Frame, verdict: &mut Violations) {
    if frame.kind != msg::Grants::KIND {
        return;
    }
    let Ok(msg::Grants { grant: msg::Grant::Granted { runs }, next, .. }) =
        msg::Grants::from_frame(frame.clone())
    else {
        return;
    };
    if let Some(run) = runs.iter().find(|run| run.first + u64::from(run.count) > next) {
        verdict.fail(format!(
            "corfu-C4 handed out uncounted: node {node} hands out {} positions from {} on, and {next} is its next one",
            run.count, run.first
        ));
    }
}

impl Ghost {
    fn orders_tails(&mut self, loglet: LogletId, at: u64, sealed: bool, verdict: &mut Violations) {
        if sealed {
            self.sealed_tail = Some(self.sealed_tail.map_or(at, |tail| tail.min(at)));
        } else {
            self.open_tail = self.open_tail.max(at);
        }
        if let Some(end) = self.sealed_tail.filter(|end| *end < self.open_tail) {
            let open = self.open_tail;
            verdict
                .fail(format!("vlog-L4 open above a sealed tail: loglet {loglet}: {open}, sealed at {end}"));
        }
    }

    fn chains(&self) -> impl Iterator<Item = (usize, &Chain)> {
        self.projection.iter().flat_map(|p| p.active().chains.iter().enumerate())
    }

    fn is_sealed(&self) -> bool {
        let sealed = |s: &StorageId| self.directories.get(s).is_some_and(|d| d.epoch > 1);
        self.projection.is_some()
            && self.chains().all(|(_, chain)| chain.units.iter().any(|(_, s)| sealed(s)))
    }

    /// Checks that what was on all units of a chain before they were sealed is below the end: its writer may have been told so.
    fn covers_acks(&self, loglet: LogletId, end: Offset, what: &str, verdict: &mut Violations) {
        let Some(projection) = &self.projection else { return };
        for (index, chain) in self.chains() {
            let early = chain.units.iter().map(|(_, s)| self.directories.get(s).map(|d| &d.early));
            let Some(early) = early.collect::<Option<Vec<_>>>() else { continue };
            let Some(addr) = last_common(&early) else { continue };
            let at = projection.active().position_at(index, addr);
            if at >= end.0 {
                verdict.fail(format!(
                    "corfu-K3 end below a complete entry: loglet {loglet}: {what} {end}, and {at} was on all units of its chain before the seal"
                ));
            }
        }
    }

    /// Checks that everything below an open tail is on the tails of the chains.
    fn is_complete(&self, loglet: LogletId, end: Offset, verdict: &mut Violations) {
        let Some(projection) = &self.projection else { return };
        for (index, chain) in self.chains() {
            let Some((_, tail)) = chain.units.last() else { continue };
            let missing =
                self.directories.get(tail).map_or(chain.base, |d| d.written.first_missing(chain.base));
            if missing < projection.active().address_from(index, end.0) {
                let at = projection.active().position_at(index, missing);
                verdict.fail(format!(
                    "corfu-K8 open tail above a hole: loglet {loglet}: a tail of {end} was told, and {at} is not on the tail of its chain"
                ));
            }
        }
    }
}

/// Returns the highest number that is in all sets.
fn last_common(sets: &[&Intervals]) -> Option<u64> {
    let mut below = sets.iter().map(|set| set.end()).min()?;
    while below > 0 {
        let at = below - 1;
        let next = sets.iter().map(|set| set.within(0..below).last().map_or(0, |part| part.end)).min()?;
        if next == below {
            return Some(at);
        }
        below = next;
    }
    None
}

impl CorfuOracle {
    fn learn(&mut self, loglet: LogletId, config: &Bytes) {
        let ghost = self.loglets.entry(loglet).or_default();
        if ghost.projection.is_none() && !config.is_empty() {
            ghost.projection = Projection::from_bytes(config.clone()).ok();
        }
    }

    fn directory(&mut self, who: &Who, loglet: LogletId) -> &mut Directory {
        self.loglets.entry(loglet).or_default().directories.entry(who.storage).or_default()
    }

    fn synced_cell(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let head = CellHead::from_bytes(record.head.clone()).ok()?;
        let (log, first, end) = (head.log, head.first, head.first + u64::from(head.count));
        let node = who.node;
        let content = digest(&record.payload);
        let ghost = self.loglets.entry(log).or_default();
        let named = ghost.projection.as_ref().map(|p| p.units().contains(&(who.node, who.storage)));
        if named == Some(false) {
            verdict.fail(format!(
                "corfu-C16 foreign disk: node {node} keeps data of loglet {log} in a data directory that it does not name"
            ));
        }
        // The other units of the chain.
        let chain = ghost.chains().find(|(_, c)| c.units.iter().any(|(_, s)| *s == who.storage));
        let others: Vec<StorageId> =
            chain.map(|(_, c)| c.units.iter().map(|(_, s)| *s).collect()).unwrap_or_default();
        for other in others {
            let theirs = ghost.directories.get(&other).and_then(|d| d.cells.get(&first));
            if theirs.is_some_and(|theirs| *theirs != content) {
                verdict.fail(format!(
                    "corfu-K2 two contents: loglet {log}: address {first} of the chain of node {node}"
                ));
            }
        }
        let directory = ghost.directories.entry(who.storage).or_default();
        if directory.tombstone {
            verdict
                .fail(format!("vlog-VL10 revived: loglet {log} was deleted on node {node} and stores again"));
        }
        match directory.cells.insert(first, content) {
            // Compaction writes a record again.
            Some(before) if before == content => {}
            None if directory.written.within(first..end).is_empty() => {}
            _ => {
                verdict.fail(format!("corfu-K1 written twice: loglet {log}: address {first} on node {node}"))
            }
        }
        directory.written.add(first..end);
        if directory.epoch <= 1 {
            directory.early.add(first..end);
        }
        Some(())
    }

    fn synced_fact(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let node = who.node;
        match Fact::from_bytes(record.head.clone()).ok()? {
            Fact::Create { log, config, epoch } => {
                self.learn(log, &config);
                let directory = self.directory(who, log);
                directory.epoch = directory.epoch.max(epoch);
                if directory.tombstone {
                    verdict.fail(format!(
                        "vlog-VL10 revived: loglet {log} was deleted on node {node} and is made again"
                    ));
                }
            }
            Fact::Epoch { log, epoch } => {
                let directory = self.directory(who, log);
                if epoch < directory.epoch {
                    let before = directory.epoch;
                    verdict.fail(format!(
                        "corfu-K6 epoch fell: loglet {log}: node {node} goes from {before} to {epoch}"
                    ));
                }
                directory.epoch = epoch;
            }
            Fact::Junk { log, ranges } => {
                let directory = self.directory(who, log);
                for (start, end) in ranges {
                    if !directory.written.within(start..end).is_empty() {
                        verdict.fail(format!(
                            "corfu-K1 junk over a write: loglet {log}: {start}..{end} on node {node}"
                        ));
                    }
                    directory.written.add(start..end);
                }
            }
            Fact::Deleted { log, first, end } => self.directory(who, log).written.add(first..end),
            Fact::Trimmed { log, to } => self.directory(who, log).written.add(0..to),
            Fact::Tombstone { log } => self.directory(who, log).tombstone = true,
        }
        Some(())
    }

    fn found_facts(&mut self, who: &Who, state: &Bytes) -> Option<()> {
        let mut from = Reader::new(state.clone());
        u8::decode(&mut from).ok()?;
        for saved in Vec::<Saved>::decode(&mut from).ok()? {
            self.learn(saved.log, &saved.config);
            let directory = self.directory(who, saved.log);
            directory.epoch = directory.epoch.max(saved.epoch);
            directory.written.add(0..saved.watermark);
            for (start, end) in saved.junk.into_iter().chain(saved.deleted) {
                directory.written.add(start..end);
            }
        }
        for log in Vec::<LogletId>::decode(&mut from).ok()? {
            self.directory(who, log).tombstone = true;
        }
        from.finish("checkpoint").ok()
    }
}
