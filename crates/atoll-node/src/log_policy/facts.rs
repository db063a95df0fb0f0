//! Observes what a policy depends on: the segments of the log and about how large they are, and which replicas of the database live.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{LogPos, ReadFrom, Registry};
use atoll_core::{Directory, Env, NodeId};
use atoll_db::Cluster;
use atoll_door::DATABASE_LOG;
use atoll_log::virtual_log::{LogError, Segment, VersionedChain, VirtualLog};

use super::decide::{Facts, Replica, SegmentFact, Standing};
use super::declared::LogPolicy;
use crate::members::Members;
use crate::replica::is_in_service;

/// How long a log may take to answer a question.
const ANSWER: Duration = Duration::from_secs(2);
/// The most segments that one look goes through, the oldest first. What is behind them has to wait until these are fewer.
const MOST_SEGMENTS: usize = 4096;
/// A segment is weighed at so many places.
const PLACES: u64 = 4;
/// About how many bytes are read at each of them.
const SAMPLE_BYTES: usize = 64 * 1024;
/// The most segments that are weighed in one look.
const WEIGHED_AT_ONCE: usize = 8;
/// Bytes of an entry that are not its payload.
const ENTRY_BYTES: u64 = atoll_contract::entry::ENTRY_HEADER_BYTES as u64;

/// What was found when a segment was weighed.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// It was weighed up to here.
    stop: LogPos,
    entries: u64,
    bytes: u64,
}

impl Weight {
    /// Returns about how many bytes so many entries have.
    fn of(&self, entries: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(entries) / u128::from(self.entries.max(1));
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// The segments of a log, and how large they are. A node keeps this from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Scales {
    walked: Option<(Arc<VersionedChain>, Vec<Segment>)>,
    /// By the first position. Bounded by the segments of the chain that was walked.
    weights: BTreeMap<LogPos, Weight>,
}

impl Scales {
    /// Returns all segments with readable positions, the active one last. Only a changed chain is walked again.
    async fn segments(
        &mut self,
        env: &Env,
        log: &VirtualLog,
        chain: &Arc<VersionedChain>,
    ) -> Option<Vec<Segment>> {
        if let Some((_, segments)) =
            self.walked.as_ref().filter(|(walked, _)| walked.version == chain.version)
        {
            return Some(segments.clone());
        }
        let (mut all, mut from) = (Vec::new(), Some(chain.chain.trim()));
        while let Some(at) = from.take().filter(|_| all.len() < MOST_SEGMENTS) {
            let page = env.within(ANSWER, log.segments_from(at)).await.ok()?.ok()?.ok()?;
            all.extend(page.segments);
            from = page.next;
        }
        if from.is_some() {
            // There are more than one look may go through.
            let active = chain.chain.active().clone();
            all.retain(|segment: &Segment| segment.stop.is_some());
            all.push(active);
        }
        // Another change may have come between the pages.
        let is_whole = all.last().is_some_and(|last| last == chain.chain.active());
        if !is_whole {
            return None;
        }
        self.weights.retain(|start, _| all.iter().any(|segment| segment.start == *start));
        self.walked = Some((chain.clone(), all.clone()));
        Some(all)
    }

    /// Returns about how many bytes the entries in a range have, which belong to one segment. `left` counts the segments that may still be
    /// weighed in this look. None: it was not weighed.
    async fn weigh(
        &mut self,
        env: &Env,
        log: &VirtualLog,
        key: LogPos,
        start: LogPos,
        stop: LogPos,
        left: &mut usize,
    ) -> Option<u64> {
        let entries = stop.since(start);
        if entries == 0 {
            return Some(0);
        }
        let known = self.weights.get(&key).copied();
        // The active segment is weighed again when it has grown by a quarter.
        let is_fresh = |weight: &Weight| stop.since(key) <= weight.stop.since(key) / 4 * 5;
        if let Some(weight) = known.filter(is_fresh) {
            return Some(weight.of(entries));
        }
        if *left == 0 {
            return known.map(|weight| weight.of(entries));
        }
        *left -= 1;
        let weight = sample(env, log, start, stop).await.or(known)?;
        self.weights.insert(key, weight);
        Some(weight.of(entries))
    }
}

/// Reads some entries of a range, and measures them. If they are all, the result is exact.
async fn sample(env: &Env, log: &VirtualLog, start: LogPos, stop: LogPos) -> Option<Weight> {
    let (whole, mut next) = (stop.since(start), start);
    let (mut entries, mut bytes) = (0, 0);
    for place in 0..PLACES {
        let from = next.max(start.plus(whole / PLACES * place));
        if from >= stop {
            break;
        }
        let read = env.within(ANSWER, log.read(from..stop, SAMPLE_BYTES, ReadFrom::Anywhere)).await;
        let read = read.ok()?.ok()?.ok()?;
        entries += read.entries.len() as u64;
        bytes += read.entries.iter().map(|entry| entry.payload.len() as u64 + ENTRY_BYTES).sum::<u64>();
        next = read.next();
    }
    (entries > 0).then_some(Weight { stop, entries, bytes })
}

/// Returns the nodes that may have a replica of the database.
pub(super) fn replicas(members: &Members) -> Vec<Replica> {
    let me = members.identity().node;
    let is_live = |node: NodeId| (node == me || members.is_up(node)) && is_in_service(members, node);
    let candidates = members.candidates().into_iter().filter(|c| !c.draining);
    candidates
        .filter(|c| Cluster::may_have_replica(c.meta, c.sequencer))
        .map(|c| Replica { node: c.node, is_live: is_live(c.node) && !c.failing, holds: c.log })
        .collect()
}

/// Returns where the active segment is, as a policy sees it.
fn standing(policy: &LogPolicy, registry: &Registry, segment: &Segment, replicas: &[Replica]) -> Standing {
    let (Some(placement), Ok(provider)) = (&policy.placement, registry.provider(&segment.kind)) else {
        return Standing::Other;
    };
    if placement.elsewhere.as_ref().is_some_and(|wanted| wanted.is(&**provider, &segment.config)) {
        return Standing::Elsewhere;
    }
    let duties = provider.duties(&segment.config);
    let has_replica = |node: NodeId| replicas.iter().any(|replica| replica.node == node);
    let mut holders = duties.holders().peekable();
    let converged = segment.kind == placement.kind
        && holders.peek().is_some()
        && holders.all(|(node, _)| has_replica(node));
    if converged { Standing::Converged } else { Standing::Other }
}

/// Why a log was not observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// It was deleted.
    Deleted,
    /// It does not exist, or was ended.
    NoLog,
    /// It did not answer.
    Silent(String),
}

/// Observes a log. `now_ms` is the time of this node.
pub(super) async fn observe(
    env: &Env,
    members: &Members,
    log: &VirtualLog,
    policy: &LogPolicy,
    scales: &mut Scales,
    now_ms: u64,
) -> Result<Facts, Unseen> {
    let silent = |what: &str| Unseen::Silent(what.to_owned());
    let chain = match env.within(ANSWER, log.refresh()).await {
        Ok(Ok(Ok(chain))) => chain,
        Ok(Ok(Err(LogError::Deleted))) => return Err(Unseen::Deleted),
        Ok(Ok(Err(LogError::NoSuchLog))) => return Err(Unseen::NoLog),
        Ok(Ok(Err(error))) => return Err(Unseen::Silent(error.to_string())),
        Ok(Err(_)) | Err(_) => return Err(silent("its chain does not answer")),
    };
    if chain.chain.active().is_end() {
        return Err(Unseen::NoLog);
    }
    let trim = chain.chain.trim();
    let segments = scales.segments(env, log, &chain).await.ok_or_else(|| silent("its chain changes"))?;
    // Without an answer, the active segment seems shorter than it is.
    let tail = match env.within(ANSWER, log.check_tail()).await {
        Ok(Ok(Ok(tail))) => tail,
        _ => log.known_tail(),
    };
    let registry = log.registry();
    let is_cold = |segment: &Segment| {
        let provider = registry.provider(&segment.kind);
        policy
            .cold
            .as_ref()
            .zip(provider.ok())
            .is_some_and(|(cold, provider)| cold.to.is(&**provider, &segment.config))
    };
    let mut facts = Vec::new();
    let mut left = if policy.weighs() { WEIGHED_AT_ONCE } else { 0 };
    for segment in &segments {
        let start = segment.start.max(trim);
        let stop = segment.stop.unwrap_or(tail).max(start);
        let bytes = scales.weigh(env, log, segment.start, start, stop, &mut left).await;
        facts.push(SegmentFact { start, stop, loglet: segment.loglet, is_cold: is_cold(segment), bytes });
    }
    let (replicas, segment) = (replicas(members), chain.chain.active());
    let standing = standing(policy, registry, segment, &replicas);
    let provider = registry.provider(&segment.kind);
    let holders = provider.map_or(0, |provider| provider.duties(&segment.config).holders().count());
    let active = facts.pop().ok_or_else(|| silent("its chain has no segment"))?;
    let is_database = log.name() == DATABASE_LOG;
    Ok(Facts { now_ms, is_database, trim, sealed: facts, active, standing, holders, replicas })
}
