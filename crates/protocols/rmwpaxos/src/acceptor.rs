//! The acceptor (§3): promises and votes of every register of a group. All of them are in memory, and an answer leaves only after every
//! change that it shows is journaled (§8, X1).
//!
//! Limits: [`MAX_NAME_BYTES`] for a name, a capacity for the registers of a group, and two groups (one that hands over, and one that is
//! being filled). What a hand-over sends is exempt from the capacity: a group that is too full can only be replaced by a hand-over.
//!
//! New registers have a lower limit, the mark: the rest of the capacity is for the growth of registers that exist already, because their
//! users may depend on the next write. To an acceptor, a register is new if it never voted for it. It may be wrong about that, because it
//! may have missed all writes of a register that the others hold. A majority may need its vote then, so it takes such a register up to the
//! full capacity if the proposer shows that it has met the register elsewhere:
//!
//! - A prepare names its ballot. If acceptors refuse an incremental prepare because they are full, the proposer names a ballot only if
//!   another acceptor has voted for the register.
//! - A write repeats an older vote unchanged (rmw-W4). After it, the register is not new here any more. This also finishes what another
//!   proposer has begun.
//!
//! A refusal is always safe: it is like a lost message.

use std::collections::BTreeMap;

use atoll_contract::register::MAX_NAME_BYTES;
use atoll_core::env::Refused;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Encode, Frame, Loc, Lsn, Measure, Message, NodeId, RecordKind, Role, Space,
    StorageId, Stored, Tick, invariant,
};
use bytes::Bytes;

use crate::mutants;

use super::ballot::{Ballot, MAX_ROUND, ProposerId};
use super::checkpoint::Walk;
use super::group::{GroupConfig, KnownGroup};
use super::invariants;
use super::message::{
    Address, DoneReply, Fact, Fence, Install, List, Mode, Open, Prep, PrepAnswer, PrepReply, Reject, Status,
    StatusReply, Write, WriteAnswer, WriteReply,
};
use super::registers::ROOT;

/// Default capacity for the registers of a group at one acceptor, in bytes.
pub const DEFAULT_CAPACITY_BYTES: usize = 88 * 1024 * 1024;
/// One part of the capacity in this many is for registers that exist already. By default, that is 22 MiB.
///
/// What grows are the chains of logs. An extend makes a chain longer by about 200 bytes: a segment with its configuration, and the nonces
/// of the install. So while no log is trimmed and no index page can be written, each of 10,000 logs, the most that clients may create by
/// default, can still be extended eleven times. A smaller part would not outlast the deaths of a few nodes that sequence all logs. The
/// capacity is such that new registers still get 66 MiB: room for the index pages of a log that was reconfigured a million times, at 51
/// bytes for each segment, or for the chains of 10,000 logs, which take about 3 kB each once they remember all the nonces that they can,
/// and pages with 700,000 segments. No part could cover the longest value of every register, 256 KiB: 22 MiB hold 88 of these.
const RESERVED_PART: usize = 4;
/// Bytes that a register takes in addition to its name and state, for its ballots.
const SLOT_BYTES: usize = 128;

/// One register.
#[derive(Debug, Default)]
pub(super) struct Slot {
    pub(super) promised: Ballot,
    pub(super) voted: Ballot,
    /// Whether the vote is final (§9a).
    pub(super) last: bool,
    pub(super) state: Bytes,
    /// The fact that contains the last promise or vote.
    pub(super) lsn: Lsn,
    /// The fact that contains the vote.
    pub(super) voted_lsn: Lsn,
    /// The last incremental prepare and the ballot that it got (rmw-T15). Not journaled, because it matters only for liveness.
    assigned: Option<(ProposerId, u64, Ballot)>,
}

/// One group that has not ended.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) config: GroupConfig,
    pub(super) mark: u64,
    /// Whether the group is complete and serves. If not, it is being filled.
    pub(super) open: bool,
    /// The group that this group is handing over to.
    pub(super) fenced: Option<GroupConfig>,
    /// Whether the configuration is in the journal.
    pub(super) journaled: bool,
    /// The last fact about the group itself.
    pub(super) lsn: Lsn,
    pub(super) slots: BTreeMap<String, Slot>,
    /// Names, states and ballots of the slots, in bytes.
    pub(super) bytes: usize,
}

impl Group {
    pub(super) fn new(config: GroupConfig, open: bool) -> Self {
        let mark = config.mark();
        let slots = BTreeMap::new();
        Group { config, mark, open, fenced: None, journaled: false, lsn: Lsn::NONE, slots, bytes: 0 }
    }

    /// Returns the rejection of a fenced acceptor for a register that it never voted for. If a majority is fenced and no acceptor in it
    /// has voted, such a register has no value here and never will (§9a, rmw-H2). A final vote does not count as having voted: it may have
    /// come after the fence, and must not allow a vote that is not final.
    fn shut_out(&self, name: &str) -> Option<Reject> {
        let next = self.fenced.as_ref()?;
        let known = self.slots.get(name).is_some_and(|s| s.voted != Ballot::ZERO && !s.last);
        (!known).then(|| Reject::Fenced { next: next.clone() })
    }
}

/// The acceptor of one node.
#[derive(Debug)]
pub struct Acceptor {
    pub(super) node: NodeId,
    pub(super) storage: StorageId,
    /// The group from the configuration; used only while the journal names none.
    initial: Option<GroupConfig>,
    pub(super) groups: BTreeMap<u64, Group>,
    /// The newest serving group; earlier groups have ended.
    pub(super) serving: Option<GroupConfig>,
    pub(super) serving_lsn: Lsn,
    pub(super) known: KnownGroup,
    /// For each group. Two groups do not share it: otherwise, two groups that are more than half full could not replace each other.
    capacity_bytes: usize,
    /// A checkpoint under construction.
    pub(super) walk: Option<Walk>,
    space: Space,
}

impl Acceptor {
    /// Creates the acceptor of a node with this data directory. `initial` is the first group. It is used if it contains the node with
    /// exactly this data directory (rmw-T9), and only while the journal names no other group.
    pub fn new(node: NodeId, storage: StorageId, initial: Option<GroupConfig>) -> Self {
        let initial = initial.filter(|g| g.contains(node, storage) || mutant(mutants::RMW_T9));
        Acceptor {
            node,
            storage,
            initial,
            groups: BTreeMap::new(),
            serving: None,
            serving_lsn: Lsn::NONE,
            known: KnownGroup::default(),
            capacity_bytes: DEFAULT_CAPACITY_BYTES,
            walk: None,
            space: Space::Plenty,
        }
    }

    /// Sets the capacity for the registers of a group, in bytes of names and states. Too small: new registers and longer values are
    /// refused. Too large: during a hand-over, an acceptor of both groups holds everything twice, and a checkpoint holds one more copy
    /// in memory.
    #[must_use]
    pub fn with_capacity_bytes(mut self, capacity_bytes: usize) -> Self {
        self.capacity_bytes = capacity_bytes;
        self
    }

    /// Returns the size of a group from which on it takes no new registers.
    fn mark_bytes(&self) -> usize {
        match mutant(mutants::RMW_NO_RESERVE) {
            true => self.capacity_bytes,
            false => self.capacity_bytes - self.capacity_bytes / RESERVED_PART,
        }
    }

    /// Returns a handle to the newest serving group. It is updated when this acceptor learns of a newer group, and correct right after
    /// recovery.
    pub fn known_group(&self) -> KnownGroup {
        self.known.clone()
    }

    /// Uses the configured first group if the journal named none.
    pub(super) fn settle_initial(&mut self) {
        if let Some(initial) = self.initial.take()
            && self.groups.is_empty()
            && self.serving.is_none()
        {
            self.serving = Some(initial.clone());
            self.known.set(&initial);
            self.groups.insert(initial.epoch, Group::new(initial, true));
        }
    }

    /// Journals a fact, preceded by the first group if that is not journaled yet, because a vote without its group is meaningless.
    pub(super) fn journal(&mut self, fact: &Fact, payload: Bytes, out: &mut Effects) -> Lsn {
        for group in self.groups.values_mut().filter(|g| !g.journaled && g.open) {
            let first = Fact::First { group: group.config.clone() };
            group.lsn = out.journal(RecordKind::Fact, first.to_bytes(), Bytes::new());
            group.journaled = true;
        }
        out.journal(RecordKind::Fact, fact.to_bytes(), payload)
    }

    /// Checks that a request names this acceptor's identity (rmw-T9).
    pub(super) fn check_identity(&self, storage: StorageId) -> Result<(), Reject> {
        if storage != self.storage && !mutant(mutants::RMW_T9) {
            hit("rmw.acceptor.wrong_identity");
            return Err(Reject::WrongIdentity { mine: self.storage });
        }
        match self.space {
            Space::Closed => Err(Reject::StorageFailed {}),
            _ => Ok(()),
        }
    }

    /// Returns the group that a request addresses, if this acceptor belongs to it and it serves.
    pub(super) fn route(&mut self, to: &Address) -> Result<&mut Group, Reject> {
        self.check_identity(to.storage)?;
        match self.groups.get_mut(&to.epoch) {
            Some(group) if group.mark == to.mark && group.open => Ok(group),
            Some(group) if group.mark == to.mark => Err(Reject::NotOpen {}),
            Some(_) => Err(Reject::WrongEpoch { known: self.serving.clone() }),
            None => match &self.serving {
                Some(serving) if serving.epoch > to.epoch => {
                    hit("rmw.acceptor.moved");
                    Err(Reject::Moved { to: serving.clone() })
                }
                serving => Err(Reject::WrongEpoch { known: serving.clone() }),
            },
        }
    }

    /// Handles phase 1, or a read. Returns the answer and the fact that it reveals.
    pub fn prep(&mut self, m: &Prep, out: &mut Effects) -> (PrepReply, Lsn) {
        self.settle_initial();
        self.try_prep(m, out).unwrap_or_else(|why| (PrepReply::reject(why), self.newest_group_lsn()))
    }

    /// Returns the newest fact about a group. A rejection may show a fence or a newer group, so it must wait for that fact.
    pub(super) fn newest_group_lsn(&self) -> Lsn {
        self.groups.values().map(|g| g.lsn).max().unwrap_or(Lsn::NONE).max(self.serving_lsn)
    }

    fn try_prep(&mut self, m: &Prep, out: &mut Effects) -> Result<(PrepReply, Lsn), Reject> {
        let (capacity_bytes, mark_bytes) = (self.capacity_bytes, self.mark_bytes());
        let group = self.route(&m.to)?;
        if m.name.len() > MAX_NAME_BYTES {
            return Err(Reject::Invalid {});
        }
        if !m.moving
            && let Some(why) = group.shut_out(&m.name)
        {
            hit("rmw.acceptor.shut_out");
            return Err(why);
        }
        let group_lsn = group.lsn;
        let ack = |slot: &Slot, ballot: Option<Ballot>| PrepReply {
            answer: PrepAnswer::Ack { ballot, voted: slot.voted },
            state: slot.state.clone(),
        };
        let ballot = match (&m.mode, group.slots.get(&m.name)) {
            // A read writes and syncs nothing, but must not show a vote that is not synced yet (X1).
            (Mode::ReadOnly {}, slot) => {
                return Ok(match slot {
                    Some(slot) => (ack(slot, None), slot.voted_lsn.max(group_lsn)),
                    None => (ack(&Slot::default(), None), group_lsn),
                });
            }
            (Mode::Incremental {}, Some(slot)) => match slot.assigned {
                Some((pid, request, ballot)) if (pid, request) == (m.pid, m.request) => {
                    hit("rmw.acceptor.duplicate_prepare");
                    return Ok((repeat(slot, ballot, ack), slot.lsn.max(group_lsn)));
                }
                _ => Ballot { n: slot.promised.n.max(slot.voted.n) + 1, pid: m.pid },
            },
            (Mode::Incremental {}, None) => Ballot { n: 1, pid: m.pid },
            (Mode::Explicit { ballot }, slot) => {
                if ballot.n > MAX_ROUND || ballot.n == 0 {
                    return Err(Reject::Invalid {});
                }
                match slot {
                    Some(slot) if *ballot <= slot.promised => {
                        return Ok((repeat(slot, *ballot, ack), slot.lsn.max(group_lsn)));
                    }
                    _ => *ballot,
                }
            }
        };
        // A mover prepares only registers that an acceptor of the group has voted for, and the root register of each group is written once.
        let exempt = m.moving || m.name == ROOT;
        let names_ballot = matches!(m.mode, Mode::Explicit { .. });
        let (new_bytes, limit) = match group.slots.get(&m.name) {
            Some(slot) if slot.voted != Ballot::ZERO || names_ballot => (0, usize::MAX),
            // Its vote would be refused, and the writer would not know the outcome.
            Some(_) => (0, mark_bytes),
            None if names_ballot => (m.name.len() + SLOT_BYTES, capacity_bytes),
            None => (m.name.len() + SLOT_BYTES, mark_bytes),
        };
        if !exempt && group.bytes + new_bytes > limit {
            return Err(Reject::Full {});
        }
        let fact = Fact::Promised { epoch: m.to.epoch, name: m.name.clone(), ballot };
        let lsn = self.journal(&fact, Bytes::new(), out);
        self.promised(m.to.epoch, &m.name, ballot, lsn);
        let Some(slot) = self.slot(m.to.epoch, &m.name) else { return Err(Reject::Invalid {}) };
        if matches!(m.mode, Mode::Incremental {}) {
            slot.assigned = Some((m.pid, m.request, ballot));
        }
        Ok((ack(slot, Some(ballot)), lsn))
    }

    /// Returns how many bytes the registers of all groups take here.
    pub(super) fn held_bytes(&self) -> usize {
        self.groups.values().map(|g| g.bytes).sum()
    }

    pub(super) fn slot(&mut self, epoch: u64, name: &str) -> Option<&mut Slot> {
        self.groups.get_mut(&epoch)?.slots.get_mut(name)
    }

    /// Applies a promise from a request or from the journal; an older one changes nothing.
    pub(super) fn promised(&mut self, epoch: u64, name: &str, ballot: Ballot, lsn: Lsn) {
        let Some(group) = self.groups.get_mut(&epoch) else { return };
        if !group.slots.contains_key(name) {
            group.bytes += name.len() + SLOT_BYTES;
            group.slots.insert(name.to_owned(), Slot::default());
        }
        let Some(slot) = group.slots.get_mut(name) else { return };
        let before = (slot.promised, slot.voted);
        slot.promised = slot.promised.max(ballot);
        slot.lsn = slot.lsn.max(lsn);
        invariants::acceptor_moved(name, before, (slot.promised, slot.voted));
    }

    /// Handles phase 2, the accept of Paxos. Returns the answer and the fact that it reveals.
    pub fn write(&mut self, m: &Write, out: &mut Effects) -> (WriteReply, Lsn) {
        self.settle_initial();
        let (answer, reveals) = self
            .try_write(m, out)
            .unwrap_or_else(|why| (WriteAnswer::Rejected { why }, self.newest_group_lsn()));
        (WriteReply { answer }, reveals)
    }

    fn try_write(&mut self, m: &Write, out: &mut Effects) -> Result<(WriteAnswer, Lsn), Reject> {
        let (capacity_bytes, mark_bytes) = (self.capacity_bytes, self.mark_bytes());
        let group = self.route(&m.to)?;
        if m.name.len() > MAX_NAME_BYTES || m.ballot.n == 0 || m.ballot.n > MAX_ROUND {
            return Err(Reject::Invalid {});
        }
        if !m.last
            && let Some(why) = group.shut_out(&m.name)
        {
            hit("rmw.acceptor.shut_out");
            return Err(why);
        }
        let fresh = Slot::default();
        let (slot, new_bytes) = match group.slots.get(&m.name) {
            Some(slot) => (slot, 0),
            None => (&fresh, m.name.len() + SLOT_BYTES),
        };
        // rmw-T3: check for a duplicate first. The vote also promised the next ballot, so a duplicate would look stale below.
        if m.ballot == slot.voted && !mutant(mutants::RMW_T3) {
            hit("rmw.acceptor.duplicate_write");
            invariant!(
                m.state == slot.state,
                "register {:?}: two states in ballot {} (rmw-I2)",
                m.name,
                m.ballot
            );
            return Ok((WriteAnswer::Ack { next: m.ballot.next() }, slot.voted_lsn.max(group.lsn)));
        }
        if m.ballot < slot.promised {
            let (promised, voted) = (slot.promised, slot.voted);
            return Ok((WriteAnswer::Nack { promised, voted }, slot.lsn.max(group.lsn)));
        }
        // An acceptor that never saw the prepare also accepts the vote, so that a lagging acceptor catches up.
        if m.ballot > slot.promised {
            hit("rmw.acceptor.laggard_write");
        }
        // Final values are exempt, see the module documentation. A hand-over may therefore leave a group above its capacity, so a state
        // that is not longer than the last one is accepted, too.
        let bytes = group.bytes + new_bytes + m.state.len() - slot.state.len();
        let is_new = slot.voted == Ballot::ZERO && !m.through;
        let limit = if is_new { mark_bytes } else { capacity_bytes.max(group.bytes) };
        if !m.last && bytes > limit {
            return Err(Reject::Full {});
        }
        // The message pins its whole read buffer, so copy the bytes that are kept (X13).
        let state = Bytes::copy_from_slice(&m.state);
        let (epoch, name) = (m.to.epoch, m.name.clone());
        let fact = Fact::Voted { epoch, name, ballot: m.ballot, last: m.last };
        let lsn = self.journal(&fact, state.clone(), out);
        self.voted(m.to.epoch, &m.name, (m.ballot, m.ballot.next()), m.last, state, lsn);
        Ok((WriteAnswer::Ack { next: m.ballot.next() }, lsn))
    }

    /// Applies a vote and its promise, from a request or from the journal; an older one changes nothing.
    pub(super) fn voted(
        &mut self,
        epoch: u64,
        name: &str,
        (ballot, promise): (Ballot, Ballot),
        last: bool,
        state: Bytes,
        lsn: Lsn,
    ) {
        self.promised(epoch, name, promise, lsn);
        let Some(group) = self.groups.get_mut(&epoch) else { return };
        let Some(slot) = group.slots.get_mut(name) else { return };
        if ballot < slot.voted {
            return;
        }
        let before = (slot.promised, slot.voted);
        group.bytes = group.bytes + state.len() - slot.state.len();
        slot.voted = ballot;
        slot.last = last;
        slot.state = state;
        slot.voted_lsn = lsn;
        invariants::acceptor_moved(name, before, (slot.promised, slot.voted));
    }

    fn refuse(&self, from: Caller, frame_kind: u16, error: &DecodeError, out: &mut Effects) {
        let reason = format!("the acceptor cannot read message {frame_kind}: {error}");
        out.reply(from, Refused { reason }, Lsn::NONE);
    }
}

/// Returns the answer to a prepare whose ballot is not above the promise: an ack if exactly that ballot is promised and was not used for a
/// vote.
fn repeat(slot: &Slot, ballot: Ballot, ack: impl Fn(&Slot, Option<Ballot>) -> PrepReply) -> PrepReply {
    if ballot == slot.promised && slot.voted < ballot {
        return ack(slot, Some(ballot));
    }
    PrepReply { answer: PrepAnswer::Nack { promised: slot.promised }, state: Bytes::new() }
}

impl Role for Acceptor {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        self.settle_initial();
        let kind = frame.kind;
        macro_rules! serve {
            ($message:ty, $handle:ident) => {
                match <$message>::from_frame(frame) {
                    Ok(m) => {
                        let (reply, reveals) = self.$handle(&m, out);
                        out.reply(from, reply, reveals);
                    }
                    Err(e) => self.refuse(from, kind, &e, out),
                }
            };
        }
        match kind {
            Prep::KIND => serve!(Prep, prep),
            Write::KIND => serve!(Write, write),
            Fence::KIND => serve!(Fence, fence),
            List::KIND => serve!(List, list),
            Install::KIND => serve!(Install, install),
            Open::KIND => serve!(Open, open),
            Status::KIND => serve!(Status, status),
            got => {
                let error = DecodeError::WrongKind { expected: "a request to an acceptor", got };
                self.refuse(from, kind, &error, out);
            }
        }
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn on_space(&mut self, _now: Tick, space: Space, _out: &mut Effects) {
        self.space = space;
    }

    fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.image(max_bytes)
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.restore_image(checkpoint)
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.replay(stored)
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.settle_initial();
        Vec::new()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let registers: usize = self.groups.values().map(|g| g.slots.len()).sum();
        let epoch = self.serving.as_ref().map_or(0, |g| g.epoch);
        out.push(Measure { name: "registers", label: None, value: registers as f64 });
        out.push(Measure { name: "registers_held_bytes", label: None, value: self.held_bytes() as f64 });
        out.push(Measure { name: "registers_group_epoch", label: None, value: epoch as f64 });
    }
}

impl Acceptor {
    /// Returns the serving group, as far as this acceptor knows.
    pub fn status(&mut self, _m: &Status, _out: &mut Effects) -> (StatusReply, Lsn) {
        self.settle_initial();
        (StatusReply { serving: self.serving.clone() }, self.serving_lsn)
    }

    pub(super) fn done(result: Result<Lsn, Reject>, otherwise: Lsn) -> (DoneReply, Lsn) {
        use super::message::DoneAnswer;
        match result {
            Ok(reveals) => (DoneReply { answer: DoneAnswer::Done {} }, reveals),
            Err(why) => (DoneReply { answer: DoneAnswer::Rejected { why } }, otherwise),
        }
    }
}
