//! Limits how many writes of all connections of a node may wait for an answer from the log. The log is applied in order, so a write
//! waits for all writes before it, from any client. When the replicas are busy, more concurrent writes do not raise the throughput
//! and only make everyone wait longer. Therefore the window stays small until writes are answered quickly throughout it, and
//! becomes small again at the first slow answer (contracts X25).
//!
//! A connection without pending requests may always put one write into the log, so a client that waits for each answer never waits
//! for the window.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The window at the start and after a slow answer. Three nodes together have three times as many writes in one log. Three replicas
/// on two cores apply some 6,000 of the slowest small writes per second, so these take 130 ms.
const LEAST: usize = 256;
/// The largest window. A higher value makes a client wait longer if it arrives while many writes, so far quick, turn slow.
const MOST: usize = 512;
/// An answer within this time widens the window, if a connection has found no room in it.
const QUICK: Duration = Duration::from_millis(25);
/// An answer after this time makes the window small.
const SLOW: Duration = Duration::from_millis(100);
/// After this many checks in a row in which no connection lacked room, one every
/// [`JUDGED_EVERY`](crate::session::keeper::JUDGED_EVERY), the window becomes small again: quick writes in the past say nothing
/// about the next ones.
const LOOKS: usize = 5;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Window {
    size: AtomicUsize,
    /// Whether a connection has found no room since the last check.
    wanted: AtomicBool,
    /// Checks since a connection last found no room.
    unused: AtomicUsize,
    /// Checks since the last slow answer, at most [`LOOKS`].
    since_slow: AtomicUsize,
}

impl Default for Window {
    fn default() -> Self {
        let (size, since_slow) = (AtomicUsize::new(LEAST), AtomicUsize::new(LOOKS));
        Window { size, wanted: AtomicBool::new(false), unused: AtomicUsize::new(0), since_slow }
    }
}

impl Window {
    /// Returns whether a connection with pending requests may add another write, when `waiting` writes already wait for the log.
    pub(crate) fn has_room(&self, waiting: usize) -> bool {
        let has_room = waiting < self.size.load(Ordering::Relaxed);
        if !has_room {
            self.wanted.store(true, Ordering::Relaxed);
        }
        has_room
    }

    /// Records that a write was answered this long after it was put into the log.
    pub(crate) fn answered(&self, took: Duration) {
        let size = self.size.load(Ordering::Relaxed);
        if took >= SLOW {
            self.size.store(LEAST, Ordering::Relaxed);
            self.since_slow.store(0, Ordering::Relaxed);
        } else if took <= QUICK && size < MOST && self.wanted.load(Ordering::Relaxed) {
            self.size.store(size + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether an answer was slow recently, which means that the replicas or their stores are overloaded.
    pub(crate) fn is_slow(&self) -> bool {
        self.since_slow.load(Ordering::Relaxed) < LOOKS
    }

    /// Runs the periodic check. It makes the window small if no connection has needed a wide one lately, or if entries wait for
    /// `elsewhere` to be applied at the slowest of the other replicas and that is long.
    pub(crate) fn look(&self, elsewhere: Duration) {
        let since_slow = self.since_slow.load(Ordering::Relaxed);
        self.since_slow.store((since_slow + 1).min(LOOKS), Ordering::Relaxed);
        if elsewhere >= SLOW {
            self.answered(elsewhere);
        }
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

    /// Returns a window that quick answers have widened as far as possible, because a connection found no room.
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
            window.look(Duration::ZERO);
        });
        assert!(!window.is_slow());
    }

    #[test]
    fn it_forgets_quick_answers_of_long_ago() {
        let window = wide();
        window.look(Duration::ZERO);
        (1..LOOKS).for_each(|_| window.look(Duration::ZERO));
        assert!(window.has_room(MOST - 1), "it was wanted at the first of these looks");
        window.look(Duration::ZERO);
        assert!(!window.has_room(LEAST));
    }

    #[test]
    fn it_is_small_while_another_replica_is_slow() {
        let window = wide();
        window.look(SLOW / 2);
        assert!(window.has_room(MOST - 1) && !window.is_slow());
        window.look(SLOW);
        assert!(!window.has_room(LEAST) && window.is_slow());
    }
}
