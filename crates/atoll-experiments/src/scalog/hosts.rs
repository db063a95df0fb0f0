//! Nodes of an experiment on real sockets and disks: the product's host with the roles of the protocols, each on a thread of its own. There
//! are no doors and no members, and nobody moves anything.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use atoll_core::{Class, Env, Incarnation, Link, NodeCore, NodeId, StorageId};
use atoll_net::{Net, NetOptions};
use atoll_node::host::{HostHandle, HostOptions, NodeHost};
use atoll_storage::{
    CellOptions, CellStore, DiskError, Journal, JournalOptions, RealDisk, RecoverCellsError, RecoverError,
    Recovered, Syncs,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::parts::Parts;

/// How long nodes may take to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(20);
/// The name of the cluster.
const CLUSTER: &str = "experiment";

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error("a thread: {0}")]
    Thread(#[from] io::Error),
    #[error("the disk: {0}")]
    Disk(#[from] DiskError),
    #[error("the journal: {0}")]
    Journal(#[from] RecoverError<atoll_core::RecoverError>),
    #[error("the cells: {0}")]
    Cells(#[from] RecoverCellsError<atoll_core::RecoverError>),
    #[error("the network: {0}")]
    Net(#[from] Box<atoll_net::StartError>),
    #[error("the thread of a node ended")]
    Ended,
    #[error("node {0} does not reach node {1}")]
    Apart(NodeId, NodeId),
}

/// Where nodes listen.
type Book = BTreeMap<NodeId, String>;

/// A node that runs.
pub struct RealNode {
    handle: HostHandle,
    parts: Parts,
    /// Takes where all nodes are. The node stops when it is dropped.
    books: Option<UnboundedSender<Book>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// Returns the identity of the data directory of a node.
pub fn storage_of(node: NodeId) -> StorageId {
    StorageId(u128::from(node.0) << 64 | 9)
}

/// Returns the only life of a node.
pub fn life_of(node: NodeId) -> Incarnation {
    Incarnation(u64::from(node.0) * 1000 + 3)
}

impl RealNode {
    /// Starts a node with its data in a folder, which must be new. `name` is that of its thread, and `queue_bytes` what may wait for each
    /// of its connections.
    pub fn start(
        folder: &Path,
        node: NodeId,
        name: &str,
        queue_bytes: Option<usize>,
    ) -> Result<Self, HostError> {
        let folder = folder.join(format!("node-{}", node.0));
        let (started, starts) = mpsc::channel();
        let (books, mut told) = unbounded_channel::<Book>();
        let run = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(started.send(Err(error.into()))),
            };
            runtime.block_on(async {
                match bring_up(&folder, node, queue_bytes).await {
                    Ok((host, parts)) => {
                        let _ = started.send(Ok((host.handle(), parts)));
                        while let Some(book) = told.recv().await {
                            host.handle().net().set_peers(book);
                        }
                        host.shutdown().await;
                    }
                    Err(error) => drop(started.send(Err(error))),
                }
            });
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        let (handle, parts) = starts.recv().map_err(|_| HostError::Ended)??;
        Ok(RealNode { handle, parts, books: Some(books), thread: Some(thread) })
    }

    /// Returns the environment of the node.
    pub fn env(&self) -> Env {
        self.handle.env()
    }

    /// Returns what the node can open.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    fn reaches(&self, other: NodeId) -> bool {
        let env = self.env();
        [Class::Control, Class::Data].into_iter().all(|class| env.link(other, class) == Link::Up)
    }
}

impl RealNode {
    /// Tells the node to stop, and does not wait for it.
    pub fn tell_to_stop(&mut self) {
        drop(self.books.take());
    }
}

impl Drop for RealNode {
    fn drop(&mut self) {
        self.tell_to_stop();
        if let Some(thread) = self.thread.take() {
            // A node that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Makes all nodes known to each other, and waits until they are connected.
pub fn meet(nodes: &[RealNode]) -> Result<(), HostError> {
    let book: Book =
        nodes.iter().map(|n| (n.env().node(), n.handle.net().local_addr().to_string())).collect();
    for books in nodes.iter().filter_map(|n| n.books.as_ref()) {
        // A node that has ended reaches nobody, which shows below.
        let _ = books.send(book.clone());
    }
    let until = Instant::now() + CONNECT_WITHIN;
    for one in nodes {
        for other in book.keys().filter(|other| **other != one.env().node()) {
            while !one.reaches(*other) {
                if Instant::now() > until {
                    return Err(HostError::Apart(one.env().node(), *other));
                }
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
    Ok(())
}

async fn bring_up(
    folder: &Path,
    node: NodeId,
    queue_bytes: Option<usize>,
) -> Result<(NodeHost, Parts), HostError> {
    let (storage, life) = (storage_of(node), life_of(node));
    let mut core = NodeCore::new(node, life, life.0);
    let env = core.env();
    let parts = Parts::install(&mut core, storage);
    let disk = Arc::new(RealDisk::open(folder, Syncs::Real)?);
    if let Err(why) = disk.use_direct_writes() {
        eprintln!("node {}: a thread waits for each write to the journal, because of {why}", node.0);
    }
    let visit = &mut |found| match found {
        Recovered::Checkpoint(checkpoint) => core.recover_checkpoint(checkpoint),
        Recovered::Record(stored) => core.recover_record(stored),
    };
    let (journal, last) = Journal::recover(disk.clone(), JournalOptions::new(storage), visit)?;
    let visit = &mut |cell| core.recover_cell(cell);
    let cells = CellStore::recover(disk, CellOptions::new(storage), visit)?;
    core.recover_cells_done(cells.last());
    core.recover_done(last);
    let mut options = NetOptions::new(node, life, storage, CLUSTER, "127.0.0.1:0");
    options.levels = env.levels().clone();
    options.witness = env.witness().clone();
    options.queue_bytes = queue_bytes.unwrap_or(options.queue_bytes);
    let (net, events) = Net::start(options).await.map_err(Box::new)?;
    Ok((NodeHost::start(core, journal, cells, net, events, HostOptions::default())?, parts))
}
