//! What a policy demands now: a function of the policy, of what a node observed, and of what nodes did before. It knows no clock, no log
//! and no node. Whatever it returns is done by `keeper.rs`, each step on the condition that what it was decided on has not changed.

use atoll_contract::{LogPos, LogletId};
use atoll_core::NodeId;
use atoll_core::testing::mutant;

use super::declared::{Action, Book, Cold, Kind, LogPolicy, Outcome, Placement};
use crate::mutants;

/// The most servers of a converged Loglet.
const MOST_SERVERS: usize = 9;
/// A log does not converge on fewer servers than this, unless there are not so many.
const COPIES: usize = 3;

/// A segment with readable positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentFact {
    /// Its first readable position.
    pub start: LogPos,
    /// The first position behind it; the tail, if it is active.
    pub stop: LogPos,
    /// Its Loglet.
    pub loglet: LogletId,
    /// Whether it is where cold segments are.
    pub is_cold: bool,
    /// About how many bytes it has. None if that is not known.
    pub bytes: Option<u64>,
}

impl SegmentFact {
    fn is_empty(&self) -> bool {
        self.start >= self.stop
    }
}

/// Where the active segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// On nodes with a replica of the database only.
    Converged,
    /// On the Loglet that the policy names for the time without enough replicas.
    Elsewhere,
    /// Anywhere else.
    Other,
}

/// A node that may have a replica of the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The node.
    pub node: NodeId,
    /// It is up, and its replica is in service.
    pub is_live: bool,
    /// It may hold entries.
    pub holds: bool,
}

/// What a node observed of a log and the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The time of the node, in milliseconds since the Unix epoch.
    pub now_ms: u64,
    /// Whether the log is the database's.
    pub is_database: bool,
    /// The first readable position.
    pub trim: LogPos,
    /// The sealed segments, the oldest first.
    pub sealed: Vec<SegmentFact>,
    /// The active segment.
    pub active: SegmentFact,
    /// Where it is.
    pub standing: Standing,
    /// How many nodes hold its entries; 0 if it is outside of the nodes.
    pub holders: usize,
    /// The nodes that may have a replica.
    pub replicas: Vec<Replica>,
}

/// What a node remembers from one look to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Whether too few replicas live, and since when.
    low: Option<(bool, u64)>,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// The log continues on these nodes, if this Loglet is still active.
    Converge {
        /// The active Loglet.
        from: LogletId,
        /// The servers.
        nodes: Vec<NodeId>,
    },
    /// The log continues on the Loglet that the policy names, if this Loglet is still active.
    Leave {
        /// The active Loglet.
        from: LogletId,
    },
    /// Positions below are given up.
    Trim {
        /// The position, where a sealed segment stops.
        to: LogPos,
    },
    /// The log continues in a segment of the same kind, if this Loglet is still active.
    Seal {
        /// The active Loglet.
        from: LogletId,
    },
    /// A sealed segment moves to the store, if the chain still has it.
    Cool {
        /// Its Loglet.
        loglet: LogletId,
        /// Its first position.
        start: LogPos,
    },
}

/// An action with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub act: Act,
    /// A description of it, for people.
    pub what: String,
    /// The reason, for people.
    pub reason: String,
}

impl Step {
    /// Returns what kind of action it is.
    pub fn kind(&self) -> Kind {
        match self.act {
            Act::Converge { .. } | Act::Leave { .. } => Kind::Place {},
            Act::Trim { .. } => Kind::Trim {},
            Act::Seal { .. } => Kind::Seal {},
            Act::Cool { .. } => Kind::Cool {},
        }
    }
}

/// What is to be done now, at most one step of each kind, the most urgent first; and what is not done yet, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// What is to be done.
    pub steps: Vec<Step>,
    /// What has to wait, and why.
    pub waits: Vec<String>,
}

/// Returns a number of milliseconds as people write it.
pub fn span(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..120_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        120_000..7_200_000 => format!("{} min", ms / 60_000),
        7_200_000..172_800_000 => format!("{} h", ms / 3_600_000),
        _ => format!("{} d", ms / 86_400_000),
    }
}

/// Returns a number of bytes as people write it.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} bytes"),
        10_000..10_000_000 => format!("{} kB", bytes / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        _ => format!("{} GB", bytes / 1_000_000_000),
    }
}

/// Decides what to do. See the module documentation.
pub fn decide(policy: &LogPolicy, facts: &Facts, book: &Book, watch: &mut Watch) -> Decision {
    let mut decision = Decision::default();
    let all = [
        policy.placement.as_ref().and_then(|p| place(p, facts, book, watch, &mut decision.waits)),
        trim(policy, facts, book, &mut decision.waits),
        seal(policy, facts, book),
        policy.cold.as_ref().and_then(|cold| cool(cold, facts, book, &mut decision.waits)),
    ];
    decision.steps.extend(all.into_iter().flatten());
    let is = |step: &Step, kind: Kind| step.kind() == kind;
    // A new placement seals the segment, too.
    if decision.steps.iter().any(|step| is(step, Kind::Place {})) {
        decision.steps.retain(|step| !is(step, Kind::Seal {}));
    }
    // What is given up does not move before.
    if let Some(Act::Trim { to }) =
        decision.steps.iter().map(|step| &step.act).find(|act| matches!(act, Act::Trim { .. }))
    {
        let to = *to;
        decision.steps.retain(|step| !matches!(step.act, Act::Cool { start, .. } if start < to));
    }
    decision
}

/// Switches between the replicas and elsewhere. A state of the replicas must last before it counts, and switches have a least distance.
fn place(
    policy: &Placement,
    facts: &Facts,
    book: &Book,
    watch: &mut Watch,
    waits: &mut Vec<String>,
) -> Option<Step> {
    let (now, all) = (facts.now_ms, facts.replicas.len());
    let live = facts.replicas.iter().filter(|replica| replica.is_live).count();
    let is_low = live < policy.least_replicas as usize;
    let since = match watch.low {
        Some((low, since)) if low == is_low => since,
        _ => now,
    };
    watch.low = Some((is_low, since));
    let from = facts.active.loglet;
    let (act, what, must) = if is_low {
        let elsewhere = policy.elsewhere.as_ref().filter(|_| facts.standing != Standing::Elsewhere)?;
        (
            Act::Leave { from },
            format!("move the log to a loglet of kind {}", elsewhere.kind),
            policy.settle_ms,
        )
    } else {
        if facts.standing == Standing::Converged {
            return None;
        }
        let nodes = servers(facts);
        if nodes.is_empty() {
            waits.push(
                "the log cannot converge: too few live nodes with a replica may hold entries".to_owned(),
            );
            return None;
        }
        let names: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
        let what = format!("move the log to the replicas on nodes {}", names.join(", "));
        (Act::Converge { from, nodes }, what, policy.return_ms)
    };
    let lasted = now.saturating_sub(since);
    let state = match (is_low, policy.least_replicas) {
        (true, least) => format!("{live} of {all} replicas live, fewer than {least}, for {}", span(lasted)),
        (false, 0) => format!("it is not there, and {live} of {all} replicas live, for {}", span(lasted)),
        (false, least) => format!("{live} of {all} replicas live, at least {least}, for {}", span(lasted)),
    };
    if lasted < must && !mutant(mutants::POLICY_FLAPS) {
        waits.push(format!("{what}: {state}; that must last for {}", span(must)));
        return None;
    }
    if let Some(rests) = rests(policy, now, book.last(&Kind::Place {})) {
        waits.push(format!("{what}: {state}; the last switch must be {} ago first", span(rests)));
        return None;
    }
    Some(Step { act, what, reason: state })
}

/// Returns the live replicas that become servers, an odd number. None if they are too few: the log must not get fewer copies than it has,
/// or than its replicas could hold.
fn servers(facts: &Facts) -> Vec<NodeId> {
    let odd = |count: usize| count - usize::from(count.is_multiple_of(2) && count > 0);
    let could = facts.replicas.iter().filter(|replica| replica.holds);
    let fit = could.clone().filter(|replica| replica.is_live);
    let mut nodes: Vec<NodeId> = fit.map(|replica| replica.node).take(MOST_SERVERS).collect();
    nodes.truncate(odd(nodes.len()));
    let least = odd(could.count().min(COPIES)).max(facts.holders.min(COPIES));
    if nodes.len() < least {
        nodes.clear();
    }
    nodes
}

/// Returns for how long the policy rests after the last switch, while it does.
fn rests(policy: &Placement, now: u64, last: Option<&Action>) -> Option<u64> {
    let switched = last.filter(|action| !matches!(action.outcome, Outcome::Failed { .. }))?;
    let is_early = now.saturating_sub(switched.at_ms) < policy.rest_ms && !mutant(mutants::POLICY_FLAPS);
    is_early.then_some(policy.rest_ms)
}

/// Returns for how long a segment has been sealed, in milliseconds, at least.
fn age(facts: &Facts, book: &Book, stop: LogPos) -> Option<u64> {
    book.sealed_by(stop).map(|at| facts.now_ms.saturating_sub(at))
}

/// Gives up whole sealed segments: those that are too old, and the oldest as long as enough bytes stay.
fn trim(policy: &LogPolicy, facts: &Facts, book: &Book, waits: &mut Vec<String>) -> Option<Step> {
    if facts.is_database {
        return None;
    }
    let by_age = policy.keep_age_ms.and_then(|keep| {
        let is_old = |segment: &&SegmentFact| age(facts, book, segment.stop).is_some_and(|age| age >= keep);
        let count = facts.sealed.iter().take_while(is_old).count();
        let oldest = age(facts, book, facts.sealed.first()?.stop)?;
        Some((
            count,
            format!("the oldest segment was sealed {} ago; it is kept for {}", span(oldest), span(keep)),
        ))
    });
    let by_size = policy.keep_bytes.and_then(|keep| match weigh(facts) {
        Some(whole) => {
            let mut left = whole;
            let goes = |segment: &&SegmentFact| {
                left = left.saturating_sub(segment.bytes.unwrap_or(u64::MAX));
                left >= keep
            };
            let count = facts.sealed.iter().take_while(goes).count();
            Some((count, format!("the log has about {}; {} are kept", size(whole), size(keep))))
        }
        None => {
            waits.push("trim by size: the sizes of some segments are not known yet".to_owned());
            None
        }
    });
    let (mut count, reason) = by_age.into_iter().chain(by_size).max_by_key(|(count, _)| *count)?;
    if count > 0 && mutant(mutants::POLICY_TRIMS_ONE_MORE) {
        count = (count + 1).min(facts.sealed.len());
    }
    let to = facts.sealed.get(count.checked_sub(1)?)?.stop;
    (to > facts.trim).then(|| Step {
        act: Act::Trim { to },
        what: format!("trim the log below {to}"),
        reason,
    })
}

/// Returns about how many bytes all segments have together. None if that is not known.
fn weigh(facts: &Facts) -> Option<u64> {
    facts.sealed.iter().chain([&facts.active]).map(|segment| segment.bytes).sum()
}

/// Seals the active segment once it is old or large, because only sealed segments become cold or are given up.
fn seal(policy: &LogPolicy, facts: &Facts, book: &Book) -> Option<Step> {
    let active = &facts.active;
    if active.is_empty() {
        return None;
    }
    let old = policy.seal_age_ms().zip(age(facts, book, active.start)).filter(|(most, age)| age >= most);
    let large = policy.seal_bytes().zip(active.bytes).filter(|(most, bytes)| bytes >= most);
    let reason = match (old, large) {
        (Some((most, age)), _) => {
            format!("it began {} ago; a segment is sealed after {}", span(age), span(most))
        }
        (None, Some((most, bytes))) => {
            format!("it has about {}; a segment is sealed at {}", size(bytes), size(most))
        }
        (None, None) => return None,
    };
    let (act, what) =
        (Act::Seal { from: active.loglet }, format!("seal the segment that begins at {}", active.start));
    Some(Step { act, what, reason })
}

/// Moves the oldest segment that is cold and not in the store yet.
fn cool(policy: &Cold, facts: &Facts, book: &Book, waits: &mut Vec<String>) -> Option<Step> {
    let is_hot = |segment: &&SegmentFact| !segment.is_cold && !segment.is_empty();
    let oldest = facts.sealed.iter().find(is_hot)?;
    let old = policy.age_ms.zip(age(facts, book, oldest.stop)).filter(|(most, age)| age >= most);
    let hot = || facts.sealed.iter().chain([&facts.active]).filter(is_hot);
    let large =
        policy.hot_bytes.and_then(|most| match hot().map(|segment| segment.bytes).sum::<Option<u64>>() {
            Some(bytes) => (bytes > most).then_some((most, bytes)),
            None => {
                waits.push("move by size: the sizes of some segments are not known yet".to_owned());
                None
            }
        });
    let reason = match (old, large) {
        (Some((most, age)), _) => format!("it was sealed {} ago; cold after {}", span(age), span(most)),
        (None, Some((most, bytes))) => {
            format!("about {} are on the nodes; at most {} should be", size(bytes), size(most))
        }
        (None, None) => return None,
    };
    let act = Act::Cool { loglet: oldest.loglet, start: oldest.start };
    let what =
        format!("move the segment {}..{} to the {} loglets", oldest.start, oldest.stop, policy.to.kind);
    Some(Step { act, what, reason })
}
