//! Nodes that consist of the protocol crates only: roles and procedures, without policy and membership.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use atoll_core::{
    Caller, Candidate, Directory, Effects, Format, Frame, Identify, Identity, Loc, Lsn, Message, NodeCore,
    NodeId, Role, Tick, roles,
};
use atoll_native::{LogServer, LogServerOptions, NativeOptions, NativeProvider, Sequencer, SequencerOptions};
use atoll_rmwpaxos::{Acceptor, GroupConfig, Options, RmwRegisters};

use crate::world::Assembly;
use crate::world::observer::Who;

/// Answers with the identity of the node.
pub(super) struct WhoAmI(pub(super) Identity);

impl Role for WhoAmI {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if Identify::from_frame(frame).is_ok() {
            out.reply(from, self.0.clone(), Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}
}

/// Lists all hosts as alive. Providers find out by asking which of them answer.
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
                leaving: false,
                alive: true,
                failing: false,
            })
            .collect()
    }
}

/// What clients use on a node.
#[derive(Clone, Debug)]
pub struct Handles {
    /// Registers.
    pub registers: RmwRegisters,
    /// Native Loglets.
    pub native: Arc<NativeProvider>,
}

/// Nodes with every role and without policy.
#[derive(Clone, Debug)]
pub struct Parts {
    /// The first group of acceptors.
    pub group: GroupConfig,
    /// The number of hosts.
    pub hosts: usize,
    /// Options of the proposers.
    pub rmw: Options,
    /// Options of native handles.
    pub native: NativeOptions,
}

/// Bytes of entries in one step of a repair, a back-fill or a rebuild. A step is one journal record, so it must fit into the small journal
/// segments of the simulator. It is also small enough that many copies take several steps.
pub const STEP_BYTES: u32 = 16 * 1024;

/// Returns the identity of a node that has every role.
pub fn identity(who: &Who) -> Identity {
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

/// Returns a message as text.
pub fn describe(frame: &Frame) -> String {
    static BY_KIND: LazyLock<BTreeMap<u16, Format>> = LazyLock::new(|| {
        let formats =
            atoll_protocols::formats().into_iter().chain(atoll_core::format::FORMATS.iter().copied());
        formats.filter_map(|format| Some((format.kind()?, format))).collect()
    });
    let words = match BY_KIND.get(&frame.kind) {
        Some(format) => format
            .describe(frame.clone())
            .unwrap_or_else(|e| format!("{} that does not decode: {e}", format.name())),
        None => format!("kind {} for {}, {} bytes", frame.kind, frame.target, frame.size_bytes()),
    };
    words.chars().take(600).collect()
}

impl Assembly for Parts {
    type Handles = Handles;

    fn describe(&self, frame: &Frame) -> String {
        describe(frame)
    }

    fn assemble(&mut self, who: &Who, seed: u64) -> (NodeCore, Handles) {
        let mut core = NodeCore::new(who.node, who.incarnation, seed);
        core.add_role(roles::MEMBER, Box::new(WhoAmI(identity(who))));
        let acceptor = Acceptor::new(who.node, who.storage, Some(self.group.clone()));
        let known = acceptor.known_group();
        core.add_role(atoll_rmwpaxos::roles::ACCEPTOR, Box::new(acceptor));
        let env = core.env();
        let log_server = LogServer::new(env.clone(), who.storage, LogServerOptions::default());
        core.add_role(atoll_native::roles::LOG_SERVER, Box::new(log_server));
        let sequencer = Sequencer::new(env.clone(), SequencerOptions::default());
        core.add_role(atoll_native::roles::SEQUENCER, Box::new(sequencer));
        let group = known.get().unwrap_or_else(|| self.group.clone());
        let registers = RmwRegisters::new(env.clone(), group, self.rmw);
        let directory: Arc<dyn Directory> = Arc::new(Everybody(self.hosts));
        let native = NativeOptions { step_bytes: STEP_BYTES, ..self.native.clone() };
        let native = Arc::new(NativeProvider::new(env, directory, native));
        (core, Handles { registers, native })
    }

    /// Asks the other nodes which group is open, because the group in the node's configuration may no longer exist.
    fn start(&mut self, core: &mut NodeCore, _who: &Who, handles: &Handles) {
        let (env, registers, hosts) = (core.env(), handles.registers.clone(), self.hosts as u64);
        let asks = core.env();
        asks.spawn(
            "ask.group",
            Box::pin(async move {
                loop {
                    let peer = NodeId(1 + (env.random() % hosts) as u32);
                    let asked = registers.ask_group(peer);
                    if let Ok(Some(group)) = env.within(Duration::from_millis(300), asked).await {
                        registers.adopt(&group);
                    }
                    env.sleep(env.jitter(Duration::from_millis(700))).await;
                }
            }),
        );
    }
}
