//! Registers for the rest of Atoll: implements [`Registers`] and [`Register`] with RMWPaxos.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_contract::register::MAX_VALUE_BYTES;
use atoll_contract::register::Unavailability;
use atoll_contract::{Listed, Nonce, Register, RegisterError, Registers, Version, Versioned, Written};
use atoll_core::testing::{hit, mutant};
use atoll_core::{BoxFuture, Env, Incarnation, NodeId, Pool, Tick, Ticket};
use bytes::Bytes;

use crate::mutants;

use super::ballot::ProposerId;
use super::group::{GroupConfig, Member};
use super::hand_over::{self, HandOverError};
use super::list;
use super::message::Status;
use super::proposer::{Failure, Proposer};
use super::read;
use super::state::{Command, CommandOutcome};
use atoll_contract::register::MAX_NAME_BYTES;

/// Maximum number of registers that one node uses at the same time. Each has a proposer (rmw-T4).
pub const MAX_OPEN_REGISTERS: usize = 65_536;
/// The register that names the successor of a group (§9a). Reserved.
pub(super) const ROOT: &str = "";

/// Settings of the proposers of a node.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How long a round waits for a majority. Too short: a slow disk looks like a dead node, and proposals are repeated.
    /// Too long: a lost message costs this much.
    pub reply_timeout: Duration,
    /// How long a round that has met a setback still waits for late answers. Too short: a lagging acceptor costs extra rounds. Too long:
    /// it adds latency.
    pub grace: Duration,
    /// First pause after losing to another proposer. It is doubled after each of the next two failures, and jittered from half to one and
    /// a half. Too short: proposers keep overtaking each other. Too long: latency under contention.
    pub back_off: Duration,
    /// First pause of a read that found acceptors with different votes. It is doubled after each further failure, up to four times
    /// [`Options::back_off`], and jittered as that. Too short: readers settle a register that a writer is about to settle, and the writer
    /// needs another round (rmw-T12). Too long: reads wait, and with them the repair of a log, where an acceptor missed a write while it
    /// was down and another one is down now.
    pub read_back_off: Duration,
    /// Every operation is answered within this time, successfully or not.
    pub deadline: Duration,
    /// Number of read attempts without progress before a read settles the register itself (rmw-R3, rmw-T12).
    pub read_tries: u32,
    /// Maximum number of commands that wait per register. Further ones are refused as busy.
    pub queue: usize,
    /// Number of idle registers whose proposers are kept. Too few: the next write to a register takes another round. Too many: memory, a
    /// few kilobytes per register and about 20 kilobytes for one that holds an index page.
    pub idle_registers: usize,
    /// How long this node leaves an unfinished hand-over to its mover before finishing it.
    pub roll_forward_after: Duration,
    /// How long a mover tries one step of a hand-over before it gives up; any node can finish it later. Fencing, a page of names, a
    /// register, and opening are steps, so a hand-over of many registers may take much longer. Too short: a mover gives up whenever a
    /// majority is briefly gone. Too long: its caller waits longer before it decides again.
    pub hand_over_deadline: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            reply_timeout: Duration::from_millis(250),
            grace: Duration::from_millis(4),
            back_off: Duration::from_millis(16),
            read_back_off: Duration::from_millis(4),
            deadline: Duration::from_secs(2),
            read_tries: 2,
            queue: 256,
            idle_registers: 512,
            roll_forward_after: Duration::from_millis(150),
            hand_over_deadline: Duration::from_secs(30),
        }
    }
}

#[derive(Debug)]
struct Inner {
    group: GroupConfig,
    proposers: Pool<Arc<Proposer>>,
    /// The id of proposers that are created from now on.
    pid: ProposerId,
    /// Whether a procedure on this node is following an unfinished hand-over.
    following: bool,
    /// The epoch of the group that movers on this node last handed over, and the name up to which they have carried its registers.
    carried: Option<(u64, String)>,
}

/// State that all registers of a node share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) env: Env,
    pub(super) options: Options,
    inner: Mutex<Inner>,
}

impl Shared {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn group(&self) -> GroupConfig {
        self.inner().group.clone()
    }

    /// Adopts a serving group if it is newer than the known one. Returns whether it was.
    pub(super) fn adopt(&self, group: &GroupConfig) -> bool {
        let mut inner = self.inner();
        let newer = group.epoch > inner.group.epoch;
        if newer {
            hit("rmw.proposer.adopts");
            inner.group = group.clone();
        }
        newer
    }

    /// Returns the proposer of a register. There is only one per name while it is in use. None if too many registers are in use.
    pub(super) fn proposer(&self, name: &str) -> Option<Arc<Proposer>> {
        let mut inner = self.inner();
        if let Some(proposer) = inner.proposers.get(name) {
            return Some(proposer.clone());
        }
        // Every holder, including the proposer's own queue and procedures, has a reference of its own.
        let is_idle = |proposer: &Arc<Proposer>| Arc::strong_count(proposer) == 1;
        let proposer = Arc::new(Proposer::new(name.to_owned(), inner.pid));
        let full = inner.proposers.len() >= MAX_OPEN_REGISTERS;
        let given_up = match full {
            true => inner.proposers.shrink(is_idle),
            false => inner.proposers.insert(name, proposer.clone(), is_idle),
        };
        if !given_up.is_empty() {
            // If the register is used again later, it must not reuse the ballots of the proposer that is dropped now (rmw-T5).
            hit("rmw.proposer.given_up");
            inner.pid.life = Incarnation(self.env.random());
        }
        (!full).then_some(proposer)
    }

    /// Returns until when a mover tries a step that begins now.
    pub(super) fn step_deadline(&self) -> Tick {
        self.env.now().after(self.options.hand_over_deadline)
    }

    /// Returns the name up to which movers on this node have carried all registers of the group of this epoch; None if there is none.
    pub(super) fn carried(&self, epoch: u64) -> Option<String> {
        self.inner().carried.as_ref().filter(|(e, _)| *e == epoch).map(|(_, name)| name.clone())
    }

    /// Records that all registers of this group up to this name are final, and durable on a majority of the next group.
    pub(super) fn note_carried(&self, epoch: u64, name: String) {
        let mut inner = self.inner();
        // Several movers on this node may be at different names, and one that was left behind may still work on an older group.
        inner.carried = inner.carried.take().max(Some((epoch, name)));
    }

    /// Sleeps for the pause after the n-th failure in a row.
    pub(super) async fn back_off(&self, failures: u32) {
        let pause = self.options.back_off * (1 << failures.saturating_sub(1).min(2));
        self.env.sleep(self.env.jitter(pause)).await;
    }

    /// The same for a read, see [`Options::read_back_off`].
    pub(super) async fn back_off_read(&self, failures: u32) {
        let pause = self.options.read_back_off * (1 << failures.saturating_sub(1).min(8));
        self.env.sleep(self.env.jitter(pause.min(self.options.back_off * 4))).await;
    }

    /// Makes sure that an unfinished hand-over gets finished, and waits for that for a limited time.
    pub(super) async fn await_hand_over(self: &Arc<Self>, old: &GroupConfig, next: &GroupConfig) {
        hit("rmw.proposer.follows");
        let start = !std::mem::replace(&mut self.inner().following, true);
        if start {
            let (shared, old, next) = (self.clone(), old.clone(), next.clone());
            let follow = async move {
                hand_over::follow(&shared, &old, &next).await;
                shared.inner().following = false;
            };
            self.env.spawn("rmw.follow", Box::pin(follow));
        }
        let until = self.env.now().after(self.options.roll_forward_after);
        while self.group().epoch == old.epoch && self.env.now() < until {
            self.env.sleep(self.env.jitter(self.options.back_off / 4)).await;
        }
    }
}

/// The registers of an RMWPaxos group, as seen from one node. Cheap to clone; one per life of a node is enough.
///
/// A write is durable on a majority of the group's acceptors when it returns. An operation fails with `NotWritten` if no state that
/// contains it was ever sent for a vote, otherwise with `Unknown`. Names have 1 to 256 bytes; others are refused as too large.
#[derive(Clone, Debug)]
pub struct RmwRegisters {
    shared: Arc<Shared>,
}

impl RmwRegisters {
    /// Creates the registers of a serving group: the configured first one, the one that this node's acceptor knows
    /// ([`super::KnownGroup`]), or the answer of [`RmwRegisters::discover`]. An older group leads to the newest one.
    pub fn new(env: Env, group: GroupConfig, options: Options) -> Self {
        // Each of these objects gets a life of its own, because two in one process must not share ballots either (rmw-T5).
        let life = if mutant(mutants::RMW_T5) { 1 } else { env.incarnation().0 ^ env.random() };
        let pid = ProposerId { node: env.node(), life: Incarnation(life) };
        let proposers = Pool::new(options.idle_registers);
        let inner = Mutex::new(Inner { group, proposers, pid, following: false, carried: None });
        RmwRegisters { shared: Arc::new(Shared { env, options, inner }) }
    }

    /// Returns the newest serving group that any of these nodes knows; None if none of them answered with one in time.
    pub async fn discover(env: &Env, nodes: &[NodeId], within: Duration) -> Option<GroupConfig> {
        hand_over::newest_group(env, nodes, env.now().after(within)).await
    }

    /// Returns the newest serving group known here.
    pub fn group(&self) -> GroupConfig {
        self.shared.group()
    }

    /// Adopts a newer serving group that was learned elsewhere. Returns false if the known one is at least as new.
    pub fn adopt(&self, group: &GroupConfig) -> bool {
        self.shared.adopt(group)
    }

    /// Hands all registers over to a group of these members (§9a). On `Ok`, that group serves, durably. The hand-over continues if the
    /// ticket is dropped. If its node dies, any node that finds the unfinished hand-over finishes it. It takes as long as it has
    /// registers to move, and gives up if a step takes longer than [`Options::hand_over_deadline`].
    pub fn hand_over(&self, members: Vec<Member>) -> Ticket<Result<GroupConfig, HandOverError>> {
        let shared = self.shared.clone();
        self.shared.env.launch("rmw.hand_over", async move { hand_over::hand_over(&shared, members).await })
    }

    /// Finishes a hand-over that another node left unfinished. Returns the group that serves afterwards.
    pub fn finish_hand_over(&self) -> Ticket<Result<GroupConfig, HandOverError>> {
        let shared = self.shared.clone();
        self.shared.env.launch("rmw.finish_hand_over", async move { hand_over::resume(&shared).await })
    }

    /// Returns how many registers have a proposer on this node, in use or not.
    pub fn open_registers(&self) -> usize {
        self.shared.inner().proposers.len()
    }

    /// Asks one node which group serves.
    pub fn ask_group(&self, node: NodeId) -> BoxFuture<'static, Option<GroupConfig>> {
        let call = self.shared.env.call(node, Status {});
        Box::pin(async move { call.await.ok().and_then(|r| r.serving) })
    }
}

impl Registers for RmwRegisters {
    fn register(&self, name: &str) -> Arc<dyn Register> {
        let usable = (1..=MAX_NAME_BYTES).contains(&name.len());
        let proposer = match usable {
            true => self.shared.proposer(name).ok_or(RegisterError::NotWritten(Unavailability::Busy)),
            false => Err(RegisterError::InvalidName(name.len())),
        };
        Arc::new(RmwRegister { shared: self.shared.clone(), proposer })
    }

    fn sweep(&self) {
        self.shared.inner().proposers.take_if(|p| Arc::strong_count(p) == 1 && p.is_blank());
    }

    fn list(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Listed>, RegisterError>> {
        let (shared, prefix) = (self.shared.clone(), prefix.to_owned());
        let listing = self.shared.env.launch("rmw.list", async move { list::list(&shared, &prefix).await });
        Box::pin(async move {
            match listing.await {
                Ok(result) => result.map_err(error),
                Err(_) => Err(RegisterError::NotWritten(Unavailability::Stopping)),
            }
        })
    }
}

/// One register.
#[derive(Debug)]
struct RmwRegister {
    shared: Arc<Shared>,
    proposer: Result<Arc<Proposer>, RegisterError>,
}

fn error(failure: Failure) -> RegisterError {
    match failure {
        Failure::No(why) => RegisterError::NotWritten(why),
        Failure::Unknown(why) => RegisterError::Unknown(why),
        Failure::Overtaken => RegisterError::Unknown(Unavailability::NoQuorum),
    }
}

impl Register for RmwRegister {
    fn read(&self) -> BoxFuture<'_, Result<Versioned, RegisterError>> {
        let proposer = match &self.proposer {
            Ok(proposer) => proposer.clone(),
            Err(error) => return Box::pin(std::future::ready(Err(error.clone()))),
        };
        let shared = self.shared.clone();
        let deadline = shared.env.now().after(shared.options.deadline);
        let reading =
            self.shared.env.launch("rmw.read", async move { read::read(&shared, &proposer, deadline).await });
        Box::pin(async move {
            match reading.await {
                Ok(Ok(state)) => Ok(state.versioned()),
                Ok(Err(failure)) => Err(error(failure)),
                Err(_) => Err(RegisterError::NotWritten(Unavailability::Stopping)),
            }
        })
    }

    fn write_if(
        &self,
        expected: Version,
        value: Bytes,
        nonce: Nonce,
    ) -> BoxFuture<'_, Result<Written, RegisterError>> {
        let refused = match &self.proposer {
            _ if value.len() > MAX_VALUE_BYTES => Err(RegisterError::TooLarge(value.len())),
            Ok(proposer) => Ok(proposer),
            Err(error) => Err(error.clone()),
        };
        let proposer = match refused {
            Ok(proposer) => proposer,
            Err(e) => return Box::pin(std::future::ready(Err(e))),
        };
        let deadline = self.shared.env.now().after(self.shared.options.deadline);
        let command = Command::WriteIf { expected: expected.0, value, nonce: nonce.0 };
        let writing = proposer.submit(&self.shared, command, deadline);
        Box::pin(async move {
            match writing.await {
                Ok(Ok(CommandOutcome::Written(written))) => Ok(written),
                Ok(Err(failure)) => Err(error(failure)),
                Ok(Ok(_)) | Err(_) => Err(RegisterError::Unknown(Unavailability::Stopping)),
            }
        })
    }
}
