//! The configuration of a trio loglet: the node that has each of the three roles.

use bytes::{Bytes, BytesMut};

use atoll_contract::{Offset, SealedConfig};
use atoll_core::{Decode, DecodeError, Encode, Incarnation, NodeId, Reader, StorageId};

/// Version of the byte form.
const FORMAT: u8 = 1;

/// The three nodes. One node may have several of the roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrioConfig {
    /// The clerk: a node, and one life of that node (native-T6).
    pub clerk: (NodeId, Incarnation),
    /// The store: a node, and the identity of its data directory (native-T8).
    pub store: (NodeId, StorageId),
    /// The mirror: a node, and the identity of its data directory (native-T8).
    pub mirror: (NodeId, StorageId),
}

impl Encode for TrioConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.clerk.encode(out);
        self.store.encode(out);
        self.mirror.encode(out);
    }
}

impl Decode for TrioConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => Ok(TrioConfig {
                clerk: Decode::decode(from)?,
                store: Decode::decode(from)?,
                mirror: Decode::decode(from)?,
            }),
            n => Err(DecodeError::Invalid {
                what: "version of a trio loglet's configuration",
                value: n.into(),
                allowed: "1",
            }),
        }
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<TrioConfig, DecodeError> {
    TrioConfig::from_bytes(config.clone())
}

/// Returns what readers of a sealed loglet need: where it ends. A handle with it knows that it may read from the mirror (vlog-L9).
pub(crate) fn sealed_at(tail: Offset) -> SealedConfig {
    tail.to_bytes()
}

/// Returns where a sealed loglet ends.
pub(crate) fn parse_sealed(sealed: &SealedConfig) -> Result<Offset, DecodeError> {
    Offset::from_bytes(sealed.clone())
}
