//! What a bounded window holds. It is plain data: the owner keeps it under the lock that protects its queue, so that taking room needs no
//! lock of its own.

/// The most that a window holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Number of items.
    pub items: usize,
    /// Number of bytes of all items together.
    pub bytes: usize,
}

/// What a window holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of items.
    pub items: usize,
    /// Number of bytes of all items together.
    pub bytes: usize,
}

impl Load {
    /// Returns whether `items` more, of `bytes` together, fit. Whatever is larger than the window fits into an empty one.
    pub fn fits(&self, items: usize, bytes: usize, bounds: Bounds) -> bool {
        let fit = self.items.saturating_add(items) <= bounds.items
            && self.bytes.saturating_add(bytes) <= bounds.bytes;
        fit || self.items == 0
    }

    /// Returns whether the window takes nothing more. Until then, it takes one more item of any size.
    pub fn is_full(&self, bounds: Bounds) -> bool {
        self.items >= bounds.items || self.bytes >= bounds.bytes
    }

    /// Adds items without a check.
    pub fn add(&mut self, items: usize, bytes: usize) {
        self.items += items;
        self.bytes += bytes;
    }

    /// Removes items that were added.
    pub fn remove(&mut self, items: usize, bytes: usize) {
        self.items -= items;
        self.bytes -= bytes;
    }

    /// Returns the number of bytes for which there is room. None if there is no room for an item of any size.
    pub fn free_bytes(&self, bounds: Bounds) -> Option<usize> {
        (self.items < bounds.items).then(|| bounds.bytes.saturating_sub(self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { items: 3, bytes: 100 };

    #[test]
    fn items_and_bytes_are_bounded() {
        let mut load = Load::default();
        assert!(load.fits(1, 500, BOUNDS), "an empty window takes an item of any size");
        load.add(1, 60);
        assert!(load.fits(1, 40, BOUNDS) && !load.fits(1, 41, BOUNDS) && !load.fits(3, 0, BOUNDS));
        assert_eq!(load.free_bytes(BOUNDS), Some(40));
        load.add(2, 0);
        assert!(load.is_full(BOUNDS) && !load.fits(1, 0, BOUNDS));
        assert_eq!(load.free_bytes(BOUNDS), None);
        load.remove(3, 60);
        assert_eq!(load, Load::default());
    }

    #[test]
    fn the_last_item_may_exceed_the_bytes() {
        let mut load = Load::default();
        load.add(1, 99);
        assert!(!load.is_full(BOUNDS));
        load.add(1, 900);
        assert!(load.is_full(BOUNDS));
        assert_eq!(load.free_bytes(BOUNDS), Some(0));
    }
}
