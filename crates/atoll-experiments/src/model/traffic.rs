//! What a turn of a modelled node reads from connections, or writes to them, in as many calls of the system as in the product.

use std::collections::BTreeMap;

use atoll_core::{Class, NodeId};

/// What a connection reads at once (`atoll_net::wire`). A message that does not end there is read in two parts.
const READ_BYTES: u64 = 64 * 1024;
/// How many messages a connection writes at once: each has a head and a payload.
const WRITE_FRAMES: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Stream {
    frames: u64,
    bytes: u64,
}

/// See the module documentation.
#[derive(Default)]
pub struct Traffic {
    streams: BTreeMap<(NodeId, Class), Stream>,
    all: Stream,
}

impl Traffic {
    /// Adds a message from or to a node.
    pub fn add(&mut self, node: NodeId, class: Class, bytes: u64) {
        for stream in [self.streams.entry((node, class)).or_default(), &mut self.all] {
            stream.frames += 1;
            stream.bytes += bytes;
        }
    }

    /// Returns the number of messages.
    pub fn frames(&self) -> u64 {
        self.all.frames
    }

    /// Returns their bytes.
    pub fn bytes(&self) -> u64 {
        self.all.bytes
    }

    /// Returns how many reads they take.
    pub fn reads(&self) -> u64 {
        // All but the last read of a connection cut a message, whose rest is another read.
        self.streams.values().map(|stream| 2 * stream.bytes.div_ceil(READ_BYTES) - 1).sum()
    }

    /// Returns how many writes they take.
    pub fn writes(&self) -> u64 {
        self.streams.values().map(|stream| stream.frames.div_ceil(WRITE_FRAMES)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_connection_share_calls_as_far_as_these_take_them() {
        let mut traffic = Traffic::default();
        for _ in 0..64 {
            traffic.add(NodeId(1), Class::Data, 1_000);
        }
        traffic.add(NodeId(2), Class::Data, 100);
        traffic.add(NodeId(1), Class::Control, 100);
        assert_eq!((traffic.frames(), traffic.bytes()), (66, 64_200));
        assert_eq!((traffic.reads(), traffic.writes()), (3, 3));
        // The second read ends within a message, whose rest is the third.
        traffic.add(NodeId(1), Class::Data, 4_000);
        assert_eq!((traffic.reads(), traffic.writes()), (5, 4));
    }
}
