//! Watches whether the replica makes progress: failed operations of its store are retried, and a replica that makes no progress is
//! out of service. The judgement rests on progress itself and not on errors, because a disk that hangs reports none.

use std::future::poll_fn;
use std::time::Duration;

use atoll_contract::LogPos;
use atoll_core::Tick;
use atoll_core::testing::hit;

use super::OutOfService;
use super::clock::Reading;
use super::database::Database;

/// Wait before the store is asked again, at first and at most.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often progress is judged.
const JUDGED_EVERY: Duration = Duration::from_millis(250);
/// If the time between two checks exceeds this many intervals, the node itself was paused. Such a check does not count against the
/// replica.
const LATE: u32 = 4;

/// The time since which a figure that should rise has not risen.
#[derive(Clone, Copy)]
struct Rise {
    seen: LogPos,
    since: Tick,
}

impl Rise {
    fn note(&mut self, now: Tick, seen: LogPos) {
        if seen != self.seen {
            *self = Rise { seen, since: now };
        }
    }
}

impl Database {
    /// Retries the store, at growing intervals, for as long as something of it has to be repeated. Runs until the node ends.
    pub(super) async fn retry(self) {
        loop {
            poll_fn(|cx| self.core.poll_store_failing(cx)).await;
            let mut pause = PAUSE;
            while self.core.is_store_failing() {
                self.to.env.sleep(self.to.env.jitter(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                hit("db.store.tried_again");
                self.feed(|feed| feed.retry());
            }
        }
    }

    /// Periodically judges whether this replica makes progress. Runs until the node ends.
    pub(super) async fn watch_progress(self) {
        let env = self.to.env.clone();
        let mut last = env.now();
        let mut applied = Rise { seen: LogPos::ZERO, since: last };
        let mut stored = applied;
        let mut told = None;
        loop {
            env.sleep(JUDGED_EVERY).await;
            let now = env.now();
            if now.since(last) > JUDGED_EVERY * LATE {
                (applied.since, stored.since) = (now, now);
            }
            last = now;
            let health = self.core.health();
            let idle = health.applied_below >= health.known_tail || health.refilling.is_some();
            applied.note(now, health.applied_below);
            if idle {
                applied.since = now;
            }
            stored.note(now, health.durable_below);
            if health.durable_below >= health.applied_below || health.refilling.is_some() {
                stored.since = now;
            }
            let stalled = now.since(applied.since) >= self.options.stalled_after;
            let at = stalled.then_some(health.applied_below);
            // Every patrol makes durable what is applied.
            let behind = now.since(stored.since) >= self.options.patrol_every * 2 + self.options.waited_for;
            self.core.set_progress(at, behind);
            self.core.set_clock(match self.to.clock.read(self.core.published().time_ms) {
                Reading::Ahead(ahead) => Some(ahead),
                Reading::At(_) | Reading::Listening => None,
            });
            // A start takes only a moment, so no other node has to take over because of it.
            let out = self.core.out_of_service().is_some_and(|why| why != OutOfService::Checking);
            if let Some(cluster) = self.cluster.as_ref().filter(|_| told != Some(out)) {
                (cluster.out_of_service)(out);
                told = Some(out);
            }
        }
    }
}
