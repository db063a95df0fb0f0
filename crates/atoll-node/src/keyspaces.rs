//! The keyspaces of the cluster, as this node serves them to its doors. It creates and deletes them, keeps handles to those in use, moves
//! them off nodes that leave, and completes deletions and moves that died in the middle.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::OpId;
use atoll_contract::keyspace::{
    Attempt, Catalog, CatalogError, Change, Changed, Floor, Guard, Held, Holder, KeyVersion, Keyspace,
    KeyspaceError, KeyspaceId, KeyspaceProvider, KeyspaceSpec, Layout, Lease, LeaseError, Leases, ListFrom,
    Page, Transacted, TxnPart, Unavailability,
};
use atoll_contract::register::Registers;
use atoll_core::level::since;
use atoll_core::sync::lock;
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Env, Level, NodeId};
use bytes::Bytes;

use crate::mutants;

/// The maximum number of keyspaces in a cluster. Each costs every node a look at its register from time to time.
pub const MAX_KEYSPACES: usize = 128;
/// The maximum number of names that keyspaces have, or have had. The register of a deleted one is kept, because a replica that was away
/// must not find that its keyspace never existed.
const MAX_NAMES: usize = 1024;
/// The maximum number of handles that a node keeps open.
const MAX_OPEN: usize = 256;
/// How long to wait for the layouts of all keyspaces.
const READ: Duration = Duration::from_secs(5);
/// How long an operation waits for a shard that is between two groups of replicas.
const MOVES_WITHIN: Duration = Duration::from_secs(4);
/// The pause between two looks at such a shard, on average.
const MOVE_PAUSE: Duration = Duration::from_millis(20);
/// Rounds that look for deletions and moves to complete are this many times less frequent than patrols.
const RARER: u32 = 5;

/// Why an operation on a keyspace failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyspacesError {
    /// The keyspace was not created, found or deleted.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The operation on its keys failed.
    #[error(transparent)]
    Keys(#[from] KeyspaceError),
    /// There is no lease for the caller.
    #[error(transparent)]
    Lease(LeaseError),
    /// There are as many keyspaces as a cluster may have. Nothing was changed.
    #[error("there are {0} keyspaces, and a cluster has at most {MAX_KEYSPACES}")]
    TooMany(usize),
    /// There were as many names as a cluster remembers. Nothing was changed.
    #[error("keyspaces had {0} different names, and a cluster remembers at most {MAX_NAMES}")]
    TooManyNames(usize),
    /// Not all members can read layouts of keyspaces. Nothing was changed.
    #[error("keyspaces need feature level {needed}, and the cluster is at level {active}")]
    Level {
        /// The level from which keyspaces may be created.
        needed: Level,
        /// The level of the cluster.
        active: Level,
    },
}

/// Returns what to ask for to get replicas off a node.
fn off(node: NodeId, members: &[NodeId]) -> KeyspaceSpec {
    let nodes = members.iter().copied().filter(|member| *member != node).collect();
    KeyspaceSpec { nodes, ..KeyspaceSpec::default() }
}

impl From<LeaseError> for KeyspacesError {
    fn from(error: LeaseError) -> Self {
        match error {
            LeaseError::Keys(error) => KeyspacesError::Keys(error),
            other => KeyspacesError::Lease(other),
        }
    }
}

/// An open keyspace.
#[derive(Clone)]
struct Open {
    id: KeyspaceId,
    epoch: u64,
    keys: Arc<dyn Keyspace>,
    leases: Leases,
}

struct Inner {
    env: Env,
    registers: Arc<dyn Registers>,
    catalog: Catalog,
    /// The engine of a new keyspace if nobody requests one.
    first_engine: Option<&'static str>,
    open: Mutex<BTreeMap<String, Open>>,
}

/// See the module documentation. Clones are cheap. The methods are procedures: call them within one of the node.
#[derive(Clone)]
pub struct Keyspaces(Arc<Inner>);

impl std::fmt::Debug for Keyspaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspaces").field("catalog", &self.0.catalog).finish_non_exhaustive()
    }
}

impl Keyspaces {
    /// Returns the keyspaces in these registers, of these engines.
    pub fn new(env: Env, registers: Arc<dyn Registers>, providers: Vec<Arc<dyn KeyspaceProvider>>) -> Self {
        let first_engine = providers.first().map(|provider| provider.engine());
        let catalog = Catalog::new(env.clone(), registers.clone(), providers);
        Keyspaces(Arc::new(Inner { env, registers, catalog, first_engine, open: Mutex::default() }))
    }

    /// Returns the executor on which the methods run.
    pub fn env(&self) -> &Env {
        &self.0.env
    }

    /// Creates a keyspace. An empty engine is the first one of the node.
    pub async fn create(&self, name: &str, mut spec: KeyspaceSpec) -> Result<Layout, KeyspacesError> {
        if !self.0.env.allows_soon(since::KEYSPACES).await {
            let active = self.0.env.levels().active();
            return Err(KeyspacesError::Level { needed: since::KEYSPACES, active });
        }
        if spec.engine.is_empty() {
            spec.engine = self.0.first_engine.unwrap_or_default().to_owned();
        }
        let listed = self.0.registers.list(atoll_contract::keyspace::REGISTER_PREFIX).await;
        let names = listed.map_err(CatalogError::Register)?.len();
        // Deleted keyspaces count only towards the names.
        if names >= MAX_KEYSPACES {
            let there = self.0.catalog.names().await?.len();
            if there >= MAX_KEYSPACES {
                return Err(KeyspacesError::TooMany(there));
            }
        }
        if names >= MAX_NAMES && !self.0.catalog.is_known(name).await? {
            return Err(KeyspacesError::TooManyNames(names));
        }
        Ok(self.0.catalog.create(name, &spec).await?)
    }

    /// Returns the names of all keyspaces, in order.
    pub async fn names(&self) -> Result<Vec<String>, KeyspacesError> {
        Ok(self.0.catalog.names().await?)
    }

    /// Returns the layout of a keyspace.
    pub async fn layout(&self, name: &str) -> Result<Layout, KeyspacesError> {
        Ok(self.0.catalog.layout(name).await?)
    }

    /// Begins to move the replicas of a keyspace to where `spec` wants them, and returns the layout with the plan. This node does the steps
    /// in the background. If it dies, another one does the rest ([`Keyspaces::tend`]).
    pub async fn relocate(&self, name: &str, spec: &KeyspaceSpec) -> Result<Layout, KeyspacesError> {
        let planned = self.0.catalog.plan_move(name, spec).await?;
        let (me, name) = (self.clone(), name.to_owned());
        let steps = async move {
            if me.0.catalog.complete_move(&name).await.is_ok() {
                hit("keyspaces.moved");
            }
        };
        self.0.env.spawn("keyspace.move", Box::pin(steps));
        Ok(planned)
    }

    /// Returns how many shards of a layout are still to move.
    pub fn left_to_move(&self, layout: &Layout) -> usize {
        self.0.catalog.left_to_move(layout)
    }

    /// Describes what a node holds of keyspaces, according to layouts that this call reads. None if it holds nothing. Layouts that cannot
    /// be read count as holding something.
    pub async fn held_by(&self, node: NodeId) -> Option<String> {
        let layouts = match self.0.env.within(READ, self.0.catalog.layouts()).await {
            Ok(Ok(layouts)) => layouts,
            _ => return Some("replicas of keyspaces, maybe: their layouts could not be read".to_owned()),
        };
        let mut held = layouts.iter().filter(|(_, layout)| self.0.catalog.nodes(layout).contains(&node));
        let (name, _) = held.next()?;
        Some(format!("replicas of {} keyspaces, {name:?} among them", held.count() + 1))
    }

    /// Checks whether the replicas of keyspaces on a node could move to the others among `members`. Returns what prevents it.
    pub async fn may_vacate(&self, node: NodeId, members: &[NodeId]) -> Result<(), KeyspacesError> {
        for (_, layout) in self.0.catalog.layouts().await? {
            if self.0.catalog.nodes(&layout).contains(&node) {
                self.0.catalog.may_relocate(&layout, &off(node, members)).await?;
            }
        }
        Ok(())
    }

    /// Moves the replicas of keyspaces on a node to the others among `members`. The node may be dead. On return, it holds nothing of them
    /// that is still needed. If this fails, a move may have begun, and any node completes it.
    pub async fn vacate(&self, node: NodeId, members: &[NodeId]) -> Result<(), KeyspacesError> {
        for (name, layout) in self.0.catalog.layouts().await? {
            if self.0.catalog.nodes(&layout).contains(&node) {
                self.0.catalog.relocate(&name, &off(node, members)).await?;
            }
        }
        Ok(())
    }

    /// Deletes a keyspace.
    pub async fn delete(&self, name: &str) -> Result<(), KeyspacesError> {
        let deleted = self.0.catalog.delete(name).await;
        lock(&self.0.open).remove(name);
        Ok(deleted?)
    }

    /// Reads keys. Returns a floor for later writes with each of them.
    pub async fn get(
        &self,
        name: &str,
        keys: Vec<Bytes>,
    ) -> Result<Vec<(Option<Held>, Floor)>, KeyspacesError> {
        self.with(name, |open, _| {
            let keys = keys.clone();
            Box::pin(async move {
                let found = open.keys.get_many(keys.clone()).await?;
                Ok(found.into_iter().zip(&keys).map(|(held, key)| (held, open.keys.floor(key))).collect())
            })
        })
        .await
    }

    /// Changes a key if a condition holds. Returns a floor for later writes of this key, too.
    pub async fn write(
        &self,
        name: &str,
        (op, attempt): (OpId, Attempt),
        key: Bytes,
        guard: Guard,
        change: Change,
    ) -> Result<(Changed, Floor), KeyspacesError> {
        self.with(name, |open, tried| {
            let (key, guard, change) = (key.clone(), guard.clone(), change.clone());
            let attempt = tried.map_or(attempt, Attempt::Again);
            Box::pin(async move {
                let changed = open.keys.write(op, attempt, key.clone(), guard, change).await?;
                Ok((changed, open.keys.floor(&key)))
            })
        })
        .await
    }

    /// Reads and changes several keys at one moment if all conditions hold, or changes none of them. Returns floors for later writes of the
    /// keys, too, in the order of the request.
    pub async fn transact(
        &self,
        name: &str,
        (op, repeat): (OpId, bool),
        parts: Vec<TxnPart>,
    ) -> Result<(Transacted, Vec<Floor>), KeyspacesError> {
        self.with(name, |open, tried| {
            let mut parts = parts.clone();
            // The floor of an attempt of this call is one of all of its keys.
            let floor = tried.filter(|_| !repeat).unwrap_or_default();
            parts.iter_mut().for_each(|part| part.floor = part.floor.max(floor));
            Box::pin(async move {
                let outcome = open.keys.transact(op, repeat || tried.is_some(), parts.clone()).await?;
                Ok((outcome, parts.iter().map(|part| open.keys.floor(&part.key)).collect()))
            })
        })
        .await
    }

    /// Waits until a key has another version than `seen`, or for a while, and reads it.
    pub async fn wait_change(
        &self,
        name: &str,
        key: Bytes,
        seen: KeyVersion,
    ) -> Result<Option<Held>, KeyspacesError> {
        self.with(name, |open, _| {
            let key = key.clone();
            Box::pin(async move { Ok(open.keys.wait_change(key, seen).await?) })
        })
        .await
    }

    /// Takes the lease on a key for an owner and a time in milliseconds; see [`Leases::acquire`].
    pub async fn acquire(
        &self,
        name: &str,
        op: OpId,
        key: Bytes,
        terms: (Bytes, u64),
        wait: Duration,
    ) -> Result<Lease, KeyspacesError> {
        self.with(name, |open, _| {
            let (key, terms) = (key.clone(), terms.clone());
            Box::pin(async move { Ok(open.leases.acquire(op, key, terms, wait).await?) })
        })
        .await
    }

    /// Renews a lease; see [`Leases::renew`].
    pub async fn renew(
        &self,
        name: &str,
        op: OpId,
        key: Bytes,
        fencing: u64,
        for_ms: u64,
    ) -> Result<Lease, KeyspacesError> {
        self.with(name, |open, _| {
            let key = key.clone();
            Box::pin(async move { Ok(open.leases.renew(op, key, fencing, for_ms).await?) })
        })
        .await
    }

    /// Gives up a lease; see [`Leases::release`].
    pub async fn release(
        &self,
        name: &str,
        key: Bytes,
        fencing: u64,
        repeat: bool,
    ) -> Result<(), KeyspacesError> {
        self.with(name, |open, _| {
            let key = key.clone();
            Box::pin(async move { Ok(open.leases.release(key, fencing, repeat).await?) })
        })
        .await
    }

    /// Returns who holds the lease on a key.
    pub async fn holder(&self, name: &str, key: Bytes) -> Result<Holder, KeyspacesError> {
        self.with(name, |open, _| {
            let key = key.clone();
            Box::pin(async move { Ok(open.leases.holder(key).await?) })
        })
        .await
    }

    /// Lists a page of keys.
    pub async fn page(&self, name: &str, from: ListFrom) -> Result<Page, KeyspacesError> {
        self.with(name, |open, _| {
            let from = from.clone();
            Box::pin(async move { Ok(open.keys.list(from).await?) })
        })
        .await
    }

    /// Performs an operation on the keys of a keyspace. An open handle may belong to a keyspace that was deleted, and another one may have
    /// its name by now; or a shard may have moved. So the layout is read again if the operation fails, and the operation is done on the new
    /// layout: on another keyspace only if it certainly was not done on the old one. `f` gets a floor if it may have been done before.
    async fn with<T>(
        &self,
        name: &str,
        f: impl Fn(Open, Option<Floor>) -> BoxFuture<'static, Result<T, KeyspacesError>>,
    ) -> Result<T, KeyspacesError> {
        let mut open = self.open(name).await?;
        let (until, mut tried) = (self.0.env.now().after(MOVES_WITHIN), None);
        loop {
            let error = match f(open.clone(), tried).await {
                Ok(done) => return Ok(done),
                Err(KeyspacesError::Keys(error)) => error,
                Err(error) => return Err(error),
            };
            if let KeyspaceError::Unknown { floor, .. } = &error {
                tried = tried.or(Some(*floor));
            }
            let is_late = self.0.env.now() >= until;
            match self.elsewhere(name, &open, error, (tried.is_some(), is_late)).await? {
                Some(newer) => open = newer,
                None => self.0.env.sleep(self.0.env.jitter(MOVE_PAUSE)).await,
            }
        }
    }

    /// Finds out whether the keys of an operation that failed are elsewhere by now. Returns the handle to use instead; or None if a shard
    /// is between two groups, so that the same handle will do after a pause. If the operation has to fail, returns why.
    async fn elsewhere(
        &self,
        name: &str,
        open: &Open,
        error: KeyspaceError,
        (is_repeat, is_late): (bool, bool),
    ) -> Result<Option<Open>, KeyspacesError> {
        let why = match &error {
            KeyspaceError::NotDone(why) | KeyspaceError::Unknown { why, .. } => *why,
            _ => return Err(error.into()),
        };
        let is_gone = why == Unavailability::Gone;
        let has_no_majority = matches!(why, Unavailability::NoQuorum | Unavailability::LostMajority);
        if !is_gone && (!has_no_majority || is_repeat || is_late) {
            return Err(error.into());
        }
        let layout = match self.0.catalog.layout(name).await {
            Ok(layout) => layout,
            Err(gone @ (CatalogError::NotThere(_) | CatalogError::Deleting(_))) => {
                lock(&self.0.open).remove(name);
                return Err(if is_repeat { error.into() } else { gone.into() });
            }
            // Only the layout says whether the keyspace is gone, or its replicas have moved.
            Err(_) if is_gone && !is_late => return Ok(None),
            Err(_) if is_gone => return Err(error.because(Unavailability::NoQuorum).into()),
            // The first error says more.
            Err(_) => return Err(error.into()),
        };
        let (is_same, is_newer) = (layout.id == open.id, layout.epoch != open.epoch);
        let moves = is_same && (is_newer || self.0.catalog.left_to_move(&layout) > 0);
        match () {
            () if is_late && moves => Err(error.because(Unavailability::Moving).into()),
            () if is_late || (!is_same && is_repeat) => Err(error.into()),
            () if !is_same || is_newer => {
                hit("keyspaces.opened_again");
                self.adopt(name, &layout).map(Some)
            }
            () if is_gone && moves => {
                hit("keyspaces.waits_for_move");
                Ok(None)
            }
            () => Err(error.into()),
        }
    }

    async fn open(&self, name: &str) -> Result<Open, KeyspacesError> {
        if let Some(open) = lock(&self.0.open).get(name) {
            return Ok(open.clone());
        }
        let layout = self.0.catalog.layout(name).await?;
        self.adopt(name, &layout)
    }

    /// Returns the handle to the keyspace with this layout or a newer one. Opens it and keeps the handle if there is none.
    ///
    /// All operations share one handle. What two handles of a node do to the same key, they may do against each other.
    fn adopt(&self, name: &str, layout: &Layout) -> Result<Open, KeyspacesError> {
        let mut open = lock(&self.0.open);
        // Another operation may have opened it while this one read the layout.
        if let Some(kept) = open.get(name)
            && kept.id == layout.id
            && kept.epoch >= layout.epoch
            && !mutant(mutants::KEYSPACES_OPENS_EACH)
        {
            hit("keyspaces.opened_together");
            return Ok(kept.clone());
        }
        let keys = self.0.catalog.open_layout(layout)?;
        let leases = Leases::new(self.0.env.clone(), keys.clone());
        let opened = Open { id: layout.id, epoch: layout.epoch, keys, leases };
        if open.len() >= MAX_OPEN && !open.contains_key(name) {
            // The handles only remember leaders, floors, and for how long leases were watched, so any of them can be given up.
            open.pop_first();
        }
        open.insert(name.to_owned(), opened.clone());
        Ok(opened)
    }

    /// Completes deletions and moves that died in the middle, until the node stops. Every node does it: the steps are idempotent.
    pub async fn tend(self, every: Duration) {
        let mut settled = BTreeMap::new();
        loop {
            self.0.env.sleep(self.0.env.jitter(every * RARER)).await;
            if let Ok(1..) = self.0.catalog.tend_since(&mut settled).await {
                hit("keyspaces.tended");
            }
        }
    }
}
