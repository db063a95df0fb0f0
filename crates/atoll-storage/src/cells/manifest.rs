//! A list of the files of cells that must exist, kept outside their folder. Recovery uses it to detect lost files and older copies.
//!
//! The file `cells.manifest` has two slots. A change overwrites the older one and syncs it, so a torn write leaves the other slot intact.
//! Its existence says that this data directory has cells.
//!
//! The steps have this order, so that a power cut between any two leaves a directory that opens:
//! * The first manifest, which lists nothing, is durable before the first file of cells is created.
//! * A file is durable, with its slots, before the slots are listed. Slots are listed before they are used, and recovery takes no others: a
//!   growth that a crash has interrupted is done again.
//! * `synced` and `newest` rise when the store is idle, and with every other change.
//!
//! ```text
//! slot = magic 8 | format u32 | crc u32 | seq u64 | storage u128 | synced u64 | block_bytes u32 | count u32 | classes
//! class = class u32 | slots u32 | newest u64
//! ```
//! The checksum is a CRC32C over everything after it.

use std::collections::BTreeMap;
use std::io::IoSlice;

use atoll_core::StorageId;

use super::CellError;
use crate::disk::{Disk, DiskError, DiskPath, File, Open, read_all, replace};

/// The version of manifests that this program writes, and the only one that it reads.
pub const CELL_MANIFEST_FORMAT: u32 = 1;

/// The name of the manifest in the data directory.
pub(crate) const MANIFEST: &str = "cells.manifest";
const MANIFEST_ASIDE: &str = "cells.manifest.new";
const MAGIC: [u8; 8] = *b"ATOLCMA\n";
const CRC_END: usize = 16;
const SLOT_BYTES: usize = 4096;
/// The length of the file, in bytes.
pub(crate) const MANIFEST_BYTES: u64 = 2 * SLOT_BYTES as u64;
/// More classes than any version of this program uses.
const MAX_CLASSES: u32 = 64;

/// What the manifest says about one file of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The file has at least this many slots.
    pub slots: u32,
    /// The file holds a write with at least this number.
    pub newest: u64,
}

/// What a manifest says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// All writes up to here were synced.
    pub synced: u64,
    /// The unit of all files.
    pub block_bytes: u32,
    /// The files, by class.
    pub classes: BTreeMap<u8, Listed>,
}

impl Facts {
    fn to_bytes(&self, seq: u64, storage: StorageId) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(CELL_MANIFEST_FORMAT.to_le_bytes());
        out.extend([0; 4]);
        out.extend(seq.to_le_bytes());
        out.extend(storage.0.to_le_bytes());
        out.extend(self.synced.to_le_bytes());
        out.extend(self.block_bytes.to_le_bytes());
        out.extend((self.classes.len() as u32).to_le_bytes());
        for (class, listed) in &self.classes {
            out.extend(u32::from(*class).to_le_bytes());
            out.extend(listed.slots.to_le_bytes());
            out.extend(listed.newest.to_le_bytes());
        }
        let crc = crc32c::crc32c(&out[CRC_END..]);
        out[CRC_END - 4..CRC_END].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

/// Takes numbers off the front of a slice. Each method returns None if the slice is too short.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

struct Slot {
    seq: u64,
    storage: StorageId,
    facts: Facts,
}

enum BadSlot {
    Format(u32),
    Damaged,
}

fn parse(slot: &[u8]) -> Result<Slot, BadSlot> {
    let mut from = Numbers(slot);
    if from.take::<8>() != Some(MAGIC) {
        return Err(BadSlot::Damaged);
    }
    let format = from.u32().ok_or(BadSlot::Damaged)?;
    if format != CELL_MANIFEST_FORMAT {
        return Err(BadSlot::Format(format));
    }
    parse_body(slot, &mut from).ok_or(BadSlot::Damaged)
}

fn parse_body(slot: &[u8], from: &mut Numbers<'_>) -> Option<Slot> {
    let crc = from.u32()?;
    let seq = from.u64()?;
    let storage = StorageId(u128::from_le_bytes(from.take()?));
    let mut facts = Facts { synced: from.u64()?, block_bytes: from.u32()?, ..Facts::default() };
    let count = from.u32().filter(|count| *count <= MAX_CLASSES)?;
    for _ in 0..count {
        let class = u8::try_from(from.u32()?).ok()?;
        facts.classes.insert(class, Listed { slots: from.u32()?, newest: from.u64()? });
    }
    let end = slot.len() - from.0.len();
    (crc32c::crc32c(&slot[CRC_END..end]) == crc && facts.synced < 1 << 62).then_some(Slot {
        seq,
        storage,
        facts,
    })
}

/// The manifest of the cells of a data directory.
pub(crate) struct Manifest {
    storage: StorageId,
    file: Box<dyn File>,
    seq: u64,
    facts: Facts,
}

fn path() -> DiskPath {
    DiskPath::fixed(MANIFEST)
}

impl Manifest {
    /// Reads the manifest. Returns None if there is none. Looks only at the names in the directory if there is none, because most nodes
    /// have no cells.
    pub(crate) fn load(disk: &dyn Disk, storage: StorageId) -> Result<Option<Manifest>, CellError> {
        if !disk.list(&DiskPath::root())?.iter().any(|name| name == MANIFEST) {
            return Ok(None);
        }
        let damaged = |what| CellError::Damaged { file: MANIFEST.to_owned(), offset: 0, what };
        let mut file = disk.open(&path(), Open::Write)?;
        // What it says must survive a later power cut.
        file.sync_data()?;
        file.forget_cached();
        let bytes = read_all(disk, &path(), MANIFEST_BYTES)?;
        let bytes = bytes.filter(|bytes| bytes.len() == 2 * SLOT_BYTES);
        let bytes = bytes.ok_or_else(|| damaged("a manifest is not this long"))?;
        let mut best: Option<Slot> = None;
        for slot in bytes.chunks_exact(SLOT_BYTES) {
            match parse(slot) {
                Ok(slot) if best.as_ref().is_none_or(|best| best.seq < slot.seq) => best = Some(slot),
                Ok(_) | Err(BadSlot::Damaged) => {}
                Err(BadSlot::Format(found)) => {
                    let (file, supported) = (MANIFEST.to_owned(), CELL_MANIFEST_FORMAT);
                    return Err(CellError::UnsupportedFormat { file, found, supported });
                }
            }
        }
        let Slot { seq, storage: found, facts } =
            best.ok_or_else(|| damaged("neither of its slots is whole"))?;
        if found != storage {
            return Err(CellError::Foreign { file: MANIFEST.to_owned(), found, expected: storage });
        }
        Ok(Some(Manifest { storage, file, seq, facts }))
    }

    /// Creates a manifest that lists nothing. It is durable on return.
    pub(crate) fn create(
        disk: &dyn Disk,
        storage: StorageId,
        block_bytes: u32,
    ) -> Result<Manifest, DiskError> {
        let facts = Facts { block_bytes, ..Facts::default() };
        let mut bytes = facts.to_bytes(0, storage);
        bytes.resize(2 * SLOT_BYTES, 0);
        replace(disk, &path(), &DiskPath::fixed(MANIFEST_ASIDE), &bytes)?;
        let file = disk.open(&path(), Open::Write)?;
        Ok(Manifest { storage, file, seq: 0, facts })
    }

    pub(crate) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Changes the manifest; the change is durable on return. Nothing is written if nothing changes.
    ///
    /// # Errors
    /// After an error, the manifest in memory is unchanged, and the one on the disk is either the old or the new one.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Facts)) -> Result<(), DiskError> {
        let mut facts = self.facts.clone();
        change(&mut facts);
        if facts == self.facts {
            return Ok(());
        }
        let seq = self.seq + 1;
        let bytes = facts.to_bytes(seq, self.storage);
        self.file.write_at(seq % 2 * SLOT_BYTES as u64, &[IoSlice::new(&bytes)])?;
        self.file.sync_data()?;
        (self.seq, self.facts) = (seq, facts);
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem_disk::MemDisk;

    const STORAGE: StorageId = StorageId(7);

    #[test]
    fn a_change_is_durable_on_return_and_a_torn_one_leaves_the_last() {
        let disk = MemDisk::new();
        let mut manifest = Manifest::create(&disk, STORAGE, 512).unwrap();
        for n in 1..30 {
            manifest.change(|f| f.synced = n).unwrap();
            manifest.change(|f| f.classes.entry((n % 9) as u8).or_default().slots += 1).unwrap();
            let said = manifest.facts().clone();
            let torn = disk.fork();
            torn.crash(&mut || false);
            assert_eq!(*Manifest::load(&torn, STORAGE).unwrap().unwrap().facts(), said);
        }
        assert!(matches!(Manifest::load(&disk, StorageId(8)), Err(CellError::Foreign { .. })));
    }

    #[test]
    fn a_flipped_bit_costs_one_slot_at_most() {
        let disk = MemDisk::new();
        let mut manifest = Manifest::create(&disk, STORAGE, 512).unwrap();
        manifest.change(|f| f.synced = 1).unwrap();
        manifest.change(|f| f.synced = 2).unwrap();
        for offset in 0..80 {
            for side in [0, SLOT_BYTES as u64] {
                let damaged = disk.fork();
                assert!(damaged.flip_bit(&path(), side + offset, 3));
                match Manifest::load(&damaged, STORAGE) {
                    Ok(found) => assert!([1, 2].contains(&found.unwrap().facts().synced)),
                    Err(error) => assert!(matches!(error, CellError::UnsupportedFormat { .. }), "{error}"),
                }
            }
        }
    }
}
