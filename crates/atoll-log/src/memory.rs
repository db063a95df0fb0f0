//! Loglets and registers in memory, shared by all nodes of a test, with delays and faults. They keep the contracts of
//! [`Loglet`] and [`Register`] and use every freedom that these leave: zombies behind a seal, sealed tails that differ, entries that
//! are in the log although their append failed, answers that are lost.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::{Mutant, mutant};
use atoll_core::{BoxFuture, Decode, Encode, Env, Incarnation, NodeId, StorageId, Tick, Ticket};

use crate::bell::{Bell, lock};
use crate::entry::{Batch, Entry, OpId};
use crate::loglet::{
    AppendError, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Members, Placement, PlanError,
    ReadBatch, ReadError, ReadFrom, SealedConfig, Tail, Why,
};
use crate::position::Offset;
use crate::register::{
    MAX_VALUE_BYTES, Nonce, Register, RegisterError, Registers, Version, Versioned, Written,
};

/// What goes wrong, and how slowly the rest goes. Chances are in thousandths.
#[derive(Clone, Debug)]
pub struct Faults {
    /// Shortest time of each of the steps of an operation (there, done, and back).
    pub min_delay: Duration,
    /// Longest such time.
    pub max_delay: Duration,
    /// An append is answered as unknown: written or not.
    pub append_unknown: u64,
    /// An append is refused as busy.
    pub append_busy: u64,
    /// An append of a client that was seen before is answered as forgotten.
    pub append_forgotten: u64,
    /// Another operation of a Loglet is not answered.
    pub unavailable: u64,
    /// A write to a register is answered as unknown: written or not.
    pub register_unknown: u64,
    /// A register does not answer: nothing was done.
    pub register_down: u64,
    /// Sequencers that take nothing and answer nothing.
    pub stopped: BTreeSet<NodeId>,
    /// Sequencers that were restarted: they refuse what earlier configurations name them for.
    pub restarted: BTreeSet<NodeId>,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            min_delay: Duration::from_micros(50),
            max_delay: Duration::from_micros(500),
            append_unknown: 0,
            append_busy: 0,
            append_forgotten: 0,
            unavailable: 0,
            register_unknown: 0,
            register_down: 0,
            stopped: BTreeSet::new(),
            restarted: BTreeSet::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Log {
    /// By offset, zombies included.
    written: Vec<Entry>,
    places: BTreeMap<OpId, u64>,
    /// Offsets below are acknowledged, or may be.
    committed: u64,
    sealed: bool,
    trim: u64,
}

#[derive(Debug, Default)]
struct Cell {
    now: Versioned,
    /// Every write that happened, by its mark.
    written: BTreeMap<u128, Version>,
}

#[derive(Debug, Default)]
struct Servers {
    faults: Faults,
    nodes: Vec<NodeId>,
    logs: BTreeMap<LogletId, Log>,
    tombstones: BTreeSet<LogletId>,
    cells: BTreeMap<String, Cell>,
}

/// The servers of a test: all that is durable, and the faults. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct MemoryServers {
    state: Arc<Mutex<Servers>>,
    changed: Arc<Bell>,
}

impl MemoryServers {
    /// Servers with these nodes, of which Loglets name up to three, the first as sequencer.
    pub fn new(nodes: &[NodeId]) -> Self {
        let servers = MemoryServers::default();
        lock(&servers.state).nodes = nodes.to_vec();
        servers
    }

    /// Changes the faults from now on.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.state).faults);
        self.changed.ring();
    }

    /// The Loglets as one node sees them, under a name. With `keeps_order` false, appends in flight overtake each other.
    pub fn provider(&self, env: &Env, kind: &'static str, keeps_order: bool) -> Arc<MemoryProvider> {
        Arc::new(MemoryProvider { at: self.at(env), kind, keeps_order })
    }

    /// The registers as one node sees them.
    pub fn registers(&self, env: &Env) -> Arc<MemoryRegisters> {
        Arc::new(MemoryRegisters(self.at(env)))
    }

    /// Everything a Loglet holds, zombies included, for oracles.
    pub fn entries(&self, loglet: LogletId) -> Vec<Entry> {
        lock(&self.state).logs.get(&loglet).map(|l| l.written.clone()).unwrap_or_default()
    }

    fn at(&self, env: &Env) -> At {
        At { servers: self.clone(), env: env.clone() }
    }
}

/// The servers, from one node.
#[derive(Clone, Debug)]
struct At {
    servers: MemoryServers,
    env: Env,
}

impl At {
    fn delay(&self) -> Duration {
        let (min, max) = {
            let s = lock(&self.servers.state);
            (s.faults.min_delay, s.faults.max_delay)
        };
        let span = u64::try_from(max.saturating_sub(min).as_nanos()).unwrap_or(u64::MAX).max(1);
        min + Duration::from_nanos(self.env.random() % span)
    }

    async fn step(&self) {
        self.env.sleep(self.delay()).await;
    }

    fn chance(&self, thousandths: impl Fn(&Faults) -> u64) -> bool {
        let limit = thousandths(&lock(&self.servers.state).faults);
        limit > 0 && self.env.random() % 1000 < limit
    }

    /// A step there, `f` on the Loglet, and a step back. The Loglet comes to be by the first message (V6).
    async fn with_log<T>(&self, id: LogletId, f: impl FnOnce(&mut Log) -> T) -> Result<T, LogletError> {
        self.step().await;
        if self.chance(|f| f.unavailable) {
            return Err(LogletError::Unavailable(Why::NoQuorum));
        }
        let got = {
            let mut s = lock(&self.servers.state);
            if s.tombstones.contains(&id) {
                return Err(LogletError::Gone);
            }
            f(s.logs.entry(id).or_default())
        };
        self.servers.changed.ring();
        self.step().await;
        Ok(got)
    }

    /// A tail as some majority would give it: sealed ones take in any part of what was not acknowledged.
    fn tail(random: u64, log: &Log) -> Tail {
        if !log.sealed {
            return Tail { at: Offset(log.committed), sealed: None };
        }
        let zombies = log.written.len() as u64 - log.committed;
        let at = Offset(log.committed + random % (zombies + 1));
        Tail { at, sealed: Some(SealedConfig::new()) }
    }
}

atoll_core::record! {
    /// The configuration of a Loglet in memory.
    pub struct MemoryConfig {
        /// Nodes that it names.
        pub servers: Vec<NodeId>,
        /// The node that stands for its sequencer.
        pub sequencer: NodeId,
        /// Restarted sequencers refuse configurations from before.
        pub restarts: u64,
    }
}

/// Makes [`Loglet`]s in memory.
#[derive(Debug)]
pub struct MemoryProvider {
    at: At,
    kind: &'static str,
    keeps_order: bool,
}

#[derive(Debug, Default)]
struct Order {
    /// When the last append is written: later ones follow.
    last: Tick,
    /// How often the connection broke: what was in flight then is lost.
    broken: u64,
}

#[derive(Debug)]
struct MemoryLoglet {
    at: At,
    id: LogletId,
    config: MemoryConfig,
    keeps_order: bool,
    order: Arc<Mutex<Order>>,
    known: Arc<Mutex<Offset>>,
}

impl LogletProvider for MemoryProvider {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        _previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            self.at.step().await;
            let s = lock(&self.at.servers.state);
            let usable = |n: &&NodeId| !s.faults.stopped.contains(n) && !spec.avoid.contains(n);
            let mut servers = match &spec.servers {
                Some(servers) => servers.clone(),
                None => s.nodes.iter().filter(usable).copied().take(3).collect(),
            };
            if let Some(unknown) = servers.iter().find(|n| !s.nodes.contains(n)) {
                return Err(PlanError::NodeDown(*unknown));
            }
            servers.sort_unstable();
            let first = servers.iter().copied().find(|n| usable(&n));
            let Some(sequencer) = spec.sequencer.or(first) else {
                return Err(PlanError::TooFew { up: 0, wanted: 1 });
            };
            if s.faults.stopped.contains(&sequencer) {
                return Err(PlanError::NodeDown(sequencer));
            }
            let restarts = u64::from(s.faults.restarted.contains(&sequencer));
            Ok(MemoryConfig { servers, sequencer, restarts }.to_bytes())
        })
    }

    fn provision(&self, id: LogletId, _config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move { self.at.with_log(id, |_| ()).await })
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(MemoryLoglet {
            at: self.at.clone(),
            id,
            config: MemoryConfig::from_bytes(config.clone())?,
            keeps_order: self.keeps_order,
            order: Arc::default(),
            known: Arc::default(),
        }))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        _config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let mut entries: Vec<Entry> = Vec::new();
            let mut at = range.start;
            while at < range.end {
                let got = source.read(at..range.end, 64 * 1024, ReadFrom::Anywhere).await;
                let got = got.map_err(|_| LogletError::Unavailable(Why::NoQuorum))?;
                at = at.plus(got.entries.len() as u64);
                entries.extend(got.entries);
            }
            let committed = entries.len() as u64;
            let places = entries.iter().enumerate().map(|(i, e)| (e.op, i as u64)).collect();
            let copy = Log { written: entries, places, committed, sealed: true, trim: 0 };
            self.at.with_log(id, |log| *log = copy).await
        })
    }

    fn delete(&self, id: LogletId, _config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move {
            self.at.step().await;
            {
                let mut s = lock(&self.at.servers.state);
                s.logs.remove(&id);
                if !mutant(Mutant::VlogRevivedLoglet) {
                    s.tombstones.insert(id);
                }
            }
            self.at.servers.changed.ring();
            self.at.step().await;
            Ok(())
        })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match MemoryConfig::from_bytes(config.clone()) {
            Ok(c) => vec![("servers", format!("{:?}", c.servers)), ("sequencer", c.sequencer.to_string())],
            Err(e) => vec![("unreadable", e.to_string())],
        }
    }

    fn members(&self, config: &Bytes) -> Members {
        match MemoryConfig::from_bytes(config.clone()) {
            Ok(c) => Members {
                servers: c.servers.iter().map(|n| (*n, StorageId(n.0.into()))).collect(),
                sequencer: Some((c.sequencer, Incarnation(c.restarts))),
            },
            Err(_) => Members::default(),
        }
    }
}

/// What the sequencer does with an append when it comes in.
enum Fate {
    Take,
    Never,
    Fail(AppendError),
}

impl MemoryLoglet {
    fn fate(&self) -> Fate {
        let s = lock(&self.at.servers.state);
        if s.faults.stopped.contains(&self.config.sequencer) {
            return Fate::Never;
        }
        if self.config.restarts == 0 && s.faults.restarted.contains(&self.config.sequencer) {
            return Fate::Fail(AppendError::NotAppended(Why::WrongSequencer));
        }
        Fate::Take
    }

    /// Writes what is not written yet; the offsets.
    fn write(&self, batch: &Batch, scanned: bool) -> Result<Vec<u64>, AppendError> {
        let forget = !scanned && self.at.chance(|f| f.append_forgotten);
        let mut s = lock(&self.at.servers.state);
        if s.tombstones.contains(&self.id) {
            return Err(AppendError::Sealed);
        }
        let log = s.logs.entry(self.id).or_default();
        if log.sealed {
            return Err(AppendError::Sealed);
        }
        // Only what is settled is ever forgotten.
        let old = |op: OpId| log.places.get(&op).is_some_and(|p| *p < log.committed);
        if forget && batch.ops().any(|op| op.client.0 != 0 && old(op)) {
            return Err(AppendError::Forgotten);
        }
        let mut offsets = Vec::with_capacity(batch.len());
        for entry in batch.entries() {
            if entry.op.client.0 != 0
                && let Some(place) = log.places.get(&entry.op)
            {
                offsets.push(*place);
                continue;
            }
            let place = log.written.len() as u64;
            log.places.insert(entry.op, place);
            log.written.push(entry);
            offsets.push(place);
        }
        Ok(offsets)
    }

    fn commit(&self, offsets: &[u64]) -> Result<Placement, AppendError> {
        let mut s = lock(&self.at.servers.state);
        let Some(log) = s.logs.get_mut(&self.id) else { return Err(AppendError::Sealed) };
        if log.sealed {
            return Err(AppendError::Sealed);
        }
        log.committed = log.committed.max(offsets.iter().max().map_or(0, |p| p + 1));
        drop(s);
        self.at.servers.changed.ring();
        Ok(Placement { runs: runs(offsets) })
    }

    fn learn(&self, tail: &Tail) {
        if tail.sealed.is_none() {
            let mut known = lock(&self.known);
            *known = known.max(tail.at);
        }
    }

    fn start(&self, batch: Batch, scanned: bool) -> Ticket<Result<Placement, AppendError>> {
        let me = MemoryLoglet {
            at: self.at.clone(),
            id: self.id,
            config: self.config.clone(),
            keeps_order: self.keeps_order,
            order: self.order.clone(),
            known: self.known.clone(),
        };
        let (due, broken) = {
            let mut order = lock(&self.order);
            let mut due = self.at.env.now().after(self.at.delay());
            if self.keeps_order {
                due = due.max(Tick(order.last.0 + 1));
                order.last = due;
            }
            (due, order.broken)
        };
        self.at.env.launch("memory.append", async move { me.append_at(due, broken, batch, scanned).await })
    }

    async fn append_at(
        &self,
        due: Tick,
        broken: u64,
        batch: Batch,
        scanned: bool,
    ) -> Result<Placement, AppendError> {
        self.at.env.sleep_until(due).await;
        if self.keeps_order && lock(&self.order).broken != broken {
            return Err(AppendError::Unknown(Why::NoSequencer));
        }
        match self.fate() {
            Fate::Take => {}
            Fate::Never => return std::future::pending().await,
            Fate::Fail(e) => return Err(e),
        }
        if self.at.chance(|f| f.append_busy) {
            lock(&self.order).broken += 1;
            return Err(AppendError::NotAppended(Why::Busy));
        }
        let lost = self.at.chance(|f| f.append_unknown);
        if lost {
            lock(&self.order).broken += 1;
            if self.at.env.random() % 2 == 0 {
                return Err(AppendError::Unknown(Why::NoSequencer));
            }
        }
        let offsets = self.write(&batch, scanned)?;
        self.at.step().await;
        let placed = self.commit(&offsets)?;
        self.at.step().await;
        if lost {
            return Err(AppendError::Unknown(Why::NoSequencer));
        }
        let tail = offsets.iter().max().map_or(Offset::ZERO, |p| Offset(p + 1));
        self.learn(&Tail { at: tail, sealed: None });
        Ok(placed)
    }
}

fn runs(offsets: &[u64]) -> Vec<(Offset, u32)> {
    let mut runs: Vec<(Offset, u32)> = Vec::new();
    for at in offsets {
        match runs.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == *at => *n += 1,
            _ => runs.push((Offset(*at), 1)),
        }
    }
    runs
}

impl Loglet for MemoryLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start(batch, false)
    }

    fn append_scanned(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        self.start(batch, true)
    }

    fn keeps_order(&self) -> bool {
        self.keeps_order
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            let random = self.at.env.random();
            let tail = self.at.with_log(self.id, |log| At::tail(random, log)).await?;
            self.learn(&tail);
            Ok(tail)
        })
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            loop {
                let seen = self.at.servers.changed.rings();
                let random = self.at.env.random();
                let tail = {
                    let mut s = lock(&self.at.servers.state);
                    if s.tombstones.contains(&self.id) {
                        return Err(LogletError::Gone);
                    }
                    At::tail(random, s.logs.entry(self.id).or_default())
                };
                if tail.at > above || tail.sealed.is_some() {
                    self.at.step().await;
                    self.learn(&tail);
                    return Ok(tail);
                }
                self.at.servers.changed.after(seen).await;
            }
        })
    }

    fn known_tail(&self) -> Offset {
        *lock(&self.known)
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        _from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(async move {
            let got = self.at.with_log(self.id, |log| {
                if range.start.0 < log.trim {
                    return Err(ReadError::Trimmed(Offset(log.trim)));
                }
                let end = range.end.0.min(log.written.len() as u64);
                if range.start.0 >= end {
                    return Err(ReadError::BeyondTail(range.start));
                }
                let mut bytes = 0;
                let part = &log.written[range.start.0 as usize..end as usize];
                let fits = |e: &&Entry| {
                    let first = bytes == 0;
                    bytes += e.payload.len() + 1;
                    first || bytes <= max_bytes
                };
                Ok(part.iter().take_while(fits).cloned().collect())
            });
            match got.await {
                Ok(read) => read.map(|entries| ReadBatch { entries, remote: 0 }),
                Err(LogletError::Gone) => Err(ReadError::Gone),
                Err(LogletError::Unavailable(why)) => Err(ReadError::Unavailable(why)),
            }
        })
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move { self.at.with_log(self.id, |log| log.trim = log.trim.max(to.0)).await })
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move { self.at.with_log(self.id, |log| log.sealed = true).await })
    }
}

/// Makes registers in memory.
#[derive(Debug)]
pub struct MemoryRegisters(At);

#[derive(Debug)]
struct MemoryRegister {
    at: At,
    name: String,
}

impl Registers for MemoryRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        Arc::new(MemoryRegister { at: self.0.clone(), name: name.to_owned() })
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<String>, RegisterError>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            self.0.step().await;
            let s = lock(&self.0.servers.state);
            let written = s.cells.iter().filter(|(_, c)| c.now.version > Version(0));
            Ok(written.map(|(n, _)| n.clone()).filter(|n| n.starts_with(&prefix)).collect())
        })
    }
}

impl Register for MemoryRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        Box::pin(async move {
            self.at.step().await;
            if self.at.chance(|f| f.register_down) {
                return Err(RegisterError::NotWritten(Why::NoQuorum));
            }
            let now = lock(&self.at.servers.state).cells.entry(self.name.clone()).or_default().now.clone();
            self.at.step().await;
            Ok(now)
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        Box::pin(async move {
            if value.len() > MAX_VALUE_BYTES {
                return Err(RegisterError::TooLarge(value.len()));
            }
            self.at.step().await;
            if self.at.chance(|f| f.register_down) {
                return Err(RegisterError::NotWritten(Why::NoQuorum));
            }
            let lost = self.at.chance(|f| f.register_unknown);
            if lost && self.at.env.random() % 2 == 0 {
                return Err(RegisterError::Unknown(Why::NoQuorum));
            }
            let done = {
                let mut s = lock(&self.at.servers.state);
                let cell = s.cells.entry(self.name.clone()).or_default();
                // Marks are not remembered for ever: their writers find them in what came later.
                let remembered = |v: &&Version| v.0 + 1 >= cell.now.version.0;
                if let Some(version) = cell.written.get(&nonce.0).filter(remembered) {
                    Written::Yes(*version)
                } else if cell.now.version == expected {
                    let version = Version(expected.0 + 1);
                    cell.now = Versioned { version, value, nonce };
                    cell.written.insert(nonce.0, version);
                    Written::Yes(version)
                } else {
                    Written::Conflict(cell.now.clone())
                }
            };
            self.at.step().await;
            if lost { Err(RegisterError::Unknown(Why::NoQuorum)) } else { Ok(done) }
        })
    }
}
