//! How often one log may be moved: a state machine without a clock. It damps successes as well as failures (vlog-V18): nodes
//! that see different halves of a cluster must not take turns, and no cause may change a chain without end.

use std::time::Duration;

use atoll_contract::LogletId;
use atoll_core::testing::mutant;
use atoll_core::{NodeId, Tick};

use crate::mutants;

use super::assess::Reason;

/// Each change of the active segment, whichever node makes it, makes a log more restless by one level. Each period of this length makes it
/// calmer by one.
const CALM: Duration = Duration::from_secs(3);
/// Levels beyond this one count no further.
const MAX_LEVEL: u32 = 8;
/// Up to this level an urgent reason is acted on at once: one cause may need two changes.
const FREE_LEVEL: u32 = 2;
/// Wait of an urgent reason at the first level that is not free; doubles with each.
const URGENT_WAIT: Duration = Duration::from_millis(200);
/// Longest wait of an urgent reason: appends wait for it.
const MAX_URGENT_WAIT: Duration = Duration::from_secs(2);
/// The minimum lifetime of a segment at level 1, unless the reason is urgent. It doubles with each further level. There is none at level 0.
const MIN_LIFE: Duration = Duration::from_secs(3);
/// Longest such life.
const MAX_LIFE: Duration = Duration::from_secs(60);
/// Wait after a failed attempt; doubles with each.
const MIN_BACKOFF: Duration = Duration::from_millis(40);
/// Longest wait after a failed attempt.
const MAX_BACKOFF: Duration = Duration::from_secs(2);
/// Reports of appenders that are closer together than this count as one incident.
const ONE_TROUBLE: Duration = Duration::from_secs(1);
/// This many reports, over [`TROUBLE_FOR`], are evidence against a sequencer that seems to be well.
const REPORTS: u32 = 3;
/// See [`REPORTS`].
const TROUBLE_FOR: Duration = Duration::from_millis(800);

/// What appenders of this log run into, one report after the other.
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
}

impl Pace {
    /// Takes note of the active segment as it is known now. Evidence against an earlier one is forgotten.
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

    /// How restless the log is.
    fn level_at(&self, now: Tick) -> u32 {
        let calm = now.since(self.raised).as_nanos() / CALM.as_nanos();
        self.level.saturating_sub(u32::try_from(calm).unwrap_or(u32::MAX))
    }

    /// An appender reports that the sequencer or its quorum does not answer. True once that is evidence.
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

    /// Nothing is wrong with the active segment.
    pub fn well(&mut self) {
        self.since = None;
    }

    /// When a reason may be acted on. A reason that must last has to be there for `lasts` first, because the views of the members differ
    /// for some heartbeats after each change. An urgent reason ignores the least life of a segment.
    pub fn due(&mut self, now: Tick, reason: Reason, lasts: Duration) -> Tick {
        let since = match self.since {
            Some((node, since)) if node == reason.node() => since,
            _ => now,
        };
        self.since = Some((reason.node(), since));
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

    /// No attempt is made before this, because the last one failed.
    pub fn rests_until(&self) -> Tick {
        self.not_before
    }

    /// An attempt failed; `jitter` makes nodes differ.
    pub fn failed(&mut self, now: Tick, jitter: impl Fn(Duration) -> Duration) {
        self.failed += 1;
        let wait = MAX_BACKOFF.min(MIN_BACKOFF * 2u32.pow(self.failed.min(10)));
        self.not_before = now.after(jitter(wait));
    }

    /// An attempt succeeded. The level stays: it falls only with time.
    pub fn done(&mut self) {
        self.failed = 0;
        self.not_before = Tick(0);
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const URGENT: Reason = Reason::SequencerGone(NodeId(2));
    const SOFT: Reason = Reason::SequencerCutOff(NodeId(2));
    const LASTS: Duration = Duration::from_millis(250);

    #[test]
    fn a_young_segment_whose_sequencer_reaches_no_majority_goes_once_that_lasts() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        pace.saw(Tick(S), LogletId(2));
        let reason = Reason::SequencerWithoutQuorum(NodeId(2));
        assert_eq!(pace.due(Tick(2 * S), reason, LASTS), Tick(2 * S).after(LASTS));
        assert!(pace.due(Tick(2 * S), SOFT, LASTS) > Tick(2 * S).after(LASTS), "it lives for a while");
    }

    #[test]
    fn the_first_changes_are_free_and_later_ones_wait() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        for (n, wait) in [(2, 0), (3, 0), (4, 200), (5, 400), (6, 800)] {
            let now = Tick(n * S / 1000);
            pace.saw(now, LogletId(n.into()));
            pace.done();
            assert_eq!(pace.due(now, URGENT, LASTS), now.after(Duration::from_millis(wait)), "change {n}");
        }
        // Calm time lowers it, success does not.
        let later = Tick(60 * S);
        assert!(pace.due(later, URGENT, LASTS) <= later);
    }

    #[test]
    fn a_reason_that_is_not_urgent_has_to_last_and_the_segment_to_be_old() {
        let mut pace = Pace::default();
        pace.saw(Tick(0), LogletId(1));
        let now = Tick(100 * S);
        assert_eq!(pace.due(now, SOFT, LASTS), now.after(LASTS));
        assert_eq!(pace.due(Tick(101 * S), SOFT, LASTS), now.after(LASTS), "counted from its first sign");
        pace.saw(Tick(101 * S), LogletId(2));
        assert_eq!(pace.due(Tick(101 * S), SOFT, LASTS), Tick(104 * S));
        pace.saw(Tick(102 * S), LogletId(3));
        assert_eq!(pace.due(Tick(102 * S), SOFT, LASTS), Tick(108 * S), "twice as long after the next");
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
        assert_eq!(pace.due(Tick(0), URGENT, LASTS), Tick(0).after(MIN_BACKOFF * 2));
        assert_eq!(pace.rests_until(), Tick(0).after(MIN_BACKOFF * 2));
        for _ in 0..20 {
            pace.failed(Tick(0), |d| d);
        }
        assert_eq!(pace.due(Tick(0), URGENT, LASTS), Tick(0).after(MAX_BACKOFF));
    }
}
