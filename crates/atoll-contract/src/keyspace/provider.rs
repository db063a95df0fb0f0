//! The provider that creates keyspaces of one engine.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use atoll_core::{BoxFuture, NodeId};

use super::{Durability, Keyspace, KeyspaceError, Layout};

/// What a user requires of a new keyspace. The provider chooses everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceSpec {
    /// The engine.
    pub engine: String,
    /// What survives what.
    pub durability: Durability,
    /// How many replicas each shard has.
    pub replicas: Option<u32>,
    /// How many shards there are.
    pub shards: Option<u32>,
    /// How many buckets each shard has.
    pub buckets: Option<u32>,
    /// Only these nodes hold replicas. All suitable ones if it is empty.
    pub nodes: Vec<NodeId>,
    /// Options of the engine, by name.
    pub options: BTreeMap<String, String>,
}

/// Why there is no layout for a specification. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyspacePlanError {
    /// No engine has this name.
    #[error("no engine {wanted:?}; known engines: {known}")]
    UnknownEngine {
        /// The requested engine.
        wanted: String,
        /// The known engines.
        known: String,
    },
    /// The engine has no such option.
    #[error("keyspaces of the engine {engine:?} have no option {wanted:?}; they have: {known}")]
    UnknownOption {
        /// The engine.
        engine: &'static str,
        /// The requested option.
        wanted: String,
        /// The known options.
        known: String,
    },
    /// Too few nodes answer.
    #[error("{up} suitable nodes answer, and {wanted} replicas are requested (see `atoll status`)")]
    TooFew {
        /// How many answered.
        up: usize,
        /// How many replicas are requested.
        wanted: usize,
    },
    /// The engine does not move replicas.
    #[error("keyspaces of the engine {engine:?} stay on the nodes on which they were created")]
    CannotMove {
        /// The engine.
        engine: String,
    },
    /// The specification contradicts the rules of the engine.
    #[error("{what}: {allowed}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
}

/// Creates keyspaces of one engine.
pub trait KeyspaceProvider: Send + Sync + fmt::Debug {
    /// Returns the name of the engine in layouts and specifications.
    fn engine(&self) -> &'static str;

    /// Returns a layout that satisfies `spec`, with a new identity and epoch 1. Nothing is created yet.
    fn plan<'a>(&'a self, spec: &'a KeyspaceSpec) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>>;

    /// Tells the replicas of a layout that they belong to it. Idempotent. This is only an optimisation: replicas also learn of it from
    /// the first client.
    fn provision<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>>;

    /// Returns a handle to a keyspace. Cheap; no server is contacted.
    fn open(&self, layout: &Layout) -> Arc<dyn Keyspace>;

    /// Deletes the replicas of a keyspace, up to this epoch, and leaves tombstones. On return, every replica that can still come back
    /// has deleted its part, or a majority of each shard has, so that no rest of it can serve. Idempotent.
    fn delete<'a>(&'a self, layout: &'a Layout) -> BoxFuture<'a, Result<(), KeyspaceError>>;

    /// Returns a layout that moves the shards to replicas that `spec` describes, one after the other. Only the number of replicas, the
    /// nodes and the options of the specification count. The present replicas serve until
    /// [`step`](KeyspaceProvider::step) has moved their shard.
    fn plan_move<'a>(
        &'a self,
        layout: &'a Layout,
        _spec: &'a KeyspaceSpec,
    ) -> BoxFuture<'a, Result<Layout, KeyspacePlanError>> {
        let engine = layout.engine.clone();
        Box::pin(std::future::ready(Err(KeyspacePlanError::CannotMove { engine })))
    }

    /// Does the next step of a move. Returns the layout that the caller must write into the register then, if nobody else has written it;
    /// None if nothing moves. Idempotent: any node may do any step, several at the same time, and again after a failure.
    fn step<'a>(&'a self, _layout: &'a Layout) -> BoxFuture<'a, Result<Option<Layout>, KeyspaceError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Returns how many shards of a layout are still to move.
    fn left_to_move(&self, _layout: &Layout) -> usize {
        0
    }

    /// Returns every node that holds something of a keyspace, or is about to, in the order of their ids. During a move, these are more than
    /// those of the shards.
    fn nodes(&self, layout: &Layout) -> Vec<NodeId> {
        layout.nodes()
    }

    /// Returns the nodes that currently serve a shard, if the engine has leaders: for placement and figures. It is only a belief.
    fn leaders(&self, _layout: &Layout) -> Vec<Option<NodeId>> {
        Vec::new()
    }
}
