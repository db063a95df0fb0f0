//! Retries failed operations of the store, and puts a replica that makes no progress out of service. The decision depends on the
//! progress and not on errors, because a disk that hangs reports no error.

use std::future::poll_fn;
use std::time::Duration;

use atoll_contract::LogPos;
use atoll_core::Tick;
use atoll_core::testing::hit;

use super::OutOfService;
use super::clock::Reading;
use super::database::Database;

/// The first and the longest pause between two attempts of the store.
const PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The interval between two checks of the progress.
const JUDGED_EVERY: Duration = Duration::from_millis(250);
/// If the time between two checks exceeds this many intervals, the node itself was paused. Such a check does not count against the
/// replica.
const LATE: u32 = 4;

/// A figure that should rise, and the time since which it has not risen.
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
    /// Retries failed operations of the store, at growing intervals, until they succeed. Runs until the node ends.
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

    /// Periodically checks whether this replica makes progress, and reports when it goes out of service or returns. Runs until the
    /// node ends.
    pub(super) async fn watch_progress(self) {
        let env = self.to.env.clone();
        let mut last = env.now();
        let mut applied = Rise { seen: LogPos::ZERO, since: last };
        let mut stored = applied;
        let mut reported = None;
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
            // Every upkeep commits durably.
            let behind = now.since(stored.since) >= self.options.upkeep_every * 2 + self.options.waited_for;
            self.core.set_progress(at, behind);
            self.core.set_clock(match self.to.clock.read(self.core.published().time_ms) {
                Reading::Ahead(ahead) => Some(ahead),
                Reading::At(_) | Reading::Listening => None,
            });
            // A start check takes only seconds, so other nodes need not take over this replica's sessions.
            let out = self.core.out_of_service().is_some_and(|why| why != OutOfService::Checking);
            if let Some(cluster) = self.cluster.as_ref().filter(|_| reported != Some(out)) {
                (cluster.out_of_service)(out);
                reported = Some(out);
            }
        }
    }
}
