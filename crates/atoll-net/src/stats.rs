//! Counters, and log lines that a flood cannot multiply.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters since start.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct NetStats { $($(#[$doc])* pub $name: u64),* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $(pub(crate) $name: AtomicU64),* }

        impl Counters {
            pub(crate) fn snapshot(&self) -> NetStats {
                NetStats { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }

        impl NetStats {
            /// Each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Connections that came in.
    accepted,
    /// Of those, how many began with something else than an Atoll handshake, or with nothing in time.
    rejected_garbage,
    /// Of those, how many were refused by name: version, cluster, unknown or duplicate node.
    rejected_handshakes,
    /// Of those, how many had to go for newer ones before they introduced themselves.
    evicted_handshakes,
    /// TLS handshakes that failed, in and out.
    failed_tls,
    /// Connections made to peers, handshake included.
    dialed,
    /// Attempts that failed.
    failed_dials,
    /// Connections that ended because of bytes that are no frame.
    broken_by_bad_frame,
    /// Connections that ended because the peer had more requests in flight than the handshake allows.
    broken_by_too_many_requests,
    /// Connections that ended because the peer did not read its replies.
    broken_by_full_replies,
    /// Frames read.
    frames_in,
    /// Frames written.
    frames_out,
    /// Bytes of frames read.
    bytes_in,
    /// Bytes of frames written.
    bytes_out,
    /// Write calls: `frames_out` over this is how well writes coalesce.
    writes,
    /// Requests and posts dropped because the connection was gone or its queue full.
    dropped,
    /// Replies dropped because the connection of their request was gone.
    dropped_replies,
    /// Frames not sent because they are above the peer's limits.
    oversized,
}

pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// At most one log line a second; says how many it stands for.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<(Option<Instant>, u64)>);

impl Throttle {
    /// The number of events since the last line, this one included; None to stay silent.
    pub(crate) fn pass(&self) -> Option<u64> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        if state.0.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return None;
        }
        state.0 = Some(Instant::now());
        Some(std::mem::take(&mut state.1))
    }
}
