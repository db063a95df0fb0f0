//! What the writer knows about one segment: which of its records are still needed, and for the active segment, where the next batch goes.

use std::collections::BTreeMap;

use atoll_core::{Loc, Lsn, RecordKind};

use super::direct::Direct;
use super::format::{FOOTER_BYTES, Footer, SEGMENT_HEADER_BYTES, Seed};
use crate::disk::File;

/// Space accounting of one segment. It takes four bytes and a bit per entry, and is exact, so that freeing a location twice does no harm.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub generation: u64,
    pub file_bytes: u64,
    pub last_lsn: Lsn,
    /// The last fact in the segment. The segment stays until a checkpoint covers that fact.
    pub last_fact: Lsn,
    /// Offsets of the entries, in ascending order.
    entries: Vec<u32>,
    /// One bit per entry.
    freed: Vec<u64>,
    pub live_entries: usize,
    pub live_bytes: u64,
}

impl Segment {
    pub(crate) fn new(generation: u64, file_bytes: u64) -> Self {
        Segment { generation, file_bytes, ..Segment::default() }
    }

    pub(crate) fn add(&mut self, lsn: Lsn, kind: RecordKind, loc: Loc) {
        self.last_lsn = lsn;
        match kind {
            RecordKind::Fact => self.last_fact = lsn,
            RecordKind::Entry => {
                if self.entries.len().is_multiple_of(64) {
                    self.freed.push(0);
                }
                self.entries.push(loc.offset_bytes);
                self.live_entries += 1;
                self.live_bytes += u64::from(loc.len_bytes);
            }
        }
    }

    /// Frees an entry. Returns false if there is no such entry, or if it was freed before.
    pub(crate) fn free(&mut self, loc: Loc) -> bool {
        let Ok(index) = self.entries.binary_search(&loc.offset_bytes) else { return false };
        let (word, bit) = (index / 64, 1 << (index % 64));
        if self.freed[word] & bit != 0 {
            return false;
        }
        self.freed[word] |= bit;
        self.live_entries -= 1;
        self.live_bytes = self.live_bytes.saturating_sub(loc.len_bytes.into());
        true
    }
}

/// The unused end of a closed segment's file.
pub(crate) struct Slack {
    /// The offset after the last batch.
    pub end: u64,
    /// The last block of the file.
    pub footer: Vec<u8>,
}

/// Unused ends, by the generation of their segments.
pub(crate) type Slacks = BTreeMap<u64, Slack>;

/// A prepared segment: its name and header are durable, and it holds no batch.
pub(crate) struct Ready {
    pub generation: u64,
    pub file: Box<dyn File>,
    pub file_bytes: u64,
    pub block_bytes: u32,
    pub floor: Lsn,
}

impl Ready {
    /// Returns the bytes available for batches: everything except the header's block and the footer's.
    pub(crate) fn room(&self) -> u64 {
        self.file_bytes.saturating_sub(2 * u64::from(self.block_bytes))
    }
}

/// The segment that batches go to.
pub(crate) struct Active {
    pub file: Box<dyn File>,
    /// The same file for writes that no thread waits for.
    pub direct: Direct,
    pub segment: Segment,
    pub seed: Seed,
    pub block_bytes: u32,
    /// The offset of the next batch, on a block boundary.
    pub position: u32,
    pub first_lsn: Option<Lsn>,
    /// Whether something was written since the last sync.
    pub dirty: bool,
    /// Its headers say that everything up to here is synced. They may be unsynced themselves.
    pub claims: Lsn,
    /// The same, but only by headers that are synced themselves: a restart sees at least this number.
    pub proves: Lsn,
}

impl Active {
    pub(crate) fn new(ready: Ready, seed: Seed) -> Self {
        Active {
            direct: Direct::default(),
            segment: Segment::new(ready.generation, ready.file_bytes),
            seed,
            block_bytes: ready.block_bytes,
            position: ready.block_bytes,
            first_lsn: None,
            dirty: false,
            claims: ready.floor,
            proves: ready.floor,
            file: ready.file,
        }
    }

    /// Returns the bytes left for batches.
    pub(crate) fn room(&self) -> u64 {
        let end = self.segment.file_bytes.saturating_sub(self.block_bytes.into());
        end.saturating_sub(self.position.into())
    }

    pub(crate) fn footer(&self, last: Lsn, synced_upto: Lsn) -> Footer {
        let next = Lsn(last.0 + 1);
        Footer { end: self.position, first_lsn: self.first_lsn.unwrap_or(next), last_lsn: last, synced_upto }
    }
}

/// The smallest block that holds a header and a footer.
pub(crate) const MIN_BLOCK_BYTES: u32 = 512;
const _: () = assert!(SEGMENT_HEADER_BYTES <= 512 && FOOTER_BYTES <= 512);
