//! Counters, and a limit for repeated log lines.

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
            /// Returns each counter with its name.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Incoming TCP connections.
    accepted,
    /// Incoming connections that did not complete a valid Atoll handshake in time, including those whose TLS handshake failed.
    rejected_garbage,
    /// Incoming connections that were refused with a reason, for example the version, the cluster, or an unknown or duplicate node.
    rejected_handshakes,
    /// Incoming connections that were closed before their handshake, because newer ones exceeded the limit.
    evicted_handshakes,
    /// TLS handshakes that failed, incoming and outgoing.
    failed_tls,
    /// Connections made to peers, including the handshake.
    dialed,
    /// Attempts to connect to peers that failed.
    failed_dials,
    /// Connections that were closed because of an invalid frame.
    broken_by_bad_frame,
    /// Connections that were closed because the peer had more requests in flight than the handshake allows.
    broken_by_too_many_requests,
    /// Connections that were closed because the peer did not read its replies.
    broken_by_full_replies,
    /// Frames read.
    frames_in,
    /// Frames written.
    frames_out,
    /// Bytes of frames read.
    bytes_in,
    /// Bytes of frames written.
    bytes_out,
    /// Read calls that returned bytes.
    reads,
    /// Write calls. `frames_out` divided by this shows how well writes coalesce.
    writes,
    /// Requests and posts dropped because there was no connection, its queue was full, or too many requests were in flight.
    dropped,
    /// Replies dropped because the connection of their request was gone.
    dropped_replies,
    /// Frames not sent because they exceed the limits of the connection.
    oversized,
}

pub(crate) fn count(counter: &AtomicU64) {
    add(counter, 1);
}

pub(crate) fn add(counter: &AtomicU64, n: usize) {
    counter.fetch_add(n as u64, Ordering::Relaxed);
}

/// Permits at most one log line per second, and counts the events that it stands for.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<(Option<Instant>, u64)>);

impl Throttle {
    /// Returns the number of events since the last line, including this one, or None if no line is due.
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
