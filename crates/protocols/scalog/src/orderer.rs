//! An orderer: forms cuts from what servers report, and appends them to the ordering log (scalog.md §4).
//!
//! Its reports are soft state, which comes back within a few intervals. Any number of orderers may propose at the same time: a proposal is
//! only a lower bound of what all servers of a shard have, and the cut is computed when it is applied (`order.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{Loglet, LogletId};
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Env, Frame, Loc, Lsn, Measure, Message, Refused, Role, Tick,
};

use crate::config::ScalogConfig;
use crate::message::{Follow, Followed, Proposed, Reports};
use crate::mutants;
use crate::order::{Order, OrderEntry};
use crate::ordering::{OrderingLogs, follow, write};
use crate::reported::Reported;
use crate::roles::ORDERER;

/// Limits of an orderer.
#[derive(Clone, Debug)]
pub struct OrdererOptions {
    /// How long the ordering log may take for a proposal before it is made again.
    pub propose_timeout: Duration,
    /// How long a server of a shard may lack what another one has before the shard is ended, if other shards are live (scalog-S17). 0:
    /// never.
    pub stuck_after: Duration,
}

impl Default for OrdererOptions {
    fn default() -> Self {
        OrdererOptions { propose_timeout: Duration::from_secs(1), stuck_after: Duration::from_millis(500) }
    }
}

/// How often an orderer looks at a shard before it ends it.
const LOOKS: u32 = 5;

/// How long this orderer has seen the cut of a shard stand still although a server has more.
#[derive(Debug)]
struct Stuck {
    ordered: Vec<u64>,
    seen: Duration,
}

/// One Loglet.
struct Ordered {
    config: ScalogConfig,
    order: Order,
    log: Arc<dyn Loglet>,
    reported: Reported,
    proposing: bool,
    proposed_at: Tick,
    /// Whether the ordering log is sealed.
    ended: bool,
    stuck: BTreeMap<u32, Stuck>,
    /// When this orderer last looked whether shards are stuck.
    looked_at: Tick,
}

/// See the module documentation.
pub struct Orderer {
    env: Env,
    logs: Arc<dyn OrderingLogs>,
    options: OrdererOptions,
    loglets: BTreeMap<LogletId, Ordered>,
    due: BTreeMap<LogletId, Tick>,
}

impl Orderer {
    /// Creates the orderer of the node of `env`.
    pub fn new(env: Env, logs: Arc<dyn OrderingLogs>, options: OrdererOptions) -> Self {
        Orderer { env, logs, options, loglets: BTreeMap::new(), due: BTreeMap::new() }
    }

    fn wake(&mut self, loglet: LogletId, at: Tick) {
        let due = self.due.entry(loglet).or_insert(at);
        *due = (*due).min(at);
    }

    fn know(&mut self, now: Tick, loglet: LogletId, config: &Bytes, out: &mut Effects) {
        if self.loglets.contains_key(&loglet) || config.is_empty() {
            return;
        }
        let Ok(config) = ScalogConfig::parse(config) else { return };
        if !config.orderers.contains(&self.env.node()) {
            return;
        }
        let Ok(log) = self.logs.open(loglet, &config.ordering) else { return };
        let follows = follow(self.env.clone(), log.clone(), loglet, ORDERER, 0);
        out.run("scalog.follow", Box::pin(follows));
        let (order, reported, stuck) = (Order::new(&config), Reported::default(), BTreeMap::new());
        let (proposing, proposed_at, ended) = (false, now, false);
        let looked_at = now;
        let one = Ordered { config, order, log, reported, proposing, proposed_at, ended, stuck, looked_at };
        self.loglets.insert(loglet, one);
    }

    fn on_reports(&mut self, now: Tick, m: Reports, out: &mut Effects) {
        self.know(now, m.loglet, &m.config, out);
        let Some(one) = self.loglets.get_mut(&m.loglet) else {
            hit("scalog.orderer.unconfigured");
            return;
        };
        for report in &m.reports {
            one.reported.hear(&one.order, report);
        }
        let interval = Duration::from_micros(one.config.interval_us.into());
        let at = now.max(one.proposed_at.after(interval));
        self.wake(m.loglet, at);
    }

    fn on_follow(&mut self, now: Tick, from: Caller, m: Follow, out: &mut Effects) {
        let Some(one) = self.loglets.get_mut(&m.loglet) else {
            return out.reply(from, Followed { applied: None }, Lsn::NONE);
        };
        one.ended |= m.ended;
        for (at, bytes) in (m.from..).zip(m.entries) {
            if at != one.order.applied() {
                break;
            }
            match OrderEntry::parse(bytes.clone()) {
                _ if bytes.is_empty() => one.order.skip(),
                Ok(entry) => {
                    for shard in one.order.apply(&entry).ended {
                        one.reported.forget(shard);
                        one.stuck.remove(&shard);
                    }
                }
                Err(_) => break,
            }
        }
        let applied = Some(one.order.applied());
        out.reply(from, Followed { applied }, Lsn::NONE);
        self.wake(m.loglet, now);
    }

    fn on_proposed(&mut self, now: Tick, m: &Proposed) {
        let Some(one) = self.loglets.get_mut(&m.loglet) else { return };
        one.proposing = false;
        if !m.done {
            hit("scalog.orderer.not_proposed");
            one.reported.not_proposed();
        }
        let interval = Duration::from_micros(one.config.interval_us.into());
        let at = now.max(one.proposed_at.after(interval));
        self.wake(m.loglet, at);
    }

    /// Proposes what is new. At most one proposal is on its way, so cuts grow when the ordering log is slow.
    fn propose(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let (stuck_after, timeout) = (self.options.stuck_after, self.options.propose_timeout);
        let Some(one) = self.loglets.get_mut(&loglet) else { return };
        if one.proposing || one.ended || one.order.is_sealed() {
            return;
        }
        let (stuck, look_at) = one.find_stuck(now, stuck_after);
        let cut = one.reported.propose(&one.order);
        if let Some(at) = look_at {
            self.wake(loglet, at);
        }
        if cut.is_empty() && stuck.is_empty() {
            return;
        }
        let Some(one) = self.loglets.get_mut(&loglet) else { return };
        (one.proposing, one.proposed_at) = (true, now);
        let entry = OrderEntry { cut, stuck, ..OrderEntry::nothing() };
        let (env, log, until) = (self.env.clone(), one.log.clone(), now.after(timeout));
        let propose = async move {
            let done = write(&env, &log, &entry, until).await.is_ok();
            env.post(env.node(), Class::Control, ORDERER, Proposed { loglet, done });
        };
        out.run("scalog.propose", Box::pin(propose));
    }
}

impl Ordered {
    /// Returns the shards to end, because a server lacks for too long what another one has (S17), and when to look again. A shard stays
    /// if it is the last one: ending it would help nobody.
    ///
    /// Only the time in which this orderer looked counts, in [`LOOKS`] steps at least. While its process was stopped, or where its clock
    /// has jumped, it heard nothing, and what it knows about all shards is old.
    fn find_stuck(&mut self, now: Tick, after: Duration) -> (Vec<u32>, Option<Tick>) {
        let (mut ends, mut look_at) = (Vec::new(), None::<Tick>);
        let (step, passed) = (after / LOOKS, now.since(std::mem::replace(&mut self.looked_at, now)));
        if passed > step && !self.stuck.is_empty() {
            hit("scalog.orderer.was_stopped");
        }
        let passed = if mutant(mutants::SCALOG_S17) { passed } else { passed.min(step) };
        let live: Vec<u32> =
            self.order.shards().iter().filter(|(_, s)| s.is_live()).map(|(number, _)| *number).collect();
        if after.is_zero() || live.len() < 2 {
            return (ends, None);
        }
        for number in &live {
            let Some(shard) = self.order.shards().get(number) else { continue };
            let ordered = shard.counts.clone();
            if !self.reported.lags(*number, shard) {
                self.stuck.remove(number);
                continue;
            }
            match self.stuck.get_mut(number).filter(|stuck| stuck.ordered == ordered) {
                Some(stuck) => stuck.seen += passed,
                None => drop(self.stuck.insert(*number, Stuck { ordered, seen: Duration::ZERO })),
            }
            let Some(stuck) = self.stuck.get_mut(number) else { continue };
            if stuck.seen < after {
                let at = now.after(step.min(after - stuck.seen));
                look_at = Some(look_at.map_or(at, |other| other.min(at)));
            } else if ends.len() + 1 < live.len() {
                hit("scalog.orderer.ends_stuck");
                stuck.seen = Duration::ZERO;
                ends.push(*number);
            }
        }
        (ends, look_at)
    }
}

impl Role for Orderer {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let done = match frame.kind {
            Reports::KIND => Reports::from_frame(frame).map(|m| self.on_reports(now, m, out)),
            Follow::KIND => Follow::from_frame(frame).map(|m| self.on_follow(now, from, m, out)),
            Proposed::KIND => Proposed::from_frame(frame).map(|m| self.on_proposed(now, &m)),
            got => Err(DecodeError::WrongKind { expected: "a message for an orderer of scalog", got }),
        };
        if let Err(error) = done {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}

    fn deadline(&self) -> Option<Tick> {
        self.due.values().copied().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        let due: Vec<LogletId> = self.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for loglet in due {
            self.due.remove(&loglet);
            self.propose(now, loglet, out);
        }
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let servers: usize = self.loglets.values().map(|one| one.reported.servers()).sum();
        let figures = [
            ("scalog_orderer_loglets", self.loglets.len() as f64),
            ("scalog_orderer_servers", servers as f64),
        ];
        out.extend(figures.map(|(name, value)| Measure { name, label: None, value }));
    }
}
