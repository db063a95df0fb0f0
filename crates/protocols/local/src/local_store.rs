//! The store of all local loglets of a node. It is both the sequencer and the only server, so its journal alone decides.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::Budget;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Env, FetchError, Frame, Loc, Lsn, Measure, Message, Refused, Role, Space,
    StorageId, Stored, Tick,
};

use super::invariants;
use super::message::LocalAppend;
use super::mutants;
use crate::appends::Local;
use atoll_loglet_store::deduplicator::Deduplicator;
use atoll_loglet_store::message::{
    Answer, Delete, Entries, Info, Read, Repair, Seal, ServerState, Status, StatusPage, Trim, Verdict, Wait,
    status_page,
};
use atoll_loglet_store::parse_counted;
use atoll_loglet_store::store::{
    Durable, LogletState, LogletStore, LogletStoreOptions, ReadOutcome, Sealing, Waiter, Waits,
};

/// Limits of a local store.
#[derive(Clone, Debug)]
pub struct LocalStoreOptions {
    /// Memory, reads and compaction.
    pub store: LogletStoreOptions,
    /// Maximum number of requests at this node that wait for a tail. Further ones are answered at once.
    pub max_waits: usize,
    /// Maximum number of bytes on the way to the disk per loglet. Further appends wait until there is room.
    pub window_bytes: usize,
    /// The same limit for all loglets together.
    pub node_window_bytes: usize,
    /// Maximum number of bytes of appends that wait for room, for all loglets together. Further appends are refused as busy. Too small:
    /// their senders pause. Too large: memory.
    pub held_bytes: usize,
    /// How long an append may wait for room before it is refused as busy.
    pub patience: Duration,
    /// Number of spans of operations that are remembered per loglet, 32 bytes each. They are recovered after a restart.
    pub dedupe_spans: usize,
}

impl Default for LocalStoreOptions {
    fn default() -> Self {
        LocalStoreOptions {
            store: LogletStoreOptions::default(),
            max_waits: 16 * 1024,
            window_bytes: 64 << 20,
            node_window_bytes: 256 << 20,
            held_bytes: 64 << 20,
            patience: Duration::from_millis(700),
            dedupe_spans: 512 * 1024,
        }
    }
}

fn state(kept: &LogletState<Local>) -> ServerState {
    ServerState {
        sealed: kept.seal == Sealing::Sealed,
        local_tail: if mutant(mutants::LOCAL_STAGED_TAIL) { kept.staged_tail } else { kept.local_tail },
        known_tail: kept.known_tail,
        trim: kept.trim,
    }
}

fn reached(kept: &LogletState<Local>, waiter: &Waiter) -> bool {
    kept.seal == Sealing::Sealed || kept.local_tail >= waiter.target
}

/// See the module documentation.
pub struct LocalStore {
    pub(crate) env: Env,
    storage: StorageId,
    pub(crate) options: LocalStoreOptions,
    pub(crate) store: LogletStore<Local>,
    /// Budget for the bytes of all loglets on the way to the disk.
    pub(crate) in_flight: Arc<Budget>,
    /// Budget for the appends of all loglets that wait for room.
    pub(crate) held: Arc<Budget>,
    /// The loglets with appends that wait for room.
    pub(crate) holding: BTreeSet<LogletId>,
    waits: Waits,
    touched: BTreeSet<LogletId>,
}

impl LocalStore {
    /// Creates the store of the node of `env`, on the data directory `storage`.
    pub fn new(env: Env, storage: StorageId, options: LocalStoreOptions) -> Self {
        LocalStore {
            env,
            storage,
            store: LogletStore::new(options.store.clone()),
            in_flight: Arc::new(Budget::new(options.node_window_bytes)),
            held: Arc::new(Budget::new(options.held_bytes)),
            holding: BTreeSet::new(),
            waits: Waits::new(options.max_waits),
            options,
            touched: BTreeSet::new(),
        }
    }

    /// Returns the loglet. Creates it from its configuration if that names this data directory and the loglet was never deleted.
    pub(crate) fn loglet(
        &mut self,
        loglet: LogletId,
        config: &Bytes,
        out: &mut Effects,
    ) -> Result<&mut LogletState<Local>, Verdict> {
        if !self.store.loglets.contains_key(&loglet) {
            if self.store.is_gone(loglet) {
                return Err(Verdict::Gone {});
            }
            if config.is_empty() {
                return Err(Verdict::Unconfigured {});
            }
            let config = self.store.config(config).map_err(|_| Verdict::WrongIdentity {})?;
            let meant = &config.1;
            if (meant.node, meant.storage) != (self.env.node(), self.storage) {
                hit("local.wrong_identity");
                return Err(Verdict::WrongIdentity {});
            }
            if out.space() == Space::Closed {
                return Err(Verdict::StorageFailed {});
            }
            self.store.create(loglet, config, out);
        }
        self.store.loglets.get_mut(&loglet).map(|kept| &mut **kept).ok_or(Verdict::Unconfigured {})
    }

    fn answer(&self, to: Caller, loglet: LogletId, verdict: Verdict, reveals: Lsn, out: &mut Effects) {
        let state = self.store.loglets.get(&loglet).map_or(ServerState::NOTHING, |kept| state(kept));
        out.reply(to, Answer { verdict, state }, reveals);
    }

    fn on_seal(&mut self, from: Caller, m: Seal, out: &mut Effects) {
        let closed = out.space() == Space::Closed;
        let kept = match self.loglet(m.loglet, &m.config, out) {
            Ok(kept) => kept,
            Err(verdict) => return self.answer(from, m.loglet, verdict, Lsn::NONE, out),
        };
        let tail = kept.staged_tail;
        let lsn = match kept.seal {
            Sealing::Sealed => Lsn::NONE,
            _ if closed => {
                return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
            }
            Sealing::Staged(lsn) => lsn,
            Sealing::Open => self.store.stage_seal(m.loglet, out),
        };
        let before = self.store.loglets.get(&m.loglet).map_or(ServerState::NOTHING, |kept| state(kept));
        let state = ServerState { sealed: true, local_tail: tail, known_tail: tail, ..before };
        let reveals = if mutant(mutants::LOCAL_SEAL_EARLY) { Lsn::NONE } else { lsn };
        out.reply(from, Answer { verdict: Verdict::Done {}, state }, reveals);
    }

    fn on_wait(&mut self, now: Tick, from: Caller, m: Wait, out: &mut Effects) {
        let patience = Duration::from_millis(m.patience_ms.into());
        let (loglet, target) = (m.loglet, m.target);
        let waiter = Waiter { caller: from, loglet, target, known_only: true, reads: None };
        let closed = out.space() == Space::Closed;
        let verdict = match self.loglet(m.loglet, &m.config, out).map(|kept| reached(kept, &waiter)) {
            Ok(reached) if !reached && !closed && self.waits.push(now, patience, waiter) => return,
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        self.answer(from, m.loglet, verdict, Lsn::NONE, out);
    }

    fn on_read(&mut self, from: Caller, m: Read, out: &mut Effects) {
        let outcome = match self.store.loglets.get(&m.loglet) {
            None if self.store.is_gone(m.loglet) => Err(Verdict::Gone {}),
            Some(kept) if m.from < kept.trim => Err(Verdict::Trimmed {}),
            _ => Ok(self.store.read(from, m.loglet, m.from..m.to, m.max_bytes as usize, out)),
        };
        match outcome {
            Ok(outcome) => self.answer_read(from, m.loglet, m.from, outcome, out),
            Err(verdict) => self.no_entries(from, m.loglet, verdict, out),
        }
    }

    fn answer_read(
        &self,
        to: Caller,
        loglet: LogletId,
        first: Offset,
        outcome: ReadOutcome,
        out: &mut Effects,
    ) {
        let verdict = match outcome {
            // It was deleted while the read waited for the disk. An answer with entries would also have to say what else is here.
            ReadOutcome::Ready(..) if self.store.is_gone(loglet) => {
                hit("local.store.gone_while_read");
                Verdict::Gone {}
            }
            ReadOutcome::Ready(counts, batches, reveals) => {
                let state = self.store.loglets.get(&loglet).map_or(ServerState::NOTHING, |kept| state(kept));
                let message = Entries { verdict: Verdict::Done {}, state, first, counts, batches };
                return out.reply(to, message, reveals);
            }
            ReadOutcome::Fetching => return,
            ReadOutcome::NotHere => Verdict::NotHere {},
            ReadOutcome::Busy => Verdict::Busy {},
            ReadOutcome::Damaged(reason) => Verdict::Damaged { reason },
        };
        self.no_entries(to, loglet, verdict, out);
    }

    fn no_entries(&self, to: Caller, loglet: LogletId, verdict: Verdict, out: &mut Effects) {
        let state = self.store.loglets.get(&loglet).map_or(ServerState::NOTHING, |kept| state(kept));
        let (first, counts, batches) = (Offset::ZERO, Vec::new(), Vec::new());
        out.reply(to, Entries { verdict, state, first, counts, batches }, Lsn::NONE);
    }

    fn on_trim(&mut self, from: Caller, m: Trim, out: &mut Effects) {
        let verdict = match self.loglet(m.loglet, &m.config, out) {
            Ok(_) if out.space() == Space::Closed => Verdict::StorageFailed {},
            Ok(_) => Verdict::Done {},
            Err(verdict) => verdict,
        };
        let trimmed = verdict == (Verdict::Done {});
        let reveals = if trimmed { self.store.stage_trim(m.loglet, m.to, out) } else { Lsn::NONE };
        self.answer(from, m.loglet, verdict, reveals, out);
    }

    fn on_delete(&mut self, from: Caller, m: Delete, out: &mut Effects) {
        if out.space() == Space::Closed {
            return self.answer(from, m.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
        }
        self.forget_appends(m.loglet, out);
        let lsn = self.store.stage_delete(m.loglet, out);
        for waiter in self.waits.take(m.loglet, |_| true) {
            self.answer(waiter.caller, m.loglet, Verdict::Gone {}, Lsn::NONE, out);
        }
        self.answer(from, m.loglet, Verdict::Done {}, lsn, out);
    }

    /// Stores a copy in a loglet that is created sealed (virtuallog §7). Accepts only the next offset, or one that is already here.
    fn on_copy(&mut self, from: Caller, m: Repair, out: &mut Effects) -> Result<(), DecodeError> {
        let batch = parse_counted(m.batch, m.count)?;
        let space = out.space();
        let end = m.first.plus(m.count.into());
        let (verdict, reveals) = match self.loglet(m.loglet, &m.config, out) {
            Err(verdict) => (verdict, Lsn::NONE),
            Ok(kept) if kept.seal == Sealing::Open => (Verdict::NotSealed {}, Lsn::NONE),
            Ok(kept) if end <= kept.staged_tail => match kept.newest_staged(m.first.max(kept.trim), end) {
                Some(lsn) => (Verdict::Done {}, lsn),
                None => (Verdict::OutOfOrder {}, Lsn::NONE),
            },
            Ok(_) if space == Space::Closed => (Verdict::StorageFailed {}, Lsn::NONE),
            Ok(_) if space == Space::FactsOnly => (Verdict::DiskFull {}, Lsn::NONE),
            Ok(kept) if m.first > kept.staged_tail => (Verdict::OutOfOrder {}, Lsn::NONE),
            Ok(kept) => {
                let at = kept.staged_tail;
                let rest = batch.slice(at.since(m.first) as usize, batch.len());
                (Verdict::Done {}, self.stage(m.loglet, at, &rest, out))
            }
        };
        self.answer(from, m.loglet, verdict, reveals, out);
        Ok(())
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            LocalAppend::KIND => self.on_append(now, from, LocalAppend::from_frame(f)?, out),
            Info::KIND => {
                let m = Info::from_frame(f)?;
                let verdict = self.loglet(m.loglet, &m.config, out).err().unwrap_or(Verdict::Done {});
                self.answer(from, m.loglet, verdict, Lsn::NONE, out);
            }
            Wait::KIND => self.on_wait(now, from, Wait::from_frame(f)?, out),
            Seal::KIND => self.on_seal(from, Seal::from_frame(f)?, out),
            Read::KIND => self.on_read(from, Read::from_frame(f)?, out),
            Repair::KIND => self.on_copy(from, Repair::from_frame(f)?, out)?,
            Trim::KIND => self.on_trim(from, Trim::from_frame(f)?, out),
            Delete::KIND => self.on_delete(from, Delete::from_frame(f)?, out),
            Status::KIND => {
                let m = Status::from_frame(f)?;
                let (loglets, more) = status_page(&self.store, m.above, state);
                out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
            }
            got => return Err(DecodeError::WrongKind { expected: "a message for a local store", got }),
        }
        Ok(())
    }
}

impl Role for LocalStore {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            let Some(news) = self.store.on_durable(*lsn, *loc, out) else { continue };
            let (Durable::Entries(loglet) | Durable::Filled(loglet) | Durable::Seal(loglet)) = news;
            let Some(kept) = self.store.loglets.get_mut(&loglet) else { continue };
            if news == Durable::Seal(loglet) {
                kept.seal = Sealing::Sealed;
            }
            kept.raise_known_tail(kept.local_tail);
            invariants::tails(kept.known_tail, kept.local_tail, kept.staged_tail);
            kept.protocol.stored(kept.local_tail, &self.in_flight);
            if kept.seal == Sealing::Sealed {
                kept.protocol.sealed();
            }
            self.touched.insert(loglet);
        }
        self.store.trim_cache();
    }

    fn deadline(&self) -> Option<Tick> {
        [self.waits.next_end(), self.store.sweep_at(), self.next_given_up()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        self.give_up(now, out);
        for waiter in self.waits.take_ended(now) {
            self.answer(waiter.caller, waiter.loglet, Verdict::Done {}, Lsn::NONE, out);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        self.admit(out);
        for loglet in std::mem::take(&mut self.touched) {
            let Some(kept) = self.store.loglets.get(&loglet) else { continue };
            for waiter in self.waits.take(loglet, |w| reached(kept, w)) {
                self.answer(waiter.caller, loglet, Verdict::Done {}, Lsn::NONE, out);
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

    /// Restores the remembered operations, because a retry may arrive after the restart that caused it.
    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let spans = self.options.dedupe_spans;
        if let Some((loglet, first, payload)) = self.store.recover(stored)? {
            let batch = Batch::parse(payload)?;
            if let Some(kept) = self.store.loglets.get_mut(&loglet)
                && kept.seal == Sealing::Open
            {
                let deduplicator =
                    kept.protocol.deduplicator.get_or_insert_with(|| Deduplicator::new(spans, Offset::ZERO));
                deduplicator.note(&batch, first);
                deduplicator.forget_below(kept.local_tail);
            }
        }
        Ok(())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        for kept in self.store.loglets.values_mut() {
            kept.raise_known_tail(kept.local_tail);
            // Trimmed entries may be gone from the disk, so their operations were not recovered.
            if let Some(deduplicator) = &mut kept.protocol.deduplicator {
                deduplicator.forgot(kept.trim);
            }
        }
        self.store.recovered()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let names = [
            "local_loglets",
            "local_tombstones",
            "local_cache_bytes",
            "local_disk_reads",
            "local_entry_bytes",
        ];
        self.store.measure(names, out);
        out.push(Measure { name: "local_waits", label: None, value: self.waits.len() as f64 });
        out.push(Measure { name: "local_waiting_appends", label: None, value: self.held_appends() as f64 });
    }
}
