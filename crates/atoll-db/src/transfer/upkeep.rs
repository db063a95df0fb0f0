//! Periodically commits, asks the other replicas for their progress, compares hashes, and trims the log. Ends surgery on the log that was
//! left under way. Starts scrubs, which run beside this, because they take long.
//!
//! The trim policy: the log is trimmed below the position that is durable in the stores of all replicas in service. The last
//! `keep_entries` entries are kept, so that a node that was away for a short time catches up from the log; a node that was away for
//! longer needs a refill. More than half of all replicas must be in service, so that trimmed entries survive the loss of a minority
//! of the disks. The trim does not wait for a replica that is out of service, even though its node is up (X26), nor for one whose
//! store accepts no commits, nor for one that has not answered for a long time. It does wait for one whose only fault is a refused
//! clock. It waits for a backup as long as the backup asks for it ([`crate::Database::keep_from`]). The node with the lowest id among those
//! in service trims. Two nodes that trim at the same time do no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use atoll_contract::{LogPos, Nonce};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Env, NodeId, Tick};
use atoll_log::{VersionedChain, VirtualLog};

use super::message::{AskReplica, AskService, ReplicaReport, ServiceReport};
use super::scrub::{Pace, scrub};
use crate::engine::{Cluster, Core, Divergence, Options};
use crate::mutants;
use crate::replica::HashAt;

/// The longest wait for the answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// How long the trim waits for a node that is up but does not answer.
const SILENT_FOR: Duration = Duration::from_secs(60);
/// The log is trimmed only if at least `keep_entries` divided by this many entries can be trimmed, because each trim writes to the
/// register.
const WORTH_SHARE: u64 = 4;

/// See the module documentation.
pub(crate) struct Upkeep {
    pub(crate) env: Env,
    pub(crate) core: Arc<Core>,
    pub(crate) log: Arc<VirtualLog>,
    pub(crate) cluster: Cluster,
    pub(crate) commit: Box<dyn Fn() + Send + Sync>,
    pub(crate) threads: bool,
    pub(crate) options: Options,
    /// Whether a scrub is under way.
    pub(crate) scrubbing: Arc<AtomicBool>,
    /// The nodes that are up but do not answer, and since when.
    pub(crate) silent: BTreeMap<NodeId, Tick>,
    /// The surgery that is under way, and since when this replica knows of it.
    pub(crate) surgery: Option<(Nonce, Tick)>,
}

/// The answers of a replica.
struct PeerReport {
    replica: ReplicaReport,
    /// The trim does not wait for it.
    out: bool,
}

/// Returns true if the trim does not wait for a replica.
fn is_out(reports: &ServiceReport) -> bool {
    (reports.out_of_service || reports.behind) && !mutant(mutants::DB_HALTED_HOLDS_TRIM)
}

impl Upkeep {
    /// Repeats the upkeep forever.
    pub(crate) async fn run(mut self) {
        let mut next_scrub = self.env.now().after(self.env.jitter(self.options.scrub_every));
        loop {
            self.env.sleep(self.env.jitter(self.options.upkeep_every)).await;
            if self.core.halted().is_none() {
                (self.commit)();
            }
            let reports = self.ask().await;
            self.compare(&reports);
            self.note_silence(&reports);
            self.trim(&reports).await;
            self.end_surgery().await;
            if self.scrubbing.load(Ordering::Relaxed) {
                // A scrub takes hours if the store is large. The next one is due that long after its end.
                next_scrub = self.env.now().after(self.env.jitter(self.options.scrub_every));
            } else if self.core.take_scrub() || self.env.now() >= next_scrub {
                self.begin_scrub();
            }
        }
    }

    /// Asks the replicas whose nodes count as up. Returns None for each one that did not answer.
    async fn ask(&self) -> BTreeMap<NodeId, Option<PeerReport>> {
        let peers = self.cluster.peers(self.env.node()).into_iter();
        let peers: Vec<NodeId> = peers.filter(|c| c.alive).map(|c| c.node).collect();
        let until = self.env.now().after(ANSWERS_WITHIN);
        let mut reports: BTreeMap<_, _> = peers.iter().map(|n| (*n, None)).collect();
        let answers = self.env.gather(&peers, AskReplica {}, until, |_| false).await.into_ok();
        let answers: Vec<(NodeId, ReplicaReport)> = answers.collect();
        let answering: Vec<NodeId> = answers.iter().map(|(node, _)| *node).collect();
        let until = self.env.now().after(ANSWERS_WITHIN);
        let services = self.env.gather(&answering, AskService {}, until, |_| false).await.into_ok();
        let services: Vec<(NodeId, ServiceReport)> = services.collect();
        for (node, replica) in answers {
            let service = services.iter().find(|(of, _)| *of == node).map(|(_, service)| service);
            // The trim waits for a replica that does not report whether it is in service.
            reports.insert(node, Some(PeerReport { replica, out: service.is_some_and(is_out) }));
        }
        reports
    }

    fn compare(&self, reports: &BTreeMap<NodeId, Option<PeerReport>>) {
        if self.core.is_withheld() || self.core.check.is_under_way() {
            return;
        }
        let mut compared = false;
        let mine = self.core.samples();
        let hash_at = |hashes: &[HashAt], below| hashes.iter().find(|h| h.below == below).map(|h| h.hash);
        for sample in mine.iter().rev() {
            let theirs: Vec<(NodeId, u128)> = reports
                .iter()
                .filter_map(|(node, reports)| {
                    let hashes: Vec<HashAt> =
                        reports.as_ref()?.replica.hashes.iter().map(HashAt::from).collect();
                    Some((*node, hash_at(&hashes, sample.below)?))
                })
                .collect();
            compared |= !theirs.is_empty();
            let Some((node, hash)) = theirs.iter().find(|(_, hash)| *hash != sample.hash) else { continue };
            hit("db.upkeep.differ");
            let against = theirs.iter().filter(|(_, h)| h == hash).count();
            let with = 1 + theirs.iter().filter(|(_, h)| *h == sample.hash).count();
            let found = Divergence { below: sample.below, mine: sample.hash, peer: *node, theirs: *hash };
            // This replica is the wrong one if it is outvoted. Two replicas alone cannot decide which of them is wrong.
            self.core.diverged(found, against > with);
            return;
        }
        if compared {
            self.core.agreed();
        }
    }

    /// Starts a scrub, which this upkeep does not wait for.
    fn begin_scrub(&self) {
        if self.core.is_withheld() {
            return;
        }
        self.scrubbing.store(true, Ordering::Relaxed);
        let (env, core, threads) = (self.env.clone(), self.core.clone(), self.threads);
        let (cluster, scrubbing) = (self.cluster.clone(), self.scrubbing.clone());
        let procedure = async move {
            let base = core.published().layers.base.clone();
            match scrub(&env, base, threads, Pace::Slowly).await {
                // Without other replicas, there is no peer that could refill this one.
                Some(found) => core.scrubbed(found, !cluster.peers(env.node()).is_empty()),
                None => core.ask_for_scrub(),
            }
            scrubbing.store(false, Ordering::Relaxed);
        };
        self.env.spawn("db.scrub", Box::pin(procedure));
    }

    /// Records since when nodes that are up have not answered.
    fn note_silence(&mut self, reports: &BTreeMap<NodeId, Option<PeerReport>>) {
        let now = self.env.now();
        self.silent.retain(|node, _| reports.get(node).is_some_and(Option::is_none));
        for (node, _) in reports.iter().filter(|(_, answer)| answer.is_none()) {
            self.silent.entry(*node).or_insert(now);
        }
    }

    /// Returns the position below which every entry is durable on enough replicas. None if too few are in service, if a silent one
    /// may still need entries, or if another node trims.
    fn covered(&self, reports: &BTreeMap<NodeId, Option<PeerReport>>) -> Option<LogPos> {
        let (me, now) = (self.env.node(), self.env.now());
        if is_out(&self.core.service()) {
            return None;
        }
        let mut below = self.core.durable_below();
        let mut in_service = 1;
        for (node, answer) in reports {
            match answer {
                Some(answer) if answer.out => hit("db.upkeep.not_waited_for"),
                Some(_) if *node < me => return None,
                Some(answer) => {
                    below = below.min(answer.replica.durable_below);
                    in_service += 1;
                }
                // The node is up but silent. It may need the entries that would be trimmed.
                None if self.silent.get(node).is_none_or(|since| now.since(*since) < SILENT_FOR) => {
                    return None;
                }
                None => hit("db.upkeep.silent"),
            }
        }
        let all = 1 + self.cluster.peers(me).len();
        (2 * in_service > all).then_some(below)
    }

    /// Gives up a surgery that has been under way for longer than any takes: the node that did it has died, or it does not know that it
    /// has begun one. Its entry stays as it was. A replica that does not know of the surgery does not wait for it either.
    async fn end_surgery(&mut self) {
        let known = self.surgery.take();
        let id_of = |chain: &VersionedChain| chain.chain.surgery().hold().map(|hold| hold.patch.id);
        let Some(id) = self.log.chain().as_deref().and_then(id_of) else { return };
        let now = self.env.now();
        let since = known.filter(|(known, _)| *known == id).map_or(now, |(_, since)| since);
        self.surgery = Some((id, since));
        if now.since(since) >= self.options.held_at_most {
            hit("db.upkeep.hold_ended");
            // If it fails, the next upkeep tries again.
            let _ = self.log.release_hold(id).await;
        }
    }

    async fn trim(&self, reports: &BTreeMap<NodeId, Option<PeerReport>>) {
        let Some(durable_below) = self.covered(reports) else { return };
        let keep = self.options.keep_entries;
        let mut to = LogPos(durable_below.0.saturating_sub(keep));
        if let Some(kept) = self.core.kept_from().filter(|kept| *kept < to) {
            hit("db.upkeep.kept");
            to = kept;
        }
        let from = self.log.chain().map_or(LogPos::ZERO, |chain| chain.chain.trim());
        if to.since(from) < (keep / WORTH_SHARE).max(1) {
            return;
        }
        hit("db.upkeep.trim");
        // If it fails, the next upkeep tries again.
        let _ = self.log.trim(to).await;
    }
}
