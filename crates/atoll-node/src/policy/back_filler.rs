//! Requests a back-fill from this node's own LogServer for each sealed segment that it lacks entries of, up to the stop (X7). Without this,
//! entries that the server missed while it was away could stay on a bare majority forever, and the next lost disk could leave a single
//! copy.

use std::time::Duration;

use atoll_contract::{LogPos, LogletId};
use atoll_core::Env;

use crate::logs::{Known, Logs};
use crate::members::Members;
use crate::survey::{Readable, Survey, segments};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(2);
/// The maximum number of requests in one round. Later rounds request the rest.
const PER_ROUND: usize = 64;
/// The number of index pages that one round checks.
const PAGES_PER_ROUND: usize = 8;

/// The procedure that each node runs; see the module documentation.
#[derive(Clone, Debug)]
pub struct BackFiller {
    /// This node's executor.
    pub env: Env,
    /// The logs that this node knows.
    pub logs: Logs,
    /// The members, which say whether this node has a LogServer.
    pub members: Members,
    /// The interval between rounds, unless there is more to do.
    pub every: Duration,
}

/// The cursor: where the next round continues.
#[derive(Default)]
struct Turn {
    /// The log whose index pages come next, and the position in that log.
    log: String,
    at: LogPos,
    /// The Loglet that was requested last.
    asked: LogletId,
}

/// Returns at most `PER_ROUND` of the wanted Loglets, starting after the one that was requested last. The requests therefore rotate, and
/// entries that no server can supply now do not block the others.
fn next_in_turn<T>(mut wanted: Vec<T>, loglet: impl Fn(&T) -> LogletId, asked: &mut LogletId) -> Vec<T> {
    wanted.sort_by_key(|one| (loglet(one) <= *asked, loglet(one)));
    wanted.truncate(PER_ROUND);
    *asked = wanted.last().map_or(*asked, loglet);
    wanted
}

impl BackFiller {
    /// Runs until the node stops.
    pub async fn run(self) {
        let mut turn = Turn::default();
        let mut wait = self.every;
        loop {
            self.env.sleep(self.env.jitter(wait)).await;
            // A server back-fills only a few segments at a time. While there are more, the next round comes sooner.
            let more = self.members.identity().log && self.round(&mut turn).await;
            wait = if more { self.every / 8 } else { self.every };
        }
    }

    /// Returns the segments of the next index page of which this node's server lacks entries. The pages of all logs that may have segments
    /// on this node take turns.
    async fn next_page(&self, turn: &mut Turn) -> Vec<Readable> {
        let me = self.env.node();
        let known = self.logs.known();
        let is_due = |log: &&Known| log.chain.chain.pages().iter().any(|p| p.may_be_on(|node, _| node == me));
        let later = known.iter().find(|log| log.name >= turn.log && is_due(log));
        let Some(due) = later.or_else(|| known.iter().find(is_due)) else { return Vec::new() };
        if due.name != turn.log {
            (turn.log, turn.at) = (due.name.clone(), LogPos::ZERO);
        }
        let Ok(log) = self.logs.open(&due.name) else { return Vec::new() };
        let Ok(Ok(Ok(page))) = self.env.within(ANSWER, log.segments_from(turn.at)).await else {
            return Vec::new();
        };
        match page.next {
            Some(next) => turn.at = next,
            // Continue with the smallest name above this one.
            None => (turn.log, turn.at) = (format!("{}\0", log.name()), LogPos::ZERO),
        }
        let trim = page.chain.chain.trim();
        let mine = page.segments.into_iter().filter_map(|segment| {
            let provider = self.logs.registry().provider(&segment.kind).ok()?;
            let duties = provider.duties(&segment.config);
            let to = segment.stop.filter(|_| duties.is_holder(me))?;
            let from = segment.start.max(trim).min(to);
            Some(Readable { segment, duties, from, to })
        });
        self.lacking(mine.collect()).await
    }

    /// Returns those of the segments of which this node's server lacks entries in the given range. Empty if the server does not answer.
    async fn lacking(&self, segments: Vec<Readable>) -> Vec<Readable> {
        let me = self.env.node();
        let survey = Survey::here(&self.env, self.logs.registry(), &segments).await;
        let lacks = |r: &Readable| survey.progress(me, &r.segment).is_some_and(|(_, lacks)| lacks > 0);
        segments.into_iter().filter(lacks).collect()
    }

    /// Requests back-fills for the segments that lack entries. Returns whether there were any.
    async fn round(&self, turn: &mut Turn) -> bool {
        let me = self.env.node();
        let mut mine = Vec::new();
        for log in self.logs.known() {
            let of_log = segments(&self.logs, &log).into_iter();
            mine.extend(of_log.filter(|r| r.segment.stop.is_some() && r.duties.is_holder(me)));
        }
        let mut wanted = self.lacking(mine).await;
        for _ in 0..PAGES_PER_ROUND {
            wanted.extend(self.next_page(turn).await);
        }
        let more = !wanted.is_empty();
        for readable in next_in_turn(wanted, |r| r.segment.loglet, &mut turn.asked) {
            let Ok(provider) = self.logs.registry().provider(&readable.segment.kind) else { continue };
            atoll_core::testing::hit("policy.back_fill");
            provider.back_fill(&readable.extent()).await;
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_filled_does_not_keep_the_rest_from_its_turn() {
        let wanted: Vec<u128> = (0..200).collect();
        let mut asked = LogletId::default();
        let mut seen = std::collections::BTreeSet::new();
        // No back-fill ever succeeds, so all 200 are wanted in each round.
        for round in 0..4 {
            let turn = next_in_turn(wanted.clone(), |id| LogletId(*id), &mut asked);
            assert_eq!(turn.len(), PER_ROUND, "round {round}");
            seen.extend(turn);
        }
        assert_eq!(seen.len(), wanted.len(), "of 200 loglets some were never asked for");
    }
}
