//! Checks what clients saw of single keys: searches for an order of their operations that explains every answer, in which no operation
//! comes before one that had ended when it began (linearizability). It knows what the data types mean, and nothing of the product.

use std::collections::{BTreeMap, BTreeSet};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Read,
    Put(String),
    /// Puts the second value if the key has the first one; None: if the key is not there.
    Swap(Option<String>, String),
    Delete,
    Add(u64),
    Acquire(String),
    Release(u64),
}

/// What a client is answered. An operation without an answer may have happened, or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    Read(Model),
    /// It happened, with this number.
    Done(u64),
    /// It did not happen, and the key held this then, if known.
    Refused(Option<Model>),
    /// Nothing had to change.
    Same(u64),
    /// It did not happen, for a reason that has nothing to do with the key.
    No,
}

/// What a key holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Model {
    #[default]
    Nothing,
    Value(String),
    Count(u64),
    /// The owner, the highest fencing number that was told, and whether it is that of the last owner.
    Lock(Option<String>, u64, bool),
}

#[derive(Debug)]
struct Op {
    ask: Ask,
    called: u64,
    told: Option<(u64, Told)>,
}

#[derive(Debug, Default)]
pub struct History {
    clock: u64,
    keys: BTreeMap<String, Vec<Op>>,
}

/// The most states that a search visits.
const MOST_STATES: usize = 400_000;

impl History {
    /// An operation begins. Returns its number.
    pub fn call(&mut self, key: &str, ask: Ask) -> (String, usize) {
        self.clock += 1;
        let ops = self.keys.entry(key.to_owned()).or_default();
        ops.push(Op { ask, called: self.clock, told: None });
        (key.to_owned(), ops.len() - 1)
    }

    /// An operation has an answer.
    pub fn told(&mut self, (key, at): &(String, usize), told: Told) {
        self.clock += 1;
        self.keys.get_mut(key).unwrap()[*at].told = Some((self.clock, told));
    }

    pub fn done(&self) -> usize {
        let answered = |op: &&Op| matches!(op.told, Some((_, ref told)) if *told != Told::No);
        self.keys.values().flatten().filter(answered).count()
    }

    /// Returns the keys whose answers no order explains.
    pub fn check(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (key, ops) in &self.keys {
            // What did not happen, and reads without an answer, explain nothing.
            let counts = |op: &&Op| match &op.told {
                Some((_, Told::No)) => false,
                Some(_) => true,
                None => op.ask != Ask::Read,
            };
            let ops: Vec<&Op> = ops.iter().filter(counts).collect();
            let mut search = Search { ops, seen: BTreeSet::new(), deepest: 0 };
            let done = vec![0; search.ops.len().div_ceil(64)];
            match search.explains(&done, 0, &Model::Nothing) {
                Some(true) => {}
                Some(false) => {
                    let ops = search.ops.iter().map(|op| format!("{op:?}")).collect::<Vec<_>>().join("\n");
                    found.push(format!("no order explains {key}; {} fit of\n{ops}", search.deepest));
                }
                None => found.push(format!("HARNESS: too many orders for {key}")),
            }
        }
        found
    }
}

struct Search<'a> {
    ops: Vec<&'a Op>,
    seen: BTreeSet<(Vec<u64>, Model)>,
    deepest: usize,
}

impl Search<'_> {
    fn explains(&mut self, done: &[u64], count: usize, now: &Model) -> Option<bool> {
        let is_done = |i: usize| done[i / 64] >> (i % 64) & 1 == 1;
        let open = || (0..self.ops.len()).filter(|i| !is_done(*i));
        // The first answer among the open operations: what began after it must wait.
        let Some(first) = open().filter_map(|i| self.ops[i].told.as_ref().map(|(at, _)| *at)).min() else {
            return Some(true);
        };
        if self.seen.len() > MOST_STATES {
            return None;
        }
        if !self.seen.insert((done.to_vec(), now.clone())) {
            return Some(false);
        }
        self.deepest = self.deepest.max(count);
        let candidates: Vec<usize> = open().filter(|i| self.ops[*i].called < first).collect();
        for i in candidates {
            let op = self.ops[i];
            if let Some(next) = after(&op.ask, op.told.as_ref().map(|(_, told)| told), now) {
                let mut done = done.to_vec();
                done[i / 64] |= 1 << (i % 64);
                match self.explains(&done, count + 1, &next) {
                    Some(false) => {}
                    other => return other,
                }
            }
        }
        Some(false)
    }
}

/// Returns what the key holds after an operation with this answer. None if the answer contradicts what it holds now.
fn after(ask: &Ask, told: Option<&Told>, now: &Model) -> Option<Model> {
    let (next, number) = match effect(ask, now) {
        Ok(done) => done,
        Err(same) => {
            let fits = match (told, same) {
                (Some(Told::Read(seen)), _) => looks(seen, now),
                (Some(Told::Refused(seen)), None) => seen.as_ref().is_none_or(|seen| looks(seen, now)),
                (Some(Told::Same(told)), Some(_)) => {
                    return match now {
                        // The owner learns the number of its lock.
                        Model::Lock(owner, last, _) if told >= last => {
                            Some(Model::Lock(owner.clone(), *told, true))
                        }
                        _ => None,
                    };
                }
                (None, _) => true,
                _ => false,
            };
            return fits.then(|| now.clone());
        }
    };
    match (told, next) {
        (Some(Told::Done(told)), Model::Lock(owner, last, _)) => {
            let rises = owner.is_none() || *told > last;
            rises.then(|| Model::Lock(owner, last.max(*told), true))
        }
        (Some(Told::Done(told)), next) => (number.is_none_or(|number| number == *told)).then_some(next),
        (None, next) => Some(next),
        _ => None,
    }
}

fn looks(seen: &Model, now: &Model) -> bool {
    match (seen, now) {
        (Model::Lock(a, ..), Model::Lock(b, ..)) => a == b,
        (seen, now) => seen == now,
    }
}

/// Returns what the key becomes, with the number that the operation is answered with. Otherwise whether it had nothing to do.
fn effect(ask: &Ask, now: &Model) -> Result<(Model, Option<u64>), Option<()>> {
    Ok(match (ask, now) {
        (Ask::Read, _) => return Err(None),
        (Ask::Put(value), _) => (Model::Value(value.clone()), None),
        (Ask::Swap(None, value), Model::Nothing) => (Model::Value(value.clone()), None),
        (Ask::Swap(Some(wanted), value), Model::Value(held)) if wanted == held => {
            (Model::Value(value.clone()), None)
        }
        (Ask::Delete, held) if *held != Model::Nothing => (Model::Nothing, None),
        (Ask::Add(n), Model::Nothing) => (Model::Count(*n), Some(*n)),
        (Ask::Add(n), Model::Count(held)) => (Model::Count(held + n), Some(held + n)),
        // As long as nobody was told the number of the new owner, it may be any higher one, and nobody can free the lock.
        (Ask::Acquire(owner), Model::Nothing) => (Model::Lock(Some(owner.clone()), 0, false), None),
        (Ask::Acquire(owner), Model::Lock(None, last, _)) => {
            (Model::Lock(Some(owner.clone()), *last, false), None)
        }
        (Ask::Acquire(owner), Model::Lock(Some(held), ..)) if owner == held => return Err(Some(())),
        (Ask::Release(fence), Model::Lock(Some(_), last, true)) if fence == last => {
            (Model::Lock(None, *last, true), None)
        }
        _ => return Err(None),
    })
}
