//! A node ships its database into a directory, and another cluster is made from it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_backup::{Backup, BackupError, Folder, Moment, Nap, SnapshotInfo, mutants};
use atoll_client::proto;
use atoll_contract::LogPos;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_db::{AppId, Application, ApplyAt, Engine, Rejected, StoreError, Tx, View};
use atoll_door::backend::BackupBackend;
use atoll_node::rescue::{Chosen, Progress, RescueError, RestoreError, Restored, from_backup};
use atoll_node::{Applications, DatabaseOptions, DatabaseState, NodeConfig, RunningNode, embed, start_with};
use bytes::Bytes;

const WITHIN: Duration = Duration::from_secs(60);

/// An application whose commands are `key=value`.
struct Notes;

impl Application for Notes {
    type Event = ();
    const ID: AppId = AppId(9);
    const NAME: &'static str = "notes";

    fn apply(&mut self, _: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        let at = command.iter().position(|b| *b == b'=').ok_or(Rejected(Bytes::new()))?;
        tx.put(&command[..at], Bytes::copy_from_slice(&command[at + 1..]));
        Ok(Bytes::new())
    }

    fn opened(&mut self, _: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

pub fn config(data: &Path, cluster: &str) -> NodeConfig {
    NodeConfig { cluster: cluster.to_owned(), ..NodeConfig::alone(data) }
}

async fn node(data: &Path, cluster: &str) -> (RunningNode, Engine<Notes>) {
    let (door, engine) = embed(Notes);
    let node = start_with(config(data, cluster), vec![door]).unwrap();
    node.joined().await.unwrap();
    (node, engine.await.unwrap())
}

/// Returns the position of the entry.
async fn put(engine: &Engine<Notes>, command: String) -> LogPos {
    engine.propose(command.into_bytes().into()).unwrap().await.unwrap().unwrap().position
}

fn url(store: &Path) -> String {
    format!("file://{}", store.display())
}

pub async fn start(node: &RunningNode, store: &Path) -> proto::BackupStatusReply {
    let request = proto::StartBackupRequest {
        url: url(store),
        every_ms: Some(100),
        snapshot_every_ms: Some(400),
        ..proto::StartBackupRequest::default()
    };
    node.parts().backups.start(request).await.unwrap()
}

/// Waits until all entries below are shipped.
pub async fn shipped(node: &RunningNode, below: LogPos) -> proto::BackupStatusReply {
    let began = Instant::now();
    loop {
        let status = node.parts().backups.status().await.unwrap();
        if status.shipped_below.is_some_and(|at| at >= below.0) && status.behind_ms == Some(0) {
            return status;
        }
        assert!(began.elapsed() < WITHIN, "{status:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the backup has a snapshot.
async fn has_snapshot(node: &RunningNode) {
    let began = Instant::now();
    while node.parts().backups.status().await.unwrap().snapshot_below.is_none() {
        assert!(began.elapsed() < WITHIN, "no snapshot");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn open(store: &Path, cluster: &str) -> Result<Backup, BackupError> {
    let nap: Nap = Arc::new(|pause| Box::pin(tokio::time::sleep(pause)));
    Backup::open(Folder::at(&url(store), cluster, atoll_node::database::LOG, nap)?).await
}

/// Restores on a thread of its own: what is left of the node that made the new directory ends with its runtime.
fn restore(store: &Path, moment: Moment, into: NodeConfig) -> Result<Restored, RestoreError> {
    restore_with(|| Notes, store, moment, into, Mutant::NONE, false)
}

/// The same for any application, with a known bug, and if that is accepted, also if the state is wrong.
pub fn restore_with<A: Application>(
    app: fn() -> A,
    store: &Path,
    moment: Moment,
    into: NodeConfig,
    bug: Mutant,
    accept_wrong_hash: bool,
) -> Result<Restored, RestoreError> {
    let work = async move || {
        let chosen = Chosen { backup: open(store, "old").await?, moment, accept_wrong_hash };
        let mut apps = Applications::new();
        embed(app()).0.applications(&mut apps);
        let mut seen = Vec::new();
        let doors = vec![embed(app()).0];
        let restored = from_backup(into, &chosen, apps, doors, &mut |progress| seen.push(progress)).await?;
        assert!(seen.contains(&Progress::Node) && seen.len() > 1, "{seen:?}");
        Ok(restored)
    };
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // The known bug is that of this thread only.
            set_mutant(bug);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work())
        });
        thread.join().unwrap()
    })
}

fn get(engine: &Engine<Notes>, key: &str) -> Option<Bytes> {
    engine.view().get(key.as_bytes()).unwrap()
}

#[tokio::test]
async fn a_backup_goes_on_over_lives_of_a_node_and_every_moment_is_restored() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let mut at = Vec::new();
    for life in 0..2 {
        let (node, engine) = node(&data, "old").await;
        if life == 0 {
            assert!(node.parts().backups.list().await.is_err(), "there is none yet");
            assert!(start(&node, &store).await.on);
            // No moment before the first snapshot can be restored.
            has_snapshot(&node).await;
        }
        for number in 0..40 {
            at.push(put(&engine, format!("last={}", life * 40 + number)).await);
        }
        let status = shipped(&node, at[at.len() - 1].plus(1)).await;
        assert!(status.on && status.ships && status.trouble.is_empty(), "{status:?}");
        node.shutdown().await;
    }
    let backup = open(&store, "old").await.unwrap();
    assert!(!backup.snapshots.is_empty());
    for chosen in [0, 13, 39, 40, 79] {
        let into = root.path().join(format!("new-{chosen}"));
        let below = at[chosen].plus(1);
        let restored = restore(&store, Moment::Position(below), config(&into, "new")).unwrap();
        assert_eq!((restored.below, restored.cluster.as_str()), (below, "old"));
        assert!(restored.compared_below >= below, "{restored:?}");
        let (node, engine) = node(&into, "new").await;
        engine.barrier().await.unwrap().unwrap();
        assert_eq!(get(&engine, "last"), Some(chosen.to_string().into()));
        assert!(put(&engine, "more=1".to_owned()).await >= below, "the log goes on behind it");
        node.shutdown().await;
    }
}

#[tokio::test]
async fn what_cannot_be_restored_is_refused_and_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let (node, engine) = node(&data, "old").await;
    start(&node, &store).await;
    let last = put(&engine, "a=1".to_owned()).await.plus(1);
    shipped(&node, last).await;
    let into = root.path().join("new");
    let late = restore(&store, Moment::Position(last.plus(100)), config(&into, "new"));
    assert!(matches!(late, Err(RestoreError::Backup(BackupError::TooLate { .. }))), "{late:?}");
    let same = restore(&store, Moment::Latest, config(&into, "old"));
    assert!(matches!(same, Err(RestoreError::Rescue(RescueError::SameCluster(_)))), "{same:?}");
    let memory = NodeConfig { database: DatabaseState::InMemory, ..config(&into, "new") };
    let memory = restore(&store, Moment::Latest, memory);
    assert!(matches!(memory, Err(RestoreError::InMemory)), "{memory:?}");
    let other = open(&store, "another").await.map(|_| ());
    assert!(matches!(other, Err(BackupError::None { .. })), "{other:?}");
    assert!(!into.exists() && !root.path().join("new.rescue").exists());
    std::fs::create_dir(&into).unwrap();
    std::fs::write(into.join("file"), "theirs").unwrap();
    let full = restore(&store, Moment::Latest, config(&into, "new"));
    assert!(matches!(full, Err(RestoreError::Rescue(RescueError::NotEmpty(_)))), "{full:?}");
    let stopped = node.parts().backups.stop().await.unwrap();
    assert!(!stopped.on && !stopped.id.is_empty());
    let again = start(&node, &store).await;
    assert_eq!((again.on, again.id), (true, stopped.id), "it continues the same backup");
    node.shutdown().await;
}

#[tokio::test]
async fn another_cluster_of_the_same_name_cannot_ship_to_the_same_place() {
    let root = tempfile::tempdir().unwrap();
    let store = root.path().join("store");
    let (first, _) = node(&root.path().join("first"), "old").await;
    start(&first, &store).await;
    first.shutdown().await;
    let (second, _) = node(&root.path().join("second"), "old").await;
    let request = proto::StartBackupRequest { url: url(&store), ..proto::StartBackupRequest::default() };
    let refused = second.parts().backups.start(request).await.unwrap_err();
    assert!(refused.failure.message.contains("belongs to another cluster"), "{refused:?}");
    second.shutdown().await;
}

/// The store of a replica that has been idle for less than `idle_after` may have nothing of what the replica has applied.
#[tokio::test]
async fn a_snapshot_has_what_was_applied_before_it() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let long = Duration::from_hours(1);
    let options = DatabaseOptions {
        idle_after: long,
        upkeep_every: long,
        commit_above_bytes: 1 << 30,
        ..DatabaseOptions::default()
    };
    let (door, engine) = embed(Notes);
    let config = NodeConfig { database_options: options, ..config(&data, "old") };
    let node = start_with(config, vec![door]).unwrap();
    node.joined().await.unwrap();
    let engine = engine.await.unwrap();
    let mut last = LogPos::ZERO;
    for number in 0..20 {
        last = put(&engine, format!("last={number}")).await;
    }
    start(&node, &store).await;
    shipped(&node, last.plus(1)).await;
    let backup = open(&store, "old").await.unwrap();
    let first = &backup.snapshots[0].head;
    assert!(
        first.below > last,
        "the snapshot has the state below {}, and {last} was applied before it",
        first.below
    );
    node.shutdown().await;
}

/// A state that is not what the replicas had is restored only for an operator who says so, and then says where it differs.
#[tokio::test]
async fn a_wrong_state_is_restored_only_if_that_is_accepted() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let (node, engine) = node(&data, "old").await;
    start(&node, &store).await;
    let first = put(&engine, "last=first".to_owned()).await;
    shipped(&node, first.plus(1)).await;
    let mut last = first;
    for number in 0..20 {
        last = put(&engine, format!("last={number}")).await;
    }
    shipped(&node, last.plus(1)).await;
    node.shutdown().await;
    let bug = mutants::RESTORE_SKIPS_ENTRY;
    let into = |name: &str| config(&root.path().join(name), "new");
    let refused = restore_with(|| Notes, &store, Moment::Position(last.plus(1)), into("a"), bug, false);
    assert!(matches!(refused, Err(RestoreError::Differs { .. })), "{refused:?}");
    assert!(!root.path().join("a").exists());
    let accepted =
        restore_with(|| Notes, &store, Moment::Position(last.plus(1)), into("b"), bug, true).unwrap();
    let differs = accepted.differs_below.unwrap();
    assert!(accepted.compared_below < differs && differs <= last.plus(1), "{accepted:?}");
    let right = restore_with(|| Notes, &store, Moment::Position(last.plus(1)), into("c"), Mutant::NONE, true)
        .unwrap();
    assert_eq!((right.differs_below, right.compared_below), (None, last.plus(1)));
}

/// Waits until a backup has so many snapshots, writing meanwhile, and returns them.
async fn snapshots(engine: &Engine<Notes>, store: &Path, least: usize) -> Vec<SnapshotInfo> {
    let began = Instant::now();
    for number in 0.. {
        put(engine, format!("n{}={number}", number % 50)).await;
        if let Ok(backup) = open(store, "old").await
            && backup.snapshots.len() >= least
        {
            return backup.snapshots;
        }
        assert!(began.elapsed() < WITHIN, "no {least} snapshots");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!()
}

/// A damaged snapshot is passed over: an earlier one and more entries give the same state.
#[tokio::test]
async fn a_damaged_snapshot_is_passed_over_and_the_state_is_the_same() {
    let root = tempfile::tempdir().unwrap();
    let (data, store) = (root.path().join("old"), root.path().join("store"));
    let (node, engine) = node(&data, "old").await;
    start(&node, &store).await;
    snapshots(&engine, &store, 2).await;
    let last = put(&engine, "last=one".to_owned()).await;
    shipped(&node, last.plus(1)).await;
    node.shutdown().await;
    let moment = Moment::Position(last.plus(1));
    let into = |name: &str| config(&root.path().join(name), "new");
    let whole = restore(&store, moment, into("whole")).unwrap();
    assert_eq!(whole.passed_over, []);
    let all = open(&store, "old").await.unwrap().snapshots;
    let is_before = |s: &&SnapshotInfo| s.head.below <= last.plus(1);
    let usable: Vec<&SnapshotInfo> = all.iter().filter(is_before).collect();
    let damage = |snapshot: &SnapshotInfo| {
        let folder = store.join(format!("backup/old/db/snapshots/{:016x}", snapshot.number));
        let piece = folder.join(format!("{:x}-{:08x}", snapshot.head.attempt, 0));
        let mut bytes = std::fs::read(&piece).unwrap();
        let at = bytes.len() - 1;
        bytes[at] ^= 16;
        std::fs::write(&piece, bytes).unwrap();
    };
    let [rest @ .., second, newest] = &usable[..] else { panic!("{usable:?}") };
    assert_eq!(whole.snapshot.number, newest.number);
    damage(newest);
    let restored = restore(&store, moment, into("first")).unwrap();
    assert_eq!(restored.snapshot.number, second.number);
    assert_eq!(
        (restored.hash, restored.below, restored.compared_below),
        (whole.hash, whole.below, whole.below)
    );
    let [(number, why)] = &restored.passed_over[..] else { panic!("{:?}", restored.passed_over) };
    assert!(*number == newest.number && why.contains("damaged"), "{why}");
    // No snapshot is whole any more.
    damage(second);
    rest.iter().for_each(|snapshot| damage(snapshot));
    let refused = restore(&store, moment, into("none"));
    let why = refused.unwrap_err().to_string();
    assert!(why.contains("damaged") && why.contains("cannot be restored either"), "{why}");
    assert!(!root.path().join("none").exists());
}
