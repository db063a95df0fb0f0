//! What operations do when they are executed one after the other.

use crate::history::{Expect, Head, Kind, Operation, Out, Outcome, Refusal, Step};

/// The version of a row that a table operation without a known stamp wrote, until a read shows it.
const UNBOUND: i64 = -1;

/// A row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Cell {
    value: i64,
    version: i64,
    owner: Option<u64>,
}

/// All rows, and the stamp of the last write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    cells: Vec<Option<Cell>>,
    last: i64,
}

impl Rows {
    /// Returns the state before the first operation.
    pub fn initial(head: &Head) -> Self {
        let cell = |&(value, version, _): &(i64, i64, i64)| Cell { value, version, owner: None };
        Rows { cells: head.initial.iter().map(|row| row.as_ref().map(cell)).collect(), last: i64::MIN }
    }

    /// Returns the state after an operation, or None if the operation cannot have its known result in this state. An operation with an
    /// unknown result is always possible.
    pub fn after(&self, kind: Kind, operation: &Operation) -> Option<Rows> {
        let (outs, stamp) = match &operation.result {
            Some(Outcome::Ok { outs, stamp }) => (outs.as_deref(), *stamp),
            _ => (None, None),
        };
        let mut next = self.clone();
        let mut refusal = None;
        for (n, step) in operation.steps.iter().enumerate() {
            match next.one(kind, step, stamp, outs.map(|o| o[n].as_ref())) {
                Done::Yes => {}
                Done::Otherwise => return None,
                Done::Refused(why) => {
                    refusal = Some((n, why));
                    break;
                }
            }
        }
        match (&operation.result, refusal) {
            (None, Some(_)) => Some(self.clone()),
            (None, None) => Some(next),
            (Some(Outcome::Ok { .. }), Some(_)) | (Some(Outcome::Refused { .. }), None) => None,
            (Some(Outcome::Ok { .. }), None) => {
                if let (Some(stamp), true) = (stamp, operation.writes()) {
                    if stamp <= self.last {
                        return None;
                    }
                    next.last = stamp;
                }
                Some(next)
            }
            (Some(Outcome::Refused { at, why }), Some((n, because))) => {
                let same = at.is_none_or(|at| at == n) && why.is_none_or(|why| why == because);
                same.then(|| self.clone())
            }
        }
    }

    /// Executes a step. `out` is the known result of the step; the outer None means that it is unknown.
    fn one(&mut self, kind: Kind, step: &Step, stamp: Option<i64>, out: Option<Option<&Out>>) -> Done {
        match step {
            Step::Get(key) => match (out, &mut self.cells[*key]) {
                (None, _) | (Some(None), None) => Done::Yes,
                (Some(Some(Out::Row(value, version, _))), Some(cell)) if cell.value == *value => {
                    if cell.version == UNBOUND {
                        cell.version = *version;
                    }
                    Done::when(cell.version == *version)
                }
                _ => Done::Otherwise,
            },
            Step::List => {
                let there = (0..self.cells.len()).filter(|k| self.cells[*k].is_some());
                match out {
                    None => Done::Yes,
                    Some(Some(Out::Keys(keys))) => Done::when(there.eq(keys.iter().copied())),
                    Some(_) => Done::Otherwise,
                }
            }
            Step::Check(key, expect) => self.hold(*key, *expect),
            Step::Put(key, value, expect, owner) => {
                let held = self.hold(*key, *expect);
                if held != Done::Yes {
                    return held;
                }
                let old = self.cells[*key].as_ref();
                let version = match (kind, old) {
                    (Kind::Table, _) => stamp.unwrap_or(UNBOUND),
                    (Kind::ZooKeeper, None) => 0,
                    (Kind::ZooKeeper, Some(cell)) => cell.version + 1,
                };
                let owner = old.map_or(*owner, |cell| cell.owner);
                self.cells[*key] = Some(Cell { value: *value, version, owner });
                match out {
                    Some(Some(Out::Version(left))) => Done::when(*left == version),
                    _ => Done::Yes,
                }
            }
            Step::Delete(key, expect) => {
                let held = self.hold(*key, *expect);
                if held == Done::Yes {
                    self.cells[*key] = None;
                }
                held
            }
            Step::Close(session) => {
                for cell in &mut self.cells {
                    if cell.as_ref().is_some_and(|c| c.owner == Some(*session)) {
                        *cell = None;
                    }
                }
                Done::Yes
            }
        }
    }

    fn hold(&self, key: usize, expect: Expect) -> Done {
        match (expect, &self.cells[key]) {
            (Expect::Any, _) | (Expect::Absent, None) | (Expect::Present, Some(_)) => Done::Yes,
            (Expect::Absent, Some(_)) => Done::Refused(Refusal::Exists),
            (Expect::Present | Expect::Version(_), None) => Done::Refused(Refusal::Absent),
            (Expect::Version(version), Some(cell)) if cell.version == version => Done::Yes,
            (Expect::Version(_), Some(_)) => Done::Refused(Refusal::Version),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    Yes,
    /// The step would have had another result.
    Otherwise,
    Refused(Refusal),
}

impl Done {
    fn when(same: bool) -> Self {
        if same { Done::Yes } else { Done::Otherwise }
    }
}
