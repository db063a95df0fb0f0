//! What happens when the journal answers, and when it wants a sparse segment emptied.

use std::collections::{BTreeMap, VecDeque};

use atoll_core::testing::hit;
use atoll_core::{Effects, Encode, FetchError, Loc, Lsn, RecordKind, Stored, invariant};
use atoll_log::{LogletId, Offset};

use super::facts::{ENTRY_FORMAT, EntryHead};
use super::keeper::{Durable, Keeper, Kept, Protocol, Staged};
use super::runs::Place;

/// Live runs on their way out of sparse segments.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Not started: where they were when the journal asked. At most the runs of the segments asked for.
    todo: VecDeque<(LogletId, Offset, Loc)>,
    /// Being read back, by tag.
    reading: BTreeMap<u64, (LogletId, Offset, Loc)>,
    /// Bytes being read or journaled again; bounded by the options.
    in_flight_bytes: usize,
}

/// The durable places of a loglet that is no more.
pub(super) fn places<P>(kept: &Kept<P>) -> impl Iterator<Item = Loc> + '_ {
    kept.runs.iter().filter_map(|(_, run)| match run.place {
        Place::At(loc) => Some(loc),
        Place::Staged(_) => None,
    })
}

impl<P: Protocol> Keeper<P> {
    /// One record is durable: what the protocol has to know of it.
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
            Staged::Trim { loglet } => {
                if let Some(kept) = self.loglets.get_mut(&loglet) {
                    out.free(kept.runs.trim(kept.trim));
                }
                None
            }
            Staged::Tombstone { loglet } => {
                if let Some(kept) = self.dying.remove(&loglet) {
                    out.free(places(&kept));
                }
                None
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
            let (end, filled, len) = (first.plus(run.count.into()), run.filled, run.len_bytes as usize);
            self.cache.add(loglet, first, len);
            if filled {
                return Some(Durable::Filled(loglet));
            }
            kept.raise_local_tail(end);
            return Some(Durable::Entries(loglet));
        }
        match self.dying.get_mut(&loglet).and_then(|k| k.runs.get_mut(first)) {
            Some(run) => run.place = Place::At(loc),
            None => out.free([loc]),
        }
        None
    }

    /// Lets go of the oldest bytes in memory.
    pub fn trim_cache(&mut self) {
        while let Some((loglet, first)) = self.cache.overflow() {
            if let Some(run) = self.loglets.get_mut(&loglet).and_then(|k| k.runs.get_mut(first))
                && matches!(run.place, Place::At(_))
            {
                run.cached = None;
            }
        }
    }

    /// Compaction: every live run of a sparse segment is journaled again.
    pub fn start_moves(&mut self, segment: u64, out: &mut Effects) {
        for (loglet, kept) in &self.loglets {
            for (first, run) in kept.runs.iter() {
                if let Place::At(loc) = run.place
                    && loc.segment == segment
                {
                    self.moves.todo.push_back((*loglet, first, loc));
                }
            }
        }
        self.next_moves(out);
    }

    fn next_moves(&mut self, out: &mut Effects) {
        while self.moves.in_flight_bytes < self.options.move_bytes {
            let Some((loglet, first, loc)) = self.moves.todo.pop_front() else { return };
            let live = self.loglets.get(&loglet).and_then(|k| k.runs.get(first));
            if live.is_none_or(|run| run.place != Place::At(loc)) {
                continue;
            }
            hit("store.move");
            self.moves.in_flight_bytes += loc.len_bytes as usize;
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
            // Damaged, or trimmed meanwhile: what is damaged stays where it is, for an operator to see.
            _ => {
                self.moves.in_flight_bytes = self.moves.in_flight_bytes.saturating_sub(loc.len_bytes as usize)
            }
        }
        self.next_moves(out);
    }

    fn moved(&mut self, loglet: LogletId, first: Offset, from: Loc, to: Loc, out: &mut Effects) {
        self.moves.in_flight_bytes = self.moves.in_flight_bytes.saturating_sub(from.len_bytes as usize);
        let run = match self.loglets.get_mut(&loglet) {
            Some(kept) => kept.runs.get_mut(first),
            None => self.dying.get_mut(&loglet).and_then(|k| k.runs.get_mut(first)),
        };
        match run {
            Some(run) if run.place == Place::At(from) => {
                run.place = Place::At(to);
                out.free([from]);
            }
            // Trimmed or deleted meanwhile: the old place was freed then.
            _ => out.free([to]),
        }
        self.next_moves(out);
    }
}
