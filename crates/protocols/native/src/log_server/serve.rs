//! The messages that query a copy or give up parts of it: Info, Wait, ReadNext, Read, Trim, Delete, Status, StatusOf.

use std::time::Duration;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Lsn, Space, Tick};

use super::LogServer;
use super::loglet_copy::LogletCopy;
use super::store::NO_ROUND;
use crate::message::*;
use crate::mutants;
use atoll_loglet_store::store::{ReadOutcome, Sealing, Waiter};
use bytes::Bytes;

fn reached(copy: &LogletCopy, waiter: &Waiter) -> bool {
    let deaf = mutant(if waiter.known_only { mutants::NATIVE_T18 } else { mutants::NATIVE_T3 });
    (copy.seal == Sealing::Sealed && !deaf)
        || copy.known_tail >= waiter.target
        || (!waiter.known_only && copy.local_tail >= waiter.target)
}

impl LogServer {
    /// Handles an Info. A sequencer posts it so that this server gets a copy of an idle loglet. It gets no answer to a post, but if this
    /// server can never have a copy, it must learn that.
    pub(super) fn on_info(&mut self, from: Caller, m: Info, out: &mut Effects) {
        let verdict = match self.loglet_copy(m.loglet, &m.config, out) {
            Ok(_) => Verdict::Done {},
            Err(verdict) if from.request.is_none() => {
                return self.post_stranger(from, m.loglet, NO_ROUND, verdict, out);
            }
            Err(verdict) => verdict,
        };
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    pub(super) fn on_wait(&mut self, now: Tick, from: Caller, m: Wait, out: &mut Effects) {
        let (loglet, target, known_only) = (m.loglet, m.target, m.known_only);
        let waiter = Waiter { caller: from, loglet, target, known_only, reads: None };
        self.wait(now, waiter, &m.config, m.patience_ms, out);
    }

    pub(super) fn on_read_next(&mut self, now: Tick, from: Caller, m: ReadNext, out: &mut Effects) {
        let (loglet, target, reads) = (m.loglet, m.from.plus(1), Some(m.max_bytes));
        let waiter = Waiter { caller: from, loglet, target, known_only: true, reads };
        self.wait(now, waiter, &m.config, m.patience_ms, out);
    }

    fn wait(&mut self, now: Tick, waiter: Waiter, config: &Bytes, patience_ms: u32, out: &mut Effects) {
        let patience = Duration::from_millis(patience_ms.into());
        let closed = out.space() == Space::Closed;
        let verdict = match self.loglet_copy(waiter.loglet, config, out).map(|r| reached(r, &waiter)) {
            Ok(reached) if !reached && !closed && self.waits.push(now, patience, waiter) => return,
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer_waiter(&waiter, verdict, out);
    }

    /// Answers a request that waited. A sealed server sends no entries, because its known tail is no open tail (native-T3).
    pub(super) fn answer_waiter(&mut self, waiter: &Waiter, verdict: Verdict, out: &mut Effects) {
        let (caller, loglet) = (waiter.caller, waiter.loglet);
        let Some(max_bytes) = waiter.reads else {
            return self.answer(caller, loglet, verdict, Lsn::NONE, out);
        };
        let (state, first) = (self.state_of(loglet), Offset(waiter.target.0.saturating_sub(1)));
        let has_more = state.known_tail > first && first >= state.trim;
        if verdict != (Verdict::Done {}) || state.sealed || !has_more {
            return self.no_entries(caller, loglet, verdict, out);
        }
        let outcome = self.store.read(caller, loglet, first..state.known_tail, max_bytes as usize, out);
        self.answer_read(caller, loglet, first, outcome, out);
    }

    /// Answers the waiters whose tail is reached, or all of them once the loglet is sealed (native-T18).
    pub(super) fn wake_waiters(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(copy) = self.store.loglets.get(&loglet) else { return };
        for waiter in self.waits.take(loglet, |w| reached(copy, w)) {
            self.answer_waiter(&waiter, Verdict::Done {}, out);
        }
    }

    pub(super) fn on_read(&mut self, from: Caller, m: Read, out: &mut Effects) {
        let loglet = m.loglet;
        let mut range = m.from..m.to;
        match self.store.loglets.get(&loglet) {
            None if self.store.is_gone(loglet) => {
                return self.no_entries(from, loglet, Verdict::Gone {}, out);
            }
            Some(copy) if m.from < copy.trim => {
                return self.no_entries(from, loglet, Verdict::Trimmed {}, out);
            }
            Some(copy) if mutant(mutants::NATIVE_T11) => {
                if copy.runs.holding(m.from).is_none()
                    && let Some((first, run)) = copy.runs.next_from(m.from)
                {
                    range = first..first.plus(run.count.into());
                }
            }
            _ => {}
        }
        let outcome = self.store.read(from, loglet, range, m.max_bytes as usize, out);
        self.answer_read(from, loglet, m.from, outcome, out);
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
            // It was deleted while the read waited for the disk. An answer with entries would also have to say what else is here.
            ReadOutcome::Ready(..) if self.store.is_gone(loglet) => {
                hit("native.server.gone_while_read");
                Verdict::Gone {}
            }
            ReadOutcome::Ready(counts, batches, reveals) => {
                let state = self.state_of(loglet);
                let message = Entries { verdict: Verdict::Done {}, state, first, counts, batches };
                return out.reply(to, message, reveals);
            }
            ReadOutcome::Fetching => return,
            ReadOutcome::NotHere => {
                hit("native.server.not_here");
                Verdict::NotHere {}
            }
            ReadOutcome::Busy => Verdict::Busy {},
            ReadOutcome::Damaged(_) if mutant(mutants::NATIVE_UNREAD_IS_TRIMMED) => {
                let state = ServerState { trim: first.plus(1), ..self.state_of(loglet) };
                let (verdict, counts, batches) = (Verdict::Trimmed {}, Vec::new(), Vec::new());
                return out.reply(to, Entries { verdict, state, first, counts, batches }, Lsn::NONE);
            }
            ReadOutcome::Damaged(reason) => {
                hit("native.server.damaged");
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

    /// Handles a Trim. The trim is durable together with the local tail (native-T12); the space is freed after that.
    pub(super) fn on_trim(&mut self, from: Caller, m: Trim, out: &mut Effects) {
        let loglet = m.loglet;
        if out.space() == Space::Closed {
            return self.answer(from, loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        if let Err(verdict) = self.loglet_copy(loglet, &m.config, out) {
            return self.answer(from, loglet, verdict, Lsn::NONE, out);
        }
        let reveals = self.store.stage_trim(loglet, m.to, out);
        self.answer(from, loglet, Verdict::Done {}, reveals, out);
    }

    /// Handles a Delete. It leaves a permanent tombstone (native-T10), even if the loglet never existed here.
    pub(super) fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        let lsn = self.store.stage_delete(m.loglet, out);
        self.lagging.remove(&m.loglet);
        for waiter in self.waits.take(m.loglet, |_| true) {
            self.answer_waiter(&waiter, Verdict::Gone {}, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, lsn, out);
    }

    pub(super) fn on_status(&mut self, from: Caller, m: Status, out: &mut Effects) {
        let (loglets, more) = status_page(&self.store, m.above, LogletCopy::state);
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }

    pub(super) fn on_status_of(&mut self, from: Caller, m: StatusOf, out: &mut Effects) {
        let more = m.loglets.len() > STATUS_PAGE;
        let wanted = m.loglets.into_iter().take(STATUS_PAGE);
        let here = wanted.filter_map(|id| Some((id, self.store.loglets.get(&id)?)));
        let loglets = here.map(|(id, copy)| status_of(id, copy, copy.state())).collect();
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }
}
