//! Decides which nodes there are: at the first start by the command line, and after that by the configuration files in the folders.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::net::TcpSocket;

use crate::serve::StatePlace;
use crate::serve::config::{Config, Overrules, Roles};
use crate::serve::reader::ConfigFaults;

/// Default of `--base-port`.
pub const BASE_PORT: u16 = 7400;
/// The base of the ports for ZooKeeper's clients, with the default of `--base-port`. Node 1 has the next port.
const ZOOKEEPER_BASE_PORT: u16 = 2180;
/// Default of `--nodes`.
pub const NODES: u32 = 3;
/// The range in which free ports are searched. It is below the ports that systems give to outgoing connections, which could take one while
/// its node is down.
const FREE_PORTS: std::ops::Range<u16> = 10_000..30_000;
/// Distance between two places where the ports of a cluster may begin.
const SLOT_PORTS: u16 = 50;
/// Name of the lock file in the data folder.
const LOCK: &str = "dev.lock";
/// Name of a node's configuration in its folder.
const CONFIG: &str = "config.toml";

/// The nodes that the command line requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// `--nodes`.
    pub nodes: Option<u32>,
    /// `--log-nodes` and `--db-nodes`.
    pub apart: Option<(u32, u32)>,
    /// `--base-port`.
    pub base_port: Option<u16>,
    /// `--state`.
    pub state: Option<StatePlace>,
    /// Whether syncs are omitted.
    pub syncs_off: bool,
}

/// One node.
#[derive(Clone, Debug)]
pub struct PlannedNode {
    /// Its id.
    pub id: u32,
    /// Its folder: configuration, log, data.
    pub folder: PathBuf,
    /// Its configuration, as the file in the folder has it.
    pub config: Config,
}

impl PlannedNode {
    /// Returns the configuration file that it is started with.
    pub fn config_file(&self) -> PathBuf {
        self.folder.join(CONFIG)
    }

    /// Returns the file for its output.
    pub fn log(&self) -> PathBuf {
        self.folder.join("log")
    }
}

/// All nodes, and the lock on their folder.
#[derive(Debug)]
pub struct Plan {
    /// The folder of everything, as an absolute path.
    pub data: PathBuf,
    /// The nodes, ordered by id.
    pub nodes: Vec<PlannedNode>,
    /// Whether the folder already held a cluster.
    pub found: bool,
    /// The lock on the folder, held as long as the plan.
    _lock: FolderLock,
}

/// The lock on a folder.
#[derive(Debug)]
pub(super) struct FolderLock(pub(super) fs::File);

impl FolderLock {
    pub(super) fn take(folder: &Path) -> Result<FolderLock, PlanError> {
        let lock = FolderLock(fs::File::create(folder.join(LOCK)).map_err(io(folder))?);
        match lock.0.try_lock() {
            Ok(()) => Ok(lock),
            Err(fs::TryLockError::WouldBlock) => Err(PlanError::InUse { path: folder.to_owned() }),
            Err(fs::TryLockError::Error(error)) => Err(PlanError::Io { path: folder.to_owned(), error }),
        }
    }
}

impl Drop for FolderLock {
    /// Unlocks the file explicitly. Closing it would leave it locked as long as another descriptor of it is open, and a process that
    /// another thread is just starting has one until its `exec`.
    fn drop(&mut self) {
        // Nothing is lost if this fails: the lock is released with the last descriptor.
        let _ = self.0.unlock();
    }
}

/// The nodes cannot be as requested. Nothing was started.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A file or folder could not be created or read.
    #[error("{}: {error}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// Another `atoll dev` is using the folder.
    #[error("{} is in use by another `atoll dev`; stop that one, or choose another --data", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The folder holds another cluster than the one that was requested.
    #[error(
        "{} holds a cluster of {found}, and the command line asks for {wished}; leave that out to start what is there, \
         give another --data, or delete the folder", path.display()
    )]
    Other {
        /// The folder.
        path: PathBuf,
        /// The nodes that exist.
        found: String,
        /// The nodes that were requested.
        wished: String,
    },
    /// An existing configuration file cannot be used.
    #[error("{0}")]
    Config(ConfigFaults),
    /// A port is taken.
    #[error(
        "node {id} cannot listen on {address}: {error}; is another `atoll dev` running? --base-port moves all ports, 0 finds free ones"
    )]
    Port {
        /// The node.
        id: u32,
        /// The address.
        address: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The last node's ports would be above 65535.
    #[error(
        "--base-port {base} is too high for {nodes} nodes: node i has ports up to base + 10 i + 5, at most 65535"
    )]
    BasePort {
        /// The base port that was given.
        base: u16,
        /// The number of nodes.
        nodes: u32,
    },
    /// No free ports were found.
    #[error("no free ports for {nodes} nodes between {} and {}", FREE_PORTS.start, FREE_PORTS.end)]
    NoPorts {
        /// The number of nodes.
        nodes: u32,
    },
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> PlanError + '_ {
    move |error| PlanError::Io { path: path.to_owned(), error }
}

impl Plan {
    /// Locks the folder, finds the nodes in it or creates them, and checks that their ports are free.
    ///
    /// # Errors
    /// Fails if the nodes cannot be as requested.
    pub fn make(data: &Path, wish: Wish) -> Result<Plan, PlanError> {
        let data = super::absolute(data);
        fs::create_dir_all(&data).map_err(io(&data))?;
        let lock = FolderLock::take(&data)?;
        let mut nodes = find(&data)?;
        let found = !nodes.is_empty();
        if found {
            agree(&data, &nodes, wish)?;
        } else {
            write_all(&data, wish)?;
            nodes = find(&data)?;
        }
        for node in &nodes {
            check_ports(node)?;
        }
        Ok(Plan { data, nodes, found, _lock: lock })
    }
}

/// Returns the nodes whose folders exist, by id.
fn find(data: &Path) -> Result<Vec<PlannedNode>, PlanError> {
    let mut nodes = Vec::new();
    for entry in fs::read_dir(data).map_err(io(data))? {
        let folder = entry.map_err(io(data))?.path();
        let is_node = folder.file_name().is_some_and(|n| n.to_string_lossy().starts_with("node-"));
        let file = folder.join(CONFIG);
        if is_node && file.is_file() {
            let config = Config::load(&file, &Overrules::default()).map_err(PlanError::Config)?;
            nodes.push(PlannedNode { id: config.id, folder, config });
        }
    }
    nodes.sort_by_key(|n| n.id);
    Ok(nodes)
}

/// Checks that the existing nodes are the ones that were requested, if any were.
fn agree(data: &Path, nodes: &[PlannedNode], wish: Wish) -> Result<(), PlanError> {
    let other = |found: String, wished: String| PlanError::Other { path: data.to_owned(), found, wished };
    let logs_only = nodes.iter().filter(|n| n.config.roles == LOG_ONLY).count();
    let found = match logs_only {
        0 => format!("{} nodes", nodes.len()),
        n => format!("{n} log nodes and {} others", nodes.len() - n),
    };
    let count = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    if let Some(n) = wish.nodes.filter(|n| count(*n) != nodes.len() || logs_only > 0) {
        return Err(other(found, format!("--nodes {n}")));
    }
    if let Some((l, d)) =
        wish.apart.filter(|(l, d)| (count(*l), count(*d)) != (logs_only, nodes.len() - logs_only))
    {
        return Err(other(found, format!("--log-nodes {l} --db-nodes {d}")));
    }
    let first = nodes.first().map(|n| (n.id, n.config.grpc.clone()));
    if let (Some(base), Some((id, grpc))) = (wish.base_port.filter(|b| *b > 0), first) {
        let wished = door(base, id, 1).map(|p| format!("127.0.0.1:{p}"));
        if wished.as_ref() != Some(&grpc) {
            return Err(other(format!("{found} with node {id} at {grpc}"), format!("--base-port {base}")));
        }
    }
    if let Some(state) = wish.state
        && let Some(node) = nodes.iter().find(|n| n.config.state_in_memory != (state == StatePlace::Memory))
    {
        let word = |memory| if memory { "memory" } else { "disk" };
        let found = format!("{found} with the state in {}", word(node.config.state_in_memory));
        return Err(other(found, format!("--state {}", word(state == StatePlace::Memory))));
    }
    if let Some(node) = nodes.iter().find(|n| n.config.syncs_off != wish.syncs_off) {
        let word = |off| if off { "syncs off" } else { "real syncs" };
        return Err(other(
            format!("{found} with {}", word(node.config.syncs_off)),
            word(wish.syncs_off).into(),
        ));
    }
    Ok(())
}

const LOG_ONLY: Roles = Roles { log: true, meta: false, sequencer: false };
const DB_ONLY: Roles = Roles { log: false, meta: true, sequencer: true };

fn door(base: u16, id: u32, which: u16) -> Option<u16> {
    u16::try_from(id).ok()?.checked_mul(10)?.checked_add(base)?.checked_add(which)
}

/// Writes every node's configuration.
fn write_all(data: &Path, wish: Wish) -> Result<(), PlanError> {
    let roles: Vec<Roles> = match wish.apart {
        Some((log, db)) => (0..log).map(|_| LOG_ONLY).chain((0..db).map(|_| DB_ONLY)).collect(),
        None => (0..wish.nodes.unwrap_or(NODES)).map(|_| Roles::ALL).collect(),
    };
    let count = u32::try_from(roles.len()).unwrap_or(u32::MAX);
    let base = match wish.base_port.unwrap_or(BASE_PORT) {
        0 => free_base(count).ok_or(PlanError::NoPorts { nodes: count })?,
        base if door(base, count, 5).is_some() => base,
        base => return Err(PlanError::BasePort { base, nodes: count }),
    };
    let mut peers = String::new();
    let at = |id, which| door(base, id, which).map_or_else(String::new, |p| format!("127.0.0.1:{p}"));
    if count > 1 {
        for (id, roles) in (1..).zip(&roles) {
            // Writing to a string does not fail.
            let _ = write!(
                peers,
                "\n[[peer]]\nid = {id}\naddress = \"{}\"\ngrpc = \"{}\"\nroles = {:?}\n",
                at(id, 2),
                at(id, 1),
                roles.names()
            );
        }
    }
    // Use the ports where ZooKeeper's clients expect it, unless the base port was changed. A node that only stores entries has no
    // database.
    let zookeeper = |id: u32, roles: &Roles| match wish.base_port {
        _ if *roles == LOG_ONLY => String::new(),
        None | Some(BASE_PORT) => format!("127.0.0.1:{}", u32::from(ZOOKEEPER_BASE_PORT) + id),
        Some(_) => at(id, 4),
    };
    for (id, roles) in (1..).zip(&roles) {
        let folder = data.join(format!("node-{id}"));
        fs::create_dir_all(&folder).map_err(io(&folder))?;
        let mut text = format!(
            "# Written by `atoll dev` at its first start, and kept: what you change here counts from the node's next start.\n\
             # `atoll serve --print-config` shows every setting.\n\n\
             [node]\nid = {id}\ncluster = \"dev\"\ndata = \"data\"\nroles = {:?}\n\n\
             [listen]\ngrpc = \"{}\"\npeer = \"{}\"\nmetrics = \"{}\"\nzookeeper = \"{}\"\nzookeeper_admin = \"{}\"\n",
            roles.names(),
            at(id, 1),
            at(id, 2),
            at(id, 3),
            zookeeper(id, roles),
            if *roles == LOG_ONLY { String::new() } else { at(id, 5) },
        );
        if wish.state == Some(StatePlace::Memory) {
            text.push_str("\n[database]\nstate = \"memory\"\n");
        }
        if wish.syncs_off {
            text.push_str("\n[testing]\nsyncs = \"off\"\n");
        }
        text.push_str(&peers);
        let file = folder.join(CONFIG);
        fs::write(&file, text).map_err(io(&file))?;
    }
    Ok(())
}

/// Returns a base port for a cluster of this process, such that all ports are free now.
fn free_base(nodes: u32) -> Option<u16> {
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    base_where(nodes, &DRAWN, |port| probe(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).is_ok())
}

/// Checks that a node could listen on this address, and returns the socket. The socket is bound but does not listen: a process that
/// another thread is just starting has a copy of it until its `exec`, and while a listening socket exists no other process can bind.
/// Addresses are reused, so lingering connections of an earlier run do not count.
pub(super) fn probe(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Returns a base port such that all ports are free. Processes start the search at different places, and a place that was tried counts as
/// `drawn`, used or not: clusters that start together must not find the same place, because the first may not listen yet when the second
/// checks. Places are equally far apart for any number of nodes; otherwise the ports of a small cluster could be between those of a large
/// one.
pub(super) fn base_where(nodes: u32, drawn: &AtomicU32, is_free: impl Fn(u16) -> bool) -> Option<u16> {
    let width = door(0, nodes + 1, 0)?;
    let slots = u32::from((FREE_PORTS.end - FREE_PORTS.start).checked_sub(width)? / SLOT_PORTS);
    let first = std::process::id().wrapping_mul(31);
    (0..slots).find_map(|_| {
        let place = first.wrapping_add(drawn.fetch_add(1, Ordering::Relaxed)).checked_rem(slots)?;
        let base = FREE_PORTS.start + u16::try_from(place).ok()? * SLOT_PORTS;
        let mut ports = (1..=nodes).flat_map(|id| (1..=5).map(move |which| door(base, id, which)));
        ports.all(|port| port.is_some_and(&is_free)).then_some(base)
    })
}

fn check_ports(node: &PlannedNode) -> Result<(), PlanError> {
    let config = &node.config;
    let others = [&config.metrics, &config.zookeeper, &config.zookeeper_admin];
    let doors = [Some(&config.grpc), Some(&config.peer)].into_iter().chain(others.map(Option::as_ref));
    for address in doors.flatten() {
        let found =
            address.to_socket_addrs().and_then(|mut all| all.try_for_each(|one| probe(one).map(drop)));
        found.map_err(|error| PlanError::Port { id: node.id, address: address.clone(), error })?;
    }
    Ok(())
}
