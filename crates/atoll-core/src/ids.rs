//! The ids of nodes, lives, data directories, roles and records. Each is a newtype, so that one cannot be passed for another.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $format:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.0)
            }
        }

        impl crate::codec::Encode for $name {
            fn encode(&self, out: &mut bytes::BytesMut) {
                self.0.encode(out);
            }
        }

        impl crate::codec::Decode for $name {
            fn decode(from: &mut crate::codec::Reader) -> Result<Self, crate::codec::DecodeError> {
                Ok(Self(<$inner>::decode(from)?))
            }
        }
    };
}

id!(
    /// The id of a member of the cluster. The operator chooses it, and it is stable across restarts; 0 stands for no node.
    NodeId(u32),
    "{}"
);
id!(
    /// The number of one life of a node's process. It is drawn at random at start and never used again (rmw-T5, native-T6).
    Incarnation(u64),
    "{:016x}"
);
id!(
    /// The identity of a data directory, written into a marker file before its first use (native-T8). A wiped
    /// disk has a new one.
    StorageId(u128),
    "{:032x}"
);
id!(
    /// The role of a node that a message is for. Constants are in [`roles`].
    RoleKind(u8),
    "role {}"
);

/// The roles that every node has. A protocol's roles are in its own crate.
pub mod roles {
    use super::RoleKind;
    /// No role. It is the target of replies, which are matched by their request instead.
    pub const NONE: RoleKind = RoleKind(0);
    /// The member role: identity, incarnation, members.
    pub const MEMBER: RoleKind = RoleKind(5);
}

/// Nanoseconds on this node's monotonic clock. Ticks are never compared across nodes and never sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tick(pub u64);

impl Tick {
    /// Returns the tick `d` after this one, or the last tick if that is too far.
    #[must_use]
    pub fn after(self, d: std::time::Duration) -> Tick {
        Tick(self.0.saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the time since `earlier`, or zero if `earlier` is in the future.
    #[must_use]
    pub fn since(self, earlier: Tick) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

id!(
    /// A position in the order in which a node's roles stage records and cells: strictly increasing over the life of a data directory,
    /// restarts included. "Durable up to n" includes n. On a node without cells, it is the number of a record in the journal. With cells,
    /// it is that number plus the number of cells that were written before.
    Lsn(u64),
    "lsn {}"
);

impl Lsn {
    /// A number below every record. An answer with it reveals nothing that is only staged.
    pub const NONE: Lsn = Lsn(0);
}
