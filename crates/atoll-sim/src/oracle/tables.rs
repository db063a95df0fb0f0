//! Checks tables as their clients see them. The oracle applies the commands in log order to its own rows and compares. Answers and reads
//! must agree with that order, and the order with real time. Every index must agree with a scan, and a repeated command must take effect
//! once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_core::codec::{Decode, Encode};
use atoll_core::testing::{AppliedCommand, hit, take_applied};
use atoll_db::{Application, LogPos};
use atoll_tables::row::StoredRow;
use atoll_tables::{
    Action, Body, CLIENT_WINDOW, Command, Done, Expect, Op, RejectKind, Rejection, Reply, Tables, Value,
    Values,
};
use bytes::Bytes;

/// The place of a command in the order of all commands: log position, index within the entry.
pub type Place = (u64, u32);
/// The name of a command: client and sequence number.
pub type Name = (u64, u64);

/// The ids of the columns that are not part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Columns {
    /// A text column.
    pub colour: u16,
    /// An integer column.
    pub size: u16,
    /// A text column with a unique index.
    pub tag: u16,
}

/// A row: its version, and its values that are not null.
pub type Row = (u64, Values);

#[derive(Debug, Default)]
struct TablesOracleState {
    columns: Option<Columns>,
    rows: BTreeMap<i64, Row>,
    was: BTreeMap<i64, Vec<(Place, Option<Row>)>>,
    version: u64,
    /// The answers of the commands that wrote, by name.
    done: BTreeMap<Name, Bytes>,
    /// By client, the highest sequence number of a command that wrote.
    newest: BTreeMap<u64, u64>,
    log: BTreeMap<Place, AppliedCommand>,
    highest: Option<Place>,
    failures: Vec<String>,
}

/// See the module documentation. Clones share their state.
#[derive(Clone, Debug, Default)]
pub struct TablesOracle(Arc<Mutex<TablesOracleState>>);

type Refusal = (RejectKind, Option<u64>);

fn key_of(op: &Op) -> Option<i64> {
    match op.key.as_slice() {
        [Value::Int64(key)] => Some(*key),
        _ => None,
    }
}

fn holds(expect: &Expect, old: Option<&Row>) -> Result<(), Refusal> {
    let fine = match (expect, old) {
        (Expect::Any {}, _) | (Expect::Absent {}, None) | (Expect::Present {}, Some(_)) => true,
        (Expect::Version { version }, Some((is, _))) => version == is,
        _ => false,
    };
    if fine { Ok(()) } else { Err((RejectKind::Conflict, old.map(|(version, _)| *version))) }
}

impl TablesOracleState {
    fn fail(&mut self, what: String) {
        self.failures.push(format!("TABLES: {what}"));
    }

    /// Applies operations to a copy of the rows. Returns the rows that were read, and all rows afterwards.
    #[allow(clippy::type_complexity)] // Read rows, and all rows.
    fn transact(&self, ops: &[Op]) -> Result<(Vec<Option<Row>>, BTreeMap<i64, Row>), (usize, Refusal)> {
        let (mut rows, mut read) = (self.rows.clone(), Vec::new());
        for (n, op) in ops.iter().enumerate() {
            let at = |refusal: Refusal| (n, refusal);
            let key = key_of(op).ok_or(at((RejectKind::Invalid, None)))?;
            let old = rows.get(&key).cloned();
            read.push(if matches!(op.action, Action::Read {}) { old.clone() } else { None });
            match &op.action {
                Action::Read {} => {}
                Action::Check { expect } => holds(expect, old.as_ref()).map_err(at)?,
                Action::Delete { expect } => {
                    holds(expect, old.as_ref()).map_err(at)?;
                    rows.remove(&key);
                }
                Action::Put { expect, values, merge } => {
                    holds(expect, old.as_ref()).map_err(at)?;
                    let mut new =
                        if *merge { old.map(|(_, v)| v).unwrap_or_default() } else { Values::new() };
                    new.extend(values.clone());
                    new.retain(|_, value| !value.is_null());
                    let tag = self.columns.and_then(|c| new.get(&c.tag).cloned());
                    let taken = |(other, (_, v)): (&i64, &Row)| {
                        *other != key && self.columns.is_some_and(|c| v.get(&c.tag) == tag.as_ref())
                    };
                    if tag.is_some() && rows.iter().any(taken) {
                        return Err(at((RejectKind::Duplicate, None)));
                    }
                    rows.insert(key, (self.version + 1, new));
                }
            }
        }
        Ok((read, rows))
    }

    fn applied(&mut self, applied: AppliedCommand) {
        if let Some(first) = self.log.get(&applied.place) {
            if *first != applied {
                let first = first.clone();
                self.fail(format!("two replicas differ: {first:?} and {applied:?}"));
            }
            return;
        }
        let place = applied.place;
        if self.log.last_key_value().is_some_and(|(last, _)| *last > place) {
            return self.fail(format!("{applied:?} was applied by nobody who applied what follows it"));
        }
        match Command::from_bytes(applied.command.clone()) {
            Ok(command) => self.command(place, &command, &applied.reply),
            Err(e) => self.fail(format!("{applied:?} is no command: {e}")),
        }
        self.log.insert(place, applied);
    }

    fn command(&mut self, place: Place, command: &Command, reply: &Result<Bytes, Bytes>) {
        // A repetition has the same outcome; under which schema the first attempt read is not kept.
        let outcome =
            |bytes: Bytes| Reply::from_bytes(bytes).map_or_else(|_| Bytes::new(), |r| r.done.to_bytes());
        let reply = &reply.clone().map(outcome);
        let name = (command.client, command.seq);
        if !matches!(command.body, Body::Step { .. }) && self.is_forgotten(name) {
            hit("sim.tables.forgotten");
            let told = reply.as_ref().err().and_then(|bytes| Rejection::from_bytes(bytes.clone()).ok());
            if told.is_none_or(|r| r.kind != RejectKind::Forgotten) {
                self.fail(format!(
                    "{command:?} at {place:?} is of a forgotten client, and was answered {reply:?}"
                ));
            }
            return;
        }
        if let Some(first) = self.done.get(&name).filter(|_| command.client != 0) {
            hit("sim.tables.repeated");
            if reply.as_ref().ok() != Some(first) {
                let first = first.clone();
                self.fail(format!("{command:?} at {place:?} was answered {reply:?}, and first {first:?}"));
            }
            return;
        }
        let Body::Transaction { ops } = &command.body else {
            // Changes of schemas, and background steps. The oracle follows only their versions.
            let version =
                reply.clone().ok().and_then(|bytes| Done::from_bytes(bytes).ok()).map(|d| d.version);
            if version > Some(self.version) && !matches!(command.body, Body::Step { .. }) {
                self.noted(name);
            }
            self.version = version.unwrap_or_default().max(self.version);
            return;
        };
        let writes = ops.iter().any(|op| matches!(op.action, Action::Put { .. } | Action::Delete { .. }));
        let right = match (self.transact(ops), reply) {
            (Ok((read, rows)), Ok(bytes)) => {
                let version = self.version + u64::from(writes);
                let right = Done::from_bytes(bytes.clone())
                    .is_ok_and(|done| done.version == version && is_read(&done, &read));
                if writes {
                    self.version = version;
                    self.done.insert(name, bytes.clone());
                    self.noted(name);
                    self.become_rows(place, rows);
                }
                right
            }
            (Err((n, (kind, found))), Err(bytes)) => Rejection::from_bytes(bytes.clone())
                .is_ok_and(|r| (r.kind, r.found, r.op) == (kind, found, Some(n as u32))),
            _ => false,
        };
        if !right {
            let expected = self.transact(ops).map(|(read, _)| read);
            self.fail(format!("{command:?} at {place:?} was answered {reply:?}; expected: {expected:?}"));
        }
    }

    fn noted(&mut self, (client, seq): Name) {
        let newest = self.newest.entry(client).or_default();
        *newest = seq.max(*newest);
    }

    /// Returns whether the outcome of a command is no longer kept. For an unknown client, returns whether it would no longer be kept if the
    /// command had been applied.
    fn is_forgotten(&self, (client, seq): Name) -> bool {
        match self.newest.get(&client) {
            _ if client == 0 => false,
            Some(newest) => seq + CLIENT_WINDOW <= *newest,
            None => seq > CLIENT_WINDOW,
        }
    }

    fn become_rows(&mut self, place: Place, rows: BTreeMap<i64, Row>) {
        let before = std::mem::replace(&mut self.rows, rows);
        let keys = before.keys().chain(self.rows.keys()).copied();
        for key in keys.collect::<std::collections::BTreeSet<i64>>() {
            let now = self.rows.get(&key);
            if before.get(&key) != now {
                self.was.entry(key).or_default().push((place, now.cloned()));
            }
        }
    }

    /// Returns the rows as they were below a position.
    fn below(&self, below: LogPos) -> BTreeMap<i64, Row> {
        let at = |was: &Vec<(Place, Option<Row>)>| {
            was[..was.partition_point(|((position, _), _)| *position < below.0)].last()?.1.clone()
        };
        self.was.iter().filter_map(|(key, was)| Some((*key, at(was)?))).collect()
    }
}

fn is_read(done: &Done, expected: &[Option<Row>]) -> bool {
    let decode = |row: &Option<Bytes>| {
        row.clone().map(|bytes| StoredRow::from_bytes(bytes).map(|row| (row.version, row.values)).ok())
    };
    done.read.as_ref().is_some_and(|read| {
        read.len() == expected.len()
            && read.iter().zip(expected).all(|(r, e)| decode(r) == e.clone().map(Some))
    })
}

impl TablesOracle {
    fn lock(&self) -> MutexGuard<'_, TablesOracleState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles the commands that replicas have applied since the last call.
    pub fn follow(&self) {
        let mut state = self.lock();
        for command in take_applied().into_iter().filter(|c| c.app == Tables::ID.0) {
            state.applied(command);
        }
    }

    /// Notes the columns of the table, once it exists.
    pub fn is_made(&self, columns: Columns) {
        self.lock().columns = Some(columns);
    }

    /// Returns the highest place that any client has seen in an answer.
    pub fn now(&self) -> Option<Place> {
        self.lock().highest
    }

    /// Checks the answer to a command. When its first attempt was sent, `since` was the highest place that any client had seen. `again`
    /// says whether there were more attempts.
    pub fn answered(
        &self,
        name: Name,
        place: Place,
        reply: &Result<Bytes, Bytes>,
        since: Option<Place>,
        again: bool,
    ) {
        let mut state = self.lock();
        if since.is_some_and(|since| place <= since) && !again {
            state.fail(format!("{name:?} is at {place:?}, sent after {since:?} had been answered"));
        }
        let logged = state.log.get(&place).map(|c| c.reply.clone());
        if logged.as_ref() != Some(reply) {
            state.fail(format!("{name:?} at {place:?} was answered {reply:?}, and there {logged:?}"));
        }
        state.highest = state.highest.max(Some(place));
    }

    /// Checks a read after a barrier that began when `since` was the highest place that any client had seen. The rows must be those below
    /// the position `below`, ordered by the index `by`, or by key if that is None.
    pub fn read(&self, below: LogPos, since: Option<Place>, by: Option<&str>, shown: &[(i64, Row)]) {
        let mut state = self.lock();
        if since.is_some_and(|(position, _)| position >= below.0) {
            state.fail(format!("a read of what is below {below} began after {since:?} had been answered"));
        }
        let Some(columns) = state.columns else { return };
        let mut expected: Vec<(i64, Row)> = state.below(below).into_iter().collect();
        let by_columns: &[u16] = match by {
            Some("by_colour") => &[columns.colour, columns.size],
            Some("by_tag") => &[columns.tag],
            Some("by_size") => &[columns.size],
            _ => &[],
        };
        expected.sort_by_key(|(key, (_, values))| {
            let value = |id: &u16| values.get(id).cloned().unwrap_or(Value::Null);
            (by_columns.iter().map(value).collect::<Vec<_>>(), *key)
        });
        if expected != shown {
            state.fail(format!("below {below}, by {by:?}: {shown:?}; expected: {expected:?}"));
        }
        if by.is_some() {
            hit("sim.tables.read_by_index");
        }
    }

    /// Takes the violations found since the last call.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.lock().failures)
    }
}
