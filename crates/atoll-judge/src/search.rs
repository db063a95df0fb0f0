//! The search for an order: Wing and Gong 1993, with the memory of Lowe 2017 of what was tried.
//!
//! An operation may come next if no other one that is not placed yet had returned before it was called. The search goes depth first,
//! and never looks twice at the same set of placed operations with the same state. It ends well once all operations that were answered
//! are placed: those of unknown outcome need not be, and are tried last, and only where they change something.

use std::collections::HashSet;

use crate::history::{History, Operation};
use crate::model::State;
use crate::verdict::Verdict;

/// Placements tried before the search gives up.
const MOST_TRIED: u64 = 20_000_000;

/// What the search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether there is an order.
    pub verdict: Verdict,
    /// If there is none: the operations of which one had to come next, in the longest order that was found.
    pub stuck: Vec<usize>,
    /// How many placements were tried.
    pub tried: u64,
}

/// One operation, as the search sees it.
struct Item<'a> {
    /// Its place in the history.
    place: usize,
    operation: &'a Operation,
    /// After everything, if it was never answered.
    returned: i64,
}

impl Item<'_> {
    fn known(&self) -> bool {
        self.operation.result.is_some()
    }
}

/// A set of operations.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Placed(Vec<u64>);

impl Placed {
    fn has(&self, n: usize) -> bool {
        self.0[n / 64] & (1 << (n % 64)) != 0
    }

    fn flip(&mut self, n: usize) {
        self.0[n / 64] ^= 1 << (n % 64);
    }
}

/// A place in the search: a state, and what may come next.
struct Step {
    state: State,
    candidates: Vec<usize>,
    /// The candidate that was placed, so that it can be taken back.
    chosen: Option<usize>,
}

/// Looks for an order of the operations that are judged in real time.
pub fn search(history: &History) -> Found {
    let mut items: Vec<Item<'_>> = history
        .operations
        .iter()
        .enumerate()
        // A read that nobody was answered says nothing.
        .filter(|(_, o)| !o.plain && (o.result.is_some() || o.writes()))
        .map(|(place, operation)| Item {
            place,
            operation,
            returned: operation.returned.filter(|_| operation.result.is_some()).unwrap_or(i64::MAX),
        })
        .collect();
    items.sort_by_key(|item| item.operation.call);
    let wanted = items.iter().filter(|item| item.known()).count();
    let mut placed = Placed(vec![0; items.len().div_ceil(64)]);
    let mut seen = HashSet::new();
    let (mut known, mut tried, mut best) = (0, 0, None);
    let start = State::initial(&history.head);
    let mut path = vec![Step { candidates: candidates(&items, &placed), state: start, chosen: None }];
    while let Some(step) = path.last_mut() {
        if known == wanted {
            return Found { verdict: Verdict::Ok, stuck: Vec::new(), tried };
        }
        if best.as_ref().is_none_or(|(most, _)| known > *most) {
            best = Some((known, step.candidates.iter().map(|n| items[*n].place).collect::<Vec<_>>()));
        }
        let Some(next) = step.candidates.pop() else {
            path.pop();
            if let Some(chosen) = path.last_mut().and_then(|step| step.chosen.take()) {
                placed.flip(chosen);
                known -= usize::from(items[chosen].known());
            }
            continue;
        };
        tried += 1;
        if tried > MOST_TRIED {
            return Found { verdict: Verdict::Undecided, stuck: Vec::new(), tried };
        }
        let Some(state) = step.state.after(history.head.kind, items[next].operation) else { continue };
        if !items[next].known() && state == step.state {
            continue;
        }
        placed.flip(next);
        if !seen.insert((placed.clone(), state.clone())) {
            placed.flip(next);
            continue;
        }
        step.chosen = Some(next);
        known += usize::from(items[next].known());
        path.push(Step { candidates: candidates(&items, &placed), state, chosen: None });
    }
    Found { verdict: Verdict::Illegal, stuck: best.map(|(_, stuck)| stuck).unwrap_or_default(), tried }
}

/// What may come next, the most promising last: what was answered first.
fn candidates(items: &[Item<'_>], placed: &Placed) -> Vec<usize> {
    let free = || (0..items.len()).filter(|n| !placed.has(*n));
    let first_return = free().map(|n| items[n].returned).min().unwrap_or(i64::MAX);
    let mut next: Vec<usize> = free().take_while(|n| items[*n].operation.call <= first_return).collect();
    next.sort_by_key(|n| std::cmp::Reverse(items[*n].returned));
    next
}
