//! `atoll bench kv`: puts and gets keys of a keyspace, or rows of a table for comparison, with a fixed number of operations outstanding.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};

use atoll_client::{Client, Error, Failure, Keyspace, Reason, Tables};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::super::{CliError, Common, grouped};
use super::db::{self, Random};
use super::{AFTER_ERROR, MAX_LATENCY_US, SLOT, cpu_time, unix_ms};

/// How many workers write the keys before the load.
const FILLERS: u64 = 256;
/// The shape of the Pareto distribution of seed 004 §6.1.
const PARETO_SHAPE: f64 = 1.16;
/// The scale with which a fifth of the keys gets four fifths of the operations, as a share of the keys. It counts with the distribution cut
/// off at the last key.
const PARETO_SCALE: f64 = 0.082_80;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Distribution {
    /// Every key is as likely as any other
    Uniform,
    /// 80 % of the operations are for 20 % of the keys
    Pareto,
}

impl fmt::Display for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Distribution::Uniform => "uniform",
            Distribution::Pareto => "pareto",
        })
    }
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct BenchKvArgs {
    /// The keyspace, which `atoll kv create` has created
    #[arg(long, value_name = "NAME", default_value = "bench")]
    keyspace: String,
    /// Put and get rows of this table instead, with the same load; created if it does not exist
    #[arg(long, value_name = "NAME", conflicts_with = "keyspace")]
    table: Option<String>,
    /// The number of keys
    #[arg(long, value_name = "N", default_value_t = 16_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    keys: u64,
    /// Random bytes per value
    #[arg(long, value_name = "BYTES", default_value_t = 50, value_parser = clap::value_parser!(u32).range(0..=32_768))]
    payload: u32,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// How many clients the workers are of. Each client has connections of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    clients: u32,
    /// How many of a hundred operations are gets. The others are puts
    #[arg(long, value_name = "PERCENT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    reads: u64,
    /// How likely each key is
    #[arg(long, value_enum, default_value = "uniform")]
    distribution: Distribution,
    /// Before the load, write all keys
    #[arg(long)]
    fill: bool,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::super::seconds)]
    seconds: Duration,
    /// How long to run the load before measuring
    #[arg(long, value_name = "SECONDS", value_parser = super::super::seconds)]
    warmup: Option<Duration>,
    /// Print answers and errors per 100 ms
    #[arg(long)]
    timeline: bool,
}

impl BenchKvArgs {
    /// Returns the number of the key of the next operation.
    fn choose(&self, random: &mut Random) -> u64 {
        match self.distribution {
            Distribution::Uniform => random.draw() % self.keys,
            Distribution::Pareto => {
                let least = (1.0 + 1.0 / PARETO_SCALE).powf(-PARETO_SHAPE);
                let drawn = random.draw() as f64 / u64::MAX as f64;
                let share = least + drawn * (1.0 - least);
                let at = (share.powf(-1.0 / PARETO_SHAPE) - 1.0) * PARETO_SCALE;
                ((at * self.keys as f64) as u64).min(self.keys - 1)
            }
        }
    }
}

/// What the load reads and writes.
#[derive(Clone)]
enum Store {
    Keyspace(Keyspace),
    Table(Tables, String),
}

impl Store {
    /// Returns what a client loads.
    fn of(client: &Client, args: &BenchKvArgs) -> Store {
        match &args.table {
            Some(table) => Store::Table(client.tables(), table.clone()),
            None => Store::Keyspace(client.keyspaces().open(&args.keyspace)),
        }
    }

    async fn put(&self, number: u64, value: Bytes) -> Result<(), Error> {
        match self {
            Store::Keyspace(keys) => keys.put(key(number), value, None).await.map(drop),
            Store::Table(tables, name) => tables.transact(vec![db::put(name, number, value)]).await.map(drop),
        }
    }

    async fn get(&self, number: u64) -> Result<(), Error> {
        let exists = match self {
            Store::Keyspace(keys) => keys.get(vec![key(number)]).await?.iter().any(Option::is_some),
            Store::Table(tables, name) => db::get(tables, name, number, false).await?,
        };
        if exists {
            return Ok(());
        }
        let words = format!("key {number} does not exist");
        Err(Error::DidNotHappen(Failure::new(Reason::Invalid, words, "write all keys first, with --fill")))
    }
}

fn key(number: u64) -> Bytes {
    format!("k{number:06}").into()
}

/// What 100 ms saw.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    answers: u64,
    errors: u64,
}

struct Seen {
    started: Instant,
    started_at: SystemTime,
    measuring_from: Instant,
    ended: Instant,
    all_us: Histogram<u64>,
    puts_us: Histogram<u64>,
    gets_us: Histogram<u64>,
    did_not_happen: u64,
    unknown: u64,
    last_error: Option<Error>,
    slots: Vec<Slot>,
}

impl Seen {
    fn new(warmup: Duration) -> Self {
        let latencies =
            || Histogram::new_with_max(MAX_LATENCY_US, 3).expect("the bounds of the histogram are constants");
        let now = Instant::now();
        Seen {
            started: now,
            started_at: SystemTime::now(),
            measuring_from: now + warmup,
            ended: now,
            all_us: latencies(),
            puts_us: latencies(),
            gets_us: latencies(),
            did_not_happen: 0,
            unknown: 0,
            last_error: None,
            slots: Vec::new(),
        }
    }

    fn note(&mut self, is_put: bool, sent: Instant, outcome: Result<(), Error>) {
        let now = Instant::now();
        self.ended = now;
        if now < self.measuring_from {
            self.last_error = outcome.err().or(self.last_error.take());
            return;
        }
        let slot = (now.duration_since(self.measuring_from).as_millis() / SLOT.as_millis()) as usize;
        if self.slots.len() <= slot {
            self.slots.resize(slot + 1, Slot::default());
        }
        let Err(error) = outcome else {
            self.slots[slot].answers += 1;
            let us = u64::try_from(now.duration_since(sent).as_micros()).unwrap_or(u64::MAX).max(1);
            self.all_us.saturating_record(us);
            let kind = if is_put { &mut self.puts_us } else { &mut self.gets_us };
            kind.saturating_record(us);
            return;
        };
        self.slots[slot].errors += 1;
        match &error {
            Error::DidNotHappen(_) => self.did_not_happen += 1,
            Error::Unknown(_) | Error::Happened(_) => self.unknown += 1,
        }
        self.last_error = Some(error);
    }

    fn seconds(&self) -> f64 {
        self.ended.saturating_duration_since(self.measuring_from).as_secs_f64().max(1e-9)
    }
}

/// Writes all keys.
async fn fill(store: &Store, args: &BenchKvArgs) -> Result<(), CliError> {
    let local = LocalSet::new();
    let workers: Vec<_> = (0..FILLERS.min(args.keys))
        .map(|first| {
            let (store, args) = (store.clone(), args.clone());
            local.spawn_local(async move {
                let mut random = Random(first);
                for number in (first..args.keys).step_by(FILLERS as usize) {
                    store.put(number, random.bytes(args.payload as usize)).await?;
                }
                Ok::<(), Error>(())
            })
        })
        .collect();
    local
        .run_until(async {
            for worker in workers {
                match worker.await {
                    Ok(done) => done?,
                    Err(panic) => return Err(CliError::Check(panic.to_string())),
                }
            }
            Ok(())
        })
        .await
}

/// Runs the workers, each with one of the clients. Returns their results, and the CPU time of this process while measuring.
async fn load(clients: &[Store], args: &BenchKvArgs) -> (Seen, Duration) {
    let seen = Seen::new(args.warmup.unwrap_or_default());
    let (measuring_from, until) = (seen.measuring_from, seen.measuring_from + args.seconds);
    let seen = Rc::new(RefCell::new(seen));
    let local = LocalSet::new();
    for (worker, store) in (0..args.depth).zip(clients.iter().cycle()) {
        let (store, seen, args) = (store.clone(), seen.clone(), args.clone());
        local.spawn_local(async move {
            let mut random = Random(u64::from(worker) << 32);
            loop {
                let number = args.choose(&mut random);
                let is_put = random.draw() % 100 >= args.reads;
                let value = if is_put { random.bytes(args.payload as usize) } else { Bytes::new() };
                let sent = Instant::now();
                if sent >= until {
                    return;
                }
                let outcome = if is_put { store.put(number, value).await } else { store.get(number).await };
                let failed = outcome.is_err();
                seen.borrow_mut().note(is_put, sent, outcome);
                if failed {
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        });
    }
    let cpu_before = local
        .run_until(async {
            tokio::time::sleep_until(measuring_from.into()).await;
            cpu_time()
        })
        .await;
    local.await;
    let cpu = cpu_time().saturating_sub(cpu_before);
    match Rc::try_unwrap(seen) {
        Ok(seen) => (seen.into_inner(), cpu),
        Err(_) => unreachable!("all workers have ended"),
    }
}

/// Runs `atoll bench kv`.
pub(super) async fn run(common: &Common, args: &BenchKvArgs) -> Result<(), CliError> {
    let client = common.client().await?;
    let (first, engine) = match &args.table {
        Some(table) => {
            db::make_table(&client.tables(), table).await?;
            (Store::of(&client, args), "table".to_owned())
        }
        None => (Store::of(&client, args), client.keyspaces().describe(&args.keyspace).await?.engine),
    };
    let filling = Instant::now();
    if args.fill {
        fill(&first, args).await?;
    }
    let filled = args.fill.then(|| filling.elapsed());
    let mut clients = vec![first];
    for _ in 1..args.clients {
        clients.push(Store::of(&common.client().await?, args));
    }
    let (seen, cpu) = load(&clients, args).await;
    let mut report = report(args, &seen, cpu, &engine);
    report["addresses"] = client.addresses().into();
    if let Some(filled) = filled {
        report["fill_seconds"] = filled.as_secs_f64().into();
    }
    common.print_done(&report, || text(args, &seen, &report))
}

fn report(args: &BenchKvArgs, seen: &Seen, cpu: Duration, engine: &str) -> Value {
    let ms = |of: &Histogram<u64>, quantile| of.value_at_quantile(quantile) as f64 / 1e3;
    let (ops, seconds) = (seen.all_us.len(), seen.seconds());
    let mut report = json!({
        "bench": "kv", "ops_s": ops as f64 / seconds, "ops": ops, "seconds": seconds,
        "p50_ms": ms(&seen.all_us, 0.5), "p99_ms": ms(&seen.all_us, 0.99), "p999_ms": ms(&seen.all_us, 0.999),
        "max_ms": seen.all_us.max() as f64 / 1e3,
        "puts": seen.puts_us.len(), "put_p50_ms": ms(&seen.puts_us, 0.5), "put_p99_ms": ms(&seen.puts_us, 0.99),
        "gets": seen.gets_us.len(), "get_p50_ms": ms(&seen.gets_us, 0.5), "get_p99_ms": ms(&seen.gets_us, 0.99),
        "errors": seen.did_not_happen + seen.unknown,
        "errors_did_not_happen": seen.did_not_happen, "errors_unknown": seen.unknown,
        "generator_cpu_us_op": cpu.as_secs_f64() * 1e6 / (ops.max(1) as f64),
        "engine": engine, "keyspace": args.table.as_ref().unwrap_or(&args.keyspace),
        "keys": args.keys, "payload_bytes": args.payload, "depth": args.depth, "clients": args.clients, "reads_percent": args.reads,
        "distribution": args.distribution.to_string(),
        "warmup_seconds": args.warmup.unwrap_or_default().as_secs_f64(),
        "started_unix_ms": unix_ms(seen.started, seen.started_at, seen.measuring_from),
        "version": env!("CARGO_PKG_VERSION"),
    });
    if let Some(error) = &seen.last_error {
        report["last_error"] = error.to_string().into();
    }
    if args.timeline {
        report["answers_per_100ms"] = seen.slots.iter().map(|slot| slot.answers).collect();
        report["errors_per_100ms"] = seen.slots.iter().map(|slot| slot.errors).collect();
    }
    report
}

fn text(args: &BenchKvArgs, seen: &Seen, report: &Value) -> String {
    let figure = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let mut text = format!(
        "{} operations/s  ({} keys of {} bytes, depth {}, {} % gets, {:.1} s)\n\
         latency ms: p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}\n\
         errors: {}   generator CPU per operation: {:.1} µs",
        grouped(figure("ops_s") as u64),
        grouped(args.keys),
        args.payload,
        args.depth,
        args.reads,
        seen.seconds(),
        figure("p50_ms"),
        figure("p99_ms"),
        figure("p999_ms"),
        figure("max_ms"),
        report["errors"],
        figure("generator_cpu_us_op"),
    );
    if let Some(error) = &seen.last_error {
        text.push_str(&format!("\nlast error: {error}"));
    }
    if args.timeline {
        let slots: Vec<String> = seen.slots.iter().map(|slot| slot.answers.to_string()).collect();
        text.push_str(&format!("\nanswers per 100 ms: {}", slots.join(" ")));
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchKvArgs,
    }

    fn args(line: &str) -> BenchKvArgs {
        Line::try_parse_from(line.split(' ')).unwrap().args
    }

    #[test]
    fn a_fifth_of_the_keys_gets_four_fifths_of_a_pareto_load() {
        let share = |line| {
            let (args, mut random) = (args(line), Random(7));
            let chosen: Vec<u64> = (0..100_000).map(|_| args.choose(&mut random)).collect();
            assert!(chosen.iter().all(|number| *number < args.keys));
            chosen.iter().filter(|number| **number < args.keys / 5).count()
        };
        assert!((79_000..81_000).contains(&share("bench --keys 5000 --distribution pareto")));
        assert!((19_000..21_000).contains(&share("bench --keys 5000")));
    }

    #[test]
    fn warm_up_does_not_count_and_errors_have_slots_of_their_own() {
        let args = args("bench --timeline");
        let mut seen = Seen::new(Duration::from_secs(3600));
        let sent = seen.started;
        seen.note(true, sent, Ok(()));
        seen.measuring_from = sent;
        seen.note(true, sent, Ok(()));
        seen.note(false, sent, Ok(()));
        seen.note(true, sent, Err(Error::Unknown(Failure::new(Reason::Abandoned, "", ""))));
        let report = report(&args, &seen, Duration::ZERO, "engine");
        assert_eq!((&report["ops"], &report["puts"], &report["gets"]), (&json!(2), &json!(1), &json!(1)));
        assert_eq!((&report["errors"], &report["errors_unknown"]), (&json!(1), &json!(1)));
        let sum = |key: &str| report[key].as_array().unwrap().iter().filter_map(Value::as_u64).sum::<u64>();
        assert_eq!((sum("answers_per_100ms"), sum("errors_per_100ms")), (2, 1));
    }
}
