//! The interface through which a protocol joins a node. The node itself knows no protocol.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use atoll_core::testing::{Listed, Mutant};
use atoll_core::{BoxFuture, DecodeError, Directory, Env, Format, NodeCore, RoleKind, StorageId};

use crate::cluster::Cluster;
use crate::keyspace::KeyspaceProvider;
use crate::loglet::{Duties, Kinds, LogletProvider, PartLoglet};
use crate::place::{Place, PlaceError, Scheme};
use crate::register::{ClusterRegisters, Versioned};

/// The numbers of messages that belong to the core and to the table of members.
pub const CORE_WIRE_IDS: RangeInclusive<u16> = 1..=99;

/// The node that a protocol joins.
#[derive(Clone)]
pub struct Host {
    /// Its executor, clock and transport.
    pub env: Env,
    /// The identity of its data directory.
    pub storage: StorageId,
    /// The members of the cluster as the node sees them, for placing Loglets.
    pub directory: Arc<dyn Directory>,
    /// The cluster as the node sees it, for procedures that choose a group of members.
    pub cluster: Arc<dyn Cluster>,
    /// The kinds of Loglets of the node, for a kind whose Loglets are made of others. They are known once all protocols are installed.
    pub kinds: Kinds,
    /// How often background procedures look at the cluster without a notification.
    pub look_every: Duration,
}

/// A named procedure that runs in the background as long as its node.
pub type Procedure = (&'static str, BoxFuture<'static, ()>);

/// What a protocol provides to its node.
#[derive(Default)]
pub struct Installed {
    /// Creates its Loglets, if it has any.
    pub loglets: Option<Arc<dyn LogletProvider>>,
    /// Its registers, if it has any.
    pub registers: Option<Arc<dyn ClusterRegisters>>,
    /// Creates its keyspaces, if it has any.
    pub keyspaces: Option<Arc<dyn KeyspaceProvider>>,
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

/// A protocol as a plug-in: a crate of its own that joins a node through one line in the list of protocols.
///
/// ```
/// use atoll_contract::plugin::{Host, Installed, Protocol, RoleName};
/// use atoll_core::{Caller, Effects, Format, Frame, Loc, Lsn, NodeCore, Role, RoleKind, Tick};
///
/// atoll_core::message! {
///     /// Its only message. It gets no answer.
///     pub struct Whisper = 9000 {}
/// }
///
/// /// A role that answers nothing.
/// struct Mute;
///
/// impl Role for Mute {
///     fn on_frame(&mut self, _: Tick, _: Caller, _: Frame, _: &mut Effects) {}
///     fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
/// }
///
/// #[derive(Clone, Debug)]
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
///     fn formats(&self) -> Vec<Format> {
///         vec![Format::message::<Whisper>()]
///     }
///
///     fn install(&self, core: &mut NodeCore, _: &Host) -> Installed {
///         core.add_role(RoleKind(90), Box::new(Mute));
///         Installed::default()
///     }
///
///     fn boxed(&self) -> Box<dyn Protocol> {
///         Box::new(self.clone())
///     }
/// }
///
/// let protocols = atoll_contract::plugin::Protocols::new(vec![MuteProtocol.boxed()]);
/// assert!(protocols.check().is_ok());
/// ```
pub trait Protocol: Send + Sync + fmt::Debug {
    /// Returns its name, which is also the kind of its Loglets, if it has any.
    fn name(&self) -> &'static str;

    /// Returns the numbers of its messages on the wire. No two protocols of a node share one.
    fn wire_ids(&self) -> Vec<RangeInclusive<u16>>;

    /// Returns its roles on a node. No two protocols of a node share an id.
    fn roles(&self) -> &'static [RoleName];

    /// Returns the formats of its messages and of what it stores.
    fn formats(&self) -> Vec<Format>;

    /// Returns which node does what for a Loglet with this configuration, like [`LogletProvider::duties`], for tools without a node.
    fn duties(&self, _config: &Bytes) -> Duties {
        Duties::default()
    }

    /// Returns the Loglets that a Loglet with this configuration is made of. Empty for a kind that keeps entries itself.
    fn parts(&self, _config: &Bytes) -> Vec<PartLoglet> {
        Vec::new()
    }

    /// Returns the known bugs that tests can switch on in it.
    fn mutants(&self) -> &'static [Mutant] {
        &[]
    }

    /// Returns the situations that a long run of the simulator must reach.
    fn coverage(&self) -> &'static [Listed] {
        &[]
    }

    /// Returns a new oracle that checks its invariants from outside of the nodes, if it has one. One oracle sees one run.
    #[cfg(feature = "testing")]
    fn oracle(&self) -> Option<Box<dyn crate::testing::Oracle>> {
        None
    }

    /// Changes a setting. Returns false if it has no setting with this name, or the value is too large for it.
    fn set(&mut self, _setting: &str, _value: u64) -> bool {
        false
    }

    /// Returns whether the first segment of a new log should be of this kind in a cluster of this many members, if nobody requests another
    /// kind. The node uses the first protocol in its list that returns true.
    fn is_first_choice(&self, _members: usize) -> bool {
        false
    }

    /// Returns the registers in a checkpoint of one of its roles, by name, with the newest state that this node alone knows of each. It may
    /// have been overwritten since, or never have been chosen. Empty for a role that keeps no registers.
    ///
    /// # Errors
    /// The checkpoint cannot be decoded.
    fn registers_in(
        &self,
        _role: RoleKind,
        _checkpoint: Bytes,
    ) -> Result<BTreeMap<String, Versioned>, DecodeError> {
        Ok(BTreeMap::new())
    }

    /// Returns the schemes of URLs at which it can keep registers outside of the cluster. No two protocols of a node share one.
    fn schemes(&self) -> &'static [Scheme] {
        &[]
    }

    /// Reads the URL of a place for registers: one of its schemes, and what follows `://`. Contacts nothing.
    ///
    /// # Errors
    /// Registers cannot be there.
    fn place(&self, scheme: &str, _rest: &str) -> Result<Box<dyn Place>, PlaceError> {
        Err(PlaceError::Scheme(format!("not {scheme}")))
    }

    /// Adds its roles to a node's core, before the core recovers.
    fn install(&self, core: &mut NodeCore, host: &Host) -> Installed;

    /// Returns a copy of it, with the same settings.
    fn boxed(&self) -> Box<dyn Protocol>;
}

/// Sets a number of any type, for [`Protocol::set`]. Returns false if the type has no such number.
pub fn set_to<T: TryFrom<u64>>(setting: &mut T, value: u64) -> bool {
    T::try_from(value).map(|value| *setting = value).is_ok()
}

/// Two protocols of one node claim the same thing, or one of them claims something of the core.
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

/// A list of protocols with their settings. Where there is a choice, a node uses the first suitable one.
#[derive(Debug, Default)]
pub struct Protocols(Vec<Box<dyn Protocol>>);

impl Clone for Protocols {
    fn clone(&self) -> Self {
        Protocols(self.iter().map(Protocol::boxed).collect())
    }
}

impl Protocols {
    /// Creates a list of these protocols.
    pub fn new(protocols: Vec<Box<dyn Protocol>>) -> Self {
        Protocols(protocols)
    }

    /// Returns this list with another protocol at its end.
    pub fn with(mut self, protocol: impl Protocol + 'static) -> Self {
        self.0.push(Box::new(protocol));
        self
    }

    /// Returns the protocols in their order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Protocol> {
        self.0.iter().map(|protocol| &**protocol)
    }

    /// Changes a setting of every protocol that has it. Returns how many do.
    pub fn set(&mut self, setting: &str, value: u64) -> usize {
        self.0.iter_mut().map(|protocol| usize::from(protocol.set(setting, value))).sum()
    }

    /// Returns which node does what for a Loglet of a kind. Empty if no protocol has this kind, or the configuration cannot be decoded.
    pub fn duties(&self, kind: &str, config: &Bytes) -> Duties {
        let Some(protocol) = self.iter().find(|protocol| protocol.name() == kind) else {
            return Duties::default();
        };
        let of_parts = protocol.parts(config).into_iter().map(|part| self.duties(&part.kind, &part.config));
        Duties::of_parts(std::iter::once(protocol.duties(config)).chain(of_parts))
    }

    /// Returns the kind of the first segment of a new log in a cluster of this many members. None if no protocol suits.
    pub fn first_choice(&self, members: usize) -> Option<&'static str> {
        self.iter().find(|protocol| protocol.is_first_choice(members)).map(Protocol::name)
    }

    /// Refuses protocols that share a name, a message number or a role id.
    pub fn check(&self) -> Result<(), Clash> {
        for (i, one) in self.iter().enumerate() {
            if let Some(range) = one.wire_ids().into_iter().find(|range| overlaps(range, &CORE_WIRE_IDS)) {
                let what = format!("messages {} to {}", range.start(), range.end());
                return Err(Clash { one: "the core", other: one.name(), what });
            }
            for other in self.iter().take(i) {
                if let Some(what) = shared(one, other) {
                    return Err(Clash { one: other.name(), other: one.name(), what });
                }
            }
        }
        Ok(())
    }
}

fn overlaps(a: &RangeInclusive<u16>, b: &RangeInclusive<u16>) -> bool {
    a.start() <= b.end() && b.start() <= a.end()
}

/// Returns what both protocols claim, if there is anything.
fn shared(one: &dyn Protocol, other: &dyn Protocol) -> Option<String> {
    if one.name() == other.name() {
        return Some("the name".to_owned());
    }
    if let Some(role) = one.roles().iter().find(|r| other.roles().iter().any(|o| o.id == r.id)) {
        return Some(role.id.to_string());
    }
    let served = |scheme: &&Scheme| other.schemes().iter().any(|theirs| theirs.name == scheme.name);
    if let Some(scheme) = one.schemes().iter().find(served) {
        return Some(format!("URLs with the scheme {}", scheme.name));
    }
    let theirs = other.wire_ids();
    let range = one.wire_ids().into_iter().find(|range| theirs.iter().any(|o| overlaps(range, o)))?;
    Some(format!("messages {} to {}", range.start(), range.end()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[derive(Clone, Debug)]
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

        fn formats(&self) -> Vec<Format> {
            Vec::new()
        }

        fn install(&self, _: &mut NodeCore, _: &Host) -> Installed {
            Installed::default()
        }

        fn boxed(&self) -> Box<dyn Protocol> {
            Box::new(self.clone())
        }
    }

    #[test]
    fn protocols_that_claim_the_same_are_refused_by_name() {
        const ROLE: RoleName = RoleName { id: RoleKind(70), name: "keeper" };
        let a = Claims("a", 100..=199, &[ROLE]);
        let check = |b: Claims| Protocols::default().with(a.clone()).with(b).check();
        let clash = |b: Claims| check(b).unwrap_err().to_string();
        assert_eq!(check(Claims("b", 200..=299, &[])), Ok(()));
        assert_eq!(
            clash(Claims("b", 199..=300, &[])),
            "the protocols \"a\" and \"b\" both claim messages 199 to 300"
        );
        assert!(clash(Claims("b", 200..=299, &[ROLE])).ends_with("both claim role 70"));
        assert!(clash(Claims("a", 200..=299, &[])).ends_with("both claim the name"));
        assert_eq!(
            clash(Claims("b", 99..=99, &[])),
            "the protocols \"the core\" and \"b\" both claim messages 99 to 99"
        );
    }
}
