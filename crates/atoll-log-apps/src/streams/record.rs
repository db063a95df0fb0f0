//! The records of streams.

use bytes::Bytes;

use atoll_contract::OpId;

/// The longest name of a stream.
pub const MAX_STREAM_BYTES: usize = 256;
/// The most streams that one entry lists.
pub const MAX_STREAMS: usize = 100;
/// The most bytes that one update tells its objects.
pub const MAX_UPDATE_BYTES: usize = 512 << 10;
/// The largest state of an object that a checkpoint holds.
pub const MAX_STATE_BYTES: usize = 768 << 10;

atoll_core::choice! {
    /// A record of a log of streams.
    pub enum StreamRecord {
        /// An entry of every stream that it lists: what it tells each of their objects. All of them, or none.
        1 = Update { op: OpId, parts: Vec<(Bytes, Bytes)> },
        /// The state of the object of one stream after all entries of the stream below `index`. It changes nothing. Replay may begin here.
        2 = Checkpoint { stream: Bytes, index: u64, state: Bytes },
    }
}

impl StreamRecord {
    /// Returns the streams that the record lists.
    pub fn streams(&self) -> Vec<&Bytes> {
        match self {
            StreamRecord::Update { parts, .. } => parts.iter().map(|(stream, _)| stream).collect(),
            StreamRecord::Checkpoint { stream, .. } => vec![stream],
        }
    }
}
