//! Files of segments that are no longer needed: kept for reuse, or to be given back.

use super::recover::Files;
use super::{JournalOptions, spare_path};
use crate::disk::{Disk, DiskError, Open};

/// Of a file that can be used again: its generation and its length in bytes.
pub(crate) type Spare = (u64, u64);

/// See the module documentation. In each list, the file put in last is the last.
pub(crate) struct Spares {
    /// Length of a whole segment, and of one that the writer makes itself.
    whole_bytes: u64,
    short_bytes: u64,
    /// Whole ones to be kept, and as many bytes of short ones.
    kept: usize,
    whole: Vec<u64>,
    /// None if both lengths are the same.
    short: Vec<u64>,
    /// Of any other length: half prepared, or half given back, when an earlier life ended.
    odd: Vec<Spare>,
    /// The file that is being removed, and the bytes that it still has.
    shrinking: Option<Spare>,
}

impl Spares {
    pub(crate) fn new(options: &JournalOptions) -> Self {
        Spares {
            whole_bytes: options.segment_bytes.into(),
            short_bytes: options.first_segment_bytes.into(),
            kept: options.spare_segments,
            whole: Vec::new(),
            short: Vec::new(),
            odd: Vec::new(),
            shrinking: None,
        }
    }

    /// Reads what an earlier life left behind.
    pub(crate) fn read(disk: &dyn Disk, files: &Files, options: &JournalOptions) -> Result<Self, DiskError> {
        let mut spares = Spares::new(options);
        for &generation in &files.spares {
            spares.put(generation, disk.open(&spare_path(generation), Open::Read)?.len()?);
        }
        spares.odd.sort_by_key(|(_, bytes)| *bytes);
        Ok(spares)
    }

    /// A file of this length has the name of the spare of this generation. It has replaced the spare of that name, if there was one: a
    /// segment that was put back from an older copy stands beside the spare that was made of it, and is put away again.
    pub(crate) fn put(&mut self, generation: u64, bytes: u64) {
        let others = |spare: &u64| *spare != generation;
        self.whole.retain(others);
        self.short.retain(others);
        self.odd.retain(|(spare, _)| others(spare));
        self.shrinking.take_if(|(spare, _)| *spare == generation);
        if bytes == self.whole_bytes {
            self.whole.push(generation);
        } else if bytes == self.short_bytes {
            self.short.push(generation);
        } else {
            self.odd.push((generation, bytes));
        }
    }

    /// A file to use again, a whole one if there is one.
    pub(crate) fn take(&mut self, short_does: bool) -> Option<Spare> {
        let short = |generation| (generation, self.short_bytes);
        let whole = self.whole.pop().map(|generation| (generation, self.whole_bytes));
        whole.or_else(|| self.short.pop_if(|_| short_does).map(short))
    }

    /// The longest file of odd length, if it has so many bytes.
    pub(crate) fn take_odd(&mut self, least_bytes: u64) -> Option<Spare> {
        self.odd.pop_if(|(_, bytes)| *bytes >= least_bytes)
    }

    /// The file that is missed least; the caller removes it at once.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        let odd = self.odd.pop().map(|(generation, _)| generation);
        odd.or_else(|| self.short.pop()).or_else(|| self.whole.pop())
    }

    /// Whether [`Spares::take`] has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.short.is_empty()
    }

    /// How many files can be used again.
    pub(crate) fn len(&self) -> usize {
        self.whole.len() + self.short.len()
    }

    /// All files.
    pub(crate) fn generations(&self) -> Vec<u64> {
        let odd = self.odd.iter().chain(&self.shrinking).map(|(generation, _)| *generation);
        self.whole.iter().chain(&self.short).copied().chain(odd).collect()
    }

    /// Of all files.
    pub(crate) fn bytes(&self) -> u64 {
        let odd: u64 = self.odd.iter().chain(&self.shrinking).map(|(_, bytes)| bytes).sum();
        odd + self.whole.len() as u64 * self.whole_bytes + self.short.len() as u64 * self.short_bytes
    }

    /// Whether there is a file to give back.
    pub(crate) fn has_excess(&self) -> bool {
        self.shrinking.is_some()
            || !self.odd.is_empty()
            || self.whole.len() > self.kept
            || self.short.len() > self.short_kept()
    }

    /// The file to take a piece from: one that has lost some, one that is no good as a spare, one too many. Not to be called without
    /// an excess.
    pub(crate) fn next_removal(&mut self) -> u64 {
        let (short, whole) = (self.short_bytes, self.whole_bytes);
        let (generation, bytes) = match (self.shrinking, self.odd.pop()) {
            (Some(begun), odd) => {
                self.odd.extend(odd);
                begun
            }
            (None, Some(odd)) => odd,
            (None, None) if self.short.len() > self.short_kept() => (self.short.remove(0), short),
            (None, None) => (self.whole.remove(0), whole),
        };
        self.shrinking = Some((generation, bytes));
        generation
    }

    /// The file of [`Spares::next_removal`] has so many bytes left, or is gone.
    pub(crate) fn shrunk(&mut self, generation: u64, left: Option<u64>) {
        self.shrinking = left.map(|bytes| (generation, bytes));
    }

    fn short_kept(&self) -> usize {
        self.kept * (self.whole_bytes / self.short_bytes) as usize
    }
}
