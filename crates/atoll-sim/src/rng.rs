//! Random numbers of a simulated run: SplitMix64 sequences, all derived from the seed.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Returns a separate stream. What one part draws from it does not affect what other parts draw.
    pub fn fork(&mut self) -> Rng {
        Rng(self.bits())
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number in `[0, n)`, or 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// Returns a number in `[from, to)`, or `from` if that range is empty.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// Returns true with a probability of `of_1000` per thousand.
    pub fn permille(&mut self, of_1000: u32) -> bool {
        of_1000 > 0 && self.below(1000) < u64::from(of_1000)
    }

    /// Returns a random number with this mean and a long tail: at least half of the mean, and in one of 64 cases 2 to 2.5 times the mean.
    /// Uses only integer arithmetic, so that debug and release builds agree.
    pub fn tail(&mut self, mean: u64) -> u64 {
        let bits = self.bits();
        // The number of leading zeros is geometric: each additional one is half as likely.
        let doublings = u64::from((bits | 1).leading_zeros().min(6));
        mean / 2 + self.below(mean.max(1)) / 2 + mean * doublings / 4
    }

    /// Returns one of the items, or None if there are none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len() as u64) as usize]) }
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
