//! Experiments that need the internals of Atoll: figures of the papers that a client cannot measure. Prints one JSON line per run to
//! stdout; `experiments/` stores and plots them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `cluster.rs` | real node cores in one thread, in real time, with a network that takes no time |
//! | `virtualization.rs` | Delos, Figure 11 left: what the VirtualLog costs over a bare NativeLoglet |
//! | `model.rs` | real node cores in virtual time, on machines whose processors, links and disks are modelled |
//! | `measure.rs` | the parameters of the model, measured on this machine |
//! | `striping.rs` | Delos, Figure 10 middle and right: how a StripedLoglet scales |
//! | `latency.rs` | histograms and their lines |

mod cluster;
mod latency;
mod measure;
mod model;
mod striping;
mod virtualization;

use std::process::ExitCode;

use clap::Parser;

// The product uses it for most blocks, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Measures what only the inside can show.
#[derive(Debug, Parser)]
#[command(name = "atoll-experiments")]
enum Experiment {
    /// VirtualLog against the bare NativeLoglet: append, checkTail, readNext (Delos, Figure 11 left)
    Virtualization(virtualization::Args),
    /// StripedLoglet with 1 to 30 stripes on modelled machines (Delos, Figure 10 middle and right)
    Striping(striping::Args),
}

fn main() -> ExitCode {
    let held = match Experiment::parse() {
        Experiment::Virtualization(args) => virtualization::run(&args),
        Experiment::Striping(args) => striping::run(&args),
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
