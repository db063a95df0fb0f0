//! A rescue makes the data directory of a new cluster from that of a node that stood alone.

use std::path::{Path, PathBuf};

use atoll_contract::{ClientId, LogPos, OpId, ReadFrom};
use atoll_log::virtual_log::LogRecord;
use atoll_node::rescue::{Fate, Rescue, RescueError};
use atoll_node::{NodeConfig, StartError};
use atoll_storage::{IdentityError, RealDisk, RescueNote, Syncs};

use crate::own_log::embedded::append_and_read;

const LOG: &str = "main";

fn config(data: &Path, cluster: &str) -> NodeConfig {
    NodeConfig { cluster: cluster.to_owned(), ..NodeConfig::alone(data) }
}

/// Appends a record to the log of a new cluster, and returns all records by position.
async fn append(data: &Path, cluster: &str, text: &'static str) -> Vec<(u64, String)> {
    let node = atoll_node::start(config(data, cluster)).unwrap();
    node.joined().await.unwrap();
    let log = node.logs().open(LOG).unwrap();
    let op = OpId { client: ClientId(77), seq: 1 };
    let record = LogRecord { op, floor: None, payload: text.into() };
    log.submit(vec![record]).unwrap().await.unwrap().unwrap();
    let tail = log.check_tail().await.unwrap().unwrap();
    let mut at = LogPos::ZERO;
    let mut all = Vec::new();
    while at < tail {
        let read = log.read(at..tail, 1 << 20, ReadFrom::Anywhere).await.unwrap().unwrap();
        all.extend(read.records().map(|(at, e)| (at.0, String::from_utf8_lossy(&e.payload).into_owned())));
        at = read.next();
    }
    node.shutdown().await;
    all
}

async fn rescue(from: &Path, into: &Path, cluster: &str) -> Result<Rescue, RescueError> {
    Rescue::prepare(config(into, cluster), &[from.to_owned()], false).await
}

fn place(root: &Path, name: &str) -> PathBuf {
    root.join(name)
}

#[tokio::test]
async fn a_rescued_log_goes_on_in_a_cluster_of_another_name() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (place(root.path(), "old"), place(root.path(), "new"));
    for text in ["hello", "again"] {
        append_and_read(old.to_str().unwrap(), text).await.unwrap();
    }
    assert!(matches!(rescue(&old, &new, "atoll").await, Err(RescueError::SameCluster(_))));
    let planned = rescue(&old, &new, "rescued").await.unwrap();
    let logs: Vec<_> =
        planned.plan().logs.iter().map(|l| (l.name.as_str(), l.fate, l.trim.0, l.end.0)).collect();
    assert_eq!(logs, [(LOG, Fate::Kept, 0, 2)]);
    planned.discard().await.unwrap();
    assert!(!new.exists(), "nothing was confirmed");

    let confirmed = rescue(&old, &new, "rescued").await.unwrap();
    confirmed.rebuild(Vec::new(), "ann", "a test").await.unwrap();
    let names: Vec<_> = std::fs::read_dir(root.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    let all = append(&new, "rescued", "afterwards").await;
    assert_eq!(
        all.iter().map(|(at, text)| (*at, text.as_str())).collect::<Vec<_>>(),
        [(0, "hello"), (1, "again"), (2, "afterwards")]
    );
    let note = RescueNote::read(&RealDisk::open(&new, Syncs::OffForTests).unwrap()).unwrap().unwrap();
    assert_eq!(
        (note.from.as_str(), note.operator.as_str(), note.reason.as_str()),
        ("atoll", "ann", "a test")
    );
    assert!(matches!(rescue(&old, &new, "rescued").await, Err(RescueError::NotEmpty(_))));
}

#[tokio::test]
async fn neither_cluster_takes_the_directory_of_the_other() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (place(root.path(), "old"), place(root.path(), "new"));
    append_and_read(old.to_str().unwrap(), "hello").await.unwrap();
    rescue(&old, &new, "rescued").await.unwrap().rebuild(Vec::new(), "ann", "a test").await.unwrap();
    for (data, cluster) in [(&old, "rescued"), (&new, "atoll")] {
        let refused = atoll_node::start(config(data, cluster)).map(|_| ());
        assert!(matches!(refused, Err(StartError::Marker(IdentityError::Foreign { .. }))), "{cluster}");
    }
}

#[tokio::test]
async fn a_node_that_runs_keeps_its_directory() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (place(root.path(), "old"), place(root.path(), "new"));
    let node = atoll_node::start(config(&old, "atoll")).unwrap();
    assert!(matches!(rescue(&old, &new, "rescued").await, Err(RescueError::Disk(_))));
    node.shutdown().await;
    assert!(matches!(rescue(&old, &new, "rescued").await, Err(RescueError::NoLogs)), "it had none");
    assert!(!new.exists());
}

#[tokio::test]
async fn a_chain_that_was_elsewhere_is_kept_as_it_was_when_it_left() {
    let root = tempfile::tempdir().unwrap();
    let (old, new) = (place(root.path(), "old"), place(root.path(), "new"));
    append_and_read(old.to_str().unwrap(), "hello").await.unwrap();
    let places = || [("m".to_owned(), "memory:///chains".to_owned())].into();
    let node = atoll_node::start(NodeConfig { places: places(), ..config(&old, "atoll") }).unwrap();
    node.joined().await.unwrap();
    let (elsewhere, env) = (node.parts().places.clone(), node.parts().env.clone());
    env.launch("move", async move { elsewhere.move_chain(LOG, "m").await }).await.unwrap().unwrap();
    node.shutdown().await;
    // A store in memory is lost with its node. It was not asked at first, and then it had lost the chain.
    for (places, why) in
        [(Default::default(), "no [[registers]] with this name"), (places(), "they have lost it")]
    {
        let config = NodeConfig { places, ..config(&new, "rescued") };
        let planned = Rescue::prepare(config, std::slice::from_ref(&old), false).await.unwrap();
        let log = &planned.plan().logs[0];
        assert_eq!((log.name.as_str(), log.end.0), (LOG, 1));
        assert!(
            log.notes.iter().any(|note| note.contains("registers \"m\"") && note.contains(why)),
            "{log:?}"
        );
        planned.discard().await.unwrap();
    }
    rescue(&old, &new, "rescued").await.unwrap().rebuild(Vec::new(), "ann", "a test").await.unwrap();
    assert_eq!(append(&new, "rescued", "afterwards").await.len(), 2);
}
