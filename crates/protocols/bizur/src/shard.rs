//! A replica of one shard: its vote, and its copies of the buckets (§2). All of it is in memory; in the durable variant, every answer waits
//! until the facts that it shows are journaled (bizur-B3, bizur-B11).

use std::collections::BTreeMap;

use atoll_contract::keyspace::{Durability, Replica};
use atoll_core::testing::{hit, mutant};
use atoll_core::{Effects, Encode, Lsn, RecordKind};
use bytes::Bytes;

use crate::elect::{ElectId, Ver};
use crate::invariants;
use crate::message::{Fact, Instance, ReadAnswer, ReadItem, ShardConfig, ShardWrite, WriteAnswer};
use crate::mutants;

/// A bucket as a replica stores it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copy {
    pub(crate) ver: Ver,
    pub(crate) bytes: Bytes,
    /// Bytes that count against the capacity.
    pub(crate) content_bytes: u32,
    /// The fact that contains it.
    pub(crate) lsn: Lsn,
}

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) config: ShardConfig,
    /// Its own position among the replicas.
    pub(crate) me: usize,
    /// The highest election that it has voted for.
    pub(crate) voted: ElectId,
    /// The highest election in which its server ever stood.
    pub(crate) stood: ElectId,
    pub(crate) sealed: bool,
    /// The instance from which buckets that were never written here are copied (§6).
    pub(crate) former: Option<ShardConfig>,
    /// The instance that serves in place of this one, once it is known. It only saves clients a look at the register, so it is not kept.
    pub(crate) next: Option<Instance>,
    pub(crate) buckets: BTreeMap<u32, Copy>,
    /// The last fact about the shard itself: its configuration, its vote, its seal.
    pub(crate) lsn: Lsn,
}

impl Shard {
    pub(crate) fn new(instance: Instance, me: usize) -> Self {
        Shard {
            config: instance.config,
            former: instance.former,
            next: None,
            me,
            voted: ElectId::ZERO,
            stood: ElectId::ZERO,
            sealed: false,
            buckets: BTreeMap::new(),
            lsn: Lsn::NONE,
        }
    }

    /// Returns this replica.
    pub(crate) fn identity(&self) -> Replica {
        self.config.replicas[self.me]
    }

    /// Keeps a fact as the durability of the shard demands, and returns what an answer that shows it must wait for. In-place storage would
    /// replace the journal here.
    fn keep(&self, fact: &Fact, payload: Bytes, out: &mut Effects) -> Lsn {
        match self.config.durability {
            Durability::Disk => out.journal(RecordKind::Fact, fact.to_bytes(), payload),
            Durability::Memory => Lsn::NONE,
        }
    }

    /// Keeps the configuration of a new shard.
    pub(crate) fn keep_config(&mut self, out: &mut Effects) {
        self.lsn = self.keep(&self.fact(), Bytes::new(), out);
    }

    /// Returns the fact that this node holds the replica.
    pub(crate) fn fact(&self) -> Fact {
        let config = self.config.clone();
        match self.former.clone() {
            None => Fact::Shard { config },
            Some(former) => Fact::Opened { config, former },
        }
    }

    /// Seals the shard. An answer that shows it waits for `lsn`.
    pub(crate) fn seal(&mut self, out: &mut Effects) {
        if !self.sealed {
            hit("bizur.replica.seals");
            self.sealed = true;
            self.lsn = self.keep(&Fact::Sealed { shard: self.config.key }, Bytes::new(), out).max(self.lsn);
        }
    }

    /// Keeps the election in which the server is about to stand. Its request for votes waits for the returned fact (bizur-B3).
    pub(crate) fn stand(&mut self, elect: ElectId, out: &mut Effects) -> Lsn {
        self.stood = self.stood.max(elect);
        self.keep(&Fact::Stood { shard: self.config.key, elect }, Bytes::new(), out).max(self.lsn)
    }

    /// Adopts a later election, if it is one. An answer that shows it waits for `lsn`.
    pub(crate) fn vote(&mut self, elect: ElectId, out: &mut Effects) {
        if elect > self.voted {
            let fact = Fact::Voted { shard: self.config.key, elect };
            self.lsn = self.keep(&fact, Bytes::new(), out).max(self.lsn);
            self.set_voted(elect);
        }
    }

    fn set_voted(&mut self, elect: ElectId) {
        let before = self.voted;
        self.voted = before.max(elect);
        invariants::vote_rises(before, self.voted);
    }

    /// Handles a write of buckets (Algorithm 2, with the checks of bizur-B1). `room` is how many more bytes the node takes. Returns the
    /// answer, the fact that it shows, and by how much the bytes that count have grown.
    pub(crate) fn write(
        &mut self,
        m: &ShardWrite,
        buckets: &Bytes,
        room: usize,
        out: &mut Effects,
    ) -> (WriteAnswer, Lsn, isize) {
        if m.elect < self.voted {
            return (WriteAnswer::Nack { voted: self.voted }, self.lsn, 0);
        }
        // Neither a recovery nor the undoing of a write passes the seal: what the next instance copies must not change.
        if self.sealed && !mutant(mutants::BIZUR_UNSEALED) {
            hit("bizur.replica.sealed");
            return (WriteAnswer::Sealed {}, self.lsn, 0);
        }
        let grows = |item: &crate::message::WriteItem| {
            let old = self.buckets.get(&item.index).map_or(0, |copy| copy.content_bytes as usize);
            (item.content_bytes as usize).saturating_sub(old)
        };
        let growth: usize = m.items.iter().map(grows).sum();
        if !m.recovery && growth > 0 && growth > room {
            hit("bizur.replica.full");
            return (WriteAnswer::Full {}, self.lsn, 0);
        }
        // The vote and the bucket are one fact, and so are durable together.
        self.set_voted(m.elect);
        let (mut shows, mut grown, mut at) = (self.lsn, 0, 0);
        for item in &m.items {
            let bytes = buckets.slice(at..at + item.bytes as usize);
            at += item.bytes as usize;
            let ver = Ver { elect: m.elect, ctr: item.ctr };
            let old = self.buckets.get(&item.index);
            let (old_ver, old_bytes, old_lsn) =
                old.map_or((Ver::default(), 0, Lsn::NONE), |copy| (copy.ver, copy.content_bytes, copy.lsn));
            let is_newer = ver > old_ver || (mutant(mutants::BIZUR_B1) && ver.elect == old_ver.elect);
            if !is_newer {
                hit(if ver == old_ver { "bizur.replica.same_write" } else { "bizur.replica.older_write" });
                shows = shows.max(old_lsn);
                continue;
            }
            // The message pins its whole read buffer, so copy the bytes that are kept (X13).
            let bytes = Bytes::copy_from_slice(&bytes);
            let content_bytes = item.content_bytes;
            let (shard, index) = (self.config.key, item.index);
            let fact = Fact::Bucket { shard, voted: m.elect, index, ver, content_bytes };
            let lsn = self.keep(&fact, bytes.clone(), out);
            shows = shows.max(lsn);
            grown += content_bytes as isize - old_bytes as isize;
            self.set_bucket(index, Copy { ver, bytes, content_bytes, lsn });
        }
        // A later answer that shows this vote waits for the facts of this write, too.
        self.lsn = self.lsn.max(shows);
        (WriteAnswer::Ack {}, shows, grown)
    }

    fn set_bucket(&mut self, index: u32, copy: Copy) {
        let before = self.buckets.get(&index).map_or(Ver::default(), |copy| copy.ver);
        invariants::bucket_rises(index, before, copy.ver);
        self.buckets.insert(index, copy);
    }

    /// Handles a read of buckets (Algorithm 3). Without buckets, it only confirms the election. Returns the answer, the bytes of the
    /// buckets, and the fact that the answer shows.
    pub(crate) fn read(
        &mut self,
        elect: ElectId,
        indices: &[u32],
        out: &mut Effects,
    ) -> (ReadAnswer, Bytes, Lsn) {
        if elect < self.voted {
            return (ReadAnswer::Nack { voted: self.voted }, Bytes::new(), self.lsn);
        }
        // A leader that is still confirmed would show what the next instance has changed meanwhile.
        if self.sealed && !mutant(mutants::BIZUR_SEALED_READS) {
            return (ReadAnswer::Sealed {}, Bytes::new(), self.lsn);
        }
        self.vote(elect, out);
        let (items, payload, shows) = self.copies(indices);
        (ReadAnswer::Ack { items }, payload, shows)
    }

    /// Returns the buckets among these that were ever written, their bytes, and the fact that they show.
    pub(crate) fn copies(&self, indices: &[u32]) -> (Vec<ReadItem>, Bytes, Lsn) {
        let (mut items, mut payload, mut shows) = (Vec::new(), Vec::new(), self.lsn);
        for index in indices {
            let Some(copy) = self.buckets.get(index) else { continue };
            items.push(ReadItem { index: *index, ver: copy.ver, bytes: copy.bytes.len() as u32 });
            payload.extend_from_slice(&copy.bytes);
            shows = shows.max(copy.lsn);
        }
        (items, payload.into(), shows)
    }

    /// Applies a fact of this shard from the journal or from a checkpoint. An older one changes nothing. Returns by how much the bytes that
    /// count have grown.
    pub(crate) fn replay(&mut self, fact: Fact, payload: &Bytes) -> isize {
        match fact {
            Fact::Voted { elect, .. } => self.set_voted(elect),
            Fact::Stood { elect, .. } => self.stood = self.stood.max(elect),
            Fact::Sealed { .. } => self.sealed = true,
            Fact::Bucket { voted, index, ver, content_bytes, .. } => {
                self.set_voted(voted);
                let old = self.buckets.get(&index);
                if old.is_none_or(|copy| copy.ver < ver) {
                    let grown = content_bytes as isize - old.map_or(0, |c| c.content_bytes as isize);
                    let bytes = Bytes::copy_from_slice(payload);
                    self.set_bucket(index, Copy { ver, bytes, content_bytes, lsn: Lsn::NONE });
                    return grown;
                }
            }
            Fact::Shard { .. } | Fact::Opened { .. } | Fact::Retired { .. } | Fact::Dropped { .. } => {}
        }
        0
    }

    /// Returns the bytes that count against the capacity.
    pub(crate) fn held_bytes(&self) -> usize {
        self.buckets.values().map(|copy| copy.content_bytes as usize).sum()
    }
}
