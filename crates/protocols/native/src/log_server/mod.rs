//! The LogServer: stores the entries, the seal bit and the trim of every native loglet of its node (native §2, §4).
//!
//! | file | what it is |
//! | --- | --- |
//! | `loglet_copy.rs` | what the protocol adds to the entries of one loglet, and the order rule |
//! | `store.rs` | Store, Advance, Seal, Repair, Fill: the messages that change a copy |
//! | `serve.rs` | Info, Wait, ReadNext, Read, Trim, Delete, Status, StatusOf |
//! | `back_fill.rs` | BackFill: how a server gets the entries that it lacks |
//!
//! The loglet store journals, reads back and recovers (`atoll_loglet_store::store`).

mod back_fill;
mod loglet_copy;
mod serve;
mod store;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{LogletId, Offset};
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Env, FetchError, Frame, Loc, Lsn, Measure, Message, NodeId, Refused,
    Role, Space, StorageId, Stored, Tick,
};

use self::loglet_copy::{LogletCopy, Native};
use super::config::NativeConfig;
use super::message::*;
use crate::mutants;
use crate::roles::SEQUENCER;
use atoll_loglet_store::store::{Durable, LogletStore, LogletStoreOptions, Sealing, Waits};

/// Limits and intervals of a LogServer.
#[derive(Clone, Debug)]
pub struct LogServerOptions {
    /// Memory, reads and compaction.
    pub store: LogletStoreOptions,
    /// Maximum number of requests at this node that wait for a tail. Further ones are answered at once.
    pub max_waits: usize,
    /// How long an entry that others have may be missing here before it is fetched. Too small: entries that are already on
    /// their way are fetched twice.
    pub fill_after: Duration,
    /// Maximum number of concurrent back-fills on this node.
    pub max_fills: usize,
}

impl Default for LogServerOptions {
    fn default() -> Self {
        LogServerOptions {
            store: LogletStoreOptions::default(),
            max_waits: 16 * 1024,
            fill_after: Duration::from_millis(500),
            max_fills: 2,
        }
    }
}

/// See the module documentation. One object serves all native loglets of a node.
pub struct LogServer {
    env: Env,
    storage: StorageId,
    options: LogServerOptions,
    store: LogletStore<Native>,
    waits: Waits,
    /// Loglets whose state changed in this turn.
    touched: BTreeSet<LogletId>,
    /// Loglets that lack committed entries, with the known tail at the last check.
    lagging: BTreeMap<LogletId, Offset>,
    /// Loglets that may have been sealed while this server was away; 16 bytes each.
    doubtful: BTreeSet<LogletId>,
    /// The loglets for which a back-fill, and a check, were last started. The next loglet in order follows, so that one that cannot be
    /// helped does not block the others forever.
    last_filled: LogletId,
    last_checked: LogletId,
    checking: bool,
    next_look: Option<Tick>,
    fills: usize,
}

impl LogServer {
    /// Creates a LogServer of the node of `env`, on the data directory `storage` (native-T8).
    pub fn new(env: Env, storage: StorageId, options: LogServerOptions) -> Self {
        LogServer {
            env,
            storage,
            store: LogletStore::new(options.store.clone()),
            waits: Waits::new(options.max_waits),
            options,
            touched: BTreeSet::new(),
            lagging: BTreeMap::new(),
            doubtful: BTreeSet::new(),
            last_filled: LogletId::default(),
            last_checked: LogletId::default(),
            checking: false,
            next_look: None,
            fills: 0,
        }
    }

    /// Returns the copy of a loglet. Creates it if the message carries the configuration and this node may serve it.
    fn loglet_copy(
        &mut self,
        loglet: LogletId,
        config: &Bytes,
        out: &mut Effects,
    ) -> Result<&mut LogletCopy, Verdict> {
        if !self.store.loglets.contains_key(&loglet) {
            self.create(loglet, config, out)?;
        }
        self.store.loglets.get_mut(&loglet).map(|kept| &mut **kept).ok_or(Verdict::Unconfigured {})
    }

    /// Creates a copy from a full configuration, unless the loglet was deleted (native-T10), and only on the data directory named there
    /// (native-T8).
    fn create(&mut self, loglet: LogletId, config: &Bytes, out: &mut Effects) -> Result<(), Verdict> {
        if self.store.is_gone(loglet) {
            hit("native.server.tombstone");
            return Err(Verdict::Gone {});
        }
        if config.is_empty() {
            return Err(Verdict::Unconfigured {});
        }
        let config = self.store.config(config).map_err(|_| Verdict::WrongIdentity {})?;
        self.check_identity(&config.1)?;
        if out.space() == Space::Closed {
            return Err(Verdict::StorageFailed {});
        }
        self.store.create(loglet, config, out);
        Ok(())
    }

    fn check_identity(&self, config: &NativeConfig) -> Result<(), Verdict> {
        match config.storage_of(self.env.node()) {
            Some(storage) if storage == self.storage || mutant(mutants::NATIVE_T8) => Ok(()),
            _ => {
                hit("native.server.wrong_identity");
                Err(Verdict::WrongIdentity {})
            }
        }
    }

    fn state_of(&self, loglet: LogletId) -> ServerState {
        self.store.loglets.get(&loglet).map_or(ServerState::NOTHING, |copy| copy.state())
    }

    fn answer(&self, to: Caller, loglet: LogletId, verdict: Verdict, reveals: Lsn, out: &mut Effects) {
        out.reply(to, Answer { verdict, state: self.state_of(loglet) }, reveals);
    }

    /// Posts the pending report of a copy, if there is one, to the sequencer. It leaves only once the state that it shows is durable.
    fn post_report(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(copy) = self.store.loglets.get_mut(&loglet) else { return };
        let Some(verdict) = copy.protocol.to_report.take() else { return };
        let (state, reveals) = match copy.seal {
            Sealing::Staged(lsn) => (copy.staged_state(), lsn),
            _ => (copy.state(), Lsn::NONE),
        };
        post_standing(copy, loglet, verdict, state, reveals, out);
    }

    /// Handles state that has become durable: updates the copy, and answers those who wait for it.
    fn on_durable_record(&mut self, news: Durable, out: &mut Effects) {
        let (Durable::Entries(loglet) | Durable::Filled(loglet) | Durable::Seal(loglet)) = news;
        let Some(copy) = self.store.loglets.get_mut(&loglet) else { return };
        self.touched.insert(loglet);
        match news {
            Durable::Filled(_) => {}
            Durable::Entries(_) => {
                let sealed = copy.seal == Sealing::Sealed;
                if sealed && mutant(mutants::NATIVE_T4) {
                    let state = ServerState { sealed: false, ..copy.state() };
                    post_standing(copy, loglet, Verdict::Done {}, state, Lsn::NONE, out);
                }
                copy.protocol.report(if sealed { Verdict::Sealed {} } else { Verdict::Done {} });
            }
            Durable::Seal(_) => {
                if copy.local_tail > copy.protocol.reported_tail && copy.seal != Sealing::Sealed {
                    // These entries were stored before the seal and are part of its tail. Answer them here (native-T4), so that the
                    // outcome of their appends does not become unknown.
                    hit("native.server.stores_finished_by_seal");
                    let state = copy.state();
                    post_standing(copy, loglet, Verdict::Done {}, state, Lsn::NONE, out);
                }
                copy.seal = Sealing::Sealed;
                copy.protocol.to_report = Some(Verdict::Sealed {});
                self.learn_sealed_tail(loglet, out);
            }
        }
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Store::KIND => self.on_store(from, Store::from_frame(f)?, out)?,
            Advance::KIND => self.on_advance(from, Advance::from_frame(f)?, out),
            Seal::KIND => self.on_seal(from, Seal::from_frame(f)?, out),
            Info::KIND => self.on_info(from, Info::from_frame(f)?, out),
            Wait::KIND => self.on_wait(now, from, Wait::from_frame(f)?, out),
            Repair::KIND => self.on_repair(from, Repair::from_frame(f)?, out)?,
            ReadNext::KIND => self.on_read_next(now, from, ReadNext::from_frame(f)?, out),
            Read::KIND => self.on_read(from, Read::from_frame(f)?, out),
            Trim::KIND => self.on_trim(from, Trim::from_frame(f)?, out),
            Delete::KIND => self.on_delete(from, Delete::from_frame(f)?, out),
            BackFill::KIND => self.on_back_fill(from, BackFill::from_frame(f)?, out),
            Fill::KIND => self.on_fill(from, Fill::from_frame(f)?, out)?,
            FillEnded::KIND => self.on_fill_ended(from, FillEnded::from_frame(f)?, out),
            CheckEnded::KIND => self.on_check_ended(from, CheckEnded::from_frame(f)?, now, out),
            Status::KIND => self.on_status(from, Status::from_frame(f)?, out),
            StatusOf::KIND => self.on_status_of(from, StatusOf::from_frame(f)?, out),
            got => return Err(DecodeError::WrongKind { expected: "a message for a LogServer", got }),
        }
        Ok(())
    }

    /// Returns whether a message comes from this node itself. Fill, FillEnded and CheckEnded are accepted from no other.
    fn is_own(&self, from: NodeId) -> bool {
        from == self.env.node()
    }
}

/// Posts the cumulative report to the sequencer (contracts §3.6).
fn post_standing(
    copy: &mut LogletCopy,
    loglet: LogletId,
    verdict: Verdict,
    state: ServerState,
    reveals: Lsn,
    out: &mut Effects,
) {
    let (round, expects) = (copy.protocol.round, copy.staged_tail);
    if !state.sealed {
        copy.protocol.reported_tail = state.local_tail;
    }
    let message = StoredUpTo { loglet, verdict, round, expects, state };
    out.post(copy.protocol.config.sequencer.0, Class::Data, SEQUENCER, message, reveals);
}

impl Role for LogServer {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            if let Some(news) = self.store.on_durable(*lsn, *loc, out) {
                self.on_durable_record(news, out);
            }
        }
        self.store.trim_cache();
    }

    fn deadline(&self) -> Option<Tick> {
        [self.waits.next_end(), self.next_look, self.store.sweep_at()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        for waiter in self.waits.take_ended(now) {
            self.answer_waiter(&waiter, Verdict::Done {}, out);
        }
        if self.next_look.is_some_and(|at| at <= now) {
            self.look_for_gaps(now, out);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        for loglet in std::mem::take(&mut self.touched) {
            self.post_report(loglet, out);
            self.wake_waiters(loglet, out);
            if let Some(copy) = self.store.loglets.get(&loglet)
                && copy.lags()
                && !self.lagging.contains_key(&loglet)
            {
                self.lagging.insert(loglet, copy.known_tail);
                self.next_look.get_or_insert(now.after(self.options.fill_after));
            }
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
                self.answer_waiter(&waiter, Verdict::StorageFailed {}, out);
            }
        }
        self.store.on_room(out);
    }

    fn on_link(&mut self, now: Tick, peer: NodeId, class: Class, up: bool, _out: &mut Effects) {
        if up && class == Class::Control {
            self.doubt_shared_with(now, peer);
        }
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

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.store.recover(stored).map(|_| ())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        let dead = self.store.recovered();
        self.doubt_everything();
        dead
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let names = [
            "native_loglets",
            "native_tombstones",
            "native_cache_bytes",
            "native_disk_reads",
            "native_entry_bytes",
        ];
        self.store.measure(names, out);
        let mut put = |name, value: f64| out.push(Measure { name, label: None, value });
        put("native_waits", self.waits.len() as f64);
        // Every loglet that lacks entries is in `lagging`. A sum over all loglets would take longer the more there are.
        let lagging = self.lagging.keys().filter_map(|loglet| self.store.loglets.get(loglet));
        let missing: u64 = lagging.map(|r| r.runs.missing_count(r.known_tail)).sum();
        put("native_missing_entries", missing as f64);
        put("native_fills", self.fills as f64);
    }
}
