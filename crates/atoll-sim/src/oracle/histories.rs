//! Checks that replicas apply the same commands at the same places. It compares what living replicas have applied and still know, so that
//! surgery on the log is judged by its effect alone: an entry has changed for all of them, or for none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::{Incarnation, NodeId};
use atoll_db::LogPos;

use crate::oracle::database::Place;

/// What a replica has applied. Entries from `from` to below `below` are known; the state before came from elsewhere.
#[derive(Debug)]
struct History {
    life: Incarnation,
    from: LogPos,
    below: LogPos,
    applied: BTreeMap<Place, u64>,
}

#[derive(Debug, Default)]
struct State {
    of: BTreeMap<NodeId, History>,
    compared: u64,
    failures: Vec<String>,
}

/// See the module documentation. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct HistoriesOracle(Arc<Mutex<State>>);

/// Tells whether a life of a node still runs.
pub type IsUp<'a> = &'a dyn Fn(NodeId, Incarnation) -> bool;

impl State {
    /// Compares the entries from `from` to below `to` of a node with those of the others that run.
    fn compare(&mut self, node: NodeId, from: LogPos, to: LogPos, is_up: IsUp<'_>) {
        let Some(mine) = self.of.get(&node) else { return };
        let others = self.of.iter().filter(|(other, theirs)| **other != node && is_up(**other, theirs.life));
        for (other, theirs) in others {
            let (from, to) = (from.max(mine.from).max(theirs.from), to.min(mine.below).min(theirs.below));
            if from >= to {
                continue;
            }
            let of = |history: &History| -> Vec<(Place, u64)> {
                history.applied.range((from, 0)..(to, 0)).map(|(place, id)| (*place, *id)).collect()
            };
            let (ours, others) = (of(mine), of(theirs));
            self.compared += 1;
            if let Some(at) = (0..ours.len().max(others.len())).find(|i| ours.get(*i) != others.get(*i)) {
                self.failures.push(format!(
                    "HISTORIES: node {node} has applied {:?}, node {other} {:?}, between {from} and {to}",
                    ours.get(at),
                    others.get(at)
                ));
                return;
            }
        }
    }
}

impl HistoriesOracle {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new life, whose store has the entries below `below`. What the life before had applied beyond that is lost.
    pub fn opened(&self, node: NodeId, life: Incarnation, below: LogPos, is_up: IsUp<'_>) {
        let mut state = self.lock();
        let known = state.of.entry(node).or_insert_with(|| History {
            life,
            from: below,
            below,
            applied: BTreeMap::new(),
        });
        known.life = life;
        drop(known.applied.split_off(&(below, 0)));
        if below > known.below || below < known.from {
            (known.from, known.applied) = (below, BTreeMap::new());
        }
        known.below = below;
        let from = known.from;
        state.compare(node, from, below, is_up);
    }

    /// Notes commands that a life has applied, in entries below `below`.
    pub fn applied(
        &self,
        node: NodeId,
        life: Incarnation,
        below: LogPos,
        commands: Vec<(Place, u64)>,
        is_up: IsUp<'_>,
    ) {
        let mut state = self.lock();
        let Some(known) = state.of.get_mut(&node).filter(|known| known.life == life) else { return };
        let from = known.below;
        known.applied.extend(commands);
        known.below = known.below.max(below);
        state.compare(node, from, below, is_up);
    }

    /// Notes that the state of a life was replaced by that of a peer.
    pub fn restored(&self, node: NodeId, life: Incarnation, below: LogPos) {
        let mut state = self.lock();
        if let Some(known) = state.of.get_mut(&node).filter(|known| known.life == life) {
            *known = History { life, from: below, below, applied: BTreeMap::new() };
        }
    }

    /// Returns how often two histories were compared.
    pub fn compared(&self) -> u64 {
        self.lock().compared
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> HistoriesOracle {
        let oracle = HistoriesOracle::default();
        for node in [1, 2] {
            oracle.opened(NodeId(node), Incarnation(1), LogPos(0), &|_, _| true);
        }
        oracle
    }

    fn apply(oracle: &HistoriesOracle, node: u32, below: u64, at: &[(u64, u64)]) {
        let commands = at.iter().map(|(at, id)| ((LogPos(*at), 0), *id)).collect();
        oracle.applied(NodeId(node), Incarnation(1), LogPos(below), commands, &|_, _| true);
    }

    #[test]
    fn another_command_and_a_missing_one_are_found() {
        let oracle = two();
        apply(&oracle, 1, 3, &[(0, 10), (2, 12)]);
        apply(&oracle, 2, 3, &[(0, 10), (2, 12)]);
        assert!(oracle.take_failures().is_empty());
        apply(&oracle, 1, 5, &[(4, 14)]);
        apply(&oracle, 2, 5, &[(4, 15)]);
        assert_eq!(oracle.take_failures().len(), 1);
        let oracle = two();
        apply(&oracle, 1, 3, &[(1, 11), (2, 12)]);
        apply(&oracle, 2, 3, &[(2, 12)]);
        assert_eq!(oracle.take_failures().len(), 1);
    }

    #[test]
    fn what_a_life_has_lost_does_not_count_and_what_it_kept_does() {
        let oracle = two();
        apply(&oracle, 1, 4, &[(1, 11), (3, 13)]);
        // Node 1 is down while the other one continues.
        let only_second = |node: NodeId, _| node == NodeId(2);
        let at = |at, id| ((LogPos(at), 0), id);
        let others = vec![at(1, 11), at(3, 99)];
        oracle.applied(NodeId(2), Incarnation(1), LogPos(4), others, &only_second);
        assert!(oracle.take_failures().is_empty());
        oracle.opened(NodeId(1), Incarnation(2), LogPos(3), &|_, _| true);
        assert!(oracle.take_failures().is_empty());
        oracle.opened(NodeId(1), Incarnation(3), LogPos(3), &|_, _| true);
        let again = vec![at(3, 13)];
        oracle.applied(NodeId(1), Incarnation(3), LogPos(4), again, &|_, _| true);
        assert_eq!(oracle.take_failures().len(), 1);
    }
}
