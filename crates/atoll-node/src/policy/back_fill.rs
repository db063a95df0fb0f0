//! Tells this node's own LogServer where sealed segments stop, so that it fetches what it missed while it was away (X7): without
//! that, entries below the stop could stay on a bare majority for ever, and the next lost disk would leave one copy.

use std::time::Duration;

use atoll_core::Env;
use atoll_log::virtual_log::Segment;
use atoll_loglets::native::message::BackFill;

use crate::logs::Logs;
use crate::members::Members;
use crate::survey::{Survey, segments};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(2);
/// Most requests of one round: the rest comes in the next.
const PER_ROUND: usize = 64;
/// Chains that are read anew in one round: nobody tells a node whose doors a log is not used through that segments were
/// rebuilt or went, and it would look for its gaps in a chain of long ago.
const CHAINS_PER_ROUND: usize = 8;
/// The kind of Loglet that is filled this way.
const NATIVE: &str = "native";

/// The procedure of each node; see the module's words.
#[derive(Clone, Debug)]
pub struct Filler {
    /// This node's executor.
    pub env: Env,
    /// The logs that it knows.
    pub logs: Logs,
    /// The members; this node's LogServer is asked only if it has one.
    pub members: Members,
    /// How often it looks.
    pub every: Duration,
}

impl Filler {
    /// Runs until the node ends.
    pub async fn run(self) {
        let mut turn = 0;
        let mut wait = self.every;
        loop {
            self.env.sleep(self.env.jitter(wait)).await;
            // A server fills a few segments at a time: while there are more, they are asked for soon.
            let more = self.members.identity().log && self.round().await;
            self.refresh_some(&mut turn).await;
            wait = if more { self.every / 8 } else { self.every };
        }
    }

    /// Reads the chains of the logs whose turn it is.
    async fn refresh_some(&self, turn: &mut usize) {
        let opened = self.logs.opened();
        for _ in 0..opened.len().min(CHAINS_PER_ROUND) {
            let log = &opened[*turn % opened.len()];
            *turn = turn.wrapping_add(1);
            drop(self.env.within(ANSWER, log.refresh()).await);
        }
    }

    /// Asks for what is lacking; true if something was.
    async fn round(&self) -> bool {
        let me = self.env.node();
        let survey = Survey::of(&self.env, me).await;
        if !survey.answered(me) {
            return false;
        }
        let mut wanted: Vec<Segment> = Vec::new();
        for log in self.logs.opened() {
            for (segment, servers, from, to) in segments(&self.logs, &log) {
                let mine = segment.kind == NATIVE && segment.stop.is_some() && servers.contains(&me);
                if mine && survey.progress(me, &segment, from, to).lacks > 0 {
                    wanted.push(segment);
                }
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
