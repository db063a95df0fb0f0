//! What an acceptor answers (§3).

use std::ops::Bound;

use atoll_contract::keyspace::Durability;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Encode, Lsn, Space, invariant};
use bytes::Bytes;

use super::{Acceptor, Group, Leaving, RESERVED_PART, SLOT_BYTES, Shows, Slot, cells};
use crate::ballot::{Ballot, MAX_ROUND, ProposerId};
use crate::content::MAX_RECORD_BYTES;
use crate::invariants;
use crate::message::{Answer, CellValue, Keys, List, Listed, Mode, Reject, Request, Step};
use crate::mutants;
use crate::state::MAX_STATE_BYTES;

/// The most keys in an answer to a listing.
const MAX_LISTED: usize = 1000;

/// An answer, and what must be durable before it leaves.
type Answered = Result<(Answer, Lsn), Reject>;

impl Acceptor {
    /// Answers a request.
    pub(super) fn serve(&mut self, request: &Request, out: &mut Effects) -> Answered {
        let group = self.admit(request.group, request.identity)?;
        let key = &request.key;
        if key.is_empty() || key.len() > MAX_RECORD_BYTES || !group.is_mine(key) {
            return Err(Reject::Invalid {});
        }
        match &request.step {
            Step::Prep { pid, request: number, mode } => self.prep(request, (*pid, *number), mode, out),
            Step::Write { ballot, through, state } => self.write(request, *ballot, *through, state, out),
            Step::Forget { ballot } => self.forget(request, *ballot, out),
        }
    }

    /// Refuses a slot that grows by this many bytes if there is no room. `known` says that another acceptor has voted for the key.
    fn check_room(
        &self,
        durability: Durability,
        is_new: bool,
        known: bool,
        grown: usize,
    ) -> Result<(), Reject> {
        if grown == 0 {
            return Ok(());
        }
        if durability == Durability::Disk && self.space != Space::Plenty {
            return Err(Reject::DiskFull {});
        }
        let capacity = self.options.capacity_bytes;
        let limit = if is_new && !known { capacity - capacity / RESERVED_PART } else { capacity };
        if self.bytes + grown > limit { Err(Reject::Full {}) } else { Ok(()) }
    }

    /// Phase 1, or a read (§3).
    fn prep(
        &mut self,
        to: &Request,
        (pid, number): (ProposerId, u64),
        mode: &Mode,
        out: &mut Effects,
    ) -> Answered {
        let Some(group) = self.groups.get(&to.group) else { return Err(Reject::Unknown {}) };
        let slot = group.slots.get(&to.key);
        let (promised, voted) = group.ballots(slot);
        let ballot = match mode {
            // A read writes nothing, but must not show a vote that is not synced yet (X1).
            Mode::ReadOnly {} => {
                let shows = slot.map_or(group.lsn, |slot| slot.voted_lsn.max(group.lsn));
                return Ok((group.promise(slot, None), shows));
            }
            Mode::Incremental {} => match slot.and_then(|slot| slot.assigned) {
                Some((who, request, ballot)) if (who, request) == (pid, number) => {
                    hit("in-place.acceptor.duplicate_prepare");
                    return Ok(group.repeat(slot, ballot));
                }
                // A copy of an older one, which came late. Its proposer has given up waiting for it.
                Some((who, request, _)) if who == pid && request > number => {
                    return Ok((Answer::Nack { promised, voted }, group.shows(slot)));
                }
                _ => Ballot { n: promised.n.max(voted.n) + 1, pid },
            },
            Mode::Explicit { ballot } if ballot.n == 0 || ballot.n > MAX_ROUND || ballot.pid != pid => {
                return Err(Reject::Invalid {});
            }
            Mode::Explicit { ballot } if *ballot <= promised => return Ok(group.repeat(slot, *ballot)),
            Mode::Explicit { ballot } => *ballot,
        };
        let durability = group.config.durability;
        let grown = if slot.is_some() { 0 } else { to.key.len() + SLOT_BYTES };
        let known = matches!(mode, Mode::Explicit { .. });
        self.check_room(durability, slot.is_none(), known, grown)?;
        self.bytes += grown;
        let Some(group) = self.groups.get_mut(&to.group) else { return Err(Reject::Unknown {}) };
        // The name shares the buffer of the whole message, so copy it (X13).
        let key = Bytes::copy_from_slice(&to.key);
        let floor = group.floor;
        let slot = group.slots.entry(key).or_insert_with(|| Slot { promised: floor, ..Slot::default() });
        let before = (slot.promised, slot.voted);
        slot.promised = ballot;
        if matches!(mode, Mode::Incremental {}) {
            slot.assigned = Some((pid, number, ballot));
        }
        invariants::acceptor_moved(&to.key, before, (slot.promised, slot.voted));
        slot.lsn = slot.keep(durability, cells::of_key(to.group, &to.key), out);
        let shows = slot.lsn.max(group.lsn);
        Ok((group.promise(group.slots.get(&to.key), Some(ballot)), shows))
    }

    /// Phase 2, the accept of Paxos (§3).
    fn write(
        &mut self,
        to: &Request,
        ballot: Ballot,
        through: bool,
        state: &Bytes,
        out: &mut Effects,
    ) -> Answered {
        let Some(group) = self.groups.get(&to.group) else { return Err(Reject::Unknown {}) };
        if ballot.n == 0 || ballot.n > MAX_ROUND || state.is_empty() || state.len() > MAX_STATE_BYTES {
            return Err(Reject::Invalid {});
        }
        let slot = group.slots.get(&to.key);
        let (promised, voted) = group.ballots(slot);
        // rmw-T3: look for a copy first. The vote has promised the next ballot, so a copy would look old below.
        if let Some(slot) = slot
            && ballot == slot.voted
            && !mutant(mutants::IN_PLACE_T3)
        {
            hit("in-place.acceptor.duplicate_write");
            let name = to.key.escape_ascii();
            invariant!(*state == slot.state, "key {name}: two states in ballot {ballot} (rmw-I2)");
            return Ok((Answer::Vote { next: ballot.next() }, slot.voted_lsn.max(group.lsn)));
        }
        if ballot < promised {
            return Ok((Answer::Nack { promised, voted }, group.shows(slot)));
        }
        if ballot > promised {
            // This acceptor never saw the prepare. Its vote lets it catch up in place.
            hit("in-place.acceptor.laggard_write");
        }
        let mut next = Slot { promised: ballot.next(), voted: ballot, ..Slot::default() };
        // The message pins its whole read buffer, so copy the bytes that are kept (X13).
        next.state = Bytes::copy_from_slice(state);
        next.look().map_err(|_| Reject::Invalid {})?;
        let (durability, is_new) = (group.config.durability, voted == Ballot::ZERO);
        let before = slot.map_or(0, |slot| slot.bytes(&to.key));
        let after = next.bytes(&to.key);
        self.check_room(durability, is_new, through, after.saturating_sub(before))?;
        self.bytes = self.bytes - before + after;
        invariants::acceptor_moved(&to.key, (promised, voted), (next.promised, next.voted));
        next.lsn = next.keep(durability, cells::of_key(to.group, &to.key), out);
        next.voted_lsn = next.lsn;
        let Some(group) = self.groups.get_mut(&to.group) else { return Err(Reject::Unknown {}) };
        let shows = next.lsn.max(group.lsn);
        let is_deletion = next.shows == Shows::Nothing;
        self.watchers.voted(to.group, &to.key, ballot, shows, out);
        group.slots.insert(Bytes::copy_from_slice(&to.key), next);
        if is_deletion && mutant(mutants::IN_PLACE_T11) {
            self.bytes -= after;
            group.slots.remove(&to.key);
            if durability == Durability::Disk {
                out.delete_cell(cells::of_key(to.group, &to.key));
            }
        }
        Ok((Answer::Vote { next: ballot.next() }, shows))
    }

    /// Every acceptor has voted for this deletion: raises the floor, and lets the tombstone go once the floor is durable (rmw-T11).
    fn forget(&mut self, to: &Request, ballot: Ballot, out: &mut Effects) -> Answered {
        let Some(group) = self.groups.get_mut(&to.group) else { return Err(Reject::Unknown {}) };
        let Some(slot) = group.slots.get(&to.key).filter(|slot| slot.is_tombstone_of(ballot)) else {
            // It is gone already, or somebody has prepared or written since.
            return Ok((Answer::Forgotten {}, group.lsn));
        };
        hit("in-place.acceptor.forgets");
        if group.floor < ballot.next() || group.clock < slot.clock {
            group.floor = group.floor.max(ballot.next());
            group.clock = group.clock.max(slot.clock);
            group.keep(out);
        }
        let (after, key) = (group.lsn, Bytes::copy_from_slice(&to.key));
        let leaving = Leaving { after, group: to.group, key, ballot };
        if after <= out.durable() {
            self.leave(&leaving, out);
        } else {
            self.leaving.push_back(leaving);
        }
        Ok((Answer::Forgotten {}, after))
    }

    /// Removes the slot of a tombstone, unless something has happened to the key since.
    pub(super) fn leave(&mut self, leaving: &Leaving, out: &mut Effects) {
        let Some(group) = self.groups.get_mut(&leaving.group) else { return };
        let is_still = |slot: &Slot| slot.is_tombstone_of(leaving.ballot);
        if !group.slots.get(&leaving.key).is_some_and(is_still) {
            return;
        }
        if let Some(slot) = group.slots.remove(&leaving.key) {
            self.bytes = self.bytes.saturating_sub(slot.bytes(&leaving.key));
        }
        if group.config.durability == Durability::Disk {
            out.delete_cell(cells::of_key(leaving.group, &leaving.key));
        }
    }

    /// Lists the keys that this acceptor has voted for.
    pub(super) fn on_list(&self, from: Caller, m: &List, out: &mut Effects) {
        let group = match self.admit(m.group, m.identity) {
            Ok(group) => group,
            Err(why) => {
                let keys = Keys { keys: Vec::new(), more: false, rejected: Some(why) };
                return out.reply(from, keys, self.dropped_lsn);
            }
        };
        let start = match &m.after {
            Some(after) if *after >= m.prefix => Bound::Excluded(after.clone()),
            _ => Bound::Included(m.prefix.clone()),
        };
        let limit = (m.limit as usize).clamp(1, MAX_LISTED);
        let (mut keys, mut shows, mut more) = (Vec::new(), group.lsn, false);
        let range = group.slots.range((start, Bound::Unbounded));
        for (key, slot) in range.take_while(|(key, _)| key.starts_with(&m.prefix)) {
            if slot.voted == Ballot::ZERO {
                continue;
            }
            if keys.len() == limit {
                more = true;
                break;
            }
            shows = shows.max(slot.voted_lsn);
            let (version, locked) = match slot.shows {
                Shows::Nothing => (None, false),
                Shows::Version(version) => (Some(version), false),
                Shows::Locked => (None, true),
            };
            keys.push(Listed { key: key.clone(), voted: slot.voted, version, locked });
        }
        out.reply(from, Keys { keys, more, rejected: None }, shows);
    }
}

impl Group {
    /// Returns what is promised and voted for a key.
    fn ballots(&self, slot: Option<&Slot>) -> (Ballot, Ballot) {
        slot.map_or((self.floor, Ballot::ZERO), |slot| (slot.promised, slot.voted))
    }

    /// Returns what must be durable before an answer shows everything about a key.
    fn shows(&self, slot: Option<&Slot>) -> Lsn {
        slot.map_or(Lsn::NONE, |slot| slot.lsn).max(self.lsn)
    }

    fn promise(&self, slot: Option<&Slot>, ballot: Option<Ballot>) -> Answer {
        let (_, voted) = self.ballots(slot);
        let state = slot.map(|slot| slot.state.clone()).unwrap_or_default();
        Answer::Promise { ballot, voted, clock: self.clock, state }
    }

    /// Answers a prepare whose ballot is not above the promise: with a promise if exactly that ballot is promised, and was not used for a
    /// vote.
    fn repeat(&self, slot: Option<&Slot>, ballot: Ballot) -> (Answer, Lsn) {
        let (promised, voted) = self.ballots(slot);
        let answer = match slot {
            Some(_) if ballot == promised && voted < ballot => self.promise(slot, Some(ballot)),
            _ => Answer::Nack { promised, voted },
        };
        (answer, self.shows(slot))
    }
}

impl Slot {
    /// Returns whether this is the tombstone of a deletion in a ballot, and nothing has happened since.
    fn is_tombstone_of(&self, ballot: Ballot) -> bool {
        self.voted == ballot && self.promised == ballot.next() && self.shows == Shows::Nothing
    }

    /// Stores the slot in its cell, if the group is durable.
    fn keep(&self, durability: Durability, cell: Bytes, out: &mut Effects) -> Lsn {
        match durability {
            Durability::Memory => Lsn::NONE,
            Durability::Disk => {
                let (promised, voted, state) = (self.promised, self.voted, self.state.clone());
                out.write_cell(cell, CellValue::Slot { promised, voted, state }.to_bytes())
            }
        }
    }
}
