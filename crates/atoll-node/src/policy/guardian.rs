//! The procedure that keeps every log of this node on a segment that works. Every node runs one. The procedures race safely, because the
//! register decides (virtuallog §4, §5). Each waits according to its rank, so that they seldom race at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::{LogletId, LogletSpec};
use atoll_core::sync::lock;
use atoll_core::testing::mutant;
use atoll_core::{Env, Identity, NodeId, StorageId, Tick};
use atoll_log::virtual_log::{Segment, Trouble, VersionedChain, VirtualLog};

use super::assess::{Active, Reason, View, can_do_without_drained};
use super::doubts::Doubts;
use super::pace::Pace;
use crate::logs::{Known, Logs};
use crate::members::Members;
use crate::members::table::MemberTable;
use crate::mutants;
use crate::settings::Timings;

/// Most logs that this node moves at once. A node that dies with thousands of logs must not cause thousands of seals and register writes at
/// the same moment; logs that are being appended to come first.
const MOST_AT_ONCE: usize = 16;
/// The views of the members may differ for this many beats after a change, so a reason that is not urgent has to last that long.
const UNSETTLED_BEATS: u32 = 3;
/// How long evidence of appenders counts against a node without new reports.
const DISTRUSTED_FOR: Duration = Duration::from_secs(3);
/// Two rounds are at least this far apart, multiplied by the number of logs: thousands of appenders report thousands of times.
const ROUND_PER_LOG: Duration = Duration::from_micros(20);

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

/// The result of looking at a log.
enum Look {
    /// There is nothing to do, or nothing is known.
    Well,
    /// There is something to do, but not before this.
    Later(Tick),
    /// There is something to do now.
    Now(Work),
}

/// A change of a chain.
#[derive(Clone, Debug)]
enum Work {
    /// The active segment is to be followed by another.
    Extend(LogletId, Reason),
    /// A sealed segment is to be rebuilt on other servers: this one, or one in an index page that is to be found.
    Rebuild(Option<Segment>),
}

/// A log, and what is to be done with it.
type Waiting = (String, Work);

/// The first sealed segment that has to be rebuilt; `Some(None)` if one in an index page may have to be.
fn to_rebuild(chain: &VersionedChain, broken: &Broken) -> Option<Option<Segment>> {
    let found = chain.chain.sealed().find(|s| s.start != s.stop_or_start() && broken.is(s)).cloned();
    let in_pages =
        || chain.chain.pages().iter().any(|p| p.may_be_on(|node, storage| broken.may_be(node, storage)));
    (found.is_some() || in_pages()).then_some(found)
}

/// The reason that an appender's report gives by itself, because the sequencer itself answered.
fn reason_of(trouble: Option<Trouble>, active: &Active) -> Option<Reason> {
    let (node, _) = active.duties.orderers().next()?;
    match trouble? {
        Trouble::WrongSequencer => Some(Reason::SequencerRestarted(node)),
        Trouble::SequencerFailed => Some(Reason::SequencerFailing(node)),
        Trouble::NoSequencer | Trouble::NoQuorum | Trouble::DiskFull => None,
    }
}

/// See the module documentation.
#[derive(Clone)]
pub struct Guardian {
    env: Env,
    logs: Logs,
    members: Members,
    timings: Timings,
    busy: Arc<Mutex<BTreeSet<String>>>,
    /// Work that the last round found and this node had no capacity for; bounded by the number of known logs.
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    /// By log: bounded by the logs that are known.
    paces: Arc<Mutex<BTreeMap<String, Pace>>>,
    doubts: Arc<Mutex<Doubts>>,
    deeds: Arc<Mutex<Deeds>>,
    /// The list of logs is being read.
    listing: Arc<AtomicBool>,
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
            waiting: Arc::default(),
            paces: Arc::default(),
            doubts: Arc::default(),
            deeds: Arc::default(),
            listing: Arc::default(),
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
        let mut next_patrol = Tick(0);
        loop {
            let now = self.env.now();
            if now >= next_patrol {
                next_patrol = now.after(self.timings.patrol_every);
                self.learn_all();
                self.logs.sweep();
                self.forget_unknown();
            }
            let seen = self.members.changed.count();
            let (looked_at, next) = self.round();
            self.env.sleep(ROUND_PER_LOG * looked_at).await;
            let until = next.unwrap_or(next_patrol).min(next_patrol);
            let wait = until.since(self.env.now()).max(Duration::from_millis(1));
            let _ = self.env.within(wait, self.members.changed.after(seen)).await;
        }
    }

    /// Looks at every log that is known: how many, and when to look again at the latest.
    fn round(&self) -> (u32, Option<Tick>) {
        let me = self.members.identity();
        let view = View::of(&self.members, &me, self.env.now(), &self.timings);
        view.doubters().for_each(|node| lock(&self.doubts).heard(view.now, node));
        let broken = self.broken();
        let mut todo = Vec::new();
        let mut next = None;
        let logs = self.logs.known();
        let guarded = if mutant(mutants::POLICY_GUARDS_FEW) { logs.len().min(64) } else { logs.len() };
        for log in &logs[..guarded] {
            let trouble = self.logs.take_trouble(&log.name);
            match self.look_at(log, &view, &broken, trouble) {
                Look::Well => {}
                Look::Later(at) => next = Some(next.map_or(at, |n: Tick| n.min(at))),
                Look::Now(work) => todo.push((trouble.is_none(), work, log)),
            }
        }
        // Those whose appends wait come first; the others when there is room.
        todo.sort_by_key(|(idle, ..)| *idle);
        *lock(&self.waiting) = todo.into_iter().map(|(_, work, log)| (log.name.clone(), work)).collect();
        while let Some((log, work)) = self.take_waiting() {
            self.begin(log, work);
        }
        (u32::try_from(logs.len()).unwrap_or(u32::MAX), next)
    }

    /// The next piece of work, unless this node is already busy with as many as it may be. The log counts as busy from now on.
    fn take_waiting(&self) -> Option<Waiting> {
        let (mut waiting, mut busy) = (lock(&self.waiting), lock(&self.busy));
        while busy.len() < MOST_AT_ONCE {
            let (log, work) = waiting.pop_front()?;
            if busy.insert(log.clone()) {
                return Some((log, work));
            }
        }
        if !waiting.is_empty() {
            atoll_core::testing::hit("policy.most_at_once");
        }
        None
    }

    fn forget_unknown(&self) {
        let known = self.logs.names();
        lock(&self.paces).retain(|name, _| known.binary_search(name).is_ok());
    }

    /// Learns of every log of the cluster, so that logs that are not used here are guarded, too. It reads some chains at a time, and each
    /// log is looked at as soon as its chain is known: after a power cut there may be no other node to guard it.
    fn learn_all(&self) {
        if self.listing.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.clone();
        let work = async move {
            // Without an answer the next patrol asks again.
            let _ = me.logs.survey(|| me.members.changed.notify()).await;
            me.listing.store(false, Ordering::Release);
        };
        self.env.spawn("guardian.list", Box::pin(work));
    }

    /// What a log needs, and whether it is time for it.
    fn look_at(&self, log: &Known, view: &View<'_>, broken: &Broken, trouble: Option<Trouble>) -> Look {
        let Some((loglet, active)) = self.active(&log.chain) else { return Look::Well };
        let mut paces = lock(&self.paces);
        let pace = paces.entry(log.name.clone()).or_default();
        pace.saw(view.now, loglet);
        self.weigh(pace, view, trouble, &active);
        let told = || reason_of(trouble, &active).filter(|_| view.can_seal(&active));
        let found = view.assess(&active).or_else(told);
        let Some(reason) = found else {
            pace.well();
            let rests_until = pace.rests_until();
            drop(paces);
            return match to_rebuild(&log.chain, broken).filter(|_| self.rebuilds(view)) {
                Some(_) if rests_until > view.now => Look::Later(rests_until),
                Some(found) => Look::Now(Work::Rebuild(found)),
                None => Look::Well,
            };
        };
        match pace.due(view.now, reason, self.unsettled()) {
            at if at > view.now => Look::Later(at),
            _ => Look::Now(Work::Extend(loglet, reason)),
        }
    }

    /// How long views of the members may differ.
    fn unsettled(&self) -> Duration {
        self.timings.heartbeat_every * UNSETTLED_BEATS
    }

    /// Appenders may run into problems that no heartbeat shows (native-T14): a sequencer that hangs, or a network that loses only data. The
    /// report of one node is not enough to move a log. All nodes learn of it from that node's heartbeats, and weigh which members can work
    /// with each other (vlog-V21). What this node reports may be its own fault.
    fn weigh(&self, pace: &mut Pace, view: &View<'_>, trouble: Option<Trouble>, active: &Active) {
        let silent = matches!(trouble, Some(Trouble::NoSequencer | Trouble::NoQuorum));
        if let Some((node, _)) = active.duties.orderers().next().filter(|_| silent)
            && pace.report(view.now)
        {
            atoll_core::testing::hit("policy.evidence");
            let whom = lock(&self.doubts).weigh(view.now, view.me.node, node, view.others().count());
            whom.into_iter().for_each(|node| self.members.distrust(node, view.now.after(DISTRUSTED_FOR)));
        }
    }

    /// Starts a piece of work, and then the next one that waits.
    fn begin(&self, log: String, work: Work) {
        let me = self.clone();
        self.env.spawn(
            "guardian.work",
            Box::pin(async move {
                let mut next = Some((log, work));
                while let Some((name, work)) = next {
                    let done = match (me.logs.open(&name), work) {
                        (Ok(log), Work::Extend(from, reason)) => me.repair(&log, from, reason).await,
                        (Ok(log), Work::Rebuild(found)) => me.rebuild(&log, found, me.broken()).await,
                        (Err(_), _) => false,
                    };
                    me.settle(&name, done);
                    next = me.take_waiting();
                }
                me.members.changed.notify();
            }),
        );
    }

    fn settle(&self, log: &str, done: bool) {
        {
            let mut paces = lock(&self.paces);
            let pace = paces.entry(log.to_owned()).or_default();
            match done {
                true => pace.done(),
                false => pace.failed(self.env.now(), |d| self.env.jitter(d)),
            }
        }
        if !done {
            lock(&self.deeds).failed += 1;
        }
        lock(&self.busy).remove(log);
    }

    /// The logs whose sequencer is on a node, by their chains as they are known here.
    pub fn sequenced_by(&self, node: NodeId) -> Vec<String> {
        let here =
            |log: &Known| self.active(&log.chain).is_some_and(|(_, active)| active.duties.is_orderer(node));
        self.logs.known().into_iter().filter(here).map(|log| log.name).collect()
    }

    fn active(&self, chain: &VersionedChain) -> Option<(LogletId, Active)> {
        let segment = chain.chain.active();
        let provider = self.logs.registry().provider(&segment.kind).ok()?;
        Some((segment.loglet, Active::new(provider, &segment.config)))
    }

    /// Waits its turn, reads the chain again, checks which segment is active now, and extends only that one. True if nothing is left to do.
    /// `from` was active when the reason was found.
    async fn repair(&self, log: &Arc<VirtualLog>, from: LogletId, reason: Reason) -> bool {
        let patience = {
            let me = self.members.identity();
            View::of(&self.members, &me, self.env.now(), &self.timings).patience(reason)
        };
        self.env.sleep(patience).await;
        if !matches!(log.refresh().await, Ok(Ok(_))) {
            return false;
        }
        let Some((from, spec, reason)) = self.still_wanted(log, from, reason) else { return true };
        atoll_core::testing::hit("policy.extend");
        match log.extend_from(from, spec).await {
            Ok(Ok(true)) => {
                let mut deeds = lock(&self.deeds);
                deeds.extended += 1;
                deeds.last = Some((log.name().to_owned(), reason.to_string()));
                true
            }
            // Another node was faster: the next round looks at the new state.
            Ok(Ok(false)) => true,
            _ => false,
        }
    }

    /// What to do about the segment that is active in the newest chain. None if nothing is to be done any more, or not yet.
    fn still_wanted(
        &self,
        log: &VirtualLog,
        seen: LogletId,
        reason: Reason,
    ) -> Option<(LogletId, LogletSpec, Reason)> {
        let chain = log.chain()?;
        let (loglet, active) = self.active(&chain)?;
        let me: Identity = self.members.identity();
        let view = View::of(&self.members, &me, self.env.now(), &self.timings);
        // An appender's report about one segment says nothing about the next.
        let told = Some(reason).filter(|_| loglet == seen && view.can_seal(&active));
        let reason = view.assess(&active).or(told)?;
        let due = {
            let mut paces = lock(&self.paces);
            let pace = paces.entry(log.name().to_owned()).or_default();
            pace.saw(view.now, loglet);
            pace.due(view.now, reason, self.unsettled())
        };
        (due <= view.now).then(|| (loglet, view.remedy(reason), reason))
    }

    /// Whether this node copies sealed segments: the first node in line does. If it dies, another node becomes the first.
    fn rebuilds(&self, view: &View<'_>) -> bool {
        view.patience(Reason::StorageReplaced(NodeId(u32::MAX))).is_zero()
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
            .filter(|c| !c.alive || c.failing || c.draining)
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

/// Which sealed segments have to be rebuilt, given the current state of the members.
#[derive(Clone)]
struct Broken {
    logs: Logs,
    members: Members,
    table: Arc<MemberTable>,
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
        let servers: Vec<_> = provider.duties(&segment.config).holders().collect();
        let spare = || {
            self.candidates.iter().any(|c| {
                c.log && c.alive && !c.failing && !c.draining && !servers.iter().any(|(n, _)| *n == c.node)
            })
        };
        // Seldom asked: most segments are on members that stay.
        let can_leave = || can_do_without_drained(&self.candidates, servers.len());
        servers.iter().any(|(node, storage)| match table.nodes.get(node) {
            Some(row) => {
                (row.storage.0 != 0 && row.storage != *storage && self.members.is_alive(*node))
                    || (row.draining && can_leave())
            }
            None => !table.nodes.is_empty() && spare(),
        })
    }
}
