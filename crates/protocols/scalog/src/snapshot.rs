//! Snapshots of the state of the order, with which the ordering log begins once it was trimmed (scalog-S8).
//!
//! A snapshot is an entry of the ordering log, which an orderer proposes from what it has applied. Other entries may come in between. So it
//! counts only if it is at the place up to which its proposer had applied the log; then it repeats what everybody else has computed.

use std::collections::BTreeMap;

use bytes::Bytes;

use atoll_core::invariant;

use crate::config::Server;
use crate::invariants;
use crate::order::{Final, Order, OrderEntry, Shard};

atoll_core::record! {
    /// A shard, as of a snapshot.
    pub struct ShardSnapshot {
        /// Its number.
        pub shard: u32,
        /// Its servers.
        pub servers: Vec<Server>,
        /// The number of ordered records of each segment.
        pub counts: Vec<u64>,
        /// The first view with it.
        pub since: u64,
        /// Set if it is to end after this many further cuts.
        pub leaving: Option<u32>,
        /// Set once it has ended: the first view without it, and the number of records that are ordered by then.
        pub ended: Option<(u64, u64)>,
    }
}

atoll_core::record! {
    /// See the module documentation.
    pub struct Snapshot {
        /// The number of entries that its proposer had applied: its place in the ordering log, if it counts.
        pub place: u64,
        /// The number of ordered records.
        pub base: u64,
        /// The number of the view.
        pub view: u64,
        /// All shards, those that have ended, too.
        pub shards: Vec<ShardSnapshot>,
    }
}

/// Where the newest snapshot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Snapped {
    /// Its place in the ordering log.
    pub place: u64,
    /// The records below this number are ordered by the entries before it.
    pub base: u64,
}

fn shard_of(number: u32, shard: &Shard) -> ShardSnapshot {
    ShardSnapshot {
        shard: number,
        servers: shard.servers.clone(),
        counts: shard.counts.clone(),
        since: shard.since,
        leaving: shard.leaving,
        ended: shard.ended.map(|end| (end.view, end.base)),
    }
}

fn shard_in(snapshot: &ShardSnapshot) -> Shard {
    Shard {
        servers: snapshot.servers.clone(),
        counts: snapshot.counts.clone(),
        since: snapshot.since,
        leaving: snapshot.leaving,
        ended: snapshot.ended.map(|(view, base)| Final { view, base }),
    }
}

impl Order {
    /// Returns a snapshot of the state, to be the next entry of the ordering log.
    pub fn snapshot(&self) -> Snapshot {
        let shards = self.shards().iter().map(|(number, shard)| shard_of(*number, shard)).collect();
        Snapshot { place: self.applied(), base: self.base(), view: self.view(), shards }
    }

    /// Returns whether a new snapshot would be of use: records were given up that the entries above the newest snapshot order, or there is
    /// none, and at least `after` entries followed it.
    pub fn wants_snapshot(&self, after: u64) -> bool {
        let (place, base) = self.snapped.map_or((0, 1), |snapped| (snapped.place, snapped.base));
        !self.is_sealed() && self.trim() >= base && self.applied() >= place + after
    }

    /// Takes the snapshot that is the next entry. Returns whether it counts.
    pub(crate) fn take_snapshot(&mut self, snapshot: &Snapshot) -> bool {
        if snapshot.place != self.applied() || self.is_sealed() {
            return false;
        }
        invariant!(
            *snapshot == self.snapshot(),
            "a snapshot at place {} of the ordering log is not what its entries say (scalog-S8)",
            snapshot.place
        );
        invariants::base_is_sum(self.base, &self.shards);
        self.snapped = Some(Snapped { place: snapshot.place, base: snapshot.base });
        true
    }

    /// Returns the state after the entry at a place of an ordering log whose entries below that place were given up. They were given up
    /// because the records that they order were. None if the entry is not a snapshot for this place.
    pub fn resume_from(entry: Bytes, place: u64) -> Option<Order> {
        let snapshot = OrderEntry::parse(entry).ok()?.snapshot.filter(|snapshot| snapshot.place == place)?;
        let shards: BTreeMap<u32, Shard> =
            snapshot.shards.iter().map(|shard| (shard.shard, shard_in(shard))).collect();
        invariants::base_is_sum(snapshot.base, &shards);
        let live = || shards.iter().filter(|(_, shard)| shard.is_live());
        let leaving =
            live().filter(|(_, shard)| shard.leaving.is_some()).map(|(number, _)| *number).collect();
        Some(Order {
            live: live().count(),
            leaving,
            applied: place + 1,
            base: snapshot.base,
            view: snapshot.view,
            shards,
            trim: snapshot.base,
            sealed: None,
            snapped: Some(Snapped { place, base: snapshot.base }),
            start: place,
        })
    }
}
