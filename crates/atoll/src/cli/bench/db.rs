//! `atoll bench db`: puts and gets rows of a table at a fixed rate, and measures how long each took from the time that it was due.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_client::proto::{
    Cell, ColumnKind, GetRequest, NamedCell, Operation, RowKey, Table, TableColumn, cell, operation,
};
use atoll_client::{Error, Failure, Reason, Tables};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::LocalSet;

use super::super::{CliError, Common, grouped};
use super::{MAX_LATENCY_US, cpu_time};

/// Approximate number of bytes in one transaction that fills the table.
const BATCH_BYTES: u64 = 256 * 1024;
/// Number of such transactions in flight.
const FILLERS: u64 = 4;

#[derive(Clone, Debug, clap::Args)]
pub(super) struct BenchDbArgs {
    /// The table; created if it does not exist
    #[arg(long, value_name = "NAME", default_value = "bench")]
    table: String,
    /// The number of rows in the table
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    rows: u64,
    /// Before the load, write all rows from this number on
    #[arg(long, value_name = "N")]
    fill_from: Option<u64>,
    /// Random bytes per row
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=200_000))]
    payload: u32,
    /// Operations per second, alternately puts and gets. They are due at even intervals, whether earlier ones have been answered or not
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: u64,
    /// Maximum number of operations in flight; others wait, and their latency includes the wait
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::super::seconds)]
    seconds: Duration,
    /// How long to run the load before measuring
    #[arg(long, value_name = "SECONDS", value_parser = super::super::seconds)]
    warmup: Option<Duration>,
    /// Read the state of the node that answers, which may be stale
    #[arg(long)]
    stale: bool,
}

/// SplitMix64, so that each run chooses and fills rows in the same way.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn bytes(&mut self, length: usize) -> Bytes {
        let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| self.draw().to_le_bytes()).collect();
        bytes.truncate(length);
        bytes.into()
    }
}

fn int(value: u64) -> Cell {
    Cell { value: Some(cell::Value::Int64Value(value.cast_signed())) }
}

/// Returns the key of a row. Rows with neighbouring numbers do not have neighbouring keys.
fn key(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

pub(super) fn put(table: &str, number: u64, payload: Bytes) -> Operation {
    let cells = vec![
        NamedCell { column: "id".to_owned(), value: Some(int(key(number))) },
        NamedCell {
            column: "payload".to_owned(),
            value: Some(Cell { value: Some(cell::Value::BytesValue(payload)) }),
        },
    ];
    let put = operation::Put { cells, merge: false, expect: None };
    Operation { table: table.to_owned(), action: Some(operation::Action::Put(put)) }
}

pub(super) async fn make_table(tables: &Tables, name: &str) -> Result<(), CliError> {
    let column =
        |name: &str, kind| TableColumn { name: name.to_owned(), kind: i32::from(kind), nullable: false };
    let table = Table {
        name: name.to_owned(),
        columns: vec![column("id", ColumnKind::Int64), column("payload", ColumnKind::Bytes)],
        key: vec!["id".to_owned()],
        ..Table::default()
    };
    match tables.describe(name).await {
        Ok(_) => Ok(()),
        Err(Error::DidNotHappen(Failure { reason: Reason::NoSuchTable, .. })) => {
            tables.create(table).await?;
            Ok(())
        }
        Err(error) => Err(error.into()),
    }
}

/// Writes all rows from number `from` on, in transactions.
async fn fill(tables: &Tables, args: &BenchDbArgs, from: u64) -> Result<(), CliError> {
    let in_one = (BATCH_BYTES / (u64::from(args.payload) + 64)).clamp(1, 500);
    let filler = |lane: u64| async move {
        let mut random = Random(lane);
        let mut first = from + lane * in_one;
        while first < args.rows {
            let some = first..args.rows.min(first + in_one);
            let puts = some.map(|n| put(&args.table, n, random.bytes(args.payload as usize))).collect();
            tables.transact(puts).await?;
            first += FILLERS * in_one;
        }
        Ok::<(), Error>(())
    };
    let [a, b, c, d] = [0, 1, 2, 3].map(filler);
    tokio::try_join!(a, b, c, d)?;
    Ok(())
}

#[derive(Debug)]
struct Kind {
    latency_us: Histogram<u64>,
    errors: u64,
}

struct Seen {
    measuring_from: Instant,
    ended: Instant,
    puts: Kind,
    gets: Kind,
    last_error: Option<Error>,
}

impl Seen {
    fn note(&mut self, is_put: bool, due: Instant, outcome: Result<(), Error>) {
        let now = Instant::now();
        self.ended = now;
        let kind = if is_put { &mut self.puts } else { &mut self.gets };
        match outcome {
            Ok(()) if due >= self.measuring_from => {
                let us = u64::try_from(now.duration_since(due).as_micros()).unwrap_or(u64::MAX);
                kind.latency_us.saturating_record(us.max(1));
            }
            Ok(()) => {}
            Err(error) => {
                kind.errors += 1;
                self.last_error = Some(error);
            }
        }
    }
}

/// Reads a row. Returns whether it exists.
pub(super) async fn get(tables: &Tables, table: &str, number: u64, stale: bool) -> Result<bool, Error> {
    let keys = vec![RowKey { cells: vec![int(key(number))] }];
    let got = tables.get(GetRequest { table: table.to_owned(), keys, stale }).await?;
    Ok(got.found.iter().any(|found| found.row.is_some()))
}

/// Runs one operation.
async fn one(tables: &Tables, args: &BenchDbArgs, is_put: bool, random: u64) -> Result<(), Error> {
    let number = random % args.rows;
    if is_put {
        let payload = Random(random).bytes(args.payload as usize);
        return tables.transact(vec![put(&args.table, number, payload)]).await.map(drop);
    }
    if get(tables, &args.table, number, args.stale).await? {
        return Ok(());
    }
    let words = format!("row {number} of {} does not exist", args.rows);
    Err(Error::DidNotHappen(Failure::new(Reason::Invalid, words, "write the rows first, with --fill-from 0")))
}

/// Runs the load. Returns its results, and the CPU time of this process.
async fn load(tables: &Tables, args: &BenchDbArgs) -> Result<(Seen, Duration), CliError> {
    let bounds = "the bounds of the histogram are constants";
    let kind = || Kind { latency_us: Histogram::new_with_max(MAX_LATENCY_US, 3).expect(bounds), errors: 0 };
    let started = Instant::now();
    let warmup = args.warmup.unwrap_or_default();
    let measuring_from = started + warmup;
    let (puts, gets) = (kind(), kind());
    let seen = Rc::new(RefCell::new(Seen { measuring_from, ended: started, puts, gets, last_error: None }));
    let room = Arc::new(Semaphore::new(args.depth as usize));
    let count = (args.rate as f64 * (warmup + args.seconds).as_secs_f64()) as u64;
    let mut random = Random(1);
    let cpu = cpu_time();
    let local = LocalSet::new();
    let work = async {
        for n in 0..count {
            let due = started + Duration::from_secs_f64(n as f64 / args.rate as f64);
            tokio::time::sleep_until(due.into()).await;
            // The semaphore is never closed.
            let Ok(permit) = room.clone().acquire_owned().await else { break };
            let (tables, args, seen, drawn) = (tables.clone(), args.clone(), seen.clone(), random.draw());
            tokio::task::spawn_local(async move {
                let is_put = n % 2 == 0;
                let outcome = one(&tables, &args, is_put, drawn).await;
                seen.borrow_mut().note(is_put, due, outcome);
                drop(permit);
            });
        }
    };
    local.run_until(work).await;
    local.await;
    let cpu = cpu_time().saturating_sub(cpu);
    match Rc::try_unwrap(seen) {
        Ok(seen) => Ok((seen.into_inner(), cpu)),
        Err(_) => unreachable!("all operations have ended"),
    }
}

/// Runs `atoll bench db`.
pub(super) async fn run(common: &Common, args: &BenchDbArgs) -> Result<(), CliError> {
    let client = common.client().await?;
    let tables = client.tables();
    make_table(&tables, &args.table).await?;
    let filling = Instant::now();
    if let Some(from) = args.fill_from {
        fill(&tables, args, from).await?;
    }
    let filled = filling.elapsed();
    let (seen, cpu) = load(&tables, args).await?;
    let report = report(args, &client.addresses(), &seen, cpu, filled);
    common.print_done(&report, || text(args, &report))
}

fn report(args: &BenchDbArgs, addresses: &[String], seen: &Seen, cpu: Duration, filled: Duration) -> Value {
    let ms = |kind: &Kind, quantile| kind.latency_us.value_at_quantile(quantile) as f64 / 1e3;
    let seconds = seen.ended.saturating_duration_since(seen.measuring_from).as_secs_f64().max(1e-9);
    let ops = seen.puts.latency_us.len() + seen.gets.latency_us.len();
    let mut report = json!({
        "bench": "db", "ops_s": ops as f64 / seconds, "ops": ops, "seconds": seconds,
        "put_p50_ms": ms(&seen.puts, 0.5), "put_p99_ms": ms(&seen.puts, 0.99),
        "put_p999_ms": ms(&seen.puts, 0.999), "put_max_ms": seen.puts.latency_us.max() as f64 / 1e3,
        "get_p50_ms": ms(&seen.gets, 0.5), "get_p99_ms": ms(&seen.gets, 0.99),
        "get_p999_ms": ms(&seen.gets, 0.999), "get_max_ms": seen.gets.latency_us.max() as f64 / 1e3,
        "errors": seen.puts.errors + seen.gets.errors,
        "generator_cpu_us_op": cpu.as_secs_f64() * 1e6 / (ops.max(1) as f64),
        "table": args.table, "rows": args.rows, "payload_bytes": args.payload, "rate": args.rate,
        "depth": args.depth, "stale": args.stale, "warmup_seconds": args.warmup.unwrap_or_default().as_secs_f64(),
        "addresses": addresses, "version": env!("CARGO_PKG_VERSION"),
    });
    if args.fill_from.is_some() {
        report["fill_seconds"] = filled.as_secs_f64().into();
    }
    if let Some(error) = &seen.last_error {
        report["last_error"] = error.to_string().into();
    }
    report
}

fn text(args: &BenchDbArgs, report: &Value) -> String {
    let figure = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let line = |kind: &str| {
        let ms = |quantile: &str| figure(&format!("{kind}_{quantile}_ms"));
        format!(
            "{kind} ms: p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}\n",
            ms("p50"),
            ms("p99"),
            ms("p999"),
            ms("max")
        )
    };
    let mut text = format!(
        "{} operations/s of {} asked for  ({} rows of {} bytes, {:.1} s)\n{}{}errors: {}   generator CPU per operation: {:.1} µs",
        grouped(figure("ops_s") as u64),
        grouped(args.rate),
        grouped(args.rows),
        args.payload,
        figure("seconds"),
        line("put"),
        line("get"),
        report["errors"],
        figure("generator_cpu_us_op"),
    );
    if let Some(error) = report["last_error"].as_str() {
        text.push_str(&format!("\nlast error: {error}"));
    }
    text
}
