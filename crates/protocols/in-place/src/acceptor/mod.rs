//! The acceptor of a node (§3): for each key, a promise and a vote, which it overwrites in place. Each key is a cell of its own, so keys do
//! not wait for each other, and there is no log to replay. An answer leaves only once every cell that it shows is durable (§8, X1).
//!
//! | file | what it is |
//! | --- | --- |
//! | `mod.rs` | the role: groups, messages, deletion of keyspaces |
//! | `serve.rs` | prepare, write, forget, list |
//! | `cells.rs` | what is in which cell, and recovery |
//! | `seal.rs` | hand-over of a group |
//! | `watch.rs` | those who wait for a change of a key |
//!
//! A key costs [`SLOT_BYTES`] in memory in addition to its name and its state. On disk it costs the slot of a cell: two blocks for a state
//! of up to about 4 KB. The capacity of a node bounds the sum in memory. New keys have a lower limit than keys that exist, because their
//! users may depend on the next write. An acceptor may have missed a key that others hold, so it takes a named ballot and a repeated vote
//! for it up to the full capacity. A refusal is always safe: it is like a lost message.
//!
//! *Deletion (rmw-T11).* A deletion is a vote like any other, and leaves a tombstone. It goes only when the proposer knows that *all*
//! acceptors of the group have voted for it. Before its slot goes, the group's floor is durable: from then on the acceptor promises at
//! least the ballot after the tombstone's for every key without a slot, and such keys begin with a clock that no forgotten key had.
//!
//! *Identity (rmw-T9).* A group names its acceptors with their identities: the data directory, or, for a keyspace in memory, the life of
//! the process. Nobody else answers for them.

mod cells;
mod seal;
mod serve;
mod watch;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use atoll_contract::keyspace::{Durability, KeyspaceId, Replica, place_of};
use atoll_core::env::Refused;
use atoll_core::testing::{hit, mutant};
use atoll_core::{
    Caller, DecodeError, Effects, Encode, Env, Frame, Loc, Lsn, Measure, Message, Role, Space, StorageId,
    Tick,
};
use bytes::Bytes;

pub use cells::key_of_cell;

use crate::ballot::{Ballot, ProposerId};
use crate::message::{
    Answer, Answers, Ask, CellValue, Create, Created, DropKeyspace, Fetch, GroupConfig, GroupKey, List,
    Phase, Raise, Reject, Retire, Seal, Watch,
};
use crate::mutants;

/// Bytes that a key takes in memory, in addition to its name and its state: its slot in a map whose nodes are about two thirds full, and
/// two allocations.
pub const SLOT_BYTES: usize = 352;
const _: () = assert!((size_of::<Slot>() + size_of::<Bytes>()) * 3 / 2 + 32 <= SLOT_BYTES);
/// One part of the capacity in this many is for keys that exist already.
const RESERVED_PART: usize = 8;
/// The most bytes of states in one message of answers. An answer that does not fit is asked for again.
const MAX_ANSWER_BYTES: usize = 512 * 1024;
/// How many cells of deleted keyspaces are deleted at once, so that other work does not wait (X25).
const CELLS_AT_ONCE: usize = 256;
/// The pause between two of these steps.
const SWEEP_EVERY: Duration = Duration::from_millis(5);

/// The limits of an acceptor.
#[derive(Clone, Copy, Debug)]
pub struct AcceptorOptions {
    /// How many bytes all keys of a node take, with [`SLOT_BYTES`] for each. Too small: writes are refused. Too large: memory.
    pub capacity_bytes: usize,
}

impl Default for AcceptorOptions {
    fn default() -> Self {
        AcceptorOptions { capacity_bytes: 512 << 20 }
    }
}

/// What a state shows of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shows {
    /// It is not there.
    #[default]
    Nothing,
    /// Its version.
    Version(u64),
    /// A transaction has locked it.
    Locked,
}

/// One key.
#[derive(Debug, Default)]
struct Slot {
    promised: Ballot,
    voted: Ballot,
    state: Bytes,
    /// What the state shows of the key.
    shows: Shows,
    /// The clock of the key in the state.
    clock: u64,
    /// The last write of the cell.
    lsn: Lsn,
    /// The write of the cell that contains the vote.
    voted_lsn: Lsn,
    /// The last incremental prepare, and the ballot that it got (rmw-T15). Not in the cell, because it matters only for liveness.
    assigned: Option<(ProposerId, u64, Ballot)>,
}

#[derive(Debug)]
struct Group {
    config: GroupConfig,
    identity: u128,
    phase: Phase,
    /// What is promised for every key without a slot.
    floor: Ballot,
    /// The clock above which keys without a slot begin.
    clock: u64,
    /// The last write of the cell of the group.
    lsn: Lsn,
    slots: BTreeMap<Bytes, Slot>,
}

/// A tombstone that goes once the floor of its group is durable.
#[derive(Debug)]
struct Leaving {
    after: Lsn,
    group: GroupKey,
    key: Bytes,
    ballot: Ballot,
}

/// Cells of a dropped group, to be deleted once the tombstone of the keyspace is durable.
#[derive(Debug)]
struct Grave {
    after: Lsn,
    group: GroupKey,
    slots: BTreeMap<Bytes, Slot>,
    /// Whether the cell of the group stays.
    keeps_group: bool,
}

/// See the module documentation.
pub struct Acceptor {
    env: Env,
    storage: StorageId,
    options: AcceptorOptions,
    groups: BTreeMap<GroupKey, Group>,
    /// The last epochs of keyspaces that were dropped.
    dropped: BTreeMap<KeyspaceId, u64>,
    dropped_lsn: Lsn,
    /// Bytes that all keys take.
    bytes: usize,
    space: Space,
    leaving: VecDeque<Leaving>,
    graves: VecDeque<Grave>,
    next_sweep: Option<Tick>,
    watchers: watch::Watchers,
    /// Cells of keys that recovery has found, before it knows all groups.
    found: BTreeMap<GroupKey, BTreeMap<Bytes, Slot>>,
}

impl Acceptor {
    /// Creates the acceptor of a node with this data directory.
    pub fn new(env: Env, storage: StorageId, options: AcceptorOptions) -> Self {
        Acceptor {
            env,
            storage,
            options,
            groups: BTreeMap::new(),
            dropped: BTreeMap::new(),
            dropped_lsn: Lsn::NONE,
            bytes: 0,
            space: Space::Plenty,
            leaving: VecDeque::new(),
            graves: VecDeque::new(),
            next_sweep: None,
            watchers: watch::Watchers::default(),
            found: BTreeMap::new(),
        }
    }

    /// Returns the identity under which this node is an acceptor of a group. None if the group does not name it.
    fn identity_in(&self, config: &GroupConfig) -> Option<u128> {
        let identity = match config.durability {
            Durability::Disk => self.storage.0,
            Durability::Memory => u128::from(self.env.incarnation().0),
        };
        if mutant(mutants::IN_PLACE_T9) {
            return config.replicas.iter().find(|r| r.node == self.env.node()).map(|r| r.identity);
        }
        config.has(Replica { node: self.env.node(), identity }).then_some(identity)
    }

    /// Returns the group of a request, if this acceptor may answer for it.
    fn admit(&self, key: GroupKey, identity: u128) -> Result<&Group, Reject> {
        let Some(group) = self.groups.get(&key) else {
            let last = self.dropped.get(&key.keyspace).copied().unwrap_or(0);
            return Err(if last >= key.epoch { Reject::Dropped {} } else { Reject::Unknown {} });
        };
        if group.identity != identity {
            hit("in-place.acceptor.wrong_identity");
            return Err(Reject::WrongIdentity {});
        }
        if !group.serves() {
            return Err(Reject::Moved {});
        }
        if group.config.durability == Durability::Disk && self.space == Space::Closed {
            return Err(Reject::StorageFailed {});
        }
        Ok(group)
    }

    fn on_ask(&mut self, from: Caller, m: Ask, out: &mut Effects) {
        let (mut items, mut reveals, mut bytes) = (Vec::with_capacity(m.items.len()), self.dropped_lsn, 0);
        for request in &m.items {
            if bytes > MAX_ANSWER_BYTES {
                items.push(Answer::Rejected { why: Reject::Busy {} });
                continue;
            }
            let (answer, shows) = match self.serve(request, out) {
                Ok(answered) => answered,
                Err(why) => (Answer::Rejected { why }, Lsn::NONE),
            };
            if let Answer::Promise { state, .. } = &answer {
                bytes += state.len();
            }
            reveals = reveals.max(shows);
            items.push(answer);
        }
        out.race_point("in-place.acceptor.answers");
        out.reply(from, Answers { items }, reveals);
    }

    fn on_create(&mut self, from: Caller, m: Create, out: &mut Effects) {
        let (mut not_member, mut dropped, mut shows) = (0, 0, self.dropped_lsn);
        for config in m.groups {
            let key = config.key;
            if self.dropped.get(&key.keyspace).is_some_and(|last| *last >= key.epoch) {
                dropped += 1;
                continue;
            }
            if let Some(group) = self.groups.get(&key) {
                shows = shows.max(group.lsn);
                continue;
            }
            let Some(identity) = self.identity_in(&config) else {
                hit("in-place.acceptor.not_member");
                not_member += 1;
                continue;
            };
            let mut group = Group::new(config, identity);
            group.keep(out);
            shows = shows.max(group.lsn);
            self.groups.insert(key, group);
        }
        out.reply(from, Created { not_member, dropped }, shows);
    }

    fn on_drop(&mut self, now: Tick, from: Caller, m: &DropKeyspace, out: &mut Effects) {
        let last = self.dropped.entry(m.keyspace).or_default();
        if m.epoch > *last {
            *last = m.epoch;
            let value = CellValue::Dropped { epoch: m.epoch };
            self.dropped_lsn = out.write_cell(cells::of_keyspace(m.keyspace), value.to_bytes());
        }
        let first = GroupKey { keyspace: m.keyspace, epoch: 0, shard: 0 };
        let end = GroupKey { keyspace: m.keyspace, epoch: m.epoch, shard: u32::MAX };
        let gone: Vec<GroupKey> = self.groups.range(first..=end).map(|(key, _)| *key).collect();
        for key in gone {
            let Some(group) = self.groups.remove(&key) else { continue };
            self.watchers.dropped(key, self.dropped_lsn, out);
            let bytes: usize = group.slots.iter().map(|(name, slot)| slot.bytes(name)).sum();
            self.bytes = self.bytes.saturating_sub(bytes);
            if group.config.durability == Durability::Disk {
                self.graves.push_back(Grave {
                    after: self.dropped_lsn,
                    group: key,
                    slots: group.slots,
                    keeps_group: false,
                });
                self.next_sweep = Some(now.after(SWEEP_EVERY));
            }
        }
        out.reply(from, Created { not_member: 0, dropped: 0 }, self.dropped_lsn);
    }

    /// Deletes some cells of dropped groups.
    fn sweep(&mut self, now: Tick, out: &mut Effects) {
        self.next_sweep = (!self.graves.is_empty()).then(|| now.after(SWEEP_EVERY));
        let Some(grave) = self.graves.front_mut() else { return };
        if grave.after > out.durable() || self.space == Space::Closed {
            return;
        }
        for _ in 0..CELLS_AT_ONCE {
            match grave.slots.pop_first() {
                Some((key, _)) => drop(out.delete_cell(cells::of_key(grave.group, &key))),
                None => {
                    if !grave.keeps_group {
                        out.delete_cell(cells::of_group(grave.group));
                    }
                    self.graves.pop_front();
                    return;
                }
            }
        }
    }

    fn dispatch(&mut self, now: Tick, from: Caller, f: Frame, out: &mut Effects) -> Result<(), DecodeError> {
        match f.kind {
            Ask::KIND => self.on_ask(from, Ask::from_frame(f)?, out),
            List::KIND => self.on_list(from, &List::from_frame(f)?, out),
            Watch::KIND => self.on_watch(now, from, Watch::from_frame(f)?, out),
            Create::KIND => self.on_create(from, Create::from_frame(f)?, out),
            DropKeyspace::KIND => self.on_drop(now, from, &DropKeyspace::from_frame(f)?, out),
            Seal::KIND => self.on_seal(from, Seal::from_frame(f)?, out),
            Fetch::KIND => self.on_fetch(from, &Fetch::from_frame(f)?, out),
            Raise::KIND => self.on_raise(from, Raise::from_frame(f)?, out),
            Retire::KIND => self.on_retire(now, from, Retire::from_frame(f)?, out),
            got => return Err(DecodeError::WrongKind { expected: "a message for an acceptor of keys", got }),
        }
        Ok(())
    }
}

impl Group {
    /// Returns whether a key is one of this group.
    fn is_mine(&self, key: &[u8]) -> bool {
        place_of(key, self.config.shards, 1).shard == self.config.key.shard
    }

    /// Stores what is promised to keys without a slot.
    fn keep(&mut self, out: &mut Effects) {
        if self.config.durability == Durability::Disk {
            let (config, phase) = (self.config.clone(), self.phase.clone());
            let value = CellValue::Group { config, phase, floor: self.floor, clock: self.clock };
            self.lsn = out.write_cell(cells::of_group(self.config.key), value.to_bytes());
        }
    }
}

impl Slot {
    /// Returns how many bytes the slot takes in memory.
    fn bytes(&self, key: &[u8]) -> usize {
        key.len() + SLOT_BYTES + self.state.len()
    }
}

impl Role for Acceptor {
    fn on_frame(&mut self, now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        if let Err(error) = self.dispatch(now, from, frame, out) {
            out.reply(from, Refused { reason: error.to_string() }, Lsn::NONE);
        }
    }

    fn on_durable(&mut self, _: Tick, upto: Lsn, _: &[(Lsn, Loc)], out: &mut Effects) {
        while self.leaving.front().is_some_and(|leaving| leaving.after <= upto) {
            if let Some(leaving) = self.leaving.pop_front() {
                self.leave(&leaving, out);
            }
        }
    }

    fn deadline(&self) -> Option<Tick> {
        [self.next_sweep, self.watchers.next_end()].into_iter().flatten().min()
    }

    fn on_deadline(&mut self, now: Tick, out: &mut Effects) {
        if self.next_sweep.is_some_and(|at| at <= now) {
            self.sweep(now, out);
        }
        self.watchers.expire(now, out);
    }

    fn on_space(&mut self, _now: Tick, space: Space, _out: &mut Effects) {
        self.space = space;
    }

    fn recover_cell(&mut self, key: Bytes, value: Bytes) -> Result<(), DecodeError> {
        self.recover(&key, value)
    }

    fn recovered(&mut self) -> Vec<Loc> {
        self.settle();
        Vec::new()
    }

    fn measure(&self, out: &mut Vec<Measure>) {
        let mut put = |name, value: usize| out.push(Measure { name, label: None, value: value as f64 });
        put("in_place_groups", self.groups.len());
        put("in_place_keys", self.groups.values().map(|group| group.slots.len()).sum());
        put("in_place_held_bytes", self.bytes);
    }
}
