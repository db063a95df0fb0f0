//! The objects of a backup as bytes. All numbers are little endian.
//!
//! ```text
//! object  magic "AtBk" | format u8 | kind u8 | 0 u16 | backup u128 | number u64 | meta bytes u32 | plain bytes u32 | body bytes u32 |
//!         crc32c of the body u32 | crc32c of all before and of the meta u32 | meta | body
//! body    a zstd frame; of a piece of a snapshot, the piece as it is, because it is compressed already
//! ```
//!
//! The number is also in the name, so an object with another name is noticed. The second checksum covers the first one, and so stands for
//! the whole object: the next run has it as its link.

use atoll_contract::LogPos;
use atoll_core::{Decode, Encode, record};
use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::entries::{self, Entry};
use crate::error::Damaged;

const MAGIC: &[u8; 4] = b"AtBk";
const FORMAT: u8 = 1;
const HEAD_BYTES: usize = 52;
const MAX_META_BYTES: usize = 1024;
/// As many bytes at the beginning of an object have its head and its meta.
pub(crate) const MOST_HEAD_BYTES: u64 = (HEAD_BYTES + MAX_META_BYTES) as u64;
/// The most bytes in the body of an object, before compression.
const MAX_PLAIN_BYTES: usize = 24 * 1024 * 1024;
/// The level of compression: the fastest one that compresses well.
const LEVEL: i32 = 1;

record! {
    /// Whose backup it is.
    pub struct About {
        /// The name of the cluster.
        pub cluster: String,
        /// The name of the log.
        pub log: String,
        /// When it was begun, by the clock of the node that did it, in milliseconds since the Unix epoch.
        pub made_ms: u64,
    }
}

record! {
    /// The head of a snapshot. It is put after all pieces.
    pub struct SnapshotHead {
        /// All entries below are in the state.
        pub below: LogPos,
        /// The time of the last of them, in milliseconds since the Unix epoch.
        pub time_ms: u64,
        /// The hash of the state.
        pub hash: u128,
        /// The run with which a reader begins: no earlier one has an entry at or above `below`.
        pub run: u64,
        /// Whether runs lead from the snapshot before it to this one, without a gap.
        pub joined: bool,
        /// The number of the attempt whose pieces these are.
        pub attempt: u64,
        /// How many pieces there are.
        pub pieces: u64,
        /// How many keys.
        pub keys: u64,
        /// How many bytes they have in the store.
        pub bytes: u64,
        /// When it was shipped, by the clock of its node, in milliseconds since the Unix epoch.
        pub made_ms: u64,
    }
}

record! {
    /// A run of entries.
    pub struct Run {
        /// The position of the first one.
        pub from: LogPos,
        /// The position after the last one.
        pub to: LogPos,
        /// The time of the log before the first one, in milliseconds since the Unix epoch.
        pub before_ms: u64,
        /// The time of the log after the last one: the highest time of an entry so far.
        pub time_ms: u64,
        /// The hash of the state with all of them, if a replica stood there.
        pub hash: Option<u128>,
        /// The checksum of the run before it; 0 for the first one.
        pub link: u32,
        /// When it was shipped, by the clock of its node, in milliseconds since the Unix epoch.
        pub made_ms: u64,
        /// Tells it from what others put under the same number.
        pub writer: u64,
    }
}

record! {
    /// A piece of a snapshot.
    pub struct Part {
        /// The number of the snapshot.
        pub snapshot: u64,
        /// The number of the attempt.
        pub attempt: u64,
    }
}

record! {
    /// An attempt to ship a snapshot.
    pub struct Attempt {
        /// The number of the snapshot.
        pub snapshot: u64,
        /// Tells it from others.
        pub writer: u64,
    }
}

record! {
    /// A snapshot was given up.
    pub struct Gone {
        /// What it was.
        pub head: SnapshotHead,
    }
}

/// A kind of object.
pub(crate) trait Kind: Encode + Decode {
    const KIND: u8;
    /// Whether the body is compressed here.
    const PACKED: bool = true;
}

impl Kind for About {
    const KIND: u8 = 1;
}
impl Kind for SnapshotHead {
    const KIND: u8 = 2;
}
impl Kind for Part {
    const KIND: u8 = 3;
    const PACKED: bool = false;
}
impl Kind for Run {
    const KIND: u8 = 4;
}
impl Kind for Attempt {
    const KIND: u8 = 5;
}
impl Kind for Gone {
    const KIND: u8 = 6;
}

/// The number of the objects of which there is one.
pub(crate) const ONLY: u64 = 0;

/// Which backup an object belongs to, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) backup: u128,
    pub(crate) number: u64,
}

/// The head of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head<M> {
    pub(crate) place: Place,
    pub(crate) meta: M,
    /// The checksum of the whole object.
    pub(crate) sum: u32,
    meta_bytes: usize,
    plain_bytes: usize,
    body_bytes: usize,
    body_sum: u32,
}

/// Returns an object as bytes. None if its body has too many bytes, or cannot be compressed.
pub(crate) fn encode<M: Kind>(place: Place, meta: &M, body: &[u8]) -> Option<Bytes> {
    if body.len() > MAX_PLAIN_BYTES {
        return None;
    }
    let packed = if M::PACKED { zstd::bulk::compress(body, LEVEL).ok()? } else { body.to_vec() };
    let meta = meta.to_bytes();
    if meta.len() > MAX_META_BYTES {
        return None;
    }
    let mut out = BytesMut::with_capacity(HEAD_BYTES + meta.len() + packed.len());
    out.put_slice(MAGIC);
    out.put_u8(FORMAT);
    out.put_u8(M::KIND);
    out.put_u16_le(0);
    out.put_u128_le(place.backup);
    out.put_u64_le(place.number);
    out.put_u32_le(meta.len() as u32);
    out.put_u32_le(body.len() as u32);
    out.put_u32_le(packed.len() as u32);
    out.put_u32_le(crc32c::crc32c(&packed));
    let sum = crc32c::crc32c_append(crc32c::crc32c(&out), &meta);
    out.put_u32_le(sum);
    out.put_slice(&meta);
    out.put_slice(&packed);
    Some(out.freeze())
}

/// Decodes the head of an object of any backup. What follows it is not looked at.
pub(crate) fn head_of_any<M: Kind>(bytes: &[u8]) -> Result<Head<M>, Damaged> {
    let (mut head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or(Damaged("it is too short"))?;
    if &head[..4] != MAGIC {
        return Err(Damaged("it is not an object of a backup"));
    }
    let sum_of_head = crc32c::crc32c(&head[..HEAD_BYTES - 4]);
    head.advance(4);
    let (format, kind, zero) = (head.get_u8(), head.get_u8(), head.get_u16_le());
    if format != FORMAT {
        return Err(Damaged("it has a format that this program does not read"));
    }
    let place = Place { backup: head.get_u128_le(), number: head.get_u64_le() };
    let (meta_bytes, plain_bytes) = (head.get_u32_le() as usize, head.get_u32_le() as usize);
    let (body_bytes, body_sum, sum) = (head.get_u32_le() as usize, head.get_u32_le(), head.get_u32_le());
    if kind != M::KIND || zero != 0 {
        return Err(Damaged("it is of another kind"));
    }
    if meta_bytes > MAX_META_BYTES || plain_bytes > MAX_PLAIN_BYTES {
        return Err(Damaged("it claims too many bytes"));
    }
    let meta = rest.get(..meta_bytes).ok_or(Damaged("it is too short"))?;
    if crc32c::crc32c_append(sum_of_head, meta) != sum {
        return Err(Damaged("the checksum of its head is wrong"));
    }
    let meta = M::from_bytes(Bytes::copy_from_slice(meta)).map_err(|_| Damaged("its head is malformed"))?;
    Ok(Head { place, meta, sum, meta_bytes, plain_bytes, body_bytes, body_sum })
}

/// Decodes the head of an object.
pub(crate) fn head<M: Kind>(bytes: &[u8], place: Place) -> Result<Head<M>, Damaged> {
    let found = head_of_any::<M>(bytes)?;
    if found.place.backup != place.backup {
        return Err(Damaged("it belongs to another backup"));
    }
    if found.place.number != place.number {
        return Err(Damaged("it has another number"));
    }
    Ok(found)
}

/// Decodes an object, and returns its body, too.
pub(crate) fn decode<M: Kind>(bytes: &Bytes, place: Place) -> Result<(Head<M>, Bytes), Damaged> {
    let head = head::<M>(bytes, place)?;
    let body = body(&head, bytes, M::PACKED)?;
    Ok((head, body))
}

fn body<M>(head: &Head<M>, bytes: &Bytes, packed: bool) -> Result<Bytes, Damaged> {
    let body = bytes.slice(HEAD_BYTES + head.meta_bytes..);
    if body.len() != head.body_bytes || crc32c::crc32c(&body) != head.body_sum {
        return Err(Damaged("the checksum of its body is wrong"));
    }
    let plain = match packed {
        true => zstd::bulk::decompress(&body, head.plain_bytes)
            .map_err(|_| Damaged("it cannot be decompressed"))?
            .into(),
        false => body,
    };
    if plain.len() == head.plain_bytes { Ok(plain) } else { Err(Damaged("its body has another length")) }
}

/// Decodes a run with its entries.
pub(crate) fn decode_run(bytes: &Bytes, place: Place) -> Result<(Head<Run>, Vec<Entry>), Damaged> {
    let (head, body) = decode::<Run>(bytes, place)?;
    let Run { from, to, before_ms, time_ms, .. } = head.meta;
    if to <= from || time_ms < before_ms {
        return Err(Damaged("it ends before it begins"));
    }
    let entries = entries::decode(body, to.since(from))?;
    Ok((head, entries))
}

pub(crate) fn decode_any(bytes: &[u8]) -> bool {
    fn one<M: Kind>(bytes: &Bytes) -> bool {
        let Ok(head) = head_of_any::<M>(bytes) else { return false };
        let read = decode::<M>(bytes, head.place);
        assert!(
            read.as_ref().is_ok_and(|(again, _)| again.sum == head.sum) || read.is_err(),
            "a head has one checksum"
        );
        read.is_ok_and(|(head, body)| {
            encode(head.place, &head.meta, &body).is_some_and(|again| head_of_any::<M>(&again).is_ok())
        })
    }
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(head) = head_of_any::<Run>(&bytes) {
        let _ = decode_run(&bytes, head.place);
    }
    one::<About>(&bytes)
        || one::<SnapshotHead>(&bytes)
        || one::<Part>(&bytes)
        || one::<Run>(&bytes)
        || one::<Attempt>(&bytes)
        || one::<Gone>(&bytes)
}

fn sample_head() -> SnapshotHead {
    SnapshotHead {
        below: LogPos(40),
        time_ms: 7,
        hash: 9,
        run: 3,
        joined: true,
        attempt: 0,
        pieces: 1,
        keys: 2,
        bytes: 99,
        made_ms: 8,
    }
}

fn sample_run() -> (Run, Vec<Entry>) {
    let entry = |seq: u64| Entry {
        op: atoll_contract::OpId { client: atoll_contract::ClientId(3), seq },
        time_ms: seq,
        operated: 0,
        payload: vec![seq as u8; 30].into(),
    };
    let run = Run {
        from: LogPos(40),
        to: LogPos(42),
        before_ms: 0,
        time_ms: 2,
        hash: Some(77),
        link: 5,
        made_ms: 3,
        writer: 4,
    };
    (run, vec![entry(1), entry(2)])
}

pub(crate) fn samples() -> Vec<Bytes> {
    let place = Place { backup: 1, number: 2 };
    let about = About { cluster: "reef".to_owned(), log: "db".to_owned(), made_ms: 5 };
    let (run, list) = sample_run();
    let all = [
        encode(place, &about, &[]),
        encode(place, &sample_head(), &[]),
        encode(place, &Part { snapshot: 1, attempt: 2 }, b"a piece"),
        encode(place, &run, &entries::encode(&list)),
        encode(place, &Attempt { snapshot: 1, writer: 2 }, &[]),
        encode(place, &Gone { head: sample_head() }, &[]),
    ];
    all.into_iter().flatten().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACE: Place = Place { backup: 1, number: 2 };

    #[test]
    fn a_run_is_what_it_was() {
        let (run, list) = sample_run();
        let bytes = encode(PLACE, &run, &entries::encode(&list)).unwrap();
        let (head, found) = decode_run(&bytes, PLACE).unwrap();
        assert_eq!((&head.meta, &found), (&run, &list));
        let most = usize::try_from(MOST_HEAD_BYTES).unwrap().min(bytes.len());
        assert_eq!(super::head::<Run>(&bytes[..most], PLACE).unwrap().sum, head.sum);
        assert_eq!(
            decode_run(&bytes, Place { backup: 2, ..PLACE }).unwrap_err().0,
            "it belongs to another backup"
        );
        assert_eq!(decode_run(&bytes, Place { number: 3, ..PLACE }).unwrap_err().0, "it has another number");
    }

    #[test]
    fn every_cut_and_every_altered_bit_is_noticed() {
        for bytes in samples() {
            assert!(decode_any(&bytes));
            for at in 0..bytes.len() {
                assert!(!decode_any(&bytes[..at]), "cut at {at}");
                for bit in 0..8 {
                    let mut altered = bytes.to_vec();
                    altered[at] ^= 1 << bit;
                    assert!(!decode_any(&altered), "bit {bit} of byte {at}");
                }
            }
        }
    }

    #[test]
    fn a_run_that_lacks_an_entry_is_noticed() {
        let (run, list) = sample_run();
        let bytes = encode(PLACE, &run, &entries::encode(&list[..1])).unwrap();
        assert_eq!(decode_run(&bytes, PLACE).unwrap_err().0, "it has another number of entries");
    }

    proptest! {
        #[test]
        fn runs_of_any_entries_are_what_they_were(
            from in 0u64..1 << 40,
            list in prop::collection::vec((any::<u64>(), any::<u64>(), 0u8..3, prop::collection::vec(any::<u8>(), 0..200)), 1..40),
        ) {
            let list: Vec<Entry> = list
                .into_iter()
                .map(|(client, seq, operated, payload)| Entry {
                    op: atoll_contract::OpId { client: atoll_contract::ClientId(client), seq },
                    time_ms: seq,
                    operated,
                    payload: payload.into(),
                })
                .collect();
            let run = Run { from: LogPos(from), to: LogPos(from + list.len() as u64), ..sample_run().0 };
            let bytes = encode(PLACE, &run, &entries::encode(&list)).unwrap();
            let (head, found) = decode_run(&bytes, PLACE).unwrap();
            prop_assert_eq!(head.meta, run);
            prop_assert_eq!(found, list);
        }
    }
}
