//! The loglets that a role keeps: their durable state, and the way of every change through the journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Encode, FetchError, Loc, Lsn, Measure, RecordKind, Stored, Tick, invariant,
};

use crate::mutants;

use crate::message::ServerState;

use super::cache::TailCache;
use super::durable::Moves;
use super::facts::{ENTRY_FORMAT, EntryHead, Fact};
use super::occupied::Occupied;
use super::reads::{PendingReads, finish_read, plan_read};
use super::recovery::Walk;
use super::runs::{Place, Run, Runs};

/// What a protocol adds to a loglet that is kept for it; rebuilt from the configuration at a restart.
pub trait Protocol: Sized {
    /// A configuration that was read. Shared by all loglets that have it.
    type Config: Clone + std::fmt::Debug;

    /// Reads a configuration.
    fn read_config(config: &Bytes) -> Result<Self::Config, DecodeError>;

    /// The protocol's part of a loglet with this configuration.
    fn new(config: Self::Config) -> Self;
}

/// Configurations that are kept to be shared. Segments that follow each other have mostly the same.
const SHARED_CONFIGS: usize = 64;

/// The seal bit, and the way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// Entries are taken.
    Open,
    /// No more entries; those admitted, and then the bit, are on the way to the disk (native-T4).
    Staged(Lsn),
    /// Durable.
    Sealed,
}

/// One loglet.
#[derive(Debug)]
pub struct LogletState<P> {
    /// The encoded configuration.
    pub config_bytes: Bytes,
    /// The seal bit. Never cleared (native-N2).
    pub seal: Sealing,
    /// Above every durable entry that counts. Never falls, restarts and trims included (native-N2, native-T12).
    pub local_tail: Offset,
    /// The same, with what is on the way to the disk.
    pub staged_tail: Offset,
    /// Everything below is committed.
    pub known_tail: Offset,
    /// Everything below was given up. May be staged still: seeing it early, and not at all after a crash, is harmless.
    pub trim: Offset,
    /// The chain's owner, or a check of a majority, has said where the sealed loglet ends.
    pub settled: bool,
    /// The entries.
    pub runs: Runs,
    /// The protocol's part.
    pub protocol: P,
}

impl<P> LogletState<P> {
    pub(super) fn new(protocol: P, config_bytes: Bytes) -> Self {
        LogletState {
            config_bytes,
            seal: Sealing::Open,
            local_tail: Offset::ZERO,
            staged_tail: Offset::ZERO,
            known_tail: Offset::ZERO,
            trim: Offset::ZERO,
            settled: false,
            runs: Runs::default(),
            protocol,
        }
    }

    /// The caller has checked where the value comes from (native-K). True if it was news.
    pub fn raise_known_tail(&mut self, to: Offset) -> bool {
        let up = to > self.known_tail;
        self.known_tail = self.known_tail.max(to);
        up
    }

    /// Entries up to `end` are durable (native-N2).
    pub(super) fn raise_local_tail(&mut self, end: Offset) {
        invariant!(end <= self.staged_tail, "durable up to {end}, staged up to {}", self.staged_tail);
        self.local_tail = self.local_tail.max(end);
    }

    /// What a restart takes the local tail from when the entries are trimmed (native-T12).
    pub(super) fn restore_tail(&mut self, tail: Offset) {
        if !mutant(mutants::NATIVE_T12) {
            self.local_tail = self.local_tail.max(tail);
            self.staged_tail = self.local_tail;
        }
    }

    /// The newest staged record among the runs of `[from, end)`; [`Lsn::NONE`] if all are durable, None if some are not
    /// here.
    pub fn newest_staged(&self, from: Offset, end: Offset) -> Option<Lsn> {
        let (mut at, mut newest) = (from, Lsn::NONE);
        while at < end {
            let (first, run) = self.runs.holding(at)?;
            if let Place::Staged(lsn) = run.place {
                newest = newest.max(lsn);
            }
            at = first.plus(run.count.into());
        }
        Some(newest)
    }

    /// Something below the known tail is not here.
    pub fn lags(&self) -> bool {
        !self.runs.missing(self.known_tail, 1).is_empty()
    }
}

impl<P> LogletState<P> {
    /// Durable facts only (native-T9).
    pub fn state(&self) -> ServerState {
        ServerState {
            sealed: self.seal == Sealing::Sealed,
            local_tail: self.local_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }

    /// As it will be once everything staged is durable.
    pub fn staged_state(&self) -> ServerState {
        ServerState {
            sealed: self.seal != Sealing::Open,
            local_tail: self.staged_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }
}

/// What a staged record is, in the order of the journal.
#[derive(Debug)]
pub(super) enum Staged {
    Create,
    Entry { loglet: LogletId, first: Offset },
    Moved { loglet: LogletId, first: Offset, from: Loc },
    Seal { loglet: LogletId },
    Trim { loglet: LogletId, to: Offset },
    Tombstone { loglet: LogletId },
    Known,
}

/// What has become durable, for the protocol to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Entries; the local tail counts them already.
    Entries(LogletId),
    /// Copies that do not count for the local tail.
    Filled(LogletId),
    /// The seal bit; the state does not show it yet, so that the protocol can finish what came before.
    Seal(LogletId),
}

/// What a read came to.
#[derive(Debug)]
pub enum ReadOutcome {
    /// Encoded batches with their counts; to be answered no earlier than this record is durable.
    Ready(Vec<u32>, Vec<Bytes>, Lsn),
    /// Answered by [`LogletStore::on_fetched`].
    Fetching,
    /// Not here.
    NotHere,
    /// Too many reads wait for the disk.
    Busy,
    /// It does not read back.
    Damaged(String),
}

/// Bounds of a loglet store.
#[derive(Clone, Debug)]
pub struct LogletStoreOptions {
    /// Entries held in memory for tailing readers. Too small: readers that are a little behind go to the disk.
    pub cache_bytes: usize,
    /// Reads that wait for the disk, on this node. Beyond it they are refused as busy.
    pub max_disk_reads: usize,
    /// Bytes that compaction has in flight.
    pub move_bytes: usize,
}

impl Default for LogletStoreOptions {
    fn default() -> Self {
        LogletStoreOptions { cache_bytes: 32 << 20, max_disk_reads: 512, move_bytes: 4 << 20 }
    }
}

/// See the file's words.
#[derive(Debug)]
pub struct LogletStore<P: Protocol> {
    /// What is kept. In boxes: a third of the places in the nodes of a tree is empty.
    pub loglets: BTreeMap<LogletId, Box<LogletState<P>>>,
    /// Deleted for ever. 16 bytes for each.
    pub tombstones: BTreeSet<LogletId>,
    /// Deleted; their places are freed once the tombstone is durable, some at a time.
    pub(super) dying: BTreeMap<LogletId, Box<LogletState<P>>>,
    /// Those seen last, to be shared: a loglet at rest has no copy of its own.
    configs: BTreeMap<Bytes, P::Config>,
    /// Bytes of the entries of `loglets`: a sum over all of them would take longer the more there are.
    pub(super) entry_bytes: u64,
    /// Where runs are to be forgotten: those that end at or below this, by a durable trim or tombstone.
    pub(super) sweeping: BTreeMap<LogletId, Offset>,
    pub(super) sweep_at: Option<Tick>,
    pub(super) staged: VecDeque<(Lsn, Staged)>,
    pub(super) cache: TailCache,
    reads: PendingReads<(LogletId, Offset)>,
    pub(super) next_tag: u64,
    pub(super) moves: Moves,
    /// Of `loglets` and `dying`.
    pub(super) occupied: Occupied,
    pub(super) options: LogletStoreOptions,
    /// A checkpoint that is being put together.
    pub(super) walk: Option<Walk>,
    /// Recovery only: places that nobody needs.
    pub(super) dead_places: Vec<Loc>,
}

impl<P: Protocol> LogletStore<P> {
    /// Keeps nothing yet.
    pub fn new(options: LogletStoreOptions) -> Self {
        LogletStore {
            loglets: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            dying: BTreeMap::new(),
            configs: BTreeMap::new(),
            entry_bytes: 0,
            sweeping: BTreeMap::new(),
            sweep_at: None,
            staged: VecDeque::new(),
            cache: TailCache::new(options.cache_bytes),
            reads: PendingReads::new(options.max_disk_reads),
            next_tag: 0,
            moves: Moves::default(),
            occupied: Occupied::default(),
            walk: None,
            options,
            dead_places: Vec::new(),
        }
    }

    fn stage_fact(&mut self, fact: Fact, what: Staged, out: &mut Effects) -> Lsn {
        let lsn = out.journal(RecordKind::Fact, fact.to_bytes(), Bytes::new());
        self.staged.push_back((lsn, what));
        lsn
    }

    /// Whether this id was deleted: for ever (native-T10).
    pub fn is_gone(&self, loglet: LogletId) -> bool {
        self.tombstones.contains(&loglet)
            && !mutant(mutants::NATIVE_T10)
            && !mutant(atoll_contract::mutants::VLOG_REVIVED_LOGLET)
    }

    /// A configuration as it is kept: read, and shared by those that have the same.
    pub fn config(&mut self, config: &Bytes) -> Result<(Bytes, P::Config), DecodeError> {
        if let Some((bytes, read)) = self.configs.get_key_value(config) {
            return Ok((bytes.clone(), read.clone()));
        }
        let read = P::read_config(config)?;
        // A copy: the slice would pin a network buffer for the life of the loglet (X13).
        let bytes = Bytes::copy_from_slice(config);
        if self.configs.len() >= SHARED_CONFIGS {
            self.configs.clear();
        }
        self.configs.insert(bytes.clone(), read.clone());
        Ok((bytes, read))
    }

    /// A new loglet, with a configuration from [`LogletStore::config`]. The caller has checked that it may be here, and is not gone.
    pub fn create(&mut self, loglet: LogletId, config: (Bytes, P::Config), out: &mut Effects) {
        let (bytes, read) = config;
        self.stage_fact(Fact::Create { loglet, config: bytes.clone() }, Staged::Create, out);
        self.loglets.entry(loglet).or_insert_with(|| Box::new(LogletState::new(P::new(read), bytes)));
    }

    /// Journals entries at `first`. Copies that were `filled` in do not move the staged tail.
    pub fn stage_entries(
        &mut self,
        loglet: LogletId,
        first: Offset,
        batch: &Batch,
        filled: bool,
        out: &mut Effects,
    ) -> Lsn {
        let Some(kept) = self.loglets.get_mut(&loglet) else { return Lsn::NONE };
        let (count, known_tail, format) = (batch.len() as u32, kept.known_tail, ENTRY_FORMAT);
        let head = EntryHead { format, loglet, first, count, filled, known_tail };
        let payload = batch.bytes().clone();
        let cached = Some(TailCache::keep(&payload));
        let len_bytes = payload.len() as u32;
        let lsn = out.journal(RecordKind::Entry, head.to_bytes(), payload);
        kept.runs.insert(first, Run { count, len_bytes, place: Place::Staged(lsn), cached, filled });
        self.entry_bytes += u64::from(len_bytes);
        if !filled {
            kept.staged_tail = first.plus(count.into());
        }
        self.staged.push_back((lsn, Staged::Entry { loglet, first }));
        lsn
    }

    /// Journals the seal bit, behind every entry admitted so far: once it is durable, they are, too (native-T4).
    pub fn stage_seal(&mut self, loglet: LogletId, out: &mut Effects) -> Lsn {
        let lsn = self.stage_fact(Fact::Seal { loglet }, Staged::Seal { loglet }, out);
        if let Some(kept) = self.loglets.get_mut(&loglet) {
            kept.seal = Sealing::Staged(lsn);
        }
        lsn
    }

    /// Journals where the sealed loglet ends, so that a restart knows what is missing.
    pub fn stage_known(&mut self, loglet: LogletId, known_tail: Offset, out: &mut Effects) -> Lsn {
        if let Some(kept) = self.loglets.get_mut(&loglet) {
            kept.settled = true;
        }
        self.stage_fact(Fact::Known { loglet, known_tail }, Staged::Known, out)
    }

    /// Trims; the record to wait for. Places are freed once it is durable, by [`LogletStore::sweep`].
    pub fn stage_trim(&mut self, loglet: LogletId, to: Offset, out: &mut Effects) -> Lsn {
        let Some(kept) = self.loglets.get_mut(&loglet) else { return Lsn::NONE };
        // Again even if nothing changes: the first one may be on its way to the disk still.
        if to < kept.trim || to == Offset::ZERO {
            return Lsn::NONE;
        }
        kept.trim = to;
        let local_tail = kept.staged_tail;
        self.stage_fact(Fact::Trim { loglet, to, local_tail }, Staged::Trim { loglet, to }, out)
    }

    /// Deletes, leaving a tombstone also where the loglet never was; the record to wait for.
    pub fn stage_delete(&mut self, loglet: LogletId, out: &mut Effects) -> Lsn {
        let lsn = self.stage_fact(Fact::Tombstone { loglet }, Staged::Tombstone { loglet }, out);
        self.tombstones.insert(loglet);
        if let Some(kept) = self.loglets.remove(&loglet) {
            self.entry_bytes -= kept.runs.len_bytes();
            self.dying.insert(loglet, kept);
        }
        lsn
    }

    /// Reads consecutive entries from exactly `range.start` on.
    pub fn read(
        &mut self,
        caller: Caller,
        loglet: LogletId,
        range: Range<Offset>,
        max_bytes: usize,
        out: &mut Effects,
    ) -> ReadOutcome {
        let Some(kept) = self.loglets.get(&loglet) else { return ReadOutcome::NotHere };
        let first = range.start;
        let Some(plan) = plan_read(&kept.runs, range, max_bytes) else { return ReadOutcome::NotHere };
        if plan.locs.is_empty() {
            let reveals = plan.reveals;
            return match finish_read(plan, Vec::new()) {
                Ok((counts, batches)) => ReadOutcome::Ready(counts, batches, reveals),
                Err(error) => ReadOutcome::Damaged(error.to_string()),
            };
        }
        if self.reads.is_full() {
            return ReadOutcome::Busy;
        }
        hit("store.read_disk");
        let tag = self.next_tag;
        self.next_tag += 1;
        out.fetch(tag, plan.locs.clone());
        self.reads.push(tag, caller, (loglet, first), plan);
        ReadOutcome::Fetching
    }

    /// The disk has answered: who is to be told what; None if it was compaction that asked.
    pub fn on_fetched(
        &mut self,
        tag: u64,
        got: Result<Vec<Stored>, FetchError>,
        out: &mut Effects,
    ) -> Option<(Caller, LogletId, Offset, ReadOutcome)> {
        let Some((caller, (loglet, first), plan)) = self.reads.take(tag) else {
            self.on_move_fetched(tag, got, out);
            return None;
        };
        let (reveals, locs) = (plan.reveals, plan.locs.clone());
        let outcome = match got.map(|stored| finish_read(plan, stored)) {
            Ok(Ok((counts, _))) if counts.is_empty() => ReadOutcome::NotHere,
            Ok(Ok((counts, batches))) => ReadOutcome::Ready(counts, batches, reveals),
            Ok(Err(error)) => ReadOutcome::Damaged(error.to_string()),
            // It may have been trimmed, or moved, while the disk was asked.
            Err(error) => match self.loglets.get(&loglet).and_then(|k| k.runs.holding(first)) {
                None => ReadOutcome::NotHere,
                Some((_, run)) if !matches!(run.place, Place::At(loc) if locs.contains(&loc)) => {
                    ReadOutcome::Busy
                }
                Some(_) => ReadOutcome::Damaged(error.reason),
            },
        };
        Some((caller, loglet, first, outcome))
    }

    /// The journal is closed: what was on its way to the disk is lost to this life; the durable state goes on answering.
    pub fn on_closed(&mut self) {
        self.staged.clear();
    }

    /// Figures, under a prefix of names.
    pub fn measure(&self, names: [&'static str; 5], out: &mut Vec<Measure>) {
        let figures = [
            self.loglets.len() as f64,
            self.tombstones.len() as f64,
            self.cache.used_bytes() as f64,
            self.reads.len() as f64,
            self.entry_bytes as f64,
        ];
        out.extend(names.into_iter().zip(figures).map(|(name, value)| Measure { name, label: None, value }));
    }
}
