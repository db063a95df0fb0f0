//! The oracle that a protocol brings along: it checks the invariants of the protocol from outside of the nodes, on a whole cluster. Only
//! available with the feature `testing`.
//!
//! A host that sees the frames and disks of a cluster, such as the simulator, gets the oracles from [`Protocol::oracle`], tells them what
//! it sees, and reports the violations that they find. Neither side names the other.
//!
//! [`Protocol::oracle`]: crate::plugin::Protocol::oracle

use std::fmt;

use bytes::Bytes;

use atoll_core::{Envelope, Frame, Lsn, NodeId, Record, RoleKind, StorageId};

use crate::entry::OpId;
use crate::loglet::LogletId;
use crate::position::Offset;

/// One life of one node, as oracles see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// Its node id.
    pub node: NodeId,
    /// Number of this life, from 1.
    pub life: u64,
    /// The identity of its data directory.
    pub storage: StorageId,
}

/// A frame that has been sent. The request number of a reply is the one that the asker assigned.
#[derive(Clone, Copy, Debug)]
pub struct OnWire<'a> {
    /// The sender.
    pub from: Who,
    /// The receiver.
    pub to: NodeId,
    /// In a reply, the life of the receiver that sent the request.
    pub to_life: Option<u64>,
    /// The message.
    pub envelope: &'a Envelope,
}

impl OnWire<'_> {
    /// The message itself.
    pub fn frame(&self) -> &Frame {
        &self.envelope.frame
    }
}

/// Collects the violations that oracles report.
#[derive(Debug, Default)]
pub struct Violations {
    /// Violations in the order found.
    pub failures: Vec<String>,
}

impl Violations {
    /// Reports a violation. The text starts with the name of the invariant.
    pub fn fail(&mut self, what: impl Into<String>) {
        self.failures.push(what.into());
    }
}

/// A version of a register that was chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// The register.
    pub name: String,
    /// Its version.
    pub version: u64,
    /// Its value.
    pub value: Bytes,
}

/// A node that holds registers, and its data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The identity of its data directory.
    pub storage: StorageId,
}

/// The nodes that hold the registers of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Counts the changes of the group; the first group has epoch 1.
    pub epoch: u64,
    /// The nodes, in the order of their ids.
    pub members: Vec<Member>,
}

/// Checks the invariants of one protocol from outside of the nodes. It sees frames and synced records, and nothing inside a node. It stands
/// in the folder of the protocol, but shares no code with it except the types of messages, records and configurations.
///
/// The host calls the methods in the order in which things happen. A text that starts with `HARNESS` says that the oracle itself cannot
/// read something; all others name the invariant that is broken.
pub trait Oracle: Send + fmt::Debug {
    /// A node has started. Called before the oracle learns what the node found on its disk.
    fn booted(&mut self, _who: &Who) {}

    /// A frame of some protocol that has an oracle has left a node. This includes frames that a node sends to itself. Protocols share
    /// messages, so the oracle picks its own by the role that receives a request.
    fn sent(&mut self, _wire: OnWire<'_>, _verdict: &mut Violations) {}

    /// These journal records of all roles have become durable. Each record is shown once per data directory.
    fn synced(&mut self, _who: &Who, _records: &[(Lsn, Record)], _verdict: &mut Violations) {}

    /// A node found this part of a checkpoint on its disk. A checkpoint makes facts durable that were only staged when it was written.
    fn found(&mut self, _who: &Who, _role: RoleKind, _state: &Bytes, _verdict: &mut Violations) {}

    /// The run is over.
    fn finished(&mut self, _verdict: &mut Violations) {}

    /// A chain contains this Loglet of the protocol.
    fn chained(&mut self, _loglet: LogletId, _config: &Bytes) {}

    /// A client was told this tail of a Loglet of the protocol.
    fn tail_reported(&mut self, _loglet: LogletId, _at: Offset, _sealed: bool, _verdict: &mut Violations) {}

    /// A client was told that the entry of this name is at an offset of a Loglet of the protocol.
    fn acknowledged(&mut self, _loglet: LogletId, _at: Offset, _op: OpId, _verdict: &mut Violations) {}

    /// A stop of a Loglet of the protocol was installed in a chain.
    fn installed(&mut self, _loglet: LogletId, _stop: Offset, _verdict: &mut Violations) {}

    /// Returns the nodes on whose disks a Loglet is sealed.
    fn sealed_on(&self, _loglet: LogletId) -> Vec<NodeId> {
        Vec::new()
    }

    /// Takes the versions of registers that were chosen since the last call. Those of one register are in rising order.
    fn take_chosen(&mut self) -> Vec<Chosen> {
        Vec::new()
    }

    /// Returns the newest group that was opened, according to the synced records. None if the protocol has no registers, or no group yet.
    fn group(&self) -> Option<Group> {
        None
    }

    /// Returns whether a hand-over to another group is in progress.
    fn is_handing_over(&self) -> bool {
        false
    }

    /// Returns whether somebody has at least proposed a hand-over. It may be chosen at any time, and then cannot be undone.
    fn may_be_handing_over(&self) -> bool {
        self.is_handing_over()
    }

    /// Returns how many reconfigurations there were that no chain shows: Loglets outside of chains that were sealed, and changes of groups.
    fn reconfigurations(&self) -> u64 {
        0
    }
}

/// Returns a digest of some bytes, computed eight at a time.
pub fn digest(bytes: &[u8]) -> u64 {
    let mix = |hash: u64, word: u64| {
        let mixed = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 32)
    };
    let (words, rest) = bytes.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let hash = words.iter().fold(bytes.len() as u64, |hash, word| mix(hash, u64::from_le_bytes(*word)));
    mix(hash, u64::from_le_bytes(last))
}
