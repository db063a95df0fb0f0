//! Clients of keyspaces: reads and conditional writes of few keys through any node. After an unknown outcome, a client repeats the write at
//! another node under the same name. An operator creates the keyspace, deletes it, sometimes dying half-way, and creates it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::keyspace::{
    Attempt, Catalog, CatalogError, Change, Changed, Durability, Guard, Happened, Held, Judge, KeyVersion,
    Keyspace, KeyspaceError, KeyspaceId, KeyspaceSpec, Layout, ListFrom, Replica, Told, Unavailability,
};
use atoll_contract::{ClientId, KeyspaceProvider, OpId};
use atoll_core::NodeId;
use atoll_core::testing::hit;
use atoll_node::keyspaces::Keyspaces;
use bytes::Bytes;

use crate::oracle::Answered;
use crate::scenario::phases::Stage;
use crate::world::clients::Life;
use crate::world::fault::{Death, Fault};

/// The name of the only keyspace.
pub(super) const NAME: &str = "reef";

/// Handles to keyspaces, each with the epoch of its layout.
pub type Open = BTreeMap<KeyspaceId, (u64, Arc<dyn Keyspace>)>;

/// What clients use on a node.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Keyspaces by name.
    pub catalog: Catalog,
    /// Opens keyspaces.
    pub provider: Arc<dyn KeyspaceProvider>,
    /// Keyspaces as a node serves them to its doors.
    pub keyspaces: Keyspaces,
    /// The keyspaces that are open in this life of the node.
    pub open: Arc<Mutex<Open>>,
}

impl Handles {
    pub(super) fn keyspace(&self, layout: &Layout) -> Arc<dyn Keyspace> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let opened = open.entry(layout.id).or_insert_with(|| (layout.epoch, self.provider.open(layout)));
        // A handle to an older layout stays usable, and is replaced only once a newer one is in use.
        if opened.0 < layout.epoch {
            *opened = (layout.epoch, self.provider.open(layout));
        }
        opened.1.clone()
    }
}

#[derive(Debug, Default)]
struct State {
    layout: Option<Layout>,
    /// One for each keyspace that ever had the name.
    judges: BTreeMap<KeyspaceId, Judge>,
    /// Keyspaces whose deletion has been completed.
    deleted: BTreeSet<KeyspaceId>,
    /// How many clients, operators and movers are at work.
    clients: usize,
}

/// What all clients share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Reef {
    state: Arc<Mutex<State>>,
    spec: KeyspaceSpec,
    /// If the keyspace moves: returns the groups of replicas in a layout of each of which a majority is needed.
    groups: Option<Groups>,
}

/// Returns groups of replicas.
pub type Groups = fn(&Layout) -> Vec<Vec<Replica>>;

impl Reef {
    /// Returns the state before the keyspace is created.
    pub fn new(spec: KeyspaceSpec) -> Self {
        Reef { state: Arc::default(), spec, groups: None }
    }

    /// Returns the state before a keyspace is created that moves.
    #[must_use]
    pub fn that_moves(self, groups: Groups) -> Self {
        Reef { groups: Some(groups), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn layout(&self) -> Option<Layout> {
        self.state().layout.clone()
    }

    /// The keyspace with the name is this one now. Any earlier one is gone.
    pub(super) fn adopt(&self, layout: Layout) {
        let state = &mut *self.state();
        // Of the same keyspace, an older layout may arrive later; and one that is gone does not return.
        let is_old = state.layout.as_ref().is_some_and(|now| now.id == layout.id && now.epoch > layout.epoch);
        if is_old || state.deleted.contains(&layout.id) {
            return;
        }
        if let Some(before) = state.layout.replace(layout.clone())
            && before.id != layout.id
        {
            hit("sim.keyspace.created_again");
            state.deleted.insert(before.id);
        }
        state.judges.entry(layout.id).or_default();
    }

    /// A client begins.
    pub(super) fn begins(&self) {
        self.state().clients += 1;
    }

    /// A client ends.
    pub(super) fn ends(&self) {
        self.state().clients -= 1;
    }

    /// Changes the judge of a keyspace, and reports what it finds.
    pub(super) fn judge<T>(
        &self,
        stage: &Stage<Handles>,
        id: KeyspaceId,
        f: impl FnOnce(&mut Judge) -> T,
    ) -> Option<T> {
        let mut state = self.state();
        let judge = state.judges.get_mut(&id)?;
        let before = judge.answered();
        let result = f(judge);
        let (failures, after) = (judge.take_failures(), judge.answered());
        drop(state);
        stage.count(Answered { writes: after.0 - before.0, reads: after.1 - before.1 });
        failures.into_iter().for_each(|failure| stage.cluster.fail(failure));
        Some(result)
    }
}

/// Returns whether a majority of these replicas has lost its memory, as an outsider sees the processes.
fn is_lost(stage: &Stage<Handles>, layout: &Layout, replicas: &[Replica]) -> bool {
    let lives = |node: NodeId| stage.cluster.host(node.0 as usize - 1).map(|life| life.env.incarnation().0);
    let intact = replicas.iter().filter(|r| lives(r.node).map(u128::from) == Some(r.identity)).count();
    layout.durability == Durability::Memory && intact < replicas.len() / 2 + 1
}

/// The same for the replicas of a shard of a layout.
fn is_shard_lost(stage: &Stage<Handles>, layout: &Layout, shard: u32) -> bool {
    is_lost(stage, layout, &layout.shards[shard as usize].replicas)
}

/// A request of a client, and what was true when it began.
pub(super) struct Request {
    pub(super) layout: Layout,
    pub(super) key: Bytes,
    /// The keyspace was deleted, or its memory lost, before the request began: it must not be answered.
    dead: bool,
    /// Whether the layout says which replicas there are. That of a keyspace that moves may be old.
    is_exact: bool,
}

fn begin(stage: &Stage<Handles>, reef: &Reef, keys: u64) -> Option<Request> {
    // No key is drawn while there is no keyspace.
    reef.layout()?;
    request(stage, reef, Bytes::from(format!("k{}", stage.below(keys))))
}

/// Begins a request for this key.
pub(super) fn request(stage: &Stage<Handles>, reef: &Reef, key: Bytes) -> Option<Request> {
    let layout = reef.layout()?;
    let is_exact = reef.groups.is_none();
    let lost = is_exact && is_shard_lost(stage, &layout, layout.place(&key).shard);
    let dead = reef.state().deleted.contains(&layout.id) || lost;
    Some(Request { layout, key, dead, is_exact })
}

impl Request {
    /// An answer came. Returns whether it may be judged.
    fn answered(&self, stage: &Stage<Handles>) {
        if self.dead {
            stage.cluster.fail(format!("Z5 risen: {:?} of a keyspace that is gone was answered", self.key));
        }
    }

    /// The keyspace claims that its memory is lost.
    fn says_lost(&self, stage: &Stage<Handles>) {
        hit("sim.keyspace.says_lost");
        if self.is_exact && !is_shard_lost(stage, &self.layout, self.layout.place(&self.key).shard) {
            stage.cluster.fail("Z5 false loss: a majority of the replicas still has its memory".to_owned());
        }
    }
}

async fn read_once(
    stage: &Stage<Handles>,
    reef: &Reef,
    host: usize,
    request: &Request,
) -> Option<Option<Held>> {
    let life = stage.cluster.any_from(host % stage.cluster.hosts())?;
    let asked = reef.judge(stage, request.layout.id, |judge| judge.reads(&request.key))?;
    let (keyspace, key) = (life.handles.keyspace(&request.layout), request.key.clone());
    let got = life.env.launch("client.get", async move { keyspace.get(key).await }).await;
    match got {
        Ok(Ok(held)) => {
            request.answered(stage);
            let told = Told::Read(held.clone());
            reef.judge(stage, request.layout.id, |judge| judge.told(&request.key, asked, &told));
            Some(held)
        }
        Ok(Err(KeyspaceError::NotDone(Unavailability::LostMajority))) => {
            request.says_lost(stage);
            None
        }
        _ => None,
    }
}

/// Waits once until a key has another version than `seen`. The judge takes the outcome for that of a read that began with the wait.
async fn watch_once(
    stage: &Stage<Handles>,
    reef: &Reef,
    host: usize,
    request: &Request,
    seen: KeyVersion,
) -> Option<KeyVersion> {
    let life = stage.cluster.any_from(host % stage.cluster.hosts())?;
    let asked = reef.judge(stage, request.layout.id, |judge| judge.reads(&request.key))?;
    let (keyspace, key) = (life.handles.keyspace(&request.layout), request.key.clone());
    match life.env.launch("client.watch", async move { keyspace.wait_change(key, seen).await }).await {
        Ok(Ok(held)) => {
            request.answered(stage);
            let version = held.as_ref().map_or(KeyVersion(0), |held| held.version);
            if version != seen {
                hit("sim.keyspace.watch_showed");
            }
            reef.judge(stage, request.layout.id, |judge| judge.told(&request.key, asked, &Told::Read(held)));
            Some(version)
        }
        Ok(Err(KeyspaceError::NotDone(Unavailability::LostMajority))) => {
            request.says_lost(stage);
            None
        }
        _ => None,
    }
}

/// Watches one key after the other until the load is over. A watch continues at another node from time to time.
pub async fn watcher(stage: Stage<Handles>, reef: Reef, keys: u64) {
    let mut host = stage.below(64) as usize;
    while !stage.over.is_up() {
        stage.pause(Duration::from_millis(20)).await;
        let Some(request) = begin(&stage, &reef, keys) else { continue };
        let mut seen = KeyVersion(0);
        for _ in 0..20 {
            match watch_once(&stage, &reef, host, &request, seen).await {
                Some(version) => seen = version,
                None => stage.pause(Duration::from_millis(20)).await,
            }
            if stage.over.is_up() || reef.layout().is_none_or(|now| now.id != request.layout.id) {
                break;
            }
            if stage.below(3) == 0 {
                host = stage.below(64) as usize;
            }
        }
    }
}

/// Writes once, with repeats. Returns the outcome if there is one.
pub(super) async fn write_once(
    stage: &Stage<Handles>,
    reef: &Reef,
    mut host: usize,
    request: &Request,
    (op, guard, change): (OpId, Guard, Change),
) -> Option<Changed> {
    let id = request.layout.id;
    let mut attempt = Attempt::First;
    for _ in 0..4 {
        let life = stage.cluster.any_from(host % stage.cluster.hosts())?;
        let keyspace = life.handles.keyspace(&request.layout);
        let floor = keyspace.floor(&request.key);
        let asked = reef.judge(stage, id, |judge| judge.writes(&request.key, op, &guard, &change))?;
        let (key, g, c) = (request.key.clone(), guard.clone(), change.clone());
        let write = async move { keyspace.write(op, attempt, key, g, c).await };
        let told = match life.env.launch("client.write", write).await {
            Ok(Ok(changed)) => Told::Wrote(op, changed),
            Ok(Err(error)) => {
                if matches!(
                    error,
                    KeyspaceError::NotDone(Unavailability::LostMajority)
                        | KeyspaceError::Unknown { why: Unavailability::LostMajority, .. }
                ) {
                    request.says_lost(stage);
                }
                if let KeyspaceError::Unknown { floor, .. } = error {
                    attempt = Attempt::Again(floor);
                }
                if error == KeyspaceError::Forgotten {
                    hit("sim.keyspace.forgotten");
                    return None;
                }
                Told::Failed(op, error.happened())
            }
            Err(_) => {
                hit("sim.keyspace.node_died");
                if attempt == Attempt::First {
                    attempt = Attempt::Again(floor);
                }
                Told::Failed(op, Happened::Unknown)
            }
        };
        reef.judge(stage, id, |judge| judge.told(&request.key, asked, &told));
        match told {
            Told::Wrote(_, changed) => {
                request.answered(stage);
                return Some(changed);
            }
            Told::Failed(_, Happened::Unknown) => {}
            _ => return None,
        }
        host = stage.below(64) as usize;
        stage.pause(Duration::from_millis(20)).await;
    }
    None
}

/// Reads and writes until the load is over.
pub async fn client(stage: Stage<Handles>, reef: Reef, number: u64, keys: u64, think: Duration) {
    let (mut seq, mut last) = (0, None);
    let mut host = stage.below(64) as usize;
    reef.begins();
    while !stage.over.is_up() {
        stage.pause(think).await;
        if stage.below(6) == 0 {
            host = stage.below(64) as usize;
        }
        let Some(request) = begin(&stage, &reef, keys) else { continue };
        if stage.below(3) == 0 {
            last = read_once(&stage, &reef, host, &request).await.flatten();
            continue;
        }
        seq += 1;
        let op = OpId { client: ClientId(number), seq };
        let guard = match (stage.below(6), &last) {
            (0, _) => Guard::Absent,
            (1, _) => Guard::Present,
            (2, Some(Held { version, .. })) => Guard::Version(*version),
            (3, Some(Held { value, .. })) => Guard::Value(value.clone()),
            _ => Guard::Always,
        };
        let change = match stage.below(4) {
            0 => Change::Delete,
            _ => Change::Put(Bytes::from(format!("{number}-{seq}"))),
        };
        if let Some(Changed::Not(held)) = write_once(&stage, &reef, host, &request, (op, guard, change)).await
        {
            last = held;
        }
    }
    reef.ends();
}

/// Waits for the last operations of clients, operators and movers. A deletion that is still under way would take what is expected to be
/// there: a key, or the whole keyspace.
pub(super) async fn clients_end(stage: &Stage<Handles>, reef: &Reef) {
    stage.waits_for("the last operations of clients".to_owned());
    while reef.state().clients > 0 {
        stage.pause(Duration::from_millis(20)).await;
    }
}

/// Runs a procedure on a node. None if the node dies.
pub(super) async fn on<T: Send + 'static>(
    life: &Life<Handles>,
    f: impl Future<Output = T> + Send + 'static,
) -> Option<T> {
    life.env.launch("operator", f).await.ok()
}

/// Makes sure that there is a keyspace, and that it is not one that is being deleted or has lost its memory.
pub async fn provide(stage: &Stage<Handles>, reef: &Reef) {
    loop {
        let life = stage.cluster.wait_any(&stage.env, stage.below(64) as usize % stage.cluster.hosts()).await;
        let (catalog, spec) = (life.handles.catalog.clone(), reef.spec.clone());
        let made = on(&life, async move {
            match catalog.create(NAME, &spec).await {
                Err(CatalogError::Exists(_)) => catalog.layout(NAME).await,
                other => other,
            }
        });
        if let Some(Ok(layout)) = made.await {
            let groups = reef.groups.map(|groups| groups(&layout));
            let present = || layout.shards.iter().map(|shard| shard.replicas.clone()).collect();
            let lost =
                groups.unwrap_or_else(present).iter().any(|replicas| is_lost(stage, &layout, replicas));
            reef.adopt(layout);
            if !lost {
                return;
            }
            delete(stage, &life).await;
        }
        stage.pause(Duration::from_millis(50)).await;
    }
}

async fn delete(stage: &Stage<Handles>, life: &Life<Handles>) {
    let catalog = life.handles.catalog.clone();
    match on(life, async move { catalog.delete(NAME).await }).await {
        Some(Ok(())) => hit("sim.keyspace.deleted"),
        _ => {
            // Another node completes it.
            let other =
                stage.cluster.wait_any(&stage.env, stage.below(64) as usize % stage.cluster.hosts()).await;
            let catalog = other.handles.catalog.clone();
            if let Some(Ok(1..)) = on(&other, async move { catalog.tend().await }).await {
                hit("sim.keyspace.deletion_completed");
            }
        }
    }
}

/// Creates the keyspace, and from time to time deletes it and creates it again. The node that deletes it may die.
pub async fn operator(stage: Stage<Handles>, reef: Reef) {
    reef.begins();
    while !stage.over.is_up() {
        provide(&stage, &reef).await;
        stage.pause(Duration::from_millis(2_500)).await;
        if stage.over.is_up() || stage.below(3) > 0 {
            continue;
        }
        let life = stage.cluster.wait_any(&stage.env, stage.below(64) as usize % stage.cluster.hosts()).await;
        if stage.below(2) == 0 {
            let (host, frames) = (life.node.0 as usize - 1, stage.below(12));
            let back_after = stage.below(300_000_000);
            stage.cluster.inject(Fault::CrashAfterFrames { host, frames, back_after });
        }
        delete(&stage, &life).await;
    }
    reef.ends();
}

/// Writes a key through a host until the write is acknowledged. `last` is the last operation of the writer.
async fn put(
    stage: &Stage<Handles>,
    reef: &Reef,
    host: usize,
    request: &Request,
    last: &mut OpId,
) -> KeyVersion {
    loop {
        last.seq += 1;
        let value = Bytes::from(format!("last-{}-{}", last.client.0, last.seq));
        let put = (*last, Guard::Always, Change::Put(value));
        if let Some(Changed::Done(version)) = write_once(stage, reef, host, request, put).await {
            return version;
        }
        stage.pause(Duration::from_millis(20)).await;
    }
}

/// Writes all keys, each until that is acknowledged, as this client.
pub async fn write_all(stage: &Stage<Handles>, reef: &Reef, keys: u64, client: u64) {
    let Some(layout) = reef.layout() else { return };
    let mut writer = OpId { client: ClientId(client), seq: 0 };
    for n in 0..keys {
        stage.waits_for(format!("a write of k{n}"));
        let request = Request {
            layout: layout.clone(),
            key: Bytes::from(format!("k{n}")),
            dead: false,
            is_exact: reef.groups.is_none(),
        };
        put(stage, reef, n as usize, &request, &mut writer).await;
    }
}

/// Demands progress after everything was healed: a write and a read of each key, and a listing, through each node. First, a minority dies
/// for good in some runs.
pub async fn demand(stage: Stage<Handles>, reef: Reef, keys: u64, dead: Vec<usize>) {
    stage.pause(Duration::from_millis(500)).await;
    clients_end(&stage, &reef).await;
    // A node in memory that still had to die would forget the new keyspace, beside the minority that dies.
    for host in 0..stage.cluster.hosts() {
        stage.cluster.inject(Fault::Defuse { host });
    }
    stage.waits_for("a keyspace".to_owned());
    provide(&stage, &reef).await;
    if !dead.is_empty() {
        // Replicas in memory may have been lost before. A new keyspace has them all, and can spare a minority.
        let life = stage.cluster.wait_any(&stage.env, 0).await;
        delete(&stage, &life).await;
        provide(&stage, &reef).await;
    }
    for host in dead {
        hit("sim.keyspace.dead_minority");
        stage.cluster.inject(Fault::Crash { host, death: Death::Kill, back_after: None });
    }
    demand_all(stage, reef, keys, 1).await;
}

/// Demands a write and a read of each key, and a listing, through each node that is up. The writes are those of this client.
pub(super) async fn demand_all(stage: Stage<Handles>, reef: Reef, keys: u64, client: u64) {
    let Some(layout) = reef.layout() else { return };
    let shown: Arc<Mutex<BTreeMap<u64, KeyVersion>>> = Arc::default();
    for n in 0..keys {
        let request = Request {
            layout: layout.clone(),
            key: Bytes::from(format!("k{n}")),
            dead: false,
            is_exact: reef.groups.is_none(),
        };
        stage.spawn("watch", watch_all(stage.clone(), reef.clone(), request, n, shown.clone()));
    }
    let mut writer = OpId { client: ClientId(client), seq: 0 };
    for host in 0..stage.cluster.hosts() {
        for n in 0..keys {
            let key = Bytes::from(format!("k{n}"));
            let request =
                Request { layout: layout.clone(), key, dead: false, is_exact: reef.groups.is_none() };
            stage.waits_for(format!("a write of k{n} through host {host}"));
            let version = put(&stage, &reef, host, &request, &mut writer).await;
            stage.waits_for(format!("the watch of k{n} to show version {version}, or a later one"));
            while shown.lock().unwrap_or_else(PoisonError::into_inner).get(&n).is_none_or(|v| *v < version) {
                stage.pause(Duration::from_millis(20)).await;
            }
            stage.waits_for(format!("a read of k{n} through host {host}"));
            while read_once(&stage, &reef, host, &request).await.is_none() {
                stage.pause(Duration::from_millis(20)).await;
            }
        }
        stage.waits_for(format!("a listing through host {host}"));
        list(&stage, &layout, host, keys).await;
    }
}

/// Watches a key in a healed cluster, and notes each version that is shown.
async fn watch_all(
    stage: Stage<Handles>,
    reef: Reef,
    request: Request,
    n: u64,
    shown: Arc<Mutex<BTreeMap<u64, KeyVersion>>>,
) {
    let mut seen = KeyVersion(0);
    loop {
        match watch_once(&stage, &reef, n as usize, &request, seen).await {
            Some(version) => {
                seen = version;
                shown.lock().unwrap_or_else(PoisonError::into_inner).insert(n, version);
            }
            None => stage.pause(Duration::from_millis(20)).await,
        }
    }
}

/// Lists all keys in small pages, and compares them with those that were written.
async fn list(stage: &Stage<Handles>, layout: &Layout, host: usize, keys: u64) {
    let mut wanted: Vec<Bytes> = (0..keys).map(|n| Bytes::from(format!("k{n}"))).collect();
    wanted.sort();
    let (mut got, mut after) = (Vec::new(), None);
    loop {
        let Some(life) = stage.cluster.any_from(host) else { return };
        let keyspace = life.handles.keyspace(layout);
        let from = ListFrom { prefix: Bytes::from_static(b"k"), after: after.clone(), limit: 2 };
        match on(&life, async move { keyspace.list(from).await }).await {
            Some(Ok(page)) => {
                got.extend(page.keys.into_iter().map(|(key, _)| key));
                after = page.upto;
                if !page.more {
                    break;
                }
            }
            _ => stage.pause(Duration::from_millis(20)).await,
        }
    }
    if got != wanted {
        stage.cluster.fail(format!("Z8 listing: {got:?} instead of {wanted:?}"));
    }
}
