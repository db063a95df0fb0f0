//! Starts the node, waits for signals, drains the node, and stops it.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use atoll_core::testing::next_level;
use atoll_core::{Level, LevelRange, NodeId};
use atoll_doors::zookeeper;
use atoll_net::TlsFiles;
use atoll_node::config::{Founder, NodeConfig};
use atoll_node::settings::Timings;
use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use super::ServeArgs;
use super::config::{Config, Peer, Roles, Tls};

/// How the node must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// After SIGTERM or Ctrl-C: hand over duties first.
    Drain,
    /// The supervisor is gone or requested it. The other nodes stop as well.
    Stop,
}

/// Runs the node until it must stop.
pub fn run(config: Config, args: &ServeArgs) -> ExitCode {
    if let Err(error) = log_to_stderr(&args.log_level) {
        eprintln!("atoll serve: --log-level or RUST_LOG: {error}");
        return ExitCode::from(super::BAD_CONFIG);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!("no runtime for signals: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(serve(config, args.exit_with_stdin))
}

/// Sets up the log on stderr, with the filter in RUST_LOG if it is set, otherwise `level`. Without colour, because the output often goes
/// to files.
pub(crate) fn log_to_stderr(level: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.is_empty() => EnvFilter::try_new(wanted)?,
        _ => EnvFilter::try_new(level)?,
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(())
}

/// Converts the files of `[tls]` to the type of the network.
pub(super) fn tls_files(tls: &Tls) -> TlsFiles {
    let Tls { ca, cert, key, revoked, server_name } = tls.clone();
    TlsFiles { ca, cert, key, revoked, server_name }
}

/// Returns the feature levels that this program reads. A test build reads one more if it finds `ATOLL_NEXT_LEVEL` in its environment: in
/// the drill of upgrades, it stands for a later release.
fn levels() -> LevelRange {
    if !next_level(Level::NEXT) || std::env::var_os("ATOLL_NEXT_LEVEL").is_none() {
        return LevelRange::OURS;
    }
    let ahead = LevelRange { highest: Level::NEXT, ..LevelRange::OURS };
    tracing::warn!("ATOLL_NEXT_LEVEL: this test build reads feature levels {ahead}");
    ahead
}

/// Converts the configuration to the type of the node.
pub(crate) fn node_config(config: Config) -> NodeConfig {
    let roles = |r: Roles| atoll_node::config::Roles { log: r.log, meta: r.meta, sequencer: r.sequencer };
    let ms = Duration::from_millis;
    let t = &config.timings;
    let founder = |p: Peer| Founder { peer: p.address, grpc: p.grpc, roles: roles(p.roles) };
    let mut node = NodeConfig {
        node: NodeId(config.id),
        cluster: config.cluster,
        data: config.data,
        roles: roles(config.roles),
        levels: levels(),
        grpc: config.grpc,
        peer: config.peer,
        metrics: config.metrics,
        founders: config.peers.into_iter().map(|(id, peer)| (NodeId(id), founder(peer))).collect(),
        tls: config.tls.as_ref().map(tls_files),
        plaintext_beyond_loopback: config.plaintext_beyond_loopback,
        authorisation: config.authorisation,
        timings: Timings {
            heartbeat_every: ms(t.heartbeat_every_ms),
            silent_after: ms(t.silent_after_ms),
            link_down_for: ms(t.link_down_for_ms),
            replace_server_after: ms(t.replace_server_after_ms),
            disk_hangs_after: ms(t.disk_hangs_after_ms),
            rank_delay: ms(t.rank_delay_ms),
            patrol_every: ms(t.patrol_every_ms),
        },
        drain_at_most: ms(t.drain_at_most_ms),
        // A node that only stores entries keeps no replica.
        replica: config.roles.sequencer || config.roles.meta,
        database: match config.state_in_memory {
            true => atoll_node::DatabaseState::InMemory,
            false => atoll_node::DatabaseState::OnDisk { cache_bytes: config.cache_bytes },
        },
        database_options: atoll_node::DatabaseOptions {
            keep_entries: config.keep_entries,
            ..Default::default()
        },
        least_free_bytes: config.least_free_bytes,
        most_logs: usize::try_from(config.most_logs).unwrap_or(usize::MAX),
        idle_logs: usize::try_from(config.idle_logs).unwrap_or(usize::MAX),
        full_shard_records: config.full_shard_records,
        places: config.registers,
        door_threads: usize::try_from(config.door_threads).unwrap_or(0),
        syncs_off: config.syncs_off,
    };
    node.database_options.clock_ahead_at_most = config.clock_ahead_at_most;
    node
}

/// Returns the doors of a node.
pub(crate) fn doors(config: &Config) -> Vec<Box<dyn atoll_door::Door>> {
    atoll_doors::all(atoll_doors::Settings {
        zookeeper: zookeeper::Settings {
            address: config.zookeeper.clone(),
            tls: config.zookeeper_tls.clone(),
            admin: config.zookeeper_admin.clone(),
            options: zookeeper::Options {
                data_folder: Some(config.data.clone()),
                ..config.zookeeper_options.clone()
            },
        },
    })
}

async fn serve(config: Config, exit_with_stdin: bool) -> ExitCode {
    // Install the handlers before the node starts, so that a signal during the start is not lost.
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        error!("signals cannot be received");
        return ExitCode::FAILURE;
    };
    let supervisor = supervisor_gone(exit_with_stdin);
    tokio::pin!(supervisor);
    let mut gone = false;
    let mut asked = async || {
        tokio::select! {
            _ = terminate.recv() => Asked::Drain,
            _ = interrupt.recv() => Asked::Drain,
            () = &mut supervisor, if !gone => {
                gone = true;
                Asked::Stop
            }
        }
    };

    let doors = doors(&config);
    let node = match atoll_node::start_with(node_config(config), doors) {
        Ok(node) => node,
        Err(error) => {
            error!("{error}");
            return ExitCode::FAILURE;
        }
    };
    info!(id = %node.id(), "ready");
    let first = tokio::select! {
        ended = node.wait() => {
            error!("the node ended: {ended}");
            return ExitCode::FAILURE;
        }
        asked = asked() => asked,
    };
    let stopped = async {
        match first {
            Asked::Drain => {
                info!("draining, then stopping; a second signal stops at once");
                node.drain_then_shutdown().await;
            }
            Asked::Stop => node.shutdown().await,
        }
    };
    tokio::select! {
        () = stopped => {
            info!("stopped");
            ExitCode::SUCCESS
        }
        _ = asked() => {
            info!("stopped at once");
            ExitCode::FAILURE
        }
    }
}

/// Completes when the standard input closes; never if `watch` is false.
async fn supervisor_gone(watch: bool) {
    let (gone, told) = tokio::sync::oneshot::channel();
    let wait = move || {
        // Input is discarded. An error counts as the end.
        let mut stdin = std::io::stdin().lock();
        let mut drop_here = [0; 256];
        while matches!(stdin.read(&mut drop_here), Ok(n) if n > 0) {}
        let _ = gone.send(());
    };
    // This needs a thread of its own, because a read of the standard input cannot be cancelled.
    if watch && std::thread::Builder::new().name("supervisor".into()).spawn(wait).is_ok() {
        let _ = told.await;
    } else {
        std::future::pending::<()>().await;
    }
}
