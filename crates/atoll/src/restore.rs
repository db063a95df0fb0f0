//! `atoll restore`: makes the data directory of a new cluster from a backup in an object store, as the database was at a chosen moment. No
//! node of the old cluster is needed. `atoll_node::rescue` does the work.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use atoll_backup::{BackupError, Moment};
use atoll_node::rescue::{Chosen, Progress, RestoreError, Restored, from_backup};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};

use crate::cli::backup::open;
use crate::cli::calendar::timestamp;
use crate::cli::grouped;
use crate::cli::spans::date;
use crate::serve::config::{Config, Overrules};
use crate::serve::{BAD_CONFIG, doors, log_to_stderr, node_config};

/// A restore that takes less long shows no progress.
const PROGRESS_AFTER: Duration = Duration::from_secs(2);

/// Arguments of `atoll restore`.
#[derive(Clone, Debug, clap::Args)]
pub struct RestoreArgs {
    /// Where the backup is: file:///DIRECTORY or s3://BUCKET/PREFIX. Credentials come from the environment
    #[arg(long, value_name = "URL")]
    pub from: String,
    /// The name of the cluster that was backed up
    #[arg(long, value_name = "NAME")]
    pub backup_of: String,
    /// The moment: `latest`, a time such as 2026-11-21T22:15:00Z, or a position of the database's log, below which all entries are
    /// restored
    #[arg(long, value_name = "TIME|POSITION|latest", value_parser = moment)]
    pub to: Moment,
    /// Configuration file of the first node of the new cluster. `node.cluster` must be another name than that of the old one, and
    /// `node.data` a folder that is not there yet
    #[arg(long, value_name = "FILE", required_unless_present = "data")]
    pub config: Option<PathBuf>,
    /// Data folder of the new node; overrides the file
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Restore the state even if its hash is not that of the old replicas
    #[arg(long)]
    pub accept_wrong_hash: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or a filter; RUST_LOG takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
}

/// Parses a moment.
fn moment(text: &str) -> Result<Moment, String> {
    if text == "latest" {
        return Ok(Moment::Latest);
    }
    if let Ok(position) = text.parse() {
        return Ok(Moment::Position(atoll_backup::LogPos(position)));
    }
    // A number is a position, so only a date is a time.
    let date = Some(text).filter(|text| text.ends_with('Z'));
    let ms = date.and_then(timestamp).and_then(|us| u64::try_from(us / 1000).ok());
    ms.map(Moment::Time)
        .ok_or_else(|| "latest, a time such as 2026-11-21T22:15:00.5Z, or a position is allowed".to_owned())
}

/// Runs the command.
pub fn run(args: &RestoreArgs) -> ExitCode {
    if let Err(error) = log_to_stderr(&args.log_level) {
        eprintln!("atoll restore: --log-level or RUST_LOG: {error}");
        return ExitCode::from(BAD_CONFIG);
    }
    let over = Overrules { data: args.data.clone(), ..Overrules::default() };
    let config = match &args.config {
        Some(file) => Config::load(file, &over),
        None => Config::without_file(&over),
    };
    let config = match config {
        Ok(config) => config,
        Err(faults) => {
            eprintln!("{faults}");
            return ExitCode::from(BAD_CONFIG);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("atoll: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut bar = Bar::new();
    let (cluster, data) = (config.cluster.clone(), config.data.clone());
    let done = runtime.block_on(restore(config, args, &mut bar));
    bar.end();
    let printed = match done {
        Ok(restored) => print(args, &restored, &cluster, &data),
        Err(error) => {
            let words = match args.json {
                true => json!({"error": {"happened": "no", "message": error.to_string()}}).to_string(),
                false => format!("atoll: did not happen: {error}"),
            };
            // If standard error fails, too, the exit status still says what happened.
            let _ = writeln!(io::stderr(), "{words}");
            return ExitCode::from(exit_status(&error));
        }
    };
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn exit_status(error: &RestoreError) -> u8 {
    match error {
        RestoreError::Backup(BackupError::Url(_)) => 2,
        _ => 1,
    }
}

async fn restore(config: Config, args: &RestoreArgs, bar: &mut Bar) -> Result<Restored, RestoreError> {
    let backup = open(&args.from, &args.backup_of).await?;
    let mut apps = atoll_node::Applications::new();
    for mut door in doors(&config) {
        door.applications(&mut apps);
    }
    let doors = doors(&config);
    let from = Chosen { backup, moment: args.to, accept_wrong_hash: args.accept_wrong_hash };
    from_backup(node_config(config), &from, apps, doors, &mut |progress| bar.show(progress)).await
}

/// Progress for people.
struct Bar {
    bar: ProgressBar,
    began: std::time::Instant,
}

impl Bar {
    fn new() -> Self {
        Bar { bar: ProgressBar::hidden(), began: std::time::Instant::now() }
    }

    fn show(&mut self, progress: Progress) {
        if self.bar.is_hidden() && io::stderr().is_terminal() && self.began.elapsed() >= PROGRESS_AFTER {
            let bar = ProgressBar::new(1);
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
            self.bar =
                match ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len}  {eta} left") {
                    Ok(style) => bar.with_style(style),
                    Err(_) => bar,
                };
        }
        let (words, position, length) = match progress {
            Progress::Snapshot { bytes, of } => ("snapshot, bytes", bytes, of),
            Progress::Entries { below, from, to } => ("entries", below.since(from), to.since(from)),
            Progress::Node => ("new node", 0, 1),
        };
        self.bar.set_message(words);
        self.bar.set_length(length);
        self.bar.set_position(position);
    }

    fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn print(args: &RestoreArgs, restored: &Restored, cluster: &str, data: &std::path::Path) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{}", to_json(restored))?,
        false => writeln!(out, "{}", to_text(args, restored, cluster, data))?,
    }
    out.flush()
}

fn to_json(r: &Restored) -> Value {
    json!({
        "result": "restored",
        "from_cluster": r.cluster,
        "snapshot": r.snapshot.number,
        "snapshot_below": r.snapshot.head.below.0,
        "below": r.below.0,
        "time_ms": r.time_ms,
        "hash": format!("{:032x}", r.hash),
        "compared_below": r.compared_below.0,
        "proven": r.compared_below >= r.below,
        "differs_below": r.differs_below.map(|at| at.0),
        "passed_over": r.passed_over.iter().map(|(snapshot, why)| json!({"snapshot": snapshot, "why": why})).collect::<Vec<_>>(),
    })
}

fn to_text(args: &RestoreArgs, r: &Restored, cluster: &str, data: &std::path::Path) -> String {
    let agrees = format!("its hash and that of the old replicas agree below {}", grouped(r.compared_below.0));
    let proven = match r.differs_below {
        Some(at) => format!("WRONG: {agrees}, and differ below {}: this is not what they had", grouped(at.0)),
        None if r.compared_below >= r.below => "its hash and that of the old replicas agree".to_owned(),
        None => format!("{agrees}; no later hash is in the backup"),
    };
    let passed_over: String = r
        .passed_over
        .iter()
        .map(|(snapshot, why)| {
            format!("snapshot {snapshot} was passed over, and more entries were applied: {why}\n")
        })
        .collect();
    let start = match &args.config {
        Some(file) => format!("atoll serve --config {}", file.display()),
        None => format!("atoll serve --data {}", data.display()),
    };
    format!(
        "{} holds cluster `{cluster}`: the database of `{}` below {} ({})\n{proven}\n{passed_over}Start its node with `{start}`, and add others with \
         `atoll node add`",
        data.display(),
        r.cluster,
        grouped(r.below.0),
        date(r.time_ms),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_positions_times_and_latest() {
        assert_eq!(moment("latest"), Ok(Moment::Latest));
        assert!(matches!(moment("12345"), Ok(Moment::Position(at)) if at.0 == 12345));
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(Moment::Time(1500)));
        for bad in ["", "yesterday", "-1", "2026-13-01T00:00:00Z", "1969-12-31T23:59:58Z"] {
            assert!(moment(bad).is_err(), "{bad}");
        }
    }
}
