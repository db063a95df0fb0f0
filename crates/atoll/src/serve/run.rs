//! Starts the node, waits for signals, drains, stops.

use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tracing::{error, info};
use tracing_subscriber::EnvFilter;

use super::ServeArgs;
use super::config::Config;

/// Why the node is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// SIGTERM or Ctrl-C: hand over first.
    Drain,
    /// The supervisor is gone or said so: the others stop, too.
    Stop,
}

/// Runs the node until it is told to stop.
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

/// RUST_LOG if it is there, else `level`. Not in colour: the output goes to files as often as to terminals.
fn log_to_stderr(level: &str) -> Result<(), tracing_subscriber::filter::ParseError> {
    let filter = match std::env::var("RUST_LOG") {
        Ok(wanted) if !wanted.is_empty() => EnvFilter::try_new(wanted)?,
        _ => EnvFilter::try_new(level)?,
    };
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(())
}

async fn serve(config: Config, exit_with_stdin: bool) -> ExitCode {
    let drain_at_most = Duration::from_millis(config.timings.drain_at_most_ms);
    // Before the node is there: a signal that comes while it starts must not be lost.
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        error!("signals cannot be received");
        return ExitCode::FAILURE;
    };
    let mut supervisor = supervisor_gone(exit_with_stdin);
    let mut asked = async || {
        tokio::select! {
            _ = terminate.recv() => Asked::Drain,
            _ = interrupt.recv() => Asked::Drain,
            _ = &mut supervisor => Asked::Stop,
        }
    };

    let node = match atoll_node::start(config.into()) {
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
                node.drain_then_shutdown(drain_at_most).await;
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

/// Ready when the standard input closes; never if nobody asked for that.
fn supervisor_gone(watch: bool) -> tokio::sync::oneshot::Receiver<()> {
    let (gone, told) = tokio::sync::oneshot::channel();
    let wait = move || {
        if watch {
            // Whatever comes is dropped; an error is an end as well.
            let mut stdin = std::io::stdin().lock();
            let mut drop_here = [0; 256];
            while matches!(stdin.read(&mut drop_here), Ok(n) if n > 0) {}
        } else {
            loop {
                std::thread::park();
            }
        }
        let _ = gone.send(());
    };
    std::thread::Builder::new().name("supervisor".into()).spawn(wait).ok();
    told
}
