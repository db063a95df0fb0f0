//! Handles the journal's answers, and its requests to empty sparse segments.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Effects, Encode, FetchError, Loc, Lsn, RecordKind, Space, Stored, Tick, invariant};

use super::facts::{ENTRY_FORMAT, EntryHead};
use super::loglet_store::{Durable, LogletStore, Protocol, Staged};
use super::runs::Place;

/// Live runs that are being moved out of sparse segments.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Moves that have not started, with the location of each run when the journal asked. There are at most as many as runs in the
    /// requested segments.
    todo: VecDeque<(LogletId, Offset, Loc)>,
    /// Segments whose runs are being searched for, each at most once.
    searches: VecDeque<Search>,
    /// Moves whose runs are being read, by tag.
    reading: BTreeMap<u64, (LogletId, Offset, Loc)>,
    /// The number of moves that are being read or journaled again, at most [`MOVES_IN_FLIGHT`]. Their bytes are bounded by the options.
    in_flight: usize,
    in_flight_bytes: usize,
}

impl Moves {
    fn begin(&mut self, loc: Loc) {
        self.in_flight += 1;
        self.in_flight_bytes += loc.len_bytes as usize;
    }

    fn end(&mut self, loc: Loc) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(loc.len_bytes as usize);
    }
}

/// A search for the runs of a segment, and its position.
#[derive(Debug)]
struct Search {
    segment: u64,
    next: (LogletId, Offset),
    /// The search continues no earlier than this.
    at: Tick,
}

/// The number of runs that a search examines in one turn: about 100 us of this thread. Searching a whole segment at once would block the
/// thread for long.
const SEARCH_RUNS: usize = 4096;
/// The cost of a Loglet for a search, in consecutive runs. It is higher because the Loglet is elsewhere in memory.
const SEARCH_LOGLET: usize = 8;
/// The number of runs that are moved at a time: less than a millisecond of this thread for each of the two steps. A segment of tiny entries
/// has a hundred thousand runs, and moving all at once would delay everything else on this thread.
const MOVES_IN_FLIGHT: usize = 128;
/// The most runs that one sweep removes: about 50 us of this thread, and as much of the journal's. Without the limit, a trim of several
/// minutes of appends would block both for tens of milliseconds, on a majority of the servers at once.
const SWEEP_RUNS: usize = 512;
/// The delay before a sweep continues on an otherwise idle node.
const SWEEP_EVERY: Duration = Duration::from_millis(1);
/// The sweep offset of a deleted Loglet: all of its runs.
const EVERYTHING: Offset = Offset(u64::MAX);

impl<P: Protocol> LogletStore<P> {
    /// Handles one record that became durable. Returns the change on which the protocol must act, if any.
    pub fn on_durable(&mut self, lsn: Lsn, loc: Loc, out: &mut Effects) -> Option<Durable> {
        let (staged_lsn, what) = self.staged.pop_front()?;
        invariant!(staged_lsn == lsn, "{lsn} became durable, {staged_lsn} was next");
        match what {
            Staged::Create | Staged::Known => None,
            Staged::Entry { loglet, first } => self.entry_durable(loglet, first, loc, out),
            Staged::Seal { loglet } => self.loglets.contains_key(&loglet).then_some(Durable::Seal(loglet)),
            Staged::Moved { loglet, first, from } => {
                self.moved(loglet, first, from, loc, out);
                None
            }
            Staged::Trim { loglet, to } => {
                if let Some(kept) = self.loglets.get_mut(&loglet) {
                    kept.runs.give_up_below(to);
                    self.sweeping.insert(loglet, to);
                }
                None
            }
            Staged::Tombstone { loglet } => {
                if self.dying.contains_key(&loglet) {
                    self.sweeping.insert(loglet, EVERYTHING);
                }
                None
            }
        }
    }

    /// Returns when [`LogletStore::sweep`] has more to sweep or search; None if never.
    pub fn sweep_at(&self) -> Option<Tick> {
        self.sweep_at
    }

    /// Frees some of the locations that durable trims and deletions released, and continues the search of [`LogletStore::start_moves`].
    /// Call this in every turn, and at the time that `sweep_at` returns.
    pub fn sweep(&mut self, now: Tick, out: &mut Effects) {
        let mut left = SWEEP_RUNS;
        if self.moves.searches.front().is_some_and(|search| search.at <= now) {
            self.search(out);
            if let Some(search) = self.moves.searches.front_mut() {
                hit("store.search_goes_on");
                search.at = now.after(SWEEP_EVERY);
            }
        }
        self.sweep_at = self.moves.searches.front().map(|search| search.at);
        while let Some((loglet, to)) = self.sweeping.first_key_value().map(|(l, to)| (*l, *to)) {
            let freed = match (self.loglets.get_mut(&loglet), self.dying.get_mut(&loglet)) {
                (Some(kept), _) if to < EVERYTHING => {
                    let before = kept.runs.len_bytes();
                    let freed = kept.runs.sweep(to, left);
                    self.entry_bytes -= before - kept.runs.len_bytes();
                    freed
                }
                (_, Some(dying)) => dying.runs.sweep(to, left),
                _ => Vec::new(),
            };
            left -= freed.len();
            self.occupied.remove(loglet, &freed);
            out.free(freed);
            if left == 0 {
                hit("store.sweep_goes_on");
                self.sweep_at = Some(now.after(SWEEP_EVERY));
                return;
            }
            self.sweeping.remove(&loglet);
            if to == EVERYTHING {
                self.dying.remove(&loglet);
            }
        }
    }

    fn entry_durable(
        &mut self,
        loglet: LogletId,
        first: Offset,
        loc: Loc,
        out: &mut Effects,
    ) -> Option<Durable> {
        if let Some(kept) = self.loglets.get_mut(&loglet) {
            let Some(run) = kept.runs.get_mut(first) else {
                out.free([loc]);
                return None;
            };
            run.place = Place::At(loc);
            self.occupied.add(loglet, loc);
            let (end, filled, len) = (first.plus(run.count.into()), run.filled, run.len_bytes as usize);
            self.cache.add(loglet, first, len);
            if filled {
                return Some(Durable::Filled(loglet));
            }
            kept.raise_local_tail(end);
            return Some(Durable::Entries(loglet));
        }
        match self.dying.get_mut(&loglet).and_then(|k| k.runs.get_mut(first)) {
            Some(run) => {
                run.place = Place::At(loc);
                self.occupied.add(loglet, loc);
            }
            None => out.free([loc]),
        }
        None
    }

    /// Drops the oldest cached bytes until the cache is within its limit.
    pub fn trim_cache(&mut self) {
        while let Some((loglet, first)) = self.cache.overflow() {
            if let Some(run) = self.loglets.get_mut(&loglet).and_then(|k| k.runs.get_mut(first))
                && matches!(run.place, Place::At(_))
            {
                run.cached = None;
            }
        }
    }

    /// Starts the compaction of a sparse segment: every live run in it is journaled again while the journal accepts more than facts.
    /// [`LogletStore::sweep`] searches for these runs in steps, among the Loglets that have runs in the segment.
    pub fn start_moves(&mut self, segment: u64) {
        if !self.moves.searches.iter().any(|search| search.segment == segment) {
            self.moves.searches.push_back(Search { segment, next: (LogletId(0), Offset::ZERO), at: Tick(0) });
        }
    }

    /// Continues the first search. It cannot miss a run that is added behind it: such a run is in a newer segment, because this one was
    /// closed before the search began.
    fn search(&mut self, out: &mut Effects) {
        let Some(search) = self.moves.searches.front_mut() else { return };
        let mut left = SEARCH_RUNS;
        let (loglet, offset) = search.next;
        let mut end = None;
        'all: for id in self.occupied.of(search.segment, loglet) {
            let from = if id == loglet { offset } else { Offset::ZERO };
            if left == 0 {
                end = Some((id, from));
                break;
            }
            left = left.saturating_sub(SEARCH_LOGLET);
            // The runs of a Loglet that was deleted meanwhile are freed at their old locations.
            let Some(kept) = self.loglets.get(&id) else { continue };
            for (first, run) in kept.runs.from(from) {
                if left == 0 {
                    end = Some((id, first));
                    break 'all;
                }
                left -= 1;
                if let Place::At(loc) = run.place
                    && loc.segment == search.segment
                {
                    self.moves.todo.push_back((id, first, loc));
                }
            }
        }
        match end {
            Some(next) => search.next = next,
            None => {
                self.moves.searches.pop_front();
            }
        }
        self.next_moves(out);
    }

    /// Reports that the room in the journal has changed: moves continue, or wait. Moves must not use the reserve for facts (contracts X5):
    /// otherwise a trim could no longer be journaled, and no space would ever be freed.
    pub fn on_room(&mut self, out: &mut Effects) {
        self.next_moves(out);
    }

    fn next_moves(&mut self, out: &mut Effects) {
        if out.space() != Space::Plenty {
            if !self.moves.todo.is_empty() {
                hit("store.move_waits_for_room");
            }
            return;
        }
        while self.moves.in_flight < MOVES_IN_FLIGHT && self.moves.in_flight_bytes < self.options.move_bytes {
            let Some((loglet, first, loc)) = self.moves.todo.pop_front() else { return };
            let live = self.loglets.get(&loglet).and_then(|k| k.runs.get(first));
            if live.is_none_or(|run| run.place != Place::At(loc)) {
                continue;
            }
            hit("store.move");
            self.moves.begin(loc);
            let tag = self.next_tag;
            self.next_tag += 1;
            self.moves.reading.insert(tag, (loglet, first, loc));
            out.fetch(tag, vec![loc]);
        }
    }

    pub(super) fn on_move_fetched(
        &mut self,
        tag: u64,
        got: Result<Vec<Stored>, FetchError>,
        out: &mut Effects,
    ) {
        let Some((loglet, first, loc)) = self.moves.reading.remove(&tag) else { return };
        if out.space() != Space::Plenty {
            self.moves.end(loc);
            self.moves.todo.push_front((loglet, first, loc));
            return;
        }
        let stored = got.ok().and_then(|mut all| all.pop());
        let live = self.loglets.get(&loglet).and_then(|k| k.runs.get(first).map(|run| (k, run)));
        match (stored, live) {
            (Some(stored), Some((kept, run))) if run.place == Place::At(loc) => {
                let head = EntryHead {
                    format: ENTRY_FORMAT,
                    loglet,
                    first,
                    count: run.count,
                    filled: run.filled,
                    known_tail: kept.known_tail,
                };
                let lsn = out.journal(RecordKind::Entry, head.to_bytes(), stored.record.payload);
                self.staged.push_back((lsn, Staged::Moved { loglet, first, from: loc }));
            }
            // The run is damaged, or was trimmed meanwhile. A damaged run stays where it is, for an operator to inspect.
            _ => self.moves.end(loc),
        }
        self.next_moves(out);
    }

    fn moved(&mut self, loglet: LogletId, first: Offset, from: Loc, to: Loc, out: &mut Effects) {
        self.moves.end(from);
        let run = match self.loglets.get_mut(&loglet) {
            Some(kept) => kept.runs.get_mut(first),
            None => self.dying.get_mut(&loglet).and_then(|k| k.runs.get_mut(first)),
        };
        match run {
            Some(run) if run.place == Place::At(from) => {
                run.place = Place::At(to);
                self.occupied.remove(loglet, &[from]);
                self.occupied.add(loglet, to);
                out.free([from]);
            }
            // The run was trimmed or deleted meanwhile, and its old location is already freed.
            _ => out.free([to]),
        }
        self.next_moves(out);
    }
}

#[cfg(test)]
mod tests {
    use atoll_contract::{Batch, Entry, OpId};
    use atoll_core::{NodeId, Record, RoleKind};
    use bytes::Bytes;

    use super::super::loglet_store::LogletStoreOptions;
    use super::*;

    struct Plain;

    impl Protocol for Plain {
        type Config = ();

        fn read_config(_: &Bytes) -> Result<(), atoll_core::DecodeError> {
            Ok(())
        }

        fn new((): ()) -> Self {
            Plain
        }
    }

    fn settle(keeper: &mut LogletStore<Plain>, out: &mut Effects) {
        for (lsn, record) in out.take_staged() {
            let len_bytes = record.payload.len() as u32;
            let loc = Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes };
            keeper.on_durable(lsn, loc, out);
        }
    }

    /// Sweeps until nothing is due, and returns how many runs each sweep freed.
    fn sweep_all(keeper: &mut LogletStore<Plain>, out: &mut Effects) -> Vec<usize> {
        let mut freed = Vec::new();
        loop {
            keeper.sweep(Tick(0), out);
            freed.push(out.take_freed().len());
            if keeper.sweep_at().is_none() {
                return freed;
            }
        }
    }

    #[test]
    fn what_trims_and_deletions_give_up_is_freed_in_pieces_and_once() {
        const RUNS: u64 = 3 * SWEEP_RUNS as u64;
        let (kept, left) = (LogletId(1), LogletId(2));
        let mut keeper = LogletStore::<Plain>::new(LogletStoreOptions::default());
        let mut out = Effects::detached(NodeId(1), RoleKind(1), Lsn::NONE);
        for loglet in [kept, left] {
            keeper.create(loglet, (Bytes::from_static(b"c"), ()), &mut out);
            for first in 0..RUNS {
                let batch = Batch::of([Entry { op: OpId::default(), payload: Bytes::from_static(b"entry") }]);
                keeper.stage_entries(loglet, Offset(first), &batch, false, &mut out);
            }
        }
        settle(&mut keeper, &mut out);
        // A sweep frees only what a durable trim released, even if another trim is staged.
        keeper.stage_trim(kept, Offset(RUNS - 10), &mut out);
        let first = out.take_staged();
        keeper.stage_trim(kept, Offset(RUNS), &mut out);
        let later = out.take_staged();
        assert_eq!(sweep_all(&mut keeper, &mut out), [0], "nothing is durable");
        for (lsn, _) in first {
            keeper.on_durable(lsn, Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 0 }, &mut out);
        }
        assert_eq!(sweep_all(&mut keeper, &mut out), [SWEEP_RUNS, SWEEP_RUNS, SWEEP_RUNS - 10]);
        for (lsn, _) in later {
            keeper.on_durable(lsn, Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 0 }, &mut out);
        }
        assert_eq!(sweep_all(&mut keeper, &mut out), [10]);
        // The Loglet is deleted in the middle of a sweep.
        keeper.stage_trim(left, Offset(RUNS), &mut out);
        settle(&mut keeper, &mut out);
        keeper.sweep(Tick(0), &mut out);
        assert_eq!(out.take_freed().len(), SWEEP_RUNS);
        keeper.stage_delete(left, &mut out);
        settle(&mut keeper, &mut out);
        assert_eq!(sweep_all(&mut keeper, &mut out).iter().sum::<usize>(), 2 * SWEEP_RUNS);
        assert!(keeper.dying.is_empty() && keeper.sweeping.is_empty() && keeper.occupied.is_empty());
    }

    /// Adds `n` Loglets with one run each, durable in this segment.
    fn tiny(keeper: &mut LogletStore<Plain>, n: u128, segment: u64, out: &mut Effects) {
        for id in 1..=n {
            let loglet = LogletId(id + u128::from(segment) * 1_000_000);
            keeper.create(loglet, (Bytes::from_static(b"c"), ()), out);
            let batch = Batch::of([Entry { op: OpId::default(), payload: Bytes::from_static(b"entry") }]);
            keeper.stage_entries(loglet, Offset::ZERO, &batch, false, out);
        }
        for (lsn, _) in out.take_staged() {
            let loc = Loc { segment, offset_bytes: lsn.0 as u32, len_bytes: 10 };
            keeper.on_durable(lsn, loc, out);
        }
    }

    /// Compaction once examined every Loglet for each sparse segment (a million of them in a log that had been changed as often), and then
    /// moved everything at once: the node's clients waited for seconds.
    #[test]
    fn compaction_looks_at_its_segment_and_moves_some_at_a_time() {
        let mut keeper = LogletStore::<Plain>::new(LogletStoreOptions::default());
        let mut out = Effects::detached(NodeId(1), RoleKind(1), Lsn::NONE);
        tiny(&mut keeper, 5_000, 1, &mut out);
        tiny(&mut keeper, 400, 2, &mut out);
        keeper.start_moves(2);
        keeper.sweep(Tick(0), &mut out);
        assert!(
            keeper.moves.searches.is_empty(),
            "one turn does for 400 loglets, however many others there are"
        );
        let mut moved = 0;
        loop {
            let fetches = out.take_fetches();
            if fetches.is_empty() {
                break;
            }
            assert!(fetches.len() <= MOVES_IN_FLIGHT, "{} at a time", fetches.len());
            for (tag, locs) in fetches {
                let (owner, kind, payload) = (RoleKind(1), RecordKind::Entry, Bytes::from_static(b"entry"));
                let record = Record { owner, kind, head: Bytes::new(), payload };
                keeper.on_move_fetched(tag, Ok(vec![Stored { lsn: Lsn(1), loc: locs[0], record }]), &mut out);
            }
            for (lsn, _) in out.take_staged() {
                let loc = Loc { segment: 3, offset_bytes: lsn.0 as u32, len_bytes: 10 };
                keeper.on_durable(lsn, loc, &mut out);
                moved += 1;
            }
        }
        assert_eq!(moved, 400);
        let of = |segment| keeper.occupied.of(segment, LogletId(0)).count();
        assert_eq!((of(1), of(2), of(3)), (5_000, 0, 400));
        assert_eq!(out.take_freed().len(), 400);
    }
}
