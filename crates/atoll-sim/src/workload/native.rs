//! Clients of native Loglets without a virtual log, one Loglet after the other: they append, check tails, read, trim, seal and delete. Some
//! sleep for a long time and then use an old Loglet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::PlanError;
use atoll_contract::{
    AppendError, Batch, ClientId, Entry, Loglet, LogletId, LogletProvider, LogletSpec, Offset, OpId,
    ReadError, ReadFrom,
};
use atoll_core::{Abandoned, NodeId};
use bytes::Bytes;

use crate::scenario::parts::Handles;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;
use crate::world::fault::Fault;

/// How many waits above a sealed tail may end without the seal: twice as many as a Loglet has servers at most.
const WAITS_TOLD_OPEN: u32 = 10;

/// A Loglet that clients use.
#[derive(Clone, Debug)]
pub struct Island {
    /// Its id.
    pub id: LogletId,
    /// Its configuration.
    pub config: Bytes,
    /// The name that the oracles use.
    pub name: String,
    /// Whether somebody has begun to delete it.
    pub deleted: bool,
}

/// All Loglets of a run, the newest last.
#[derive(Clone, Debug, Default)]
pub struct Islands(Arc<Mutex<Vec<Island>>>);

impl Islands {
    fn lock(&self) -> MutexGuard<'_, Vec<Island>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the newest Loglet, which may accept appends.
    pub fn newest(&self) -> Option<Island> {
        self.lock().last().cloned()
    }

    /// Returns all Loglets.
    pub fn all(&self) -> Vec<Island> {
        self.lock().clone()
    }

    fn is_deleted(&self, id: LogletId) -> bool {
        self.lock().iter().any(|i| i.id == id && i.deleted)
    }

    fn some(&self, stage: &Stage<Handles>) -> Option<Island> {
        let all = self.lock();
        // Usually the newest, sometimes any other.
        let back = if stage.below(4) == 0 { stage.below(all.len() as u64) as usize } else { 0 };
        all.len().checked_sub(1 + back).map(|i| all[i].clone())
    }
}

fn live(stage: &Stage<Handles>, at: usize) -> Option<Life<Handles>> {
    stage.cluster.any_from(at % stage.cluster.hosts())
}

fn open(life: &Life<Handles>, island: &Island) -> Option<Arc<dyn Loglet>> {
    life.handles.native.open(island.id, &island.config).ok()
}

/// Creates the next Loglet as `spec` requests. Returns whether there is one.
pub async fn make(stage: &Stage<Handles>, islands: &Islands, spec: LogletSpec) -> bool {
    let Some(life) = live(stage, stage.below(64) as usize) else { return false };
    let provider = life.handles.native.clone();
    let id = LogletId(u128::from(stage.env.random()) << 64 | u128::from(stage.env.random()));
    let made = life.env.launch("client.make", async move {
        let config = provider.plan(&spec, None).await?;
        let _ = provider.provision(id, &config).await;
        Ok(config)
    });
    let made: Result<Result<Bytes, PlanError>, Abandoned> = made.await;
    let Ok(Ok(config)) = made else {
        if stage.over.is_up() {
            stage.waits_for(format!("a new loglet: {made:?}"));
        }
        return false;
    };
    let mut all = islands.lock();
    let name = format!("loglet{}", all.len());
    all.push(Island { id, config, name, deleted: false });
    true
}

/// Appends to the newest Loglet until the load is over. A batch with an unknown outcome may be sent again, through any node.
pub async fn appender(stage: Stage<Handles>, islands: Islands, think: Duration) {
    let client = ClientId(stage.env.random() | 1);
    let mut seq = 0;
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(island) = islands.newest() else { continue };
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(loglet) = open(&life, &island) else { continue };
        // Use one handle several times: appends in flight through it must keep their order (vlog-L8).
        for _ in 0..1 + stage.below(12) {
            let mut flight = Vec::new();
            for _ in 0..1 + stage.below(4) {
                let entries: Vec<Entry> = (0..1 + stage.below(8))
                    .map(|_| {
                        seq += 1;
                        entry(&stage, client, seq)
                    })
                    .collect();
                for e in &entries {
                    stage.oracles.log.append_begins(&island.name, e.op, &e.payload);
                }
                flight.push((loglet.append(Batch::of(entries.clone())), entries));
            }
            let mut fine = true;
            for (ticket, entries) in flight {
                fine &= settle(&stage, &island, stage.cluster.ask(&life, ticket).await, entries).await;
            }
            stage.report();
            if !fine {
                // The refusal brought a tail to this handle. The handle must not return it as the sealed tail (native-T19).
                check_through(&stage, &island, &life, loglet.clone()).await;
                stage.report();
            }
            if !fine || stage.over.is_up() {
                break;
            }
            stage.pause(think).await;
        }
    }
}

fn entry(stage: &Stage<Handles>, client: ClientId, seq: u64) -> Entry {
    let len = if stage.below(40) == 0 { 3_000 } else { 8 + stage.below(40) };
    let mut payload = stage.env.random().to_le_bytes().to_vec();
    payload.resize(len as usize, seq as u8);
    Entry { op: OpId { client, seq }, payload: payload.into() }
}

/// Reports an answer. If the outcome is unknown, may send the batch again, through any node. Returns whether to keep the handle.
///
/// This function does not check that a batch reported as not appended stays out. In this scenario, unlike on a real connection, frames are
/// duplicated and reordered, so a second copy of a refused append may arrive when its turn has come. The scenarios of the virtual log check
/// it.
async fn settle(
    stage: &Stage<Handles>,
    island: &Island,
    answer: Option<Result<Result<atoll_contract::Placement, AppendError>, Abandoned>>,
    entries: Vec<Entry>,
) -> bool {
    let done = |placement: &atoll_contract::Placement| {
        for (e, at) in entries.iter().zip(placement.offsets()) {
            stage.oracles.log.append_done(&island.name, e.op, at.0);
        }
    };
    match answer {
        Some(Ok(Ok(placement))) => {
            done(&placement);
            true
        }
        None | Some(Ok(Err(AppendError::Unknown(_)))) if stage.below(2) == 0 => {
            if let Some(life) = live(stage, stage.below(64) as usize)
                && let Some(loglet) = open(&life, island)
            {
                for e in &entries {
                    stage.oracles.log.append_begins(&island.name, e.op, &e.payload);
                }
                let again = loglet.append(Batch::of(entries.clone()));
                if let Some(Ok(Ok(placement))) = stage.cluster.ask(&life, again).await {
                    done(&placement);
                }
            }
            false
        }
        _ => false,
    }
}

/// Checks the tail of some Loglet through some node, until the load is over.
pub async fn checker(stage: Stage<Handles>, islands: Islands, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(island) = islands.some(&stage) else { continue };
        check(&stage, &island, stage.below(64) as usize).await;
        stage.report();
    }
}

/// Checks the tail through a node. Returns the tail and whether it is sealed.
pub async fn check(stage: &Stage<Handles>, island: &Island, at: usize) -> Option<(u64, bool)> {
    let life = live(stage, at)?;
    let loglet = open(&life, island)?;
    check_through(stage, island, &life, loglet).await
}

async fn check_through(
    stage: &Stage<Handles>,
    island: &Island,
    life: &Life<Handles>,
    loglet: Arc<dyn Loglet>,
) -> Option<(u64, bool)> {
    let asked = stage.oracles.log.tail_begins(&island.name);
    let tail = life.env.launch("client.check", async move { loglet.check_tail().await }).await;
    let Ok(Ok(tail)) = tail else { return None };
    stage.oracles.log.tail_done(&island.name, asked, tail.at.0);
    stage.tail_reported(life.handles.native.kind(), island.id, tail.at, tail.sealed.is_some());
    Some((tail.at.0, tail.sealed.is_some()))
}

/// Reads some Loglet from a random offset to its tail, until the load is over.
pub async fn reader(stage: Stage<Handles>, islands: Islands, think: Duration) {
    while !stage.over.is_up() {
        stage.pause(think).await;
        let Some(island) = islands.some(&stage) else { continue };
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(loglet) = open(&life, &island) else { continue };
        let mut next = Offset(stage.below(stage.oracles.log.floor(&island.name) + 1));
        for _ in 0..1 + stage.below(20) {
            let (waiting, at) = (loglet.clone(), next);
            let hint = life.env.launch("client.wait", async move { waiting.wait_tail(at).await });
            let Ok(Ok(Ok(tail))) = stage.env.within(Duration::from_secs(3), hint).await else { break };
            if tail.at <= next || !read_some(&stage, &life, &island, &mut next, tail.at).await {
                break;
            }
            stage.report();
        }
    }
}

/// Reads once from `next` and advances it. Returns false if that made no progress.
async fn read_some(
    stage: &Stage<Handles>,
    life: &Life<Handles>,
    island: &Island,
    next: &mut Offset,
    tail: Offset,
) -> bool {
    let Some(loglet) = open(life, island) else { return false };
    let (range, max_bytes) = (*next..tail, 1 + stage.below(5_000) as usize);
    let got = life
        .env
        .launch("client.read", async move { loglet.read(range, max_bytes, ReadFrom::Anywhere).await });
    match got.await {
        Ok(Ok(read)) => {
            for e in &read.entries {
                stage.oracles.log.read(&island.name, next.0, e.op, &e.payload);
                *next = next.plus(1);
            }
            true
        }
        Ok(Err(ReadError::Trimmed(to))) => {
            stage.oracles.log.trimmed(&island.name, to.0);
            let further = to > *next;
            *next = to.max(*next);
            further
        }
        Ok(Err(ReadError::Damaged(what))) => {
            stage.cluster.fail(format!("DAMAGED: {} at {next}: {what}", island.name));
            false
        }
        _ => false,
    }
}

/// Seals Loglets and creates new ones; trims and deletes old ones.
pub async fn operator(stage: Stage<Handles>, islands: Islands, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(island) = islands.newest() else { continue };
        let at = stage.below(64) as usize;
        match stage.below(6) {
            0 => trim(&stage, &islands).await,
            1 => delete(&stage, &islands).await,
            // The sealer dies, so the seal may reach only a minority.
            2 => {
                if let Some(life) = live(&stage, at) {
                    let (host, frames) = (life.node.0 as usize - 1, stage.below(8));
                    stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after: 300_000_000 });
                    let _ = seal(&stage, &island, host).await;
                }
            }
            _ => {
                // If the newest Loglet was sealed and deleted, nobody can use it any more.
                let is_over = islands.is_deleted(island.id)
                    || matches!(seal(&stage, &island, at).await, Some((_, true)));
                if is_over {
                    while !stage.over.is_up() && !make(&stage, &islands, spec(&stage)).await {
                        stage.pause(Duration::from_millis(50)).await;
                    }
                }
            }
        }
        stage.report();
    }
}

/// Seals the newest Loglet, checks its tail at the same node, and creates the next Loglet.
pub async fn sealer(stage: Stage<Handles>, islands: Islands, every: Duration) {
    while !stage.over.is_up() {
        stage.pause(every).await;
        let Some(island) = islands.newest() else { continue };
        if matches!(seal(&stage, &island, stage.below(64) as usize).await, Some((_, true))) {
            make(&stage, &islands, spec(&stage)).await;
        }
        stage.report();
    }
}

fn spec(stage: &Stage<Handles>) -> LogletSpec {
    let hosts = stage.cluster.hosts();
    let size = [1, 3, 3, 3, 5][stage.below(5) as usize].min(hosts);
    let size = size - usize::from(size.is_multiple_of(2));
    let first = stage.below(hosts as u64) as usize;
    let node = |i: usize| NodeId((i % hosts) as u32 + 1);
    let sequencer = node(stage.below(64) as usize);
    LogletSpec::default().place("server", (0..size).map(|i| node(first + i))).place("sequencer", [sequencer])
}

/// Seals a Loglet through one node, then checks the tail there.
pub async fn seal(stage: &Stage<Handles>, island: &Island, at: usize) -> Option<(u64, bool)> {
    let life = live(stage, at)?;
    let loglet = open(&life, island)?;
    let sealed = life.env.launch("client.seal", async move { loglet.seal().await }).await;
    match sealed {
        Ok(Ok(())) => check(stage, island, at).await,
        _ => None,
    }
}

async fn trim(stage: &Stage<Handles>, islands: &Islands) {
    let Some(island) = islands.some(stage) else { return };
    let Some(life) = live(stage, stage.below(64) as usize) else { return };
    let Some(loglet) = open(&life, &island) else { return };
    // Sometimes trim everything: a server without entries must still know its tail (native-T12).
    let floor = stage.oracles.log.floor(&island.name);
    let to = if stage.below(3) == 0 { floor } else { stage.below(floor + 1) };
    stage.oracles.log.trim_begins(&island.name, to);
    let _ = life.env.launch("client.trim", async move { loglet.prefix_trim(Offset(to)).await }).await;
}

/// Deletes a Loglet if it is sealed, as a virtual log does after a truncate.
async fn delete(stage: &Stage<Handles>, islands: &Islands) {
    let Some(island) = islands.some(stage) else { return };
    if !matches!(check(stage, &island, stage.below(64) as usize).await, Some((_, true))) {
        return;
    }
    let Some(life) = live(stage, stage.below(64) as usize) else { return };
    stage.oracles.log.trim_begins(&island.name, u64::MAX);
    for i in islands.lock().iter_mut().filter(|i| i.id == island.id) {
        i.deleted = true;
    }
    let provider = life.handles.native.clone();
    let (id, config) = (island.id, island.config.clone());
    let _ = life.env.launch("client.delete", async move { provider.delete(id, &config).await }).await;
}

/// A client that learns of a Loglet, sleeps for a long time, and then appends to it. If the Loglet is sealed by then, no append may be
/// acknowledged.
pub async fn sleeper(stage: Stage<Handles>, islands: Islands) {
    let client = ClientId(stage.env.random() | 1);
    let mut seq = 0;
    while !stage.over.is_up() {
        let Some(island) = islands.newest() else {
            stage.pause(Duration::from_millis(100)).await;
            continue;
        };
        stage.pause(Duration::from_millis(100 + stage.below(20_000))).await;
        let Some(life) = live(&stage, stage.below(64) as usize) else { continue };
        let Some(loglet) = open(&life, &island) else { continue };
        for _ in 0..3 {
            seq += 1;
            let e = entry(&stage, client, seq);
            stage.oracles.log.append_begins(&island.name, e.op, &e.payload);
            let answer = stage.cluster.ask(&life, loglet.append(Batch::of([e.clone()]))).await;
            if let Some(Ok(Ok(placement))) = answer {
                for at in placement.offsets() {
                    stage.oracles.log.append_done(&island.name, e.op, at.0);
                }
            }
        }
        stage.report();
    }
}

/// Demands progress after everything was healed. Every Loglet can be sealed and read completely, also from each server's own disk after a
/// back-fill, and a new Loglet accepts appends through every node.
pub async fn demand(stage: Stage<Handles>, islands: Islands) {
    for island in islands.all().into_iter().filter(|i| !i.deleted) {
        stage.waits_for(format!("the seal of {}", island.name));
        while !islands.is_deleted(island.id) {
            if let Some((_, true)) = seal(&stage, &island, stage.below(64) as usize).await {
                break;
            }
            stage.pause(Duration::from_millis(50)).await;
            stage.report();
        }
        for host in 0..stage.cluster.hosts() {
            stage.waits_for(format!("all of {} through host {host}", island.name));
            whole(&stage, &islands, &island, host).await;
        }
        stage.waits_for(format!("each server to fill its gaps in {}", island.name));
        filled(&stage, &islands, &island).await;
        stage.report();
    }
    for host in 0..stage.cluster.hosts() {
        append_somewhere(&stage, &islands, host).await;
    }
    stage.report();
}

/// Appends through a host. If the newest Loglet does not accept the append, for example because its sequencer's life is over, creates
/// another.
async fn append_somewhere(stage: &Stage<Handles>, islands: &Islands, host: usize) {
    let client = ClientId(stage.env.random() | 1);
    for seq in 1.. {
        stage.waits_for(format!("an append through host {host}"));
        let island = islands.newest().filter(|_| seq > 1 || host > 0);
        if let Some(island) = island
            && let Some(life) = live(stage, host)
            && let Some(loglet) = open(&life, &island)
        {
            let e = entry(stage, client, seq);
            stage.oracles.log.append_begins(&island.name, e.op, &e.payload);
            let answer = stage.cluster.ask(&life, loglet.append(Batch::of([e.clone()]))).await;
            if let Some(Ok(Ok(placement))) = answer {
                for at in placement.offsets() {
                    stage.oracles.log.append_done(&island.name, e.op, at.0);
                }
                return;
            }
        }
        stage.report();
        make(stage, islands, LogletSpec::default()).await;
        stage.pause(Duration::from_millis(50)).await;
    }
}

/// Reads a whole sealed Loglet through one node. A wait above its tail must end (native-T18).
async fn whole(stage: &Stage<Handles>, islands: &Islands, island: &Island, host: usize) {
    let tail = loop {
        if islands.is_deleted(island.id) {
            return;
        }
        match check(stage, island, host).await {
            Some((tail, true)) => break tail,
            _ => stage.pause(Duration::from_millis(50)).await,
        }
    };
    let mut told_open = 0;
    // All waits use one handle, which tries one server after the other.
    let mut held: Option<(Life<Handles>, Arc<dyn Loglet>)> = None;
    while !islands.is_deleted(island.id) {
        if held.as_ref().is_none_or(|(life, _)| !stage.cluster.is_alive(life)) {
            let Some(life) = live(stage, host) else { continue };
            let Some(loglet) = open(&life, island) else { return };
            (held, told_open) = (Some((life, loglet)), 0);
        }
        let Some((life, loglet)) = held.clone() else { continue };
        let ended = life.env.launch("client.wait", async move { loglet.wait_tail(Offset(tail)).await }).await;
        match ended {
            Ok(Ok(t)) if t.sealed.is_some() => break,
            Ok(Ok(_)) => told_open += 1,
            _ => {}
        }
        // Each wait asks another server, and at most a minority of the servers missed the seal. If this many waits end open, the product
        // has lost the seal that its servers know.
        if told_open > WAITS_TOLD_OPEN {
            return stage.cluster.fail(format!(
                "native-T18 a reader is not told of the seal: {} is sealed at {tail}, {told_open} waits through host {host} ended open",
                island.name
            ));
        }
        stage.pause(Duration::from_millis(50)).await;
    }
    let mut next = Offset(0);
    let mut from = Offset(0);
    let mut content = BTreeMap::new();
    while next.0 < tail {
        if islands.is_deleted(island.id) {
            return;
        }
        let Some(life) = live(stage, host) else { continue };
        let Some(loglet) = open(&life, island) else { return };
        let range = next..Offset(tail);
        let got = life
            .env
            .launch("client.read", async move { loglet.read(range, 32 * 1024, ReadFrom::Anywhere).await });
        match got.await {
            Ok(Ok(read)) => {
                for e in &read.entries {
                    stage.oracles.log.read(&island.name, next.0, e.op, &e.payload);
                    content.insert(next.0, e.op);
                    next = next.plus(1);
                }
            }
            Ok(Err(ReadError::Trimmed(to))) => {
                stage.oracles.log.trimmed(&island.name, to.0);
                next = next.max(to);
                from = next;
            }
            Ok(Err(ReadError::Damaged(what))) => {
                return stage.cluster.fail(format!("DAMAGED: {} at {next}: {what}", island.name));
            }
            _ => stage.pause(Duration::from_millis(50)).await,
        }
    }
    stage.oracles.log.whole(&island.name, from.0, tail, &content);
}

/// Waits until each server has the whole Loglet on its own disk; requests the back-fills for that.
async fn filled(stage: &Stage<Handles>, islands: &Islands, island: &Island) {
    let Some((tail, _)) = check(stage, island, 0).await else { return };
    let servers: Vec<NodeId> = live(stage, 0)
        .map(|l| l.handles.native.duties(&island.config).holders().map(|(n, _)| n).collect())
        .unwrap_or_default();
    for node in servers {
        let host = node.0 as usize - 1;
        let mut next = Offset(0);
        while next.0 < tail && !islands.is_deleted(island.id) {
            let Some(life) = stage.cluster.host(host) else {
                stage.pause(Duration::from_millis(50)).await;
                continue;
            };
            let Some(loglet) = open(&life, island) else { return };
            let provider = life.handles.native.clone();
            let (id, config) = (island.id, island.config.clone());
            let range = next..Offset(tail);
            let got = life.env.launch("client.local", async move {
                loglet.read(range, 32 * 1024, ReadFrom::LocalOnly).await
            });
            match got.await {
                Ok(Ok(read)) => {
                    for e in &read.entries {
                        stage.oracles.log.read(&island.name, next.0, e.op, &e.payload);
                        next = next.plus(1);
                    }
                }
                Ok(Err(ReadError::Trimmed(to))) => next = next.max(to),
                _ => {
                    let upto = Offset(tail);
                    let fill = life.env.launch("client.fill", async move {
                        provider.back_fill(id, &config, upto).await.is_ok()
                    });
                    let _ = fill.await;
                    stage.pause(Duration::from_millis(200)).await;
                }
            }
        }
    }
}
