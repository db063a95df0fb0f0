//! Determines which durable runs are held in memory: the newest, up to a limit in bytes. Tailing readers and the apply loop therefore never
//! wait for the disk (contracts §3.8).

use std::collections::VecDeque;

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};

/// Runs below this size are copied, because a slice of a network buffer would pin all of it (X13).
const COPY_BELOW_BYTES: usize = 4096;

/// Accounts for cached bytes, first in, first out. The bytes themselves are stored in the runs.
#[derive(Debug)]
pub struct TailCache {
    limit_bytes: usize,
    used_bytes: usize,
    order: VecDeque<(LogletId, Offset, usize)>,
}

impl TailCache {
    /// Returns an empty cache with this limit.
    pub fn new(limit_bytes: usize) -> Self {
        TailCache { limit_bytes, used_bytes: 0, order: VecDeque::new() }
    }

    /// Returns the bytes in the form in which the cache keeps them: short ones are copied.
    pub fn keep(bytes: &Bytes) -> Bytes {
        if bytes.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(bytes) } else { bytes.clone() }
    }

    /// Records that a run became durable and that its bytes are cached.
    pub fn add(&mut self, loglet: LogletId, first: Offset, len_bytes: usize) {
        self.used_bytes += len_bytes;
        self.order.push_back((loglet, first, len_bytes));
    }

    /// Returns the oldest run while the cache is over its limit. The caller must drop its bytes now.
    pub fn overflow(&mut self) -> Option<(LogletId, Offset)> {
        if self.used_bytes <= self.limit_bytes {
            return None;
        }
        let (loglet, first, len_bytes) = self.order.pop_front()?;
        self.used_bytes -= len_bytes;
        Some((loglet, first))
    }

    /// Returns the bytes counted. A trimmed run counts until its turn comes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
