//! The path of a unit's changes through the journal; restarts; compaction.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{Bytes, BytesMut};

use atoll_contract::LogletId;
use atoll_core::codec::OpenList;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Decode, DecodeError, Effects, Encode, FetchError, Loc, Lsn, Reader, RecordKind, Space as Room, Stored,
};

use super::facts::{CELL_FORMAT, CellHead, Fact, STATE_FORMAT, Saved};
use super::space::{Cell, Space, Spot};
use crate::intervals::Intervals;
use crate::message::Token;
use crate::mutants;

/// How many cells compaction moves at a time.
const MOVES_AT_ONCE: usize = 16;

/// What a staged record is.
#[derive(Debug)]
enum Staged {
    Cell {
        log: LogletId,
        first: u64,
    },
    Moved {
        log: LogletId,
        first: u64,
        from: Loc,
    },
    /// A fact. Once it is durable, these locations are freed.
    Fact(Vec<Loc>),
}

/// The logs of a unit, and what is on its way to the disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub spaces: BTreeMap<LogletId, Space>,
    pub tombstones: BTreeSet<LogletId>,
    staged: VecDeque<(Lsn, Staged)>,
    /// The bytes of all logs on their way to the disk.
    pub staged_bytes: usize,
    /// Cells in memory, oldest first.
    cache: VecDeque<(LogletId, u64, usize)>,
    cached_bytes: usize,
    /// Cells to move, and those that are being read for it.
    to_move: VecDeque<(LogletId, u64, Loc)>,
    moving: BTreeMap<u64, (LogletId, u64, Loc)>,
    pub next_tag: u64,
    /// The checkpoint under construction.
    walk: Option<Walk>,
    /// During recovery only: locations that are no longer needed.
    dead: Vec<Loc>,
}

#[derive(Debug)]
struct Walk {
    out: BytesMut,
    list: OpenList,
    after: Option<LogletId>,
    in_tombstones: bool,
}

impl Disk {
    fn fact(&mut self, log: LogletId, fact: &Fact, freed: Vec<Loc>, out: &mut Effects) -> Lsn {
        let lsn = out.journal(RecordKind::Fact, fact.to_bytes(), Bytes::new());
        self.staged.push_back((lsn, Staged::Fact(freed)));
        if let Some(space) = self.spaces.get_mut(&log) {
            space.staged = lsn;
        }
        lsn
    }

    pub fn create(&mut self, log: LogletId, config: &Bytes, epoch: u64, out: &mut Effects) {
        // Copy the bytes: a slice would pin a network buffer (X13).
        let config = Bytes::copy_from_slice(config);
        self.spaces.insert(log, Space::new(config.clone(), epoch));
        self.fact(log, &Fact::Create { log, config, epoch }, Vec::new(), out);
    }

    /// Journals the new epoch after everything that was admitted in the old one, so that it is durable only with all of that.
    pub fn seal(&mut self, log: LogletId, epoch: u64, out: &mut Effects) -> Lsn {
        if let Some(space) = self.spaces.get_mut(&log) {
            space.epoch = epoch;
        }
        self.fact(log, &Fact::Epoch { log, epoch }, Vec::new(), out)
    }

    pub fn write(
        &mut self,
        log: LogletId,
        (first, count): (u64, u32),
        token: Token,
        data: Bytes,
        out: &mut Effects,
    ) -> Lsn {
        let head = CellHead { format: CELL_FORMAT, log, first, count, token };
        let (len, cached) = (data.len(), Bytes::copy_from_slice(&data));
        let lsn = out.journal(RecordKind::Entry, head.to_bytes(), data);
        let Some(space) = self.spaces.get_mut(&log) else { return lsn };
        let cell =
            Cell { count, token, len_bytes: len as u32, spot: Spot::Staged(lsn), cached: Some(cached) };
        space.write(first, cell);
        space.staged = lsn;
        space.staged_bytes += len;
        self.staged_bytes += len;
        self.staged.push_back((lsn, Staged::Cell { log, first }));
        lsn
    }

    /// Turns what is unwritten in a range into junk, durably. Returns the record that the answer reveals.
    pub fn fill(&mut self, log: LogletId, range: std::ops::Range<u64>, out: &mut Effects) -> Lsn {
        let Some(space) = self.spaces.get_mut(&log) else { return Lsn::NONE };
        let ranges = space.written.missing_in(range);
        if ranges.is_empty() {
            return space.staged;
        }
        space.fill(&ranges);
        let ranges = ranges.into_iter().map(|r| (r.start, r.end)).collect();
        self.fact(log, &Fact::Junk { log, ranges }, Vec::new(), out)
    }

    /// Deletes what is data in a range, and what is unwritten. Returns the record that the answer reveals.
    pub fn erase(&mut self, log: LogletId, range: std::ops::Range<u64>, out: &mut Effects) -> Lsn {
        let Some(space) = self.spaces.get_mut(&log) else { return Lsn::NONE };
        let mut last = space.staged;
        for part in space.erasable(range) {
            let (first, end) = (part.start, part.end);
            let gone = self.spaces.get_mut(&log).map(|space| space.erase(part)).unwrap_or_default();
            let freed = self.forget(log, gone);
            last = self.fact(log, &Fact::Deleted { log, first, end }, freed, out);
        }
        last
    }

    pub fn trim(&mut self, log: LogletId, to: u64, out: &mut Effects) -> Lsn {
        let Some(space) = self.spaces.get_mut(&log) else { return Lsn::NONE };
        let gone = space.trim(to);
        let freed = self.forget(log, gone);
        self.fact(log, &Fact::Trimmed { log, to }, freed, out)
    }

    /// Returns the locations of cells that are gone, and gives back the bytes of those that were on their way to the disk.
    fn forget(&mut self, log: LogletId, gone: Vec<Cell>) -> Vec<Loc> {
        let mut freed = Vec::new();
        for cell in gone {
            match cell.spot {
                Spot::At(loc) => freed.push(loc),
                // Its location is freed once it is known.
                Spot::Staged(_) => {
                    self.staged_bytes -= cell.len_bytes as usize;
                    if let Some(space) = self.spaces.get_mut(&log) {
                        space.staged_bytes -= cell.len_bytes as usize;
                    }
                }
            }
        }
        freed
    }

    /// Deletes a log, and leaves a tombstone even if it was never here.
    pub fn delete(&mut self, log: LogletId, out: &mut Effects) -> Lsn {
        self.tombstones.insert(log);
        let space = self.spaces.remove(&log);
        let cells = space.map(|space| {
            self.staged_bytes -= space.staged_bytes;
            space.cells.into_values().collect::<Vec<_>>()
        });
        let at = |cell: Cell| match cell.spot {
            Spot::At(loc) => Some(loc),
            Spot::Staged(_) => None,
        };
        let freed = cells.unwrap_or_default().into_iter().filter_map(at).collect();
        self.fact(log, &Fact::Tombstone { log }, freed, out)
    }

    /// Takes the answer of the journal about one record. Returns the log if data of it became durable.
    pub fn on_durable(&mut self, lsn: Lsn, loc: Loc, out: &mut Effects) {
        let Some((_, staged)) = self.staged.pop_front_if(|(first, _)| *first == lsn) else { return };
        match staged {
            Staged::Fact(freed) => out.free(freed),
            Staged::Cell { log, first } => {
                let space = self.spaces.get_mut(&log);
                let cell =
                    space.and_then(|space| Some((space.cells.get_mut(&first)?, &mut space.staged_bytes)));
                match cell {
                    Some((cell, bytes)) if cell.spot == Spot::Staged(lsn) => {
                        cell.spot = Spot::At(loc);
                        let len = cell.len_bytes as usize;
                        *bytes -= len;
                        self.staged_bytes -= len;
                        self.cache.push_back((log, first, len));
                        self.cached_bytes += len;
                    }
                    // It was deleted meanwhile.
                    _ => out.free([loc]),
                }
            }
            Staged::Moved { log, first, from } => {
                let cell = self.spaces.get_mut(&log).and_then(|space| space.cells.get_mut(&first));
                match cell {
                    Some(cell) if cell.spot == Spot::At(from) => {
                        cell.spot = Spot::At(loc);
                        out.free([from]);
                    }
                    _ => out.free([loc]),
                }
            }
        }
    }

    /// Drops the oldest cached contents until the cache is within its limit.
    pub fn shrink_cache(&mut self, limit_bytes: usize) {
        while self.cached_bytes > limit_bytes
            && let Some((log, first, len)) = self.cache.pop_front()
        {
            self.cached_bytes -= len;
            if let Some(cell) = self.spaces.get_mut(&log).and_then(|space| space.cells.get_mut(&first))
                && matches!(cell.spot, Spot::At(_))
            {
                cell.cached = None;
            }
        }
    }

    /// Starts the compaction of a sparse segment: every live cell in it is journaled again.
    pub fn start_moves(&mut self, segment: u64) {
        for (log, space) in &self.spaces {
            let here = space.cells.iter().filter_map(|(first, cell)| match cell.spot {
                Spot::At(loc) if loc.segment == segment => Some((*log, *first, loc)),
                _ => None,
            });
            self.to_move.extend(here);
        }
    }

    pub fn next_moves(&mut self, out: &mut Effects) {
        // Moves must not use the reserve for facts, or nothing could be deleted any more (X5).
        while out.space() == Room::Plenty && self.moving.len() < MOVES_AT_ONCE {
            let Some((log, first, loc)) = self.to_move.pop_front() else { return };
            let cell = self.spaces.get(&log).and_then(|space| space.cells.get(&first));
            if cell.is_some_and(|cell| cell.spot == Spot::At(loc)) {
                hit("corfu.unit.move");
                let tag = self.tag();
                self.moving.insert(tag, (log, first, loc));
                out.fetch(tag, vec![loc]);
            }
        }
    }

    pub fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    /// Takes a record that is to be moved. Returns false if the fetch was not for a move.
    pub fn on_fetched(&mut self, tag: u64, got: &Result<Vec<Stored>, FetchError>, out: &mut Effects) -> bool {
        let Some((log, first, from)) = self.moving.remove(&tag) else { return false };
        let cell = self.spaces.get(&log).and_then(|space| space.cells.get(&first));
        if let (Ok(records), Some(cell)) = (got, cell)
            && let Some(stored) = records.first()
            && cell.spot == Spot::At(from)
            && out.space() == Room::Plenty
        {
            let (format, count, token) = (CELL_FORMAT, cell.count, cell.token);
            let head = CellHead { format, log, first, count, token };
            let lsn = out.journal(RecordKind::Entry, head.to_bytes(), stored.record.payload.clone());
            self.staged.push_back((lsn, Staged::Moved { log, first, from }));
        }
        self.next_moves(out);
        true
    }

    /// Everything on its way to the disk is lost until a restart.
    pub fn on_closed(&mut self) {
        self.staged.clear();
        self.to_move.clear();
    }

    /// Encodes all facts, about `max_bytes` more in each call; None until all are included.
    pub fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        let mut walk = self.walk.take().unwrap_or_else(|| {
            let mut out = BytesMut::new();
            STATE_FORMAT.encode(&mut out);
            let list = OpenList::begin(&mut out);
            Walk { out, list, after: None, in_tombstones: false }
        });
        let end = walk.out.len().saturating_add(max_bytes.max(1));
        let rest = |after: Option<LogletId>| {
            (after.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded), std::ops::Bound::Unbounded)
        };
        if !walk.in_tombstones {
            for (log, space) in self.spaces.range(rest(walk.after)) {
                if walk.out.len() >= end {
                    self.walk = Some(walk);
                    return None;
                }
                let saved = Saved {
                    log: *log,
                    config: space.config.clone(),
                    epoch: if mutant(mutants::CORFU_C16) { 1 } else { space.epoch },
                    watermark: space.watermark,
                    junk: space.junk.iter().collect(),
                    deleted: space.deleted.iter().collect(),
                };
                walk.list.push(&saved, &mut walk.out);
                walk.after = Some(*log);
            }
            let list = OpenList::begin(&mut walk.out);
            std::mem::replace(&mut walk.list, list).end(&mut walk.out);
            (walk.after, walk.in_tombstones) = (None, true);
        }
        for log in self.tombstones.range(rest(walk.after)) {
            if walk.out.len() >= end {
                self.walk = Some(walk);
                return None;
            }
            walk.list.push(log, &mut walk.out);
            walk.after = Some(*log);
        }
        walk.list.end(&mut walk.out);
        Some(walk.out.freeze())
    }

    pub fn restore(&mut self, bytes: Bytes) -> Result<(), DecodeError> {
        let mut from = Reader::new(bytes);
        check_format("version of a checkpoint of storage units", u8::decode(&mut from)?, STATE_FORMAT)?;
        let all: Vec<Saved> = Decode::decode(&mut from)?;
        let tombstones: Vec<LogletId> = Decode::decode(&mut from)?;
        from.finish("checkpoint of a storage unit")?;
        self.tombstones = tombstones.into_iter().collect();
        for saved in all {
            // A log that was deleted between two steps of the checkpoint is in both lists.
            if self.tombstones.contains(&saved.log) {
                continue;
            }
            let mut space = Space::new(saved.config, saved.epoch);
            space.watermark = saved.watermark;
            space.junk = Intervals::of(saved.junk);
            space.deleted = Intervals::of(saved.deleted);
            space.written.add(0..saved.watermark);
            for (start, end) in space.junk.iter().chain(space.deleted.iter()) {
                space.written.add(start..end);
            }
            self.spaces.insert(saved.log, space);
        }
        Ok(())
    }

    pub fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        match stored.record.kind {
            RecordKind::Fact => self.recover_fact(Fact::from_bytes(stored.record.head)?),
            RecordKind::Entry => {
                let head = CellHead::from_bytes(stored.record.head)?;
                check_format("version of a cell", head.format, CELL_FORMAT)?;
                self.recover_cell(&head, stored.loc, stored.record.payload.len() as u32)?;
            }
        }
        Ok(())
    }

    fn recover_fact(&mut self, fact: Fact) {
        match fact {
            Fact::Create { log, config, epoch } => {
                if !self.tombstones.contains(&log) {
                    self.spaces.entry(log).or_insert_with(|| Space::new(config, epoch));
                }
            }
            Fact::Epoch { log, epoch } => {
                if let Some(space) = self.spaces.get_mut(&log)
                    && !mutant(mutants::CORFU_C16)
                {
                    space.epoch = space.epoch.max(epoch);
                }
            }
            Fact::Junk { log, ranges } => {
                if let Some(space) = self.spaces.get_mut(&log) {
                    // What was deleted later stays deleted if the record is replayed over a checkpoint.
                    let free: Vec<_> =
                        ranges.into_iter().flat_map(|(s, e)| space.written.missing_in(s..e)).collect();
                    space.fill(&free);
                }
            }
            Fact::Deleted { log, first, end } => {
                if let Some(space) = self.spaces.get_mut(&log) {
                    let gone = space.erase(first..end);
                    self.bury(gone);
                }
            }
            Fact::Trimmed { log, to } => {
                if let Some(space) = self.spaces.get_mut(&log) {
                    let gone = space.trim(to);
                    self.bury(gone);
                }
            }
            Fact::Tombstone { log } => {
                self.tombstones.insert(log);
                if let Some(space) = self.spaces.remove(&log) {
                    self.bury(space.cells.into_values());
                }
            }
        }
    }

    fn bury(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let at = |cell: Cell| match cell.spot {
            Spot::At(loc) => Some(loc),
            Spot::Staged(_) => None,
        };
        self.dead.extend(cells.into_iter().filter_map(at));
    }

    fn recover_cell(&mut self, head: &CellHead, loc: Loc, len_bytes: u32) -> Result<(), DecodeError> {
        let Some(space) = self.spaces.get_mut(&head.log) else {
            if self.tombstones.contains(&head.log) {
                self.dead.push(loc);
                return Ok(());
            }
            return Err(DecodeError::Invalid {
                what: "log of a cell (upper half)",
                value: (head.log.0 >> 64) as u64,
                allowed: "logs whose creation is in the journal or its checkpoint",
            });
        };
        if let Some(cell) = space.cells.get_mut(&head.first) {
            // It was moved, and the old location is not recycled yet: the later record counts.
            if let Spot::At(old) = std::mem::replace(&mut cell.spot, Spot::At(loc)) {
                self.dead.push(old);
            }
            return Ok(());
        }
        let (count, token) = (head.count, head.token);
        space.write(head.first, Cell { count, token, len_bytes, spot: Spot::At(loc), cached: None });
        Ok(())
    }

    /// Ends recovery. Returns the locations that are no longer needed.
    pub fn recovered(&mut self) -> Vec<Loc> {
        let mut dead = std::mem::take(&mut self.dead);
        for space in self.spaces.values_mut() {
            // A checkpoint knows of deletions whose records came before it.
            let ranges: Vec<(u64, u64)> = space.deleted.iter().collect();
            let mut gone = space.trim(space.watermark);
            gone.extend(ranges.into_iter().flat_map(|(start, end)| space.erase(start..end)));
            for cell in gone {
                if let Spot::At(loc) = cell.spot {
                    dead.push(loc);
                }
            }
        }
        dead
    }
}

fn check_format(what: &'static str, got: u8, known: u8) -> Result<(), DecodeError> {
    if got == known {
        return Ok(());
    }
    Err(DecodeError::Invalid { what, value: got.into(), allowed: "1" })
}
