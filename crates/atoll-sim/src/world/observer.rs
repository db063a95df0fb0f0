//! What oracles see: frames on the wire, batches on the disks, starts and deaths of nodes. They see nothing inside a node.

use atoll_contract::testing;
use atoll_core::{Class, Envelope, Frame, Incarnation, Lsn, NodeId, Record, RoleKind, StorageId};
use bytes::Bytes;

pub use atoll_contract::testing::Violations;

/// One life of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Index of the host, from 0.
    pub host: usize,
    /// Its node id.
    pub node: NodeId,
    /// Number of this life, from 1.
    pub life: u64,
    /// Drawn for this life.
    pub incarnation: Incarnation,
    /// The identity of its data directory.
    pub storage: StorageId,
}

impl From<&Who> for testing::Who {
    fn from(who: &Who) -> Self {
        testing::Who { node: who.node, life: who.life, storage: who.storage }
    }
}

/// A frame that has been sent. The request number of a reply is the one that the asker assigned.
#[derive(Clone, Copy, Debug)]
pub struct OnWire<'a> {
    /// Virtual time in ns.
    pub at: u64,
    /// The sender.
    pub from: &'a Who,
    /// The receiver.
    pub to: NodeId,
    /// In a reply, the life of the receiver that sent the request.
    pub to_life: Option<u64>,
    /// The class of the connection.
    pub class: Class,
    /// The message.
    pub envelope: &'a Envelope,
}

impl OnWire<'_> {
    /// The message itself.
    pub fn frame(&self) -> &Frame {
        &self.envelope.frame
    }
}

impl<'a> From<OnWire<'a>> for testing::OnWire<'a> {
    fn from(wire: OnWire<'a>) -> Self {
        let OnWire { to, to_life, envelope, .. } = wire;
        testing::OnWire { from: wire.from.into(), to, to_life, envelope }
    }
}

/// What recovery found on a disk. It may include records of which the node never learned that they were synced.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The parts of the checkpoint. They may contain facts that were only staged when it was written.
    pub checkpoint: Vec<(RoleKind, Bytes)>,
    /// The journal records, in order.
    pub records: Vec<(Lsn, Record)>,
}

/// Observes the world from outside of the nodes.
pub trait Observer: Send {
    /// A frame leaves a node. This includes frames that a node sends to itself.
    fn sent(&mut self, _frame: OnWire<'_>, _verdict: &mut Violations) {}

    /// Journal records became durable.
    fn synced(&mut self, _at: u64, _who: &Who, _records: &[(Lsn, Record)], _verdict: &mut Violations) {}

    /// A node has started and recovered this from its journal.
    fn booted(&mut self, _at: u64, _who: &Who, _found: &Found, _verdict: &mut Violations) {}

    /// A node has died.
    fn died(&mut self, _at: u64, _who: &Who, _verdict: &mut Violations) {}

    /// The run is over.
    fn finished(&mut self, _at: u64, _verdict: &mut Violations) {}
}
