//! The LogServer: keeps entries, the seal bit and the trim of every native loglet of its node (native §2, §4).
//!
//! | file | what it is |
//! | --- | --- |
//! | `replica.rs` | the state of one loglet, and the order rule |
//! | `store.rs` | Store, Advance, Seal, Repair, Fill: what changes it |
//! | `serve.rs` | Info, Wait, Read, Trim, Delete, BackFill, Status |
//! | `durable.rs` | what happens when the journal answers; compaction |
//! | `facts.rs`, `recovery.rs` | records, checkpoint, restart |

mod durable;
mod facts;
mod recovery;
mod replica;
mod serve;
mod store;

pub(super) use self::store::parse_counted;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::{Mutant, hit, mutant};
use atoll_core::{
    Caller, Class, DecodeError, Effects, Encode, Env, FetchError, Frame, Loc, Lsn, Measure, Message, NodeId,
    RecordKind, Refused, Role, Space, StorageId, Stored, Tick, roles,
};
use atoll_log::{LogletId, Offset};

use self::facts::Fact;
use self::replica::{Replica, Sealing};
use super::config::{self, NativeConfig};
use super::message::*;
use crate::store::{PendingReads, TailCache};

/// Bounds and paces of a LogServer.
#[derive(Clone, Debug)]
pub struct LogServerOptions {
    /// Entries held in memory for tailing readers. Too small: readers that are a little behind go to the disk.
    pub cache_bytes: usize,
    /// Requests that wait for a tail, on this node. Beyond it they are answered at once.
    pub max_waits: usize,
    /// Reads that wait for the disk, on this node. Beyond it they are refused as busy.
    pub max_disk_reads: usize,
    /// How long an entry that others have may be missing here before it is fetched. Too small: what is on its way is
    /// fetched twice.
    pub fill_after: Duration,
    /// Back-fills at once, on this node.
    pub max_fills: usize,
    /// Bytes that compaction has in flight.
    pub move_bytes: usize,
}

impl Default for LogServerOptions {
    fn default() -> Self {
        LogServerOptions {
            cache_bytes: 64 << 20,
            max_waits: 16 * 1024,
            max_disk_reads: 512,
            fill_after: Duration::from_millis(500),
            max_fills: 2,
            move_bytes: 4 << 20,
        }
    }
}

/// What a staged record of this role is, in the order of the journal.
#[derive(Debug)]
enum Staged {
    Create,
    Entry { loglet: LogletId, first: Offset },
    Moved { loglet: LogletId, first: Offset, from: Loc },
    Seal { loglet: LogletId },
    Trim { loglet: LogletId },
    Tombstone { loglet: LogletId },
    Known,
}

#[derive(Debug)]
struct Waiter {
    caller: Caller,
    loglet: LogletId,
    target: Offset,
    known_only: bool,
    until: Tick,
}

/// See the module's words. One object serves all native loglets of a node.
pub struct LogServer {
    env: Env,
    storage: StorageId,
    options: LogServerOptions,
    loglets: BTreeMap<LogletId, Replica>,
    tombstones: BTreeSet<LogletId>,
    /// Deleted; their places are freed once the tombstone is durable.
    dying: BTreeMap<LogletId, Replica>,
    staged: VecDeque<(Lsn, Staged)>,
    cache: TailCache,
    reads: PendingReads<(LogletId, Offset)>,
    next_tag: u64,
    waiters: BTreeMap<u64, Waiter>,
    wait_ends: BTreeSet<(Tick, u64)>,
    next_waiter: u64,
    /// Loglets whose state moved in this turn.
    touched: BTreeSet<LogletId>,
    /// Loglets that lack committed entries, with the known tail at the last look.
    lagging: BTreeMap<LogletId, Offset>,
    next_look: Option<Tick>,
    fills: usize,
    moves: durable::Moves,
    /// Recovery only: places that nobody needs.
    dead_places: Vec<Loc>,
}

impl LogServer {
    /// A LogServer of the node of `env`, on the data directory `storage` (T8).
    pub fn new(env: Env, storage: StorageId, options: LogServerOptions) -> Self {
        LogServer {
            env,
            storage,
            cache: TailCache::new(options.cache_bytes),
            reads: PendingReads::new(options.max_disk_reads),
            options,
            loglets: BTreeMap::new(),
            tombstones: BTreeSet::new(),
            dying: BTreeMap::new(),
            staged: VecDeque::new(),
            next_tag: 0,
            waiters: BTreeMap::new(),
            wait_ends: BTreeSet::new(),
            next_waiter: 0,
            touched: BTreeSet::new(),
            lagging: BTreeMap::new(),
            next_look: None,
            fills: 0,
            moves: durable::Moves::default(),
            dead_places: Vec::new(),
        }
    }

    fn stage_fact(&mut self, fact: Fact, what: Staged, out: &mut Effects) -> Lsn {
        let lsn = out.journal(RecordKind::Fact, fact.to_bytes(), Bytes::new());
        self.staged.push_back((lsn, what));
        lsn
    }

    /// The replica of a loglet; created if the message carries the configuration and this node may serve it.
    fn replica(
        &mut self,
        loglet: LogletId,
        config: &Bytes,
        out: &mut Effects,
    ) -> Result<&mut Replica, Verdict> {
        if !self.loglets.contains_key(&loglet) {
            self.create(loglet, config, out)?;
        }
        self.loglets.get_mut(&loglet).ok_or(Verdict::Unconfigured {})
    }

    /// Creation from a full configuration, never of what was deleted (T10), only with the data directory meant (T8).
    fn create(&mut self, loglet: LogletId, config: &Bytes, out: &mut Effects) -> Result<(), Verdict> {
        if self.tombstones.contains(&loglet) && !mutant(Mutant::NativeT10) {
            hit("native.server.tombstone");
            return Err(Verdict::Gone {});
        }
        if config.is_empty() {
            return Err(Verdict::Unconfigured {});
        }
        let parsed = config::parse(config).map_err(|_| Verdict::WrongIdentity {})?;
        self.check_identity(&parsed)?;
        if out.space() == Space::Closed {
            return Err(Verdict::StorageFailed {});
        }
        // A copy: the slice would pin a network buffer for the life of the loglet (X13).
        let config = Bytes::copy_from_slice(config);
        self.stage_fact(Fact::Create { loglet, config: config.clone() }, Staged::Create, out);
        self.loglets.insert(loglet, Replica::new(parsed, config));
        Ok(())
    }

    fn check_identity(&self, config: &NativeConfig) -> Result<(), Verdict> {
        match config.storage_of(self.env.node()) {
            Some(storage) if storage == self.storage || mutant(Mutant::NativeT8) => Ok(()),
            _ => {
                hit("native.server.wrong_identity");
                Err(Verdict::WrongIdentity {})
            }
        }
    }

    fn state_of(&self, loglet: LogletId) -> ServerState {
        self.loglets.get(&loglet).map_or(ServerState::NOTHING, Replica::state)
    }

    fn answer(&self, to: Caller, loglet: LogletId, verdict: Verdict, reveals: Lsn, out: &mut Effects) {
        out.reply(to, Answer { verdict, state: self.state_of(loglet) }, reveals);
    }

    /// Posts what the sequencer has to know; the state is durable, or revealed no earlier than it is.
    fn post_news(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(replica) = self.loglets.get_mut(&loglet) else { return };
        let Some(verdict) = replica.news.take() else { return };
        let (state, reveals) = match replica.seal {
            Sealing::Staged(lsn) => (replica.staged_state(), lsn),
            _ => (replica.state(), Lsn::NONE),
        };
        replica.told_tail = state.local_tail;
        let round = replica.round;
        let message = StoredUpTo { loglet, verdict, round, expects: replica.staged_tail, state };
        out.post(replica.config.sequencer.0, Class::Data, roles::SEQUENCER, message, reveals);
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Store::KIND => self.on_store(from, Store::from_frame(f)?, out)?,
            Advance::KIND => self.on_advance(from, Advance::from_frame(f)?),
            Seal::KIND => self.on_seal(from, Seal::from_frame(f)?, out),
            Info::KIND => self.on_info(from, Info::from_frame(f)?, out),
            Wait::KIND => self.on_wait(now, from, Wait::from_frame(f)?, out),
            Repair::KIND => self.on_repair(from, Repair::from_frame(f)?, out)?,
            Read::KIND => self.on_read(from, Read::from_frame(f)?, out),
            Trim::KIND => self.on_trim(from, Trim::from_frame(f)?, out),
            Delete::KIND => self.on_delete(from, Delete::from_frame(f)?, out),
            BackFill::KIND => self.on_back_fill(from, BackFill::from_frame(f)?, out),
            Fill::KIND => self.on_fill(from, Fill::from_frame(f)?, out)?,
            FillEnded::KIND => self.on_fill_ended(from, FillEnded::from_frame(f)?),
            Status::KIND => self.on_status(from, Status::from_frame(f)?, out),
            got => return Err(DecodeError::WrongKind { expected: "a message for a LogServer", got }),
        }
        Ok(())
    }

    /// True for a message that only this node may send to itself.
    fn is_own(&self, from: NodeId) -> bool {
        from == self.env.node()
    }
}

impl Role for LogServer {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            self.on_record_durable(*lsn, *loc, out);
        }
        self.trim_cache();
    }

    fn deadline(&self) -> Option<Tick> {
        let wait = self.wait_ends.first().map(|(at, _)| *at);
        [wait, self.next_look].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        while let Some((at, id)) = self.wait_ends.first().copied() {
            if at > now {
                break;
            }
            self.end_wait(id, out);
        }
        if self.next_look.is_some_and(|at| at <= now) {
            self.look_for_gaps(now, out);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        for loglet in std::mem::take(&mut self.touched) {
            self.post_news(loglet, out);
            self.wake_waiters(loglet, out);
            if let Some(replica) = self.loglets.get(&loglet)
                && replica.lags()
                && !self.lagging.contains_key(&loglet)
            {
                self.lagging.insert(loglet, replica.known_tail);
                self.next_look.get_or_insert(now.after(self.options.fill_after));
            }
        }
    }

    fn on_fetched(&mut self, _now: Tick, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        match self.reads.take(tag) {
            Some((caller, at, plan)) => self.finish_read(caller, at, plan, got, out),
            None => self.on_move_fetched(tag, got, out),
        }
    }

    fn on_space(&mut self, _now: Tick, space: Space, out: &mut Effects) {
        if space == Space::Closed {
            // What was on its way to the disk is lost to this life; the durable state goes on answering (T22).
            self.staged.clear();
            self.wait_ends.clear();
            for (_, waiter) in std::mem::take(&mut self.waiters) {
                self.answer(waiter.caller, waiter.loglet, Verdict::StorageFailed {}, Lsn::NONE, out);
            }
        }
    }

    fn on_compact(&mut self, _now: Tick, segment: u64, out: &mut Effects) {
        self.start_moves(segment, out);
    }

    fn checkpoint(&self) -> Bytes {
        self.write_checkpoint()
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.read_checkpoint(checkpoint)
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.recover_record(stored)
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.finish_recovery()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let mut put = |name, value: f64| out.push(Measure { name, label: None, value });
        put("native_loglets", self.loglets.len() as f64);
        put("native_tombstones", self.tombstones.len() as f64);
        put("native_cache_bytes", self.cache.used_bytes() as f64);
        put("native_waits", self.waiters.len() as f64);
        put("native_disk_reads", self.reads.len() as f64);
        let missing: u64 = self.loglets.values().map(|r| r.runs.missing_count(r.known_tail)).sum();
        put("native_missing_entries", missing as f64);
        put("native_entry_bytes", self.loglets.values().map(|r| r.runs.len_bytes()).sum::<u64>() as f64);
        put("native_fills", self.fills as f64);
    }
}
