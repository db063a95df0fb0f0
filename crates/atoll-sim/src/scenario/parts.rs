//! Nodes put together from the protocol crates alone: no policy, no membership, just roles and procedures.

use std::sync::Arc;

use atoll_core::{
    Caller, Candidate, Directory, Effects, Frame, Identify, Identity, Loc, Lsn, Message, NodeCore, NodeId,
    Role, Tick, roles,
};
use atoll_registers::rmwpaxos::{Acceptor, GroupConfig, Options, RmwRegisters};

use crate::world::Assembly;
use crate::world::observer::Who;

/// Answers who the node is.
struct WhoAmI(Identity);

impl Role for WhoAmI {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if Identify::from_frame(frame).is_ok() {
            out.reply(from, self.0.clone(), Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}
}

/// All hosts, thought to be up: providers find out by asking.
#[derive(Debug)]
pub struct Everybody(pub usize);

impl Directory for Everybody {
    fn candidates(&self) -> Vec<Candidate> {
        (1..=self.0 as u32)
            .map(|n| Candidate {
                node: NodeId(n),
                log: true,
                sequencer: true,
                meta: true,
                draining: false,
                alive: true,
            })
            .collect()
    }
}

/// What clients use on a node.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Registers.
    pub registers: RmwRegisters,
}

/// Nodes with an acceptor each, and registers of the group.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The first group of acceptors.
    pub group: GroupConfig,
    /// All hosts.
    pub hosts: usize,
    /// Settings of the proposers.
    pub rmw: Options,
}

impl Parts {
    fn identity(&self, who: &Who) -> Identity {
        Identity {
            node: who.node,
            incarnation: who.incarnation,
            storage: who.storage,
            log: true,
            sequencer: true,
            meta: true,
            draining: false,
            failed: false,
        }
    }
}

impl Assembly for Parts {
    type Handles = Handles;

    fn assemble(&mut self, core: &mut NodeCore, who: &Who) -> Handles {
        core.add_role(roles::MEMBER, Box::new(WhoAmI(self.identity(who))));
        let acceptor = Acceptor::new(who.node, who.storage, Some(self.group.clone()));
        let known = acceptor.known_group();
        core.add_role(roles::ACCEPTOR, Box::new(acceptor));
        let group = known.get().unwrap_or_else(|| self.group.clone());
        let registers = RmwRegisters::new(core.env(), group, self.rmw);
        let _directory: Arc<dyn Directory> = Arc::new(Everybody(self.hosts));
        Handles { registers }
    }
}
