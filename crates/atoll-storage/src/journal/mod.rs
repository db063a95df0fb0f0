//! The journal of a node stores what the node's roles must not forget. It consists of a sequence of files. One sync covers everything that
//! arrived while the previous sync was running.
//!
//! **Segments** are filled with zeros ahead of time and reused, so that a write never allocates. A batch starts on a block of its own (X3:
//! a block with acknowledged bytes is never written again) and never spans segments. Each record has a checksum over its content and the
//! segment's generation. A closed segment has a footer that says where its batches end. The location of a record ([`Loc`]) is its segment's
//! generation, offset and length; the journal keeps no other index.
//!
//! **Recovery** tells a torn tail from rot (native-T9): every batch header, segment header and footer says what was synced when it was
//! written. A record that is missing at or below the highest such number is rot: recovery refuses the directory and reports file and
//! offset. Records that are missing above it were never acknowledged, even if some of their sectors survived. Recovery cuts them off and
//! never reads them again, because a restart continues in a new segment. Headers cannot reveal rot in the very last batch;
//! [`Journal::mark`] keeps that window small.
//!
//! **Lost files** (a segment, the checkpoint, the folder, the end of the last segment since the last mark) are detected by a manifest next
//! to the folder. It records which segments exist, what was synced, and what a checkpoint covers. Recovery refuses a directory that lacks
//! any of it, and the error names what is missing.
//!
//! **Space** is reserved before it is written: only preparing a segment can find the disk full. A segment is recycled when all its entries
//! are freed and a checkpoint covers its facts (X4). Sparse segments are reported, so that the owner of their entries can move them.
//!
//! **Failure**: a failed write or sync closes the journal permanently, and every later call returns the reason (native-T22).
//!
//! | file | what it is |
//! | --- | --- |
//! | `format.rs` | the encoding of a segment |
//! | `manifest.rs` | the list of files that must exist, kept outside the segments |
//! | `segment.rs` | what is still needed in one segment |
//! | `direct.rs` | writing a small batch while no thread waits for it |
//! | `prepare.rs` | preparing segments on another thread than the writer's |
//! | `recover.rs`, `evidence.rs` | reading the journal back at a start; what was synced when it was written |
//! | `listed.rs` | checks that every file that must exist does exist |
//! | `checkpoint.rs` | checkpoints of the facts |
//! | `space.rs` | freeing, recycling, sparse segments, and when the journal refuses entries |
//! | `spares.rs` | files that can be reused |
//! | `reader.rs` | reading records by location |

mod checkpoint;
mod direct;
mod evidence;
mod format;
mod listed;
pub(crate) mod manifest;
mod prepare;
mod reader;
mod recover;
mod segment;
mod space;
mod spares;

use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::sync::Arc;

use atoll_core::testing::hit;
use atoll_core::{JournalBatch, Loc, Lsn, StorageId};

use crate::disk::{Disk, DiskError, DiskPath, File};
use format::{BATCH_HEADER_BYTES, BatchHeader, Seed, padded, put_record, record_bytes};
use manifest::Manifest;
use prepare::Source;
use reader::Readable;
use segment::{Active, MIN_BLOCK_BYTES, Ready, Segment, Slacks};
use spares::Spares;

pub use checkpoint::CHECKPOINT_FORMAT;
pub use checkpoint::{Aside, CheckpointJob};
pub use format::SEGMENT_FORMAT;
pub use manifest::MANIFEST_FORMAT;
pub use prepare::{PrepareJob, Prepared};
pub use reader::JournalReader;
pub use recover::{RecoverError, Recovered};
pub use space::Stats;

/// The directory of segments.
pub(crate) const JOURNAL_DIR: &str = "journal";
/// The largest block: padding comes from a buffer of this length.
const MAX_BLOCK_BYTES: u32 = 65_536;
/// The largest segment: a [`Loc`] has a 32-bit offset, and recovery holds two segments in memory.
const MAX_SEGMENT_BYTES: u32 = 1 << 30;
static ZEROS: [u8; MAX_BLOCK_BYTES as usize] = [0; MAX_BLOCK_BYTES as usize];

fn journal_dir() -> DiskPath {
    DiskPath::fixed(JOURNAL_DIR)
}

fn segment_path(generation: u64) -> DiskPath {
    DiskPath::fixed(&format!("{JOURNAL_DIR}/{generation:016x}.seg"))
}

fn spare_path(generation: u64) -> DiskPath {
    DiskPath::fixed(&format!("{JOURNAL_DIR}/spare-{generation:016x}.seg"))
}

fn checkpoint_path() -> DiskPath {
    DiskPath::fixed("journal/checkpoint")
}

fn reserve_path() -> DiskPath {
    DiskPath::fixed("journal/reserve")
}

/// Returns the generation in a segment's file name.
fn generation_of(name: &str) -> Option<u64> {
    let hex = name.strip_suffix(".seg").filter(|h| h.len() == 16)?;
    u64::from_str_radix(hex, 16).ok()
}

pub(crate) fn is_segment_name(name: &str) -> bool {
    generation_of(name).is_some()
}

/// Sizes and limits of a journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// The data directory's storage identity. Every checksum covers it.
    pub storage: StorageId,
    /// Length of a segment in bytes, at least four blocks. Larger segments roll less often; smaller ones let a trim return space sooner.
    pub segment_bytes: u32,
    /// Length in bytes of the segment that a start makes if there is no spare, and of a segment that the writer has to make itself. It is
    /// small, so that neither takes long.
    pub first_segment_bytes: u32,
    /// The unit that is never written again once it holds acknowledged bytes: the device's block, in bytes. A power of two, 512 to 65536.
    /// Each batch takes whole blocks.
    pub block_bytes: u32,
    /// Segments prepared ahead of the active one.
    pub ready_segments: usize,
    /// Whole files kept for reuse; the same number of bytes is also kept in short files. Excess files are removed, but slowly: under load
    /// they are reused before that.
    pub spare_segments: usize,
    /// With the disk full and less than this many bytes left in prepared segments, the journal accepts only facts (contracts X5). Entries
    /// that were accepted before and still wait to be written use this space, too: it holds twice what a sequencer has in flight to a
    /// server, plus room for the facts. It costs nothing while the disk has room.
    pub fact_reserve_bytes: u64,
    /// Bytes kept in a file of zeros, which is given up if a checkpoint finds the disk full. The file is at least twice as long as the last
    /// checkpoint.
    pub checkpoint_reserve_bytes: u64,
    /// A checkpoint is due after this many bytes of facts since the last one, or after as many bytes as the last one was long if that is
    /// more.
    pub checkpoint_facts_bytes: u64,
    /// Closed segments may take this many percent of their live bytes plus two segments, or their live bytes plus `dead_segments` if that
    /// is more, before a sparse one is reported. A smaller value uses less disk and copies more.
    pub sparse_percent: u64,
    /// See `sparse_percent`. With room for only two, copies go into segments that soon become sparse again, and are copied over and over.
    /// This happened to entries of a hundred bytes among facts: about forty entries were copied for each change of a long log.
    pub dead_segments: u64,
    /// Makes the generations of new segments unpredictable; chosen at random at every start, and shown to nobody. The checksums of a
    /// segment cover its generation, and clients choose the payloads. A client that knew a later generation could write payloads that
    /// recovery takes for batches, where a payload is not behind the header of its own batch: in a torn batch, and in the file of a
    /// recycled segment. Without a secret, generations are consecutive, as tests need them that name segments.
    pub generation_secret: Option<u64>,
}

impl JournalOptions {
    /// Returns the options of a node: 64 MiB segments of 4 KiB blocks.
    pub fn new(storage: StorageId) -> Self {
        JournalOptions {
            storage,
            segment_bytes: 64 * 1024 * 1024,
            first_segment_bytes: 8 * 1024 * 1024,
            block_bytes: 4096,
            ready_segments: 1,
            spare_segments: 2,
            fact_reserve_bytes: 40 * 1024 * 1024,
            checkpoint_reserve_bytes: 4 * 1024 * 1024,
            checkpoint_facts_bytes: 16 * 1024 * 1024,
            sparse_percent: 150,
            dead_segments: 6,
            generation_secret: None,
        }
    }

    /// Returns the options of the simulator: everything rolls, recycles and runs out early.
    pub fn small(storage: StorageId) -> Self {
        JournalOptions {
            storage,
            segment_bytes: 64 * 1024,
            first_segment_bytes: 64 * 1024,
            block_bytes: 512,
            ready_segments: 1,
            spare_segments: 2,
            fact_reserve_bytes: 32 * 1024,
            checkpoint_reserve_bytes: 16 * 1024,
            checkpoint_facts_bytes: 32 * 1024,
            sparse_percent: 150,
            dead_segments: 2,
            generation_secret: None,
        }
    }

    /// Returns the length in bytes of the longest record that a segment can hold: head, payload, and a header of 24 bytes.
    pub fn max_record_bytes(&self) -> usize {
        self.max_record_bytes_in(self.segment_bytes)
    }

    /// Like [`JournalOptions::max_record_bytes`], for a segment of this length. The first and the last block of a segment hold no records.
    fn max_record_bytes_in(&self, segment_bytes: u32) -> usize {
        (segment_bytes - 2 * self.block_bytes) as usize - BATCH_HEADER_BYTES
    }

    /// Returns the generation of the segment that is made after the one of generation `last`. With a secret, it is up to 2^32 higher: a
    /// guess is right as rarely as a checksum that is chosen blindly, and the generations last for 2^32 segments.
    fn generation_after(&self, last: u64) -> u64 {
        let jump = self.generation_secret.map_or(0, |secret| mixed(secret ^ mixed(last)) >> 32);
        last.saturating_add(1 + jump)
    }

    fn check(&self) -> Result<(), JournalError> {
        let bad = |option, allowed| Err(JournalError::BadOption { option, allowed });
        let block = self.block_bytes;
        if !block.is_power_of_two() || !(MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block) {
            return bad("block_bytes", "a power of two from 512 to 65536");
        }
        let fine = |n: u32| n.is_multiple_of(block) && n / block >= 4 && n <= MAX_SEGMENT_BYTES;
        if !fine(self.segment_bytes) {
            return bad("segment_bytes", "whole blocks, at least four, at most 1 GiB");
        }
        if !fine(self.first_segment_bytes) || self.first_segment_bytes > self.segment_bytes {
            return bad("first_segment_bytes", "whole blocks, at least four, at most segment_bytes");
        }
        Ok(())
    }
}

/// Mixes the bits of a number (the finaliser of splitmix64).
fn mixed(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// What the operator can do about a refused directory.
const REJOIN: &str = "the node may have forgotten what it acknowledged, so this data directory must not be used: put back the current \
    file if you still have it, or move the whole directory away and start with an empty one; the node then joins under a new storage \
    identity and gets its data from its peers";

/// Why the journal refused or failed an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// A disk operation failed during recovery.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Synced data differs from what was written. The node must not serve what the journal held (native-T8, native-T9).
    #[error("{file} at byte {offset}: {what}; synced records are lost or changed; {REJOIN}")]
    Damaged {
        /// The file, below the data directory.
        file: String,
        /// The byte offset in the file.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// A file that must exist is missing, or the manifest is missing.
    #[error("{file} is missing: {why}; {REJOIN}")]
    Missing {
        /// The file, below the data directory.
        file: String,
        /// How the journal knows that the file must exist.
        why: &'static str,
    },
    /// A file is older than the version that was durable: somebody put back an older copy.
    #[error("{file} is an older copy: {why}; {REJOIN}")]
    Older {
        /// The file, below the data directory.
        file: String,
        /// How the journal knows that, with the found and the expected value.
        why: String,
    },
    /// Another version of the program wrote the file.
    #[error("{file} has format {found}, this program reads format {supported}")]
    UnsupportedFormat {
        /// The file, below the data directory.
        file: String,
        /// The format version of the file.
        found: u32,
        /// The format version that this program reads.
        supported: u32,
    },
    /// The file belongs to another data directory.
    #[error(
        "{file} belongs to storage {found}, this is storage {expected}: it is another data directory's; {REJOIN}"
    )]
    Foreign {
        /// The file, below the data directory.
        file: String,
        /// The storage identity in the file.
        found: StorageId,
        /// The storage identity of this directory.
        expected: StorageId,
    },
    /// A write or sync failed, now or earlier. Whether the data of that call is durable is unknown. Nothing more becomes durable until a
    /// restart runs recovery.
    #[error("the journal is closed until the node restarts: {reason}")]
    Closed {
        /// The first failure.
        reason: String,
    },
    /// No segment could be prepared. Nothing was written; the same call may succeed once there is space again.
    #[error("the disk is full: {needed_bytes} more bytes are needed; nothing was written")]
    NoSpace {
        /// The bytes that are missing.
        needed_bytes: u64,
    },
    /// A record is longer than any segment can hold. Nothing of the batch was written.
    #[error(
        "{lsn} is {bytes} bytes long; a segment takes records of up to {limit} bytes; nothing was written"
    )]
    TooLarge {
        /// The number of the record.
        lsn: Lsn,
        /// The length of the record on disk, in bytes.
        bytes: usize,
        /// The longest record that a segment can hold, in bytes.
        limit: usize,
    },
    /// An option is outside its range.
    #[error("journal option {option}: {allowed}")]
    BadOption {
        /// The name of the option.
        option: &'static str,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// The journal of one data directory; see the module documentation. All calls block, and only one thread makes them.
pub struct Journal {
    disk: Arc<dyn Disk>,
    options: JournalOptions,
    /// The last record written.
    last: Lsn,
    /// The last record known to be durable.
    synced: Lsn,
    /// The last record that a [`Journal::mark`] has recorded as synced.
    marked: Lsn,
    active: Active,
    /// Files of the segments that were closed since the last sync. They must be synced before the active one.
    closing: Vec<Box<dyn File>>,
    /// Prepared segments, in the order of use.
    ready: VecDeque<Ready>,
    closed: BTreeMap<u64, Segment>,
    spares: Spares,
    /// The unused ends of closed segments, which are to be given back.
    slacks: Slacks,
    /// The segment that a running job shortens. The segment must not be recycled meanwhile, because the job opens the file by its name.
    shortening: Option<u64>,
    next_generation: u64,
    /// The generation of the job that is under way.
    job: Option<u64>,
    full: Option<space::Full>,
    failure: Option<String>,
    /// The last checkpoint holds all facts up to here.
    covers: Lsn,
    fact_bytes: u64,
    reserved_bytes: u64,
    /// The sparse segment that was reported last, and the bytes written up to then.
    asked: Option<(u64, u64)>,
    readable: Arc<Readable>,
    /// What a restart must find on the disk.
    manifest: Arc<Manifest>,
    scratch: Vec<u8>,
    /// Whether a batch of [`Journal::begin_batch`] is under way.
    under_way: bool,
    stats: Stats,
}

/// How the records of a segment are written.
enum Way {
    /// Through the page cache; a sync makes them durable.
    Cached,
    /// By [`crate::DirectFile::begin`].
    Direct,
}

/// The records of a batch that go into one segment.
struct Chunk {
    /// How many rolls come before it, counted from the start of the batch.
    ahead: usize,
    records: std::ops::Range<usize>,
    body_bytes: usize,
}

impl Journal {
    /// Returns the number of the last record written, whether it is durable or not.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Returns the number of the last durable record. All records before it are durable, too.
    pub fn synced(&self) -> Lsn {
        self.synced
    }

    /// Returns a reader of this journal's records, for use on any thread.
    pub fn reader(&self) -> JournalReader {
        JournalReader(self.readable.clone())
    }

    /// Writes a batch and returns the location of each record, in order. Nothing of it is durable before [`Journal::sync`]. Payloads are
    /// written without being copied.
    ///
    /// # Errors
    /// After [`JournalError::NoSpace`] or [`JournalError::TooLarge`], nothing was written and the journal stays open. Any other error
    /// closes the journal permanently, and whether the batch was written is unknown.
    pub fn write(&mut self, batch: &JournalBatch) -> Result<Vec<(Lsn, Loc)>, JournalError> {
        self.check_open()?;
        self.check_numbers(batch);
        let chunks = self.plan(batch)?;
        let mut places = Vec::with_capacity(batch.records.len());
        let mut rolled = 0;
        for chunk in chunks {
            let written = (|| {
                while rolled < chunk.ahead {
                    self.roll()?;
                    rolled += 1;
                }
                self.write_chunk(batch, &chunk, &mut places, Way::Cached)
            })();
            written.map_err(|error| self.fail(&error))?;
        }
        self.stats.batches += 1;
        Ok(places)
    }

    fn check_numbers(&self, batch: &JournalBatch) {
        for (i, (lsn, _)) in batch.records.iter().enumerate() {
            let expected = Lsn(self.last.0 + 1 + i as u64);
            atoll_core::invariant!(*lsn == expected, "the journal was given {lsn}, expected {expected}");
        }
    }

    /// Returns whether the active segment can hold the whole batch: [`Journal::write`] and [`Journal::sync`] then touch that one file and
    /// make no other.
    pub fn has_room_for(&self, batch: &JournalBatch) -> bool {
        let body: usize = batch.records.iter().map(|(_, record)| record_bytes(record)).sum();
        let whole = padded(BATCH_HEADER_BYTES + body, self.options.block_bytes);
        self.closing.is_empty() && whole as u64 <= self.active.room() && !self.eats_reserve(whole as u64)
    }

    /// Splits a batch over segments, and prepares every segment that it needs before a byte is written (X5).
    fn plan(&mut self, batch: &JournalBatch) -> Result<Vec<Chunk>, JournalError> {
        let batch_bytes: u64 = batch.records.iter().map(|(_, record)| record_bytes(record) as u64).sum();
        while self.eats_reserve(batch_bytes) {
            hit("journal.space.reserve");
            if !self.make_inline(0)? {
                break;
            }
        }
        let limit = self.options.max_record_bytes();
        let block = self.options.block_bytes;
        let mut chunks = Vec::new();
        let (mut ahead, mut start, mut body) = (0, 0, 0);
        let mut room = self.active.room();
        for (i, (lsn, record)) in batch.records.iter().enumerate() {
            let bytes = record_bytes(record);
            if bytes > limit {
                return Err(JournalError::TooLarge { lsn: *lsn, bytes, limit });
            }
            while padded(BATCH_HEADER_BYTES + body + bytes, block) as u64 > room {
                if start < i {
                    chunks.push(Chunk { ahead, records: start..i, body_bytes: body });
                }
                (start, body) = (i, 0);
                ahead += 1;
                if self.ready.len() < ahead {
                    self.prepare_inline(bytes)?;
                }
                room = self.ready[ahead - 1].room();
            }
            body += bytes;
        }
        if start < batch.records.len() {
            chunks.push(Chunk { ahead, records: start..batch.records.len(), body_bytes: body });
        }
        Ok(chunks)
    }

    /// Makes a segment that can hold a record of this size, when the writer was faster than the preparation.
    fn prepare_inline(&mut self, record_bytes: usize) -> Result<(), JournalError> {
        match self.make_inline(record_bytes)? {
            true => Ok(()),
            false => Err(JournalError::NoSpace { needed_bytes: self.options.segment_bytes.into() }),
        }
    }

    /// Makes a segment that can hold a record of this size. Returns false if the disk is full. Every caller of the journal waits for it, so
    /// a new file is short; the regular preparation continues meanwhile.
    fn make_inline(&mut self, record_bytes: usize) -> Result<bool, JournalError> {
        hit("journal.segment.inline");
        self.stats.inline_prepares += 1;
        let mut make = self.make(record_bytes);
        let source = make.source;
        let short = self.options.first_segment_bytes;
        if matches!(source, Source::New) && record_bytes <= self.options.max_record_bytes_in(short) {
            make.file_bytes = short.into();
        }
        let made = make.run(&*self.disk, &mut || {});
        let there = made.is_ok();
        self.adopt(source, made)?;
        Ok(there)
    }

    /// Closes the active segment and continues in the next one, which must have been prepared.
    fn roll(&mut self) -> Result<(), DiskError> {
        hit("journal.segment.roll");
        let Some(ready) = self.ready.pop_front() else {
            atoll_core::invariant!(false, "a roll without a prepared segment");
            return Err(DiskError::NotFound { path: JOURNAL_DIR.to_owned() });
        };
        let footer = self.active.footer(self.last, self.synced).to_bytes(self.active.seed);
        let at = self.active.segment.file_bytes - u64::from(self.active.block_bytes);
        self.active.file.write_at(at, &[IoSlice::new(&footer)])?;
        let seed = Seed::new(self.options.storage, ready.generation);
        self.readable.add(ready.generation);
        let mut old = std::mem::replace(&mut self.active, Active::new(ready, seed));
        old.segment.last_lsn = self.last;
        self.closing.push(old.file);
        self.closed.insert(old.segment.generation, old.segment);
        Ok(())
    }

    fn write_chunk(
        &mut self,
        batch: &JournalBatch,
        chunk: &Chunk,
        places: &mut Vec<(Lsn, Loc)>,
        way: Way,
    ) -> Result<(), DiskError> {
        let records = &batch.records[chunk.records.clone()];
        let active = &mut self.active;
        let first_lsn = Lsn(self.last.0 + 1);
        let header = BatchHeader {
            offset: active.position,
            count: records.len() as u32,
            body_bytes: chunk.body_bytes as u32,
            first_lsn,
            synced_upto: self.synced,
        };
        let scratch = &mut self.scratch;
        scratch.clear();
        scratch.extend(header.to_bytes(active.seed));
        let mut heads = Vec::with_capacity(records.len());
        let mut offset = active.position as usize + BATCH_HEADER_BYTES;
        for (lsn, record) in records {
            let len_bytes = record_bytes(record) as u32;
            put_record(*lsn, record, len_bytes, active.seed, scratch);
            heads.push(scratch.len());
            let loc = Loc { segment: active.segment.generation, offset_bytes: offset as u32, len_bytes };
            active.segment.add(*lsn, record.kind, loc);
            if record.kind == atoll_core::RecordKind::Fact {
                self.fact_bytes += u64::from(len_bytes);
            }
            places.push((*lsn, loc));
            offset += len_bytes as usize;
        }
        let len = BATCH_HEADER_BYTES + chunk.body_bytes;
        let whole = padded(len, active.block_bytes);
        let mut slices = Vec::with_capacity(2 * records.len() + 1);
        let mut from = 0;
        for (end, (_, record)) in heads.iter().zip(records) {
            if !record.payload.is_empty() {
                slices.push(IoSlice::new(&scratch[from..*end]));
                slices.push(IoSlice::new(&record.payload));
                from = *end;
            }
        }
        slices.push(IoSlice::new(&scratch[from..]));
        slices.push(IoSlice::new(&ZEROS[..whole - len]));
        match way {
            Way::Cached => active.file.write_at(active.position.into(), &slices)?,
            Way::Direct => active.direct.begin(active.position.into(), &slices)?,
        }
        active.position += whole as u32;
        active.first_lsn.get_or_insert(first_lsn);
        active.dirty = true;
        active.claims = self.synced;
        self.last = Lsn(self.last.0 + records.len() as u64);
        self.stats.written_bytes += whole as u64;
        self.stats.record_bytes += chunk.body_bytes as u64;
        Ok(())
    }

    /// Makes everything written so far durable (fdatasync of the segment files) and returns the number of the last record. It costs nothing
    /// if nothing was written since the last sync. The host writes all waiting records as one batch before it calls this: that is the group
    /// commit.
    ///
    /// # Errors
    /// An error closes the journal permanently. A failed sync is never retried, because a retry may report success although pages were lost
    /// (native-T22).
    pub fn sync(&mut self) -> Result<Lsn, JournalError> {
        self.check_open()?;
        if self.active.dirty || !self.closing.is_empty() {
            let synced = self.closing.iter_mut().try_for_each(|file| file.sync_data());
            let synced = synced.and_then(|()| self.active.file.sync_data());
            synced.map_err(|error| self.fail(&error))?;
            self.closing.clear();
            self.all_synced()?;
        }
        Ok(self.synced)
    }

    /// Everything that was written is durable.
    fn all_synced(&mut self) -> Result<(), JournalError> {
        self.active.dirty = false;
        self.synced = self.last;
        self.active.proves = self.active.claims;
        self.stats.syncs += 1;
        self.recycle()
    }

    /// Records on disk that everything so far is synced, unless a later batch has already said so. From then on, recovery can tell rot in
    /// the last batch from a torn batch, and detects a segment that ends earlier than it did. Call it when the journal is idle, and before
    /// a clean stop. It writes one block, which the next sync covers, and writes and syncs the manifest.
    pub fn mark(&mut self) -> Result<(), JournalError> {
        self.check_open()?;
        let block = self.active.block_bytes;
        let known = self.marked >= self.last || self.active.first_lsn.is_none();
        if known || self.synced < self.last {
            return Ok(());
        }
        self.manifest.raise(self.synced, self.covers).map_err(|error| self.fail(&error))?;
        if self.active.room() < u64::from(block) {
            return Ok(());
        }
        let mark = BatchHeader {
            offset: self.active.position,
            count: 0,
            body_bytes: 0,
            first_lsn: Lsn(self.last.0 + 1),
            synced_upto: self.synced,
        };
        let mut bytes = mark.to_bytes(self.active.seed).to_vec();
        bytes.resize(block as usize, 0);
        let at = self.active.position.into();
        self.active.file.write_at(at, &[IoSlice::new(&bytes)]).map_err(|error| self.fail(&error))?;
        self.active.position += block;
        self.active.dirty = true;
        self.active.claims = self.synced;
        self.marked = self.last;
        Ok(())
    }

    /// Checks that the journal is open, and that no batch is under way: there is one batch at a time (contracts X2).
    fn check_open(&self) -> Result<(), JournalError> {
        atoll_core::invariant!(!self.under_way, "the journal is used while a batch is under way");
        match &self.failure {
            Some(reason) => Err(JournalError::Closed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn fail(&mut self, error: &DiskError) -> JournalError {
        hit("journal.closed");
        let reason = self.failure.get_or_insert_with(|| error.to_string()).clone();
        JournalError::Closed { reason }
    }
}
