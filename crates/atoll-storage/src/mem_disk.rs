//! A disk in memory for the simulator. It keeps track of what a power cut may lose, and fails on request.
//!
//! * A **power cut** ([`MemDisk::crash`]) keeps any subset of the 512-byte sectors written since the last sync of their file,
//!   and any subset of the directory operations since the last sync of their directory (native-T9).
//! * A **failed sync** loses data: reads show its sectors until the power cut, but no later sync makes them durable, as on Linux
//!   (native-T22).
//! * A power cut may **tear a growth** ([`MemDisk::tear_growth`]): it has a length between the two, and holds bytes that nobody wrote.
//! * Zeros written to unused sectors take no memory, so that thousands of small journals can be prepared.
//!
//! Everything is deterministic: the caller makes every random choice.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use direct::{Direct, MemDirectFile};

use crate::disk::{DirectFile, Disk, DiskError, DiskOp, DiskPath, File, Open};

#[path = "mem_direct.rs"]
mod direct;
#[path = "mem_growth.rs"]
mod growth;

/// The length in bytes of the unit that a power cut keeps or loses as a whole.
pub const SECTOR_BYTES: usize = 512;

type Sector = Box<[u8; SECTOR_BYTES]>;
const ZEROS: [u8; SECTOR_BYTES] = [0; SECTOR_BYTES];

/// The content of a file. A sector that is absent holds zeros.
#[derive(Clone, Default)]
struct Inode {
    len: u64,
    sectors: BTreeMap<u64, Sector>,
    /// For each sector written since the last sync, what the medium still holds. None stands for zeros.
    unsynced: BTreeMap<u64, Option<Sector>>,
    /// The same for sectors whose sync failed: reads return the new content, the medium keeps the old.
    lost: BTreeMap<u64, Option<Sector>>,
    /// The length on the medium.
    synced_len: u64,
}

impl Inode {
    fn read(&self, offset: u64, into: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(offset).min(into.len() as u64) as usize;
        let into = &mut into[..n];
        into.fill(0);
        let end = offset + n as u64;
        let sector_bytes = SECTOR_BYTES as u64;
        // In a file that was filled with zeros, most sectors are absent.
        for (index, sector) in self.sectors.range(offset / sector_bytes..end.div_ceil(sector_bytes)) {
            let (from, to) = ((index * sector_bytes).max(offset), ((index + 1) * sector_bytes).min(end));
            let within = (from % sector_bytes) as usize;
            let part = (to - from) as usize;
            let at = (from - offset) as usize;
            into[at..at + part].copy_from_slice(&sector[within..within + part]);
        }
        n
    }

    fn write(&mut self, offset: u64, from: &[u8]) {
        let mut done = 0;
        while done < from.len() {
            let at = offset + done as u64;
            let (index, within) = (at / SECTOR_BYTES as u64, (at % SECTOR_BYTES as u64) as usize);
            let part = (SECTOR_BYTES - within).min(from.len() - done);
            let bytes = &from[done..done + part];
            done += part;
            let old = self.sectors.get(&index).map_or(&ZEROS, |s| s);
            if old[within..within + part] == *bytes && !self.lost.contains_key(&index) {
                continue; // Kept or lost, it is the same.
            }
            let before = self.lost.remove(&index).unwrap_or_else(|| self.sectors.get(&index).cloned());
            self.unsynced.entry(index).or_insert(before);
            let sector = self.sectors.entry(index).or_insert_with(|| Box::new(ZEROS));
            sector[within..within + part].copy_from_slice(bytes);
        }
        self.len = self.len.max(offset + from.len() as u64);
    }

    fn set_len(&mut self, len: u64) {
        let first_gone = len.div_ceil(SECTOR_BYTES as u64);
        if len < self.len {
            if !len.is_multiple_of(SECTOR_BYTES as u64) {
                let tail = SECTOR_BYTES as u64 - len % SECTOR_BYTES as u64;
                self.write(len, &ZEROS[..tail as usize]);
            }
            for (index, sector) in self.sectors.split_off(&first_gone) {
                let before = self.lost.remove(&index).unwrap_or(Some(sector));
                self.unsynced.entry(index).or_insert(before);
            }
        }
        self.len = len;
    }

    fn put(&mut self, index: u64, content: Option<Sector>) {
        match content {
            Some(sector) => self.sectors.insert(index, sector),
            None => self.sectors.remove(&index),
        };
    }

    fn sync(&mut self) {
        self.unsynced.clear();
        self.synced_len = self.len;
    }

    fn sync_failed(&mut self) {
        for (index, old) in std::mem::take(&mut self.unsynced) {
            self.lost.entry(index).or_insert(old);
        }
    }

    fn forget_lost(&mut self) {
        for (index, old) in std::mem::take(&mut self.lost) {
            // A sector that was written again since is not lost: that write is still unsynced.
            if !self.unsynced.contains_key(&index) {
                self.put(index, old);
            }
        }
    }

    fn crash(&mut self, tears_growth: bool, keep: &mut dyn FnMut() -> bool) {
        let old = std::mem::take(&mut self.unsynced).into_iter().chain(std::mem::take(&mut self.lost));
        for (index, old) in old.collect::<Vec<_>>() {
            if !keep() {
                self.put(index, old);
            }
        }
        if self.len != self.synced_len && !keep() {
            self.len = if tears_growth { self.torn_len(keep) } else { self.synced_len };
        }
        // Bytes after the end must read as zeros if the file grows again.
        self.sectors.split_off(&self.len.div_ceil(SECTOR_BYTES as u64));
        if tears_growth {
            self.show_stale(keep);
        }
        self.synced_len = self.len;
    }
}

/// A change of names.
#[derive(Clone, Debug)]
enum Rename {
    MakeDir(DiskPath),
    Link(DiskPath, u64),
    Move(DiskPath, DiskPath),
    Unlink(DiskPath),
}

impl Rename {
    fn parent(&self) -> DiskPath {
        let (Rename::MakeDir(p) | Rename::Link(p, _) | Rename::Move(p, _) | Rename::Unlink(p)) = self;
        p.parent()
    }
}

#[derive(Clone, Default)]
struct Names {
    dirs: BTreeSet<DiskPath>,
    files: BTreeMap<DiskPath, u64>,
}

impl Names {
    fn apply(&mut self, change: &Rename) {
        match change {
            Rename::MakeDir(dir) => {
                self.dirs.insert(dir.clone());
            }
            Rename::Link(path, inode) => {
                if self.has_dir(&path.parent()) {
                    self.files.insert(path.clone(), *inode);
                }
            }
            Rename::Move(from, to) => {
                if let Some(inode) = self.files.remove(from) {
                    self.files.insert(to.clone(), inode);
                }
            }
            Rename::Unlink(path) => {
                self.files.remove(path);
            }
        }
    }

    fn has_dir(&self, dir: &DiskPath) -> bool {
        *dir == DiskPath::root() || self.dirs.contains(dir)
    }
}

/// The kind of operation that a [`MemDisk`] is told to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The next write fails, and nothing of it is written.
    Write,
    /// The next sync fails, and its sectors are lost; see the module.
    Sync,
    /// The next read fails.
    Read,
}

#[derive(Default)]
struct MemDiskState {
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    names: Names,
    durable_names: Names,
    pending: Vec<Rename>,
    capacity_bytes: Option<u64>,
    failing: BTreeMap<Fault, u32>,
    /// See [`MemDisk::tear_growth`].
    tears_growth: bool,
    /// How many more changes succeed; see [`MemDisk::die_after`].
    dies_after: Option<u64>,
    /// Rises at every crash, kill and wipe: handles of an earlier life are refused.
    life: u64,
    calls: u64,
    trace: u64,
    syncs: u64,
    written_bytes: u64,
    direct: Direct,
}

impl MemDiskState {
    /// Every traced call begins here: checks that the process still lives, and adds the call to the trace.
    fn note(&mut self, op: DiskOp, path: &DiskPath, a: u64, b: u64) -> Result<(), DiskError> {
        let changes = !matches!(op, DiskOp::Read | DiskOp::List | DiskOp::Open | DiskOp::FreeBytes);
        match &mut self.dies_after {
            Some(0) => return Err(io_error(op, path, "the process is dead")),
            Some(n) if changes => *n -= 1,
            _ => {}
        }
        self.calls += 1;
        let mut mix = |n: u64| self.trace = (self.trace ^ n).wrapping_mul(0x0000_0100_0000_01b3);
        mix(op as u64);
        path.as_str().bytes().for_each(|byte| mix(byte.into()));
        mix(a);
        mix(b);
        Ok(())
    }

    fn fails(&mut self, fault: Fault, op: DiskOp, path: &DiskPath) -> Result<(), DiskError> {
        match self.failing.get_mut(&fault) {
            Some(n) if *n > 0 => {
                *n -= 1;
                Err(io_error(op, path, "injected fault"))
            }
            _ => Ok(()),
        }
    }

    fn used_bytes(&self) -> u64 {
        self.names.files.values().filter_map(|i| self.inodes.get(i)).map(|i| i.len).sum()
    }

    fn room_for(&self, more: u64, op: DiskOp, path: &DiskPath) -> Result<(), DiskError> {
        match self.capacity_bytes {
            Some(capacity) if more > 0 && self.used_bytes() + more > capacity => {
                Err(DiskError::NoSpace { op, path: path.to_string() })
            }
            _ => Ok(()),
        }
    }

    fn change(&mut self, change: Rename) {
        self.names.apply(&change);
        self.pending.push(change);
    }

    fn inode(&mut self, path: &DiskPath) -> Result<u64, DiskError> {
        self.names.files.get(path).copied().ok_or(DiskError::NotFound { path: path.to_string() })
    }

    /// Drops files that no name refers to, neither now nor after a crash.
    fn drop_unnamed(&mut self) {
        let pending = self.pending.iter().filter_map(|c| match c {
            Rename::Link(_, inode) => Some(*inode),
            _ => None,
        });
        let named = self.names.files.values().chain(self.durable_names.files.values()).copied();
        let kept: BTreeSet<u64> = named.chain(pending).collect();
        self.inodes.retain(|i, _| kept.contains(i));
    }
}

fn io_error(op: DiskOp, path: &DiskPath, reason: &str) -> DiskError {
    DiskError::Io { op, path: path.to_string(), reason: reason.into() }
}

/// A handle to one simulated disk. Clones refer to the same disk.
#[derive(Clone, Default)]
pub struct MemDisk(Arc<Mutex<MemDiskState>>);

impl MemDisk {
    /// Returns an empty disk without a capacity limit.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, MemDiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Simulates a power cut: `keep` decides for every unsynced sector, length and directory operation whether it survives. Open files
    /// become invalid.
    pub fn crash(&self, keep: &mut dyn FnMut() -> bool) {
        let mut state = self.state();
        state.life += 1;
        state.dies_after = None;
        for change in std::mem::take(&mut state.pending) {
            if keep() {
                state.durable_names.apply(&change);
            }
        }
        let MemDiskState { durable_names: Names { dirs, files }, .. } = &mut *state;
        files.retain(|path, _| path.parent() == DiskPath::root() || dirs.contains(&path.parent()));
        state.names = state.durable_names.clone();
        let tears_growth = state.tears_growth;
        state.inodes.values_mut().for_each(|inode| inode.crash(tears_growth, keep));
        state.drop_unnamed();
    }

    /// Does [`MemDisk::crash`] with choices drawn from a seed.
    pub fn crash_seeded(&self, seed: u64) {
        let mut x = seed;
        self.crash(&mut || {
            // splitmix64
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) & 1 == 1
        });
    }

    /// Simulates `kill -9`: unsynced data survives, as it does in the memory of the operating system (X6). Open files become invalid.
    pub fn kill_process(&self) {
        let mut state = self.state();
        state.life += 1;
        state.dies_after = None;
    }

    /// Replaces the disk with an empty one. Limits and faults stay.
    pub fn wipe(&self) {
        let mut state = self.state();
        state.life += 1;
        state.dies_after = None;
        state.names = Names::default();
        state.durable_names = Names::default();
        state.pending.clear();
        state.inodes.clear();
    }

    /// Returns an independent copy of the disk as it is now, without its faults.
    #[must_use]
    pub fn fork(&self) -> MemDisk {
        let state = self.state();
        MemDisk(Arc::new(Mutex::new(MemDiskState {
            inodes: state.inodes.clone(),
            next_inode: state.next_inode,
            names: state.names.clone(),
            durable_names: state.durable_names.clone(),
            pending: state.pending.clone(),
            capacity_bytes: state.capacity_bytes,
            ..MemDiskState::default()
        })))
    }

    /// Limits the sum of file lengths in bytes; None lifts the limit. Existing files stay.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity_bytes = bytes;
    }

    /// Makes the next `n` operations of this kind fail.
    pub fn fail_next(&self, fault: Fault, n: u32) {
        self.state().failing.insert(fault, n);
    }

    /// Simulates rot: flips one bit, both on the medium and in memory. Returns false if the file does not exist or is too short.
    pub fn flip_bit(&self, path: &DiskPath, offset: u64, bit: u8) -> bool {
        let mut state = self.state();
        let Ok(inode) = state.inode(path) else { return false };
        let Some(inode) = state.inodes.get_mut(&inode).filter(|i| offset < i.len) else { return false };
        let index = offset / SECTOR_BYTES as u64;
        let sector = inode.sectors.entry(index).or_insert_with(|| Box::new(ZEROS));
        sector[(offset % SECTOR_BYTES as u64) as usize] ^= 1 << (bit % 8);
        true
    }

    /// Deletes a file durably, as if somebody else had done it.
    pub fn lose(&self, path: &DiskPath) {
        let mut state = self.state();
        state.names.files.remove(path);
        state.durable_names.files.remove(path);
    }

    /// Cuts a file durably, as if somebody else had done it. Does nothing if the file is not longer than `len`.
    pub fn cut(&self, path: &DiskPath, len: u64) {
        let mut state = self.state();
        let Ok(inode) = state.inode(path) else { return };
        if let Some(inode) = state.inodes.get_mut(&inode).filter(|i| len < i.len) {
            inode.set_len(len);
            inode.sync();
        }
    }

    /// Replaces a file durably with its copy on another disk, as if somebody else had put it back. Removes the file if that disk does not
    /// have it.
    pub fn put_back(&self, path: &DiskPath, from: &MemDisk) {
        let copy = {
            let from = from.state();
            from.names.files.get(path).and_then(|inode| from.inodes.get(inode).cloned())
        };
        let Some(mut copy) = copy else { return self.lose(path) };
        copy.sync();
        let mut state = self.state();
        state.next_inode += 1;
        let inode = state.next_inode;
        state.inodes.insert(inode, copy);
        state.names.files.insert(path.clone(), inode);
        state.durable_names.files.insert(path.clone(), inode);
    }

    /// Lets `n` more changes (writes, syncs, names) succeed; then every call except [`Disk::list`], [`Disk::free_bytes`] and [`File::len`]
    /// fails until the next crash. Followed by a crash, this simulates a process that dies between any two steps.
    pub fn die_after(&self, n: u64) {
        self.state().dies_after = Some(n);
    }

    /// Returns the sum of file lengths in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// Returns the number of operations so far, and a hash over their kinds, files, offsets and lengths. Equal runs have equal hashes.
    pub fn calls(&self) -> (u64, u64) {
        let state = self.state();
        (state.calls, state.trace)
    }

    /// Returns the number of file syncs so far, including failed ones.
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    /// Returns the bytes written so far.
    pub fn written_bytes(&self) -> u64 {
        self.state().written_bytes
    }
}

impl Disk for MemDisk {
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError> {
        let mut state = self.state();
        state.note(DiskOp::Open, path, how as u64, 0)?;
        if how == Open::Create {
            if !state.names.has_dir(&path.parent()) {
                return Err(DiskError::NotFound { path: path.to_string() });
            }
            let existing = state.names.files.get(path).copied();
            match existing.and_then(|i| state.inodes.get_mut(&i)) {
                Some(inode) => inode.set_len(0),
                None => {
                    // A full disk refuses a new file, as file systems do that allocate inodes on demand.
                    state.room_for(1, DiskOp::Open, path)?;
                    state.next_inode += 1;
                    let inode = state.next_inode;
                    state.inodes.insert(inode, Inode::default());
                    state.change(Rename::Link(path.clone(), inode));
                }
            }
        }
        let inode = state.inode(path)?;
        Ok(Box::new(MemFile { disk: self.clone(), life: state.life, inode, path: path.clone(), how }))
    }

    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError> {
        let state = self.state();
        let names = state.names.files.keys().filter(|p| p.parent() == *dir);
        Ok(names.filter_map(|p| p.as_str().rsplit('/').next()).map(str::to_owned).collect())
    }

    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        let mut state = self.state();
        state.note(DiskOp::CreateDir, dir, 0, 0)?;
        if !state.names.has_dir(dir) {
            state.change(Rename::MakeDir(dir.clone()));
        }
        Ok(())
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        let mut state = self.state();
        state.note(DiskOp::Rename, from, 0, 0)?;
        state.note(DiskOp::Rename, to, 0, 0)?;
        state.inode(from)?;
        state.change(Rename::Move(from.clone(), to.clone()));
        Ok(())
    }

    fn remove(&self, path: &DiskPath) -> Result<(), DiskError> {
        let mut state = self.state();
        state.note(DiskOp::Remove, path, 0, 0)?;
        state.inode(path)?;
        state.change(Rename::Unlink(path.clone()));
        Ok(())
    }

    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        let mut state = self.state();
        state.note(DiskOp::SyncDir, dir, 0, 0)?;
        state.fails(Fault::Sync, DiskOp::SyncDir, dir)?;
        let (synced, pending) =
            std::mem::take(&mut state.pending).into_iter().partition(|c| c.parent() == *dir);
        state.pending = pending;
        let synced: Vec<Rename> = synced;
        synced.iter().for_each(|change| state.durable_names.apply(change));
        if !synced.is_empty() {
            state.drop_unnamed();
        }
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let state = self.state();
        Ok(state.capacity_bytes.map_or(u64::MAX, |c| c.saturating_sub(state.used_bytes())))
    }

    fn open_direct(&self, path: &DiskPath) -> Option<Box<dyn DirectFile>> {
        let mut state = self.state();
        let inode = state.inode(path).ok()?;
        let (disk, life, path) = (self.clone(), state.life, path.clone());
        Some(Box::new(MemDirectFile { disk, life, inode, path, under_way: None }))
    }

    fn direct_signal(&self) -> Option<OwnedFd> {
        self.signal_of_direct_writes()
    }
}

struct MemFile {
    disk: MemDisk,
    life: u64,
    inode: u64,
    path: DiskPath,
    how: Open,
}

impl MemFile {
    fn live(&self, op: DiskOp) -> Result<MutexGuard<'_, MemDiskState>, DiskError> {
        let state = self.disk.state();
        if state.life != self.life {
            return Err(io_error(op, &self.path, "the process that opened this file is dead"));
        }
        if self.how == Open::Read && matches!(op, DiskOp::Write | DiskOp::SetLen) {
            return Err(io_error(op, &self.path, "opened to read"));
        }
        Ok(state)
    }
}

impl File for MemFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        let mut state = self.live(DiskOp::Read)?;
        state.note(DiskOp::Read, &self.path, offset, into.len() as u64)?;
        state.fails(Fault::Read, DiskOp::Read, &self.path)?;
        // An absent inode means that the file has no name and no crash can restore it. Its content is unknown.
        Ok(state.inodes.get(&self.inode).map_or(0, |i| i.read(offset, into)))
    }

    fn write_at(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        let mut state = self.live(DiskOp::Write)?;
        let len: u64 = from.iter().map(|s| s.len() as u64).sum();
        state.note(DiskOp::Write, &self.path, offset, len)?;
        state.fails(Fault::Write, DiskOp::Write, &self.path)?;
        let old_len = state.inodes.get(&self.inode).map_or(0, |i| i.len);
        state.room_for((offset + len).saturating_sub(old_len), DiskOp::Write, &self.path)?;
        state.written_bytes += len;
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            let mut at = offset;
            for slice in from {
                inode.write(at, slice);
                at += slice.len() as u64;
            }
        }
        Ok(())
    }

    fn sync_data(&mut self) -> Result<(), DiskError> {
        let mut state = self.live(DiskOp::Sync)?;
        state.note(DiskOp::Sync, &self.path, 0, 0)?;
        state.syncs += 1;
        let failed = state.fails(Fault::Sync, DiskOp::Sync, &self.path);
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            if failed.is_ok() { inode.sync() } else { inode.sync_failed() }
        }
        failed
    }

    fn forget_cached(&mut self) {
        if let Ok(mut state) = self.live(DiskOp::Read)
            && let Some(inode) = state.inodes.get_mut(&self.inode)
        {
            inode.forget_lost();
        }
    }

    fn set_len(&mut self, len: u64) -> Result<(), DiskError> {
        let mut state = self.live(DiskOp::SetLen)?;
        state.note(DiskOp::SetLen, &self.path, len, 0)?;
        let old_len = state.inodes.get(&self.inode).map_or(0, |i| i.len);
        state.room_for(len.saturating_sub(old_len), DiskOp::SetLen, &self.path)?;
        if let Some(inode) = state.inodes.get_mut(&self.inode) {
            inode.set_len(len);
        }
        Ok(())
    }

    fn len(&self) -> Result<u64, DiskError> {
        let state = self.live(DiskOp::Read)?;
        Ok(state.inodes.get(&self.inode).map_or(0, |i| i.len))
    }
}

#[cfg(test)]
#[path = "mem_disk_test.rs"]
mod tests;
