//! What a connection may do before the others of its thread get their turn: bounded in requests, bytes and time, for a request may be a
//! thousand times the work of another (contracts X25).

use std::time::Duration;

use tokio::time::Instant;

/// Requests in a row.
const REQUESTS: usize = 512;
/// Bytes of requests and replies.
const BYTES: usize = 512 * 1024;
/// How long, about.
const FOR: Duration = Duration::from_millis(2);
/// Requests between two looks at the clock, which would be felt at each.
const LOOK_EVERY: usize = 16;
/// Bytes that are as good as that many requests.
const LOOK_EVERY_BYTES: usize = 64 * 1024;

/// One turn.
#[derive(Debug)]
pub(crate) struct Turn {
    began: Instant,
    requests: usize,
    bytes: usize,
    /// Where the clock is looked at next.
    look_at: (usize, usize),
    over: bool,
}

impl Turn {
    /// It begins.
    pub(crate) fn begin() -> Turn {
        let look_at = (LOOK_EVERY, LOOK_EVERY_BYTES);
        Turn { began: Instant::now(), requests: 0, bytes: 0, look_at, over: false }
    }

    /// A request of so many bytes was dealt with, with a reply of so many.
    pub(crate) fn did(&mut self, bytes: usize) {
        self.requests += 1;
        self.bytes += bytes;
        self.over |= self.requests >= REQUESTS || self.bytes >= BYTES;
        let (requests, look_bytes) = self.look_at;
        if self.requests >= requests || self.bytes >= look_bytes {
            self.look_at = (self.requests + LOOK_EVERY, self.bytes + LOOK_EVERY_BYTES);
            self.over |= self.began.elapsed() >= FOR;
        }
    }

    /// Whether others are due.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_by_requests_and_by_bytes() {
        let ends_after = |bytes: usize| {
            let mut turn = Turn::begin();
            (1..).find(|_| {
                turn.did(bytes);
                turn.is_over()
            })
        };
        let of_many_bytes = ends_after(1024 * 1024);
        assert_eq!(of_many_bytes, Some(1));
        assert!(ends_after(1).is_some_and(|n| n <= REQUESTS));
        assert!(ends_after(BYTES / 4).is_some_and(|n| n <= 4));
    }
}
