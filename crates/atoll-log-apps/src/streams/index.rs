//! Which positions of the log belong to which stream: what storage servers index (apps §5). A state machine that plays the log.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, Decode, DecodeError, Encode, Reader};

use super::client::StreamError;
use super::record::StreamRecord;
use crate::history::Index;
use crate::mutants;
use crate::player::{Machine, Player};

/// The share of the positions that one server indexes: `number` of `of`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// From 0.
    pub number: u64,
    /// At least 1.
    pub of: u64,
}

impl Share {
    /// All positions.
    pub const ALL: Share = Share { number: 0, of: 1 };

    fn has(self, position: u64) -> bool {
        position % self.of.max(1) == self.number
    }
}

/// Where a checkpoint of a stream is, and the index of the state in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// The position of its entry.
    pub position: u64,
    /// It holds the state after all entries of the stream below. The trim point of the stream.
    pub index: Index,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stream {
    saved: Option<Saved>,
    /// The entries in the server's share, at or above the index of the checkpoint.
    entries: BTreeSet<u64>,
}

/// What a reader asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The stream.
    pub stream: Bytes,
    /// Its entries at or above this position.
    pub from: u64,
    /// The server has to be at this index, or refuse. Not above the tail.
    pub at_least: Index,
    /// The most positions in the answer, at least 1.
    pub max: usize,
}

/// What a server knows of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The newest checkpoint, if the state in it is newer than where the reader is. Then the entries are those from its index on.
    pub saved: Option<Saved>,
    /// Positions of entries, in order.
    pub positions: Vec<u64>,
    /// There are no others below this position in the server's share. Not above what the server has applied.
    pub complete_below: u64,
}

/// The state of an index server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamIndex {
    share: Share,
    streams: BTreeMap<Bytes, Stream>,
}

impl StreamIndex {
    /// Returns an empty index of a share of the positions.
    pub fn new(share: Share) -> Self {
        StreamIndex { share, streams: BTreeMap::new() }
    }

    /// Returns how many streams it knows.
    pub fn streams(&self) -> impl Iterator<Item = &Bytes> + '_ {
        self.streams.keys()
    }

    /// Returns the lowest trim point of all streams, at most `applied`: nobody needs what is below. None if this is only a share.
    pub fn trim_point(&self, applied: Index) -> Option<Index> {
        let of = |stream: &Stream| match stream.saved {
            Some(saved) => Some(saved.index),
            None => stream.entries.first().copied(),
        };
        let points = self.streams.values().filter_map(of);
        let lowest = if mutant(mutants::APPS_V4) { points.max() } else { points.min() };
        (self.share.of <= 1).then(|| lowest.unwrap_or(applied).min(applied))
    }

    fn answer(&self, ask: &Ask, applied: Index) -> Answer {
        let Some(stream) = self.streams.get(&ask.stream) else {
            return Answer { complete_below: applied, ..Answer::default() };
        };
        let saved = stream.saved.filter(|saved| saved.index > ask.from);
        let from = saved.map_or(ask.from, |saved| saved.index);
        let mut positions: Vec<u64> =
            stream.entries.range(from..).take(ask.max.max(1) + 1).copied().collect();
        // One more shows that there are more.
        let complete_below = match positions.len() > ask.max.max(1) {
            true => positions.pop().unwrap_or(from),
            false => applied,
        };
        Answer { saved, positions, complete_below }
    }

    fn save_point(&mut self, stream: Bytes, saved: Saved) {
        let stream = self.streams.entry(stream).or_default();
        // A checkpoint that comes late is older than one that came before.
        if stream.saved.is_none_or(|before| before.index < saved.index) {
            stream.saved = Some(saved);
            stream.entries = stream.entries.split_off(&saved.index);
        }
    }
}

impl Machine for StreamIndex {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        match StreamRecord::from_bytes(body)? {
            StreamRecord::Update { parts, .. } => {
                for (stream, _) in parts {
                    let stream = self.streams.entry(stream).or_default();
                    if self.share.has(position) {
                        stream.entries.insert(position);
                    }
                }
                if mutant(mutants::APPS_V5) && self.share.has(position) {
                    for stream in self.streams.values_mut() {
                        stream.entries.insert(position);
                    }
                }
            }
            StreamRecord::Checkpoint { stream, index, .. } if index <= position => {
                self.save_point(stream, Saved { position, index });
            }
            // Nobody can know the state above its own entry.
            StreamRecord::Checkpoint { .. } => {}
        }
        Ok(())
    }

    /// What is trimmed belongs to no stream any more: each has a checkpoint above it.
    fn skips_trimmed(&self) -> bool {
        true
    }

    fn save(&self) -> Bytes {
        self.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        *self = StreamIndex::from_bytes(state)?;
        Ok(())
    }
}

impl Encode for StreamIndex {
    fn encode(&self, out: &mut BytesMut) {
        (self.share.number, self.share.of).encode(out);
        atoll_core::codec::put_len(self.streams.len(), out);
        for (name, stream) in &self.streams {
            name.encode(out);
            stream.saved.map(|saved| (saved.position, saved.index)).encode(out);
            stream.entries.iter().copied().collect::<Vec<u64>>().encode(out);
        }
    }
}

impl Decode for StreamIndex {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        let (number, of) = Decode::decode(from)?;
        let mut streams = BTreeMap::new();
        for _ in 0..u32::decode(from)? {
            let name = Bytes::decode(from)?;
            let saved: Option<(u64, u64)> = Decode::decode(from)?;
            let entries = Vec::<u64>::decode(from)?.into_iter().collect();
            let saved = saved.map(|(position, index)| Saved { position, index });
            streams.insert(name, Stream { saved, entries });
        }
        Ok(StreamIndex { share: Share { number, of }, streams })
    }
}

/// A server of a share of the index, as a replica of the log.
pub type StreamServer = Player<StreamIndex>;

/// What readers ask: a server in the same process, or a connection to one.
pub trait IndexServer: Send + Sync + fmt::Debug {
    /// Returns the entries of a stream. Changes nothing, and may be repeated.
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<Answer, StreamError>>;
}

impl IndexServer for Arc<StreamServer> {
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<Answer, StreamError>> {
        Box::pin(async move {
            if mutant(mutants::APPS_V1) {
                let answer = self.view(|index, applied| index.answer(&ask, applied));
                return Ok(Answer { complete_below: answer.complete_below.max(ask.at_least), ..answer });
            }
            if self.applied() < ask.at_least {
                self.play().await?;
            }
            self.view(|index, applied| match applied < ask.at_least {
                true => Err(StreamError::Behind { applied, wanted: ask.at_least }),
                false => Ok(index.answer(&ask, applied)),
            })
        })
    }
}
