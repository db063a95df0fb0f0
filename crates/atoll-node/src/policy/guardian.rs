//! The procedure that keeps every log on a segment that works. Every node runs one. If two of them change the same chain, the register
//! accepts only one change (virtuallog §4, §5). Each waits according to its rank, so that this happens seldom.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::cluster::can_do_without_drained;
use atoll_contract::{LogPos, LogletId, LogletSpec, Reason};
use atoll_core::sync::lock;
use atoll_core::testing::mutant;
use atoll_core::{Class, Env, Identity, NodeId, StorageId, Tick};
use atoll_log::virtual_log::{Segment, Trouble, VersionedChain, VirtualLog};

use super::assess::{Active, View};
use super::doubts::Doubts;
use super::pace::Pace;
use crate::logs::{Known, Logs};
use crate::members::Members;
use crate::members::role::LogExtended;
use crate::members::table::MemberTable;
use crate::mutants;
use crate::settings::Timings;

/// The maximum number of logs that this node changes at the same time. If a node with thousands of logs dies, this must not cause thousands
/// of seals and register writes at once.
const MOST_AT_ONCE: usize = 16;
/// The views of the members may differ for this many heartbeat intervals after a change. A reason for which [`Reason::must_last`] is true
/// must last that long.
const UNSETTLED_BEATS: u32 = 3;
/// How long this node distrusts a node after evidence from its appenders.
const DISTRUSTED_FOR: Duration = Duration::from_secs(3);
/// The minimum time between two rounds, per log. Without it, the reports of thousands of appenders would cause thousands of rounds.
const ROUND_PER_LOG: Duration = Duration::from_micros(20);

/// What the guardian has done so far, for status and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deeds {
    /// The number of times that it extended a log.
    pub extended: u64,
    /// The number of sealed segments that it rebuilt.
    pub rebuilt: u64,
    /// The number of attempts that failed. Failed attempts are retried.
    pub failed: u64,
    /// The log that it extended last, and the reason.
    pub last: Option<(String, String)>,
}

/// The result of checking a log.
enum Look {
    /// There is nothing to do, or the kind of the active Loglet is unknown.
    Well,
    /// There is something to do, but not before this time.
    Later(Tick),
    /// There is something to do now.
    Now(Work),
}

/// A change of a chain.
#[derive(Clone, Debug)]
enum Work {
    /// Extend the log, whose active Loglet is this one.
    Extend(LogletId, Reason),
    /// Rebuild a sealed segment of this chain on other servers.
    Rebuild(Arc<VersionedChain>),
}

/// A log, and the work to do on it.
type Waiting = (String, Work);

/// See the module documentation.
#[derive(Clone)]
pub struct Guardian {
    env: Env,
    logs: Logs,
    members: Members,
    timings: Timings,
    busy: Arc<Mutex<BTreeSet<String>>>,
    /// Work that the last round found and that has not begun yet. Bounded by the number of known logs.
    waiting: Arc<Mutex<VecDeque<Waiting>>>,
    /// By log. Bounded by the number of known logs.
    paces: Arc<Mutex<BTreeMap<String, Pace>>>,
    doubts: Arc<Mutex<Doubts>>,
    deeds: Arc<Mutex<Deeds>>,
    /// Whether the list of logs is being read.
    listing: Arc<AtomicBool>,
}

impl Guardian {
    /// Creates a guardian that does nothing until [`Guardian::start`].
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

    /// Returns what it has done so far.
    pub fn deeds(&self) -> Deeds {
        lock(&self.deeds).clone()
    }

    /// Starts the procedure, which runs until the node stops.
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
            for (log, version) in self.members.take_told_chains() {
                self.logs.catch_up(&log, version);
            }
            let (looked_at, next) = self.round();
            self.env.sleep(ROUND_PER_LOG * looked_at).await;
            let until = next.unwrap_or(next_patrol).min(next_patrol);
            let wait = until.since(self.env.now()).max(Duration::from_millis(1));
            let _ = self.env.within(wait, self.members.changed.after(seen)).await;
        }
    }

    /// Checks every known log and begins the work that is due. Returns the number of known logs, and when the next check is due, if any is.
    fn round(&self) -> (u32, Option<Tick>) {
        let me = self.members.identity();
        let view = View::of(&self.members, &me, self.env.now(), &self.timings);
        view.doubters().for_each(|node| lock(&self.doubts).heard(view.cluster.now, node));
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
        // Logs whose appenders have reported trouble come first.
        todo.sort_by_key(|(idle, ..)| *idle);
        *lock(&self.waiting) = todo.into_iter().map(|(_, work, log)| (log.name.clone(), work)).collect();
        while let Some((log, work)) = self.take_waiting() {
            self.begin(log, work);
        }
        (u32::try_from(logs.len()).unwrap_or(u32::MAX), next)
    }

    /// Takes the next piece of work and marks its log as busy. None if no work waits, or if this node is already changing [`MOST_AT_ONCE`]
    /// logs.
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

    /// Starts to read the chains of all logs of the cluster, so that logs that this node does not use are guarded, too. Each log is checked
    /// soon after its chain is known: after a power cut, there may be no other node to guard it.
    fn learn_all(&self) {
        if self.listing.swap(true, Ordering::AcqRel) {
            return;
        }
        let me = self.clone();
        let work = async move {
            // If this fails, the next patrol retries.
            let _ = me.logs.survey(|| me.members.changed.notify()).await;
            me.listing.store(false, Ordering::Release);
        };
        self.env.spawn("guardian.list", Box::pin(work));
    }

    /// Determines what a log needs, and when.
    fn look_at(&self, log: &Known, view: &View<'_>, broken: &Broken, trouble: Option<Trouble>) -> Look {
        let Some((loglet, active)) = self.active(&log.chain) else { return Look::Well };
        let mut paces = lock(&self.paces);
        let pace = paces.entry(log.name.clone()).or_default();
        pace.saw(view.cluster.now, loglet);
        self.weigh(pace, view, trouble, &active);
        let Some(reason) = view.assess(&active, trouble) else {
            pace.well();
            let rests_until = pace.rests_until();
            drop(paces);
            return match broken.may_be_in(&log.chain) && self.rebuilds(view) {
                true if rests_until > view.cluster.now => Look::Later(rests_until),
                true => Look::Now(Work::Rebuild(log.chain.clone())),
                false => Look::Well,
            };
        };
        match pace.due(view.cluster.now, &reason, self.unsettled()) {
            at if at > view.cluster.now => Look::Later(at),
            _ => Look::Now(Work::Extend(loglet, reason)),
        }
    }

    /// Returns how long the views of the members may differ after a change.
    fn unsettled(&self) -> Duration {
        self.timings.heartbeat_every * UNSETTLED_BEATS
    }

    /// Turns reports of this node's appenders into distrust. Appenders may run into problems that no heartbeat shows (native-T14), such as
    /// a sequencer that hangs or a network that loses only data. The report of one node is not enough to move a log. Instead, that node's
    /// heartbeats report the distrust, and every node considers which members can work with each other (vlog-V21). The cause may also be
    /// this node itself, see `doubts.rs`.
    fn weigh(&self, pace: &mut Pace, view: &View<'_>, trouble: Option<Trouble>, active: &Active) {
        let (now, me) = (view.cluster.now, view.cluster.me);
        if let Some(node) = trouble.and_then(|trouble| active.suspect(trouble))
            && pace.report(now)
        {
            atoll_core::testing::hit("policy.evidence");
            let whom = lock(&self.doubts).weigh(now, me, node, view.others().count());
            whom.into_iter().for_each(|node| self.members.distrust(node, now.after(DISTRUSTED_FOR)));
        }
    }

    /// Spawns a piece of work, followed by the waiting ones.
    fn begin(&self, log: String, work: Work) {
        let me = self.clone();
        self.env.spawn(
            "guardian.work",
            Box::pin(async move {
                let mut next = Some((log, work));
                while let Some((name, work)) = next {
                    let done = match (me.logs.open(&name), work) {
                        (Ok(log), Work::Extend(from, reason)) => me.extend(&log, from, reason).await,
                        (Ok(log), Work::Rebuild(chain)) => me.rebuild(&log, &chain).await,
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

    /// Returns the logs whose sequencer is on a node, according to the chains that this node knows.
    pub fn sequenced_by(&self, node: NodeId) -> Vec<String> {
        let here = |log: &Known| {
            self.active(&log.chain).is_some_and(|(_, active)| active.duties().is_sequencer(node))
        };
        self.logs.known().into_iter().filter(here).map(|log| log.name).collect()
    }

    fn active(&self, chain: &VersionedChain) -> Option<(LogletId, Active)> {
        let segment = chain.chain.active();
        let provider = self.logs.registry().provider(&segment.kind).ok()?;
        Some((segment.loglet, Active::new(provider, &segment.config)))
    }

    /// Extends a log: waits its turn, rereads the chain, and extends the segment that is active now if there is still a reason. `from` was
    /// active when `reason` was found. Returns false if the attempt failed and must be retried.
    async fn extend(&self, log: &Arc<VirtualLog>, from: LogletId, reason: Reason) -> bool {
        let patience = {
            let me = self.members.identity();
            View::of(&self.members, &me, self.env.now(), &self.timings).patience(&reason)
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
                drop(deeds);
                tracing::info!(log = log.name(), %reason, "the log has a new segment");
                tell_of(&self.env, &self.members, log);
                true
            }
            // Another node was faster. The next round checks the new segment.
            Ok(Ok(false)) => true,
            _ => false,
        }
    }

    /// Returns how to extend the segment that is active in the newest chain, or None if there is no longer a reason, or if it is too early.
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
        // An appender's report about one segment is no evidence about the next one.
        let told = || Some(reason).filter(|_| loglet == seen && view.can_seal(&active));
        let reason = view.assess(&active, None).or_else(told)?;
        let due = {
            let mut paces = lock(&self.paces);
            let pace = paces.entry(log.name().to_owned()).or_default();
            pace.saw(view.cluster.now, loglet);
            pace.due(view.cluster.now, &reason, self.unsettled())
        };
        (due <= view.cluster.now).then(|| (loglet, view.remedy(&reason), reason))
    }

    /// Whether this node rebuilds sealed segments. The node that ranks first does; if it dies, another one takes its rank.
    fn rebuilds(&self, view: &View<'_>) -> bool {
        view.turn(None).is_zero()
    }

    /// Rebuilds one broken segment of a log, see [`Broken::next`]. Returns whether it did. If not, the next attempt begins behind that
    /// segment: if one cannot be read before a node returns, the others must not wait for it.
    async fn rebuild(&self, log: &Arc<VirtualLog>, chain: &VersionedChain) -> bool {
        let after = lock(&self.paces).get(log.name()).and_then(Pace::not_rebuilt);
        let Some(found) = self.broken().next(log, chain, after).await else { return false };
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
        } else {
            lock(&self.paces).entry(log.name().to_owned()).or_default().could_not_rebuild(found.start);
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

/// Tells the other members about the new segment of a log. Their appends may wait for a dead node of the old one.
pub(crate) fn tell_of(env: &Env, members: &Members, log: &VirtualLog) {
    let Some(chain) = log.chain() else { return };
    for node in members.peers() {
        let news = LogExtended { log: log.name().to_owned(), version: chain.version.0 };
        env.post(node, Class::Control, atoll_core::roles::MEMBER, news);
    }
}

/// Decides which sealed segments must be rebuilt, given a snapshot of the members.
#[derive(Clone)]
struct Broken {
    logs: Logs,
    members: Members,
    table: Arc<MemberTable>,
    candidates: Vec<atoll_core::Candidate>,
}

/// Where to look for a broken segment: only behind this position, if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the chain itself.
    Chain(Option<LogPos>),
    /// In the index pages, which hold the segments before those of the chain.
    Pages(Option<LogPos>),
}

/// Returns the places in the order in which to look, so that the segment at `after`, which was tried last and failed, comes last. `begins`
/// is where the segments of the chain itself begin. They come first at the start, because finding them costs nothing.
fn in_turn(after: Option<LogPos>, begins: LogPos) -> [Place; 3] {
    match after {
        _ if mutant(mutants::POLICY_FIRST_BROKEN) => {
            [Place::Chain(None), Place::Pages(None), Place::Chain(None)]
        }
        Some(at) if at < begins => [Place::Pages(after), Place::Chain(None), Place::Pages(None)],
        _ => [Place::Chain(after), Place::Pages(None), Place::Chain(None)],
    }
}

impl Broken {
    /// Whether a log with this chain may have a broken segment. For one in an index page, only [`Broken::next`] finds out.
    fn may_be_in(&self, chain: &VersionedChain) -> bool {
        let in_pages = || chain.chain.pages().iter().any(|p| p.may_be_on(|node, s| self.may_be(node, s)));
        self.first_in(chain, None).is_some() || in_pages()
    }

    /// Returns the first broken segment in the chain itself that starts behind `after`.
    fn first_in(&self, chain: &VersionedChain, after: Option<LogPos>) -> Option<Segment> {
        let is = |s: &&Segment| Some(s.start) > after && s.start != s.stop_or_start() && self.is(s);
        chain.chain.sealed().find(is).cloned()
    }

    /// Returns the next broken segment behind `after`, in the chain or in an index page, or else from the beginning. None if there is none,
    /// or if the pages cannot be read.
    async fn next(self, log: &VirtualLog, chain: &VersionedChain, after: Option<LogPos>) -> Option<Segment> {
        let begins = chain.chain.segments().first().map(|s| s.start).unwrap_or_default();
        for place in in_turn(after, begins) {
            let found = match place {
                Place::Chain(after) => self.first_in(chain, after),
                Place::Pages(after) => {
                    let (may, is) = (self.clone(), self.clone());
                    let find = log.find_in_pages(
                        move |node, storage| may.may_be(node, storage),
                        move |s| Some(s.start) > after && is.is(s),
                    );
                    find.await.ok().and_then(Result::ok).flatten()
                }
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Whether a segment with a copy on this data directory may be broken. [`Broken::is`] decides, because it also considers the other
    /// servers.
    fn may_be(&self, node: NodeId, storage: StorageId) -> bool {
        match self.table.nodes.get(&node) {
            Some(row) => {
                (row.storage.0 != 0 && row.storage != storage && self.members.is_alive(node)) || row.draining
            }
            None => self.table.version > 0,
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
        // Lazy, because most segments are on members that stay.
        let can_leave = || can_do_without_drained(self.candidates.iter(), servers.len());
        servers.iter().any(|(node, storage)| match table.nodes.get(node) {
            Some(row) => {
                (row.storage.0 != 0 && row.storage != *storage && self.members.is_alive(*node))
                    || (row.draining && can_leave())
            }
            None => table.version > 0 && spare(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::table::Member;
    use atoll_contract::Registry;
    use atoll_core::{Incarnation, NodeCore};
    use atoll_log::memory::MemoryServers;
    use atoll_log::virtual_log::Options;

    #[test]
    fn a_table_that_was_not_read_yet_does_not_say_who_was_removed() {
        let env = NodeCore::new(NodeId(1), Incarnation(1), 1).env();
        let servers = MemoryServers::new(&[NodeId(1)]);
        let registry = Registry::new().with(servers.provider(&env, "memory", true));
        let registers = servers.registers(&env);
        let logs = Logs::new(env, registers, registry, Options::default(), Default::default());
        let is_removed = |version| {
            let me = Identity {
                node: NodeId(1),
                incarnation: Incarnation(1),
                storage: StorageId(1),
                log: true,
                sequencer: true,
                meta: true,
                draining: false,
                failed: false,
            };
            let nodes = [(NodeId(1), Member::of(&me, String::new(), String::new(), String::new()))].into();
            let table = MemberTable { version, nodes, ..MemberTable::default() };
            let members = Members::new(me, table.clone());
            let broken =
                Broken { logs: logs.clone(), members, table: Arc::new(table), candidates: Vec::new() };
            broken.may_be(NodeId(2), StorageId(2))
        };
        assert!(is_removed(1));
        assert!(!is_removed(0), "node 2 may be a member that the configuration file does not list");
    }

    #[test]
    fn segments_that_cannot_be_rebuilt_do_not_keep_the_others_from_their_turn() {
        // The segments at the positions below 10 are in index pages.
        let begins = LogPos(10);
        let cannot = [0, 5, 10, 15].map(LogPos);
        let mut broken: Vec<LogPos> = (0..20).map(LogPos).collect();
        let (mut after, mut attempts) = (None, 0);
        while broken.len() > cannot.len() {
            let found = in_turn(after, begins).into_iter().find_map(|place| {
                let (in_pages, after) = match place {
                    Place::Pages(after) => (true, after),
                    Place::Chain(after) => (false, after),
                };
                broken.iter().copied().find(|at| (*at < begins) == in_pages && Some(*at) > after)
            });
            match found {
                Some(at) if cannot.contains(&at) => after = Some(at),
                at => broken.retain(|other| Some(*other) != at),
            }
            attempts += 1;
            assert!(attempts <= 30, "after 30 attempts, {broken:?} are still broken");
        }
    }
}
