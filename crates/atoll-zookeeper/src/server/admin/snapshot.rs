//! `snapshot`: the tree as a file, in a state that includes everything that was answered to anybody before.
//!
//! The view is walked twice: the first walk computes the size, which precedes the file, and the second one produces the bytes. Both
//! agree because a view does not change, so no copy of the tree is needed meanwhile.

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

/// The log must be reached in this time.
const BARRIER_WITHIN: Duration = Duration::from_secs(10);
/// A client that reads nothing for this long gets no more.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Pieces that wait for the client.
const WAITING: usize = 2;

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub(super) enum SnapshotFailed {
    /// The log is out of reach, so it is unknown whether this node's state is the newest.
    #[error("the log was not reached within {BARRIER_WITHIN:?}: ask another node")]
    OutOfTouch,
    /// Nothing was ever written.
    #[error("there is no tree yet: no client was ever here")]
    Empty,
    /// The store cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The search in the store was broken off.
    #[error("reading the store was broken off")]
    BrokenOff,
}

/// A snapshot that can be sent.
pub(super) struct Taken {
    /// The newest change in it.
    pub(super) zxid: i64,
    /// Bytes of the file.
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
    if view.get(key::COUNTERS).map_err(ReadError::from)?.is_none() {
        return Err(SnapshotFailed::Empty);
    }
    let zxid = read::counters(&view)?.zxid;
    let walk = view.clone();
    // Large walks do not belong on the threads of the doors (contracts X20).
    let size = tokio::task::spawn_blocking(move || {
        let mut size = 0;
        write(&walk, zxid, |bytes| {
            size += bytes.len() as u64;
            true
        })
        .map(|()| size)
    });
    let size = size.await.map_err(|_| SnapshotFailed::BrokenOff)??;
    Ok(Taken { zxid, size, view })
}

/// The pieces of its file. They end early if the store cannot be read or the client accepts no more: then the hash at the end is
/// missing, and the size differs.
pub(super) fn pieces(taken: Taken) -> mpsc::Receiver<Result<Bytes, Infallible>> {
    let (told, tell) = mpsc::channel(WAITING);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let send = |bytes| {
            let sent = async { tokio::time::timeout(STALLED_AFTER, told.send(Ok(bytes))).await };
            matches!(runtime.block_on(sent), Ok(Ok(())))
        };
        if let Err(error) = write(&taken.view, taken.zxid, send) {
            tracing::error!(%error, "a snapshot of the ZooKeeper tree broke off");
        }
    });
    tell
}

/// Gives the bytes of the file to `each` until it has enough.
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
