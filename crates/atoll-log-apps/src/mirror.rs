//! A mirror of the store in a second log (TOCS'13 §3): always at some earlier index of the primary, by a lag that is reported.
//!
//! One process reads the primary from where the mirror ends and appends what it finds, with its positions, to the second log. It may die
//! at any point, and more than one may run: the mirror takes only the entries that come next, so copies do no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};

use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode, Reader, Tick};

use crate::entry::{self, AppEntry};
use crate::history::Index;
use crate::mutants;
use crate::player::{Machine, PlayError, PlayOptions, Player};
use crate::shared_log::{LogError, SharedLog, Slot};
use crate::store::{MapLimits, Readers, StoreMap, StoreRecord, value_in};

atoll_core::choice! {
    /// A record of the mirror's log.
    pub enum MirrorRecord {
        /// What is at consecutive positions of the primary, from `first` on. None for junk.
        1 = Copies { first: u64, slots: Vec<Option<Bytes>> },
        /// An operator has made the mirror the primary. Copies above it have no effect.
        2 = Promote { by: String },
    }
}

/// How far a mirror is behind, for everyone who wants to know.
#[derive(Debug)]
pub struct LagGauge {
    positions: AtomicU64,
    bound: u64,
}

impl LagGauge {
    /// Returns a gauge with a bound, in positions.
    pub fn new(bound: u64) -> Arc<Self> {
        Arc::new(LagGauge { positions: AtomicU64::new(0), bound })
    }

    /// Returns the lag in positions when it was last measured.
    pub fn positions(&self) -> u64 {
        self.positions.load(Ordering::Relaxed)
    }

    /// Takes a measurement: the primary's tail, and the position below which the mirror has everything. Returns the lag. A process of
    /// writers that is not the mirror's measures for itself.
    pub fn measure(&self, tail: u64, next: u64) -> u64 {
        let lag = tail.saturating_sub(next);
        self.positions.store(lag, Ordering::Relaxed);
        lag
    }

    /// Returns the lag if it is above the bound.
    pub fn over(&self) -> Option<u64> {
        Some(self.positions()).filter(|lag| *lag > self.bound)
    }
}

/// How far a mirror is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lag {
    /// Positions of the primary that are not in the mirror.
    pub positions: u64,
    /// For how long the oldest of them has been waiting, in nanoseconds, since this process first saw it.
    pub nanos: u64,
}

/// Why a mirror stopped. It may be tried again after an error of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MirrorError {
    /// One of the logs failed.
    #[error(transparent)]
    Play(#[from] PlayError),
    /// The primary was trimmed above where the mirror ends. The mirror must begin anew; register it with the compactor.
    #[error("position {0} of the primary was trimmed before it was copied")]
    Lost(u64),
    /// The mirror is a primary itself.
    #[error("the mirror was made the primary by {0}")]
    Promoted(String),
    /// One entry is too large for the mirror's limit.
    #[error("the entry at position {0} exceeds the limit of one copy")]
    TooLarge(u64),
}

impl From<LogError> for MirrorError {
    fn from(error: LogError) -> Self {
        MirrorError::Play(error.into())
    }
}

/// The state of a mirror: the primary's map at an earlier index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorMap {
    map: StoreMap,
    /// The primary's positions below are copied and applied.
    next: u64,
    promoted: Option<String>,
    /// Where the entries of the primary are that may still be needed: position of the mirror, place in that entry.
    places: BTreeMap<u64, (u64, u32)>,
}

impl MirrorMap {
    /// Returns an empty mirror. The limits are those of the primary's map.
    pub fn new(limits: MapLimits) -> Self {
        MirrorMap { map: StoreMap::new(limits), next: 0, promoted: None, places: BTreeMap::new() }
    }

    /// Returns the primary's map and its index.
    pub fn map(&self) -> (&StoreMap, Index) {
        (&self.map, self.next)
    }

    fn copies(&mut self, position: u64, first: u64, slots: Vec<Option<Bytes>>) -> Result<(), DecodeError> {
        if self.promoted.is_some() {
            return Ok(());
        }
        // Another mirror, or an append that was repeated, was here before; or something is missing in between.
        let skip = if mutant(mutants::APPS_A8) { 0 } else { self.next.saturating_sub(first) };
        if first > self.next || skip >= slots.len() as u64 {
            hit("log_apps.mirror.again");
            return Ok(());
        }
        // All or nothing: an unreadable entry leaves the state as it was.
        let records = slots.iter().map(|slot| match slot {
            Some(data) => record_in(data.clone()),
            None => Ok(None),
        });
        let records = records.collect::<Result<Vec<_>, _>>()?;
        let collected = self.map.collected();
        let from = if mutant(mutants::APPS_A8) { self.next } else { first + skip };
        for (at, (place, record)) in (from..).zip((0u32..).zip(records).skip(skip as usize)) {
            if let Some(record) = record {
                self.map.apply_record(at, record);
                self.places.insert(at, (position, place));
            }
            self.next = at + 1;
        }
        if self.map.collected() > collected {
            let (kept, map) = (self.map.collected(), &self.map);
            self.places.retain(|at, _| *at >= kept || map.is_live(*at));
        }
        Ok(())
    }
}

impl Machine for MirrorMap {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        match MirrorRecord::from_bytes(body)? {
            MirrorRecord::Copies { first, slots } => self.copies(position, first, slots),
            MirrorRecord::Promote { by } => {
                self.promoted.get_or_insert(by);
                Ok(())
            }
        }
    }

    fn save(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.map.encode(&mut out);
        self.next.encode(&mut out);
        self.promoted.encode(&mut out);
        let places: Vec<(u64, (u64, u32))> = self.places.iter().map(|(at, place)| (*at, *place)).collect();
        places.encode(&mut out);
        out.freeze()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        let mut from = Reader::new(state);
        let map = Decode::decode(&mut from)?;
        let (next, promoted) = (Decode::decode(&mut from)?, Decode::decode(&mut from)?);
        let places: Vec<(u64, (u64, u32))> = Decode::decode(&mut from)?;
        from.finish("the state of a mirror")?;
        *self = MirrorMap { map, next, promoted, places: places.into_iter().collect() };
        Ok(())
    }
}

/// A replica of a mirror.
pub type MirrorReplica = Player<MirrorMap>;

impl Player<MirrorMap> {
    /// Returns the primary's index that the mirror is at, and the hash of its map there. The primary had the same hash at that index.
    pub fn primary_hash(&self) -> (Index, u64) {
        self.view(|mirror, _| (mirror.next, entry::hash(&mirror.map.save())))
    }

    /// Returns the values of keys at the index that the mirror is at: a state that the primary had.
    pub async fn get(&self, keys: &[Bytes]) -> Result<(Index, Vec<Option<Bytes>>), PlayError> {
        let mut missing = 0;
        for _ in 0..READ_ATTEMPTS {
            let (index, places) = self.view(|mirror, _| {
                let place = |key: &Bytes| {
                    let at = mirror.map.position(key, mirror.next)?;
                    Some((at, mirror.places.get(&at).copied()))
                };
                (mirror.next, keys.iter().map(place).collect::<Vec<_>>())
            });
            let mut values = Vec::with_capacity(keys.len());
            for (key, place) in keys.iter().zip(places) {
                values.push(match place {
                    None => None,
                    Some((at, place)) => {
                        missing = at;
                        match self.copy_of(place).await? {
                            Some(copy) => value_in(copy, key),
                            None => break,
                        }
                    }
                });
            }
            if values.len() == keys.len() {
                return Ok((index, values));
            }
            // The mirror's log was trimmed there; a newer state may have the value elsewhere.
            self.play().await?;
        }
        Err(PlayError::Lost(missing))
    }

    /// Returns an entry of the primary from its place in the mirror. None if it is not there.
    async fn copy_of(&self, place: Option<(u64, u32)>) -> Result<Option<Bytes>, PlayError> {
        let Some((position, place)) = place else { return Ok(None) };
        let Slot::Data(data) = self.log().read(position).await? else { return Ok(None) };
        slot_in(data, place).map_err(|error| PlayError::Unreadable(position, error))
    }
}

/// How often a reader of the mirror looks again for a value that is not where it was.
const READ_ATTEMPTS: usize = 16;

/// Returns the record of the primary in an entry. None if it is a part of a checkpoint.
fn record_in(data: Bytes) -> Result<Option<StoreRecord>, DecodeError> {
    match AppEntry::open(data)? {
        AppEntry::Record { body } => StoreRecord::from_bytes(body).map(Some),
        AppEntry::Part { .. } => Ok(None),
    }
}

fn slot_in(data: Bytes, place: u32) -> Result<Option<Bytes>, DecodeError> {
    let AppEntry::Record { body } = AppEntry::open(data)? else { return Ok(None) };
    Ok(match MirrorRecord::from_bytes(body)? {
        MirrorRecord::Copies { slots, .. } => slots.into_iter().nth(place as usize).flatten(),
        MirrorRecord::Promote { .. } => None,
    })
}

/// Limits of a mirror's process.
#[derive(Clone, Copy, Debug)]
pub struct MirrorOptions {
    /// The most entries in one append to the mirror.
    pub max_entries: usize,
    /// The most bytes in one append to the mirror. An entry of this size is refused.
    pub max_bytes: usize,
}

impl Default for MirrorOptions {
    fn default() -> Self {
        MirrorOptions { max_entries: 64, max_bytes: 900 << 10 }
    }
}

/// The process that copies. Holds at most one batch in memory.
#[derive(Debug)]
pub struct Mirror {
    name: String,
    primary: Arc<dyn SharedLog>,
    replica: Arc<MirrorReplica>,
    readers: Arc<Readers>,
    gauge: Arc<LagGauge>,
    options: MirrorOptions,
    /// A tail that the mirror has not reached yet, and when it was seen first.
    waiting: Option<(u64, Tick)>,
}

impl Mirror {
    /// Returns a process that copies a primary to the log that `replica` plays. It registers as a reader by its name.
    pub fn new(
        name: &str,
        primary: Arc<dyn SharedLog>,
        replica: Arc<MirrorReplica>,
        readers: Arc<Readers>,
        gauge: Arc<LagGauge>,
        options: MirrorOptions,
    ) -> Self {
        Mirror { name: name.to_owned(), primary, replica, readers, gauge, options, waiting: None }
    }

    /// Returns a replica for a second log.
    pub fn replica(
        second: Arc<dyn SharedLog>,
        limits: MapLimits,
        options: PlayOptions,
    ) -> Arc<MirrorReplica> {
        Arc::new(Player::new(second, MirrorMap::new(limits), options))
    }

    /// Copies one batch, if there is something to copy, and returns the lag afterwards. After an error the gauge has the lag, if the
    /// primary still answers.
    pub async fn step(&mut self, now: Tick) -> Result<Lag, MirrorError> {
        let tail = self.primary.tail().await?;
        self.measure(tail, now);
        self.replica.play().await?;
        let (next, promoted) = self.replica.view(|mirror, _| (mirror.next, mirror.promoted.clone()));
        if let Some(by) = promoted {
            return Err(MirrorError::Promoted(by));
        }
        // If too many readers are registered, the primary may be trimmed too early; then `Lost` says so.
        self.readers.needs(&self.name, next);
        let slots = self.fetch(next, tail).await?;
        if !slots.is_empty() {
            let copies = entry::record(&MirrorRecord::Copies { first: next, slots });
            let position = self.replica.append_surely(copies).await?;
            self.replica.play_to(position + 1).await?;
            self.readers.needs(&self.name, self.replica.view(|mirror, _| mirror.next));
        }
        Ok(self.measure(tail, now))
    }

    /// Reads the next entries of the primary: as many as fit into one append.
    async fn fetch(&self, from: u64, tail: u64) -> Result<Vec<Option<Bytes>>, MirrorError> {
        let (mut slots, mut bytes) = (Vec::new(), 0);
        let end = tail.min(from.saturating_add(self.options.max_entries as u64));
        if end <= from {
            return Ok(slots);
        }
        for (position, slot) in (from..end).zip(self.primary.read_range(from, end).await?) {
            match slot {
                Slot::Data(data) if data.len() > self.options.max_bytes => {
                    if slots.is_empty() {
                        return Err(MirrorError::TooLarge(position));
                    }
                    break;
                }
                Slot::Data(data) => {
                    bytes += data.len();
                    if bytes > self.options.max_bytes {
                        break;
                    }
                    slots.push(Some(data));
                }
                Slot::Junk => slots.push(None),
                Slot::Trimmed => return Err(MirrorError::Lost(position)),
                Slot::Unwritten => {
                    // The next step finds it decided.
                    self.primary.fill(position).await?;
                    break;
                }
            }
        }
        Ok(slots)
    }

    fn measure(&mut self, tail: u64, now: Tick) -> Lag {
        let next = self.replica.view(|mirror, _| mirror.next);
        let positions = self.gauge.measure(tail, next);
        if positions == 0 {
            self.waiting = None;
            return Lag { positions, nanos: 0 };
        }
        if self.waiting.is_none_or(|(seen, _)| next >= seen) {
            self.waiting = Some((tail, now));
        }
        let since = self.waiting.map_or(now, |(_, at)| at);
        Lag { positions, nanos: now.0.saturating_sub(since.0) }
    }

    /// Makes the mirror the primary: an operator's decision, which is in its log from then on. Copies that come later have no effect.
    /// Returns the primary's index at which it stands.
    pub async fn promote(&self, by: &str) -> Result<Index, MirrorError> {
        let promote = entry::record(&MirrorRecord::Promote { by: by.to_owned() });
        let position = self.replica.append_surely(promote).await?;
        self.replica.play_to(position + 1).await?;
        Ok(self.replica.view(|mirror, _| mirror.next))
    }
}
