//! What happens when the journal answers, and when it wants a sparse segment emptied.

use std::collections::{BTreeMap, VecDeque};

use atoll_core::testing::{Mutant, hit, mutant};
use atoll_core::{Class, Effects, Encode, FetchError, Loc, Lsn, RecordKind, Stored, invariant, roles};
use atoll_log::{LogletId, Offset};

use super::facts::{ENTRY_FORMAT, EntryHead};
use super::replica::Sealing;
use super::{LogServer, Staged};
use crate::native::message::{ServerState, StoredUpTo, Verdict};
use crate::store::Place;

/// Live runs on their way out of sparse segments.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Not started: where they were when the journal asked.
    todo: VecDeque<(LogletId, Offset, Loc)>,
    /// Being read back, by tag.
    reading: BTreeMap<u64, (LogletId, Offset, Loc)>,
    /// Bytes being read or journaled again; bounded by the options.
    in_flight_bytes: usize,
}

impl LogServer {
    pub(super) fn on_record_durable(&mut self, lsn: Lsn, loc: Loc, out: &mut Effects) {
        let Some((staged_lsn, what)) = self.staged.pop_front() else { return };
        invariant!(staged_lsn == lsn, "{lsn} became durable, {staged_lsn} was next");
        match what {
            Staged::Create | Staged::Known => {}
            Staged::Entry { loglet, first } => self.entry_durable(loglet, first, loc, out),
            Staged::Moved { loglet, first, from } => self.moved(loglet, first, from, loc, out),
            Staged::Seal { loglet } => self.seal_durable(loglet, out),
            Staged::Trim { loglet } => {
                if let Some(replica) = self.loglets.get_mut(&loglet) {
                    out.free(replica.runs.trim(replica.trim));
                }
            }
            Staged::Tombstone { loglet } => {
                if let Some(replica) = self.dying.remove(&loglet) {
                    out.free(replica.runs.iter().filter_map(|(_, run)| match run.place {
                        Place::At(loc) => Some(loc),
                        Place::Staged(_) => None,
                    }));
                }
            }
        }
    }

    fn entry_durable(&mut self, loglet: LogletId, first: Offset, loc: Loc, out: &mut Effects) {
        let dying = !self.loglets.contains_key(&loglet);
        let replica = match self.loglets.get_mut(&loglet) {
            Some(replica) => replica,
            None => match self.dying.get_mut(&loglet) {
                Some(replica) => replica,
                None => return out.free([loc]),
            },
        };
        let Some(run) = replica.runs.get_mut(first) else { return out.free([loc]) };
        run.place = Place::At(loc);
        let (end, filled, len) = (first.plus(run.count.into()), run.filled, run.len_bytes as usize);
        if dying {
            return;
        }
        self.cache.add(loglet, first, len);
        if !filled {
            replica.raise_local_tail(end);
            if mutant(Mutant::NativeT4) && replica.seal == Sealing::Sealed {
                let (round, expects, verdict) = (replica.round, end, Verdict::Done {});
                let state = ServerState { sealed: false, ..replica.state() };
                let message = StoredUpTo { loglet, verdict, round, expects, state };
                out.post(replica.config.sequencer.0, Class::Data, roles::SEQUENCER, message, Lsn::NONE);
            }
            replica.tell(if replica.seal == Sealing::Sealed { Verdict::Sealed {} } else { Verdict::Done {} });
        }
        self.touched.insert(loglet);
    }

    fn seal_durable(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.loglets.get_mut(&loglet) else { return };
        if replica.local_tail > replica.told_tail {
            // These were stored before the seal and are part of its tail: finishing them means answering them (T4), and
            // saves their appends the doubt.
            hit("native.server.stores_finished_by_seal");
            let (verdict, round) = (Verdict::Done {}, replica.round);
            let (state, expects) = (replica.state(), replica.staged_tail);
            replica.told_tail = state.local_tail;
            let message = StoredUpTo { loglet, verdict, round, expects, state };
            out.post(replica.config.sequencer.0, Class::Data, roles::SEQUENCER, message, Lsn::NONE);
        }
        replica.seal = Sealing::Sealed;
        replica.news = Some(Verdict::Sealed {});
        self.touched.insert(loglet);
        self.learn_sealed_tail(loglet, out);
    }

    /// Lets go of the oldest bytes in memory.
    pub(super) fn trim_cache(&mut self) {
        while let Some((loglet, first)) = self.cache.overflow() {
            if let Some(run) = self.loglets.get_mut(&loglet).and_then(|r| r.runs.get_mut(first))
                && matches!(run.place, Place::At(_))
            {
                run.cached = None;
            }
        }
    }

    /// Compaction: every live run of a sparse segment is journaled again.
    pub(super) fn start_moves(&mut self, segment: u64, out: &mut Effects) {
        for (loglet, replica) in &self.loglets {
            for (first, run) in replica.runs.iter() {
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
            let live = self.loglets.get(&loglet).and_then(|r| r.runs.get(first));
            if live.is_none_or(|run| run.place != Place::At(loc)) {
                continue;
            }
            hit("native.server.move");
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
        let live = self.loglets.get(&loglet).and_then(|r| r.runs.get(first).map(|run| (r, run)));
        match (stored, live) {
            (Some(stored), Some((replica, run))) if run.place == Place::At(loc) => {
                let head = EntryHead {
                    format: ENTRY_FORMAT,
                    loglet,
                    first,
                    count: run.count,
                    filled: run.filled,
                    known_tail: replica.known_tail,
                };
                let lsn = out.journal(RecordKind::Entry, head.to_bytes(), stored.record.payload);
                self.staged.push_back((lsn, Staged::Moved { loglet, first, from: loc }));
            }
            // Damaged, or trimmed meanwhile: what is damaged stays where it is, for an operator to see.
            _ => self.moves.in_flight_bytes -= loc.len_bytes as usize,
        }
        self.next_moves(out);
    }

    fn moved(&mut self, loglet: LogletId, first: Offset, from: Loc, to: Loc, out: &mut Effects) {
        self.moves.in_flight_bytes = self.moves.in_flight_bytes.saturating_sub(from.len_bytes as usize);
        let run = match self.loglets.get_mut(&loglet) {
            Some(replica) => replica.runs.get_mut(first),
            None => self.dying.get_mut(&loglet).and_then(|r| r.runs.get_mut(first)),
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
