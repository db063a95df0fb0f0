//! CORFU-Store (TOCS'13 §3, §4.4): clients that put and get several keys at once.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_log_apps::mirror::LagGauge;
use atoll_log_apps::player::{PlayOptions, Player};
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::{
    CompactOptions, Compactor, MAX_KEYS, MapLimits, MapReplica, Readers, Store, StoreError, StoreMap,
    StoreOptions,
};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::history::{Ended, History, Steps};
use super::target::{Dice, Ending, Target, incarnation, now_ns, random, seconds};
use super::{Error, hex, mirror, print};
use crate::latency::Latencies;

/// How long a client waits after an operation that did not happen, or that may have happened.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of the load.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    target: Target,
    /// Clients, each with one operation under way
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// The first client's number in the history
    #[arg(long, default_value_t = 0)]
    first_client: u64,
    /// Keys
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    keys: u64,
    /// Beginning of the names of the keys
    #[arg(long, default_value = "key-")]
    prefix: String,
    /// Most keys of one operation
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=MAX_KEYS as u64))]
    per_operation: u64,
    /// Every operation has that many keys
    #[arg(long)]
    exact: bool,
    /// What the clients do
    #[arg(long, value_parser = ["both", "put", "get"], default_value = "both")]
    operations: String,
    /// Bytes of a value, at least
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=500_000))]
    value_bytes: u64,
    /// How long to run
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Write the history to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Seed of the choices [default: drawn]
    #[arg(long)]
    seed: Option<u64>,
    #[command(flatten)]
    bounded: mirror::Bounded,
}

/// Options of a read.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
    /// Read them as they were at this index [default: now]
    #[arg(long)]
    at: Option<u64>,
}

/// Options of a roll-back.
#[derive(Debug, clap::Args)]
pub struct RollBackArgs {
    #[command(flatten)]
    target: Target,
    /// The index
    #[arg(long)]
    to: u64,
}

/// Options of a compaction.
#[derive(Debug, clap::Args)]
pub struct CompactArgs {
    #[command(flatten)]
    target: Target,
    /// How far below the tail a value may wait for its commit
    #[arg(long, default_value_t = 1000)]
    patience: u64,
    /// How many indices below the tail remain readable
    #[arg(long, default_value_t = 1000)]
    history: u64,
    /// A mirror still needs everything from this position on
    #[arg(long)]
    needed_from: Option<u64>,
}

/// Returns a replica of the map service that has applied nothing yet.
pub fn replica(log: Arc<dyn SharedLog>) -> Arc<MapReplica> {
    Arc::new(Player::new(log, StoreMap::new(MapLimits::default()), play_options()))
}

/// How replicas play: over a network, few and long reads are better.
pub fn play_options() -> PlayOptions {
    PlayOptions { read_ahead: 1024, ..PlayOptions::default() }
}

struct Load {
    prefix: String,
    keys: u64,
    per_operation: u64,
    exact: bool,
    /// Whether it may put, and whether it may get.
    may: (bool, bool),
    value_bytes: usize,
    history: History,
    latencies: Mutex<(Latencies, Latencies)>,
    last_error: Mutex<Option<String>>,
    /// Whether the last write was refused because the mirror was behind.
    is_waiting: AtomicBool,
}

impl Load {
    async fn client(self: Arc<Self>, store: Store, number: u64, mut dice: Dice, ending: Ending) {
        let mut count = 0u64;
        while !ending.is_over() {
            let of = if self.exact { self.per_operation } else { 1 + dice.below(self.per_operation) };
            let keys: Vec<Bytes> = dice
                .some(of.min(self.keys), self.keys)
                .into_iter()
                .map(|key| format!("{}{key}", self.prefix).into())
                .collect();
            let puts = match self.may {
                (true, true) => dice.below(2) == 0,
                (puts, _) => puts,
            };
            count += 1;
            let done = match puts {
                true => self.put(&store, number, count, keys).await,
                false => self.get(&store, number, &keys).await,
            };
            if let Err(error) = done {
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    async fn put(&self, store: &Store, number: u64, count: u64, keys: Vec<Bytes>) -> Result<(), StoreError> {
        // Nobody else writes this value. The length is that of what follows the dot, too.
        let mut value = format!("{number}-{count}.").into_bytes();
        value.resize(value.len().max(self.value_bytes), b'.');
        let value = Bytes::from(value);
        let mut steps = Steps::default();
        keys.iter().for_each(|key| steps.put(key, Some(&value)));
        let writes = keys.into_iter().map(|key| (key, Some(value.clone()))).collect();
        let (call, began) = (now_ns(), Instant::now());
        let done = store.multi_put(writes).await;
        let (ended, result) = match done {
            Ok(index) => {
                self.tell_waiting(0);
                self.note(|(puts, _)| puts.add(began.elapsed()));
                (Ended::Yes(Vec::new(), Some(index)), Ok(()))
            }
            Err(error @ StoreError::Unknown(_)) => (Ended::Unknown, Err(error)),
            Err(error) => {
                if let StoreError::MirrorBehind(positions) = error {
                    self.history.count("mirror_behind");
                    self.tell_waiting(positions);
                }
                (Ended::No, Err(error))
            }
        };
        self.history.ended("puts", number, call, steps, ended);
        result
    }

    async fn get(&self, store: &Store, number: u64, keys: &[Bytes]) -> Result<(), StoreError> {
        let mut steps = Steps::default();
        keys.iter().for_each(|key| steps.get(key));
        let (call, began) = (now_ns(), Instant::now());
        let (ended, result) = match store.multi_get(keys).await {
            Ok((_, values)) => {
                self.note(|(_, gets)| gets.add(began.elapsed()));
                (Ended::Yes(values, None), Ok(()))
            }
            Err(error) => (Ended::No, Err(error)),
        };
        self.history.ended("gets", number, call, steps, ended);
        result
    }

    /// Says when writes begin to be refused because the mirror is so many positions behind, and when they are not any more.
    fn tell_waiting(&self, positions: u64) {
        if self.is_waiting.swap(positions > 0, Ordering::Relaxed) != (positions > 0) {
            // The result of the run does not need this line.
            let _ = print(&json!({"app": "store", "mirror_behind": positions}));
        }
    }

    fn note(&self, add: impl FnOnce(&mut (Latencies, Latencies))) {
        add(&mut self.latencies.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs clients for a while. All of them share one map replica of this process.
pub async fn load(args: &LoadArgs) -> Result<(), Error> {
    let log = args.target.open().await?;
    let map = replica(log.clone());
    map.play().await?;
    let ending = Ending::after(args.seconds)?;
    let gauge: Option<Arc<LagGauge>> = args.bounded.watch(log, &ending).await?;
    let seed = args.seed.unwrap_or_else(random);
    let load = Arc::new(Load {
        prefix: args.prefix.clone(),
        keys: args.keys,
        per_operation: args.per_operation,
        exact: args.exact,
        may: (args.operations != "get", args.operations != "put"),
        value_bytes: args.value_bytes as usize,
        history: History::create(args.history.as_deref())?,
        latencies: Mutex::new((Latencies::new(), Latencies::new())),
        last_error: Mutex::default(),
        is_waiting: AtomicBool::new(false),
    });
    let (mut clients, began) = (JoinSet::new(), Instant::now());
    for number in args.first_client..args.first_client + args.clients {
        let mut store = Store::new(map.clone(), incarnation(), StoreOptions::default());
        if let Some(gauge) = &gauge {
            store = store.bounded_by(gauge.clone());
        }
        clients.spawn(load.clone().client(store, number, Dice::new(seed, number), ending.clone()));
    }
    while clients.join_next().await.is_some() {}
    let busy = began.elapsed();
    map.play().await?;
    let (applied, hash) = map.hash();
    let last_error = load.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    let (puts, gets) = &mut *load.latencies.lock().unwrap_or_else(PoisonError::into_inner);
    (puts.busy, gets.busy) = (busy, busy);
    let settings = json!({
        "clients": args.clients, "keys": args.keys, "per_operation": args.per_operation, "exact": args.exact,
        "value_bytes": args.value_bytes, "seed": seed,
    });
    print(&json!({
        "app": "store", "counts": load.history.finish()?, "applied": applied, "hash": hex(hash),
        "puts": puts.line("atoll", "multi_put", 0, &settings), "gets": gets.line("atoll", "multi_get", 0, &settings),
        "last_error": last_error,
    }))
}

/// Reads keys at one index.
pub async fn get(args: &GetArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    let store = Store::new(map, incarnation(), StoreOptions::default());
    let keys: Vec<Bytes> = args.keys.iter().map(|key| Bytes::from(key.clone())).collect();
    let (index, values) = match args.at {
        Some(at) => (at, store.get_at(&keys, at).await?),
        None => store.multi_get(&keys).await?,
    };
    let values: Vec<_> = values.iter().map(|v| v.as_deref().map(String::from_utf8_lossy)).collect();
    print(&json!({"app": "get", "index": index, "keys": args.keys, "values": values}))
}

/// Rolls the store back.
pub async fn roll_back(args: &RollBackArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    map.play().await?;
    let store = Store::new(map.clone(), incarnation(), StoreOptions::default());
    let index = store.roll_back(args.to).await?;
    print(&json!({"app": "roll_back", "to": args.to, "index": index}))
}

/// Compacts the log of the store once.
pub async fn compact(args: &CompactArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    let readers = Arc::new(Readers::default());
    if let Some(from) = args.needed_from {
        readers.needs("mirror", from);
    }
    let mut compactor = Compactor::new(map, readers, incarnation());
    let options =
        CompactOptions { patience: args.patience, history: args.history, ..CompactOptions::default() };
    let done = compactor.run(options).await?;
    print(&json!({
        "app": "compact", "moved": done.moved, "checkpoint": done.checkpoint, "trimmed_below": done.prefix,
    }))
}
