//! The provider that makes Loglets of one kind, and the specification of a Loglet.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{BoxFuture, NodeId};

use super::{Loglet, LogletError, LogletId, SealedConfig};
use crate::position::Offset;

/// What an operator or a policy requests of the next Loglet. For a field that is None the provider chooses, usually the
/// same value as before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogletSpec {
    /// "native", "local".
    pub kind: Option<String>,
    /// Exactly these servers.
    pub servers: Option<Vec<NodeId>>,
    /// Exactly this sequencer.
    pub sequencer: Option<NodeId>,
    /// Nodes to avoid if possible: they are thought to have failed, or are being drained.
    pub avoid: Vec<NodeId>,
}

/// Why there is no configuration for a specification. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No provider has this name.
    #[error("no loglet kind {wanted:?}; known kinds: {known}")]
    UnknownKind {
        /// The requested kind.
        wanted: String,
        /// The known kinds.
        known: String,
    },
    /// A requested node did not answer.
    #[error("node {0} does not answer; name servers that are up (see `atoll status`)")]
    NodeDown(NodeId),
    /// Fewer servers answer than are needed.
    #[error("{up} of {wanted} servers answer; a segment needs all of its servers up when it is made")]
    TooFew {
        /// Number of servers that answered.
        up: usize,
        /// Number of servers needed.
        wanted: usize,
    },
    /// The specification contradicts the kind's rules.
    #[error("{what}: {allowed}")]
    Invalid {
        /// What was wrong.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A configuration in the chain does not decode.
    #[error("a loglet configuration in the chain is not readable: {0}")]
    Unreadable(#[from] atoll_core::DecodeError),
}

/// Makes Loglets of one kind from opaque configurations.
pub trait LogletProvider: Send + Sync + fmt::Debug {
    /// The name in the chain: "native", "local".
    fn kind(&self) -> &'static str;

    /// Plans a configuration for a specification. `previous` is that of the active segment if it is of the same kind.
    fn plan<'a>(
        &'a self,
        spec: &'a LogletSpec,
        previous: Option<&'a Bytes>,
    ) -> BoxFuture<'a, Result<Bytes, PlanError>>;

    /// Announces a new Loglet to the servers. Idempotent, and only an optimisation: a server also learns of it from its first message.
    fn provision(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Opens a handle. Cheap; no server is asked.
    fn open(&self, id: LogletId, config: &Bytes) -> Result<Arc<dyn Loglet>, PlanError>;

    /// Opens a handle to a sealed Loglet, with the sealed configuration that was installed (vlog-L9). Most kinds do not need it.
    fn open_sealed(
        &self,
        id: LogletId,
        config: &Bytes,
        _sealed: &SealedConfig,
    ) -> Result<Arc<dyn Loglet>, PlanError> {
        self.open(id, config)
    }

    /// Builds a new, sealed Loglet that holds exactly these entries from offset 0 on, for `reconfig_modify` (virtuallog
    /// §7). `copy_from(range, max_bytes)` is read through the source Loglet. The result is durable on a quorum when this
    /// returns.
    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>>;

    /// Deletes a Loglet's data on all servers that answer, and leaves tombstones (vlog-L7, vlog-V6). Idempotent.
    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// Describes the configuration as fields and values, for `atoll chain show`.
    fn describe(&self, config: &Bytes) -> Vec<(&'static str, String)>;

    /// The nodes that hold entries, and the sequencer if there is one: for failure detection and membership.
    fn members(&self, config: &Bytes) -> Members;
}

/// The nodes behind one Loglet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Nodes that hold entries, with the identity of the data directory that was configured.
    pub servers: Vec<(NodeId, atoll_core::StorageId)>,
    /// The node that orders appends, and its life.
    pub sequencer: Option<(NodeId, atoll_core::Incarnation)>,
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

    /// The provider of a kind.
    pub fn provider(&self, kind: &str) -> Result<&Arc<dyn LogletProvider>, PlanError> {
        self.providers.get(kind).ok_or_else(|| PlanError::UnknownKind {
            wanted: kind.to_owned(),
            known: self.providers.keys().copied().collect::<Vec<_>>().join(", "),
        })
    }

    /// All kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.providers.keys().copied()
    }
}
