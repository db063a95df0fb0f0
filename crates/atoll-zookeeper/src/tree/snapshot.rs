//! The snapshot format of ZooKeeper's tree, for the files that the admin command `snapshot` produces and `restore` reads, possibly
//! in another cluster.
//!
//! The format, little endian: `magic [u8; 8] | format u8 | zxid i64`, then pieces, then `0 u32 | entries u64`, and the SHA-256 of
//! everything before. Each piece consists of `length u32` and a chunk in the form that replicas send to each other
//! (`atoll_db::transfer`: sorted, compressed, with a checksum).

use std::collections::BTreeMap;

use atoll_core::{Level, LevelRange};
use atoll_db::transfer::{Chunk, ChunkError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use ring::digest::{Context, SHA256};

use super::key;
use super::node::{Data, Lifetime, Node};
use super::state::{Counters, MAX_EPOCH, MAX_FOREIGN_EPOCH};
use crate::jute::records::Acl;
use crate::jute::{Jute, Reader};
use crate::path;
use crate::session::state::Session;

const MAGIC: [u8; 8] = *b"AtollZkS";
const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 17;
/// The count and the hash, which follow the length 0.
const TRAILER_BYTES: usize = 8 + HASH_BYTES;
/// The length of the hash at the end.
pub const HASH_BYTES: usize = 32;
/// Most bytes of entries in a chunk, before compression. A longer entry has a chunk of its own.
const CHUNK_BYTES: usize = 256 * 1024;
/// Longest file that can be restored, and most bytes of entries in it. One command puts them all in place, in memory, on every
/// node.
pub const MAX_BYTES: usize = 256 * 1024 * 1024;
/// Bytes that an entry counts for in addition to its key and value.
const ENTRY_BYTES: usize = 64;

/// The reason why a file is refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SnapshotError {
    /// The file is not a tree snapshot.
    #[error("this is not a snapshot of Atoll's ZooKeeper door")]
    NoSnapshot,
    /// The file has the format of another version.
    #[error("a snapshot of format {0}; this program reads {FORMAT}")]
    Newer(u8),
    /// The end of the file is missing.
    #[error("the snapshot is cut off after {0} bytes")]
    Short(usize),
    /// There are bytes after the end.
    #[error("{0} bytes follow the end of the snapshot")]
    Trailing(usize),
    /// A chunk is damaged.
    #[error("chunk {chunk}, which begins at byte {at}: {error}")]
    Chunk {
        /// Its number, counted from 1.
        chunk: u64,
        /// Its first byte in the file.
        at: usize,
        /// The reason.
        error: ChunkError,
    },
    /// The keys of a chunk are not above those of the previous one.
    #[error("chunk {0} is out of order")]
    Order(u64),
    /// The entries have more bytes than can be restored.
    #[error("the snapshot has more than {MAX_BYTES} bytes of entries, the maximum for a restore")]
    TooLarge,
    /// The zxid leaves too few epochs for later changes.
    #[error("the snapshot is at zxid {0:#x}; allowed: up to epoch {MAX_FOREIGN_EPOCH:#x}")]
    Epoch(i64),
    /// The hash at the end does not match the bytes.
    #[error("the hash at the end of the snapshot does not match its contents")]
    Hash,
    /// The number of entries is not the one that the file states.
    #[error("the snapshot has {found} entries but declares {declared}")]
    Count {
        /// The number of entries found.
        found: u64,
        /// The number that the file states.
        declared: u64,
    },
    /// The contents are not a valid tree.
    #[error("{what}: {fault}")]
    Unfit {
        /// The faulty part.
        what: String,
        /// The reason.
        fault: &'static str,
    },
}

/// Returns whether a key belongs in a tree snapshot. The holders of sessions, the addresses of nodes, the zxid of the last restore,
/// and uploads of snapshots do not.
pub fn is_carried(key: &[u8]) -> bool {
    matches!(key.first(), Some(b'n' | b'd' | b'e' | b't' | b's' | b'z'))
}

/// Produces a tree snapshot piece by piece. The same entries always result in the same bytes.
pub struct Writer {
    hash: Context,
    entries: u64,
    waiting: Vec<(Bytes, Bytes)>,
    waiting_bytes: usize,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "snapshot after {} entries", self.entries)
    }
}

impl Writer {
    /// Begins a file, and returns its first bytes. `zxid` is that of the newest change.
    pub fn begin(zxid: i64) -> (Writer, Bytes) {
        let mut head = BytesMut::with_capacity(HEADER_BYTES);
        head.put_slice(&MAGIC);
        head.put_u8(FORMAT);
        head.put_i64_le(zxid);
        let mut writer =
            Writer { hash: Context::new(&SHA256), entries: 0, waiting: Vec::new(), waiting_bytes: 0 };
        writer.hash.update(&head);
        (writer, head.freeze())
    }

    /// Adds an entry, whose key must be above all earlier ones; returns the next bytes of the file, if there are any now.
    pub fn push(&mut self, key: Bytes, value: Bytes) -> Option<Bytes> {
        let more = key.len() + value.len();
        let full = self.waiting_bytes + more > CHUNK_BYTES && !self.waiting.is_empty();
        let out = full.then(|| self.flush());
        self.waiting_bytes += more;
        self.entries += 1;
        self.waiting.push((key, value));
        out
    }

    fn flush(&mut self) -> Bytes {
        // An older cluster may have to read the file, so it uses the first level, whatever level is active here.
        let chunk = Chunk(std::mem::take(&mut self.waiting)).encode(Level::FIRST);
        self.waiting_bytes = 0;
        let mut out = BytesMut::with_capacity(4 + chunk.len());
        // A chunk contains at most `CHUNK_BYTES` or one entry, which fits into a command.
        out.put_u32_le(u32::try_from(chunk.len()).unwrap_or(u32::MAX));
        out.put_slice(&chunk);
        self.hash.update(&out);
        out.freeze()
    }

    /// Returns the last bytes of the file.
    pub fn finish(mut self) -> Bytes {
        let mut out = BytesMut::new();
        if !self.waiting.is_empty() {
            out.put_slice(&self.flush());
        }
        let mut end = BytesMut::with_capacity(4 + TRAILER_BYTES);
        end.put_u32_le(0);
        end.put_u64_le(self.entries);
        self.hash.update(&end);
        out.put_slice(&end);
        out.put_slice(self.hash.finish().as_ref());
        out.freeze()
    }
}

/// A tree snapshot that was parsed completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The zxid of the newest change in it.
    pub zxid: i64,
    /// The keys and values, in the order of the keys.
    pub entries: Vec<(Bytes, Bytes)>,
    /// The hash at the end of the file.
    pub hash: [u8; HASH_BYTES],
}

impl Snapshot {
    /// Parses a file and verifies its checksums. [`Snapshot::check`] verifies the contents.
    ///
    /// # Errors
    /// See [`SnapshotError`]. At most [`MAX_BYTES`] and one chunk are allocated.
    pub fn read(file: &Bytes) -> Result<Snapshot, SnapshotError> {
        if file.len() < HEADER_BYTES || file[..8] != MAGIC {
            return Err(SnapshotError::NoSnapshot);
        }
        let mut rest = file.slice(8..);
        let format = rest.get_u8();
        if format != FORMAT {
            return Err(SnapshotError::Newer(format));
        }
        let (zxid, mut entries, mut bytes) = (rest.get_i64_le(), Vec::new(), 0);
        let short = || SnapshotError::Short(file.len());
        for number in 1.. {
            let length = rest.try_get_u32_le().map_err(|_| short())? as usize;
            if length == 0 {
                break;
            }
            if length > rest.len() {
                return Err(short());
            }
            let at = file.len() - rest.len();
            let packed = rest.split_to(length);
            let fault =
                |error| too_long(&packed).unwrap_or(SnapshotError::Chunk { chunk: number, at, error });
            let more = Chunk::decode(packed.clone(), LevelRange::OURS).map_err(fault)?.0;
            if more.first().zip(entries.last()).is_some_and(|((next, _), (last, _))| next <= last) {
                return Err(SnapshotError::Order(number));
            }
            bytes += more.iter().map(|(key, value)| ENTRY_BYTES + key.len() + value.len()).sum::<usize>();
            if bytes > MAX_BYTES {
                return Err(SnapshotError::TooLarge);
            }
            entries.extend(more);
        }
        if rest.len() < TRAILER_BYTES {
            return Err(short());
        }
        let (declared, found) = (rest.get_u64_le(), entries.len() as u64);
        let hashed = &file[..file.len() - rest.len()];
        let mut hash = [0; HASH_BYTES];
        rest.copy_to_slice(&mut hash);
        if !rest.is_empty() {
            return Err(SnapshotError::Trailing(rest.len()));
        }
        if ring::digest::digest(&SHA256, hashed).as_ref() != hash {
            return Err(SnapshotError::Hash);
        }
        if declared != found {
            return Err(SnapshotError::Count { found, declared });
        }
        Ok(Snapshot { zxid, entries, hash })
    }

    fn get(&self, key: &[u8]) -> Option<&Bytes> {
        let found = self.entries.binary_search_by(|(k, _)| k[..].cmp(key)).ok()?;
        self.entries.get(found).map(|(_, value)| value)
    }

    /// Returns the path of a node whose data is in pieces, if there is one. Replicas with earlier programs cannot read them.
    pub fn first_in_pieces(&self) -> Option<String> {
        let nodes = self.entries.iter().filter(|(key, _)| key.first() == Some(&b'n'));
        nodes
            .filter_map(|(key, value)| Some((key::path_of_node(key)?, Node::of_bytes(value).ok()?)))
            .find_map(|(path, node)| match node.data {
                Data::Apart(length) if key::is_in_pieces(&path, length as usize) => Some(path),
                _ => None,
            })
    }

    /// Checks all relations between the entries on which commands rely, so that no later command fails because of them.
    ///
    /// # Errors
    /// [`SnapshotError::Unfit`].
    pub fn check(&self) -> Result<(), SnapshotError> {
        let counters = self.get(key::COUNTERS).and_then(|bytes| Counters::parse(bytes).ok());
        let counters = counters.ok_or_else(|| unfit("the counters", "missing, or not readable"))?;
        let fault = if counters.zxid != self.zxid || counters.zxid < Counters::FIRST.zxid {
            Some("not those of a tree with the zxid at the snapshot's beginning")
        } else if counters.epoch() >= MAX_EPOCH || !(0..1 << 40).contains(&counters.sessions) {
            Some("no epoch, or no number of a session, is left above them")
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(unfit("the counters", fault));
        }
        let mut census = Census::default();
        for (key, value) in &self.entries {
            let fault = census.take(self, key, value);
            fault.map_err(|fault| unfit(&String::from_utf8_lossy(key), fault))?;
        }
        for path in [path::ROOT, path::SYSTEM, path::QUOTA, path::CONFIG] {
            if self.get(&key::node(path)).is_none() {
                return Err(unfit(path, "missing"));
            }
        }
        for (parent, (listed, found)) in &census.children {
            if listed != found {
                return Err(unfit(parent, "has a different number of children than it declares"));
            }
        }
        if census.expected != census.pointers {
            return Err(unfit("what points to nodes", "not one for each node that has it"));
        }
        let Counters { nodes, ephemerals, bytes, quotas, .. } = counters;
        if (nodes, ephemerals, bytes, quotas)
            != (census.nodes, census.ephemerals, census.bytes, census.quotas)
        {
            return Err(unfit("the counters", "not those of the nodes that exist"));
        }
        Ok(())
    }
}

/// Names the entry of a chunk that has only one, which is longer than a chunk may be. Earlier doors let a transaction store such an ACL.
/// The tree with it works, but replicas with earlier programs refuse to restore it, so all of them must.
fn too_long(chunk: &Bytes) -> Option<SnapshotError> {
    let lone = Chunk::decode_from_peer(chunk.clone(), LevelRange::OURS).ok()?.0;
    let (key, _) = lone.first()?;
    let what = key::path_of_node(key).unwrap_or_else(|| key.escape_ascii().to_string());
    Some(unfit(&what, "too long to be restored; set a shorter ACL, and take the snapshot again"))
}

fn unfit(what: &str, fault: &'static str) -> SnapshotError {
    SnapshotError::Unfit { what: what.to_owned(), fault }
}

/// Counts that [`Snapshot::check`] collects.
#[derive(Default)]
struct Census {
    nodes: i64,
    ephemerals: i64,
    bytes: i64,
    quotas: i64,
    /// The number of children of each node: as the node states it, and as found.
    children: BTreeMap<String, (i32, i32)>,
    /// The number of entries that nodes require. All of them were found.
    expected: u64,
    /// The number of entries of the kinds that nodes require.
    pointers: u64,
}

impl Census {
    fn take(&mut self, all: &Snapshot, key: &[u8], value: &Bytes) -> Result<(), &'static str> {
        match key.first() {
            Some(b'n') => self.take_node(all, key, value),
            Some(b'd' | b'e' | b't') => {
                self.pointers += 1;
                Ok(())
            }
            Some(b's') => {
                let session = Session::of_bytes(value).map_err(|_| "no session that can be read")?;
                let id = key::session_at_end(key).filter(|id| *key == *key::session(*id));
                id.filter(|id| *id > 0 && session.timeout_ms > 0 || session.is_ending())
                    .map(drop)
                    .ok_or("no session")
            }
            Some(b'z') if key == key::COUNTERS => Ok(()),
            _ => Err("nothing that belongs into a snapshot"),
        }
    }

    fn take_node(&mut self, all: &Snapshot, key: &[u8], value: &Bytes) -> Result<(), &'static str> {
        let path = key::path_of_node(key).filter(|path| path::is_valid(path) && *key == *key::node(path));
        let path = path.ok_or("no path of a node")?;
        let node = Node::of_bytes(value).map_err(|_| "no node that can be read")?;
        let zxids = [node.czxid, node.mzxid, node.pzxid];
        if !zxids.iter().all(|zxid| (0..=all.zxid).contains(zxid)) || node.children < 0 {
            return Err("changes that are newer than the snapshot, or negative counts");
        }
        if !node.acl.is_empty() && Vec::<Acl<'_>>::read(&mut Reader::new(&node.acl)).is_err() {
            return Err("a list of access that cannot be read");
        }
        match node.lifetime {
            Lifetime::Persistent => {}
            Lifetime::Ephemeral(session) => {
                self.ephemerals += 1;
                all.get(&key::session(session)).ok_or("an ephemeral without its session")?;
                self.expect(all, &key::ephemeral(session, &path))?;
            }
            Lifetime::Container | Lifetime::Ttl(_) => {
                self.expect(all, &key::transient(&path))?;
            }
        }
        if let Data::Apart(length) = node.data {
            for (key, place) in key::data_pieces(&path, length as usize) {
                let found = self.expect(all, &key)?;
                if found.len() != place.len() {
                    return Err("data of a different length than it declares");
                }
            }
        }
        if let Some((parent, _)) = path::split(&path) {
            all.get(&key::node(parent)).ok_or("a node without its parent")?;
            self.children.entry(parent.to_owned()).or_default().1 += 1;
        }
        self.nodes += 1;
        self.bytes += super::state::length(path.len() + node.data.length());
        self.quotas += i64::from(super::quota::is_limit(&path));
        if node.children > 0 {
            self.children.entry(path).or_default().0 = node.children;
        }
        Ok(())
    }

    fn expect<'s>(&mut self, all: &'s Snapshot, key: &[u8]) -> Result<&'s Bytes, &'static str> {
        self.expected += 1;
        all.get(key).ok_or("what belongs to the node is missing")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(entries: &[(&[u8], &[u8])]) -> Vec<u8> {
        let (mut writer, head) = Writer::begin(7);
        let mut out = head.to_vec();
        for (key, value) in entries {
            out.extend(
                writer.push(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)).unwrap_or_default(),
            );
        }
        out.extend(writer.finish());
        out
    }

    #[test]
    fn a_file_reads_back_and_every_damage_is_noticed() {
        let (large, small) = (vec![7; CHUNK_BYTES], vec![8; 100]);
        let bytes = file(&[(b"a", &small), (b"b", &large), (b"c", &small), (b"d", b"")]);
        let read = Snapshot::read(&bytes.clone().into()).unwrap();
        assert_eq!((read.zxid, read.entries.len()), (7, 4));
        assert_eq!(read.get(b"b"), Some(&Bytes::from(large)));
        assert_eq!(read.get(b"bb"), None);
        for n in 0..bytes.len() {
            assert!(Snapshot::read(&bytes[..n].to_vec().into()).is_err(), "cut at {n}");
            let mut damaged = bytes.clone();
            damaged[n] ^= 0x10;
            assert!(Snapshot::read(&damaged.into()).is_err(), "altered at {n}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Snapshot::read(&longer.into()), Err(SnapshotError::Trailing(1)));
        assert_eq!(
            Snapshot::read(&Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")),
            Err(SnapshotError::NoSnapshot)
        );
        assert!(Snapshot::read(&file(&[]).into()).unwrap().entries.is_empty());
    }

    #[test]
    fn chunks_out_of_order_are_refused() {
        let large = vec![7; CHUNK_BYTES];
        let bytes = file(&[(b"b", &large), (b"a", &large)]);
        assert_eq!(Snapshot::read(&bytes.into()), Err(SnapshotError::Order(2)));
    }

    #[test]
    fn an_entry_that_is_too_long_is_named() {
        let bytes = file(&[(b"n/a\0b", &[7; 2_000_000]), (b"z", b"x")]);
        let refused = Snapshot::read(&bytes.into()).unwrap_err();
        assert!(matches!(&refused, SnapshotError::Unfit { what, .. } if what == "/a/b"), "{refused}");
    }

    #[test]
    fn what_is_no_tree_is_named() {
        let fault = |entries: &[(&[u8], &[u8])]| {
            Snapshot::read(&file(entries).into()).unwrap().check().unwrap_err().to_string()
        };
        assert_eq!(fault(&[(b"n", b"x")]), "the counters: missing, or not readable");
        let counters = |zxid| Counters { zxid, ..Counters::FIRST }.to_vec();
        assert!(fault(&[(b"z", &counters(1 << 33))]).contains("not those of a tree with the zxid"));
    }
}
