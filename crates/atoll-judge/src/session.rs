//! Checks that no session sees an older state after a newer one.
//!
//! - The zxid in the headers of its replies does not fall.
//! - The zxid of a key's last change does not fall. If the key was absent in between, it rises.
//! - Once the session has seen a change, by its own write or by a read of any key, its reads show all earlier changes, too.
//! - A read shows the value that the change with its zxid has written.

use std::collections::BTreeMap;

use crate::history::{History, Operation, Out, Outcome, Step};

/// The acknowledged changes of a key, by zxid: the value written, or None for a delete.
type Changes = BTreeMap<i64, Option<i64>>;

/// What all sessions together show.
struct Known {
    /// The changes of each key.
    changes: Vec<Changes>,
    /// Keys that may have been deleted at an unknown time.
    maybe_deleted: Vec<bool>,
}

impl Known {
    fn of(history: &History) -> Self {
        let keys = history.head.keys.len();
        let mut known = Known { changes: vec![Changes::new(); keys], maybe_deleted: vec![false; keys] };
        for (key, row) in history.head.initial.iter().enumerate() {
            if let Some((value, _, zxid)) = row {
                known.changes[key].insert(*zxid, Some(*value));
            }
        }
        for operation in &history.operations {
            match &operation.result {
                Some(Outcome::Ok { stamp: Some(stamp), .. }) => known.add(operation, *stamp),
                Some(Outcome::Refused { .. }) => {}
                _ => operation.steps.iter().for_each(|step| match step {
                    Step::Delete(key, _) => known.maybe_deleted[*key] = true,
                    // The key is deleted when its session ends, at an unknown time.
                    Step::Put(key, _, _, Some(_)) => known.maybe_deleted[*key] = true,
                    _ => {}
                }),
            }
        }
        known
    }

    fn add(&mut self, operation: &Operation, stamp: i64) {
        for step in &operation.steps {
            match step {
                Step::Put(key, value, _, owner) => {
                    self.changes[*key].insert(stamp, Some(*value));
                    self.maybe_deleted[*key] |= owner.is_some();
                }
                Step::Delete(key, _) => {
                    self.changes[*key].insert(stamp, None);
                }
                _ => {}
            }
        }
    }
}

/// What a session has seen.
#[derive(Default)]
struct Seen {
    zxid: i64,
    /// The newest change that it has seen.
    newest: i64,
    /// For each key, the last change seen, and whether the key was absent afterwards.
    keys: BTreeMap<usize, (i64, bool)>,
}

impl Seen {
    fn read(&mut self, known: &Known, key: usize, row: Option<(i64, i64)>) -> Result<(), String> {
        let changes = &known.changes[key];
        let least = changes.range(..=self.newest).next_back();
        let (last, away) = self.keys.get(&key).copied().unwrap_or_default();
        let Some((value, zxid)) = row else {
            if let Some((least, Some(_))) = least {
                let deleted = changes.range(least..).any(|(_, written)| written.is_none());
                if !deleted && !known.maybe_deleted[key] {
                    return Err(format!("it is away, and was there since {least:#x}"));
                }
            }
            self.keys.insert(key, (last, true));
            return Ok(());
        };
        if zxid < last || (away && zxid == last) {
            return Err(format!("it was changed at {last:#x} (away since: {away}), now at {zxid:#x}"));
        }
        if least.is_some_and(|(least, _)| zxid < *least) {
            return Err(format!("it is of {zxid:#x}; {:#x} was seen, and it changed before", self.newest));
        }
        if changes.get(&zxid).is_some_and(|written| *written != Some(value)) {
            return Err(format!("{value} at {zxid:#x}, where {:?} was written", changes.get(&zxid)));
        }
        self.newest = self.newest.max(zxid);
        self.keys.insert(key, (zxid, false));
        Ok(())
    }

    fn operation(&mut self, known: &Known, operation: &Operation) -> Result<(), String> {
        let Some(result) = &operation.result else { return Ok(()) };
        if let Some(zxid) = operation.zxid {
            if zxid < self.zxid {
                return Err(format!("replies went back from {:#x} to {zxid:#x}", self.zxid));
            }
            self.zxid = zxid;
        }
        let Outcome::Ok { outs: Some(outs), stamp } = result else { return Ok(()) };
        for (step, out) in operation.steps.iter().zip(outs) {
            match (step, out, stamp) {
                (Step::Get(key), Some(Out::Row(value, _, zxid)), _) => {
                    self.read(known, *key, Some((*value, *zxid)))?;
                }
                (Step::Get(key), None, _) => self.read(known, *key, None)?,
                (Step::Put(key, ..), _, Some(stamp)) => {
                    self.newest = self.newest.max(*stamp);
                    self.keys.insert(*key, (*stamp, false));
                }
                (Step::Delete(key, _), _, Some(stamp)) => {
                    self.newest = self.newest.max(*stamp);
                    self.keys.insert(*key, (*stamp, true));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Returns the first operation at which a session saw an older state, with a description.
pub fn goes_back(history: &History) -> Option<(usize, String)> {
    let known = Known::of(history);
    let mut order: Vec<usize> = (0..history.operations.len()).collect();
    order.sort_by_key(|n| history.operations[*n].call);
    let mut sessions: BTreeMap<u64, Seen> = BTreeMap::new();
    order.into_iter().find_map(|n| {
        let operation = &history.operations[n];
        let seen = sessions.entry(operation.session).or_default();
        seen.operation(&known, operation).err().map(|how| (n, how))
    })
}
