//! The server role that reports this replica's progress to its peers and serves state snapshots.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{LogPos, Version};
use atoll_core::frame::Message;
use atoll_core::testing::hit;
use atoll_core::{
    BoxFuture, Caller, Class, Effects, Env, Frame, Level, Loc, Lsn, Refused, Role, Tick, Ticket, ticket,
};

use atoll_log::VirtualLog;

use super::chunk::{Chunk, MAX_PLAIN_BYTES, size_of};
use super::message::{
    AskFence, AskHash, AskReplica, AskService, ChunkReady, ChunkReply, FenceReady, Fenced, FetchChunk,
    HashNow,
};
use crate::engine::Core;
use crate::replica::{HashAt, StateRecord};
use crate::store::{StoreError, StoreSnapshot, may_continue};
use atoll_contract::application::{Direction, KeyRange};

/// The maximum number of snapshots that are open at the same time.
const MOST_SNAPSHOTS: usize = 4;
/// A snapshot that has not been requested for this long is dropped.
const IDLE: Duration = Duration::from_secs(30);
/// The maximum number of requests that wait for a chunk to be read.
const MOST_QUESTIONS: usize = 8;
/// How long a replica may take to answer for a fence.
const FENCED_WITHIN: Duration = Duration::from_secs(5);
/// The number of entries that are read from the store at a time.
const PAGE_ENTRIES: usize = 64;
/// A chunk is full when it has this many bytes before compression.
const FULL_BYTES: usize = 512 * 1024;

/// The replica that the role serves, once it is open.
pub(crate) struct Source {
    pub(crate) core: Arc<Core>,
    pub(crate) log: Arc<VirtualLog>,
    /// Makes the replica commit everything that it has applied.
    pub(crate) commit: Box<dyn Fn() + Send + Sync>,
    /// Whether chunks are read in separate threads instead of the node's thread.
    pub(crate) threads: bool,
}

/// The place through which a replica becomes available to its role. Clones share it.
#[derive(Clone, Default)]
pub struct Shelf(Arc<OnceLock<Source>>);

impl fmt::Debug for Shelf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shelf, {}", if self.0.get().is_some() { "filled" } else { "empty" })
    }
}

impl Shelf {
    pub(crate) fn fill(&self, source: Source) {
        // A node has one database. A second one would not be served.
        let _ = self.0.set(source);
    }
}

struct Open {
    base: Arc<dyn StoreSnapshot>,
    below: LogPos,
    used: Tick,
}

/// See the module documentation.
pub struct ReplicaRole {
    env: Env,
    shelf: Shelf,
    open: BTreeMap<u64, Open>,
    questions: BTreeMap<u64, Caller>,
    asked: u64,
}

fn refuse(from: Caller, reason: impl Into<String>, out: &mut Effects) {
    out.reply(from, Refused { reason: reason.into() }, Lsn::NONE);
}

impl ReplicaRole {
    /// Creates the role, which serves the replica on `shelf`.
    pub fn new(env: Env, shelf: Shelf) -> Self {
        ReplicaRole { env, shelf, open: BTreeMap::new(), questions: BTreeMap::new(), asked: 0 }
    }

    fn on_fetch(&mut self, now: Tick, from: Caller, m: &FetchChunk, out: &mut Effects) {
        let shelf = self.shelf.clone();
        let Some(source) = shelf.0.get() else {
            return refuse(from, "no database is open on this node", out);
        };
        self.open.retain(|_, open| now.since(open.used) < IDLE);
        let snapshot = match self.snapshot(now, source, m) {
            Ok(snapshot) => snapshot,
            Err(reason) => return refuse(from, reason, out),
        };
        let Some(open) = self.open.get_mut(&snapshot) else {
            return refuse(from, format!("snapshot {snapshot} is no longer open; start again"), out);
        };
        open.used = now;
        if self.questions.len() >= MOST_QUESTIONS {
            return refuse(from, "too many pieces are being read: try again", out);
        }
        self.asked += 1;
        self.questions.insert(self.asked, from);
        let work = Reading {
            question: self.asked,
            snapshot,
            below: open.below,
            base: open.base.clone(),
            after: m.after.clone(),
            level: self.env.levels().active(),
        };
        out.run("db.chunk", answer(self.env.clone(), work, source.threads));
    }

    /// Returns the id of the requested snapshot, which may be a new one. The error is the reason for a refusal.
    fn snapshot(&mut self, now: Tick, source: &Source, m: &FetchChunk) -> Result<u64, String> {
        if m.snapshot != 0 {
            return Ok(m.snapshot);
        }
        if source.core.halted().is_some() {
            return Err("this replica has stopped".to_owned());
        }
        if source.core.is_withheld() {
            return Err("this replica is wrong".to_owned());
        }
        if source.core.check.is_under_way() {
            return Err("this replica was just started and is being compared: try again".to_owned());
        }
        if self.open.len() >= MOST_SNAPSHOTS {
            return Err(format!("{MOST_SNAPSHOTS} snapshots are already in use, the maximum; try again"));
        }
        let base = source.core.published().layers.base.clone();
        let below = StateRecord::read(&*base).map_err(|e| e.to_string())?.next;
        if below < m.at_least {
            hit("db.snapshot.too_old");
            (source.commit)();
            return Err(format!("committed below {below} so far, not {}: try again", m.at_least));
        }
        let id = self.env.random().max(1);
        self.open.insert(id, Open { base, below, used: now });
        Ok(id)
    }

    fn on_ask_hash(&self, from: Caller, out: &mut Effects) {
        let Some(source) = self.shelf.0.get() else {
            return refuse(from, "no database is open on this node", out);
        };
        // The hash of a replica that is known to be wrong does not count.
        match source.core.check.now().filter(|_| !source.core.is_withheld()) {
            Some(HashAt { below, hash }) => {
                let vouched = source.core.check.vouches();
                out.reply(from, HashNow { below, hash, vouched }, Lsn::NONE);
            }
            None => refuse(from, "this replica has no confirmed state", out),
        }
    }

    fn on_ask_fence(&mut self, from: Caller, version: Version, out: &mut Effects) {
        let Some(source) = self.shelf.0.get() else {
            return refuse(from, "no database is open on this node", out);
        };
        if self.questions.len() >= MOST_QUESTIONS {
            return refuse(from, "too many questions are being answered: try again", out);
        }
        self.asked += 1;
        self.questions.insert(self.asked, from);
        let (core, log) = (source.core.clone(), source.log.clone());
        out.run("db.fence", fence(self.env.clone(), core, log, version, self.asked));
    }

    fn on_fence_ready(&mut self, m: &FenceReady, out: &mut Effects) {
        let Some(from) = self.questions.remove(&m.question) else { return };
        match m.below {
            Some(below) => out.reply(from, Fenced { below }, Lsn::NONE),
            None => refuse(from, "this replica does not answer, or cannot read the chain: try again", out),
        }
    }

    fn on_ready(&mut self, m: ChunkReady, out: &mut Effects) {
        let Some(from) = self.questions.remove(&m.question) else { return };
        if let Some(reason) = m.failed {
            return refuse(from, reason, out);
        }
        if m.last {
            self.open.remove(&m.snapshot);
        }
        let reply = ChunkReply { snapshot: m.snapshot, below: m.below, last: m.last, chunk: m.chunk };
        out.reply(from, reply, Lsn::NONE);
    }
}

impl Role for ReplicaRole {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let kind = frame.kind;
        let decoded = match kind {
            AskReplica::KIND => {
                return match self.shelf.0.get() {
                    Some(source) => out.reply(from, source.core.report(), Lsn::NONE),
                    None => refuse(from, "no database is open on this node", out),
                };
            }
            AskService::KIND => {
                return match self.shelf.0.get() {
                    Some(source) => out.reply(from, source.core.service(), Lsn::NONE),
                    None => refuse(from, "no database is open on this node", out),
                };
            }
            AskHash::KIND => return self.on_ask_hash(from, out),
            AskFence::KIND => {
                AskFence::from_frame(frame).map(|m| self.on_ask_fence(from, Version(m.version), out))
            }
            FenceReady::KIND if from.node == out.node() => {
                FenceReady::from_frame(frame).map(|m| self.on_fence_ready(&m, out))
            }
            FetchChunk::KIND => FetchChunk::from_frame(frame).map(|m| self.on_fetch(now, from, &m, out)),
            ChunkReady::KIND if from.node == out.node() => {
                ChunkReady::from_frame(frame).map(|m| self.on_ready(m, out))
            }
            _ => return refuse(from, format!("the replica role accepts no message of kind {kind}"), out),
        };
        if let Err(error) = decoded {
            refuse(from, error.to_string(), out);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}
}

/// Reads the chain, at this version or a later one, then asks the replica how far it is. Posts the answer to the role on this node.
fn fence(
    env: Env,
    core: Arc<Core>,
    log: Arc<VirtualLog>,
    version: Version,
    question: u64,
) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let answer = async {
            let chain = log.refresh().await.ok()?.ok()?;
            if chain.version < version { None } else { core.fence().await.ok() }
        };
        let below = env.within(FENCED_WITHIN, answer).await.ok().flatten();
        let ready = FenceReady { question, below };
        env.post(env.node(), Class::Control, crate::roles::REPLICA, ready);
    })
}

struct Reading {
    question: u64,
    snapshot: u64,
    below: LogPos,
    base: Arc<dyn StoreSnapshot>,
    after: Bytes,
    /// The active level.
    level: Level,
}

/// Reads a chunk and posts it to the role on this node.
fn answer(env: Env, work: Reading, threads: bool) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let (question, snapshot, below) = (work.question, work.snapshot, work.below);
        let read =
            if threads { in_thread("snapshot", move || read(&work)) } else { Ticket::ready(read(&work)) };
        let gone = |_| Err(StoreError::passing("read", "its reader is gone"));
        let (failed, chunk, last) = match read.await.unwrap_or_else(gone) {
            Ok((chunk, last)) => (None, chunk, last),
            Err(error) => (Some(error.to_string()), Bytes::new(), false),
        };
        let ready = ChunkReady { question, failed, snapshot, below, last, chunk };
        env.post(env.node(), Class::Data, crate::roles::REPLICA, ready);
    })
}

/// Runs `f` in a thread that ends with it. The cost of starting a thread does not matter, because the callers are not in a hurry.
pub(crate) fn in_thread<T: Send + 'static>(name: &str, f: impl FnOnce() -> T + Send + 'static) -> Ticket<T> {
    let (done, wait) = ticket();
    let thread = std::thread::Builder::new().name(name.to_owned());
    // If the thread cannot be started, the ticket is abandoned, which its waiter notices.
    drop(thread.spawn(move || done.complete(f())));
    wait
}

fn read(work: &Reading) -> Result<(Bytes, bool), StoreError> {
    let (chunk, last) = read_chunk(&*work.base, &work.after)?;
    Ok((chunk.encode(work.level), last))
}

/// Reads the keys after one, as many as fit into a chunk. Also returns whether they are the last ones.
pub(crate) fn read_chunk(base: &dyn StoreSnapshot, after: &Bytes) -> Result<(Chunk, bool), StoreError> {
    let mut chunk = Chunk::default();
    let mut bytes = 0;
    let mut left = KeyRange::all();
    if !after.is_empty() {
        left = left.above(after);
    }
    loop {
        let page = base.page(&left, Direction::Forward, PAGE_ENTRIES)?;
        let whole = !may_continue(&page, PAGE_ENTRIES);
        for (key, value) in page {
            let more = size_of(&key, &value);
            if !chunk.0.is_empty() && (bytes >= FULL_BYTES || bytes + more > MAX_PLAIN_BYTES) {
                return Ok((chunk, false));
            }
            bytes += more;
            left = left.above(&key);
            chunk.0.push((key, value));
        }
        if whole {
            return Ok((chunk, true));
        }
    }
}
