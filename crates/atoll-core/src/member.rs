//! Node identity: the question that every node answers about itself, and the view of other nodes that providers plan with.

use crate::ids::{Incarnation, NodeId, StorageId};

crate::message! {
    /// Asks a node who it is. Answered from memory by the member role.
    pub struct Identify = 2 {}
}

crate::message! {
    /// Who a node is, in this life.
    pub struct Identity = 3 {
        /// Its id.
        pub node: NodeId,
        /// This life; a sequencer's configuration names it (native-T6).
        pub incarnation: Incarnation,
        /// Its data directory; a LogServer's configuration names it (native-T8).
        pub storage: StorageId,
        /// It takes new Loglets as a LogServer.
        pub log: bool,
        /// It takes new Loglets as a sequencer.
        pub sequencer: bool,
        /// It holds registers of the MetaStore.
        pub meta: bool,
        /// It is being drained: give it nothing new.
        pub draining: bool,
        /// Its journal is closed after a failed write or sync, or its disk hangs: give it nothing new.
        pub failed: bool,
    }
}

crate::rpc!(Identify => Identity, crate::ids::roles::MEMBER, Control);

/// A member of the cluster as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub node: NodeId,
    /// May hold entries.
    pub log: bool,
    /// May order appends.
    pub sequencer: bool,
    /// May hold registers.
    pub meta: bool,
    /// An operator wants the node empty: it must hold nothing.
    pub draining: bool,
    /// The node is about to stop and will come back. It keeps its place as a server, like one that is down, but orders nothing new.
    pub leaving: bool,
    /// The node is believed to be up. Safety never rests on this belief.
    pub alive: bool,
    /// The node said that it cannot store anything now: its journal is closed, or its disk is full or hangs. It still answers.
    pub failing: bool,
}

/// The members of the cluster as this node sees them now, in the order of their ids, this node among them.
pub trait Directory: Send + Sync {
    /// A snapshot.
    fn candidates(&self) -> Vec<Candidate>;

    /// Whether two nodes can reach each other, according to them and to others. Also only a belief; without any
    /// information, the answer is yes.
    fn reaches(&self, _one: NodeId, _other: NodeId) -> bool {
        true
    }
}
