//! `atoll bench log`: runs a load with a fixed number of records outstanding, and reports the results. A report at depth 1 also has the
//! time of a ping-pong between two processes, which is most of such a figure on many machines.

mod db;
mod kv;
mod ping_pong;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_client::{Error, Log};
use bytes::Bytes;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::{CliError, Common, DEFAULT_LOG, grouped};

/// Length of a slot of the timeline.
const SLOT: Duration = Duration::from_millis(100);
/// Pause of a worker after a failed append.
const AFTER_ERROR: Duration = Duration::from_millis(10);
/// Longest latency that the histogram can record, in microseconds.
const MAX_LATENCY_US: u64 = 600_000_000;

/// Arguments of `atoll bench`.
#[derive(Debug, clap::Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: BenchVerb,
}

#[derive(Debug, clap::Subcommand)]
enum BenchVerb {
    /// Append records from N workers over one stream. Each worker has one record outstanding
    Log(BenchLogArgs),
    /// Put and get rows of a table, at a fixed rate
    Db(db::BenchDbArgs),
    /// Put and get keys of a keyspace from N workers. Each worker has one operation outstanding
    Kv(kv::BenchKvArgs),
    /// Send a byte to another process and back: the floor of every figure at depth 1. Needs no cluster
    PingPong(ping_pong::PingPongArgs),
}

#[derive(Clone, Debug, clap::Args)]
struct BenchLogArgs {
    /// Which log
    #[arg(long, value_name = "NAME", default_value = DEFAULT_LOG)]
    log: String,
    /// Bytes per record
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    payload: u32,
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::seconds)]
    seconds: Duration,
    /// How long to run the load before measuring
    #[arg(long, value_name = "SECONDS", value_parser = super::seconds)]
    warmup: Option<Duration>,
    /// Compare the growth of the log with the number of acknowledged records; nothing else may append meanwhile
    #[arg(long)]
    count_after: bool,
    /// Print acknowledgements per 100 ms
    #[arg(long)]
    timeline: bool,
    /// Print the longest time without an acknowledgement, and when it began
    #[arg(long)]
    longest_gap: bool,
}

/// Runs `atoll bench`.
pub async fn run(args: &BenchArgs) -> Result<(), CliError> {
    let bench = match &args.verb {
        BenchVerb::Log(bench) => bench,
        BenchVerb::Db(bench) => return db::run(&args.common, bench).await,
        BenchVerb::Kv(bench) => return kv::run(&args.common, bench).await,
        BenchVerb::PingPong(bench) => return ping_pong::run(&args.common, bench),
    };
    let client = args.common.client().await?;
    let log = client.log(&bench.log)?;
    // Create the log and the connection before the measurement starts.
    log.append("bench").await?;
    let before = if bench.count_after { Some(log.check_tail().await?) } else { None };
    let (seen, cpu) = load(&log, bench).await;
    let growth = match before {
        Some(before) => Some(log.check_tail().await? - before),
        None => None,
    };
    let mut report = report(bench, &client.addresses(), &seen, cpu, growth);
    if bench.depth == 1
        && let Ok(times) = ping_pong::measure(ping_pong::BESIDE_A_FIGURE)
    {
        report["ping_pong_p50_us"] = (times.value_at_quantile(0.5) as f64 / 1e3).into();
    }
    args.common.print_done(&report, || text(bench, &seen, &report))?;
    check_count(&seen, growth)
}

/// The results of the workers.
struct Seen {
    started: Instant,
    started_at: SystemTime,
    measuring_from: Instant,
    ended: Instant,
    latency_us: Histogram<u64>,
    /// Number of records acknowledged while measuring.
    acknowledged: u64,
    /// Number of records acknowledged in all, including the warm-up.
    acknowledged_ever: u64,
    did_not_happen: u64,
    unknown: u64,
    last_error: Option<Error>,
    last_ack: Instant,
    longest_gap: Duration,
    longest_gap_began: Instant,
    slots: Vec<u64>,
}

impl Seen {
    fn new(warmup: Duration) -> Result<Self, hdrhistogram::CreationError> {
        let now = Instant::now();
        Ok(Seen {
            started: now,
            started_at: SystemTime::now(),
            measuring_from: now + warmup,
            ended: now,
            latency_us: Histogram::new_with_max(MAX_LATENCY_US, 3)?,
            acknowledged: 0,
            acknowledged_ever: 0,
            did_not_happen: 0,
            unknown: 0,
            last_error: None,
            last_ack: now,
            longest_gap: Duration::ZERO,
            longest_gap_began: now,
            slots: Vec::new(),
        })
    }

    fn note(&mut self, sent: Instant, outcome: Result<u64, Error>) {
        let now = Instant::now();
        self.ended = now;
        match outcome {
            Ok(_) => {
                self.acknowledged_ever += 1;
                self.note_gap(now);
                self.last_ack = now;
                if now >= self.measuring_from {
                    self.acknowledged += 1;
                    let us = u64::try_from(now.duration_since(sent).as_micros()).unwrap_or(u64::MAX);
                    self.latency_us.saturating_record(us.max(1));
                    let slot =
                        (now.duration_since(self.measuring_from).as_millis() / SLOT.as_millis()) as usize;
                    if self.slots.len() <= slot {
                        self.slots.resize(slot + 1, 0);
                    }
                    self.slots[slot] += 1;
                }
            }
            Err(error) => {
                match &error {
                    Error::DidNotHappen(_) => self.did_not_happen += 1,
                    // No append ends with `Happened`.
                    Error::Unknown(_) | Error::Happened(_) => self.unknown += 1,
                }
                self.last_error = Some(error);
            }
        }
    }

    /// Notes a gap that ends now, or at the end of the run.
    fn note_gap(&mut self, now: Instant) {
        let from = self.last_ack.max(self.measuring_from);
        let gap = now.saturating_duration_since(from);
        if gap > self.longest_gap {
            (self.longest_gap, self.longest_gap_began) = (gap, from);
        }
    }

    fn unix_ms(&self, at: Instant) -> u64 {
        unix_ms(self.started, self.started_at, at)
    }

    fn seconds(&self) -> f64 {
        self.ended.saturating_duration_since(self.measuring_from).as_secs_f64().max(1e-9)
    }
}

/// Runs the workers. Returns their results, and the CPU time of this process while measuring.
async fn load(log: &Log, bench: &BenchLogArgs) -> (Seen, Duration) {
    let warmup = bench.warmup.unwrap_or_default();
    let seen = Seen::new(warmup).expect("the bounds of the histogram are constants");
    let until = seen.measuring_from + bench.seconds;
    let measuring_from = seen.measuring_from;
    let seen = Rc::new(RefCell::new(seen));
    let payload = Bytes::from(vec![b'x'; bench.payload as usize]);
    let local = LocalSet::new();
    for _ in 0..bench.depth {
        let (log, seen, payload) = (log.clone(), seen.clone(), payload.clone());
        local.spawn_local(async move {
            loop {
                let sent = Instant::now();
                if sent >= until {
                    return;
                }
                let outcome = log.append(payload.clone()).await;
                let failed = outcome.is_err();
                seen.borrow_mut().note(sent, outcome);
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
    let mut seen = match Rc::try_unwrap(seen) {
        Ok(seen) => seen.into_inner(),
        Err(_) => unreachable!("all workers have ended"),
    };
    let ended = seen.ended;
    seen.note_gap(ended);
    (seen, cpu)
}

/// Returns a time on the clock of the machine, which showed `started_at` at `started`.
fn unix_ms(started: Instant, started_at: SystemTime, at: Instant) -> u64 {
    let at = started_at + at.saturating_duration_since(started);
    at.duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the CPU time of all threads of this process, as the scheduler counts it. Zero if there is no such file.
fn cpu_time() -> Duration {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return Duration::ZERO };
    let on_cpu_ns = |thread: std::fs::DirEntry| {
        let accounts = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        accounts.split_whitespace().next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(threads.flatten().filter_map(on_cpu_ns).sum())
}

fn report(
    bench: &BenchLogArgs,
    addresses: &[String],
    seen: &Seen,
    cpu: Duration,
    growth: Option<u64>,
) -> Value {
    let ms = |quantile| seen.latency_us.value_at_quantile(quantile) as f64 / 1e3;
    let mut report = json!({
        "bench": "log",
        "ops_s": seen.acknowledged as f64 / seen.seconds(),
        "p50_ms": ms(0.5), "p99_ms": ms(0.99), "p999_ms": ms(0.999),
        "max_ms": seen.latency_us.max() as f64 / 1e3,
        "errors": seen.did_not_happen + seen.unknown,
        "errors_did_not_happen": seen.did_not_happen, "errors_unknown": seen.unknown,
        "ops": seen.acknowledged, "seconds": seen.seconds(),
        "generator_cpu_us_op": cpu.as_secs_f64() * 1e6 / (seen.acknowledged.max(1) as f64),
        "log": bench.log, "payload_bytes": bench.payload, "depth": bench.depth,
        "warmup_seconds": bench.warmup.unwrap_or_default().as_secs_f64(),
        "addresses": addresses, "started_unix_ms": seen.unix_ms(seen.measuring_from),
        "version": env!("CARGO_PKG_VERSION"),
    });
    if let Some(error) = &seen.last_error {
        report["last_error"] = error.to_string().into();
    }
    if let Some(growth) = growth {
        report["log_grew_by"] = growth.into();
        report["acknowledged_with_warmup"] = seen.acknowledged_ever.into();
    }
    if bench.timeline {
        report["acks_per_100ms"] = seen.slots.clone().into();
    }
    if bench.longest_gap {
        report["longest_gap_ms"] = (seen.longest_gap.as_secs_f64() * 1e3).into();
        report["longest_gap_began_unix_ms"] = seen.unix_ms(seen.longest_gap_began).into();
    }
    report
}

fn text(bench: &BenchLogArgs, seen: &Seen, report: &Value) -> String {
    let figure = |key: &str| report[key].as_f64().unwrap_or(0.0);
    let mut text = format!(
        "{} appends/s  (depth {}, {} bytes, {:.1} s)\n\
         latency ms: p50 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}\n\
         errors: {}   generator CPU per append: {:.1} µs",
        grouped(figure("ops_s") as u64),
        bench.depth,
        bench.payload,
        seen.seconds(),
        figure("p50_ms"),
        figure("p99_ms"),
        figure("p999_ms"),
        figure("max_ms"),
        report["errors"],
        figure("generator_cpu_us_op"),
    );
    if let Some(us) = report["ping_pong_p50_us"].as_f64() {
        text.push_str(&format!(
            "\none byte to another process and back, on this machine now: p50 {:.3} ms",
            us / 1e3
        ));
    }
    if let Some(error) = &seen.last_error {
        text.push_str(&format!("\nlast error: {error}"));
    }
    if bench.longest_gap {
        let at = seen.longest_gap_began.saturating_duration_since(seen.measuring_from).as_secs_f64();
        text.push_str(&format!(
            "\nlongest time without an acknowledgement: {:.1} ms, from {at:.2} s on",
            figure("longest_gap_ms")
        ));
    }
    if let Some(growth) = report["log_grew_by"].as_u64() {
        text.push_str(&format!(
            "\nthe log grew by {}, acknowledged were {}",
            grouped(growth),
            grouped(seen.acknowledged_ever)
        ));
    }
    if bench.timeline {
        let slots: Vec<String> = seen.slots.iter().map(u64::to_string).collect();
        text.push_str(&format!("\nacknowledgements per 100 ms: {}", slots.join(" ")));
    }
    text
}

/// Checks that every acknowledged record is in the log once, and that the log has no others except ones reported as unknown.
fn check_count(seen: &Seen, growth: Option<u64>) -> Result<(), CliError> {
    let Some(growth) = growth else { return Ok(()) };
    let least = seen.acknowledged_ever;
    let most = least + seen.unknown;
    match (least..=most).contains(&growth) {
        true => Ok(()),
        false => Err(CliError::Check(format!(
            "the log grew by {growth} records, {least} were acknowledged and {} are unknown: was somebody else appending?",
            seen.unknown
        ))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use atoll_client::{Failure, Reason};

    fn seen() -> Seen {
        Seen::new(Duration::ZERO).unwrap()
    }

    #[test]
    fn counts_must_match_what_was_acknowledged() {
        let mut seen = seen();
        let sent = seen.started;
        seen.note(sent, Ok(0));
        seen.note(sent, Ok(1));
        seen.note(sent, Err(Error::Unknown(Failure::new(Reason::Abandoned, "", ""))));
        seen.note(sent, Err(Error::DidNotHappen(Failure::new(Reason::Busy, "", ""))));
        let ok: Vec<bool> = (1..=4).map(|n| check_count(&seen, Some(n)).is_ok()).collect();
        assert_eq!(ok, [false, true, true, false]);
        assert_eq!((seen.acknowledged, seen.unknown, seen.did_not_happen), (2, 1, 1));
        assert_eq!(seen.slots.iter().sum::<u64>(), 2);
    }

    #[test]
    fn the_longest_gap_counts_up_to_the_end() {
        let mut seen = seen();
        let start = seen.measuring_from;
        seen.note_gap(start + Duration::from_millis(3));
        seen.last_ack = start + Duration::from_millis(3);
        seen.note_gap(start + Duration::from_millis(10));
        assert_eq!(seen.longest_gap, Duration::from_millis(7));
        assert_eq!(seen.longest_gap_began, start + Duration::from_millis(3));
    }

    #[test]
    fn the_report_has_the_keys_that_scripts_read() {
        let bench = BenchLogArgs {
            log: "main".into(),
            payload: 1024,
            depth: 64,
            seconds: Duration::from_secs(1),
            warmup: None,
            count_after: true,
            timeline: true,
            longest_gap: true,
        };
        let report = report(&bench, &["a:1".into()], &seen(), Duration::ZERO, Some(0));
        for key in [
            "ops_s",
            "p50_ms",
            "p99_ms",
            "p999_ms",
            "max_ms",
            "errors",
            "depth",
            "payload_bytes",
            "seconds",
            "addresses",
            "generator_cpu_us_op",
            "longest_gap_ms",
            "acks_per_100ms",
            "log_grew_by",
        ] {
            assert!(!report[key].is_null(), "{key}");
        }
    }
}
