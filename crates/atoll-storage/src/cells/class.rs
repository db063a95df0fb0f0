//! The file of one class of slots.

use std::collections::BTreeSet;
use std::io::IoSlice;

use atoll_core::testing::hit;

use super::format::FileHeader;
use super::manifest::{MANIFEST_BYTES, Manifest};
use super::{CELL_DIR, CellError, CellStore, ZEROS, cell_dir, class_path};
use crate::disk::{DiskError, DiskPath, File, Open};

/// The smallest number of slots that a file grows by, if the disk has room for them.
const GROW_SLOTS: usize = 16;
/// The most bytes that a file grows by, unless a batch needs more: about ten milliseconds of writing, during which other batches wait.
const GROW_BYTES: usize = 4 * 1024 * 1024;

/// The file of one class.
pub(super) struct Class {
    pub file: Box<dyn File>,
    /// The length of the header, which is one block.
    pub header_bytes: usize,
    pub version_bytes: usize,
    /// For each slot, how many versions it has had.
    pub turns: Vec<u64>,
    /// Slots that no cell uses. Low ones are used first, so that the end of the file stays unused.
    pub free: BTreeSet<u32>,
    /// The highest number of a version in the file.
    pub newest: u64,
    /// Whether something was written since the last sync.
    pub dirty: bool,
}

impl Class {
    pub(super) fn file_bytes(&self) -> u64 {
        self.offset(self.turns.len() as u32, 0)
    }

    /// Returns where one side of a slot begins.
    pub(super) fn offset(&self, slot: u32, side: u8) -> u64 {
        self.header_bytes as u64 + (u64::from(slot) * 2 + u64::from(side)) * self.version_bytes as u64
    }

    /// Adds slots that are durable and listed.
    fn adopt(&mut self, slots: usize) {
        let first = self.turns.len();
        self.turns.resize(first + slots, 0);
        self.free.extend(first as u32..(first + slots) as u32);
    }
}

/// Fills a part of a file with zeros and syncs it. What an interrupted growth has left there is overwritten.
fn fill(file: &mut dyn File, from: u64, to: u64) -> Result<(), DiskError> {
    let mut at = from;
    while at < to {
        let part = (to - at).min(ZEROS.len() as u64);
        file.write_at(at, &[IoSlice::new(&ZEROS[..part as usize])])?;
        at += part;
    }
    file.sync_data()
}

impl CellStore {
    /// Returns the unit of the files.
    pub(super) fn block_bytes(&self) -> u32 {
        self.manifest.as_ref().map_or(self.options.block_bytes, |manifest| manifest.facts().block_bytes)
    }

    /// Adds at least `lacking` slots to a class. They are durable and listed on return. A full disk leaves everything as it was, except
    /// that the file may be longer than the manifest says.
    pub(super) fn grow(&mut self, class: u8, lacking: usize) -> Result<(), CellError> {
        let slot_bytes = 2 * ((self.block_bytes() as usize) << class);
        let there = self.classes.get(&class).map_or(0, |class| class.turns.len());
        let ahead = (there / 8).max(GROW_SLOTS).min(GROW_BYTES / slot_bytes);
        for slots in [lacking.max(ahead), lacking] {
            match self.add_slots(class, slots) {
                Ok(()) => {
                    self.is_short = false;
                    return Ok(());
                }
                Err(DiskError::NoSpace { .. }) => {}
                Err(error) => return Err(self.fail(&error)),
            }
        }
        hit("cells.no_space");
        self.is_short = true;
        Err(CellError::NoSpace { needed_bytes: (lacking * slot_bytes) as u64 })
    }

    /// Makes the manifest if there is none yet.
    pub(super) fn make_manifest(&mut self) -> Result<(), CellError> {
        match self.ensure_manifest() {
            Err(DiskError::NoSpace { .. }) => {
                self.is_short = true;
                Err(CellError::NoSpace { needed_bytes: MANIFEST_BYTES })
            }
            other => other.map_err(|error| self.fail(&error)),
        }
    }

    fn ensure_manifest(&mut self) -> Result<(), DiskError> {
        if self.manifest.is_none() {
            let (storage, block) = (self.options.storage, self.options.block_bytes);
            self.manifest = Some(Manifest::create(&*self.disk, storage, block)?);
        }
        Ok(())
    }

    fn add_slots(&mut self, number: u8, slots: usize) -> Result<(), DiskError> {
        hit("cells.grow");
        self.ensure_manifest()?;
        if !self.classes.contains_key(&number) {
            let class = self.create_class(number)?;
            self.classes.insert(number, class);
        }
        let (Some(class), Some(manifest)) = (self.classes.get_mut(&number), &mut self.manifest) else {
            return Err(DiskError::NotFound { path: class_path(number).to_string() });
        };
        let there = class.turns.len() as u32;
        let all = there + slots as u32;
        let (old, new) = (class.file_bytes(), class.offset(all, 0));
        if let Err(error) = fill(&mut *class.file, old, new) {
            if matches!(error, DiskError::NoSpace { .. }) {
                class.file.set_len(old)?;
            }
            return Err(error);
        }
        manifest.change(|facts| facts.classes.entry(number).or_default().slots = all)?;
        class.adopt(slots);
        Ok(())
    }

    /// Creates the file of a class without slots. It is durable on return, and not listed.
    fn create_class(&self, class: u8) -> Result<Class, DiskError> {
        let header_bytes = self.block_bytes() as usize;
        let header = FileHeader { block_bytes: self.block_bytes(), class, storage: self.options.storage };
        self.disk.create_dir(&cell_dir())?;
        self.disk.sync_dir(&DiskPath::fixed(CELL_DIR).parent())?;
        let mut file = self.disk.open(&class_path(class), Open::Create)?;
        let mut bytes = header.to_bytes();
        bytes.resize(header_bytes, 0);
        file.write_at(0, &[IoSlice::new(&bytes)])?;
        file.sync_data()?;
        self.disk.sync_dir(&cell_dir())?;
        Ok(Class {
            file,
            header_bytes,
            version_bytes: header_bytes << class,
            turns: Vec::new(),
            free: BTreeSet::new(),
            newest: 0,
            dirty: false,
        })
    }
}
