//! Loglets in memory.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, Decode, Encode, Incarnation, NodeId, StorageId, Tick, Ticket};

use super::{At, Log, Servers};
use atoll_contract::entry::{Batch, Entry, OpId};
use atoll_contract::loglet::{
    AppendError, Binding, Duties, Duty, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider,
    LogletSpec, Placement, PlanError, Progress, ReadBatch, ReadError, ReadFrom, Reason, RoleOfKind, Tail,
    Unavailability,
};
use atoll_contract::position::Offset;
use atoll_core::sync::lock;

atoll_core::record! {
    /// The configuration of a Loglet in memory.
    pub struct MemoryConfig {
        /// The nodes that serve the Loglet.
        pub servers: Vec<NodeId>,
        /// The node that acts as its sequencer.
        pub sequencer: NodeId,
        /// Number of sequencer restarts: a restarted sequencer refuses earlier configurations.
        pub restarts: u64,
        /// Names what the plan has made for the Loglet, and for no other one.
        pub made: u64,
    }
}

/// Creates [`Loglet`]s in memory.
#[derive(Debug)]
pub struct MemoryProvider {
    pub(super) at: At,
    pub(super) kind: &'static str,
    pub(super) keeps_order: bool,
}

/// The order of one handle's appends. When one fails, those after it fail too, and no further append is accepted until all of them are
/// answered.
#[derive(Debug, Default)]
struct Order {
    /// When the last append is written. Later ones are written after it.
    last: Tick,
    broken: bool,
    in_flight: usize,
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

    fn roles(&self) -> &'static [RoleOfKind] {
        &[RoleOfKind { name: "server", holds: true }, RoleOfKind { name: "sequencer", holds: false }]
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        _previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            self.at.step().await;
            let mut s = lock(&self.at.servers.state);
            s.held = spec.held.iter().map(|(node, _)| *node).collect();
            let usable = |n: &&NodeId| !s.faults.stopped.contains(n) && !spec.avoid.contains(n);
            let mut servers: Vec<NodeId> = match spec.placed("server") {
                Some(servers) => servers.to_vec(),
                None => s.nodes.iter().filter(usable).copied().take(3).collect(),
            };
            if let Some(unknown) = servers.iter().find(|n| !s.nodes.contains(n)) {
                return Err(PlanError::NodeDown(*unknown));
            }
            servers.sort_unstable();
            let first = servers.iter().copied().find(|n| usable(&n));
            let wanted = spec.placed("sequencer").and_then(|nodes| nodes.first().copied());
            let Some(sequencer) = wanted.or(first) else {
                return Err(PlanError::Missing { role: "sequencer", up: 0, wanted: 1 });
            };
            if s.faults.stopped.contains(&sequencer) {
                return Err(PlanError::NodeDown(sequencer));
            }
            let restarts = u64::from(s.faults.restarted.contains(&sequencer));
            s.plans += 1;
            let made = s.plans;
            s.made.insert(made);
            Ok(MemoryConfig { servers, sequencer, restarts, made }.to_bytes())
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
                let got = got.map_err(|_| LogletError::Unavailable(Unavailability::NoQuorum))?;
                at = at.plus(got.entries.len() as u64);
                entries.extend(got.entries);
            }
            let committed = entries.len() as u64;
            let places = entries.iter().enumerate().map(|(i, e)| (e.op, i as u64)).collect();
            let copy = Log { written: entries, places, committed, sealed: true, trim: 0 };
            self.at.with_log(id, |log| *log = copy).await
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let made = MemoryConfig::from_bytes(config.clone()).map(|config| config.made);
        Box::pin(async move {
            self.at.step().await;
            if self.at.chance(|f| f.undeleted) {
                return Err(LogletError::Unavailable(Unavailability::NoQuorum));
            }
            {
                let mut s = lock(&self.at.servers.state);
                if let Ok(made) = made {
                    s.made.remove(&made);
                }
                s.logs.remove(&id);
                if !mutant(atoll_contract::mutants::VLOG_REVIVED_LOGLET) {
                    s.tombstones.insert(id);
                }
            }
            self.at.servers.changed.notify();
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

    fn duties(&self, config: &Bytes) -> Duties {
        let Ok(c) = MemoryConfig::from_bytes(config.clone()) else { return Duties::default() };
        let holds = |node: &NodeId| Binding::Holds(StorageId(node.0.into()));
        let servers = c.servers.iter().map(|n| Duty { role: "server", node: *n, binding: holds(n) });
        let orders = Binding::Orders(Incarnation(c.restarts));
        let sequencer = Duty { role: "sequencer", node: c.sequencer, binding: orders };
        Duties(servers.chain([sequencer]).collect())
    }

    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool {
        self.duties(config).holders().any(|(node, _)| reached(node))
    }

    /// Returns None: it is for tests that decide themselves when to reconfigure.
    fn reason_to_reconfigure(&self, _: &Bytes, _: &Evidence<'_>) -> Option<Reason> {
        None
    }

    fn progress<'a>(&'a self, _node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        // All nodes share one copy.
        let whole = extents.iter().map(|e| Progress { has_up_to: e.range.end, lacks: 0 }).collect();
        Box::pin(std::future::ready(Some(whole)))
    }

    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        let s = lock(&self.at.servers.state);
        let held = s.logs.keys().copied().filter(|id| above.is_none_or(|above| *id > above)).collect();
        Box::pin(std::future::ready(Some((held, false))))
    }

    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(async move { self.delete(id, &Bytes::new()).await.is_ok() })
    }
}

/// What the sequencer does with an incoming append.
enum Fate {
    Take,
    Never,
    Fail(AppendError),
}

impl MemoryLoglet {
    /// Waits until the sequencer is resumed.
    async fn until_running(&self) {
        loop {
            let seen = self.at.servers.changed.count();
            if !lock(&self.at.servers.state).faults.stopped.contains(&self.config.sequencer) {
                return;
            }
            self.at.servers.changed.after(seen).await;
        }
    }

    /// Waits for as long as a request that begins now gets no answer.
    async fn until_answered(&self) {
        let asked = (self.at.env.node(), self.id);
        let is_silent = |s: &Servers| s.faults.silent_until_sealed.contains(&asked);
        if lock(&self.at.servers.state).logs.get(&self.id).is_some_and(|log| log.sealed) {
            return;
        }
        loop {
            let seen = self.at.servers.changed.count();
            if !is_silent(&lock(&self.at.servers.state)) {
                return;
            }
            self.at.servers.changed.after(seen).await;
        }
    }

    fn fate(&self) -> Fate {
        let s = lock(&self.at.servers.state);
        if s.faults.stopped.contains(&self.config.sequencer) {
            return Fate::Never;
        }
        if self.config.restarts == 0 && s.faults.restarted.contains(&self.config.sequencer) {
            return Fate::Fail(AppendError::NotAppended(Unavailability::WrongSequencer));
        }
        Fate::Take
    }

    /// Writes the entries that are not written yet, and returns all offsets.
    fn write(&self, batch: &Batch, not_below: Offset) -> Result<Vec<u64>, AppendError> {
        let forget = self.at.chance(|f| f.append_forgotten);
        let mut s = lock(&self.at.servers.state);
        if s.tombstones.contains(&self.id) {
            return Err(AppendError::Sealed);
        }
        let log = s.logs.entry(self.id).or_default();
        if log.sealed {
            return Err(AppendError::Sealed);
        }
        // Only settled entries are ever forgotten.
        let old = |op: OpId| log.places.get(&op).is_some_and(|p| (not_below.0..log.committed).contains(p));
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
        self.at.servers.changed.notify();
        Ok(Placement { runs: runs(offsets) })
    }

    fn learn(&self, tail: &Tail) {
        if tail.sealed.is_none() {
            let mut known = lock(&self.known);
            *known = known.max(tail.at);
        }
    }

    fn start(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        let me = MemoryLoglet {
            at: self.at.clone(),
            id: self.id,
            config: self.config.clone(),
            keeps_order: self.keeps_order,
            order: self.order.clone(),
            known: self.known.clone(),
        };
        let mut due = self.at.env.now().after(self.at.delay());
        {
            let mut order = lock(&self.order);
            if order.broken && order.in_flight > 0 {
                return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy)));
            }
            if self.keeps_order {
                due = due.max(Tick(order.last.0 + 1));
                order.last = due;
            }
            order.broken = false;
            order.in_flight += 1;
        }
        self.at.env.launch("memory.append", async move {
            let got = me.append_at(due, batch, not_below).await;
            let mut order = lock(&me.order);
            order.in_flight -= 1;
            order.broken |= me.keeps_order && got.is_err();
            got
        })
    }

    /// Records that this append fails. No append after it is written from now on.
    fn fails(&self, e: AppendError) -> Result<Placement, AppendError> {
        lock(&self.order).broken = self.keeps_order;
        Err(e)
    }

    async fn append_at(&self, due: Tick, batch: Batch, not_below: Offset) -> Result<Placement, AppendError> {
        self.at.env.sleep_until(due).await;
        if lock(&self.order).broken {
            self.at.step().await;
            return Err(AppendError::NotAppended(Unavailability::Busy));
        }
        if self.at.is_cut_off() {
            return self.fails(AppendError::NotAppended(Unavailability::NoSequencer));
        }
        match self.fate() {
            Fate::Take => {}
            Fate::Never => {
                self.until_running().await;
                return self.fails(AppendError::Unknown(Unavailability::NoSequencer));
            }
            Fate::Fail(e) => return self.fails(e),
        }
        if self.at.chance(|f| f.append_busy) {
            let refused = self.fails(AppendError::NotAppended(Unavailability::Busy));
            self.at.step().await;
            return refused;
        }
        if self.at.chance(|f| f.append_full) {
            let refused = self.fails(AppendError::NotAppended(Unavailability::DiskFull));
            self.at.step().await;
            return refused;
        }
        let lost = self.at.chance(|f| f.append_unknown);
        if lost && self.at.env.random().is_multiple_of(2) {
            let refused = self.fails(AppendError::Unknown(Unavailability::NoSequencer));
            self.at.step().await;
            return refused;
        }
        let offsets = match self.write(&batch, not_below) {
            Ok(offsets) => offsets,
            Err(e) => {
                let refused = self.fails(e);
                self.at.step().await;
                return refused;
            }
        };
        self.at.step().await;
        let placed = self.commit(&offsets)?;
        self.at.step().await;
        if lost {
            return Err(AppendError::Unknown(Unavailability::NoSequencer));
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
        self.start(batch, Offset::ZERO)
    }

    fn append_above(&self, batch: Batch, not_below: Offset) -> Ticket<Result<Placement, AppendError>> {
        self.start(batch, not_below)
    }

    fn keeps_order(&self) -> bool {
        self.keeps_order
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            self.until_answered().await;
            let random = self.at.env.random();
            let tail = self.at.with_log(self.id, |log| At::tail(random, log)).await?;
            self.learn(&tail);
            Ok(tail)
        })
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            loop {
                let seen = self.at.servers.changed.count();
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
            self.until_answered().await;
            let is_silent = {
                let s = lock(&self.at.servers.state);
                s.faults.unread_below.get(&self.id).is_some_and(|end| range.start < *end)
            };
            if is_silent {
                self.at.step().await;
                return Err(ReadError::Unavailable(Unavailability::NoQuorum));
            }
            if lock(&self.at.servers.state).faults.damaged.contains(&self.id) {
                self.at.step().await;
                return Err(ReadError::Damaged("as the test wants".to_owned()));
            }
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
                Ok(read) => {
                    let read = read.map(|entries| ReadBatch { entries, remote: 0 });
                    let count = read.as_ref().map_or(0, |r| r.entries.len() as u64);
                    lock(&self.at.servers.state).entries_read += count;
                    read
                }
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
