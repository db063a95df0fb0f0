//! Every now and then: commit, ask the other replicas how far they are, compare hashes, trim the log.
//!
//! The policy of the trim: behind what is durable in the stores of all replicas that are believed to be up, the last `keep_entries` stay,
//! so that a node that was away for a short time catches up from the log; one that was away for longer fetches a snapshot.
//! One node does it, the one with the lowest number of those that are up; two at once do no harm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::testing::hit;
use atoll_core::{Env, NodeId};
use atoll_log::{LogPos, VirtualLog};

use super::message::{AskReplica, ReplicaTold};
use super::scrub::scrub;
use crate::engine::{Cluster, Core, Divergence, Options};
use crate::replica::HashAt;

/// Longest wait for the answers.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);
/// The log is trimmed when this share of what is kept, at least, can go: each trim is a write to the register.
const WORTH_SHARE: u64 = 4;

/// See the module's words.
pub(crate) struct Patrol {
    pub(crate) env: Env,
    pub(crate) core: Arc<Core>,
    pub(crate) log: Arc<VirtualLog>,
    pub(crate) cluster: Cluster,
    pub(crate) commit: Box<dyn Fn() + Send + Sync>,
    pub(crate) threads: bool,
    pub(crate) options: Options,
}

impl Patrol {
    /// For ever.
    pub(crate) async fn run(self) {
        let mut next_scrub = self.env.now().after(self.env.jitter(self.options.scrub_every));
        loop {
            self.env.sleep(self.env.jitter(self.options.patrol_every)).await;
            if self.core.halted().is_none() {
                (self.commit)();
            }
            let told = self.ask().await;
            self.compare(&told);
            self.trim(&told).await;
            if self.core.take_scrub() || self.env.now() >= next_scrub {
                self.scrub().await;
                next_scrub = self.env.now().after(self.env.jitter(self.options.scrub_every));
            }
        }
    }

    /// What the replicas that are believed to be up say: None of one that did not answer.
    async fn ask(&self) -> BTreeMap<NodeId, Option<ReplicaTold>> {
        let peers = self.cluster.peers(self.env.node()).into_iter();
        let peers: Vec<NodeId> = peers.filter(|c| c.alive).map(|c| c.node).collect();
        let until = self.env.now().after(ANSWERS_WITHIN);
        let mut told: BTreeMap<_, _> = peers.iter().map(|n| (*n, None)).collect();
        for (node, answer) in self.env.gather(&peers, AskReplica {}, until, |_| false).await.into_ok() {
            told.insert(node, Some(answer));
        }
        told
    }

    fn compare(&self, told: &BTreeMap<NodeId, Option<ReplicaTold>>) {
        if self.core.is_withheld() {
            return;
        }
        let mut compared = false;
        let mine = self.core.samples();
        let hash_at = |hashes: &[HashAt], below| hashes.iter().find(|h| h.below == below).map(|h| h.hash);
        for sample in mine.iter().rev() {
            let theirs: Vec<(NodeId, u128)> = told
                .iter()
                .filter_map(|(node, told)| {
                    let hashes: Vec<HashAt> = told.as_ref()?.hashes.iter().map(HashAt::from).collect();
                    Some((*node, hash_at(&hashes, sample.below)?))
                })
                .collect();
            compared |= !theirs.is_empty();
            let Some((node, hash)) = theirs.iter().find(|(_, hash)| *hash != sample.hash) else { continue };
            hit("db.patrol.differ");
            let against = theirs.iter().filter(|(_, h)| h == hash).count();
            let with = 1 + theirs.iter().filter(|(_, h)| *h == sample.hash).count();
            let found = Divergence { below: sample.below, mine: sample.hash, peer: *node, theirs: *hash };
            // This replica is the one that is wrong if most say so; of two, nobody knows.
            self.core.diverged(found, against > with);
            return;
        }
        if compared {
            self.core.agreed();
        }
    }

    async fn scrub(&self) {
        if self.core.is_withheld() {
            return;
        }
        let base = self.core.published().layers.base.clone();
        let found = scrub(&self.env, base, self.threads).await;
        // Alone it has nobody to be refilled from.
        self.core.scrubbed(found, !self.cluster.peers(self.env.node()).is_empty());
    }

    async fn trim(&self, told: &BTreeMap<NodeId, Option<ReplicaTold>>) {
        let me = self.env.node();
        if told.keys().next().is_some_and(|lowest| *lowest < me) {
            return;
        }
        let mut durable_below = self.core.health().durable_below;
        for answer in told.values() {
            // Up and silent: it may need what would go.
            let Some(answer) = answer else { return };
            durable_below = durable_below.min(answer.durable_below);
        }
        let keep = self.options.keep_entries;
        let to = LogPos(durable_below.0.saturating_sub(keep));
        let from = self.log.chain().map_or(LogPos::ZERO, |chain| chain.chain.trim());
        if to.since(from) < (keep / WORTH_SHARE).max(1) {
            return;
        }
        hit("db.patrol.trim");
        // If it fails, the next patrol tries again.
        let _ = self.log.trim(to).await;
    }
}
