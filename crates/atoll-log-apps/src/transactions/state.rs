//! The state of transactions: every replica makes the same decision at the position of an intention.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use atoll_contract::OpId;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Decode, DecodeError, Encode, Reader};

use super::record::{Read, TxnRecord};
use crate::history::{History, Index};
use crate::mutants;
use crate::player::Machine;
use crate::sessions::{Known, Sessions, Stamp};

atoll_core::choice! {
    /// What became of a transaction.
    pub enum Decision {
        /// It committed at this index.
        1 = Committed { index: Index },
        /// It aborted: something that it has read was written between its snapshot and its intention. Nothing was written.
        2 = Conflict { index: Index },
        /// It aborted: its snapshot is not kept any more, so conflicts cannot be ruled out. Nothing was written.
        3 = TooOld { floor: Index },
        /// Its procedure refused it, with these words. Nothing was written.
        4 = Refused { words: String },
    }
}

/// What procedures write: each key with its value, None to delete it.
pub type Writes = Vec<(Bytes, Option<Bytes>)>;

/// The transactions that replicas can carry out themselves. All replicas have the same, and each is a function of its arguments and the
/// state.
pub trait Procedures: Send + Sync + fmt::Debug {
    /// Carries out a procedure. An error is its outcome, and nothing is written.
    fn call(&self, name: &str, arguments: &Bytes, state: &Snapshot<'_>) -> Result<Writes, String>;
}

/// No procedures.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProcedures;

impl Procedures for NoProcedures {
    fn call(&self, name: &str, _: &Bytes, _: &Snapshot<'_>) -> Result<Writes, String> {
        Err(format!("there is no procedure {name:?}"))
    }
}

/// The state at one index.
#[derive(Debug)]
pub struct Snapshot<'a> {
    history: &'a History<Bytes>,
    index: Index,
}

impl Snapshot<'_> {
    /// Returns its index.
    pub fn index(&self) -> Index {
        self.index
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &[u8]) -> Option<Bytes> {
        self.history.get(key, self.index).cloned()
    }

    /// Returns the first `count` keys in `[from, to)` with their values.
    pub fn range(&self, from: &[u8], to: &[u8], count: usize) -> Vec<(Bytes, Bytes)> {
        let found = self.history.range(from, to, self.index).take(count);
        found.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns the index of the version of a key, 0 if there is none.
    pub fn version(&self, key: &[u8]) -> Index {
        self.history.version(key, self.index)
    }
}

/// The limits that are part of the state: all replicas have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxnLimits {
    /// How many clients are remembered, so that their retries take effect once.
    pub max_clients: u32,
    /// How many transactions of each client are remembered. It may have as many in flight.
    pub max_ops: u32,
    /// How many changes are kept for snapshots. A transaction whose snapshot is older aborts.
    pub max_changes: u64,
}

impl Default for TxnLimits {
    fn default() -> Self {
        TxnLimits { max_clients: 10_000, max_ops: 64, max_changes: 1_000_000 }
    }
}

/// The state of one replica.
#[derive(Clone, Debug)]
pub struct TxnState {
    history: History<Bytes>,
    sessions: Sessions<Decision>,
    procedures: Arc<dyn Procedures>,
}

impl TxnState {
    /// Returns an empty state.
    pub fn new(limits: TxnLimits, procedures: Arc<dyn Procedures>) -> Self {
        TxnState {
            history: History::new(limits.max_changes),
            sessions: Sessions::new(limits.max_clients, limits.max_ops),
            procedures,
        }
    }

    /// Returns the lowest index of a snapshot.
    pub fn floor(&self) -> Index {
        self.history.floor()
    }

    /// Returns the state at an index, which is at or above the floor.
    pub fn at(&self, index: Index) -> Snapshot<'_> {
        Snapshot { history: &self.history, index }
    }

    /// Returns what became of a transaction. None if it is not decided, or was forgotten.
    pub fn decision(&self, op: OpId) -> Option<Decision> {
        self.sessions.outcome(op)
    }

    /// Decides an intention (Hyder): it commits if nothing that it has read was written between its snapshot and its position.
    fn decide(&mut self, position: u64, snapshot: Index, reads: &[Read], writes: Writes) -> Decision {
        let floor = self.floor();
        if (snapshot < floor || snapshot > position) && !mutant(mutants::APPS_T1) {
            return Decision::TooOld { floor };
        }
        for read in reads {
            let newer = match read {
                Read::Key { key, version } => self.history.version(key, position) > *version,
                Read::Range { .. } if mutant(mutants::APPS_T2) => false,
                Read::Range { from, to } => self.history.has_changed(from, to, snapshot),
            };
            if newer && !mutant(mutants::APPS_T1) {
                hit("log_apps.txn.conflict");
                return Decision::Conflict { index: position + 1 };
            }
        }
        self.write(position, writes)
    }

    fn write(&mut self, position: u64, writes: Writes) -> Decision {
        let index = position + 1;
        writes.into_iter().for_each(|(key, value)| self.history.put(key, index, value));
        Decision::Committed { index }
    }

    fn once(&mut self, position: u64, stamp: &Stamp, decide: impl FnOnce(&mut Self) -> Decision) {
        if self.sessions.check(stamp) == Known::Fresh {
            let decision = decide(self);
            self.sessions.record(stamp.op, position + 1, decision);
        }
    }
}

impl Machine for TxnState {
    fn apply(&mut self, position: u64, body: Bytes) -> Result<(), DecodeError> {
        match TxnRecord::from_bytes(body)? {
            TxnRecord::Intent { stamp, snapshot, reads, writes } => {
                self.once(position, &stamp, |state| state.decide(position, snapshot, &reads, writes));
            }
            TxnRecord::Call { stamp, procedure, arguments } => self.once(position, &stamp, |state| {
                let procedures = state.procedures.clone();
                match procedures.call(&procedure, &arguments, &state.at(position)) {
                    Ok(writes) => state.write(position, writes),
                    Err(words) => Decision::Refused { words },
                }
            }),
            TxnRecord::Forget { below } => self.history.forget(below.min(position)),
        }
        Ok(())
    }

    fn save(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.history.encode(&mut out);
        self.sessions.encode(&mut out);
        out.freeze()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        let mut from = Reader::new(state);
        let (history, sessions) = (Decode::decode(&mut from)?, Decode::decode(&mut from)?);
        from.finish("the state of transactions")?;
        (self.history, self.sessions) = (history, sessions);
        Ok(())
    }
}
