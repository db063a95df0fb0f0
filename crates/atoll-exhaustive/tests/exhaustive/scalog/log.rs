//! The ordering log, and what everybody computes from it, with the product's own state machine (scalog.md §4, §5).

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use atoll_core::{NodeId, StorageId};
use atoll_scalog::config::CONFIG_FORMAT;
use atoll_scalog::order::{Order, OrderEntry, ShardCut};
use atoll_scalog::{OrderingSpec, ScalogConfig, Server, ShardSpec};
use bytes::Bytes;

/// Where a record is: shard, segment, place in the segment.
pub type Spot = (u32, usize, u64);

/// An entry. Only shard 0 ends here.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Entry {
    /// What all servers of some shards have.
    Cut(Vec<(u32, Vec<u64>)>),
    /// An operator ends the shard after this many further cuts.
    End(u32),
    /// An orderer ends the shard, because it is stuck.
    Stuck,
}

impl Entry {
    pub fn of(cut: Vec<ShardCut>) -> Self {
        Entry::Cut(cut.into_iter().map(|one| (one.shard, one.counts)).collect())
    }

    pub fn product(&self) -> OrderEntry {
        let nothing = OrderEntry::nothing();
        match self {
            Entry::Cut(cut) => {
                let one =
                    |(shard, counts): &(u32, Vec<u64>)| ShardCut { shard: *shard, counts: counts.clone() };
                OrderEntry { cut: cut.iter().map(one).collect(), ..nothing }
            }
            Entry::End(after) => OrderEntry { finalize: vec![(0, *after)], ..nothing },
            Entry::Stuck => OrderEntry { stuck: vec![0], ..nothing },
        }
    }

    /// Returns what it says about a shard, if it is a cut.
    pub fn counts(&self, shard: u32) -> Option<&[u64]> {
        let Entry::Cut(cut) = self else { return None };
        cut.iter().find(|(number, _)| *number == shard).map(|(_, counts)| counts.as_slice())
    }

    fn is_cut(&self) -> bool {
        matches!(self, Entry::Cut(_))
    }
}

/// Shard 0 on nodes 1 and 2, shard 1 on node 3; orderers on nodes 1 and 2.
pub fn config() -> ScalogConfig {
    let server = |node: &u32| Server { node: NodeId(*node), storage: StorageId((*node).into()) };
    let shard = |shard, nodes: &[u32]| ShardSpec { shard, servers: nodes.iter().map(server).collect() };
    ScalogConfig {
        format: CONFIG_FORMAT,
        shards: vec![shard(0, &[1, 2]), shard(1, &[3])],
        aggregators: Vec::new(),
        orderers: vec![NodeId(1), NodeId(2)],
        interval_us: 1000,
        added: Vec::new(),
        wanted: (2, 2),
        ordering: OrderingSpec { kind: "absent".to_owned(), config: Bytes::new() },
    }
}

/// What somebody knows who has applied the log up to an entry.
#[derive(Clone, Debug)]
pub struct Moment {
    pub order: Order,
    /// The number of each ordered record.
    pub numbered: Vec<(u64, Spot)>,
    /// Whether some count ever fell (G2).
    pub fell: bool,
    /// Whether a shard ever changed after its end (G6).
    pub changed_after_end: bool,
}

impl Moment {
    fn first() -> Self {
        let order = Order::new(&config());
        Moment { order, numbered: Vec::new(), fell: false, changed_after_end: false }
    }

    fn after(&self, entry: &Entry) -> Self {
        let mut next = self.clone();
        let done = next.order.apply(&entry.product());
        for run in done.records {
            let one = |n| (run.gsn + n, (run.shard, run.segment, run.first + n));
            next.numbered.extend((0..run.count).map(one));
        }
        for (number, before) in self.order.shards() {
            let now = &next.order.shards()[number];
            next.fell |= now.counts.iter().zip(&before.counts).any(|(now, before)| now < before);
            next.changed_after_end |= before.ended.is_some() && now != before;
        }
        next
    }

    fn skipping(&self) -> Self {
        let mut next = self.clone();
        next.order.skip();
        next
    }
}

/// Equal logs have equal moments, so these do not count in a comparison.
#[derive(Clone, Debug)]
pub struct Log {
    pub entries: Vec<Entry>,
    moments: Arc<Vec<Moment>>,
}

impl Log {
    pub fn new() -> Self {
        Log { entries: Vec::new(), moments: Arc::new(vec![Moment::first()]) }
    }

    pub fn push(&mut self, entry: Entry) {
        let mut moments = Vec::clone(&self.moments);
        moments.push(self.newest().after(&entry));
        self.moments = Arc::new(moments);
        self.entries.push(entry);
    }

    /// Returns how many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the moment after this many entries.
    pub fn at(&self, applied: usize) -> &Moment {
        &self.moments[applied]
    }

    pub fn newest(&self) -> &Moment {
        self.at(self.len())
    }

    /// Returns what somebody knows who has skipped some of these entries (S7).
    pub fn without(&self, applied: usize, skipped: &[usize]) -> Cow<'_, Moment> {
        if skipped.is_empty() {
            return Cow::Borrowed(self.at(applied));
        }
        let step = |moment: Moment, at: usize| {
            if skipped.contains(&at) { moment.skipping() } else { moment.after(&self.entries[at]) }
        };
        Cow::Owned((0..applied).fold(Moment::first(), step))
    }

    /// Returns whether these two entries are cuts, of which a follower with the bug S7 applies the second one only.
    pub fn are_cuts(&self, first: usize) -> bool {
        self.entries.get(first..first + 2).is_some_and(|two| two.iter().all(Entry::is_cut))
    }
}

impl PartialEq for Log {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

impl Eq for Log {}

impl Hash for Log {
    fn hash<H: Hasher>(&self, to: &mut H) {
        self.entries.hash(to);
    }
}
