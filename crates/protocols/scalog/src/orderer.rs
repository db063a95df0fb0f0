//! An orderer: forms cuts from what servers report, and appends them to the ordering log (scalog.md §4).
//!
//! Its reports are soft state, which comes back within a few intervals. Any number of orderers may propose at the same time: a proposal is
//! only a lower bound of what all servers of a shard have, and the cut is computed when it is applied (`order.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{Loglet, LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Env, Frame, Loc, Lsn, Measure, Message, Refused, Role, Tick,
};

use crate::config::ScalogConfig;
use crate::message::{Fate, Follow, Followed, Proposed, Reports};
use crate::mutants;
use crate::order::{Order, OrderEntry};
use crate::ordering::{OrderingLogs, follow, try_write};
use crate::reported::Reported;
use crate::roles::ORDERER;
use crate::snapshot::Snapshot;

/// Limits of an orderer.
#[derive(Clone, Debug)]
pub struct OrdererOptions {
    /// How long the ordering log may take for a proposal before its fate counts as unknown. The first such proposal is made again at
    /// once, the next ones after pauses that become longer: they may all be waiting in the log, which would only become slower.
    pub propose_timeout: Duration,
    /// How long a server of a shard may lack what another one has before the shard is ended, if other shards are live (scalog-S17). 0:
    /// never.
    pub stuck_after: Duration,
    /// After how many entries of the ordering log a snapshot is worth its room (scalog-S8). The ordering log keeps at least so many entries
    /// that are of no use any more.
    pub snapshot_after: u64,
}

impl Default for OrdererOptions {
    fn default() -> Self {
        OrdererOptions {
            propose_timeout: Duration::from_secs(1),
            stuck_after: Duration::from_millis(500),
            snapshot_after: 4096,
        }
    }
}

/// How often an orderer looks at a shard before it ends it.
const LOOKS: u32 = 5;
/// For how long a snapshot may keep cuts waiting, until this orderer has applied its own newest entry.
const CATCH_UP: Duration = Duration::from_millis(20);
/// Only an orderer that has proposed something this recently proposes snapshots: those of several orderers would get into each other's way.
const AT_WORK: Duration = Duration::from_secs(1);
/// Pauses after proposals whose fate is unknown double up to this many times [`OrdererOptions::propose_timeout`].
const LONGEST_PAUSE: u32 = 8;
/// The most Loglets that an orderer knows. The one for which it has not proposed anything for the longest time is forgotten; reports bring
/// it back.
const MAX_KNOWN: usize = 1024;
/// How many Loglets that have ended are remembered, so that late reports do not bring them back.
const MAX_ENDED: usize = 256;

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
    /// How many proposals in a row have an unknown fate.
    astray: u32,
    /// Until when this orderer waits for such proposals, unless all that was proposed is ordered before.
    waits_until: Option<Tick>,
    /// The place above the newest entry of the ordering log that this orderer has proposed.
    end: u64,
    /// How many entries were applied when a snapshot was last proposed.
    tried_at: u64,
    /// The ordering log was trimmed up to here.
    trimmed: u64,
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
    /// Loglets that have ended, the oldest first.
    ended: VecDeque<LogletId>,
    due: BTreeMap<LogletId, Tick>,
}

impl Orderer {
    /// Creates the orderer of the node of `env`.
    pub fn new(env: Env, logs: Arc<dyn OrderingLogs>, options: OrdererOptions) -> Self {
        let (loglets, ended, due) = (BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Orderer { env, logs, options, loglets, ended, due }
    }

    fn wake(&mut self, loglet: LogletId, at: Tick) {
        let due = self.due.entry(loglet).or_insert(at);
        *due = (*due).min(at);
    }

    fn know(&mut self, now: Tick, loglet: LogletId, config: &Bytes, out: &mut Effects) {
        if self.loglets.contains_key(&loglet) || config.is_empty() || self.ended.contains(&loglet) {
            return;
        }
        let Ok(config) = ScalogConfig::parse(config) else { return };
        if !config.orderers.contains(&self.env.node()) {
            return;
        }
        let Ok(log) = self.logs.open(loglet, &config.ordering) else { return };
        self.make_room();
        let follows = follow(self.env.clone(), log.clone(), loglet, ORDERER, 0);
        out.run("scalog.follow", Box::pin(follows));
        let (order, reported, stuck) = (Order::new(&config), Reported::default(), BTreeMap::new());
        let one = Ordered {
            config,
            order,
            log,
            reported,
            proposing: false,
            proposed_at: now,
            astray: 0,
            waits_until: None,
            end: 0,
            tried_at: 0,
            trimmed: 0,
            stuck,
            looked_at: now,
        };
        self.loglets.insert(loglet, one);
    }

    /// Forgets the Loglet that was idle for longest, if there are too many. Its procedure ends with its next entry.
    fn make_room(&mut self) {
        if self.loglets.len() >= MAX_KNOWN
            && let Some(idle) = self.loglets.iter().min_by_key(|(_, one)| one.proposed_at).map(|(id, _)| *id)
        {
            self.loglets.remove(&idle);
            self.due.remove(&idle);
        }
    }

    /// Forgets a Loglet that has ended: nothing of it is ordered any more.
    fn end(&mut self, loglet: LogletId) {
        hit("scalog.orderer.ended");
        self.loglets.remove(&loglet);
        self.due.remove(&loglet);
        self.ended.push_back(loglet);
        if self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
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
        let at = one.next_at(now);
        self.wake(m.loglet, at);
    }

    fn on_follow(&mut self, now: Tick, from: Caller, m: Follow, out: &mut Effects) {
        let Some(one) = self.loglets.get_mut(&m.loglet) else {
            return out.reply(from, Followed { applied: None }, Lsn::NONE);
        };
        for (at, bytes) in (m.from..).zip(m.entries) {
            if at != one.order.applied() {
                match Order::resume_from(bytes, at) {
                    Some(order) if at > one.order.applied() => one.resume(order),
                    _ => break,
                }
                continue;
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
        if m.ended || one.order.is_sealed() {
            self.end(m.loglet);
            return out.reply(from, Followed { applied: None }, Lsn::NONE);
        }
        let start = one.order.start();
        if start > one.trimmed {
            hit("scalog.orderer.trims");
            one.trimmed = start;
            let log = one.log.clone();
            // If it fails, the next trim makes up for it.
            out.run(
                "scalog.trim_ordering",
                Box::pin(async move { drop(log.prefix_trim(Offset(start)).await) }),
            );
        }
        let (applied, at) = (Some(one.order.applied()), one.next_at(now));
        out.reply(from, Followed { applied }, Lsn::NONE);
        self.wake(m.loglet, at);
    }

    fn on_proposed(&mut self, now: Tick, m: &Proposed) {
        let timeout = self.options.propose_timeout;
        let Some(one) = self.loglets.get_mut(&m.loglet) else { return };
        one.proposing = false;
        match m.fate {
            Fate::Written { at } => {
                one.end = one.end.max(at + 1);
                one.astray = 0;
            }
            Fate::Lost {} => {
                hit("scalog.orderer.not_proposed");
                one.reported.not_proposed();
            }
            Fate::Unknown {} => {
                hit("scalog.orderer.astray");
                let pause = timeout * ((1 << one.astray) >> 1).min(LONGEST_PAUSE);
                one.astray = (one.astray + 1).min(u32::BITS - 1);
                one.waits_until = Some(now.after(pause));
            }
        }
        let at = one.next_at(now);
        self.wake(m.loglet, at);
    }

    /// Proposes what is new. At most one proposal is on its way, and few are astray, so cuts are rarer and larger when the ordering log is
    /// slow.
    fn propose(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let (stuck_after, snapshot_after) = (self.options.stuck_after, self.options.snapshot_after);
        let Some(one) = self.loglets.get_mut(&loglet) else { return };
        if one.proposing {
            return;
        }
        if let Some(until) = one.waits_for_astray(now) {
            return self.wake(loglet, until);
        }
        let (entry, look_at) = match one.snapshot(now, snapshot_after) {
            Snapshots::Wait(until) => return self.wake(loglet, until),
            Snapshots::Now(snapshot) => {
                (OrderEntry { snapshot: Some(snapshot), ..OrderEntry::nothing() }, None)
            }
            Snapshots::No => {
                let (stuck, look_at) = one.find_stuck(now, stuck_after);
                (
                    OrderEntry { cut: one.reported.propose(&one.order), stuck, ..OrderEntry::nothing() },
                    look_at,
                )
            }
        };
        if let Some(at) = look_at {
            self.wake(loglet, at);
        }
        if entry == OrderEntry::nothing() {
            return;
        }
        let until = now.after(self.options.propose_timeout);
        let Some(one) = self.loglets.get_mut(&loglet) else { return };
        (one.proposing, one.proposed_at) = (true, now);
        let (env, log) = (self.env.clone(), one.log.clone());
        let propose = async move {
            let fate = match try_write(&env, &log, &entry, until).await {
                Ok(at) => Fate::Written { at },
                Err(not_written) if not_written.may_come => Fate::Unknown {},
                Err(_) => Fate::Lost {},
            };
            env.post(env.node(), Class::Control, ORDERER, Proposed { loglet, fate });
        };
        out.run("scalog.propose", Box::pin(propose));
    }
}

/// Whether to propose a snapshot.
enum Snapshots {
    No,
    Now(Snapshot),
    /// Not before this orderer has applied its own newest entry, or at this time.
    Wait(Tick),
}

impl Ordered {
    /// Returns when to look for something to propose.
    fn next_at(&self, now: Tick) -> Tick {
        let interval = Duration::from_micros(self.config.interval_us.into());
        now.max(self.proposed_at.after(interval))
    }

    /// Returns until when to wait for proposals whose fate is unknown. None if there are none any more: either all that was proposed is
    /// ordered, or it takes too long, and they are made again.
    fn waits_for_astray(&mut self, now: Tick) -> Option<Tick> {
        let until = self.waits_until?;
        if self.reported.is_ordered(&self.order) {
            self.astray = 0;
        } else if now < until {
            return Some(until);
        } else {
            self.reported.not_proposed();
        }
        self.waits_until = None;
        None
    }

    /// Continues with the state of a snapshot.
    fn resume(&mut self, order: Order) {
        hit("scalog.orderer.resumed");
        for (number, _) in order.shards().iter().filter(|(_, shard)| !shard.is_live()) {
            self.reported.forget(*number);
        }
        self.stuck.clear();
        self.trimmed = order.start();
        self.order = order;
    }

    /// Returns whether to propose a snapshot now. It counts only if no entry comes before it that this orderer has not applied, so a cut
    /// may have to wait for it; but not for long.
    fn snapshot(&mut self, now: Tick, after: u64) -> Snapshots {
        let (applied, is_at_work) = (self.order.applied(), now.since(self.proposed_at) < AT_WORK);
        if !is_at_work || !self.order.wants_snapshot(after) || applied < self.tried_at + after / 8 {
            return Snapshots::No;
        }
        let until = self.proposed_at.after(CATCH_UP);
        if applied < self.end {
            return if now < until { Snapshots::Wait(until) } else { Snapshots::No };
        }
        self.tried_at = applied;
        Snapshots::Now(self.order.snapshot())
    }

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
        let live = self.order.live();
        if after.is_zero() || live < 2 {
            return (ends, None);
        }
        // Of all others, no server has more than is ordered.
        let open = self.reported.open();
        self.stuck.retain(|number, _| open.contains(number));
        for number in open {
            let Some(shard) = self.order.shards().get(number).filter(|shard| shard.is_live()) else {
                continue;
            };
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
            } else if ends.len() + 1 < live {
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
