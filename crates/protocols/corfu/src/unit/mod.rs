//! A storage unit (corfu §1, §2): write-once addresses for every log that has a chain through this node. It is passive: it never sends a
//! message of its own, and knows nothing of positions.
//!
//! | file | what it is |
//! | --- | --- |
//! | `space.rs` | the addresses of one log |
//! | `serve.rs` | what each message does |
//! | `reads.rs` | looks at addresses, from memory and disk |
//! | `disk.rs`, `facts.rs` | the journal: records, checkpoint, restart, compaction |

mod disk;
pub mod facts;
mod reads;
mod serve;
mod space;

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use atoll_contract::LogletId;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Env, FetchError, Frame, Loc, Lsn, Measure, Message, Refused, Role,
    Space as Room, StorageId, Stored, Tick,
};
use atoll_loglet_store::message::{Delete, Status, StatusOf};
use atoll_loglet_store::store::Waits;

use crate::message::{Await, Erase, Fill, Look, Probe, SealTo, TrimTo, UnitAnswer, Verdict, Write};
use crate::mutants;
use crate::projection::Projection;
use disk::Disk;
use reads::Pending;
use space::Space;

pub use serve::{MAX_COUNT, MAX_FILL};

/// The limits of a unit.
#[derive(Clone, Debug)]
pub struct UnitOptions {
    /// Bytes of contents held in memory for tailing readers.
    pub cache_bytes: usize,
    /// The most reads that may wait for the disk. Further ones are refused as busy.
    pub max_disk_reads: usize,
    /// The most requests that wait for an address. Further ones are answered at once.
    pub max_waits: usize,
    /// The most bytes on the way to the disk per log. Further writes are refused as busy.
    pub window_bytes: usize,
    /// The same limit for all logs together.
    pub node_window_bytes: usize,
}

impl Default for UnitOptions {
    fn default() -> Self {
        UnitOptions {
            cache_bytes: 32 << 20,
            max_disk_reads: 512,
            max_waits: 16 * 1024,
            window_bytes: 64 << 20,
            node_window_bytes: 256 << 20,
        }
    }
}

/// See the module documentation.
pub struct Unit {
    env: Env,
    storage: StorageId,
    options: UnitOptions,
    disk: Disk,
    reads: BTreeMap<u64, Pending>,
    waits: Waits,
    /// Logs whose state changed in this turn.
    touched: BTreeSet<LogletId>,
}

impl Unit {
    /// Creates the unit of the node of `env`, on the data directory `storage`.
    pub fn new(env: Env, storage: StorageId, options: UnitOptions) -> Self {
        Unit {
            env,
            storage,
            waits: Waits::new(options.max_waits),
            options,
            disk: Disk::default(),
            reads: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Returns the log if the unit serves it in this epoch. Creates it if the message carries a projection that names this unit. A
    /// tombstone comes first: a deleted log takes nothing, whatever the message carries.
    fn admit(
        &mut self,
        log: LogletId,
        config: &Bytes,
        epoch: Option<u64>,
        out: &mut Effects,
    ) -> Result<&mut Space, Verdict> {
        if self.disk.tombstones.contains(&log) {
            hit("corfu.unit.tombstone");
            return Err(Verdict::Gone {});
        }
        if !self.disk.spaces.contains_key(&log) {
            self.create(log, config, out)?;
        }
        let space = self.disk.spaces.get_mut(&log).ok_or(Verdict::Unconfigured {})?;
        match epoch {
            // The bug: only epochs below the sealed one are refused, and the seal named the epoch before.
            Some(epoch) if mutant(mutants::CORFU_C1) && epoch + 1 == space.epoch => Ok(space),
            Some(epoch) if epoch < space.epoch => {
                hit("corfu.unit.sealed");
                Err(Verdict::Sealed {})
            }
            Some(epoch) if epoch > space.epoch => {
                hit("corfu.unit.ahead");
                Err(Verdict::Ahead {})
            }
            _ => Ok(space),
        }
    }

    fn create(&mut self, log: LogletId, config: &Bytes, out: &mut Effects) -> Result<(), Verdict> {
        if config.is_empty() {
            return Err(Verdict::Unconfigured {});
        }
        let named = Projection::parse(config).map_err(|_| Verdict::WrongIdentity {})?;
        // A data directory that was lost is another unit, which must not answer for it (corfu-C16).
        if !named.units().contains(&(self.env.node(), self.storage)) {
            hit("corfu.unit.wrong_identity");
            return Err(Verdict::WrongIdentity {});
        }
        if out.space() == Room::Closed {
            return Err(Verdict::StorageFailed {});
        }
        self.disk.create(log, config, named.epoch, out);
        Ok(())
    }

    /// Answers about a log. The answer reveals the log's newest record, because it shows the state with it, except when it reveals less.
    fn answer(&self, to: Caller, log: LogletId, verdict: Verdict, from: u64, out: &mut Effects) {
        let (epoch, next, missing, reveals) = match self.disk.spaces.get(&log) {
            Some(space) => (space.epoch, space.next(), space.written.first_missing(from), space.staged),
            None => (0, 0, from, Lsn::NONE),
        };
        out.reply(to, UnitAnswer { verdict, epoch, next, missing }, reveals);
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Write::KIND => self.on_write(from, Write::from_frame(f)?, out),
            Fill::KIND => self.on_fill(from, Fill::from_frame(f)?, out),
            Erase::KIND => self.on_erase(from, Erase::from_frame(f)?, out),
            TrimTo::KIND => self.on_trim(from, TrimTo::from_frame(f)?, out),
            SealTo::KIND => self.on_seal(from, SealTo::from_frame(f)?, out),
            Probe::KIND => self.on_probe(from, Probe::from_frame(f)?, out),
            Await::KIND => self.on_await(now, from, Await::from_frame(f)?, out),
            Look::KIND => self.on_look(from, Look::from_frame(f)?, out),
            Delete::KIND => self.on_delete(from, Delete::from_frame(f)?, out),
            Status::KIND => self.on_status(from, Status::from_frame(f)?, out),
            StatusOf::KIND => self.on_status_of(from, StatusOf::from_frame(f)?, out),
            got => return Err(DecodeError::WrongKind { expected: "a message for a storage unit", got }),
        }
        Ok(())
    }
}

impl Role for Unit {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            self.disk.on_durable(*lsn, *loc, out);
        }
        self.disk.shrink_cache(self.options.cache_bytes);
        self.disk.next_moves(out);
    }

    fn deadline(&self) -> Option<Tick> {
        self.waits.next_end()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        for waiter in self.waits.take_ended(now) {
            self.answer(waiter.caller, waiter.loglet, Verdict::Done {}, 0, out);
        }
    }

    fn flush(&mut self, _now: Tick, out: &mut Effects) {
        for log in std::mem::take(&mut self.touched) {
            self.wake(log, out);
        }
    }

    fn on_fetched(&mut self, _now: Tick, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        if !self.disk.on_fetched(tag, &got, out) {
            self.finish_look(tag, got, out);
        }
    }

    fn on_space(&mut self, _now: Tick, space: Room, out: &mut Effects) {
        if space == Room::Closed {
            self.disk.on_closed();
            for waiter in self.waits.take_all() {
                self.answer(waiter.caller, waiter.loglet, Verdict::StorageFailed {}, 0, out);
            }
        }
        self.disk.next_moves(out);
    }

    fn on_compact(&mut self, _now: Tick, segment: u64, out: &mut Effects) {
        self.disk.start_moves(segment);
        self.disk.next_moves(out);
    }

    fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.disk.checkpoint(max_bytes)
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.disk.restore(checkpoint)
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.disk.recover(stored)
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.disk.recovered()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let spaces = self.disk.spaces.values();
        let bytes: u64 = spaces.clone().map(|space| space.len_bytes).sum();
        let sparse: usize = spaces.map(|space| space.junk.len() + space.deleted.len()).sum();
        let figures = [
            ("corfu_unit_logs", self.disk.spaces.len() as f64),
            ("corfu_unit_tombstones", self.disk.tombstones.len() as f64),
            ("corfu_unit_entry_bytes", bytes as f64),
            ("corfu_unit_intervals", sparse as f64),
            ("corfu_unit_staged_bytes", self.disk.staged_bytes as f64),
            ("corfu_unit_waits", self.waits.len() as f64),
        ];
        out.extend(figures.map(|(name, value)| Measure { name, label: None, value }));
    }
}
