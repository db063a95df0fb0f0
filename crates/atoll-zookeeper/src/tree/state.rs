//! The state as a command sees it.

use atoll_core::testing::mutant;
use atoll_db::{Direction, KeyRange, Tx};
use bytes::Bytes;

use super::key;
use super::node::{Data, INLINE_BYTES, Lifetime, Node};
use super::quota::Search;
use super::weight::{STEP_WEIGHT_BYTES, Weight};
use crate::acl::{self, Judged};
use crate::event::Event;
use crate::jute::codes::ErrorCode;
use crate::jute::records::Id;
use crate::jute::{Jute, record};
use crate::mutants;
use crate::path;

/// The ordered keys and values that a command reads and writes, and a sink for its events.
pub trait Keys {
    /// Returns the value of a key.
    fn get(&mut self, key: &[u8]) -> Option<Bytes>;
    /// Writes a key.
    fn put(&mut self, key: &[u8], value: Vec<u8>);
    /// Deletes a key, if it exists.
    fn delete(&mut self, key: &[u8]);
    /// Returns the first entries of a range, at most `limit`, in order.
    fn first(&mut self, range: &KeyRange, limit: usize) -> Vec<(Bytes, Bytes)>;
    /// Emits an event.
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
    /// The counters of the state.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Counters {
        /// The zxid of the newest change (contracts X23): an epoch in the upper half, a count in the lower one.
        zxid: i64,
        /// The number of sessions ever opened.
        sessions: i64,
        /// The number of znodes.
        nodes: i64,
        /// The number of ephemerals among them.
        ephemerals: i64,
        /// The bytes of their paths and data.
        bytes: i64,
        /// The number of subtrees with a quota.
        quotas: i64,
    }
}

impl Counters {
    /// The counters before the first change. They begin with epoch 1, so that no session id and no zxid is 0.
    pub const FIRST: Counters =
        Counters { zxid: 1 << 32, sessions: 0, nodes: 0, ephemerals: 0, bytes: 0, quotas: 0 };

    /// Decodes the stored counters. Panics if that fails.
    pub fn of_bytes(bytes: &[u8]) -> Counters {
        // Only `commit` writes them. Without correct counters, everything that follows would be wrong.
        Counters::parse(bytes).unwrap_or_else(|e| panic!("the counters cannot be read: {e}"))
    }

    /// Returns the epoch of the zxid.
    pub fn epoch(&self) -> i64 {
        self.zxid >> 32
    }
}

/// Highest epoch. The id of a session has the epoch in its upper 24 bits and must stay positive.
pub(super) const MAX_EPOCH: i64 = 0x7f_ffff;
/// Highest epoch that a door accepts from outside, in an import or a tree snapshot. As many epochs remain for later changes.
pub const MAX_FOREIGN_EPOCH: i64 = MAX_EPOCH / 2;

/// Returns whether a zxid from outside is in an epoch that leaves enough epochs for later changes.
pub fn is_foreign_zxid(zxid: i64) -> bool {
    (0..=MAX_FOREIGN_EPOCH).contains(&(zxid >> 32))
}

/// The state during one command.
pub struct TreeState<'k, K> {
    /// The store.
    pub keys: &'k mut K,
    /// The counters after what the command has done so far.
    pub counters: Counters,
    /// The zxid of the command's change, if it makes one.
    pub zxid: i64,
    /// The time of the log at this command, in milliseconds since the Unix epoch. The same on every node.
    pub time_ms: i64,
    /// Whether a write above a hard quota is refused.
    pub enforce_quota: bool,
    /// What the command's client may do at the nodes that were judged.
    pub(super) judged: Judged,
    /// The quotas that were searched last.
    pub(super) search: Search,
    /// What the command weighs.
    pub(crate) weight: Weight,
    /// Whether the weight is bounded, as from version 2 of the commands.
    pub is_bounded: bool,
    /// Whether a session's record has the hash of its password only.
    pub hides_passwords: bool,
}

impl<'k, K: Keys> TreeState<'k, K> {
    /// Opens the state for a command. Creates the first nodes if there are none yet.
    pub fn open(keys: &'k mut K, time_ms: i64) -> TreeState<'k, K> {
        let found = keys.get(key::COUNTERS);
        let counters = found.as_ref().map_or(Counters::FIRST, |bytes| Counters::of_bytes(bytes));
        // Assign the next zxid, the same on every replica. `commit` makes it the newest one; `raise_epoch` changes it to a new
        // epoch.
        let zxid = counters.zxid + 1;
        let (judged, search, weight) = Default::default();
        let (enforce_quota, is_bounded, hides_passwords) = (false, false, false);
        let mut state = TreeState {
            keys,
            counters,
            zxid,
            time_ms,
            enforce_quota,
            judged,
            search,
            weight,
            is_bounded,
            hides_passwords,
        };
        if found.is_none() {
            state.make_first_nodes();
        }
        state
    }

    /// Creates the nodes of an empty ZooKeeper, with the same Stat.
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

    /// Counts a node that was created (`by` is 1) or deleted (`by` is -1).
    pub fn count(&mut self, path: &str, node: &Node, by: i64) {
        self.counters.nodes += by;
        self.counters.ephemerals += if matches!(node.lifetime, Lifetime::Ephemeral(_)) { by } else { 0 };
        self.counters.bytes += by * length(path.len() + node.data.length());
    }

    /// Moves this change to a new epoch, whose zxids are above `above` and above all earlier ones (contracts X23).
    ///
    /// # Errors
    /// BadArguments: there is no such epoch.
    pub fn raise_epoch(&mut self, above: i64) -> Result<(), ErrorCode> {
        let epoch = (above.max(self.counters.zxid) >> 32) + 1;
        if epoch > MAX_EPOCH {
            return Err(ErrorCode::BadArguments);
        }
        self.zxid = epoch << 32;
        Ok(())
    }

    /// Records that the command changed something, so its zxid becomes the newest one.
    pub fn commit(&mut self) {
        self.counters.zxid = self.zxid;
        self.keys.put(key::COUNTERS, self.counters.to_vec());
    }

    /// Returns a node, if it exists. Panics if its record cannot be decoded.
    pub fn node(&mut self, path: &str) -> Option<Node> {
        let bytes = self.keys.get(&key::node(path))?;
        // An unreadable record means damage. This replica must stop, so that it does not diverge from the others.
        let mut node = Node::of_bytes(&bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
        node.acl = self.judged.shared(node.acl);
        self.weight.add_record(path, bytes.len(), node.acl.len());
        Some(node)
    }

    /// Returns a node that must exist, or NoNode.
    pub fn need(&mut self, path: &str) -> Result<Node, ErrorCode> {
        self.node(path).ok_or(ErrorCode::NoNode)
    }

    /// Writes a node, without data that has its own key.
    pub fn put_node(&mut self, path: &str, node: &Node) {
        if path.starts_with(path::QUOTA) {
            self.search = Search::default();
        }
        self.keys.put(&key::node(path), node.to_bytes());
    }

    /// Returns whether a command that ends a session has deleted so much that it must stop. Its proposer repeats it.
    pub fn has_done_a_step(&self) -> bool {
        self.is_bounded && self.weight.bytes() > STEP_WEIGHT_BYTES
    }

    /// Returns NoAuth unless the node's ACL gives the client one of the wanted permissions. A command has only one client.
    ///
    /// # Errors
    /// NoAuth.
    pub fn check_access(&mut self, node: &Node, client: &[Id<'_>], wanted: i32) -> Result<(), ErrorCode> {
        let allowed = self.judged.allows(&node.acl, wanted, client);
        if allowed { Ok(()) } else { Err(ErrorCode::NoAuth) }
    }

    /// Stores data in the node or under its own key, depending on its length. Data that had its own key before is replaced or
    /// deleted.
    pub fn place(&mut self, path: &str, before: &Data, data: Option<&[u8]>) -> Data {
        if let Data::Apart(bytes) = before {
            self.weight.add_data(*bytes);
        }
        let now = match data {
            None => Data::Null,
            Some(bytes) if bytes.len() <= INLINE_BYTES => Data::Here(Bytes::copy_from_slice(bytes)),
            // The length of a command limits the data.
            Some(bytes) => Data::Apart(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        };
        let kept = match (&now, data) {
            (Data::Apart(_), Some(bytes)) => self.put_apart(path, bytes),
            _ => 0,
        };
        if let Data::Apart(length) = before {
            let gone = key::data_pieces(path, *length as usize).skip(kept);
            gone.for_each(|(key, _)| self.keys.delete(&key));
        }
        now
    }

    /// Stores data under keys of its own; returns the number of keys.
    pub(super) fn put_apart(&mut self, path: &str, data: &[u8]) -> usize {
        let mut count = 0;
        for (key, place) in key::data_pieces(path, data.len()) {
            self.keys.put(&key, data[place].to_vec());
            count += 1;
        }
        count
    }

    /// Returns the data of a node.
    pub fn data(&mut self, path: &str, of: &Data) -> Option<Bytes> {
        match of {
            Data::Null => None,
            Data::Here(bytes) => Some(bytes.clone()),
            Data::Apart(length) if !key::is_in_pieces(path, *length as usize) => {
                self.keys.get(&key::data(path))
            }
            Data::Apart(length) => {
                let mut whole = Vec::with_capacity(*length as usize);
                for (key, _) in key::data_pieces(path, *length as usize) {
                    whole.extend_from_slice(&self.keys.get(&key)?);
                }
                Some(whole.into())
            }
        }
    }
}

/// Converts a length to the type of the counters.
pub fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns the version after the next change, or BadVersion if the current one is not `expected`; -1 expects any version.
pub fn next_version(is: i32, expected: i32) -> Result<i32, ErrorCode> {
    // The bug of this mutant appears only at some versions, like a real one in a rare code path.
    let unchecked = mutant(mutants::ZK_VERSION_UNCHECKED) && is % 4 == 3;
    if expected != -1 && expected != is && !unchecked {
        return Err(ErrorCode::BadVersion);
    }
    // Skip -1, which means "any" to clients.
    Ok(match is.wrapping_add(1) {
        -1 => 0,
        next => next,
    })
}
