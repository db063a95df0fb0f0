//! The paper's own interface (scalog.md §6): append by a policy, appendToShard, readRecord, subscribe, trim and setShardPolicy.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};

use atoll_contract::{
    AppendError, Batch, Entry, Loglet, LogletError, Offset, OpId, Placement, ReadError, ReadFrom,
    Unavailability,
};
use atoll_core::NodeId;
use atoll_core::sync::lock;
use atoll_core::testing::hit;

use super::ScalogLoglet;
use super::policy::{BadChoice, LiveShard, ShardPolicy};
use super::read::read_error;

/// The most appends with an unknown outcome that a client remembers.
const MAX_PINNED: usize = 4096;
/// The most bytes that a subscription reads at a time.
const PAGE_BYTES: usize = 256 * 1024;

/// Why records were not appended by a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyAppendError {
    /// The policy chose a shard that takes no records. Nothing happened.
    #[error("the policy chose shard {0}, which takes no records")]
    NotLive(u32),
    /// The policy panicked. Nothing happened.
    #[error("the policy panicked")]
    Panicked,
    /// No shard takes records. Nothing happened.
    #[error("no shard takes records")]
    NoShard,
    /// The append failed; the error says what became of it.
    #[error("not appended: {0}")]
    Append(#[from] AppendError),
}

#[derive(Default)]
struct State {
    policy: ShardPolicy,
    turn: u64,
    /// Where the first attempt of an append with an unknown outcome went: a retry elsewhere could land twice (scalog-S15).
    pinned: BTreeMap<OpId, (u32, usize)>,
}

/// See the module documentation. Cheap to clone; the clones share a policy.
#[derive(Clone)]
pub struct ScalogClient {
    log: ScalogLoglet,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for ScalogClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScalogClient").field("log", &self.log).finish_non_exhaustive()
    }
}

impl ScalogClient {
    /// Returns a client of a Loglet, with the policy [`ShardPolicy::Nearest`].
    pub fn new(log: ScalogLoglet) -> Self {
        ScalogClient { log, state: Arc::default() }
    }

    /// Changes where the records of later appends go: setShardPolicy. Their order does not depend on it.
    pub fn set_shard_policy(&self, policy: ShardPolicy) {
        lock(&self.state).policy = policy;
    }

    /// Appends a batch to the shard that the policy chooses. Returns the numbers, and the shard, with which [`ScalogClient::read_record`]
    /// finds the records. The records are on the disks of all servers of the shard. A retry of an append with an unknown outcome, with the
    /// same first record, goes to the same server.
    ///
    /// # Errors
    /// See [`PolicyAppendError`]. `Forgotten`: the shard of an earlier attempt has ended, and only a search can tell whether the records
    /// are in the log.
    pub async fn append(&self, batch: Batch) -> Result<(Placement, u32), PolicyAppendError> {
        let Some(first) = batch.ops().next() else { return Err(PolicyAppendError::NoShard) };
        let pinned = lock(&self.state).pinned.get(&first).copied();
        let busy = AppendError::NotAppended(Unavailability::NoQuorum);
        self.log.refresh().await.map_err(|_| busy.clone())?;
        if let Some((shard, segment)) = pinned {
            if !self.live().iter().any(|one| one.shard == shard) {
                hit("scalog.client.forgotten");
                return Err(AppendError::Forgotten.into());
            }
            return match self.append_to(shard, segment, first, batch).await {
                // This attempt is not in the log, but the first one may be.
                Err(AppendError::NotAppended(why)) => Err(AppendError::Unknown(why).into()),
                done => Ok((done?, shard)),
            };
        }
        loop {
            let live = self.live();
            if live.is_empty() {
                return Err(PolicyAppendError::NoShard);
            }
            let (policy, turn) = {
                let mut state = lock(&self.state);
                state.turn += 1;
                (state.policy.clone(), state.turn - 1)
            };
            let me = self.log.node();
            let shard = policy.choose(&batch, &live, me, turn).map_err(|bad| match bad {
                BadChoice::Panicked => PolicyAppendError::Panicked,
                BadChoice::NotLive(shard) => PolicyAppendError::NotLive(shard),
            })?;
            let nodes = live.iter().find(|one| one.shard == shard).map(|one| one.nodes.as_slice());
            let segment = segment(nodes.unwrap_or_default(), me, first);
            match self.append_to(shard, segment, first, batch.clone()).await {
                Ok(placement) => return Ok((placement, shard)),
                Err(AppendError::NotAppended(why)) => {
                    self.log.refresh().await.map_err(|_| AppendError::NotAppended(why))?;
                    if self.live().iter().any(|one| one.shard == shard) {
                        return Err(AppendError::NotAppended(why).into());
                    }
                    // The shard has ended, and has nothing of this: another one takes it.
                    hit("scalog.client.next_shard");
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Appends a batch to a shard of the caller's choice: appendToShard.
    ///
    /// # Errors
    /// Like [`ScalogLoglet::append_to_shard`].
    pub async fn append_to_shard(&self, shard: u32, batch: Batch) -> Result<Placement, AppendError> {
        self.log.refresh_if_old().await.map_err(|_| AppendError::NotAppended(Unavailability::NoQuorum))?;
        let first = batch.ops().next().unwrap_or(OpId { client: atoll_contract::ClientId(0), seq: 0 });
        let nodes = self.live().into_iter().find(|one| one.shard == shard).map(|one| one.nodes);
        let segment = segment(&nodes.unwrap_or_default(), self.log.node(), first);
        self.append_to(shard, segment, first, batch).await
    }

    async fn append_to(
        &self,
        shard: u32,
        segment: usize,
        first: OpId,
        batch: Batch,
    ) -> Result<Placement, AppendError> {
        let done = self.log.append_to_shard(shard, segment, batch, None).await;
        let mut state = lock(&self.state);
        match &done {
            Err(AppendError::Unknown(_)) if state.pinned.len() < MAX_PINNED => {
                state.pinned.insert(first, (shard, segment));
            }
            Ok(_) => {
                state.pinned.remove(&first);
            }
            Err(_) => {}
        }
        done
    }

    /// Reads the record with a number from a shard: readRecord. None if it is in another shard.
    ///
    /// # Errors
    /// The record was trimmed, has no number yet, or no server of the shard answers.
    pub async fn read_record(&self, at: Offset, shard: u32) -> Result<Option<Entry>, ReadError> {
        self.log.read_one(at.0, shard).await
    }

    /// Returns the records from a number on, in their order, as they are appended: subscribe.
    pub fn subscribe(&self, from: Offset) -> Subscription {
        Subscription { log: self.log.clone(), next: from.0, ready: VecDeque::new() }
    }

    /// Gives up all records below a number permanently: trim.
    ///
    /// # Errors
    /// Like [`Loglet::prefix_trim`].
    pub async fn trim(&self, to: Offset) -> Result<(), LogletError> {
        self.log.prefix_trim(to).await
    }

    fn live(&self) -> Vec<LiveShard> {
        self.log.with_order(|order| {
            let live = order.shards().iter().filter(|(_, shard)| shard.is_live());
            let one = |(number, shard): (&u32, &crate::order::Shard)| LiveShard {
                shard: *number,
                nodes: shard.servers.iter().map(|server| server.node).collect(),
            };
            live.map(one).collect()
        })
    }
}

/// Returns the segment of this node if it has one, which saves a hop; else one that follows from the client.
fn segment(nodes: &[NodeId], me: NodeId, first: OpId) -> usize {
    let own = nodes.iter().position(|node| *node == me);
    own.unwrap_or_else(|| (first.client.0 % nodes.len().max(1) as u64) as usize)
}

/// Records in their order. It reads only when its owner asks for more, so an owner that stops asking costs nobody anything. Shards that are
/// added meanwhile take part by themselves, because numbers have no gaps.
#[derive(Debug)]
pub struct Subscription {
    log: ScalogLoglet,
    next: u64,
    ready: VecDeque<Entry>,
}

impl Subscription {
    /// Waits for the next record, and returns it with its number. None once the log is sealed and all records were returned.
    ///
    /// # Errors
    /// The record was trimmed, or the log was deleted or does not answer. The next call tries again.
    pub async fn next(&mut self) -> Result<Option<(Offset, Entry)>, ReadError> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                let at = Offset(self.next);
                self.next += 1;
                return Ok(Some((at, entry)));
            }
            let tail = self.log.wait_tail(Offset(self.next)).await.map_err(read_error)?;
            if tail.at.0 > self.next {
                let range = Offset(self.next)..tail.at;
                self.ready.extend(self.log.read(range, PAGE_BYTES, ReadFrom::Anywhere).await?.entries);
            } else if tail.sealed.is_some() {
                return Ok(None);
            }
        }
    }
}
