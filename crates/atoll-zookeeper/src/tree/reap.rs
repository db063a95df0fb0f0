//! Nodes that are deleted without a client's request: containers whose last child is gone, and nodes whose time to live has passed.

use atoll_core::testing::mutant;

use super::node::{Lifetime, Node};
use super::state::{Keys, TreeState};
use crate::mutants;
use crate::path;

/// Returns whether a node is due for deletion at this time. A container is due only if it has had a child.
pub fn is_due(node: &Node, time_ms: i64) -> bool {
    node.children == 0
        && match node.lifetime {
            Lifetime::Container => node.created != 0,
            Lifetime::Ttl(ms) => time_ms.saturating_sub(node.mtime) > ms,
            Lifetime::Persistent | Lifetime::Ephemeral(_) => false,
        }
}

impl<K: Keys> TreeState<'_, K> {
    /// Deletes the nodes in `paths` that are due; returns their number.
    pub fn reap(&mut self, paths: &[&str]) -> usize {
        let (mut gone, time_ms) = (0, self.time_ms);
        for path in paths {
            let late = |node: &Node| mutant(mutants::ZK_REAP_UNGUARDED) && node.children == 0;
            let goes = |node: &Node| is_due(node, time_ms) || late(node);
            let Some(node) = self.node(path).filter(goes) else { continue };
            let Some((parent_path, _)) = path::split(path) else { continue };
            let Some(parent) = self.node(parent_path) else { continue };
            self.remove(path, node, parent_path, parent);
            gone += 1;
        }
        gone
    }
}
