//! One loglet on one LogServer: the state of native §2, and which Stores it takes.

use std::collections::BTreeSet;

use bytes::Bytes;

use atoll_core::testing::{Mutant, mutant};
use atoll_core::{Lsn, invariant};
use atoll_log::Offset;

use crate::native::config::NativeConfig;
use crate::native::message::{LogletStatus, ServerState, Verdict};
use crate::store::{Place, Runs};
use atoll_log::LogletId;

/// The seal bit, and the way there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sealing {
    /// Stores are taken.
    Open,
    /// No more Stores; those admitted, and then the bit, are on the way to the disk (T4).
    Staged(Lsn),
    /// Durable.
    Sealed,
}

/// What the order rule says to entries (native §4 Store 2–4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admit {
    /// Take what lies at and above this offset.
    From(Offset),
    /// All of it is here; the newest staged record of it.
    Present(Lsn),
    /// There is a gap below that is not globally committed, or it is committed elsewhere and not here.
    OutOfOrder,
}

/// See the file's words.
#[derive(Debug)]
pub(super) struct Replica {
    pub config: NativeConfig,
    pub config_bytes: Bytes,
    pub seal: Sealing,
    /// Above every durable entry that came by Store or Repair. Never falls, restarts and trims included (N2, T12).
    pub local_tail: Offset,
    /// The same, with what is on the way to the disk.
    pub staged_tail: Offset,
    pub known_tail: Offset,
    pub trim: Offset,
    pub runs: Runs,
    /// Requests that wait for a tail.
    pub waiting: BTreeSet<u64>,
    /// To be posted to the sequencer at the end of the turn.
    pub news: Option<Verdict>,
    /// Of the newest Store.
    pub round: u32,
    /// The local tail that the sequencer was last told, while open.
    pub told_tail: Offset,
    /// Told by the chain's owner while the seal was on its way to the disk.
    pub known_once_sealed: Offset,
    /// A back-fill runs.
    pub filling: bool,
}

impl Replica {
    pub fn new(config: NativeConfig, config_bytes: Bytes) -> Self {
        Replica {
            config,
            config_bytes,
            seal: Sealing::Open,
            local_tail: Offset::ZERO,
            staged_tail: Offset::ZERO,
            known_tail: Offset::ZERO,
            trim: Offset::ZERO,
            runs: Runs::default(),
            waiting: BTreeSet::new(),
            news: None,
            round: 0,
            told_tail: Offset::ZERO,
            known_once_sealed: Offset::ZERO,
            filling: false,
        }
    }

    /// Durable facts only (T9). The trim may be staged still: seeing it early, and not at all after a crash, is harmless.
    pub fn state(&self) -> ServerState {
        ServerState {
            sealed: self.seal == Sealing::Sealed,
            local_tail: self.local_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }

    /// As it will be once everything staged is durable.
    pub fn staged_state(&self) -> ServerState {
        ServerState {
            sealed: self.seal != Sealing::Open,
            local_tail: self.staged_tail,
            known_tail: self.known_tail,
            trim: self.trim,
        }
    }

    /// The order rule for entries at `[first, first + count)`.
    ///
    /// What lies below the known tail is committed elsewhere and not wanted here; above it, only the next offset is, or one
    /// before which nothing but committed entries are missing. So a missing offset below the local tail is always below
    /// a known tail (N7).
    pub fn admit(&self, first: Offset, count: u32) -> Admit {
        let end = first.plus(count.into());
        let from = first.max(self.staged_tail).max(self.known_tail);
        if from >= end {
            return match self.newest_staged(first.max(self.trim), end) {
                Some(lsn) => Admit::Present(lsn),
                None => Admit::OutOfOrder,
            };
        }
        if from == self.staged_tail || from == self.known_tail {
            return Admit::From(from);
        }
        Admit::OutOfOrder
    }

    /// The newest staged record among the runs of `[from, end)`; [`Lsn::NONE`] if all are durable, None if some are not
    /// here.
    fn newest_staged(&self, from: Offset, end: Offset) -> Option<Lsn> {
        let (mut at, mut newest) = (from, Lsn::NONE);
        while at < end {
            let (first, run) = self.runs.holding(at)?;
            if let Place::Staged(lsn) = run.place {
                newest = newest.max(lsn);
            }
            at = first.plus(run.count.into());
        }
        Some(newest)
    }

    /// Rule K: the caller has checked where the value comes from.
    pub fn raise_known_tail(&mut self, to: Offset) -> bool {
        let up = to > self.known_tail;
        self.known_tail = self.known_tail.max(to);
        up
    }

    /// Entries up to `end` are durable (N2).
    pub fn raise_local_tail(&mut self, end: Offset) {
        invariant!(end <= self.staged_tail, "durable up to {end}, staged up to {}", self.staged_tail);
        self.local_tail = self.local_tail.max(end);
    }

    /// Remembers a verdict for the end of the turn; out of order is not covered up by a later success.
    pub fn tell(&mut self, verdict: Verdict) {
        if !(self.news == Some(Verdict::OutOfOrder {}) && verdict == (Verdict::Done {})) {
            self.news = Some(verdict);
        }
    }

    /// Something below the known tail is not here.
    pub fn lags(&self) -> bool {
        !self.runs.missing(self.known_tail, 1).is_empty()
    }

    /// T12: what a restart takes the local tail from when the entries are trimmed.
    pub fn restore_tail(&mut self, tail: Offset) {
        if !mutant(Mutant::NativeT12) {
            self.local_tail = self.local_tail.max(tail);
            self.staged_tail = self.local_tail;
        }
    }

    pub fn status(&self, loglet: LogletId) -> LogletStatus {
        LogletStatus {
            loglet,
            state: self.state(),
            missing: self.runs.missing_count(self.known_tail),
            runs: self.runs.len() as u64,
            bytes: self.runs.len_bytes(),
        }
    }
}
