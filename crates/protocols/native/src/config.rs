//! The configuration of a NativeLoglet. It is fixed for the life of the loglet and kept in the virtual log's chain (native §1).

use bytes::{Bytes, BytesMut};

use atoll_core::{Decode, DecodeError, Encode, Incarnation, NodeId, Reader, StorageId};

/// Version of the byte form.
const FORMAT: u8 = 1;
/// Maximum number of servers of one loglet.
pub const MAX_SERVERS: usize = 9;

/// The servers that store entries, and the sequencer. All safety depends on the fact that any two majorities of the servers intersect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NativeConfig {
    /// LogServers: 1 to 9, an odd number, each with the identity of its data directory (native-T8).
    pub servers: Vec<(NodeId, StorageId)>,
    /// The sequencer: a node, and one life of that node (native-T6).
    pub sequencer: (NodeId, Incarnation),
}

impl NativeConfig {
    /// Creates a configuration. Fails if it breaks a rule.
    pub fn new(
        servers: Vec<(NodeId, StorageId)>,
        sequencer: (NodeId, Incarnation),
    ) -> Result<Self, DecodeError> {
        let n = servers.len();
        let invalid =
            |what, value: usize, allowed| DecodeError::Invalid { what, value: value as u64, allowed };
        if n == 0 || n > MAX_SERVERS || n.is_multiple_of(2) {
            return Err(invalid("servers of a native loglet", n, "1, 3, 5, 7 or 9"));
        }
        for (i, (node, _)) in servers.iter().enumerate() {
            if node.0 == 0 || servers[..i].iter().any(|(other, _)| other == node) {
                return Err(invalid(
                    "server of a native loglet",
                    node.0 as usize,
                    "nodes above 0, each once",
                ));
            }
        }
        if sequencer.0.0 == 0 {
            return Err(invalid("sequencer of a native loglet", 0, "a node above 0"));
        }
        Ok(NativeConfig { servers, sequencer })
    }

    /// Returns the number of servers that are a majority of all.
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Returns the nodes of the servers.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.servers.iter().map(|(node, _)| *node).collect()
    }

    /// Returns the data directory from which this node must serve the loglet.
    pub fn storage_of(&self, node: NodeId) -> Option<StorageId> {
        self.servers.iter().find(|(n, _)| *n == node).map(|(_, s)| *s)
    }
}

impl Encode for NativeConfig {
    fn encode(&self, out: &mut BytesMut) {
        FORMAT.encode(out);
        self.servers.encode(out);
        self.sequencer.encode(out);
    }
}

impl Decode for NativeConfig {
    fn decode(from: &mut Reader) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            FORMAT => {}
            n => {
                return Err(DecodeError::Invalid {
                    what: "version of a native loglet's configuration",
                    value: n.into(),
                    allowed: "1",
                });
            }
        }
        NativeConfig::new(Vec::decode(from)?, <(NodeId, Incarnation)>::decode(from)?)
    }
}

/// Decodes the byte form that is sent in messages and stored in the chain.
pub(crate) fn parse(config: &Bytes) -> Result<NativeConfig, DecodeError> {
    NativeConfig::from_bytes(config.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_rules_are_checked_on_every_road() {
        let s = |n: u32| (NodeId(n), StorageId(n.into()));
        let seq = (NodeId(1), Incarnation(7));
        let good = NativeConfig::new(vec![s(1), s(2), s(3)], seq).unwrap();
        let bytes = good.to_bytes();
        assert_eq!(NativeConfig::from_bytes(bytes.clone()).unwrap(), good);
        for n in 0..bytes.len() {
            assert!(NativeConfig::from_bytes(bytes.slice(..n)).is_err());
        }
        let bad = [
            vec![],
            vec![s(1), s(2)],
            vec![s(1), s(2), s(2)],
            vec![s(0), s(1), s(2)],
            (1..=11).map(s).collect::<Vec<_>>(),
        ];
        for servers in bad {
            let raw = NativeConfig { servers: servers.clone(), sequencer: seq };
            assert!(NativeConfig::new(servers, seq).is_err());
            assert!(NativeConfig::from_bytes(raw.to_bytes()).is_err());
        }
        let mut later = bytes.to_vec();
        later[0] = 2;
        assert!(NativeConfig::from_bytes(later.into()).is_err());
    }
}
