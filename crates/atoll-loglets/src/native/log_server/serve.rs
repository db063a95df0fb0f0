//! What asks a replica, or gives up parts of it: Info, Wait, Read, Trim, Delete, BackFill, Status.

use std::ops::Bound;
use std::time::Duration;

use atoll_core::testing::{Mutant, hit, mutant};
use atoll_core::{Caller, Effects, FetchError, Lsn, Space, Stored, Tick};
use atoll_log::{LogletId, Offset};

use super::facts::Fact;
use super::replica::{Replica, Sealing};
use super::{LogServer, Staged, Waiter};
use crate::native::back_fill;
use crate::native::loglet::Group;
use crate::native::message::*;
use crate::store::{ReadPlan, finish_read, plan_read};

/// Longest that a request may wait for a tail.
const MAX_PATIENCE: Duration = Duration::from_secs(30);
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
        let patience = Duration::from_millis(m.patience_ms.into()).min(MAX_PATIENCE);
        let waiter = Waiter {
            caller: from,
            loglet: m.loglet,
            target: m.target,
            known_only: m.known_only,
            until: now.after(patience),
        };
        let (id, full) = (self.next_waiter, self.waiters.len() >= self.options.max_waits);
        let closed = out.space() == Space::Closed;
        let replica = match self.replica(m.loglet, &m.config, out) {
            Ok(replica) => replica,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        if full || closed || reached(replica, &waiter) {
            return self.answer(from, m.loglet, Verdict::Done {}, Lsn::NONE, out);
        }
        replica.waiting.insert(id);
        self.next_waiter += 1;
        self.wait_ends.insert((waiter.until, id));
        self.waiters.insert(id, waiter);
    }

    /// Answers those whose tail has come; all of them once sealed (T18).
    pub(super) fn wake_waiters(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.loglets.get(&loglet) else { return };
        let due: Vec<u64> = replica
            .waiting
            .iter()
            .filter(|id| self.waiters.get(id).is_none_or(|w| reached(replica, w)))
            .copied()
            .collect();
        for id in due {
            self.end_wait(id, out);
        }
    }

    pub(super) fn end_wait(&mut self, id: u64, out: &mut Effects) {
        let Some(waiter) = self.waiters.remove(&id) else { return };
        self.wait_ends.remove(&(waiter.until, id));
        let verdict = match self.loglets.get_mut(&waiter.loglet) {
            Some(replica) => {
                replica.waiting.remove(&id);
                Verdict::Done {}
            }
            None => Verdict::Gone {},
        };
        self.answer(waiter.caller, waiter.loglet, verdict, Lsn::NONE, out);
    }

    pub(super) fn on_read(&mut self, from: Caller, m: Read, out: &mut Effects) {
        let loglet = m.loglet;
        let busy = self.reads.is_full();
        let Some(replica) = self.loglets.get(&loglet) else {
            let gone = self.tombstones.contains(&loglet);
            let verdict = if gone { Verdict::Gone {} } else { Verdict::NotHere {} };
            return self.answer_read(from, loglet, verdict, Lsn::NONE, out);
        };
        if m.from < replica.trim {
            return self.answer_read(from, loglet, Verdict::Trimmed {}, Lsn::NONE, out);
        }
        let mut range = m.from..m.to;
        if mutant(Mutant::NativeT11) && !replica.runs.covers(m.from..m.from.plus(1)) {
            if let Some((first, run)) = replica.runs.next_from(m.from) {
                range = first..first.plus(run.count.into());
            }
        }
        match plan_read(&replica.runs, range, m.max_bytes as usize) {
            None => {
                hit("native.server.not_here");
                self.answer_read(from, loglet, Verdict::NotHere {}, Lsn::NONE, out);
            }
            Some(plan) if plan.locs.is_empty() => {
                self.finish_read(from, (loglet, m.from), plan, Ok(Vec::new()), out);
            }
            Some(_) if busy => self.answer_read(from, loglet, Verdict::Busy {}, Lsn::NONE, out),
            Some(plan) => {
                hit("native.server.read_disk");
                let tag = self.next_tag;
                self.next_tag += 1;
                out.fetch(tag, plan.locs.clone());
                self.reads.push(tag, from, (loglet, m.from), plan);
            }
        }
    }

    fn answer_read(&self, to: Caller, loglet: LogletId, verdict: Verdict, reveals: Lsn, out: &mut Effects) {
        let state = self.state_of(loglet);
        let (first, counts, batches) = (Offset::ZERO, Vec::new(), Vec::new());
        out.reply(to, Entries { verdict, state, first, counts, batches }, reveals);
    }

    pub(super) fn finish_read(
        &mut self,
        to: Caller,
        (loglet, first): (LogletId, Offset),
        plan: ReadPlan,
        got: Result<Vec<Stored>, FetchError>,
        out: &mut Effects,
    ) {
        let reveals = plan.reveals;
        let read = match got {
            Ok(stored) => finish_read(plan, stored).map_err(|e| e.to_string()),
            Err(error) => Err(error.reason),
        };
        match read {
            Ok((counts, batches)) if !counts.is_empty() => {
                let state = self.state_of(loglet);
                out.reply(to, Entries { verdict: Verdict::Done {}, state, first, counts, batches }, reveals);
            }
            Ok(_) => self.answer_read(to, loglet, Verdict::NotHere {}, Lsn::NONE, out),
            Err(reason) => {
                hit("native.server.damaged");
                self.answer_read(to, loglet, Verdict::Damaged { reason }, Lsn::NONE, out);
            }
        }
    }

    /// Trim: durable with the local tail in it (T12); places are freed once it is.
    pub(super) fn on_trim(&mut self, from: Caller, m: Trim, out: &mut Effects) {
        let loglet = m.loglet;
        if out.space() == Space::Closed {
            return self.answer(from, loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        let replica = match self.replica(loglet, &m.config, out) {
            Ok(replica) => replica,
            Err(verdict) => return self.answer(from, loglet, verdict, Lsn::NONE, out),
        };
        let mut reveals = Lsn::NONE;
        // Again even if nothing changes: the first one may be on its way to the disk still.
        if m.to >= replica.trim && m.to > Offset::ZERO {
            replica.trim = m.to;
            let fact = Fact::Trim { loglet, to: m.to, local_tail: replica.staged_tail };
            reveals = self.stage_fact(fact, Staged::Trim { loglet }, out);
        }
        self.answer(from, loglet, Verdict::Done {}, reveals, out);
    }

    /// Delete: a tombstone for ever (T10), also where the loglet never was.
    pub(super) fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        let lsn = self.stage_fact(
            Fact::Tombstone { loglet: m.loglet },
            Staged::Tombstone { loglet: m.loglet },
            out,
        );
        self.tombstones.insert(m.loglet);
        self.lagging.remove(&m.loglet);
        if let Some(replica) = self.loglets.remove(&m.loglet) {
            for id in replica.waiting.clone() {
                self.end_wait(id, out);
            }
            self.dying.insert(m.loglet, replica);
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
        if let Some(replica) = self.loglets.get_mut(&m.loglet) {
            replica.known_once_sealed = replica.known_once_sealed.max(m.upto);
        }
        if reveals == Lsn::NONE {
            self.learn_sealed_tail(m.loglet, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, reveals, out);
    }

    /// On a sealed replica: what the chain's owner said becomes the known tail, durably, so that a restart remembers
    /// what is missing.
    pub(super) fn learn_sealed_tail(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.loglets.get_mut(&loglet) else { return };
        if replica.raise_known_tail(replica.known_once_sealed) {
            let known_tail = replica.known_tail;
            self.stage_fact(Fact::Known { loglet, known_tail }, Staged::Known, out);
        }
        self.touched.insert(loglet);
    }

    /// Starts back-fills for what was missing at the last look and still is.
    pub(super) fn look_for_gaps(&mut self, now: Tick, out: &mut Effects) {
        self.next_look = None;
        let mut keep = std::collections::BTreeMap::new();
        for (loglet, known_then) in std::mem::take(&mut self.lagging) {
            let Some(replica) = self.loglets.get_mut(&loglet) else { continue };
            let gaps = replica.runs.missing(known_then, GAPS_PER_FILL);
            let fill = !gaps.is_empty()
                && !replica.filling
                && self.fills < self.options.max_fills
                && out.space() == Space::Plenty;
            if fill {
                hit("native.server.back_fill");
                replica.filling = true;
                self.fills += 1;
                let config = replica.config.clone();
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
        if let Some(replica) = self.loglets.get_mut(&m.loglet) {
            replica.filling = false;
        }
        self.touched.insert(m.loglet);
    }

    pub(super) fn on_status(&mut self, from: Caller, m: Status, out: &mut Effects) {
        let start = m.above.map_or(Bound::Unbounded, Bound::Excluded);
        let mut page: Vec<LogletStatus> = self
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
