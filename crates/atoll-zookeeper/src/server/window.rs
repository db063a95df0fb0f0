//! Bounds how many writes of all connections of a node may wait for an answer of the log at once. The log is applied in order, so a
//! write of any client waits for all writes in front of it. Once the replicas are busy, more writes at once bring no more
//! throughput, only a longer wait for everybody. The window therefore stays small until writes are answered quickly through the
//! whole of it, and becomes small again at the first slow answer (contracts X25).
//!
//! A connection without a request in hand may always put one write into the log: a client that waits for each answer never waits
//! for the window.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The window at first, and after a slow answer. Three nodes have three times as many writes in one log: at some 6,000 writes a
/// second, which is what three replicas on two cores apply of the slowest small writes, this takes 130 ms.
const LEAST: usize = 256;
/// The largest window. More: a client that arrives beside many writes that were quick and turn slow waits longer.
const MOST: usize = 512;
/// An answer within this time lets it grow, if a connection waits for it to.
const QUICK: Duration = Duration::from_millis(25);
/// An answer after this time makes it small.
const SLOW: Duration = Duration::from_millis(100);
/// A window that was wide enough at this many checks in a row, one in each [`JUDGED_EVERY`](crate::session::keeper::JUDGED_EVERY),
/// becomes small again: that writes were quick then says nothing about the next ones.
const LOOKS: usize = 5;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Window {
    size: AtomicUsize,
    /// A connection found no room since the last check.
    wanted: AtomicBool,
    /// Checks since a connection found no room.
    unused: AtomicUsize,
    /// Checks since the last slow answer; [`LOOKS`] stands for any longer time.
    since_slow: AtomicUsize,
}

impl Default for Window {
    fn default() -> Self {
        let (size, since_slow) = (AtomicUsize::new(LEAST), AtomicUsize::new(LOOKS));
        Window { size, wanted: AtomicBool::new(false), unused: AtomicUsize::new(0), since_slow }
    }
}

impl Window {
    /// Whether a connection that has requests in hand may put in another write, beside so many that wait for the log.
    pub(crate) fn has_room(&self, waiting: usize) -> bool {
        let has_room = waiting < self.size.load(Ordering::Relaxed);
        if !has_room {
            self.wanted.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Notes that a write was answered this long after it was put into the log.
    pub(crate) fn answered(&self, took: Duration) {
        let size = self.size.load(Ordering::Relaxed);
        if took >= SLOW {
            self.size.store(LEAST, Ordering::Relaxed);
            self.since_slow.store(0, Ordering::Relaxed);
        } else if took <= QUICK && size < MOST && self.wanted.load(Ordering::Relaxed) {
            self.size.store(size + 1, Ordering::Relaxed);
        }
    }

    /// Whether an answer was slow a moment ago: then the replicas, or their stores, are overloaded.
    pub(crate) fn is_slow(&self) -> bool {
        self.since_slow.load(Ordering::Relaxed) < LOOKS
    }

    /// Checks whether the window still has to be as wide as it is.
    pub(crate) fn look(&self) {
        let since_slow = self.since_slow.load(Ordering::Relaxed);
        self.since_slow.store((since_slow + 1).min(LOOKS), Ordering::Relaxed);
        if self.wanted.swap(false, Ordering::Relaxed) {
            self.unused.store(0, Ordering::Relaxed);
        } else if self.unused.fetch_add(1, Ordering::Relaxed) + 1 >= LOOKS {
            self.size.store(LEAST, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A window that a connection wanted wider and quick answers have widened, as far as it goes.
    fn wide() -> Window {
        let window = Window::default();
        assert!(!window.has_room(LEAST));
        (0..2 * MOST).for_each(|_| window.answered(QUICK));
        window
    }

    #[test]
    fn quick_answers_widen_it_if_a_connection_finds_no_room() {
        let window = Window::default();
        assert!(window.has_room(LEAST - 1));
        (0..MOST).for_each(|_| window.answered(QUICK));
        assert!(!window.has_room(LEAST), "nobody wanted it wider");
        window.answered(QUICK);
        assert!(window.has_room(LEAST), "an answer gives room for one more");
        assert!(wide().has_room(MOST - 1));
        assert!(!wide().has_room(MOST), "it grows no further");
    }

    #[test]
    fn a_slow_answer_makes_it_small() {
        let window = wide();
        window.answered(SLOW / 2);
        assert!(window.has_room(MOST - 1), "neither quick nor slow: it stays as it is");
        assert!(!window.is_slow());
        window.answered(SLOW);
        assert!(!window.has_room(LEAST));
        (0..LOOKS).for_each(|_| {
            assert!(window.is_slow());
            window.look();
        });
        assert!(!window.is_slow());
    }

    #[test]
    fn it_forgets_quick_answers_of_long_ago() {
        let window = wide();
        window.look();
        (1..LOOKS).for_each(|_| window.look());
        assert!(window.has_room(MOST - 1), "it was wanted at the first of these looks");
        window.look();
        assert!(!window.has_room(LEAST));
    }
}
