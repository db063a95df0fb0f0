//! How much of what is stored a command has to read, judge and replace.
//!
//! A frame of a megabyte holds 30,000 operations, and each may concern a znode with a long ACL or with a megabyte of data. Replicas
//! apply one command after the other, so without a bound such a transaction would hold up all clients (contracts X25).

use std::collections::HashSet;

/// The most that a client's transaction may weigh, in bytes. 30,000 operations may concern znodes of a kilobyte each.
pub const MAX_WEIGHT_BYTES: usize = 32 * 1024 * 1024;
/// Nodes that are deleted without a client's request are deleted by several commands if they weigh more than this, in bytes.
pub const STEP_WEIGHT_BYTES: usize = 16 * 1024 * 1024;
/// What each look-up of a node weighs, in bytes. With a quota at each level of a deep path, an operation may need hundreds.
const LOOK_UP_BYTES: usize = 96;
/// Each look-up compares the node's ACL with those that were judged. That weighs this many times less than the ACL.
const COMPARED: usize = 16;
/// The records of so few operations, and of the parents of their znodes, weigh less than [`MAX_WEIGHT_BYTES`].
const FEW_OPERATIONS: usize = 900;

/// What a command weighs so far. A record weighs its bytes, once, however often the command meets it; each look-up weighs a little. Data
/// that has its own key weighs its bytes when it is replaced or deleted: the hash of the state needs what was there before.
#[derive(Debug, Default)]
pub struct Weight {
    bytes: usize,
    /// The paths of the records that were weighed, if records are weighed.
    weighed: Option<HashSet<Box<str>>>,
}

impl Weight {
    /// Begins to weigh records, if there are so many operations that their records may be too heavy.
    pub fn expect(&mut self, operations: usize) {
        if operations > FEW_OPERATIONS {
            self.weighed.get_or_insert_default();
        }
    }

    /// Adds a look-up of a node, with its record of so many bytes and the ACL in it.
    pub fn add_record(&mut self, path: &str, bytes: usize, of_acl: usize) {
        self.bytes += LOOK_UP_BYTES + of_acl / COMPARED;
        if let Some(weighed) = &mut self.weighed
            && !weighed.contains(path)
        {
            weighed.insert(path.into());
            self.bytes += bytes;
        }
    }

    /// Adds a new ACL of so many bytes. A few bytes of a request may make a long one.
    pub fn add_acl(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Adds data with its own key that is replaced or deleted.
    pub fn add_data(&mut self, bytes: u32) {
        self.bytes += bytes as usize;
    }

    /// Returns the weight in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}
