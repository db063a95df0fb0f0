//! A node as a real one: data directory, journal, sockets, doors, on a thread of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::{Identity, Incarnation, LevelError, NodeId, StorageId};
use atoll_log::virtual_log::Options as LogOptions;
use atoll_net::{ListenRefused, Net, NetOptions, RefusalCode, check_listener};
use atoll_storage::{
    DiskError, Identity as Marker, IdentityError, Journal, JournalOptions, RealDisk, RecoverError, Recovered,
    Syncs,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::assembly::{self, Assembly, NodeParts, Options, Parts};
use crate::config::NodeConfig;
use crate::database::{self, DatabaseDoor, DatabaseUp};
use crate::descriptors::{self, Descriptors, TooFewDescriptors};
use crate::doors;
use crate::figures::NodeFigures;
use crate::host::{HostHandle, HostOptions, NodeHost};
use crate::operations::NodeOperations;

/// Why a node did not start. Nothing that it holds was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The files of the ZooKeeper door's TLS cannot be used.
    #[error("TLS of the ZooKeeper door: {0}")]
    ZooKeeperTls(#[from] atoll_zookeeper::TlsError),
    /// The data directory is in use, or not usable.
    #[error("data directory: {0}")]
    Disk(#[from] DiskError),
    /// The data directory is not this node's.
    #[error(transparent)]
    Marker(#[from] IdentityError),
    /// The journal is damaged, or of another version.
    #[error("journal: {0}")]
    Journal(#[from] RecoverError<atoll_core::RecoverError>),
    /// The peers' door.
    #[error("the door for other nodes: {0}")]
    Net(#[from] atoll_net::StartError),
    /// Another door.
    #[error("the {door} door at {address}: {error}; is another process listening there?")]
    Door {
        /// "gRPC" or "metrics".
        door: &'static str,
        /// Where.
        address: String,
        /// Why.
        error: std::io::Error,
    },
    /// A door beyond loopback without TLS.
    #[error("the {door} door: {refused}")]
    Exposed {
        /// "gRPC" or "metrics".
        door: &'static str,
        /// Where.
        refused: ListenRefused,
    },
    /// TLS of the gRPC door.
    #[error("TLS of the gRPC door: {path}: {error}")]
    Tls {
        /// Which file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// The same: its contents.
    #[error("TLS of the gRPC door: {0}")]
    TlsContents(#[from] doors::DoorTlsError),
    /// The process may open too few files.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The database.
    #[error("the database: {0}")]
    Database(#[from] atoll_db::OpenError),
    /// What the database holds for ZooKeeper's clients.
    #[error("the state of ZooKeeper's clients: {0}")]
    ZooKeeper(#[from] atoll_zookeeper::ReadError),
    /// Threads or runtime.
    #[error("starting threads: {0}")]
    Threads(std::io::Error),
    /// The node's thread panicked while starting; the panic message is on stderr.
    #[error("the node's thread panicked while it started")]
    Panicked,
}

/// Why a running node ended by itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndedBecause {
    /// Another living node has this node's id: the id, the peer that said so, and its message.
    #[error("another living node has id {id}, says node {by} ({words}); give this one an id of its own")]
    DuplicateId {
        /// This node's id.
        id: NodeId,
        /// Who refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// The cluster is at a feature level that this program does not read, or no longer writes.
    #[error("{0}")]
    Level(LevelError),
    /// A peer says so: which peer, and its message.
    #[error("node {by} refuses this one: {words}")]
    TooOld {
        /// Who refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// A peer has seen this data directory further on than it is now: which peer, and its message.
    #[error("node {by} refuses this one: {words}")]
    PutBack {
        /// Who refused the connection.
        by: NodeId,
        /// Its message.
        words: String,
    },
    /// An invariant was broken; the message is on stderr.
    #[error("a broken invariant; see the message above")]
    Panicked,
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
}

enum Command {
    Stop,
    DrainThenStop,
}

/// A node that runs on its own thread. Dropping it lets the node run on.
pub struct RunningNode {
    id: NodeId,
    commands: mpsc::UnboundedSender<Command>,
    ended: watch::Receiver<Option<EndedBecause>>,
    parts: NodeParts,
}

impl RunningNode {
    /// Its id.
    pub fn id(&self) -> NodeId {
        self.id
    }

    /// Its logs, for a program that has the node in its own process.
    pub fn logs(&self) -> &crate::logs::Logs {
        &self.parts.logs
    }

    /// Ready once the node has found the registers and is a member: logs can be made and changed from here on.
    ///
    /// # Errors
    /// It ended first.
    pub async fn joined(&self) -> Result<(), EndedBecause> {
        let changed = &self.parts.members.changed;
        loop {
            let seen = changed.count();
            if self.parts.registers.get().is_some() && self.parts.has_joined() {
                return Ok(());
            }
            tokio::select! {
                _ = changed.after(seen) => {}
                why = self.wait() => return Err(why),
            }
        }
    }

    /// Its parts.
    pub fn parts(&self) -> &NodeParts {
        &self.parts
    }

    /// Ready when the node has ended.
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

    /// Stops at once: answers what is under way, closes the journal cleanly.
    pub async fn shutdown(&self) {
        let _ = self.commands.send(Command::Stop);
        self.wait().await;
    }

    /// Moves what others wait for to other nodes, as far as possible within the configured time, then stops.
    pub async fn drain_then_shutdown(&self) {
        let _ = self.commands.send(Command::DrainThenStop);
        self.wait().await;
    }
}

/// Starts a node. On return it has recovered and listens; finding the other nodes may take longer.
pub fn start(config: NodeConfig) -> Result<RunningNode, StartError> {
    start_with(config, Vec::new())
}

/// Like [`start`], with doors that serve applications of the database; it is opened if there are any. Every node of a cluster
/// needs the same ones.
pub fn start_with(config: NodeConfig, doors: Vec<Box<dyn DatabaseDoor>>) -> Result<RunningNode, StartError> {
    let (commands, orders) = mpsc::unbounded_channel();
    let (told, tell) = std::sync::mpsc::channel();
    let (end, ended) = watch::channel(None);
    let id = config.node;
    thread::Builder::new()
        .name("node".into())
        .spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(e) => return drop(told.send(Err(StartError::Threads(e)))),
            };
            let why = runtime.block_on(run(config, doors, orders, told));
            end.send_replace(why);
        })
        .map_err(StartError::Threads)?;
    let parts = tell.recv().map_err(|_| StartError::Panicked)??;
    Ok(RunningNode { id, commands, ended, parts })
}

struct Opened {
    assembly: Assembly,
    journal: Journal,
    identity: Identity,
}

/// 64 random bits from the system, through the only generator that every platform's standard library has.
fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn open(config: &NodeConfig) -> Result<Opened, StartError> {
    let syncs = if config.syncs_off { Syncs::OffForTests } else { Syncs::Real };
    let disk = Arc::new(RealDisk::open(&config.data, syncs)?);
    let new_storage = || StorageId((u128::from(random_bits()) << 64) | u128::from(random_bits()));
    let (marker, new) = Marker::open(&*disk, &config.cluster, config.node, new_storage)?;
    if new {
        tracing::info!(storage = %marker.storage, "a new data directory: this node has a new identity");
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
        options: Options { timings: config.timings.clone(), log, ..Options::default() },
    });
    assembly.node.members.say_wall(Arc::new(crate::database::wall_clock_ms));
    let core = &mut assembly.core;
    let visit = &mut |found| match found {
        Recovered::Checkpoint(checkpoint) => core.recover_checkpoint(checkpoint),
        Recovered::Record(stored) => core.recover_record(stored),
    };
    let (journal, last) = Journal::recover(disk, JournalOptions::new(marker.storage), visit)?;
    core.recover_done(last);
    Ok(Opened { assembly, journal, identity })
}

/// The door of ZooKeeper's clients that must show a certificate.
pub(crate) const ZOOKEEPER_TLS: &str = "ZooKeeper with TLS";

pub(crate) async fn listen(
    config: &NodeConfig,
    door: &'static str,
    address: &str,
) -> Result<TcpListener, StartError> {
    let failed = |error| StartError::Door { door, address: address.to_owned(), error };
    let resolved: Vec<_> = tokio::net::lookup_host(address).await.map_err(failed)?.collect();
    for at in &resolved {
        let tls = (config.tls.is_some() && door == "gRPC") || door == ZOOKEEPER_TLS;
        check_listener(*at, tls, config.plaintext_beyond_loopback)
            .map_err(|refused| StartError::Exposed { door, refused })?;
    }
    TcpListener::bind(resolved.as_slice()).await.map_err(failed)
}

fn door_tls(config: &NodeConfig) -> Result<Option<doors::DoorTls>, StartError> {
    let Some(files) = &config.tls else { return Ok(None) };
    let read = |path: &std::path::Path| {
        std::fs::read(path).map_err(|error| StartError::Tls { path: path.display().to_string(), error })
    };
    Ok(Some(doors::DoorTls::new(&read(&files.cert)?, &read(&files.key)?, &read(&files.ca)?)?))
}

/// Everything of a node that is up.
struct Up {
    host: NodeHost,
    handle: HostHandle,
    parts: NodeParts,
    stop_doors: watch::Sender<bool>,
    doors: Vec<tokio::task::JoinHandle<()>>,
    drain_at_most: Duration,
}

/// The address of a door that others are told: as configured, except that a port 0 is replaced by the port that the system chose.
fn told_address(configured: &str, door: &TcpListener) -> String {
    match door.local_addr() {
        Ok(real) if configured.ends_with(":0") => real.to_string(),
        _ => configured.to_owned(),
    }
}

async fn bring_up(
    mut config: NodeConfig,
    database_doors: Vec<Box<dyn DatabaseDoor>>,
) -> Result<Up, StartError> {
    let Descriptors { grpc: grpc_connections, zookeeper, .. } =
        descriptors::plan(descriptors::raise_limit())?;
    let of_zookeeper = &mut config.zookeeper_options.max_connections;
    *of_zookeeper = descriptors::at_most(*of_zookeeper, zookeeper);
    let grpc = listen(&config, "gRPC", &config.grpc).await?;
    config.grpc = told_address(&config.grpc, &grpc);
    let metrics = match &config.metrics {
        Some(address) => Some(listen(&config, "metrics", address).await?),
        None => None,
    };
    config.metrics = config.metrics.zip(metrics.as_ref()).map(|(at, door)| told_address(&at, door));
    let tls = door_tls(&config)?;
    let Opened { assembly, journal, identity } = open(&config)?;
    let mut options = NetOptions::new(
        identity.node,
        identity.incarnation,
        identity.storage,
        config.cluster.clone(),
        config.peer.clone(),
    );
    options.levels = assembly.node.env.levels().clone();
    options.witness = assembly.node.env.witness().clone();
    options.tls = config.tls.clone();
    options.allow_plaintext_beyond_loopback = config.plaintext_beyond_loopback;
    let (net, events) = Net::start(options).await?;
    let parts = assembly.node;
    let host = NodeHost::start(assembly.core, journal, net.clone(), events, HostOptions::default())
        .map_err(StartError::Threads)?;
    let handle = host.handle();
    tokio::spawn(follow_peers(parts.clone(), net));
    parts.start();

    let (stop_doors, stopping) = watch::channel(false);
    let figures = NodeFigures::start(handle.clone(), parts.clone());
    let operations = Arc::new(NodeOperations::new(parts.clone()));
    let (env, logs, changes) = (parts.env.clone(), parts.logs.clone(), parts.changes.clone());
    let backend = Arc::new(
        doors::NodeBackend::new(env, logs, changes, operations)
            .with_tables(parts.tables.clone())
            .with_database(parts.database.clone()),
    );
    let mut tasks = Vec::new();
    let stop = stopped(stopping.clone());
    tasks.push(tokio::spawn(async move {
        let limits = doors::Limits::default().with_connections(grpc_connections);
        if let Err(error) = doors::serve_grpc(grpc, backend, tls, limits, stop).await {
            tracing::error!(%error, "the gRPC door ended");
        }
    }));
    if let Some(listener) = metrics {
        tasks.push(tokio::spawn(doors::metrics::serve_metrics(listener, figures, stopped(stopping.clone()))));
    }
    let drain_at_most = config.drain_at_most;
    if !database_doors.is_empty() {
        tasks.extend(open_doors(config, &parts, database_doors, stopping).await?);
    }
    Ok(Up { host, handle, parts, stop_doors, doors: tasks, drain_at_most })
}

/// Opens the database and its doors.
async fn open_doors(
    config: NodeConfig,
    parts: &NodeParts,
    mut doors: Vec<Box<dyn DatabaseDoor>>,
    stopping: watch::Receiver<bool>,
) -> Result<Vec<tokio::task::JoinHandle<()>>, StartError> {
    let database = database::open(&config, parts, &mut doors)?;
    tokio::spawn(database::watch(database.clone()));
    tokio::spawn(parts.database.space.clone().watch(config.data.clone(), config.least_free_bytes));
    let up = DatabaseUp { database, parts: parts.clone(), config: Arc::new(config), stopping };
    let mut tasks = Vec::new();
    for door in doors {
        tasks.push(tokio::spawn(door.open(up.clone()).await?));
    }
    Ok(tasks)
}

pub(crate) async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the node is gone: stop as well.
    let _ = stopping.wait_for(|s| *s).await;
}

/// Keeps the network's list of peers in step with the table of members.
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

async fn run(
    config: NodeConfig,
    doors: Vec<Box<dyn DatabaseDoor>>,
    mut orders: mpsc::UnboundedReceiver<Command>,
    told: std::sync::mpsc::Sender<Result<NodeParts, StartError>>,
) -> Option<EndedBecause> {
    let up = match bring_up(config, doors).await {
        Ok(up) => up,
        Err(error) => {
            let _ = told.send(Err(error));
            return None;
        }
    };
    let _ = told.send(Ok(up.parts.clone()));
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
    up.stop_doors.send_replace(true);
    for door in up.doors {
        let _ = door.await;
    }
    database::close(&up.parts).await;
    up.host.shutdown().await;
    Some(why)
}

async fn stop_order(orders: &mut mpsc::UnboundedReceiver<Command>) {
    while let Some(order) = orders.recv().await {
        if matches!(order, Command::Stop) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

/// Announces that this node is leaving, and waits until no log that is open here has its sequencer on it. The first node that notices,
/// possibly this one, extends those logs.
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
