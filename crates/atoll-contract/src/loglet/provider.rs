//! The provider that creates Loglets of one kind, and describes them to code that knows no kind.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;

use atoll_core::{BoxFuture, Incarnation, NodeId, StorageId};

use super::{Evidence, Loglet, LogletError, LogletId, LogletSpec, PlanError, Reason, SealedConfig, Trouble};
use crate::position::Offset;

/// What ties a node to a Loglet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// The node holds entries in this data directory; another directory must not answer for it (native-T8).
    Holds(StorageId),
    /// The node orders appends in this life of its process; another life does not know which offsets were assigned (native-T6).
    Orders(Incarnation),
    /// The node helps without keeping anything that another node could not take over, like an aggregator of reports. Any life of it with
    /// any data directory will do.
    Helps,
}

/// A role that nodes have for Loglets of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleOfKind {
    /// The name of the role.
    pub name: &'static str,
    /// Whether its nodes hold entries; otherwise they order appends, or help to.
    pub holds: bool,
}

/// What one node does for one Loglet. A node with two roles has two duties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// The role, as specifications and operators call it.
    pub role: &'static str,
    /// The node.
    pub node: NodeId,
    /// What ties the node to the Loglet.
    pub binding: Binding,
}

/// All duties of one Loglet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Duties(pub Vec<Duty>);

impl Duties {
    /// Returns the duties of a Loglet whose parts have these. A node that does the same for several parts has one duty.
    pub fn of_parts(parts: impl IntoIterator<Item = Duties>) -> Self {
        let mut all: Vec<Duty> = Vec::new();
        for duty in parts.into_iter().flat_map(|part| part.0) {
            if !all.contains(&duty) {
                all.push(duty);
            }
        }
        Duties(all)
    }

    /// Returns the nodes that hold entries, with the data directories in the configuration.
    pub fn holders(&self) -> impl Iterator<Item = (NodeId, StorageId)> + '_ {
        self.0.iter().filter_map(|duty| match duty.binding {
            Binding::Holds(storage) => Some((duty.node, storage)),
            Binding::Orders(_) | Binding::Helps => None,
        })
    }

    /// Returns the nodes that order appends, with the lives in the configuration.
    pub fn sequencers(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.0.iter().filter_map(|duty| match duty.binding {
            Binding::Orders(life) => Some((duty.node, life)),
            Binding::Holds(_) | Binding::Helps => None,
        })
    }

    /// Returns whether this node holds entries.
    pub fn is_holder(&self, node: NodeId) -> bool {
        self.holders().any(|(n, _)| n == node)
    }

    /// Returns whether this node orders appends.
    pub fn is_sequencer(&self, node: NodeId) -> bool {
        self.sequencers().any(|(n, _)| n == node)
    }

    /// Returns the nodes in a role, in order and each once.
    pub fn in_role(&self, role: &str) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self.0.iter().filter(|d| d.role == role).map(|d| d.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }
}

/// One of the units that a Loglet consists of: a stripe, a chain of replicas, a shard, the layer that orders. A part may be a Loglet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name, which a specification may put before a role ([`LogletSpec`]): `0`, `shard-7`. Names of parts within a part are separated
    /// by `/`. Empty if the Loglet has no parts.
    pub name: String,
    /// Which node does what for it.
    pub duties: Duties,
}

/// A Loglet that another one is made of. Its id is [`LogletId::part`] of that one. It has no parts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartLoglet {
    /// Its kind.
    pub kind: String,
    /// Its configuration.
    pub config: Bytes,
}

/// Some offsets of a Loglet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The Loglet.
    pub loglet: LogletId,
    /// Its configuration.
    pub config: Bytes,
    /// The sealed configuration that was installed (vlog-L9); empty while the Loglet is open.
    pub sealed: SealedConfig,
    /// The offsets; the end is exclusive.
    pub range: Range<Offset>,
}

/// How much of an [`Extent`] one node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The offset up to which the node has the extent without a gap.
    pub has_up_to: Offset,
    /// How many offsets of the extent it lacks.
    pub lacks: u64,
}

/// What the disk of one node says of a Loglet, without asking other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remains {
    /// Entries have these offsets, and no others.
    pub range: Range<Offset>,
    /// How many of these offsets have no entry here.
    pub missing: u64,
    /// Every offset below was acknowledged, as far as this node knows, even those that it lacks.
    pub acknowledged: Offset,
}

/// Creates Loglets of one kind from opaque configurations.
pub trait LogletProvider: Send + Sync + fmt::Debug {
    /// Returns the name of the kind in chains and specifications.
    fn kind(&self) -> &'static str;

    /// Returns the roles that nodes have for a Loglet of this kind. A specification may place nodes in these roles.
    fn roles(&self) -> &'static [RoleOfKind];

    /// Returns a configuration that satisfies `spec`. `previous` is the active segment's configuration if it is of the same kind.
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>>;

    /// Announces a new Loglet to its servers. Idempotent. This is only an optimisation: servers also learn of it from the first message.
    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Returns a handle to a Loglet. Cheap; no server is contacted.
    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError>;

    /// Returns a handle to a sealed Loglet, with the sealed configuration that was installed (vlog-L9). Most kinds do not need it.
    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        _sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        self.open(id, config)
    }

    /// Creates a new, sealed Loglet that holds exactly these entries, starting at offset 0, for a rebuild (virtuallog §7). They are read
    /// through `source`. The Loglet is durable on a quorum on return.
    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>>;

    /// Deletes a Loglet's data on all servers that answer, and leaves tombstones (vlog-L7, vlog-V6). Idempotent.
    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Returns the configuration as fields and values, for `atoll chain show`.
    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)>;

    /// Returns which node does what for a Loglet. Failure detection, membership changes and the placement of the next Loglet use it. It is
    /// empty if the configuration cannot be decoded.
    fn duties(&self, config: &Bytes) -> Duties;

    /// Returns the parts of a Loglet, for operators. Together, they have the Loglet's duties. By default, the Loglet is its only part.
    fn parts(&self, config: &Bytes) -> Vec<Part> {
        vec![Part { name: String::new(), duties: self.duties(config) }]
    }

    /// Returns whether Loglets of this kind keep their records in shards ([`Sharded`](super::sharded::Sharded)).
    fn has_shards(&self) -> bool {
        false
    }

    /// Returns whether these nodes suffice to seal. A node that seals without reaching enough of them would stop the log and start no new
    /// segment (vlog-V18).
    fn can_seal(&self, config: &Bytes, reached: &dyn Fn(NodeId) -> bool) -> bool;

    /// Returns why another Loglet should follow this one, which is active, or None if it should stay. A pure function of its arguments: the
    /// node asks again whenever it learns something. The node asks only while it reaches enough nodes to seal the Loglet
    /// ([`LogletProvider::can_seal`]), decides when to act on the reason, and then plans the next Loglet from [`Reason::next`].
    ///
    /// [`super::reason`] has the rules that many kinds share. A kind may add its own, or use none of them.
    fn reason_to_reconfigure(&self, config: &Bytes, evidence: &Evidence<'_>) -> Option<Reason>;

    /// Returns the node that seems to be the cause of a problem that appenders of this Loglet have again and again. The node then tells the
    /// other members that it cannot work with that node. None if the problem points to no single node.
    ///
    /// By default, if the appends reach no orderer or no quorum, this is the node that orders the appends, provided that there is only one.
    fn suspect(&self, config: &Bytes, trouble: Trouble) -> Option<NodeId> {
        let silent = matches!(trouble, Trouble::NoSequencer | Trouble::NoQuorum);
        let duties = self.duties(config);
        let mut orderers = duties.sequencers().filter(|_| silent);
        let (node, _) = orderers.next()?;
        orderers.next().is_none().then_some(node)
    }

    /// Returns how much of each of these extents a node has, in their order. None if it does not answer.
    fn progress<'a>(&'a self, node: NodeId, extents: &'a [Extent]) -> BoxFuture<'a, Option<Vec<Progress>>>;

    /// Makes this node fetch what it lacks of a sealed Loglet. The extent ends at the sealed tail that was installed (X7). This is a hint:
    /// the caller does not learn whether it was done. Kinds with a single copy have nothing to fetch.
    fn back_fill(&self, _extent: &Extent) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns Loglets on this node's disk with ids above this one, in the order of their ids, and whether there are more. None if the
    /// disk's role does not answer.
    fn held_here(&self, above: Option<LogletId>) -> BoxFuture<'_, Option<(Vec<LogletId>, bool)>>;

    /// Returns what the disk of this node says of a Loglet; None if it says nothing, or if the kind does not support this. For a rescue
    /// after the other nodes are lost for good: the entries are then read with [`ReadFrom::LocalOnly`](super::ReadFrom).
    fn remains(&self, _id: LogletId) -> BoxFuture<'_, Option<Remains>> {
        Box::pin(std::future::ready(None))
    }

    /// Deletes a Loglet from this node's disk only, leaving a tombstone (vlog-V6). Returns whether it is done. For Loglets that no chain
    /// names.
    fn delete_here(&self, id: LogletId) -> BoxFuture<'_, bool>;
}

/// The kinds of a node, for a kind whose Loglets are made of others. It is filled once all kinds of the node are known, and does not keep
/// them alive.
#[derive(Clone, Debug, Default)]
pub struct Kinds(Arc<OnceLock<BTreeMap<&'static str, Weak<dyn LogletProvider>>>>);

impl Kinds {
    /// Makes these kinds known. Only the first call has an effect.
    pub fn fill(&self, registry: &Registry) {
        let all = registry.providers().map(|p| (p.kind(), Arc::downgrade(p))).collect();
        // An error means that they are known already.
        let _ = self.0.set(all);
    }

    /// Returns the provider of a kind.
    pub fn provider(&self, kind: &str) -> Result<Arc<dyn LogletProvider>, PlanError> {
        let all = self.0.get();
        let known = all.and_then(|all| all.get(kind)).and_then(Weak::upgrade);
        known.ok_or_else(|| PlanError::UnknownKind {
            wanted: kind.to_owned(),
            known: all.map(|all| all.keys().copied().collect::<Vec<_>>().join(", ")).unwrap_or_default(),
        })
    }
}

/// The kinds of Loglets that this process can open.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    providers: BTreeMap<&'static str, Arc<dyn LogletProvider>>,
}

impl Registry {
    /// Returns a registry without kinds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kind; replaces one of the same name.
    #[must_use]
    pub fn with(mut self, provider: Arc<dyn LogletProvider>) -> Self {
        self.providers.insert(provider.kind(), provider);
        self
    }

    /// Returns the roles with this name, of all kinds that have one.
    pub fn roles_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = RoleOfKind> + 'a {
        self.providers.values().flat_map(|p| p.roles()).filter(move |r| r.name == name).copied()
    }

    /// Returns the provider of a kind.
    pub fn provider(&self, kind: &str) -> Result<&Arc<dyn LogletProvider>, PlanError> {
        self.providers.get(kind).ok_or_else(|| PlanError::UnknownKind {
            wanted: kind.to_owned(),
            known: self.providers.keys().copied().collect::<Vec<_>>().join(", "),
        })
    }

    /// Returns the providers in the order of their kinds.
    pub fn providers(&self) -> impl Iterator<Item = &Arc<dyn LogletProvider>> {
        self.providers.values()
    }

    /// Returns all kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }
}
