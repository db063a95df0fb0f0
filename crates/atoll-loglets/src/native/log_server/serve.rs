//! What asks a replica, or gives up parts of it: Info, Wait, Read, Trim, Delete, BackFill, Status.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use atoll_core::testing::{Mutant, hit, mutant};
use atoll_core::{Caller, Effects, Lsn, Space, Tick};
use atoll_log::{LogletId, Offset};

use super::LogServer;
use super::replica::Replica;
use crate::native::back_fill;
use crate::native::loglet::Group;
use crate::native::message::*;
use crate::store::{ReadOutcome, Sealing, Waiter};

/// Loglets in one page of a status.
const STATUS_PAGE: usize = 1000;
/// Gaps that one back-fill is told of; the next look finds the rest.
const GAPS_PER_FILL: usize = 64;

fn reached(replica: &Replica, waiter: &Waiter) -> bool {
    let deaf = mutant(if waiter.known_only { Mutant::NativeT18 } else { Mutant::NativeT3 });
    (replica.seal == Sealing::Sealed && !deaf)
        || replica.known_tail >= waiter.target
        || (!waiter.known_only && replica.local_tail >= waiter.target)
}

impl LogServer {
    pub(super) fn on_info(&mut self, from: Caller, m: Info, out: &mut Effects) {
        let verdict = match self.replica(m.loglet, &m.config, out) {
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    pub(super) fn on_wait(&mut self, now: Tick, from: Caller, m: Wait, out: &mut Effects) {
        let patience = Duration::from_millis(m.patience_ms.into());
        let waiter = Waiter { caller: from, loglet: m.loglet, target: m.target, known_only: m.known_only };
        let closed = out.space() == Space::Closed;
        let verdict = match self.replica(m.loglet, &m.config, out).map(|r| reached(r, &waiter)) {
            Ok(reached) if !reached && !closed && self.waits.push(now, patience, waiter) => return,
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    /// Answers those whose tail has come; all of them once sealed (T18).
    pub(super) fn wake_waiters(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.kept.loglets.get(&loglet) else { return };
        for waiter in self.waits.take(loglet, |w| reached(replica, w)) {
            self.answer(waiter.caller, loglet, Verdict::Done {}, Lsn::NONE, out);
        }
    }

    pub(super) fn on_read(&mut self, from: Caller, m: Read, out: &mut Effects) {
        let loglet = m.loglet;
        let mut range = m.from..m.to;
        match self.kept.loglets.get(&loglet) {
            None if self.kept.is_gone(loglet) => {
                return self.no_entries(from, loglet, Verdict::Gone {}, out);
            }
            Some(replica) if m.from < replica.trim => {
                return self.no_entries(from, loglet, Verdict::Trimmed {}, out);
            }
            Some(replica) if mutant(Mutant::NativeT11) => {
                if replica.runs.holding(m.from).is_none()
                    && let Some((first, run)) = replica.runs.next_from(m.from)
                {
                    range = first..first.plus(run.count.into());
                }
            }
            _ => {}
        }
        let outcome = self.kept.read(from, loglet, range, m.max_bytes as usize, out);
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

    /// Trim: durable with the local tail in it (T12); places are freed once it is.
    pub(super) fn on_trim(&mut self, from: Caller, m: Trim, out: &mut Effects) {
        let loglet = m.loglet;
        if out.space() == Space::Closed {
            return self.answer(from, loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        if let Err(verdict) = self.replica(loglet, &m.config, out) {
            return self.answer(from, loglet, verdict, Lsn::NONE, out);
        }
        let reveals = self.kept.stage_trim(loglet, m.to, out);
        self.answer(from, loglet, Verdict::Done {}, reveals, out);
    }

    /// Delete: a tombstone for ever (T10), also where the loglet never was.
    pub(super) fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        let lsn = self.kept.stage_delete(m.loglet, out);
        self.lagging.remove(&m.loglet);
        for waiter in self.waits.take(m.loglet, |_| true) {
            self.answer(waiter.caller, m.loglet, Verdict::Gone {}, Lsn::NONE, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, lsn, out);
    }

    /// The chain's owner says where a sealed segment ends. Only a sealed server may take a known tail from there (rule K),
    /// so one that slept through the seal seals itself first: the loglet is sealed already, this adds nothing to it.
    pub(super) fn on_back_fill(&mut self, from: Caller, m: BackFill, out: &mut Effects) {
        let (_, reveals) = match self.seal(m.loglet, &m.config, out) {
            Ok(sealed) => sealed,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        if let Some(replica) = self.kept.loglets.get_mut(&m.loglet) {
            replica.own.known_once_sealed = replica.own.known_once_sealed.max(m.upto);
        }
        if reveals == Lsn::NONE {
            self.learn_sealed_tail(m.loglet, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, reveals, out);
    }

    /// On a sealed replica: what the chain's owner said becomes the known tail, durably, so that a restart remembers
    /// what is missing.
    pub(super) fn learn_sealed_tail(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.kept.loglets.get_mut(&loglet) else { return };
        if replica.raise_known_tail(replica.own.known_once_sealed) {
            let known_tail = replica.known_tail;
            self.kept.stage_known(loglet, known_tail, out);
        }
        self.touched.insert(loglet);
    }

    /// Starts back-fills for what was missing at the last look and still is.
    pub(super) fn look_for_gaps(&mut self, now: Tick, out: &mut Effects) {
        self.next_look = None;
        let mut keep = BTreeMap::new();
        for (loglet, known_then) in std::mem::take(&mut self.lagging) {
            let Some(replica) = self.kept.loglets.get_mut(&loglet) else { continue };
            let gaps = replica.runs.missing(known_then, GAPS_PER_FILL);
            let fill = !gaps.is_empty()
                && !replica.own.filling
                && self.fills < self.options.max_fills
                && out.space() == Space::Plenty;
            if fill {
                hit("native.server.back_fill");
                replica.own.filling = true;
                self.fills += 1;
                let config = replica.own.config.clone();
                let group = Group::new(
                    self.env.clone(),
                    loglet,
                    config,
                    replica.config_bytes.clone(),
                    Default::default(),
                );
                out.run("native.back_fill", Box::pin(back_fill::back_fill(group, gaps)));
            }
            if replica.lags() {
                keep.insert(loglet, replica.known_tail);
            }
        }
        self.lagging = keep;
        if !self.lagging.is_empty() {
            self.next_look = Some(now.after(self.options.fill_after));
        }
    }

    pub(super) fn on_fill_ended(&mut self, from: Caller, m: FillEnded) {
        if !self.is_own(from.node) {
            return;
        }
        self.fills = self.fills.saturating_sub(1);
        if let Some(replica) = self.kept.loglets.get_mut(&m.loglet) {
            replica.own.filling = false;
        }
        self.touched.insert(m.loglet);
    }

    pub(super) fn on_status(&mut self, from: Caller, m: Status, out: &mut Effects) {
        let start = m.above.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page: Vec<LogletStatus> = self
            .kept
            .loglets
            .range((start, Bound::Unbounded))
            .take(STATUS_PAGE + 1)
            .map(|(id, replica)| replica.status(*id))
            .collect();
        let more = page.len() > STATUS_PAGE;
        page.truncate(STATUS_PAGE);
        out.reply(from, StatusPage { loglets: page, more, node: self.env.node() }, Lsn::NONE);
    }
}
