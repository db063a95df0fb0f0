//! Writes of a [`MemDisk`] that no thread waits for. They end at once, unless the disk holds them.
//!
//! A **power cut** during such a write keeps any subset of its sectors, as for any unsynced write. The write covers only its own sectors:
//! its end makes no other sector durable.

use std::io::{IoSlice, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Fault, Inode, MemDisk, MemDiskState, SECTOR_BYTES, io_error};
use crate::disk::{DIRECT_BLOCK_BYTES, DIRECT_BYTES, DirectFile, DiskError, DiskOp, DiskPath};

/// The state of a disk that its direct files share.
#[derive(Default)]
pub(super) struct Direct {
    /// Whether writes stay under way.
    held: bool,
    released: Arc<Condvar>,
    /// The end that is written, and the one that becomes readable.
    signal: Option<(UnixStream, UnixStream)>,
}

impl MemDisk {
    /// Holds the end of direct writes from now on, or lets them end, including one that is under way.
    pub fn hold_direct_writes(&self, hold: bool) {
        let mut state = self.state();
        state.direct.held = hold;
        if !hold {
            state.direct.released.notify_all();
            state.signal();
        }
    }

    pub(super) fn signal_of_direct_writes(&self) -> Option<OwnedFd> {
        let mut state = self.state();
        if state.direct.signal.is_none() {
            let pair = UnixStream::pair().ok()?;
            pair.0.set_nonblocking(true).ok()?;
            state.direct.signal = Some(pair);
        }
        let (_, readable) = state.direct.signal.as_ref()?;
        readable.try_clone().ok().map(OwnedFd::from)
    }
}

impl MemDiskState {
    /// Makes the signal readable. Nobody reads it: like an io_uring, it is watched for changes.
    fn signal(&mut self) {
        if let Some((written, _)) = &mut self.direct.signal {
            let _ = written.write(&[0]);
        }
    }
}

impl Inode {
    fn sync_range(&mut self, offset: u64, len: u64) {
        let sector = SECTOR_BYTES as u64;
        self.unsynced.retain(|index, _| index * sector < offset || index * sector >= offset + len);
    }

    fn sync_range_failed(&mut self, offset: u64, len: u64) {
        let sector = SECTOR_BYTES as u64;
        let range = offset / sector..(offset + len).div_ceil(sector);
        for index in range {
            if let Some(old) = self.unsynced.remove(&index) {
                self.lost.entry(index).or_insert(old);
            }
        }
    }
}

pub(super) struct MemDirectFile {
    pub(super) disk: MemDisk,
    pub(super) life: u64,
    pub(super) inode: u64,
    pub(super) path: DiskPath,
    /// The offset and the length of the write that is under way.
    pub(super) under_way: Option<(u64, u64)>,
}

impl MemDirectFile {
    fn live<'a>(
        &self,
        state: MutexGuard<'a, MemDiskState>,
        op: DiskOp,
    ) -> Result<MutexGuard<'a, MemDiskState>, DiskError> {
        match state.life == self.life {
            true => Ok(state),
            false => Err(io_error(op, &self.path, "the process that opened this file is dead")),
        }
    }

    fn end(
        &mut self,
        state: MutexGuard<'_, MemDiskState>,
        (offset, len): (u64, u64),
    ) -> Result<(), DiskError> {
        self.under_way = None;
        let mut state = self.live(state, DiskOp::Sync)?;
        state.note(DiskOp::Sync, &self.path, offset, len)?;
        state.syncs += 1;
        let failed = state.fails(Fault::Sync, DiskOp::Sync, &self.path);
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            match failed {
                Ok(()) => inode.sync_range(offset, len),
                Err(_) => inode.sync_range_failed(offset, len),
            }
        }
        failed
    }
}

impl DirectFile for MemDirectFile {
    fn begin(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let disk = self.disk.clone();
        let mut state = self.live(disk.state(), DiskOp::Write)?;
        let len: usize = from.iter().map(|slice| slice.len()).sum();
        let fits = len > 0 && len <= DIRECT_BYTES && len.is_multiple_of(DIRECT_BLOCK_BYTES);
        if !fits || !offset.is_multiple_of(DIRECT_BLOCK_BYTES as u64) || self.under_way.is_some() {
            return Err(io_error(DiskOp::Write, &self.path, "not aligned, too long, or not the only one"));
        }
        state.note(DiskOp::Write, &self.path, offset, len as u64)?;
        state.fails(Fault::Write, DiskOp::Write, &self.path)?;
        state.written_bytes += len as u64;
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            let mut at = offset;
            for slice in from {
                inode.write(at, slice);
                at += slice.len() as u64;
            }
        }
        self.under_way = Some((offset, len as u64));
        if !state.direct.held {
            state.signal();
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Result<(), DiskError>> {
        let under_way = self.under_way?;
        let disk = self.disk.clone();
        let state = disk.state();
        if state.direct.held && state.life == self.life {
            return None;
        }
        Some(self.end(state, under_way))
    }

    fn wait_at_most(&mut self, patience: Duration) -> Option<Result<(), DiskError>> {
        let under_way = self.under_way?;
        let disk = self.disk.clone();
        let state = disk.state();
        let (released, life) = (state.direct.released.clone(), self.life);
        let holds = |state: &mut MemDiskState| state.direct.held && state.life == life;
        let (state, waited) =
            released.wait_timeout_while(state, patience, holds).unwrap_or_else(PoisonError::into_inner);
        match waited.timed_out() {
            true => None,
            false => Some(self.end(state, under_way)),
        }
    }

    fn wait(&mut self) -> Result<(), DiskError> {
        let nothing = io_error(DiskOp::Sync, &self.path, "no write is under way");
        let under_way = self.under_way.ok_or(nothing)?;
        let disk = self.disk.clone();
        let mut state = disk.state();
        let released = state.direct.released.clone();
        while state.direct.held && state.life == self.life {
            state = released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.end(state, under_way)
    }
}
