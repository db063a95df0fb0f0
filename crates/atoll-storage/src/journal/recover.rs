//! Reads a journal back, segment by segment, and tells a torn tail from rot (native-T9).
//!
//! Recovery makes two passes. The first goes backwards over the segments that may hold unsynced records, syncs them, and finds the
//! *evidence*: the highest number that some header says was synced. The second goes forward and hands out records. If a number is missing
//! and the evidence reaches it, that is rot; if the evidence does not reach it, the journal is cut there. Numbers may be missing between
//! two closed segments: the segments in between were recycled, because every segment that the manifest lists exists. The first pass is in
//! `evidence.rs`.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::Arc;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Checkpoint, Lsn, RecordKind, StorageId, Stored};
use bytes::Bytes;

use super::evidence::find_evidence;
use super::format::{
    BATCH_HEADER_BYTES, BadHeader, BatchHeader, FOOTER_BYTES, Footer, SEGMENT_FORMAT, Seed, SegmentHeader,
    UNLISTED_FORMAT, padded, parse_record,
};
use super::listed::{check_listed, check_unlisted};
use super::manifest::{Facts, MANIFEST, Manifest};
use super::prepare::{Make, REMOVE_BYTES, Source};
use super::reader::Readable;
use super::segment::{Active, MIN_BLOCK_BYTES, Ready, Segment, Slack, Slacks};
use super::spares::Spares;
use super::{
    Journal, JournalError, JournalOptions, MAX_BLOCK_BYTES, MAX_SEGMENT_BYTES, Stats, checkpoint,
    generation_of, journal_dir, reserve_path, segment_path, spare_path,
};
use crate::disk::{Disk, DiskError, DiskPath, File, Open};
use crate::mutants;

/// One item that recovery hands out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovered {
    /// Comes first, if there is a checkpoint: all facts up to the number that it covers.
    Checkpoint(Checkpoint),
    /// Follows in order: every entry, and every fact above what the checkpoint covers. Its bytes share a segment's buffer: copy what you
    /// keep (contracts X13).
    Record(Stored),
}

/// Why recovery failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError<E> {
    /// The journal is damaged or refused, or its disk failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The visitor refused an item.
    #[error("{0}")]
    Visitor(E),
}

impl<E> From<DiskError> for RecoverError<E> {
    fn from(error: DiskError) -> Self {
        RecoverError::Journal(error.into())
    }
}

/// A place in a file.
#[derive(Clone, Copy, Debug)]
struct Place {
    generation: u64,
    offset: usize,
}

impl Place {
    fn damaged(self, what: &'static str) -> JournalError {
        let file = segment_path(self.generation).to_string();
        JournalError::Damaged { file, offset: self.offset as u64, what }
    }
}

/// A segment in memory.
pub(super) struct Loaded {
    pub(super) header: SegmentHeader,
    pub(super) footer: Option<Footer>,
    file_bytes: u64,
    /// From the start to the end of the batches, if there is a footer; otherwise the whole file.
    pub(super) bytes: Bytes,
    pub(super) seed: Seed,
}

pub(super) fn load(file: &dyn File, generation: u64, storage: StorageId) -> Result<Loaded, JournalError> {
    let start = Place { generation, offset: 0 };
    let file_bytes = file.len()?;
    if file_bytes < u64::from(MIN_BLOCK_BYTES) || file_bytes > u64::from(MAX_SEGMENT_BYTES) {
        return Err(start.damaged("a segment is not this long"));
    }
    let mut block = [0; MIN_BLOCK_BYTES as usize];
    file.read_at(0, &mut block)?;
    let header = SegmentHeader::parse(&block).map_err(|bad| match bad {
        BadHeader::Damaged => start.damaged("its header is damaged"),
        BadHeader::Format(found) => JournalError::UnsupportedFormat {
            file: segment_path(generation).to_string(),
            found,
            supported: SEGMENT_FORMAT,
        },
    })?;
    if header.storage != storage {
        let file = segment_path(generation).to_string();
        return Err(JournalError::Foreign { file, found: header.storage, expected: storage });
    }
    let block_bytes = u64::from(header.block_bytes);
    let sane = header.block_bytes.is_power_of_two()
        && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&header.block_bytes)
        && file_bytes >= 2 * block_bytes;
    if header.generation != generation || !sane {
        return Err(start.damaged("its header belongs to another file"));
    }
    let seed = Seed::new(storage, generation);
    let mut last = [0; FOOTER_BYTES];
    file.read_at(file_bytes - block_bytes, &mut last)?;
    let footer = Footer::parse(&last, seed).filter(|f| {
        let end = u64::from(f.end);
        end.is_multiple_of(block_bytes) && end >= block_bytes && end <= file_bytes - block_bytes
    });
    let mut bytes = vec![0; footer.as_ref().map_or(file_bytes as usize, |f| f.end as usize)];
    let got = file.read_at(0, &mut bytes)?;
    bytes.truncate(got);
    Ok(Loaded { header, footer, file_bytes, bytes: bytes.into(), seed })
}

/// Returns the records of the batch that follows `header`, or the offset of the first record that is damaged.
pub(super) fn read_batch(loaded: &Loaded, header: &BatchHeader) -> Result<Vec<Stored>, usize> {
    let mut at = header.offset as usize + BATCH_HEADER_BYTES;
    let end =
        at.checked_add(header.body_bytes as usize).filter(|end| *end <= loaded.bytes.len()).ok_or(at)?;
    let mut records = Vec::new();
    for i in 0..header.count {
        let bytes = loaded.bytes.slice(at..end);
        let stored = parse_record(&bytes, loaded.header.generation, at as u32, loaded.seed).ok_or(at)?;
        if stored.lsn.0 != header.first_lsn.0 + u64::from(i) {
            return Err(at);
        }
        at += stored.loc.len_bytes as usize;
        records.push(stored);
    }
    if at == end { Ok(records) } else { Err(at) }
}

/// A segment with records and without a footer.
struct Unclosed {
    segment: Segment,
    block_bytes: u32,
    /// The offset after its last good batch.
    end: u32,
    first_lsn: Lsn,
}

/// The second pass.
struct Walk {
    storage: StorageId,
    evidence: Lsn,
    covers: Lsn,
    last: Lsn,
    /// Where records may be missing, if a later number shows a gap: the end of a segment without a footer, or an empty segment.
    suspect: Option<Place>,
    /// Whether the journal is cut: everything from here on was never acknowledged.
    cut: bool,
    /// Segments with records and a footer.
    closed: Vec<Segment>,
    /// Segments with records and without a footer.
    open: Vec<Unclosed>,
    /// Segments without a valid record, whose files can be reused.
    empty: Vec<u64>,
    /// The length of a new segment, in bytes.
    segment_bytes: u64,
    slacks: Slacks,
    fact_bytes: u64,
    /// Segments that may have records. None if there was no manifest yet.
    listed: Option<BTreeSet<u64>>,
}

impl Walk {
    /// Handles a gap after `last` at `place`: returns an error if the missing records were synced, otherwise cuts the journal there.
    fn missing(&mut self, place: Place, what: &'static str) -> Result<(), JournalError> {
        if self.last < self.evidence && !mutant(mutants::NATIVE_T9) {
            hit("journal.recover.rot");
            return Err(place.damaged(what));
        }
        hit("journal.recover.cut");
        self.cut = true;
        Ok(())
    }

    fn segment<E>(
        &mut self,
        loaded: &Loaded,
        visit: &mut dyn FnMut(Recovered) -> Result<(), E>,
    ) -> Result<(), RecoverError<E>> {
        let generation = loaded.header.generation;
        if self.listed.is_none() && loaded.header.format != UNLISTED_FORMAT {
            hit("journal.recover.missing");
            let why = "the segments were written under one";
            return Err(JournalError::Missing { file: MANIFEST.to_owned(), why }.into());
        }
        if loaded.header.floor > self.last && !self.cut {
            match self.suspect {
                Some(place) => self.missing(place, "synced records are missing after this place")?,
                None => self.last = loaded.header.floor,
            }
        }
        if self.cut {
            self.empty.push(generation);
            return Ok(());
        }
        let block = loaded.header.block_bytes as usize;
        let mut segment = Segment::new(generation, loaded.file_bytes);
        let mut first_lsn = None;
        let mut at = block;
        let mut trouble = at;
        while let Some(header) = BatchHeader::parse(&loaded.bytes, at, loaded.seed) {
            trouble = at;
            let records = match read_batch(loaded, &header) {
                Ok(records) => records,
                Err(offset) => {
                    trouble = offset;
                    break;
                }
            };
            if header.count > 0 {
                if !self.follows(generation, at, header.first_lsn, first_lsn.is_some())? {
                    break;
                }
                self.check_known(generation)?;
                first_lsn.get_or_insert(header.first_lsn);
            }
            for stored in records {
                self.record(&mut segment, stored, visit)?;
            }
            at += padded(BATCH_HEADER_BYTES + header.body_bytes as usize, loaded.header.block_bytes);
            trouble = at;
        }
        self.end_of_segment(loaded, segment, first_lsn, at, trouble)?;
        Ok(())
    }

    /// Returns whether a batch with this first number may follow here. False means that the journal ends before it.
    fn follows(
        &mut self,
        generation: u64,
        at: usize,
        first: Lsn,
        within: bool,
    ) -> Result<bool, JournalError> {
        let place = Place { generation, offset: at };
        if first <= self.last {
            return Err(place.damaged("this batch repeats numbers of an earlier one"));
        }
        if first.0 > self.last.0 + 1 {
            let recycled = !within && self.suspect.is_none() && first.0 - 1 <= self.evidence.0;
            if !recycled {
                self.missing(self.suspect.unwrap_or(place), "synced records are missing here")?;
                return Ok(false);
            }
            hit("journal.recover.gap");
        }
        self.suspect = None;
        Ok(true)
    }

    /// Checks that a segment with records is listed, because a segment is listed before a record goes into it. If it is not listed, either
    /// the segment or the manifest is an older copy.
    fn check_known(&self, generation: u64) -> Result<(), JournalError> {
        let is_known = self.listed.as_ref().is_none_or(|listed| listed.contains(&generation));
        if is_known || mutant(mutants::JOURNAL_LOSS_UNSEEN) {
            return Ok(());
        }
        hit("journal.recover.older");
        let file = segment_path(generation);
        let why = format!("it has records, and `{MANIFEST}` does not list it; one of the two was put back");
        Err(JournalError::Older { file: file.to_string(), why })
    }

    fn record<E>(
        &mut self,
        segment: &mut Segment,
        stored: Stored,
        visit: &mut dyn FnMut(Recovered) -> Result<(), E>,
    ) -> Result<(), RecoverError<E>> {
        self.last = stored.lsn;
        segment.add(stored.lsn, stored.record.kind, stored.loc);
        if stored.record.kind == RecordKind::Fact {
            if stored.lsn <= self.covers {
                return Ok(());
            }
            self.fact_bytes += u64::from(stored.loc.len_bytes);
        }
        visit(Recovered::Record(stored)).map_err(RecoverError::Visitor)
    }

    /// Classifies a segment whose batches end at `at`. If its footer says that they end later, `trouble` is the offset of the damage.
    fn end_of_segment(
        &mut self,
        loaded: &Loaded,
        segment: Segment,
        first_lsn: Option<Lsn>,
        at: usize,
        trouble: usize,
    ) -> Result<(), JournalError> {
        let generation = segment.generation;
        let whole = match &loaded.footer {
            Some(footer) if footer.end as usize == at => true,
            Some(_) if !self.cut => {
                let place = Place { generation, offset: trouble };
                self.missing(place, "a batch is damaged that the segment's footer counts")?;
                false
            }
            _ => false,
        };
        match first_lsn {
            Some(_) if whole => {
                self.note_slack(loaded, &segment);
                self.closed.push(segment);
            }
            Some(first_lsn) => {
                // This fits into 32 bits: a segment is at most 1 GiB long.
                let (end, block_bytes) = (at as u32, loaded.header.block_bytes);
                self.open.push(Unclosed { segment, block_bytes, end, first_lsn });
                self.suspect = Some(Place { generation, offset: trouble });
            }
            None => {
                self.empty.push(generation);
                if !whole {
                    self.suspect.get_or_insert(Place { generation, offset: trouble });
                }
            }
        }
        Ok(())
    }

    /// Notes the unused end of a segment that an earlier start closed but did not finish shortening. A segment of full length keeps an end
    /// of up to an eighth, because its file can be reused for the next segment.
    fn note_slack(&mut self, loaded: &Loaded, segment: &Segment) {
        let Some(footer) = &loaded.footer else { return };
        let (end, block_bytes) = (u64::from(footer.end), u64::from(loaded.header.block_bytes));
        let slack = loaded.file_bytes.saturating_sub(end + block_bytes);
        let is_whole = loaded.file_bytes == self.segment_bytes;
        let may_stay = if is_whole { self.segment_bytes / 8 } else { REMOVE_BYTES };
        if slack > may_stay {
            let mut block = footer.to_bytes(loaded.seed).to_vec();
            block.resize(block_bytes as usize, 0);
            self.slacks.insert(segment.generation, Slack { end, footer: block });
        }
    }

    fn finish(&mut self) -> Result<(), JournalError> {
        if !self.cut && self.last < self.evidence {
            match self.suspect {
                Some(place) => self.missing(place, "synced records are missing after this place")?,
                // The last segments were recycled.
                None => self.last = self.evidence,
            }
        }
        Ok(())
    }
}

/// The files of a journal, by the generation in their names.
pub(crate) struct Files {
    pub(crate) segments: Vec<u64>,
    pub(crate) spares: Vec<u64>,
    reserve: bool,
}

fn list(disk: &dyn Disk) -> Result<Files, DiskError> {
    let names = disk.list(&journal_dir())?;
    let mut segments: Vec<u64> = names.iter().filter_map(|n| generation_of(n)).collect();
    segments.sort_unstable();
    let spares = names.iter().filter_map(|n| generation_of(n.strip_prefix("spare-")?)).collect();
    if names.iter().any(|n| n == "checkpoint.new") {
        disk.remove(&DiskPath::fixed("journal/checkpoint.new"))?;
    }
    Ok(Files { segments, spares, reserve: names.iter().any(|n| n == "reserve") })
}

impl Journal {
    /// Opens the journal of a data directory, and makes an empty one if the directory is empty. Hands `visit` everything that it holds: the
    /// checkpoint first, then records in the order of their numbers. Returns the journal and the last number in use. Everything that was
    /// handed out is durable on return; a record that was not handed out never reappears. Recovery holds two segments in memory at a time,
    /// one of which is the newest. A directory from before there were manifests gets one.
    ///
    /// # Errors
    /// After [`JournalError::Damaged`], [`JournalError::Missing`], [`JournalError::Older`], [`JournalError::Foreign`] and the like, no
    /// segment was changed, and the records visited so far must not be served.
    pub fn recover<E>(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        visit: &mut dyn FnMut(Recovered) -> Result<(), E>,
    ) -> Result<(Journal, Lsn), RecoverError<E>> {
        options.check()?;
        let storage = options.storage;
        let mut files = list(&*disk)?;
        let manifest = Manifest::load(&disk, storage)?;
        let checkpoint = checkpoint::load(&*disk, storage)?;
        let covers = checkpoint.as_ref().map_or(Lsn::NONE, |c| c.covers);
        let mut facts = manifest.as_ref().map(Manifest::facts);
        if mutant(mutants::JOURNAL_LOSS_UNSEEN) {
            facts = facts.map(|_| Facts::default());
        }
        match &facts {
            Some(listed) => check_listed(&*disk, listed, &files, storage, checkpoint.as_ref())?,
            None => check_unlisted(&*disk, &files, checkpoint.is_some())?,
        }
        disk.create_dir(&journal_dir())?;
        disk.sync_dir(&DiskPath::root())?;
        let (evidence, mut newest_loaded) = find_evidence(&*disk, &files, storage, covers)?;
        let evidence = evidence.max(facts.as_ref().map_or(Lsn::NONE, |facts| facts.synced));
        let listed_newest = facts.as_ref().map_or(0, |facts| facts.newest);
        if let Some(checkpoint) = checkpoint {
            visit(Recovered::Checkpoint(checkpoint)).map_err(RecoverError::Visitor)?;
        }
        let mut walk = Walk {
            storage,
            evidence,
            covers,
            last: Lsn::NONE,
            suspect: None,
            cut: false,
            closed: Vec::new(),
            open: Vec::new(),
            empty: Vec::new(),
            segment_bytes: options.segment_bytes.into(),
            slacks: Slacks::new(),
            fact_bytes: 0,
            listed: facts.map(|facts| facts.segments),
        };
        for &generation in &files.segments {
            let loaded = match newest_loaded.take_if(|newest| newest.header.generation == generation) {
                Some(newest) => newest,
                None => load(&*disk.open(&segment_path(generation), Open::Read)?, generation, storage)?,
            };
            walk.segment(&loaded, visit)?;
        }
        walk.finish()?;
        let last = walk.last;
        let newest = files.segments.iter().chain(&files.spares).max().copied().unwrap_or(0);
        let newest = newest.max(listed_newest);
        put_away_empty(&*disk, &walk, &mut files)?;
        close_open(&*disk, &mut walk)?;
        let manifest = match manifest {
            Some(manifest) => manifest,
            None => adopt(&disk, &walk, newest)?,
        };
        let generation = options.generation_after(newest);
        let journal = Journal::start(disk, options, walk, files, manifest, generation)?;
        Ok((journal, last))
    }

    /// Makes the segment in which the journal continues, once everything on disk is in order. It is never the segment that was written
    /// last, because parts of a torn batch of the same generation may remain after its end.
    fn start(
        disk: Arc<dyn Disk>,
        options: JournalOptions,
        walk: Walk,
        files: Files,
        manifest: Manifest,
        generation: u64,
    ) -> Result<Journal, JournalError> {
        let manifest = Arc::new(manifest);
        let (spares, ready, reserved_bytes) =
            first_segment(&disk, &options, &files, &manifest, generation, walk.last)?;
        let readable = Arc::new(Readable::new(disk.clone(), options.storage));
        readable.add(ready.generation);
        walk.closed.iter().for_each(|s| readable.add(s.generation));
        let seed = Seed::new(options.storage, generation);
        let mut journal = Journal {
            disk,
            last: walk.last,
            synced: walk.last,
            marked: walk.last,
            active: Active::new(ready, seed),
            closing: Vec::new(),
            ready: Default::default(),
            closed: walk.closed.into_iter().map(|s| (s.generation, s)).collect(),
            spares,
            slacks: walk.slacks,
            shortening: None,
            next_generation: options.generation_after(generation),
            job: None,
            full: None,
            failure: None,
            covers: walk.covers,
            fact_bytes: walk.fact_bytes,
            reserved_bytes,
            asked: None,
            readable,
            manifest,
            scratch: Vec::new(),
            under_way: false,
            stats: Stats::default(),
            options,
        };
        journal.keep_reserve(0)?;
        Ok(journal)
    }
}

/// Gives a directory from before there were manifests a manifest, which lists the segments with records.
fn adopt(disk: &Arc<dyn Disk>, walk: &Walk, newest: u64) -> Result<Manifest, DiskError> {
    if newest > 0 {
        hit("journal.recover.adopt");
    }
    let segments = walk.closed.iter().map(|s| s.generation).collect();
    let facts = Facts { synced: walk.last, covers: walk.covers, newest, segments };
    Manifest::create(disk, walk.storage, facts)
}

/// Turns the files of empty and cut-off segments into spares, at least by name: the highest generation ever used stays visible and is never
/// used again. The renames are durable on return, before any earlier segment gets its footer.
fn put_away_empty(disk: &dyn Disk, walk: &Walk, files: &mut Files) -> Result<(), DiskError> {
    for &generation in &walk.empty {
        disk.rename(&segment_path(generation), &spare_path(generation))?;
        // A segment that somebody put back from an older copy replaces the spare that had been made of it.
        if !files.spares.contains(&generation) {
            files.spares.push(generation);
        }
    }
    if !walk.empty.is_empty() {
        disk.sync_dir(&journal_dir())?;
    }
    Ok(())
}

/// Writes a footer into the last block of every segment that was still being written. What lies between the last good batch and the footer
/// was never acknowledged. The journal returns that space later, piece by piece: on a file system that discards what it frees, every sync
/// of the device would wait for all of it at once. If space is short, it is returned here.
fn close_open(disk: &dyn Disk, walk: &mut Walk) -> Result<(), DiskError> {
    let scarce = disk.free_bytes().is_ok_and(|free| free < 2 * walk.segment_bytes);
    for Unclosed { mut segment, block_bytes, end, first_lsn } in std::mem::take(&mut walk.open) {
        hit("journal.recover.close");
        let generation = segment.generation;
        let seed = Seed::new(walk.storage, generation);
        let footer = Footer { end, first_lsn, last_lsn: segment.last_lsn, synced_upto: segment.last_lsn };
        let mut block = footer.to_bytes(seed).to_vec();
        block.resize(block_bytes as usize, 0);
        let mut file = disk.open(&segment_path(generation), Open::Write)?;
        let (end, least) = (u64::from(end), u64::from(end) + u64::from(block_bytes));
        if scarce {
            segment.file_bytes = least;
            file.set_len(least)?;
        }
        segment.file_bytes = segment.file_bytes.max(least);
        file.write_at(segment.file_bytes - u64::from(block_bytes), &[IoSlice::new(&block)])?;
        file.sync_data()?;
        if segment.file_bytes > least {
            walk.slacks.insert(generation, Slack { end, footer: block });
        }
        walk.closed.push(segment);
    }
    Ok(())
}

/// Makes the segment in which the journal continues, from a spare or a new file, and on a full disk from a spare of odd length or the
/// reserve. Returns the remaining spares, the segment, and the length of the reserve in bytes.
fn first_segment(
    disk: &Arc<dyn Disk>,
    options: &JournalOptions,
    files: &Files,
    manifest: &Arc<Manifest>,
    generation: u64,
    floor: Lsn,
) -> Result<(Spares, Ready, u64), JournalError> {
    let mut spares = Spares::read(&**disk, files, options)?;
    let mut reserved_bytes = match files.reserve {
        true => disk.open(&reserve_path(), Open::Read)?.len()?,
        false => 0,
    };
    let run = |source, file_bytes| {
        let (block_bytes, storage) = (options.block_bytes, options.storage);
        let (manifest, spares) = (manifest.clone(), files.spares.clone());
        let make = Make { generation, source, file_bytes, block_bytes, floor, storage, manifest, spares };
        make.run(&**disk, &mut || {})
    };
    let least = 4 * u64::from(options.block_bytes);
    let made = match spares.take(true) {
        Some(spare) => run(Source::Spare(spare), spare.1),
        None => run(Source::New, options.first_segment_bytes.into()),
    };
    let odd = matches!(made, Err(DiskError::NoSpace { .. })).then(|| spares.take_odd(least)).flatten();
    let made = match (made, odd) {
        (_, Some(odd)) => {
            hit("journal.recover.from_odd_spare");
            run(Source::Spare(odd), whole_blocks(odd.1, options))
        }
        (Err(DiskError::NoSpace { .. }), None) if files.reserve => {
            // With no segment at all, no fact could be written, and so nothing could be freed.
            hit("journal.recover.from_reserve");
            disk.remove(&reserve_path())?;
            disk.sync_dir(&journal_dir())?;
            let bytes = reserved_bytes.min(options.first_segment_bytes.into());
            reserved_bytes = 0;
            run(Source::New, whole_blocks(bytes, options).max(least))
        }
        (made, None) => made,
    };
    match made {
        Ok(ready) => Ok((spares, ready, reserved_bytes)),
        Err(DiskError::NoSpace { .. }) => {
            Err(JournalError::NoSpace { needed_bytes: options.first_segment_bytes.into() })
        }
        Err(error) => Err(error.into()),
    }
}

fn whole_blocks(bytes: u64, options: &JournalOptions) -> u64 {
    bytes - bytes % u64::from(options.block_bytes)
}
