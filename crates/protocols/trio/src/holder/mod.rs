//! A holder: the entries, the seal bit and the trim of every trio loglet for which this node is the store, or the mirror. A node has one
//! object for each of the two roles.
//!
//! | file | what it is |
//! | --- | --- |
//! | `store.rs` | Relay, Seal, Repair: what only the store takes |
//! | `mirror.rs` | BackFill, Fill, FillEnded: what only the mirror takes |
//! | `serve.rs` | Info, Wait, Read, Trim, Delete, Status, StatusOf: what both take |
//!
//! The loglet store journals, reads back and recovers (`atoll_loglet_store::store`).

mod mirror;
mod serve;
mod store;

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{
    Budget, Caller, DecodeError, Effects, Env, FetchError, Frame, Loc, Lsn, Message, Refused, Role, Space,
    StorageId, Stored, Tick,
};
use atoll_loglet_store::deduplicator::Deduplicator;
use atoll_loglet_store::message::{
    Answer, Delete, Info, Read, Repair, Seal, ServerState, Status, StatusOf, Trim, Verdict, Wait,
};
use atoll_loglet_store::store::{
    Durable, LogletState, LogletStore, LogletStoreOptions, Protocol, Sealing, Waits,
};

use crate::config::{self, TrioConfig};
use crate::message::{BackFill, Fill, FillEnded, Relay};

/// Which of the two copies a holder keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first copy, which decides.
    Store,
    /// The second copy, which is made after the seal.
    Mirror,
}

/// Limits of a holder.
#[derive(Clone, Debug)]
pub struct HolderOptions {
    /// Memory, reads and compaction.
    pub store: LogletStoreOptions,
    /// Maximum number of requests at this node that wait for a tail. Further ones are answered at once.
    pub max_waits: usize,
    /// Maximum number of bytes on the way to the disk per loglet. Further appends are refused as busy.
    pub window_bytes: usize,
    /// The same limit for all loglets together.
    pub node_window_bytes: usize,
    /// Number of spans of operations that are remembered per loglet, 32 bytes each. They are recovered after a restart.
    pub dedupe_spans: usize,
    /// Maximum number of concurrent back-fills on this node.
    pub max_fills: usize,
    /// Approximate number of bytes of entries that a back-fill reads at a time.
    pub step_bytes: u32,
}

impl Default for HolderOptions {
    fn default() -> Self {
        HolderOptions {
            store: LogletStoreOptions::default(),
            max_waits: 16 * 1024,
            window_bytes: 64 << 20,
            node_window_bytes: 256 << 20,
            dedupe_spans: 512 * 1024,
            max_fills: 4,
            step_bytes: atoll_loglet_store::STEP_BYTES,
        }
    }
}

/// The protocol's part of the state of a loglet. None of it is journaled.
#[derive(Debug)]
struct Trio {
    config: TrioConfig,
    /// None until the first append, because most open loglets are only read. Always None on the mirror.
    deduplicator: Option<Deduplicator>,
    /// Ends and lengths of the batches on the way to the disk.
    staged: VecDeque<(Offset, usize)>,
    staged_bytes: usize,
    /// Whether a back-fill is running.
    filling: bool,
}

impl Protocol for Trio {
    type Config = TrioConfig;

    fn read_config(config: &Bytes) -> Result<TrioConfig, DecodeError> {
        config::parse(config)
    }

    fn new(config: TrioConfig) -> Self {
        Trio { config, deduplicator: None, staged: VecDeque::new(), staged_bytes: 0, filling: false }
    }
}

/// One loglet on one holder.
type Part = LogletState<Trio>;

/// See the module documentation.
pub struct Holder {
    side: Side,
    env: Env,
    storage: StorageId,
    options: HolderOptions,
    store: LogletStore<Trio>,
    /// Budget for the bytes of all loglets on the way to the disk.
    in_flight: Budget,
    waits: Waits,
    /// Loglets whose state changed in this turn.
    touched: BTreeSet<LogletId>,
    /// The number of running back-fills.
    fills: usize,
}

impl Holder {
    /// Creates a holder of the node of `env`, on the data directory `storage`.
    pub fn new(side: Side, env: Env, storage: StorageId, options: HolderOptions) -> Self {
        Holder {
            side,
            env,
            storage,
            store: LogletStore::new(options.store.clone()),
            in_flight: Budget::new(options.node_window_bytes),
            waits: Waits::new(options.max_waits),
            options,
            touched: BTreeSet::new(),
            fills: 0,
        }
    }

    /// Returns the loglet. Creates it if the message carries the configuration and this holder may serve it.
    fn part(&mut self, loglet: LogletId, config: &Bytes, out: &mut Effects) -> Result<&mut Part, Verdict> {
        if !self.store.loglets.contains_key(&loglet) {
            self.create(loglet, config, out)?;
        }
        self.store.loglets.get_mut(&loglet).map(|part| &mut **part).ok_or(Verdict::Unconfigured {})
    }

    /// Creates a loglet, unless it was deleted (native-T10), and only on the data directory that its configuration names (native-T8).
    fn create(&mut self, loglet: LogletId, config: &Bytes, out: &mut Effects) -> Result<(), Verdict> {
        if self.store.is_gone(loglet) {
            hit("trio.holder.tombstone");
            return Err(Verdict::Gone {});
        }
        if config.is_empty() {
            return Err(Verdict::Unconfigured {});
        }
        let config = self.store.config(config).map_err(|_| Verdict::WrongIdentity {})?;
        let named = match self.side {
            Side::Store => config.1.store,
            Side::Mirror => config.1.mirror,
        };
        if named != (self.env.node(), self.storage) {
            hit("trio.holder.wrong_identity");
            return Err(Verdict::WrongIdentity {});
        }
        if out.space() == Space::Closed {
            return Err(Verdict::StorageFailed {});
        }
        self.store.create(loglet, config, out);
        Ok(())
    }

    fn state_of(&self, loglet: LogletId) -> ServerState {
        self.store.loglets.get(&loglet).map_or(ServerState::NOTHING, |part| part.state())
    }

    fn answer(&self, to: Caller, loglet: LogletId, verdict: Verdict, reveals: Lsn, out: &mut Effects) {
        out.reply(to, Answer { verdict, state: self.state_of(loglet) }, reveals);
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match (self.side, f.kind) {
            (Side::Store, Relay::KIND) => self.on_relay(from, Relay::from_frame(f)?, out),
            (Side::Store, Seal::KIND) => self.on_seal(from, Seal::from_frame(f)?, out),
            (Side::Store, Repair::KIND) => self.on_copy(from, Repair::from_frame(f)?, out)?,
            (Side::Mirror, BackFill::KIND) => self.on_back_fill(from, BackFill::from_frame(f)?, out),
            (Side::Mirror, Fill::KIND) => self.on_fill(from, Fill::from_frame(f)?, out)?,
            (Side::Mirror, FillEnded::KIND) => self.on_fill_ended(from, FillEnded::from_frame(f)?),
            (_, Info::KIND) => self.on_info(from, Info::from_frame(f)?, out),
            (_, Wait::KIND) => self.on_wait(now, from, Wait::from_frame(f)?, out),
            (_, Read::KIND) => self.on_read(from, Read::from_frame(f)?, out),
            (_, Trim::KIND) => self.on_trim(from, Trim::from_frame(f)?, out),
            (_, Delete::KIND) => self.on_delete(from, Delete::from_frame(f)?, out),
            (_, Status::KIND) => self.on_status(from, Status::from_frame(f)?, out),
            (_, StatusOf::KIND) => self.on_status_of(from, StatusOf::from_frame(f)?, out),
            (_, got) => {
                return Err(DecodeError::WrongKind {
                    expected: "a message for a holder of trio loglets",
                    got,
                });
            }
        }
        Ok(())
    }

    /// Handles a change that became durable.
    fn on_durable_news(&mut self, news: Durable) {
        let (Durable::Entries(loglet) | Durable::Filled(loglet) | Durable::Seal(loglet)) = news;
        let Some(part) = self.store.loglets.get_mut(&loglet) else { return };
        if news == Durable::Seal(loglet) {
            part.seal = Sealing::Sealed;
        }
        part.raise_known_tail(part.local_tail);
        while let Some((end, len)) = part.protocol.staged.front().copied() {
            if end > part.local_tail {
                break;
            }
            part.protocol.staged_bytes -= len;
            self.in_flight.give_back(len);
            part.protocol.staged.pop_front();
        }
        if part.seal == Sealing::Sealed {
            // No more appends are ordered. For a retry, the client searches the log (vlog-V2).
            part.protocol.deduplicator = None;
        }
        self.touched.insert(loglet);
    }
}

impl Role for Holder {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            if let Some(news) = self.store.on_durable(*lsn, *loc, out) {
                self.on_durable_news(news);
            }
        }
        self.store.trim_cache();
    }

    fn deadline(&self) -> Option<Tick> {
        [self.waits.next_end(), self.store.sweep_at()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        for waiter in self.waits.take_ended(now) {
            self.answer(waiter.caller, waiter.loglet, Verdict::Done {}, Lsn::NONE, out);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        for loglet in std::mem::take(&mut self.touched) {
            self.wake_waiters(loglet, out);
        }
    }

    fn on_fetched(&mut self, _now: Tick, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        if let Some((caller, loglet, first, outcome)) = self.store.on_fetched(tag, got, out) {
            self.answer_read(caller, loglet, first, outcome, out);
        }
    }

    fn on_space(&mut self, _now: Tick, space: Space, out: &mut Effects) {
        if space == Space::Closed {
            self.store.on_closed();
            for waiter in self.waits.take_all() {
                self.answer(waiter.caller, waiter.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
            }
        }
        self.store.on_room(out);
    }

    fn on_compact(&mut self, _now: Tick, segment: u64, _out: &mut Effects) {
        self.store.start_moves(segment);
    }

    fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.store.checkpoint(max_bytes)
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.store.restore(checkpoint)
    }

    /// Restores the operations that the store remembers, because a retry may arrive after the restart that caused it.
    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let Some((loglet, first, payload)) = self.store.recover(stored)? else { return Ok(()) };
        if let Some(part) = self.store.loglets.get_mut(&loglet)
            && self.side == Side::Store
            && part.seal == Sealing::Open
        {
            let (spans, settled) = (self.options.dedupe_spans, part.local_tail);
            let deduplicator =
                part.protocol.deduplicator.get_or_insert_with(|| Deduplicator::new(spans, Offset::ZERO));
            deduplicator.note(&Batch::parse(payload)?, first);
            deduplicator.forget_below(settled);
        }
        Ok(())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        for part in self.store.loglets.values_mut() {
            part.raise_known_tail(part.local_tail);
            // Trimmed entries may be gone from the disk, so their operations were not recovered.
            if let Some(deduplicator) = &mut part.protocol.deduplicator {
                deduplicator.forgot(part.trim);
            }
        }
        self.store.recovered()
    }
}
