//! A node's monotonic clock, with its own zero and its own speed.

use atoll_core::Tick;

use crate::rng::Rng;

const UNIT_BITS: u32 = 20;

/// Maps virtual time to a node's clock and back.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    zero: u64,
    /// Its speed in units of 2^-20 of virtual time.
    speed: u64,
}

impl Clock {
    /// Creates a clock that shows virtual time.
    pub fn exact() -> Self {
        Clock { zero: 0, speed: 1 << UNIT_BITS }
    }

    /// Creates a clock with a random zero that is up to `most_permille` thousandths fast or slow.
    pub fn skewed(rng: &mut Rng, most_permille: u64) -> Self {
        let most = (1 << UNIT_BITS) * most_permille / 1000;
        Clock { zero: rng.below(1 << 50), speed: (1 << UNIT_BITS) - most + rng.below(2 * most + 1) }
    }

    /// Sets the clock ahead.
    pub fn jump(&mut self, nanos: u64) {
        self.zero += nanos;
    }

    /// Returns what the clock shows at the virtual time `now`.
    pub fn tick(&self, now: u64) -> Tick {
        Tick(self.zero + ((u128::from(now) * u128::from(self.speed)) >> UNIT_BITS) as u64)
    }

    /// Returns the first virtual time at which the clock shows `tick` or more.
    pub fn when(&self, tick: Tick) -> u64 {
        let ahead = u128::from(tick.0.saturating_sub(self.zero)) << UNIT_BITS;
        u64::try_from(ahead.div_ceil(u128::from(self.speed))).unwrap_or(u64::MAX)
    }
}
