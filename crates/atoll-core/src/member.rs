//! The identity of a node: the request that every node answers about itself, and the view of the other nodes that providers use to plan.

use crate::ids::{Incarnation, NodeId, StorageId};

crate::message! {
    /// Requests the identity of a node. The member role answers it from memory.
    pub struct Identify = 2 {}
}

crate::message! {
    /// The identity of a node in its current life.
    pub struct Identity = 3 {
        /// Its id.
        pub node: NodeId,
        /// Its current life; a sequencer's configuration names it (native-T6).
        pub incarnation: Incarnation,
        /// The identity of its data directory; a LogServer's configuration names it (native-T8).
        pub storage: StorageId,
        /// It accepts new Loglets as a LogServer.
        pub log: bool,
        /// It accepts new Loglets as a sequencer.
        pub sequencer: bool,
        /// It holds registers of the MetaStore.
        pub meta: bool,
        /// It is being drained, so it must get nothing new.
        pub draining: bool,
        /// Its journal is closed after a failed write or sync, or its disk hangs, so it must get nothing new.
        pub failed: bool,
    }
}

crate::rpc!(Identify => Identity, crate::ids::roles::MEMBER, Control);

/// A member of the cluster as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The id of the member.
    pub node: NodeId,
    /// It may store entries.
    pub log: bool,
    /// It may order appends.
    pub sequencer: bool,
    /// It may hold registers.
    pub meta: bool,
    /// An operator is emptying the node: it must hold nothing.
    pub draining: bool,
    /// The node is about to stop and will come back. It keeps its place as a server, like a node that is down, but gets no new sequencers.
    pub leaving: bool,
    /// The node is believed to be up. Safety never depends on this belief.
    pub alive: bool,
    /// The node has reported that it cannot store anything now: its journal is closed, or its disk is full or hangs. It still answers.
    pub failing: bool,
}

/// The members of the cluster as this node currently sees them.
pub trait Directory: Send + Sync {
    /// Returns all members, including this node, in the order of their ids.
    fn candidates(&self) -> Vec<Candidate>;

    /// Returns whether two nodes can reach each other, as they and others report. This is only a belief, too; without any information the
    /// answer is yes.
    fn reaches(&self, _one: NodeId, _other: NodeId) -> bool {
        true
    }
}
