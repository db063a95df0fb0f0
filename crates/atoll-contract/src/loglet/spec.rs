//! What a Loglet is to be, and why there is no configuration for it.

use std::collections::BTreeMap;

use atoll_core::NodeId;

use super::LogletProvider;

/// What an operator or a policy requires of the next Loglet. The provider chooses everything else, usually as it was before.
///
/// Roles and options are the kind's own, and a refusal of a wrong one names those that it has. So a new protocol needs no
/// change of this type, nor of the public API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogletSpec {
    /// The kind of Loglet.
    pub kind: Option<String>,
    /// By role: exactly these nodes hold it.
    pub places: BTreeMap<String, Vec<NodeId>>,
    /// Options of the kind, by name.
    pub options: BTreeMap<String, String>,
    /// Not these nodes, if it can be helped: they are thought to have failed or are being drained.
    pub avoid: Vec<NodeId>,
}

impl LogletSpec {
    /// Of this kind, and otherwise as it was.
    pub fn of(kind: &str) -> Self {
        LogletSpec { kind: Some(kind.to_owned()), ..LogletSpec::default() }
    }

    /// The same, with exactly these nodes in a role.
    #[must_use]
    pub fn place(mut self, role: &str, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.places.insert(role.to_owned(), nodes.into_iter().collect());
        self
    }

    /// The same, without these nodes if it can be helped.
    #[must_use]
    pub fn avoiding(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.avoid.extend(nodes);
        self
    }

    /// The nodes wanted for a role; None if that is left to the provider.
    pub fn placed(&self, role: &str) -> Option<&[NodeId]> {
        self.places.get(role).map(Vec::as_slice)
    }

    /// All nodes that are wanted by name, each as often as it is named.
    pub fn named(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.places.values().flatten().copied()
    }

    /// Refuses roles and options that a kind does not have.
    pub fn check(&self, provider: &dyn LogletProvider, options: &[&'static str]) -> Result<(), PlanError> {
        let roles: Vec<&str> = provider.roles().iter().map(|r| r.name).collect();
        let unknown = |wanted: &String, what, known: &[&str]| {
            let (kind, wanted, known) = (provider.kind(), wanted.clone(), known.join(", "));
            Err(PlanError::Unknown { kind, what, wanted, known })
        };
        if let Some(wanted) = self.places.keys().find(|r| !roles.contains(&r.as_str())) {
            return unknown(wanted, "role", &roles);
        }
        if let Some(wanted) = self.options.keys().find(|o| !options.contains(&o.as_str())) {
            return unknown(wanted, "option", options);
        }
        Ok(())
    }
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
    /// The kind has no such role or option.
    #[error("a loglet of kind {kind:?} has no {what} {wanted:?}; it has: {known}")]
    Unknown {
        /// The kind.
        kind: &'static str,
        /// "role" or "option".
        what: &'static str,
        /// What was asked for.
        wanted: String,
        /// What there is.
        known: String,
    },
    /// Some of the nodes wanted did not answer.
    #[error("node {0} does not answer; name servers that are up (see `atoll status`)")]
    NodeDown(NodeId),
    /// Fewer servers answer than are needed: fewer than a majority, or one that never was a server of the log is missing.
    #[error(
        "{up} of {wanted} servers answer; a segment needs a majority of them, and the others must have been the log's before (see `atoll status`)"
    )]
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
