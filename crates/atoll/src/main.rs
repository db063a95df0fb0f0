//! The Atoll binary: a node, a cluster on this machine, and the verbs of the command line.

mod dev;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A replicated log whose consensus protocol can be changed while it runs.
#[derive(Debug, Parser)]
#[command(name = "atoll", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run one node
    Serve(serve::ServeArgs),
    /// Run a cluster on this machine: child processes, restarted when they die
    Dev(dev::DevArgs),
}

fn main() -> ExitCode {
    match Arguments::parse().verb {
        Verb::Serve(args) => serve::run(&args),
        Verb::Dev(args) => dev::run(&args),
    }
}
