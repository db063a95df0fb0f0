//! Which processor of its machine a thread gets. As in the kernel, a thread that wakes up takes the processor that it used last, or an idle
//! one if that is busy. If all are busy, it waits for its last one, even if another one falls idle meanwhile.

/// A thread that waits moves to another processor at the earliest this long after it last ran, in nanoseconds: the kernel looks for such
/// threads with each tick of its clock, of which there are 250 in a second.
const TICK_NS: u64 = 4_000_000;

/// A thread of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Thread {
    /// The processor that it used last.
    last: usize,
    /// It waits for a processor.
    waits: bool,
    /// When it last ran.
    ran_until: u64,
}

impl Thread {
    /// Returns whether it waits for a processor.
    pub fn waits(&self) -> bool {
        self.waits
    }
}

/// The processors of a machine: until when each is busy.
#[derive(Debug)]
pub struct Processors(Vec<u64>);

impl Processors {
    /// Returns so many processors, but at least one. They are idle.
    pub fn new(count: usize) -> Self {
        Processors(vec![0; count.max(1)])
    }

    /// Returns how many there are.
    pub fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn idle(&self, thread: &Thread, at: u64) -> Option<usize> {
        let mut all = std::iter::once(thread.last).chain(0..self.0.len());
        all.find(|processor| self.0[*processor] <= at)
    }

    /// Returns the processor that a thread gets now; if there is none, it waits, and the error is when it must ask again.
    pub fn get(&self, thread: &mut Thread, now: u64) -> Result<usize, u64> {
        let moves_at = thread.ran_until + TICK_NS;
        let stays = thread.waits && now < moves_at;
        match self.idle(thread, now) {
            Some(processor) if processor == thread.last || !stays => Ok(processor),
            _ => {
                thread.waits = true;
                let others = self.0.iter().enumerate().filter(|(processor, _)| *processor != thread.last);
                let other = others.map(|(_, until)| (*until).max(moves_at)).min();
                Err(self.0[thread.last].min(other.unwrap_or(u64::MAX)))
            }
        }
    }

    /// Lets a thread run on a processor that it got, until then.
    pub fn run(&mut self, thread: &mut Thread, processor: usize, until: u64) {
        self.0[processor] = until;
        *thread = Thread { last: processor, waits: false, ran_until: until };
    }

    /// Lets a thread run for so long as soon as it gets a processor. Returns when it has done so.
    pub fn run_next(&mut self, thread: &mut Thread, at: u64, nanos: u64) -> u64 {
        let processor = self.idle(thread, at).unwrap_or(thread.last);
        let until = at.max(self.0[processor]) + nanos;
        self.run(thread, processor, until);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_wakes_up_takes_an_idle_processor_and_one_that_waits_keeps_to_its_own() {
        let (mut one, mut two, mut three) = Default::default();
        let mut all = Processors::new(2);
        assert_eq!(all.get(&mut one, 10), Ok(0));
        all.run(&mut one, 0, 100);
        assert_eq!(all.get(&mut two, 10), Ok(1), "the other one is idle");
        all.run(&mut two, 1, 50);
        assert_eq!(all.get(&mut two, 50), Ok(1), "its last one, although both are idle at 100");
        // It ran before, on the first processor, and both are busy.
        let mut waiting = Thread { ran_until: 5, ..one };
        assert_eq!(all.get(&mut waiting, 20), Err(100));
        assert!(waiting.waits());
        assert_eq!(
            all.get(&mut waiting, 60),
            Err(100),
            "the second one is idle, but it waits for the first one"
        );
        assert_eq!(all.get(&mut waiting, 100), Ok(0));
        // The next tick moves it.
        all.run(&mut one, 0, 10 * TICK_NS);
        assert_eq!(all.get(&mut waiting, 200), Err(TICK_NS + 5));
        assert_eq!(all.get(&mut waiting, TICK_NS + 5), Ok(1));
        assert_eq!(all.run_next(&mut three, 300, 7), 307, "the second one is idle");
        assert_eq!(all.run_next(&mut three, 300, 7), 314, "after itself");
    }
}
