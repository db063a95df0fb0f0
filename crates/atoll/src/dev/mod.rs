//! `atoll dev`: a cluster on this machine, with one child process per node, for experiments, drills and tests.
//!
//! | file | what it is |
//! | --- | --- |
//! | `plan.rs` | which nodes, ports, roles and folders; writes each node's configuration once and keeps it |
//! | `child.rs` | the life of one child: starts, watches and restarts it |
//! | `state.rs` | `DIR/dev.json`: the nodes, for programs; replaced by rename |
//! | `ready.rs` | waits until the cluster answers |
//! | `screen.rs` | the output for the operator |
//!
//! The children end with this process, however it ends: the standard input of each is a pipe, and the child stops when it closes.

mod child;
#[cfg(test)]
mod child_test;
mod plan;
#[cfg(test)]
mod plan_test;
mod ready;
mod screen;
mod state;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::serve::StatePlace;
use child::{Event, How, Stop};
use plan::{Plan, PlanError, Wish};
use state::DevState;

/// Arguments of `atoll dev`.
#[derive(Clone, Debug, clap::Args)]
pub struct DevArgs {
    /// How many nodes, each with every role [default: 3]
    #[arg(long, value_name = "N", conflicts_with_all = ["log_nodes", "db_nodes"], value_parser = clap::value_parser!(u32).range(1..=30))]
    pub nodes: Option<u32>,
    /// How many nodes store entries and do nothing else; use it with --db-nodes to keep the log on separate nodes
    #[arg(long, value_name = "N", requires = "db_nodes", value_parser = clap::value_parser!(u32).range(1..=15))]
    pub log_nodes: Option<u32>,
    /// How many nodes order appends, hold the registers and run the database, and store no entries
    #[arg(long, value_name = "M", requires = "log_nodes", value_parser = clap::value_parser!(u32).range(1..=15))]
    pub db_nodes: Option<u32>,
    /// Folder for the nodes' data and dev.json. It is kept, and the next start uses it again
    #[arg(long, value_name = "DIR", default_value = "atoll-dev")]
    pub data: PathBuf,
    /// Do not restart a node that was killed
    #[arg(long)]
    pub no_restart: bool,
    /// Node i serves gRPC at PORT + 10 i + 1, peers at + 2, metrics at + 3, ZooKeeper at + 4 and its admin commands at + 5; 0 picks
    /// free ports [default: 7400, and ZooKeeper at 2180 + i]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(0..=65_000))]
    pub base_port: Option<u16>,
    /// Where the nodes keep the state of the database [default: disk]
    #[arg(long, value_enum, value_name = "WHERE")]
    pub state: Option<StatePlace>,
    /// No sync reaches a disk: shows that a drill of durability can fail
    #[arg(long, hide = true)]
    pub syncs_off: bool,
}

/// Why `atoll dev` failed.
#[derive(Debug, thiserror::Error)]
pub enum DevError {
    /// The nodes cannot be as requested.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A file could not be written, or a process not started.
    #[error("{what}: {error}")]
    Io {
        /// What was attempted.
        what: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A node ended by itself repeatedly before the cluster answered for the first time.
    #[error("node {id} does not stay up: {how}; the end of its log {log}:\n{tail}", log = log.display())]
    DoesNotStart {
        /// The node.
        id: u32,
        /// How it ended.
        how: String,
        /// Its log.
        log: PathBuf,
        /// The last lines of its log.
        tail: String,
    },
}

/// Returns a function that adds to an I/O error what was attempted.
fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> DevError {
    let what = what.into();
    move |error| DevError::Io { what, error }
}

/// Runs the cluster until Ctrl-C or SIGTERM. All children have ended on return.
pub fn run(args: &DevArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("atoll dev: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(supervise(args)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("atoll dev: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Maximum number of queued events of children. When the queue is full, the watcher of a child waits.
const MAX_EVENTS: usize = 256;
/// If a node ends by itself this often before the cluster has answered, it counts as unable to start.
const GIVE_UP_AFTER: u32 = 3;
/// How often the operator gets a message while the cluster does not answer yet.
const SAY_EVERY: Duration = Duration::from_secs(15);

async fn supervise(args: &DevArgs) -> Result<(), DevError> {
    let wish = Wish {
        nodes: args.nodes,
        apart: args.log_nodes.zip(args.db_nodes),
        base_port: args.base_port,
        state: args.state,
        syncs_off: args.syncs_off,
    };
    let plan = Plan::make(&args.data, wish)?;
    let exe = std::env::current_exe().map_err(io("this program's own path"))?;
    let mut state = DevState::new(&plan);
    state.remove().map_err(io("removing the old dev.json"))?;
    screen::starting(&plan);

    let mut signals = Signals::new().map_err(io("signals"))?;
    let (events, mut happened) = mpsc::channel(MAX_EVENTS);
    let (stop, stopping) = watch::channel(Stop::No);
    let mut children = JoinSet::new();
    for node in &plan.nodes {
        let life = child::Life {
            node: node.clone(),
            exe: exe.clone(),
            restart: !args.no_restart,
            events: events.clone(),
            stop: stopping.clone(),
        };
        children.spawn(life.run());
    }
    drop(events);
    let outcome = watch_over(&plan, &mut state, &mut happened, &mut signals).await;

    screen::ending();
    let _ = stop.send(Stop::Now);
    let ended = async { while children.join_next().await.is_some() {} };
    let drained = async { while happened.recv().await.is_some() {} };
    tokio::select! {
        _ = async { tokio::join!(ended, drained) } => {}
        () = signals.next() => { let _ = stop.send(Stop::Kill); }
    }
    // After the second signal the children are killed, which is too quick to need a limit.
    while children.join_next().await.is_some() {}
    state.remove().map_err(io("removing dev.json"))?;
    outcome
}

/// Waits until a signal arrives, or until a node turns out not to start.
async fn watch_over(
    plan: &Plan,
    state: &mut DevState,
    happened: &mut mpsc::Receiver<Event>,
    signals: &mut Signals,
) -> Result<(), DevError> {
    let mut answered = false;
    let mut own_deaths = std::collections::BTreeMap::<u32, u32>::new();
    let why_not = Cell::default();
    let ready = ready::cluster_answers(plan, &why_not);
    tokio::pin!(ready);
    loop {
        tokio::select! {
            () = &mut ready, if !answered => {
                answered = true;
                // Children may have been restarted meanwhile, so note their process ids first.
                while let Ok(event) = happened.try_recv() {
                    state.note(&event);
                }
                state.write().map_err(io("writing dev.json"))?;
                screen::table(plan, state);
            }
            event = happened.recv() => {
                let Some(event) = event else { return Ok(()) };
                state.note(&event);
                if answered {
                    // Write at once, because readers of the file need the new process id (X24).
                    state.write().map_err(io("writing dev.json"))?;
                    screen::event(&event);
                } else if let Event::Ended { id, how: how @ How::ByItself(_), .. } = &event {
                    let deaths = own_deaths.entry(*id).or_default();
                    *deaths += 1;
                    if *deaths >= GIVE_UP_AFTER {
                        return Err(does_not_start(plan, *id, how));
                    }
                }
            }
            () = signals.next() => return Ok(()),
            () = tokio::time::sleep(SAY_EVERY), if !answered => screen::still_waiting(plan, &why_not.take()),
        }
    }
}

fn does_not_start(plan: &Plan, id: u32, how: &How) -> DevError {
    let log = plan.nodes.iter().find(|n| n.id == id).map(|n| n.log()).unwrap_or_default();
    DevError::DoesNotStart { id, how: how.to_string(), tail: child::log_tail(&log, 12), log }
}

/// Ctrl-C, SIGTERM and the end of the terminal.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Returns `path` as an absolute path, so that it means the same in every working directory.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
