//! The specification of a new Loglet, and the reasons why there is no configuration for it.

use std::collections::{BTreeMap, BTreeSet};

use atoll_core::{NodeId, StorageId};

use super::LogletProvider;

/// What an operator or a policy requires of the next Loglet. The provider chooses everything else, usually as it was before.
///
/// Each kind has its own roles and options, and the error for a wrong one lists them. A new protocol therefore requires no change to this
/// type or to the public API.
///
/// If a kind has parts, such as stripes, chains or shards, a role or an option may be that of one part: `3/server` is the role `server` of
/// part `3`. Parts nest, so `3/0/server` is a role of a part of a part. [`LogletSpec::of_part`] returns what a part must satisfy, which may
/// be the specification of a Loglet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogletSpec {
    /// The kind of Loglet.
    pub kind: Option<String>,
    /// For each role, exactly these nodes have it.
    pub places: BTreeMap<String, Vec<NodeId>>,
    /// Options of the kind, by name.
    pub options: BTreeMap<String, String>,
    /// Nodes to avoid if possible, because they seem to have failed or are being drained.
    pub avoid: Vec<NodeId>,
    /// For each role, nodes to avoid in it if possible, for example because they have it in another part of the same Loglet.
    pub avoid_in: BTreeMap<String, Vec<NodeId>>,
    /// The nodes that hold entries of the log's newest Loglets, of whatever kinds, with the identities of their data directories. One that
    /// does not answer may still be chosen: a Loglet with a majority that is up works without it. The log fills this in.
    pub held: Vec<(NodeId, StorageId)>,
}

impl LogletSpec {
    /// Returns a specification of this kind, with everything else left to the provider.
    pub fn of(kind: &str) -> Self {
        LogletSpec { kind: Some(kind.to_owned()), ..LogletSpec::default() }
    }

    /// Adds that exactly these nodes have a role.
    #[must_use]
    pub fn place(mut self, role: &str, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.places.insert(role.to_owned(), nodes.into_iter().collect());
        self
    }

    /// Adds nodes to avoid if possible.
    #[must_use]
    pub fn avoiding(mut self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        self.avoid.extend(nodes);
        self
    }

    /// Returns the nodes for a role; None if that is left to the provider.
    pub fn placed(&self, role: &str) -> Option<&[NodeId]> {
        self.places.get(role).map(Vec::as_slice)
    }

    /// Returns whether to avoid a node in a role if possible.
    pub fn avoids_in(&self, role: &str, node: NodeId) -> bool {
        self.avoid_in.get(role).is_some_and(|nodes| nodes.contains(&node))
    }

    /// Returns the data directory of a node that holds entries of one of the newest Loglets.
    pub fn held_by(&self, node: NodeId) -> Option<StorageId> {
        self.held.iter().find(|(holder, _)| *holder == node).map(|(_, storage)| *storage)
    }

    /// Returns all nodes that the specification names, each as often as it is named.
    pub fn named(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.places.values().flatten().copied()
    }

    /// Returns the specification of one part: its roles and options without its name, and the nodes to avoid. Its kind is left open.
    pub fn of_part(&self, part: &str) -> Self {
        let inside = |name: &String| Some(name.strip_prefix(part)?.strip_prefix('/')?.to_owned());
        let of_roles = |roles: &BTreeMap<String, Vec<NodeId>>| {
            roles.iter().filter_map(|(role, nodes)| Some((inside(role)?, nodes.clone()))).collect()
        };
        LogletSpec {
            kind: None,
            places: of_roles(&self.places),
            options: self.options.iter().filter_map(|(o, v)| Some((inside(o)?, v.clone()))).collect(),
            avoid: self.avoid.clone(),
            avoid_in: of_roles(&self.avoid_in),
            held: self.held.clone(),
        }
    }

    /// Returns what the specification says about the Loglet as a whole, and the names of the parts that it says something about.
    pub fn split_parts(&self) -> (Self, Vec<&str>) {
        let mut whole = self.clone();
        whole.places.retain(|role, _| !role.contains('/'));
        whole.avoid_in.retain(|role, _| !role.contains('/'));
        whole.options.retain(|option, _| !option.contains('/'));
        let names = self.places.keys().chain(self.options.keys());
        let parts: BTreeSet<&str> = names.filter_map(|name| Some(name.split_once('/')?.0)).collect();
        (whole, parts.into_iter().collect())
    }

    /// Checks that the kind has all these roles and options. A kind with parts checks what [`LogletSpec::split_parts`] returns, and then
    /// each part.
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
    /// The kind has no such role or option.
    #[error("a loglet of kind {kind:?} has no {what} {wanted:?}; it has: {known}")]
    Unknown {
        /// The kind.
        kind: &'static str,
        /// "role" or "option".
        what: &'static str,
        /// The requested role or option.
        wanted: String,
        /// The roles or options of the kind.
        known: String,
    },
    /// One of the requested nodes did not answer.
    #[error("node {0} does not answer; name servers that are up (see `atoll status`)")]
    NodeDown(NodeId),
    /// Too few servers answer where a majority is enough: fewer than that, or one is missing that was never a server of the log.
    #[error(
        "{up} of {wanted} servers answer; a segment needs a majority of them, and the others must have been the log's before (see `atoll status`)"
    )]
    TooFew {
        /// The number of servers that answered.
        up: usize,
        /// The number of servers of the segment.
        wanted: usize,
    },
    /// Too few nodes answer for a role of which each node is needed, such as the units of a chain.
    #[error(
        "a segment needs {wanted} nodes for the role {role:?}, all of them up; {up} answer (see `atoll status`)"
    )]
    Missing {
        /// The role.
        role: &'static str,
        /// The number of nodes that answered and suit the role.
        up: usize,
        /// The number of nodes that are needed.
        wanted: usize,
    },
    /// The specification contradicts the kind's rules.
    #[error("{what}: {allowed}")]
    Invalid {
        /// What is wrong.
        what: &'static str,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A configuration in the chain cannot be decoded.
    #[error("a loglet configuration in the chain is not readable: {0}")]
    Unreadable(#[from] atoll_core::DecodeError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_of_stripes_is_one_of_each_stripe() {
        let nodes = |ids: &[u32]| ids.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
        let mut spec = LogletSpec::of("kind").place("0/server", nodes(&[1, 2, 3])).avoiding([NodeId(9)]);
        spec = spec
            .place("1/server", nodes(&[3, 4, 5]))
            .place("1/0/unit", nodes(&[7]))
            .place("orderer", nodes(&[6]));
        spec.options.insert("1/window".to_owned(), "64".to_owned());
        let (whole, parts) = spec.split_parts();
        assert_eq!(whole, LogletSpec::of("kind").place("orderer", nodes(&[6])).avoiding([NodeId(9)]));
        assert_eq!(parts, ["0", "1"]);
        let one = spec.of_part("1");
        assert_eq!(one.placed("server"), Some(&*nodes(&[3, 4, 5])));
        assert_eq!(one.options["window"], "64");
        assert_eq!((one.of_part("0").placed("unit"), one.avoid), (Some(&*nodes(&[7])), nodes(&[9])));
        assert_eq!(spec.of_part("10").places, BTreeMap::new(), "a name is not the beginning of another");
    }
}
