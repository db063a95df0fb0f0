//! What a power cut may leave of a file that was growing, on a file system that does not write data before the length that covers it.
//! Without [`MemDisk::tear_growth`], a file has either length, and bytes that were never written read as zeros.

use super::{Inode, MemDisk, SECTOR_BYTES};

/// What the medium held before the file got the sector.
const STALE: [u8; SECTOR_BYTES] = [0xe5; SECTOR_BYTES];

impl MemDisk {
    /// Makes power cuts tear files that have grown since their last sync, or no longer. A torn file has any length between the old and the
    /// new one, and in the part that it keeps, each sector that reads as zeros may hold other bytes instead.
    pub fn tear_growth(&self, tear: bool) {
        self.state().tears_growth = tear;
    }
}

impl Inode {
    /// Returns a length between the synced one and the present one: the synced one, or one that ends with a sector.
    pub(super) fn torn_len(&self, keep: &mut dyn FnMut() -> bool) -> u64 {
        if !keep() {
            return self.synced_len;
        }
        let sector = SECTOR_BYTES as u64;
        let (mut low, mut high) = (self.synced_len.div_ceil(sector), self.len / sector);
        while low < high {
            let middle = low + (high - low) / 2;
            if keep() { low = middle + 1 } else { high = middle }
        }
        (low * sector).max(self.synced_len)
    }

    /// Shows what the medium held before, in sectors after the synced length.
    pub(super) fn show_stale(&mut self, keep: &mut dyn FnMut() -> bool) {
        let sector = SECTOR_BYTES as u64;
        for index in self.synced_len.div_ceil(sector)..self.len.div_ceil(sector) {
            if !self.sectors.contains_key(&index) && !keep() {
                self.sectors.insert(index, Box::new(STALE));
            }
        }
    }
}
