//! A replica of the state: takes log entries in order, applies their commands, commits them to the local store.
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | whole entries, one after the other |
//! | `working.rs` | the state under a command, and how writes are taken back |
//! | `proposers.rs` | exactly once |
//! | `record.rs` | what the engine itself keeps in the store |
//!
//! No thread, no clock, no log here: [`crate::engine`] drives it.

mod proposers;
mod record;
mod working;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use atoll_log::{Entry, LogPos};

use crate::application::{AppId, ApplyAt, Rejected};
use crate::entry::{self, Command, Header, Unreadable};
use crate::hosted::{Applications, Ended, Hosted};
use crate::layers::Layers;
use crate::store::{Live, Store, StoreError, VersionedMap};
use crate::view::Published;

use proposers::{Judged, Proposers};
use record::StateRecord;
pub(crate) use working::{Mark, Working};

/// Why a replica applies no more. Local reads go on, of the state before the entry at `at`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// A command panics, on every replica.
    #[error("poison: command {index} of log position {at} makes {app} panic: {words}")]
    Poison {
        /// The entry.
        at: LogPos,
        /// Which of its commands.
        index: u32,
        /// The application.
        app: &'static str,
        /// What the panic said.
        words: String,
    },
    /// The entry was written by a later version of this program.
    #[error("log position {at} has {what}, of a later version of this program: update this node")]
    Newer {
        /// The entry.
        at: LogPos,
        /// What is too new.
        what: String,
    },
    /// The local store failed on this node.
    #[error("before log position {at}: {error}")]
    Store {
        /// The first entry that is not applied.
        at: LogPos,
        /// What the store said.
        error: StoreError,
    },
}

/// What became of an entry.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// One reply for each command.
    Applied(Vec<Result<Bytes, Rejected>>),
    /// A second copy of one that was applied.
    Copy,
    /// Refused: none of its commands happened, nor will.
    Refused,
    /// Not of the database.
    Foreign,
}

/// See the module's words.
pub(crate) struct Replica {
    apps: BTreeMap<AppId, Box<dyn Hosted>>,
    store: Box<dyn Store>,
    live: Arc<Live>,
    working: Working,
    /// The next entry.
    next: LogPos,
    time_ms: u64,
    proposers: Proposers,
    /// Entries that are not of the database, so far.
    foreign: u64,
}

fn at_position(at: LogPos) -> impl FnOnce(StoreError) -> Halt {
    move |error| Halt::Store { at, error }
}

impl Replica {
    /// Opens what the store has. The first state to publish comes with it.
    pub(crate) fn open(
        apps: Applications,
        store: Box<dyn Store>,
    ) -> Result<(Replica, Arc<Published>), StoreError> {
        let live = Arc::new(Live::default());
        let base = store.snapshot();
        let record = StateRecord::read(&*base)?;
        let active = Arc::new(VersionedMap::new(live.clone()));
        let mut replica = Replica {
            apps: apps.0,
            store,
            live,
            working: Working::new(Layers { active, frozen: None, base }, 1),
            next: record.next,
            time_ms: record.time_ms,
            proposers: Proposers::of(record.proposers),
            foreign: record.foreign,
        };
        let published = replica.publish();
        for app in replica.apps.values_mut() {
            app.opened(&published)?;
        }
        Ok((replica, published))
    }

    /// The next entry that it takes.
    pub(crate) fn next(&self) -> LogPos {
        self.next
    }

    /// Time of the last entry.
    pub(crate) fn time_ms(&self) -> u64 {
        self.time_ms
    }

    /// Entries that are not of the database, so far.
    pub(crate) fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Bytes of the store, about.
    pub(crate) fn store_bytes(&self) -> u64 {
        self.store.size_bytes()
    }

    /// Memory of what is applied and not committed, about.
    pub(crate) fn overlay_bytes(&self) -> usize {
        let layers = &self.working.layers;
        layers.active.size_bytes() + layers.frozen.as_ref().map_or(0, |f| f.size_bytes())
    }

    /// Applies the next entry as a whole, or stops in front of it.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Result<Outcome, Halt> {
        let at = self.next;
        let outcome = match entry::parse(entry.payload.clone()) {
            Err(Unreadable::Foreign) => {
                self.foreign += 1;
                Outcome::Foreign
            }
            Err(Unreadable::Newer(format)) => {
                return Err(Halt::Newer { at, what: format!("an entry of format {format}") });
            }
            Ok((header, commands)) => match self.proposers.judge(entry.op, header.since) {
                Judged::Copy => Outcome::Copy,
                Judged::Refused => Outcome::Refused,
                Judged::Next => {
                    let time_ms = self.time_ms.max(header.time_ms);
                    let replies = self.apply_commands(at, &header, time_ms, &commands)?;
                    self.time_ms = time_ms;
                    self.proposers.applied(entry.op, at);
                    Outcome::Applied(replies)
                }
            },
        };
        self.next = at.plus(1);
        Ok(outcome)
    }

    fn apply_commands(
        &mut self,
        position: LogPos,
        header: &Header,
        time_ms: u64,
        commands: &[Command],
    ) -> Result<Vec<Result<Bytes, Rejected>>, Halt> {
        let start = self.working.mark();
        let events: Vec<usize> = self.apps.values().map(|app| app.events()).collect();
        let mut replies = Vec::with_capacity(commands.len());
        for (index, command) in (0..).zip(commands) {
            let at = ApplyAt { position, index, proposer: header.proposer, time_ms };
            match self.apply_command(&at, command) {
                Ok(reply) => replies.push(reply),
                Err(halt) => {
                    // Whole entries only: what its earlier commands did goes, too.
                    self.working.rollback(&start);
                    for (app, events) in self.apps.values_mut().zip(events) {
                        app.undo(events);
                    }
                    return Err(halt);
                }
            }
        }
        self.working.keep();
        Ok(replies)
    }

    fn apply_command(&mut self, at: &ApplyAt, command: &Command) -> Result<Result<Bytes, Rejected>, Halt> {
        let position = at.position;
        let Some(app) = self.apps.get_mut(&command.app) else {
            return Err(Halt::Newer { at: position, what: format!("a command of {}", command.app) });
        };
        if command.version > app.version() {
            let what = format!("a command of {}, version {}", app.name(), command.version);
            return Err(Halt::Newer { at: position, what });
        }
        let (mark, events) = (self.working.mark(), app.events());
        let ended = app.apply(at, &command.bytes, &mut self.working);
        // A panic over an answer that the store did not give is no poison.
        if let Some(error) = self.working.take_failure() {
            return Err(Halt::Store { at: position, error });
        }
        match ended {
            Ended::Reply(Ok(reply)) => Ok(Ok(reply)),
            Ended::Reply(Err(rejected)) => {
                if self.working.rollback(&mark) || app.events() > events {
                    app.undo(events);
                }
                Ok(Err(rejected))
            }
            Ended::Panicked(words) => {
                Err(Halt::Poison { at: position, index: at.index, app: app.name(), words })
            }
        }
    }

    /// Hands the events over, then makes what is applied the state to be published (X19).
    pub(crate) fn publish(&mut self) -> Arc<Published> {
        for app in self.apps.values_mut() {
            app.tell(self.next);
        }
        let version = self.working.version;
        self.working.version += 1;
        Arc::new(Published {
            layers: self.working.layers.clone(),
            hold: self.live.hold(version),
            below: self.next,
            time_ms: self.time_ms,
        })
    }

    /// Commits what is applied, with its position. What is published must be published anew.
    pub(crate) fn commit(&mut self) -> Result<(), Halt> {
        let layers = &mut self.working.layers;
        let full = std::mem::replace(&mut layers.active, Arc::new(VersionedMap::new(self.live.clone())));
        layers.frozen = Some(full.clone());
        let mut changes = full.newest();
        changes.push(self.record().change());
        self.store.commit(changes).map_err(at_position(self.next))?;
        let layers = &mut self.working.layers;
        layers.base = self.store.snapshot();
        layers.frozen = None;
        Ok(())
    }

    /// Makes durable what is committed.
    pub(crate) fn persist(&mut self) -> Result<(), Halt> {
        self.store.persist().map_err(at_position(self.next))
    }

    fn record(&self) -> StateRecord {
        StateRecord {
            format: record::FORMAT,
            next: self.next,
            time_ms: self.time_ms,
            foreign: self.foreign,
            proposers: self.proposers.record(),
        }
    }
}
