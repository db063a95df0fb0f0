//! A node's disk: the real journal and store of cells on a simulated medium, used in the way that a host uses them.

use std::sync::Arc;

use atoll_core::{
    Checkpoint, FetchError, JournalBatch, Loc, Lsn, NodeCore, NodeId, RecoverError, Space, StorageId, Stored,
};
use atoll_storage::{
    Aside, BatchError, CellError, CellOptions, CellStore, Disk, DiskPath, Fault, Identity, IdentityError,
    Journal, JournalError, JournalOptions, MemDisk, Open, RecoverCellsError,
    RecoverError as StorageRecoverError, Recovered, sync_batch, write_batch,
};

use crate::rng::Rng;
use crate::world::host::Input;
use crate::world::observer::Found;

const CLUSTER: &str = "sim";

/// Why a write failed.
#[derive(Debug)]
pub(crate) enum WriteError {
    /// The disk is full. The same batch may be written later.
    NoSpace,
    /// The journal is closed until the node restarts.
    Closed(String),
    /// A role wrote a record that no journal segment can hold. No fault causes this.
    TooLarge(String),
}

/// Why a node does not start.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The disk failed temporarily. Another start may succeed.
    Again,
    /// The contents of the disk must not be used.
    ForGood(String),
}

/// Disk and journal of one host.
pub(crate) struct HostDisk {
    node: NodeId,
    medium: MemDisk,
    segment_bytes: u32,
    journal: Option<Journal>,
    cells: Option<CellStore>,
    written: Vec<(Lsn, Loc)>,
    space: Space,
    checkpointing: bool,
    /// A new checkpoint that was written but has not replaced the old one yet.
    aside: Option<Aside>,
    recovered: Found,
    /// An older copy of the disk, from its first crash, its last [`HostDisk::keep_copy`] or its last [`HostDisk::lose_files`].
    older: Option<MemDisk>,
    /// A fault made an operation fail, or changed bytes under a running node, so the journal may close.
    failed: bool,
}

/// Returns whether a file is a journal segment in use, not a spare one.
fn is_segment(file: &DiskPath) -> bool {
    file.as_str().ends_with(".seg") && !file.as_str().contains("spare")
}

/// Returns all files of a data directory.
fn files(medium: &MemDisk) -> Vec<DiskPath> {
    let inside = |dir: DiskPath| {
        let names = medium.list(&dir).unwrap_or_default();
        let prefix = if dir == DiskPath::root() { String::new() } else { format!("{dir}/") };
        names.into_iter().filter_map(move |name| DiskPath::new(&format!("{prefix}{name}")))
    };
    let dirs = ["journal", "cells"].into_iter().filter_map(DiskPath::new);
    dirs.chain([DiskPath::root()]).flat_map(inside).collect()
}

/// Picks one file, all journal segments, or the whole `journal` directory.
fn some_files(rng: &mut Rng, files: &[DiskPath]) -> Vec<DiskPath> {
    let segments = || files.iter().filter(|f| is_segment(f)).cloned().collect::<Vec<_>>();
    match rng.below(6) {
        0 => segments(),
        1 => files.iter().filter(|f| f.as_str().starts_with("journal/")).cloned().collect(),
        // The journal segments matter most, so a single file is often one of them.
        2 | 3 => rng.pick(&segments()).cloned().into_iter().collect(),
        _ => rng.pick(files).cloned().into_iter().collect(),
    }
}

impl HostDisk {
    pub(crate) fn new(node: NodeId, segment_bytes: u64) -> Self {
        HostDisk {
            node,
            medium: MemDisk::new(),
            segment_bytes: segment_bytes as u32,
            journal: None,
            cells: None,
            written: Vec::new(),
            space: Space::Plenty,
            checkpointing: false,
            aside: None,
            recovered: Found::default(),
            older: None,
            failed: false,
        }
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.medium.syncs()
    }

    /// Returns a hash of all operations on the medium so far.
    pub(crate) fn calls(&self) -> u64 {
        let (n, hash) = self.medium.calls();
        n ^ hash
    }

    /// Returns the storage identity of the disk. A new or wiped disk gets the identity `new`.
    pub(crate) fn identify(&self, new: u128) -> Result<StorageId, OpenError> {
        Identity::open(&self.medium, CLUSTER, self.node, || StorageId(new))
            .map(|(identity, _)| identity.storage)
            .map_err(|e| match e {
                IdentityError::Disk(_) => OpenError::Again,
                _ => OpenError::ForGood(e.to_string()),
            })
    }

    /// Recovers the journal into a core that already has its roles.
    pub(crate) fn recover(&mut self, storage: StorageId, core: &mut NodeCore) -> Result<(), OpenError> {
        let mut options = JournalOptions::small(storage);
        options.segment_bytes = self.segment_bytes;
        options.first_segment_bytes = self.segment_bytes;
        // As in a real node, except that it is the same in every run.
        options.generation_secret = Some(storage.0 as u64);
        let disk: Arc<dyn Disk> = Arc::new(self.medium.clone());
        let mut found = Found::default();
        let mut visit = |recovered| -> Result<(), RecoverError> {
            match recovered {
                Recovered::Checkpoint(c) => {
                    found.checkpoint = c.states.clone();
                    core.recover_checkpoint(c)
                }
                Recovered::Record(r) => {
                    found.records.push((r.lsn, r.record.clone()));
                    core.recover_record(r)
                }
            }
        };
        let (journal, last) = Journal::recover(disk.clone(), options, &mut visit).map_err(|e| match e {
            StorageRecoverError::Journal(JournalError::Disk(_) | JournalError::Closed { .. }) => {
                OpenError::Again
            }
            StorageRecoverError::Journal(JournalError::NoSpace { .. }) => OpenError::Again,
            _ => OpenError::ForGood(e.to_string()),
        })?;
        let mut visit = |cell| core.recover_cell(cell);
        let cells =
            CellStore::recover(disk, CellOptions::small(storage), &mut visit).map_err(|e| match e {
                RecoverCellsError::Cells(CellError::Disk(_) | CellError::Closed { .. }) => OpenError::Again,
                _ => OpenError::ForGood(e.to_string()),
            })?;
        core.recover_cells_done(cells.last());
        core.recover_done(last);
        self.recovered = found;
        self.journal = Some(journal);
        self.cells = Some(cells);
        self.written.clear();
        self.space = Space::Plenty;
        self.checkpointing = false;
        self.aside = None;
        Ok(())
    }

    /// Takes what the last recovery found.
    pub(crate) fn take_recovered(&mut self) -> Found {
        std::mem::take(&mut self.recovered)
    }

    pub(crate) fn write(&mut self, batch: &JournalBatch) -> Result<(), WriteError> {
        let (Some(journal), Some(cells)) = (&mut self.journal, &mut self.cells) else {
            return Err(WriteError::Closed("not open".to_owned()));
        };
        match write_batch(journal, cells, batch) {
            Ok(written) => {
                self.written = written;
                Ok(())
            }
            Err(e) if e.is_no_space() => Err(WriteError::NoSpace),
            Err(
                e @ (BatchError::Journal(JournalError::TooLarge { .. })
                | BatchError::Cells(CellError::BadCell { .. })),
            ) => Err(WriteError::TooLarge(e.to_string())),
            Err(e) => Err(WriteError::Closed(e.to_string())),
        }
    }

    pub(crate) fn sync(&mut self) -> Result<Vec<(Lsn, Loc)>, String> {
        let (Some(journal), Some(cells)) = (&mut self.journal, &mut self.cells) else {
            return Err("not open".to_owned());
        };
        sync_batch(journal, cells).map_err(|e| e.to_string())?;
        Ok(std::mem::take(&mut self.written))
    }

    pub(crate) fn read(&self, locs: &[Loc]) -> Result<Vec<Stored>, FetchError> {
        match &self.journal {
            Some(journal) => journal.reader().read(locs),
            None => Err(FetchError { reason: "not open".to_owned() }),
        }
    }

    /// Frees entries. An error closes the journal, so the next write reports it.
    pub(crate) fn free(&mut self, locs: &[Loc]) {
        if let Some(journal) = &mut self.journal {
            let _ = journal.free(locs);
        }
    }

    /// Writes a checkpoint aside. The next upkeep lets it replace the old one.
    pub(crate) fn checkpoint(&mut self, checkpoint: Checkpoint) {
        self.aside = self.journal.as_ref().map(|journal| journal.checkpoint_job(checkpoint).run());
    }

    /// Does what the journal's thread does besides writing: prepares journal segments, and asks for checkpoints and compaction.
    ///
    /// `is_idle` says that no batch is being written.
    ///
    /// # Errors
    /// Returns why the journal has closed.
    pub(crate) fn upkeep(&mut self, is_idle: bool) -> Result<Vec<Input>, String> {
        let mut inputs = Vec::new();
        let Some(journal) = &mut self.journal else { return Ok(inputs) };
        let mut done = Ok(());
        if let Some(job) = journal.next_job() {
            done = journal.prepared(job.run());
        }
        if let Some(aside) = self.aside.take() {
            self.checkpointing = false;
            done = done.and(journal.checkpointed(aside));
        }
        if let Err(e @ JournalError::Closed { .. }) = done {
            return Err(e.to_string());
        }
        let Some(cells) = &mut self.cells else { return Ok(inputs) };
        // While a batch is written, its cells are between two states.
        if is_idle && let Err(error) = cells.look_ahead() {
            return Err(error.to_string());
        }
        let space = match journal.space() {
            Space::Plenty if cells.is_short() => Space::FactsOnly,
            space => space,
        };
        if space != self.space {
            self.space = space;
            inputs.push(Input::Space(space));
        }
        if !self.checkpointing && journal.wants_checkpoint() {
            self.checkpointing = true;
            inputs.push(Input::Checkpoint);
        }
        if let Some(segment) = journal.sparse_segment() {
            inputs.push(Input::Compact(segment));
        }
        Ok(inputs)
    }

    /// Returns whether a fault explains that the journal closed.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Returns whether the journal has no space for entries.
    pub(crate) fn is_short(&self) -> bool {
        self.space == Space::FactsOnly
    }

    /// Records on the disk what is synced, as a host does when it is idle. Returns false if that fails.
    pub(crate) fn mark(&mut self) -> bool {
        let is_marked = self.journal.as_mut().is_some_and(|j| j.mark().and_then(|()| j.sync()).is_ok());
        is_marked && self.cells.as_mut().is_some_and(|cells| cells.mark().is_ok())
    }

    pub(crate) fn kill_process(&mut self) {
        (self.journal, self.cells) = (None, None);
        self.medium.kill_process();
        self.older.get_or_insert_with(|| self.medium.fork());
    }

    pub(crate) fn power_cut(&mut self, seed: u64) {
        (self.journal, self.cells) = (None, None);
        self.medium.crash_seeded(seed);
        self.older.get_or_insert_with(|| self.medium.fork());
    }

    /// Empties the disk. The older copy of it stays.
    pub(crate) fn wipe(&mut self) {
        (self.journal, self.cells) = (None, None);
        self.medium.wipe();
    }

    /// Drops the older copy of the disk.
    pub(crate) fn forget_copy(&mut self) {
        self.older = None;
    }

    pub(crate) fn set_full(&mut self, full: bool) {
        let used = self.medium.used_bytes();
        self.medium.set_capacity(full.then_some(used));
    }

    pub(crate) fn fail_write(&mut self) {
        self.failed = true;
        self.medium.fail_next(Fault::Write, 1);
    }

    pub(crate) fn fail_sync(&mut self) {
        self.failed = true;
        self.medium.fail_next(Fault::Sync, 1);
    }

    pub(crate) fn heal(&mut self) {
        for fault in [Fault::Write, Fault::Sync, Fault::Read] {
            self.medium.fail_next(fault, 0);
        }
    }

    /// Flips a bit in a random journal segment. Returns false if there is none. The caller must have called [`HostDisk::mark`]: recovery
    /// cannot tell rot from a torn write in the last batch while nothing records that it was synced.
    pub(crate) fn rot(&mut self, seed: u64) -> bool {
        let mut rng = Rng::new(seed);
        let Some(dir) = DiskPath::new("journal") else { return false };
        if let Some(done) = self.rot_cells(&mut rng) {
            return done;
        }
        let names = self.medium.list(&dir).unwrap_or_default();
        let segments: Vec<_> =
            names.iter().filter(|n| n.ends_with(".seg") && !n.starts_with("spare")).cloned().collect();
        let Some(name) = rng.pick(&segments) else { return false };
        let Some(path) = DiskPath::new(&format!("journal/{name}")) else { return false };
        let offset = rng.below(u64::from(self.segment_bytes) / 4);
        self.medium.flip_bit(&path, offset, (rng.bits() % 8) as u8)
    }

    /// Flips a bit in a file of cells, in half of all cases. Returns None if it did not, or if there is no such file.
    fn rot_cells(&mut self, rng: &mut Rng) -> Option<bool> {
        let names = self.medium.list(&DiskPath::new("cells")?).ok().filter(|names| !names.is_empty())?;
        if rng.below(2) == 0 {
            return None;
        }
        let path = DiskPath::new(&format!("cells/{}", rng.pick(&names)?))?;
        let len = self.medium.open(&path, Open::Read).and_then(|file| file.len()).ok()?;
        Some(self.medium.flip_bit(&path, rng.below(len), (rng.bits() % 8) as u8))
    }

    pub(crate) fn fail_reads(&mut self, failing: bool) {
        self.failed |= failing;
        self.medium.fail_next(Fault::Read, if failing { u32::MAX } else { 0 });
    }

    /// Copies the data directory as it is now.
    pub(crate) fn keep_copy(&mut self) {
        self.older = Some(self.medium.fork());
    }

    /// Puts the whole data directory back from the copy. Returns false if there is none.
    pub(crate) fn put_back_all(&mut self) -> bool {
        let Some(older) = self.older.clone() else { return false };
        for file in files(&self.medium).iter().chain(&files(&older)) {
            self.medium.put_back(file, &older);
        }
        true
    }

    /// Puts some files back from the copy, including files that were deleted since. Returns their names.
    pub(crate) fn put_back_some(&mut self, seed: u64) -> Option<String> {
        let older = self.older.clone()?;
        let mut rng = Rng::new(seed);
        let mut all = files(&self.medium);
        all.extend(files(&older));
        all.sort();
        all.dedup();
        // The files other than journal segments are few, and putting one of them back is the best test, so they are picked half of the
        // time.
        let alone: Vec<DiskPath> = all.iter().filter(|f| !is_segment(f)).cloned().collect();
        let group = match rng.below(2) {
            0 => rng.pick(&alone).cloned().into_iter().collect(),
            _ => some_files(&mut rng, &all),
        };
        for file in &group {
            self.medium.put_back(file, &older);
        }
        Some(group.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
    }

    /// Deletes, truncates, or puts back some files; [`some_files`] selects them. Returns what it did. The caller must have called
    /// [`HostDisk::mark`]: a batch that nothing records as synced looks like a torn one.
    pub(crate) fn lose_files(&mut self, seed: u64) -> Option<String> {
        let mut rng = Rng::new(seed);
        let group = some_files(&mut rng, &files(&self.medium));
        let older = self.older.replace(self.medium.fork());
        let done = match (rng.below(3), older) {
            (0, Some(older)) => {
                for file in &group {
                    self.medium.put_back(file, &older);
                }
                "put back from an older copy"
            }
            (1, _) => {
                for file in &group {
                    self.medium.cut(file, rng.below(u64::from(self.segment_bytes)));
                }
                "cut"
            }
            _ => {
                for file in &group {
                    self.medium.lose(file);
                }
                "deleted"
            }
        };
        let names: Vec<String> = group.iter().map(ToString::to_string).collect();
        Some(format!("{} {done}", names.join(", ")))
    }
}
