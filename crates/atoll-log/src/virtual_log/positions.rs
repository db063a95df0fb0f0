//! Operations on single positions, for logs whose Loglets offer them ([`WriteOnce`](atoll_contract::WriteOnce)). Readers of the log pass
//! what was filled or trimmed alone.

use std::sync::Arc;

use atoll_core::testing::hit;

use super::{LogError, Shared};
use crate::chain::{Segment, VersionedChain};
use atoll_contract::loglet::write_once::{Layout, PositionState, Reach, Replace, WriteOnceError};
use atoll_contract::loglet::{Loglet, LogletId, LogletSpec, ReadError, ReadFrom, Unavailability};
use atoll_contract::position::{LogPos, Offset};

/// Number of chain changes that one operation follows before it fails as unavailable.
const ATTEMPTS: u32 = 8;
/// The most bytes of an entry that is read only to find out that it is there.
const ONE_ENTRY: usize = 1;

/// Why an operation on one position failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PositionError {
    /// It did not happen.
    #[error(transparent)]
    Log(#[from] LogError),
    /// Some copies may have changed. Repeating it does no harm.
    #[error("unknown outcome: {0}")]
    Unknown(Unavailability),
    /// The log is trimmed below this position.
    #[error("trimmed below position {0}")]
    Trimmed(LogPos),
    /// No append can have got the position yet. Nothing happened.
    #[error("position {at} is beyond the tail, which is {tail}")]
    Beyond {
        /// The requested position.
        at: LogPos,
        /// The position that an append may get next.
        tail: LogPos,
    },
    /// The segment is of a kind that has no operations on single positions. Nothing happened.
    #[error("a segment of kind {0:?} has no operations on single positions")]
    NotOffered(String),
}

/// The active segment of a log, if it offers operations on single positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivePositions {
    /// Its Loglet.
    pub loglet: LogletId,
    /// Its kind.
    pub kind: String,
    /// Its first position.
    pub start: LogPos,
    /// Everything below was trimmed.
    pub trim: LogPos,
    /// Which nodes keep it.
    pub layout: Layout,
    /// How far it goes, as positions of the log: everything below the first is decided; the second is above all that is written; the third
    /// is the one that an append gets next, if the node that knows it answers.
    pub reach: (LogPos, LogPos, Option<LogPos>),
}

/// An operation on one position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PositionOp {
    /// Says what is there.
    Look,
    /// Decides it, see [`atoll_contract::WriteOnce::fill`].
    Fill,
    /// Trims it alone.
    Trim,
}

impl Shared {
    /// Performs an operation on one position and returns what is there afterwards.
    pub(super) async fn at_position(
        self: &Arc<Self>,
        at: LogPos,
        op: PositionOp,
    ) -> Result<PositionState, PositionError> {
        for _ in 0..ATTEMPTS {
            let chain = self.some_chain().await?;
            if at < chain.chain.trim() {
                return Err(PositionError::Trimmed(chain.chain.trim()));
            }
            let Some(segment) = self.segment_at(&chain, at).await? else { continue };
            let loglet = self.handle(&segment)?;
            let offset = segment.offset_of(at);
            let Some(cells) = loglet.write_once() else { return self.without(&segment, at, op).await };
            let done = match op {
                PositionOp::Look => cells.look(offset).await,
                PositionOp::Fill => cells.fill(offset).await,
                PositionOp::Trim => cells.trim_one(offset).await,
            };
            match done {
                // The node that says so may have been replaced: only the register says that it was not (corfu-C9).
                Ok(PositionState::Unwritten) | Err(WriteOnceError::Beyond(_))
                    if self.refreshed().await?.version != chain.version =>
                {
                    hit("vlog.position.moved");
                }
                // A copy of a segment has pads where the original has junk, or what was trimmed alone.
                Ok(PositionState::Data) if segment.stop.is_some() => {
                    return self.without(&segment, at, PositionOp::Look).await;
                }
                Ok(held) => return Ok(held),
                Err(WriteOnceError::Beyond(end)) if segment.stop.is_none() => {
                    let tail = segment.position_of(end);
                    return Err(PositionError::Beyond { at, tail });
                }
                Err(WriteOnceError::Unknown(why)) => return Err(PositionError::Unknown(why)),
                Err(error) => self.after(&chain, error).await?,
            }
        }
        Err(LogError::Unavailable(Unavailability::NoQuorum).into())
    }

    /// Finds the newer chain after an error that one may explain.
    async fn after(
        self: &Arc<Self>,
        chain: &VersionedChain,
        error: WriteOnceError,
    ) -> Result<(), PositionError> {
        if matches!(error, WriteOnceError::Sealed) {
            // Completes the reconfiguration if the node that began it has died.
            hit("vlog.position.sealed");
            let round = self.check();
            self.checked(round).await?;
        }
        if self.refreshed().await?.version != chain.version {
            return Ok(());
        }
        Err(match error {
            WriteOnceError::Unavailable(why) | WriteOnceError::Unknown(why) => LogError::Unavailable(why),
            WriteOnceError::Sealed | WriteOnceError::Gone | WriteOnceError::Beyond(_) => {
                LogError::Unavailable(Unavailability::NoQuorum)
            }
        }
        .into())
    }

    /// Answers for a segment without operations on single positions: all of its positions are decided when they are readable.
    async fn without(
        self: &Arc<Self>,
        segment: &Segment,
        at: LogPos,
        op: PositionOp,
    ) -> Result<PositionState, PositionError> {
        let offered = || PositionError::NotOffered(segment.kind.clone());
        let Some(stop) = segment.stop.filter(|stop| at < *stop && op != PositionOp::Trim) else {
            return Err(offered());
        };
        let loglet = self.handle(segment)?;
        let range = segment.offset_of(at)..segment.offset_of(stop.min(at.plus(1)));
        match loglet.read(range, ONE_ENTRY, ReadFrom::Anywhere).await {
            Ok(got) if got.entries.first().is_some_and(|entry| entry.is_pad()) => Ok(PositionState::Junk),
            Ok(_) => Ok(PositionState::Data),
            Err(ReadError::Trimmed(to)) => Err(PositionError::Trimmed(segment.position_of(to))),
            Err(ReadError::Unavailable(why)) => Err(LogError::Unavailable(why).into()),
            Err(_) => Err(LogError::Unavailable(Unavailability::NoQuorum).into()),
        }
    }

    async fn active_loglet(
        self: &Arc<Self>,
    ) -> Result<(Arc<VersionedChain>, Segment, Arc<dyn Loglet>), PositionError> {
        let chain = self.refreshed().await?;
        let segment = chain.chain.active().clone();
        if segment.is_end() {
            return Err(LogError::Ended(segment.start).into());
        }
        let loglet = self.handle(&segment)?;
        if loglet.write_once().is_none() {
            return Err(PositionError::NotOffered(segment.kind));
        }
        Ok((chain, segment, loglet))
    }

    pub(super) async fn active_positions(self: &Arc<Self>) -> Result<ActivePositions, PositionError> {
        for _ in 0..ATTEMPTS {
            let (chain, segment, loglet) = self.active_loglet().await?;
            let Some(cells) = loglet.write_once() else { break };
            let reach: Reach = match cells.reach().await {
                Ok(reach) => reach,
                Err(error) => {
                    self.after(&chain, error).await?;
                    continue;
                }
            };
            let at = |offset: Offset| segment.position_of(offset);
            return Ok(ActivePositions {
                loglet: segment.loglet,
                kind: segment.kind.clone(),
                start: segment.start,
                trim: chain.chain.trim(),
                layout: cells.layout(),
                reach: (at(reach.complete), at(reach.written), reach.next.map(at)),
            });
        }
        Err(LogError::Unavailable(Unavailability::NoQuorum).into())
    }

    /// Refuses a log that the register says not to exist, or whose active segment is of a kind without operations on single positions.
    pub(super) async fn offers_positions(self: &Arc<Self>) -> Result<(), PositionError> {
        let chain = self.some_chain().await?;
        let active = chain.chain.active();
        if active.is_end() {
            return Err(LogError::Ended(active.start).into());
        }
        if self.handle(active)?.write_once().is_some() {
            return Ok(());
        }
        // The cached chain may be an old one.
        self.active_loglet().await.map(drop)
    }

    /// Returns the active Loglet, and what the next one should be like to have this change. None if the change is not possible.
    pub(super) async fn plan_replacing(
        self: &Arc<Self>,
        change: Replace,
    ) -> Result<(LogletId, Layout, Option<LogletSpec>), PositionError> {
        let (_, segment, loglet) = self.active_loglet().await?;
        match loglet.write_once() {
            Some(cells) => Ok((segment.loglet, cells.layout(), cells.replacing(change))),
            None => Err(PositionError::NotOffered(segment.kind)),
        }
    }
}
