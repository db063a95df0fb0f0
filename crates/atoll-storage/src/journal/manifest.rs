//! A list of the files that must exist, kept outside the segments. Recovery uses it to tell a recycled segment from a lost one, and the
//! current file from an older copy that somebody put back.
//!
//! The file `journal.manifest` is next to the folder of segments, so that the loss of one does not take the other with it. It has two
//! slots. A change overwrites the older slot in place and syncs it. A full disk therefore does not prevent a change, and a torn write
//! leaves the other slot intact.
//!
//! The steps have this order, so that a power cut between any two leaves a directory that opens:
//! * A segment is listed after its name and header are durable, and before a record goes into it. A segment that is not listed has no
//!   records.
//! * A recycled segment keeps its header as a spare file, which proves that it was recycled. It is delisted after the rename is
//!   durable, and before the header is overwritten or the file removed.
//! * `covers` rises after the checkpoint is durable. `synced` rises with any change, and when the journal is idle.
//!
//! ```text
//! slot = magic 8 | format u32 | crc u32 | slot_bytes u32 | body_bytes u32 | body
//! body = seq u64 | storage u128 | synced u64 | covers u64 | newest u64 | count u32 | generations, each as LEB128 above the last
//! ```
//! The checksum is a CRC32C over everything after it.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_core::testing::hit;
use atoll_core::{Lsn, StorageId};

use super::JournalError;
use crate::disk::{Disk, DiskError, DiskPath, File, Open, read_all, replace};

/// The version of manifests that this program writes, and the only one that it reads.
pub const MANIFEST_FORMAT: u32 = 1;

/// The name of the manifest in the data directory.
pub(crate) const MANIFEST: &str = "journal.manifest";
const MANIFEST_ASIDE: &str = "journal.manifest.new";
const MAGIC: [u8; 8] = *b"ATOLMAN\n";
const HEAD_BYTES: usize = 24;
const CRC_END: usize = 16;
/// Slot size of a new manifest: room for some thousand segments. It doubles when they need more.
const FIRST_SLOT_BYTES: usize = 4096;
const MAX_SLOT_BYTES: usize = 1 << 26;

pub(crate) fn manifest_path() -> DiskPath {
    DiskPath::fixed(MANIFEST)
}

/// What a manifest says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Everything up to here was synced.
    pub synced: Lsn,
    /// A checkpoint exists that covers at least everything up to here.
    pub covers: Lsn,
    /// The highest generation that was ever listed.
    pub newest: u64,
    /// Segments that exist, as segments or as spare files.
    pub segments: BTreeSet<u64>,
}

impl Facts {
    /// Adds a segment.
    pub(crate) fn list(&mut self, generation: u64) {
        self.newest = self.newest.max(generation);
        self.segments.insert(generation);
    }

    fn to_bytes(&self, seq: u64, storage: StorageId, slot_bytes: usize) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(seq.to_le_bytes());
        body.extend(storage.0.to_le_bytes());
        for n in [self.synced.0, self.covers.0, self.newest] {
            body.extend(n.to_le_bytes());
        }
        body.extend((self.segments.len() as u32).to_le_bytes());
        let mut last = 0;
        for generation in &self.segments {
            let mut above = generation - last;
            last = *generation;
            while above >= 0x80 {
                body.push(above as u8 | 0x80);
                above >>= 7;
            }
            body.push(above as u8);
        }
        let mut out = Vec::with_capacity(HEAD_BYTES + body.len());
        out.extend(MAGIC);
        out.extend(MANIFEST_FORMAT.to_le_bytes());
        out.extend([0; 4]);
        out.extend((slot_bytes as u32).to_le_bytes());
        out.extend((body.len() as u32).to_le_bytes());
        out.extend(body);
        let crc = crc32c::crc32c(&out[CRC_END..]);
        out[CRC_END - 4..CRC_END].copy_from_slice(&crc.to_le_bytes());
        out
    }
}

/// Reads numbers from the start of a slice and shortens it. Each method returns None if the slice is too short.
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

    fn leb128(&mut self) -> Option<u64> {
        let mut out = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            out |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(out);
            }
        }
        None
    }
}

/// An intact slot.
struct Slot {
    seq: u64,
    storage: StorageId,
    facts: Facts,
}

/// Why a slot cannot be used.
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
    if format != MANIFEST_FORMAT {
        return Err(BadSlot::Format(format));
    }
    parse_body(slot, &mut from).ok_or(BadSlot::Damaged)
}

fn parse_body(slot: &[u8], from: &mut Numbers<'_>) -> Option<Slot> {
    let (crc, slot_bytes, body_bytes) = (from.u32()?, from.u32()? as usize, from.u32()? as usize);
    let whole = slot.get(CRC_END..HEAD_BYTES.checked_add(body_bytes)?)?;
    if slot_bytes != slot.len() || crc32c::crc32c(whole) != crc {
        return None;
    }
    let mut from = Numbers(&whole[HEAD_BYTES - CRC_END..]);
    let seq = from.u64()?;
    let storage = StorageId(u128::from_le_bytes(from.take()?));
    let mut facts =
        Facts { synced: Lsn(from.u64()?), covers: Lsn(from.u64()?), newest: from.u64()?, ..Facts::default() };
    let mut last: u64 = 0;
    for _ in 0..from.u32()? {
        last = last.checked_add(from.leb128()?)?;
        facts.segments.insert(last);
    }
    from.0.is_empty().then_some(Slot { seq, storage, facts })
}

struct ManifestState {
    file: Box<dyn File>,
    slot_bytes: usize,
    seq: u64,
    facts: Facts,
}

/// The manifest of a data directory. The writer and the thread that prepares segments share it.
pub(crate) struct Manifest {
    disk: Arc<dyn Disk>,
    storage: StorageId,
    state: Mutex<ManifestState>,
}

impl Manifest {
    /// Reads the manifest. Returns None if there is none.
    pub(crate) fn load(disk: &Arc<dyn Disk>, storage: StorageId) -> Result<Option<Manifest>, JournalError> {
        let Some(found) = read(&**disk)? else { return Ok(None) };
        if found.slot.storage != storage {
            return Err(JournalError::Foreign {
                file: MANIFEST.to_owned(),
                found: found.slot.storage,
                expected: storage,
            });
        }
        let file = disk.open(&manifest_path(), Open::Write)?;
        let (slot_bytes, Slot { seq, facts, .. }) = (found.slot_bytes, found.slot);
        let state = ManifestState { file, slot_bytes, seq, facts };
        Ok(Some(Manifest { disk: disk.clone(), storage, state: Mutex::new(state) }))
    }

    /// Creates a manifest, which is durable on return.
    pub(crate) fn create(
        disk: &Arc<dyn Disk>,
        storage: StorageId,
        facts: Facts,
    ) -> Result<Manifest, DiskError> {
        let (seq, slot_bytes) = (1, slot_for(&facts, storage, FIRST_SLOT_BYTES));
        put(&**disk, &facts, seq, storage, slot_bytes)?;
        let file = disk.open(&manifest_path(), Open::Write)?;
        let state = ManifestState { file, slot_bytes, seq, facts };
        Ok(Manifest { disk: disk.clone(), storage, state: Mutex::new(state) })
    }

    /// Returns a copy of the content.
    pub(crate) fn facts(&self) -> Facts {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).facts.clone()
    }

    /// Returns whether at least one of these segments is listed.
    pub(crate) fn lists_any(&self, generations: &[u64]) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        generations.iter().any(|g| state.facts.segments.contains(g))
    }

    /// Changes the manifest; the change is durable on return. Nothing is written if nothing changes.
    ///
    /// # Errors
    /// After an error, the manifest in memory is unchanged, and the one on the disk is either the old or the new one.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Facts)) -> Result<(), DiskError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut facts = state.facts.clone();
        change(&mut facts);
        if facts == state.facts {
            return Ok(());
        }
        let seq = state.seq + 1;
        let slot_bytes = slot_for(&facts, self.storage, state.slot_bytes);
        if slot_bytes == state.slot_bytes {
            let bytes = facts.to_bytes(seq, self.storage, slot_bytes);
            state.file.write_at(seq % 2 * slot_bytes as u64, &[IoSlice::new(&bytes)])?;
            state.file.sync_data()?;
        } else {
            hit("journal.manifest.grow");
            put(&*self.disk, &facts, seq, self.storage, slot_bytes)?;
            state.file = self.disk.open(&manifest_path(), Open::Write)?;
        }
        (state.slot_bytes, state.seq, state.facts) = (slot_bytes, seq, facts);
        Ok(())
    }

    /// Raises `synced` and `covers`. A full disk may refuse even an overwrite. The manifest then stays as it was, which is still true.
    pub(crate) fn raise(&self, synced: Lsn, covers: Lsn) -> Result<(), DiskError> {
        let raised = self.change(|facts| {
            facts.synced = facts.synced.max(synced);
            facts.covers = facts.covers.max(covers);
        });
        match raised {
            Err(DiskError::NoSpace { .. }) => Ok(()),
            other => other,
        }
    }
}

/// Replaces the whole file; durable on return.
fn put(
    disk: &dyn Disk,
    facts: &Facts,
    seq: u64,
    storage: StorageId,
    slot_bytes: usize,
) -> Result<(), DiskError> {
    let mut bytes = vec![0; 2 * slot_bytes];
    let slot = facts.to_bytes(seq, storage, slot_bytes);
    let at = (seq % 2) as usize * slot_bytes;
    bytes[at..at + slot.len()].copy_from_slice(&slot);
    replace(disk, &manifest_path(), &DiskPath::fixed(MANIFEST_ASIDE), &bytes)
}

/// Returns the size in bytes of a slot that can hold these facts; at least `least`.
fn slot_for(facts: &Facts, storage: StorageId, least: usize) -> usize {
    let needed = facts.to_bytes(0, storage, 0).len();
    let mut slot_bytes = least;
    while slot_bytes < needed {
        slot_bytes *= 2;
    }
    slot_bytes
}

struct Found {
    slot_bytes: usize,
    slot: Slot,
}

fn read(disk: &dyn Disk) -> Result<Option<Found>, JournalError> {
    let damaged = |what| JournalError::Damaged { file: MANIFEST.to_owned(), offset: 0, what };
    let bytes = match read_all(disk, &manifest_path(), 2 * MAX_SLOT_BYTES as u64) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err(damaged("longer than a manifest can be")),
        Err(DiskError::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let slot_bytes = bytes.len() / 2;
    if !bytes.len().is_multiple_of(2) || slot_bytes < FIRST_SLOT_BYTES || !slot_bytes.is_power_of_two() {
        return Err(damaged("a manifest is not this long"));
    }
    let mut best: Option<Slot> = None;
    for slot in bytes.chunks_exact(slot_bytes) {
        match parse(slot) {
            Ok(slot) => {
                if best.as_ref().is_none_or(|best| best.seq < slot.seq) {
                    best = Some(slot);
                }
            }
            Err(BadSlot::Format(found)) => {
                let file = MANIFEST.to_owned();
                return Err(JournalError::UnsupportedFormat { file, found, supported: MANIFEST_FORMAT });
            }
            Err(BadSlot::Damaged) => {}
        }
    }
    best.map(|slot| Some(Found { slot_bytes, slot })).ok_or_else(|| damaged("neither of its slots is whole"))
}

/// What the manifest says about a directory without a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orphan {
    /// There is no manifest, or the first start of this directory ended after it wrote the manifest and before it wrote the marker.
    Fresh,
    /// The directory was in use.
    Used,
}

/// Determines whether a directory without a marker was in use.
pub(crate) fn orphan(disk: &dyn Disk) -> Result<Orphan, DiskError> {
    Ok(match read(disk) {
        Ok(None) => Orphan::Fresh,
        Ok(Some(found)) if found.slot.facts == Facts::default() => Orphan::Fresh,
        Err(JournalError::Disk(error)) => return Err(error),
        Ok(Some(_)) | Err(_) => Orphan::Used,
    })
}

/// Creates the manifest of a new directory. This happens before the marker is written: once there is a marker, a missing journal is a lost
/// journal.
pub(crate) fn create_first(disk: &dyn Disk, storage: StorageId) -> Result<(), DiskError> {
    put(disk, &Facts::default(), 1, storage, FIRST_SLOT_BYTES)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem_disk::MemDisk;

    const STORAGE: StorageId = StorageId(7);

    fn facts(segments: impl IntoIterator<Item = u64>) -> Facts {
        let mut facts = Facts { synced: Lsn(9), covers: Lsn(4), ..Facts::default() };
        segments.into_iter().for_each(|g| facts.list(g));
        facts
    }

    #[test]
    fn a_change_is_durable_on_return_and_a_torn_one_leaves_the_last() {
        let disk = MemDisk::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let manifest = Manifest::create(&shared, STORAGE, facts([1, 5, 300, 1 << 40])).unwrap();
        for generation in 1 << 41..(1 << 41) + 30 {
            manifest.change(|f| f.list(generation)).unwrap();
            let before = manifest.facts();
            let torn = disk.fork();
            torn.crash(&mut || false);
            let torn: Arc<dyn Disk> = Arc::new(torn);
            assert_eq!(Manifest::load(&torn, STORAGE).unwrap().unwrap().facts(), before);
        }
    }

    #[test]
    fn it_grows_with_its_segments() {
        let disk = MemDisk::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let manifest = Manifest::create(&shared, STORAGE, facts([])).unwrap();
        for n in 0..5 {
            manifest.change(|f| (n * 3000..(n + 1) * 3000).for_each(|g| f.list(g * 200 + 1))).unwrap();
        }
        let said = manifest.facts();
        disk.crash(&mut || false);
        assert_eq!(Manifest::load(&shared, STORAGE).unwrap().unwrap().facts(), said);
        assert_eq!(said.segments.len(), 15_000);
        assert!(
            disk.open(&manifest_path(), Open::Read).unwrap().len().unwrap() > 2 * FIRST_SLOT_BYTES as u64
        );
    }

    #[test]
    fn damage_never_adds_a_segment() {
        let disk = MemDisk::new();
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let manifest = Manifest::create(&shared, STORAGE, facts([1])).unwrap();
        let first = manifest.facts();
        manifest.change(|f| f.list(2)).unwrap();
        let second = manifest.facts();
        for offset in 0..2 * FIRST_SLOT_BYTES as u64 {
            let damaged = disk.fork();
            assert!(damaged.flip_bit(&manifest_path(), offset, (offset % 8) as u8));
            let damaged: Arc<dyn Disk> = Arc::new(damaged);
            match Manifest::load(&damaged, STORAGE) {
                Ok(found) => assert!([&first, &second].contains(&&found.unwrap().facts())),
                Err(JournalError::UnsupportedFormat { .. }) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
}
