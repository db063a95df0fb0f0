//! What turns, messages, bytes, batches and wake-ups cost real nodes of processor time: the costs that explain best what the processes of
//! nodes took under several loads, given how often each of them did what ([`Usage`]).

use crate::usage::Usage;

/// What costs something, one number for each.
const CAUSES: usize = 12;
/// How many times the fit goes over all costs. It has settled long before that.
const PASSES: usize = 20_000;

/// Processor time of each thing that nodes do, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// Of a turn.
    pub turn_ns: f64,
    /// Of a step in a turn, or a message that leaves.
    pub step_ns: f64,
    /// Of falling asleep and waking up again.
    pub wake_ns: f64,
    /// Of a read from a connection.
    pub read_ns: f64,
    /// Of a write to a connection.
    pub write_ns: f64,
    /// Of a byte that is read or written.
    pub byte_ns: f64,
    /// Of a step more, for each operation that the node has under way: the more memory it uses in turns, the less is in the caches.
    pub step_crowd_ns: f64,
    /// Of a byte that is written more, for each such operation.
    pub byte_crowd_ns: f64,
    /// Of a batch of the journal.
    pub batch_ns: f64,
    /// Of a byte of such a batch.
    pub batch_byte_ns: f64,
    /// Of a step more, for each thread that takes part beyond the number of processors: the more take turns, the less does each find in the
    /// caches.
    pub step_neighbour_ns: f64,
    /// Of a byte of a batch more, for each such thread.
    pub batch_byte_neighbour_ns: f64,
}

/// What a node took and did, and in what company.
#[derive(Clone, Copy, Debug)]
pub struct Observed {
    /// What it took and did.
    pub usage: Usage,
    /// How many operations it had under way with other nodes.
    pub under_way: u32,
    /// How many threads more than processors took part.
    pub neighbours: u32,
}

impl Observed {
    /// Returns how often the node did what costs something.
    fn causes(&self) -> [f64; CAUSES] {
        let Usage { turns, steps, frames_out, sleeps, reads, writes, bytes_in, bytes_out, .. } = self.usage;
        let (under_way, neighbours) = (u64::from(self.under_way), u64::from(self.neighbours));
        [
            turns,
            steps + frames_out,
            sleeps,
            reads,
            writes,
            bytes_in + bytes_out,
            (steps + frames_out) * under_way,
            bytes_out * under_way,
            self.usage.batches,
            self.usage.batch_bytes,
            (steps + frames_out) * neighbours,
            self.usage.batch_bytes * neighbours,
        ]
        .map(|count| count as f64)
    }
}

impl Costs {
    fn of(values: [f64; CAUSES]) -> Self {
        let [turn_ns, step_ns, wake_ns, read_ns, write_ns, byte_ns, step_crowd_ns, byte_crowd_ns, ..] =
            values;
        let [.., batch_ns, batch_byte_ns, step_neighbour_ns, batch_byte_neighbour_ns] = values;
        Costs {
            turn_ns,
            step_ns,
            wake_ns,
            read_ns,
            write_ns,
            byte_ns,
            step_crowd_ns,
            byte_crowd_ns,
            batch_ns,
            batch_byte_ns,
            step_neighbour_ns,
            batch_byte_neighbour_ns,
        }
    }

    fn values(&self) -> [f64; CAUSES] {
        [
            self.turn_ns,
            self.step_ns,
            self.wake_ns,
            self.read_ns,
            self.write_ns,
            self.byte_ns,
            self.step_crowd_ns,
            self.byte_crowd_ns,
            self.batch_ns,
            self.batch_byte_ns,
            self.step_neighbour_ns,
            self.batch_byte_neighbour_ns,
        ]
    }

    /// Returns the processor time that these costs explain.
    pub fn explain_ns(&self, node: &Observed) -> f64 {
        node.causes().iter().zip(self.values()).map(|(count, cost)| count * cost).sum()
    }

    /// Returns the costs that explain what these nodes took with the least sum of squared relative errors. None is negative.
    pub fn fit(nodes: &[Observed]) -> Self {
        let rows: Vec<[f64; CAUSES]> = nodes
            .iter()
            .filter(|node| node.usage.processor_ns > 0)
            .map(|node| node.causes().map(|count| count / node.usage.processor_ns as f64))
            .collect();
        let product = |i: usize, j: usize| rows.iter().map(|row| row[i] * row[j]).sum::<f64>();
        let squares: Vec<[f64; CAUSES]> =
            (0..CAUSES).map(|i| std::array::from_fn(|j| product(i, j))).collect();
        let sums: [f64; CAUSES] = std::array::from_fn(|i| rows.iter().map(|row| row[i]).sum());
        let mut costs = [0.0; CAUSES];
        for _ in 0..PASSES {
            for i in 0..CAUSES {
                if squares[i][i] > 0.0 {
                    let others: f64 = (0..CAUSES).filter(|j| *j != i).map(|j| squares[i][j] * costs[j]).sum();
                    costs[i] = ((sums[i] - others) / squares[i][i]).max(0.0);
                }
            }
        }
        Costs::of(costs)
    }
}

/// How long a disk takes for a batch beside the processor time: for any, and for each byte, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Waits {
    /// For any batch.
    pub sync_ns: f64,
    /// For each byte.
    pub byte_ns: f64,
}

impl Waits {
    /// Returns what explains best how long the batches of these nodes took, without the time of the processor.
    pub fn fit(nodes: &[Usage]) -> Self {
        let points: Vec<(f64, f64)> = nodes
            .iter()
            .filter(|node| node.batches > 0)
            .map(|node| {
                let took_ns = ((node.write_us + node.sync_us) * 1000).saturating_sub(node.journal_ns);
                let batches = node.batches as f64;
                (node.batch_bytes as f64 / batches, (took_ns as f64 / batches).max(1.0))
            })
            .collect();
        // The line with the least sum of squared relative errors.
        let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
        let (ones, xs, squares) =
            (sum(&|_, y| 1.0 / (y * y)), sum(&|x, y| x / (y * y)), sum(&|x, y| x * x / (y * y)));
        let (ys, products) = (sum(&|_, y| 1.0 / y), sum(&|x, y| x / y));
        let spread = ones * squares - xs * xs;
        let (height, slope) = match spread > 0.0 {
            true => ((ys * squares - products * xs) / spread, (ones * products - xs * ys) / spread),
            false => (ys / ones.max(f64::MIN_POSITIVE), 0.0),
        };
        match (height >= 0.0, slope >= 0.0) {
            (true, true) => Waits { sync_ns: height, byte_ns: slope },
            (false, _) => Waits { sync_ns: 0.0, byte_ns: products / squares.max(f64::MIN_POSITIVE) },
            (_, false) => Waits { sync_ns: ys / ones.max(f64::MIN_POSITIVE), byte_ns: 0.0 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(numbers: [u64; 11]) -> Observed {
        let [
            turns,
            steps,
            sleeps,
            reads,
            writes,
            bytes_in,
            under_way,
            bytes_out,
            batches,
            batch_bytes,
            neighbours,
        ] = numbers;
        let usage = Usage {
            turns,
            steps,
            sleeps,
            reads,
            writes,
            bytes_in,
            bytes_out,
            batches,
            batch_bytes,
            ..Usage::default()
        };
        Observed { usage, under_way: under_way as u32, neighbours: neighbours as u32 }
    }

    #[test]
    fn costs_are_found_again() {
        let real =
            Costs::of([900.0, 300.0, 0.0, 2_000.0, 5_000.0, 0.2, 0.3, 0.001, 30_000.0, 0.5, 40.0, 0.2]);
        let mut nodes = Vec::new();
        let mut mixed = 7_u64;
        for _ in 0..60 {
            let most = [900, 9_000, 700, 800, 800, 4_000_000, 500, 4_000_000, 90, 2_000_000, 5];
            let numbers = most.map(|most| {
                mixed = mixed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (mixed >> 40) % most
            });
            let mut node = node(numbers);
            node.usage.processor_ns = real.explain_ns(&node).round() as u64;
            nodes.push(node);
        }
        let found = Costs::fit(&nodes);
        for node in &nodes {
            let part = found.explain_ns(node) / node.usage.processor_ns as f64;
            assert!((part - 1.0).abs() < 0.01, "{part} of a node: {found:?}");
        }
    }

    #[test]
    fn waits_are_found_again_and_are_never_negative() {
        let batches = |bytes: u64, took_us: u64| Usage {
            batches: 10,
            batch_bytes: 10 * bytes,
            write_us: 4 * took_us,
            sync_us: 8 * took_us,
            journal_ns: 2_000 * took_us,
            ..Usage::default()
        };
        let found =
            Waits::fit(&[batches(0, 100), batches(10_000, 120), batches(100_000, 300), Usage::default()]);
        assert!((found.sync_ns - 100_000.0).abs() < 1.0 && (found.byte_ns - 2.0).abs() < 1e-3, "{found:?}");
        let falling = Waits::fit(&[batches(0, 100), batches(10_000, 50)]);
        assert!(falling.sync_ns > 0.0 && falling.byte_ns == 0.0, "{falling:?}");
        assert_eq!(Waits::fit(&[]), Waits { sync_ns: 0.0, byte_ns: 0.0 });
    }
}
