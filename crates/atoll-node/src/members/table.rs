//! The table of members, which is the value of one register.

use std::collections::BTreeMap;

use atoll_core::{Decode, DecodeError, Encode, Identity, NodeId, StorageId};
use bytes::{Bytes, BytesMut};

/// The register that holds the table.
pub const REGISTER: &str = "cluster/members";
/// The maximum number of members of a cluster.
pub const MAX_MEMBERS: usize = 64;
/// The nodes only. This format is written while the table lists no expected roles.
const FORMAT: u8 = 1;
/// The nodes, followed by the expected roles.
const FORMAT_WITH_EXPECTED: u8 = 2;

atoll_core::record! {
    /// One member.
    pub struct Member {
        /// Its address for peers, as host:port.
        pub peer: String,
        /// Its address for clients, as host:port.
        pub grpc: String,
        /// Its address for metrics, as host:port; empty if it serves none.
        pub metrics: String,
        /// The storage identity of its data directory; 0 until it has joined.
        pub storage: StorageId,
        /// Whether it stores entries.
        pub log: bool,
        /// Whether it orders appends.
        pub sequencer: bool,
        /// Whether it stores registers.
        pub meta: bool,
        /// Whether an operator wants it to be emptied.
        pub draining: bool,
    }
}

impl Member {
    /// Returns the row of a member that was added but has not joined yet. It has no roles.
    pub fn to_come(peer: String) -> Self {
        Member {
            peer,
            grpc: String::new(),
            metrics: String::new(),
            storage: StorageId(0),
            log: false,
            sequencer: false,
            meta: false,
            draining: false,
        }
    }

    /// Returns its roles.
    pub fn roles(&self) -> RoleSet {
        RoleSet { log: self.log, sequencer: self.sequencer, meta: self.meta }
    }

    /// Whether the member has joined.
    pub fn has_joined(&self) -> bool {
        self.storage.0 != 0
    }

    /// Returns the row of a node with this identity and these addresses.
    pub fn of(identity: &Identity, peer: String, grpc: String, metrics: String) -> Self {
        Member {
            peer,
            grpc,
            metrics,
            storage: identity.storage,
            log: identity.log,
            sequencer: identity.sequencer,
            meta: identity.meta,
            draining: false,
        }
    }
}

atoll_core::record! {
    /// The roles of a member.
    pub struct RoleSet {
        /// Whether it stores entries.
        pub log: bool,
        /// Whether it orders appends.
        pub sequencer: bool,
        /// Whether it stores registers.
        pub meta: bool,
    }
}

impl RoleSet {
    /// Returns the roles with these names, or None if one of them is not the name of a role.
    pub fn named(names: &[String]) -> Option<Self> {
        let mut set = RoleSet { log: false, sequencer: false, meta: false };
        for name in names {
            match name.as_str() {
                "log" => set.log = true,
                "sequencer" => set.sequencer = true,
                "meta" => set.meta = true,
                _ => return None,
            }
        }
        Some(set)
    }

    /// Returns the names of the roles.
    pub fn names(&self) -> Vec<&'static str> {
        let all = [(self.log, "log"), (self.sequencer, "sequencer"), (self.meta, "meta")];
        all.into_iter().filter(|(has, _)| *has).map(|(_, name)| name).collect()
    }
}

impl std::fmt::Display for RoleSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.names();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(","))
    }
}

/// The members of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberTable {
    /// The version of its register; 0 if the table comes from the configuration file.
    pub version: u64,
    /// The members by id.
    pub nodes: BTreeMap<NodeId, Member>,
    /// The roles that members must join with, if an operator named them. The row of such a member has no roles until it has joined, so that
    /// nothing is placed on a node that does not exist yet.
    pub expected: BTreeMap<NodeId, RoleSet>,
}

impl MemberTable {
    /// Encodes the table as the value of its register.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        if self.expected.is_empty() {
            FORMAT.encode(&mut out);
            self.nodes.encode(&mut out);
        } else {
            FORMAT_WITH_EXPECTED.encode(&mut out);
            self.nodes.encode(&mut out);
            self.expected.encode(&mut out);
        }
        out.freeze()
    }

    /// Decodes the value of the register. Bytes after these fields belong to a later version and are ignored, so that a member whose
    /// program was rolled back can still use the value (X28).
    pub fn decode(version: u64, value: Bytes) -> Result<Self, DecodeError> {
        let mut from = atoll_core::Reader::new(value);
        let format = u8::decode(&mut from)?;
        if !matches!(format, FORMAT | FORMAT_WITH_EXPECTED) {
            let allowed = "1 or 2";
            return Err(DecodeError::Invalid { what: "member table format", value: format.into(), allowed });
        }
        let nodes: BTreeMap<NodeId, Member> = BTreeMap::decode(&mut from)?;
        let expected = match format {
            FORMAT => BTreeMap::new(),
            _ => BTreeMap::decode(&mut from)?,
        };
        if nodes.len().max(expected.len()) > MAX_MEMBERS {
            return Err(DecodeError::Invalid {
                what: "member table",
                value: nodes.len() as u64,
                allowed: "at most 64 members",
            });
        }
        Ok(MemberTable { version, nodes, expected })
    }
}
