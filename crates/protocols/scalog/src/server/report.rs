//! Reports of what is synced (scalog.md §4). Only synced records count: if all servers of a shard lose power, what is below a cut must
//! still be there (scalog-S1). While cuts come late, reports are rarer (`pace.rs`).

use atoll_contract::LogletId;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Class, Effects, Lsn, NodeId, RoleKind, Tick};
use bytes::Bytes;
use std::time::Duration;

use super::StorageServer;
use crate::config::ScalogConfig;
use crate::message::{Report, Reports};
use crate::mutants;
use crate::roles::{AGGREGATOR, ORDERER};

/// How many reports without effect go to the aggregator before they go to the orderers as well: a server whose aggregator is dead must find
/// another way.
const ATTEMPTS_THROUGH_TREE: u32 = 2;
/// After this many reports, the usual way is tried again.
const REPORTS_PER_WAY: u64 = 256;

impl StorageServer {
    /// Reports at the next interval.
    pub(super) fn report_soon(&mut self, now: Tick, loglet: LogletId) {
        let Some(here) = self.here.get(&loglet) else { return };
        let interval = Duration::from_micros(here.config.interval_us.into());
        let last = here.shards.values().map(|mine| mine.reported_at).max().unwrap_or(now);
        self.wake(loglet, now.max(last.after(interval)));
    }

    /// Learns how much of a shard is ordered. A report that waited for this can be sent at the next interval.
    pub(super) fn pace_reports(&mut self, now: Tick, loglet: LogletId, shard: u32) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let (Some(known), Some(mine)) = (here.order.shards().get(&shard), here.shards.get_mut(&shard)) else {
            return;
        };
        let was_full = mine.pace.is_full();
        mine.pace.ordered(now, &known.counts);
        if was_full && !mine.pace.is_full() {
            self.report_soon(now, loglet);
        }
    }

    /// Reports what is new, or again what had no effect. Silent if everything that is synced here is ordered (scalog-S17).
    pub(super) fn report(&mut self, now: Tick, loglet: LogletId, shard: u32, out: &mut Effects) {
        let Some(here) = self.here.get(&loglet) else { return };
        let (Some(known), Some(mine)) = (here.order.shards().get(&shard), here.shards.get(&shard)) else {
            return;
        };
        // Reports of shards that have ended are ignored (S13).
        if !known.is_live() || here.is_sealed() {
            return;
        }
        let synced = |segment: &LogletId| {
            let (synced, staged) = self.tails(*segment);
            if mutant(mutants::SCALOG_S1) { staged } else { synced }
        };
        let counts: Vec<u64> = mine.segments.iter().map(synced).collect();
        if counts.iter().zip(&known.counts).all(|(synced, ordered)| synced <= ordered) {
            return;
        }
        let (is_new, is_held) = (counts != mine.reported, mine.pace.is_full());
        let resend = mine.pace.patience(self.options.resend);
        if (!is_new || is_held) && now.since(mine.reported_at) < resend {
            if is_new {
                hit("scalog.report.held");
            }
            let at = mine.reported_at.after(resend);
            return self.wake(loglet, at);
        }
        // Once the usual way had no effect, others stay in use for a while.
        let attempts = match is_new && !is_held {
            true if mine.reports.is_multiple_of(REPORTS_PER_WAY) => 0,
            true => mine.attempts,
            false => mine.attempts.saturating_add(1),
        };
        // Whoever lost its memory needs the configuration.
        let config =
            if is_new && !mine.reported.is_empty() { Bytes::new() } else { here.config_bytes.clone() };
        let reports = vec![Report { shard, replica: mine.me as u32, counts: counts.clone() }];
        for (node, role, at) in targets(&here.config, here.leaves.of(shard), attempts) {
            let message = Reports { loglet, config: config.clone(), at, reports: reports.clone() };
            out.post(node, Class::Control, role, message, Lsn::NONE);
        }
        if let Some(mine) = self.mine(loglet, shard) {
            if is_new {
                mine.pace.sent(now, counts.clone());
            }
            (mine.reported, mine.reported_at, mine.attempts) = (counts, now, attempts);
            mine.reports += 1;
        }
        self.wake(loglet, now.after(resend));
    }
}

/// Returns where reports of a shard with this aggregator go, after this many attempts without effect.
fn targets(
    config: &ScalogConfig,
    leaf: Option<usize>,
    attempts: u32,
) -> Vec<(NodeId, RoleKind, Option<u32>)> {
    let leaf = leaf.map(|leaf| (config.aggregators[leaf].node, AGGREGATOR, Some(leaf as u32)));
    let orderers = config.orderers.iter().map(|orderer| (*orderer, ORDERER, None));
    match leaf {
        Some(leaf) if attempts < ATTEMPTS_THROUGH_TREE => vec![leaf],
        Some(leaf) => {
            hit("scalog.report.past_aggregator");
            orderers.chain([leaf]).collect()
        }
        // One orderer suffices. If it is dead, all are asked.
        None if attempts < ATTEMPTS_THROUGH_TREE => orderers.take(1).collect(),
        None => orderers.collect(),
    }
}
