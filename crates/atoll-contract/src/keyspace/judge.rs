//! Checks what clients of a keyspace saw against the guarantees of the contract. It knows nothing of any engine.
//!
//! Every write must put a value that no other write puts: a value then names its write. Versions order the writes of a key, so each answer
//! can be compared with what was known before its request was sent: the *floor*, the version of the newest change that an answer has shown
//! by then.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{Change, Changed, Guard, Happened, Held};
use crate::entry::OpId;

/// What was known of a key when a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct Asked(u64);

/// An answer to a client.
#[derive(Clone, Debug)]
pub enum Told {
    /// To a read.
    Read(Option<Held>),
    /// To a write with this name.
    Wrote(OpId, Changed),
    /// The write with this name failed.
    Failed(OpId, Happened),
}

#[derive(Debug)]
struct Write {
    guard: Guard,
    /// The value; None for a deletion.
    value: Option<Bytes>,
    /// The floor when it was first sent.
    floor: u64,
    /// The version that it made, if known.
    version: Option<u64>,
    /// Whether an answer said that it did not happen.
    refused: bool,
}

#[derive(Debug, Default)]
struct Key {
    /// The writes that made the known versions.
    versions: BTreeMap<u64, OpId>,
    writes: BTreeMap<OpId, Write>,
    by_value: BTreeMap<Bytes, OpId>,
    floor: u64,
    /// Pairs of versions between which there is no other.
    adjacent: Vec<(u64, u64)>,
}

/// See the module documentation.
#[derive(Debug, Default)]
pub struct Judge {
    keys: BTreeMap<Bytes, Key>,
    failures: Vec<String>,
    writes: u64,
    others: u64,
}

impl Judge {
    /// Returns a judge that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&mut self) -> Vec<String> {
        std::mem::take(&mut self.failures)
    }

    /// Returns how many writes were acknowledged, and how many other answers there were.
    pub fn answered(&self) -> (u64, u64) {
        (self.writes, self.others)
    }

    /// A read is about to be sent.
    pub fn reads(&mut self, key: &Bytes) -> Asked {
        Asked(self.keys.entry(key.clone()).or_default().floor)
    }

    /// A write is about to be sent, for the first time or again.
    pub fn writes(&mut self, key: &Bytes, op: OpId, guard: &Guard, change: &Change) -> Asked {
        let known = self.keys.entry(key.clone()).or_default();
        let value = match change {
            Change::Put(value) => Some(value.clone()),
            Change::Delete => None,
        };
        if let Some(value) = &value
            && *known.by_value.entry(value.clone()).or_insert(op) != op
        {
            self.failures.push(format!("HARNESS: two writes put {value:?}"));
        }
        let floor = known.floor;
        known.writes.entry(op).or_insert(Write {
            guard: guard.clone(),
            value,
            floor,
            version: None,
            refused: false,
        });
        Asked(floor)
    }

    /// Checks an answer.
    pub fn told(&mut self, key: &Bytes, asked: Asked, told: &Told) {
        let mut found = Vec::new();
        let known = self.keys.entry(key.clone()).or_default();
        match told {
            Told::Read(held) => {
                self.others += 1;
                known.saw(asked.0, held.as_ref(), &mut found);
            }
            Told::Wrote(op, Changed::Done(version)) => {
                let is_new = known.writes.get(op).is_some_and(|w| w.version.is_none());
                *(if is_new { &mut self.writes } else { &mut self.others }) += 1;
                known.made(*op, version.0, &mut found);
                known.floor = known.floor.max(version.0);
            }
            Told::Wrote(op, Changed::Not(held)) => {
                self.others += 1;
                known.saw(asked.0, held.as_ref(), &mut found);
                known.refused(*op, &mut found);
                known.check_refusal(*op, held.as_ref(), &mut found);
            }
            Told::Failed(op, Happened::No) => known.refused(*op, &mut found),
            Told::Failed(..) => {}
        }
        self.failures.extend(found.into_iter().map(|what| format!("Z8 {what} (key {key:?})")));
    }
}

impl Key {
    /// A client was shown this state of the key.
    fn saw(&mut self, asked: u64, held: Option<&Held>, found: &mut Vec<String>) {
        let Some(held) = held else { return self.saw_nothing(asked, found) };
        let version = held.version.0;
        if version < asked {
            found.push(format!("stale: version {version} was shown, and {asked} was known before"));
        }
        match self.by_value.get(&held.value).copied() {
            None => found.push(format!("invented: nobody wrote {:?}", held.value)),
            Some(op) => self.made(op, version, found),
        }
        self.floor = self.floor.max(version);
    }

    /// A client was shown that the key is not there. Then somebody has deleted what was known to be there.
    fn saw_nothing(&mut self, asked: u64, found: &mut Vec<String>) {
        let is_put = |op: &OpId| self.writes.get(op).is_some_and(|w| w.value.is_some());
        // The newest put that every later answer must reflect.
        let Some((put, _)) = self.versions.range(..=asked).next_back().filter(|(_, op)| is_put(op)) else {
            return;
        };
        let put = *put;
        if self.floor > put && asked > put {
            // The absence was seen before.
            return;
        }
        let deleted = self.versions.range(put + 1..).any(|(_, op)| !is_put(op));
        let pending = self.writes.values().any(|w| w.value.is_none() && w.version.is_none() && !w.refused);
        if !deleted && !pending {
            found.push(format!("lost: version {put} was there, nobody has deleted it, and it is not there"));
        }
        self.floor = self.floor.max(put + 1);
    }

    /// The write has made this version.
    fn made(&mut self, op: OpId, version: u64, found: &mut Vec<String>) {
        let Some(write) = self.writes.get_mut(&op) else {
            return found.push(format!("HARNESS: {op:?} was never sent"));
        };
        match write.version {
            Some(other) if other != version => {
                found.push(format!("twice: {op:?} made the versions {other} and {version}"));
            }
            Some(_) => return,
            None => write.version = Some(version),
        }
        if write.refused {
            found.push(format!("outcome: {op:?} was said not to have happened, and made version {version}"));
        }
        if version <= write.floor {
            found.push(format!(
                "order: {op:?} made version {version}, and {} was known before it was sent",
                write.floor
            ));
        }
        let before = match &write.guard {
            Guard::Version(before) => Some(before.0),
            Guard::Value(value) => {
                let op = self.by_value.get(value).copied();
                op.and_then(|op| self.writes.get(&op)).and_then(|w| w.version)
            }
            _ => None,
        };
        if let Some(other) = self.versions.insert(version, op)
            && other != op
        {
            found.push(format!("lost update: {other:?} and {op:?} both made version {version}"));
        }
        if let Some(before) = before {
            if before >= version || self.versions.range(before + 1..version).next().is_some() {
                found.push(format!("guard: {op:?} made version {version} over {before}, which was old"));
            }
            self.adjacent.push((before, version));
        }
        if self.adjacent.iter().any(|(a, b)| *a < version && version < *b) {
            found.push(format!("guard: version {version} came between a condition and its write"));
        }
    }

    fn refused(&mut self, op: OpId, found: &mut Vec<String>) {
        let Some(write) = self.writes.get_mut(&op) else { return };
        write.refused = true;
        if let Some(version) = write.version {
            found.push(format!("outcome: {op:?} made version {version}, and is said not to have happened"));
        }
    }

    /// A refused condition must not hold for the state that the refusal shows.
    fn check_refusal(&self, op: OpId, held: Option<&Held>, found: &mut Vec<String>) {
        let Some(write) = self.writes.get(&op) else { return };
        let holds = write.guard.holds(held.map(|held| (held.version, &held.value[..])));
        let nothing_to_delete = write.value.is_none() && held.is_none();
        if holds && !nothing_to_delete {
            found.push(format!("guard: {op:?} was refused over {held:?}, for which its condition holds"));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::KeyVersion;
    use super::*;
    use crate::entry::ClientId;

    fn op(seq: u64) -> OpId {
        OpId { client: ClientId(1), seq }
    }

    fn put(n: u64) -> Change {
        Change::Put(Bytes::from(n.to_string()))
    }

    fn held(version: u64, n: u64) -> Option<Held> {
        Some(Held { version: KeyVersion(version), value: Bytes::from(n.to_string()) })
    }

    fn failures(f: impl FnOnce(&mut Judge, &Bytes)) -> String {
        let mut judge = Judge::new();
        f(&mut judge, &Bytes::from_static(b"k"));
        judge.take_failures().join("; ")
    }

    /// Writes value `n` as operation `n`, which makes `version`.
    fn wrote(j: &mut Judge, k: &Bytes, n: u64, guard: Guard, version: u64) {
        let asked = j.writes(k, op(n), &guard, &put(n));
        j.told(k, asked, &Told::Wrote(op(n), Changed::Done(KeyVersion(version))));
    }

    fn read(j: &mut Judge, k: &Bytes, held: Option<Held>) {
        let asked = j.reads(k);
        j.told(k, asked, &Told::Read(held));
    }

    #[test]
    fn a_correct_history_passes() {
        let found = failures(|j, k| {
            read(j, k, None);
            wrote(j, k, 1, Guard::Absent, 3);
            let asked = j.writes(k, op(2), &Guard::Value(Bytes::from_static(b"9")), &put(2));
            j.told(k, asked, &Told::Wrote(op(2), Changed::Not(held(3, 1))));
            let asked = j.writes(k, op(3), &Guard::Always, &Change::Delete);
            read(j, k, None);
            read(j, k, None);
            j.told(k, asked, &Told::Wrote(op(3), Changed::Done(KeyVersion(4))));
            wrote(j, k, 4, Guard::Absent, 7);
            wrote(j, k, 5, Guard::Version(KeyVersion(7)), 8);
            read(j, k, held(8, 5));
        });
        assert_eq!(found, "");
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let stale = failures(|j, k| {
            wrote(j, k, 1, Guard::Always, 1);
            wrote(j, k, 2, Guard::Always, 2);
            read(j, k, held(1, 1));
        });
        assert!(stale.contains("stale"), "{stale}");
        let lost = failures(|j, k| {
            wrote(j, k, 1, Guard::Always, 1);
            read(j, k, None);
        });
        assert!(lost.contains("lost"), "{lost}");
        let risen = failures(|j, k| {
            wrote(j, k, 1, Guard::Always, 1);
            j.writes(k, op(2), &Guard::Always, &Change::Delete);
            read(j, k, None);
            read(j, k, held(1, 1));
        });
        assert!(risen.contains("stale"), "{risen}");
        let twice = failures(|j, k| {
            wrote(j, k, 1, Guard::Always, 1);
            read(j, k, held(2, 1));
        });
        assert!(twice.contains("twice"), "{twice}");
        let between = failures(|j, k| {
            wrote(j, k, 1, Guard::Always, 1);
            wrote(j, k, 2, Guard::Version(KeyVersion(1)), 5);
            wrote(j, k, 3, Guard::Always, 4);
        });
        assert!(between.contains("guard"), "{between}");
        let outcome = failures(|j, k| {
            let asked = j.writes(k, op(1), &Guard::Always, &put(1));
            j.told(k, asked, &Told::Failed(op(1), Happened::No));
            read(j, k, held(1, 1));
        });
        assert!(outcome.contains("outcome"), "{outcome}");
        assert!(failures(|j, k| read(j, k, held(1, 9))).contains("invented"));
    }
}
