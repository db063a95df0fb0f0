//! The stream of records from the primary of a segment to its backups: in order, resumed exactly where the backup is (scalog-S10).
//!
//! A record leaves the primary once it is on the primary's own disk. After a restart, a primary therefore has every record that it ever
//! sent, and gives no place to another record (scalog-S12).

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Class, Effects, Lsn, NodeId, Space, Tick};
use atoll_loglet_store::parse_counted;
use atoll_loglet_store::store::ReadOutcome;
use bytes::Bytes;

use super::{StorageServer, offsets};
use crate::message::{Receipt, Replicate, Replicated};
use crate::mutants;
use crate::roles::SERVER;

impl StorageServer {
    /// Sends to all backups what they have not got yet, as far as the windows allow.
    pub(super) fn send(&mut self, now: Tick, loglet: LogletId, shard: u32, out: &mut Effects) {
        let peers = self.mine(loglet, shard).map_or(0, |mine| mine.peers.len());
        for peer in 0..peers {
            self.send_to(now, loglet, shard, peer, out);
        }
    }

    fn send_to(&mut self, now: Tick, loglet: LogletId, shard: u32, peer: usize, out: &mut Effects) {
        let Some(segment) = self.own_segment(loglet, shard) else { return };
        let (_, end) = self.tails(segment);
        let (step, window) = (self.options.step_bytes, self.options.window_messages);
        loop {
            let Some(mine) = self.mine(loglet, shard) else { return };
            let peer = &mut mine.peers[peer];
            if peer.fetching || peer.under_way.len() >= window {
                return;
            }
            let (node, next) = (peer.node, peer.next);
            if std::mem::take(&mut peer.probe) {
                self.post_records(now, loglet, shard, node, (0, Bytes::new()), Lsn::NONE, out);
                continue;
            }
            if next >= end {
                return;
            }
            let caller = Caller { node, request: None, class: Class::Data };
            match self.store.read(caller, segment, offsets(next..end), step, out) {
                ReadOutcome::Ready(counts, batches, reveals) => {
                    for batch in counts.into_iter().zip(batches) {
                        self.post_records(now, loglet, shard, node, batch, reveals, out);
                    }
                }
                ReadOutcome::Fetching => {
                    if let Some(mine) = self.mine(loglet, shard)
                        && let Some(peer) = mine.peers.iter_mut().find(|p| p.node == node)
                    {
                        peer.fetching = true;
                    }
                    return;
                }
                // The next round tries again.
                ReadOutcome::NotHere | ReadOutcome::Busy | ReadOutcome::Damaged(_) => return,
            }
        }
    }

    /// Sends one message with the next records of a peer, or a question if there are none.
    #[allow(clippy::too_many_arguments)]
    fn post_records(
        &mut self,
        now: Tick,
        loglet: LogletId,
        shard: u32,
        node: NodeId,
        (count, batch): (u32, Bytes),
        reveals: Lsn,
        out: &mut Effects,
    ) {
        let resend = self.options.resend;
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let config_bytes = here.config_bytes.clone();
        let Some(mine) = here.shards.get_mut(&shard) else { return };
        let segment = mine.me as u32;
        let Some(peer) = mine.peers.iter_mut().find(|p| p.node == node) else { return };
        let config = if std::mem::take(&mut peer.introduce) { config_bytes } else { Bytes::new() };
        let (first, round) = (peer.next, peer.round);
        peer.next += u64::from(count);
        if peer.under_way.is_empty() {
            peer.since = now;
        }
        if count > 0 {
            peer.under_way.push_back(peer.next);
        }
        let message = Replicate { loglet, config, shard, segment, first, count, round, batch };
        let reveals = if mutant(mutants::SCALOG_S12) { Lsn::NONE } else { reveals };
        out.post(node, Class::Data, SERVER, message, reveals);
        self.wake(loglet, now.after(resend));
    }

    /// Takes records as a backup. Only those that start at its next one: a gap or a repetition would shift all later records on this server
    /// (S10).
    pub(super) fn on_replicate(&mut self, now: Tick, from: Caller, m: Replicate, out: &mut Effects) {
        let (loglet, shard, segment, round) = (m.loglet, m.shard, m.segment, m.round);
        let (receipt, next) = match self.know(now, loglet, &m.config, out) {
            Err(crate::message::Outcome::Unconfigured {}) => (Receipt::Unconfigured {}, 0),
            Err(_) => (Receipt::Refused {}, 0),
            Ok(()) => self.take_records(m, from.node, out),
        };
        let answer = Replicated { loglet, shard, segment, receipt, next, round };
        out.post(from.node, Class::Data, SERVER, answer, Lsn::NONE);
    }

    fn take_records(&mut self, m: Replicate, from: NodeId, out: &mut Effects) -> (Receipt, u64) {
        let Some(here) = self.here.get(&m.loglet) else { return (Receipt::Unconfigured {}, 0) };
        // The ordering log may say later that the shard exists.
        let Some(mine) = here.shards.get(&m.shard) else { return (Receipt::Unconfigured {}, 0) };
        let known = here.order.shards().get(&m.shard);
        let primary = known.and_then(|shard| shard.servers.get(m.segment as usize));
        let (Some(primary), Some(segment)) = (primary, mine.segments.get(m.segment as usize).copied()) else {
            return (Receipt::Refused {}, 0);
        };
        if primary.node != from || m.segment as usize == mine.me {
            return (Receipt::Refused {}, 0);
        }
        let next = self.tails(segment).1;
        if m.count == 0 {
            let receipt = if m.first == next { Receipt::Taken {} } else { Receipt::OutOfOrder {} };
            return (receipt, next);
        }
        if m.first != next && !mutant(mutants::SCALOG_S10) {
            hit("scalog.server.out_of_order");
            return (Receipt::OutOfOrder {}, next);
        }
        if out.space() != Space::Plenty {
            return (Receipt::Refused {}, next);
        }
        let Ok(batch) = parse_counted(m.batch, m.count) else { return (Receipt::Refused {}, next) };
        self.store.stage_entries(segment, Offset(next), &batch, false, out);
        (Receipt::Taken {}, next + u64::from(m.count))
    }

    pub(super) fn on_replicated(&mut self, now: Tick, from: Caller, m: &Replicated, out: &mut Effects) {
        let Some(mine) = self.mine(m.loglet, m.shard) else { return };
        if mine.me != m.segment as usize {
            return;
        }
        let Some(index) = mine.peers.iter().position(|peer| peer.node == from.node) else { return };
        let peer = &mut mine.peers[index];
        if peer.round != m.round {
            return;
        }
        peer.heard |= matches!(m.receipt, Receipt::Taken {} | Receipt::OutOfOrder {});
        match m.receipt {
            Receipt::Taken {} => {
                peer.taken = peer.taken.max(m.next);
                while peer.under_way.front().is_some_and(|end| *end <= m.next) {
                    peer.under_way.pop_front();
                }
                peer.since = now;
            }
            Receipt::OutOfOrder {} => {
                hit("scalog.server.rewind");
                // It may be lower than before: what a restarted backup had not synced is gone.
                peer.rewind(m.next);
                peer.since = now;
            }
            Receipt::Unconfigured {} => {
                // A backup that has the configuration and does not know the shard yet will know it soon: the timer sends again.
                let taken = peer.taken;
                peer.rewind(taken);
                (peer.probe, peer.introduce) = (true, true);
                self.wake(m.loglet, now.after(self.options.resend));
                return;
            }
            Receipt::Refused {} => return,
        }
        self.send_to(now, m.loglet, m.shard, index, out);
    }

    pub(super) fn fetched_for_peer(
        &mut self,
        now: Tick,
        node: NodeId,
        segment: LogletId,
        first: u64,
        outcome: ReadOutcome,
        out: &mut Effects,
    ) {
        let loglet = segment.whole();
        let is_own = |s: &u32| self.own_segment(loglet, *s) == Some(segment);
        let Some(shard) = self.shards_of(loglet).into_iter().find(is_own) else { return };
        let Some(mine) = self.mine(loglet, shard) else { return };
        let Some(index) = mine.peers.iter().position(|peer| peer.node == node) else { return };
        let peer = &mut mine.peers[index];
        peer.fetching = false;
        let is_next = peer.next == first;
        if let ReadOutcome::Ready(counts, batches, reveals) = outcome
            && is_next
        {
            for batch in counts.into_iter().zip(batches) {
                self.post_records(now, loglet, shard, node, batch, reveals, out);
            }
            self.send_to(now, loglet, shard, index, out);
        }
    }

    /// Sends again what a peer has not answered for a while. A whole window is sent at most once for each such period (X10).
    pub(super) fn send_again(&mut self, now: Tick, loglet: LogletId, shard: u32, out: &mut Effects) {
        let Some(segment) = self.own_segment(loglet, shard) else { return };
        let (synced, end) = self.tails(segment);
        let resend = self.options.resend;
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let known = here.order.shards().get(&shard).filter(|s| s.is_live() && !here.is_sealed());
        let (Some(known), Some(mine)) = (known, here.shards.get_mut(&shard)) else { return };
        let ordered = known.counts[mine.me];
        let mut lags = false;
        for peer in &mut mine.peers {
            // A backup that was restarted may have lost what it had taken and not synced. Then its reports, and the cut, stand still.
            let is_behind = peer.taken < end || !peer.heard || ordered < end;
            if is_behind && now.since(peer.since) >= resend && !peer.fetching {
                let taken = peer.taken.min(synced);
                peer.rewind(taken);
                (peer.probe, peer.introduce, peer.since) = (true, true, now);
            }
            lags |= is_behind;
        }
        self.send(now, loglet, shard, out);
        if lags {
            self.wake(loglet, now.after(resend));
        }
    }
}
