//! Decides which slot each write of a batch takes, before anything is written.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::{CellWrite, MAX_CELL_KEY_BYTES, MAX_CELL_VALUE_BYTES};
use bytes::Bytes;

use super::format::{HEAD_BYTES, TAIL_BYTES};
use super::{CellError, CellStore, Key, Place};

/// One version to be written.
pub(super) struct Put {
    pub number: u64,
    pub key: Key,
    /// None deletes the cell.
    pub value: Option<Bytes>,
    /// Where the cell is now.
    pub was: Option<Place>,
    /// The class of the slot that it takes. If that differs from where it was, it takes a free slot.
    pub class: u8,
}

/// What a batch writes.
#[derive(Default)]
pub(super) struct Plan {
    /// In the order of their numbers.
    pub puts: Vec<Put>,
    /// Whether no version will show the number of the last write, because that deletes a cell that does not exist.
    pub is_unseen: bool,
}

/// Returns the smallest class whose versions hold a key and a value of this length together.
pub(super) fn class_for(block_bytes: u32, body_bytes: usize) -> u8 {
    let blocks = (HEAD_BYTES + body_bytes + TAIL_BYTES).div_ceil(block_bytes as usize);
    blocks.next_power_of_two().trailing_zeros() as u8
}

/// How many classes smaller than its slot a value must be before its cell moves to a smaller slot. With fewer, a value whose size changes
/// around a limit would move with every write.
const MUCH_SMALLER: u8 = 2;

impl CellStore {
    /// Plans a batch. Of several writes to one cell, only the last is planned. A deletion of a cell that does not exist needs no version.
    pub(super) fn plan(&self, cells: &[CellWrite]) -> Result<Plan, CellError> {
        let mut seen = BTreeSet::new();
        let mut puts = Vec::with_capacity(cells.len());
        for cell in cells.iter().rev() {
            let (key_bytes, value_bytes) = (cell.key.len(), cell.value.as_ref().map_or(0, Bytes::len));
            let is_fine =
                (1..=MAX_CELL_KEY_BYTES).contains(&key_bytes) && value_bytes <= MAX_CELL_VALUE_BYTES;
            if !is_fine {
                return Err(CellError::BadCell { owner: cell.owner, key_bytes, value_bytes });
            }
            if !seen.insert((cell.owner, &cell.key)) {
                continue;
            }
            let key = (cell.owner, cell.key.clone());
            let was = self.index.get(&key).copied();
            let wanted = class_for(self.block_bytes(), key_bytes + value_bytes);
            let class = match was {
                None if cell.value.is_none() => continue,
                None => wanted,
                Some(was) if cell.value.is_none() => was.class,
                Some(was) if wanted <= was.class && was.class - wanted < MUCH_SMALLER => was.class,
                Some(_) => wanted,
            };
            puts.push(Put { number: cell.number, key, value: cell.value.clone(), was, class });
        }
        puts.reverse();
        let is_unseen = puts.last().map(|put| put.number) != cells.last().map(|cell| cell.number);
        Ok(Plan { puts, is_unseen })
    }

    /// Returns how many slots each class lacks for a plan.
    pub(super) fn lacking(&self, plan: &Plan) -> BTreeMap<u8, usize> {
        let mut needs: BTreeMap<u8, usize> = BTreeMap::new();
        for put in plan.puts.iter().filter(|put| put.was.is_none_or(|was| was.class != put.class)) {
            *needs.entry(put.class).or_default() += 1;
        }
        for (class, needed) in &mut needs {
            let free = self.classes.get(class).map_or(0, |class| class.free.len());
            *needed = needed.saturating_sub(free);
        }
        needs.retain(|_, lacking| *lacking > 0);
        needs
    }

    /// Makes the slots that a plan lacks, and the manifest if nothing else will show what it writes.
    pub(super) fn make_room(&mut self, plan: &Plan) -> Result<(), CellError> {
        if plan.is_unseen {
            self.make_manifest()?;
        }
        for (class, lacking) in self.lacking(plan) {
            self.grow(class, lacking)?;
        }
        Ok(())
    }
}
