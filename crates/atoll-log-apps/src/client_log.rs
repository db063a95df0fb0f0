//! A log of a cluster as a [`SharedLog`], by the Rust client over gRPC. The applications do not see which Loglets are under it.
//!
//! Every position below the tail of such a log is decided, and stays so: the nodes fill holes before they show a tail above them. So there
//! is nothing to fill, and what holds no record below the tail is a pad, which reads as junk.

use bytes::Bytes;

use atoll_client::{Error, Failure, Log, ReadOptions, Reason};
use atoll_contract::Unavailability;
use atoll_core::BoxFuture;

use crate::shared_log::{LogError, SharedLog, Slot};

/// A range is read until it has at least so many bytes of records. With the last batch it has less than twice as many.
const RANGE_BYTES: usize = 4 << 20;
/// How often a read finds the tail below the position and above it right after, before it gives up. Once is already rare.
const READ_ATTEMPTS: usize = 8;

/// One log of a cluster.
///
/// - An append that is repeated by the client within its time-out is in the log once. After an unknown outcome, an application that
///   appends again names its operation itself.
/// - Reads and tails may go to different nodes: each of them checks the tail before it answers.
/// - Only prefixes can be trimmed.
#[derive(Clone, Debug)]
pub struct ClientLog {
    log: Log,
}

impl ClientLog {
    /// Returns the log behind a handle of the client, whose settings bound how long each operation is tried.
    pub fn new(log: Log) -> Self {
        ClientLog { log }
    }

    /// Reads from a position up to `to` or up to the tail. Positions without records below the end are pads.
    async fn read_to(&self, from: u64, to: u64) -> Result<Vec<Slot>, Error> {
        let mut reader = self.log.read(ReadOptions { to: Some(to), ..ReadOptions::from(from) });
        let (mut slots, mut bytes) = (Vec::new(), 0);
        let skip_to = |slots: &mut Vec<Slot>, position: u64| {
            let pads = position.saturating_sub(from.saturating_add(slots.len() as u64));
            slots.extend((0..pads).map(|_| Slot::Junk));
        };
        while bytes < RANGE_BYTES {
            match reader.next().await {
                Ok(Some(batch)) => {
                    skip_to(&mut slots, batch.first);
                    bytes += batch.records.iter().map(|record| record.payload.len()).sum::<usize>();
                    slots.extend(batch.records.into_iter().map(|record| Slot::Data(record.payload)));
                }
                Ok(None) => {
                    skip_to(&mut slots, to);
                    break;
                }
                // What was read before is right, and the next call tells the error.
                Err(_) if !slots.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(slots)
    }

    async fn read_some(&self, from: u64, to: u64) -> Result<Vec<Slot>, LogError> {
        let mut end = to;
        for _ in 0..READ_ATTEMPTS {
            let error = match self.read_to(from, end).await {
                Ok(slots) => return Ok(slots),
                Err(error) => error,
            };
            match error.failure().reason {
                Reason::Trimmed => {
                    // Another node may not know of the trim yet, but this answer stands.
                    let trimmed = self.log.bounds().await.map_err(not_done)?.trim.clamp(from + 1, to);
                    return Ok((from..trimmed).map(|_| Slot::Trimmed).collect());
                }
                Reason::BeyondTail => {
                    let tail = self.log.check_tail().await.map_err(not_done)?;
                    if tail <= from {
                        return Ok((from..to).map(|_| Slot::Unwritten).collect());
                    }
                    end = to.min(tail);
                }
                _ => return Err(not_done(error)),
            }
        }
        Err(LogError::Unavailable(Unavailability::Busy))
    }
}

/// Returns the error of an operation other than an append. All of these may be repeated, whatever became of the last attempt.
fn not_done(error: Error) -> LogError {
    why(error.failure())
}

fn why(failure: &Failure) -> LogError {
    let unavailable = match failure.reason {
        Reason::Busy => Unavailability::Busy,
        Reason::Unavailable | Reason::Abandoned | Reason::Unspecified => Unavailability::NoQuorum,
        Reason::DiskFull => Unavailability::DiskFull,
        Reason::StorageFailed => Unavailability::StorageFailed,
        Reason::TooLarge => Unavailability::TooLarge,
        Reason::Stopping => Unavailability::Stopping,
        _ => return LogError::Gone(failure.to_string()),
    };
    LogError::Unavailable(unavailable)
}

impl SharedLog for ClientLog {
    fn append(&self, data: Bytes) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move {
            self.log.append(data).await.map_err(|error| match error {
                Error::DidNotHappen(failure) => why(&failure),
                // If it happened, its position is missing.
                Error::Unknown(_) | Error::Happened(_) => LogError::Unknown(None),
            })
        })
    }

    fn read(&self, position: u64) -> BoxFuture<'_, Result<Slot, LogError>> {
        Box::pin(async move {
            let Some(end) = position.checked_add(1) else { return Ok(Slot::Unwritten) };
            Ok(self.read_some(position, end).await?.into_iter().next().unwrap_or(Slot::Unwritten))
        })
    }

    /// Reads at most about 8 MB.
    fn read_range(&self, from: u64, to: u64) -> BoxFuture<'_, Result<Vec<Slot>, LogError>> {
        Box::pin(async move {
            if to <= from {
                return Ok(Vec::new());
            }
            self.read_some(from, to).await
        })
    }

    /// Does nothing below the tail, where everything is decided. Positions above it cannot be filled.
    fn fill(&self, position: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move {
            match self.tail().await? {
                tail if position < tail => Ok(()),
                _ => Err(LogError::Unsupported("fill a position above its tail")),
            }
        })
    }

    fn trim(&self, _: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async { Err(LogError::Unsupported("trim a single position")) })
    }

    fn trim_prefix(&self, to: u64) -> BoxFuture<'_, Result<(), LogError>> {
        Box::pin(async move { self.log.trim(to).await.map_err(not_done) })
    }

    /// Returns the tail. A log that does not exist is an error: create it first.
    fn tail(&self) -> BoxFuture<'_, Result<u64, LogError>> {
        Box::pin(async move { self.log.check_tail().await.map_err(not_done) })
    }
}
