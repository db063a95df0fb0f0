//! What the targets for data directories share: an input that is consumed from the front, and bytes that are put into files.

use std::io::IoSlice;

use atoll_storage::{Disk, DiskPath, MemDisk, Open};

/// Consumes the input from the front. Reads zeros after its end.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    pub(crate) fn take(&mut self, n: usize) -> &'a [u8] {
        let (front, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        front
    }

    pub(crate) fn number(&mut self, bytes: usize) -> u64 {
        self.take(bytes).iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

pub(crate) fn path(text: &str) -> DiskPath {
    let Some(path) = DiskPath::new(text) else { panic!("{text} is a path") };
    path
}

/// Writes bytes into a file and syncs it. Does nothing if the file cannot be opened that way.
pub(crate) fn put(disk: &MemDisk, file: &DiskPath, offset: u64, bytes: &[u8], how: Open) {
    let Ok(mut file) = disk.open(file, how) else { return };
    let put = file.write_at(offset, &[IoSlice::new(bytes)]).and_then(|()| file.sync_data());
    assert!(put.is_ok(), "the disk takes it");
}
