//! Keeps the group of acceptors in step with the members: drained and replaced ones leave it, new ones join
//! (rmwpaxos §9a; virtuallog V15: independent of the logs' own changes).

use std::time::Duration;

use atoll_core::{Directory, Env, NodeId};
use atoll_registers::rmwpaxos::{GroupConfig, Member};

use super::Members;
use super::late::LateRegisters;
use super::table::MemberTable;

/// Acceptors that are enough: two may fail at once.
pub const MOST_ACCEPTORS: usize = 5;

/// The group that should serve, if it is another than `current`: as many as there are up to [`MOST_ACCEPTORS`], an odd
/// number, those that are there first. `alive` says which newcomers can be told now; members that are merely down stay.
pub fn next_group(
    current: &GroupConfig,
    table: &MemberTable,
    alive: impl Fn(NodeId) -> bool,
) -> Option<Vec<Member>> {
    let fit = |m: &Member| {
        table.nodes.get(&m.node).is_some_and(|row| row.meta && !row.draining && row.storage == m.storage)
    };
    let mut next: Vec<Member> = current.members.iter().filter(|m| fit(m)).cloned().collect();
    let stay = next.len();
    for (node, row) in &table.nodes {
        let new = row.meta && !row.draining && row.storage.0 != 0 && alive(*node);
        if new && !next.iter().any(|m| m.node == *node) {
            next.push(Member { node: *node, storage: row.storage });
        }
    }
    let most = next.len().min(MOST_ACCEPTORS);
    // An even number tolerates no more failures than the odd one below it.
    let size = if most.is_multiple_of(2) { most.saturating_sub(1) } else { most };
    let lost = current.members.len() - stay;
    if next.is_empty() || (lost == 0 && size <= stay) {
        return None;
    }
    next.truncate(size.max(1));
    next.sort_by_key(|m| m.node);
    (next != current.members).then_some(next)
}

/// The procedure of each node: the first living acceptor of the group sees to it that the group is what it should be.
#[derive(Clone, Debug)]
pub struct MetaGroup {
    /// This node's executor.
    pub env: Env,
    /// The members.
    pub members: Members,
    /// The registers of this node.
    pub registers: LateRegisters,
    /// How often it looks without being told to.
    pub every: Duration,
}

impl MetaGroup {
    /// Runs until the node ends.
    pub async fn run(self) {
        let mut seen = 0;
        loop {
            if let Some(registers) = self.registers.get() {
                let group = registers.group();
                let first = group.members.iter().map(|m| m.node).find(|n| self.members.is_alive(*n));
                let table = self.members.table();
                let next = if table.version == 0 {
                    None
                } else {
                    let candidates = self.members.candidates();
                    let alive = |n| candidates.iter().any(|c| c.node == n && c.alive);
                    next_group(&group, &table, alive)
                };
                if let Some(next) = next
                    && first == Some(self.env.node())
                {
                    atoll_core::testing::hit("members.hand_over");
                    // A failure is tried again at the next look.
                    drop(registers.hand_over(next).await);
                }
            }
            let rung = self.members.changed.after(seen);
            seen = match self.env.within(self.every, rung).await {
                Ok(rings) => rings,
                Err(_) => self.members.changed.rings(),
            };
            self.env.sleep(self.env.jitter(self.every / 4)).await;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::members::table::Member as Row;
    use atoll_core::StorageId;

    fn table(rows: &[(u32, u128, bool)]) -> MemberTable {
        let row = |storage, draining| Row {
            peer: String::new(),
            grpc: String::new(),
            metrics: String::new(),
            storage: StorageId(storage),
            log: true,
            sequencer: true,
            meta: true,
            draining,
        };
        MemberTable { version: 1, nodes: rows.iter().map(|(n, s, d)| (NodeId(*n), row(*s, *d))).collect() }
    }

    fn group(members: &[(u32, u128)]) -> GroupConfig {
        let members =
            members.iter().map(|(n, s)| Member { node: NodeId(*n), storage: StorageId(*s) }).collect();
        GroupConfig::new(1, members).unwrap()
    }

    fn next(current: &[(u32, u128)], rows: &[(u32, u128, bool)]) -> Option<Vec<(u32, u128)>> {
        let next = next_group(&group(current), &table(rows), |_| true)?;
        Some(next.iter().map(|m| (m.node.0, m.storage.0)).collect())
    }

    #[test]
    fn a_group_that_fits_stays() {
        assert_eq!(
            next(&[(1, 11), (2, 22), (3, 33)], &[(1, 11, false), (2, 22, false), (3, 33, false)]),
            None
        );
        // A fourth would not help.
        let four = [(1, 11, false), (2, 22, false), (3, 33, false), (4, 44, false)];
        assert_eq!(next(&[(1, 11), (2, 22), (3, 33)], &four), None);
    }

    #[test]
    fn a_replaced_disk_a_drained_node_and_growth_change_it() {
        let three = [(1, 11), (2, 22), (3, 33)];
        assert_eq!(
            next(&three, &[(1, 11, false), (2, 22, false), (3, 99, false)]),
            Some(vec![(1, 11), (2, 22), (3, 99)])
        );
        assert_eq!(
            next(&three, &[(1, 11, true), (2, 22, false), (3, 33, false), (4, 44, false)]),
            Some(vec![(2, 22), (3, 33), (4, 44)])
        );
        let five: Vec<_> = (1..=5).map(|n| (n, u128::from(n) * 11, false)).collect();
        assert_eq!(next(&three, &five).unwrap().len(), 5);
        assert_eq!(next(&[(1, 11)], &five[..2]), None, "one to two gains nothing");
        assert_eq!(next(&[(1, 11)], &five[..3]).unwrap().len(), 3);
        // Two are left of three: one holds them all rather than two that need each other.
        assert_eq!(next(&three, &[(1, 11, false), (2, 22, false), (3, 33, true)]), Some(vec![(1, 11)]));
    }
}
