//! Reads records back by location, concurrently with the writer and from any thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::{FetchError, Loc, StorageId, Stored};
use bytes::Bytes;

use super::format::{Seed, parse_record};
use super::segment_path;
use crate::disk::{Disk, File, Open};

/// The most files held open.
const MAX_OPEN_FILES: usize = 64;
/// The most bytes in one read of adjacent records.
const MAX_RUN_BYTES: u64 = 1024 * 1024;

/// The segments that may be read, with their files once they are opened.
pub(crate) struct Readable {
    disk: Arc<dyn Disk>,
    storage: StorageId,
    segments: Mutex<BTreeMap<u64, Option<Arc<dyn File>>>>,
}

impl Readable {
    pub(crate) fn new(disk: Arc<dyn Disk>, storage: StorageId) -> Self {
        Readable { disk, storage, segments: Mutex::default() }
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<u64, Option<Arc<dyn File>>>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, generation: u64) {
        self.segments().insert(generation, None);
    }

    /// Must be called before the file is used for something else.
    pub(crate) fn forget(&self, generation: u64) {
        self.segments().remove(&generation);
    }

    fn file(&self, generation: u64) -> Result<Arc<dyn File>, FetchError> {
        let mut segments = self.segments();
        let recycled = || FetchError {
            reason: format!("{}: recycled, its entries were freed", segment_path(generation)),
        };
        if let Some(file) = segments.get(&generation).ok_or_else(recycled)? {
            return Ok(file.clone());
        }
        if segments.values().filter(|f| f.is_some()).count() >= MAX_OPEN_FILES {
            segments.values_mut().for_each(|f| *f = None);
        }
        let opened = self.disk.open(&segment_path(generation), Open::Read);
        let file: Arc<dyn File> = opened.map_err(|e| FetchError { reason: e.to_string() })?.into();
        segments.insert(generation, Some(file.clone()));
        Ok(file)
    }
}

/// Reads records by [`Loc`]. Clones share open files.
#[derive(Clone)]
pub struct JournalReader(pub(crate) Arc<Readable>);

impl JournalReader {
    /// Returns the records at `locs`, in that order, after verifying the checksum of each. Adjacent records are read together and share one
    /// buffer of at most 1 MiB (or of one record): copy what outlives the answer (contracts X13).
    ///
    /// # Errors
    /// Reports the first record that cannot be read, with file and offset: it was recycled or is damaged, or the disk failed. A reader
    /// never returns another record in its place, because checksums cover the segment's generation.
    pub fn read(&self, locs: &[Loc]) -> Result<Vec<Stored>, FetchError> {
        let mut out = Vec::with_capacity(locs.len());
        let mut rest = locs;
        while let Some(&first) = rest.first() {
            let end = |loc: &Loc| u64::from(loc.offset_bytes) + u64::from(loc.len_bytes);
            let mut n = 1;
            while let Some(next) = rest.get(n) {
                let follows =
                    next.segment == first.segment && u64::from(next.offset_bytes) == end(&rest[n - 1]);
                if !follows || end(next) - u64::from(first.offset_bytes) > MAX_RUN_BYTES {
                    break;
                }
                n += 1;
            }
            self.read_run(&rest[..n], &mut out)?;
            rest = &rest[n..];
        }
        Ok(out)
    }

    /// Reads adjacent records of one segment.
    fn read_run(&self, run: &[Loc], out: &mut Vec<Stored>) -> Result<(), FetchError> {
        let generation = run[0].segment;
        let file = self.0.file(generation)?;
        let len: usize = run.iter().map(|l| l.len_bytes as usize).sum();
        let start = u64::from(run[0].offset_bytes);
        let fail = |offset: u64, what: &str| FetchError {
            reason: format!("{} at byte {offset}: {what}", segment_path(generation)),
        };
        // A location may be wrong because of a peer's mistake. It must not make this node allocate more than the file holds.
        let there = file.len().map_err(|e| FetchError { reason: e.to_string() })?;
        if start + len as u64 > there {
            return Err(fail(start, "beyond the end of the file"));
        }
        let mut bytes = vec![0; len];
        let got = file.read_at(start, &mut bytes).map_err(|e| FetchError { reason: e.to_string() })?;
        bytes.truncate(got);
        let bytes = Bytes::from(bytes);
        let seed = Seed::new(self.0.storage, generation);
        let mut at = 0;
        for loc in run {
            let end = at + loc.len_bytes as usize;
            let offset = u64::from(loc.offset_bytes);
            if end > bytes.len() {
                return Err(fail(offset, "the file ends here"));
            }
            let stored = parse_record(&bytes.slice(at..end), generation, loc.offset_bytes, seed);
            match stored {
                Some(stored) if stored.loc == *loc => out.push(stored),
                _ => return Err(fail(offset, "no such record: recycled, or damaged")),
            }
            at = end;
        }
        Ok(())
    }
}
