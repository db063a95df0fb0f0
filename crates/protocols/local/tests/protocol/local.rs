//! The LocalLoglet across restarts, on full disks, and from other nodes.

use std::time::Duration;

use crate::cluster::{self, Cluster, batch};
use atoll_contract::*;
use atoll_core::*;
use atoll_local::LocalConfig;
use bytes::Bytes;
use std::sync::Arc;

const SOON: Duration = Duration::from_secs(10);

fn config(c: &Cluster, node: u32) -> Bytes {
    LocalConfig { node: NodeId(node), storage: c.nodes[&NodeId(node)].storage }.to_bytes()
}

fn open(c: &Cluster, at: u32, id: u128, config: &Bytes) -> Arc<dyn Loglet> {
    cluster::provider(c, at).open(LogletId(id), config).unwrap()
}

fn append(c: &mut Cluster, log: &Arc<dyn Loglet>, seq: u64, what: &[&str]) -> Result<Placement, AppendError> {
    let ticket = log.append(batch(1, seq, what));
    c.wait(ticket, SOON).unwrap()
}

fn tail(c: &mut Cluster, at: u32, log: &Arc<dyn Loglet>) -> Result<(u64, bool), LogletError> {
    let log = log.clone();
    c.on(at, async move { log.check_tail().await }).map(|t| (t.at.0, t.sealed.is_some()))
}

fn read(
    c: &mut Cluster,
    at: u32,
    log: &Arc<dyn Loglet>,
    from: u64,
    to: u64,
) -> Result<Vec<String>, ReadError> {
    let log = log.clone();
    c.on(at, async move {
        let got = log.read(Offset(from)..Offset(to), 1 << 20, ReadFrom::Anywhere).await?;
        Ok(got.entries.iter().map(|e| String::from_utf8(e.payload.to_vec()).unwrap()).collect())
    })
}

/// An acked entry is durable, and a retry after the restart that caused it gets the original offset.
#[test]
fn a_restart_keeps_entries_places_and_the_seal() {
    for checkpoint in [false, true] {
        let mut c = cluster::new(2, 5);
        let config = config(&c, 1);
        let log = open(&c, 2, 7, &config);
        assert_eq!(append(&mut c, &log, 1, &["a", "b"]), Ok(Placement::contiguous(Offset(0), 2)));
        if checkpoint {
            c.checkpoint(NodeId(1));
        }
        c.kill(NodeId(1));
        assert_eq!(
            append(&mut c, &log, 3, &["c"]),
            Err(AppendError::NotAppended(Unavailability::NoSequencer))
        );
        c.restart(NodeId(1));
        let log = open(&c, 2, 7, &config);
        assert_eq!(append(&mut c, &log, 2, &["b", "c"]).unwrap().runs, [(Offset(1), 1), (Offset(2), 1)]);
        assert_eq!(tail(&mut c, 2, &log), Ok((3, false)));
        let sealer = log.clone();
        c.on(2, async move { sealer.seal().await.unwrap() });
        c.kill(NodeId(1));
        c.restart(NodeId(1));
        assert_eq!(tail(&mut c, 2, &log), Ok((3, true)));
        assert_eq!(append(&mut c, &log, 4, &["d"]), Err(AppendError::Sealed));
        assert_eq!(read(&mut c, 2, &log, 0, 3).unwrap(), ["a", "b", "c"]);
    }
}

/// Entries that were not synced were not acked and do not exist after a restart. The order of the handle also holds for appends with an
/// unknown outcome.
#[test]
fn nothing_is_acked_before_the_sync() {
    let mut c = cluster::new(1, 5);
    c.sync = Duration::from_millis(50);
    let config = config(&c, 1);
    let log = open(&c, 1, 7, &config);
    let mut tickets: Vec<_> = (0..4).map(|i| log.append(batch(1, 1 + i, &["x"]))).collect();
    c.run_for(Duration::from_millis(20));
    assert!(tickets.iter_mut().all(|t| t.try_take().is_none()));
    assert_eq!(tail(&mut c, 1, &log).unwrap().0, 0, "only what is durable is below the tail (native-T9)");
    c.kill(NodeId(1));
    c.restart(NodeId(1));
    let log = open(&c, 1, 7, &config);
    assert_eq!(tail(&mut c, 1, &log), Ok((0, false)));
}

#[test]
fn full_closed_wiped_trimmed_deleted() {
    let mut c = cluster::new(2, 5);
    let config = config(&c, 1);
    let log = open(&c, 1, 7, &config);
    assert!(append(&mut c, &log, 1, &["a"]).is_ok());
    assert!(append(&mut c, &log, 2, &["b"]).is_ok());
    c.set_space(NodeId(1), Space::FactsOnly);
    assert_eq!(append(&mut c, &log, 3, &["c"]), Err(AppendError::NotAppended(Unavailability::DiskFull)));
    let trimmer = log.clone();
    c.on(1, async move { trimmer.prefix_trim(Offset(1)).await.unwrap() });
    c.set_space(NodeId(1), Space::Plenty);
    assert_eq!(append(&mut c, &log, 3, &["c"]), Ok(Placement::contiguous(Offset(2), 1)));
    assert_eq!(read(&mut c, 1, &log, 0, 3), Err(ReadError::Trimmed(Offset(1))));
    c.kill(NodeId(1));
    c.restart(NodeId(1));
    let fresh = open(&c, 2, 7, &config);
    assert_eq!(read(&mut c, 2, &fresh, 1, 3).unwrap(), ["b", "c"]);
    let provider = cluster::provider(&c, 2);
    let bytes = config.clone();
    c.on(2, async move { provider.delete(LogletId(7), &bytes).await.unwrap() });
    let stale = open(&c, 2, 7, &config);
    assert_eq!(append(&mut c, &stale, 4, &["d"]), Err(AppendError::Sealed));
    assert_eq!(tail(&mut c, 2, &stale), Err(LogletError::Gone));
    // Another loglet, on a data directory that no longer exists.
    let log = open(&c, 2, 8, &config);
    assert!(append(&mut c, &log, 1, &["a"]).is_ok());
    c.kill(NodeId(1));
    c.wipe(NodeId(1));
    assert_eq!(tail(&mut c, 2, &log), Err(LogletError::Unavailable(Unavailability::StorageFailed)));
}

/// A sealed copy of another Loglet, of any kind, made through its handle.
#[test]
fn a_copy_holds_what_its_source_does() {
    let mut c = cluster::new(3, 5);
    let elsewhere = config(&c, 1);
    let source = open(&c, 1, 9, &elsewhere);
    for i in 0..20 {
        let ticket = source.append(batch(1, 1 + i, &[&i.to_string()]));
        assert!(c.wait(ticket, SOON).unwrap().is_ok());
    }
    let config = config(&c, 2);
    let (provider, bytes) = (cluster::provider(&c, 3), config.clone());
    c.on(3, async move { provider.build_sealed(LogletId(7), &bytes, &*source, Offset(5)..Offset(20)).await })
        .unwrap();
    let copy = open(&c, 1, 7, &config);
    assert_eq!(tail(&mut c, 1, &copy), Ok((15, true)));
    let expected: Vec<String> = (5..20).map(|i| i.to_string()).collect();
    assert_eq!(read(&mut c, 1, &copy, 0, 15).unwrap(), expected);
}

#[test]
fn plans() {
    let mut c = cluster::new(3, 5);
    let plan = |c: &mut Cluster, spec: LogletSpec| {
        let provider = cluster::provider(c, 2);
        c.on(2, async move {
            let config = provider.plan(&spec, None).await?;
            Ok::<_, PlanError>(provider.duties(&config).0[0].node)
        })
    };
    assert_eq!(plan(&mut c, LogletSpec::default()), Ok(NodeId(2)));
    let there = LogletSpec::default().place("server", [NodeId(3)]);
    assert_eq!(plan(&mut c, there.clone()), Ok(NodeId(3)));
    let two = LogletSpec::default().place("server", [NodeId(1), NodeId(3)]);
    assert!(matches!(plan(&mut c, two), Err(PlanError::Invalid { .. })));
    c.kill(NodeId(3));
    assert_eq!(plan(&mut c, there), Err(PlanError::NodeDown(NodeId(3))));
}
