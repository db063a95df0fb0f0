//! Back-fill, on the server that lacks entries (X7). Known tails show which committed entries it lacks, and tail checks show which seals
//! it missed.

use std::collections::BTreeMap;
use std::ops::Bound;

use atoll_contract::{LogletError, LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{Caller, Class, Effects, Lsn, NodeId, Space, Tick};

use super::LogServer;
use super::loglet_copy::LogletCopy;
use crate::back_fill;
use crate::loglet::ServerSet;
use crate::message::*;
use crate::roles::LOG_SERVER;

/// Maximum number of gaps that one back-fill gets. The next check finds the rest.
const GAPS_PER_FILL: usize = 64;
/// Maximum number of loglets that are examined to find the next one to fill. They include those that were filled since the last check.
const LOOKS_PER_FILL: usize = 64;

impl LogServer {
    /// Handles a report of a peer about where a sealed loglet ends. Only a sealed server may take a known tail from such a report (rule
    /// K), so a server that missed the seal seals itself first. The loglet is already sealed, so this adds nothing to it.
    pub(super) fn on_back_fill(&mut self, from: Caller, m: BackFill, out: &mut Effects) {
        let (_, reveals) = match self.seal(m.loglet, &m.config, out) {
            Ok(sealed) => sealed,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        if let Some(copy) = self.store.loglets.get_mut(&m.loglet) {
            copy.protocol.ends_at = copy.protocol.ends_at.max(Some(m.upto));
        }
        if reveals == Lsn::NONE {
            self.learn_sealed_tail(m.loglet, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, reveals, out);
    }

    /// Makes the reported end the known tail of a sealed copy, durably, so that a restart remembers which entries are missing.
    pub(super) fn learn_sealed_tail(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(copy) = self.store.loglets.get_mut(&loglet) else { return };
        if let Some(end) = copy.protocol.ends_at {
            let up = copy.raise_known_tail(end);
            if up || !copy.settled {
                let known_tail = copy.known_tail;
                self.store.stage_known(loglet, known_tail, out);
            }
            self.doubtful.remove(&loglet);
        }
        self.touched.insert(loglet);
    }

    /// Notes, after a restart, which entries are missing below the known tails, and which loglets may have been sealed meanwhile.
    pub(super) fn doubt_everything(&mut self) {
        for (loglet, copy) in &mut self.store.loglets {
            copy.protocol.reported_tail = copy.local_tail;
            if copy.lags() {
                self.lagging.insert(*loglet, copy.known_tail);
            }
            if !copy.settled {
                self.doubtful.insert(*loglet);
            }
        }
        if !self.lagging.is_empty() || !self.doubtful.is_empty() {
            self.next_look = Some(Tick(0));
        }
    }

    /// Marks the loglets that are shared with a peer that is reachable again as doubtful: this server may have missed a seal that the peer
    /// knows of.
    pub(super) fn doubt_shared_with(&mut self, now: Tick, peer: NodeId) {
        for (loglet, copy) in &self.store.loglets {
            if !copy.settled && copy.protocol.config.storage_of(peer).is_some() {
                self.doubtful.insert(*loglet);
                self.next_look.get_or_insert(now.after(self.options.fill_after));
            }
        }
    }

    /// Starts back-fills for entries that were already missing at the last call, and tail checks of doubtful loglets.
    pub(super) fn look_for_gaps(&mut self, now: Tick, out: &mut Effects) {
        self.next_look = None;
        let mut keep = BTreeMap::new();
        let mut earlier = std::mem::take(&mut self.lagging);
        let later = earlier.split_off(&LogletId(self.last_filled.0.saturating_add(1)));
        for (loglet, known_then) in later.into_iter().chain(earlier) {
            self.fill(loglet, known_then, out);
            if let Some(copy) = self.store.loglets.get(&loglet).filter(|r| r.lags()) {
                keep.insert(loglet, copy.known_tail);
            }
        }
        self.lagging = keep;
        self.check_doubtful(out);
        if !self.lagging.is_empty() || !self.doubtful.is_empty() {
            self.next_look = Some(now.after(self.options.fill_after));
        }
    }

    /// Starts a back-fill of the entries that the loglet lacks below `known_then`, if there are any and the limit on back-fills allows it.
    fn fill(&mut self, loglet: LogletId, known_then: Offset, out: &mut Effects) {
        if self.fills >= self.options.max_fills || out.space() != Space::Plenty {
            return;
        }
        let Some(copy) = self.store.loglets.get_mut(&loglet).filter(|r| !r.protocol.filling) else { return };
        let gaps = copy.runs.missing(known_then, GAPS_PER_FILL);
        if gaps.is_empty() {
            return;
        }
        hit("native.server.back_fill");
        copy.protocol.filling = true;
        self.fills += 1;
        self.last_filled = loglet;
        let group = group(&self.env, loglet, copy);
        out.run("native.back_fill", Box::pin(back_fill::back_fill(group, gaps)));
    }

    /// Starts the back-fill of the next loglet, in order, that lacks entries.
    fn fill_next(&mut self, out: &mut Effects) {
        let after = (Bound::Excluded(self.last_filled), Bound::Unbounded);
        let turns = self.lagging.range(after).chain(&self.lagging).take(LOOKS_PER_FILL);
        let turns: Vec<(LogletId, Offset)> =
            turns.map(|(loglet, known_then)| (*loglet, *known_then)).collect();
        let fills = self.fills;
        for (loglet, known_then) in turns {
            self.fill(loglet, known_then, out);
            if self.fills > fills {
                return;
            }
        }
    }

    /// Starts a tail check of the next doubtful loglet; one runs at a time. An open loglet stays as it is; for a sealed one, the server
    /// learns where it ends.
    fn check_doubtful(&mut self, out: &mut Effects) {
        if self.checking || out.space() == Space::Closed {
            return;
        }
        let next = LogletId(self.last_checked.0.saturating_add(1));
        while let Some(loglet) = self.doubtful.range(next..).chain(&self.doubtful).next().copied() {
            let Some(copy) = self.store.loglets.get(&loglet).filter(|r| !r.settled) else {
                self.doubtful.remove(&loglet);
                continue;
            };
            hit("native.server.check_doubtful");
            self.checking = true;
            self.last_checked = loglet;
            let group = group(&self.env, loglet, copy);
            out.run("native.check_doubtful", Box::pin(check(group)));
            return;
        }
    }

    pub(super) fn on_check_ended(&mut self, from: Caller, m: CheckEnded, now: Tick, out: &mut Effects) {
        if !self.is_own(from.node) {
            return;
        }
        self.checking = false;
        if m.done {
            self.doubtful.remove(&m.loglet);
            // After a success, start the next check at once; after a failure, wait for the deadline.
            self.check_doubtful(out);
        }
        if !self.doubtful.is_empty() {
            self.next_look.get_or_insert(now.after(self.options.fill_after));
        }
    }

    pub(super) fn on_fill_ended(&mut self, from: Caller, m: FillEnded, out: &mut Effects) {
        if !self.is_own(from.node) {
            return;
        }
        self.fills = self.fills.saturating_sub(1);
        let known_then = self.lagging.get(&m.loglet).copied().unwrap_or_default();
        let mut lacks = false;
        if let Some(copy) = self.store.loglets.get_mut(&m.loglet) {
            copy.protocol.filling = false;
            lacks = !copy.runs.missing(known_then, 1).is_empty();
        }
        self.touched.insert(m.loglet);
        // After a success, start the next back-fill at once, because a node that returns may lack entries of a thousand loglets. After a
        // failure, wait for the deadline.
        if !lacks {
            self.fill_next(out);
        }
    }
}

fn group(env: &atoll_core::Env, loglet: LogletId, copy: &LogletCopy) -> ServerSet {
    let config = (*copy.protocol.config).clone();
    ServerSet::new(env.clone(), loglet, config, copy.config_bytes.clone(), Default::default())
}

/// Finds out whether the loglet is sealed, and where it then ends.
async fn check(group: ServerSet) {
    let own = group.env.node();
    let end: Option<Option<Offset>> = match group.check_tail(false).await {
        Ok(tail) => Some(tail.sealed.map(|_| tail.at)),
        Err(LogletError::Gone) => {
            back_fill::delete_too(&group);
            None
        }
        Err(_) => None,
    };
    if let Some(Some(upto)) = end {
        hit("native.server.slept_through_seal");
        let message = BackFill { loglet: group.id, config: group.config_bytes.clone(), upto };
        group.env.post(own, Class::Control, LOG_SERVER, message);
    }
    let ended = CheckEnded { loglet: group.id, done: end.is_some() };
    group.env.post(own, Class::Control, LOG_SERVER, ended);
}
