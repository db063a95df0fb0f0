//! The host that drives a [`NodeCore`] on real sockets and a real disk. The other host is the simulator. The simulator does not cover this
//! code, so it makes no decisions: it passes events to the core, and carries out the core's outputs.
//!
//! | file | thread | what it does |
//! | --- | --- | --- |
//! | `driver.rs` | node thread | delivers a batch of events, runs one turn, carries out the outputs; waits only for a quick disk
//! (`journal.rs`) |
//! | `journal.rs` | journal thread, node thread | writes and syncs one batch at a time; handles checkpoints, freed records and space |
//! | `journal/flight.rs` | node thread, journal thread | a batch that the disk writes while no thread waits for it |
//! | `journal/giving_back.rs` | journal thread | when the next piece of an excess file is given back |
//! | `readers.rs` | reader, preparing and checkpoint threads | read records; prepare journal segments ahead of time; write checkpoints in
//! the background |
//! | `incoming.rs`, `wake.rs` | | what other threads pass to the node thread, and how they wake it if it sleeps |
//! | `port.rs`, `queue.rs`, `work.rs` | | how the node thread passes work to other threads, and what it passes to the journal thread |
//! | `shared.rs`, `options.rs` | | the state that the threads share; settings |
//! | `stats.rs` | | counters and histograms |
//!
//! The node thread is the thread that runs the tokio runtime on which [`NodeHost::start`] is called. Sockets and doors run on it, too.
//! Waking a sleeping thread costs more than running the protocol (contracts §1), so events are handled in batches, and a thread that is
//! awake is not woken.

mod driver;
mod incoming;
mod journal;
mod options;
mod port;
mod queue;
mod readers;
mod shared;
mod stats;
mod wake;
mod work;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use atoll_core::{BoxFuture, Env, NodeCore, NodeId, Ticket, ticket};
use atoll_net::{Net, NetEvents, Refusal};
use atoll_storage::{CellStore, Journal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use driver::Driver;
use incoming::Incoming;
use journal::SharedWriter;
use shared::{Readers, Shared};
use wake::Inbound;

pub use options::HostOptions;
pub use shared::Ended;
pub use stats::{Histogram, HostStats};

/// The host has ended. The request did not happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node has stopped")]
pub struct HostStopped;

/// A running node: the driver task, the journal thread and the other threads. Dropping it without [`NodeHost::shutdown`] does not stop the
/// node.
pub struct NodeHost {
    handle: HostHandle,
    driver: JoinHandle<()>,
    threads: Vec<thread::JoinHandle<()>>,
    options: HostOptions,
}

/// Access to a running node, for doors and metrics. Clones are cheap.
#[derive(Clone)]
pub struct HostHandle {
    shared: Arc<Shared>,
    env: Env,
    net: Net,
}

impl NodeHost {
    /// Starts to drive `core`, which must be assembled and have recovered from `journal` and `cells`. Runs on the current runtime, whose
    /// thread becomes the node thread.
    ///
    /// # Errors
    /// A thread could not be started. Nothing was written.
    pub fn start(
        core: NodeCore,
        journal: Journal,
        cells: CellStore,
        net: Net,
        events: NetEvents,
        options: HostOptions,
    ) -> std::io::Result<NodeHost> {
        let readers = Arc::new(Readers::new(options.queued_reads));
        let shared = Arc::new(Shared {
            inbound: Inbound::default(),
            stats: stats::Counters::default(),
            failure: Mutex::default(),
            journal_stats: Mutex::new(journal.stats()),
            cell_stats: Mutex::new(cells.stats()),
            turned_away: watch::Sender::new(None),
            ended: watch::Sender::new(None),
            journal: Arc::default(),
            readers,
        });
        let signal = journal.signal();
        let (threads, writer) =
            start_threads(journal, cells, &shared, &options).inspect_err(|_| shared.stop_threads())?;
        let env = core.env();
        let driver = Driver::new(core, net.clone(), events, shared.clone(), writer, signal, &options);
        let driver = tokio::spawn(driver.run());
        let handle = HostHandle { shared, env, net };
        Ok(NodeHost { handle, driver, threads, options })
    }

    /// Returns a handle for doors and metrics.
    pub fn handle(&self) -> HostHandle {
        self.handle.clone()
    }

    /// Stops the node. It handles no further network events, and makes staged records durable and acknowledges them, as far as
    /// [`HostOptions::stop_patience`] permits. Connections close after their queues are sent. The journal is marked, synced and closed. All
    /// threads have ended on return.
    pub async fn shutdown(self) {
        let NodeHost { handle, driver, threads, options } = self;
        let shared = &handle.shared;
        shared.inbound.put(Incoming::Stop);
        let driver_abort = driver.abort_handle();
        if tokio::time::timeout(options.stop_patience, driver).await.is_err() {
            tracing::warn!("the journal did not finish in time; what it has not acknowledged may be lost");
            driver_abort.abort();
        }
        handle.net.shutdown(options.stop_patience).await;
        shared.stop_threads();
        let join = tokio::task::spawn_blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    tracing::error!("a thread of the host panicked");
                }
            }
        });
        let _ = join.await;
        shared.ended.send_if_modified(|e| e.is_none().then(|| *e = Some(Ended::Stopped)).is_some());
    }
}

fn start_threads(
    journal: Journal,
    cells: CellStore,
    shared: &Arc<Shared>,
    options: &HostOptions,
) -> std::io::Result<(Vec<thread::JoinHandle<()>>, SharedWriter)> {
    let named = |name: &str| thread::Builder::new().name(name.into());
    let (jobs, preparing) = readers::preparing(shared.clone(), options.prepare_pause);
    let (checkpoints, checkpointing) = readers::checkpointing(shared.clone(), options.prepare_pause);
    let reader = journal.reader();
    let writer = journal::Writer::new(journal, cells, shared.clone(), jobs, checkpoints, options);
    let writer = Arc::new(Mutex::new(writer));
    let (its, of_all) = (writer.clone(), shared.clone());
    let writing = move || journal::run(&its, &of_all);
    let mut threads = vec![
        named("prepare").spawn(preparing)?,
        named("checkpoint").spawn(checkpointing)?,
        named("journal").spawn(writing)?,
    ];
    for _ in 0..options.reader_threads.max(1) {
        let (reader, shared) = (reader.clone(), shared.clone());
        threads.push(named("reader").spawn(move || readers::read(&reader, &shared))?);
    }
    Ok((threads, writer))
}

impl HostHandle {
    /// Returns the environment of this node: its clock, procedures and calls.
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// Returns the network of this node.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Runs `f` on the node thread, between two turns, for metrics ([`NodeCore::measures`]) and status. `f` must be short.
    pub fn with_core<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut NodeCore) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, HostStopped>> {
        let (done, wait): (_, Ticket<T>) = ticket();
        self.shared.inbound.put(Incoming::Inject(Box::new(move |core| done.complete(f(core)))));
        Box::pin(async move { wait.await.map_err(|_| HostStopped) })
    }

    /// Returns the counters and histograms since the start.
    pub fn stats(&self) -> HostStats {
        self.shared.stats.snapshot()
    }

    /// Returns the lengths of this node's queues by name, for metrics.
    pub fn queues(&self) -> Vec<(&'static str, usize)> {
        let [control, data] = self.net.waiting();
        let sending = self.net.queued().iter().map(|(_, _, bytes)| bytes).sum();
        vec![
            ("reads", self.shared.readers.waiting()),
            ("control_events", control.1),
            ("data_events", data.1),
            ("data_event_bytes", data.2),
            ("send_bytes", sending),
        ]
    }

    /// Returns the statistics of the journal, at most a second old.
    pub fn journal_stats(&self) -> atoll_storage::Stats {
        *self.shared.journal_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns counts of the store of cells, at most a second old.
    pub fn cell_stats(&self) -> atoll_storage::CellStats {
        *self.shared.cell_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the journal is closed, if it is. It stays closed until the node is restarted.
    pub fn journal_failure(&self) -> Option<String> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until a peer refuses this node: another living node has the same id, this program is too old, or the data directory was put
    /// back. The process should then stop and report the refusal.
    pub async fn turned_away(&self) -> (NodeId, Refusal) {
        wait_for(&self.shared.turned_away).await
    }

    /// Waits until the host has ended. After [`Ended::Panicked`], the process should end at once.
    pub async fn ended(&self) -> Ended {
        wait_for(&self.shared.ended).await
    }
}

async fn wait_for<T: Clone>(sender: &watch::Sender<Option<T>>) -> T {
    let mut receiver = sender.subscribe();
    loop {
        if let Some(value) = receiver.borrow_and_update().clone() {
            return value;
        }
        if receiver.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
