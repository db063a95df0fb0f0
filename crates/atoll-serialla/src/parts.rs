//! Splits a history into parts that no operation connects. A history is strictly serializable if and only if each part is, because an order
//! of one part never constrains that of another beyond real time (Herlihy and Wing 1990, locality).

use std::collections::HashMap;

use crate::history::{Operation, Outcome};
use crate::planted::{Bug, planted};
use crate::types::DataType;

/// A part of a history.
#[derive(Debug, Default)]
pub(crate) struct Part {
    /// Its operations, as indices into the history, in the order of their calls.
    pub operations: Vec<usize>,
    /// For each operation, the numbers of its keys within the part.
    pub keys: Vec<Vec<u32>>,
    /// The number of keys.
    pub cells: usize,
}

/// Sets of numbers that are joined.
struct Joined(Vec<u32>);

impl Joined {
    fn root(&mut self, mut n: u32) -> u32 {
        while self.0[n as usize] != n {
            let above = self.0[self.0[n as usize] as usize];
            self.0[n as usize] = above;
            n = above;
        }
        n
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        self.0[a as usize] = b;
    }
}

/// Splits a history. Operations that did not happen are in no part, and neither are reads without an answer, which tell nothing.
pub(crate) fn split<T: DataType>(operations: &[Operation<T>]) -> Vec<Part> {
    let mut order: Vec<usize> = (0..operations.len())
        .filter(|n| {
            let operation = &operations[*n];
            match operation.outcome {
                Outcome::Yes => true,
                Outcome::No => false,
                Outcome::Unknown => T::writes(&operation.request, None),
            }
        })
        .collect();
    order.sort_by_key(|n| operations[*n].call);
    let mut numbers: HashMap<&str, u32> = HashMap::new();
    let mut joined = Joined(Vec::new());
    let mut keys: Vec<Vec<u32>> = Vec::with_capacity(order.len());
    for n in &order {
        let of_one: Vec<u32> = operations[*n]
            .keys()
            .into_iter()
            .map(|key| {
                *numbers.entry(key).or_insert_with(|| {
                    let number = u32::try_from(joined.0.len()).unwrap_or(u32::MAX);
                    joined.0.push(number);
                    number
                })
            })
            .collect();
        if !planted(Bug::KeysApart) {
            of_one.windows(2).for_each(|pair| joined.join(pair[0], pair[1]));
        }
        keys.push(of_one);
    }
    // The first key of each part decides the order of the parts, so that a history has one answer in every run.
    let mut part_of: HashMap<u32, usize> = HashMap::new();
    let mut parts: Vec<Part> = Vec::new();
    let mut within: Vec<HashMap<u32, u32>> = Vec::new();
    for (n, of_one) in order.into_iter().zip(keys) {
        let Some(first) = of_one.first() else { continue };
        let at = *part_of.entry(joined.root(*first)).or_insert_with(|| {
            parts.push(Part::default());
            within.push(HashMap::new());
            parts.len() - 1
        });
        let (part, numbers) = (&mut parts[at], &mut within[at]);
        let local = of_one
            .into_iter()
            .map(|key| {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                *numbers.entry(key).or_insert(next)
            })
            .collect();
        part.operations.push(n);
        part.keys.push(local);
        part.cells = numbers.len();
    }
    parts
}
