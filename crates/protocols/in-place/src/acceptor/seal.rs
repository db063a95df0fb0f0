//! The acceptor's part of a hand-over (§9a): it seals a group, shows what the group holds, and clears it once another group serves.
//!
//! What a sealed acceptor holds never changes again. It refuses every request of proposers, also reads: another group may serve already.
//! Once a majority is sealed, nothing can be chosen in the group any more, and what was chosen is among the votes of that majority.

use std::ops::Bound;

use atoll_contract::keyspace::Durability;
use atoll_core::testing::{hit, mutant};
use atoll_core::{Caller, Effects, Lsn, Space, Tick};

use super::{Acceptor, Grave, Group, MAX_ANSWER_BYTES, SWEEP_EVERY};
use crate::ballot::Ballot;
use crate::message::{Fetch, Fetched, GroupConfig, Phase, Raise, Reject, Retire, Seal, Sealed, Vote};
use crate::mutants;

/// The most votes in one answer.
const MAX_FETCHED: usize = 512;

impl Acceptor {
    /// Returns the group with this configuration, which is made if the acceptor has not heard of it.
    fn group_of(&mut self, config: GroupConfig, out: &mut Effects) -> Result<&mut Group, Reject> {
        let key = config.key;
        if self.dropped.get(&key.keyspace).is_some_and(|last| *last >= key.epoch) {
            return Err(Reject::Dropped {});
        }
        let Some(identity) = self.identity_in(&config) else { return Err(Reject::WrongIdentity {}) };
        if config.durability == Durability::Disk && self.space == Space::Closed {
            return Err(Reject::StorageFailed {});
        }
        Ok(self.groups.entry(key).or_insert_with(|| {
            let mut group = Group::new(config, identity);
            group.keep(out);
            group
        }))
    }

    pub(super) fn on_seal(&mut self, from: Caller, m: Seal, out: &mut Effects) {
        let dropped = self.dropped_lsn;
        let key = m.config.key;
        let (rejected, shows) = match self.group_of(m.config, out) {
            Ok(group) => {
                if group.phase == (Phase::Serves {}) {
                    hit("in-place.acceptor.seals");
                    group.phase = Phase::Sealed {};
                    // This write comes after all votes of the group, so the answer waits for them, too.
                    group.keep(out);
                }
                (None, group.lsn)
            }
            Err(why) => (Some(why), dropped),
        };
        // Watchers of the group look for themselves.
        self.watchers.dropped(key, shows, out);
        out.reply(from, Sealed { rejected }, shows);
    }

    /// Shows the votes of a sealed group, in the order of the keys.
    pub(super) fn on_fetch(&self, from: Caller, m: &Fetch, out: &mut Effects) {
        let group = match self.groups.get(&m.group).filter(|group| group.identity == m.identity) {
            Some(group) if group.phase == (Phase::Sealed {}) => group,
            found => {
                let why = if found.is_some() { Reject::Moved {} } else { Reject::Unknown {} };
                return out.reply(from, Fetched::empty(0, Some(why)), Lsn::NONE);
            }
        };
        let start = m.after.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut fetched = Fetched::empty(group.clock, None);
        let mut bytes = 0;
        for (key, slot) in group.slots.range((start, Bound::Unbounded)) {
            if slot.voted == Ballot::ZERO {
                continue;
            }
            if fetched.votes.len() >= MAX_FETCHED || bytes > MAX_ANSWER_BYTES {
                fetched.more = true;
                break;
            }
            bytes += key.len() + slot.state.len();
            fetched.votes.push(Vote { key: key.clone(), voted: slot.voted, state: slot.state.clone() });
        }
        out.reply(from, fetched, group.lsn);
    }

    /// Keys without a vote begin above this clock: their former group had it.
    pub(super) fn on_raise(&mut self, from: Caller, m: Raise, out: &mut Effects) {
        let dropped = self.dropped_lsn;
        let (rejected, shows) = match self.group_of(m.config, out) {
            Ok(group) => {
                if group.clock < m.clock {
                    group.clock = m.clock;
                    group.keep(out);
                }
                (None, group.lsn)
            }
            Err(why) => (Some(why), dropped),
        };
        out.reply(from, Sealed { rejected }, shows);
    }

    /// Another group serves: the keys go. The group stays, so that this acceptor refuses whoever still asks.
    pub(super) fn on_retire(&mut self, now: Tick, from: Caller, m: Retire, out: &mut Effects) {
        let (key, dropped) = (m.config.key, self.dropped_lsn);
        let is_durable = m.config.durability == Durability::Disk;
        let (rejected, shows, slots) = match self.group_of(m.config, out) {
            Ok(group) => {
                if group.phase != (Phase::Retired {}) {
                    group.phase = Phase::Retired {};
                    group.keep(out);
                }
                (None, group.lsn, std::mem::take(&mut group.slots))
            }
            Err(why) => (Some(why), dropped, Default::default()),
        };
        self.watchers.dropped(key, shows, out);
        self.bytes = self.bytes.saturating_sub(slots.iter().map(|(name, slot)| slot.bytes(name)).sum());
        if is_durable && !slots.is_empty() {
            self.graves.push_back(Grave { after: shows, group: key, slots, keeps_group: true });
            self.next_sweep = Some(now.after(SWEEP_EVERY));
        }
        out.reply(from, Sealed { rejected }, shows);
    }
}

impl Group {
    /// Returns a group that has seen nothing yet.
    pub(super) fn new(config: GroupConfig, identity: u128) -> Self {
        let slots = Default::default();
        Group {
            config,
            identity,
            phase: Phase::Serves {},
            floor: Ballot::ZERO,
            clock: 0,
            lsn: Lsn::NONE,
            slots,
        }
    }

    /// Returns whether the group may answer proposers.
    pub(super) fn serves(&self) -> bool {
        self.phase == (Phase::Serves {}) || mutant(mutants::IN_PLACE_UNSEALED)
    }
}
