//! Determines which segments are still needed, and what the journal accepts (native-T22, contracts X4, X5).

use atoll_core::testing::hit;
use atoll_core::{Loc, Space, invariant};

use super::prepare::{Make, Preparation, PrepareJob, Prepared, Shorten, Source, Task};
use super::segment::Ready;
use super::{Journal, JournalError, journal_dir, segment_path, spare_path};
use crate::disk::DiskError;

/// Figures of a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes written to segments, padding included.
    pub written_bytes: u64,
    /// Bytes of records among them, without padding and batch headers.
    pub record_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Syncs that had something to sync.
    pub syncs: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Length of the last checkpoint in bytes.
    pub checkpoint_bytes: u64,
    /// Segments that the writer had to prepare itself, because no job had prepared one in time.
    pub inline_prepares: u64,
    /// Segments recycled or removed.
    pub recycled: u64,
    /// Calls to free a location that was free already, or never held an entry.
    pub stray_frees: u64,
    /// Segments that hold records, the active one included.
    pub used_segments: u64,
    /// Segments that are prepared and not in use yet.
    pub ready_segments: u64,
    /// Files kept for reuse.
    pub spare_segments: u64,
    /// Bytes of entries that are not freed.
    pub live_bytes: u64,
    /// Bytes of all segment files, spares included.
    pub disk_bytes: u64,
    /// Bytes of facts since the last checkpoint.
    pub fact_bytes: u64,
}

/// While a full disk shows no more room than right after the failure, the journal tries to make a segment only after this many looks: 64
/// batches, or 16 s without a batch. Each failure doubles the number, up to the next constant.
const FIRST_PATIENCE: u64 = 64;
/// The greatest number of looks between two attempts: about four minutes without a batch. If a quota is used up, the figure of free bytes
/// never grows, and only an attempt shows that there is room again. Without a limit, a node that was full for a day would not look for as
/// long again.
const LONGEST_PATIENCE: u64 = 1024;

/// A disk with room for fewer new segments than this, plus the reserve, may be full before the next look.
const NEAR_SEGMENTS: u64 = 4;

/// The state of a journal that found the disk full.
pub(crate) struct Full {
    /// Bytes that were free right after the failure.
    pub free_bytes: u64,
    /// How often the free space was looked at since.
    pub asks: u64,
    /// While the free space has not grown, the number of looks before the next attempt.
    pub patience: u64,
    /// Not even a spare file could be used, because the file system had no room for an overwrite either.
    pub no_reuse: bool,
}

impl Journal {
    /// Returns the current figures.
    pub fn stats(&self) -> Stats {
        let ready: u64 = self.ready.iter().map(|r| r.file_bytes).sum();
        let used = self.closed.values().chain([&self.active.segment]);
        let (used_bytes, live_bytes) =
            used.fold((0, 0), |(used, live), s| (used + s.file_bytes, live + s.live_bytes));
        Stats {
            used_segments: self.closed.len() as u64 + 1,
            ready_segments: self.ready.len() as u64,
            spare_segments: self.spares.len() as u64,
            live_bytes,
            disk_bytes: used_bytes + ready + self.spares.bytes(),
            fact_bytes: self.fact_bytes,
            ..self.stats
        }
    }

    /// Frees entries that are no longer needed. A segment without live entries whose facts a checkpoint covers is recycled. Freeing is not
    /// durable: after a restart freed entries may be live again, and [`atoll_core::Role::recovered`] has to free them again. Freeing a
    /// location twice, or a location in a recycled segment, does nothing.
    pub fn free(&mut self, locs: &[Loc]) -> Result<(), JournalError> {
        self.check_open()?;
        let mut emptied = false;
        for loc in locs {
            let segment = if loc.segment == self.active.segment.generation {
                Some(&mut self.active.segment)
            } else {
                self.closed.get_mut(&loc.segment)
            };
            match segment.map(|s| (s.free(*loc), s.live_entries)) {
                Some((true, live)) => emptied |= live == 0,
                _ => self.stats.stray_frees += 1,
            }
        }
        if emptied { self.recycle() } else { Ok(()) }
    }

    /// Turns every segment that is no longer needed into a spare. The renames are not synced here. A restart that finds the old name finds
    /// only freed entries and covered facts, which is harmless. A [`PrepareJob`] syncs the directory before it reuses the file.
    pub(crate) fn recycle(&mut self) -> Result<(), JournalError> {
        // A restart takes a gap in the numbers for a loss, unless a header on disk proves that the missing records were synced: only
        // records up to `proven` may go. It also suspects a loss if a segment next to the gap looks empty: nothing may go while a closed
        // segment waits for its sync, or while a job prepares a segment that the writer has overtaken.
        let proven = self.active.proves;
        if !self.closing.is_empty() || self.job.is_some_and(|g| g < self.active.segment.generation) {
            return Ok(());
        }
        let covers = self.covers;
        let needless = self
            .closed
            .values()
            .filter(|s| s.live_entries == 0 && s.last_fact <= covers && s.last_lsn <= proven)
            .filter(|s| self.shortening != Some(s.generation))
            .map(|s| (s.generation, s.file_bytes))
            .collect::<Vec<_>>();
        for (generation, file_bytes) in needless {
            hit("journal.segment.recycle");
            self.readable.forget(generation);
            self.closed.remove(&generation);
            self.slacks.remove(&generation);
            self.stats.recycled += 1;
            self.put_away(generation, file_bytes).map_err(|error| self.fail(&error))?;
        }
        Ok(())
    }

    /// Turns a segment's file into a spare, at least by name.
    fn put_away(&mut self, generation: u64, file_bytes: u64) -> Result<(), DiskError> {
        self.disk.rename(&segment_path(generation), &spare_path(generation))?;
        self.spares.put(generation, file_bytes);
        Ok(())
    }

    /// Returns the next background job: the one of [`Journal::needs_segment`], or else the one of [`Journal::gives_back`].
    pub fn next_job(&mut self) -> Option<PrepareJob> {
        match self.needs_segment() {
            None => self.gives_back(),
            make => make,
        }
    }

    /// Returns a job that prepares a segment, if one is wanted. Run the job on any thread and hand its result to [`Journal::prepared`].
    /// Only one job runs at a time. After the disk was full, each call looks at the free space again, so that the journal resumes when
    /// there is space.
    pub fn needs_segment(&mut self) -> Option<PrepareJob> {
        let wanted = self.ready.len() < self.options.ready_segments || self.space() == Space::FactsOnly;
        if self.failure.is_some() || self.job.is_some() || !wanted || !self.may_have_space() {
            return None;
        }
        let make = self.make(0);
        self.job = Some(make.generation);
        Some(PrepareJob { disk: self.disk.clone(), task: Task::Make(make) })
    }

    /// Returns whether there is a file, or the end of a file, to give back.
    pub fn has_excess(&self) -> bool {
        self.failure.is_none() && (!self.slacks.is_empty() || self.spares.has_excess())
    }

    /// Returns a job that gives back a piece of a file; it runs like those of [`Journal::needs_segment`]. It can wait, and should, because
    /// it may delay the syncs of the journal.
    pub fn gives_back(&mut self) -> Option<PrepareJob> {
        if self.job.is_some() || !self.has_excess() {
            return None;
        }
        // This job makes no segment, so the writer cannot overtake it.
        self.job = Some(u64::MAX);
        let task = self
            .shorten()
            .map_or_else(|| Task::Remove(self.spares.next_removal(), self.manifest.clone()), Task::Shorten);
        Some(PrepareJob { disk: self.disk.clone(), task })
    }

    fn shorten(&mut self) -> Option<Shorten> {
        let (&generation, slack) = self.slacks.first_key_value()?;
        let file_bytes = self.closed.get(&generation).map_or(slack.end, |s| s.file_bytes);
        invariant!(file_bytes > slack.end, "segment {generation} should be shortened but is missing");
        self.shortening = Some(generation);
        Some(Shorten { generation, file_bytes, end: slack.end, footer: slack.footer.clone() })
    }

    fn shortened(&mut self, generation: u64, left: u64) {
        self.shortening = None;
        if let Some(segment) = self.closed.get_mut(&generation) {
            segment.file_bytes = left;
        }
        self.slacks.retain(|g, slack| *g != generation || slack.end + (slack.footer.len() as u64) < left);
    }

    /// Returns whether to try to make a segment. A new file needs room for its whole length; otherwise its zeros would take the space that
    /// other programs on this disk need, only to be removed again. After the disk was full, either there must be more room than right after
    /// the failure, or `patience` looks must have passed: room may have appeared between the failure and the first look at the free space,
    /// and then the figure need never grow.
    fn may_have_space(&mut self) -> bool {
        let no_reuse = self.full.as_ref().is_some_and(|full| full.no_reuse);
        if !self.spares.is_empty() && !no_reuse {
            return true;
        }
        let free = self.disk.free_bytes().unwrap_or(0);
        let room = free >= u64::from(self.options.segment_bytes);
        match &mut self.full {
            Some(full) => {
                full.asks += 1;
                room && (free > full.free_bytes || full.asks >= full.patience)
            }
            // If the figure is 0, the disk is full or the system does not know. An attempt then costs nothing and gives a definite answer.
            None if room || free == 0 => true,
            None => {
                self.found_full(false);
                false
            }
        }
    }

    /// Notes that there was no room for a segment, or not even for the new header of a spare file.
    fn found_full(&mut self, no_reuse: bool) {
        hit("journal.space.full");
        let free_bytes = self.disk.free_bytes().unwrap_or(0);
        let patience = self.full.as_ref().map_or(FIRST_PATIENCE, |f| (2 * f.patience).min(LONGEST_PATIENCE));
        self.full = Some(Full { free_bytes, asks: 0, patience, no_reuse });
    }

    /// Describes the next segment, which must hold a record of this size. It uses a spare file if there is one. A short spare will do: it
    /// is available at once, while a new file must first be filled, and unused files are given back too slowly for a writer that makes
    /// many.
    pub(crate) fn make(&mut self, record_bytes: usize) -> Make {
        let generation = self.next_generation;
        self.next_generation = self.options.generation_after(generation);
        let short_does = record_bytes <= self.options.max_record_bytes_in(self.options.first_segment_bytes);
        let (source, file_bytes) = match self.spares.take(short_does) {
            Some(spare) => {
                if spare.1 < self.options.segment_bytes.into() {
                    hit("journal.segment.short_again");
                }
                (Source::Spare(spare), spare.1)
            }
            None => (Source::New, self.options.segment_bytes.into()),
        };
        Make {
            generation,
            source,
            file_bytes,
            block_bytes: self.options.block_bytes,
            floor: self.synced,
            storage: self.options.storage,
            manifest: self.manifest.clone(),
            spares: self.spares.generations(),
        }
    }

    /// Takes the result of a job from [`Journal::needs_segment`] or [`Journal::gives_back`].
    ///
    /// # Errors
    /// An error means that the disk failed and the journal is closed permanently. A full disk is not an error; see [`Journal::space`].
    pub fn prepared(&mut self, prepared: Prepared) -> Result<(), JournalError> {
        self.job = None;
        self.check_open()?;
        match prepared.0 {
            Preparation::Made(source, made) => self.adopt(source, made),
            Preparation::Removed(generation, left) => {
                let left = left.map_err(|error| self.fail(&error))?;
                self.spares.shrunk(generation, left);
                self.recycle()
            }
            Preparation::Shortened(generation, left) => {
                let left = left.map_err(|error| self.fail(&error))?;
                self.shortened(generation, left);
                self.recycle()
            }
        }
    }

    pub(crate) fn adopt(
        &mut self,
        source: Source,
        made: Result<Ready, DiskError>,
    ) -> Result<(), JournalError> {
        match made {
            Ok(ready) => {
                let newest = self.ready.back().map_or(self.active.segment.generation, |r| r.generation);
                if ready.generation > newest {
                    self.ready.push_back(ready);
                    // A reused spare does not show that the disk has room: as long as no more than the reserve is prepared, the disk counts
                    // as full.
                    if !self.is_reserve_all(0) {
                        self.full = None;
                    }
                    return Ok(());
                }
                // The writer has prepared a segment itself meanwhile. Segments are used in the order of their generations, so this one is
                // put away.
                hit("journal.segment.overtaken");
                let Ready { generation, file_bytes, .. } = ready;
                // Its segment name must be durably gone before a neighbour is recycled; see `recycle`.
                let put = self.put_away(generation, file_bytes);
                let put = put.and_then(|()| self.disk.sync_dir(&journal_dir()));
                put.map_err(|error| self.fail(&error))?;
                self.recycle()
            }
            Err(DiskError::NoSpace { .. }) => {
                if let Source::Spare((generation, bytes)) = source {
                    self.spares.put(generation, bytes);
                }
                self.found_full(matches!(source, Source::Spare(_)));
                // Recycling may have been held up by the job, and nothing else can free space now.
                self.recycle()
            }
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Returns what the journal accepts now. [`Space::FactsOnly`]: the disk is full, and the prepared segments are kept for facts.
    pub fn space(&self) -> Space {
        if self.failure.is_some() {
            return Space::Closed;
        }
        match self.full {
            Some(_) if self.is_reserve_all(0) => Space::FactsOnly,
            _ => Space::Plenty,
        }
    }

    /// Returns whether the prepared room is less than the reserve for facts plus `taken_bytes`.
    fn is_reserve_all(&self, taken_bytes: u64) -> bool {
        let prepared = self.active.room() + self.ready.iter().map(Ready::room).sum::<u64>();
        prepared < self.options.fact_reserve_bytes + taken_bytes
    }

    /// Returns whether a batch of this size would use the reserve for facts on a disk that is nearly full. Nobody has found the disk full
    /// yet, because the writer was faster than the preparation. Without the reserve a trim could not be journaled, and nothing would ever
    /// free space.
    pub(crate) fn eats_reserve(&self, batch_bytes: u64) -> bool {
        let near = NEAR_SEGMENTS * u64::from(self.options.segment_bytes) + self.options.fact_reserve_bytes;
        self.full.is_none()
            && self.is_reserve_all(batch_bytes)
            && self.disk.free_bytes().is_ok_and(|free| free < near)
    }

    /// Returns whether a checkpoint is due: there are many facts since the last one, or facts alone keep segments from being recycled. Each
    /// must amount to at least as many bytes as the last checkpoint had, so that checkpoints at most double what is written; on a full
    /// disk, one kept segment is enough. The result stays true until [`Journal::write_checkpoint`] or [`Journal::checkpointed`]: start only
    /// one checkpoint at a time.
    pub fn wants_checkpoint(&self) -> bool {
        let last = self.stats.checkpoint_bytes;
        let many = self.fact_bytes > self.options.checkpoint_facts_bytes.max(last);
        let kept_bytes: u64 = self.kept_by_facts().map(|s| s.file_bytes).sum();
        let worth_it = kept_bytes > 0 && (kept_bytes >= last || self.full.is_some());
        self.failure.is_none() && (many || worth_it)
    }

    /// Returns whether the next segment needs a new file although a checkpoint would free as much. A checkpoint that is due should then not
    /// be delayed.
    pub fn lacks_files(&self) -> bool {
        let kept_bytes: u64 = self.kept_by_facts().map(|s| s.file_bytes).sum();
        self.spares.is_empty() && kept_bytes >= self.options.segment_bytes.into()
    }

    /// Returns the segments that the next checkpoint frees.
    fn kept_by_facts(&self) -> impl Iterator<Item = &super::Segment> {
        let pinned = |s: &&super::Segment| s.last_fact > self.covers && s.last_fact <= self.synced;
        self.closed.values().filter(|s| s.live_entries == 0).filter(pinned)
    }

    /// Returns a closed segment whose live entries should be journaled again and then freed, if the files have become too large for their
    /// live bytes. After a report it returns None until that segment has no live entries, or a segment's worth of bytes has been written.
    pub fn sparse_segment(&mut self) -> Option<u64> {
        let segment_bytes = u64::from(self.options.segment_bytes);
        // Space that is about to be given back anyway is no reason to copy.
        let file_bytes = |s: &super::Segment| {
            self.slacks.get(&s.generation).map_or(s.file_bytes, |slack| slack.end + slack.footer.len() as u64)
        };
        let (files, live) = self
            .closed
            .values()
            .fold((0, 0), |(files, live), s| (files + file_bytes(s), live + s.live_bytes));
        let in_proportion = live * self.options.sparse_percent / 100 + 2 * segment_bytes;
        let at_least = live + self.options.dead_segments * segment_bytes;
        // Copies must not use the reserve for facts: on a full disk, only a trim frees space.
        if self.space() != Space::Plenty || files <= in_proportion.max(at_least) {
            return None;
        }
        if let Some((generation, written)) = self.asked {
            let waiting = self.closed.get(&generation).is_some_and(|s| s.live_entries > 0);
            if waiting && self.stats.written_bytes < written + segment_bytes {
                return None;
            }
        }
        // The segment with the smallest live share frees the most space for the least copying.
        let candidates = self.closed.values().filter(|s| s.live_entries > 0 && s.last_lsn <= self.synced);
        let generation = candidates
            .min_by_key(|s| (s.live_bytes * 1000 / file_bytes(s).max(1), s.generation))
            .map(|s| s.generation)?;
        hit("journal.segment.sparse");
        self.asked = Some((generation, self.stats.written_bytes));
        Some(generation)
    }
}
