//! `snapshot`: sends the tree as a file, in a state that includes everything that was acknowledged to any client before.
//!
//! The view is walked twice. The first walk determines the size, which is sent before the file, and the second one produces the
//! bytes. Both agree because a view does not change, so the tree need not be copied.

use std::convert::Infallible;
use std::time::Duration;

use atoll_db::{Direction, KeyRange, View};
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::super::Shared;
use crate::tree::key;
use crate::tree::read::{self, ReadError};
use crate::tree::snapshot::{self, Writer};

/// The log must be reached within this time.
const BARRIER_WITHIN: Duration = Duration::from_secs(10);
/// If the client reads nothing for this long, nothing more is sent.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Most pieces that wait for the client.
const WAITING: usize = 2;

/// The reason why no snapshot was taken.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotFailed {
    /// The log is out of reach, so this node's state may be out of date.
    #[error("the log did not answer within {BARRIER_WITHIN:?}; ask another node")]
    OutOfTouch,
    /// Nothing was ever written.
    #[error("there is no tree yet: no client has ever connected")]
    Empty,
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The walk through the store was cancelled, or it panicked.
    #[error("reading the store was interrupted")]
    BrokenOff,
}

/// A snapshot that is ready to be sent.
pub(super) struct Taken {
    /// The zxid of the newest change in it.
    pub(super) zxid: i64,
    /// The size of the file, in bytes.
    pub(super) size: u64,
    view: View,
}

/// Takes a snapshot.
pub(super) async fn take(shared: &Shared) -> Result<Taken, SnapshotFailed> {
    let reached = tokio::time::timeout(BARRIER_WITHIN, shared.engine.barrier()).await;
    if !matches!(reached, Ok(Ok(Ok(_)))) {
        return Err(SnapshotFailed::OutOfTouch);
    }
    let view = shared.engine.view();
    let walk = view.clone();
    // Neither waits for the disk nor long walks may run on the threads of the doors (contracts X20).
    let written = tokio::task::spawn_blocking(move || {
        if walk.get(key::COUNTERS).map_err(ReadError::from)?.is_none() {
            return Err(SnapshotFailed::Empty);
        }
        let zxid = read::counters(&walk)?.zxid;
        let mut size = 0;
        write(&walk, zxid, |bytes| {
            size += bytes.len() as u64;
            true
        })?;
        Ok((zxid, size))
    });
    let (zxid, size) = written.await.map_err(|_| SnapshotFailed::BrokenOff)??;
    Ok(Taken { zxid, size, view })
}

/// Returns the pieces of the file. They end early if the store cannot be read or the client accepts no more. The hash at the end is
/// then missing, and the file is shorter than announced.
pub(super) fn pieces(taken: Taken) -> mpsc::Receiver<Result<Bytes, Infallible>> {
    let (told, tell) = mpsc::channel(WAITING);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let send = |bytes| {
            let sent = async { tokio::time::timeout(STALLED_AFTER, told.send(Ok(bytes))).await };
            matches!(runtime.block_on(sent), Ok(Ok(())))
        };
        if let Err(error) = write(&taken.view, taken.zxid, send) {
            tracing::error!(%error, "a snapshot of the ZooKeeper tree was interrupted");
        }
    });
    tell
}

/// Passes the bytes of the file to `each` until it returns false.
fn write(view: &View, zxid: i64, mut each: impl FnMut(Bytes) -> bool) -> Result<(), ReadError> {
    let (mut writer, head) = Writer::begin(zxid);
    if !each(head) {
        return Ok(());
    }
    for found in view.scan(&KeyRange::all(), Direction::Forward) {
        let (key, value) = found?;
        if !snapshot::is_carried(&key) {
            continue;
        }
        if let Some(bytes) = writer.push(key, value)
            && !each(bytes)
        {
            return Ok(());
        }
    }
    each(writer.finish());
    Ok(())
}
