//! Scalog against its paper (NSDI'20, §6), whose slides give the numbers.
//!
//! | file | what it is |
//! | --- | --- |
//! | `ordering.rs` | the ordering layer on real sockets and a real disk, with emulated storage servers |
//! | `modelled.rs` | the whole on modelled machines |
//! | `machines.rs`, `tree.rs` | its writes, beside CORFU's; its ordering layer with many shards |
//! | `layer.rs` | the shape of an ordering layer, what emulated servers report, what an observer sees |
//! | `hosts.rs`, `threads.rs` | nodes on threads of their own; what these take of the processors |
//! | `parts.rs` | the roles of a node |
//! | `load.rs` | clients of a log of a real cluster: they append and read, and note when each was answered, and by which shard |

mod hosts;
mod layer;
mod load;
mod machines;
mod modelled;
mod ordering;
pub mod parts;
mod threads;
mod tree;

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
    /// The ordering layer with up to 3,500 emulated shards, on real sockets and a real disk
    Ordering(ordering::Args),
    /// Scalog on modelled machines: writes beside CORFU's, and the ordering layer with up to 35,000 shards
    Modelled(modelled::Args),
}

/// Runs an experiment. Returns whether everything held.
pub fn run(args: &Args) -> bool {
    match &args.experiment {
        Experiment::Load(args) => load::run(args),
        Experiment::Ordering(args) => ordering::run(args),
        Experiment::Modelled(args) => modelled::run(args),
    }
}
