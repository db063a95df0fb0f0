//! What the oracles may see: frames on the wire, batches on the disk, births and deaths. They see nothing inside a node.

use atoll_core::{Class, Envelope, Frame, Incarnation, Lsn, NodeId, Record, RoleKind, StorageId};
use bytes::Bytes;

/// One life of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Place among the hosts, from 0.
    pub host: usize,
    /// Its id.
    pub node: NodeId,
    /// Counts its lives, from 1.
    pub life: u64,
    /// Drawn for this life.
    pub incarnation: Incarnation,
    /// Its data directory.
    pub storage: StorageId,
}

/// A frame on its way. In replies the request's number is the asker's.
#[derive(Clone, Copy, Debug)]
pub struct OnWire<'a> {
    /// Virtual time in ns.
    pub at: u64,
    /// Sender.
    pub from: &'a Who,
    /// Receiver.
    pub to: NodeId,
    /// Of a reply: the life of the receiver that asked.
    pub to_life: Option<u64>,
    /// Connection.
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

/// Where observers report violations.
#[derive(Debug, Default)]
pub struct Violations {
    /// Violations in the order found; the run ends at the first.
    pub failures: Vec<String>,
}

impl Violations {
    /// Reports a violation, starting with the name of the invariant.
    pub fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }
}

/// What recovery found on a disk. Some of it may never have been synced as far as the node knew.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The checkpoint's parts. They may show facts that were only staged when it was written.
    pub checkpoint: Vec<(RoleKind, Bytes)>,
    /// Records, in order.
    pub records: Vec<(Lsn, Record)>,
}

/// Watches the world from outside of the nodes.
pub trait Observer: Send {
    /// A frame leaves a node (also those that a node sends to itself).
    fn sent(&mut self, _frame: OnWire<'_>, _verdict: &mut Violations) {}

    /// Records are durable.
    fn synced(&mut self, _at: u64, _who: &Who, _records: &[(Lsn, Record)], _verdict: &mut Violations) {}

    /// A node has started, with this in its journal.
    fn booted(&mut self, _at: u64, _who: &Who, _found: &Found, _verdict: &mut Violations) {}

    /// A node has died.
    fn died(&mut self, _at: u64, _who: &Who, _verdict: &mut Violations) {}

    /// The run is over.
    fn finished(&mut self, _at: u64, _verdict: &mut Violations) {}
}
