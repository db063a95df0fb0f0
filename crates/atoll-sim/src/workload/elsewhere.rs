//! Stores outside of the cluster, in memory, where chains can be. They fail as real ones do, and they show the oracle of chains each value
//! at the moment when it is written.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::Registers;
use atoll_contract::place::{Place, PlaceError, Scheme};
use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
use atoll_contract::register::Unavailability;
use atoll_contract::testing::Chosen;
use atoll_core::sync::lock;
use atoll_core::testing::hit;
use atoll_core::{BoxFuture, Env, Format, NodeCore};
use atoll_register_store::{Cell, CellRegisters, Cells, Fault, Listing, Options, register_of};
use bytes::Bytes;

use crate::scenario::node::NodeHandles;
use crate::scenario::phases::Stage;
use crate::world::observer::Violations;

/// The names of the stores.
pub const PLACES: [&str; 2] = ["a", "b"];
const SCHEMES: &[Scheme] = &[Scheme { name: "sim", form: "sim:///PLACE" }];
/// How long a request takes at most without faults, in microseconds.
const WAY_US: u64 = 500;
/// How long a lost request may still be under way, in milliseconds.
const LATE_MS: u64 = 2_000;
/// How patient registers are.
const PATIENCE: Options = Options { op_timeout: Duration::from_secs(2), retry: Duration::from_millis(20) };

/// How a store fails.
#[derive(Clone, Debug, Default)]
pub struct StoreFaults {
    /// Nothing is done, and everybody is told so.
    pub is_away: bool,
    /// Each request takes about this much longer.
    pub latency: Duration,
    /// The hosts that cannot reach it.
    pub cut_off: BTreeSet<usize>,
    /// Of a hundred requests, how many are lost.
    pub lost: u64,
    /// How many are done without an answer.
    pub unanswered: u64,
    /// How many count as lost, and are done later.
    pub late: u64,
}

/// Shows a write to the oracle: the name of a register, and what is in its cell.
type Watch = Arc<dyn Fn(&str, &Bytes) + Send + Sync>;

#[derive(Default)]
struct State {
    cells: BTreeMap<String, Cell<u64>>,
    writes: u64,
    faults: StoreFaults,
}

/// All stores of a run. Clones share them.
#[derive(Clone)]
pub struct Stores {
    of_place: Arc<BTreeMap<&'static str, Mutex<State>>>,
    watch: Arc<Mutex<Option<Watch>>>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stores in memory")
    }
}

impl Default for Stores {
    fn default() -> Self {
        let of_place = PLACES.into_iter().map(|place| (place, Mutex::default())).collect();
        Stores { of_place: Arc::new(of_place), watch: Arc::default() }
    }
}

impl Stores {
    /// Returns the configuration of the places.
    pub fn urls(&self) -> BTreeMap<String, String> {
        PLACES.into_iter().map(|place| (place.to_owned(), format!("sim:///{place}"))).collect()
    }

    /// Sets how a store fails from now on.
    pub fn set(&self, place: &str, faults: StoreFaults) {
        if let Some(state) = self.of_place.get(place) {
            lock(state).faults = faults;
        }
    }

    /// Shows all writes from now on to the oracle of chains.
    pub fn watch(&self, stage: &Stage<NodeHandles>) {
        let (wire, cluster) = (stage.oracles.wire.clone(), stage.cluster.clone());
        *lock(&self.watch) = Some(Arc::new(move |name, cell| {
            let mut verdict = Violations::default();
            match register_of(name, cell) {
                Ok((name, seen)) => {
                    let chosen = Chosen { name, version: seen.version.0, value: seen.value };
                    wire.lock().chosen(&chosen, &mut verdict);
                }
                Err(why) => verdict.fail(format!("HARNESS a cell {name} is unreadable: {why}")),
            }
            verdict.failures.into_iter().for_each(|failure| cluster.fail(failure));
        }));
    }

    /// Ends what [`Stores::watch`] began: what it holds belongs to the run, which holds the stores.
    pub fn unwatch(&self) {
        *lock(&self.watch) = None;
    }
}

impl Protocol for Stores {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
        Vec::new()
    }

    fn roles(&self) -> &'static [RoleName] {
        &[]
    }

    fn formats(&self) -> Vec<Format> {
        Vec::new()
    }

    fn schemes(&self) -> &'static [Scheme] {
        SCHEMES
    }

    fn place(&self, _scheme: &str, rest: &str) -> Result<Box<dyn Place>, PlaceError> {
        let named = PLACES.into_iter().find(|place| rest.strip_prefix('/') == Some(place));
        let place = named.ok_or_else(|| PlaceError::Url("there are two places".to_owned()))?;
        Ok(Box::new(Named { stores: self.clone(), place }))
    }

    fn install(&self, _core: &mut NodeCore, _host: &Host) -> Installed {
        Installed::default()
    }

    fn boxed(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

/// One store.
#[derive(Clone, Debug)]
struct Named {
    stores: Stores,
    place: &'static str,
}

impl Place for Named {
    fn open(&self, env: &Env) -> Arc<dyn Registers> {
        let way = Way { env: env.clone(), store: self.clone() };
        Arc::new(CellRegisters::new(env.clone(), way, PATIENCE))
    }
}

impl Named {
    fn state(&self) -> &Mutex<State> {
        &self.stores.of_place[self.place]
    }

    fn replace(&self, name: &str, expected: Option<u64>, bytes: &Bytes) -> bool {
        {
            let mut state = lock(self.state());
            if state.cells.get(name).map(|cell| cell.tag) != expected {
                return false;
            }
            state.writes += 1;
            let tag = state.writes;
            state.cells.insert(name.to_owned(), Cell { bytes: bytes.clone(), tag });
        }
        let watch = lock(&self.stores.watch).clone();
        if let Some(watch) = watch {
            watch(name, bytes);
        }
        true
    }
}

/// The way of a node to a store.
#[derive(Clone, Debug)]
struct Way {
    env: Env,
    store: Named,
}

impl Way {
    fn carry<T: Send + 'static>(
        &self,
        request: impl FnOnce(&Named) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, Fault>> {
        let way = self.clone();
        let work = async move {
            let StoreFaults { is_away, latency, cut_off, lost, unanswered, late } =
                lock(way.store.state()).faults.clone();
            let pause =
                || way.env.sleep(Duration::from_micros(way.env.random() % WAY_US) + way.env.jitter(latency));
            pause().await;
            if is_away {
                return Err(Fault::Passing(Unavailability::NoQuorum));
            }
            if cut_off.contains(&(way.env.node().0 as usize - 1)) {
                hit("sim.elsewhere.cut_off");
                return Err(Fault::NoAnswer);
            }
            let dice = way.env.random() % 100;
            if dice < lost {
                hit("sim.elsewhere.lost");
                return Err(Fault::NoAnswer);
            }
            if dice < lost + late {
                let (env, store) = (way.env.clone(), way.store.clone());
                let later = async move {
                    env.sleep(Duration::from_millis(env.random() % LATE_MS)).await;
                    hit("sim.elsewhere.late");
                    request(&store);
                };
                way.env.spawn("elsewhere.late", Box::pin(later));
                return Err(Fault::NoAnswer);
            }
            let answer = request(&way.store);
            pause().await;
            if dice < lost + late + unanswered {
                hit("sim.elsewhere.unanswered");
                return Err(Fault::NoAnswer);
            }
            Ok(answer)
        };
        let wait = self.env.launch("elsewhere", work);
        Box::pin(async move { wait.await.unwrap_or(Err(Fault::NoAnswer)) })
    }
}

impl Cells for Way {
    type Tag = u64;

    fn read(&self, name: &str) -> BoxFuture<'_, Result<Option<Cell<u64>>, Fault>> {
        let name = name.to_owned();
        self.carry(move |store| lock(store.state()).cells.get(&name).cloned())
    }

    fn replace(&self, name: &str, expected: Option<u64>, bytes: Bytes) -> BoxFuture<'_, Result<bool, Fault>> {
        let name = name.to_owned();
        self.carry(move |store| store.replace(&name, expected, &bytes))
    }

    fn list(&self) -> BoxFuture<'_, Result<Listing, Fault>> {
        self.carry(|store| {
            let state = lock(store.state());
            state.cells.iter().map(|(name, cell)| (name.clone(), Some(cell.tag.into()))).collect()
        })
    }
}
