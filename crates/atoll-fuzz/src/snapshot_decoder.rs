//! Fuzzes chunks of the database's state snapshots, and messages between replicas. What is decoded is bounded, in key order, and the same
//! after it is encoded and decoded again.

use atoll_core::frame::Message;
use atoll_core::{Encode, Level, LevelRange};
use atoll_db::LogPos;
use atoll_db::transfer::{AskReplica, Chunk, ChunkReply, FetchChunk, ReplicaReport};
use bytes::Bytes;

/// The bytes of a chunk before its checksum.
const BEFORE_CHECKSUM: usize = 9;
/// The most bytes that the entries of a chunk may take.
const MOST_BYTES: usize = 1_010_000;
/// The most bytes that an entry may take that has a chunk of its own.
const MOST_LONE_BYTES: usize = 16 * 1024 * 1024;

/// The first byte selects: the rest is a chunk, a chunk whose checksum is corrected, or a message.
pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 6 {
        0 => chunk(rest.to_vec()),
        1 => {
            let mut forged = rest.to_vec();
            if let Some(frame) = rest.get(BEFORE_CHECKSUM + 4..) {
                let sum = crc32c::crc32c(frame).to_le_bytes();
                forged[BEFORE_CHECKSUM..BEFORE_CHECKSUM + 4].copy_from_slice(&sum);
            }
            chunk(forged);
        }
        2 => message::<AskReplica>(rest),
        3 => message::<ReplicaReport>(rest),
        4 => message::<FetchChunk>(rest),
        _ => message::<ChunkReply>(rest),
    }
}

fn chunk(bytes: Vec<u8>) {
    let bytes = Bytes::from(bytes);
    let (file, peer) =
        (Chunk::decode(bytes.clone(), LevelRange::OURS), Chunk::decode_from_peer(bytes, LevelRange::OURS));
    assert!(file.is_err() || file == peer, "a file has a chunk that no peer may send");
    let Ok(chunk) = peer else { return };
    let total: usize = chunk.0.iter().map(|(key, value)| key.len() + value.len()).sum();
    let most = if file.is_ok() { MOST_BYTES } else { MOST_LONE_BYTES };
    assert!(total <= most && (file.is_ok() || chunk.0.len() == 1), "{total} bytes were unpacked");
    assert!(chunk.0.windows(2).all(|pair| pair[0].0 < pair[1].0), "keys out of order were let in");
    assert_eq!(
        Chunk::decode_from_peer(chunk.encode(Level::FIRST), LevelRange::OURS).as_ref(),
        Ok(&chunk),
        "packed anew, it is another chunk"
    );
}

fn message<M: Message + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(message) = M::from_bytes(bytes.clone()) {
        assert_eq!(message.to_bytes(), bytes, "{message:?} was decoded from other bytes");
    }
}

/// Returns valid inputs for most of these.
pub fn seeds() -> Vec<Vec<u8>> {
    let entry = |n: u8, len: usize| (Bytes::from(vec![n; 1 + usize::from(n % 7)]), Bytes::from(vec![n; len]));
    let chunks = [
        Chunk::default(),
        Chunk((1..20).map(|n| entry(n, 10 * usize::from(n))).collect()),
        Chunk(vec![entry(3, 50_000)]),
        Chunk(vec![entry(4, 2_000_000)]),
    ];
    let mut seeds = Vec::new();
    for chunk in chunks {
        for choice in [0, 1] {
            seeds.push([&[choice][..], &chunk.encode(Level::FIRST)].concat());
        }
    }
    let told = ReplicaReport { applied_below: LogPos(9), durable_below: LogPos(7), hashes: Vec::new() };
    let fetch = FetchChunk { snapshot: 5, at_least: LogPos(3), after: Bytes::from_static(b"key") };
    seeds.push(vec![2]);
    seeds.push([&[3][..], &told.to_bytes()].concat());
    seeds.push([&[4][..], &fetch.to_bytes()].concat());
    seeds
}
