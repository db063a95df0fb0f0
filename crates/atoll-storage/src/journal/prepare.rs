//! Makes segments ahead of time, on another thread than the writer's. A segment is either filled with zeros (a sync of overwritten blocks
//! takes a third of the time that a sync of a growing file takes) or made from a spare. Only here can the disk be full (contracts X5). This
//! module also gives back files that are no longer needed, piece by piece: on a file system that discards what it frees, every sync of the
//! device waits for the discard, and a discard of 64 MiB takes 70 to 90 ms.

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

/// Bytes of zeros per write.
const FILL_BYTES: usize = 256 * 1024;
/// Bytes of zeros between syncs. Frequent syncs limit what the device has queued ahead of the writer's next sync.
const FILL_BYTES_PER_SYNC: u64 = 256 * 1024;
/// Bytes that one job gives back, of a file that is no longer needed or of the unused end of a segment.
pub(crate) const REMOVE_BYTES: u64 = 1024 * 1024;

/// Where the file comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    /// `spare-N.seg`.
    Spare(Spare),
    /// A new file.
    New,
}

/// A job that makes one segment or gives back a piece of a file. It runs on any thread; hand its result to [`super::Journal::prepared`].
pub struct PrepareJob {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) task: Task,
}

pub(crate) enum Task {
    Make(Make),
    /// Gives back a piece of the spare file of this generation.
    Remove(u64, Arc<Manifest>),
    Shorten(Shorten),
}

/// A piece of the unused end of a segment that a restart has closed.
pub(crate) struct Shorten {
    pub generation: u64,
    pub file_bytes: u64,
    /// The offset after the last batch.
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
    /// Generations of the spare files. They were renamed before this job was created, so the manifest need not list them any more.
    pub spares: Vec<u64>,
}

/// The result of a [`PrepareJob`].
pub struct Prepared(pub(crate) Preparation);

pub(crate) enum Preparation {
    Made(Source, Result<Ready, DiskError>),
    /// The length that the file still has, in bytes; None if the file is gone.
    Removed(u64, Result<Option<u64>, DiskError>),
    /// The length that the file still has, in bytes.
    Shortened(u64, Result<u64, DiskError>),
}

impl PrepareJob {
    /// Runs the job at the full speed of the disk.
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

/// Cuts a piece off the end of a spare file, or removes the file if it has no more than one piece. Returns the length that is left. The cut
/// is synced, so that the file system frees each piece at once instead of combining them. A restart recognises by the length that the file
/// is not a usable spare.
fn remove_piece(disk: &dyn Disk, manifest: &Manifest, generation: u64) -> Result<Option<u64>, DiskError> {
    let path = spare_path(generation);
    let mut file = disk.open(&path, Open::Write)?;
    let left = file.len()?.saturating_sub(REMOVE_BYTES);
    if left == 0 {
        drop(file);
        return match forget_spares(disk, manifest, &[generation]) {
            Ok(()) => disk.remove(&path).map(|()| None),
            // The disk had no room even for an overwrite. A later job tries again.
            Err(DiskError::NoSpace { .. }) => Ok(Some(REMOVE_BYTES)),
            Err(error) => Err(error),
        };
    }
    hit("journal.segment.shrunk");
    file.set_len(left)?;
    file.sync_data()?;
    Ok(Some(left))
}

/// Removes spare files from the manifest, because their headers will no longer show that they were recycled. Before that, it makes the
/// renames durable that removed their segment names.
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
    /// Shortens the file and returns its new length, which is durable on return. The last block of the file is the footer at every moment.
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
    /// Makes the segment. Its name and header are durable on return, and the manifest lists it.
    pub(crate) fn run(self, disk: &dyn Disk, pause: &mut dyn FnMut()) -> Result<Ready, DiskError> {
        let (aside, mut file) = match self.source {
            Source::Spare((generation, _)) => {
                // The old name must be durably gone before the header changes. Otherwise a power cut in between would leave a segment whose
                // header contradicts its name.
                disk.sync_dir(&journal_dir())?;
                forget_spares(disk, &self.manifest, &[generation])?;
                let aside = spare_path(generation);
                let mut file = disk.open(&aside, Open::Write)?;
                // Recovery looks for the footer in the last block.
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
                    // This frees what was allocated. If it fails, too, the first error is the one to report.
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
    /// Adds the segment to the manifest. If the disk has no room for that, a spare gets its old name back, a new file is removed, and
    /// nothing was made.
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

/// Overwrites these bytes with zeros, which are synced on return.
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
