//! Makes a refuted part of a history short.
//!
//! Leaving out an operation must not be what refutes the rest: without the write of a value, every read of it would look wrong. So a write
//! that is left out becomes a *disturbance*: at some moment between its call and its return, or never, its keys may come to hold anything.
//! Reads and refused operations are left out without a trace. Operations of unknown outcome always remain possible. And if the state before
//! the first operation that is kept does not matter, it is unknown. A history that is still refuted then is wrong whatever the operations
//! did that were left out.
//!
//! At the end, the writers of the values that the kept operations saw are added, as context for a reader.

use std::collections::BTreeSet;

use crate::history::{Operation, Outcome};
use crate::parts::Part;
use crate::planted::{Bug, planted};
use crate::search::{Budget, Found, Item, Role, search};
use crate::types::DataType;

/// Placements that one attempt may try, and all of them.
const STEPS_OF_AN_ATTEMPT: u64 = 30_000;
const STEPS_OF_ALL: u64 = 3_000_000;
/// Maximum number of operations that are added as context.
const MOST_CONTEXT: usize = 12;

/// A short refuting history.
#[derive(Debug)]
pub(crate) struct Short {
    /// The operations that have no order, as indices into the history, in the order of their calls.
    pub kept: Vec<usize>,
    /// Operations that show where values come from.
    pub context: Vec<usize>,
    /// The operation that found no place.
    pub stuck: usize,
    /// Whether the state before the first operation matters.
    pub initial: bool,
}

/// Attempts to do without operations.
struct Attempts<'a, 'w, T: DataType> {
    operations: &'a [Operation<T>],
    part: &'a Part,
    /// The state before the history; None if it is unknown anyway.
    initial: Option<T::Cell>,
    steps: u64,
    memory_bytes: usize,
    watch: &'w mut dyn FnMut(usize) -> bool,
    /// Places in the part, in the order of their returns, that must be placed and may be left out.
    kept: Vec<usize>,
    /// Whether the initial state is kept.
    with_initial: bool,
}

impl<T: DataType> Attempts<'_, '_, T> {
    fn at(&self, place: usize) -> &Operation<T> {
        &self.operations[self.part.operations[place]]
    }

    fn returned(&self, place: usize) -> i64 {
        self.at(place).returned.unwrap_or(i64::MAX)
    }

    /// Whether some operations still have no order, with all others left out. Returns the place of the one that found no place.
    fn refuted(&mut self, kept: &[usize], with_initial: bool) -> Option<usize> {
        let (operations, part) = (self.operations, self.part);
        let ends: Vec<i64> = kept.iter().map(|place| self.returned(*place)).collect();
        let last = ends.iter().copied().max()?;
        let first = if with_initial { i64::MIN } else { kept.iter().map(|p| self.at(*p).call).min()? };
        let chosen: BTreeSet<usize> = kept.iter().copied().collect();
        let mut items: Vec<Item<'_, T>> = Vec::new();
        let mut places = Vec::new();
        for place in 0..part.operations.len() {
            let operation = &operations[part.operations[place]];
            if operation.call > last {
                break;
            }
            let role = match operation.outcome {
                _ if chosen.contains(&place) => Role::Happened,
                Outcome::Unknown => Role::MayHappen,
                _ if operation.returned.is_some_and(|at| at < first) => continue,
                _ if planted(Bug::LeftOutIsNothing) => continue,
                _ if T::writes(&operation.request, operation.answer.as_ref()) => Role::Disturbs,
                _ => continue,
            };
            items.push(Item { operation, keys: &part.keys[place], role });
            places.push(place);
        }
        let initial = match (&self.initial, with_initial) {
            (Some(cell), true) => cell.clone(),
            _ => T::unknown(),
        };
        let mut budget = Budget {
            steps: STEPS_OF_AN_ATTEMPT.min(self.steps),
            memory_bytes: self.memory_bytes,
            watch: &mut *self.watch,
        };
        let (found, steps) = search(&items, part.cells, initial, &mut budget);
        self.steps -= steps.min(self.steps);
        match found {
            Found::Refuted { stuck, .. } => Some(places[stuck]),
            Found::Explained | Found::NotDecided(_) => None,
        }
    }

    /// Keeps only these, if they are refuted.
    fn keep(&mut self, kept: Vec<usize>, with_initial: bool) -> bool {
        let refuted = self.refuted(&kept, with_initial).is_some();
        if refuted {
            (self.kept, self.with_initial) = (kept, with_initial);
        }
        refuted
    }

    /// Finds a short stretch of time, at the end of what is refuted, that is refuted by itself.
    fn cut(&mut self, until: i64) {
        let mut all: Vec<usize> =
            (0..self.part.operations.len()).filter(|p| self.at(*p).outcome == Outcome::Yes).collect();
        all.sort_by_key(|place| self.returned(*place));
        let up_to: Vec<usize> = all.iter().copied().filter(|p| self.returned(*p) <= until).collect();
        (self.kept, self.with_initial) = (all, true);
        let mut length = 2;
        while length < up_to.len() {
            if self.keep(up_to[up_to.len() - length..].to_vec(), false) {
                return;
            }
            length *= 2;
        }
        if !self.keep(up_to.clone(), false) {
            self.keep(up_to, true);
        }
    }

    /// Does without the operations of each client, and then without ever smaller groups of operations, as long as that leads anywhere.
    fn shorten(&mut self) {
        let clients: BTreeSet<u64> = self.kept.iter().map(|place| self.at(*place).client).collect();
        for client in clients {
            let others: Vec<usize> =
                self.kept.iter().copied().filter(|place| self.at(*place).client != client).collect();
            if others.len() < self.kept.len() {
                self.keep(others, self.with_initial);
            }
        }
        let mut size = self.kept.len().div_ceil(2).max(1);
        loop {
            let (mut from, before) = (0, self.kept.len());
            while from < self.kept.len() && self.steps > 0 {
                let to = (from + size).min(self.kept.len());
                let others = [&self.kept[..from], &self.kept[to..]].concat();
                if !self.keep(others, self.with_initial) {
                    from = to;
                }
            }
            if self.with_initial {
                self.keep(self.kept.clone(), false);
            }
            match size {
                1 if self.kept.len() == before => return,
                1 => {}
                _ => size = size.div_ceil(2),
            }
            if self.steps == 0 {
                return;
            }
        }
    }
}

/// Shortens a part whose operations up to `until` have no order.
pub(crate) fn shorten<T: DataType>(
    operations: &[Operation<T>],
    part: &Part,
    initial: Option<T::Cell>,
    until: i64,
    memory_bytes: usize,
    watch: &mut dyn FnMut(usize) -> bool,
) -> Short {
    let mut attempts = Attempts {
        operations,
        part,
        initial,
        steps: STEPS_OF_ALL,
        memory_bytes,
        watch,
        kept: Vec::new(),
        with_initial: true,
    };
    attempts.cut(until);
    attempts.shorten();
    attempts.steps = STEPS_OF_AN_ATTEMPT;
    let (kept, with_initial) = (attempts.kept.clone(), attempts.with_initial);
    let initial = with_initial && attempts.initial.is_some();
    let last = kept.iter().copied().max_by_key(|place| attempts.returned(*place));
    let stuck = attempts.refuted(&kept, with_initial).or(last).unwrap_or(0);
    let stuck = part.operations.get(stuck).copied().unwrap_or(0);
    let mut kept: Vec<usize> = kept.into_iter().map(|place| part.operations[place]).collect();
    kept.sort_by_key(|n| operations[*n].call);
    let context = context(operations, &kept);
    Short { kept, context, stuck, initial }
}

/// Returns the operations that wrote what the kept ones saw, unless a kept one did.
fn context<T: DataType>(operations: &[Operation<T>], kept: &[usize]) -> Vec<usize> {
    let mut wanted = Vec::new();
    for operation in kept.iter().map(|n| &operations[*n]) {
        let Some(answer) = &operation.answer else { continue };
        let keys = operation.keys();
        for (n, value) in T::seen(&operation.request, answer) {
            wanted.push((keys[n], value, operation.returned.unwrap_or(i64::MAX)));
        }
    }
    let writes = |operation: &Operation<T>, key: &str, value: &serde_json::Value| {
        let keys = operation.keys();
        T::written(&operation.request).iter().any(|(n, written)| keys[*n] == key && written == value)
    };
    wanted.retain(|(key, value, _)| !kept.iter().any(|n| writes(&operations[*n], key, value)));
    let mut found = BTreeSet::new();
    for (key, value, returned) in wanted {
        let writers = (0..operations.len()).filter(|n| {
            operations[*n].call <= returned && !kept.contains(n) && writes(&operations[*n], key, &value)
        });
        found.extend(writers.max_by_key(|n| operations[*n].call));
    }
    let mut found: Vec<usize> = found.into_iter().take(MOST_CONTEXT).collect();
    found.sort_by_key(|n| operations[*n].call);
    found
}
