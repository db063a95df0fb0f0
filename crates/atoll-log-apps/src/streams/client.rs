//! The client of objects: updates of one or several, checkpoints, and the trim of what no stream needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use atoll_contract::{ClientId, OpId};
use atoll_core::DecodeError;
use atoll_core::testing::mutant;

use super::index::StreamServer;
use super::record::{MAX_STATE_BYTES, MAX_STREAM_BYTES, MAX_STREAMS, MAX_UPDATE_BYTES, StreamRecord};
use crate::entry;
use crate::history::Index;
use crate::mutants;
use crate::player::PlayError;
use crate::shared_log::{LogError, SharedLog};
use crate::store::Readers;

/// Why an operation on objects failed, and whether it took effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// It did not happen: a limit is exceeded. The text names it.
    #[error("refused: {0}")]
    Refused(&'static str),
    /// It did not happen: the log or an index server failed.
    #[error("not done: {0}")]
    NotDone(PlayError),
    /// It did not happen: an index server cannot be reached, or its answer cannot be read.
    #[error("no answer of an index server: {0}")]
    NoAnswer(String),
    /// The update may have happened or may still happen. Its entry has this name.
    #[error("unknown outcome of update {0:?}")]
    Unknown(OpId),
    /// An index server is not as far as it was asked to be.
    #[error("an index server has applied {applied}, not {wanted}")]
    Behind {
        /// Its index.
        applied: Index,
        /// The index asked for.
        wanted: Index,
    },
    /// A checkpoint is above the index that was to be read, and replaces what is below. Read at a newer index.
    #[error("the stream begins above index {0}")]
    Overtaken(Index),
    /// What an index server names is not there, or cannot be read.
    #[error("position {0} does not hold what the index names")]
    Damaged(u64),
    /// An object does not understand what its stream tells it.
    #[error("position {0}: {1}")]
    Unreadable(u64, DecodeError),
}

impl From<PlayError> for StreamError {
    fn from(error: PlayError) -> Self {
        StreamError::NotDone(error)
    }
}

impl From<LogError> for StreamError {
    fn from(error: LogError) -> Self {
        StreamError::NotDone(error.into())
    }
}

/// A client that changes objects.
#[derive(Debug)]
pub struct Objects {
    log: Arc<dyn SharedLog>,
    client: ClientId,
    seq: AtomicU64,
}

impl Objects {
    /// Returns a client. `client` is an incarnation: no other client, before or after, has the same.
    pub fn new(log: Arc<dyn SharedLog>, client: ClientId) -> Self {
        Objects { log, client, seq: AtomicU64::new(0) }
    }

    /// Changes several objects at once, each named by its stream and told something. Returns the index from which reads see it. Durable on
    /// return. `StreamError::Unknown` if it may have happened or may still happen; it is never repeated.
    pub async fn update(&self, parts: Vec<(Bytes, Bytes)>) -> Result<Index, StreamError> {
        check(&parts)?;
        if mutant(mutants::APPS_V3) {
            let mut index = 0;
            for part in parts {
                index = self.append(vec![part]).await?;
            }
            return Ok(index);
        }
        self.append(parts).await
    }

    async fn append(&self, parts: Vec<(Bytes, Bytes)>) -> Result<Index, StreamError> {
        let op = OpId { client: self.client, seq: self.seq.fetch_add(1, Ordering::Relaxed) + 1 };
        match self.log.append(entry::record(&StreamRecord::Update { op, parts })).await {
            Ok(position) => Ok(position + 1),
            Err(LogError::Unknown(_)) => Err(StreamError::Unknown(op)),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes a checkpoint of an object: its state after all entries of its stream below `index`. Copies of it do no harm, nor do old ones.
    pub async fn checkpoint(&self, stream: Bytes, index: Index, state: Bytes) -> Result<(), StreamError> {
        if state.len() > MAX_STATE_BYTES {
            return Err(StreamError::Refused("the state of an object exceeds 768 KiB"));
        }
        let record = StreamRecord::Checkpoint { stream, index, state };
        self.log.append(entry::record(&record)).await?;
        Ok(())
    }

    /// Trims what no stream needs: below the lowest trim point of all streams, and below what readers say that they need. `index` has all
    /// positions. Returns where the log begins now.
    pub async fn trim(&self, index: &StreamServer, readers: &Readers) -> Result<Index, StreamError> {
        index.play().await?;
        let point = index.view(|index, applied| index.trim_point(applied));
        let point =
            point.ok_or(StreamError::Refused("a share of the index does not know all trim points"))?;
        let below = point.min(readers.lowest());
        if below > 0 {
            self.log.trim_prefix(below).await?;
        }
        Ok(below)
    }
}

/// Checks limits before anything is appended.
fn check(parts: &[(Bytes, Bytes)]) -> Result<(), StreamError> {
    if parts.is_empty() || parts.len() > MAX_STREAMS {
        return Err(StreamError::Refused("an update has 1 to 100 streams"));
    }
    if parts.iter().any(|(stream, _)| stream.is_empty() || stream.len() > MAX_STREAM_BYTES) {
        return Err(StreamError::Refused("the name of a stream has 1 to 256 bytes"));
    }
    if parts.iter().map(|(stream, _)| stream).collect::<BTreeSet<_>>().len() < parts.len() {
        return Err(StreamError::Refused("a stream is named twice"));
    }
    if parts.iter().map(|(stream, body)| stream.len() + body.len()).sum::<usize>() > MAX_UPDATE_BYTES {
        return Err(StreamError::Refused("an update exceeds 512 KiB"));
    }
    Ok(())
}
