//! A replica of the state: takes log entries in order, applies their commands, and prepares their commits to the local store.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | applies whole entries in order |
//! | `gaps.rs` | ranges that scans found empty |
//! | `working.rs` | the state while a command is applied, and rollbacks |
//! | `parts.rs` | commands that are longer than an entry |
//! | `proposers.rs` | applies each entry exactly once |
//! | `state_hash.rs` | a hash of the state, which replicas compare |
//! | `published.rs` | the published states |
//! | `ranges.rs` | the same hash by ranges of keys, which a scrub compares with the store |
//! | `record.rs` | the record that the engine itself keeps in the store |
//!
//! This module uses no thread, no clock and no log; [`crate::engine`] drives it.

mod gaps;
mod parts;
mod proposers;
mod published;
mod ranges;
mod record;
mod state_hash;
mod working;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;

use atoll_contract::{LogPos, OpId};
use atoll_core::testing::{AppliedCommand, hit, mutant, show_applied};
use atoll_core::{Encode, LevelRange};

use crate::entry::{self, Command, Delivered, Header, Surgery, Unreadable};
use crate::hosted::{Applications, Ended, Hosted};
use crate::layers::Layers;
use crate::mutants;
use crate::part::{PART_VERSION, PARTS, Part};
use crate::store::{Change, Live, StoreError, StoreSnapshot, VersionedMap};
use atoll_contract::application::{AppId, ApplyAt, Rejected, WriteState};

use parts::{Added, Parts};
use proposers::{Judged, Proposers};
pub(crate) use published::Published;
pub(crate) use ranges::{FIRST, Ranges};
pub use record::Standing;
pub(crate) use record::StateRecord;
pub use state_hash::HashAt;
pub(crate) use state_hash::of as hash_of;
use state_hash::{Before, SAMPLE_EVERY, SAMPLES, StateHash};
use working::Failure;
pub(crate) use working::Working;

/// Why a replica has halted. Local reads continue on the state before the entry at `at`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// A command panicked. It panics on every replica.
    #[error("poison: command {index} of log position {at} makes {app} panic: {words}")]
    Poison {
        /// The entry.
        at: LogPos,
        /// The index of the command in the entry, from 0.
        index: u32,
        /// The name of the application.
        app: &'static str,
        /// The message of the panic.
        words: String,
    },
    /// The entry was written by a later version of this program.
    #[error("log position {at} has {what} from a later version of this program; update this node")]
    Newer {
        /// The entry.
        at: LogPos,
        /// What the program does not support.
        what: String,
    },
    /// An invariant of the engine was broken on this node.
    #[error("an invariant was broken at log position {at} or above; the message is on stderr")]
    Broken {
        /// The first entry that the published state does not include.
        at: LogPos,
    },
    /// The local store failed permanently on this node.
    #[error("before log position {at}: {error}")]
    Store {
        /// The first entry that is not applied.
        at: LogPos,
        /// The error of the store.
        error: StoreError,
    },
}

/// Why an entry was not applied. No part of it took effect.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The replica must halt, or the store cannot be read for now.
    Halt(Halt),
    /// The entry needs to read the store, which was not allowed; see [`Reads::InMemory`].
    NotInMemory,
}

impl Halt {
    /// Returns the entry that this replica cannot pass, if that is why it has halted. Then it continues once surgery has changed the
    /// entry.
    pub fn at_entry(&self) -> Option<LogPos> {
        match self {
            Halt::Poison { at, .. } | Halt::Newer { at, .. } => Some(*at),
            Halt::Broken { .. } | Halt::Store { .. } => None,
        }
    }
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Self {
        Stop::Halt(halt)
    }
}

/// What the commands of an entry may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Memory and the store.
    Anywhere,
    /// Only memory, for a thread that must not wait for the disk.
    InMemory,
}

/// The outcome of an entry.
#[derive(Debug)]
pub(crate) enum EntryOutcome {
    /// It was applied. Holds one reply for each command, and none for a part of one that is not the last part.
    Applied(Vec<Result<Bytes, Rejected>>),
    /// It is a second copy of an entry that was applied before.
    Copy,
    /// It was refused: none of its commands happened or ever will.
    Refused,
    /// It does not belong to the database.
    Foreign,
    /// An operator has excised it: none of its commands happened or ever will.
    Excised,
}

/// The changes of whole entries, to be committed together with the position after the last one.
#[derive(Debug)]
pub(crate) struct CommitJob {
    layer: Arc<VersionedMap>,
    befores: Vec<Before>,
    record: StateRecord,
    /// The changes of the ranges, once this job has been noted in them.
    of_ranges: Option<Vec<Change>>,
}

impl CommitJob {
    /// Returns the first position that the job does not include.
    pub(crate) fn below(&self) -> LogPos {
        self.record.next
    }

    /// Returns all changes as one batch, the same one at each call. The first call notes the changes in `ranges`.
    pub(crate) fn changes(&mut self, ranges: &mut Ranges) -> Vec<Change> {
        let mut changes = self.layer.newest();
        if self.of_ranges.is_none() {
            ranges.note(&changes, std::mem::take(&mut self.befores));
            self.of_ranges = Some(ranges.take_changes());
        }
        changes.extend(self.of_ranges.iter().flatten().cloned());
        changes.push(self.record.change());
        changes
    }
}

/// Returns an error if the store could not be read. Then nothing of the entry may remain.
fn check_reads(working: &mut Working, position: LogPos) -> Result<(), Stop> {
    match working.take_failure() {
        None => Ok(()),
        Some(Failure::NotInMemory) => Err(Stop::NotInMemory),
        Some(Failure::Store(error)) => Err(Halt::Store { at: position, error }.into()),
    }
}

/// Reports an applied command to the oracles of a simulation.
fn show(at: &ApplyAt, command: &Command, ended: &Ended) {
    let Ended::Reply(reply) = ended else { return };
    show_applied(|| AppliedCommand {
        place: (at.position.0, at.index),
        proposer: (at.proposer.node, at.proposer.incarnation),
        time_ms: at.time_ms,
        app: command.app.0,
        version: command.version,
        command: command.bytes.clone(),
        reply: reply.clone().map_err(|rejected| rejected.0),
    });
}

/// See the module documentation.
pub(crate) struct Replica {
    apps: BTreeMap<AppId, Box<dyn Hosted>>,
    /// The levels of entries and commands that this program can read.
    reads_levels: LevelRange,
    live: Arc<Live>,
    working: Working,
    /// The position of the next entry.
    next: LogPos,
    time_ms: u64,
    proposers: Proposers,
    parts: Parts,
    /// The number of entries so far that do not belong to the database.
    foreign: u64,
    /// The state hashes at recent sampling positions, which are the same for all replicas.
    samples: VecDeque<HashAt>,
}

impl Replica {
    /// Opens the state in a store. Also returns the first state to publish.
    pub(crate) fn open(
        apps: Applications,
        reads_levels: LevelRange,
        base: Arc<dyn StoreSnapshot>,
    ) -> Result<(Replica, Arc<Published>), StoreError> {
        let live = Arc::new(Live::default());
        let active = Arc::new(VersionedMap::new(live.clone()));
        let layers = Layers { active, frozen: None, settled: None, base: base.clone() };
        let mut replica = Replica {
            apps: apps.0,
            reads_levels,
            live,
            working: Working::new(layers, 1, StateHash::default()),
            next: LogPos::ZERO,
            time_ms: 0,
            proposers: Proposers::default(),
            parts: Parts::default(),
            foreign: 0,
            samples: VecDeque::new(),
        };
        let published = replica.reopen(base)?;
        Ok((replica, published))
    }

    /// Continues with the state in a store, and drops everything else. Returns that state, which must be published in place of the
    /// current one.
    pub(crate) fn reopen(&mut self, base: Arc<dyn StoreSnapshot>) -> Result<Arc<Published>, StoreError> {
        let record = StateRecord::read(&*base)?;
        self.parts = Parts::read(&*base)?;
        let active = Arc::new(VersionedMap::new(self.live.clone()));
        let layers = Layers { active, frozen: None, settled: None, base };
        self.working = Working::new(layers, self.working.version + 1, StateHash(record.hash));
        self.next = record.next;
        self.time_ms = record.time_ms;
        self.proposers = Proposers::of(record.proposers);
        self.foreign = record.foreign;
        self.samples.clear();
        let published = self.publish();
        for app in self.apps.values_mut() {
            app.opened(&published)?;
        }
        Ok(published)
    }

    /// Notifies the doors that the state was replaced as a whole. Must be called before the new state is published.
    pub(crate) fn tell_restored(&mut self, published: &Arc<Published>) {
        for app in self.apps.values_mut() {
            app.restored(published);
        }
    }

    /// Returns true if the state includes this entry or a later one of the same proposer.
    pub(crate) fn is_behind(&self, op: OpId) -> bool {
        self.proposers.judge(op, LogPos::ZERO) == Judged::Copy
    }

    /// Returns the state hashes at recent sampling positions, in ascending order.
    pub(crate) fn samples(&self) -> &VecDeque<HashAt> {
        &self.samples
    }

    /// Returns the hash of the current state, without the engine's own record.
    pub(crate) fn hash_now(&self) -> HashAt {
        HashAt { below: self.next, hash: self.working.hash.0 }
    }

    /// Returns the position of the next entry.
    pub(crate) fn next(&self) -> LogPos {
        self.next
    }

    /// Returns the time of the last entry, in milliseconds since the Unix epoch.
    pub(crate) fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Returns the number of entries so far that do not belong to the database.
    pub(crate) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Returns the approximate memory, in bytes, of the changes that are applied but in no commit yet.
    pub(crate) fn active_bytes(&self) -> usize {
        self.working.layers.active.size_bytes()
    }

    /// Returns the approximate memory, in bytes, of the changes that are applied but not committed.
    pub(crate) fn overlay_bytes(&self) -> usize {
        let frozen = self.working.layers.frozen.as_ref();
        self.active_bytes() + frozen.map_or(0, |f| f.size_bytes())
    }

    /// Applies the next entry as a whole, or not at all if it returns an error.
    pub(crate) fn apply(&mut self, delivered: &Delivered, reads: Reads) -> Result<EntryOutcome, Stop> {
        self.working.reads = reads;
        let (at, entry) = (self.next, &delivered.entry);
        if delivered.surgery == Some(Surgery::Excised) {
            hit("db.apply.excised");
            self.proposers.ended(entry.op, at);
            self.passed(at);
            return Ok(EntryOutcome::Excised);
        }
        let outcome = match entry::parse(entry.payload.clone(), self.reads_levels) {
            // It holds no record, so nobody appended it by mistake.
            Err(Unreadable::Foreign) if entry.is_pad() => EntryOutcome::Foreign,
            Err(Unreadable::Foreign) => {
                self.foreign += 1;
                EntryOutcome::Foreign
            }
            Err(Unreadable::Newer(format)) => {
                return Err(Halt::Newer { at, what: format!("an entry of format {format}") }.into());
            }
            Ok((header, commands)) => match self.proposers.judge(entry.op, header.since) {
                Judged::Copy if !mutant(atoll_log::mutants::DB_APPLIES_COPIES) => {
                    hit("db.apply.copy");
                    EntryOutcome::Copy
                }
                Judged::Refused => EntryOutcome::Refused,
                Judged::Next | Judged::Copy => {
                    let time_ms = self.time_ms.max(header.time_ms);
                    let outcome = self.apply_entry(at, entry.op, &header, time_ms, &commands)?;
                    self.time_ms = time_ms;
                    match outcome {
                        EntryOutcome::Refused => self.proposers.ended(entry.op, at),
                        _ => self.proposers.applied(entry.op, at),
                    }
                    outcome
                }
            },
        };
        self.passed(at);
        Ok(outcome)
    }

    /// Continues behind an entry.
    fn passed(&mut self, at: LogPos) {
        self.next = at.plus(1);
        if self.next.0.is_multiple_of(SAMPLE_EVERY) {
            self.sample();
        }
    }

    fn sample(&mut self) {
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        let hash = self.shown_hash();
        self.samples.push_back(HashAt { below: self.next, hash });
    }

    /// Returns the hash that replicas show to each other. It includes the engine's record; the position in the log is reported with it.
    pub(crate) fn shown_hash(&self) -> u128 {
        self.working.hash.with(&self.record().to_bytes())
    }

    fn apply_entry(
        &mut self,
        at: LogPos,
        op: OpId,
        header: &Header,
        time_ms: u64,
        commands: &[Command],
    ) -> Result<EntryOutcome, Stop> {
        let part = match commands {
            [one] if one.app == PARTS => Some(one),
            _ if self.parts.is_empty() => {
                return self.apply_commands(at, header, time_ms, commands).map(EntryOutcome::Applied);
            }
            _ => None,
        };
        let (start, before) = (self.working.mark(), self.parts.clone());
        let done = match part {
            Some(part) => self.apply_part(at, op, header, time_ms, part),
            None => {
                self.parts.passed(&mut self.working, header.proposer.node, time_ms);
                let read = check_reads(&mut self.working, at);
                read.and_then(|()| self.apply_commands(at, header, time_ms, commands))
                    .map(EntryOutcome::Applied)
            }
        };
        match &done {
            Ok(_) => self.working.keep(),
            Err(_) => {
                self.working.undo_to(&start);
                self.parts = before;
            }
        }
        done
    }

    fn apply_part(
        &mut self,
        at: LogPos,
        op: OpId,
        header: &Header,
        time_ms: u64,
        command: &Command,
    ) -> Result<EntryOutcome, Stop> {
        if command.version > PART_VERSION {
            let what = format!("a part of a command, version {}", command.version);
            return Err(Halt::Newer { at, what }.into());
        }
        let Some(part) = Part::of(command) else { return Ok(EntryOutcome::Refused) };
        let by = (header.proposer.node, op.client);
        let added = self.parts.add(&mut self.working, by, time_ms, &part);
        // What could not be read is not missing.
        check_reads(&mut self.working, at)?;
        match added {
            Added::Kept => Ok(EntryOutcome::Applied(Vec::new())),
            Added::Refused => Ok(EntryOutcome::Refused),
            Added::Whole(bytes) => {
                let command = Command { app: part.app, version: part.version, bytes };
                self.apply_commands(at, header, time_ms, &[command]).map(EntryOutcome::Applied)
            }
        }
    }

    fn apply_commands(
        &mut self,
        position: LogPos,
        header: &Header,
        time_ms: u64,
        commands: &[Command],
    ) -> Result<Vec<Result<Bytes, Rejected>>, Stop> {
        let start = self.working.mark();
        let events: Vec<usize> = self.apps.values().map(|app| app.events()).collect();
        let mut replies = Vec::with_capacity(commands.len());
        for (index, command) in (0..).zip(commands) {
            let at =
                ApplyAt { position, index, proposer: header.proposer, time_ms, version: command.version };
            match self.apply_command(&at, command) {
                Ok(reply) => replies.push(reply),
                Err(stop) => {
                    // Only whole entries are applied, so the effects of the entry's earlier commands are rolled back, too.
                    self.working.undo_to(&start);
                    for (app, events) in self.apps.values_mut().zip(events) {
                        app.undo(events);
                    }
                    return Err(stop);
                }
            }
        }
        self.working.keep();
        Ok(replies)
    }

    fn apply_command(&mut self, at: &ApplyAt, command: &Command) -> Result<Result<Bytes, Rejected>, Stop> {
        let position = at.position;
        let Some(app) = self.apps.get_mut(&command.app) else {
            return Err(Halt::Newer { at: position, what: format!("a command of {}", command.app) }.into());
        };
        if command.version > app.version_at(self.reads_levels.highest) {
            let what = format!("a command of {}, version {}", app.name(), command.version);
            return Err(Halt::Newer { at: position, what }.into());
        }
        let (mark, events) = (self.working.mark(), app.events());
        let ended = app.apply(at, &command.bytes, &mut self.working);
        // A panic after a failed read of the store is not poison.
        check_reads(&mut self.working, position)?;
        show(at, command, &ended);
        match ended {
            Ended::Reply(Ok(reply)) => Ok(Ok(reply)),
            Ended::Reply(Err(rejected)) => {
                if self.working.undo_to(&mark) || app.events() > events {
                    app.undo(events);
                }
                Ok(Err(rejected))
            }
            Ended::Panicked(words) => {
                Err(Halt::Poison { at: position, index: at.index, app: app.name(), words }.into())
            }
        }
    }

    /// Sends the events of the applied entries to the doors. Must be called before the state is published (X19).
    pub(crate) fn send_events(&mut self) {
        for app in self.apps.values_mut() {
            app.send_events(self.next);
        }
    }

    /// Returns the current state, to be published.
    pub(crate) fn publish(&mut self) -> Arc<Published> {
        let version = self.working.version;
        self.working.version += 1;
        Arc::new(Published {
            layers: self.working.layers.clone(),
            hold: self.live.hold(version),
            below: self.next,
            time_ms: self.time_ms,
        })
    }

    /// Freezes the applied changes and returns the job that commits them. There can be only one job at a time;
    /// [`Replica::committed`] ends it.
    pub(crate) fn freeze(&mut self) -> CommitJob {
        let active = Arc::new(VersionedMap::new(self.live.clone()));
        let (layer, befores) = self.working.freeze(active);
        CommitJob { layer, befores, record: self.record(), of_ranges: None }
    }

    /// Switches to a new snapshot after the store was reopened. The snapshot shows at least what the previous one showed, and
    /// possibly also the changes of the current job. The state must be published anew.
    pub(crate) fn rebase(&mut self, base: Arc<dyn StoreSnapshot>) {
        self.working.rebase(base);
    }

    /// Ends the current job: its changes are in the store, which `base` shows. The state must be published anew to use this
    /// snapshot.
    pub(crate) fn committed(&mut self, base: Arc<dyn StoreSnapshot>) {
        self.working.committed(base);
    }

    fn record(&self) -> StateRecord {
        let ahead = mutant(mutants::DB_COMMIT_AHEAD_OF_STATE);
        StateRecord {
            format: record::FORMAT,
            next: if ahead { self.next.plus(1) } else { self.next },
            time_ms: self.time_ms,
            foreign: self.foreign,
            hash: self.working.hash.0,
            proposers: self.proposers.record(),
        }
    }
}
