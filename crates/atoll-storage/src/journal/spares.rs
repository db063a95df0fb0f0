//! Keeps the files of segments that are no longer needed, to be reused or given back.

use super::recover::Files;
use super::{JournalOptions, spare_path};
use crate::disk::{Disk, DiskError, Open};

/// A spare file: its generation and its length in bytes.
pub(crate) type Spare = (u64, u64);

/// The spare files of a journal. In `whole` and `short`, the file that was added last comes last.
pub(crate) struct Spares {
    /// Length in bytes of a whole segment, and of a short one, which the writer makes itself.
    whole_bytes: u64,
    short_bytes: u64,
    /// How many whole files to keep. The same number of bytes is kept in short files.
    kept: usize,
    whole: Vec<u64>,
    /// Stays empty if both lengths are the same.
    short: Vec<u64>,
    /// Files of any other length: an earlier life ended while it prepared them or gave them back.
    odd: Vec<Spare>,
    /// The file that is being removed, and its remaining length.
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

    /// Finds the spare files that an earlier life left behind.
    pub(crate) fn read(disk: &dyn Disk, files: &Files, options: &JournalOptions) -> Result<Self, DiskError> {
        let mut spares = Spares::new(options);
        for &generation in &files.spares {
            spares.put(generation, disk.open(&spare_path(generation), Open::Read)?.len()?);
        }
        spares.odd.sort_by_key(|(_, bytes)| *bytes);
        Ok(spares)
    }

    /// Adds the spare file of this generation. It replaces an earlier spare of the same name. That happens when somebody puts back an old
    /// copy of a segment next to the spare that was made of it: the segment is then put away again.
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

    /// Takes a file for reuse: a whole one if there is one, otherwise a short one if `short_does`.
    pub(crate) fn take(&mut self, short_does: bool) -> Option<Spare> {
        let short = |generation| (generation, self.short_bytes);
        let whole = self.whole.pop().map(|generation| (generation, self.whole_bytes));
        whole.or_else(|| self.short.pop_if(|_| short_does).map(short))
    }

    /// Takes the longest file of odd length, if it has at least so many bytes.
    pub(crate) fn take_odd(&mut self, least_bytes: u64) -> Option<Spare> {
        self.odd.pop_if(|(_, bytes)| *bytes >= least_bytes)
    }

    /// Takes the least useful file. The caller removes it at once.
    pub(crate) fn give_up(&mut self) -> Option<u64> {
        let odd = self.odd.pop().map(|(generation, _)| generation);
        odd.or_else(|| self.short.pop()).or_else(|| self.whole.pop())
    }

    /// Returns whether [`Spares::take`] has no file to return.
    pub(crate) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.short.is_empty()
    }

    /// Returns how many files can be reused.
    pub(crate) fn len(&self) -> usize {
        self.whole.len() + self.short.len()
    }

    /// Returns the generations of all files.
    pub(crate) fn generations(&self) -> Vec<u64> {
        let odd = self.odd.iter().chain(&self.shrinking).map(|(generation, _)| *generation);
        self.whole.iter().chain(&self.short).copied().chain(odd).collect()
    }

    /// Returns the length of all files together, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let odd: u64 = self.odd.iter().chain(&self.shrinking).map(|(_, bytes)| bytes).sum();
        odd + self.whole.len() as u64 * self.whole_bytes + self.short.len() as u64 * self.short_bytes
    }

    /// Returns whether there is a file to give back.
    pub(crate) fn has_excess(&self) -> bool {
        self.shrinking.is_some()
            || !self.odd.is_empty()
            || self.whole.len() > self.kept
            || self.short.len() > self.short_kept()
    }

    /// Returns the file to cut a piece from: the one that is already being removed, else one that cannot be reused, else one beyond the
    /// number to keep. Must only be called if there is an excess.
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

    /// Records the remaining length of the file of [`Spares::next_removal`], or None if it is gone.
    pub(crate) fn shrunk(&mut self, generation: u64, left: Option<u64>) {
        self.shrinking = left.map(|bytes| (generation, bytes));
    }

    fn short_kept(&self) -> usize {
        self.kept * (self.whole_bytes / self.short_bytes) as usize
    }
}
