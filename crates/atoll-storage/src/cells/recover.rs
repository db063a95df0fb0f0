//! Reads the cells back, and tells a torn write from rot (rmw-T9).
//!
//! Recovery reads every slot twice. The first pass finds the *evidence*, the highest number that some version or the manifest says was
//! synced, and the newest version of each cell. A damaged version is then rot if the evidence reaches its number; otherwise its write was
//! never acknowledged. The second pass hands out the cells. Only the index and one piece of a file are in memory.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_core::testing::{hit, mutant};
use atoll_core::{Cell, StorageId};
use bytes::Bytes;

use super::class::Class;
use super::format::{BadHeader, CELL_FORMAT, FILE_HEADER_BYTES, FileHeader, Head, Kind, Seed, Side};
use super::manifest::{Facts, MANIFEST, Manifest};
use super::{
    CellError, CellOptions, CellStats, CellStore, Key, Place, Then, cell_dir, class_of_name, class_path,
};
use crate::disk::{Disk, DiskError, Open};
use crate::mutants;

/// Bytes of a file that are in memory at a time, unless one slot is longer.
const PIECE_BYTES: usize = 256 * 1024;

/// Why the recovery of cells failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverCellsError<E> {
    /// The cells are damaged or refused, or their disk failed.
    #[error(transparent)]
    Cells(#[from] CellError),
    /// The visitor refused a cell.
    #[error("{0}")]
    Visitor(E),
}

/// Where the newest version of a cell is.
struct Newest {
    place: Place,
    head: Head,
}

/// A damaged version whose write was acknowledged if the evidence reaches its stamp.
struct Suspect {
    place: Place,
    side: u8,
    stamp: u64,
}

/// What the first pass gathers.
#[derive(Default)]
struct Walk {
    evidence: u64,
    last: u64,
    newest: BTreeMap<Key, Newest>,
    /// Slots whose current version is a value that another slot has replaced.
    stale: Vec<Place>,
    suspects: Vec<Suspect>,
    /// Slots with a side that a crash has torn, each once: a second repair would overwrite the side that the first one has copied.
    repairs: BTreeSet<Place>,
}

impl CellStore {
    /// Recovers the cells of a data directory, and passes each to `visit`, in the order of the files. What it passes is durable. A
    /// directory without cells stays as it is: nothing is written.
    ///
    /// # Errors
    /// The directory lost synced data, holds an older copy of a file, or belongs to another storage identity; or the disk failed. The disk
    /// is unchanged, except that parts of a torn write may be gone. An error of `visit` is passed on.
    pub fn recover<E>(
        disk: Arc<dyn Disk>,
        options: CellOptions,
        visit: &mut dyn FnMut(Cell) -> Result<(), E>,
    ) -> Result<CellStore, RecoverCellsError<E>> {
        options.check()?;
        let manifest = Manifest::load(&*disk, options.storage)?;
        let found = disk.list(&cell_dir()).map_err(CellError::from)?;
        let mut store = CellStore {
            disk,
            options,
            manifest,
            classes: BTreeMap::new(),
            index: BTreeMap::new(),
            left: Vec::new(),
            then: Then::default(),
            last: 0,
            synced: 0,
            stamp: None,
            is_short: false,
            failure: None,
            stats: CellStats::default(),
        };
        let Some(manifest) = &store.manifest else {
            if found.is_empty() || mutant(mutants::CELL_LOSS_UNSEEN) {
                return Ok(store);
            }
            hit("cells.recover.missing");
            let why = "there are files of cells, which it must list";
            return Err(CellError::Missing { file: MANIFEST.to_owned(), why }.into());
        };
        let facts = manifest.facts().clone();
        let mut walk = Walk { evidence: facts.synced, last: facts.synced, ..Walk::default() };
        store.open_files(&facts, &found, &mut walk)?;
        walk.check(&store)?;
        store.settle(walk)?;
        store.hand_out(visit)?;
        // Roles keep their values, so nobody reads the files again. They were read in large pieces, and the file system walks through all
        // of a cached piece for each block of it that is overwritten.
        store.classes.values_mut().for_each(|class| class.file.forget_cached());
        Ok(store)
    }

    /// First pass: opens and reads every file.
    fn open_files(&mut self, facts: &Facts, found: &[String], walk: &mut Walk) -> Result<(), CellError> {
        let classes = found.iter().filter_map(|name| class_of_name(name));
        for number in classes.chain(facts.classes.keys().copied()) {
            if self.classes.contains_key(&number) {
                continue;
            }
            if let Some(mut class) = self.open_class(number, facts)? {
                walk.class(number, &mut class, facts, self.options.storage)?;
                self.classes.insert(number, class);
            }
        }
        Ok(())
    }

    /// Opens a file, and makes durable what can be read from it. Returns None if the file was being created when the node died: nothing in
    /// it was used.
    fn open_class(&self, number: u8, facts: &Facts) -> Result<Option<Class>, CellError> {
        let (path, name) = (class_path(number), class_path(number).to_string());
        let listed = facts.classes.get(&number).copied();
        let mut file = match self.disk.open(&path, Open::Write) {
            Ok(file) => file,
            Err(DiskError::NotFound { .. }) => {
                if mutant(mutants::CELL_LOSS_UNSEEN) {
                    return Ok(None);
                }
                hit("cells.recover.missing");
                let why = "cells.manifest lists it, if that is not an older copy itself";
                return Err(CellError::Missing { file: name, why });
            }
            Err(error) => return Err(error.into()),
        };
        file.sync_data()?;
        file.forget_cached();
        let mut bytes = [0; FILE_HEADER_BYTES];
        file.read_at(0, &mut bytes)?;
        let header = match FileHeader::parse(&bytes) {
            Ok(header) => header,
            Err(BadHeader::Damaged) if listed.is_none() => return Ok(None),
            Err(BadHeader::Damaged) => {
                return Err(CellError::Damaged { file: name, offset: 0, what: "its header is damaged" });
            }
            Err(BadHeader::Format(found)) => {
                return Err(CellError::UnsupportedFormat { file: name, found, supported: CELL_FORMAT });
            }
        };
        if header.storage != self.options.storage {
            let (found, expected) = (header.storage, self.options.storage);
            return Err(CellError::Foreign { file: name, found, expected });
        }
        if header.class != number || header.block_bytes != facts.block_bytes {
            let what = "its header belongs to another file";
            return Err(CellError::Damaged { file: name, offset: 0, what });
        }
        let header_bytes = header.block_bytes as usize;
        let version_bytes = header_bytes << number;
        let slots = (file.len()?.saturating_sub(header_bytes as u64)) / (2 * version_bytes as u64);
        if slots < u64::from(listed.unwrap_or_default().slots) && !mutant(mutants::CELL_LOSS_UNSEEN) {
            hit("cells.recover.missing");
            let why = "it is shorter than cells.manifest says: its end is lost";
            return Err(CellError::Missing { file: name, why });
        }
        let turns = vec![0; slots.min(u64::from(u32::MAX)) as usize];
        let (free, newest, dirty) = (Default::default(), 0, false);
        Ok(Some(Class { file, header_bytes, version_bytes, turns, free, newest, dirty }))
    }

    /// Builds the index, and removes what a crash left behind.
    fn settle(&mut self, walk: Walk) -> Result<(), CellError> {
        let Walk { evidence, last, newest, stale, repairs, .. } = walk;
        // Until all torn versions are gone, nothing may say that more was synced: a number above the evidence may be that of a torn
        // version.
        (self.last, self.synced) = (last, evidence.min(last));
        self.stamp = Some(last + 1);
        for class in self.classes.values_mut() {
            class.free = (0..class.turns.len() as u32).collect();
        }
        for (key, Newest { place, head }) in newest {
            if head.kind == Kind::Value {
                if let Some(class) = self.classes.get_mut(&place.class) {
                    class.free.remove(&place.slot);
                }
                self.index.insert(key, place);
            }
        }
        // Numbers of torn writes are given again. If a torn version stayed, its number would count as synced one day.
        for place in repairs {
            // A release overwrites the torn side, too. A second write before the sync would overwrite the good one.
            if !stale.contains(&place) {
                self.repair(place)?;
            }
        }
        // Before a slot that says that a cell was deleted is used again, no other slot may still have a value of that cell.
        for place in stale {
            hit("cells.recover.stale");
            self.release(place, last)?;
        }
        for class in self.classes.values_mut().filter(|class| class.dirty) {
            class.file.sync_data()?;
            class.dirty = false;
        }
        self.then = Then::default();
        (self.synced, self.stamp) = (last, None);
        Ok(())
    }

    /// Overwrites the torn side of a slot with a copy of the other.
    fn repair(&mut self, place: Place) -> Result<(), CellError> {
        let Some((bytes, seed)) = self.current(place)? else { return Ok(self.release(place, self.last)?) };
        let Side::Whole { head, key, value, .. } = Side::parse(&bytes, seed) else {
            return Err(self.changed(place));
        };
        let key = (head.owner, Bytes::copy_from_slice(key));
        Ok(self.write_version(place, head.number, head.kind, &key, value)?)
    }

    /// Reads the current version of a slot. Returns None if it has none.
    fn current(&self, place: Place) -> Result<Option<(Vec<u8>, Seed)>, CellError> {
        let Some(class) = self.classes.get(&place.class) else { return Ok(None) };
        let turn = class.turns[place.slot as usize];
        if turn == 0 {
            return Ok(None);
        }
        let side = (turn % 2) as u8;
        let mut bytes = vec![0; class.version_bytes];
        class.file.read_at(class.offset(place.slot, side), &mut bytes)?;
        Ok(Some((bytes, Seed::new(self.options.storage, place.class, place.slot, side))))
    }

    fn changed(&self, place: Place) -> CellError {
        let file = class_path(place.class).to_string();
        let offset = self.classes.get(&place.class).map_or(0, |class| class.offset(place.slot, 0));
        CellError::Damaged { file, offset, what: "it was whole a moment ago" }
    }

    /// Second pass: reads the cells again and hands them out.
    fn hand_out<E>(&self, visit: &mut dyn FnMut(Cell) -> Result<(), E>) -> Result<(), RecoverCellsError<E>> {
        let mut places: Vec<(Place, &Key)> = self.index.iter().map(|(key, place)| (*place, key)).collect();
        places.sort_unstable_by_key(|(place, _)| *place);
        for (place, (owner, key)) in places {
            let Some((bytes, seed)) = self.current(place)? else { continue };
            let Side::Whole { value, .. } = Side::parse(&bytes, seed) else {
                return Err(self.changed(place).into());
            };
            let cell = Cell { owner: *owner, key: key.clone(), value: Bytes::copy_from_slice(value) };
            visit(cell).map_err(RecoverCellsError::Visitor)?;
        }
        Ok(())
    }
}

impl Walk {
    /// Reads all slots of a class, and keeps those that are listed. What follows them is from a growth that a crash has interrupted: it was
    /// never used, and may be neither filled nor durable. The next growth fills it again.
    fn class(
        &mut self,
        number: u8,
        class: &mut Class,
        facts: &Facts,
        storage: StorageId,
    ) -> Result<(), CellError> {
        let listed = facts.classes.get(&number).copied().unwrap_or_default();
        let is_blind = mutant(mutants::CELL_LOSS_UNSEEN);
        let slot_bytes = 2 * class.version_bytes;
        let at_a_time = (PIECE_BYTES / slot_bytes).max(1);
        let mut bytes = vec![0; at_a_time * slot_bytes];
        let (mut first, mut is_used) = (0, false);
        while first < class.turns.len() {
            let count = at_a_time.min(class.turns.len() - first);
            class.file.read_at(class.offset(first as u32, 0), &mut bytes[..count * slot_bytes])?;
            for (i, slot) in bytes[..count * slot_bytes].chunks_exact(slot_bytes).enumerate() {
                let place = Place { class: number, slot: (first + i) as u32 };
                let sides = slot.split_at(class.version_bytes);
                let sides = [(sides.0, 0), (sides.1, 1)]
                    .map(|(bytes, side)| Side::parse(bytes, Seed::new(storage, number, place.slot, side)));
                if place.slot < listed.slots || is_blind {
                    class.turns[first + i] = self.slot(class, place, sides)?;
                } else {
                    is_used |= sides.iter().any(Side::was_written);
                }
            }
            first += count;
        }
        if class.newest < listed.newest && !is_blind {
            hit("cells.recover.older");
            let (found, expected) = (class.newest, listed.newest);
            let why = format!("its last write is number {found}, and number {expected} was synced");
            return Err(CellError::Older { file: class_path(number).to_string(), why });
        }
        if is_used {
            hit("cells.recover.older");
            let file = class_path(number);
            let why = format!("{file} has cells that it does not list; one of the two was put back");
            return Err(CellError::Older { file: MANIFEST.to_owned(), why });
        }
        if !is_blind && class.turns.len() > listed.slots as usize {
            hit("cells.recover.unlisted");
            class.turns.truncate(listed.slots as usize);
        }
        Ok(())
    }

    /// Reads one slot, and returns how many versions it has had.
    fn slot(&mut self, class: &mut Class, place: Place, sides: [Side<'_>; 2]) -> Result<u64, CellError> {
        let damaged = |side: usize, what| {
            let (file, offset) = (class_path(place.class).to_string(), class.offset(place.slot, side as u8));
            Err(CellError::Damaged { file, offset, what })
        };
        for (side, found) in sides.iter().enumerate() {
            if let Side::Whole { head, .. } = found {
                self.evidence = self.evidence.max(head.synced_upto);
                if head.turn % 2 != side as u64 {
                    return damaged(side, "a version is on the wrong side of its slot");
                }
            }
        }
        let (current, last) = match &sides {
            [Side::Damaged { .. }, Side::Damaged { .. }] => {
                return damaged(0, "both of its versions are damaged");
            }
            [Side::Damaged { told }, other] => (1, self.beside(place, 0, told, other)),
            [other, Side::Damaged { told }] => (0, self.beside(place, 1, told, other)),
            [Side::Empty, Side::Empty] => return Ok(0),
            [Side::Whole { head, .. }, Side::Empty] => (0, head.turn),
            [Side::Empty, Side::Whole { head, .. }] => (1, head.turn),
            [Side::Whole { head: first, .. }, Side::Whole { head: second, .. }] => {
                if first.turn.abs_diff(second.turn) != 1 {
                    return damaged(0, "its two versions do not follow each other: one is lost");
                }
                (usize::from(second.turn > first.turn), first.turn.max(second.turn))
            }
        };
        if matches!(sides[1 - current], Side::Empty) && last > 1 {
            return damaged(1 - current, "one of its two versions is gone");
        }
        if let Side::Whole { head, key, tail, .. } = &sides[current] {
            if *tail != Some((head.turn, head.stamp)) {
                self.repairs.insert(place);
            }
            self.version(class, place, *head, key);
        }
        if let Side::Whole { tail, .. } = &sides[1 - current] {
            self.torn(place, 1 - current as u8, tail.iter(), last);
        }
        Ok(last)
    }

    /// Takes a slot of which one side is damaged, and returns the turn of the other. A damaged version that came before the good one does
    /// not matter.
    fn beside(&mut self, place: Place, side: u8, told: &[Option<(u64, u64)>; 2], good: &Side<'_>) -> u64 {
        hit("cells.recover.torn");
        let last = if let Side::Whole { head, .. } = good { head.turn } else { 0 };
        self.repairs.insert(place);
        self.torn(place, side, told.iter().flatten(), last);
        last
    }

    /// Takes what heads and tails on a side tell of versions after the current one. If the version that was there is shorter than the torn
    /// one, it may be whole, with the other's tail behind it. That tail must not stay: it would pass for what is left of a synced version
    /// once its number was given again.
    fn torn<'a>(&mut self, place: Place, side: u8, told: impl Iterator<Item = &'a (u64, u64)>, last: u64) {
        for (_, stamp) in told.filter(|(turn, _)| *turn > last) {
            self.suspects.push(Suspect { place, side, stamp: *stamp });
            self.repairs.insert(place);
        }
    }

    /// Takes the current version of a slot.
    fn version(&mut self, class: &mut Class, place: Place, head: Head, key: &[u8]) {
        self.last = self.last.max(head.number);
        class.newest = class.newest.max(head.number);
        if head.kind == Kind::Released {
            return;
        }
        match self.newest.entry((head.owner, Bytes::copy_from_slice(key))) {
            Entry::Vacant(entry) => {
                entry.insert(Newest { place, head });
            }
            Entry::Occupied(mut entry) => {
                let other = entry.get_mut();
                let older = if other.head.number < head.number {
                    std::mem::replace(other, Newest { place, head })
                } else {
                    Newest { place, head }
                };
                if older.head.kind == Kind::Value {
                    self.stale.push(older.place);
                }
            }
        }
    }

    /// Refuses the cells if a damaged version was synced.
    fn check(&self, store: &CellStore) -> Result<(), CellError> {
        let rotten = self.suspects.iter().find(|suspect| suspect.stamp <= self.evidence);
        let (Some(Suspect { place, side, .. }), false) = (rotten, mutant(mutants::CELL_LOSS_UNSEEN)) else {
            return Ok(());
        };
        hit("cells.recover.rot");
        let offset = store.classes.get(&place.class).map_or(0, |class| class.offset(place.slot, *side));
        let file = class_path(place.class).to_string();
        Err(CellError::Damaged { file, offset, what: "a version that was synced is damaged" })
    }
}
