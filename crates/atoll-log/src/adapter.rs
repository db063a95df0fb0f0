//! A virtual log as a Loglet: code written for a Loglet can run on a log that can be reconfigured. Sealing it ends the log permanently.

use std::ops::Range;
use std::sync::Arc;

use atoll_core::{Abandoned, BoxFuture, Env, Ticket};

use crate::virtual_log::{
    LogAppendError, LogError, LogReadError, LogRecord, ReconfigError, TrimError, VirtualLog,
};
use atoll_contract::entry::Batch;
use atoll_contract::loglet::{
    AppendError, Loglet, LogletError, Placement, ReadBatch, ReadError, ReadFrom, SealedConfig, Tail,
    Unavailability,
};
use atoll_contract::position::{LogPos, Offset};

/// See the module documentation. Positions and offsets are the same numbers.
#[derive(Clone, Debug)]
pub struct VirtualLoglet {
    env: Env,
    log: Arc<VirtualLog>,
}

impl VirtualLoglet {
    /// Wraps a log, which must exist; see [`VirtualLog::create`].
    pub fn new(env: Env, log: Arc<VirtualLog>) -> Self {
        VirtualLoglet { env, log }
    }
}

fn placement(positions: &[LogPos]) -> Placement {
    let mut runs: Vec<(Offset, u32)> = Vec::new();
    for at in positions {
        match runs.last_mut() {
            Some((first, n)) if first.0 + u64::from(*n) == at.0 => *n += 1,
            _ => runs.push((Offset(at.0), 1)),
        }
    }
    Placement { runs }
}

fn append_error(e: LogAppendError) -> AppendError {
    match e {
        LogAppendError::TooLarge(_) => AppendError::NotAppended(Unavailability::TooLarge),
        LogAppendError::NotAppended(LogError::Ended(_)) | LogAppendError::Unknown(LogError::Ended(_)) => {
            AppendError::Sealed
        }
        LogAppendError::NotAppended(e) => AppendError::NotAppended(why(&e)),
        LogAppendError::Unknown(e) => AppendError::Unknown(why(&e)),
        LogAppendError::Trimmed(_) | LogAppendError::Damaged { .. } => {
            AppendError::Unknown(Unavailability::NoQuorum)
        }
    }
}

fn why(e: &LogError) -> Unavailability {
    match e {
        LogError::Unavailable(why) => *why,
        _ => Unavailability::NoQuorum,
    }
}

fn loglet_error(e: &LogError) -> LogletError {
    match e {
        LogError::Deleted => LogletError::Gone,
        e => LogletError::Unavailable(why(e)),
    }
}

fn stopping<T>(got: Result<Result<T, LogError>, Abandoned>) -> Result<T, LogError> {
    got.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping)))
}

fn ended_at(tail: LogPos) -> Tail {
    Tail { at: Offset(tail.0), sealed: Some(SealedConfig::new()) }
}

impl Loglet for VirtualLoglet {
    fn append(&self, batch: Batch) -> Ticket<Result<Placement, AppendError>> {
        let records =
            batch.entries().map(|e| LogRecord { op: e.op, floor: None, payload: e.payload }).collect();
        // Submit before returning, so that appends keep the order of the calls.
        let wait = match self.log.submit(records) {
            Ok(wait) => wait,
            Err(_) => return Ticket::ready(Err(AppendError::NotAppended(Unavailability::Busy))),
        };
        self.env.launch("virtual.append", async move {
            match wait.await {
                Ok(Ok(positions)) => Ok(placement(&positions)),
                Ok(Err(e)) => Err(append_error(e)),
                Err(Abandoned) => Err(AppendError::Unknown(Unavailability::Stopping)),
            }
        })
    }

    fn keeps_order(&self) -> bool {
        true
    }

    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            match stopping(self.log.check_end().await) {
                Ok((tail, true)) => Ok(ended_at(tail)),
                Ok((tail, false)) => Ok(Tail { at: Offset(tail.0), sealed: None }),
                Err(e) => Err(loglet_error(&e)),
            }
        })
    }

    fn wait_tail(&self, above: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async move {
            match stopping(self.log.wait_tail(LogPos(above.0)).await) {
                Ok(tail) => Ok(Tail { at: Offset(tail.0), sealed: None }),
                Err(LogError::Ended(tail)) => Ok(ended_at(tail)),
                Err(e) => Err(loglet_error(&e)),
            }
        })
    }

    fn known_tail(&self) -> Offset {
        Offset(self.log.known_tail().0)
    }

    fn read(
        &self,
        range: Range<Offset>,
        max_bytes: usize,
        from: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(async move {
            let range = LogPos(range.start.0)..LogPos(range.end.0);
            let got = self.log.read(range, max_bytes, from).await;
            match got.unwrap_or(Err(LogError::Unavailable(Unavailability::Stopping).into())) {
                Ok(read) => Ok(ReadBatch { entries: read.entries, remote: read.remote }),
                Err(LogReadError::Trimmed(to)) => Err(ReadError::Trimmed(Offset(to.0))),
                Err(LogReadError::Damaged(what)) => Err(ReadError::Damaged(what)),
                Err(LogReadError::Log(LogError::BeyondTail(tail))) => {
                    Err(ReadError::BeyondTail(Offset(tail.0)))
                }
                Err(LogReadError::Log(LogError::Deleted)) => Err(ReadError::Gone),
                Err(LogReadError::Log(e)) => Err(ReadError::Unavailable(why(&e))),
            }
        })
    }

    fn prefix_trim(&self, to: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move {
            match self.log.trim(LogPos(to.0)).await {
                Ok(Ok(_)) => Ok(()),
                // A Loglet's trim that is unavailable may have happened.
                Ok(Err(TrimError::NotTrimmed(e) | TrimError::Unknown(e))) => Err(loglet_error(&e)),
                Err(Abandoned) => Err(LogletError::Unavailable(Unavailability::Stopping)),
            }
        })
    }

    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async move {
            match self.log.end().await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(ReconfigError::Unavailable { why, .. })) => Err(LogletError::Unavailable(why)),
                Ok(Err(ReconfigError::Deleted)) => Err(LogletError::Gone),
                Ok(Err(_)) => Err(LogletError::Unavailable(Unavailability::NoQuorum)),
                Err(Abandoned) => Err(LogletError::Unavailable(Unavailability::Stopping)),
            }
        })
    }
}
