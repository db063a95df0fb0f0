//! All randomness of a simulated run: one SplitMix64 sequence per purpose, each derived from the seed.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// A separate stream: what one part draws does not affect what another part draws.
    pub fn fork(&mut self) -> Rng {
        Rng(self.bits())
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `[0, n)`; 0 for n = 0.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// A number in `[from, to)`; `from` if that is empty.
    pub fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from))
    }

    /// True in `of_1000` of a thousand cases.
    pub fn permille(&mut self, of_1000: u32) -> bool {
        of_1000 > 0 && self.below(1000) < u64::from(of_1000)
    }

    /// A number around `mean` with a long tail: most near it, one in a hundred several times as large. Integer
    /// arithmetic only, so that debug and release agree.
    pub fn tail(&mut self, mean: u64) -> u64 {
        let bits = self.bits();
        // The number of leading zeros is geometric: each further one is half as likely.
        let doublings = u64::from((bits | 1).leading_zeros().min(6));
        mean / 2 + self.below(mean.max(1)) / 2 + mean * doublings / 4
    }

    /// One of the items, or None of none.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { Some(&of[self.below(of.len() as u64) as usize]) }
    }

    /// Puts the items into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}
