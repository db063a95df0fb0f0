//! Searches for an order of the operations, as in Wing and Gong 1993, and remembers visited states, as in Lowe 2017.
//!
//! An operation may come next if no other operation that is not placed yet returned before it was called. The search is depth-first and
//! visits each combination of placed operations and state only once. It succeeds when all operations with a known result are placed.
//! Operations with an unknown result may stay out. They are tried last, and only if they change the state.

use std::collections::HashSet;

use crate::history::{History, Operation};
use crate::model::Rows;
use crate::verdict::Verdict;

/// How many placements are tried before the search gives up.
const MOST_TRIED: u64 = 20_000_000;

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Whether there is an order.
    pub verdict: Verdict,
    /// If there is none: the operations that could have come next after the longest order that was found, none of which fits.
    pub stuck: Vec<usize>,
    /// How many placements were tried.
    pub tried: u64,
}

/// An operation, as the search uses it.
struct Item<'a> {
    /// Its index in the history.
    place: usize,
    operation: &'a Operation,
    /// When it returned; the maximum if it has no known result.
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

/// A node of the search: a state, and the operations that may come next.
struct Step {
    state: Rows,
    candidates: Vec<usize>,
    /// The candidate that was placed here, to be removed on backtracking.
    chosen: Option<usize>,
}

/// Searches for an order of the operations that must agree with real time.
pub fn search(history: &History) -> Found {
    let mut items: Vec<Item<'_>> = history
        .operations
        .iter()
        .enumerate()
        // An unanswered read gives no information.
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
    let start = Rows::initial(&history.head);
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

/// Returns the operations that may come next. The one that returned first is most likely right and comes last, because candidates are taken
/// from the end.
fn candidates(items: &[Item<'_>], placed: &Placed) -> Vec<usize> {
    let free = || (0..items.len()).filter(|n| !placed.has(*n));
    let first_return = free().map(|n| items[n].returned).min().unwrap_or(i64::MAX);
    let mut next: Vec<usize> = free().take_while(|n| items[*n].operation.call <= first_return).collect();
    next.sort_by_key(|n| std::cmp::Reverse(items[*n].returned));
    next
}
