//! The journal of a node holds what its roles must not forget. It is written in one file after another, with one sync for everything that
//! arrived in the meantime.
//!
//! **Segments** are filled with zeros ahead of time and reused, so that a write never allocates. A batch starts on a block of its own (X3:
//! a block with acknowledged bytes is never written again) and never spans segments; each of its records has a checksum over its content
//! and the segment's generation. A closed segment has a footer that says where its batches end. A record's place ([`Loc`]) is its segment's
//! generation, offset and length; the journal keeps no other index.
//!
//! **Recovery** tells a torn tail from rot (native-T9): every batch header, segment header and footer says what was synced when it was
//! written. Records that are missing up to the highest such number are rot: the directory is refused, with file and offset. Records that
//! are missing above it were never acknowledged, whichever of their sectors survived: they are cut off and never looked at again, because a
//! restart goes on in a new segment. The one case that no header can show is rot in the very last batch; [`Journal::mark`] makes that case
//! small.
//!
//! **Losses as a whole** (a segment, the checkpoint, the folder, the end of the last segment since the last mark) are detected by a
//! manifest next to the folder. It records which segments exist, what was synced, and what a checkpoint covers. A directory with a loss is
//! refused, and the error names what is missing.
//!
//! **Space** is reserved before it is written: only preparing a segment can find the disk full. Segments are recycled when their entries
//! are freed and a checkpoint covers their facts (X4). Sparse ones are reported, so that the owner of their entries moves them.
//!
//! **Failure**: after a failed write or sync the journal is closed for good and says why (native-T22).
//!
//! | file | what it is |
//! | --- | --- |
//! | `format.rs` | bytes of a segment |
//! | `manifest.rs` | what must exist, recorded outside of the segments |
//! | `segment.rs` | what is still needed in one |
//! | `prepare.rs` | making one, away from the writer |
//! | `recover.rs` | reading all of it back |
//! | `listed.rs` | checks that everything that must exist does exist |
//! | `checkpoint.rs` | facts, written aside |
//! | `space.rs` | freeing, recycling, sparse segments, what the journal takes |
//! | `spares.rs` | files for reuse |
//! | `reader.rs` | records by place |

mod checkpoint;
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
/// Largest block: padding comes from a buffer of this length.
const MAX_BLOCK_BYTES: u32 = 65_536;
/// Largest segment: places have 32-bit offsets, and recovery reads one at a time.
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

/// The generation in a segment's file name.
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
    /// The data directory's identity; part of every checksum.
    pub storage: StorageId,
    /// Length of a segment. Larger: fewer rolls; smaller: trims give space back sooner. At least four blocks.
    pub segment_bytes: u32,
    /// Length of the segment that a start makes if there is no spare one, and of one that the writer has to make itself: small, so that
    /// neither takes long.
    pub first_segment_bytes: u32,
    /// What is never written again once acknowledged: the device's block. A power of two, 512 to 65536. Each batch takes
    /// whole blocks.
    pub block_bytes: u32,
    /// Segments prepared ahead of the active one.
    pub ready_segments: usize,
    /// Files kept for reuse, and as many bytes of short ones; more are removed, but slowly: under load they are reused before that.
    pub spare_segments: usize,
    /// With the disk full and less than this left in prepared segments, only facts are taken (contracts X5). What has been taken by then
    /// and waits to be written goes there, too: twice what a sequencer has on its way to a server, and more for the facts. On a disk
    /// with room it costs nothing.
    pub fact_reserve_bytes: u64,
    /// Kept as a file of zeros, to be given up if a checkpoint finds the disk full; at least twice the last checkpoint.
    pub checkpoint_reserve_bytes: u64,
    /// Bytes of facts since the last checkpoint that make the next one due, if the last one was not longer.
    pub checkpoint_facts_bytes: u64,
    /// Closed segments may hold this many percent of their live bytes and two segments more, or their live bytes and `dead_segments`
    /// if that is more, before a sparse one is reported. Smaller: less disk, more copying.
    pub sparse_percent: u64,
    /// See `sparse_percent`. With room for only two, what was copied goes into segments that are sparse again at once, and is copied over
    /// and over. This happened to entries of a hundred bytes among facts: some forty were copied for each change of a long log.
    pub dead_segments: u64,
}

impl JournalOptions {
    /// For a node: 64 MiB segments of 4 KiB blocks.
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
        }
    }

    /// For the simulator: everything rolls, recycles and runs out early.
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
        }
    }

    /// Longest record, head and payload and 24 bytes, that a segment takes.
    pub fn max_record_bytes(&self) -> usize {
        self.max_record_bytes_in(self.segment_bytes)
    }

    /// The same of a segment of this length. Its first block and its last hold no records.
    fn max_record_bytes_in(&self, segment_bytes: u32) -> usize {
        (segment_bytes - 2 * self.block_bytes) as usize - BATCH_HEADER_BYTES
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

/// What to do about a directory that is refused.
const REJOIN: &str = "the node may have forgotten what it acknowledged, so this data directory must not be used: put back the current \
    file if it is somewhere, or move the whole directory away and start with an empty one; the node then joins under a new storage \
    identity and is rebuilt from its peers";

/// Why the journal refused or failed an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The disk failed during recovery.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Something that was synced is not as it was written. The node must not serve what it held (native-T8, native-T9).
    #[error("{file} at byte {offset}: {what}; synced records are lost or changed; {REJOIN}")]
    Damaged {
        /// The file, below the data directory.
        file: String,
        /// Where in it.
        offset: u64,
        /// What was found.
        what: &'static str,
    },
    /// A file that must exist is missing, or the manifest is missing.
    #[error("{file} is missing: {why}; {REJOIN}")]
    Missing {
        /// The file, below the data directory.
        file: String,
        /// How it is known.
        why: &'static str,
    },
    /// A file is older than what was durable in its place: it was put back from an older copy.
    #[error("{file} is an older copy: {why}; {REJOIN}")]
    Older {
        /// The file, below the data directory.
        file: String,
        /// How it is known, with what was found and what was expected.
        why: String,
    },
    /// Written by another version.
    #[error("{file} has format {found}, this program reads format {supported}")]
    UnsupportedFormat {
        /// The file, below the data directory.
        file: String,
        /// Its version.
        found: u32,
        /// The one that this program reads.
        supported: u32,
    },
    /// A file of another data directory.
    #[error(
        "{file} belongs to storage {found}, this is storage {expected}: it is another data directory's; {REJOIN}"
    )]
    Foreign {
        /// The file, below the data directory.
        file: String,
        /// Whose it is.
        found: StorageId,
        /// Whose it should be.
        expected: StorageId,
    },
    /// A write or sync failed, now or earlier. What was being written may or may not be durable. Nothing further will be, until a restart
    /// recovers.
    #[error("the journal is closed until the node restarts: {reason}")]
    Closed {
        /// The first failure.
        reason: String,
    },
    /// No segment can be prepared. Nothing was written; the same call may succeed once there is space again.
    #[error("the disk is full: {needed_bytes} more bytes are needed; nothing was written")]
    NoSpace {
        /// How many.
        needed_bytes: u64,
    },
    /// A record that no segment can hold. Nothing of the batch was written.
    #[error("{lsn} is {bytes} bytes long, a segment takes records of up to {limit}; nothing was written")]
    TooLarge {
        /// Which.
        lsn: Lsn,
        /// Its length on disk.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// An option outside its range.
    #[error("journal option {option}: {allowed}")]
    BadOption {
        /// Its name.
        option: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// See the module documentation. All calls block; one thread makes them.
pub struct Journal {
    disk: Arc<dyn Disk>,
    options: JournalOptions,
    /// The last record written.
    last: Lsn,
    /// The last record known to be durable.
    synced: Lsn,
    /// What a [`Journal::mark`] has made known already.
    marked: Lsn,
    active: Active,
    /// Files of segments closed since the last sync: to be synced before the active one.
    closing: Vec<Box<dyn File>>,
    /// Prepared, in the order of use.
    ready: VecDeque<Ready>,
    closed: BTreeMap<u64, Segment>,
    spares: Spares,
    /// What closed segments have behind their last batch, to be given back.
    slacks: Slacks,
    /// The segment that a job shortens: its file keeps its name meanwhile.
    shortening: Option<u64>,
    next_generation: u64,
    /// The job given out, by its generation.
    job: Option<u64>,
    full: Option<space::Full>,
    failure: Option<String>,
    /// The last checkpoint has all facts up to here.
    covers: Lsn,
    fact_bytes: u64,
    reserved_bytes: u64,
    /// The sparse segment reported last, and bytes written by then.
    asked: Option<(u64, u64)>,
    readable: Arc<Readable>,
    /// What a restart must find.
    manifest: Arc<Manifest>,
    scratch: Vec<u8>,
    stats: Stats,
}

/// Records of a batch that go into one segment.
struct Chunk {
    /// Segments to roll before.
    ahead: usize,
    records: std::ops::Range<usize>,
    body_bytes: usize,
}

impl Journal {
    /// The number of the last record written.
    pub fn last(&self) -> Lsn {
        self.last
    }

    /// Everything up to here is durable.
    pub fn synced(&self) -> Lsn {
        self.synced
    }

    /// A reader of this journal's records, for any thread.
    pub fn reader(&self) -> JournalReader {
        JournalReader(self.readable.clone())
    }

    /// Writes a batch; nothing of it is durable before [`Journal::sync`]. Payloads are written from where they are. Returns
    /// the place of each record, in order.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`], [`JournalError::TooLarge`]: nothing was written, the journal is as before. Otherwise
    /// closed for good, and whether it was written is unknown.
    pub fn write(&mut self, batch: &JournalBatch) -> Result<Vec<(Lsn, Loc)>, JournalError> {
        self.check_open()?;
        for (i, (lsn, _)) in batch.records.iter().enumerate() {
            let expected = Lsn(self.last.0 + 1 + i as u64);
            atoll_core::invariant!(*lsn == expected, "the journal was given {lsn}, expected {expected}");
        }
        let chunks = self.plan(batch)?;
        let mut places = Vec::with_capacity(batch.records.len());
        let mut rolled = 0;
        for chunk in chunks {
            let written = (|| {
                while rolled < chunk.ahead {
                    self.roll()?;
                    rolled += 1;
                }
                self.write_chunk(batch, &chunk, &mut places)
            })();
            written.map_err(|error| self.fail(&error))?;
        }
        self.stats.batches += 1;
        Ok(places)
    }

    /// Returns whether the active segment can hold the whole batch: [`Journal::write`] and [`Journal::sync`] then touch that one file and
    /// make no other.
    pub fn has_room_for(&self, batch: &JournalBatch) -> bool {
        let body: usize = batch.records.iter().map(|(_, record)| record_bytes(record)).sum();
        let whole = padded(BATCH_HEADER_BYTES + body, self.options.block_bytes);
        self.closing.is_empty() && whole as u64 <= self.active.room() && !self.eats_reserve(whole as u64)
    }

    /// Splits a batch over segments, and makes sure that they are there, before a byte is written (X5).
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

    /// Makes a segment when the writer was faster than the preparation, and has a record of this size.
    fn prepare_inline(&mut self, record_bytes: usize) -> Result<(), JournalError> {
        match self.make_inline(record_bytes)? {
            true => Ok(()),
            false => Err(JournalError::NoSpace { needed_bytes: self.options.segment_bytes.into() }),
        }
    }

    /// Makes a segment that takes such a record; false if the disk is full. Everything waits for it, so a new file is a short one: the
    /// preparation goes on meanwhile.
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

    /// Closes the active segment and goes on in the next one, which is ready.
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
        active.file.write_at(active.position.into(), &slices)?;
        active.position += whole as u32;
        active.first_lsn.get_or_insert(first_lsn);
        active.dirty = true;
        active.claims = self.synced;
        self.last = Lsn(self.last.0 + records.len() as u64);
        self.stats.written_bytes += whole as u64;
        self.stats.record_bytes += chunk.body_bytes as u64;
        Ok(())
    }

    /// Makes everything written durable (fdatasync of the segment file); returns the number of the last record. Free if nothing was
    /// written since. The host writes all records that wait as one batch before it calls this: the group commit.
    ///
    /// # Errors
    /// Closed for good: a failed sync is never retried, for it may report success over lost pages (native-T22).
    pub fn sync(&mut self) -> Result<Lsn, JournalError> {
        self.check_open()?;
        if self.active.dirty || !self.closing.is_empty() {
            let synced = self.closing.iter_mut().try_for_each(|file| file.sync_data());
            let synced = synced.and_then(|()| self.active.file.sync_data());
            synced.map_err(|error| self.fail(&error))?;
            self.closing.clear();
            self.active.dirty = false;
            self.synced = self.last;
            self.active.proves = self.active.claims;
            self.stats.syncs += 1;
            self.recycle()?;
        }
        Ok(self.synced)
    }

    /// Records that everything so far is synced, if no later batch has said so. From then on, rot in the last batch can be told from a torn
    /// one, and a file that ends earlier from the current one. Call it in a quiet moment, and before a clean stop. Takes one block, which
    /// the next sync covers, and a write and sync of the manifest.
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

    fn check_open(&self) -> Result<(), JournalError> {
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
