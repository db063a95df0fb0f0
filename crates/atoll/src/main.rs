//! The Atoll binary: nodes (`serve`, `dev`), and the operator's and user's tools over the public API.

mod allocator;
mod cli;
mod dev;
mod recover;
mod restore;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A control-plane database on a virtual log.
///
/// `atoll dev` starts a cluster on this machine; `atoll log append hello` and `atoll log read` use it;
/// `atoll chain extend` changes the protocol under the log while it runs.
///
/// Exit status: 0 done, 1 did not happen, 2 wrong usage, 3 unknown whether it happened.
#[derive(Debug, Parser)]
#[command(name = "atoll", version, max_term_width = 100)]
struct Atoll {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a cluster on this machine: one child process per node
    Dev(dev::DevArgs),
    /// Run one node
    Serve(serve::ServeArgs),
    /// Make a new cluster from the data of the nodes that are left, after a majority is lost for good
    Recover(recover::RecoverArgs),
    /// Make a new cluster from a backup, as it was at a chosen moment
    Restore(restore::RestoreArgs),
    /// Back up the database into an object store, continuously
    Backup(cli::backup::BackupArgs),
    /// Create, list, append to, read and trim logs
    Log(cli::log::LogArgs),
    /// Show and change the segments of a log
    Chain(cli::chain::ChainArgs),
    /// Declare what the nodes do with a log by themselves: where it is, what becomes cold, what is kept
    Policy(cli::policy::PolicyArgs),
    /// Show health, tails and lag, per node
    Status(cli::status::StatusArgs),
    /// List and change the members of the cluster
    Node(cli::node::NodeArgs),
    /// Show the feature level of the cluster, and finish an upgrade
    Cluster(cli::cluster::ClusterArgs),
    /// Say who may do what: grants of rights, and tokens
    Auth(cli::auth::AuthArgs),
    /// Show and check the replicas of the database
    Database(cli::database::DatabaseArgs),
    /// Define tables, read and write their rows
    Table(cli::tables::TableArgs),
    /// Create keyspaces, read and write their keys
    Kv(cli::kv::KvArgs),
    /// Use single positions of a log on CORFU, and replace its nodes
    Corfu(cli::corfu::CorfuArgs),
    /// Add and end the shards of a log on Scalog, and use them
    Scalog(cli::scalog::ScalogArgs),
    /// Copy the contents of a ZooKeeper ensemble
    #[command(name = "zookeeper")]
    ZooKeeper(cli::zookeeper::ZooKeeperArgs),
    /// Check that the answers to concurrent clients have one order, which agrees with real time
    Check(cli::check::CheckArgs),
    /// Measure the speed of a cluster
    Bench(cli::bench::BenchArgs),
    /// Print completions for a shell
    Completions(cli::completions::CompletionsArgs),
}

/// Switches on the mutant that ATOLL_MUTANT names.
#[cfg(feature = "testing")]
fn put_mutant_in() {
    use atoll_core::testing::set_mutant_everywhere;
    let Some(name) = std::env::var_os("ATOLL_MUTANT") else { return };
    let mut all = atoll_node::mutants::of_all_layers().into_iter().chain(atoll_doors::mutants());
    let found = all.find(|m| name.to_str() == Some(m.name()));
    let Some(found) = found else {
        eprintln!("ATOLL_MUTANT: no mutant is called {name:?}");
        std::process::exit(2);
    };
    eprintln!("this program has a known bug in it: {found:?}");
    set_mutant_everywhere(found);
}

/// Switches on the delays at race points that ATOLL_RACES asks for.
#[cfg(feature = "testing")]
fn put_races_in() {
    let Some(wanted) = std::env::var_os("ATOLL_RACES") else { return };
    if let Err(why) = atoll_core::races::set_races_everywhere(&wanted.to_string_lossy()) {
        eprintln!("ATOLL_RACES: {why}");
        std::process::exit(2);
    }
    eprintln!("this program delays what it does at race points: {wanted:?}");
}

fn main() -> ExitCode {
    allocator::set_up();
    #[cfg(feature = "testing")]
    put_mutant_in();
    #[cfg(feature = "testing")]
    put_races_in();
    match Atoll::parse().verb {
        Verb::Dev(args) => dev::run(&args),
        Verb::Serve(args) => serve::run(&args),
        Verb::Recover(args) => recover::run(&args),
        Verb::Restore(args) => restore::run(&args),
        Verb::Backup(args) => cli::run(&args.common, cli::backup::run(&args)),
        Verb::Log(args) => cli::run(&args.common, cli::log::run(&args)),
        Verb::Chain(args) => cli::run(&args.common, cli::chain::run(&args)),
        Verb::Policy(args) => cli::run(&args.common, cli::policy::run(&args)),
        Verb::Status(args) => cli::run(&args.common, cli::status::run(&args)),
        Verb::Node(args) => cli::run(&args.common, cli::node::run(&args)),
        Verb::Cluster(args) => cli::run(&args.common, cli::cluster::run(&args)),
        Verb::Auth(args) => cli::run(&args.common, cli::auth::run(&args)),
        Verb::Database(args) => cli::run(&args.common, cli::database::run(&args)),
        Verb::Kv(args) => cli::run(&args.common, cli::kv::run(&args)),
        Verb::Corfu(args) => cli::run(&args.common, cli::corfu::run(&args)),
        Verb::Scalog(args) => cli::run(&args.common, cli::scalog::run(&args)),
        Verb::Table(args) => cli::run(&args.common, cli::tables::run(&args)),
        Verb::ZooKeeper(args) => cli::run(&args.common, cli::zookeeper::run(&args)),
        Verb::Check(args) => cli::run(&args.common, cli::check::run(&args)),
        Verb::Bench(args) => cli::run(&args.common, cli::bench::run(&args)),
        Verb::Completions(args) => {
            cli::completions::run(&args, &mut <Atoll as clap::CommandFactory>::command())
        }
    }
}

#[cfg(test)]
mod main_test;
