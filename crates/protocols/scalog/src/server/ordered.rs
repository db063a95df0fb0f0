//! What a server does with the entries of the ordering log.

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, Lsn, Tick};

use super::StorageServer;
use super::numbers::Numbers;
use crate::invariants;
use crate::message::{Follow, Followed};
use crate::order::{Applied, Order, OrderEntry};

impl StorageServer {
    /// Applies entries, in their order and without gaps (scalog-S7). The answer says which one is next.
    pub(super) fn on_follow(&mut self, now: Tick, from: Caller, m: Follow, out: &mut Effects) {
        if m.ended {
            self.end(m.loglet, out);
        }
        for (at, bytes) in (m.from..).zip(m.entries) {
            let Some(here) = self.here.get_mut(&m.loglet) else { break };
            if at != here.order.applied() {
                if at > here.order.applied() && self.resume(now, m.loglet, at, bytes, out) {
                    continue;
                }
                hit("scalog.server.entry_gap");
                break;
            }
            if bytes.is_empty() {
                here.order.skip();
                continue;
            }
            // An entry of a later version: this server must not go on, or it would number records differently.
            let Ok(entry) = OrderEntry::parse(bytes) else {
                hit("scalog.server.unreadable_entry");
                break;
            };
            let applied = here.order.apply(&entry);
            self.applied(now, m.loglet, &applied, out);
        }
        let applied = self.here.get(&m.loglet).map(|here| here.order.applied());
        out.reply(from, Followed { applied }, Lsn::NONE);
    }

    /// Answers all appends that wait, because the ordering log is sealed. This comes before the entries that a sealed log may still have.
    fn end(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        here.looks = false;
        if std::mem::replace(&mut here.ended, true) {
            return;
        }
        hit("scalog.server.ended");
        for shard in self.shards_of(loglet) {
            self.settle(loglet, shard, out);
        }
    }

    fn applied(&mut self, now: Tick, loglet: LogletId, applied: &Applied, out: &mut Effects) {
        for n in &applied.records {
            let Some(mine) = self.mine(loglet, n.shard) else { continue };
            mine.numbers.add(n);
            let segment = mine.segments[n.segment];
            let synced = self.tails(segment).0;
            invariants::cut_is_here(n.shard, n.segment, n.first + n.count, synced);
        }
        if !applied.added.is_empty() {
            self.join_all(now, loglet, out);
        }
        let mut changed: Vec<u32> =
            applied.records.iter().map(|n| n.shard).chain(applied.ended.clone()).collect();
        if applied.sealed {
            changed = self.shards_of(loglet);
        }
        changed.sort_unstable();
        changed.dedup();
        for shard in changed {
            self.settle(loglet, shard, out);
            self.pace_reports(now, loglet, shard);
        }
        if applied.trimmed {
            self.trim(loglet, out);
        }
        self.wake_readers(loglet, out);
    }

    /// Continues with the snapshot with which a trimmed ordering log begins (scalog-S8). All records that the entries before it order were
    /// given up. Returns false if it is none.
    fn resume(&mut self, now: Tick, loglet: LogletId, at: u64, bytes: Bytes, out: &mut Effects) -> bool {
        let Some(order) = Order::resume_from(bytes, at) else { return false };
        let Some(here) = self.here.get_mut(&loglet) else { return false };
        hit("scalog.server.resumed");
        here.order = order;
        here.shards.values_mut().for_each(|mine| mine.numbers = Numbers::default());
        self.join_all(now, loglet, out);
        for shard in self.shards_of(loglet) {
            self.give_up_ordered(loglet, shard, out);
            self.settle(loglet, shard, out);
            self.pace_reports(now, loglet, shard);
        }
        self.wake_readers(loglet, out);
        true
    }

    /// Gives up all records of a shard that are ordered.
    fn give_up_ordered(&mut self, loglet: LogletId, shard: u32, out: &mut Effects) {
        let Some(here) = self.here.get(&loglet) else { return };
        let (Some(known), Some(mine)) = (here.order.shards().get(&shard), here.shards.get(&shard)) else {
            return;
        };
        let firsts: Vec<(LogletId, u64)> =
            mine.segments.iter().copied().zip(known.counts.iter().copied()).collect();
        for (index, (segment, first)) in firsts.into_iter().enumerate() {
            invariants::cut_is_here(shard, index, first, self.tails(segment).0);
            let is_new = self.store.loglets.get(&segment).is_some_and(|part| part.trim.0 < first);
            if is_new {
                self.store.stage_trim(segment, Offset(first), out);
            }
        }
    }

    /// Gives up the records below the trim point.
    fn trim(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let to = here.order.trim();
        let mut firsts: Vec<(LogletId, u64)> = Vec::new();
        for mine in here.shards.values_mut() {
            firsts.extend(
                mine.numbers.trim(to).into_iter().map(|(segment, first)| (mine.segments[segment], first)),
            );
        }
        for (segment, first) in firsts {
            // After a restart, the ordering log is applied again, and the trims in it are older than what the disk says.
            let is_new = self.store.loglets.get(&segment).is_some_and(|part| part.trim.0 < first);
            if is_new {
                self.store.stage_trim(segment, Offset(first), out);
            }
        }
    }
}
