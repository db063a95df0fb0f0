//! Warnings about what may happen many times a second, such as accepts that fail because no file descriptors are left.

use std::time::{Duration, Instant};

/// How often the same warning is logged.
const EVERY: Duration = Duration::from_secs(10);

/// Limits how often a warning is logged: at once, and then once in ten seconds, with how often it happened.
#[derive(Debug, Default)]
pub struct LimitedWarning {
    at: Option<Instant>,
    times: u64,
}

impl LimitedWarning {
    /// Counts one more occurrence. Returns the number since the last warning, this one included, if a warning is due now.
    pub fn pass(&mut self) -> Option<u64> {
        self.pass_at(Instant::now())
    }

    fn pass_at(&mut self, now: Instant) -> Option<u64> {
        self.times += 1;
        if self.at.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_logged_and_then_one_in_ten_seconds_with_how_many_there_were() {
        let (mut warning, start) = (LimitedWarning::default(), Instant::now());
        assert_eq!(warning.pass_at(start), Some(1));
        for ms in (50..10_000).step_by(50) {
            assert_eq!(warning.pass_at(start + Duration::from_millis(ms)), None);
        }
        assert_eq!(warning.pass_at(start + EVERY), Some(200));
    }
}
