//! The provider that creates Loglets of one kind, and describes them to code that knows no kind.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{BoxFuture, Incarnation, NodeId, StorageId};

use super::{Loglet, LogletError, LogletId, LogletSpec, PlanError, SealedConfig};
use crate::position::Offset;

/// How a node is bound to a Loglet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// It holds entries, in this data directory: another directory must not answer for them (native-T8).
    Holds(StorageId),
    /// It orders appends, in this life of its process: another life has forgotten which offsets were given (native-T6).
    Orders(Incarnation),
}

/// A role that nodes have for Loglets of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleOfKind {
    /// Its name.
    pub name: &'static str,
    /// Nodes in it hold entries; else they order appends.
    pub holds: bool,
}

/// What one node does for one Loglet. A node with two roles has two duties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// The role, as specifications and people call it.
    pub role: &'static str,
    /// Who.
    pub node: NodeId,
    /// As what.
    pub binding: Binding,
}

/// All duties of one Loglet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties(pub Vec<Duty>);

impl Duties {
    /// The nodes that hold entries, with the data directories that were configured.
    pub fn holders(&self) -> impl Iterator<Item = (NodeId, StorageId)> + '_ {
        self.0.iter().filter_map(|duty| match duty.binding {
            Binding::Holds(storage) => Some((duty.node, storage)),
            Binding::Orders(_) => None,
        })
    }

    /// The nodes that order appends, with the lives that were configured.
    pub fn orderers(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.0.iter().filter_map(|duty| match duty.binding {
            Binding::Orders(life) => Some((duty.node, life)),
            Binding::Holds(_) => None,
        })
    }

    /// Whether this node holds entries.
    pub fn is_holder(&self, node: NodeId) -> bool {
        self.holders().any(|(n, _)| n == node)
    }

    /// Whether this node orders appends.
    pub fn is_orderer(&self, node: NodeId) -> bool {
        self.orderers().any(|(n, _)| n == node)
    }

    /// The nodes in a role, in order and each once.
    pub fn in_role(&self, role: &str) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.0.iter().filter(|d| d.role == role).map(|d| d.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// A Loglet, and the part of it that is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Which.
    pub loglet: LogletId,
    /// Its configuration.
    pub config: Bytes,
    /// The offsets, of which the end is not one.
    pub range: Range<Offset>,
}

/// How far one node is with an [`Extent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The first offset of the extent that the node does not have in order.
    pub has_up_to: Offset,
    /// Offsets of the extent that it lacks.
    pub lacks: u64,
}

/// Makes Loglets of one kind from opaque configurations.
pub trait LogletProvider: Send + Sync + fmt::Debug {
    /// The name in chains and specifications.
    fn kind(&self) -> &'static str;

    /// The roles that nodes have for a Loglet of this kind: what a specification may place.
    fn roles(&self) -> &'static [RoleOfKind];

    /// A configuration for what is wanted; `previous` is the active segment's if it is of the same kind.
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>>;

    /// Tells the servers about a new Loglet. Idempotent; only an optimisation, they also learn from the first message.
    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// A handle. Cheap; no server is asked.
    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError>;

    /// A handle to a sealed Loglet, with the sealed configuration that was installed (vlog-L9). Most kinds need none.
    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        _sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        self.open(id, config)
    }

    /// A new, sealed Loglet that holds exactly these entries from offset 0 on, for `reconfig_modify` (virtuallog §7). They are read
    /// through `source`. Durable on a quorum when it returns.
    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>>;

    /// Deletes a Loglet's data on all servers that answer, and leaves tombstones (vlog-L7, vlog-V6). Idempotent.
    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// The configuration as fields and values, for `atoll chain show`.
    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)>;

    /// Who does what for a Loglet: for failure detection, membership and the placement of the next one. Empty if the configuration cannot
    /// be read.
    fn duties(&self, config: &Bytes) -> Duties;

    /// Returns whether these nodes suffice to seal. A node that seals without reaching enough of them would stop the log and start no new
    /// segment (vlog-V18).
    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool;

    /// How far a node is with each of these Loglets, in their order. None if it does not answer.
    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>>;

    /// Has this node fetch what it lacks of a sealed Loglet below `upto`, the sealed tail that was installed (X7). A hint: nobody learns
    /// whether it was done. Kinds with a single copy have nothing to fetch.
    fn back_fill(&self, _id: LogletId, _config: &Bytes, _upto: Offset) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Some Loglets that this node's disk holds, in the order of their ids, above this one; and whether there are more. None if it does
    /// not answer.
    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>>;

    /// Deletes a Loglet from this node's disk alone, behind a tombstone (vlog-V6); whether it is done. For Loglets that no chain names.
    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool>;
}

/// The kinds of Loglets that this process can open.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Arc<dyn LogletProvider>>,
}

impl Registry {
    /// A registry without kinds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind; replaces one of the same name.
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn LogletProvider>) -> Self {
        self.providers.insert(provider.kind(), provider);
        self
    }

    /// The roles of this name, of all kinds that have one.
    pub fn roles_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = RoleOfKind> + 'a {
        self.providers.values().flat_map(|p| p.roles()).filter(move |r| r.name == name).copied()
    }

    /// The provider of a kind.
    pub fn provider(&self, kind: &str) -> Result<&Arc<dyn LogletProvider>, PlanError> {
        self.providers.get(kind).ok_or_else(|| PlanError::UnknownKind {
            wanted: kind.to_owned(),
            known: self.providers.keys().copied().collect::<Vec<_>>().join(", "),
        })
    }

    /// The providers, in the order of their kinds.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<dyn LogletProvider>> {
        self.providers.values()
    }

    /// All kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }
}
