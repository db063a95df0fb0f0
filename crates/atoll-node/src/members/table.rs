//! The table of members, one value in a register of the MetaStore.

use std::collections::BTreeMap;

use atoll_core::{Decode, DecodeError, Encode, Identity, NodeId, StorageId};
use bytes::{Bytes, BytesMut};

/// The register that holds the table.
pub const REGISTER: &str = "cluster/members";
/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 64;
const FORMAT: u8 = 1;

atoll_core::record! {
    /// One member.
    pub struct Member {
        /// Where its peers reach it: host:port.
        pub peer: String,
        /// Where its clients reach it: host:port.
        pub grpc: String,
        /// Where its metrics are read: host:port; empty if nowhere.
        pub metrics: String,
        /// Its data directory; 0 until it has joined.
        pub storage: StorageId,
        /// It holds entries.
        pub log: bool,
        /// It orders appends.
        pub sequencer: bool,
        /// It holds registers.
        pub meta: bool,
        /// An operator wants it empty.
        pub draining: bool,
    }
}

impl Member {
    /// The row of a node with these addresses.
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

/// Who belongs to the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberTable {
    /// The version of its register; 0 for what the configuration file says.
    pub version: u64,
    /// The members by id.
    pub nodes: BTreeMap<NodeId, Member>,
}

impl MemberTable {
    /// The value for the register.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        FORMAT.encode(&mut out);
        self.nodes.encode(&mut out);
        out.freeze()
    }

    /// Reads the register's value.
    pub fn decode(version: u64, value: Bytes) -> Result<Self, DecodeError> {
        let mut from = atoll_core::Reader::new(value);
        let format = u8::decode(&mut from)?;
        if format != FORMAT {
            return Err(DecodeError::Invalid {
                what: "member table format",
                value: format.into(),
                allowed: "1",
            });
        }
        let nodes: BTreeMap<NodeId, Member> = BTreeMap::decode(&mut from)?;
        from.finish("member table")?;
        if nodes.len() > MAX_MEMBERS {
            return Err(DecodeError::Invalid {
                what: "member table",
                value: nodes.len() as u64,
                allowed: "at most 64 members",
            });
        }
        Ok(MemberTable { version, nodes })
    }
}
