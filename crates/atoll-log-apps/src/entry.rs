//! What an application appends: a record of its own, or a part of a checkpoint of its state.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use atoll_contract::OpId;
use atoll_core::{Decode, DecodeError, Encode, Reader};

/// The format of all entries. It is the first byte of each.
const FORMAT: u8 = 1;
/// The most bytes of a state that one part of a checkpoint carries.
pub const PART_BYTES: usize = 256 << 10;

atoll_core::choice! {
    /// An entry of an application's log.
    pub enum AppEntry {
        /// A record, which the application decodes.
        1 = Record { body: Bytes },
        /// A part of a checkpoint: the state at an index. It changes nothing; whoever finds what it needs trimmed starts from it.
        2 = Part { id: OpId, index: u64, number: u32, of: u32, hash: u64, body: Bytes },
    }
}

impl AppEntry {
    /// Returns the bytes to append.
    pub fn seal(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        self.encode(&mut out);
        out.freeze()
    }

    /// Reads an entry.
    pub fn open(data: Bytes) -> Result<Self, DecodeError> {
        let mut from = Reader::new(data);
        match u8::decode(&mut from)? {
            FORMAT => {}
            other => {
                return Err(DecodeError::Invalid {
                    what: "format of an application's entry",
                    value: other.into(),
                    allowed: "1",
                });
            }
        }
        let entry = AppEntry::decode(&mut from)?;
        from.finish("an application's entry")?;
        Ok(entry)
    }
}

/// Returns the entry that holds a record.
pub fn record(body: &impl Encode) -> Bytes {
    AppEntry::Record { body: body.to_bytes() }.seal()
}

/// Returns the hash of a state.
pub fn hash(state: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(state)
}

/// Returns the entries that hold a checkpoint: the state at an index.
pub fn checkpoint(id: OpId, index: u64, state: &Bytes) -> Vec<Bytes> {
    let pieces: Vec<Bytes> = match state.is_empty() {
        true => vec![Bytes::new()],
        false => state.chunks(PART_BYTES).map(|piece| state.slice_ref(piece)).collect(),
    };
    let (of, hash) = (pieces.len() as u32, hash(state));
    let part = |(number, body)| AppEntry::Part { id, index, number, of, hash, body };
    (0u32..).zip(pieces).map(part).map(|part| part.seal()).collect()
}

/// How many checkpoints may be collected at once. More are given up, the one begun first.
const MAX_COLLECTED: usize = 4;

#[derive(Debug)]
struct Pieces {
    id: OpId,
    of: u32,
    bytes: usize,
    pieces: BTreeMap<u32, Bytes>,
}

/// Collects the parts of checkpoints, of a few at a time, each of a limited size.
#[derive(Debug)]
pub struct Parts {
    max_bytes: usize,
    begun: VecDeque<Pieces>,
}

impl Parts {
    /// Returns a collector for states of at most this many bytes.
    pub fn new(max_bytes: usize) -> Self {
        Parts { max_bytes, begun: VecDeque::new() }
    }

    /// Takes a part. Returns the index and the state once all of its parts are there and the hash agrees. Copies of parts do no harm.
    pub fn take(&mut self, entry: &AppEntry) -> Option<(u64, Bytes)> {
        let AppEntry::Part { id, index, number, of, hash: expected, body } = entry else { return None };
        let at = match self.begun.iter().position(|begun| begun.id == *id && begun.of == *of) {
            Some(at) => at,
            None => {
                if self.begun.len() == MAX_COLLECTED {
                    self.begun.pop_front();
                }
                self.begun.push_back(Pieces { id: *id, of: *of, bytes: 0, pieces: BTreeMap::new() });
                self.begun.len() - 1
            }
        };
        let one = self.begun.get_mut(at)?;
        if number >= of || one.bytes + body.len() > self.max_bytes {
            return None;
        }
        if one.pieces.insert(*number, body.clone()).is_none() {
            one.bytes += body.len();
        }
        if one.pieces.len() < *of as usize {
            return None;
        }
        let state = Bytes::from(one.pieces.values().flatten().copied().collect::<Vec<u8>>());
        self.begun.remove(at);
        (hash(&state) == *expected).then_some((*index, state))
    }
}
