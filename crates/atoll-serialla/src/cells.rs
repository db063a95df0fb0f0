//! The state that an order of operations leads to: one cell per key. Changes can be undone, and the hash of all cells is kept up to date,
//! so a step costs as much as the keys that it touches, however many there are.

use std::hash::{Hash, Hasher};

/// A hash of 128 bits, from two lanes of 64. Two different states have the same hash with a probability of about 2^-128; the search treats
/// equal hashes as equal states.
struct Lanes(u64, u64);

impl Hasher for Lanes {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ ((chunk.len() as u64) << 56));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = scramble(self.0 ^ word);
        self.1 = scramble(self.1.rotate_left(23) ^ word.wrapping_mul(0x9fb2_1c65_1e98_df25));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// SplitMix64's last step.
fn scramble(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Returns a hash of a value and a number.
pub(crate) fn hash_of(number: u64, value: &impl Hash) -> u128 {
    let mut lanes = Lanes(scramble(number), scramble(!number));
    value.hash(&mut lanes);
    (u128::from(lanes.0) << 64) | u128::from(lanes.1)
}

/// All cells of a part of a history.
#[derive(Debug)]
pub struct Store<C> {
    cells: Vec<C>,
    undo: Vec<(u32, C)>,
    /// The XOR of the hashes of all cells that were ever changed, each with its key.
    hash: u128,
}

/// A moment to return to.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    undo: usize,
    hash: u128,
}

impl<C: Clone + Eq + Hash> Store<C> {
    /// Creates a store of `keys` cells.
    pub fn new(keys: usize, cell: C) -> Self {
        Store { cells: vec![cell; keys], undo: Vec::new(), hash: 0 }
    }

    /// Returns the present moment.
    pub fn mark(&self) -> Mark {
        Mark { undo: self.undo.len(), hash: self.hash }
    }

    /// Returns whether a cell was set since a moment.
    pub fn changed(&self, mark: Mark) -> bool {
        self.undo.len() > mark.undo
    }

    /// Returns to a moment.
    pub fn back(&mut self, mark: Mark) {
        while self.undo.len() > mark.undo {
            if let Some((key, cell)) = self.undo.pop() {
                self.cells[key as usize] = cell;
            }
        }
        self.hash = mark.hash;
    }

    /// Returns the hash of all cells.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Returns the number of changes that can be undone.
    pub fn changes(&self) -> usize {
        self.undo.len()
    }

    /// Returns a view of the cells of an operation, whose keys are `keys`.
    pub fn cells<'a>(&'a mut self, keys: &'a [u32]) -> Cells<'a, C> {
        let mark = self.mark();
        Cells { store: self, keys, mark }
    }
}

/// The cells of the keys of one operation, numbered as [`DataType::keys`](crate::types::DataType::keys) returns them.
#[derive(Debug)]
pub struct Cells<'a, C> {
    store: &'a mut Store<C>,
    keys: &'a [u32],
    mark: Mark,
}

impl<C: Clone + Eq + Hash> Cells<'_, C> {
    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the cell of key number `n`.
    pub fn get(&self, n: usize) -> &C {
        &self.store.cells[self.keys[n] as usize]
    }

    /// Replaces the cell of key number `n`.
    pub fn set(&mut self, n: usize, cell: C) {
        let key = self.keys[n];
        let old = &mut self.store.cells[key as usize];
        if *old == cell {
            return;
        }
        self.store.hash ^= hash_of(u64::from(key), old) ^ hash_of(u64::from(key), &cell);
        let old = std::mem::replace(old, cell);
        self.store.undo.push((key, old));
    }

    /// Undoes all changes of this operation.
    pub fn reset(&mut self) {
        self.store.back(self.mark);
    }
}
