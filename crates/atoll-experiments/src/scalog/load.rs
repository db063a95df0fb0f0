//! Load on a log of a real cluster: clients with one operation under way each. Prints one JSON line.
//!
//! Clients of a Scalog log keep to a shard, and choose another one when it ends, or when an append fails. So what they see tells what
//! their shard does.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_client::{Client, Corfu, Error, Log, ReadOptions, Reason, Scalog, Shard};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use crate::apps::target::{Dice, random, seconds};
use crate::latency::Latencies;

/// How long a client waits after an operation that failed.
const PAUSE: Duration = Duration::from_millis(2);
/// What a timeline has instead of a shard.
const NO_SHARD: i64 = -1;

/// Options of the load.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Addresses of the cluster's nodes for gRPC. The clients are spread over them
    #[arg(long, env = "ATOLL_CONNECT", value_name = "HOST:PORT,...")]
    connect: String,
    /// Name of the log, which exists
    #[arg(long)]
    log: String,
    /// The interface: that of every log, or the kind's own one
    #[arg(long, value_enum)]
    interface: Interface,
    /// Clients, each with one operation under way
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    clients: u32,
    /// Connections that the clients share. Over the interface of every log, the clients of a connection count as one
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    connections: u32,
    /// Bytes of a record
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    payload: u32,
    /// Records that are appended as one entry
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    records_per_entry: u32,
    /// Appends per second of all clients together [default: as fast as they are answered]
    #[arg(long)]
    rate: Option<f64>,
    /// Seconds before the measurement
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    warm_up: f64,
    /// Seconds of the measurement
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    seconds: f64,
    /// Append so many entries first, and then read them in a random order
    #[arg(long, value_name = "ENTRIES")]
    read: Option<u32>,
    /// Write to this file when operations were answered; each line has microseconds since 1970, the client and its shard, or -1
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
}

/// How clients use a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Interface {
    /// The one of every log
    Log,
    /// CORFU's: single positions
    Corfu,
    /// Scalog's: shards
    Scalog,
}

/// Why the load could not run.
#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Client(#[from] Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error("a client ended: {0}")]
    Ended(#[from] tokio::task::JoinError),
    #[error("nothing was written that can be read")]
    Nothing,
}

/// Where an entry is.
#[derive(Clone, Copy, Debug)]
struct Place {
    position: u64,
    shard: Option<u32>,
}

/// A log, as a client uses it.
#[derive(Clone)]
enum Door {
    Log(Log),
    Corfu(Corfu),
    Scalog(Scalog),
}

impl Door {
    fn open(client: &Client, interface: Interface, log: &str) -> Result<Self, Error> {
        Ok(match interface {
            Interface::Log => Door::Log(client.log(log)?),
            Interface::Corfu => Door::Corfu(client.corfu(log)?),
            Interface::Scalog => Door::Scalog(client.scalog(log)?),
        })
    }

    /// Returns one of the shards that stay. None if the log has no shards that a client chooses.
    async fn shard(&self, choice: u64) -> Result<Option<u32>, Error> {
        let Door::Scalog(log) = self else { return Ok(None) };
        let reply = log.shards().await?;
        let stays = |shard: &&Shard| shard.ended.is_none() && shard.leaving.is_none();
        let live: Vec<u32> = reply.shards.iter().filter(stays).map(|shard| shard.number).collect();
        Ok(live.get((choice % live.len().max(1) as u64) as usize).copied())
    }

    async fn append(&self, shard: Option<u32>, entry: Bytes) -> Result<u64, Error> {
        match self {
            Door::Log(log) => log.append(entry).await,
            Door::Corfu(log) => log.append(entry).await,
            Door::Scalog(log) => log.append_to_shard(shard.unwrap_or_default(), entry).await,
        }
    }

    async fn read(&self, place: Place) -> Result<(), Error> {
        match self {
            Door::Log(log) => {
                let (from, to) = (place.position, Some(place.position + 1));
                let mut reader = log.read(ReadOptions { to, ..ReadOptions::from(from) });
                reader.next().await.map(drop)
            }
            Door::Corfu(log) => log.read(place.position).await.map(drop),
            Door::Scalog(log) => log.read_record(place.position, place.shard).await.map(drop),
        }
    }
}

/// What one client does.
struct Worker {
    door: Door,
    number: u32,
    entry: Bytes,
    /// When it begins, and how much later each further operation begins, unless the one before takes longer.
    first: Instant,
    every: Duration,
    from: Instant,
    until: Instant,
    /// Reads these, or appends if there are none.
    places: Arc<Vec<Place>>,
}

/// What a client was told.
struct Told {
    latencies: Latencies,
    /// When operations were answered, in microseconds since 1970, and by which shard.
    answers: Vec<(u64, i64)>,
    errors: u64,
    moves: u64,
    last_error: Option<String>,
}

/// A clock that shows microseconds since 1970 and is never set.
struct Clock(Instant, u64);

impl Clock {
    fn new() -> Self {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Clock(Instant::now(), u64::try_from(since_1970.as_micros()).unwrap_or(0))
    }

    fn show(&self, at: Instant) -> u64 {
        self.1 + u64::try_from(at.duration_since(self.0).as_micros()).unwrap_or(0)
    }
}

impl Worker {
    async fn run(self, clock: Arc<Clock>) -> Told {
        let (latencies, answers, last_error) = (Latencies::new(), Vec::new(), None);
        let mut told = Told { latencies, answers, errors: 0, moves: 0, last_error };
        let mut dice = Dice::new(random(), self.number.into());
        // At the beginning, they take turns. Those that move spread over all shards.
        let mut shard = self.door.shard(self.number.into()).await.unwrap_or(None);
        let mut due = self.first;
        while due.max(Instant::now()) < self.until {
            tokio::time::sleep_until(due.into()).await;
            let began = Instant::now();
            let done = match self.places.len() as u64 {
                0 => self.door.append(shard, self.entry.clone()).await.map(|_| shard),
                count => {
                    let place = self.places[dice.below(count) as usize];
                    self.door.read(place).await.map(|()| place.shard)
                }
            };
            let now = Instant::now();
            match done {
                Ok(answered) => {
                    told.answers.push((clock.show(now), answered.map_or(NO_SHARD, i64::from)));
                    if now >= self.from && now < self.until {
                        told.latencies.add(now - began);
                    }
                }
                // The shard takes no records any more, and has not taken this one.
                Err(error) if error.failure().reason == Reason::Conflict && shard.is_some() => {
                    let next = self.door.shard(random()).await.unwrap_or(shard);
                    match next == shard {
                        // The node that was asked does not know it yet.
                        true => tokio::time::sleep(PAUSE).await,
                        false => told.moves += 1,
                    }
                    shard = next;
                    continue;
                }
                Err(error) => {
                    told.errors += 1;
                    told.last_error = Some(error.to_string());
                    tokio::time::sleep(PAUSE).await;
                    shard = self.door.shard(random()).await.unwrap_or(shard);
                }
            }
            due = (due + self.every).max(Instant::now());
        }
        told
    }
}

impl Args {
    /// Returns the log over connections of its own; each begins at another node.
    fn doors(&self) -> Result<Vec<Door>, Error> {
        let nodes: Vec<&str> = self.connect.split(',').collect();
        let door = |n: u32| {
            let first = n as usize % nodes.len();
            let order = [&nodes[first..], &nodes[..first]].concat().join(",");
            Door::open(&Client::connect(&order)?, self.interface, &self.log)
        };
        (0..self.connections).map(door).collect()
    }

    fn entry(&self) -> Bytes {
        Bytes::from(vec![7; (self.payload * self.records_per_entry) as usize])
    }

    /// Appends what is read later.
    async fn prepare(&self, doors: &[Door]) -> Result<Vec<Place>, LoadError> {
        let Some(count) = self.read else { return Ok(Vec::new()) };
        let mut clients: JoinSet<Result<Vec<Place>, Error>> = JoinSet::new();
        for number in 0..self.clients {
            let (door, entry) = (doors[number as usize % doors.len()].clone(), self.entry());
            let mine = (number..count).step_by(self.clients as usize).count();
            clients.spawn(async move {
                let shard = door.shard(number.into()).await?;
                let mut places = Vec::with_capacity(mine);
                for _ in 0..mine {
                    let position = door.append(shard, entry.clone()).await?;
                    places.push(Place { position, shard });
                }
                Ok(places)
            });
        }
        let mut places = Vec::new();
        while let Some(done) = clients.join_next().await {
            places.extend(done??);
        }
        if places.is_empty() { Err(LoadError::Nothing) } else { Ok(places) }
    }

    async fn load(&self) -> Result<(), LoadError> {
        let doors = self.doors()?;
        let places = Arc::new(self.prepare(&doors).await?);
        // Whoever started this process may have waited for it.
        eprintln!("at work");
        let clock = Arc::new(Clock::new());
        let began = Instant::now();
        let from = began + Duration::from_secs_f64(self.warm_up);
        let until = from + Duration::from_secs_f64(self.seconds);
        let rate = self.rate.filter(|rate| *rate > 0.0);
        let every =
            rate.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(f64::from(self.clients) / rate));
        let mut clients = JoinSet::new();
        for number in 0..self.clients {
            let door = doors[number as usize % doors.len()].clone();
            let first = began + every.mul_f64(f64::from(number) / f64::from(self.clients));
            let (entry, places, clock) = (self.entry(), places.clone(), clock.clone());
            let worker = Worker { door, number, entry, first, every, from, until, places };
            clients.spawn(async move { (number, worker.run(clock).await) });
        }
        let mut all = Vec::new();
        while let Some(told) = clients.join_next().await {
            all.push(told?);
        }
        all.sort_by_key(|(number, _)| *number);
        self.tell(all)
    }

    /// Writes the timeline, and prints the result.
    fn tell(&self, all: Vec<(u32, Told)>) -> Result<(), LoadError> {
        let (mut latencies, mut lines, mut last_error) = (Latencies::new(), Vec::new(), None);
        let (mut errors, mut moves) = (0, 0);
        for (number, told) in all {
            latencies.merge(&told.latencies);
            errors += told.errors;
            moves += told.moves;
            last_error = last_error.or(told.last_error);
            lines.extend(told.answers.into_iter().map(|(at, shard)| (at, number, shard)));
        }
        if let Some(file) = &self.timeline {
            lines.sort_unstable();
            let mut text = String::new();
            for (at, number, shard) in lines {
                // Nothing can go wrong with a string.
                let _ = writeln!(text, "{at} {number} {shard}");
            }
            std::fs::write(file, text)?;
        }
        latencies.busy = Duration::from_secs_f64(self.seconds);
        latencies.errors = errors;
        let what = if self.read.is_some() { "read" } else { "append" };
        let settings = json!({
            "interface": format!("{:?}", self.interface).to_lowercase(), "clients": self.clients, "connections": self.connections,
            "payload_bytes": self.payload, "records_per_entry": self.records_per_entry, "rate": self.rate, "seconds": self.seconds,
        });
        let mut line = latencies.line("atoll", what, 0, &settings);
        let per_entry = f64::from(self.records_per_entry);
        line["records_s"] = json!((latencies.count() as f64 * per_entry / self.seconds).round());
        line["moves"] = json!(moves);
        line["last_error"] = json!(last_error);
        println!("{line}");
        Ok(())
    }
}

/// Runs the load. Returns whether it could run; operations that failed are part of its result.
pub fn run(args: &Args) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(LoadError::from).and_then(|runtime| runtime.block_on(args.load()));
    if let Err(error) = &done {
        eprintln!("{error}");
    }
    done.is_ok()
}
