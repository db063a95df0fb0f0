//! The sequencer (paper §2.4): a counter of positions for each log. It only avoids contention. Units decide who gets a position, so the
//! sequencer is never needed for safety, and all of its state is soft.
//!
//! It serves only the epoch that it was started with, and only in the life of its node that the projection names (corfu-C11). In the
//! epoch 1, the first request starts it at position 0; later epochs start it at the position that the reconfiguration found ([`Start`]).
//!
//! A Loglet's appends are named. The sequencer remembers which position each entry got, so that a retry through another node finds the
//! first attempt instead of adding a second copy.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, OpId};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, DecodeError, Effects, Env, Frame, Loc, Lsn, Measure, Message, Refused, Role, Tick};
use atoll_loglet_store::message::{Answer, Delete, ServerState, Verdict};

use crate::message::{Grant, Granted, Grants, Start, StopTo, Take, TakeNamed};
use crate::mutants;
use crate::projection::Projection;
use crate::unit::MAX_COUNT;

/// The limits of a sequencer.
#[derive(Clone, Debug)]
pub struct SequencerOptions {
    /// The most entries whose positions are remembered for each log. A retry of a forgotten one must search the log.
    pub remembered: usize,
}

impl Default for SequencerOptions {
    fn default() -> Self {
        SequencerOptions { remembered: 256 * 1024 }
    }
}

/// One log.
#[derive(Debug, Default)]
struct Sequenced {
    epoch: u64,
    next: u64,
    /// The positions of the latest named entries.
    positions: BTreeMap<OpId, u64>,
    /// The same, oldest first. An entry that got another position is here twice.
    order: VecDeque<(OpId, u64)>,
    /// The positions of forgotten entries are below this one.
    forgotten_end: u64,
    /// Whether it gives out nothing any more in its epoch.
    stopped: bool,
}

/// See the module documentation.
pub struct Sequencer {
    env: Env,
    options: SequencerOptions,
    logs: BTreeMap<LogletId, Sequenced>,
}

impl Sequencer {
    /// Creates the sequencer of the node and the life of `env`.
    pub fn new(env: Env, options: SequencerOptions) -> Self {
        Sequencer { env, options, logs: BTreeMap::new() }
    }

    /// Returns the log if it is served in this epoch.
    fn serve(&mut self, log: LogletId, config: &Bytes, epoch: u64) -> Result<&mut Sequenced, Grant> {
        if !self.logs.contains_key(&log) {
            if config.is_empty() {
                return Err(Grant::Unconfigured {});
            }
            let named = self.named(config)?;
            if named.epoch != 1 {
                hit("corfu.sequencer.not_started");
                return Err(Grant::NotSequencer {});
            }
            self.logs.insert(log, Sequenced { epoch: 1, ..Sequenced::default() });
        }
        let one = self.logs.get_mut(&log).ok_or(Grant::Unconfigured {})?;
        match epoch.cmp(&one.epoch) {
            std::cmp::Ordering::Equal if !one.stopped => Ok(one),
            std::cmp::Ordering::Greater => Err(Grant::NotSequencer {}),
            _ => {
                hit("corfu.sequencer.sealed");
                Err(Grant::Sealed {})
            }
        }
    }

    /// Returns a projection that names this life of this node as the sequencer.
    fn named(&self, config: &Bytes) -> Result<Projection, Grant> {
        let named = Projection::parse(config).map_err(|_| Grant::Invalid {})?;
        if named.sequencer != (self.env.node(), self.env.incarnation()) {
            hit("corfu.sequencer.other_life");
            return Err(Grant::NotSequencer {});
        }
        Ok(named)
    }

    fn answer(&self, to: Caller, log: LogletId, grant: Grant, out: &mut Effects) {
        let (epoch, next) = self.logs.get(&log).map_or((0, 0), |one| (one.epoch, one.next));
        out.reply(to, Grants { grant, epoch, next }, Lsn::NONE);
    }

    fn take(&mut self, m: &Take) -> Result<Vec<Granted>, Grant> {
        if m.count > MAX_COUNT {
            return Err(Grant::Invalid {});
        }
        let one = self.serve(m.log, &m.config, m.epoch)?;
        let first = one.give(u64::from(m.count));
        Ok(vec![Granted { first, count: m.count, new: true }])
    }

    fn take_named(&mut self, m: TakeNamed) -> Result<Vec<Granted>, Grant> {
        let limit = self.options.remembered.max(1);
        let one = self.serve(m.log, &m.config, m.epoch)?;
        let names = Batch::parse(m.names).map_err(|_| Grant::Invalid {})?;
        let is_lost = |at: u64| m.lost.iter().any(|(start, end)| (*start..*end).contains(&at));
        let known: Vec<Option<u64>> =
            names.ops().map(|op| one.positions.get(&op).copied().filter(|at| !is_lost(*at))).collect();
        // An entry that lost its position is not forgotten: it is known to have no other one.
        let is_new = |op: &OpId| op.client.0 != 0 && !one.positions.contains_key(op);
        if m.not_below < one.forgotten_end && names.ops().any(|op| is_new(&op)) {
            hit("corfu.sequencer.forgotten");
            return Err(Grant::Forgotten {});
        }
        let mut runs: Vec<Granted> = Vec::new();
        for (op, known) in names.ops().zip(known) {
            let (at, new) = match known {
                Some(at) => (at, false),
                None => (one.give(1), true),
            };
            if new && op.client.0 != 0 {
                one.positions.insert(op, at);
                one.order.push_back((op, at));
            }
            match runs.last_mut() {
                Some(run) if run.new == new && run.first + u64::from(run.count) == at => run.count += 1,
                _ => runs.push(Granted { first: at, count: 1, new }),
            }
        }
        one.forget(limit);
        Ok(runs)
    }

    fn on_start(&mut self, m: &Start) -> Result<Vec<Granted>, Grant> {
        let named = self.named(&m.config)?;
        let one = self.logs.entry(m.log).or_default();
        if named.epoch < one.epoch {
            return Err(Grant::Sealed {});
        }
        if named.epoch > one.epoch {
            hit("corfu.sequencer.start");
            *one = Sequenced { epoch: named.epoch, next: m.next, ..Sequenced::default() };
        }
        Ok(Vec::new())
    }

    fn on_stop(&mut self, m: &StopTo) -> Result<Vec<Granted>, Grant> {
        if let Some(one) = self.logs.get_mut(&m.log)
            && m.epoch > one.epoch
        {
            one.stopped = true;
            (one.positions, one.order) = Default::default();
        }
        Ok(Vec::new())
    }

    fn dispatch(&mut self, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        let (log, done) = match f.kind {
            Take::KIND => {
                let m = Take::from_frame(f)?;
                (m.log, self.take(&m))
            }
            TakeNamed::KIND => {
                let m = TakeNamed::from_frame(f)?;
                (m.log, self.take_named(m))
            }
            Start::KIND => {
                let m = Start::from_frame(f)?;
                (m.log, self.on_start(&m))
            }
            StopTo::KIND => {
                let m = StopTo::from_frame(f)?;
                (m.log, self.on_stop(&m))
            }
            Delete::KIND => {
                let m = Delete::from_frame(f)?;
                if let Some(one) = self.logs.get_mut(&m.loglet) {
                    *one = Sequenced { epoch: u64::MAX, stopped: true, ..Sequenced::default() };
                }
                let state = ServerState::NOTHING;
                out.reply(from, Answer { verdict: Verdict::Done {}, state }, Lsn::NONE);
                return Ok(());
            }
            got => return Err(DecodeError::WrongKind { expected: "a message for a CORFU sequencer", got }),
        };
        let grant = done.map_or_else(|refused| refused, |runs| Grant::Granted { runs });
        self.answer(from, log, grant, out);
        Ok(())
    }
}

impl Sequenced {
    /// Gives out positions: returns the first, and then counts (corfu-C4).
    fn give(&mut self, count: u64) -> u64 {
        if mutant(mutants::CORFU_C4) {
            self.next += count;
            return self.next;
        }
        let first = self.next;
        self.next += count;
        first
    }

    fn forget(&mut self, limit: usize) {
        while self.order.len() > limit
            && let Some((op, at)) = self.order.pop_front()
        {
            if self.positions.get(&op) == Some(&at) {
                self.positions.remove(&op);
                self.forgotten_end = self.forgotten_end.max(at + 1);
            }
        }
    }
}

impl Role for Sequencer {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn measure(&self, out: &mut Vec<Measure>) {
        let remembered: usize = self.logs.values().map(|one| one.order.len()).sum();
        let figures = [
            ("corfu_sequencer_logs", self.logs.len() as f64),
            ("corfu_sequencer_remembered", remembered as f64),
        ];
        out.extend(figures.map(|(name, value)| Measure { name, label: None, value }));
    }
}
