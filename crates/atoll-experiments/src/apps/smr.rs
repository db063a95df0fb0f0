//! CORFU-SMR (TOCS'13 §3): a service of counters with several replicas. Each replica has a client of its own, and proposes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::{Decode, DecodeError, Encode};
use atoll_log_apps::player::Player;
use atoll_log_apps::smr::{Flushed, Proposer, Service, SmrOptions, SmrState};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::store::play_options;
use super::target::{Ending, Target, incarnation, seconds};
use super::{Error, hex, print};
use crate::latency::Latencies;

/// How many proposers the service remembers, and how many commands of each.
const REMEMBERED: (u32, u32) = (1024, 256);
/// How long a proposer waits after an entry that failed.
const PAUSE: Duration = Duration::from_millis(20);

/// Options of the service.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Replicas that propose
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=64))]
    replicas: u64,
    /// Commands in one entry
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=64))]
    commands: u64,
    /// Bytes of a command
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(16..=3000))]
    command_bytes: u64,
    /// How long to run
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Propose nothing: play to the tail, and tell the hash there
    #[arg(long)]
    replay: bool,
}

/// Counters by number. A command has the number in its first eight bytes, and adds 1; the reply is the new count.
#[derive(Debug, Default)]
struct Counters(BTreeMap<u64, u64>);

impl Service for Counters {
    fn apply(&mut self, command: &Bytes) -> Bytes {
        let Some(number) = command.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)) else {
            return Bytes::new();
        };
        let count = self.0.entry(number).or_default();
        *count += 1;
        Bytes::copy_from_slice(&count.to_le_bytes())
    }

    fn save(&self) -> Bytes {
        self.0.to_bytes()
    }

    fn load(&mut self, state: Bytes) -> Result<(), DecodeError> {
        self.0 = BTreeMap::from_bytes(state)?;
        Ok(())
    }
}

type Replica = Arc<Player<SmrState<Counters>>>;

/// What one replica's proposer was told.
struct Told {
    replica: Replica,
    number: u64,
    latencies: Latencies,
    applied: u64,
    unknown: u64,
    wrong: Option<String>,
}

async fn open(args: &Args) -> Result<Replica, Error> {
    let state = SmrState::new(Counters::default(), REMEMBERED.0, REMEMBERED.1);
    Ok(Arc::new(Player::new(args.target.open().await?, state, play_options())))
}

/// Proposes until the run ends. Replies to a counter that only this proposer adds to must rise.
async fn propose(replica: Replica, commands: u64, bytes: u64, ending: Ending) -> Told {
    let client = incarnation();
    let mut told = Told {
        replica: replica.clone(),
        number: client.0,
        latencies: Latencies::new(),
        applied: 0,
        unknown: 0,
        wrong: None,
    };
    let proposer = Proposer::new(
        replica,
        client,
        SmrOptions { max_commands: commands as usize, ..SmrOptions::default() },
    );
    let mut command = client.0.to_le_bytes().to_vec();
    command.resize(bytes as usize, 0);
    let (command, mut last) = (Bytes::from(command), 0);
    while !ending.is_over() {
        let began = Instant::now();
        for _ in 0..commands {
            // The queue is empty before, and has room for more.
            let _ = proposer.propose(command.clone());
        }
        match proposer.flush().await {
            Flushed::Applied(outcomes) => {
                for (op, reply) in outcomes {
                    let count = reply.and_then(|r| r.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)));
                    told.applied += 1;
                    told.latencies.add(began.elapsed());
                    match count {
                        Some(count) if count > last && count <= told.applied + told.unknown => last = count,
                        count => {
                            told.wrong.get_or_insert(format!("{op:?} was answered {count:?} after {last}"));
                        }
                    }
                }
            }
            Flushed::Unknown(ops) => {
                told.unknown += ops.len() as u64;
                tokio::time::sleep(PAUSE).await;
            }
            Flushed::NotDone(..) | Flushed::Nothing => tokio::time::sleep(PAUSE).await,
        }
    }
    told
}

/// Runs the service for a while.
pub async fn run(args: &Args) -> Result<(), Error> {
    if args.replay {
        let replica = open(args).await?;
        replica.play().await?;
        let (applied, hash) = replica.hash();
        return print(&json!({"app": "smr", "replay": true, "applied": applied, "hash": hex(hash)}));
    }
    let ending = Ending::after(args.seconds)?;
    let mut replicas = Vec::new();
    for _ in 0..args.replicas {
        let replica = open(args).await?;
        replica.play().await?;
        replicas.push(replica);
    }
    let (mut proposers, began) = (JoinSet::new(), Instant::now());
    for replica in replicas {
        proposers.spawn(propose(replica, args.commands, args.command_bytes, ending.clone()));
    }
    let mut all = Vec::new();
    while let Some(told) = proposers.join_next().await {
        all.push(told.map_err(|error| Error::Violated(format!("a proposer ended: {error}")))?);
    }
    let busy = began.elapsed();
    tell(args, &mut all, busy).await
}

/// Plays all replicas to one index, compares them, and prints the result.
async fn tell(args: &Args, all: &mut [Told], busy: Duration) -> Result<(), Error> {
    let mut tail = 0;
    for told in &*all {
        tail = told.replica.play().await?.max(tail);
    }
    let (mut hashes, mut wrong) = (Vec::new(), Vec::new());
    let mut latencies = Latencies::new();
    for told in &mut *all {
        told.replica.play_to(tail).await?;
        hashes.push(told.replica.hash());
        let count = told.replica.view(|state, _| state.service().0.get(&told.number).copied().unwrap_or(0));
        if !(told.applied..=told.applied + told.unknown).contains(&count) {
            wrong.push(format!(
                "{} of {} commands took effect, and {} more may have",
                count, told.applied, told.unknown
            ));
        }
        wrong.extend(told.wrong.take());
        latencies.merge(&told.latencies);
    }
    // Other processes may have appended meanwhile, so that the replicas are at different indices.
    let (applied, hash) = hashes.first().copied().unwrap_or_default();
    if hashes.iter().any(|(at, other)| *at == applied && *other != hash) {
        wrong.push(format!("replicas differ at equal indices: {hashes:x?}"));
    }
    latencies.busy = busy;
    let unknown: u64 = all.iter().map(|told| told.unknown).sum();
    let settings = json!({
        "replicas": args.replicas, "commands": args.commands, "command_bytes": args.command_bytes,
    });
    print(&json!({
        "app": "smr", "applied": applied, "hash": hex(hash), "unknown": unknown,
        "commands": latencies.line("atoll", "smr", 0, &settings),
    }))?;
    match wrong.is_empty() {
        true => Ok(()),
        false => Err(Error::Violated(wrong.join("; "))),
    }
}
