//! append, in the store: appends are ordered and journaled as they arrive. While the window of their loglet is full, they are held, and
//! the turn in which the disk makes room orders them.

use std::collections::VecDeque;

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Budget, Caller, DecodeError, Effects, Lsn, NodeId, Space, Tick};
use atoll_loglet_store::deduplicator::{Deduplicator, Forgotten};
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::intake::{Arrived, Intake};
use atoll_loglet_store::message::{Appended, Ordered, Verdict};
use atoll_loglet_store::store::{LogletState, Protocol, Sealing};

use crate::config::{self, LocalConfig};
use crate::local_store::LocalStore;
use crate::message::LocalAppend;
use crate::{invariants, mutants};

/// The protocol's part of the state of a loglet.
#[derive(Debug)]
pub(crate) struct Local {
    /// None until the first append, because most open loglets are only read.
    pub(crate) deduplicator: Option<Deduplicator>,
    /// Ends and lengths of the batches on the way to the disk.
    staged: VecDeque<(Offset, usize)>,
    staged_bytes: usize,
    /// The appends that wait for room. None until the first one.
    intake: Option<Intake>,
}

impl Protocol for Local {
    type Config = LocalConfig;

    fn read_config(config: &Bytes) -> Result<LocalConfig, DecodeError> {
        config::parse(config)
    }

    fn new(_: LocalConfig) -> Self {
        Local { deduplicator: None, staged: VecDeque::new(), staged_bytes: 0, intake: None }
    }
}

impl Local {
    /// Gives back the room of the batches that are durable, which are those below `local_tail`.
    pub(crate) fn stored(&mut self, local_tail: Offset, in_flight: &Budget) {
        while let Some((end, len)) = self.staged.front().copied() {
            if end > local_tail {
                break;
            }
            self.staged_bytes -= len;
            in_flight.give_back(len);
            self.staged.pop_front();
        }
    }

    /// Drops what only appends need, because the seal is durable. For a retry, the client searches the log (vlog-V2).
    pub(crate) fn sealed(&mut self) {
        (self.deduplicator, self.staged) = (None, VecDeque::new());
    }

    fn first_held(&self) -> Option<&Arrived> {
        self.intake.as_ref().and_then(Intake::first)
    }

    /// Whether this append was accepted already, or waits already, so that another one with its place is a second copy.
    fn is_copy(&self, node: NodeId, place: HandlePlace) -> bool {
        self.deduplicator.as_ref().is_some_and(|d| d.may_be_taken(node, place))
            || self.intake.as_ref().is_some_and(|intake| intake.holds(node, place))
    }
}

/// Why an append is refused, and the record that the refusal reveals.
type Refusal = (Ordered, Lsn);

/// Where an append went: the answer, a tail that is correct by the time the answer leaves, and the record that the answer reveals.
type Placed = (Ordered, Offset, Lsn);

fn now(outcome: Ordered) -> Refusal {
    (outcome, Lsn::NONE)
}

/// Returns why a loglet accepts no appends at all, if so.
fn closed(kept: &LogletState<Local>, space: Space) -> Option<Refusal> {
    match (kept.seal, space) {
        (Sealing::Staged(lsn), _) => Some((Ordered::Sealed {}, lsn)),
        (Sealing::Sealed, _) => Some(now(Ordered::Sealed {})),
        (Sealing::Open, Space::Plenty) => None,
        (Sealing::Open, Space::FactsOnly) => Some(now(Ordered::DiskFull {})),
        (Sealing::Open, Space::Closed) => Some(now(Ordered::StorageFailed {})),
    }
}

impl LocalStore {
    pub(crate) fn on_append(&mut self, at: Tick, from: Caller, m: LocalAppend, out: &mut Effects) {
        match self.take(at, from, m, out) {
            Ok(None) => {}
            Ok(Some(placed)) => answer(from, placed, out),
            Err((outcome, reveals)) => answer(from, (outcome, Offset::ZERO, reveals), out),
        }
    }

    /// Orders an append, or holds it until there is room for it, or returns why neither is possible. A second copy of an append is ignored:
    /// the first one gets the answer.
    fn take(
        &mut self,
        at: Tick,
        from: Caller,
        m: LocalAppend,
        out: &mut Effects,
    ) -> Result<Option<Placed>, Refusal> {
        let loglet = m.loglet;
        let held = self.held.clone();
        let kept = self.loglet(loglet, &m.config, out).map_err(|verdict| {
            now(match verdict {
                Verdict::Unconfigured {} => Ordered::Unconfigured {},
                Verdict::Gone {} => Ordered::Sealed {},
                _ => Ordered::StorageFailed {},
            })
        })?;
        if let Some(refusal) = closed(kept, out.space()) {
            return Err(refusal);
        }
        if kept.protocol.is_copy(from.node, m.place) {
            hit("local.copy");
            return Ok(None);
        }
        let append = Arrived { caller: from, place: m.place, not_below: m.not_below, batch: m.batch, at };
        // What arrives later waits too, so that nothing overtakes an append of the same handle (vlog-L8).
        if kept.protocol.first_held().is_none() {
            self.check_order(loglet, from.node, m.place)?;
            if self.has_room(loglet, append.batch.len()) {
                return self.order(loglet, append, out).map(Some);
            }
        }
        hit("local.held");
        let Some(kept) = self.store.loglets.get_mut(&loglet) else {
            return Err(now(Ordered::Unconfigured {}));
        };
        if !kept.protocol.intake.get_or_insert_with(|| Intake::new(held)).hold(append) {
            hit("local.all_held_full");
            return Err(now(Ordered::Busy {}));
        }
        self.holding.insert(loglet);
        Ok(None)
    }

    /// Refuses an append that is not the next one of its handle.
    fn check_order(&mut self, loglet: LogletId, node: NodeId, place: HandlePlace) -> Result<(), Refusal> {
        let spans = self.options.dedupe_spans;
        let Some(kept) = self.store.loglets.get_mut(&loglet) else {
            return Err(now(Ordered::Unconfigured {}));
        };
        // Operations of an earlier life were recovered, except trimmed ones.
        let trim = kept.trim;
        let deduplicator = kept.protocol.deduplicator.get_or_insert_with(|| Deduplicator::new(spans, trim));
        if !deduplicator.in_order(node, place) {
            hit("local.out_of_order");
            return Err(now(Ordered::Busy {}));
        }
        Ok(())
    }

    /// Returns whether a batch fits into the window of its loglet, and into what all windows may hold together. An empty window takes a
    /// batch of any size.
    fn has_room(&self, loglet: LogletId, bytes: usize) -> bool {
        let own = self.store.loglets.get(&loglet).map_or(0, |kept| kept.protocol.staged_bytes);
        let fits = own == 0 || own + bytes <= self.options.window_bytes;
        fits && self.in_flight.has_room(own, bytes)
    }

    /// Orders and journals the entries of an append, except those that an earlier attempt brought. The caller has checked that there is
    /// room, and that the append is the next one of its handle.
    fn order(&mut self, loglet: LogletId, append: Arrived, out: &mut Effects) -> Result<Placed, Refusal> {
        let batch = Batch::parse(append.batch).map_err(|_| now(Ordered::TooLarge {}))?;
        let Some(kept) = self.store.loglets.get_mut(&loglet) else {
            return Err(now(Ordered::Unconfigured {}));
        };
        let (next, settled) = (kept.staged_tail, kept.local_tail);
        let Some(deduplicator) = &mut kept.protocol.deduplicator else { return Err(now(Ordered::Busy {})) };
        let parts = deduplicator.place(&batch, next, append.not_below);
        let parts = parts.map_err(|Forgotten| now(Ordered::Forgotten {}))?;
        deduplicator.took(append.caller.node, append.place);
        deduplicator.forget_below(settled);
        let (mut runs, mut end, mut reveals) = (Vec::with_capacity(parts.len()), Offset::ZERO, Lsn::NONE);
        for part in parts {
            let upto = part.first.plus(part.count.into());
            match part.new {
                Some(entries) => {
                    if let Some(kept) = self.store.loglets.get(&loglet) {
                        let sealed = !matches!(kept.seal, Sealing::Open);
                        invariants::extends(kept.staged_tail, part.first, sealed);
                    }
                    reveals = self.stage(loglet, part.first, &entries, out);
                }
                None => {
                    hit("local.duplicate");
                    let staged =
                        self.store.loglets.get(&loglet).and_then(|k| k.newest_staged(part.first, upto));
                    let staged = staged.filter(|_| !mutant(mutants::LOCAL_RETRY_EARLY));
                    reveals = reveals.max(staged.unwrap_or(Lsn::NONE));
                }
            }
            end = end.max(upto);
            runs.push((part.first, part.count));
        }
        // Everything before `end` precedes it in the journal.
        Ok((Ordered::Committed { runs }, end, reveals))
    }

    /// Journals entries that begin at the staged tail. Returns the last record of theirs.
    pub(crate) fn stage(&mut self, loglet: LogletId, first: Offset, batch: &Batch, out: &mut Effects) -> Lsn {
        let lsn = self.store.stage_entries(loglet, first, batch, false, out);
        if let Some(kept) = self.store.loglets.get_mut(&loglet) {
            let len = batch.bytes().len();
            kept.protocol.staged.push_back((first.plus(batch.len() as u64), len));
            kept.protocol.staged_bytes += len;
            self.in_flight.add(len);
        }
        lsn
    }

    /// Orders the appends that wait for room, as far as there is room now, and answers those that are refused.
    pub(crate) fn admit(&mut self, out: &mut Effects) {
        for loglet in self.holding.clone() {
            self.admit_to(loglet, out);
        }
    }

    fn admit_to(&mut self, loglet: LogletId, out: &mut Effects) {
        while let Some(kept) = self.store.loglets.get(&loglet)
            && let Some(first) = kept.protocol.first_held()
        {
            let refusal = closed(kept, out.space());
            let (caller, place, bytes) = (first.caller, first.place, first.batch.len());
            let refusal = refusal.or_else(|| self.check_order(loglet, caller.node, place).err());
            if refusal.is_none() && !self.has_room(loglet, bytes) {
                return;
            }
            let Some(append) = self.pop_held(loglet) else { break };
            let placed = refusal.map_or_else(|| self.order(loglet, append, out), Err);
            if placed.is_ok() {
                hit("local.admitted");
            }
            answer(caller, placed.unwrap_or_else(|(outcome, lsn)| (outcome, Offset::ZERO, lsn)), out);
        }
        self.holding.remove(&loglet);
    }

    fn pop_held(&mut self, loglet: LogletId) -> Option<Arrived> {
        self.store.loglets.get_mut(&loglet)?.protocol.intake.as_mut()?.pop()
    }

    /// Returns when the append that has waited longest is given up.
    pub(crate) fn next_given_up(&self) -> Option<Tick> {
        let firsts = self
            .holding
            .iter()
            .filter_map(|loglet| self.store.loglets.get(loglet)?.protocol.first_held().map(|first| first.at));
        firsts.min().map(|at| at.after(self.options.patience))
    }

    /// Refuses the appends that have waited too long. They were not ordered, so they did not happen. Later ones of their handles are
    /// refused when their turn comes.
    pub(crate) fn give_up(&mut self, at: Tick, out: &mut Effects) {
        for loglet in self.holding.clone() {
            while let Some(first) = self.store.loglets.get(&loglet).and_then(|k| k.protocol.first_held())
                && first.at.after(self.options.patience) <= at
                && let Some(append) = self.pop_held(loglet)
            {
                hit("local.gave_up");
                answer(append.caller, (Ordered::Busy {}, Offset::ZERO, Lsn::NONE), out);
            }
        }
    }

    /// Answers the appends that wait, and gives back the room of those on the way to the disk, because the loglet is deleted.
    pub(crate) fn forget_appends(&mut self, loglet: LogletId, out: &mut Effects) {
        while let Some(append) = self.pop_held(loglet) {
            answer(append.caller, (Ordered::Sealed {}, Offset::ZERO, Lsn::NONE), out);
        }
        self.holding.remove(&loglet);
        if let Some(kept) = self.store.loglets.get_mut(&loglet) {
            kept.protocol.staged.clear();
            self.in_flight.give_back(std::mem::take(&mut kept.protocol.staged_bytes));
        }
    }

    /// Returns how many appends wait for room.
    pub(crate) fn held_appends(&self) -> usize {
        let intakes =
            self.holding.iter().filter_map(|loglet| self.store.loglets.get(loglet)?.protocol.intake.as_ref());
        intakes.map(Intake::len).sum()
    }
}

fn answer(to: Caller, (outcome, known_tail, reveals): Placed, out: &mut Effects) {
    let reveals = if mutant(mutants::LOCAL_ACK_EARLY) { Lsn::NONE } else { reveals };
    out.reply(to, Appended { outcome, known_tail }, reveals);
}
