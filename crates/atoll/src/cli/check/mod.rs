//! `atoll check`: is what concurrent clients were answered strictly serializable?
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the verbs; checking a file |
//! | `run.rs` | run: clients with contention, for a while |
//! | `recorder.rs` | the history that they write |
//! | `kv.rs`, `table.rs`, `zookeeper.rs` | a client of each door |

mod kv;
mod recorder;
mod run;
mod table;
mod zookeeper;

use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_serialla::{Limits, Progress, Report, Type, Verdict};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;

use super::{CliError, Common};

/// A verb that takes longer than this shows a progress bar.
const QUIET: Duration = Duration::from_secs(2);

/// Arguments of `atoll check`.
#[derive(Debug, clap::Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub common: Common,
    #[command(subcommand)]
    verb: CheckVerb,
}

#[derive(Debug, clap::Subcommand)]
enum CheckVerb {
    /// Check a recorded history. Exit status: 0 explained, 1 refuted, 2 bad input or not decided. Needs no cluster
    Linearizable(LinearizableArgs),
    /// Run concurrent clients against a cluster, record what they are answered, and check it
    Run(run::RunArgs),
}

/// Arguments of `atoll check linearizable`.
#[derive(Debug, clap::Args)]
struct LinearizableArgs {
    /// The history: JSON lines
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
    /// What the operations are about: register, set, counter, map, lock or table [default: as the first line says]
    #[arg(long = "type", value_name = "TYPE", value_parser = kind)]
    kind: Option<Type>,
    #[command(flatten)]
    limits: LimitArgs,
}

/// What a check may use.
#[derive(Clone, Debug, clap::Args)]
struct LimitArgs {
    /// Give up the check after this time; the history is then not decided
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = super::seconds)]
    within: Duration,
    /// Give up the check when the search needs more memory than this
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    memory_mb: u64,
}

fn kind(text: &str) -> Result<Type, String> {
    text.parse()
}

/// Runs `atoll check`.
pub async fn run(args: &CheckArgs) -> Result<(), CliError> {
    match &args.verb {
        CheckVerb::Linearizable(args_of) => {
            let report = check(&args_of.history, args_of.kind, &args_of.limits)?;
            tell(&args.common, &args_of.history, &report, Value::Null, "")
        }
        CheckVerb::Run(run) => run::run(&args.common, run).await,
    }
}

/// Checks a file.
fn check(file: &Path, kind: Option<Type>, limits: &LimitArgs) -> Result<Report, CliError> {
    let wrong = |what: String| CliError::Usage(format!("{}: {what}", file.display()));
    let from = File::open(file).map_err(|error| wrong(error.to_string()))?;
    let began = Instant::now();
    let memory_bytes = usize::try_from(limits.memory_mb << 20).unwrap_or(usize::MAX);
    let mut bar = Bar::new("operations placed");
    let mut watch = |progress: Progress| {
        let what =
            if progress.refuted { "refuted; looking for a short history" } else { "operations placed" };
        bar.show(what, progress.placed as u64, progress.total as u64);
        began.elapsed() < limits.within
    };
    let limits = Limits { memory_bytes, ..Limits::default() };
    let report = atoll_serialla::check(BufReader::new(from), kind, limits, &mut watch);
    bar.clear();
    report.map_err(|error| wrong(error.to_string()))
}

/// Prints a report, and returns the verdict as an exit status. `more` and `words` are printed with it.
fn tell(common: &Common, file: &Path, report: &Report, more: Value, words: &str) -> Result<(), CliError> {
    let mut json = report.to_json();
    json["history"] = file.display().to_string().into();
    if let Value::Object(more) = more {
        more.into_iter().for_each(|(key, value)| json[key] = value);
    }
    common.print(&json, || format!("{words}{}", report.to_text()))?;
    match &report.verdict {
        Verdict::Explained => Ok(()),
        Verdict::Refuted(_) => Err(CliError::Check(format!("{}: not strictly serializable", file.display()))),
        Verdict::NotDecided(why) => {
            let next = "allow more with --within and --memory-mb, or record fewer operations or more keys";
            Err(CliError::NotDecided(format!("{}: not decided: {}; {next}", file.display(), why.words())))
        }
    }
}

/// A progress bar that appears on a terminal after a while.
struct Bar {
    bar: ProgressBar,
    began: Instant,
    shown: bool,
    what: &'static str,
}

impl Bar {
    fn new(what: &'static str) -> Bar {
        Bar { bar: ProgressBar::hidden(), began: Instant::now(), shown: false, what }
    }

    fn show(&mut self, what: &'static str, done: u64, total: u64) {
        if !self.shown && self.began.elapsed() >= QUIET && io::stderr().is_terminal() {
            self.shown = true;
            self.bar = ProgressBar::new(total);
            self.bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len}") {
                self.bar.set_style(style);
            }
            self.bar.set_message(self.what);
        }
        if what != self.what {
            self.what = what;
            self.bar.set_message(what);
        }
        self.bar.set_position(done);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
