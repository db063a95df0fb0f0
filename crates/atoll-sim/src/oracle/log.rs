//! Checks, while clients run, that a log is linearizable as they see it. Positions order everything, so it suffices to compare each answer
//! with what was known before its request was sent.
//!
//! It checks vlog-VL3 (contents never change), vlog-VL4 (a record is acknowledged at one position, and reads return it there), vlog-VL5
//! (appends and tails follow real-time order), X15 (a lane keeps its order), and, for a single Loglet, native-N1 and native-N8. A record is
//! never in the log if every attempt to append it was answered as not appended.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_contract::OpId;
use atoll_contract::testing::{Violations, digest};

use crate::oracle::Answered;

#[derive(Debug, Default)]
struct Op {
    digest: u64,
    /// When the operation was first sent, everything below this was known to be taken.
    floor: u64,
    acked: Option<u64>,
    seen: Vec<u64>,
    /// How many attempts there were.
    attempts: u32,
    /// How many of the attempts were answered as not appended, now and in the future.
    refused: u32,
}

impl Op {
    /// Returns whether every attempt was answered as not appended. Then the operation must never be in the log.
    fn did_not_happen(&self) -> bool {
        self.attempts > 0 && self.attempts == self.refused
    }
}

#[derive(Debug, Default)]
struct Log {
    ops: BTreeMap<OpId, Op>,
    content: BTreeMap<u64, OpId>,
    /// Every acknowledged position is below this, and every returned tail is at or below it.
    floor: u64,
    trim_asked: u64,
    /// Whether what a store or service answers may be altered on its way.
    doubtful: bool,
    acks: u64,
    /// Operations that were acknowledged, each counted once.
    written: u64,
    refusals: u64,
    reads: u64,
    tails: u64,
}

#[derive(Debug, Default)]
struct LogOracleState {
    /// By name. A run has only a few logs.
    logs: Vec<(String, Log)>,
    verdict: Violations,
}

/// Compares the requests of clients with the answers, for all logs. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct LogOracle(Arc<Mutex<LogOracleState>>);

/// Returns the log with a name. Copies the name only for a new log.
fn log_of<'a>(logs: &'a mut Vec<(String, Log)>, name: &str) -> &'a mut Log {
    let place = logs.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
        logs.push((name.to_owned(), Log::default()));
        logs.len() - 1
    });
    &mut logs[place].1
}

/// The floor when a tail check was sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked(u64);

impl LogOracle {
    fn state(&self) -> MutexGuard<'_, LogOracleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figure(&self, log: &str, of: impl Fn(&Log) -> u64) -> u64 {
        self.state().logs.iter().find(|(name, _)| name == log).map_or(0, |(_, l)| of(l))
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.state().verdict.failures)
    }

    /// Returns the number of answers so far.
    pub fn answered(&self) -> Answered {
        let mut all = Answered::default();
        for (_, l) in &self.state().logs {
            all += Answered { writes: l.written, reads: l.acks - l.written + l.reads + l.tails };
        }
        all
    }

    /// Returns the number of acknowledgements so far.
    pub fn acknowledged(&self, log: &str) -> u64 {
        self.figure(log, |l| l.acks)
    }

    /// Returns an offset that is above every acknowledged position and not below any returned tail.
    pub fn floor(&self, log: &str) -> u64 {
        self.figure(log, |l| l.floor)
    }

    /// Returns the highest position to which a client has requested a trim.
    pub fn trim_asked(&self, log: &str) -> u64 {
        self.figure(log, |l| l.trim_asked)
    }

    /// Notes that an append is about to be sent, for the first time or again.
    pub fn append_begins(&self, log: &str, op: OpId, payload: &[u8]) {
        let mut state = self.state();
        let log = log_of(&mut state.logs, log);
        let floor = log.floor;
        let op = log.ops.entry(op).or_insert_with(|| Op { digest: digest(payload), floor, ..Op::default() });
        op.attempts += 1;
    }

    /// Checks and notes that an attempt was answered as not appended.
    pub fn append_refused(&self, log: &str, op: OpId) {
        let state = &mut *self.state();
        let l = log_of(&mut state.logs, log);
        l.refusals += 1;
        let Some(o) = l.ops.get_mut(&op) else {
            return state.verdict.fail(format!("HARNESS: {op:?} refused and never asked for"));
        };
        o.refused += 1;
        if o.did_not_happen() && !o.seen.is_empty() {
            let places = o.seen.clone();
            state.verdict.fail(format!(
                "native-T7 false refusal: {log}: {op:?} is at {places:?}, not appended by every answer"
            ));
        }
    }

    /// Returns how many attempts were answered as not appended.
    pub fn refused(&self, log: &str) -> u64 {
        self.figure(log, |l| l.refusals)
    }

    /// Checks and notes that an append was acknowledged.
    pub fn append_done(&self, log: &str, op: OpId, at: u64) {
        let state = &mut *self.state();
        log_of(&mut state.logs, log).acked(log, op, at, &mut state.verdict);
    }

    /// Notes that a tail check is about to be sent.
    pub fn tail_begins(&self, log: &str) -> Asked {
        Asked(self.floor(log))
    }

    /// Checks the answer to a tail check.
    pub fn tail_done(&self, log: &str, asked: Asked, tail: u64) {
        let state = &mut *self.state();
        let l = log_of(&mut state.logs, log);
        l.tails += 1;
        if tail < asked.0 {
            state.verdict.fail(format!(
                "VL5/N8 tail behind: {log}: a tail of {tail} although {} was known before it was asked for",
                asked.0
            ));
        }
        l.floor = l.floor.max(tail);
    }

    /// Checks a record that a reader got.
    pub fn read(&self, log: &str, at: u64, op: OpId, payload: &[u8]) {
        let state = &mut *self.state();
        let l = log_of(&mut state.logs, log);
        l.reads += 1;
        l.seen(log, at, op, Some(digest(payload)), &mut state.verdict);
    }

    /// Notes that a trim is about to be sent.
    pub fn trim_begins(&self, log: &str, to: u64) {
        let mut state = self.state();
        let l = log_of(&mut state.logs, log);
        l.trim_asked = l.trim_asked.max(to);
    }

    /// From now on, the answers of the stores and services that hold this log may be altered on their way.
    pub fn answers_may_be_altered(&self, log: &str) {
        log_of(&mut self.state().logs, log).doubtful = true;
    }

    /// Returns whether a reader of this log may be told that what it asked for is damaged, although it is not.
    pub fn may_seem_damaged(&self, log: &str) -> bool {
        log_of(&mut self.state().logs, log).doubtful
    }

    /// Checks the answer to a read that everything below `trim` is trimmed.
    pub fn trimmed(&self, log: &str, trim: u64) {
        let state = &mut *self.state();
        let l = log_of(&mut state.logs, log);
        if trim > l.trim_asked {
            let asked = l.trim_asked;
            state.verdict.fail(format!(
                "vlog-VL9 trimmed too far: {log}: below {trim}, nobody asked for more than {asked}"
            ));
        }
    }

    /// Checks the whole log, as read from `from` to the tail after everything was healed.
    pub fn whole(&self, log: &str, from: u64, tail: u64, read: &BTreeMap<u64, OpId>) {
        let state = &mut *self.state();
        let l = log_of(&mut state.logs, log);
        for (op, o) in &l.ops {
            if let Some(at) = o.acked
                && (from..tail).contains(&at)
                && read.get(&at) != Some(op)
            {
                let there = read.get(&at);
                state.verdict.fail(format!(
                    "vlog-VL4 acknowledged append lost: {log}: {op:?} was acknowledged at {at}, there is {there:?}"
                ));
                return;
            }
        }
    }
}

impl Log {
    fn acked(&mut self, name: &str, op: OpId, at: u64, verdict: &mut Violations) {
        self.acks += 1;
        let floor = match self.ops.get(&op) {
            Some(o) => o.floor,
            None => return verdict.fail(format!("HARNESS: {op:?} acknowledged and never asked for")),
        };
        if at < floor {
            verdict.fail(format!(
                "VL5/N3 order: {name}: {op:?} acknowledged at {at}, but {floor} was taken before it was asked for"
            ));
        }
        let neighbours = [
            self.ops.range(..op).rev().find(|(o, s)| o.client != op.client || s.acked.is_some()),
            self.ops.range(op..).skip(1).find(|(o, s)| o.client != op.client || s.acked.is_some()),
        ];
        for (other, o) in neighbours.into_iter().flatten() {
            let Some(there) = o.acked else { continue };
            if other.client == op.client && (other.seq < op.seq) != (there < at) {
                verdict.fail(format!(
                    "X15 lane order: {name}: {op:?} is at {at}, {other:?} of the same lane at {there}"
                ));
            }
        }
        if let Some(o) = self.ops.get_mut(&op) {
            match o.acked {
                Some(before) if before != at => {
                    verdict.fail(format!(
                        "vlog-VL4 acknowledged twice: {name}: {op:?} at {before} and again at {at}"
                    ));
                }
                Some(_) => {}
                None => {
                    o.acked = Some(at);
                    self.written += 1;
                }
            }
        }
        self.floor = self.floor.max(at + 1);
        self.seen(name, at, op, None, verdict);
    }

    fn seen(&mut self, name: &str, at: u64, op: OpId, bytes: Option<u64>, verdict: &mut Violations) {
        match self.content.get(&at) {
            Some(other) if *other != op => {
                let other = *other;
                verdict.fail(format!(
                    "VL3/N1 two values: {name}: position {at} holds {op:?}, and held {other:?}"
                ));
            }
            _ => {
                self.content.insert(at, op);
            }
        }
        let Some(o) = self.ops.get_mut(&op) else {
            return verdict
                .fail(format!("vlog-VL4 invented: {name}: {op:?} read at {at} was never appended"));
        };
        if bytes.is_some_and(|b| b != o.digest) {
            verdict.fail(format!(
                "vlog-VL4 changed: {name}: the bytes of {op:?} at {at} are not those appended"
            ));
        }
        if !o.seen.contains(&at) {
            o.seen.push(at);
        }
        if o.did_not_happen() {
            verdict.fail(format!(
                "native-T7 false refusal: {name}: {op:?} is at {at}, not appended by every answer"
            ));
        }
        if o.seen.len() > 1 && o.acked.is_some() {
            let places = o.seen.clone();
            verdict.fail(format!("vlog-VL4 doubled: {name}: {op:?} was acknowledged and is at {places:?}"));
        }
    }
}
