//! The procedure that keeps every log of this node on a segment that works. Every node runs one; they race safely, since the
//! register decides (virtuallog §4, §5), and wait their rank so that they seldom race at all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::{Env, NodeId, StorageId, Tick};
use atoll_log::virtual_log::{Segment, Trouble, VirtualLog};
use atoll_log::{LogletSpec, Members as LogletMembers};

use super::assess::{Reason, View, can_do_without_drained};
use crate::logs::Logs;
use crate::members::Members;
use crate::members::table::MemberTable;
use crate::settings::Timings;

/// Longest wait between two attempts at one log.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Shortest wait between two attempts at one log.
const MIN_BACKOFF: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug)]
struct Attempts {
    failed: u32,
    not_before: Tick,
}

/// What the guardian has done so far, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// Segments extended because of a failure or a leaving node.
    pub extended: u64,
    /// Sealed segments rebuilt on other servers.
    pub rebuilt: u64,
    /// Attempts that failed and were or will be repeated.
    pub failed: u64,
    /// The last reason, and the log.
    pub last: Option<(String, String)>,
}

/// See the module's words.
#[derive(Clone)]
pub struct Guardian {
    env: Env,
    logs: Logs,
    members: Members,
    timings: Timings,
    busy: Arc<Mutex<BTreeSet<String>>>,
    attempts: Arc<Mutex<BTreeMap<String, Attempts>>>,
    deeds: Arc<Mutex<Deeds>>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guardian {
    /// A guardian that does nothing yet.
    pub fn new(env: Env, logs: Logs, members: Members, timings: Timings) -> Self {
        Guardian {
            env,
            logs,
            members,
            timings,
            busy: Arc::default(),
            attempts: Arc::default(),
            deeds: Arc::default(),
        }
    }

    /// What it has done so far.
    pub fn deeds(&self) -> Deeds {
        lock(&self.deeds).clone()
    }

    /// Starts it; it runs until the node ends.
    pub fn start(&self) {
        let me = self.clone();
        self.env.spawn("guardian", Box::pin(async move { me.run().await }));
    }

    async fn run(self) {
        let mut seen = 0;
        let mut next_patrol = Tick(0);
        loop {
            let now = self.env.now();
            if now >= next_patrol {
                next_patrol = now.after(self.timings.patrol_every);
                self.open_all().await;
            }
            let rung = self.members.changed.rings();
            for log in self.logs.opened() {
                self.look_at(&log);
            }
            if rung == seen {
                let wait = next_patrol.since(self.env.now()).max(Duration::from_millis(1));
                let _ = self.env.within(wait, self.members.changed.after(seen)).await;
            }
            seen = rung;
        }
    }

    /// Opens every log of the cluster, so that one that nobody uses here is guarded, too.
    async fn open_all(&self) {
        if let Ok(Ok(Ok(names))) = self.env.within(self.timings.patrol_every, self.logs.list()).await {
            for name in names {
                if let Ok(log) = self.logs.open(&name)
                    && log.chain().is_none()
                {
                    drop(log.refresh());
                }
            }
        }
    }

    /// Starts work on a log if it needs any and none is under way.
    fn look_at(&self, log: &Arc<VirtualLog>) {
        let trouble = self.logs.take_trouble(log.name());
        let Some(reason) = self.reason(log, trouble) else { return self.look_at_sealed(log) };
        let due = lock(&self.attempts).get(log.name()).is_none_or(|a| a.not_before <= self.env.now());
        if !due || !lock(&self.busy).insert(log.name().to_owned()) {
            return;
        }
        let (me, log) = (self.clone(), log.clone());
        self.env.spawn(
            "guardian.extend",
            Box::pin(async move {
                let done = me.repair(&log, reason).await;
                me.settle(log.name(), done);
            }),
        );
    }

    fn settle(&self, log: &str, done: bool) {
        let mut attempts = lock(&self.attempts);
        if done {
            attempts.remove(log);
        } else {
            let failed = attempts.get(log).map_or(0, |a| a.failed) + 1;
            let wait = MAX_BACKOFF.min(MIN_BACKOFF * 2u32.saturating_pow(failed.min(10)));
            let not_before = self.env.now().after(self.env.jitter(wait));
            attempts.insert(log.to_owned(), Attempts { failed, not_before });
            drop(attempts);
            lock(&self.deeds).failed += 1;
            let (env, bell) = (self.env.clone(), self.members.changed.clone());
            self.env.spawn(
                "guardian.again",
                Box::pin(async move {
                    env.sleep_until(not_before).await;
                    bell.ring();
                }),
            );
        }
        lock(&self.busy).remove(log);
    }

    /// The open logs whose sequencer is on a node.
    pub fn sequenced_by(&self, node: NodeId) -> Vec<String> {
        let here = |log: &Arc<VirtualLog>| {
            self.active(log).and_then(|a| a.sequencer).is_some_and(|(sequencer, _)| sequencer == node)
        };
        self.logs.opened().iter().filter(|log| here(log)).map(|log| log.name().to_owned()).collect()
    }

    fn active(&self, log: &VirtualLog) -> Option<LogletMembers> {
        let chain = log.chain()?;
        let segment = chain.chain.active();
        let provider = self.logs.registry().provider(&segment.kind).ok()?;
        Some(provider.members(&segment.config))
    }

    fn reason(&self, log: &VirtualLog, trouble: Option<Trouble>) -> Option<Reason> {
        let active = self.active(log)?;
        let me = self.members.identity();
        let view = View { members: &self.members, me: &me, now: self.env.now(), timings: &self.timings };
        let sequencer = active.sequencer.map(|s| s.0);
        view.assess(&active).or(match (trouble, sequencer) {
            (Some(Trouble::WrongSequencer), Some(node)) => Some(Reason::SequencerRestarted(node)),
            (Some(Trouble::SequencerFailed), Some(node)) => Some(Reason::SequencerLeaving(node)),
            _ => None,
        })
    }

    /// Waits its turn, looks again with fresh eyes, and extends. True if nothing is left to do.
    async fn repair(&self, log: &Arc<VirtualLog>, reason: Reason) -> bool {
        let me = self.members.identity();
        let view = View { members: &self.members, me: &me, now: self.env.now(), timings: &self.timings };
        let before = log.chain().map(|c| c.version);
        let patience = view.patience(reason);
        if !patience.is_zero() {
            self.env.sleep(patience).await;
            if !matches!(log.refresh().await, Ok(Ok(_))) {
                return false;
            }
            if log.chain().map(|c| c.version) != before {
                return true;
            }
        }
        let spec = view.remedy(reason);
        atoll_core::testing::hit("policy.extend");
        match log.extend(spec).await {
            Ok(Ok(_)) => {
                let mut deeds = lock(&self.deeds);
                deeds.extended += 1;
                deeds.last = Some((log.name().to_owned(), reason.to_string()));
                true
            }
            _ => false,
        }
    }

    /// Rebuilds the first sealed segment that names a data directory which is no more, or a drained node.
    fn look_at_sealed(&self, log: &Arc<VirtualLog>) {
        let Some(chain) = log.chain() else { return };
        let broken = self.broken();
        let found = chain.chain.sealed().find(|s| s.start != s.stop_or_start() && broken.is(s)).cloned();
        let in_pages =
            || chain.chain.pages().iter().any(|p| p.may_be_on(|node, storage| broken.may_be(node, storage)));
        if found.is_none() && !in_pages() {
            return;
        }
        // One node does the copying: the first in line. If it dies, another is first.
        let me = self.members.identity();
        let view = View { members: &self.members, me: &me, now: self.env.now(), timings: &self.timings };
        if !view.patience(Reason::StorageReplaced(NodeId(u32::MAX))).is_zero() {
            return;
        }
        let due = lock(&self.attempts).get(log.name()).is_none_or(|a| a.not_before <= self.env.now());
        if !due || !lock(&self.busy).insert(log.name().to_owned()) {
            return;
        }
        let (me, log) = (self.clone(), log.clone());
        self.env.spawn(
            "guardian.rebuild",
            Box::pin(async move {
                let done = me.rebuild(&log, found, broken).await;
                me.settle(log.name(), done);
                me.members.changed.ring();
            }),
        );
    }

    /// Rebuilds this segment, or the first one in an index page that is broken.
    async fn rebuild(&self, log: &Arc<VirtualLog>, found: Option<Segment>, broken: Broken) -> bool {
        let found = match found {
            Some(found) => found,
            None => {
                let (may, is) = (broken.clone(), broken);
                let find =
                    log.find_in_pages(move |node, storage| may.may_be(node, storage), move |s| is.is(s));
                let Ok(Ok(Some(found))) = find.await else { return false };
                found
            }
        };
        let avoid = self
            .directory()
            .into_iter()
            .filter(|c| !c.alive || c.draining)
            .map(|c| c.node)
            .collect::<Vec<_>>();
        let spec = LogletSpec { avoid, ..LogletSpec::default() };
        let done = matches!(log.modify_at(found.loglet, found.start, spec).await, Ok(Ok(_)));
        if done {
            lock(&self.deeds).rebuilt += 1;
        }
        done
    }

    fn directory(&self) -> Vec<atoll_core::Candidate> {
        atoll_core::Directory::candidates(&self.members)
    }

    fn broken(&self) -> Broken {
        Broken {
            logs: self.logs.clone(),
            members: self.members.clone(),
            table: self.members.table(),
            candidates: self.directory(),
        }
    }
}

/// Which sealed segments have to be rebuilt, as the members stand.
#[derive(Clone)]
struct Broken {
    logs: Logs,
    members: Members,
    table: MemberTable,
    candidates: Vec<atoll_core::Candidate>,
}

impl Broken {
    /// Whether a segment with entries on this data directory can be broken: [`Broken::is`] looks at its other servers, too.
    fn may_be(&self, node: NodeId, storage: StorageId) -> bool {
        match self.table.nodes.get(&node) {
            Some(row) => {
                (row.storage.0 != 0 && row.storage != storage && self.members.is_alive(node)) || row.draining
            }
            None => !self.table.nodes.is_empty(),
        }
    }

    fn is(&self, segment: &Segment) -> bool {
        let Ok(provider) = self.logs.registry().provider(&segment.kind) else { return false };
        let table = &self.table;
        let servers = provider.members(&segment.config).servers;
        let spare = self
            .candidates
            .iter()
            .any(|c| c.log && c.alive && !c.draining && !servers.iter().any(|(n, _)| *n == c.node));
        let can_leave = can_do_without_drained(&self.candidates, servers.len());
        servers.iter().any(|(node, storage)| match table.nodes.get(node) {
            Some(row) => {
                (row.storage.0 != 0 && row.storage != *storage && self.members.is_alive(*node))
                    || (row.draining && can_leave)
            }
            None => !table.nodes.is_empty() && spare,
        })
    }
}
