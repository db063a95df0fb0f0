//! Appends, on the primary of a segment (scalog.md §6).

use atoll_contract::{Batch, LogletId, Offset, OpId};
use atoll_core::testing::hit;
use atoll_core::{Caller, Effects, Lsn, Space, Tick};

use super::StorageServer;
use super::segment::Part;
use crate::message::{Append, Appended, Outcome, Placed};

impl StorageServer {
    pub(super) fn answer(&self, to: Caller, outcome: Outcome, reveals: Lsn, out: &mut Effects) {
        out.reply(to, Appended { outcome }, reveals);
    }

    /// Handles an append. The answer leaves once a committed cut covers all records.
    pub(super) fn on_append(&mut self, now: Tick, from: Caller, m: Append, out: &mut Effects) {
        if let Err(outcome) = self.know(now, m.loglet, &m.config, out) {
            return self.answer(from, outcome, Lsn::NONE, out);
        }
        let (loglet, not_below, shard_chosen) = (m.loglet, m.not_below, m.chosen.is_some());
        let Ok(batch) = Batch::parse(m.batch.clone()) else {
            return self.answer(from, Outcome::Invalid {}, Lsn::NONE, out);
        };
        let taken = self.admit(&m, &batch, out).and_then(|(shard, since)| {
            let since = if shard_chosen { 0 } else { since };
            self.take(loglet, shard, &batch, (not_below, since), out).map(|parts| (shard, parts))
        });
        match taken {
            Err(outcome) => self.answer(from, outcome, Lsn::NONE, out),
            Ok((shard, parts)) => {
                if let Some(mine) = self.mine(loglet, shard) {
                    mine.wait(from, parts);
                }
                // A retry may be ordered already.
                self.settle(loglet, shard, out);
                self.send(now, loglet, shard, out);
            }
        }
    }

    /// Checks everything about an append but its entries. Returns the shard, and the number below which the client's records may be in
    /// another shard.
    fn admit(&self, m: &Append, batch: &Batch, out: &Effects) -> Result<(u32, u64), Outcome> {
        let here = self.here.get(&m.loglet).ok_or(Outcome::Unconfigured {})?;
        let order = &here.order;
        if m.view > order.view() {
            hit("scalog.server.behind");
            return Err(Outcome::Behind {});
        }
        if here.is_sealed() {
            return Err(Outcome::Sealed {});
        }
        let (shard, since) = match m.chosen {
            Some(shard) => (shard, 0),
            None => self.home_of_all(m.loglet, batch).ok_or_else(|| self.not_home(m.loglet, batch))?,
        };
        let known = order.shards().get(&shard).ok_or(Outcome::Behind {})?;
        if known.ended.is_some() {
            return Err(Outcome::Moved { view: order.view() });
        }
        let mine = here.shards.get(&shard).ok_or(Outcome::WrongIdentity {})?;
        match out.space() {
            Space::Plenty => {}
            Space::FactsOnly => return Err(Outcome::DiskFull {}),
            Space::Closed => return Err(Outcome::StorageFailed {}),
        }
        if mine.unordered_bytes > 0 && mine.unordered_bytes + m.batch.len() > self.options.window_bytes {
            hit("scalog.server.busy");
            return Err(Outcome::Busy {});
        }
        Ok((shard, since))
    }

    /// Returns the shard to which the records of all clients in a batch go, and the number below which they may be in another shard. None
    /// if this server is not the primary for all of them.
    fn home_of_all(&self, loglet: LogletId, batch: &Batch) -> Option<(u32, u64)> {
        let here = self.here.get(&loglet)?;
        let mut found: Option<(u32, u64)> = None;
        let mut before = None;
        for op in batch.ops().filter(|op| before.replace(op.client) != Some(op.client)) {
            let home = here.order.home(op.client.0)?;
            let is_here = here.shards.get(&home.shard).is_some_and(|mine| mine.me == home.segment);
            if !is_here || found.is_some_and(|(shard, _)| shard != home.shard) {
                return None;
            }
            found = Some((home.shard, found.map_or(home.since, |(_, since)| since.max(home.since))));
        }
        found
    }

    /// Returns why this server is not the primary for the clients of a batch: they go elsewhere, or to this node with another data
    /// directory. Whoever waits for that one to learn of a newer view waits in vain (scalog-S11).
    fn not_home(&self, loglet: LogletId, batch: &Batch) -> Outcome {
        let Some(here) = self.here.get(&loglet) else { return Outcome::Unconfigured {} };
        let is_other = |op: OpId| {
            let home = here.order.home(op.client.0)?;
            let server = here.order.shards().get(&home.shard)?.servers.get(home.segment)?;
            Some(server.node == self.me.node && server.storage != self.me.storage)
        };
        if batch.ops().any(|op| is_other(op) == Some(true)) {
            hit("scalog.server.other_directory");
            return Outcome::WrongIdentity {};
        }
        Outcome::Moved { view: here.order.view() }
    }

    /// Gives places to the entries of a batch and journals those that are new. None of the entries has a number below
    /// `not_below`; those with a number below `since` may be in another shard.
    fn take(
        &mut self,
        loglet: LogletId,
        shard: u32,
        batch: &Batch,
        (not_below, since): (u64, u64),
        out: &mut Effects,
    ) -> Result<Vec<Part>, Outcome> {
        let segment = self.own_segment(loglet, shard).ok_or(Outcome::WrongIdentity {})?;
        let forgotten = self.forgotten(loglet, shard).max(since);
        let limit = self.options.remembered;
        let part = self.store.loglets.get_mut(&segment).ok_or(Outcome::WrongIdentity {})?;
        if not_below < forgotten && part.protocol.ops.has_new(batch) {
            hit("scalog.server.forgotten");
            return Err(Outcome::Forgotten {});
        }
        let parts = part.protocol.ops.place(batch, part.staged_tail.0, limit);
        let mut index = 0;
        for one in &parts {
            let upto = index + one.count as usize;
            if one.new {
                let entries = batch.slice(index, upto);
                self.store.stage_entries(segment, Offset(one.first), &entries, false, out);
                let len = entries.bytes().len();
                if let Some(mine) = self.mine(loglet, shard) {
                    mine.unordered.push_back((one.first + u64::from(one.count), len));
                    mine.unordered_bytes += len;
                }
            } else {
                hit("scalog.server.duplicate");
            }
            index = upto;
        }
        Ok(parts)
    }

    pub(super) fn mine(&mut self, loglet: LogletId, shard: u32) -> Option<&mut super::Mine> {
        self.here.get_mut(&loglet)?.shards.get_mut(&shard)
    }

    /// Returns the segment of which this server is the primary.
    pub(super) fn own_segment(&self, loglet: LogletId, shard: u32) -> Option<LogletId> {
        let mine = self.here.get(&loglet)?.shards.get(&shard)?;
        mine.segments.get(mine.me).copied()
    }

    /// Returns a number above every operation of this server's segment that it may have forgotten.
    fn forgotten(&self, loglet: LogletId, shard: u32) -> u64 {
        let Some(here) = self.here.get(&loglet) else { return 0 };
        let Some(segment) = self.own_segment(loglet, shard) else { return 0 };
        let place = self.store.loglets.get(&segment).map_or(0, |part| part.protocol.ops.forgotten());
        if place == 0 {
            return 0;
        }
        let last = here.shards.get(&shard).and_then(|mine| mine.numbers.at(mine.me, place - 1));
        // If it has no number here, it was trimmed, or is not ordered yet, or its entry of the ordering log was not applied yet.
        let ordered = here.order.shards().get(&shard).map_or(0, |s| {
            s.counts.get(here.shards.get(&shard).map_or(0, |mine| mine.me)).copied().unwrap_or(0)
        });
        match last {
            Some(piece) => piece.gsn + 1,
            None if place <= ordered => here.order.trim(),
            None => u64::MAX,
        }
    }

    /// Answers the appends whose records are all below the cut, and all of them once no more will be.
    pub(super) fn settle(&mut self, loglet: LogletId, shard: u32, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        let (sealed, ended) = (here.is_sealed(), here.ended);
        let (Some(known), Some(mine)) = (here.order.shards().get(&shard), here.shards.get_mut(&shard)) else {
            return;
        };
        let me = mine.me;
        let ordered = known.counts[me];
        mine.ordered_below(ordered);
        let mut answers = Vec::new();
        // What a sealed ordering log orders may be above the end that was installed, so nothing of it is acknowledged.
        let below = if ended { Vec::new() } else { mine.take_below(ordered) };
        for one in below {
            let placed = placed(mine, &one.parts);
            // A retry of a record that was given up meanwhile: its number is not known any more.
            let is_whole = placed.iter().all(|p| p.first.is_some());
            let outcome = if is_whole { Outcome::Ordered { placed } } else { Outcome::Forgotten {} };
            answers.push((one.caller, outcome));
        }
        if sealed || known.ended.is_some() {
            for one in std::mem::take(&mut mine.waiting).into_values() {
                let placed = placed(mine, &one.parts);
                let outcome = match known.ended {
                    // Some of its records had numbers that are not known any more.
                    Some(_) if !sealed && lacks_numbers(mine, &one.parts, ordered) => Outcome::Forgotten {},
                    Some(end) if !sealed => Outcome::Finalized { placed, view: end.view },
                    _ => Outcome::Sealed {},
                };
                answers.push((one.caller, outcome));
            }
        }
        for (caller, outcome) in answers {
            self.answer(caller, outcome, Lsn::NONE, out);
        }
    }
}

/// Returns whether a record of an append is below a cut, and its number is not known: it was given up.
fn lacks_numbers(mine: &super::Mine, parts: &[Part], ordered: u64) -> bool {
    let below = |part: &Part| u32::try_from(ordered.saturating_sub(part.first)).unwrap_or(u32::MAX);
    parts.iter().any(|part| {
        let count = part.count.min(below(part));
        mine.numbers.placed(mine.me, part.first, count).iter().any(|placed| placed.first.is_none())
    })
}

/// Returns the numbers of the entries of an append.
fn placed(mine: &super::Mine, parts: &[Part]) -> Vec<Placed> {
    parts.iter().flat_map(|part| mine.numbers.placed(mine.me, part.first, part.count)).collect()
}
