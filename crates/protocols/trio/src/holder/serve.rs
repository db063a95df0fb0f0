//! What both holders take: questions about a loglet, reads, and what gives up parts of it.

use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Lsn, Space, Tick};
use atoll_loglet_store::message::{
    Delete, Entries, Info, Read, STATUS_PAGE, ServerState, Status, StatusOf, StatusPage, Trim, Verdict, Wait,
    status_of, status_page,
};
use atoll_loglet_store::store::{ReadOutcome, Sealing, Waiter};

use super::{Holder, Part, Side};
use crate::mutants;

fn reached(part: &Part, waiter: &Waiter) -> bool {
    part.seal == Sealing::Sealed || part.local_tail >= waiter.target
}

impl Holder {
    pub(super) fn on_info(&mut self, from: Caller, m: Info, out: &mut Effects) {
        let verdict = self.part(m.loglet, &m.config, out).err().unwrap_or(Verdict::Done {});
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    pub(super) fn on_wait(&mut self, now: Tick, from: Caller, m: Wait, out: &mut Effects) {
        let patience = Duration::from_millis(m.patience_ms.into());
        let (loglet, target) = (m.loglet, m.target);
        let waiter = Waiter { caller: from, loglet, target, known_only: true, reads: None };
        let closed = out.space() == Space::Closed;
        let verdict = match self.part(m.loglet, &m.config, out).map(|part| reached(part, &waiter)) {
            Ok(reached) if !reached && !closed && self.waits.push(now, patience, waiter) => return,
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    /// Answers the waiters whose tail is reached, or all of them once the loglet is sealed (native-T18).
    pub(super) fn wake_waiters(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(part) = self.store.loglets.get(&loglet) else { return };
        for waiter in self.waits.take(loglet, |w| reached(part, w)) {
            self.answer(waiter.caller, loglet, Verdict::Done {}, Lsn::NONE, out);
        }
    }

    pub(super) fn on_read(&mut self, from: Caller, m: Read, out: &mut Effects) {
        match self.store.loglets.get(&m.loglet) {
            None if self.store.is_gone(m.loglet) => {
                return self.no_entries(from, m.loglet, Verdict::Gone {}, out);
            }
            Some(part) if m.from < part.trim => {
                return self.no_entries(from, m.loglet, Verdict::Trimmed {}, out);
            }
            _ => {}
        }
        let outcome = self.store.read(from, m.loglet, m.from..m.to, m.max_bytes as usize, out);
        self.answer_read(from, m.loglet, m.from, outcome, out);
    }

    pub(super) fn answer_read(
        &self,
        to: Caller,
        loglet: LogletId,
        first: Offset,
        outcome: ReadOutcome,
        out: &mut Effects,
    ) {
        let verdict = match outcome {
            ReadOutcome::Ready(counts, batches, reveals) => {
                let state = self.state_of(loglet);
                let message = Entries { verdict: Verdict::Done {}, state, first, counts, batches };
                return out.reply(to, message, reveals);
            }
            ReadOutcome::Fetching => return,
            ReadOutcome::NotHere if self.side == Side::Mirror && mutant(mutants::TRIO_LACK_IS_TRIMMED) => {
                let state = ServerState { trim: first.plus(1), ..self.state_of(loglet) };
                let (verdict, counts, batches) = (Verdict::Trimmed {}, Vec::new(), Vec::new());
                return out.reply(to, Entries { verdict, state, first, counts, batches }, Lsn::NONE);
            }
            ReadOutcome::NotHere => Verdict::NotHere {},
            ReadOutcome::Busy => Verdict::Busy {},
            ReadOutcome::Damaged(reason) => {
                hit("trio.holder.damaged");
                Verdict::Damaged { reason }
            }
        };
        self.no_entries(to, loglet, verdict, out);
    }

    fn no_entries(&self, to: Caller, loglet: LogletId, verdict: Verdict, out: &mut Effects) {
        let (state, first) = (self.state_of(loglet), Offset::ZERO);
        let (counts, batches) = (Vec::new(), Vec::new());
        out.reply(to, Entries { verdict, state, first, counts, batches }, Lsn::NONE);
    }

    /// Handles a Trim. It is durable together with the local tail (native-T12); the space is freed after that.
    pub(super) fn on_trim(&mut self, from: Caller, m: Trim, out: &mut Effects) {
        let verdict = match self.part(m.loglet, &m.config, out) {
            Ok(_) if out.space() == Space::Closed => Verdict::StorageFailed {},
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        let trims = verdict == (Verdict::Done {});
        let reveals = if trims { self.store.stage_trim(m.loglet, m.to, out) } else { Lsn::NONE };
        self.answer(from, m.loglet, verdict, reveals, out);
    }

    /// Handles a Delete. It leaves a permanent tombstone (native-T10), even if the loglet never existed here.
    pub(super) fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        if let Some(part) = self.store.loglets.get_mut(&m.loglet) {
            part.protocol.staged.clear();
            self.in_flight.give_back(std::mem::take(&mut part.protocol.staged_bytes));
        }
        let lsn = self.store.stage_delete(m.loglet, out);
        for waiter in self.waits.take(m.loglet, |_| true) {
            self.answer(waiter.caller, m.loglet, Verdict::Gone {}, Lsn::NONE, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, lsn, out);
    }

    pub(super) fn on_status(&mut self, from: Caller, m: Status, out: &mut Effects) {
        let (loglets, more) = status_page(&self.store, m.above, Part::state);
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }

    pub(super) fn on_status_of(&mut self, from: Caller, m: StatusOf, out: &mut Effects) {
        let more = m.loglets.len() > STATUS_PAGE;
        let wanted = m.loglets.into_iter().take(STATUS_PAGE);
        let here = wanted.filter_map(|id| Some((id, self.store.loglets.get(&id)?)));
        let loglets = here.map(|(id, part)| status_of(id, part, part.state())).collect();
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }
}
