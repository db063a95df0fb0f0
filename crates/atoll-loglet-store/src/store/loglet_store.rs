//! The Loglets that a role stores: their durable state, and the path of every change through the journal.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;

use atoll_contract::loglet::offsets::ascend;
use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Encode, FetchError, Loc, Lsn, Measure, RecordKind, Stored, Tick,
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

/// The state that a protocol adds to a stored Loglet. A restart rebuilds it from the configuration.
pub trait Protocol: Sized {
    /// A decoded configuration. All Loglets with the same one share it.
    type Config: Clone + std::fmt::Debug;

    /// Decodes a configuration.
    fn read_config(config: &Bytes) -> Result<Self::Config, DecodeError>;

    /// Returns the protocol's part of a Loglet with this configuration.
    fn new(config: Self::Config) -> Self;
}

/// The number of decoded configurations that are kept for sharing. Successive segments mostly have the same one.
const SHARED_CONFIGS: usize = 64;

/// The seal bit, and its intermediate state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealing {
    /// Entries are accepted.
    Open,
    /// No more entries are accepted. The accepted entries, followed by the bit, are on the way to the disk (native-T4).
    Staged(Lsn),
    /// The bit is durable.
    Sealed,
}

/// One Loglet.
#[derive(Debug)]
pub struct LogletState<P> {
    /// The encoded configuration.
    pub config_bytes: Bytes,
    /// The seal bit. Never cleared (native-N2).
    pub seal: Sealing,
    /// The offset above every durable entry that did not come by back-fill. Never falls, not even after a restart or a trim (native-N2,
    /// native-T12).
    pub local_tail: Offset,
    /// Like `local_tail`, including entries on the way to the disk.
    pub staged_tail: Offset,
    /// Everything below is globally committed, as far as this node knows.
    pub known_tail: Offset,
    /// Everything below was trimmed. The trim may still be only staged: seeing it early, and not at all after a crash, is harmless.
    pub trim: Offset,
    /// Whether the chain's owner, or a check of a majority, has reported where the sealed Loglet ends.
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

    /// Raises the known tail, and returns whether it rose. The caller has checked the source of the value (native-K).
    pub fn raise_known_tail(&mut self, to: Offset) -> bool {
        let up = to > self.known_tail;
        self.known_tail = self.known_tail.max(to);
        up
    }

    /// Records that entries up to `end` are durable (native-N2).
    pub(super) fn raise_local_tail(&mut self, end: Offset) {
        self.local_tail = self.local_tail.max(end);
        ascend(&[("local tail", self.local_tail), ("staged tail", self.staged_tail)]);
    }

    /// Restores the local tail at a restart, even if the entries below it are trimmed (native-T12).
    pub(super) fn restore_tail(&mut self, tail: Offset) {
        if !mutant(mutants::NATIVE_T12) {
            self.local_tail = self.local_tail.max(tail);
            self.staged_tail = self.local_tail;
        }
    }

    /// Returns the newest staged record among the runs of `[from, end)`: [`Lsn::NONE`] if all are durable, None if some are missing.
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

    /// Returns whether something below the known tail is missing here.
    pub fn lags(&self) -> bool {
        !self.runs.missing(self.known_tail, 1).is_empty()
    }
}

impl<P> LogletState<P> {
    /// Returns the state, durable facts only (native-T9).
    pub fn state(&self) -> ServerState {
        ServerState {
            sealed: self.seal == Sealing::Sealed,
            local_tail: self.local_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }

    /// Returns the state as it will be once everything staged is durable.
    pub fn staged_state(&self) -> ServerState {
        ServerState {
            sealed: self.seal != Sealing::Open,
            local_tail: self.staged_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }
}

/// The meaning of a staged record, in journal order.
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

/// A change that became durable, on which the protocol acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durable {
    /// Entries of this Loglet. The local tail already includes them.
    Entries(LogletId),
    /// Back-filled entries, which do not count for the local tail.
    Filled(LogletId),
    /// The seal bit. The state does not include it yet, so that the protocol can finish what came before.
    Seal(LogletId),
}

/// The outcome of a read.
#[derive(Debug)]
pub enum ReadOutcome {
    /// The encoded batches and the number of entries in each. The answer must not be sent before this record is durable.
    Ready(Vec<u32>, Vec<Bytes>, Lsn),
    /// [`LogletStore::on_fetched`] will return the answer.
    Fetching,
    /// This store does not have the entries.
    NotHere,
    /// Too many reads are waiting for the disk.
    Busy,
    /// The stored copy cannot be read back.
    Damaged(String),
}

/// The limits of a Loglet store.
#[derive(Clone, Debug)]
pub struct LogletStoreOptions {
    /// Bytes of entries held in memory for tailing readers. If it is too small, readers that are a little behind read from the disk.
    pub cache_bytes: usize,
    /// The most reads of this node that may wait for the disk. Further reads are refused as busy.
    pub max_disk_reads: usize,
    /// The most bytes that compaction has in flight.
    pub move_bytes: usize,
}

impl Default for LogletStoreOptions {
    fn default() -> Self {
        LogletStoreOptions { cache_bytes: 32 << 20, max_disk_reads: 512, move_bytes: 4 << 20 }
    }
}

/// The Loglets of one role; see the module documentation.
#[derive(Debug)]
pub struct LogletStore<P: Protocol> {
    /// The stored Loglets, boxed because a third of the slots in a tree's nodes is empty.
    pub loglets: BTreeMap<LogletId, Box<LogletState<P>>>,
    /// The Loglets that were deleted, which is permanent; 16 bytes for each.
    pub tombstones: BTreeSet<LogletId>,
    /// Deleted Loglets. Once the tombstone is durable, their locations are freed, a limited number at a time.
    pub(super) dying: BTreeMap<LogletId, Box<LogletState<P>>>,
    /// The latest configurations, kept for sharing, so that an idle Loglet has no copy of its own.
    configs: BTreeMap<Bytes, P::Config>,
    /// Bytes of the entries of `loglets`. It is kept up to date, because a node may have a million Loglets to sum over.
    pub(super) entry_bytes: u64,
    /// The Loglets whose runs are to be removed, after a durable trim or tombstone: those runs that end at or below this offset.
    pub(super) sweeping: BTreeMap<LogletId, Offset>,
    pub(super) sweep_at: Option<Tick>,
    pub(super) staged: VecDeque<(Lsn, Staged)>,
    pub(super) cache: TailCache,
    reads: PendingReads<(LogletId, Offset)>,
    pub(super) next_tag: u64,
    pub(super) moves: Moves,
    /// The runs of `loglets` and `dying` by segment.
    pub(super) occupied: Occupied,
    pub(super) options: LogletStoreOptions,
    /// The checkpoint under construction.
    pub(super) walk: Option<Walk>,
    /// During recovery only: locations that are no longer needed.
    pub(super) dead_places: Vec<Loc>,
}

impl<P: Protocol> LogletStore<P> {
    /// Returns an empty store.
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

    /// Returns whether this Loglet was deleted, which is permanent (native-T10).
    pub fn is_gone(&self, loglet: LogletId) -> bool {
        self.tombstones.contains(&loglet)
            && !mutant(mutants::NATIVE_T10)
            && !mutant(atoll_contract::mutants::VLOG_REVIVED_LOGLET)
    }

    /// Returns a configuration, encoded and decoded. Loglets with the same configuration share it.
    pub fn config(&mut self, config: &Bytes) -> Result<(Bytes, P::Config), DecodeError> {
        if let Some((bytes, read)) = self.configs.get_key_value(config) {
            return Ok((bytes.clone(), read.clone()));
        }
        let read = P::read_config(config)?;
        // Copy the bytes: a slice would pin a network buffer for the life of the Loglet (X13).
        let bytes = Bytes::copy_from_slice(config);
        if self.configs.len() >= SHARED_CONFIGS {
            self.configs.clear();
        }
        self.configs.insert(bytes.clone(), read.clone());
        Ok((bytes, read))
    }

    /// Creates a Loglet with a configuration from [`LogletStore::config`]. The caller has checked that it may exist here and was not
    /// deleted.
    pub fn create(&mut self, loglet: LogletId, config: (Bytes, P::Config), out: &mut Effects) {
        let (bytes, read) = config;
        self.stage_fact(Fact::Create { loglet, config: bytes.clone() }, Staged::Create, out);
        self.loglets.entry(loglet).or_insert_with(|| Box::new(LogletState::new(P::new(read), bytes)));
    }

    /// Journals entries at `first` and returns their record. Entries that were `filled` in do not raise the staged tail.
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

    /// Journals the seal bit after every entry accepted so far, and returns its record: once the bit is durable, those entries are, too
    /// (native-T4).
    pub fn stage_seal(&mut self, loglet: LogletId, out: &mut Effects) -> Lsn {
        let lsn = self.stage_fact(Fact::Seal { loglet }, Staged::Seal { loglet }, out);
        if let Some(kept) = self.loglets.get_mut(&loglet) {
            kept.seal = Sealing::Staged(lsn);
        }
        lsn
    }

    /// Journals where the sealed Loglet ends, so that a restart knows what is missing.
    pub fn stage_known(&mut self, loglet: LogletId, known_tail: Offset, out: &mut Effects) -> Lsn {
        if let Some(kept) = self.loglets.get_mut(&loglet) {
            kept.settled = true;
        }
        self.stage_fact(Fact::Known { loglet, known_tail }, Staged::Known, out)
    }

    /// Trims the Loglet and returns the record to wait for. Once it is durable, [`LogletStore::sweep`] frees the locations.
    pub fn stage_trim(&mut self, loglet: LogletId, to: Offset, out: &mut Effects) -> Lsn {
        let Some(kept) = self.loglets.get_mut(&loglet) else { return Lsn::NONE };
        // Journal the trim again even if it changes nothing: the first one may still be on its way to the disk.
        if to < kept.trim || to == Offset::ZERO {
            return Lsn::NONE;
        }
        kept.trim = to;
        let local_tail = kept.staged_tail;
        self.stage_fact(Fact::Trim { loglet, to, local_tail }, Staged::Trim { loglet, to }, out)
    }

    /// Deletes the Loglet and returns the record to wait for. It leaves a tombstone even if the Loglet never existed here.
    pub fn stage_delete(&mut self, loglet: LogletId, out: &mut Effects) -> Lsn {
        let lsn = self.stage_fact(Fact::Tombstone { loglet }, Staged::Tombstone { loglet }, out);
        self.tombstones.insert(loglet);
        if let Some(kept) = self.loglets.remove(&loglet) {
            self.entry_bytes -= kept.runs.len_bytes();
            self.dying.insert(loglet, kept);
        }
        lsn
    }

    /// Reads consecutive entries, starting exactly at `range.start`.
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

    /// Takes an answer of the disk. Returns the caller of the read and its answer; None if the fetch was for compaction.
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
            // The run may have been trimmed, or moved, during the fetch.
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

    /// Reports that the journal is closed. Everything on its way to the disk is lost until a restart; the durable state still answers
    /// requests.
    pub fn on_closed(&mut self) {
        self.staged.clear();
    }

    /// Appends the store's figures under these names.
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
