//! The store under a command.

use atoll_core::testing::mutant;
use atoll_db::{Direction, KeyRange, Tx};
use bytes::Bytes;

use super::key;
use super::node::{Data, INLINE_BYTES, Lifetime, Node};
use crate::acl;
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::jute::records::Id;
use crate::jute::{Jute, record};
use crate::mutants;
use crate::path;

/// Ordered keys and values that a command reads and writes, and where it tells what it did.
pub trait Keys {
    /// The value of a key.
    fn get(&mut self, key: &[u8]) -> Option<Bytes>;
    /// Writes a key.
    fn put(&mut self, key: &[u8], value: Vec<u8>);
    /// Deletes a key, if it is there.
    fn delete(&mut self, key: &[u8]);
    /// The first entries of a range, at most `limit`, in order.
    fn first(&mut self, range: &KeyRange, limit: usize) -> Vec<(Bytes, Bytes)>;
    /// Tells an event.
    fn emit(&mut self, event: Event);
}

impl Keys for Tx<'_, Event> {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        Tx::get(self, key)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        Tx::put(self, key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        Tx::delete(self, key);
    }

    fn first(&mut self, range: &KeyRange, limit: usize) -> Vec<(Bytes, Bytes)> {
        self.range(range, Direction::Forward, limit)
    }

    fn emit(&mut self, event: Event) {
        Tx::emit(self, event);
    }
}

record! {
    /// What is counted.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Counters {
        /// The newest change (contracts X23): an epoch in the upper half, a count in the lower one.
        zxid: i64,
        /// Sessions that were ever opened.
        sessions: i64,
        /// Znodes that are there.
        nodes: i64,
        /// Ephemerals among them.
        ephemerals: i64,
        /// Bytes of their paths and data.
        bytes: i64,
        /// Subtrees with a quota.
        quotas: i64,
    }
}

impl Counters {
    /// Before the first change: epoch 1, so that no session and no change has the number 0.
    pub const FIRST: Counters =
        Counters { zxid: 1 << 32, sessions: 0, nodes: 0, ephemerals: 0, bytes: 0, quotas: 0 };

    /// What is kept.
    pub fn of_bytes(bytes: &[u8]) -> Counters {
        // Only `put_counters` writes this; without the counters, nothing that follows would be correct.
        Counters::parse(bytes).unwrap_or_else(|e| panic!("the counters cannot be read: {e}"))
    }

    /// The epoch that the zxid is in.
    pub fn epoch(&self) -> i64 {
        self.zxid >> 32
    }
}

/// Highest epoch: sessions have the epoch in the upper 24 bits of their numbers, which stay positive.
pub(super) const MAX_EPOCH: i64 = 0x7f_ffff;
/// Highest epoch that a door accepts from elsewhere, with an import or a snapshot: as many epochs are left for later changes.
pub const MAX_FOREIGN_EPOCH: i64 = MAX_EPOCH / 2;

/// Whether a zxid from elsewhere is in an epoch that leaves enough for what follows.
pub fn is_foreign_zxid(zxid: i64) -> bool {
    (0..=MAX_FOREIGN_EPOCH).contains(&(zxid >> 32))
}

/// The state under one command.
pub struct TreeState<'k, K> {
    /// The store.
    pub keys: &'k mut K,
    /// As they are after the command so far.
    pub counters: Counters,
    /// The command's change, if it makes one.
    pub zxid: i64,
    /// When it is applied: the same on every node.
    pub time_ms: i64,
    /// Hard quotas refuse what the command writes.
    pub enforce_quota: bool,
}

impl<'k, K: Keys> TreeState<'k, K> {
    /// The state; makes the first nodes if there are none yet.
    pub fn open(keys: &'k mut K, time_ms: i64) -> TreeState<'k, K> {
        let found = keys.get(key::COUNTERS);
        let counters = found.as_ref().map_or(Counters::FIRST, |bytes| Counters::of_bytes(bytes));
        // Assigns the zxid: the next one, the same on every replica. `commit` uses it up; `raise_epoch` begins a new epoch.
        let zxid = counters.zxid + 1;
        let mut state = TreeState { keys, counters, zxid, time_ms, enforce_quota: false };
        if found.is_none() {
            state.make_first_nodes();
        }
        state
    }

    /// As in an empty ZooKeeper, whose Stat these nodes have.
    fn make_first_nodes(&mut self) {
        let node = |children, acl: &[_]| {
            let empty = Data::Here(Bytes::new());
            let mut node = Node::new(0, 0, Lifetime::Persistent, acl::stored(acl).into(), empty);
            node.children = children;
            node
        };
        for (path, children) in [(path::ROOT, 1), (path::SYSTEM, 2), (path::QUOTA, 0), (path::CONFIG, 0)] {
            let list = if path == path::CONFIG { acl::READ_ONLY } else { acl::OPEN };
            let node = node(children, &[list]);
            self.put_node(path, &node);
            self.count(path, &node, 1);
        }
    }

    /// A node is there, by 1, or gone, by -1.
    pub fn count(&mut self, path: &str, node: &Node, by: i64) {
        self.counters.nodes += by;
        self.counters.ephemerals += if matches!(node.lifetime, Lifetime::Ephemeral(_)) { by } else { 0 };
        self.counters.bytes += by * length(path.len() + node.data.length());
    }

    /// This change begins an epoch in which all zxids are above `above` and above those before it (contracts X23).
    ///
    /// # Errors
    /// There is no such epoch.
    pub fn raise_epoch(&mut self, above: i64) -> Result<(), ErrorCode> {
        let epoch = (above.max(self.counters.zxid) >> 32) + 1;
        if epoch > MAX_EPOCH {
            return Err(ErrorCode::BadArguments);
        }
        self.zxid = epoch << 32;
        Ok(())
    }

    /// The command changed something: its zxid is taken.
    pub fn commit(&mut self) {
        self.counters.zxid = self.zxid;
        self.keys.put(key::COUNTERS, self.counters.to_vec());
    }

    /// A node, if there is one.
    pub fn node(&mut self, path: &str) -> Option<Node> {
        let bytes = self.keys.get(&key::node(path))?;
        // An unreadable record means damage: this replica must stop, so that it does not continue differently from the others.
        Some(Node::of_bytes(&bytes).unwrap_or_else(|e| panic!("{path}: {e}")))
    }

    /// A node that must be there.
    pub fn need(&mut self, path: &str) -> Result<Node, ErrorCode> {
        self.node(path).ok_or(ErrorCode::NoNode)
    }

    /// Writes a node, without its data where that lies apart.
    pub fn put_node(&mut self, path: &str, node: &Node) {
        self.keys.put(&key::node(path), node.to_bytes());
    }

    /// Puts data where it belongs. Data that lay apart before is replaced or deleted.
    pub fn place(&mut self, path: &str, before: &Data, data: Option<&[u8]>) -> Data {
        let now = match data {
            None => Data::Null,
            Some(bytes) if bytes.len() <= INLINE_BYTES => Data::Here(Bytes::copy_from_slice(bytes)),
            // Data is bounded by jute.maxbuffer.
            Some(bytes) => Data::Apart(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        };
        match (&now, data) {
            (Data::Apart(_), Some(bytes)) => self.keys.put(&key::data(path), bytes.to_vec()),
            _ if matches!(before, Data::Apart(_)) => self.keys.delete(&key::data(path)),
            _ => {}
        }
        now
    }
}

/// A length as it is counted.
pub fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The client gets one of the permissions by the node's list, or NoAuth.
pub fn check_access(node: &Node, client: &[Id<'_>], wanted: i32) -> Result<(), ErrorCode> {
    if acl::stored_allows(&node.acl, client, wanted) { Ok(()) } else { Err(ErrorCode::NoAuth) }
}

/// The version after the next change, if the one at hand is what was expected; -1 expects any.
pub fn next_version(is: i32, expected: i32) -> Result<i32, ErrorCode> {
    // The bug is in only now and then, as where a path is forgotten.
    let unchecked = mutant(mutants::ZK_VERSION_UNCHECKED) && is % 4 == 3;
    if expected != -1 && expected != is && !unchecked {
        return Err(ErrorCode::BadVersion);
    }
    // -1 is skipped: it means "any" to clients.
    Ok(match is.wrapping_add(1) {
        -1 => 0,
        next => next,
    })
}
