//! Limits how often one log may be changed. It is a state machine without a clock. It slows down after successes as well as failures
//! (vlog-V18): nodes that see different halves of a cluster must not take turns at moving a log, and no cause may change a chain forever.

use std::time::Duration;

use atoll_contract::{LogPos, LogletId, Reason};
use atoll_core::testing::mutant;
use atoll_core::{NodeId, Tick};

use crate::mutants;

/// Each change of the active segment, by any node, raises the level of the log by one. Each period of this length lowers it by one.
const CALM: Duration = Duration::from_secs(3);
/// The highest level.
const MAX_LEVEL: u32 = 8;
/// Up to this level, an urgent reason does not wait, because one cause may need two changes.
const FREE_LEVEL: u32 = 2;
/// The wait of an urgent reason at the first level above [`FREE_LEVEL`]. It doubles with each further level.
const URGENT_WAIT: Duration = Duration::from_millis(200);
/// The longest wait of an urgent reason. It is short because appends wait.
const MAX_URGENT_WAIT: Duration = Duration::from_secs(2);
/// The minimum lifetime of a segment at level 1, unless the reason is urgent. It doubles with each further level. There is none at level 0.
const MIN_LIFE: Duration = Duration::from_secs(3);
/// The longest such minimum lifetime.
const MAX_LIFE: Duration = Duration::from_secs(60);
/// Half the wait after the first failed attempt. The wait doubles with each further failure.
const MIN_BACKOFF: Duration = Duration::from_millis(40);
/// The longest wait after a failed attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Reports of appenders that are at most this far apart belong to one incident.
const ONE_TROUBLE: Duration = Duration::from_secs(1);
/// An incident with this many reports over at least [`TROUBLE_FOR`] is evidence against the sequencer, even if its heartbeats look healthy.
const REPORTS: u32 = 3;
/// See [`REPORTS`].
const TROUBLE_FOR: Duration = Duration::from_millis(800);

/// The current incident that appenders of this log report.
#[derive(Clone, Copy, Debug)]
struct Evidence {
    first: Tick,
    last: Tick,
    reports: u32,
}

/// See the module documentation.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    active: Option<(LogletId, Tick)>,
    level: u32,
    raised: Tick,
    failed: u32,
    not_before: Tick,
    evidence: Option<Evidence>,
    since: Option<(NodeId, Tick)>,
    /// Where the sealed segment starts that could not be rebuilt last.
    not_rebuilt: Option<LogPos>,
}

impl Pace {
    /// Records which segment is active now. If it changed, the level rises and evidence against the earlier segment is dropped.
    pub fn saw(&mut self, now: Tick, active: LogletId) {
        match self.active {
            Some((known, _)) if known == active => return,
            Some(_) if !mutant(mutants::POLICY_NO_CALM) => {
                self.level = (self.level_at(now) + 1).min(MAX_LEVEL);
                self.raised = now;
            }
            _ => {}
        }
        self.active = Some((active, now));
        (self.evidence, self.since) = (None, None);
    }

    /// Returns the level, after the calm time so far.
    fn level_at(&self, now: Tick) -> u32 {
        let calm = now.since(self.raised).as_nanos() / CALM.as_nanos();
        self.level.saturating_sub(u32::try_from(calm).unwrap_or(u32::MAX))
    }

    /// Records an appender's report that the sequencer or its quorum does not answer. Returns whether the reports are evidence now.
    pub fn report(&mut self, now: Tick) -> bool {
        let seen = match self.evidence {
            Some(e) if now.since(e.last) <= ONE_TROUBLE => {
                Evidence { last: now, reports: e.reports + 1, ..e }
            }
            _ => Evidence { first: now, last: now, reports: 1 },
        };
        self.evidence = Some(seen);
        seen.reports >= REPORTS && now.since(seen.first) >= TROUBLE_FOR
    }

    /// Records that nothing is wrong with the active segment.
    pub fn well(&mut self) {
        self.since = None;
    }

    /// Returns when this node may act on a reason. If [`Reason::must_last`] is true, the reason must first exist for `lasts`, because the
    /// views of the members may differ for some heartbeats after each change. An urgent reason ignores the minimum lifetime of a segment.
    pub fn due(&mut self, now: Tick, reason: &Reason, lasts: Duration) -> Tick {
        let since = match self.since {
            Some((node, since)) if node == reason.node => since,
            _ => now,
        };
        self.since = Some((reason.node, since));
        let level = self.level_at(now);
        if reason.is_urgent() {
            let above = level.saturating_sub(FREE_LEVEL);
            let wait = match above {
                0 => Duration::ZERO,
                n => MAX_URGENT_WAIT.min(URGENT_WAIT * 2u32.pow(n - 1)),
            };
            let settled = if reason.must_last() { since.after(lasts) } else { Tick(0) };
            return self.not_before.max(self.raised.after(wait)).max(settled);
        }
        let life = match self.active {
            _ if mutant(mutants::POLICY_NO_CALM) => Tick(0),
            Some((_, born)) if level > 0 => born.after(MAX_LIFE.min(MIN_LIFE * 2u32.pow(level - 1))),
            Some(_) | None => Tick(0),
        };
        self.not_before.max(since.after(lasts)).max(life)
    }

    /// Returns the time before which there is no attempt, because the last one failed.
    pub fn rests_until(&self) -> Tick {
        self.not_before
    }

    /// Records a failed attempt. `jitter` varies the wait from node to node.
    pub fn failed(&mut self, now: Tick, jitter: impl Fn(Duration) -> Duration) {
        self.failed += 1;
        let wait = MAX_BACKOFF.min(MIN_BACKOFF * 2u32.pow(self.failed.min(10)));
        self.not_before = now.after(jitter(wait));
    }

    /// Returns where the sealed segment starts that could not be rebuilt last. Positions do not move, so this holds for newer chains, too.
    pub fn not_rebuilt(&self) -> Option<LogPos> {
        self.not_rebuilt
    }

    /// Records that the sealed segment that starts here could not be rebuilt. It stays recorded after others have been: the turn then
    /// continues from there instead of coming back to it each time.
    pub fn could_not_rebuild(&mut self, start: LogPos) {
        self.not_rebuilt = Some(start);
    }

    /// Records a successful attempt. The level does not change: it falls only with time.
    pub fn done(&mut self) {
        self.failed = 0;
        self.not_before = Tick(0);
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::Urgency::{self, AtOnce, Calm, Soon};

    const S: u64 = 1_000_000_000;
    const LASTS: Duration = Duration::from_millis(250);

    fn reason(urgency: Urgency) -> Reason {
        Reason::new(NodeId(2), urgency, "a reason")
    }

    #[test]
    fn a_young_segment_whose_sequencer_reaches_no_majority_goes_once_that_lasts() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        pace.saw(Tick(S), LogletId(2));
        assert_eq!(pace.due(Tick(2 * S), &reason(Soon), LASTS), Tick(2 * S).after(LASTS));
        assert!(
            pace.due(Tick(2 * S), &reason(Calm), LASTS) > Tick(2 * S).after(LASTS),
            "it lives for a while"
        );
    }

    #[test]
    fn the_first_changes_are_free_and_later_ones_wait() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        for (n, wait) in [(2, 0), (3, 0), (4, 200), (5, 400), (6, 800)] {
            let now = Tick(n * S / 1000);
            pace.saw(now, LogletId(n.into()));
            pace.done();
            assert_eq!(
                pace.due(now, &reason(AtOnce), LASTS),
                now.after(Duration::from_millis(wait)),
                "change {n}"
            );
        }
        // Time lowers the level, success does not.
        let later = Tick(60 * S);
        assert!(pace.due(later, &reason(AtOnce), LASTS) <= later);
    }

    #[test]
    fn a_reason_that_is_not_urgent_has_to_last_and_the_segment_to_be_old() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        let now = Tick(100 * S);
        assert_eq!(pace.due(now, &reason(Calm), LASTS), now.after(LASTS));
        assert_eq!(
            pace.due(Tick(101 * S), &reason(Calm), LASTS),
            now.after(LASTS),
            "counted from its first sign"
        );
        pace.saw(Tick(101 * S), LogletId(2));
        assert_eq!(pace.due(Tick(101 * S), &reason(Calm), LASTS), Tick(104 * S));
        pace.saw(Tick(102 * S), LogletId(3));
        assert_eq!(
            pace.due(Tick(102 * S), &reason(Calm), LASTS),
            Tick(108 * S),
            "twice as long after the next"
        );
    }

    #[test]
    fn single_reports_are_no_evidence() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        assert!(!pace.report(Tick(S)));
        assert!(!pace.report(Tick(S + S / 5)));
        assert!(!pace.report(Tick(3 * S)), "an old trouble is over");
        assert!(!pace.report(Tick(3 * S + S / 2)));
        assert!(pace.report(Tick(4 * S)));
    }

    #[test]
    fn failures_grow_rarer() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        pace.failed(Tick(0), |d| d);
        assert_eq!(pace.due(Tick(0), &reason(AtOnce), LASTS), Tick(0).after(MIN_BACKOFF * 2));
        assert_eq!(pace.rests_until(), Tick(0).after(MIN_BACKOFF * 2));
        for _ in 0..20 {
            pace.failed(Tick(0), |d| d);
        }
        assert_eq!(pace.due(Tick(0), &reason(AtOnce), LASTS), Tick(0).after(MAX_BACKOFF));
    }
}
