//! Operations on shards, for logs whose Loglets keep their records in shards ([`Sharded`](atoll_contract::Sharded)). All other operations
//! on the log stay as they are: a position does not depend on the shard.

use std::sync::Arc;
use std::time::Duration;

use atoll_core::Tick;
use atoll_core::testing::hit;

use super::install::Installed;
use super::room::Purpose;
use super::{LogAppendError, LogError, LogReadError, LogRecord, ReconfigError, Shared, Step};
use crate::chain::{ChainError, Segment, VersionedChain};
use atoll_contract::entry::{Batch, Entry, MAX_ENTRY_BYTES, OpId};
use atoll_contract::loglet::sharded::{PlannedChange, ShardAppendError, ShardChange, ShardedError, Shards};
use atoll_contract::loglet::{AppendError, Loglet, LogletId, ReadError, ReadFrom, Unavailability};
use atoll_contract::position::LogPos;
use atoll_contract::register::Version;

/// Number of chain changes that one operation follows before it fails as unavailable.
const ATTEMPTS: u32 = 8;
/// How long an append to a shard is tried before its outcome is reported as unknown.
const APPEND_FOR: Duration = Duration::from_secs(10);
/// Pause before a step is tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes per read of a search.
const PAGE_BYTES: usize = 1024 * 1024;

/// Why an operation on shards failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardsError {
    /// It did not happen.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The change may have happened, or may still happen. Repeating it does no harm.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The chain was not changed, or that is unknown; the shards were not.
    #[error(transparent)]
    Chain(#[from] ReconfigError),
    /// The segment is of a kind that has no shards. Nothing happened.
    #[error("a segment of kind {0:?} has no shards")]
    NotOffered(String),
    /// The change is not possible. Nothing happened.
    #[error("nothing was changed: {0}")]
    Refused(String),
    /// The shard takes no records. The record is not in the log, and will not be.
    #[error("shard {0} takes no records")]
    NotLive(u32),
    /// The log continues in another segment, which has shards of its own. Nothing happened.
    #[error("the log continues in another segment, which has shards of its own")]
    Moved,
    /// The chain is not at the version that the caller requires. Nothing happened.
    #[error("the chain of the log has changed")]
    Changed,
    /// The record was not appended, or that is unknown.
    #[error(transparent)]
    Append(#[from] LogAppendError),
    /// The record was not read.
    #[error(transparent)]
    Read(#[from] LogReadError),
}

/// The active segment of a log, if its records are in shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActiveShards {
    /// The version of the chain. It rises with each shard that is added.
    pub version: Version,
    /// Its Loglet.
    pub loglet: LogletId,
    /// Its kind.
    pub kind: String,
    /// Its first position. The offsets in `shards` count from there.
    pub start: LogPos,
    /// Everything below was trimmed.
    pub trim: LogPos,
    /// Its shards.
    pub shards: Shards,
}

/// Where an append is going on.
struct Goal {
    segment: Segment,
    loglet: Arc<dyn Loglet>,
    op: OpId,
    /// An earlier attempt may be in the log here or above. None: there was none.
    floor: Option<LogPos>,
    until: Tick,
}

/// What to do after an attempt.
enum Next {
    Again,
    Done(LogPos),
}

fn unknown(why: Unavailability) -> ShardsError {
    LogAppendError::Unknown(LogError::Unavailable(why)).into()
}

impl Shared {
    /// Returns the active segment, according to the register.
    async fn active_sharded(
        self: &Arc<Self>,
    ) -> Result<(Arc<VersionedChain>, Segment, Arc<dyn Loglet>), ShardsError> {
        let chain = self.refreshed().await?;
        let (segment, loglet) = self.sharded_in(&chain)?;
        Ok((chain, segment, loglet))
    }

    fn sharded_in(
        self: &Arc<Self>,
        chain: &VersionedChain,
    ) -> Result<(Segment, Arc<dyn Loglet>), ShardsError> {
        let segment = chain.chain.active().clone();
        if segment.is_end() {
            return Err(LogError::Ended(segment.start).into());
        }
        let loglet = self.handle(&segment)?;
        if loglet.sharded().is_none() {
            return Err(ShardsError::NotOffered(segment.kind));
        }
        Ok((segment, loglet))
    }

    /// Refuses a log that the register says not to exist, or whose active segment is of a kind without shards.
    pub(super) async fn offers_shards(self: &Arc<Self>) -> Result<(), ShardsError> {
        let chain = self.some_chain().await?;
        match self.sharded_in(&chain) {
            Ok(_) => Ok(()),
            // The cached chain may be an old one.
            Err(_) => self.active_sharded().await.map(drop),
        }
    }

    pub(super) async fn shards(self: &Arc<Self>) -> Result<ActiveShards, ShardsError> {
        let mut failure = Unavailability::NoQuorum;
        for _ in 0..ATTEMPTS {
            let (chain, segment, loglet) = self.active_sharded().await?;
            let Some(sharded) = loglet.sharded() else { break };
            match sharded.shards().await {
                Ok(shards) => {
                    let (start, trim) = (segment.start, chain.chain.trim());
                    return Ok(ActiveShards {
                        version: chain.version,
                        loglet: segment.loglet,
                        kind: segment.kind,
                        start,
                        trim,
                        shards,
                    });
                }
                Err(ShardedError::Unavailable(why) | ShardedError::Unknown(why)) => failure = why,
                Err(ShardedError::Refused(words)) => return Err(ShardsError::Refused(words)),
                Err(ShardedError::Sealed | ShardedError::Gone) => {}
            }
            if self.refreshed().await?.version == chain.version {
                break;
            }
        }
        Err(LogError::Unavailable(failure).into())
    }

    /// Changes the set of shards, if the chain is at version `at`, or at any version with None. The chain comes first: it names the nodes
    /// that keep records before they get any.
    pub(super) async fn change_shards(
        self: &Arc<Self>,
        change: &ShardChange,
        at: Option<Version>,
    ) -> Result<u32, ShardsError> {
        let until = self.reconfigure_until();
        let mut first = None;
        for _ in 0..ATTEMPTS {
            let (chain, segment, loglet) = self.active_sharded().await?;
            if *first.get_or_insert(segment.loglet) != segment.loglet {
                return Err(ShardsError::Moved);
            }
            if at.is_some_and(|at| at != chain.version) {
                return Err(ShardsError::Changed);
            }
            let Some(sharded) = loglet.sharded() else { break };
            let planned = sharded.plan(&segment.config, change).await.map_err(not_changed)?;
            if planned.config != segment.config && !self.name_in_chain(&chain, &planned, until).await? {
                hit("vlog.shards.lost");
                continue;
            }
            sharded.change(&planned).await.map_err(not_changed)?;
            return Ok(planned.number);
        }
        Err(LogError::Unavailable(Unavailability::Busy).into())
    }

    /// Writes the configuration of a planned change to the chain. Returns false if another change came first.
    async fn name_in_chain(
        self: &Arc<Self>,
        chain: &VersionedChain,
        planned: &PlannedChange,
        until: Tick,
    ) -> Result<bool, ShardsError> {
        let next = chain.chain.next(self.draw_nonce(), |segments, _| {
            if let Some(active) = segments.last_mut() {
                active.config = planned.config.clone();
            }
        });
        let full = |error: ChainError| ShardsError::Chain(error.into());
        let next = next.map_err(full)?;
        // The log must be able to leave this segment, too (vlog-V17).
        let successor = Segment { loglet: LogletId(u128::MAX), ..next.active().clone() };
        self.check_room(&next, successor, Purpose::Planned).map_err(full)?;
        match self.install(chain.version, next, until).await {
            Ok(Installed::Mine(new)) => {
                hit("vlog.shards.named");
                Ok(new.chain.active().config == planned.config)
            }
            Ok(Installed::Lost(_)) => Ok(false),
            Err(ReconfigError::Unavailable { step: Step::Install, why }) => Err(ShardsError::Unknown(why)),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends a record to a shard. A record with a floor was sent before, to the same shard.
    pub(super) async fn append_to_shard(
        self: &Arc<Self>,
        shard: u32,
        record: LogRecord,
    ) -> Result<LogPos, ShardsError> {
        if record.payload.len() > MAX_ENTRY_BYTES {
            return Err(LogAppendError::TooLarge(record.payload.len()).into());
        }
        let until = self.env.now().after(APPEND_FOR);
        let chain = self.some_chain().await?;
        let (segment, loglet) = match self.sharded_in(&chain) {
            Ok(found) => found,
            // The cached chain may be an old one.
            Err(_) => self.active_sharded().await.map(|(_, segment, loglet)| (segment, loglet))?,
        };
        let mut goal = Goal { segment, loglet, op: record.op, floor: record.floor, until };
        if let Some(from) = goal.floor.filter(|from| *from < goal.segment.start) {
            let start = goal.segment.start;
            if let Some(at) = self.find(&goal, from, start).await? {
                return Ok(at);
            }
            goal.floor = Some(start);
        }
        let batch = Batch::of([Entry { op: record.op, payload: record.payload }]);
        loop {
            match self.try_shard(shard, &batch, &mut goal).await? {
                Next::Done(at) => {
                    self.raise_known(goal.segment.loglet, at.plus(1));
                    return Ok(at);
                }
                Next::Again => self.env.sleep(self.env.jitter(PAUSE)).await,
            }
        }
    }

    async fn try_shard(
        self: &Arc<Self>,
        shard: u32,
        batch: &Batch,
        goal: &mut Goal,
    ) -> Result<Next, ShardsError> {
        let before = goal.segment.position_of(goal.loglet.known_tail());
        let not_below = goal.floor.map(|at| goal.segment.offset_of(at));
        let done = match goal.loglet.sharded() {
            Some(sharded) => sharded.append_to_shard(shard, batch.clone(), not_below).await,
            None => return Err(ShardsError::NotOffered(goal.segment.kind.clone())),
        };
        let is_late = self.env.now() >= goal.until;
        match done {
            Ok(placed) => match placed.offsets().next() {
                Some(offset) => Ok(Next::Done(goal.segment.position_of(offset))),
                None => Err(unknown(Unavailability::NoQuorum)),
            },
            Err(ShardAppendError::NotLive(_)) => match goal.floor {
                None => Err(ShardsError::NotLive(shard)),
                // What the shard does not have now never gets there.
                Some(floor) => self.found_or(goal, floor, ShardsError::NotLive(shard)).await,
            },
            Err(ShardAppendError::Append(AppendError::NotAppended(why))) => match goal.floor {
                None => Err(LogAppendError::NotAppended(LogError::Unavailable(why)).into()),
                Some(_) if is_late => Err(unknown(why)),
                Some(_) => Ok(Next::Again),
            },
            Err(ShardAppendError::Append(AppendError::Unknown(why))) => {
                hit("vlog.shards.again");
                goal.floor.get_or_insert(before);
                if is_late { Err(unknown(why)) } else { Ok(Next::Again) }
            }
            Err(ShardAppendError::Append(AppendError::Forgotten)) => {
                hit("vlog.shards.forgotten");
                let from = goal.floor.unwrap_or(before);
                let tail = self.tail_for(goal).await?;
                if let Some(at) = self.find(goal, from, tail).await? {
                    return Ok(Next::Done(at));
                }
                goal.floor = Some(tail);
                if is_late { Err(unknown(Unavailability::Busy)) } else { Ok(Next::Again) }
            }
            Err(ShardAppendError::Append(AppendError::Sealed)) => {
                let from = goal.floor.unwrap_or(before);
                goal.floor = Some(from);
                self.after_seal(goal, from).await
            }
        }
    }

    /// Finds out whether an attempt is in a segment that was sealed.
    async fn after_seal(self: &Arc<Self>, goal: &Goal, from: LogPos) -> Result<Next, ShardsError> {
        hit("vlog.shards.sealed");
        // Completes the reconfiguration if the node that began it has died.
        self.tail_for(goal).await?;
        let chain = self.refreshed().await.map_err(LogAppendError::Unknown)?;
        let active = chain.chain.active();
        if active.loglet != goal.segment.loglet {
            let stop = chain.chain.segment(goal.segment.loglet).and_then(|segment| segment.stop);
            let found = self.find(goal, from, stop.unwrap_or(active.start)).await?;
            return found.map(Next::Done).ok_or(ShardsError::Moved);
        }
        if self.env.now() >= goal.until { Err(unknown(Unavailability::NoSequencer)) } else { Ok(Next::Again) }
    }

    async fn found_or(
        self: &Arc<Self>,
        goal: &Goal,
        from: LogPos,
        otherwise: ShardsError,
    ) -> Result<Next, ShardsError> {
        let tail = self.tail_for(goal).await?;
        self.find(goal, from, tail).await?.map(Next::Done).ok_or(otherwise)
    }

    /// Checks the tail, for an append that may be in the log.
    async fn tail_for(self: &Arc<Self>, goal: &Goal) -> Result<LogPos, ShardsError> {
        loop {
            let round = self.check();
            match self.checked(round).await {
                Ok(checked) => return Ok(checked.tail),
                Err(LogError::Unavailable(_)) if self.env.now() < goal.until => {
                    self.env.sleep(self.env.jitter(PAUSE)).await;
                }
                Err(error) => return Err(LogAppendError::Unknown(error).into()),
            }
        }
    }

    /// Searches for the record below `end`, where everything is decided.
    async fn find(
        self: &Arc<Self>,
        goal: &Goal,
        from: LogPos,
        end: LogPos,
    ) -> Result<Option<LogPos>, ShardsError> {
        let mut at = from;
        while at < end {
            match self.read_stored(at..end, PAGE_BYTES, ReadFrom::Anywhere).await {
                Ok(read) => {
                    if let Some((found, _)) = read.records().find(|(_, entry)| entry.op == goal.op) {
                        hit("vlog.shards.found");
                        return Ok(Some(found));
                    }
                    at = read.next();
                }
                Err(LogReadError::Trimmed(to)) => return Err(LogAppendError::Trimmed(to).into()),
                Err(LogReadError::Damaged(what)) => return Err(LogAppendError::Damaged { at, what }.into()),
                Err(LogReadError::Log(LogError::Unavailable(_))) if self.env.now() < goal.until => {
                    self.env.sleep(self.env.jitter(PAUSE)).await;
                }
                Err(LogReadError::Log(error)) => return Err(LogAppendError::Unknown(error).into()),
            }
        }
        Ok(None)
    }

    /// Reads the record at a position from a shard of its segment. None if it is in another shard.
    pub(super) async fn read_in_shard(
        self: &Arc<Self>,
        at: LogPos,
        shard: u32,
    ) -> Result<Option<Entry>, ShardsError> {
        for _ in 0..ATTEMPTS {
            let chain = self.some_chain().await?;
            if at < chain.chain.trim() {
                return Err(LogReadError::Trimmed(chain.chain.trim()).into());
            }
            let Some(segment) = self.segment_at(&chain, at).await? else { continue };
            let loglet = self.handle(&segment)?;
            let Some(sharded) = loglet.sharded() else { return Err(ShardsError::NotOffered(segment.kind)) };
            let why = match sharded.read_in_shard(segment.offset_of(at), shard).await {
                Ok(found) => return self.operated(at, found).await,
                Err(ReadError::Trimmed(to)) => {
                    return Err(LogReadError::Trimmed(segment.position_of(to)).into());
                }
                Err(ReadError::Damaged(what)) => return Err(LogReadError::Damaged(what).into()),
                Err(ReadError::BeyondTail(_)) => {
                    let tail = segment.position_of(loglet.known_tail());
                    LogReadError::Log(LogError::BeyondTail(tail))
                }
                Err(ReadError::Unavailable(why)) => LogReadError::Log(LogError::Unavailable(why)),
                Err(ReadError::Gone) => LogReadError::Log(LogError::Unavailable(Unavailability::NoQuorum)),
            };
            // The segment may have been sealed, or may be on other nodes now.
            if self.refreshed().await?.version == chain.version {
                return Err(why.into());
            }
        }
        Err(LogError::Unavailable(Unavailability::NoQuorum).into())
    }
}

impl Shared {
    /// Returns what a reader of a position gets instead of the stored entry, if surgery has changed it (virtuallog §7).
    async fn operated(
        self: &Arc<Self>,
        at: LogPos,
        found: Option<Entry>,
    ) -> Result<Option<Entry>, ShardsError> {
        let chain = self.some_chain().await?;
        let surgery = chain.chain.surgery();
        if surgery.held() == Some(at) {
            return Err(LogError::Held(at).into());
        }
        Ok(match surgery.patch(at) {
            Some(patch) => found.map(|entry| patch.applied_to(&entry)),
            None => found,
        })
    }
}

fn not_changed(error: ShardedError) -> ShardsError {
    match error {
        ShardedError::Refused(words) => ShardsError::Refused(words),
        ShardedError::Unknown(why) => ShardsError::Unknown(why),
        ShardedError::Unavailable(why) => LogError::Unavailable(why).into(),
        ShardedError::Sealed | ShardedError::Gone => ShardsError::Moved,
    }
}
