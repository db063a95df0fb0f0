//! When the journal gives the next piece of an excess file back to the file system.

use std::time::{Duration, Instant};

/// While the journal is busy, the next piece of a file is given back only after this many times the duration of the last piece.
const BUSY_FACTOR: u32 = 200;
/// The longest wait for the next piece.
const LONGEST_REST: Duration = Duration::from_secs(5);
/// A journal with more than this many syncs since the last piece counts as busy.
const BUSY_SYNCS: u64 = 4;

/// Decides when the next piece of a file is given back.
pub(super) struct GivingBack {
    pause: Duration,
    /// When the next piece is due, if there is one and it is not due yet.
    pub(super) at: Option<Instant>,
    /// Whether the current job gives back a piece.
    under_way: bool,
    began: Instant,
    took: Duration,
    /// The number of syncs of the journal since the last piece.
    pub(super) syncs: u64,
}

impl GivingBack {
    pub(super) fn new(pause: Duration) -> Self {
        let (began, took) = (Instant::now(), Duration::ZERO);
        GivingBack { pause, at: None, under_way: false, began, took, syncs: 0 }
    }

    /// Whether there is a piece that may be given back now. If it must wait, sets `at`.
    pub(super) fn is_due(&mut self, has_excess: bool, now: Instant) -> bool {
        let busy = self.syncs > BUSY_SYNCS;
        let rest = if busy { (self.took * BUSY_FACTOR).min(LONGEST_REST) } else { Duration::ZERO };
        let due = self.began + rest.max(self.pause);
        self.at = (has_excess && now < due).then_some(due);
        has_excess && now >= due
    }

    pub(super) fn begins(&mut self, now: Instant) {
        (self.began, self.under_way, self.syncs) = (now, true, 0);
    }

    /// Records that the current job has ended.
    pub(super) fn ended(&mut self, took: Duration) {
        if std::mem::take(&mut self.under_way) {
            self.took = took;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_given_back_at_once_when_idle_and_in_a_small_part_of_the_time_when_busy() {
        let ms = Duration::from_millis;
        let mut pace = GivingBack::new(ms(100));
        let start = pace.began;
        assert!(!pace.is_due(true, start + ms(99)) && pace.at == Some(start + ms(100)));
        assert!(!pace.is_due(false, start + ms(100)) && pace.at.is_none(), "nothing to wait for");
        assert!(pace.is_due(true, start + ms(100)) && pace.at.is_none());
        pace.begins(start + ms(100));
        pace.ended(ms(5));
        assert!(pace.is_due(true, start + ms(200)), "idle: the pause alone");
        pace.syncs = BUSY_SYNCS + 1;
        assert!(!pace.is_due(true, start + ms(1099)));
        assert!(pace.is_due(true, start + ms(1100)));
        // The duration of making a segment does not count as that of a piece.
        pace.ended(ms(10_000));
        assert!(pace.is_due(true, start + ms(1100)));
        pace.begins(start + ms(1100));
        pace.ended(ms(10_000));
        pace.syncs = BUSY_SYNCS + 1;
        assert!(pace.is_due(true, start + ms(1100) + LONGEST_REST), "a slow piece is not the last");
    }
}
