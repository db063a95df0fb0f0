//! The znodes of a loglet: their paths, and what is in them.
//!
//! | znode | data | version |
//! | --- | --- | --- |
//! | `ROOT/ensembles/TOKEN` | what it is: the ensemble is the one in which loglets with this token were planned | always 0 |
//! | `ROOT/logs/ID` | what it is | 0 while the loglet lives, higher once it was deleted: a tombstone |
//! | `.../seal` | empty | 0 while the loglet is open, higher once it is sealed |
//! | `.../tail` | [`TailNode`] | the number of batches so far |
//! | `.../trim` | [`TrimNode`] | rises with every trim |
//! | `.../e` | empty | |
//! | `.../e/BUCKET` | [`BucketNode`]: where the bucket begins | |
//! | `.../e/BUCKET/BATCH` | a header, and some entries | always 0 |
//!
//! Batches are numbered from 0 on without gaps, and [`BUCKET_BATCHES`] consecutive ones are in a bucket. So the place of a batch follows
//! from its number, no list of children is long, and space is given back by the bucket.

use bytes::{Bytes, BytesMut};

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::{Decode, DecodeError, Encode, Reader};

/// The number of batches in a bucket, which is also the most operations in a write that deletes one.
pub(crate) const BUCKET_BATCHES: u64 = 64;
/// The most batches of a loglet: the version of a znode has 31 bits. The loglet then refuses appends, and the log needs another one.
pub(crate) const MAX_BATCHES: u64 = (1 << 31) - 2;
/// What is in the znode that shows that the ensemble is the right one.
pub(crate) const ENSEMBLE: &[u8] = b"atoll ensemble 1";
/// What is in the znode of a loglet that lives.
pub(crate) const ALIVE: &[u8] = b"atoll loglet 1";
/// What is in the znode of a loglet that was deleted.
pub(crate) const DELETED: &[u8] = b"atoll loglet 1, deleted";
/// Version of the formats below.
const FORMAT: u8 = 1;
/// Bytes before the entries of a batch.
const HEADER_BYTES: usize = 1 + 8 + 8 + 8 + 4;

/// The paths of a loglet.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    root: String,
    pub(crate) home: String,
    pub(crate) seal: String,
    pub(crate) tail: String,
    pub(crate) trim: String,
    pub(crate) entries: String,
}

impl Paths {
    pub(crate) fn new(root: &str, id: LogletId) -> Self {
        let home = format!("{root}/logs/{id}");
        Paths {
            root: root.to_owned(),
            seal: format!("{home}/seal"),
            tail: format!("{home}/tail"),
            trim: format!("{home}/trim"),
            entries: format!("{home}/e"),
            home,
        }
    }

    /// Returns the znodes above the loglet's, the highest first.
    pub(crate) fn above(&self) -> Vec<String> {
        let mut all = prefixes(&self.root);
        all.push(self.logs());
        all
    }

    /// Returns the znode above those of all loglets.
    pub(crate) fn logs(&self) -> String {
        format!("{}/logs", self.root)
    }

    pub(crate) fn bucket(&self, bucket: u64) -> String {
        format!("{}/{bucket:010}", self.entries)
    }

    pub(crate) fn batch(&self, number: u64) -> String {
        format!("{}/{number:010}", self.bucket(number / BUCKET_BATCHES))
    }
}

/// Returns the znode that shows that the ensemble is the one in which loglets with this token were planned.
pub(crate) fn token(root: &str, token: u64) -> String {
    format!("{root}/ensembles/{token:016x}")
}

/// Returns a path and all paths above it, the highest first.
pub(crate) fn prefixes(path: &str) -> Vec<String> {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
    ends.map(|end| path[..end].to_owned()).collect()
}

fn version(from: &mut Reader, what: &'static str) -> Result<(), DecodeError> {
    match u8::decode(from)? {
        FORMAT => Ok(()),
        n => Err(DecodeError::Invalid { what, value: n.into(), allowed: "1" }),
    }
}

/// Declares the data of a znode, with its version in front.
macro_rules! node {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$fdoc])* pub $field: $type),* }

        impl Encode for $name {
            fn encode(&self, out: &mut BytesMut) {
                FORMAT.encode(out);
                $(self.$field.encode(out);)*
            }
        }

        impl Decode for $name {
            fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
                version(from, concat!("version of ", stringify!($name)))?;
                Ok($name { $($field: Decode::decode(from)?),* })
            }
        }
    };
}

node!(
    /// The data of the tail's znode.
    TailNode {
        /// The first offset without an entry.
        next: Offset,
    }
);
node!(
    /// The data of the trim's znode.
    TrimNode {
        /// The first offset that was not trimmed.
        to: Offset,
        /// The first bucket that may still exist.
        first_bucket: u64,
        /// Whether the loglet was deleted.
        deleted: bool,
    }
);
node!(
    /// The data of a bucket.
    BucketNode {
        /// The offset of the first entry of its first batch.
        first: Offset,
    }
);

/// Some consecutive entries as they are in a znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The handle that appended them, as a number that it drew at random.
    pub(crate) author: u64,
    /// Counts the batches of this author.
    pub(crate) serial: u64,
    /// The offset of the first entry.
    pub(crate) first: Offset,
    /// The entries.
    pub(crate) batch: Batch,
}

impl Stored {
    /// Returns the first offset above the batch.
    pub(crate) fn end(&self) -> Offset {
        self.first.plus(self.batch.len() as u64)
    }

    pub(crate) fn to_data(&self) -> Bytes {
        let bytes = self.batch.bytes();
        let mut out = BytesMut::with_capacity(HEADER_BYTES + bytes.len());
        FORMAT.encode(&mut out);
        self.author.encode(&mut out);
        self.serial.encode(&mut out);
        self.first.encode(&mut out);
        self.crc().encode(&mut out);
        out.extend_from_slice(bytes);
        out.freeze()
    }

    /// Reads a batch. The error says what is wrong with it.
    pub(crate) fn parse(data: Bytes) -> Result<Self, String> {
        let mut from = Reader::new(data);
        let read = |from: &mut Reader| -> Result<(Stored, u32), DecodeError> {
            version(from, "version of a batch")?;
            let (author, serial, first) = (u64::decode(from)?, u64::decode(from)?, Offset::decode(from)?);
            let crc = u32::decode(from)?;
            let batch = Batch::parse(from.take(from.left(), "entries")?)?;
            Ok((Stored { author, serial, first, batch }, crc))
        };
        let (stored, crc) = read(&mut from).map_err(|error| error.to_string())?;
        if stored.crc() != crc {
            return Err("the checksum of a batch does not hold".to_owned());
        }
        Ok(stored)
    }

    /// The checksum covers the header, too: a batch in the wrong place is damage.
    fn crc(&self) -> u32 {
        let mut head = BytesMut::with_capacity(24);
        self.author.encode(&mut head);
        self.serial.encode(&mut head);
        self.first.encode(&mut head);
        crc32c::crc32c_append(crc32c::crc32c(&head), self.batch.bytes())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_contract::entry::{MAX_BATCH_BYTES, MAX_ENTRY_BYTES};
    use atoll_contract::{ClientId, Entry, OpId};

    fn stored(payload: usize) -> Stored {
        let op = OpId { client: ClientId(7), seq: 1 };
        let batch = Batch::of([Entry { op, payload: vec![1; payload].into() }]);
        Stored { author: 1, serial: 2, first: Offset(3), batch }
    }

    #[test]
    fn a_batch_is_read_back_and_any_altered_byte_is_noticed() {
        let data = stored(9).to_data();
        assert_eq!(Stored::parse(data.clone()), Ok(stored(9)));
        for at in 0..data.len() {
            let mut altered = data.to_vec();
            altered[at] ^= 0x10;
            assert!(Stored::parse(altered.into()).is_err(), "byte {at}");
            assert!(Stored::parse(data.slice(..at)).is_err(), "the first {at} bytes");
        }
    }

    #[test]
    fn the_largest_batch_fits_into_a_packet_of_zookeeper() {
        /// The limit of a server with default settings (`jute.maxbuffer`).
        const PACKET_BYTES: usize = 0xf_ffff;
        /// The checks, paths and headers beside the data, and the data of the tail and of a bucket.
        const BESIDE: usize = 6 * (2 * 256 + 64 + 64);
        let data = stored(MAX_ENTRY_BYTES).to_data();
        assert_eq!(data.len(), HEADER_BYTES + MAX_BATCH_BYTES);
        assert!(data.len() + BESIDE < PACKET_BYTES);
    }

    #[test]
    fn paths() {
        let paths = Paths::new("/a/b", LogletId(0x1f));
        assert_eq!(paths.above(), ["/a", "/a/b", "/a/b/logs"]);
        assert_eq!(paths.home, "/a/b/logs/0000000000000000000000000000001f");
        assert_eq!(paths.batch(65), format!("{}/0000000001/0000000065", paths.entries));
    }
}
