//! The processors of a machine, and which of them a thread gets. As in the kernel, a thread that wakes up takes the processor that it used
//! last, or an idle one if that is busy. If all are busy, it waits for its last one, unless another one falls idle and the thread has not
//! run for a while.

/// A thread that ran less than this long ago, in nanoseconds, waits for its last processor: the kernel takes its data to be in the caches
/// there (`sched_migration_cost_ns`).
const WARM_NS: u64 = 500_000;
/// A thread that ran less than this long ago, in nanoseconds, takes part in what the machine does.
const TAKES_PART_NS: u64 = 10_000_000;

/// A thread of a machine.
#[derive(Clone, Copy, Debug)]
pub struct Thread(usize);

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// The processor that it used last.
    last: usize,
    waits: bool,
    /// When it last ran; none if it never did.
    ran_until: Option<u64>,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Processors {
    /// Until when each processor is busy.
    until: Vec<u64>,
    threads: Vec<State>,
}

impl Processors {
    /// Returns so many processors, but at least one. They are idle.
    pub fn new(count: usize) -> Self {
        Processors { until: vec![0; count.max(1)], threads: Vec::new() }
    }

    /// Adds a thread, which sleeps.
    pub fn add_thread(&mut self) -> Thread {
        self.threads.push(State::default());
        Thread(self.threads.len() - 1)
    }

    /// Returns how many threads more than processors take part in what the machine does.
    pub fn neighbours(&self, now: u64) -> u64 {
        let takes_part =
            |state: &&State| state.ran_until.is_some_and(|until| until.saturating_add(TAKES_PART_NS) > now);
        self.threads.iter().filter(takes_part).count().saturating_sub(self.until.len()) as u64
    }

    /// Returns whether a thread waits for a processor.
    pub fn waits(&self, thread: Thread) -> bool {
        self.threads[thread.0].waits
    }

    fn idle(&self, last: usize, at: u64) -> Option<usize> {
        std::iter::once(last).chain(0..self.until.len()).find(|processor| self.until[*processor] <= at)
    }

    /// Returns the processor that a thread gets now; if there is none, it waits, and the error is when it must ask again.
    pub fn get(&mut self, thread: Thread, now: u64) -> Result<usize, u64> {
        let State { last, waits, ran_until } = self.threads[thread.0];
        let warm_until = ran_until.map_or(0, |until| until + WARM_NS);
        let stays = waits && now < warm_until;
        match self.idle(last, now) {
            Some(processor) if processor == last || !stays => Ok(processor),
            _ => {
                self.threads[thread.0].waits = true;
                let others = self.until.iter().enumerate().filter(|(processor, _)| *processor != last);
                let other = others.map(|(_, until)| (*until).max(warm_until)).min();
                Err(self.until[last].min(other.unwrap_or(u64::MAX)))
            }
        }
    }

    /// Lets a thread run on a processor that it got, until then.
    pub fn run(&mut self, thread: Thread, processor: usize, until: u64) {
        self.until[processor] = until;
        self.threads[thread.0] = State { last: processor, waits: false, ran_until: Some(until) };
    }

    /// Lets a thread run for so long as soon as it gets a processor. Returns when it has done so.
    pub fn run_next(&mut self, thread: Thread, at: u64, nanos: u64) -> u64 {
        let last = self.threads[thread.0].last;
        let processor = self.idle(last, at).unwrap_or(last);
        let until = at.max(self.until[processor]) + nanos;
        self.run(thread, processor, until);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_wakes_up_takes_an_idle_processor_and_one_that_waits_keeps_to_its_own() {
        let mut all = Processors::new(2);
        let [one, two, three] = std::array::from_fn(|_| all.add_thread());
        assert_eq!(all.get(one, 10), Ok(0));
        all.run(one, 0, 100);
        assert_eq!(all.get(two, 10), Ok(1), "the other one is idle");
        all.run(two, 1, 150);
        assert_eq!(all.get(two, 150), Ok(1), "its last one, although both are idle");
        all.run(two, 1, 200);
        all.run(one, 0, 10 * WARM_NS);
        // Both threads used to run on the first processor.
        all.run(three, 0, 120);
        all.run(one, 0, 10 * WARM_NS);
        assert_eq!(all.get(three, 130), Err(WARM_NS + 120));
        assert!(all.waits(three));
        assert_eq!(
            all.get(three, 250),
            Err(WARM_NS + 120),
            "the second one is idle, but it waits for the first one"
        );
        assert_eq!(all.get(three, WARM_NS + 120), Ok(1));
        all.run(three, 1, WARM_NS + 130);
        assert!(!all.waits(three));
        assert_eq!(all.run_next(two, WARM_NS + 140, 7), WARM_NS + 147);
        assert_eq!(all.run_next(three, WARM_NS + 140, 7), WARM_NS + 154, "after the other one");
    }

    #[test]
    fn threads_that_have_not_run_for_long_are_no_neighbours() {
        let mut all = Processors::new(1);
        let [one, two, _] = std::array::from_fn(|_| all.add_thread());
        assert_eq!(all.neighbours(0), 0);
        all.run(one, 0, 100);
        assert_eq!(all.neighbours(100), 0);
        all.run(two, 0, 200);
        assert_eq!(all.neighbours(200), 1);
        assert_eq!(all.neighbours(100 + TAKES_PART_NS), 0);
    }
}
