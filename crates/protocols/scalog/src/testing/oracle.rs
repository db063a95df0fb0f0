//! Checks Scalog Loglets from outside the nodes, using only frames and synced journal records. Of the protocol, the oracle uses only the
//! messages, the entries of the ordering log and the configuration. It numbers records one by one, not by sums.
//!
//! | invariant | how it is checked |
//! | --- | --- |
//! | scalog-G1 | a place of a segment has one content, on all servers of the shard and in all their lives |
//! | scalog-G3 | when a server gets an entry of the ordering log, every record that the entry orders is on the disks of all servers of the shard |
//! | scalog-G4 | an acknowledged number is ordered; no operation has two numbers, no number two operations |
//! | vlog-L3, vlog-L4 | sealed tails are above all acknowledged numbers, and not below open tails; one end is installed |
//! | scalog-G8 | a tail is the number of records after some entry |
//! | scalog-S7 | an entry of the ordering log never changes |

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use atoll_contract::testing::{OnWire, Oracle, Violations, Who, digest};
use atoll_contract::{Batch, Entry, LogletId, Offset, OpId};
use atoll_core::{Decode, Frame, Lsn, Message, Reader, Record, RecordKind, StorageId};

use crate::config::ScalogConfig;
use crate::message::{Append, Follow, Reports};
use crate::order::OrderEntry;
use crate::roles::SERVER;
use crate::server::segment::SegmentConfig;

/// A shard, as the ordering log says.
#[derive(Debug)]
struct Ghost {
    storages: Vec<StorageId>,
    ordered: Vec<u64>,
    leaving: Option<u32>,
    ended: bool,
}

/// What is at a place, and the data directories that have it.
#[derive(Debug)]
struct Content {
    digest: u64,
    op: OpId,
    there: BTreeSet<StorageId>,
}

/// Where a record is: shard, segment, place.
pub type Spot = (u32, usize, u64);

/// What the entries of one ordering log say, record by record.
#[derive(Debug, Default)]
pub struct Ledger {
    known: bool,
    entries: Vec<u64>,
    shards: BTreeMap<u32, Ghost>,
    records: Vec<Spot>,
    ends: BTreeSet<u64>,
    sealed: bool,
    acked: BTreeMap<u64, OpId>,
    ops: BTreeMap<OpId, u64>,
    tails: BTreeSet<u64>,
    open_tail: u64,
    sealed_tails: BTreeSet<u64>,
    installed: Option<u64>,
    contents: BTreeMap<Spot, Content>,
}

impl Ledger {
    /// Takes the configuration.
    pub fn begin(&mut self, config: &ScalogConfig) {
        if !std::mem::replace(&mut self.known, true) {
            self.ends.insert(0);
            for spec in &config.shards {
                self.add(spec.shard, spec.servers.iter().map(|s| s.storage).collect());
            }
        }
    }

    fn add(&mut self, shard: u32, storages: Vec<StorageId>) {
        let ordered = vec![0; storages.len()];
        self.shards.insert(shard, Ghost { storages, ordered, leaving: None, ended: false });
    }

    /// Returns the ordered records: the number of each is its index.
    pub fn records(&self) -> &[Spot] {
        &self.records
    }

    /// Takes the entry at a place of the ordering log. Returns the records that it orders. Entries that were seen before are compared.
    pub fn entry(&mut self, at: u64, bytes: &Bytes, verdict: &mut Violations) -> Vec<Spot> {
        let content = digest(bytes);
        if let Some(before) = self.entries.get(at as usize) {
            if *before != content {
                verdict
                    .fail(format!("scalog-S7 overwritten: entry {at} of the ordering log has two contents"));
            }
            return Vec::new();
        }
        if at != self.entries.len() as u64 {
            return Vec::new();
        }
        self.entries.push(content);
        let before = self.records.len();
        if let Ok(entry) = OrderEntry::from_bytes(bytes.clone())
            && !self.sealed
        {
            self.apply(&entry);
        }
        self.ends.insert(self.records.len() as u64);
        self.records[before..].to_vec()
    }

    fn apply(&mut self, entry: &OrderEntry) {
        for spec in &entry.add {
            let in_use = |ghost: &Ghost| spec.servers.iter().any(|s| ghost.storages.contains(&s.storage));
            let is_taken = self.shards.values().any(|ghost| !ghost.ended && in_use(ghost));
            if !self.shards.contains_key(&spec.shard) && !is_taken && spec.check().is_ok() {
                self.add(spec.shard, spec.servers.iter().map(|s| s.storage).collect());
            }
        }
        for (number, ghost) in &mut self.shards {
            let Some(cut) = entry.cut.iter().find(|cut| cut.shard == *number) else { continue };
            if ghost.ended || cut.counts.len() != ghost.ordered.len() {
                continue;
            }
            for (segment, count) in cut.counts.iter().enumerate() {
                while ghost.ordered[segment] < *count {
                    self.records.push((*number, segment, ghost.ordered[segment]));
                    ghost.ordered[segment] += 1;
                }
            }
        }
        for ghost in self.shards.values_mut().filter(|ghost| !entry.cut.is_empty() && !ghost.ended) {
            ghost.leaving = ghost.leaving.map(|left| left.saturating_sub(1));
        }
        for (number, after) in &entry.finalize {
            let others = self.others(*number);
            if let Some(ghost) = self.shards.get_mut(number).filter(|_| others > 0) {
                ghost.leaving = Some(ghost.leaving.unwrap_or(u32::MAX).min(*after));
            }
        }
        for number in &entry.stuck {
            let others = self.others(*number);
            if let Some(ghost) = self.shards.get_mut(number).filter(|_| others > 0) {
                ghost.leaving = Some(0);
            }
        }
        for ghost in self.shards.values_mut() {
            ghost.ended |= ghost.leaving == Some(0);
        }
        self.sealed |= entry.seal;
    }

    /// Counts the other shards that take records, and go on to do so.
    fn others(&self, number: u32) -> usize {
        let goes_on =
            |other: &u32, ghost: &Ghost| *other != number && !ghost.ended && ghost.leaving.is_none();
        self.shards.iter().filter(|(other, ghost)| goes_on(other, ghost)).count()
    }

    /// Checks that records are on the disks of all servers of their shard (G3).
    fn are_durable(&self, records: &[Spot], verdict: &mut Violations) {
        for spot in records {
            let Some(ghost) = self.shards.get(&spot.0) else { continue };
            let there = self.contents.get(spot).map(|content| &content.there);
            let lacks = ghost.storages.iter().filter(|s| there.is_none_or(|t| !t.contains(s))).count();
            if lacks > 0 {
                verdict
                    .fail(format!("scalog-G3 not durable: {spot:?} is ordered, and {lacks} servers lack it"));
            }
        }
    }

    fn stored(&mut self, spot: Spot, entry: &Entry, storage: StorageId, verdict: &mut Violations) {
        let digest = digest(&entry.payload);
        let new = Content { digest, op: entry.op, there: BTreeSet::new() };
        let content = self.contents.entry(spot).or_insert(new);
        if (content.digest, content.op) != (digest, entry.op) {
            verdict.fail(format!("scalog-G1 two contents: {spot:?} on data directory {storage}"));
        }
        content.there.insert(storage);
    }

    /// Checks that the record with a number is this operation's (G4).
    fn is_at(&self, at: u64, op: OpId, verdict: &mut Violations) {
        let there = self.records.get(at as usize).and_then(|spot| self.contents.get(spot));
        if there.is_some_and(|content| content.op != op) {
            verdict.fail(format!("scalog-G4 another record: {op:?} was said to be at {at}"));
        }
    }

    /// Takes the number that a client got for an operation.
    pub fn acked(&mut self, at: u64, op: OpId, verdict: &mut Violations) {
        if at >= self.records.len() as u64 {
            verdict.fail(format!("scalog-G4 not ordered: {op:?} was acknowledged at {at}"));
        }
        self.is_at(at, op, verdict);
        if self.sealed_tails.first().is_some_and(|tail| at >= *tail) {
            verdict.fail(format!("vlog-L3 above the end: {op:?} was acknowledged at {at}"));
        }
        if self.acked.insert(at, op).is_some_and(|before| before != op) {
            verdict.fail(format!("scalog-G1 two operations at {at}"));
        }
        if op.client.0 != 0 && self.ops.insert(op, at).is_some_and(|before| before != at) {
            verdict.fail(format!("scalog-S15 two numbers for {op:?}"));
        }
    }

    fn tail(&mut self, at: u64, sealed: bool, verdict: &mut Violations) {
        self.tails.insert(at);
        if !sealed {
            self.open_tail = self.open_tail.max(at);
        }
        self.sealed_tails.extend(sealed.then_some(at));
        if let Some(end) = self.sealed_tails.first().filter(|end| **end < self.open_tail) {
            verdict.fail(format!("vlog-L4 open above sealed: tails {} and {end}", self.open_tail));
        }
        if sealed && self.acked.last_key_value().is_some_and(|(last, _)| *last >= at) {
            verdict.fail(format!("vlog-L3 end {at} at or below an acknowledged number"));
        }
    }

    fn finish(&self, verdict: &mut Violations) {
        let end = self.records.len() as u64;
        if let Some(at) = self.tails.iter().find(|at| **at <= end && !self.ends.contains(at)) {
            verdict.fail(format!("scalog-G8 tail {at}: no entry ends there"));
        }
    }
}

/// All Scalog Loglets of a run.
#[derive(Debug, Default)]
pub struct ScalogOracle {
    ledgers: BTreeMap<LogletId, Ledger>,
    /// The segments of each data directory.
    segments: BTreeMap<(StorageId, LogletId), (LogletId, u32, usize)>,
}

impl ScalogOracle {
    fn learn(&mut self, loglet: LogletId, config: &Bytes) {
        if let Ok(config) = ScalogConfig::parse(config) {
            self.ledgers.entry(loglet).or_default().begin(&config);
        }
    }

    fn learn_from(&mut self, frame: &Frame) {
        let found = match frame.kind {
            Append::KIND => Append::from_frame(frame.clone()).ok().map(|m| (m.loglet, m.config)),
            Reports::KIND => Reports::from_frame(frame.clone()).ok().map(|m| (m.loglet, m.config)),
            _ => None,
        };
        if let Some((loglet, config)) = found.filter(|(_, config)| !config.is_empty()) {
            self.learn(loglet, &config);
        }
    }

    /// Takes consecutive entries of an ordering log, as somebody read them. Pads are empty.
    pub fn followed(&mut self, loglet: LogletId, from: u64, entries: &[Bytes], verdict: &mut Violations) {
        let ledger = self.ledgers.entry(loglet).or_default();
        for (at, bytes) in (from..).zip(entries) {
            let records = ledger.entry(at, bytes, verdict);
            ledger.are_durable(&records, verdict);
        }
    }

    /// Takes a record that a client has read.
    pub fn read(&mut self, loglet: LogletId, at: Offset, op: OpId, verdict: &mut Violations) {
        let ledger = self.ledgers.entry(loglet).or_default();
        ledger.is_at(at.0, op, verdict);
        if ledger.acked.get(&at.0).is_some_and(|acked| *acked != op) {
            verdict
                .fail(format!("scalog-G4 lost: {op:?} was read at {at}, where another one was acknowledged"));
        }
    }

    fn read_fact(&mut self, who: &Who, head: &Bytes) -> Option<()> {
        let mut from = Reader::new(head.clone());
        // Only the beginning of a segment tells something.
        if u8::decode(&mut from).ok()? != 0 {
            return Some(());
        }
        let (id, config) = (LogletId::decode(&mut from).ok()?, Bytes::decode(&mut from).ok()?);
        let segment = SegmentConfig::from_bytes(config).ok()?;
        self.learn(id.whole(), &segment.loglet);
        self.segments.insert((who.storage, id), (id.whole(), segment.shard, segment.segment as usize));
        Some(())
    }

    fn read_records(&mut self, who: &Who, record: &Record, verdict: &mut Violations) -> Option<()> {
        let mut from = Reader::new(record.head.clone());
        u8::decode(&mut from).ok()?;
        let (id, first) = (LogletId::decode(&mut from).ok()?, u64::decode(&mut from).ok()?);
        let Some((whole, shard, segment)) = self.segments.get(&(who.storage, id)).copied() else {
            return Some(());
        };
        let ledger = self.ledgers.entry(whole).or_default();
        let batch = Batch::parse(record.payload.clone()).ok()?;
        for (place, entry) in (first..).zip(batch.entries()) {
            ledger.stored((shard, segment, place), &entry, who.storage, verdict);
        }
        Some(())
    }
}

impl Oracle for ScalogOracle {
    fn sent(&mut self, wire: OnWire<'_>, verdict: &mut Violations) {
        self.learn_from(wire.frame());
        if wire.frame().kind == Follow::KIND
            && let Ok(m) = Follow::from_frame(wire.frame().clone())
        {
            self.followed(m.loglet, m.from, &m.entries, verdict);
        }
    }

    fn synced(&mut self, who: &Who, records: &[(Lsn, Record)], verdict: &mut Violations) {
        for (_, record) in records.iter().filter(|(_, r)| r.owner == SERVER) {
            let read = match record.kind {
                RecordKind::Entry => self.read_records(who, record, verdict),
                RecordKind::Fact => self.read_fact(who, &record.head),
            };
            if read.is_none() {
                verdict.fail("HARNESS: a record of a storage server does not decode as the oracle knows it");
            }
        }
    }

    fn chained(&mut self, loglet: LogletId, config: &Bytes) {
        self.learn(loglet, config);
    }

    fn tail_reported(&mut self, loglet: LogletId, at: Offset, sealed: bool, verdict: &mut Violations) {
        self.ledgers.entry(loglet).or_default().tail(at.0, sealed, verdict);
    }

    fn acknowledged(&mut self, loglet: LogletId, at: Offset, op: OpId, verdict: &mut Violations) {
        self.ledgers.entry(loglet).or_default().acked(at.0, op, verdict);
    }

    fn installed(&mut self, loglet: LogletId, stop: Offset, verdict: &mut Violations) {
        let ledger = self.ledgers.entry(loglet).or_default();
        if ledger.installed.replace(stop.0).is_some_and(|before| before != stop.0) {
            verdict.fail(format!("scalog-G6 two ends: another one than {stop} was installed"));
        }
        ledger.tail(stop.0, true, verdict);
    }

    fn finished(&mut self, verdict: &mut Violations) {
        self.ledgers.values().for_each(|ledger| ledger.finish(verdict));
    }
}
