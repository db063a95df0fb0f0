//! Writes all facts of the roles to one file, the checkpoint. Once it is written, no segment is kept for a fact that it covers (contracts
//! X4).
//!
//! `magic 8 | format u32 | crc u32 | storage u128 | covers u64 | states`; the checksum covers everything after it.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use atoll_core::codec::put_len;
use atoll_core::{Checkpoint, Decode, Encode, Lsn, Reader, StorageId, testing::hit};
use bytes::{BufMut, Bytes, BytesMut};

use super::prepare::{fill, forget_spares};
use super::{Journal, JournalError, checkpoint_path, journal_dir, reserve_path, spare_path};
use crate::disk::{Disk, DiskError, DiskPath, Open, read_all, remove_if_there};

/// The version of checkpoints that this program writes, and the only one that it reads.
pub const CHECKPOINT_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"ATOLCKP\n";
const CRC_END: usize = 16;
/// The length of the longest checkpoint, in bytes: far above what roles hold, and far below the size of memory.
const MAX_CHECKPOINT_BYTES: u64 = 1 << 30;
/// Bytes between two syncs while a checkpoint is written.
const PIECE_BYTES: usize = 256 * 1024;

fn aside_path() -> DiskPath {
    DiskPath::fixed("journal/checkpoint.new")
}

/// A checkpoint as it is in its file. It consists of parts so that the states are not copied: those of a log with a million segments take
/// hundreds of megabytes.
struct Image {
    parts: Vec<Bytes>,
    len_bytes: u64,
}

impl Image {
    fn of(checkpoint: &Checkpoint, storage: StorageId) -> Self {
        let mut head = BytesMut::new();
        storage.encode(&mut head);
        checkpoint.covers.0.encode(&mut head);
        put_len(checkpoint.states.len(), &mut head);
        let mut parts = Vec::with_capacity(1 + 2 * checkpoint.states.len());
        // The bytes between two states share one part with the length of the state that follows, because each state is encoded as bytes.
        for (role, state) in &checkpoint.states {
            role.encode(&mut head);
            put_len(state.len(), &mut head);
            parts.push(std::mem::take(&mut head).freeze());
            parts.push(state.clone());
        }
        parts.push(head.freeze());
        let crc = parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
        let mut first = BytesMut::with_capacity(CRC_END);
        first.put_slice(&MAGIC);
        first.put_u32_le(CHECKPOINT_FORMAT);
        first.put_u32_le(crc);
        parts.insert(0, first.freeze());
        let len_bytes = parts.iter().map(|part| part.len() as u64).sum();
        Image { parts, len_bytes }
    }

    /// Splits the image into pieces of at most `most_bytes`, each a list of consecutive slices.
    fn pieces(&self, most_bytes: usize) -> Vec<Vec<IoSlice<'_>>> {
        let (mut pieces, mut room) = (Vec::new(), 0);
        for mut part in self.parts.iter().map(|part| &part[..]) {
            while !part.is_empty() {
                if room == 0 {
                    pieces.push(Vec::new());
                    room = most_bytes;
                }
                let (now, later) = part.split_at(part.len().min(room));
                if let Some(piece) = pieces.last_mut() {
                    piece.push(IoSlice::new(now));
                }
                (part, room) = (later, room - now.len());
            }
        }
        pieces
    }
}

/// Returns the last checkpoint, or None if there never was one.
pub(crate) fn load(disk: &dyn Disk, storage: StorageId) -> Result<Option<Checkpoint>, JournalError> {
    let path = checkpoint_path();
    let damaged = |offset, what| JournalError::Damaged { file: path.to_string(), offset, what };
    let bytes = match read_all(disk, &path, MAX_CHECKPOINT_BYTES) {
        Ok(Some(bytes)) => Bytes::from(bytes),
        Ok(None) => return Err(damaged(0, "longer than a checkpoint can be")),
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if bytes.len() < CRC_END || bytes[..8] != MAGIC {
        return Err(damaged(0, "not a checkpoint"));
    }
    let mut from = Reader::new(bytes.slice(8..));
    let mut decode = || -> Result<_, atoll_core::DecodeError> {
        let format = u32::decode(&mut from)?;
        if format != CHECKPOINT_FORMAT {
            return Ok(Err(format));
        }
        let crc = u32::decode(&mut from)?;
        if crc32c::crc32c(&bytes[CRC_END..]) != crc {
            return Ok(Ok(None));
        }
        let found = StorageId::decode(&mut from)?;
        let checkpoint = Checkpoint { covers: Lsn(u64::decode(&mut from)?), states: Vec::decode(&mut from)? };
        from.finish("checkpoint")?;
        Ok(Ok(Some((found, checkpoint))))
    };
    match decode() {
        Ok(Ok(Some((found, checkpoint)))) if found == storage => Ok(Some(checkpoint)),
        Ok(Ok(Some((found, _)))) => {
            Err(JournalError::Foreign { file: path.to_string(), found, expected: storage })
        }
        Ok(Ok(None)) => Err(damaged(CRC_END as u64, "wrong checksum")),
        Ok(Err(found)) => Err(JournalError::UnsupportedFormat {
            file: path.to_string(),
            found,
            supported: CHECKPOINT_FORMAT,
        }),
        Err(_) => Err(damaged(CRC_END as u64, "not decodable although its checksum is right")),
    }
}

/// Writes a checkpoint to a temporary file on another thread: the checkpoint of a log with a million segments takes hundreds of megabytes,
/// and no batch may wait for it. Hand the result to [`Journal::checkpointed`].
pub struct CheckpointJob {
    disk: Arc<dyn Disk>,
    checkpoint: Checkpoint,
    storage: StorageId,
    reserve: Reserve,
}

/// The result of a [`CheckpointJob`].
pub struct Aside {
    covers: Lsn,
    /// The content, which is written again if the disk was full.
    image: Image,
    written: Result<(), DiskError>,
    reserve: Result<u64, DiskError>,
}

impl CheckpointJob {
    /// Runs the job at the full speed of the disk.
    pub fn run(self) -> Aside {
        self.run_paced(&mut || {})
    }

    /// Runs the job, calling `pause` after each piece.
    pub fn run_paced(self, pause: &mut dyn FnMut()) -> Aside {
        let CheckpointJob { disk, checkpoint, storage, reserve } = self;
        let covers = checkpoint.covers;
        let image = Image::of(&checkpoint, storage);
        let written = write_aside(&*disk, &image, pause);
        let reserve = match &written {
            Ok(()) => reserve.keep(&*disk, reserve_for(&image), pause),
            Err(_) => Ok(reserve.kept_bytes),
        };
        Aside { covers, image, written, reserve }
    }
}

/// Writes the temporary file in synced pieces, to limit what the device has queued ahead of the writer's next sync.
fn write_aside(disk: &dyn Disk, image: &Image, pause: &mut dyn FnMut()) -> Result<(), DiskError> {
    let written = (|| {
        let mut file = disk.open(&aside_path(), Open::Create)?;
        let mut at = 0;
        for piece in image.pieces(PIECE_BYTES) {
            file.write_at(at, &piece)?;
            file.sync_data()?;
            at += piece.iter().map(|slice| slice.len() as u64).sum::<u64>();
            pause();
        }
        Ok(())
    })();
    if matches!(written, Err(DiskError::NoSpace { .. })) {
        remove_if_there(disk, &aside_path())?;
    }
    written
}

/// Returns how many bytes to reserve so that a checkpoint like this one can be written again.
fn reserve_for(image: &Image) -> u64 {
    2 * image.len_bytes
}

/// A file of zeros that is removed when a checkpoint finds the disk full. Without a checkpoint, nothing could be freed any more (contracts
/// X5).
struct Reserve {
    kept_bytes: u64,
    least_bytes: u64,
}

impl Reserve {
    /// Extends the reserve if it is too short, and returns its length. The length stays as it was if the disk has no room for more.
    fn keep(&self, disk: &dyn Disk, wanted_bytes: u64, pause: &mut dyn FnMut()) -> Result<u64, DiskError> {
        let (kept, wanted) = (self.kept_bytes, wanted_bytes.max(self.least_bytes));
        if kept >= wanted {
            return Ok(kept);
        }
        match lengthen_reserve(disk, kept..wanted, pause) {
            Ok(()) => Ok(wanted),
            Err(DiskError::NoSpace { .. }) => {
                hit("journal.checkpoint.no_reserve");
                cut_reserve(disk, kept).map(|()| kept)
            }
            Err(error) => Err(error),
        }
    }
}

fn lengthen_reserve(disk: &dyn Disk, bytes: Range<u64>, pause: &mut dyn FnMut()) -> Result<(), DiskError> {
    let open = if bytes.start > 0 { Open::Write } else { Open::Create };
    let mut file = disk.open(&reserve_path(), open)?;
    fill(&mut *file, bytes, pause)?;
    disk.sync_dir(&journal_dir())
}

/// Cuts the reserve back to its previous length. With less, the checkpoint that the reserve was made for might not fit.
fn cut_reserve(disk: &dyn Disk, kept: u64) -> Result<(), DiskError> {
    if kept == 0 {
        return remove_if_there(disk, &reserve_path());
    }
    disk.open(&reserve_path(), Open::Write)?.set_len(kept)
}

impl Journal {
    /// Writes a checkpoint to a temporary file, syncs it, replaces the old one with it, and recycles the segments that it frees. The
    /// checkpoint is durable on return. This does the work of [`Journal::checkpoint_job`] and [`Journal::checkpointed`] in one call.
    ///
    /// # Errors
    /// The same as those of [`Journal::checkpointed`].
    pub fn write_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), JournalError> {
        self.check_open()?;
        let aside = self.checkpoint_job(checkpoint.clone()).run();
        self.checkpointed(aside)
    }

    /// Returns a job that writes a checkpoint to a temporary file on any thread. Only one runs at a time: hand its result to
    /// [`Journal::checkpointed`] before you create the next.
    pub fn checkpoint_job(&self, checkpoint: Checkpoint) -> CheckpointJob {
        CheckpointJob {
            disk: self.disk.clone(),
            checkpoint,
            storage: self.options.storage,
            reserve: self.reserve(),
        }
    }

    fn reserve(&self) -> Reserve {
        Reserve { kept_bytes: self.reserved_bytes, least_bytes: self.options.checkpoint_reserve_bytes }
    }

    /// Replaces the old checkpoint with the one that a [`CheckpointJob`] wrote, and recycles the segments that it frees. The checkpoint is
    /// durable on return.
    ///
    /// # Errors
    /// After [`JournalError::NoSpace`], the old checkpoint remains in force and the journal stays open; try again when there is space. Any
    /// other error closes the journal permanently.
    pub fn checkpointed(&mut self, aside: Aside) -> Result<(), JournalError> {
        self.check_open()?;
        let Aside { covers, image, written, reserve } = aside;
        atoll_core::invariant!(
            covers <= self.synced && covers >= self.covers,
            "a checkpoint covers {covers}, with {} synced and {} covered before",
            self.synced,
            self.covers
        );
        self.reserved_bytes = reserve.map_err(|error| self.fail(&error))?;
        let put = match written.and_then(|()| self.rename_aside()) {
            Err(full @ DiskError::NoSpace { .. }) => self.put_with_less(&image, full),
            put => put,
        };
        match put {
            Ok(()) => {}
            Err(DiskError::NoSpace { .. }) => {
                hit("journal.checkpoint.no_space");
                return Err(JournalError::NoSpace { needed_bytes: image.len_bytes });
            }
            Err(error) => return Err(self.fail(&error)),
        }
        // The manifest must know of the checkpoint before anything is removed that only the checkpoint still holds.
        self.manifest.raise(self.synced, covers).map_err(|error| self.fail(&error))?;
        self.covers = covers;
        self.fact_bytes = 0;
        self.stats.checkpoints += 1;
        self.stats.checkpoint_bytes = image.len_bytes;
        self.recycle()?;
        // The job has extended the reserve, or found no space for that. Here it is only made again if it was given up above.
        if self.reserved_bytes == 0 { self.keep_reserve(reserve_for(&image)) } else { Ok(()) }
    }

    fn rename_aside(&self) -> Result<(), DiskError> {
        self.disk.rename(&aside_path(), &checkpoint_path())?;
        self.disk.sync_dir(&journal_dir())
    }

    /// Frees space for a checkpoint that did not fit: removes the reserve first, and then spare files, one by one. Without a checkpoint
    /// nothing would be freed any more.
    fn put_with_less(&mut self, image: &Image, mut full: DiskError) -> Result<(), DiskError> {
        loop {
            if self.reserved_bytes > 0 {
                hit("journal.checkpoint.from_reserve");
                self.disk.remove(&reserve_path())?;
                self.reserved_bytes = 0;
            } else if let Some(generation) = self.spares.give_up() {
                hit("journal.checkpoint.from_spare");
                forget_spares(&*self.disk, &self.manifest, &[generation])?;
                self.disk.remove(&spare_path(generation))?;
            } else {
                return Err(full);
            }
            self.disk.sync_dir(&journal_dir())?;
            match write_aside(&*self.disk, image, &mut || {}).and_then(|()| self.rename_aside()) {
                Err(error @ DiskError::NoSpace { .. }) => full = error,
                put => return put,
            }
        }
    }

    /// Extends the reserve to `wanted_bytes`. It stays as it was if the disk has no room for that.
    pub(crate) fn keep_reserve(&mut self, wanted_bytes: u64) -> Result<(), JournalError> {
        let kept = self.reserve().keep(&*self.disk, wanted_bytes, &mut || {});
        self.reserved_bytes = kept.map_err(|error| self.fail(&error))?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use atoll_core::RoleKind;

    use super::*;
    use crate::MemDisk;

    /// States that end inside pieces, at their ends, and that are empty: the file must read back as it was written, and the checksum over
    /// the parts must equal the checksum over the whole.
    #[test]
    fn a_checkpoint_of_many_pieces_reads_back() {
        let storage = StorageId(7);
        let lengths = [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 17, 0, 5];
        let state =
            |n: usize, len: usize| Bytes::from((0..len).map(|i| (i * 31 + n) as u8).collect::<Vec<_>>());
        for count in 0..=lengths.len() {
            let states = lengths[..count].iter().enumerate();
            let states: Vec<_> = states.map(|(n, len)| (RoleKind(n as u8), state(n, *len))).collect();
            let checkpoint = Checkpoint { covers: Lsn(9), states };
            let disk = MemDisk::new();
            disk.create_dir(&journal_dir()).unwrap();
            let image = Image::of(&checkpoint, storage);
            let mut pieces = 0;
            write_aside(&disk, &image, &mut || pieces += 1).unwrap();
            disk.rename(&aside_path(), &checkpoint_path()).unwrap();
            assert_eq!(pieces, image.len_bytes.div_ceil(PIECE_BYTES as u64), "{count} states");
            assert_eq!(load(&disk, storage).unwrap(), Some(checkpoint), "{count} states");
        }
    }
}
