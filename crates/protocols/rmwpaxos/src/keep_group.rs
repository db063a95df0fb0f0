//! Keeps the group of acceptors in step with the table of members: drained and replaced members leave the group, and new ones join it
//! (rmwpaxos §9a). This does not depend on the logs (vlog-V15).

use std::sync::Arc;
use std::time::Duration;

use atoll_contract::{Cluster, Roster, RosterRow};
use atoll_core::{Env, NodeId, StorageId};

use crate::late::LateRegisters;
use crate::message::Open;
use crate::{GroupConfig, KnownGroup, Member, RmwRegisters};

/// The size that a group grows to at most. With five acceptors, two may fail at once.
pub const MOST_ACCEPTORS: usize = 5;

/// Returns the group that should serve, or None if that is `current` or cannot be formed now. It consists of the current acceptors that are
/// still suitable, and of new ones: an odd number of at most [`MOST_ACCEPTORS`], or two if a larger group has only two left. New ones must
/// be alive, with a disk that works; current ones that are merely down stay. A group never shrinks only because a replacement is late: with
/// fewer copies, the next lost disk could lose the registers. If it shrinks because there are fewer members, the acceptors that work stay.
fn next_group(current: &GroupConfig, roster: &Roster) -> Option<Vec<Member>> {
    let fit = || roster.members.iter().filter(|row| row.may_hold_registers());
    let row_of = |m: &Member| fit().find(|row| row.node == m.node && row.storage == m.storage);
    let mut next: Vec<Member> = current.members.iter().filter(|m| row_of(m).is_some()).cloned().collect();
    next.sort_by_key(|m| !row_of(m).is_some_and(RosterRow::works));
    for row in fit().filter(|row| row.works()) {
        if !next.iter().any(|m| m.node == row.node) {
            next.push(Member { node: row.node, storage: row.storage });
        }
    }
    next.truncate(next_size(current.members.len(), fit().count(), next.len())?);
    next.sort_by_key(|m| m.node);
    (next != current.members).then_some(next)
}

/// Returns how many acceptors the next group has if the current one has `current`, `fit` members are suitable, and `there` of these can be
/// in a group now; None if the group must wait.
fn next_size(current: usize, fit: usize, there: usize) -> Option<usize> {
    let wanted = match fit.min(MOST_ACCEPTORS) {
        // Two acceptors tolerate no failure, just like one, so a group of one does not grow to two. A larger group shrinks to two rather
        // than to a single copy.
        2 => current.min(2),
        n => odd(n),
    };
    // Growth must wait for a member that is down. Meanwhile, this must not keep the group from replacing a lost disk.
    let size = if there < wanted { odd(there).max(current) } else { wanted };
    (size > 0 && size <= there).then_some(size)
}

/// Returns the largest odd number up to `n`: an even number of acceptors tolerates no more failures than the odd number below it.
fn odd(n: usize) -> usize {
    if n.is_multiple_of(2) { n.saturating_sub(1) } else { n }
}

/// The procedure that every node runs. On the first living acceptor of the group, it changes the group when the members have changed.
#[derive(Clone, Debug)]
pub(super) struct KeepGroup {
    /// This node's executor.
    pub(super) env: Env,
    /// This node's view of the cluster.
    pub(super) cluster: Arc<dyn Cluster>,
    /// The registers of this node.
    pub(super) registers: LateRegisters,
    /// The group that the acceptor on this node knows and has stored.
    pub(super) known: KnownGroup,
    /// The storage identity of this node's data directory.
    pub(super) storage: StorageId,
    /// How often it looks at the group without a notification.
    pub(super) every: Duration,
}

/// The check for a hand-over that its mover left unfinished runs only once in this many intervals.
const FINISH_RARER: u32 = 5;

impl KeepGroup {
    /// Returns the registers and their group if this node is the first living acceptor of that group.
    fn first_in_line(&self) -> Option<(RmwRegisters, GroupConfig)> {
        let registers = self.registers.get()?;
        let group = registers.group();
        let first = group.members.iter().map(|m| m.node).find(|n| self.cluster.is_alive(*n));
        (first == Some(self.env.node())).then_some((registers, group))
    }

    /// Returns the registers and the acceptors to hand over to, if this node should start a hand-over now.
    fn wanted(&self) -> Option<(RmwRegisters, Vec<Member>)> {
        let (registers, group) = self.first_in_line()?;
        let roster = self.cluster.roster();
        if roster.version == 0 {
            return None;
        }
        let next = next_group(&group, &roster)?;
        Some((registers, next))
    }

    /// Runs until the node stops.
    pub(super) async fn run(self) {
        let follower = self.clone();
        self.env.spawn("rmw.follow_group", Box::pin(async move { follower.follow().await }));
        let changed = self.cluster.changed();
        let mut seen = 0;
        let mut next_finish = self.env.now();
        loop {
            if self.wanted().is_some() {
                // Decide again with a fresh table, because an old one may name a lost disk. Reading the table also brings the newest group.
                let fresh = self.cluster.reread_members().await;
                if let Some((registers, next)) = self.wanted().filter(|_| fresh) {
                    atoll_core::testing::hit("members.hand_over");
                    // A failed hand-over is retried in a later round.
                    drop(registers.hand_over(next).await);
                }
            } else if self.env.now() >= next_finish {
                next_finish = self.env.now().after(self.every * FINISH_RARER);
                self.finish_begun().await;
            }
            seen = match self.env.within(self.every, changed.after(seen)).await {
                Ok(rings) => rings,
                Err(_) => changed.count(),
            };
            self.env.sleep(self.env.jitter(self.every / 4)).await;
        }
    }

    /// Finishes a hand-over that another node began. If a mover dies after it has chosen the next group but before it has fenced the old
    /// one, the old group keeps serving, and only the next mover notices. If the table of members has changed back, there may be no next
    /// mover for a long time. Meanwhile the nodes of the chosen group could be removed. So the first living acceptor checks from time to
    /// time. It waits for at most `every`; the hand-over itself continues in the background.
    async fn finish_begun(&self) {
        if let Some((registers, _)) = self.first_in_line() {
            drop(self.env.within(self.every, registers.finish_hand_over()).await);
        }
    }

    /// Polls for the newest group. This is necessary because no other node informs one that missed hand-overs or was removed in the
    /// meantime.
    async fn follow(self) {
        let mut turn = 0;
        loop {
            if let Some(registers) = self.registers.get() {
                self.hear_from_one(&registers, turn).await;
                self.remember(&registers).await;
            }
            turn = turn.wrapping_add(1);
            self.env.sleep(self.env.jitter(self.every)).await;
        }
    }

    /// Asks one node which group serves. A node that missed several hand-overs may know only acceptors that are gone or have lost their
    /// disks, so it cannot learn from them where the registers are. Even turns ask only living nodes. Odd turns ask any member or acceptor,
    /// because a removed node considers no peer alive, and the living ones may know no more than this node.
    async fn hear_from_one(&self, registers: &RmwRegisters, turn: usize) {
        let members = self.cluster.roster().members.into_iter().map(|row| row.node);
        let acceptors = registers.group().members.into_iter().map(|m| m.node);
        let mut nodes: Vec<NodeId> = members.chain(acceptors).filter(|n| *n != self.env.node()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let alive: Vec<NodeId> = nodes.iter().copied().filter(|n| self.cluster.is_alive(*n)).collect();
        let asked = if turn.is_multiple_of(2) && !alive.is_empty() { &alive } else { &nodes };
        if asked.is_empty() {
            return;
        }
        let asked = registers.ask_group(asked[turn / 2 % asked.len()]);
        if let Ok(Some(group)) = self.env.within(self.every, asked).await
            && registers.adopt(&group)
        {
            atoll_core::testing::hit("members.heard_of_group");
        }
    }

    /// Makes the acceptor on this node store a newer group, even if the acceptor does not belong to it. After a restart, this node starts
    /// from that group, and it can report the group to other nodes.
    async fn remember(&self, registers: &RmwRegisters) {
        let group = registers.group();
        if self.known.get().is_none_or(|known| known.epoch < group.epoch) {
            // If this fails, the next turn retries.
            let open = self.env.call(self.env.node(), Open { storage: self.storage, group });
            drop(self.env.within(self.every, open).await);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns a roster of living members: id, storage identity, whether it is being drained.
    fn roster(rows: &[(u32, u128, bool)]) -> Roster {
        let row = |(node, storage, draining): &(u32, u128, bool)| RosterRow {
            node: NodeId(*node),
            storage: StorageId(*storage),
            meta: true,
            draining: *draining,
            alive: true,
            failing: false,
        };
        Roster { version: 1, members: rows.iter().map(row).collect() }
    }

    fn group(members: &[(u32, u128)]) -> GroupConfig {
        let members =
            members.iter().map(|(n, s)| Member { node: NodeId(*n), storage: StorageId(*s) }).collect();
        GroupConfig::new(1, members).unwrap()
    }

    fn next(current: &[(u32, u128)], rows: &[(u32, u128, bool)]) -> Option<Vec<(u32, u128)>> {
        names(next_group(&group(current), &roster(rows)))
    }

    fn names(group: Option<Vec<Member>>) -> Option<Vec<(u32, u128)>> {
        Some(group?.iter().map(|m| (m.node.0, m.storage.0)).collect())
    }

    #[test]
    fn a_group_that_fits_stays() {
        assert_eq!(
            next(&[(1, 11), (2, 22), (3, 33)], &[(1, 11, false), (2, 22, false), (3, 33, false)]),
            None
        );
        // A fourth acceptor would not help.
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
        // Two of three are left, and both keep their copies.
        assert_eq!(
            next(&three, &[(1, 11, false), (2, 22, false), (3, 33, true)]),
            Some(vec![(1, 11), (2, 22)])
        );
    }

    #[test]
    fn a_group_does_not_shrink_while_a_replacement_is_down() {
        let three = group(&[(1, 11), (2, 22), (3, 33)]);
        let mut all = roster(&[(1, 11, false), (2, 22, false), (3, 99, false)]);
        assert_eq!(next_group(&three, &all).map(|g| g.len()), Some(3));
        all.members[2].alive = false;
        assert_eq!(next_group(&three, &all), None);
    }

    /// Returns the first `count` members: node 1 with disk 11, and so on.
    fn first(count: u32) -> Vec<(u32, u128)> {
        (1..=count).map(|n| (n, u128::from(n) * 11)).collect()
    }

    fn rows(count: u32) -> Roster {
        roster(&first(count).into_iter().map(|(n, s)| (n, s, false)).collect::<Vec<_>>())
    }

    #[test]
    fn a_closed_journal_does_not_keep_a_lost_disk_in_the_group() {
        let mut all = rows(5);
        all.members[0].failing = true;
        all.members[2].storage = StorageId(99);
        let next = names(next_group(&group(&first(5)), &all));
        assert_eq!(next, Some(vec![(1, 11), (2, 22), (3, 99), (4, 44), (5, 55)]));
    }

    #[test]
    fn a_newcomer_must_have_a_disk_that_works() {
        let mut all = rows(7);
        all.members[4].draining = true;
        all.members[5].failing = true;
        let next = names(next_group(&group(&first(5)), &all));
        assert_eq!(next, Some(vec![(1, 11), (2, 22), (3, 33), (4, 44), (7, 77)]));
        all.members[6].failing = true;
        assert_eq!(next_group(&group(&first(5)), &all), None, "no spare works");
        // A disk that has failed after its node joined the group is no reason to change the group.
        all.members[4].draining = false;
        all.members[0].failing = true;
        assert_eq!(next_group(&group(&first(5)), &all), None);
    }

    #[test]
    fn growth_that_waits_for_a_member_does_not_keep_a_lost_disk_in_the_group() {
        let mut all = rows(6);
        all.members.remove(4);
        all.members[3].alive = false;
        assert_eq!(next_group(&group(&first(3)), &all), None, "four gain nothing");
        all.members[2].storage = StorageId(99);
        let next = names(next_group(&group(&first(3)), &all));
        assert_eq!(next, Some(vec![(1, 11), (2, 22), (3, 99)]));
        all.members[2].alive = false;
        let next = names(next_group(&group(&first(3)), &all));
        assert_eq!(next, Some(vec![(1, 11), (2, 22), (6, 66)]));
        // All five are there.
        all.members[2].alive = true;
        all.members[3].alive = true;
        assert_eq!(next_group(&group(&first(3)), &all).map(|g| g.len()), Some(5));
    }

    #[test]
    fn an_even_group_keeps_its_size_while_a_member_is_down() {
        // Node 1 leaves a group of two, node 3 is down, and node 4 is new.
        let mut all = rows(4);
        all.members[0].draining = true;
        all.members[2].alive = false;
        assert_eq!(names(next_group(&group(&first(2)), &all)), Some(vec![(2, 22), (4, 44)]));
    }

    #[test]
    fn the_acceptors_that_work_stay_when_a_group_shrinks() {
        let mut all = rows(5);
        all.members[4].draining = true;
        all.members[1].alive = false;
        let next = names(next_group(&group(&first(5)), &all));
        assert_eq!(next, Some(vec![(1, 11), (3, 33), (4, 44)]));
        (all.members[1].alive, all.members[0].failing) = (true, true);
        let next = names(next_group(&group(&first(5)), &all));
        assert_eq!(next, Some(vec![(2, 22), (3, 33), (4, 44)]));
    }
}
