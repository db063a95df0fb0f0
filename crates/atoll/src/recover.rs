//! `atoll recover`: the way back when a majority of the nodes is lost for good. It runs on the data directories of nodes that are stopped,
//! and makes the data directory of the first node of a new cluster. `atoll_node::rescue` does the work.

use std::io::{self, BufRead, IsTerminal, Write};
use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;

use atoll_node::rescue::{Fate, LogPlan, Plan, Rescue, RescueError};
use atoll_storage::{RescueNote, RescueNoteError};
use serde_json::{Value, json};

use crate::cli::Table;
use crate::serve::config::{Config, Overrules};
use crate::serve::{BAD_CONFIG, doors, log_to_stderr, node_config};

/// More bytes of an answer are not read.
const MOST_ANSWER_BYTES: u64 = 1024;

/// Arguments of `atoll recover`.
#[derive(Clone, Debug, clap::Args)]
pub struct RecoverArgs {
    /// Configuration file of the first node of the new cluster. `node.cluster` must be a new name, and `node.data` a folder that is not
    /// there yet
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Data folder of a surviving node, which is stopped; repeatable. It is only read
    #[arg(long, value_name = "DIR", required = true)]
    pub from: Vec<PathBuf>,
    /// Why; it is noted in the new data folder
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// Who; it is noted in the new data folder [default: the user that runs this]
    #[arg(long, value_name = "NAME")]
    pub operator: Option<String>,
    /// If entries are missing in the middle of a log, keep what is before them and give up what is after them
    #[arg(long)]
    pub cut_at_holes: bool,
    /// Say what would be kept and what may be lost, and exit
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Confirm it, instead of being asked
    #[arg(long)]
    pub yes: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What to log to stderr: error, warn, info, debug, trace, or a filter; RUST_LOG takes precedence
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    pub log_level: String,
}

/// Why the command ended early. Nothing was changed.
#[derive(Debug, thiserror::Error)]
enum RecoverError {
    #[error(transparent)]
    Rescue(#[from] RescueError),
    #[error(transparent)]
    Words(#[from] RescueNoteError),
    #[error("nothing was changed: confirm it with --yes")]
    NotConfirmed,
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

impl RecoverError {
    fn exit_status(&self) -> u8 {
        match self {
            RecoverError::Words(_) | RecoverError::NotConfirmed => 2,
            RecoverError::Rescue(_) | RecoverError::Output(_) => 1,
        }
    }
}

/// Runs the command.
pub fn run(args: &RecoverArgs) -> ExitCode {
    if let Err(error) = log_to_stderr(&args.log_level) {
        eprintln!("atoll recover: --log-level or RUST_LOG: {error}");
        return ExitCode::from(BAD_CONFIG);
    }
    let config = match Config::load(&args.config, &Overrules::default()) {
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
    match runtime.block_on(recover(config, args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let words = match args.json {
                true => json!({"error": {"happened": "no", "message": error.to_string()}}).to_string(),
                false => format!("atoll: did not happen: {error}"),
            };
            // If standard error fails, too, the exit status still says what happened.
            let _ = writeln!(io::stderr(), "{words}");
            ExitCode::from(error.exit_status())
        }
    }
}

async fn recover(config: Config, args: &RecoverArgs) -> Result<(), RecoverError> {
    let user = || ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok());
    let operator = args.operator.clone().or_else(user).unwrap_or_else(|| "unknown".to_owned());
    RescueNote::check_words(&operator, &args.reason)?;
    let (cluster, data) = (config.cluster.clone(), config.data.clone());
    let doors = doors(&config);
    let rescue = Rescue::prepare(node_config(config), &args.from, args.cut_at_holes).await?;
    let plan = rescue.plan().clone();
    let mut out = io::stdout().lock();
    if !args.json {
        writeln!(out, "{}", text(&plan, &cluster))?;
        out.flush()?;
    }
    if args.dry_run {
        rescue.discard().await?;
        return print(&mut out, args, &plan, "planned", "nothing was changed");
    }
    if !args.yes && !confirmed(&cluster)? {
        rescue.discard().await?;
        return Err(RecoverError::NotConfirmed);
    }
    rescue.rebuild(doors, &operator, &args.reason).await?;
    let done = format!(
        "done: {} holds cluster `{cluster}`. Start its node with `atoll serve --config {}`, and add others with `atoll node add`. The \
         folders of the lost cluster were not changed; never start a node on them again",
        data.display(),
        args.config.display()
    );
    print(&mut out, args, &plan, "recovered", &done)
}

fn print(
    out: &mut impl Write,
    args: &RecoverArgs,
    plan: &Plan,
    key: &str,
    words: &str,
) -> Result<(), RecoverError> {
    match args.json {
        true => writeln!(out, "{}", json!({"result": key, "plan": to_json(plan)}))?,
        false => writeln!(out, "{words}")?,
    }
    Ok(out.flush()?)
}

/// Asks for the name of the new cluster. False if nobody is there to answer.
fn confirmed(cluster: &str) -> Result<bool, RecoverError> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("Type the name of the new cluster to go on: ");
    let mut answer = String::new();
    io::Read::take(io::stdin().lock(), MOST_ANSWER_BYTES).read_line(&mut answer)?;
    Ok(answer.trim() == cluster)
}

/// Says in words what will be kept and what may be lost.
fn text(plan: &Plan, cluster: &str) -> String {
    let mut text = format!("cluster `{}` becomes `{cluster}`, from what is left of it:\n", plan.from);
    for s in &plan.survivors {
        let at = s.last_write_ms.map_or_else(|| "at an unknown time".to_owned(), |ms| format!("at {ms} ms"));
        text += &format!("  node {}, {}: its journal was last written {at}\n", s.node, s.path.display());
    }
    let mut table = Table::new(["LOG", "FROM", "TO", "LOST FOR CERTAIN", "MAY BE LOST"]);
    for log in &plan.logs {
        let certain = match lost_for_certain(log) {
            0 => "nothing known".to_owned(),
            n => format!("{n} entries from {} on", log.end),
        };
        let may = match log.fate {
            Fate::Kept => format!("all that was acknowledged at {} and above", log.end),
            Fate::Ended | Fate::Deleted => "nothing: it had ended".to_owned(),
        };
        table.row([log.name.clone(), log.trim.to_string(), log.end.to_string(), certain, may]);
    }
    text += &table.to_string();
    for log in &plan.logs {
        let name = &log.name;
        for range in &log.covered {
            let Range { start, end } = range;
            text += &format!(
                "\nlog `{name}`: the entries {start} to {end} (exclusive) are lost; the state of the database has them"
            );
        }
        if let Some(at) = log.cut_at {
            text += &format!(
                "\nlog `{name}`: it is cut at {at}, because the entry there is lost; later ones are given up"
            );
        }
        if let Some(ms) = log.time_ms {
            text += &format!("\nlog `{name}`: the state of the database that is left ends at {ms} ms");
        }
        text += &log.notes.iter().map(|note| format!("\nlog `{name}`: {note}")).collect::<String>();
    }
    if !plan.not_rescued.is_empty() {
        text += &format!("\nNOT kept, because this command keeps logs only: {}", plan.not_rescued.join(", "));
    }
    text += "\nThe survivors cannot know what the lost nodes acknowledged without them. Entries that were not acknowledged may be kept.\n\
             Times are milliseconds since the Unix epoch, by the clocks of the lost cluster.";
    text
}

/// How many acknowledged entries are known to be lost at the end of a log.
fn lost_for_certain(log: &LogPlan) -> u64 {
    log.acknowledged.since(log.end)
}

fn to_json(plan: &Plan) -> Value {
    let log = |log: &LogPlan| {
        json!({
            "name": log.name,
            "fate": match log.fate { Fate::Kept => "kept", Fate::Ended => "ended", Fate::Deleted => "deleted" },
            "chain_version": log.version.0,
            "from": log.trim.0,
            "to": log.end.0,
            "lost_for_certain": lost_for_certain(log),
            "may_be_lost_from": (log.fate == Fate::Kept).then_some(log.end.0),
            "covered_by_state": log.covered.iter().map(|r| [r.start.0, r.end.0]).collect::<Vec<_>>(),
            "cut_at": log.cut_at.map(|at| at.0),
            "state_time_ms": log.time_ms,
            "bytes": log.bytes,
            "notes": log.notes,
        })
    };
    json!({
        "from_cluster": plan.from,
        "survivors": plan.survivors.iter().map(|s| json!({
            "path": s.path,
            "node": s.node.0,
            "last_write_ms": s.last_write_ms,
            "database_below": s.database_below.map(|at| at.0),
        })).collect::<Vec<_>>(),
        "logs": plan.logs.iter().map(log).collect::<Vec<_>>(),
        "not_kept": plan.not_rescued,
    })
}
