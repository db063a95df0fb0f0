//! Objects with streams of their own: clients that change and read them, single reads, and what trims their log.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_core::Encode;
use atoll_log_apps::counted::CountedLog;
use atoll_log_apps::player::Machine;
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::store::Readers;
use atoll_log_apps::streams::{
    FieldWrites, Fields, IndexServer, ObjectReader, Objects, Share, StreamError, read_together,
};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::index::{Shares, server};
use crate::apps::history::{Ended, History, Steps};
use crate::apps::target::{Dice, Ending, Target, incarnation, now_ns, random, seconds};
use crate::apps::{Error, print};

/// How long a client waits after an operation that did not happen, or that may have happened.
const PAUSE: Duration = Duration::from_millis(20);
/// The fields of each object.
const FIELDS: [&str; 2] = ["left", "right"];

/// Options of the load.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    shares: Shares,
    /// Clients, each with one operation under way
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// The first client's number in the history
    #[arg(long, default_value_t = 0)]
    first_client: u64,
    /// Objects
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=1000))]
    objects: u64,
    /// Most objects of one operation
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    per_operation: u64,
    /// One operation in so many is a checkpoint; 0: none
    #[arg(long, default_value_t = 50)]
    checkpoints: u64,
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
pub struct ReadArgs {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    shares: Shares,
    /// The objects
    #[arg(required = true)]
    objects: Vec<String>,
}

/// Options of a trim.
#[derive(Debug, clap::Args)]
pub struct TrimArgs {
    #[command(flatten)]
    target: Target,
}

type Reader = ObjectReader<Fields>;

struct Load {
    objects: u64,
    per_operation: u64,
    checkpoints: u64,
    history: History,
    last_error: Mutex<Option<String>>,
}

struct Client {
    load: Arc<Load>,
    writer: Objects,
    readers: Vec<Reader>,
    number: u64,
}

fn name(object: u64) -> Bytes {
    format!("object-{object}").into()
}

impl Client {
    fn new(load: Arc<Load>, log: &Arc<dyn SharedLog>, shares: &[Arc<dyn IndexServer>], number: u64) -> Self {
        let writer = Objects::new(log.clone(), incarnation());
        let reader = |n| ObjectReader::new(log.clone(), shares.to_vec(), name(n), Fields::default());
        let readers = (0..load.objects).map(reader).collect();
        Client { load, writer, readers, number }
    }

    async fn run(mut self, mut dice: Dice, ending: Ending) -> Vec<Reader> {
        let mut count = 0u64;
        while !ending.is_over() {
            count += 1;
            let of = 1 + dice.below(self.load.per_operation);
            let some = dice.some(of, self.load.objects);
            let done = if self.load.checkpoints > 0 && dice.below(self.load.checkpoints) == 0 {
                self.checkpoint(some.first().copied().unwrap_or(0)).await
            } else if dice.below(2) == 0 {
                self.update(&some, count, FIELDS[dice.below(2) as usize]).await
            } else {
                self.read(&some).await
            };
            if let Err(error) = done {
                *self.load.last_error.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(error.to_string());
                tokio::time::sleep(PAUSE).await;
            }
        }
        self.readers
    }

    /// Gives a field of several objects a value that nobody else writes, at once.
    async fn update(&self, some: &[u64], count: u64, field: &str) -> Result<(), StreamError> {
        let value = Bytes::from(format!("{}-{count}.", self.number));
        let mut steps = Steps::default();
        some.iter().for_each(|n| steps.put(&key(&name(*n), field), Some(&value)));
        let writes = FieldWrites { writes: vec![(field.to_owned().into(), Some(value))] }.to_bytes();
        let call = now_ns();
        let (ended, result) =
            match self.writer.update(some.iter().map(|n| (name(*n), writes.clone())).collect()).await {
                Ok(index) => (Ended::Yes(Vec::new(), Some(index)), Ok(())),
                Err(error @ StreamError::Unknown(_)) => (Ended::Unknown, Err(error)),
                Err(error) => (Ended::No, Err(error)),
            };
        self.load.history.ended("updates", self.number, call, steps, ended);
        result
    }

    /// Reads all fields of several objects at one index.
    async fn read(&mut self, some: &[u64]) -> Result<(), StreamError> {
        let mut steps = Steps::default();
        for n in some {
            FIELDS.iter().for_each(|field| steps.get(&key(&name(*n), field)));
        }
        let call = now_ns();
        let mut readers: Vec<(u64, &mut Reader)> =
            (0..).zip(&mut self.readers).filter(|(n, _)| some.contains(n)).collect();
        // In the order of the steps.
        readers.sort_by_key(|(n, _)| some.iter().position(|one| one == n));
        let mut readers: Vec<&mut Reader> = readers.into_iter().map(|(_, reader)| reader).collect();
        let (ended, result) = match read_together(&mut readers).await {
            Ok(_) => {
                let values = readers
                    .iter()
                    .flat_map(|reader| FIELDS.map(|field| reader.object().0.get(field.as_bytes()).cloned()));
                (Ended::Yes(values.collect(), None), Ok(()))
            }
            Err(error) => (Ended::No, Err(error)),
        };
        self.load.history.ended("reads", self.number, call, steps, ended);
        result
    }

    async fn checkpoint(&mut self, n: u64) -> Result<(), StreamError> {
        let Some(reader) = self.readers.get_mut(n as usize) else { return Ok(()) };
        reader.sync().await?;
        let (object, index) = reader.object();
        self.writer.checkpoint(reader.stream().clone(), index, object.save()).await?;
        self.load.history.count("checkpoints");
        Ok(())
    }
}

fn key(object: &[u8], field: &str) -> Bytes {
    [object, b"/", field.as_bytes()].concat().into()
}

/// Runs clients for a while. Each has readers of its own.
pub async fn load(args: &LoadArgs) -> Result<(), Error> {
    let log = args.target.open().await?;
    let counted = Arc::new(CountedLog::new(log));
    let log: Arc<dyn SharedLog> = counted.clone();
    let shares = args.shares.connect();
    let ending = Ending::after(args.seconds)?;
    let seed = args.seed.unwrap_or_else(random);
    let load = Arc::new(Load {
        objects: args.objects,
        per_operation: args.per_operation.min(args.objects),
        checkpoints: args.checkpoints,
        history: History::create(args.history.as_deref())?,
        last_error: Mutex::default(),
    });
    let mut clients = JoinSet::new();
    for number in args.first_client..args.first_client + args.clients {
        let client = Client::new(load.clone(), &log, &shares, number);
        clients.spawn(client.run(Dice::new(seed, number), ending.clone()));
    }
    let (mut delivered, mut loaded, mut foreign) = (0, 0, 0);
    while let Some(readers) = clients.join_next().await {
        for reader in readers.map_err(std::io::Error::other)? {
            let played = reader.played();
            (delivered, loaded, foreign) =
                (delivered + played.delivered, loaded + played.loaded, foreign + played.foreign);
        }
    }
    let last_error = load.last_error.lock().unwrap_or_else(PoisonError::into_inner).take();
    print(&json!({
        "app": "objects", "counts": load.history.finish()?, "seed": seed, "last_error": last_error,
        "delivered": delivered, "loaded": loaded, "foreign": foreign, "entries_read": counted.entries(),
    }))
}

/// Reads objects from their beginning, or from their newest checkpoints, and tells how many entries of the log each read needed.
pub async fn read(args: &ReadArgs) -> Result<(), Error> {
    let (log, shares) = (args.target.open().await?, args.shares.connect());
    for name in &args.objects {
        let counted = Arc::new(CountedLog::new(log.clone()));
        let stream = Bytes::from(name.clone());
        let mut reader = ObjectReader::new(counted.clone(), shares.clone(), stream, Fields::default());
        let index = reader.sync().await?;
        let (object, _) = reader.object();
        let fields: serde_json::Map<String, serde_json::Value> = object
            .iter()
            .map(|(field, value)| (text(field), text(value).trim_end_matches('.').into()))
            .collect();
        let played = reader.played();
        print(&json!({
            "app": "object", "object": name, "index": index, "fields": fields, "delivered": played.delivered,
            "loaded": played.loaded, "foreign": played.foreign, "entries_read": counted.entries(),
        }))?;
    }
    Ok(())
}

/// Writes a checkpoint of every object, and trims what no stream needs.
pub async fn trim(args: &TrimArgs) -> Result<(), Error> {
    let log = args.target.open().await?;
    let index = server(log.clone(), Share::ALL);
    index.play().await?;
    let objects = Objects::new(log.clone(), incarnation());
    let names: Vec<Bytes> = index.view(|index, _| index.streams().cloned().collect());
    for name in &names {
        let shares: Vec<Arc<dyn IndexServer>> = vec![Arc::new(index.clone())];
        let mut reader = ObjectReader::new(log.clone(), shares, name.clone(), Fields::default());
        reader.sync().await?;
        let (object, at) = reader.object();
        objects.checkpoint(name.clone(), at, object.save()).await?;
    }
    let below = objects.trim(&index, &Readers::default()).await?;
    print(&json!({"app": "object_trim", "objects": names.len(), "trimmed_below": below}))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
