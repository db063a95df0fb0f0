//! What each message does (corfu §2).

use std::ops::Bound;
use std::time::Duration;

use atoll_contract::entry::MAX_BATCH_BYTES;
use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, Lsn, Space as Room, Tick};
use atoll_loglet_store::message::{
    Answer, Delete, LogletStatus, STATUS_PAGE, ServerState, Status, StatusOf, StatusPage,
    Verdict as StoreVerdict,
};
use atoll_loglet_store::store::Waiter;

use super::Unit;
use super::space::{Space, Taken};
use crate::invariants;
use crate::message::{Await, Erase, Fill, Probe, SealTo, TrimTo, UnitAnswer, Verdict, Write};

/// The most addresses of one write.
pub const MAX_COUNT: u32 = 16 * 1024;
/// The most addresses of one fill.
pub const MAX_FILL: u32 = 1 << 20;

fn has_room(room: Room) -> Result<(), Verdict> {
    match room {
        Room::Plenty => Ok(()),
        Room::FactsOnly => Err(Verdict::DiskFull {}),
        Room::Closed => Err(Verdict::StorageFailed {}),
    }
}

fn takes_facts(room: Room) -> Result<(), Verdict> {
    if room == Room::Closed { Err(Verdict::StorageFailed {}) } else { Ok(()) }
}

impl Unit {
    fn settle(&mut self, from: Caller, log: LogletId, done: Result<Lsn, Verdict>, out: &mut Effects) {
        match done {
            Ok(lsn) => {
                self.touched.insert(log);
                let Some(space) = self.disk.spaces.get(&log) else { return };
                let (epoch, next) = (space.epoch, space.next());
                let missing = space.written.first_missing(0);
                out.reply(from, UnitAnswer { verdict: Verdict::Done {}, epoch, next, missing }, lsn);
            }
            Err(verdict) => self.answer(from, log, verdict, 0, out),
        }
    }

    pub(super) fn on_write(&mut self, from: Caller, m: Write, out: &mut Effects) {
        let log = m.log;
        let done = self.write(m, out);
        self.settle(from, log, done, out);
    }

    fn write(&mut self, m: Write, out: &mut Effects) -> Result<Lsn, Verdict> {
        let fits = (1..=MAX_COUNT).contains(&m.count) && m.data.len() <= MAX_BATCH_BYTES;
        if !fits || m.first.checked_add(u64::from(m.count)).is_none() {
            return Err(Verdict::Invalid {});
        }
        let (window, all) = (self.options.window_bytes, self.options.node_window_bytes);
        let staged = self.disk.staged_bytes;
        let space = self.admit(m.log, &m.config, Some(m.epoch), out)?;
        match space.taken(m.first, m.count, m.token) {
            None => {}
            Some(Taken::Deleted) => return Err(Verdict::Deleted {}),
            Some(Taken::Erased) => return Err(Verdict::Erased {}),
            Some(Taken::Mine) => {
                hit("corfu.unit.written_mine");
                return Err(Verdict::Written { by: Some(m.token) });
            }
            Some(Taken::By(by)) => {
                hit("corfu.unit.written_other");
                return Err(Verdict::Written { by });
            }
        }
        let len = m.data.len();
        if space.staged_bytes + len > window || staged + len > all {
            return Err(Verdict::Busy {});
        }
        invariants::is_unwritten(&space.written, m.first, m.count);
        has_room(out.space())?;
        Ok(self.disk.write(m.log, (m.first, m.count), m.token, m.data, out))
    }

    pub(super) fn on_fill(&mut self, from: Caller, m: Fill, out: &mut Effects) {
        let done = self.fill(&m, out);
        self.settle(from, m.log, done, out);
    }

    fn fill(&mut self, m: &Fill, out: &mut Effects) -> Result<Lsn, Verdict> {
        let end = m.first.checked_add(u64::from(m.count)).filter(|_| m.count <= MAX_FILL);
        let end = end.ok_or(Verdict::Invalid {})?;
        self.admit(m.log, &m.config, Some(m.epoch), out)?;
        takes_facts(out.space())?;
        Ok(self.disk.fill(m.log, m.first..end, out))
    }

    pub(super) fn on_erase(&mut self, from: Caller, m: Erase, out: &mut Effects) {
        let done = self.erase(&m, out);
        self.settle(from, m.log, done, out);
    }

    fn erase(&mut self, m: &Erase, out: &mut Effects) -> Result<Lsn, Verdict> {
        let end = m.first.checked_add(u64::from(m.count)).ok_or(Verdict::Invalid {})?;
        let space = self.admit(m.log, &m.config, Some(m.epoch), out)?;
        // The paper's unit deletes blindly, and a write that comes later would be lost after its acknowledgement.
        if space.written.first_missing(m.first) < end && !m.unwritten_too {
            return Err(Verdict::Unwritten {});
        }
        takes_facts(out.space())?;
        Ok(self.disk.erase(m.log, m.first..end, out))
    }

    pub(super) fn on_trim(&mut self, from: Caller, m: TrimTo, out: &mut Effects) {
        let now =
            self.admit(m.log, &m.config, Some(m.epoch), out).map(|space| (space.watermark, space.staged));
        let done = match now {
            Ok((watermark, staged)) if m.to <= watermark => Ok(staged),
            Ok(_) => takes_facts(out.space()).map(|()| self.disk.trim(m.log, m.to, out)),
            Err(verdict) => Err(verdict),
        };
        self.settle(from, m.log, done, out);
    }

    /// Makes an epoch the current one. The answer leaves once the epoch and everything that was admitted before it are durable.
    pub(super) fn on_seal(&mut self, from: Caller, m: SealTo, out: &mut Effects) {
        let room = takes_facts(out.space());
        let done = match self.admit(m.log, &m.config, None, out).map(|space| (space.epoch, space.staged)) {
            Err(verdict) => Err(verdict),
            Ok((epoch, _)) if m.epoch < epoch => Err(Verdict::Sealed {}),
            Ok((epoch, staged)) if m.epoch == epoch => Ok(staged),
            Ok((epoch, _)) => room.map(|()| {
                hit("corfu.unit.seal");
                invariants::epoch_rises(epoch, m.epoch);
                self.disk.seal(m.log, m.epoch, out)
            }),
        };
        let is_new = done.as_ref().is_ok_and(|lsn| *lsn > out.durable());
        self.settle(from, m.log, done, out);
        if is_new {
            // Those that wait belong to an epoch that is over.
            for waiter in self.waits.take(m.log, |_| true) {
                self.answer(waiter.caller, m.log, Verdict::Sealed {}, waiter.target.0, out);
            }
        }
    }

    pub(super) fn on_probe(&mut self, from: Caller, m: Probe, out: &mut Effects) {
        let verdict = self.admit(m.log, &m.config, Some(m.epoch), out).err().unwrap_or(Verdict::Done {});
        self.answer(from, m.log, verdict, m.from, out);
    }

    pub(super) fn on_await(&mut self, now: Tick, from: Caller, m: Await, out: &mut Effects) {
        let patience = Duration::from_millis(m.patience_ms.into());
        let (loglet, target) = (m.log, Offset(m.addr));
        let waiter = Waiter { caller: from, loglet, target, known_only: false, reads: None };
        let is_closed = out.space() == Room::Closed;
        let verdict = match self
            .admit(m.log, &m.config, Some(m.epoch), out)
            .map(|space| space.written.contains(m.addr))
        {
            Ok(due) if !due && !is_closed && self.waits.push(now, patience, waiter) => return,
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer(from, m.log, verdict, m.addr, out);
    }

    /// Answers the requests that wait for addresses that are written now.
    pub(super) fn wake(&mut self, log: LogletId, out: &mut Effects) {
        let Some(space) = self.disk.spaces.get(&log) else { return };
        for waiter in self.waits.take(log, |w| space.written.contains(w.target.0)) {
            self.answer(waiter.caller, log, Verdict::Done {}, waiter.target.0, out);
        }
    }

    /// Deletes a log. The tombstone stays permanently.
    pub(super) fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        let state = ServerState::NOTHING;
        if out.space() == Room::Closed {
            return out.reply(from, Answer { verdict: StoreVerdict::StorageFailed {}, state }, Lsn::NONE);
        }
        let lsn = self.disk.delete(m.loglet, out);
        for waiter in self.waits.take(m.loglet, |_| true) {
            self.answer(waiter.caller, m.loglet, Verdict::Gone {}, 0, out);
        }
        out.reply(from, Answer { verdict: StoreVerdict::Done {}, state }, lsn);
    }

    pub(super) fn on_status(&mut self, from: Caller, m: Status, out: &mut Effects) {
        let start = m.above.map_or(Bound::Unbounded, Bound::Excluded);
        let spaces = self.disk.spaces.range((start, Bound::Unbounded)).take(STATUS_PAGE + 1);
        let mut loglets: Vec<LogletStatus> = spaces.map(|(log, space)| status(*log, space)).collect();
        let more = loglets.len() > STATUS_PAGE;
        loglets.truncate(STATUS_PAGE);
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }

    pub(super) fn on_status_of(&mut self, from: Caller, m: StatusOf, out: &mut Effects) {
        let more = m.loglets.len() > STATUS_PAGE;
        let wanted = m.loglets.into_iter().take(STATUS_PAGE);
        let here = wanted.filter_map(|log| Some(status(log, self.disk.spaces.get(&log)?)));
        let loglets = here.collect();
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }
}

/// Returns the status of a log. Its offsets are addresses of this unit.
fn status(log: LogletId, space: &Space) -> LogletStatus {
    let next = space.written.end();
    LogletStatus {
        loglet: log,
        state: ServerState {
            sealed: space.epoch > 1,
            local_tail: Offset(next),
            known_tail: Offset(space.written.first_missing(0)),
            trim: Offset(space.watermark),
        },
        missing: next - space.written.count(),
        runs: space.cells.len() as u64,
        bytes: space.len_bytes,
    }
}
