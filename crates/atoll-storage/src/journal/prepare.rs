//! Segments are made ahead of time, away from the writer: zero-filled (overwriting allocated blocks syncs in a third of the time that
//! growing a file takes), or taken from the spares. Only here can the disk be full (contracts X5). Files that are no longer needed are
//! given back here, too, piece by piece: on a file system that discards what it frees, every sync of the device waits for the discard, and
//! a discard of 64 MiB takes 70 to 90 ms.

use std::io::IoSlice;
use std::sync::Arc;

use atoll_core::testing::hit;
use atoll_core::{Lsn, StorageId};

use super::format::{SEGMENT_FORMAT, SegmentHeader};
use super::manifest::Manifest;
use super::segment::Ready;
use super::spares::Spare;
use super::{journal_dir, segment_path, spare_path};
use crate::disk::{Disk, DiskError, DiskPath, Open};

/// Zeros per write.
const FILL_BYTES: usize = 256 * 1024;
/// Zeros between syncs. This keeps small what the device has queued ahead of the writer's next sync.
const FILL_BYTES_PER_SYNC: u64 = 256 * 1024;
/// How much of a file that is no longer needed, or of the unused end of a segment, is given back per job.
pub(crate) const REMOVE_BYTES: u64 = 1024 * 1024;

/// Where the file comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// `spare-N.seg`.
    Spare(Spare),
    /// A new file.
    New,
}

/// One segment to be made, or a piece of a file to be given back. Runs on any thread; hand the outcome to
/// [`super::Journal::prepared`].
pub struct PrepareJob {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) task: Task,
}

pub(crate) enum Task {
    Make(Make),
    /// The generation of a spare file.
    Remove(u64, Arc<Manifest>),
    Shorten(Shorten),
}

/// A piece of what lies behind the last batch of a segment that a restart has closed.
pub(crate) struct Shorten {
    pub generation: u64,
    pub file_bytes: u64,
    /// Behind the last batch.
    pub end: u64,
    /// The last block.
    pub footer: Vec<u8>,
}

/// A segment to be made.
pub(crate) struct Make {
    pub generation: u64,
    pub source: Source,
    pub file_bytes: u64,
    pub block_bytes: u32,
    pub floor: Lsn,
    pub storage: StorageId,
    pub manifest: Arc<Manifest>,
    /// Generations of spare files, renamed before this was made: the manifest need not list them any more.
    pub spares: Vec<u64>,
}

/// The outcome of a [`PrepareJob`].
pub struct Prepared(pub(crate) Preparation);

pub(crate) enum Preparation {
    Made(Source, Result<Ready, DiskError>),
    /// Bytes that the file still has; none if it is gone.
    Removed(u64, Result<Option<u64>, DiskError>),
    /// Bytes that the file still has.
    Shortened(u64, Result<u64, DiskError>),
}

impl PrepareJob {
    /// Runs the job as fast as the disk goes.
    pub fn run(self) -> Prepared {
        self.run_paced(&mut || {})
    }

    /// Runs the job, calling `pause` after each 256 KiB of zeros.
    pub fn run_paced(self, pause: &mut dyn FnMut()) -> Prepared {
        let disk = &*self.disk;
        Prepared(match self.task {
            Task::Make(make) => Preparation::Made(make.source, make.run(disk, pause)),
            Task::Remove(generation, manifest) => {
                Preparation::Removed(generation, remove_piece(disk, &manifest, generation))
            }
            Task::Shorten(shorten) => Preparation::Shortened(shorten.generation, shorten.run(disk)),
        })
    }
}

/// Cuts a piece off the end of a spare file, or removes what is left of it; returns the bytes that it still has. The cut is synced, so that
/// the file system does not combine the pieces but frees each at once. The length of the file tells a restart that it is not a spare.
fn remove_piece(disk: &dyn Disk, manifest: &Manifest, generation: u64) -> Result<Option<u64>, DiskError> {
    let path = spare_path(generation);
    let mut file = disk.open(&path, Open::Write)?;
    let left = file.len()?.saturating_sub(REMOVE_BYTES);
    if left == 0 {
        drop(file);
        return match forget_spares(disk, manifest, &[generation]) {
            Ok(()) => disk.remove(&path).map(|()| None),
            // Not even an overwrite was possible: try again later.
            Err(DiskError::NoSpace { .. }) => Ok(Some(REMOVE_BYTES)),
            Err(error) => Err(error),
        };
    }
    hit("journal.segment.shrunk");
    file.set_len(left)?;
    file.sync_data()?;
    Ok(Some(left))
}

/// Takes spare files off the manifest, because their headers will no longer show that they were recycled. Their old names are durably gone
/// before that.
pub(crate) fn forget_spares(
    disk: &dyn Disk,
    manifest: &Manifest,
    generations: &[u64],
) -> Result<(), DiskError> {
    if !manifest.lists_any(generations) {
        return Ok(());
    }
    disk.sync_dir(&journal_dir())?;
    manifest.change(|facts| generations.iter().for_each(|g| _ = facts.segments.remove(g)))
}

impl Shorten {
    /// The length that is durable on return. The last block of the file is the footer at every moment.
    pub(crate) fn run(self, disk: &dyn Disk) -> Result<u64, DiskError> {
        let least = self.end + self.footer.len() as u64;
        let left = self.file_bytes.saturating_sub(REMOVE_BYTES).max(least);
        let mut file = disk.open(&segment_path(self.generation), Open::Write)?;
        file.write_at(left - self.footer.len() as u64, &[IoSlice::new(&self.footer)])?;
        file.sync_data()?;
        hit("journal.segment.shortened");
        file.set_len(left)?;
        file.sync_data()?;
        Ok(left)
    }
}

impl Make {
    /// The segment's name and header are durable on return, and the manifest lists it.
    pub(crate) fn run(self, disk: &dyn Disk, pause: &mut dyn FnMut()) -> Result<Ready, DiskError> {
        let (aside, mut file) = match self.source {
            Source::Spare((generation, _)) => {
                // The old name must be durably gone before the header changes: a power cut in between would otherwise leave a segment whose
                // header contradicts its name.
                disk.sync_dir(&journal_dir())?;
                forget_spares(disk, &self.manifest, &[generation])?;
                let aside = spare_path(generation);
                let mut file = disk.open(&aside, Open::Write)?;
                // The footer is looked for in the last block.
                if file.len()? != self.file_bytes {
                    file.set_len(self.file_bytes)?;
                }
                hit("journal.segment.reused");
                (aside, file)
            }
            Source::New => {
                let aside = spare_path(self.generation);
                let mut file = disk.open(&aside, Open::Create)?;
                if let Err(error) = fill(&mut *file, 0..self.file_bytes, pause) {
                    hit("journal.segment.fill_failed");
                    drop(file);
                    // Gives back what was allocated. If that fails, too, the first error is the one to report.
                    let _ = disk.remove(&aside);
                    return Err(error);
                }
                (aside, file)
            }
        };
        let header = SegmentHeader {
            format: SEGMENT_FORMAT,
            block_bytes: self.block_bytes,
            generation: self.generation,
            floor: self.floor,
            storage: self.storage,
        };
        let mut block = header.to_bytes();
        block.resize(self.block_bytes as usize, 0);
        file.write_at(0, &[IoSlice::new(&block)])?;
        file.sync_data()?;
        disk.rename(&aside, &segment_path(self.generation))?;
        disk.sync_dir(&journal_dir())?;
        self.list(disk, &aside)?;
        Ok(Ready {
            generation: self.generation,
            file,
            file_bytes: self.file_bytes,
            block_bytes: self.block_bytes,
            floor: self.floor,
        })
    }
}

impl Make {
    /// Without room for the manifest the file gets its old name back, and nothing was made.
    fn list(&self, disk: &dyn Disk, aside: &DiskPath) -> Result<(), DiskError> {
        let listed = self.manifest.change(|facts| {
            self.spares.iter().for_each(|g| _ = facts.segments.remove(g));
            facts.synced = facts.synced.max(self.floor);
            facts.list(self.generation);
        });
        if matches!(listed, Err(DiskError::NoSpace { .. })) {
            hit("journal.manifest.no_space");
            disk.rename(&segment_path(self.generation), aside)?;
            if matches!(self.source, Source::New) {
                disk.remove(aside)?;
            }
            disk.sync_dir(&journal_dir())?;
        }
        listed
    }
}

/// Writes zeros over these bytes; synced on return.
pub(crate) fn fill(
    file: &mut dyn crate::disk::File,
    range: std::ops::Range<u64>,
    pause: &mut dyn FnMut(),
) -> Result<(), DiskError> {
    let piece = |left: u64| FILL_BYTES.min(usize::try_from(left).unwrap_or(FILL_BYTES));
    let (mut at, mut synced) = (range.start, range.start);
    let zeros = vec![0; piece(range.end.saturating_sub(at))];
    while at < range.end {
        let n = piece(range.end - at);
        file.write_at(at, &[IoSlice::new(&zeros[..n])])?;
        at += n as u64;
        if at - synced >= FILL_BYTES_PER_SYNC {
            file.sync_data()?;
            synced = at;
        }
        pause();
    }
    file.sync_data()
}
