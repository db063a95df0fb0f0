//! `restore`: replaces the tree on all nodes with a file. This node first checks the whole file. Then it puts the pieces into the
//! log one after the other, and finally a command that puts the new tree in place (`tree/restore.rs`). Nothing changes before that
//! command, so any earlier failure is reported as "not restored".

use std::sync::Arc;
use std::time::Duration;

use atoll_db::MAX_COMMAND_BYTES;
use bytes::Bytes;
use ring::rand::SecureRandom;
use tokio::time::{Instant, timeout_at};

use super::super::{Shared, frame, housekeeping};
use crate::command::{Command, Discard, Restore, Stage};
use crate::jute::codes::ErrorCode;
use crate::tree::read;
use crate::tree::restore::MAX_PIECE_BYTES;
use crate::tree::snapshot::{HASH_BYTES, Snapshot, SnapshotError};
use crate::tree::state::is_foreign_zxid;

/// How long a command waits for room in the log.
const BUSY_FOR: Duration = Duration::from_secs(30);
/// How often to check for stalled uploads.
const LOOKED_EVERY: Duration = Duration::from_secs(10);
/// An upload must be unchanged in this many checks in a row before the first node discards it. Each further node waits one more
/// check for each living node with a lower id, in case the first node runs no such door.
const LOOKS: usize = 6;

const UPGRADE_FIRST: &str =
    "has data that only nodes of a later feature level can read; run `atoll cluster upgrade` first";

/// The reason why a snapshot was not restored.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreFailed {
    /// The file cannot be restored.
    #[error("not restored: {0}")]
    Refused(#[from] SnapshotError),
    /// Another restore began in the meantime, at any node, or this one stalled for too long and was discarded.
    #[error("not restored: another restore began, or this one stalled for too long")]
    Overtaken,
    /// The log did not accept a command, or refused it. Nothing changed.
    #[error("not restored: {0}")]
    NotDone(String),
    /// The outcome of the last command is unknown.
    #[error("it is not known whether it was restored: {0}")]
    Unknown(String),
}

/// A checked file, ready to be restored.
pub(super) struct Checked {
    file: Bytes,
    hash: [u8; HASH_BYTES],
    /// The zxid of the newest change in the file.
    zxid: i64,
    entries: usize,
}

/// Parses and checks a file. `max_command_bytes` is that of the engine. This may take long, so it must not run on the node's thread
/// (contracts X20).
pub(super) fn check(file: Bytes, max_command_bytes: usize) -> Result<Checked, SnapshotError> {
    let snapshot = Snapshot::read(&file)?;
    snapshot.check()?;
    if max_command_bytes <= MAX_COMMAND_BYTES
        && let Some(path) = snapshot.first_in_pieces()
    {
        return Err(SnapshotError::Unfit { what: path, fault: UPGRADE_FIRST });
    }
    if !is_foreign_zxid(snapshot.zxid) {
        return Err(SnapshotError::Epoch(snapshot.zxid));
    }
    Ok(Checked { file, hash: snapshot.hash, zxid: snapshot.zxid, entries: snapshot.entries.len() })
}

/// The outcome of a command.
enum Ended {
    /// It was applied, with this zxid and possibly an error code.
    Answered(i64, Option<ErrorCode>),
    /// It did not happen.
    NotDone(String),
    /// It is unknown whether it happened.
    Unknown(String),
}

async fn propose(shared: &Shared, command: &Command<'_>) -> Ended {
    let command = Bytes::from(command.to_bytes());
    let until = Instant::now() + BUSY_FOR;
    let proposed = loop {
        match shared.engine.propose(command.clone()) {
            Ok(proposed) => break proposed,
            Err(busy) => {
                if timeout_at(until, shared.engine.room(&busy)).await.is_err() {
                    return Ended::NotDone(busy.to_string());
                }
            }
        }
    };
    match proposed.await {
        Ok(Ok(applied)) => {
            let answer = applied.reply.unwrap_or_else(|rejected| rejected.0);
            let head = frame::head(&answer);
            Ended::Answered(head.zxid, ErrorCode::of(head.err))
        }
        Ok(Err(error)) => Ended::Unknown(error.to_string()),
        Err(error) => Ended::Unknown(error.to_string()),
    }
}

/// Replaces the tree with a checked file; returns the zxid of that change. The work must run to its end even if its caller gives up
/// waiting; the caller then does not learn the outcome.
pub(super) async fn restore(shared: &Shared, checked: &Checked) -> Result<i64, RestoreFailed> {
    let mut number = [0; 8];
    let random = ring::rand::SystemRandom::new();
    random.fill(&mut number).map_err(|_| RestoreFailed::NotDone("the system has no random bytes".into()))?;
    let upload = i64::from_be_bytes(number);
    let mut pieces = 0;
    for data in checked.file.chunks(MAX_PIECE_BYTES) {
        let command = Command::Stage(Stage { upload, piece: pieces, data: Some(data) });
        let failed = match propose(shared, &command).await {
            Ended::Answered(_, None) => {
                pieces += 1;
                continue;
            }
            Ended::Answered(_, Some(ErrorCode::BadVersion)) => return Err(RestoreFailed::Overtaken),
            Ended::Answered(_, Some(code)) => format!("a piece was refused: {code:?}"),
            Ended::NotDone(why) | Ended::Unknown(why) => why,
        };
        // Discard the upload as far as it is known. If it got further than that, it is discarded later as stalled.
        housekeeping::did(shared, &Command::Discard(Discard { upload, pieces })).await;
        return Err(RestoreFailed::NotDone(failed));
    }
    let command = Command::Restore(Restore { upload, pieces, hash: Some(&checked.hash) });
    match propose(shared, &command).await {
        Ended::Answered(zxid, None) => {
            tracing::warn!(
                zxid = format!("{zxid:#x}"),
                from = format!("{:#x}", checked.zxid),
                entries = checked.entries,
                "the ZooKeeper tree was replaced by a snapshot"
            );
            Ok(zxid)
        }
        Ended::Answered(_, Some(ErrorCode::NoNode)) => Err(RestoreFailed::Overtaken),
        Ended::Answered(_, Some(code)) => Err(RestoreFailed::NotDone(format!("{code:?}"))),
        Ended::NotDone(why) => Err(RestoreFailed::NotDone(why)),
        Ended::Unknown(why) => Err(RestoreFailed::Unknown(why)),
    }
}

/// Discards stalled uploads, whose senders are gone.
pub(crate) async fn give_up(shared: &Arc<Shared>) {
    let mut ticks = housekeeping::every(LOOKED_EVERY);
    let (mut seen, mut looks) = (None, 0);
    loop {
        ticks.tick().await;
        let found = match shared.read(shared.engine.view(), read::staged).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%error, "the upload of a ZooKeeper snapshot cannot be read");
                continue;
            }
        };
        looks = if found == seen { looks + 1 } else { 0 };
        seen = found;
        let Some((upload, pieces)) = found.filter(|_| looks >= LOOKS + housekeeping::rank(shared)) else {
            continue;
        };
        if housekeeping::did(shared, &Command::Discard(Discard { upload, pieces })).await {
            tracing::info!("the upload of a ZooKeeper snapshot stalled and was abandoned");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use atoll_core::NodeId;
    use atoll_db::{Applications, MemoryStore, Solo};
    use tokio::time::timeout;

    use super::*;
    use crate::{Cluster, Door, Options, ZooKeeper};

    struct Alone;

    impl Cluster for Alone {
        fn living(&self) -> Vec<NodeId> {
            vec![NodeId(1)]
        }
    }

    /// The clock is paused: it advances whenever all tasks wait.
    #[test]
    fn an_upload_that_stands_still_is_given_up_and_one_that_goes_on_is_not() {
        let mut applications = Applications::new();
        let slot = applications.add(ZooKeeper);
        let solo = Solo::open(applications, Box::new(MemoryStore::new())).unwrap();
        let door = Door::open(solo.engine(&slot), Arc::new(Alone), Options::default()).unwrap();
        let shared = door.0.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let staged = || read::staged(&shared.engine.view()).unwrap();
            let keeping = give_up(&shared);
            let bringing = async {
                for piece in 0..10 {
                    let stage = Stage { upload: 7, piece, data: Some(b"x") };
                    assert!(housekeeping::did(&shared, &Command::Stage(stage)).await);
                    tokio::time::sleep(LOOKED_EVERY * 5).await;
                    assert_eq!(staged(), Some((7, piece + 1)), "it continues");
                }
                while staged().is_some() {
                    tokio::time::sleep(LOOKED_EVERY).await;
                }
            };
            let both = async {
                tokio::select! {
                    () = keeping => {}
                    () = bringing => {}
                }
            };
            timeout(LOOKED_EVERY * 100, both).await.unwrap();
        });
    }
}
