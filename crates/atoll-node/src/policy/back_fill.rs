//! Tells this node's own LogServer where sealed segments stop, so that it fetches the entries that it missed while it was away (X7).
//! Without that, entries below the stop could stay on a bare majority forever, and the next lost disk would leave a single copy.

use std::time::Duration;

use atoll_contract::LogPos;
use atoll_core::Env;
use atoll_log::virtual_log::Segment;
use atoll_native::message::BackFill;

use crate::logs::{Known, Logs};
use crate::members::Members;
use crate::survey::{Survey, segments};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Most requests of one round: the rest comes in the next.
const PER_ROUND: usize = 64;
/// Index pages that one round looks through.
const PAGES_PER_ROUND: usize = 8;
/// The kind of Loglet that is filled this way.
const NATIVE: &str = "native";

/// The procedure that each node runs; see the module documentation.
#[derive(Clone, Debug)]
pub struct BackFiller {
    /// This node's executor.
    pub env: Env,
    /// The logs that it knows.
    pub logs: Logs,
    /// The members; this node's LogServer is asked only if it has one.
    pub members: Members,
    /// How often it looks.
    pub every: Duration,
}

/// Whose turn it is.
#[derive(Default)]
struct Turn {
    /// Of the index pages: the log, and the position in it.
    log: String,
    at: LogPos,
}

impl BackFiller {
    /// Runs until the node ends.
    pub async fn run(self) {
        let mut turn = Turn::default();
        let mut wait = self.every;
        loop {
            self.env.sleep(self.env.jitter(wait)).await;
            // A server fills a few segments at a time: while there are more, they are asked for soon.
            let more = self.members.identity().log && self.round(&mut turn).await;
            wait = if more { self.every / 8 } else { self.every };
        }
    }

    /// The segments of one index page of which this node's server lacks some positions. The page is the next in turn among all logs with
    /// pages that may be on this node.
    async fn next_page(&self, turn: &mut Turn) -> Vec<Segment> {
        let me = self.env.node();
        let known = self.logs.known();
        let is_due = |log: &&Known| log.chain.chain.pages().iter().any(|p| p.may_be_on(|node, _| node == me));
        let later = known.iter().find(|log| log.name >= turn.log && is_due(log));
        let Some(due) = later.or_else(|| known.iter().find(is_due)) else { return Vec::new() };
        if due.name != turn.log {
            *turn = Turn { log: due.name.clone(), at: LogPos::ZERO };
        }
        let Ok(log) = self.logs.open(&due.name) else { return Vec::new() };
        let Ok(Ok(Ok(page))) = self.env.within(ANSWER, log.segments_from(turn.at)).await else {
            return Vec::new();
        };
        match page.next {
            Some(next) => turn.at = next,
            // The smallest name above this one.
            None => *turn = Turn { log: format!("{}\0", log.name()), at: LogPos::ZERO },
        }
        let trim = page.chain.chain.trim();
        let mine = page.segments.into_iter().filter_map(|segment| {
            let provider = self.logs.registry().provider(&segment.kind).ok()?;
            let servers = provider.members(&segment.config).servers;
            let is_mine = segment.kind == NATIVE && servers.iter().any(|(n, _)| *n == me);
            let stop = segment.stop.filter(|_| is_mine)?;
            let from = segment.start.max(trim).min(stop);
            Some((segment, from, stop))
        });
        self.lacking(mine.collect()).await
    }

    /// Those of the given segments for which this node's server lacks some of the given positions. Empty if the server does not answer.
    async fn lacking(&self, segments: Vec<(Segment, LogPos, LogPos)>) -> Vec<Segment> {
        let me = self.env.node();
        let loglets: Vec<_> = segments.iter().map(|(segment, ..)| segment.loglet).collect();
        let survey = Survey::here(&self.env, &loglets).await;
        let lacks = |(segment, from, to): &(Segment, LogPos, LogPos)| {
            survey.progress(me, segment, *from, *to).lacks > 0
        };
        segments.into_iter().filter(lacks).map(|(segment, ..)| segment).collect()
    }

    /// Asks for what is lacking; true if something was.
    async fn round(&self, turn: &mut Turn) -> bool {
        let me = self.env.node();
        let mut mine = Vec::new();
        for log in self.logs.known() {
            for (segment, servers, from, to) in segments(&self.logs, &log) {
                if segment.kind == NATIVE && segment.stop.is_some() && servers.contains(&me) {
                    mine.push((segment, from, to));
                }
            }
        }
        let mut wanted = self.lacking(mine).await;
        for _ in 0..PAGES_PER_ROUND {
            if wanted.len() < PER_ROUND {
                wanted.extend(self.next_page(turn).await);
            }
        }
        let more = !wanted.is_empty();
        for segment in wanted.into_iter().take(PER_ROUND) {
            let Some(stop) = segment.stop else { continue };
            atoll_core::testing::hit("policy.back_fill");
            let ask = BackFill {
                loglet: segment.loglet,
                config: segment.config.clone(),
                upto: segment.offset_of(stop),
            };
            // Answered or not, the next round looks again.
            drop(self.env.within(ANSWER, self.env.call(me, ask)).await);
        }
        more
    }
}
