//! Scalog-Store: clients that put and get single keys.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_contract::OpId;
use atoll_log_apps::player::Player;
use atoll_log_apps::sharded_store::{PlaceLimits, PlaceMap, PlaceReplica, ShardedStore, thin};
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::{Readers, StoreError, StoreOptions};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use crate::apps::history::{Ended, History, Steps};
use crate::apps::store::play_options;
use crate::apps::target::{Dice, Ending, Target, incarnation, now_ns, random, seconds};
use crate::apps::{Error, hex, print};
use crate::latency::Latencies;

/// How long a client waits after an operation that did not happen, or that may have happened.
const PAUSE: Duration = Duration::from_millis(20);
/// One put in so many deletes its key.
const DELETES: u64 = 8;

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
}

/// Options of a read.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    target: Target,
    /// The keys
    #[arg(required = true)]
    keys: Vec<String>,
}

/// Options of a compaction.
#[derive(Debug, clap::Args)]
pub struct ThinArgs {
    #[command(flatten)]
    target: Target,
    /// Values that lie so many positions below the tail, or more, are moved
    #[arg(long, default_value_t = 1000)]
    patience: u64,
    /// The most values to move
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    moves: u64,
}

/// Returns a replica of the map that has applied nothing yet.
pub fn replica(log: Arc<dyn SharedLog>) -> Arc<PlaceReplica> {
    Arc::new(Player::new(log, PlaceMap::new(PlaceLimits::default()), play_options()))
}

struct Load {
    keys: u64,
    value_bytes: usize,
    history: History,
    latencies: Mutex<(Latencies, Latencies)>,
    last_error: Mutex<Option<String>>,
}

impl Load {
    async fn client(self: Arc<Self>, store: ShardedStore, number: u64, mut dice: Dice, ending: Ending) {
        let mut count = 0u64;
        while !ending.is_over() {
            let key = Bytes::from(format!("key-{}", dice.below(self.keys)));
            count += 1;
            let done = match dice.below(2) {
                0 => {
                    let value = (dice.below(DELETES) > 0).then(|| self.value(number, count));
                    self.put(&store, number, key, value).await
                }
                _ => self.get(&store, number, key).await,
            };
            if let Err(error) = done {
                *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Returns a value that nobody else writes.
    fn value(&self, number: u64, count: u64) -> Bytes {
        let mut value = format!("{number}-{count}.").into_bytes();
        value.resize(value.len().max(self.value_bytes), b'.');
        value.into()
    }

    async fn put(
        &self,
        store: &ShardedStore,
        number: u64,
        key: Bytes,
        value: Option<Bytes>,
    ) -> Result<(), StoreError> {
        let mut steps = Steps::default();
        steps.put(&key, value.as_ref());
        let (call, began) = (now_ns(), Instant::now());
        let (ended, result) = match store.put(key, value).await {
            Ok(place) => {
                self.note(|(puts, _)| puts.add(began.elapsed()));
                (Ended::Yes(Vec::new(), Some(place.position + 1)), Ok(()))
            }
            Err(error @ StoreError::Unknown(_)) => (Ended::Unknown, Err(error)),
            Err(error) => (Ended::No, Err(error)),
        };
        self.history.ended("puts", number, call, steps, ended);
        result
    }

    async fn get(&self, store: &ShardedStore, number: u64, key: Bytes) -> Result<(), StoreError> {
        let mut steps = Steps::default();
        steps.get(&key);
        let (call, began) = (now_ns(), Instant::now());
        let (ended, result) = match store.get(&key).await {
            Ok((_, value)) => {
                self.note(|(_, gets)| gets.add(began.elapsed()));
                (Ended::Yes(vec![value], None), Ok(()))
            }
            Err(error) => (Ended::No, Err(error)),
        };
        self.history.ended("gets", number, call, steps, ended);
        result
    }

    fn note(&self, add: impl FnOnce(&mut (Latencies, Latencies))) {
        add(&mut self.latencies.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Runs clients for a while. All of them share one replica of the map.
pub async fn load(args: &LoadArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    map.play().await?;
    let ending = Ending::after(args.seconds)?;
    let seed = args.seed.unwrap_or_else(random);
    let load = Arc::new(Load {
        keys: args.keys,
        value_bytes: args.value_bytes as usize,
        history: History::create(args.history.as_deref())?,
        latencies: Mutex::new((Latencies::new(), Latencies::new())),
        last_error: Mutex::default(),
    });
    let (mut clients, began) = (JoinSet::new(), Instant::now());
    for number in args.first_client..args.first_client + args.clients {
        let store = ShardedStore::new(map.clone(), incarnation(), StoreOptions::default());
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
        "clients": args.clients, "keys": args.keys, "value_bytes": args.value_bytes, "seed": seed,
    });
    print(&json!({
        "app": "scalog_store", "counts": load.history.finish()?, "applied": applied, "hash": hex(hash),
        "puts": puts.line("atoll", "put", 0, &settings), "gets": gets.line("atoll", "get", 0, &settings),
        "last_error": last_error,
    }))
}

/// Reads keys, each at the tail as it is then, and tells where they are.
pub async fn get(args: &GetArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    let store = ShardedStore::new(map.clone(), incarnation(), StoreOptions::default());
    for key in &args.keys {
        let key = Bytes::from(key.clone());
        let (index, value) = store.get(&key).await?;
        let place = map.view(|map, _| map.place(&key));
        print(&json!({
            "app": "scalog_get", "key": String::from_utf8_lossy(&key), "index": index,
            "position": place.map(|place| place.position), "shard": place.map(|place| place.shard),
            "value": value.as_deref().map(String::from_utf8_lossy),
        }))?;
    }
    Ok(())
}

/// Compacts the log of the store once.
pub async fn compact(args: &ThinArgs) -> Result<(), Error> {
    let map = replica(args.target.open().await?);
    let id = OpId { client: incarnation(), seq: 1 };
    let done = thin(&map, &Readers::default(), id, args.patience, args.moves as usize).await?;
    print(&json!({
        "app": "scalog_thin", "moved": done.moved, "checkpoint": done.checkpoint, "trimmed_below": done.trimmed_below,
    }))
}
