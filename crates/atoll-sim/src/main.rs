//! `atoll-sim`: runs seeds, replays a seed, runs the mutants.

use std::collections::BTreeMap;
use std::io::BufWriter;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_core::testing::Mutant;
use atoll_sim::runner::{Sums, catch_panics, run_many, run_one};
use atoll_sim::scenario::phases::Size;
use atoll_sim::scenario::{self, Scenario};
use atoll_sim::seeds::Seeds;
use atoll_sim::{coverage, mutants};
use clap::{Parser, Subcommand};

/// A run makes many small allocations; in a profile, the system's allocator took a fifth of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many failures of a scenario are described in full. Of further ones, only the seeds are printed.
const MOST_TOLD: u64 = 12;

#[derive(Parser)]
#[command(about = "Simulates whole clusters on virtual time, under faults, and judges them from outside.")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a range of seeds; with scenario `all`, a share of them of every other scenario, too. The last line is `N passed, M failed`.
    Run {
        /// A scenario of `list`, several with commas, or `every` for all of them one after the other.
        #[arg(long, default_value = "all")]
        scenario: String,
        /// Seeds: FROM..TO (TO is not run), or one; several with commas.
        #[arg(long, default_value = "0..300")]
        seeds: Seeds,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// A known bug to put in; the product's own assertions are off then.
        #[arg(long, value_parser = mutant)]
        mutant: Option<Mutant>,
        /// Print the coverage marks and how many seeds reached each.
        #[arg(long)]
        marks: bool,
        /// Do not fail for coverage marks that were not reached. Fewer than 100 seeds are not asked for any.
        #[arg(long)]
        partial: bool,
    },
    /// Runs one seed, and prints its trace's hash.
    Replay {
        /// The scenario.
        #[arg(long, default_value = "all")]
        scenario: String,
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Writes every event in words.
        #[arg(long)]
        trace: Option<std::path::PathBuf>,
        /// A known bug to put in.
        #[arg(long, value_parser = mutant)]
        mutant: Option<Mutant>,
    },
    /// Runs each known bug until an oracle finds it.
    Mutants {
        /// Only these, with commas.
        #[arg(long)]
        only: Option<String>,
        /// Seeds that each gets at most, per scenario that is to catch it.
        #[arg(long, default_value_t = 300)]
        seeds: u64,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        threads: usize,
        /// Writes the seeds that caught them to this file. Without --only, that can be `crates/atoll-sim/mutants.txt`, whose seeds are
        /// tried first.
        #[arg(long)]
        record: Option<std::path::PathBuf>,
    },
    /// Lists scenarios and mutants.
    List,
}

fn mutant(text: &str) -> Result<Mutant, String> {
    mutants::find(text).ok_or_else(|| format!("no mutant {text:?}; see `atoll-sim list`"))
}

/// Returns the CPU seconds of this process so far, according to Linux.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or(0.0);
    // User and system time, in hundredths of a second on every Linux that Rust supports.
    (ticks(11) + ticks(12)) / 100.0
}

/// Returns the speed of a run as text: virtual seconds and checked operations, each per second of one core.
fn speed(size: &Size, cpu_seconds: f64) -> String {
    let cpu = cpu_seconds.max(0.01);
    let virtual_seconds = size.virtual_ns as f64 / 1e9 / cpu;
    let operations = size.answered.sum() as f64 / cpu;
    format!("{virtual_seconds:.0} virtual seconds and {operations:.0} judged operations per core-second")
}

fn command_of(scenario: &Scenario, seed: u64, mutant: Mutant) -> String {
    let with = if mutant == Mutant::NONE { String::new() } else { format!(" --mutant {mutant:?}") };
    format!("cargo run --release -p atoll-sim -- replay --scenario {} --seed {seed}{with}", scenario.name)
}

fn chosen(names: &str) -> Result<Vec<Scenario>, String> {
    if names == "every" {
        return Ok(scenario::all());
    }
    names
        .split(',')
        .map(|n| scenario::find(n).ok_or_else(|| format!("no scenario {n:?}; see `atoll-sim list`")))
        .collect()
}

/// How many seeds of `all` come with one of this scenario.
fn seeds_per_share(scenario: &Scenario) -> u64 {
    // One of their seeds takes as long as ten to twenty of `all`.
    if ["many-logs", "scalog-clocks", "scalog-full"].contains(&scenario.name) { 50 } else { 10 }
}

/// Returns the scenarios to run with their seeds. If `all` is among them, adds every other scenario with a share of the seeds, because
/// directed scenarios reveal what random faults do not.
fn with_shares(chosen: Vec<Scenario>, seeds: &Seeds) -> Vec<(Scenario, Seeds)> {
    let shared = chosen.iter().any(|s| s.name == "all");
    let others: Vec<Scenario> =
        scenario::all().into_iter().filter(|s| shared && chosen.iter().all(|c| c.name != s.name)).collect();
    let full = chosen.into_iter().map(|s| (s, seeds.clone()));
    let shares = others.into_iter().map(|s| (s, seeds.share(seeds_per_share(&s))));
    full.chain(shares.filter(|(_, share)| !share.is_empty())).collect()
}

/// The options of a run.
struct Wanted {
    seeds: Seeds,
    threads: usize,
    mutant: Mutant,
    show_marks: bool,
    partial: bool,
}

/// Runs one scenario and prints its results. Returns its sums, and how many of its marks are missing.
fn run_scenario(scenario: &Scenario, seeds: &Seeds, wanted: &Wanted) -> (Sums, usize) {
    let before = cpu_seconds();
    let told = AtomicU64::new(0);
    let n = seeds.len();
    let sums = run_many(scenario, seeds, wanted.threads, wanted.mutant, &|_| false, &|seed, outcome| {
        if let Some(first) = outcome.failures.first()
            && told.fetch_add(1, Ordering::Relaxed) < MOST_TOLD
        {
            println!("FAILED {} seed {seed}: {first}", scenario.name);
            println!("  replay: {} --trace trace.txt", command_of(scenario, seed, wanted.mutant));
        }
    });
    let cpu = cpu_seconds() - before;
    if sums.failed > MOST_TOLD {
        let seeds: Vec<u64> = sums.failures.iter().map(|(seed, _)| *seed).collect();
        println!("all failing seeds of {}: {seeds:?}", scenario.name);
    }
    println!(
        "{}: {n} seeds, {}, {} faults of frames, {} events, {cpu:.1} s of CPU ({}), traces {:016x}",
        scenario.name,
        sums.size,
        sums.frame_faults,
        sums.events,
        speed(&sums.size, cpu),
        sums.trace
    );
    if let Some(least) = sums.least.filter(|_| scenario.full) {
        println!("  every seed has at least {least}");
    }
    if wanted.show_marks {
        for (mark, n) in &sums.marks {
            println!("  {n:>6} {mark}");
        }
    }
    let asked = n >= coverage::SEEDS && wanted.mutant == Mutant::NONE;
    let missing = scenario.marks.iter().copied().flatten().filter(|m| asked && !sums.marks.contains_key(**m));
    (sums.clone(), missing.inspect(|mark| println!("  mark never reached: {mark}")).count())
}

fn run(scenarios: Vec<Scenario>, wanted: &Wanted) -> bool {
    let n = wanted.seeds.len();
    let of_all = scenarios.iter().any(|s| s.name == "all");
    let before = cpu_seconds();
    let (mut passed, mut failed, mut missing) = (0, 0, 0);
    let mut size = Size::default();
    let mut marks: BTreeMap<&'static str, u64> = BTreeMap::new();
    for (scenario, seeds) in with_shares(scenarios, &wanted.seeds) {
        let (sums, lacks) = run_scenario(&scenario, &seeds, wanted);
        (passed, failed, missing) = (passed + sums.passed, failed + sums.failed, missing + lacks);
        size.add(&sums.size);
        for (mark, seeds) in sums.marks {
            *marks.entry(mark).or_default() += seeds;
        }
    }
    println!("in all: {size}; {}", speed(&size, cpu_seconds() - before));
    if of_all && n >= coverage::SEEDS && wanted.mutant == Mutant::NONE {
        for listed in coverage::missing(&marks) {
            println!("never reached: {listed}");
            missing += 1;
        }
    }
    if missing > 0 && !wanted.partial {
        println!(
            "{missing} marks or listed scenarios were never reached: the run does not test what it is meant to"
        );
    }
    println!("{passed} passed, {failed} failed");
    failed == 0 && (missing == 0 || wanted.partial)
}

fn replay(
    scenario: &Scenario,
    seed: u64,
    trace: Option<&std::path::Path>,
    mutant: Mutant,
) -> Result<bool, String> {
    let out: scenario::TraceOut = match trace {
        Some(path) => {
            let file = std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
            Some(Box::new(BufWriter::new(file)))
        }
        None => None,
    };
    let outcome = run_one(scenario, seed, mutant, out);
    for failure in &outcome.failures {
        println!("FAILED {} seed {seed}: {failure}", scenario.name);
    }
    println!(
        "{} seed {seed}: trace {:016x} over {} events, {}",
        scenario.name, outcome.trace.0, outcome.trace.1, outcome.size
    );
    Ok(outcome.failures.is_empty())
}

fn list() {
    println!("Scenarios:");
    for s in scenario::all() {
        println!("  {:<24} {}", s.name, s.about);
    }
    println!("Mutants, and the scenarios that are to catch them:");
    for m in mutants::all() {
        println!("  {:<24} {}", m.name(), m.caught_by().join(", "));
    }
}

fn main() -> ExitCode {
    catch_panics();
    let args = Args::parse();
    let done = match args.command {
        Command::Run { scenario, seeds, threads, mutant, marks, partial } => {
            let mutant = mutant.unwrap_or(Mutant::NONE);
            chosen(&scenario).map(|s| run(s, &Wanted { seeds, threads, mutant, show_marks: marks, partial }))
        }
        Command::Replay { scenario, seed, trace, mutant } => chosen(&scenario).and_then(|s| {
            let mut fine = true;
            for s in s {
                fine &= replay(&s, seed, trace.as_deref(), mutant.unwrap_or(Mutant::NONE))?;
            }
            Ok(fine)
        }),
        Command::Mutants { only, seeds, threads, record } => only
            .map(|names| names.split(',').map(mutant).collect::<Result<Vec<_>, _>>())
            .transpose()
            .and_then(|some| {
                mutants::hunt(&some.unwrap_or(mutants::all()), seeds, threads, record.as_deref())
            }),
        Command::List => {
            list();
            Ok(true)
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}
