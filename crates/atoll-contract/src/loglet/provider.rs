//! What makes Loglets of one kind, and what a Loglet is to be.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use atoll_core::{BoxFuture, NodeId};

use super::{Loglet, LogletError, LogletId, SealedConfig};
use crate::position::Offset;

/// What an operator, or a policy, wants the next Loglet to be. What is None is the provider's choice, usually as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogletSpec {
    /// "native", "local".
    pub kind: Option<String>,
    /// Exactly these servers.
    pub servers: Option<Vec<NodeId>>,
    /// Exactly this sequencer.
    pub sequencer: Option<NodeId>,
    /// Not these, if it can be helped: they are thought to have failed or are being drained.
    pub avoid: Vec<NodeId>,
}

/// Why there is no configuration for what was wanted. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// No provider has this name.
    #[error("no loglet kind {wanted:?}; known kinds: {known}")]
    UnknownKind {
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// Some of the nodes wanted did not answer.
    #[error("node {0} does not answer; name servers that are up (see `atoll status`)")]
    NodeDown(NodeId),
    /// Fewer servers answer than are needed.
    #[error("{up} of {wanted} servers answer; a segment needs all of its servers up when it is made")]
    TooFew {
        /// Servers that answered.
        up: usize,
        /// Servers needed.
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

    /// A new, sealed Loglet that holds exactly these entries from offset 0 on, for `reconfig_modify` (virtuallog §7).
    /// `copy_from(range, max_bytes)` is read through the source Loglet. Durable on a quorum when it returns.
    fn build_sealed<'a>(
        &'a self,
        id: LogletId,
        config: &'a Bytes,
        source: &'a dyn Loglet,
        range: Range<Offset>,
    ) -> BoxFuture<'a, Result<(), LogletError>>;

    /// Deletes a Loglet's data on all servers that answer, and leaves tombstones (vlog-L7, vlog-V6). Idempotent.
    fn delete(&self, id: LogletId, config: &Bytes) -> BoxFuture<'_, Result<(), LogletError>>;

    /// The configuration in words: fields and values, for `atoll chain show`.
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
    /// None yet.
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
