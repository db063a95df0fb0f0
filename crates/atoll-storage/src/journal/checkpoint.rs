//! The roles' facts, written aside as a whole: afterwards no segment is kept for a fact that it covers (contracts X4).
//!
//! `magic 8 | format u32 | crc u32 | storage u128 | covers u64 | states`; the checksum covers all that follows it.

use atoll_core::{Checkpoint, Decode, Encode, Lsn, Reader, StorageId, testing::hit};
use bytes::{BufMut, Bytes, BytesMut};

use super::prepare::{fill, forget_spares};
use super::{Journal, JournalError, checkpoint_path, journal_dir, reserve_path, spare_path};
use crate::disk::{Disk, DiskError, DiskPath, Open, read_all, remove_if_there, replace};

/// The version of checkpoints that this program writes, and the only one that it reads.
pub const CHECKPOINT_FORMAT: u32 = 1;

const MAGIC: [u8; 8] = *b"ATOLCKP\n";
const CRC_END: usize = 16;
/// Longest checkpoint: far above what roles hold, far below memory.
const MAX_CHECKPOINT_BYTES: u64 = 1 << 30;

fn encode(checkpoint: &Checkpoint, storage: StorageId) -> Bytes {
    // Once, and with no room to grow: the states of a log with a million segments take hundreds of megabytes.
    let states: usize = checkpoint.states.iter().map(|(_, state)| state.len() + 16).sum();
    let mut out = BytesMut::with_capacity(CRC_END + 32 + states);
    out.put_slice(&MAGIC);
    out.put_u32_le(CHECKPOINT_FORMAT);
    out.put_u32_le(0);
    storage.encode(&mut out);
    checkpoint.covers.0.encode(&mut out);
    checkpoint.states.encode(&mut out);
    let crc = crc32c::crc32c(&out[CRC_END..]);
    out[CRC_END - 4..CRC_END].copy_from_slice(&crc.to_le_bytes());
    out.freeze()
}

/// The last checkpoint, or None if there never was one.
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

impl Journal {
    /// Writes a checkpoint aside, syncs it, puts it in the old one's place, and recycles what it frees. Durable on return.
    ///
    /// # Errors
    /// [`JournalError::NoSpace`]: not written, the old one is in force, the journal stays open; try again when space came
    /// back. Any other error closes the journal for good.
    pub fn write_checkpoint(&mut self, checkpoint: &Checkpoint) -> Result<(), JournalError> {
        self.check_open()?;
        atoll_core::invariant!(
            checkpoint.covers <= self.synced && checkpoint.covers >= self.covers,
            "a checkpoint covers {}, with {} synced and {} covered before",
            checkpoint.covers,
            self.synced,
            self.covers
        );
        let bytes = encode(checkpoint, self.options.storage);
        match self.put_checkpoint(&bytes) {
            Ok(()) => {}
            Err(DiskError::NoSpace { .. }) => {
                hit("journal.checkpoint.no_space");
                return Err(JournalError::NoSpace { needed_bytes: bytes.len() as u64 });
            }
            Err(error) => return Err(self.fail(&error)),
        }
        // Before anything goes that only the checkpoint holds.
        self.manifest.raise(self.synced, checkpoint.covers).map_err(|error| self.fail(&error))?;
        self.covers = checkpoint.covers;
        self.fact_bytes = 0;
        self.stats.checkpoints += 1;
        self.stats.checkpoint_bytes = bytes.len() as u64;
        self.recycle()?;
        self.keep_reserve(2 * bytes.len() as u64)
    }

    /// On a full disk the reserve is given up for it, and then spare files, one by one: without a checkpoint nothing is freed any more.
    fn put_checkpoint(&mut self, bytes: &[u8]) -> Result<(), DiskError> {
        let aside = DiskPath::fixed("journal/checkpoint.new");
        loop {
            let put = replace(&*self.disk, &checkpoint_path(), &aside, bytes);
            if !matches!(put, Err(DiskError::NoSpace { .. })) {
                return put;
            }
            if self.reserved_bytes > 0 {
                hit("journal.checkpoint.from_reserve");
                self.disk.remove(&reserve_path())?;
                self.reserved_bytes = 0;
            } else if let Some(generation) = self.spares.give_up() {
                hit("journal.checkpoint.from_spare");
                forget_spares(&*self.disk, &self.manifest, &[generation])?;
                self.disk.remove(&spare_path(generation))?;
            } else {
                return put;
            }
            self.disk.sync_dir(&journal_dir())?;
        }
    }

    /// Keeps a file of zeros that is given up when a checkpoint finds the disk full: without one, nothing could be freed
    /// any more (contracts X5). What there was, or none, if there is no space now.
    pub(crate) fn keep_reserve(&mut self, wanted_bytes: u64) -> Result<(), JournalError> {
        let (kept, wanted) = (self.reserved_bytes, wanted_bytes.max(self.options.checkpoint_reserve_bytes));
        if kept >= wanted {
            return Ok(());
        }
        match self.lengthen_reserve(wanted) {
            Ok(()) => self.reserved_bytes = wanted,
            Err(DiskError::NoSpace { .. }) => {
                hit("journal.checkpoint.no_reserve");
                self.cut_reserve(kept).map_err(|error| self.fail(&error))?;
            }
            Err(error) => return Err(self.fail(&error)),
        }
        Ok(())
    }

    fn lengthen_reserve(&self, wanted: u64) -> Result<(), DiskError> {
        let kept = self.reserved_bytes;
        let open = if kept > 0 { Open::Write } else { Open::Create };
        let mut file = self.disk.open(&reserve_path(), open)?;
        fill(&mut *file, kept..wanted, &mut || {})?;
        self.disk.sync_dir(&journal_dir())
    }

    /// Back to what it was: less would be less than the last checkpoint was found to need.
    fn cut_reserve(&self, kept: u64) -> Result<(), DiskError> {
        if kept == 0 {
            return remove_if_there(&*self.disk, &reserve_path());
        }
        self.disk.open(&reserve_path(), Open::Write)?.set_len(kept)
    }
}
