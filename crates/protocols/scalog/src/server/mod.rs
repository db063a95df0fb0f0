//! A storage server: the segments of every shard of which this node is a server (scalog.md §1, §2).
//!
//! | file | what it is |
//! | --- | --- |
//! | `append.rs` | takes records as the primary of a segment |
//! | `replicate.rs` | the stream of records from a primary to its backups |
//! | `report.rs` | reports what is synced |
//! | `ordered.rs` | applies the ordering log: numbers records, answers appends, trims, adds and ends shards |
//! | `fetch.rs` | reads by global sequence number |
//! | `segment.rs`, `numbers.rs`, `shard.rs` | the state |
//!
//! The loglet store journals, reads back and recovers (`atoll_loglet_store::store`). Each segment is a Loglet there, with an id of its own.
//! The numbers of records are not journaled: a server that was restarted reads the ordering log again.

mod append;
mod fetch;
mod numbers;
mod ordered;
mod replicate;
mod report;
pub mod segment;
mod shard;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{Batch, LogletId, Offset};
use atoll_core::testing::hit;
use atoll_core::{
    Caller, DecodeError, Effects, Encode, Env, FetchError, Frame, Loc, Lsn, Measure, Message, Refused, Role,
    Space, StorageId, Stored, Tick,
};
use atoll_loglet_store::message::{
    Answer, Delete, STATUS_PAGE, ServerState, Status, StatusPage, Verdict, status_page,
};
use atoll_loglet_store::store::{LogletState, LogletStore, LogletStoreOptions};

use crate::config::{Leaves, ScalogConfig, Server};
use crate::message::{Append, Fetch, Follow, Held, Holding, Outcome, Replicate, Replicated};
use crate::order::Order;
use crate::ordering::{ORDERING_PART, OrderingLogs, follow};
use crate::roles::SERVER;
use fetch::Patient;
use segment::{SEGMENT_FORMAT, Segment, SegmentConfig};
use shard::{Mine, Peer};

/// Limits of a storage server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Memory, reads and compaction.
    pub store: LogletStoreOptions,
    /// The most bytes of records of one shard that are not ordered yet. Further appends are refused as busy.
    pub window_bytes: usize,
    /// The most messages with records that are under way to one backup.
    pub window_messages: usize,
    /// The most bytes that one step of replication reads.
    pub step_bytes: usize,
    /// The number of operations that are remembered for each segment. A retry of a forgotten one must search the log.
    pub remembered: usize,
    /// The most reads that wait for a cut, for each Loglet.
    pub max_waits: usize,
    /// How long to wait for an answer of a peer, or an effect of a report, before it is sent again.
    pub resend: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            store: LogletStoreOptions::default(),
            window_bytes: 64 << 20,
            window_messages: 64,
            step_bytes: atoll_loglet_store::STEP_BYTES as usize,
            remembered: 256 * 1024,
            max_waits: 4096,
            resend: Duration::from_millis(20),
        }
    }
}

/// One Loglet on this server.
#[derive(Debug)]
struct Here {
    config: ScalogConfig,
    config_bytes: Bytes,
    /// Where reports go.
    leaves: Leaves,
    order: Order,
    /// The shards of this server. Ended ones stay, because their records are read.
    shards: BTreeMap<u32, Mine>,
    /// Reads that wait for a cut.
    patient: Vec<Patient>,
    /// Whether a procedure follows the ordering log, or has followed it to its end.
    follows: bool,
    /// Whether the ordering log is sealed: nothing is acknowledged any more.
    ended: bool,
    /// Whether a procedure looks for entries that turned up after the seal.
    looks: bool,
}

impl Here {
    /// Returns whether no append is acknowledged any more.
    fn is_sealed(&self) -> bool {
        self.ended || self.order.is_sealed()
    }
}

/// See the module documentation.
pub struct StorageServer {
    env: Env,
    me: Server,
    logs: Arc<dyn OrderingLogs>,
    options: ServerOptions,
    store: LogletStore<Segment>,
    here: BTreeMap<LogletId, Here>,
    /// When a Loglet has something to send or to answer.
    due: BTreeMap<LogletId, Tick>,
}

type Part = LogletState<Segment>;

impl StorageServer {
    /// Creates a server of the node of `env`, on the data directory `storage`.
    pub fn new(env: Env, storage: StorageId, logs: Arc<dyn OrderingLogs>, options: ServerOptions) -> Self {
        let me = Server { node: env.node(), storage };
        let store = LogletStore::new(options.store.clone());
        StorageServer { env, me, logs, options, store, here: BTreeMap::new(), due: BTreeMap::new() }
    }

    /// Notes that a Loglet has something to do at a time.
    fn wake(&mut self, loglet: LogletId, at: Tick) {
        let due = self.due.entry(loglet).or_insert(at);
        *due = (*due).min(at);
    }

    /// Makes a Loglet known, if the message carries the configuration.
    fn know(
        &mut self,
        now: Tick,
        loglet: LogletId,
        config: &Bytes,
        out: &mut Effects,
    ) -> Result<(), Outcome> {
        if self.here.contains_key(&loglet) {
            return Ok(());
        }
        if self.store.is_gone(loglet) {
            hit("scalog.server.tombstone");
            return Err(Outcome::Gone {});
        }
        if config.is_empty() {
            return Err(Outcome::Unconfigured {});
        }
        let read = ScalogConfig::parse(config).map_err(|_| Outcome::Invalid {})?;
        let servers = || read.all_shards().flat_map(|shard| &shard.servers);
        if servers().any(|s| s.node == self.me.node) && !servers().any(|s| *s == self.me) {
            hit("scalog.server.wrong_identity");
            return Err(Outcome::WrongIdentity {});
        }
        if out.space() == Space::Closed {
            return Err(Outcome::StorageFailed {});
        }
        self.begin(loglet, Bytes::copy_from_slice(config), read);
        self.join_all(now, loglet, out);
        self.start_following(loglet, out);
        Ok(())
    }

    fn begin(&mut self, loglet: LogletId, config_bytes: Bytes, config: ScalogConfig) {
        let (leaves, order) = (config.leaves(), Order::new(&config));
        let (shards, patient) = (BTreeMap::new(), Vec::new());
        let (follows, ended, looks) = (false, false, false);
        let here = Here { config, config_bytes, leaves, order, shards, patient, follows, ended, looks };
        self.here.insert(loglet, here);
    }

    fn start_following(&mut self, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get_mut(&loglet) else { return };
        if here.follows && (!here.ended || here.looks) {
            return;
        }
        let Ok(log) = self.logs.open(loglet, &here.config.ordering) else { return };
        (here.follows, here.looks) = (true, here.ended);
        let from = here.order.applied();
        out.run("scalog.follow", Box::pin(follow(self.env.clone(), log, loglet, SERVER, from)));
    }

    /// Joins the shards that name this server.
    fn join_all(&mut self, now: Tick, loglet: LogletId, out: &mut Effects) {
        let Some(here) = self.here.get(&loglet) else { return };
        let is_new = |(n, shard): &(&u32, &crate::order::Shard)| {
            shard.servers.contains(&self.me) && !here.shards.contains_key(n)
        };
        let new: Vec<u32> = here.order.shards().iter().filter(is_new).map(|(n, _)| *n).collect();
        for shard in new {
            self.join(now, loglet, shard, out);
        }
    }

    /// Finds the segments of a shard in the store, or begins them.
    fn join(&mut self, now: Tick, loglet: LogletId, shard: u32, out: &mut Effects) {
        let Some(here) = self.here.get(&loglet) else { return };
        let Some(servers) = here.order.shards().get(&shard).map(|s| s.servers.clone()) else { return };
        let Some(me) = servers.iter().position(|s| *s == self.me) else { return };
        let config_bytes = here.config_bytes.clone();
        let mut segments = Vec::with_capacity(servers.len());
        for segment in 0..servers.len() as u32 {
            let found = self.parts(loglet).find(|(_, part)| {
                let config = &part.protocol.config;
                (config.shard, config.segment) == (shard, segment)
            });
            let id = match found.map(|(id, _)| id) {
                Some(id) => id,
                None => {
                    let Some(id) = self.free_part(loglet) else {
                        hit("scalog.server.full");
                        return;
                    };
                    let (format, own, config) =
                        (SEGMENT_FORMAT, segment as usize == me, config_bytes.clone());
                    let config = SegmentConfig { format, shard, segment, own, loglet: config }.to_bytes();
                    let Ok(config) = self.store.config(&config) else { return };
                    self.store.create(id, config, out);
                    id
                }
            };
            segments.push(id);
        }
        let tail = self.store.loglets.get(&segments[me]).map_or(0, |part| part.local_tail.0);
        let others = servers.iter().filter(|s| **s != self.me);
        let peers = others.map(|s| Peer::new(s.node, tail, now)).collect();
        if let Some(here) = self.here.get_mut(&loglet) {
            here.shards.insert(shard, Mine::new(me, segments, peers, now));
        }
        self.wake(loglet, now);
    }

    /// Returns the segments of a Loglet in the store.
    fn parts(&self, loglet: LogletId) -> impl Iterator<Item = (LogletId, &Part)> {
        // The parts of a Loglet are no neighbours of each other in the order of ids, but there are few.
        (ORDERING_PART + 1..=u8::MAX).filter_map(move |n| {
            let id = loglet.part(n);
            self.store.loglets.get(&id).map(|part| (id, &**part))
        })
    }

    /// Returns an id for another segment of a Loglet. None once this server has had 254 segments of it.
    fn free_part(&self, loglet: LogletId) -> Option<LogletId> {
        let ids = (ORDERING_PART + 1..=u8::MAX).map(|n| loglet.part(n));
        ids.into_iter().find(|id| !self.store.loglets.contains_key(id) && !self.store.tombstones.contains(id))
    }

    /// Returns how many records of a segment are synced, and how many are at least on their way to the disk.
    fn tails(&self, segment: LogletId) -> (u64, u64) {
        self.store.loglets.get(&segment).map_or((0, 0), |part| (part.local_tail.0, part.staged_tail.0))
    }

    fn on_delete(&mut self, from: Caller, m: &Delete, out: &mut Effects) {
        let state = ServerState::NOTHING;
        if out.space() == Space::Closed {
            return out.reply(from, Answer { verdict: Verdict::StorageFailed {}, state }, Lsn::NONE);
        }
        let whole = m.loglet.whole();
        if let Some(mut here) = self.here.remove(&whole) {
            for mine in here.shards.values_mut() {
                for waiting in std::mem::take(&mut mine.waiting).into_values() {
                    self.answer(waiting.caller, Outcome::Gone {}, Lsn::NONE, out);
                }
            }
            for one in std::mem::take(&mut here.patient) {
                self.nothing(one.caller, crate::message::Found::Gone {}, 0, out);
            }
        }
        self.due.remove(&whole);
        let parts: Vec<LogletId> = self.parts(whole).map(|(id, _)| id).collect();
        for part in parts {
            self.store.stage_delete(part, out);
        }
        // The tombstone of the whole is the newest record: once it is durable, all are.
        let lsn = self.store.stage_delete(whole, out);
        out.reply(from, Answer { verdict: Verdict::Done {}, state }, lsn);
    }

    /// Lists segments. Whoever collects Loglets that no chain names finds the whole by the id of a part.
    fn on_status(&mut self, from: Caller, m: &Status, out: &mut Effects) {
        let (loglets, more) = status_page(&self.store, m.above, Part::state);
        out.reply(from, StatusPage { loglets, more, node: self.env.node() }, Lsn::NONE);
    }

    fn on_holding(&mut self, from: Caller, m: Holding, out: &mut Effects) {
        let wanted = m.loglets.into_iter().take(STATUS_PAGE);
        let one = |id: LogletId| {
            let here = self.here.get(&id)?;
            (!here.shards.is_empty()).then(|| (id, here.order.base()))
        };
        out.reply(from, Held { loglets: wanted.filter_map(one).collect() }, Lsn::NONE);
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Append::KIND => self.on_append(now, from, Append::from_frame(f)?, out),
            Replicate::KIND => self.on_replicate(now, from, Replicate::from_frame(f)?, out),
            Replicated::KIND => self.on_replicated(now, from, &Replicated::from_frame(f)?, out),
            Follow::KIND => self.on_follow(now, from, Follow::from_frame(f)?, out),
            Fetch::KIND => self.on_fetch(now, from, Fetch::from_frame(f)?, out),
            Holding::KIND => self.on_holding(from, Holding::from_frame(f)?, out),
            Delete::KIND => self.on_delete(from, &Delete::from_frame(f)?, out),
            Status::KIND => self.on_status(from, &Status::from_frame(f)?, out),
            got => {
                let expected = "a message for a storage server of scalog";
                return Err(DecodeError::WrongKind { expected, got });
            }
        }
        Ok(())
    }

    fn shards_of(&self, loglet: LogletId) -> Vec<u32> {
        self.here.get(&loglet).map_or_else(Vec::new, |here| here.shards.keys().copied().collect())
    }
}

impl Role for StorageServer {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, now: Tick, _upto: Lsn, mine: &[(Lsn, Loc)], out: &mut Effects) {
        for (lsn, loc) in mine {
            if let Some(atoll_loglet_store::store::Durable::Entries(segment)) =
                self.store.on_durable(*lsn, *loc, out)
            {
                let loglet = segment.whole();
                self.report_soon(now, loglet);
            }
        }
        self.store.trim_cache();
    }

    fn deadline(&self) -> Option<Tick> {
        self.due.values().copied().chain(self.store.sweep_at()).min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
        let due: Vec<LogletId> = self.due.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for loglet in due {
            self.due.remove(&loglet);
            if self.here.get(&loglet).is_some_and(|here| !here.follows) {
                // The first turn after a restart, or the ordering log could not be opened before.
                self.join_all(now, loglet, out);
                self.start_following(loglet, out);
                if self.here.get(&loglet).is_some_and(|here| !here.follows) {
                    self.wake(loglet, now.after(self.options.resend));
                }
            }
            for shard in self.shards_of(loglet) {
                self.report(now, loglet, shard, out);
                self.send_again(now, loglet, shard, out);
            }
            self.end_patience(now, loglet, out);
        }
    }

    fn flush(&mut self, now: Tick, out: &mut Effects) {
        self.store.sweep(now, out);
    }

    fn on_fetched(&mut self, now: Tick, tag: u64, got: Result<Vec<Stored>, FetchError>, out: &mut Effects) {
        let Some((caller, segment, first, outcome)) = self.store.on_fetched(tag, got, out) else { return };
        match caller.request {
            Some(_) => self.fetched_for_reader(caller, segment, first.0, outcome, out),
            None => self.fetched_for_peer(now, caller.node, segment, first.0, outcome, out),
        }
    }

    fn on_space(&mut self, _now: Tick, space: Space, out: &mut Effects) {
        if space == Space::Closed {
            self.store.on_closed();
            let all = self.here.values_mut().flat_map(|here| here.shards.values_mut());
            let waiting: Vec<_> =
                all.flat_map(|mine| std::mem::take(&mut mine.waiting).into_values()).collect();
            for one in waiting {
                self.answer(one.caller, Outcome::StorageFailed {}, Lsn::NONE, out);
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

    /// Recovers the operations of this server's own segments, because a retry may come after the restart that caused it.
    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        let Some((segment, first, payload)) = self.store.recover(stored)? else { return Ok(()) };
        if let Some(part) = self.store.loglets.get_mut(&segment)
            && part.protocol.config.own
        {
            part.protocol.ops.note(&Batch::parse(payload)?, first.0, self.options.remembered);
        }
        Ok(())
    }

    fn recovered(&mut self) -> Vec<Loc> {
        let mut found: BTreeMap<LogletId, Bytes> = BTreeMap::new();
        for (id, part) in &mut self.store.loglets {
            // What was trimmed may be gone from the disk, so its operations were not recovered.
            part.protocol.ops.forgot(part.trim.0);
            found.entry(id.whole()).or_insert_with(|| part.protocol.config.loglet.clone());
        }
        for (loglet, config_bytes) in found {
            if let Ok(config) = ScalogConfig::parse(&config_bytes) {
                self.begin(loglet, config_bytes, config);
                // The rest waits for the first turn, in which procedures can be started.
                self.wake(loglet, Tick(0));
            }
        }
        self.store.recovered()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let names = [
            "scalog_server_segments",
            "scalog_server_tombstones",
            "scalog_server_cache_bytes",
            "scalog_server_disk_reads",
            "scalog_server_entry_bytes",
        ];
        self.store.measure(names, out);
        let pieces: usize = self.here.values().flat_map(|h| h.shards.values()).map(|m| m.numbers.len()).sum();
        out.push(Measure { name: "scalog_server_pieces", label: None, value: pieces as f64 });
    }
}

/// Returns places as offsets.
fn offsets(range: std::ops::Range<u64>) -> std::ops::Range<Offset> {
    Offset(range.start)..Offset(range.end)
}
