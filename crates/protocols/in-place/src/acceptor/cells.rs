//! The cells of an acceptor. The first byte of a cell's key says what it is of: a keyspace that was dropped, a group, or a key of a group.

use std::collections::BTreeMap;

use atoll_contract::keyspace::KeyspaceId;
use atoll_core::{Decode, DecodeError, Encode, Lsn, Reader, Tick};
use bytes::{Bytes, BytesMut};

use super::{Acceptor, Grave, Group, Shows, Slot};
use crate::message::{CellValue, GroupKey, Phase};
use crate::state::KeyState;

const KEYSPACE: u8 = 0;
const GROUP: u8 = 1;
const KEY: u8 = 2;

fn cell_key(tag: u8, of: &impl Encode, rest: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(32 + rest.len());
    tag.encode(&mut out);
    of.encode(&mut out);
    out.extend_from_slice(rest);
    out.freeze()
}

/// Returns the key of the cell that says that a keyspace was dropped.
pub(super) fn of_keyspace(keyspace: KeyspaceId) -> Bytes {
    cell_key(KEYSPACE, &keyspace, &[])
}

/// Returns the key of the cell of a group.
pub(super) fn of_group(group: GroupKey) -> Bytes {
    cell_key(GROUP, &group, &[])
}

/// Returns the key of the cell of a key.
pub(super) fn of_key(group: GroupKey, key: &[u8]) -> Bytes {
    cell_key(KEY, &group, key)
}

/// Returns the group and the key of a cell with a vote; None if it is another cell.
pub fn key_of_cell(cell: &Bytes) -> Result<Option<(GroupKey, Bytes)>, DecodeError> {
    let mut from = Reader::new(cell.clone());
    if u8::decode(&mut from)? != KEY {
        return Ok(None);
    }
    let group = GroupKey::decode(&mut from)?;
    let left = from.left();
    Ok(Some((group, from.take(left, "key of a cell")?)))
}

impl Acceptor {
    /// Takes a cell that was found at the start.
    pub(super) fn recover(&mut self, cell: &Bytes, value: Bytes) -> Result<(), DecodeError> {
        match (CellValue::from_bytes(value)?, key_of_cell(cell)?) {
            (CellValue::Slot { promised, voted, state }, Some((group, key))) => {
                let mut slot = Slot { promised, voted, state, ..Slot::default() };
                slot.look()?;
                self.found.entry(group).or_default().insert(key, slot);
            }
            (CellValue::Group { config, phase, floor, clock }, None) => {
                let key = config.key;
                if let Some(identity) = self.identity_in(&config) {
                    let slots = BTreeMap::new();
                    let group = Group { config, identity, phase, floor, clock, lsn: Lsn::NONE, slots };
                    self.groups.insert(key, group);
                }
            }
            (CellValue::Dropped { epoch }, None) => {
                let mut from = Reader::new(cell.clone());
                u8::decode(&mut from)?;
                self.dropped.insert(KeyspaceId::decode(&mut from)?, epoch);
            }
            (_, of_key) => {
                let value = u64::from(of_key.is_some());
                let allowed = "a vote in the cell of a key, and nothing else there";
                return Err(DecodeError::Invalid { what: "cell of an acceptor", value, allowed });
            }
        }
        Ok(())
    }

    /// Puts the keys that were found into their groups. What belongs to no group was never acknowledged, or was dropped: it goes.
    pub(super) fn settle(&mut self) {
        let is_dropped =
            |group: &GroupKey| self.dropped.get(&group.keyspace).is_some_and(|last| *last >= group.epoch);
        let gone: Vec<GroupKey> = self.groups.keys().filter(|key| is_dropped(key)).copied().collect();
        for key in gone {
            self.groups.remove(&key);
            self.found.entry(key).or_default();
        }
        for (group, slots) in std::mem::take(&mut self.found) {
            match self.groups.get_mut(&group) {
                Some(known) if known.phase == (Phase::Retired {}) => {
                    self.graves.push_back(Grave { after: Lsn::NONE, group, slots, keeps_group: true });
                }
                Some(known) => {
                    self.bytes += slots.iter().map(|(key, slot)| slot.bytes(key)).sum::<usize>();
                    known.slots = slots;
                }
                None => self.graves.push_back(Grave { after: Lsn::NONE, group, slots, keeps_group: false }),
            }
        }
        if !self.graves.is_empty() {
            self.next_sweep = Some(Tick(0));
        }
    }
}

impl Slot {
    /// Reads what the acceptor needs to know of the state of its vote.
    pub(super) fn look(&mut self) -> Result<(), DecodeError> {
        let state = KeyState::read(&self.state, 0)?;
        self.shows = match state.held() {
            _ if state.lock.is_some() => Shows::Locked,
            Some(held) => Shows::Version(held.version.0),
            None => Shows::Nothing,
        };
        self.clock = state.clock;
        Ok(())
    }
}
