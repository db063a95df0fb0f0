//! Remembers how far the journals of the other nodes have come. A data directory that was replaced as a whole by an older copy is
//! consistent in itself: only nodes that have seen it further ahead can detect this.
//!
//! Nodes announce in heartbeats, and in the handshake of a connection, up to which position their records and cells are durable. This
//! memory lives in the process: it is lost once all nodes have been down. A node that starts with another data directory does not erase
//! what is known of the earlier one, because its operator may bring that one back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::ids::{Incarnation, Lsn, NodeId, StorageId};
use crate::mutants;
use crate::testing::mutant;

/// The number of data directories that are remembered: sixteen for each member of the largest cluster.
const MOST_DIRECTORIES: usize = 1024;

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

/// How far the journal in one data directory has come.
#[derive(Clone, Copy, Debug)]
struct Seen {
    life: Incarnation,
    upto: Lsn,
    /// The number of the last statement about it.
    heard: u64,
}

#[derive(Debug, Default)]
struct Memory {
    seen: BTreeMap<(NodeId, StorageId), Seen>,
    /// How many statements were taken.
    heard: u64,
}

impl Memory {
    /// Makes room for one more directory of `node`. Of the node with the most directories, drops the one that was not heard of for the
    /// longest time. An older copy of that one would no longer be noticed by this process. So a node that starts again and again with an
    /// empty directory costs no other node anything.
    fn make_room(&mut self, node: NodeId) {
        if self.seen.len() < MOST_DIRECTORIES {
            return;
        }
        let mut count = BTreeMap::from([(node, 1_usize)]);
        self.seen.keys().for_each(|(of, _)| *count.entry(*of).or_default() += 1);
        let most = count.values().copied().max().unwrap_or_default();
        let of_those = self.seen.iter().filter(|((of, _), _)| count.get(of) == Some(&most));
        let oldest = of_those.min_by_key(|(_, seen)| seen.heard).map(|(key, _)| *key);
        if let Some(key) = oldest {
            self.seen.remove(&key);
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    own: AtomicU64,
    memory: Mutex<Memory>,
}

/// The memory of this node; see the module documentation. Cheap to clone; all clones share one state.
#[derive(Clone, Debug, Default)]
pub struct Witness(Arc<Inner>);

impl Witness {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.0.memory.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// different lives are compared: within one life, an earlier statement on one connection may arrive after a later one on another. Each
    /// data directory is remembered on its own: a node may start with an empty one, and later again with the earlier one. At most 1,024
    /// directories are remembered. When there are more, one is dropped of the node that has the most.
    ///
    /// # Errors
    /// Fails if the journal in this directory was durable beyond that in another life. The statement is then not remembered.
    pub fn check(
        &self,
        node: NodeId,
        life: Incarnation,
        storage: StorageId,
        durable: Lsn,
    ) -> Result<(), PutBack> {
        let mut memory = self.memory();
        memory.heard += 1;
        let heard = memory.heard;
        if mutant(mutants::WITNESS_ONE_DIRECTORY) {
            memory.seen.retain(|(of, directory), _| *of != node || *directory == storage);
        }
        if let Some(seen) = memory.seen.get_mut(&(node, storage)) {
            if seen.life != life && durable < seen.upto && !mutant(mutants::WITNESS_FORGETS) {
                return Err(PutBack { node, seen: seen.upto, found: durable });
            }
            *seen = Seen { life, upto: seen.upto.max(durable), heard };
        } else {
            memory.make_room(node);
            memory.seen.insert((node, storage), Seen { life, upto: durable, heard });
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

    #[test]
    fn a_start_with_an_empty_directory_does_not_erase_what_is_known_of_the_other() {
        let (witness, node) = (Witness::default(), NodeId(3));
        let check =
            |life, storage, durable| witness.check(node, Incarnation(life), StorageId(storage), Lsn(durable));
        assert_eq!(check(1, 1, 100), Ok(()));
        assert_eq!(check(2, 2, 0), Ok(()), "its volume was not mounted");
        let back = PutBack { node, seen: Lsn(100), found: Lsn(50) };
        assert_eq!(check(3, 1, 50), Err(back), "the volume is mounted again, from an older copy");
        assert_eq!(check(4, 1, 100), Ok(()), "nothing is lost");
    }

    #[test]
    fn a_node_with_very_many_directories_costs_the_others_none() {
        let witness = Witness::default();
        let check = |node, life, storage, durable| {
            witness.check(NodeId(node), Incarnation(life), StorageId(storage), Lsn(durable)).is_ok()
        };
        assert!(check(1, 1, 1, 100) && check(2, 1, 2, 100) && check(3, 1, 3, 100));
        for n in 0..3 * MOST_DIRECTORIES as u128 {
            assert!(check(3, 2, 1_000 + n, 0));
            assert!(check(3, 2, 3, 100), "the one in use is heard of again and again");
        }
        assert_eq!(witness.memory().seen.len(), MOST_DIRECTORIES);
        assert!(!check(1, 9, 1, 99) && !check(2, 9, 2, 99) && !check(3, 9, 3, 99));
        // If each node has one, the one that was silent for longest goes.
        let witness = Witness::default();
        let first = |node: u32, durable| {
            let of = StorageId(node.into());
            witness.check(NodeId(node), Incarnation(durable), of, Lsn(durable)).is_ok()
        };
        assert!((0..=MOST_DIRECTORIES as u32).all(|node| first(node, 100)));
        assert_eq!(witness.memory().seen.len(), MOST_DIRECTORIES);
        assert!(first(0, 99) && !first(2, 99), "0 went, and then 1");
    }
}
