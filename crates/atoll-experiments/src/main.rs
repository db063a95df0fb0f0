//! Experiments that need the internals of Atoll: figures of the papers that a client cannot measure. Also programs for the applications of
//! a shared log, which are clients. Prints one JSON line per run to stdout; `experiments/` stores and plots them.
//!
//! | file | what it is |
//! | --- | --- |
//! | `cluster.rs` | real node cores in one thread, in real time, with a network that takes no time |
//! | `virtualization.rs` | Delos, Figure 11 left: what the VirtualLog costs over a bare NativeLoglet |
//! | `model.rs` | real node cores in virtual time, on machines whose processors, links and disks are modelled |
//! | `calibration.rs` | the parameters of the model, measured on this machine |
//! | `measure.rs` | of these: what is no processor time |
//! | `striping.rs` | Delos, Figure 10 middle and right: how a StripedLoglet scales |
//! | `scalog/` | Scalog against its paper |
//! | `load.rs` | clients of one Loglet, on modelled nodes and on real ones |
//! | `kinds.rs` | each kind of Loglet on 1, 3 and 9 modelled servers |
//! | `corfu/` | CORFU, Figures 6 to 8: real nodes in processes of their own, and the model |
//! | `apps/` | CORFU's applications, over the logs of a real cluster |
//! | `fleet/` | tens of thousands of clients of ZooKeeper against any servers of its protocol |
//! | `usage.rs` | what real nodes took of the processors, and what they did |
//! | `real.rs` | a load on real nodes, and what these did meanwhile |
//! | `costs.rs` | what turns, messages, batches and bytes cost real nodes, from what they took under several loads |
//! | `latency.rs` | histograms and their lines |

mod apps;
mod calibration;
mod cluster;
mod corfu;
mod costs;
mod fleet;
mod kinds;
mod latency;
mod load;
mod measure;
mod model;
mod real;
mod scalog;
mod striping;
mod usage;
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
    /// Each kind of Loglet on 1, 3 and 9 modelled servers
    Kinds(kinds::Args),
    /// Scalog against its paper: load on a cluster, the ordering layer with many emulated shards, modelled machines
    Scalog(scalog::Args),
    /// CORFU's units, sequencer and reconfigurations, real and modelled (CORFU, Figures 6 to 8)
    Corfu(corfu::Args),
    /// Many clients of ZooKeeper at once: sessions, watches, a large parent, a server that dies
    Fleet(fleet::Args),
    /// A part of its sessions; it obeys its standard input and ends with it
    #[command(hide = true)]
    FleetHolder,
    /// Writes of ZooKeeper clients at a fixed rate, and how long they take in each second
    Steady(fleet::SteadyArgs),
    /// CORFU's applications over a cluster's log: store, map replicas, mirror, transactions, replicated services
    Apps(apps::Args),
}

/// Switches on the mutant that ATOLL_MUTANT names.
#[cfg(feature = "testing")]
fn put_mutant_in() {
    let Some(name) = std::env::var_os("ATOLL_MUTANT") else { return };
    let found = atoll_log_apps::mutants::ALL.iter().find(|m| name.to_str() == Some(m.name()));
    let Some(found) = found else {
        eprintln!("ATOLL_MUTANT: no mutant of the applications is called {name:?}");
        std::process::exit(2);
    };
    eprintln!("this program has a known bug in it: {found:?}");
    atoll_core::testing::set_mutant_everywhere(*found);
}

fn main() -> ExitCode {
    #[cfg(feature = "testing")]
    put_mutant_in();
    let held = match Experiment::parse() {
        Experiment::Virtualization(args) => virtualization::run(&args),
        Experiment::Striping(args) => striping::run(&args),
        Experiment::Kinds(args) => kinds::run(&args),
        Experiment::Scalog(args) => scalog::run(&args),
        Experiment::Corfu(args) => corfu::run(&args),
        Experiment::Fleet(args) => fleet::run(&args),
        Experiment::FleetHolder => fleet::run_holder(),
        Experiment::Steady(args) => fleet::run_steady(args),
        Experiment::Apps(args) => apps::run(&args),
    };
    if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
