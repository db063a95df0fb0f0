//! Makes seeded random inputs by mutating valid ones. This finds less than a fuzzer that is guided by coverage, but any toolchain can run
//! it.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    /// Returns 64 random bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, or 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % (n as u64).max(1)) as usize
    }

    fn byte(&mut self) -> u8 {
        self.draw() as u8
    }
}

/// The longest input that mutation makes, in bytes; longer ones are cut.
const MAX_BYTES: usize = 64 * 1024;
/// Values at which the handling of lengths and counts tends to fail, in 1 to 8 bytes.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0xffff,
    0x0010_0000,
    0x0011_0000,
    0x7fff_ffff,
    0xffff_ffff,
    u64::MAX >> 1,
    u64::MAX - 1,
    u64::MAX,
];

/// Returns one of `seeds`, changed in one to eight places. A change may insert a part of another seed.
pub fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut input = seeds.get(random.below(seeds.len())).cloned().unwrap_or_default();
    for _ in 0..=random.below(8) {
        change(&mut input, seeds, random);
    }
    input.truncate(MAX_BYTES);
    input
}

fn change(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(input.len());
    let rest = input.len() - at;
    match random.below(8) {
        0 | 1 if rest > 0 => input[at] ^= 1 << random.below(8),
        2 if rest > 0 => input[at] = random.byte(),
        3 => {
            let edge = EDGES[random.below(EDGES.len())].to_le_bytes();
            let n = rest.min(1 << random.below(4));
            input[at..at + n].copy_from_slice(&edge[..n]);
        }
        4 => input.truncate(at),
        5 if rest > 0 => {
            let n = 1 + random.below(rest.min(64));
            input.drain(at..at + n);
        }
        6 => {
            let bytes: Vec<u8> = (0..=random.below(32)).map(|_| random.byte()).collect();
            input.splice(at..at, bytes);
        }
        _ => {
            let Some(other) = seeds.get(random.below(seeds.len())) else { return };
            let from = random.below(other.len());
            let n = random.below(other.len() - from + 1);
            input.splice(at..at, other[from..from + n].iter().copied());
        }
    }
}
