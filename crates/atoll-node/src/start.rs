//! Runs a real node on a thread of its own: opens the data directory, recovers the journal, and opens the sockets and doors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::{Identity, Incarnation, LevelError, NodeId, StorageId};
use atoll_door::metrics::serve_metrics;
use atoll_door::{
    Audit, Authorisation, Certificates, Clients, Door, DoorError, DoorTls, DoorTlsError, DoorTlsFiles,
    DoorUp, Gate, Limits, ListenError, Listeners, serve_grpc, services_of, stopped,
};
use atoll_log::virtual_log::Options as LogOptions;
use atoll_net::{Net, NetOptions, RefusalCode};
use atoll_storage::{
    CellOptions, CellStore, DiskError, Identity as Marker, IdentityError, Journal, JournalOptions, RealDisk,
    RecoverCellsError, RecoverError, Recovered, RescueNote, RescueNoteError, Syncs,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::assembly::{self, Assembly, AssemblyError, NodeParts, Options, Parts};
use crate::backend::NodeBackend;
use crate::config::NodeConfig;
use crate::database;
use crate::descriptors::{self, Descriptors, TooFewDescriptors};
use crate::door_threads::{DoorThreads, TaskError};
use crate::door_view::DoorView;
use crate::figures::NodeFigures;
use crate::host::{HostHandle, HostOptions, NodeHost};
use crate::operations::NodeOperations;

/// Why a node did not start. The data that it held before is intact.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory is in use, or unusable.
    #[error("data directory: {0}")]
    Disk(#[from] DiskError),
    /// The data directory does not belong to this node.
    #[error(transparent)]
    Marker(#[from] IdentityError),
    /// It was made by a rescue, and the note of that cannot be read.
    #[error(transparent)]
    Rescue(#[from] RescueNoteError),
    /// The journal is damaged, or another version wrote it.
    #[error("journal: {0}")]
    Journal(#[from] RecoverError<atoll_core::RecoverError>),
    /// The cells could not be recovered.
    #[error(transparent)]
    Cells(#[from] RecoverCellsError<atoll_core::RecoverError>),
    /// The listener for other nodes could not be opened.
    #[error("listening for other nodes: {0}")]
    Net(#[from] Box<atoll_net::StartError>),
    /// The listener for gRPC or for metrics could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A door could not be opened.
    #[error(transparent)]
    Door(#[from] DoorError),
    /// The TLS files of the gRPC door cannot be used.
    #[error("TLS of the gRPC door: {0}")]
    Tls(#[from] DoorTlsError),
    /// The audit log cannot be opened.
    #[error("the audit log: {0}")]
    Audit(std::io::Error),
    /// The process may open too few files.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The database could not be opened.
    #[error("the database: {0}")]
    Database(#[from] Box<atoll_db::OpenError>),
    /// The protocols of this program do not fit together.
    #[error("the protocols: {0}")]
    Assembly(#[from] AssemblyError),
    /// A thread or the runtime could not be started.
    #[error("starting threads: {0}")]
    Threads(std::io::Error),
    /// The node's thread panicked during the start. The panic message is on stderr.
    #[error("the node's thread panicked while it started")]
    Panicked,
}

/// Why a running node ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndedBecause {
    /// A peer reports that another living node has this node's id.
    #[error("node {by} reports that another live node has id {id} ({words}); give this node its own id")]
    DuplicateId {
        /// This node's id.
        id: NodeId,
        /// The peer that refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// The cluster is at a feature level that this program cannot read, or no longer writes.
    #[error("{0}")]
    Level(LevelError),
    /// A peer reports that this program does not support the feature level of the cluster.
    #[error("node {by} refuses this one: {words}")]
    TooOld {
        /// The peer that refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// A peer has seen a newer state of this data directory, so the directory was put back; or the cluster was rescued without it.
    #[error("node {by} refuses this one: {words}")]
    PutBack {
        /// The peer that refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// An invariant was broken. The message is on stderr.
    #[error("an invariant was broken; see the message above")]
    Panicked,
    /// The node was told to stop.
    #[error("stopped")]
    Stopped,
}

impl<E> From<TaskError<E>> for StartError
where
    StartError: From<E>,
{
    fn from(error: TaskError<E>) -> Self {
        match error {
            TaskError::Failed(error) => error.into(),
            TaskError::Panicked => StartError::Panicked,
        }
    }
}

enum Command {
    Stop,
    DrainThenStop,
}

/// A node that runs on its own thread. Dropping this handle tells the node to stop, but does not wait for it.
pub struct RunningNode {
    id: NodeId,
    commands: mpsc::UnboundedSender<Command>,
    ended: watch::Receiver<Option<EndedBecause>>,
    parts: NodeParts,
    host: HostHandle,
}

impl RunningNode {
    /// Returns the id of the node.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the logs of the node, for a program that embeds it.
    pub fn logs(&self) -> &crate::logs::Logs {
        &self.parts.logs
    }

    /// Waits until the node has found the registers and is a member. From then on, logs can be created and changed.
    ///
    /// # Errors
    /// The node ended before that.
    pub async fn joined(&self) -> Result<(), EndedBecause> {
        let changed = &self.parts.members.changed;
        loop {
            let seen = changed.count();
            if self.parts.registers.holders().is_some() && self.parts.has_joined() {
                return Ok(());
            }
            tokio::select! {
                _ = changed.after(seen) => {}
                why = self.wait() => return Err(why),
            }
        }
    }

    /// Returns the parts of the node.
    pub fn parts(&self) -> &NodeParts {
        &self.parts
    }

    /// Returns the host of the node, for a program that measures what it does.
    pub fn host(&self) -> &HostHandle {
        &self.host
    }

    /// Waits until the node has ended, and returns why.
    pub async fn wait(&self) -> EndedBecause {
        let mut ended = self.ended.clone();
        loop {
            if let Some(why) = ended.borrow_and_update().clone() {
                return why;
            }
            if ended.changed().await.is_err() {
                return EndedBecause::Panicked;
            }
        }
    }

    /// Stops the node without moving its duties. Answers requests in progress, closes the journal cleanly, and returns when the node has
    /// ended.
    pub async fn shutdown(&self) {
        let _ = self.commands.send(Command::Stop);
        self.wait().await;
    }

    /// Moves the node's sequencers to other nodes, as far as possible within [`NodeConfig::drain_at_most`], and then stops the node.
    /// Returns when the node has ended.
    pub async fn drain_then_shutdown(&self) {
        let _ = self.commands.send(Command::DrainThenStop);
        self.wait().await;
    }
}

/// Starts a node without doors. On return, it has recovered its journal. Finding the other nodes may take longer.
pub fn start(config: NodeConfig) -> Result<RunningNode, StartError> {
    start_with(config, Vec::new())
}

/// Like [`start`], but with these doors, which are open on return. If they have applications, the node also opens the database. Every node
/// of a cluster that keeps a replica needs the same applications.
pub fn start_with(config: NodeConfig, doors: Vec<Box<dyn Door>>) -> Result<RunningNode, StartError> {
    let (commands, orders) = mpsc::unbounded_channel();
    let (started, starts) = std::sync::mpsc::channel();
    let (end, ended) = watch::channel(None);
    let id = config.node;
    thread::Builder::new()
        .name("node".into())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(e) => return drop(started.send(Err(StartError::Threads(e)))),
            };
            match runtime.block_on(bring_up(config, doors)) {
                Ok(up) => {
                    let _ = started.send(Ok((up.parts.clone(), up.handle.clone())));
                    end.send_replace(Some(runtime.block_on(run(up, orders))));
                }
                Err(error) => {
                    // The tasks of the runtime hold parts of the node. Once they are gone, the data directory can be opened again.
                    drop(runtime);
                    let _ = started.send(Err(error));
                }
            }
        })
        .map_err(StartError::Threads)?;
    let (parts, host) = starts.recv().map_err(|_| StartError::Panicked)??;
    Ok(RunningNode { id, commands, ended, parts, host })
}

/// The address of a free port that no other machine reaches.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// A data directory that a node has recovered from.
pub(crate) struct Opened {
    pub(crate) assembly: Assembly,
    pub(crate) journal: Journal,
    pub(crate) cells: CellStore,
    pub(crate) identity: Identity,
    /// The cluster that this one was rescued from.
    rescued_from: Option<String>,
}

/// Returns 64 random bits. The keys of `RandomState` are the only random numbers that the standard library offers on every platform.
fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Opens the data directory, and recovers a node from it.
pub(crate) fn open(config: &NodeConfig) -> Result<Opened, StartError> {
    let syncs = if config.syncs_off { Syncs::OffForTests } else { Syncs::Real };
    let disk = Arc::new(RealDisk::open(&config.data, syncs)?);
    match disk.use_direct_writes() {
        Ok(()) => tracing::info!("no thread waits for small writes to the journal (io_uring)"),
        Err(why) => tracing::info!(%why, "a thread waits for each write to the journal: no io_uring"),
    }
    let new_storage = || StorageId((u128::from(random_bits()) << 64) | u128::from(random_bits()));
    let (marker, new) = Marker::open(&*disk, &config.cluster, config.node, new_storage)?;
    if new {
        tracing::info!(storage = %marker.storage, "a new data directory: this node has a new identity");
    }
    let rescued = RescueNote::read(&*disk)?;
    if let Some(RescueNote { from, operator, reason, time_ms, .. }) = &rescued {
        tracing::info!(%from, %operator, %reason, time_ms, "this data directory was rescued from a lost cluster");
    }
    let identity = Identity {
        node: config.node,
        incarnation: Incarnation(random_bits()),
        storage: marker.storage,
        log: config.roles.log,
        sequencer: config.roles.sequencer,
        meta: config.roles.meta,
        draining: false,
        failed: false,
    };
    let log =
        LogOptions { most_logs: config.most_logs, idle_logs: config.idle_logs, ..LogOptions::default() };
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut assembly = assembly::assemble(Parts {
        identity: identity.clone(),
        levels: config.levels,
        seed: random_bits(),
        started_ms: u64::try_from(since_epoch.as_millis()).unwrap_or(0),
        first_table: config.first_table(),
        row: assembly::row(
            &identity,
            config.peer.clone(),
            config.grpc.clone(),
            config.metrics.clone().unwrap_or_default(),
        ),
        meta_founders: config.meta_founders(),
        options: Options {
            timings: config.timings.clone(),
            log,
            full_shard_records: config.full_shard_records,
            places: config.places.clone(),
            ..Options::default()
        },
    })?;
    assembly.node.members.say_wall(Arc::new(crate::database::wall_clock_ms));
    let core = &mut assembly.core;
    let visit = &mut |found| match found {
        Recovered::Checkpoint(checkpoint) => core.recover_checkpoint(checkpoint),
        Recovered::Record(stored) => core.recover_record(stored),
    };
    let options =
        JournalOptions { generation_secret: Some(random_bits()), ..JournalOptions::new(marker.storage) };
    let (journal, last) = Journal::recover(disk.clone(), options, visit)?;
    let visit = &mut |cell| core.recover_cell(cell);
    let cells = CellStore::recover(disk, CellOptions::new(marker.storage), visit)?;
    core.recover_cells_done(cells.last());
    core.recover_done(last);
    Ok(Opened { assembly, journal, cells, identity, rescued_from: rescued.map(|note| note.from) })
}

fn door_tls(config: &NodeConfig) -> Result<Option<DoorTls>, StartError> {
    let Some(files) = &config.tls else { return Ok(None) };
    let its = files.clone();
    let files = DoorTlsFiles { certificate: its.cert, key: its.key, authority: its.ca, revoked: its.revoked };
    let clients = match config.authorisation.certificates_optional {
        true => Certificates::Optional,
        false => Certificates::Needed,
    };
    Ok(Some(DoorTls::from_files(files, clients)?))
}

/// Returns the gate of the gRPC listener. Whoever can reach it from another machine needs grants, unless the operator has opened it to
/// other machines without TLS.
fn gate(config: &NodeConfig, grpc: &TcpListener, audit: Audit) -> Arc<Gate> {
    let is_local = grpc.local_addr().is_ok_and(|at| at.ip().to_canonical().is_loopback());
    let is_exposed = config.tls.is_some() || (!is_local && !config.plaintext_beyond_loopback);
    let Authorisation { required, operators, .. } = &config.authorisation;
    let required = required.unwrap_or(is_exposed);
    if !required && !is_local {
        tracing::warn!(
            "whoever reaches the gRPC listener may do everything: it is open to other machines, and requires no grants"
        );
    }
    Gate::new(required, operators.clone(), audit)
}

/// The listeners that all doors share.
struct SharedListeners {
    grpc: TcpListener,
    tls: Option<DoorTls>,
    connections: usize,
    metrics: Option<TcpListener>,
}

impl SharedListeners {
    /// Opens the listeners. In `config`, a free port becomes the one that the system chose.
    async fn open(
        config: &mut NodeConfig,
        threads: &DoorThreads,
        listeners: Listeners,
        connections: usize,
    ) -> Result<Self, StartError> {
        let open = |door, address: String, clients| {
            threads.run(async move { listeners.open(door, &address, clients).await })
        };
        let clients = if config.tls.is_some() { Clients::Certified } else { Clients::Anybody };
        let grpc = open("gRPC", config.grpc.clone(), clients).await?;
        config.grpc = announced_address(&config.grpc, &grpc);
        let metrics = match &config.metrics {
            Some(address) => Some(open("metrics", address.clone(), Clients::Anybody).await?),
            None => None,
        };
        config.metrics = config
            .metrics
            .take()
            .zip(metrics.as_ref())
            .map(|(at, listener)| announced_address(&at, listener));
        Ok(SharedListeners { grpc, tls: door_tls(config)?, connections, metrics })
    }

    /// Serves gRPC and metrics until the node is stopping.
    fn serve(
        self,
        threads: &DoorThreads,
        handle: &HostHandle,
        parts: &NodeParts,
        doors: &mut [Box<dyn Door>],
        gate: Arc<Gate>,
        stopping: &watch::Receiver<bool>,
    ) -> Vec<tokio::task::JoinHandle<()>> {
        let SharedListeners { grpc, tls, connections, metrics } = self;
        let operations = Arc::new(NodeOperations::new(parts.clone()));
        let (env, logs, changes) = (parts.env.clone(), parts.logs.clone(), parts.changes.clone());
        let backend = NodeBackend::new(env, logs, parts.places.clone(), changes, operations)
            .with_keyspaces(parts.keyspaces.clone())
            .with_database(parts.database.clone())
            .with_backups(parts.backups.clone())
            .with_policies(parts.log_policies.clone());
        let backend = Arc::new(backend);
        let services = services_of(doors, backend, Limits::default().with_connections(connections), gate);
        let figures = doors.iter().filter_map(|door| door.figures()).collect();
        let figures = NodeFigures::start(handle.clone(), parts.clone(), figures);
        let stop = stopped(stopping.clone());
        let mut tasks = vec![threads.spawn(async move {
            if let Err(error) = serve_grpc(grpc, services, tls, stop).await {
                tracing::error!(%error, "the gRPC door ended");
            }
        })];
        if let Some(listener) = metrics {
            tasks.push(threads.spawn(serve_metrics(listener, figures, stopped(stopping.clone()))));
        }
        tasks
    }
}

/// A node that is up.
pub(crate) struct Up {
    host: NodeHost,
    handle: HostHandle,
    pub(crate) parts: NodeParts,
    stop_doors: watch::Sender<bool>,
    doors: Vec<tokio::task::JoinHandle<()>>,
    /// Ends after the doors.
    threads: DoorThreads,
    drain_at_most: Duration,
}

impl Up {
    /// Stops the doors, then the database, then the host. On return, nothing uses the data directory. Threads of the doors end by
    /// themselves.
    pub(crate) async fn stop(self) {
        self.stop_doors.send_replace(true);
        for door in self.doors {
            let _ = door.await;
        }
        database::close(&self.parts).await;
        self.host.shutdown().await;
    }
}

/// Returns the address of a door that is announced to others: the configured one, except that port 0 is replaced by the port that the
/// system chose.
fn announced_address(configured: &str, door: &TcpListener) -> String {
    match door.local_addr() {
        Ok(real) if configured.ends_with(":0") => real.to_string(),
        _ => configured.to_owned(),
    }
}

/// Starts a node on the current runtime, whose thread becomes the node thread.
pub(crate) async fn bring_up(
    mut config: NodeConfig,
    mut doors: Vec<Box<dyn Door>>,
) -> Result<Up, StartError> {
    let listening = doors.iter().filter(|door| door.has_listeners()).count();
    let plan = descriptors::plan(descriptors::raise_limit(), listening)?;
    let listeners = Listeners { plaintext_beyond_loopback: config.plaintext_beyond_loopback };
    let threads = DoorThreads::start(config.door_threads).map_err(StartError::Threads)?;
    let shared = SharedListeners::open(&mut config, &threads, listeners, plan.grpc).await?;
    let Opened { assembly, journal, cells, identity, rescued_from } = open(&config)?;
    // The data directory is locked now.
    let audit = Audit::open(&config.data).map_err(StartError::Audit)?;
    let mut options = NetOptions::new(
        identity.node,
        identity.incarnation,
        identity.storage,
        config.cluster.clone(),
        config.peer.clone(),
    );
    options.levels = assembly.node.env.levels().clone();
    options.witness = assembly.node.env.witness().clone();
    options.rescued_from = rescued_from;
    options.tls = config.tls.clone();
    options.allow_plaintext_beyond_loopback = config.plaintext_beyond_loopback;
    let (net, events) = Net::start(options).await.map_err(Box::new)?;
    let parts = assembly.node;
    let host = NodeHost::start(assembly.core, journal, cells, net.clone(), events, HostOptions::default())
        .map_err(StartError::Threads)?;
    let handle = host.handle();
    tokio::spawn(follow_peers(parts.clone(), net));
    parts.start();

    let (stop_doors, stopping) = watch::channel(false);
    let gate = gate(&config, &shared.grpc, audit);
    let tasks = shared.serve(&threads, &handle, &parts, &mut doors, gate, &stopping);
    let drain_at_most = config.drain_at_most;
    let mut up = Up { host, handle, parts, stop_doors, doors: tasks, threads, drain_at_most };
    let rest = Rest { config, listeners, plan, stopping };
    if let Err(error) = rest.open(&mut up, doors).await {
        up.stop().await;
        return Err(error);
    }
    Ok(up)
}

/// What is needed to open the database and the doors.
struct Rest {
    config: NodeConfig,
    listeners: Listeners,
    plan: Descriptors,
    stopping: watch::Receiver<bool>,
}

impl Rest {
    /// Opens the database, and then the doors. After an error, some of them may be open.
    async fn open(self, up: &mut Up, mut doors: Vec<Box<dyn Door>>) -> Result<(), StartError> {
        let Rest { config, listeners, plan, stopping } = self;
        let parts = &up.parts;
        let database = database::open(&config, parts, &mut doors).map_err(Box::new)?;
        let alarm = parts.database.space_alarm.clone();
        if let Some(database) = &database {
            tokio::spawn(database::watch(database.clone()));
            let log = parts.logs.open(database::LOG).expect("a name that logs may have");
            parts.backups.begin(
                config.cluster.clone(),
                database.clone(),
                log,
                Arc::new(database::wall_clock_ms),
            );
            tokio::spawn(alarm.clone().watch(config.data, config.least_free_bytes));
        }
        let node = DoorView::new(parts.members.clone(), parts.guardian.clone(), alarm, config.peer);
        let connections = plan.of_door;
        let open = DoorUp { database, node: Arc::new(node), listeners, connections, stopping };
        for door in doors {
            let name = door.name();
            let serving = up.threads.run(door.open(open.clone())).await?;
            up.doors.push(up.threads.spawn(serving));
            tracing::debug!(door = name, "open");
        }
        Ok(())
    }
}

/// Updates the network's list of peers whenever the table of members changes.
async fn follow_peers(parts: NodeParts, net: Net) {
    let mut last = None;
    let mut seen = 0;
    loop {
        let table = parts.members.table();
        let peers: BTreeMap<NodeId, String> =
            table.nodes.iter().map(|(node, m)| (*node, m.peer.clone())).collect();
        if last.as_ref() != Some(&peers) {
            net.set_peers(peers.clone());
            last = Some(peers);
        }
        seen = parts.members.changed.after(seen).await;
    }
}

/// Runs a node that is up until it must stop, and stops it. Returns why.
async fn run(up: Up, mut orders: mpsc::UnboundedReceiver<Command>) -> EndedBecause {
    let why = tokio::select! {
        order = orders.recv() => {
            if matches!(order, Some(Command::DrainThenStop)) {
                tokio::select! {
                    () = drain(&up.parts, up.drain_at_most) => {}
                    _ = stop_order(&mut orders) => {}
                }
            }
            EndedBecause::Stopped
        }
        (by, refusal) = up.handle.turned_away() => {
            let (id, words) = (up.parts.env.node(), refusal.to_string());
            match refusal.code {
                RefusalCode::Level => EndedBecause::TooOld { by, words },
                RefusalCode::PutBack => EndedBecause::PutBack { by, words },
                _ => EndedBecause::DuplicateId { id, by, words },
            }
        }
        error = up.parts.refused() => EndedBecause::Level(error),
        _ = up.handle.ended() => EndedBecause::Panicked,
    };
    up.stop().await;
    why
}

async fn stop_order(orders: &mut mpsc::UnboundedReceiver<Command>) {
    while let Some(order) = orders.recv().await {
        if matches!(order, Command::Stop) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Announces that this node is leaving, and waits for at most `at_most` until no known log has its sequencer on this node. The first node
/// that notices, possibly this one, extends those logs. Returns at once if no other node is alive.
async fn drain(parts: &NodeParts, at_most: Duration) {
    parts.members.leave();
    let others = parts.members.peers().iter().any(|n| parts.members.is_alive(*n));
    if !others {
        return;
    }
    let me = parts.env.node();
    let moved = async {
        loop {
            let mine = parts.guardian.sequenced_by(me);
            if mine.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    if tokio::time::timeout(at_most, moved).await.is_err() {
        tracing::warn!("not all sequencers were moved in time; clients wait until the others notice");
    }
}
