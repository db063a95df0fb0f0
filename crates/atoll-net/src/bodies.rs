//! Memory for the bodies of frames, which is used again.
//!
//! An allocator gives memory that is free for a while back to the system, so that refused requests cannot make a node large. Bodies come
//! and go all the time. If their memory went back in between, the system would have to clear every page again for the next body.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{BufMut, Bytes};

/// Memory is kept in units of this many bytes. If it is larger, more of each body's memory is unused.
const UNIT_BYTES: usize = 4 * 1024;
/// Longer bodies are rare. Their memory is not kept.
const LONGEST_KEPT_BYTES: usize = 256 * 1024;
const SIZES: usize = LONGEST_KEPT_BYTES / UNIT_BYTES;
/// The most unused memory that is kept. It has to hold the bodies that become free between two that arrive.
const MOST_FREE_BYTES: usize = 4 * 1024 * 1024;

/// The unused memory of one node.
#[derive(Debug, Default)]
pub struct Bodies {
    free: Mutex<Free>,
}

#[derive(Debug)]
struct Free {
    /// Buffers by their size: those at `i` have `i + 1` units.
    by_size: [Vec<Vec<u8>>; SIZES],
    bytes: usize,
}

impl Default for Free {
    fn default() -> Self {
        Free { by_size: [const { Vec::new() }; SIZES], bytes: 0 }
    }
}

impl Bodies {
    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty body with room for this many bytes.
    pub(crate) fn with_room(self: &Arc<Self>, bytes: usize) -> Body {
        let units = bytes.div_ceil(UNIT_BYTES).max(1);
        let kept = {
            let mut free = self.free();
            let kept = free.by_size.get_mut(units - 1).and_then(Vec::pop);
            free.bytes -= kept.as_ref().map_or(0, Vec::capacity);
            kept
        };
        let filled = kept.unwrap_or_else(|| Vec::with_capacity(units * UNIT_BYTES));
        Body { filled, room: bytes, bodies: self.clone() }
    }

    fn take_back(&self, mut buffer: Vec<u8>) {
        let bytes = buffer.capacity();
        let mut free = self.free();
        if !bytes.is_multiple_of(UNIT_BYTES) || free.bytes + bytes > MOST_FREE_BYTES {
            return;
        }
        if let Some(same) = (bytes / UNIT_BYTES).checked_sub(1).and_then(|at| free.by_size.get_mut(at)) {
            buffer.clear();
            same.push(buffer);
            free.bytes += bytes;
        }
    }
}

/// A body that is being filled, up to the length that was asked for. Its memory goes back to the node when the last of its slices is
/// dropped.
#[derive(Debug)]
pub(crate) struct Body {
    filled: Vec<u8>,
    room: usize,
    bodies: Arc<Bodies>,
}

impl Body {
    /// Returns how many bytes are missing.
    pub(crate) fn missing(&self) -> usize {
        self.room - self.filled.len()
    }

    /// Takes as many of the bytes as are missing, and returns how many.
    pub(crate) fn extend(&mut self, bytes: &[u8]) -> usize {
        let n = self.missing().min(bytes.len());
        self.filled.extend_from_slice(&bytes[..n]);
        n
    }

    /// Returns where the missing bytes go.
    pub(crate) fn rest(&mut self) -> impl BufMut + '_ {
        let missing = self.missing();
        (&mut self.filled).limit(missing)
    }

    /// Returns the bytes of the body.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.filled
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        self.bodies.take_back(std::mem::take(&mut self.filled));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free_bytes(bodies: &Bodies) -> usize {
        bodies.free().bytes
    }

    #[test]
    fn memory_is_used_again_once_no_slice_is_left() {
        let bodies = Arc::new(Bodies::default());
        let mut body = bodies.with_room(5_000);
        let at = body.as_ref().as_ptr();
        assert_eq!((body.extend(&[7; 9_000]), body.missing()), (5_000, 0));
        let whole = body.freeze();
        let slice = whole.slice(4_990..);
        drop(whole);
        assert_eq!(free_bytes(&bodies), 0, "a slice is left");
        drop(slice);
        assert_eq!(free_bytes(&bodies), 2 * UNIT_BYTES);
        let again = bodies.with_room(8_192);
        assert_eq!((again.as_ref().len(), again.as_ref().as_ptr(), free_bytes(&bodies)), (0, at, 0));
    }

    #[test]
    fn no_more_than_the_limit_is_kept_and_nothing_long() {
        let bodies = Arc::new(Bodies::default());
        drop(bodies.with_room(LONGEST_KEPT_BYTES + 1));
        assert_eq!(free_bytes(&bodies), 0);
        let many: Vec<Body> = (0..100).map(|n| bodies.with_room(n * 1_000)).collect();
        drop(many);
        let kept = free_bytes(&bodies);
        assert!(kept <= MOST_FREE_BYTES && kept + LONGEST_KEPT_BYTES > MOST_FREE_BYTES, "{kept} bytes");
        let counted: usize = bodies.free().by_size.iter().flatten().map(Vec::capacity).sum();
        assert_eq!(counted, kept);
    }
}
