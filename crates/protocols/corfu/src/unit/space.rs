//! The addresses of one log on one unit: a sparse space of write-once cells (corfu §1).
//!
//! | state of an address | where it is kept |
//! | --- | --- |
//! | unwritten | nowhere |
//! | data | a cell, which covers the consecutive addresses of one write, and a record in the journal |
//! | junk | an interval; it needs no storage |
//! | deleted alone | an interval |
//! | trimmed with all below | nowhere: it is below the watermark |
//!
//! Only a trim raises the watermark, not single deletions that happen to reach it: a reader must stop at a trim, and passes single
//! deletions.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use atoll_core::testing::mutant;
use atoll_core::{Loc, Lsn};

use crate::intervals::Intervals;
use crate::message::{Piece, Token};
use crate::mutants;

/// Where the content of a cell is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// On its way to the disk.
    Staged(Lsn),
    /// Durable here.
    At(Loc),
}

/// The addresses of one write.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub count: u32,
    pub token: Token,
    pub len_bytes: u32,
    pub spot: Spot,
    /// The content while it is in memory; always while it is staged.
    pub cached: Option<Bytes>,
}

/// Why an address cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The same write is already here.
    Mine,
    /// Another write, or junk.
    By(Option<Token>),
    /// It was trimmed.
    Deleted,
    /// It held data and was deleted alone.
    Erased,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Space {
    pub config: Bytes,
    /// The current epoch. Never falls (corfu-K6).
    pub epoch: u64,
    pub cells: BTreeMap<u64, Cell>,
    pub junk: Intervals,
    /// Addresses at or above the watermark that were deleted alone.
    pub deleted: Intervals,
    /// The watermark: every address below it is trimmed (corfu-C15).
    pub watermark: u64,
    /// All addresses that are not unwritten.
    pub written: Intervals,
    /// The newest record of this log. Answers about the state reveal it.
    pub staged: Lsn,
    /// The bytes on their way to the disk.
    pub staged_bytes: usize,
    pub len_bytes: u64,
}

impl Space {
    pub fn new(config: Bytes, epoch: u64) -> Self {
        Space {
            config,
            epoch,
            cells: BTreeMap::new(),
            junk: Intervals::default(),
            deleted: Intervals::default(),
            watermark: 0,
            written: Intervals::default(),
            staged: Lsn::NONE,
            staged_bytes: 0,
            len_bytes: 0,
        }
    }

    /// Returns the address above the highest one ever written. Junk and deleted addresses count, or a new sequencer would give out their
    /// positions again (corfu-C14).
    pub fn next(&self) -> u64 {
        if mutant(mutants::CORFU_C14) {
            let data = self.cells.last_key_value().map_or(0, |(first, cell)| first + u64::from(cell.count));
            return data;
        }
        self.written.end()
    }

    /// Returns the cell that covers an address.
    pub fn cell_at(&self, addr: u64) -> Option<(u64, &Cell)> {
        let (first, cell) = self.cells.range(..=addr).next_back()?;
        (addr < first + u64::from(cell.count)).then_some((*first, cell))
    }

    /// Returns why the addresses cannot be written; None if they can. Write-once: the first write of an address decides (corfu-K1).
    pub fn taken(&self, first: u64, count: u32, token: Token) -> Option<Taken> {
        let range = first..first + u64::from(count);
        let at = self.written.within(range).first()?.start;
        if at < self.watermark {
            return Some(Taken::Deleted);
        }
        if self.deleted.contains(at) {
            return Some(Taken::Erased);
        }
        let Some((start, cell)) = self.cell_at(at) else { return Some(Taken::By(None)) };
        let is_mine = start == first && cell.count == count && cell.token == token;
        Some(if is_mine { Taken::Mine } else { Taken::By(Some(cell.token)) })
    }

    pub fn write(&mut self, first: u64, cell: Cell) {
        self.written.add(first..first + u64::from(cell.count));
        self.len_bytes += u64::from(cell.len_bytes);
        self.cells.insert(first, cell);
    }

    /// Turns unwritten addresses into junk.
    pub fn fill(&mut self, ranges: &[Range<u64>]) {
        for range in ranges {
            self.junk.add(range.clone());
            self.written.add(range.clone());
        }
    }

    /// Returns the parts of a range that a deletion changes: neither junk nor deleted already.
    pub fn erasable(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let range = range.start.max(self.watermark)..range.end.max(self.watermark);
        let kept = self.junk.missing_in(range);
        kept.into_iter().flat_map(|part| self.deleted.missing_in(part)).collect()
    }

    /// Deletes addresses alone. Returns the cells that are thereby deleted as a whole.
    pub fn erase(&mut self, range: Range<u64>) -> Vec<Cell> {
        self.written.add(range.clone());
        self.deleted.add(range.start.max(self.watermark)..range.end.max(self.watermark));
        self.sweep(range)
    }

    /// Deletes all addresses below one: below the watermark, none needs an entry. Returns the cells that are deleted as a whole.
    pub fn trim(&mut self, to: u64) -> Vec<Cell> {
        self.written.add(0..to);
        self.junk.remove(0..to);
        self.deleted.remove(0..to);
        self.watermark = self.watermark.max(to);
        self.sweep(0..to)
    }

    fn sweep(&mut self, range: Range<u64>) -> Vec<Cell> {
        let from = self.cell_at(range.start).map_or(range.start, |(first, _)| first);
        let watermark = self.watermark;
        let deleted = &self.deleted;
        let is_gone = |first: u64, cell: &Cell| {
            let end = first + u64::from(cell.count);
            deleted.first_missing(first.max(watermark)).max(watermark) >= end
        };
        let gone: Vec<u64> = self
            .cells
            .range(from..range.end)
            .filter(|(first, cell)| is_gone(**first, cell))
            .map(|(f, _)| *f)
            .collect();
        let cells: Vec<Cell> = gone.iter().filter_map(|first| self.cells.remove(first)).collect();
        self.len_bytes -= cells.iter().map(|cell| u64::from(cell.len_bytes)).sum::<u64>();
        cells
    }

    /// Returns what is in a range, as pieces without gaps, at most `limit` of them.
    pub fn pieces(&self, range: Range<u64>, limit: usize) -> Vec<Piece> {
        let (mut at, mut out) = (range.start, Vec::new());
        while at < range.end && out.len() < limit {
            let piece = self.piece_at(at, range.end);
            let (from, is_write) = (at, matches!(piece, Piece::Data { .. }));
            at = piece.span().1;
            out.push(piece);
            if is_write {
                let erased = self.deleted.within(from..at.min(range.end));
                out.extend(erased.into_iter().map(|part| Piece::Erased { first: part.start, end: part.end }));
            }
        }
        out
    }

    fn piece_at(&self, at: u64, end: u64) -> Piece {
        if at < self.watermark {
            return Piece::Deleted { first: at, end: self.watermark.min(end) };
        }
        if self.deleted.contains(at) {
            return Piece::Erased { first: at, end: self.deleted.first_missing(at).min(end) };
        }
        if let Some((first, cell)) = self.cell_at(at) {
            return Piece::Data { first, count: cell.count, token: cell.token };
        }
        if self.junk.contains(at) {
            return Piece::Junk { first: at, end: self.junk.first_missing(at).min(end) };
        }
        let next = self.written.within(at..end).first().map_or(end, |part| part.start);
        Piece::Unwritten { first: at, end: next }
    }
}
