//! What one old data directory holds. A core recovers from a copy of it and answers questions about its own disk. It has no peers, and none
//! of the procedures of a node run on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use atoll_contract::{
    Extent, LogPos, LogletId, ReadBatch, ReadError, ReadFrom, Registry, Remains, Versioned,
};
use atoll_core::{Env, NodeId};
use atoll_db::{Owner, Standing};
use atoll_log::Segment;
use atoll_net::{Net, NetOptions};

use super::error::RescueError;
use super::folder::{self, Old};
use crate::assembly::{NodeParts, Options};
use crate::config::NodeConfig;
use crate::database;
use crate::host::{HostOptions, NodeHost};
use crate::replica::DatabaseState;
use crate::start::{self, LOOPBACK, Opened, StartError};

/// The journal's folder in a data directory: its newest file says when the node was last there.
const JOURNAL: &str = "journal";

/// One old data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivorPlan {
    /// The data directory.
    pub path: PathBuf,
    /// Its node.
    pub node: NodeId,
    /// When its journal was last written, in milliseconds since the Unix epoch, by the clock of its machine.
    pub last_write_ms: Option<u64>,
    /// Its state of the database has all entries below; None if it has no such state.
    pub database_below: Option<LogPos>,
}

/// How often it is asked about a Loglet that it stores.
const ATTEMPTS: usize = 3;

/// See the module documentation.
pub(super) struct Survivor {
    old: Old,
    copy: PathBuf,
    host: NodeHost,
    pub(super) parts: NodeParts,
    /// The newest state of each register that this node knows.
    pub(super) registers: BTreeMap<String, Versioned>,
    /// Where its replica of the database stands, if it has one.
    pub(super) standing: Option<Standing>,
    written_ms: Option<u64>,
}

impl Survivor {
    /// Opens the copy of an old data directory.
    pub(super) async fn open(old: Old, copy: PathBuf) -> Result<Self, RescueError> {
        let written_ms = folder::last_write_ms(&old.path.join(JOURNAL));
        let damaged = |error| RescueError::Damaged { path: old.path.clone(), error: Box::new(error) };
        let marker = &old.marker;
        let config =
            NodeConfig { node: marker.node, cluster: marker.cluster.clone(), ..NodeConfig::alone(&copy) };
        let Opened { mut assembly, journal, cells, identity, .. } = start::open(&config).map_err(damaged)?;
        let mut registers = BTreeMap::new();
        for protocol in Options::default().protocols.iter() {
            for role in protocol.roles() {
                let Some(state) = assembly.core.state_of(role.id) else { continue };
                let found = protocol.registers_in(role.id, state);
                registers
                    .extend(found.map_err(|error| RescueError::Registers { path: old.path.clone(), error })?);
            }
        }
        let mut options = NetOptions::new(
            identity.node,
            identity.incarnation,
            identity.storage,
            config.cluster.clone(),
            LOOPBACK,
        );
        options.levels = assembly.node.env.levels().clone();
        let (net, events) =
            Net::start(options).await.map_err(|error| damaged(StartError::Net(Box::new(error))))?;
        let host = NodeHost::start(assembly.core, journal, cells, net, events, HostOptions::default())
            .map_err(RescueError::Threads)?;
        let standing = standing(&copy, marker)?;
        Ok(Survivor { copy, host, parts: assembly.node, registers, standing, written_ms, old })
    }

    /// The cluster that it was a member of.
    pub(super) fn cluster(&self) -> &str {
        &self.old.marker.cluster
    }

    /// The kinds of Loglets that it knows.
    pub(super) fn registry(&self) -> &Registry {
        self.parts.logs.registry()
    }

    /// Its data directory.
    pub(super) fn path(&self) -> &Path {
        &self.old.path
    }

    /// Where the copy of its database is.
    pub(super) fn database(&self) -> PathBuf {
        self.copy.join(database::FOLDER)
    }

    pub(super) fn describe(&self) -> SurvivorPlan {
        SurvivorPlan {
            path: self.old.path.clone(),
            node: self.old.marker.node,
            last_write_ms: self.written_ms,
            database_below: self.standing.map(|s| s.next),
        }
    }

    /// What it has of a Loglet. `listed`: it has said that it stores something of it.
    pub(super) async fn remains(
        &self,
        kind: &str,
        id: LogletId,
        listed: bool,
    ) -> Result<Option<Remains>, RescueError> {
        let Ok(provider) = self.registry().provider(kind) else { return Ok(None) };
        for _ in 0..if listed { ATTEMPTS } else { 1 } {
            let asked = provider.clone();
            let found = on(&self.parts.env, async move { asked.remains(id).await }).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Checks that the role that stores a segment answers at all.
    pub(super) async fn check_answers(&self, segment: &Segment) -> Result<(), RescueError> {
        let Ok(provider) = self.registry().provider(&segment.kind) else { return Ok(()) };
        let extent = Extent {
            loglet: segment.loglet,
            config: segment.config.clone(),
            sealed: segment.sealed_config.clone(),
            range: segment.base..segment.base.plus(1),
        };
        let (asked, node) = (provider.clone(), self.parts.env.node());
        let answer = on(&self.parts.env, async move { asked.progress(node, &[extent]).await }).await?;
        answer.map(drop).ok_or(RescueError::Late("asking a survivor what it stores"))
    }

    /// Reads entries of a segment, on its own disk only.
    pub(super) async fn read(
        &self,
        segment: &Segment,
        range: std::ops::Range<atoll_contract::Offset>,
        max_bytes: usize,
    ) -> Result<Result<ReadBatch, ReadError>, RescueError> {
        let opened = self
            .registry()
            .provider(&segment.kind)
            .and_then(|p| p.open_sealed(segment.loglet, &segment.config, &segment.sealed_config));
        let Ok(loglet) = opened else { return Ok(Err(ReadError::Gone)) };
        on(&self.parts.env, async move { loglet.read(range, max_bytes, ReadFrom::LocalOnly).await }).await
    }

    /// Stops it.
    pub(super) async fn close(self) {
        self.host.shutdown().await;
    }
}

/// Returns where the replica in a data directory stands; None if it has none on the disk.
fn standing(data: &Path, marker: &atoll_storage::Identity) -> Result<Option<Standing>, RescueError> {
    if !data.join(database::FOLDER).is_dir() {
        return Ok(None);
    }
    let owner = Owner {
        cluster: marker.cluster.clone(),
        node: marker.node,
        storage: marker.storage,
        log: database::LOG.to_owned(),
    };
    let store = database::open_store(&DatabaseState::default(), data, &owner)?;
    Ok(Some(Standing::of(&*store)?))
}

/// Runs a procedure on a node, and waits for its result.
pub(super) async fn on<T: Send + 'static>(
    env: &Env,
    f: impl Future<Output = T> + Send + 'static,
) -> Result<T, RescueError> {
    env.launch("rescue", f).await.map_err(|_| RescueError::Stopped)
}
