//! Scalog against its paper (NSDI'20, §6), whose slides give the numbers.
//!
//! | file | what it is |
//! | --- | --- |
//! | `load.rs` | clients of a log of a real cluster: they append and read, and note when each was answered, and by which shard |

mod load;

/// Options of `scalog`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, clap::Subcommand)]
enum Experiment {
    /// Append to a log of a cluster, or read from it, with many clients
    Load(load::Args),
}

/// Runs an experiment. Returns whether everything held.
pub fn run(args: &Args) -> bool {
    match &args.experiment {
        Experiment::Load(args) => load::run(args),
    }
}
