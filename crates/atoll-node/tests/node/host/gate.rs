//! A disk with two gates: one for the syncs of the journal thread, and one for the syncs of checkpoints.

use std::io::IoSlice;
use std::sync::{Arc, Condvar, Mutex};

use atoll_storage::{Disk, DiskError, DiskPath, File, Open, RealDisk};

#[derive(Default)]
struct GateState {
    closed: bool,
    waiting: usize,
}

/// A gate at which syncs wait while it is closed. It starts open.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

impl Gate {
    pub fn close(&self) {
        self.0.0.lock().unwrap().closed = true;
    }

    pub fn open(&self) {
        self.0.0.lock().unwrap().closed = false;
        self.0.1.notify_all();
    }

    /// Returns how many syncs wait now.
    pub fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().waiting
    }

    fn pass(&self) {
        let mut state = self.0.0.lock().unwrap();
        state.waiting += 1;
        while state.closed {
            state = self.0.1.wait(state).unwrap();
        }
        state.waiting -= 1;
    }
}

pub struct GatedDisk {
    disk: RealDisk,
    gate: Gate,
    asides: Gate,
}

impl GatedDisk {
    pub fn new(disk: RealDisk) -> Self {
        GatedDisk { disk, gate: Gate::default(), asides: Gate::default() }
    }

    pub fn gate(&self) -> Gate {
        self.gate.clone()
    }

    /// Returns the gate for the syncs of checkpoints, whichever thread writes them.
    pub fn asides(&self) -> Gate {
        self.asides.clone()
    }
}

impl Disk for GatedDisk {
    fn open(&self, path: &DiskPath, how: Open) -> Result<Box<dyn File>, DiskError> {
        let asides = (path.as_str() == "journal/checkpoint.new").then(|| self.asides.clone());
        Ok(Box::new(GatedFile { file: self.disk.open(path, how)?, gate: self.gate.clone(), asides }))
    }

    fn list(&self, dir: &DiskPath) -> Result<Vec<String>, DiskError> {
        self.disk.list(dir)
    }

    fn create_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        self.disk.create_dir(dir)
    }

    fn rename(&self, from: &DiskPath, to: &DiskPath) -> Result<(), DiskError> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &DiskPath) -> Result<(), DiskError> {
        self.disk.remove(path)
    }

    fn sync_dir(&self, dir: &DiskPath) -> Result<(), DiskError> {
        self.disk.sync_dir(dir)
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        self.disk.free_bytes()
    }
}

struct GatedFile {
    file: Box<dyn File>,
    gate: Gate,
    asides: Option<Gate>,
}

impl File for GatedFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, DiskError> {
        self.file.read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, from: &[IoSlice<'_>]) -> Result<(), DiskError> {
        self.file.write_at(offset, from)
    }

    fn sync_data(&mut self) -> Result<(), DiskError> {
        if let Some(gate) = &self.asides {
            gate.pass();
        }
        // Syncs of the thread that prepares segments do not wait.
        if std::thread::current().name() == Some("journal") {
            self.gate.pass();
        }
        self.file.sync_data()
    }

    fn forget_cached(&mut self) {
        self.file.forget_cached();
    }

    fn set_len(&mut self, len: u64) -> Result<(), DiskError> {
        self.file.set_len(len)
    }

    fn len(&self) -> Result<u64, DiskError> {
        self.file.len()
    }
}
