//! The cells of a node: small values that its roles overwrite in place (in-place replicated state machines, seed 004 §4.3 and §6.2). Each
//! cell has a key and holds the last value that was written to it. There is no log of the values and nothing to compact, so a write costs
//! the same however often the cell was written before.
//!
//! **Slots.** A slot has room for two versions of one cell. A write overwrites the older version, so a torn write damages nothing that was
//! acknowledged. The versions are in blocks of their own, because a power cut may damage the whole block that is being written (X3). Slots
//! come in classes: the versions of class *n* are `block_bytes << n` bytes long. Each class has a file, which grows and never shrinks.
//! Deleted cells leave free slots, which later cells use.
//!
//! **Group commit.** [`CellStore::write`] takes all cells of a batch, and [`CellStore::sync`] syncs each file that they touched once. Of
//! several writes to one cell in a batch, only the last is written: the others would overwrite the version that must survive a torn write.
//!
//! **Recovery** finds the last good version of each cell by checksum and number, and tells a torn write from rot: every version says what
//! was synced when it was written, and so does the manifest. A damaged version with a number up to that was synced, so recovery refuses the
//! directory. A damaged version with a higher number was never acknowledged, and the other side of the slot holds the last value. Its
//! number is known unless both its head and its tail are damaged; then it counts as torn if the other side is good. Rot in the very last
//! batch cannot be told from a torn write; [`CellStore::mark`] keeps that window small.
//!
//! **Lost files and older copies** are detected by a manifest next to the folder. A directory that was put back as a whole is consistent;
//! only other nodes can detect it, because the numbers of cells count in what a node announces as durable (`atoll-core/src/witness.rs`).
//!
//! **Space** is reserved before it is written: a file grows before its new slots are used, and only then the disk can be full.
//!
//! **Failure**: a failed write or sync closes the store permanently, and every later call returns the reason (native-T22).
//!
//! A node whose roles use no cells has no file of cells, and writes and syncs nothing for them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `format.rs` | the encoding of slots |
//! | `manifest.rs` | the list of files that must exist |
//! | `class.rs` | the file of one class, its free slots, and its growth |
//! | `plan.rs` | which slots a batch takes |
//! | `recover.rs` | reading the cells back at a start |

mod class;
mod format;
mod manifest;
mod plan;
mod recover;

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

use atoll_core::testing::{hit, mutant};
use atoll_core::{CellWrite, MAX_CELL_KEY_BYTES, MAX_CELL_VALUE_BYTES, RoleKind, StorageId};
use bytes::Bytes;

use crate::disk::{Disk, DiskError, DiskPath};
use crate::mutants;
use class::Class;
use format::{HEAD_BYTES, Head, Kind, Seed, TAIL_BYTES};
use manifest::Manifest;
use plan::Put;

pub use format::CELL_FORMAT;
pub use manifest::CELL_MANIFEST_FORMAT;
pub use recover::RecoverCellsError;

/// The directory of the files of cells.
pub(crate) const CELL_DIR: &str = "cells";
/// With fewer free slots than this, a class grows ahead of time.
const SPARE_SLOTS: usize = 8;
const MIN_BLOCK_BYTES: u32 = 512;
const MAX_BLOCK_BYTES: u32 = 65_536;
static ZEROS: [u8; MAX_BLOCK_BYTES as usize] = [0; MAX_BLOCK_BYTES as usize];

fn cell_dir() -> DiskPath {
    DiskPath::fixed(CELL_DIR)
}

fn class_path(class: u8) -> DiskPath {
    DiskPath::fixed(&format!("{CELL_DIR}/class-{class:02}"))
}

/// Returns whether a data directory has cells.
pub(crate) fn are_there(disk: &dyn Disk) -> Result<bool, DiskError> {
    let is_listed = disk.list(&DiskPath::root())?.iter().any(|name| name == manifest::MANIFEST);
    Ok(is_listed || !disk.list(&cell_dir())?.is_empty())
}

/// Returns the class in the name of a file of cells.
fn class_of_name(name: &str) -> Option<u8> {
    name.strip_prefix("class-").filter(|digits| digits.len() == 2)?.parse().ok()
}

/// Sizes of a store of cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellOptions {
    /// The data directory's storage identity. Every checksum covers it.
    pub storage: StorageId,
    /// The unit that is never written again while it holds an acknowledged value: the device's block, in bytes. A power of two, 512 to
    /// 65536. A directory keeps the one that it was created with.
    pub block_bytes: u32,
}

impl CellOptions {
    /// Returns the options of a node: blocks of 4 KiB.
    pub fn new(storage: StorageId) -> Self {
        CellOptions { storage, block_bytes: 4096 }
    }

    /// Returns the options of the simulator: small blocks, so that most cells take several and may be torn.
    pub fn small(storage: StorageId) -> Self {
        CellOptions { storage, block_bytes: MIN_BLOCK_BYTES }
    }
}

/// What the operator can do about a refused directory.
const REJOIN: &str = "the node may have forgotten what it acknowledged, so this data directory must not be used: put back the current \
    file if it is somewhere, or move the whole directory away and start with an empty one; the node then joins under a new storage \
    identity and is rebuilt from its peers";

/// Why the store of cells refused or failed an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CellError {
    /// A disk operation failed during recovery.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// Synced data differs from what was written. The node must not serve what its cells held (rmw-T9).
    #[error("{file} at byte {offset}: {what}; an acknowledged value is lost or changed; {REJOIN}")]
    Damaged {
        /// The file, below the data directory.
        file: String,
        /// The byte offset in the file.
        offset: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// A file that must exist is missing or too short.
    #[error("{file} is missing: {why}; {REJOIN}")]
    Missing {
        /// The file, below the data directory.
        file: String,
        /// How the store knows that the file must exist.
        why: &'static str,
    },
    /// A file is older than the version that was durable: somebody put back an older copy.
    #[error("{file} is an older copy: {why}; {REJOIN}")]
    Older {
        /// The file, below the data directory.
        file: String,
        /// How the store knows that, with the found and the expected value.
        why: String,
    },
    /// Another version of the program wrote the file.
    #[error("{file} has format {found}, this program reads format {supported}")]
    UnsupportedFormat {
        /// The file, below the data directory.
        file: String,
        /// The format version of the file.
        found: u32,
        /// The format version that this program reads.
        supported: u32,
    },
    /// The file belongs to another data directory.
    #[error(
        "{file} belongs to storage {found}, this is storage {expected}: it is another data directory's; {REJOIN}"
    )]
    Foreign {
        /// The file, below the data directory.
        file: String,
        /// The storage identity in the file.
        found: StorageId,
        /// The storage identity of this directory.
        expected: StorageId,
    },
    /// A write or sync failed, now or earlier. Whether the data of that call is durable is unknown. Nothing more becomes durable until a
    /// restart runs recovery.
    #[error("the store of cells is closed until the node restarts: {reason}")]
    Closed {
        /// The first failure.
        reason: String,
    },
    /// There are not enough free slots, and the disk has no room for more. Nothing was written; the same call may succeed once there is
    /// space again. Cells that exist can still be overwritten and deleted.
    #[error("the disk is full: {needed_bytes} more bytes are needed for cells; nothing was written")]
    NoSpace {
        /// The bytes that are missing.
        needed_bytes: u64,
    },
    /// A key or a value is longer than a cell can be, or the key is empty. Nothing of the batch was written.
    #[error(
        "a cell of {owner} has a key of {key_bytes} bytes and a value of {value_bytes}; keys of 1 to {MAX_CELL_KEY_BYTES} bytes and \
         values of up to {MAX_CELL_VALUE_BYTES} are allowed; nothing was written"
    )]
    BadCell {
        /// The role that wrote it.
        owner: RoleKind,
        /// The length of the key, in bytes.
        key_bytes: usize,
        /// The length of the value, in bytes.
        value_bytes: usize,
    },
    /// An option is outside its range.
    #[error("cell option {option}: {allowed}")]
    BadOption {
        /// The name of the option.
        option: &'static str,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// Counts of a store of cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellStats {
    /// Cells that have a value.
    pub cells: u64,
    /// The lengths of all files of cells, in bytes.
    pub file_bytes: u64,
    /// Versions written since the start.
    pub writes: u64,
    /// Bytes written since the start, without those of growing files.
    pub written_bytes: u64,
    /// Syncs of files since the start, without those of growing files.
    pub syncs: u64,
}

/// The slot of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    class: u8,
    slot: u32,
}

type Key = (RoleKind, Bytes);

/// A batch of cells, and the slots that they take.
#[derive(Default)]
#[must_use = "nothing is written yet"]
pub struct Reserved {
    plan: plan::Plan,
    /// The number of the last write. 0 if there is none.
    upto: u64,
}

/// The cells of one data directory; see the module documentation. All calls block, and only one thread makes them. It keeps in memory the
/// key and the slot of each cell, and no values.
pub struct CellStore {
    disk: Arc<dyn Disk>,
    options: CellOptions,
    /// None as long as there never was a cell.
    manifest: Option<Manifest>,
    classes: BTreeMap<u8, Class>,
    index: BTreeMap<Key, Place>,
    /// Slots that their cells have left for another slot, with a version that is durable there. The next batch releases them.
    left: Vec<Place>,
    /// What the writes since the last sync change once they are durable.
    then: Then,
    /// The number of the last write.
    last: u64,
    /// All writes up to here are durable.
    synced: u64,
    /// The stamp of everything that is written, during recovery.
    stamp: Option<u64>,
    /// Whether the last growth found no space, and no slot was freed since.
    is_short: bool,
    failure: Option<String>,
    stats: CellStats,
}

/// What becomes true with the next sync.
#[derive(Default)]
struct Then {
    /// Slots that nothing needs any more.
    free: Vec<Place>,
    /// Slots that cells have left.
    left: Vec<Place>,
    /// Whether only the manifest can show the last number, because that write changed no slot.
    unseen: bool,
}

impl CellStore {
    /// Returns the number of the last write, whether it is durable or not.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Returns the number of the last durable write. All writes before it are durable, too.
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Returns counts for metrics.
    pub fn stats(&self) -> CellStats {
        let file_bytes = self.classes.values().map(Class::file_bytes).sum();
        CellStats { cells: self.index.len() as u64, file_bytes, ..self.stats }
    }

    /// Returns whether new cells soon find no room, because the disk is full.
    pub fn is_short(&self) -> bool {
        self.is_short
    }

    /// Returns whether there is a free slot for each of these cells, so that [`CellStore::write`] does not have to make any.
    pub fn has_room_for(&self, cells: &[CellWrite]) -> bool {
        let is_ready =
            |plan: plan::Plan| self.lacking(&plan).is_empty() && (self.manifest.is_some() || !plan.is_unseen);
        cells.is_empty() || self.plan(cells).is_ok_and(is_ready)
    }

    /// Returns how many bytes a write of these cells writes: each takes whole blocks.
    pub fn written_bytes(&self, cells: &[CellWrite]) -> usize {
        let block = self.block_bytes();
        let body = |cell: &CellWrite| cell.key.len() + cell.value.as_ref().map_or(0, Bytes::len);
        cells.iter().map(|cell| (block as usize) << plan::class_for(block, body(cell))).sum()
    }

    /// Makes sure that there is a slot for each cell of a batch. [`CellStore::write_reserved`], which must come before another change, then
    /// finds room.
    ///
    /// # Errors
    /// As those of [`CellStore::write`]. Nothing was written to a slot.
    pub fn reserve(&mut self, cells: &[CellWrite]) -> Result<Reserved, CellError> {
        let Some(last) = cells.last() else { return Ok(Reserved::default()) };
        self.check_open()?;
        for (i, cell) in cells.iter().enumerate() {
            let (expected, number) = (self.last + 1 + i as u64, cell.number);
            atoll_core::invariant!(number == expected, "cell write {number} was given, expected {expected}");
        }
        let plan = self.plan(cells)?;
        self.make_room(&plan)?;
        Ok(Reserved { plan, upto: last.number })
    }

    /// Makes free slots ahead of time in each class that has few left, so that a write need not. With the disk full,
    /// [`CellStore::is_short`] then returns true while there still are free slots: roles stop to make new cells, and those that wait to be
    /// written find room.
    ///
    /// # Errors
    /// An error closes the store permanently. A full disk is no error.
    pub fn look_ahead(&mut self) -> Result<(), CellError> {
        if self.classes.is_empty() {
            return Ok(());
        }
        self.check_open()?;
        let is_low = |class: &Class| class.free.len() < SPARE_SLOTS;
        let low: Vec<u8> =
            self.classes.iter().filter(|(_, class)| is_low(class)).map(|(number, _)| *number).collect();
        self.is_short = false;
        for number in low {
            match self.grow(number, SPARE_SLOTS) {
                Ok(()) => {}
                Err(CellError::NoSpace { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Writes all cells of a batch. Nothing of it is durable before [`CellStore::sync`], which must come before the next write. A torn
    /// write leaves each of these cells either as it was or as it is written here.
    ///
    /// # Errors
    /// After [`CellError::NoSpace`] or [`CellError::BadCell`], nothing was written and the store stays open. Any other error closes the
    /// store permanently, and whether the cells were written is unknown.
    pub fn write(&mut self, cells: &[CellWrite]) -> Result<(), CellError> {
        let reserved = self.reserve(cells)?;
        self.write_reserved(reserved)
    }

    /// Writes the cells of a batch into the slots that [`CellStore::reserve`] has found. Like [`CellStore::write`] otherwise.
    ///
    /// # Errors
    /// An error closes the store permanently, and whether the cells were written is unknown.
    pub fn write_reserved(&mut self, Reserved { plan, upto }: Reserved) -> Result<(), CellError> {
        if upto == 0 {
            return Ok(());
        }
        self.check_open()?;
        atoll_core::invariant!(self.synced == self.last, "cells are written before the last ones are synced");
        self.then.unseen = plan.is_unseen;
        for put in plan.puts {
            self.put(put).map_err(|error| self.fail(&error))?;
        }
        for place in std::mem::take(&mut self.left) {
            self.release(place, upto).map_err(|error| self.fail(&error))?;
        }
        self.last = upto;
        Ok(())
    }

    /// Makes everything written so far durable: one fdatasync for each file that was written. It costs nothing if nothing was written since
    /// the last sync.
    ///
    /// # Errors
    /// An error closes the store permanently. A failed sync is never retried, because a retry may report success although pages were lost
    /// (native-T22).
    pub fn sync(&mut self) -> Result<(), CellError> {
        if self.synced == self.last {
            return Ok(());
        }
        self.check_open()?;
        for class in self.classes.values_mut().filter(|class| class.dirty) {
            let synced = if mutant(mutants::CELLS_UNSYNCED) { Ok(()) } else { class.file.sync_data() };
            class.dirty = false;
            self.stats.syncs += 1;
            if let Err(error) = synced {
                return Err(self.fail(&error));
            }
        }
        let Then { free, left, unseen } = std::mem::take(&mut self.then);
        self.synced = self.last;
        for place in free {
            if let Some(class) = self.classes.get_mut(&place.class) {
                class.free.insert(place.slot);
                self.is_short = false;
            }
        }
        self.left = left;
        // No slot shows the number of a deletion that found no cell.
        if unseen { self.raise().map_err(|error| self.fail(&error)) } else { Ok(()) }
    }

    /// Records on disk that everything so far is synced. From then on, recovery can tell rot in the last batch from a torn batch, and
    /// detects older copies of single files. Call it when the store is idle, and before a clean stop. It writes and syncs the manifest.
    ///
    /// # Errors
    /// An error closes the store permanently. A full disk may refuse even an overwrite; the manifest then stays as it was, which is still
    /// true, and that is no error.
    pub fn mark(&mut self) -> Result<(), CellError> {
        self.check_open()?;
        if self.synced < self.last {
            return Ok(());
        }
        match self.raise() {
            Ok(()) | Err(DiskError::NoSpace { .. }) => Ok(()),
            Err(error) => Err(self.fail(&error)),
        }
    }

    /// Writes to the manifest what is synced.
    fn raise(&mut self) -> Result<(), DiskError> {
        let synced = self.synced;
        let Some(manifest) = self.manifest.as_mut().filter(|m| m.facts().synced != synced) else {
            return Ok(());
        };
        manifest.change(|facts| {
            facts.synced = synced;
            for (number, class) in &self.classes {
                facts.classes.entry(*number).or_default().newest = class.newest;
            }
        })
    }

    /// Writes one planned version, and remembers what follows from it.
    fn put(&mut self, put: Put) -> Result<(), DiskError> {
        let Put { number, key, value, was, class } = put;
        let kind = if value.is_some() { Kind::Value } else { Kind::Deleted };
        let stays = was.filter(|was| was.class == class);
        let place = match stays {
            Some(place) => place,
            None => {
                let slot = self.classes.get_mut(&class).and_then(|class| class.free.pop_first());
                let Some(slot) = slot else {
                    atoll_core::invariant!(false, "a cell is written without a free slot");
                    return Err(DiskError::NotFound { path: class_path(class).to_string() });
                };
                if let Some(was) = was {
                    hit("cells.move");
                    self.then.left.push(was);
                }
                Place { class, slot }
            }
        };
        self.write_version(place, number, kind, &key, value.as_deref().unwrap_or_default())?;
        match kind {
            Kind::Value => {
                // The key may be a slice of a large buffer (X13).
                let (owner, key) = key;
                if stays.is_none() {
                    self.index.insert((owner, Bytes::copy_from_slice(&key)), place);
                }
            }
            _ => {
                self.index.remove(&key);
                self.then.free.push(place);
            }
        }
        Ok(())
    }

    /// Says in a slot that its cell lives in another one.
    fn release(&mut self, place: Place, number: u64) -> Result<(), DiskError> {
        let nobody = (RoleKind(0), Bytes::new());
        self.write_version(place, number, Kind::Released, &nobody, &[])?;
        self.then.free.push(place);
        Ok(())
    }

    /// Overwrites the older version of a slot.
    fn write_version(
        &mut self,
        place: Place,
        number: u64,
        kind: Kind,
        (owner, key): &Key,
        value: &[u8],
    ) -> Result<(), DiskError> {
        let (storage, synced_upto) = (self.options.storage, self.synced);
        let Some(class) = self.classes.get_mut(&place.class) else {
            return Err(DiskError::NotFound { path: class_path(place.class).to_string() });
        };
        // The known bug leaves no version that a torn write cannot damage.
        let copies = if mutant(mutants::CELLS_BOTH_VERSIONS) { 2 } else { 1 };
        for _ in 0..copies {
            let turn = class.turns[place.slot as usize] + 1;
            let side = (turn % 2) as u8;
            let head = Head {
                turn,
                stamp: self.stamp.unwrap_or(number),
                number,
                synced_upto,
                owner: *owner,
                kind,
                key_bytes: key.len() as u16,
                value_bytes: value.len() as u32,
            };
            let (front, tail) = head.to_bytes(key, value, Seed::new(storage, place.class, place.slot, side));
            let mut padding = class.version_bytes - HEAD_BYTES - TAIL_BYTES - key.len() - value.len();
            let mut slices = vec![IoSlice::new(&front), IoSlice::new(key), IoSlice::new(value)];
            while padding > 0 {
                let part = padding.min(ZEROS.len());
                slices.push(IoSlice::new(&ZEROS[..part]));
                padding -= part;
            }
            slices.push(IoSlice::new(&tail));
            let at = class.offset(place.slot, side);
            class.file.write_at(at, &slices)?;
            class.turns[place.slot as usize] = turn;
            class.newest = class.newest.max(number);
            class.dirty = true;
            self.stats.writes += 1;
            self.stats.written_bytes += class.version_bytes as u64;
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), CellError> {
        match &self.failure {
            Some(reason) => Err(CellError::Closed { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn fail(&mut self, error: &DiskError) -> CellError {
        hit("cells.closed");
        let reason = self.failure.get_or_insert_with(|| error.to_string()).clone();
        CellError::Closed { reason }
    }
}

impl CellOptions {
    fn check(&self) -> Result<(), CellError> {
        let block = self.block_bytes;
        if block.is_power_of_two() && (MIN_BLOCK_BYTES..=MAX_BLOCK_BYTES).contains(&block) {
            return Ok(());
        }
        Err(CellError::BadOption { option: "block_bytes", allowed: "a power of two from 512 to 65536" })
    }
}
