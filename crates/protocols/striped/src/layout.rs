//! The mapping between the offsets of a striped Loglet and those of its stripes (the paper's Figure 7). With k stripes, offset L is offset
//! L div k of stripe L mod k.

use atoll_contract::{Offset, OpId};

/// The mapping for a number of stripes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout(u64);

impl Layout {
    /// Returns the mapping for this many stripes, at least one.
    pub fn new(stripes: usize) -> Self {
        Layout(stripes.max(1) as u64)
    }

    /// Returns the number of stripes.
    pub fn stripes(self) -> usize {
        self.0 as usize
    }

    /// Returns the offset in the whole of an offset in a stripe.
    pub fn whole(self, stripe: usize, at: Offset) -> Offset {
        Offset(at.0 * self.0 + stripe as u64)
    }

    /// Returns the stripe of an offset, and the offset in it.
    pub fn place(self, at: Offset) -> (usize, Offset) {
        ((at.0 % self.0) as usize, Offset(at.0 / self.0))
    }

    /// Returns how many offsets of a stripe are below an offset of the whole: the part of a stripe's range that ends there.
    pub fn below(self, stripe: usize, end: Offset) -> Offset {
        Offset(end.0.saturating_sub(stripe as u64).div_ceil(self.0))
    }

    /// Returns the first unfilled offset, given up to where each stripe is filled.
    pub fn first_unfilled(self, filled: impl IntoIterator<Item = Offset>) -> Offset {
        let next = filled.into_iter().enumerate().map(|(stripe, at)| self.whole(stripe, at));
        next.min().unwrap_or_default()
    }

    /// Returns the stripe of a record. It is the same for every attempt, through any node. Consecutive records of one client go to
    /// consecutive stripes, so a client that appends alone leaves no gap.
    pub fn stripe_of(self, op: OpId) -> usize {
        let start = op.client.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        (start.wrapping_add(op.seq) % self.0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_contract::ClientId;

    #[test]
    fn the_mapping_is_that_of_the_figure() {
        let three = Layout::new(3);
        assert_eq!(three.place(Offset(3)), (0, Offset(1)), "L3 is A1");
        assert_eq!(three.whole(1, Offset(2)), Offset(7), "B2 is L7");
        for k in 1..6 {
            let layout = Layout::new(k);
            for at in (0..50).map(Offset) {
                let (stripe, inner) = layout.place(at);
                assert_eq!(layout.whole(stripe, inner), at);
                for stripe in 0..k {
                    let below = (0..at.0).filter(|l| layout.place(Offset(*l)).0 == stripe).count();
                    assert_eq!(
                        layout.below(stripe, at),
                        Offset(below as u64),
                        "{k} stripes, {stripe} below {at}"
                    );
                }
                let filled = (0..k).map(|stripe| layout.below(stripe, at));
                assert_eq!(layout.first_unfilled(filled), at);
            }
        }
    }

    #[test]
    fn the_slowest_stripe_decides() {
        let two = Layout::new(2);
        assert_eq!(two.first_unfilled([Offset(9), Offset(3)]), Offset(7));
        assert_eq!(two.first_unfilled([Offset(3), Offset(9)]), Offset(6));
        assert_eq!(two.first_unfilled([Offset(0), Offset(9)]), Offset(0));
    }

    #[test]
    fn the_records_of_a_client_take_turns() {
        for k in 1..5 {
            let layout = Layout::new(k);
            let of = |seq| layout.stripe_of(OpId { client: ClientId(77), seq });
            for seq in 1..20 {
                assert_eq!((of(seq) + 1) % k, of(seq + 1));
            }
        }
    }
}
