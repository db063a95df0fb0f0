//! Many clients of ZooKeeper at once, against any servers that speak its protocol: tens of thousands of sessions, millions of watches, a
//! parent with a million children, and a server that dies. Measures what the clients see, and what the servers take.
//!
//! | file | what it is |
//! | --- | --- |
//! | `wire.rs` | the part of the wire protocol that the load needs |
//! | `client.rs` | a session: a connection, requests in order, events |
//! | `crowd.rs` | many sessions: opened, kept alive, given watches, moved from a dead server to the others |
//! | `holder.rs` | processes that share a crowd, because one may have too few files open |
//! | `parts.rs` | what is measured |
//! | `steady.rs` | writes at a fixed rate, and how long they take in each second |
//! | `processes.rs` | what the servers take of the machine |

mod client;
mod crowd;
mod holder;
mod parts;
mod processes;
mod steady;
mod wire;

use std::io;
use std::time::Duration;

/// Options of `fleet`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The servers: HOST:PORT,...
    #[arg(long, value_delimiter = ',', required = true)]
    addresses: Vec<String>,
    /// Their processes, in the same order: processor time and memory are measured there, and the last part kills the first one
    #[arg(long, value_delimiter = ',', required = true)]
    pids: Vec<u32>,
    /// The name of the servers in the lines
    #[arg(long, default_value = "atoll")]
    system: String,
    /// Only these parts
    #[arg(long, value_delimiter = ',', value_parser = parts::NAMES)]
    only: Vec<String>,
    /// How many sessions the crowd has
    #[arg(long, default_value_t = 20_000)]
    sessions: usize,
    /// How many nodes each of them watches
    #[arg(long, default_value_t = 100)]
    watches: usize,
    /// How many sessions move from the killed server
    #[arg(long, default_value_t = 10_000)]
    moving: usize,
    /// How many children the large parent has
    #[arg(long, default_value_t = 1_000_000)]
    children: usize,
    /// How many seconds each measurement of a rate lasts
    #[arg(long, default_value_t = 10)]
    seconds: u64,
}

impl Args {
    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == part)
    }

    fn during(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

pub use steady::SteadyArgs;

/// Writes at a fixed rate. Returns whether all writes were done.
pub fn run_steady(args: SteadyArgs) -> bool {
    finishes(steady::run(args))
}

/// Holds sessions for the process that has started this one. Returns whether that ended well.
pub fn run_holder() -> bool {
    finishes(holder::obey())
}

/// Measures. Returns whether it could be measured.
pub fn run(args: &Args) -> bool {
    if args.addresses.len() != args.pids.len() {
        eprintln!(
            "--addresses names {} servers, and --pids {}; give one process for each",
            args.addresses.len(),
            args.pids.len()
        );
        return false;
    }
    finishes(parts::run(args))
}

fn finishes(what: impl Future<Output = io::Result<()>>) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.and_then(|runtime| runtime.block_on(what));
    done.map_err(|error| eprintln!("{}: {error}", hint(&error))).is_ok()
}

/// Returns what failed, or what to do.
fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(24) => {
            "too few files may be open at once; raise the limit (ulimit -n) above the number of sessions"
        }
        Some(99) => "too few ports are free for so many connections (net.ipv4.ip_local_port_range)",
        _ => "it could not be measured",
    }
}
