//! The ordering state machine: what everybody computes from the entries of the ordering log (scalog.md §2, §4, §5).
//!
//! The log carries minima of reports, not cuts. The cut and the numbers of its records are computed here, when an entry is applied, because
//! a proposal may be lost, repeated or reordered (scalog-S2, S3, S4). The state is a function of the log's prefix, so all who apply the
//! same entries number all records in the same way. Entries must be applied one by one, in their order (scalog-S7).

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, NodeId};

use crate::config::{ScalogConfig, Server, ShardError, ShardSpec};
use crate::snapshot::{Snapped, Snapshot};
use crate::{invariants, mutants};

/// Version of [`OrderEntry`].
pub const ENTRY_FORMAT: u8 = 1;

atoll_core::record! {
    /// What all servers of a shard have, for each segment.
    pub struct ShardCut {
        /// The shard.
        pub shard: u32,
        /// The number of synced records of each segment that every server of the shard has.
        pub counts: Vec<u64>,
    }
}

atoll_core::record! {
    /// An entry of the ordering log. Its parts are applied in the order in which they stand here.
    pub struct OrderEntry {
        /// [`ENTRY_FORMAT`].
        pub format: u8,
        /// New shards.
        pub add: Vec<ShardSpec>,
        /// What is new, for some of the shards.
        pub cut: Vec<ShardCut>,
        /// Shards that take no more records, each with the number of further cuts after which it ends. Clients can leave until then. The
        /// last shard stays, here and in `stuck`: two entries may end different ones at the same time.
        pub finalize: Vec<(u32, u32)>,
        /// Whether the log ends.
        pub seal: bool,
        /// Records below this number are given up.
        pub trim: u64,
        /// Shards that orderers end because they are stuck.
        pub stuck: Vec<u32>,
        /// A snapshot of the state before this entry, which then has nothing else.
        pub snapshot: Option<Snapshot>,
    }
}

impl OrderEntry {
    /// Returns an entry that changes nothing.
    pub fn nothing() -> Self {
        let (add, cut, finalize, stuck) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        OrderEntry { format: ENTRY_FORMAT, add, cut, finalize, seal: false, trim: 0, stuck, snapshot: None }
    }

    /// Decodes an entry. Refuses one of a later version: whoever cannot read it must not go on (scalog-S7).
    pub fn parse(bytes: Bytes) -> Result<Self, DecodeError> {
        let entry = OrderEntry::from_bytes(bytes)?;
        if entry.format != ENTRY_FORMAT {
            let (what, value) = ("version of an ordering entry", entry.format.into());
            return Err(DecodeError::Invalid { what, value, allowed: "1" });
        }
        Ok(entry)
    }
}

/// Version of [`SealedOrder`].
pub const SEALED_FORMAT: u8 = 1;

atoll_core::record! {
    /// The sealed configuration of a Loglet (vlog-L9). Readers do not need it. It says how much of the ordering log belongs to what was
    /// installed, so that servers of the ordering log can fetch what they lack of it.
    pub struct SealedOrder {
        /// [`SEALED_FORMAT`].
        pub format: u8,
        /// The number of entries of the ordering log that order all records of the Loglet.
        pub entries: u64,
    }
}

impl SealedOrder {
    /// Decodes it. None if it is empty, because the Loglet is open, or of a later version.
    pub fn parse(bytes: &Bytes) -> Option<Self> {
        SealedOrder::from_bytes(bytes.clone()).ok().filter(|sealed| sealed.format == SEALED_FORMAT)
    }
}

/// The end of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Final {
    /// The first view without it.
    pub view: u64,
    /// The number of records that are ordered by then. All of the shard's records are below.
    pub base: u64,
}

/// A shard, as the log says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its servers.
    pub servers: Vec<Server>,
    /// The newest cut: the number of ordered records of each segment.
    pub counts: Vec<u64>,
    /// The first view with it.
    pub since: u64,
    /// Set if it is to end after this many further cuts.
    pub leaving: Option<u32>,
    /// Set once it has ended.
    pub ended: Option<Final>,
}

impl Shard {
    /// Returns whether it takes records.
    pub fn is_live(&self) -> bool {
        self.ended.is_none()
    }
}

/// Consecutive records of one segment that an entry orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// The shard.
    pub shard: u32,
    /// The segment.
    pub segment: usize,
    /// The first record's place in the segment.
    pub first: u64,
    /// The number of records.
    pub count: u64,
    /// The global sequence number of the first one.
    pub gsn: u64,
}

/// What an entry has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// The records that it orders, in their order.
    pub records: Vec<Numbered>,
    /// The shards that it adds.
    pub added: Vec<u32>,
    /// The shards that it ends.
    pub ended: Vec<u32>,
    /// Whether it seals the log.
    pub sealed: bool,
    /// Whether it raises the trim point.
    pub trimmed: bool,
}

/// Where the records of a client go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    /// The shard.
    pub shard: u32,
    /// The segment.
    pub segment: usize,
    /// Records of the client with lower numbers may be in another shard.
    pub since: u64,
}

/// The state; see the module documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    pub(crate) applied: u64,
    pub(crate) base: u64,
    pub(crate) view: u64,
    pub(crate) shards: BTreeMap<u32, Shard>,
    /// The number of live shards.
    pub(crate) live: usize,
    /// The live shards that are about to end.
    pub(crate) leaving: BTreeSet<u32>,
    pub(crate) trim: u64,
    /// The number of entries up to the one that seals the log, inclusive.
    pub(crate) sealed: Option<u64>,
    /// The newest snapshot.
    pub(crate) snapped: Option<Snapped>,
    /// Entries of the ordering log below this place are not needed any more.
    pub(crate) start: u64,
}

impl Order {
    /// Returns the state before the first entry.
    pub fn new(config: &ScalogConfig) -> Self {
        let shards: BTreeMap<u32, Shard> =
            config.shards.iter().map(|spec| (spec.shard, new_shard(spec, 0))).collect();
        let (live, leaving) = (shards.len(), BTreeSet::new());
        let (applied, base, view, trim, start) = (0, 0, 0, 0, 0);
        Order { applied, base, view, shards, live, leaving, trim, sealed: None, snapped: None, start }
    }

    /// Returns how many entries of the ordering log were applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns how many records are ordered: the number of the next one.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the number of the view, which counts the changes of the set of live shards.
    pub fn view(&self) -> u64 {
        self.view
    }

    /// Returns the first record that was not given up.
    pub fn trim(&self) -> u64 {
        self.trim
    }

    /// Returns up to which place nobody needs the ordering log any more: there is a snapshot, and all records that the entries before it
    /// order were given up (scalog-S8).
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns whether the log has ended.
    pub fn is_sealed(&self) -> bool {
        self.sealed.is_some()
    }

    /// Returns how many entries there are up to the one that seals the log, inclusive. None if no entry has sealed it.
    pub fn sealed_after(&self) -> Option<u64> {
        self.sealed
    }

    /// Returns all shards, ended ones too.
    pub fn shards(&self) -> &BTreeMap<u32, Shard> {
        &self.shards
    }

    /// Returns how many shards take records.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Returns why a shard cannot be added.
    pub fn check_add(&self, spec: &ShardSpec) -> Result<(), ShardError> {
        spec.check()?;
        if self.shards.contains_key(&spec.shard) {
            return Err(ShardError::Exists(spec.shard));
        }
        for (number, shard) in self.shards.iter().filter(|(_, shard)| shard.is_live()) {
            if let Some(twice) = spec.servers.iter().find(|s| shard.servers.iter().any(|t| t.node == s.node))
            {
                return Err(ShardError::Overlap(twice.node, *number));
            }
        }
        Ok(())
    }

    /// Gives up the records below a number, for a reader of a log that takes no more entries.
    pub fn raise_trim(&mut self, to: u64) {
        self.trim = self.trim.max(to.min(self.base));
    }

    /// Applies an entry of the ordering log that is not one of ours, like a pad.
    pub fn skip(&mut self) {
        self.applied += 1;
    }

    /// Applies the next entry. What is no longer possible in it has no effect.
    pub fn apply(&mut self, entry: &OrderEntry) -> Applied {
        let mut done = Applied::default();
        if let Some(snapshot) = &entry.snapshot {
            self.take_snapshot(snapshot);
            self.applied += 1;
            self.raise_start();
            return done;
        }
        self.applied += 1;
        if entry.trim > self.trim {
            self.trim = entry.trim.min(self.base);
            done.trimmed = true;
            self.raise_start();
        }
        // After a seal, no component changes (G6).
        if self.is_sealed() {
            return done;
        }
        for spec in &entry.add {
            if self.check_add(spec).is_ok() {
                done.added.push(spec.shard);
                self.shards.insert(spec.shard, new_shard(spec, self.view + 1));
                self.live += 1;
            }
        }
        done.records = self.cut(&entry.cut);
        self.end_shards(entry, &mut done);
        if !done.added.is_empty() || !done.ended.is_empty() {
            self.view += 1;
        }
        self.sealed = entry.seal.then_some(self.applied);
        done.sealed = entry.seal;
        done
    }

    fn raise_start(&mut self) {
        let is_given_up = |snapped: &Snapped| snapped.base <= self.trim || mutant(mutants::SCALOG_S8);
        if let Some(snapped) = self.snapped.filter(is_given_up) {
            self.start = snapped.place;
        }
    }

    /// Raises the cut and numbers the records in between (scalog.md §5). Both the cut before and the sum before are this state's own, not
    /// the proposer's (S3). Only the shards of the entry are looked at.
    fn cut(&mut self, cut: &[ShardCut]) -> Vec<Numbered> {
        // The order of the components is that of shards and segments, whatever the order in the entry.
        let cut: BTreeMap<u32, &ShardCut> = cut.iter().map(|c| (c.shard, c)).collect();
        let (before, mut gsn, mut grown, mut records) = (self.base, self.base, 0_u64, Vec::new());
        for (number, new) in cut {
            let Some(shard) = self.shards.get_mut(&number).filter(|s| s.counts.len() == new.counts.len())
            else {
                continue;
            };
            // A proposal may come late, after the end of the shard (S13).
            if !shard.is_live() {
                hit("scalog.order.ended");
                if !mutant(mutants::SCALOG_S13) {
                    continue;
                }
            }
            for (segment, (count, proposed)) in shard.counts.iter_mut().zip(&new.counts).enumerate() {
                let first = *count;
                // Never lower: a new leader's proposal may be below (S2, S4).
                *count = if mutant(mutants::SCALOG_S2) { *proposed } else { first.max(*proposed) };
                let n = count.wrapping_sub(first);
                grown = grown.wrapping_add(n);
                if n > 0 && n < u64::MAX / 2 {
                    records.push(Numbered { shard: number, segment, first, count: n, gsn });
                    gsn += n;
                }
            }
        }
        self.base =
            if mutant(mutants::SCALOG_S2) { self.shards.values().flat_map(|s| &s.counts).sum() } else { gsn };
        if mutant(mutants::SCALOG_S3) {
            let shift = records.iter().map(|r| r.count).sum::<u64>();
            records.iter_mut().for_each(|r| r.gsn += shift);
        }
        invariants::base_grew_with_cut(before, self.base, grown);
        records
    }

    /// Ends shards now, or notes after how many further cuts.
    fn end_shards(&mut self, entry: &OrderEntry, done: &mut Applied) {
        if !entry.cut.is_empty() {
            for number in &self.leaving {
                if let Some(shard) = self.shards.get_mut(number) {
                    shard.leaving = shard.leaving.map(|left| left.saturating_sub(1));
                }
            }
        }
        for (number, after) in &entry.finalize {
            let stays = self.is_last(*number);
            if let Some(shard) = self.shards.get_mut(number).filter(|_| !stays) {
                shard.leaving = Some(shard.leaving.map_or(*after, |left| left.min(*after)));
                self.leaving.extend(shard.is_live().then_some(*number));
            }
        }
        for number in &entry.stuck {
            let stays = self.is_last(*number);
            if let Some(shard) = self.shards.get_mut(number).filter(|_| !stays) {
                shard.leaving = Some(0);
                self.leaving.extend(shard.is_live().then_some(*number));
            }
        }
        let (view, base) = (self.view + 1, self.base);
        let (shards, ended) = (&mut self.shards, &mut done.ended);
        self.leaving.retain(|number| {
            let Some(shard) = shards.get_mut(number).filter(|shard| shard.leaving == Some(0)) else {
                return true;
            };
            shard.ended = Some(Final { view, base });
            ended.push(*number);
            false
        });
        self.live -= done.ended.len();
    }

    /// Returns whether no other shard takes records and is not about to end. So there is always one that does.
    pub fn is_last(&self, number: u32) -> bool {
        let stays = |shard: &Shard| shard.is_live() && shard.leaving.is_none();
        !self.shards.iter().any(|(other, shard)| *other != number && stays(shard))
    }

    /// Returns where the records of a client go, so that a retry finds the first attempt (scalog-S15). A client stays at its shard until
    /// that shard ends, and then moves to one that was live at that moment. New shards therefore take clients only from shards that end
    /// after they were added, and an attempt that is still on its way to the former shard can never be ordered any more. None if there is
    /// no shard, which no configuration allows.
    pub fn home(&self, client: u64) -> Option<Home> {
        let (mut view, mut since) = (0, 0);
        if mutant(mutants::SCALOG_S15) {
            view = self.view;
        }
        loop {
            let there = |shard: &&u32| {
                let shard = &self.shards[*shard];
                shard.since <= view && shard.ended.is_none_or(|end| end.view > view)
            };
            let number = *self.shards.keys().filter(there).max_by_key(|shard| mix(client, **shard))?;
            let shard = &self.shards[&number];
            match shard.ended {
                Some(end) => (view, since) = (end.view, end.base),
                None => {
                    let segment = (mix(client, u32::MAX) % shard.servers.len() as u64) as usize;
                    return Some(Home { shard: number, segment, since });
                }
            }
        }
    }

    /// Returns the shard and the segment of which a server is the primary, among live shards.
    pub fn place_of(&self, server: Server) -> Option<(u32, usize)> {
        let of = |(number, shard): (&u32, &Shard)| {
            Some((*number, shard.servers.iter().position(|s| *s == server)?))
        };
        self.shards.iter().filter(|(_, shard)| shard.is_live()).find_map(of)
    }

    /// Returns the nodes of all servers, each once.
    pub fn nodes(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.shards.values().flat_map(|s| &s.servers).map(|s| s.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

fn new_shard(spec: &ShardSpec, since: u64) -> Shard {
    let counts = vec![0; spec.servers.len()];
    Shard { servers: spec.servers.clone(), counts, since, leaving: None, ended: None }
}

/// Mixes a client's number with a shard's, so that each client ranks the shards in an order of its own.
fn mix(client: u64, shard: u32) -> u64 {
    let mut z = client.wrapping_add(u64::from(shard).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(1);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
#[path = "order_test.rs"]
#[allow(clippy::unwrap_used)]
mod tests;
