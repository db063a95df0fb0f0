//! Creates ObjectLoglets: plans configurations, and opens, copies and deletes Loglets.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;

use atoll_contract::{
    Duties, Evidence, Extent, Loglet, LogletError, LogletId, LogletProvider, LogletSpec, Offset, PlanError,
    Progress, Reason, RoleOfKind,
};
use atoll_core::level::Level;
use atoll_core::sync::lock;
use atoll_core::testing::mutant;
use atoll_core::{BoxFuture, DecodeError, Encode, Env, NodeId, Tick};
use atoll_loglet_store::cache::Cache;
use atoll_loglet_store::tails::Tails;

use crate::append::Appends;
use crate::config::{self, Location, ObjectConfig, Scheme};
use crate::known::Known;
use crate::loglet::{ObjectLoglet, ObjectOptions, Shared, failed};
use crate::mutants;
use crate::names;
use crate::object::Entries;
use crate::shelf::{Place, Shelf};
use crate::store::{Put, Store, StoreError, Threaded};

/// The name of this kind in chains.
pub const KIND: &str = "object";
/// The level from which chains name Loglets of this kind (contracts X28).
const SINCE: Level = Level(2);
/// The place of the objects, as an option.
const URL: &str = "url";
/// About how many bytes of entries an object has at most, as an option.
const BATCH_BYTES: &str = "batch_bytes";
/// How long a node waits from one object to the next, as an option.
const INTERVAL_MS: &str = "interval_ms";
/// How many objects are deleted together, as an option.
const BLOCK_OBJECTS: &str = "block_objects";
/// How long a plan tries the store.
const TRY_FOR: Duration = Duration::from_secs(3);
/// The most stores that a node keeps open.
const MAX_STORES: usize = 16;
/// Handles that nobody uses are looked for when there are this many.
const MANY_HANDLES: usize = 64;

/// What opens the store at a location.
#[derive(Clone, Debug)]
enum Opener {
    /// All locations are in this store.
    Fixed(Arc<dyn Store>),
    /// Files and S3. Stores that are open, by location.
    Real(Arc<Mutex<BTreeMap<String, Threaded>>>),
    /// The same, and locations in the memory of the process.
    #[cfg(feature = "testing")]
    WithMemory(Arc<dyn Store>, Arc<Mutex<BTreeMap<String, Threaded>>>),
}

/// The provider of "object".
#[derive(Clone)]
pub struct ObjectProvider {
    env: Env,
    options: Arc<ObjectOptions>,
    opener: Opener,
    cache: Arc<Cache<Entries>>,
    /// The handles in use. All callers of this node share one for each Loglet.
    handles: Arc<Mutex<BTreeMap<LogletId, Weak<Shared>>>>,
}

impl std::fmt::Debug for ObjectProvider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ObjectProvider({:?})", self.env)
    }
}

impl ObjectProvider {
    /// Creates the provider for the node of `env`, for stores of files and for S3.
    pub fn new(env: Env, options: ObjectOptions) -> Self {
        Self::with_opener(env, options, Opener::Real(Arc::default()))
    }

    /// Creates the provider with all locations in this store.
    pub fn with_store(env: Env, options: ObjectOptions, store: Arc<dyn Store>) -> Self {
        Self::with_opener(env, options, Opener::Fixed(store))
    }

    /// Creates the provider for stores of files and for S3, with locations in memory in this store.
    #[cfg(feature = "testing")]
    pub fn with_memory(env: Env, options: ObjectOptions, memory: Arc<dyn Store>) -> Self {
        Self::with_opener(env, options, Opener::WithMemory(memory, Arc::default()))
    }

    fn with_opener(env: Env, options: ObjectOptions, opener: Opener) -> Self {
        let cache = Arc::new(Cache::new(options.cache_bytes));
        ObjectProvider { env, options: Arc::new(options), opener, cache, handles: Arc::default() }
    }

    fn store(&self, location: &Location) -> Result<Arc<dyn Store>, PlanError> {
        let open = match &self.opener {
            Opener::Fixed(store) => return Ok(store.clone()),
            #[cfg(feature = "testing")]
            Opener::WithMemory(store, _) if location.scheme == Scheme::Memory => return Ok(store.clone()),
            #[cfg(feature = "testing")]
            Opener::WithMemory(_, open) => open,
            Opener::Real(_) if location.scheme == Scheme::Memory => return Err(bad_url()),
            Opener::Real(open) => open,
        };
        let mut open = lock(open);
        // Handles keep the stores that they use.
        if open.len() >= MAX_STORES {
            open.clear();
        }
        let opens = || Threaded::new(location.clone(), self.options.request_timeout);
        Ok(Arc::new(open.entry(location.to_string()).or_insert_with(opens).clone()))
    }

    fn handle(&self, id: LogletId, config: &Bytes) -> Result<ObjectLoglet, PlanError> {
        let mut handles = lock(&self.handles);
        if let Some(shared) = handles.get(&id).and_then(Weak::upgrade) {
            return Ok(ObjectLoglet(shared));
        }
        let config = config::parse(config)?;
        let location = Location::parse(&config.url).map_err(|_| bad_url())?;
        let store = self.store(&location)?;
        // The store ends its requests itself; this is for one that does not.
        let patience = self.options.request_timeout + self.options.request_timeout / 4;
        let place =
            Place { prefix: &location.prefix, token: config.token, block_objects: config.block_objects };
        let shelf = Shelf::new(self.env.clone(), id, store, &place, patience, self.cache.clone());
        let shared = Arc::new(Shared {
            env: self.env.clone(),
            id,
            config,
            options: self.options.clone(),
            shelf,
            tails: Tails::default(),
            known: Mutex::new(Known::default()),
            appends: Mutex::new(Appends::new(self.env.random())),
            looking: AtomicBool::new(false),
            clearing: AtomicBool::new(false),
        });
        if handles.len() >= MANY_HANDLES {
            handles.retain(|_, handle| handle.strong_count() > 0);
        }
        handles.insert(id, Arc::downgrade(&shared));
        Ok(ObjectLoglet(shared))
    }

    /// Returns the previous configuration with the options of a specification.
    async fn plan(
        &self,
        spec: &LogletSpec,
        previous: Option<ObjectConfig>,
    ) -> Result<ObjectConfig, PlanError> {
        if !self.env.allows_soon(SINCE).await {
            let allowed =
                "only once all members can read it: finish the upgrade with `atoll cluster upgrade`";
            return Err(PlanError::Invalid { what: "an object loglet", allowed });
        }
        spec.check(self, &[URL, BATCH_BYTES, INTERVAL_MS, BLOCK_OBJECTS])?;
        let url = match (spec.options.get(URL), &previous) {
            (Some(url), _) => Location::parse(url).map_err(|_| bad_url())?,
            (None, Some(previous)) => Location::parse(&previous.url).map_err(|_| bad_url())?,
            (None, None) if cfg!(feature = "testing") => {
                Location { scheme: Scheme::Memory, prefix: String::new() }
            }
            (None, None) => return Err(bad_url()),
        };
        let before = previous.filter(|p| p.url == url.to_string());
        let known = before.is_some();
        let mut config = before.unwrap_or_else(|| ObjectConfig {
            url: url.to_string(),
            token: self.env.random(),
            batch_bytes: self.options.batch_bytes,
            interval_ms: self.options.interval_ms,
            block_objects: self.options.block_objects,
        });
        let number = |option: &str, to: &mut u32| {
            let text = spec.options.get(option);
            match text.map(|text| text.parse()) {
                Some(Ok(number)) => *to = number,
                Some(Err(_)) => {
                    return Err(PlanError::Invalid {
                        what: "batch_bytes, interval_ms or block_objects",
                        allowed: "a number",
                    });
                }
                None => {}
            }
            Ok(())
        };
        number(BATCH_BYTES, &mut config.batch_bytes)?;
        number(INTERVAL_MS, &mut config.interval_ms)?;
        number(BLOCK_OBJECTS, &mut config.block_objects)?;
        // The decoder knows what is allowed.
        let config = config::parse(&config.to_bytes()).map_err(|error| match error {
            DecodeError::Invalid { what, allowed, .. } => PlanError::Invalid { what, allowed },
            other => PlanError::Unreadable(other),
        })?;
        self.try_store(&url, config.token, known).await?;
        Ok(config)
    }

    /// Finds out whether the store can be used, before anything is sealed: it answers, and it refuses a second conditional put. A store
    /// that ignores the condition would lose entries. A token that is `known` must be there already: if it is not, this node sees another
    /// store, which must not come to count as the right one.
    async fn try_store(&self, location: &Location, token: u64, known: bool) -> Result<(), PlanError> {
        let store = self.store(location)?;
        let name = names::token(&location.prefix, token);
        let until = self.env.now().after(TRY_FOR);
        if known && !mutant(mutants::OBJECT_MARKS_ANY_STORE) {
            let found = self.persist(until, || store.get(name.clone(), Some(1))).await?;
            found.ok_or_else(|| unusable(StoreError::Elsewhere))?;
        }
        let mut created = false;
        loop {
            let mark = Bytes::from_static(b"atoll");
            if self.persist(until, || store.put(name.clone(), mark.clone(), Put::Create)).await? {
                if created {
                    return Err(unusable(StoreError::Unsupported));
                }
                created = true;
                continue;
            }
            if self.persist(until, || store.get(name.clone(), Some(1))).await?.is_some() {
                return Ok(());
            }
            // S3 also refuses while two puts meet.
            if self.env.now() >= until {
                return Err(unusable(StoreError::NoAnswer));
            }
        }
    }

    /// Makes a request until it has a result, at most until then.
    async fn persist<T>(
        &self,
        until: Tick,
        request: impl Fn() -> BoxFuture<'static, Result<T, StoreError>>,
    ) -> Result<T, PlanError> {
        loop {
            let asked = self.env.within(self.options.request_timeout * 2, request()).await;
            let error = match asked.unwrap_or(Err(StoreError::NoAnswer)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !error.passes() || self.env.now() >= until {
                return Err(unusable(error));
            }
            self.env.sleep(self.env.jitter(self.options.retry)).await;
        }
    }
}

fn bad_url() -> PlanError {
    PlanError::Invalid { what: "url of an object loglet", allowed: Location::ALLOWED }
}

fn unusable(error: StoreError) -> PlanError {
    let allowed = match error {
        StoreError::Credentials => "one that accepts the credentials in the environment of every node",
        StoreError::Elsewhere => {
            "one with a bucket or directory that exists, and with what the log has there already"
        }
        StoreError::Unsupported => {
            "one with conditional puts: it must refuse to put an object that is there already"
        }
        StoreError::Full => "one with room: the disk or the quota of this one is full",
        StoreError::NotAllowed => {
            "one in which every node may read and write; the directory of this one forbids it"
        }
        StoreError::Busy | StoreError::NoAnswer => "one that answers; this one does not, or only with errors",
    };
    PlanError::Invalid { what: "object store", allowed }
}

impl LogletProvider for ObjectProvider {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn roles(&self) -> &'static [RoleOfKind] {
        // Every node appends and reads by itself; none holds anything.
        &[]
    }

    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>> {
        Box::pin(async move {
            let previous = previous.map(config::parse).transpose()?;
            Ok(self.plan(spec, previous).await?.to_bytes())
        })
    }

    fn provision(&self, _id: LogletId, _config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        // The first object of the log creates it.
        Box::pin(std::future::ready(Ok(())))
    }

    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(self.handle(id, config)?))
    }

    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>> {
        Box::pin(async move {
            let unavailable = LogletError::Unavailable(atoll_contract::Unavailability::StorageFailed);
            let handle = self.handle(id, config).map_err(|_| unavailable)?;
            handle.0.copy(source, range).await.map_err(failed)
        })
    }

    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>> {
        let handle = self.handle(id, config);
        Box::pin(async move {
            let unavailable = LogletError::Unavailable(atoll_contract::Unavailability::StorageFailed);
            handle.map_err(|_| unavailable)?.0.delete().await.map_err(failed)
        })
    }

    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)> {
        match config::parse(config) {
            Ok(config) => vec![
                (URL, config.url),
                (BATCH_BYTES, config.batch_bytes.to_string()),
                (INTERVAL_MS, config.interval_ms.to_string()),
                (BLOCK_OBJECTS, config.block_objects.to_string()),
            ],
            Err(error) => vec![("unreadable", error.to_string())],
        }
    }

    fn duties(&self, _config: &Bytes) -> Duties {
        Duties::default()
    }

    fn can_seal(&self, config: &Bytes, _reached: &dyn Fn(NodeId) -> bool) -> bool {
        // The store seals. Whether it answers shows when it is asked.
        config::parse(config).is_ok()
    }

    fn reason_to_reconfigure(&self, _config: &Bytes, _evidence: &Evidence<'_>) -> Option<Reason> {
        // No node can be replaced, and another Loglet in the same store would help as little.
        None
    }

    fn progress<'a>(&'a self, _node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>> {
        // The store has everything.
        let whole = extents.iter().map(|e| Progress { has_up_to: e.range.end, lacks: 0 }).collect();
        Box::pin(std::future::ready(Some(whole)))
    }

    fn held_here(&self, _above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>> {
        Box::pin(std::future::ready(Some((Vec::new(), false))))
    }

    fn delete_here(&self, _id: LogletId) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}
