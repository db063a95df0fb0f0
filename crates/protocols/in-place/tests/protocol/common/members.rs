//! What plans of keyspaces need: nodes that say who they are, and a list of them.

use atoll_core::{
    Caller, Candidate, Directory, Effects, Env, Frame, Identify, Identity, Loc, Lsn, Message, NodeId, Role,
    StorageId, Tick,
};

/// Says who the node is.
pub struct Member {
    pub env: Env,
    pub storage: StorageId,
}

impl Role for Member {
    fn on_frame(&mut self, _: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        Identify::from_frame(frame).unwrap();
        let identity = Identity {
            node: self.env.node(),
            incarnation: self.env.incarnation(),
            storage: self.storage,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        };
        out.reply(from, identity, Lsn::NONE);
    }

    fn on_durable(&mut self, _: Tick, _: Lsn, _: &[(Lsn, Loc)], _: &mut Effects) {}
}

/// The nodes from 1 to `count`, one of which may be being drained.
pub struct Nodes {
    pub count: u32,
    pub draining: Option<u32>,
}

impl Directory for Nodes {
    fn candidates(&self) -> Vec<Candidate> {
        let candidate = |n| Candidate {
            node: NodeId(n),
            log: true,
            sequencer: true,
            meta: true,
            draining: self.draining == Some(n),
            leaving: false,
            alive: true,
            failing: false,
        };
        (1..=self.count).map(candidate).collect()
    }
}
