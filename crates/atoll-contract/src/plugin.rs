//! The interface through which a protocol joins a node. The node itself knows no protocol.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use atoll_core::{BoxFuture, Directory, Env, NodeCore, RoleKind, StorageId};

use crate::loglet::LogletProvider;

/// The node that a protocol joins.
#[derive(Clone)]
pub struct Host {
    /// Its executor, clock and transport.
    pub env: Env,
    /// The identity of its data directory.
    pub storage: StorageId,
    /// The members of the cluster as the node sees them.
    pub directory: Arc<dyn Directory>,
}

/// A named procedure that runs in the background as long as its node.
pub type Procedure = (&'static str, BoxFuture<'static, ()>);

/// What a protocol provides to its node.
#[derive(Default)]
pub struct Installed {
    /// Creates its Loglets, if it has any.
    pub loglets: Option<Arc<dyn LogletProvider>>,
    /// Procedures to start once the node has recovered.
    pub procedures: Vec<Procedure>,
}

/// A role of a protocol on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleName {
    /// Its number, in messages and in the journal. It never changes once a journal has records of it.
    pub id: RoleKind,
    /// Its name in errors, status and figures.
    pub name: &'static str,
}

/// A protocol as a plug-in: a crate of its own that joins a node through one line in the node's list.
///
/// ```
/// use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
/// use atoll_core::{Caller, Effects, Frame, Loc, Lsn, NodeCore, Role, RoleKind, Tick};
///
/// /// A role that answers nothing.
/// struct Mute;
///
/// impl Role for Mute {
///     fn on_frame(&mut self, _: Tick, _: Caller, _: Frame, _: &mut Effects) {}
///     fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
/// }
///
/// #[derive(Debug)]
/// struct MuteProtocol;
///
/// impl Protocol for MuteProtocol {
///     fn name(&self) -> &'static str {
///         "mute"
///     }
///
///     fn wire_ids(&self) -> Vec<std::ops::RangeInclusive<u16>> {
///         vec![9000..=9009]
///     }
///
///     fn roles(&self) -> &'static [RoleName] {
///         &[RoleName { id: RoleKind(90), name: "mute" }]
///     }
///
///     fn install(&self, core: &mut NodeCore, _: &Host) -> Installed {
///         core.add_role(RoleKind(90), Box::new(Mute));
///         Installed::default()
///     }
/// }
/// ```
pub trait Protocol: Send + Sync + fmt::Debug {
    /// Returns its name, which is also the kind of its Loglets, if it has any.
    fn name(&self) -> &'static str;

    /// Returns the numbers of its messages on the wire. No two protocols of a node share one.
    fn wire_ids(&self) -> Vec<RangeInclusive<u16>>;

    /// Returns its roles on a node. No two protocols of a node share an id.
    fn roles(&self) -> &'static [RoleName];

    /// Returns whether the first segment of a new log should be of this kind in a cluster of this many members, if nobody requests another
    /// kind. The node uses the first protocol in its list that returns true.
    fn is_first_choice(&self, _members: usize) -> bool {
        false
    }

    /// Adds its roles to a node's core, before the core recovers.
    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed;
}

/// Two protocols of one node claim the same thing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the protocols {one:?} and {other:?} both claim {what}")]
pub struct Clash {
    /// One of them.
    pub one: &'static str,
    /// The other.
    pub other: &'static str,
    /// What they claim.
    pub what: String,
}

/// Refuses protocols that share a name, a message number or a role id.
pub fn check(protocols: &[&dyn Protocol]) -> Result<(), Clash> {
    for (i, one) in protocols.iter().enumerate() {
        for other in &protocols[..i] {
            let clash = |what| Err(Clash { one: other.name(), other: one.name(), what });
            if one.name() == other.name() {
                return clash("the name".to_owned());
            }
            if let Some(role) = one.roles().iter().find(|r| other.roles().iter().any(|o| o.id == r.id)) {
                return clash(role.id.to_string());
            }
            let overlaps = |a: &RangeInclusive<u16>, b: &RangeInclusive<u16>| {
                a.start() <= b.end() && b.start() <= a.end()
            };
            let (ids, theirs) = (one.wire_ids(), other.wire_ids());
            if let Some(range) = ids.iter().find(|range| theirs.iter().any(|o| overlaps(range, o))) {
                return clash(format!("messages {} to {}", range.start(), range.end()));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Claims(&'static str, RangeInclusive<u16>, &'static [RoleName]);

    impl Protocol for Claims {
        fn name(&self) -> &'static str {
            self.0
        }

        fn wire_ids(&self) -> Vec<RangeInclusive<u16>> {
            vec![self.1.clone()]
        }

        fn roles(&self) -> &'static [RoleName] {
            self.2
        }

        fn install(&self, _: &mut NodeCore, _: &Host) -> Installed {
            Installed::default()
        }
    }

    #[test]
    fn protocols_that_claim_the_same_are_refused_by_name() {
        const ROLE: RoleName = RoleName { id: RoleKind(70), name: "keeper" };
        let a = Claims("a", 100..=199, &[ROLE]);
        let clash = |b: &Claims| check(&[&a, b]).unwrap_err().to_string();
        assert_eq!(check(&[&a, &Claims("b", 200..=299, &[])]), Ok(()));
        assert_eq!(
            clash(&Claims("b", 199..=300, &[])),
            "the protocols \"a\" and \"b\" both claim messages 199 to 300"
        );
        assert!(clash(&Claims("b", 200..=299, &[ROLE])).ends_with("both claim role 70"));
        assert!(clash(&Claims("a", 200..=299, &[])).ends_with("both claim the name"));
    }
}
