//! Fetches a state snapshot from a peer, chunk by chunk.

use std::time::Duration;

use bytes::Bytes;

use atoll_contract::LogPos;
use atoll_core::testing::hit;
use atoll_core::{CallError, Env, NodeId};

use super::chunk::{Chunk, ChunkError};
use super::message::FetchChunk;

/// The longest wait for one chunk.
const PIECE_WITHIN: Duration = Duration::from_secs(10);

/// Why a snapshot could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("node {0} did not answer in time")]
    Late(NodeId),
    #[error("node {0} sent {1}")]
    Chunk(NodeId, ChunkError),
    #[error("node {0} sent keys out of order, or none")]
    Order(NodeId),
}

/// A decoded chunk.
pub(crate) struct Piece {
    pub(crate) items: Vec<(Bytes, Bytes)>,
    /// Its size on the wire.
    pub(crate) bytes: u64,
    pub(crate) below: LogPos,
    pub(crate) last: bool,
}

/// A state snapshot that is being fetched from one peer.
pub(crate) struct Fetch {
    env: Env,
    peer: NodeId,
    snapshot: u64,
    at_least: LogPos,
    after: Bytes,
}

/// Begins to fetch a snapshot, which must include all entries below `at_least`.
pub(crate) fn fetch(env: &Env, peer: NodeId, at_least: LogPos) -> Fetch {
    Fetch { env: env.clone(), peer, snapshot: 0, at_least, after: Bytes::new() }
}

impl Fetch {
    /// Fetches the next chunk.
    pub(crate) async fn next(&mut self) -> Result<Piece, FetchError> {
        let ask = FetchChunk { snapshot: self.snapshot, at_least: self.at_least, after: self.after.clone() };
        let reply = self.env.within(PIECE_WITHIN, self.env.call(self.peer, ask)).await;
        let reply = reply.map_err(|_| FetchError::Late(self.peer))??;
        let bytes = reply.chunk.len() as u64;
        let items = Chunk::decode_from_peer(reply.chunk, self.env.levels().reads())
            .map_err(|e| FetchError::Chunk(self.peer, e))?
            .0;
        let other = self.snapshot != 0 && reply.snapshot != self.snapshot;
        let behind = items.first().is_some_and(|(key, _)| *key <= self.after && !self.after.is_empty());
        if other || behind || (items.is_empty() && !reply.last) || reply.below < self.at_least {
            return Err(FetchError::Order(self.peer));
        }
        self.snapshot = reply.snapshot;
        if let Some((key, _)) = items.last() {
            self.after = key.clone();
        }
        hit("db.refill.piece");
        Ok(Piece { items, bytes, below: reply.below, last: reply.last })
    }
}
