//! CORFU against its paper (TOCS 31(4)), Figures 6 to 8. The nodes are real ones in processes of their own, with real sockets and disks.
//! The clients are procedures of a node that serves nothing, in this process: the same that runs behind the doors of every node. What one
//! machine cannot carry is modelled (`crate::model`).
//!
//! | file | what it is |
//! | --- | --- |
//! | `tokens.rs` | positions per second from a sequencer, for clients in two other processes |
//! | `operations.rs` | Figure 6: what append, read and fill of single positions take |
//! | `units.rs` | Figure 7: appends and reads per second with 1 to 4 units, beside the model of one machine |
//! | `modelled.rs` | Figure 7: the same with up to 64 units, each on a modelled machine of its own |
//! | `without_sequencer.rs` | appends while the sequencer is dead, and nobody replaces it |
//! | `seals.rs` | Figure 8: how long seals take, of real and of modelled units |
//! | `changes.rs` | Figure 8: how long planned changes of the projection take |
//! | `recovery.rs` | Figure 8: what kills of units and sequencers cost, from the kill and from its detection on |
//! | `clients.rs` | clients that append or read |
//! | `nodes.rs`, `process.rs` | the processes of the nodes |
//! | `layout.rs`, `shelf.rs` | which nodes there are; a register for one process |

mod changes;
pub mod clients;
mod layout;
mod modelled;
pub mod nodes;
mod operations;
mod process;
mod recovery;
mod seals;
mod shelf;
#[cfg(test)]
mod tests;
mod tokens;
pub mod units;
mod without_sequencer;

use std::io::{self, Write};

use atoll_corfu::log::LogError;
use serde_json::Value;

use crate::measure::MeasureError;

/// Options of `corfu`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    part: Part,
}

#[derive(Debug, clap::Subcommand)]
enum Part {
    /// Positions per second from a sequencer, one by one and in batches
    Tokens(tokens::Args),
    /// What append, read and fill of single positions take, on disk and in memory (Figure 6)
    Operations(operations::Args),
    /// Appends and reads per second with 1 to 4 real units, beside the model of one machine (Figure 7)
    Units(units::Args),
    /// Appends and reads per second with 1 to 64 modelled units (Figure 7)
    Modelled(modelled::Args),
    /// Appends while the sequencer is dead, and nobody replaces it
    WithoutSequencer(without_sequencer::Args),
    /// Seals, planned changes, and what kills cost (Figure 8)
    Reconfigure(ReconfigureArgs),
    /// One node of such a run; it obeys its standard input and ends with it
    #[command(hide = true)]
    Node(process::Args),
}

/// Options of all parts of Figure 8.
#[derive(Debug, clap::Args)]
struct ReconfigureArgs {
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_parser = ["seals", "changes", "recovery"])]
    only: Vec<String>,
    #[command(flatten)]
    seals: seals::SealArgs,
    #[command(flatten)]
    changes: changes::ChangeArgs,
    #[command(flatten)]
    recovery: recovery::KillArgs,
    #[command(flatten)]
    place: nodes::Folder,
}

/// Why a run could not continue.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a node did not start: {0}")]
    Start(#[from] atoll_node::StartError),
    #[error("a node ended: {0}")]
    Ended(#[from] atoll_node::EndedBecause),
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// An operation outside of the measurement failed.
    #[error("the log of the run: {0}")]
    Log(#[from] LogError),
    /// Something took too long, or gave an answer that cannot be used.
    #[error("{0}")]
    Failed(String),
}

/// Returns an error with these words.
pub fn failed(words: impl std::fmt::Display) -> Error {
    Error::Failed(words.to_string())
}

async fn reconfigure(args: &ReconfigureArgs) -> Result<bool, Error> {
    let wanted = |part: &str| args.only.is_empty() || args.only.iter().any(|only| only == part);
    let mut fine = true;
    if wanted("seals") {
        fine &= seals::run(&args.seals, &args.place).await?;
    }
    if wanted("changes") {
        fine &= changes::run(&args.changes, &args.place).await?;
    }
    if wanted("recovery") {
        fine &= recovery::run(&args.recovery, &args.place).await?;
    }
    Ok(fine)
}

/// Runs a part. Returns whether its targets are met.
pub fn run(args: &Args) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(Error::from).and_then(|runtime| {
        runtime.block_on(async {
            match &args.part {
                Part::Tokens(args) => tokens::run(args).await,
                Part::Operations(args) => operations::run(args).await,
                Part::Units(args) => units::run(args).await,
                Part::Modelled(args) => modelled::run(args).await,
                Part::WithoutSequencer(args) => without_sequencer::run(args).await,
                Part::Reconfigure(args) => reconfigure(args).await,
                Part::Node(args) => process::run(args).await,
            }
        })
    });
    done.unwrap_or_else(|error| {
        eprintln!("{error}");
        false
    })
}

/// Prints a line at once: another process may wait for it.
pub fn print(line: &Value) -> Result<(), Error> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Returns the load of the machine over the last minute.
pub fn load_1m() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}
