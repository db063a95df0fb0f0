//! Which durable runs are held in memory: the newest, up to a bound in bytes. So tailing readers and apply never wait for
//! the disk (contracts §3.8).

use std::collections::VecDeque;

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};

/// Runs up to this size are copied: a slice of a network buffer would pin all of it (X13).
const COPY_BELOW_BYTES: usize = 4096;

/// The accounting of cached bytes; the bytes themselves are stored in the runs. First in, first out.
#[derive(Debug)]
pub struct TailCache {
    limit_bytes: usize,
    used_bytes: usize,
    order: VecDeque<(LogletId, Offset, usize)>,
}

impl TailCache {
    /// An empty cache with this bound.
    pub fn new(limit_bytes: usize) -> Self {
        TailCache { limit_bytes, used_bytes: 0, order: VecDeque::new() }
    }

    /// Converts bytes to the form in which they are stored.
    pub fn keep(bytes: &Bytes) -> Bytes {
        if bytes.len() < COPY_BELOW_BYTES { Bytes::copy_from_slice(bytes) } else { bytes.clone() }
    }

    /// Records that a run became durable and that its bytes are cached.
    pub fn add(&mut self, loglet: LogletId, first: Offset, len_bytes: usize) {
        self.used_bytes += len_bytes;
        self.order.push_back((loglet, first, len_bytes));
    }

    /// While over the bound: the oldest run, whose bytes must be dropped now.
    pub fn overflow(&mut self) -> Option<(LogletId, Offset)> {
        if self.used_bytes <= self.limit_bytes {
            return None;
        }
        let (loglet, first, len_bytes) = self.order.pop_front()?;
        self.used_bytes -= len_bytes;
        Some((loglet, first))
    }

    /// Bytes counted. A run that was trimmed in the meantime counts until its turn comes.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
