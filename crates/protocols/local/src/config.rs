//! The configuration of a LocalLoglet: a node and its data directory.

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, NodeId, Reader, StorageId};

/// Version of the byte form.
const FORMAT: u8 = 1;

/// The node that stores the loglet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalConfig {
    /// The node.
    pub node: NodeId,
    /// The identity of its data directory: a wiped directory must not answer for data that it lost (native-T8).
    pub storage: StorageId,
}

impl Encode for LocalConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.node.encode(out);
        self.storage.encode(out);
    }
}

impl Decode for LocalConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => Ok(LocalConfig { node: NodeId::decode(from)?, storage: StorageId::decode(from)? }),
            n => Err(DecodeError::Invalid {
                what: "version of a local loglet's configuration",
                value: n.into(),
                allowed: "1",
            }),
        }
    }
}

pub(crate) fn parse(config: &Bytes) -> Result<LocalConfig, DecodeError> {
    LocalConfig::from_bytes(config.clone())
}
