//! How many writes of all connections of a node may be without an answer of the log at once. Whatever is in the log is applied in its
//! order, so a write of any client waits for all that are in front of it. Once the replicas are busy, more of them at once bring no more
//! throughput, only a longer wait for everybody. So the window is small until writes are answered quickly through the whole of it, and
//! small again at the first slow answer (contracts X25).
//!
//! A connection without a request in hand may always put one into the log: a client that waits for each answer never waits for the window.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// What the window is at first, and after a slow answer. Three nodes have three times as many in one log: at some 6,000 writes a second,
/// what three replicas on two cores apply of the slowest small ones, 130 ms.
const LEAST: usize = 256;
/// What it grows to. More: a client that comes beside many writes that were quick, and turn slow, waits longer.
const MOST: usize = 512;
/// An answer within this time lets it grow, if a connection waits for it to.
const QUICK: Duration = Duration::from_millis(25);
/// An answer after this time makes it small.
const SLOW: Duration = Duration::from_millis(100);
/// A window that was wide enough at so many looks in a row, one in each [`JUDGED_EVERY`](crate::session::keeper::JUDGED_EVERY), is small
/// again: that writes were quick then says nothing of the next ones.
const LOOKS: usize = 5;

/// See the module's words.
#[derive(Debug)]
pub(crate) struct Window {
    size: AtomicUsize,
    /// A connection found no room since the last look.
    wanted: AtomicBool,
    /// Looks since one did.
    unused: AtomicUsize,
    /// Looks since the last slow answer; [`LOOKS`] stands for any longer time.
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

    /// A write was answered so long after it was put into the log.
    pub(crate) fn answered(&self, took: Duration) {
        let size = self.size.load(Ordering::Relaxed);
        if took >= SLOW {
            self.size.store(LEAST, Ordering::Relaxed);
            self.since_slow.store(0, Ordering::Relaxed);
        } else if took <= QUICK && size < MOST && self.wanted.load(Ordering::Relaxed) {
            self.size.store(size + 1, Ordering::Relaxed);
        }
    }

    /// Whether an answer was slow a moment ago: then the replicas, or their stores, have more to do than they can.
    pub(crate) fn is_slow(&self) -> bool {
        self.since_slow.load(Ordering::Relaxed) < LOOKS
    }

    /// Looks whether it is still wanted as wide as it is.
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
