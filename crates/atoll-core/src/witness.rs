//! Remembers how far the journals of the other nodes have come. A data directory that was replaced as a whole by an older copy is
//! consistent in itself: only nodes that have seen it further ahead can detect this.
//!
//! Nodes announce in heartbeats, and in the handshake of a connection, up to which record their journal is durable. This memory lives in
//! the process: it is lost once all nodes have been down.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::{Incarnation, Lsn, NodeId, StorageId};
use crate::mutants;
use crate::testing::mutant;

/// The number of nodes that are remembered: far more than a cluster has members.
const MOST_NODES: usize = 1024;

/// A data directory that lacks records that were once durable in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the data directory of node {node} was put back from an older copy: its journal ends at record {}, and record {} of it \
     was durable; move it away and start with an empty one, which gets a new identity",
    .found.0,
    .seen.0
)]
pub struct PutBack {
    /// The node that lost data.
    pub node: NodeId,
    /// The last record that was once durable.
    pub seen: Lsn,
    /// The last record that the journal has now.
    pub found: Lsn,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    storage: StorageId,
    life: Incarnation,
    upto: Lsn,
}

#[derive(Debug, Default)]
struct Inner {
    own: AtomicU64,
    seen: Mutex<BTreeMap<NodeId, Seen>>,
}

/// The memory of this node; see the module documentation. Cheap to clone; all clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Inner>);

impl Witness {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<NodeId, Seen>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this node's journal is durable up to here.
    pub fn set_own(&self, durable: Lsn) {
        self.0.own.store(durable.0, Ordering::Release);
    }

    /// Returns the record up to which this node's journal is durable.
    pub fn own(&self) -> Lsn {
        Lsn(self.0.own.load(Ordering::Acquire))
    }

    /// Takes a node's statement that its journal, in this life and this data directory, is durable up to `durable`. Only statements of
    /// different lives are compared: within one life, an earlier statement on one connection may arrive after a later one on another. A new
    /// data directory starts afresh: the old one is gone together with its identity.
    ///
    /// # Errors
    /// Fails if the journal was durable beyond that in another life. The statement is then not remembered.
    pub fn check(
        &self,
        node: NodeId,
        life: Incarnation,
        storage: StorageId,
        durable: Lsn,
    ) -> Result<(), PutBack> {
        let mut all = self.seen();
        let has_room = all.len() < MOST_NODES;
        match all.get_mut(&node) {
            Some(seen) if seen.storage == storage => {
                if seen.life != life && durable < seen.upto && !mutant(mutants::WITNESS_FORGETS) {
                    return Err(PutBack { node, seen: seen.upto, found: durable });
                }
                (seen.life, seen.upto) = (life, seen.upto.max(durable));
            }
            Some(seen) => *seen = Seen { storage, life, upto: durable },
            None if has_room => {
                all.insert(node, Seen { storage, life, upto: durable });
            }
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_goes_back_is_told_from_a_new_one() {
        let (witness, node) = (Witness::default(), NodeId(2));
        let check =
            |life, storage, durable| witness.check(node, Incarnation(life), StorageId(storage), Lsn(durable));
        assert_eq!(check(7, 1, 10), Ok(()));
        assert_eq!(check(7, 1, 30), Ok(()));
        assert_eq!(check(7, 1, 20), Ok(()), "said earlier in the same life, and heard later");
        let back = PutBack { node, seen: Lsn(30), found: Lsn(29) };
        assert_eq!(check(8, 1, 29), Err(back.clone()));
        assert_eq!(check(8, 1, 29), Err(back), "and it stays so");
        assert_eq!(check(9, 1, 30), Ok(()));
        assert_eq!(check(9, 2, 0), Ok(()), "an empty one has another identity");
        assert_eq!(witness.check(NodeId(3), Incarnation(1), StorageId(3), Lsn(0)), Ok(()));
    }
}
