//! What operators do with the backup.

use std::time::Duration;

use atoll_backup::{Backup, BackupError, Folder, Shipper, SnapshotInfo, Source, StoreError};
use atoll_client::{Reason, proto};
use atoll_door::backend::{BackupBackend, Pending, Refusal, no_database};

use super::plan::BackupPlan;
use super::source::ReplicaSource;
use super::state::{Backups, Replica};
use crate::kept;

/// How long a node tries a store before it refuses a start.
const TRY_FOR: Duration = Duration::from_secs(15);
/// How long a list may take.
const LIST_WITHIN: Duration = Duration::from_secs(60);

/// Returns the answer to a request that this error ends. Clients repeat a request that is answered with a reason that may pass, so what
/// stays as it is until an operator does something about it has another one.
fn refusal(error: &BackupError) -> Refusal {
    let words = error.to_string();
    let refused = |next| Refusal::no(Reason::Refused, words.clone(), next);
    match error {
        BackupError::Url(_) => Refusal::no(Reason::Invalid, words, ""),
        BackupError::Store(StoreError::Full) => {
            Refusal::no(Reason::DiskFull, words, "make room there, or name another place with --to")
        }
        BackupError::Store(StoreError::Credentials) => {
            refused("start each node with credentials that may read, put and delete objects there")
        }
        BackupError::Store(StoreError::NotAllowed) => {
            refused("let each node read and write there, or name another place with --to")
        }
        BackupError::Store(StoreError::Elsewhere) => {
            refused("create it, and see that each node reaches it under this name")
        }
        BackupError::Store(StoreError::Unsupported) => refused("name another place with --to"),
        error if error.passes() => {
            Refusal::no(Reason::Unavailable, words, "try again when the store answers")
        }
        _ => Refusal::no(Reason::Refused, words, ""),
    }
}

fn late() -> Refusal {
    Refusal::no(Reason::Unavailable, "the object store does not answer in time", "try again when it does")
}

/// Returns the plan that a request makes of an earlier one.
fn planned(old: Option<BackupPlan>, request: &proto::StartBackupRequest, drawn: u128) -> BackupPlan {
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let first = BackupPlan {
        format: 0,
        id: drawn,
        url: String::new(),
        on: true,
        every_ms: ms(BackupPlan::EVERY),
        snapshot_every_ms: ms(BackupPlan::SNAPSHOT_EVERY),
        keep_ms: ms(BackupPlan::KEEP),
        hold_entries: BackupPlan::HOLD_ENTRIES,
    };
    let mut plan = old.unwrap_or(first);
    plan.on = true;
    if !request.url.is_empty() {
        plan.url.clone_from(&request.url);
    }
    plan.every_ms = request.every_ms.unwrap_or(plan.every_ms).max(ms(BackupPlan::LEAST_EVERY));
    plan.snapshot_every_ms = request.snapshot_every_ms.unwrap_or(plan.snapshot_every_ms);
    plan.keep_ms = request.keep_ms.unwrap_or(plan.keep_ms);
    plan.hold_entries = request.hold_entries.unwrap_or(plan.hold_entries);
    plan
}

fn snapshot(info: &SnapshotInfo) -> proto::BackupSnapshot {
    let head = &info.head;
    proto::BackupSnapshot {
        number: info.number,
        below: head.below.0,
        time_ms: head.time_ms,
        made_ms: head.made_ms,
        keys: head.keys,
        bytes: head.bytes,
        hash: format!("{:032x}", head.hash),
        joined: head.joined,
    }
}

/// Returns what is in a backup, as the public API says it.
pub fn list_reply(backup: &Backup) -> proto::ListBackupReply {
    proto::ListBackupReply {
        id: format!("{:032x}", backup.id()),
        cluster: backup.about.cluster.clone(),
        snapshots: backup.snapshots.iter().map(snapshot).collect(),
        shipped_below: backup.end.map(|end| end.to.0),
        shipped_time_ms: backup.end.map(|end| end.time_ms),
        shipped_made_ms: backup.end.map(|end| end.made_ms),
    }
}

impl Backups {
    fn replica(&self) -> Result<Replica, Refusal> {
        self.0.replica.get().cloned().ok_or_else(no_database)
    }

    async fn find_plan(&self) -> Result<Option<BackupPlan>, Refusal> {
        kept::read(&*self.0.register).await.map_err(|error| error.refusal())
    }

    fn folder(&self, replica: &Replica, url: &str) -> Result<Folder, Refusal> {
        self.folder_at(url, &replica.cluster).map_err(|error| refusal(&error))
    }

    async fn status_of(&self, plan: Option<BackupPlan>) -> Result<proto::BackupStatusReply, Refusal> {
        let replica = self.replica()?;
        let seen = self.seen();
        let known_tail = replica.database.health().known_tail;
        let mut reply = proto::BackupStatusReply {
            node: self.0.env.node().0,
            cluster: replica.cluster.clone(),
            known_tail: known_tail.0,
            shipped_below: seen.end.map(|end| end.to.0),
            shipped_time_ms: seen.end.map(|end| end.time_ms),
            snapshot_below: seen.newest.as_ref().map(|newest| newest.head.below.0),
            snapshot_made_ms: seen.newest.as_ref().map(|newest| newest.head.made_ms),
            taking_snapshot: seen.taking,
            ships: seen.ships,
            trouble: seen.trouble.unwrap_or_default(),
            ..proto::BackupStatusReply::default()
        };
        let Some(plan) = plan else { return Ok(reply) };
        (reply.on, reply.url, reply.id) = (plan.on, plan.url, format!("{:032x}", plan.id));
        (reply.every_ms, reply.snapshot_every_ms) = (plan.every_ms, plan.snapshot_every_ms);
        (reply.keep_ms, reply.hold_entries) = (plan.keep_ms, plan.hold_entries);
        reply.behind_ms = self.behind(&replica).await;
        Ok(reply)
    }

    /// Returns how long ago the oldest entry was proposed that is not shipped, in milliseconds. None if that is not known.
    pub(super) async fn behind(&self, replica: &Replica) -> Option<u64> {
        let end = self.seen().end?;
        if end.to >= replica.database.health().known_tail {
            return Some(0);
        }
        let source = ReplicaSource {
            database: replica.database.clone(),
            log: replica.log.clone(),
            reads: self.0.env.levels().reads(),
        };
        let first = source.read(end.to..end.to.plus(1), 1).await.ok()?;
        let proposed = first.first().map(|entry| entry.time_ms).filter(|ms| *ms > 0)?;
        Some(replica.wall_ms().saturating_sub(proposed))
    }

    async fn start_as(
        &self,
        request: proto::StartBackupRequest,
    ) -> Result<proto::BackupStatusReply, Refusal> {
        let replica = self.replica()?;
        let old = self.find_plan().await?;
        let drawn = u128::from(self.0.env.random()) << 64 | u128::from(self.0.env.random());
        let next = planned(old, &request, drawn);
        if next.url.is_empty() {
            let next = "name the place with --to";
            return Err(Refusal::no(Reason::Invalid, "there is no backup yet, and no place for one", next));
        }
        let folder = self.folder(&replica, &next.url)?;
        let open = Shipper::open(folder, next.id, replica.wall_ms());
        self.0.env.within(TRY_FOR, open).await.map_err(|_| late())?.map_err(|error| refusal(&error))?;
        let id = next.id;
        let change = |old| Some(planned(old, &request, id));
        let plan = kept::change(&self.0.env, &*self.0.register, change).await;
        let plan = plan.map_err(|error| error.refusal())?;
        self.0.changed.notify();
        self.status_of(plan).await
    }

    async fn stop_it(&self) -> Result<proto::BackupStatusReply, Refusal> {
        if self.find_plan().await?.is_none() {
            return Err(Refusal::no(Reason::Refused, "there is no backup", ""));
        }
        let stopped = |old: Option<BackupPlan>| old.map(|plan| BackupPlan { on: false, ..plan });
        let plan = kept::change(&self.0.env, &*self.0.register, stopped).await;
        let plan = plan.map_err(|error| error.refusal())?;
        self.0.changed.notify();
        self.status_of(plan).await
    }

    async fn list_all(&self) -> Result<proto::ListBackupReply, Refusal> {
        let replica = self.replica()?;
        let Some(plan) = self.find_plan().await? else {
            return Err(Refusal::no(
                Reason::Refused,
                "there is no backup",
                "`atoll backup start` begins one",
            ));
        };
        let opened = Backup::open(self.folder(&replica, &plan.url)?);
        let backup = self.0.env.within(LIST_WITHIN, opened).await.map_err(|_| late())?;
        Ok(list_reply(&backup.map_err(|error| refusal(&error))?))
    }

    /// Runs `f` on the node's executor, so that it continues if the client disconnects (X8).
    fn run<T, F>(&self, name: &'static str, f: impl FnOnce(Backups) -> F) -> Pending<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let ticket = self.0.env.launch(name, f(self.clone()));
        Box::pin(async move { ticket.await.unwrap_or_else(|_| Err(Refusal::stopping())) })
    }
}

impl BackupBackend for Backups {
    fn start(&self, request: proto::StartBackupRequest) -> Pending<proto::BackupStatusReply> {
        self.run("backup.start", |me| async move { me.start_as(request).await })
    }

    fn stop(&self) -> Pending<proto::BackupStatusReply> {
        self.run("backup.stop", |me| async move { me.stop_it().await })
    }

    fn status(&self) -> Pending<proto::BackupStatusReply> {
        self.run("backup.status", |me| async move {
            let plan = me.find_plan().await?;
            me.status_of(plan).await
        })
    }

    fn list(&self) -> Pending<proto::ListBackupReply> {
        self.run("backup.list", |me| async move { me.list_all().await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_must_mend_is_not_repeated() {
        for (error, reason) in [
            (StoreError::Full, Reason::DiskFull),
            (StoreError::Credentials, Reason::Refused),
            (StoreError::NotAllowed, Reason::Refused),
            (StoreError::Elsewhere, Reason::Refused),
            (StoreError::Unsupported, Reason::Refused),
        ] {
            let refusal = refusal(&error.into());
            assert_eq!(refusal.failure.reason, reason, "{error:?}");
            assert!(!refusal.failure.next.is_empty(), "{error:?}");
        }
        for error in [StoreError::Busy, StoreError::NoAnswer] {
            assert_eq!(refusal(&error.into()).failure.reason, Reason::Unavailable, "{error:?}");
        }
    }
}
