//! The compaction helper: it makes a log of the store trimmable, and trims it (apps §1).
//!
//! In this order, so that a crash between any two steps loses nothing:
//!
//! 1. A `Collect` record makes everything below a position garbage that no allowed index sees. From then on the map refuses commits that
//!    name garbage (apps-A2).
//! 2. In prefix mode, live values below the position are copied to the tail with `Move` records.
//! 3. A checkpoint of the map goes into the log, and is read back. A lost replica starts from it.
//! 4. What lies below the position, below the checkpoint's index and below what every registered reader still needs is trimmed: as a prefix
//!    up to the first live value, and in sparse mode also one by one between live values.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use atoll_contract::{ClientId, OpId};
use atoll_core::sync::lock;
use atoll_core::testing::mutant;

use super::client::MapReplica;
use super::record::StoreRecord;
use crate::entry::{self, AppEntry, Parts};
use crate::history::Index;
use crate::mutants;
use crate::player::{Machine, PlayError, Player};
use crate::shared_log::{LogError, Slot};

/// The most readers that may be registered.
const MAX_READERS: usize = 1024;

/// From which position on each reader still needs every entry: map replicas that are behind, mirrors.
#[derive(Debug, Default)]
pub struct Readers(Mutex<BTreeMap<String, u64>>);

impl Readers {
    /// Says that a reader needs everything from a position on. Returns false if too many are registered; then it is not.
    pub fn needs(&self, reader: &str, from: u64) -> bool {
        let mut readers = lock(&self.0);
        if readers.len() >= MAX_READERS && !readers.contains_key(reader) {
            return false;
        }
        readers.insert(reader.to_owned(), from);
        true
    }

    /// Forgets a reader, which needs nothing any more.
    pub fn remove(&self, reader: &str) {
        lock(&self.0).remove(reader);
    }

    /// Returns the lowest position that a reader needs. `u64::MAX` if there is none.
    pub fn lowest(&self) -> u64 {
        lock(&self.0).values().copied().min().unwrap_or(u64::MAX)
    }
}

/// Why a compaction stopped. What it has done so far is correct; the next one continues.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompactError {
    /// The log or the replica failed.
    #[error(transparent)]
    Play(#[from] PlayError),
    /// The checkpoint cannot be read back as a whole, so nothing was trimmed. Other compactors may have run at the same time.
    #[error("the checkpoint at index {0} cannot be read back")]
    Checkpoint(Index),
}

impl From<LogError> for CompactError {
    fn from(error: LogError) -> Self {
        CompactError::Play(error.into())
    }
}

/// How to compact.
#[derive(Clone, Copy, Debug)]
pub struct CompactOptions {
    /// How far below the tail a value may wait for its commit. A slower writer is refused, and starts again.
    pub patience: u64,
    /// How many indices below the tail remain readable, and can be rolled back to.
    pub history: u64,
    /// Move live values, so that whole prefixes can be trimmed. Otherwise they stay, and the log becomes sparse.
    pub moves: bool,
    /// The most values that one compaction moves.
    pub max_moves: usize,
    /// The largest state that is read back.
    pub max_checkpoint_bytes: usize,
}

impl Default for CompactOptions {
    fn default() -> Self {
        CompactOptions {
            patience: 100_000,
            history: 100_000,
            moves: true,
            max_moves: 10_000,
            max_checkpoint_bytes: 1 << 30,
        }
    }
}

/// What a compaction did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// How many values it copied to the tail.
    pub moved: u64,
    /// The index of its checkpoint.
    pub checkpoint: Index,
    /// Everything below was trimmed as a prefix.
    pub prefix: u64,
    /// How many positions above the prefix were trimmed one by one.
    pub singles: u64,
}

/// Compacts one log of the store. One at a time is enough; more do no harm.
#[derive(Debug)]
pub struct Compactor {
    map: Arc<MapReplica>,
    readers: Arc<Readers>,
    client: ClientId,
    runs: u64,
    /// Everything below was looked at by a sparse compaction of this process.
    swept: u64,
    /// What was live there, and may be garbage by now.
    kept: BTreeSet<u64>,
}

impl Compactor {
    /// Returns a compactor that works with this map replica. `client` is an incarnation, as for a client of the store.
    pub fn new(map: Arc<MapReplica>, readers: Arc<Readers>, client: ClientId) -> Self {
        Compactor { map, readers, client, runs: 0, swept: 0, kept: BTreeSet::new() }
    }

    /// Compacts once.
    pub async fn run(&mut self, options: CompactOptions) -> Result<Compacted, CompactError> {
        self.runs += 1;
        let mut done = Compacted::default();
        let tail = self.map.play().await?;
        let (below, keep) = (tail.saturating_sub(options.patience), tail.saturating_sub(options.history));
        let collect = self.map.append_surely(entry::record(&StoreRecord::Collect { below, keep })).await?;
        self.map.play_to(collect + 1).await?;
        if options.moves {
            done.moved = self.move_live(below, options.max_moves).await?;
        }
        let id = OpId { client: self.client, seq: self.runs };
        done.checkpoint = checkpoint_surely(&self.map, id, options.max_checkpoint_bytes).await?;
        self.trim(options, &mut done).await?;
        Ok(done)
    }

    /// Copies live values below a position to the tail. Whoever still reads an old position finds it trimmed later and asks again.
    async fn move_live(&self, below: u64, count: usize) -> Result<u64, CompactError> {
        let live = self.map.view(|map, _| map.live_below(below, count));
        let (mut moved, mut reached) = (0, 0);
        for (old, key) in live {
            let Slot::Data(data) = self.map.log().read(old).await? else { continue };
            let Some(value) = super::value_in(data, &key) else { continue };
            let copy = entry::record(&StoreRecord::Move { key, old, value });
            reached = self.map.append_surely(copy).await? + 1;
            moved += 1;
        }
        self.map.play_to(reached).await?;
        Ok(moved)
    }

    async fn trim(&mut self, options: CompactOptions, done: &mut Compacted) -> Result<(), CompactError> {
        let (collected, first_live) = self.map.view(|map, _| {
            let first = map.live_below(u64::MAX, 1).first().map_or(u64::MAX, |(at, _)| *at);
            (map.collected(), first)
        });
        let needed = if mutant(mutants::APPS_A7) { u64::MAX } else { self.readers.lowest() };
        let bound = collected.min(done.checkpoint).min(needed);
        done.prefix = if mutant(mutants::APPS_A7) { bound } else { bound.min(first_live) };
        if done.prefix > 0 {
            self.map.log().trim_prefix(done.prefix).await?;
        }
        if options.moves {
            return Ok(());
        }
        self.kept = self.kept.split_off(&done.prefix);
        let again: Vec<u64> = self.kept.range(..bound).copied().collect();
        for position in again.into_iter().chain(self.swept.max(done.prefix)..bound) {
            // The map may have moved on, but what is garbage below `collected` stays garbage.
            if self.map.view(|map, _| map.is_live(position)) {
                self.kept.insert(position);
            } else {
                self.map.log().trim(position).await?;
                self.kept.remove(&position);
                done.singles += 1;
            }
        }
        self.swept = self.swept.max(bound);
        Ok(())
    }
}

/// Writes a checkpoint of a replica and reads it back, as a lost replica will. Returns its index. Checkpoints of more than `max_bytes` are
/// not found again.
pub(crate) async fn checkpoint_surely<M: Machine>(
    replica: &Player<M>,
    id: OpId,
    max_bytes: usize,
) -> Result<Index, CompactError> {
    let log = replica.log();
    let from = log.tail().await?;
    let index = replica.checkpoint(id).await?;
    let to = log.tail().await?;
    let mut parts = Parts::new(max_bytes);
    for position in from..to {
        let Slot::Data(data) = log.read(position).await? else { continue };
        if AppEntry::open(data).ok().and_then(|part| parts.take(&part)).is_some_and(|(at, _)| at == index) {
            return Ok(index);
        }
    }
    Err(CompactError::Checkpoint(index))
}
