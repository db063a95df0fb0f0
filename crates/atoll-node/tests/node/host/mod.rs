//! Tests of the host with real sockets, threads and disks: two nodes in one process, each with a server role that stores what it receives.

mod echo;
mod gate;
mod speed;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use atoll_core::{CallError, Class, Env, Incarnation, Link, NodeCore, NodeId, Space, StorageId};
use atoll_net::{Net, NetOptions, RefusalCode};
use atoll_node::host::{Ended, HostHandle, HostOptions, NodeHost};
use atoll_storage::{
    CellOptions, CellStore, Disk, Fault, Journal, JournalOptions, MemDisk, RealDisk, Recovered, Syncs,
};
use bytes::Bytes;

use echo::{ECHO, Echo, Fetch, Forget, Panic, Probe, Put, Reread, Rest};
use gate::GatedDisk;

/// Long enough even on a busy machine. A test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

async fn in_time<F: Future>(f: F) -> F::Output {
    tokio::time::timeout(PATIENCE, f).await.expect("in time")
}

struct Node {
    host: NodeHost,
    handle: HostHandle,
    at: String,
}

fn journal_options(id: u32) -> JournalOptions {
    JournalOptions::small(StorageId(id.into()))
}

async fn start_with(id: u32, life: u64, disk: Arc<dyn Disk>, options: JournalOptions) -> Node {
    // The node thread never waits for the disk.
    start_on(id, life, disk, options, Duration::ZERO).await
}

async fn start_on(
    id: u32,
    life: u64,
    disk: Arc<dyn Disk>,
    options: JournalOptions,
    quick_disk: Duration,
) -> Node {
    let (node, incarnation) = (NodeId(id), Incarnation(life));
    let mut core = NodeCore::new(node, incarnation, life);
    core.add_role(ECHO, Box::new(Echo::default()));
    let (journal, last) = Journal::recover(disk.clone(), options, &mut |found| match found {
        Recovered::Checkpoint(checkpoint) => core.recover_checkpoint(checkpoint),
        Recovered::Record(stored) => core.recover_record(stored),
    })
    .unwrap();
    let options = CellOptions::small(StorageId(id.into()));
    let cells = CellStore::recover(disk, options, &mut |cell| core.recover_cell(cell)).unwrap();
    core.recover_cells_done(cells.last());
    core.recover_done(last);
    let net_options = NetOptions::new(node, incarnation, StorageId(id.into()), "reef", "127.0.0.1:0");
    let (net, events) = Net::start(net_options).await.unwrap();
    let at = net.local_addr().to_string();
    let host = {
        let hasty = HostOptions {
            checkpoint_spread: Duration::ZERO,
            remove_pause: Duration::ZERO,
            quick_disk,
            ..HostOptions::default()
        };
        NodeHost::start(core, journal, cells, net, events, hasty).unwrap()
    };
    Node { handle: host.handle(), host, at }
}

async fn start(id: u32, life: u64, disk: Arc<dyn Disk>) -> Node {
    start_with(id, life, disk, journal_options(id)).await
}

fn meet(nodes: &[&Node]) {
    let book: BTreeMap<NodeId, String> =
        nodes.iter().map(|n| (n.handle.env().node(), n.at.clone())).collect();
    nodes.iter().for_each(|n| n.handle.net().set_peers(book.clone()));
}

/// Runs a procedure on a node's own executor.
async fn on<T: Send + 'static, F>(node: &Node, f: impl FnOnce(Env) -> F) -> T
where
    F: Future<Output = T> + Send + 'static,
{
    let env = node.handle.env();
    in_time(env.launch("test", f(env.clone()))).await.unwrap()
}

async fn connected(from: &Node, to: u32) {
    on(from, |env| async move {
        while env.link(NodeId(to), Class::Data) != Link::Up
            || env.link(NodeId(to), Class::Control) != Link::Up
        {
            env.sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

async fn pair(disk: Arc<dyn Disk>) -> (Node, Node) {
    let (a, b) = (start(1, 11, Arc::new(MemDisk::new())).await, start(2, 22, disk).await);
    meet(&[&a, &b]);
    connected(&a, 2).await;
    (a, b)
}

fn put(n: u64) -> Put {
    Put { n, blob: Bytes::from(format!("record {n} ").repeat(20)) }
}

async fn put_many(from: &Node, numbers: std::ops::Range<u64>) {
    on(from, |env| async move {
        let calls: Vec<_> = numbers.clone().map(|n| env.call(NodeId(2), put(n))).collect();
        for (n, call) in numbers.zip(calls) {
            assert_eq!(call.await.unwrap().n, n);
        }
    })
    .await;
}

async fn check_many(from: &Node, numbers: std::ops::Range<u64>) {
    on(from, |env| async move {
        for n in numbers {
            let got = env.call(NodeId(2), Fetch { n }).await.unwrap();
            assert_eq!(got.blob, put(n).blob, "record {n}");
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let disk = || Arc::new(RealDisk::open(folder.path(), Syncs::Real).unwrap());
    let (a, b) = pair(disk()).await;
    put_many(&a, 0..2_000).await;
    check_many(&a, 0..50).await;
    let stats = b.handle.stats();
    assert_eq!(stats.records, 2_000);
    assert!(stats.syncs > 0 && stats.syncs < 2_000, "one sync for many records: {} syncs", stats.syncs);
    assert_eq!((stats.sync_us.count, stats.batch_records.sum), (stats.syncs, 2_000));
    assert_eq!(stats.fetches, 50);
    b.host.shutdown().await;

    // The lock of the directory is released, and all records are there.
    let b = start(2, 23, disk()).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    check_many(&a, 0..2_000).await;
    let kept =
        b.handle.with_core(|core| core.measures().iter().find(|m| m.name == "echo_records").unwrap().value);
    assert_eq!(kept.await, Ok(2_000.0));
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn no_answer_before_the_sync_and_no_waiting_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let disk = GatedDisk::new(RealDisk::open(folder.path(), Syncs::Real).unwrap());
    let gate = disk.gate();
    let (a, b) = pair(Arc::new(disk)).await;
    gate.close();
    let gate_in_test = gate.clone();
    on(&a, |env| async move {
        let mut first = env.call(NodeId(2), put(1));
        // Wait until the sync begins: the record is written but not acknowledged.
        while gate_in_test.waiting() == 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
        // A later call on the same connection whose reply depends on no record overtakes it, repeatedly.
        for _ in 0..20 {
            let seen = env.call(NodeId(2), Probe {}).await.unwrap();
            assert_eq!(seen.staged, 1, "the role has it, the disk does not");
            assert!(poll_once(&mut first).await.is_none(), "acknowledged before it was synced");
        }
        gate_in_test.open();
        assert_eq!(first.await.unwrap().n, 1);
    })
    .await;
    a.host.shutdown().await;
    b.host.shutdown().await;
}

/// Starts two nodes. The second one considers every disk quick.
async fn pair_on_a_quick_disk(disk: Arc<dyn Disk>) -> (Node, Node) {
    let a = start(1, 11, Arc::new(MemDisk::new())).await;
    let b = start_on(2, 22, disk, journal_options(2), PATIENCE).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    (a, b)
}

#[tokio::test]
async fn what_comes_alone_is_written_by_the_nodes_thread_and_marked_later() {
    let disk = MemDisk::new();
    let (a, b) = pair_on_a_quick_disk(Arc::new(disk.clone())).await;
    for n in 0..200 {
        put_many(&a, n..n + 1).await;
    }
    // A batch is counted after it has been answered, so the last one may be missing for a moment.
    in_time(async {
        while b.handle.stats().batch_records.sum < 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let stats = b.handle.stats();
    assert!(stats.syncs_here > 0, "none of {} batches was written by the node's thread", stats.syncs);
    assert_eq!((stats.records, stats.batch_records.sum), (200, 200));
    // The journal thread, which slept meanwhile, marks what was written. That takes one more sync.
    in_time(async {
        while b.handle.journal_stats().syncs <= stats.syncs {
            tokio::task::yield_now().await;
        }
    })
    .await;
    b.host.shutdown().await;
    let b = start(2, 23, Arc::new(disk)).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    check_many(&a, 0..200).await;
    b.host.shutdown().await;
    a.host.shutdown().await;
}

/// Starts two nodes. The second one's journal has blocks that its disk can write while no thread waits.
async fn pair_with_direct_writes(disk: Arc<dyn Disk>) -> (Node, Node) {
    let a = start(1, 11, Arc::new(MemDisk::new())).await;
    let segment_bytes = 4 * 1024 * 1024;
    let options = JournalOptions {
        block_bytes: 4096,
        segment_bytes,
        first_segment_bytes: segment_bytes,
        ..journal_options(2)
    };
    let b = start_with(2, 22, disk, options).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    (a, b)
}

#[tokio::test]
async fn a_lone_batch_is_answered_when_its_write_ends_and_nobody_waits_for_it() {
    let disk = MemDisk::new();
    let (a, b) = pair_with_direct_writes(Arc::new(disk.clone())).await;
    disk.hold_direct_writes(true);
    let held = disk.clone();
    on(&a, |env| async move {
        let mut first = env.call(NodeId(2), put(0));
        // Other calls are answered meanwhile.
        for n in 0..40 {
            let seen = env.call(NodeId(2), Probe {}).await.unwrap();
            assert!(seen.staged <= 1, "{n}");
            assert!(poll_once(&mut first).await.is_none(), "acknowledged before it was synced");
        }
        held.hold_direct_writes(false);
        assert_eq!(first.await.unwrap().n, 0);
    })
    .await;
    for n in 1..200 {
        put_many(&a, n..n + 1).await;
    }
    in_time(async {
        while b.handle.stats().batch_records.sum < 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let stats = b.handle.stats();
    assert!(
        stats.flights > 100,
        "{} of {} batches were waited for",
        stats.syncs - stats.flights,
        stats.syncs
    );
    assert_eq!((stats.records, stats.batch_records.sum), (200, 200));
    check_many(&a, 0..200).await;
    b.host.shutdown().await;
    disk.crash(&mut || false);
    let b = start(2, 23, Arc::new(disk)).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    check_many(&a, 0..200).await;
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn a_clean_stop_answers_what_is_under_way() {
    let disk = MemDisk::new();
    let (a, b) = pair_with_direct_writes(Arc::new(disk.clone())).await;
    disk.hold_direct_writes(true);
    let env = a.handle.env();
    let waiting = env.launch("put", {
        let env = env.clone();
        async move { env.call(NodeId(2), put(0)).await.map(|r| r.n) }
    });
    on(&a, |env| async move {
        while env.call(NodeId(2), Probe {}).await.unwrap().staged == 0 {
            env.sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let stop = tokio::spawn(b.host.shutdown());
    disk.hold_direct_writes(false);
    assert_eq!(in_time(waiting).await.unwrap(), Ok(0));
    in_time(stop).await.unwrap();
    a.host.shutdown().await;
}

#[tokio::test]
async fn a_write_that_nobody_waits_for_closes_the_journal_alike() {
    let disk = MemDisk::new();
    let (a, b) = pair_with_direct_writes(Arc::new(disk.clone())).await;
    fails_at_a_sync(a, b, disk).await;
}

async fn poll_once<F: Future + Unpin>(f: &mut F) -> Option<F::Output> {
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *f).poll(cx) {
            std::task::Poll::Ready(out) => Some(out),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[tokio::test]
async fn a_clean_stop_answers_what_was_staged() {
    let folder = tempfile::tempdir().unwrap();
    let disk = GatedDisk::new(RealDisk::open(folder.path(), Syncs::Real).unwrap());
    let gate = disk.gate();
    let (a, b) = pair(Arc::new(disk)).await;
    gate.close();
    let env = a.handle.env();
    let waiting = env.launch("puts", {
        let env = env.clone();
        async move {
            let first = env.call(NodeId(2), put(1));
            let second = env.call(NodeId(2), put(2));
            (first.await.map(|r| r.n), second.await.map(|r| r.n))
        }
    });
    in_time(async {
        while gate.waiting() == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let stop = tokio::spawn(b.host.shutdown());
    gate.open();
    assert_eq!(in_time(waiting).await.unwrap(), (Ok(1), Ok(2)));
    in_time(stop).await.unwrap();
    // The node is gone, so calls fail at once with the reason.
    let end = on(&a, |env| async move { env.call(NodeId(2), Probe {}).await.map(|r| r.staged) }).await;
    assert!(matches!(end, Err(CallError::NotSent(_) | CallError::Lost(_))), "{end:?}");
    a.host.shutdown().await;
}

#[tokio::test]
async fn a_failed_sync_closes_the_journal_and_the_node_goes_on() {
    let disk = MemDisk::new();
    let (a, b) = pair(Arc::new(disk.clone())).await;
    fails_at_a_sync(a, b, disk).await;
}

#[tokio::test]
async fn a_sync_that_fails_in_the_nodes_thread_closes_the_journal_alike() {
    let disk = MemDisk::new();
    let (a, b) = pair_on_a_quick_disk(Arc::new(disk.clone())).await;
    fails_at_a_sync(a, b, disk).await;
}

async fn fails_at_a_sync(a: Node, b: Node, disk: MemDisk) {
    put_many(&a, 0..10).await;
    disk.fail_next(Fault::Sync, 1);
    let seen = on(&a, |env| async move {
        let mut lost = env.call(NodeId(2), put(10));
        loop {
            let seen = env.call(NodeId(2), Probe {}).await.unwrap();
            if seen.closed {
                assert!(poll_once(&mut lost).await.is_none(), "acknowledged though its sync failed");
                return seen;
            }
            env.sleep(Duration::from_millis(1)).await;
        }
    });
    seen.await;
    // The node still reads records, and reports why the journal is closed.
    check_many(&a, 0..10).await;
    assert!(b.handle.journal_failure().is_some_and(|why| why.contains("closed until the node restarts")));
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn a_full_disk_refuses_entries_until_space_comes_back() {
    let disk = MemDisk::new();
    let (a, b) = pair(Arc::new(disk.clone())).await;
    put_many(&a, 0..10).await;
    disk.set_capacity(Some(disk.used_bytes() + 100_000));
    let (acknowledged, waiting) = on(&a, |env| async move {
        let mut n = 10;
        loop {
            let mut call = env.call(NodeId(2), put(n));
            // Calls are refused once the disk is known to be full. The call that finds it full waits.
            let outcome = loop {
                if let Some(outcome) = poll_once(&mut call).await {
                    break outcome;
                }
                let seen = env.call(NodeId(2), Probe {}).await.unwrap();
                if seen.full && seen.staged > 0 {
                    return (n, Some(call));
                }
            };
            match outcome {
                Ok(_) => n += 1,
                Err(CallError::Refused { reason, .. }) => {
                    assert!(reason.contains("full"), "{reason}");
                    return (n, None);
                }
                Err(e) => panic!("{e}"),
            }
        }
    })
    .await;
    assert!(acknowledged > 50, "{acknowledged}");
    check_many(&a, 0..acknowledged).await;
    disk.set_capacity(None);
    on(&a, |env| async move {
        if let Some(call) = waiting {
            assert_eq!(call.await.map(|r| r.n), Ok(acknowledged));
        }
        while env.call(NodeId(2), put(acknowledged)).await.is_err() {
            env.sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(b.handle.journal_failure(), None);
    check_many(&a, 0..acknowledged + 1).await;
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn freed_entries_and_covered_facts_give_space_back() {
    let disk = MemDisk::new();
    let (a, b) = pair(Arc::new(disk.clone())).await;
    for round in 0..40u64 {
        let numbers = round * 100..(round + 1) * 100;
        put_many(&a, numbers.clone()).await;
        on(&a, |env| async move {
            env.call(NodeId(2), Forget { below: numbers.end }).await.unwrap();
        })
        .await;
    }
    let written = disk.written_bytes();
    assert!(written > 1_000_000, "{written}");
    let stats = b.handle.stats();
    assert!(stats.checkpoints > 0, "facts of old segments were checkpointed");
    // The journal gives space back beside its other work, so it may not have come to the last segments yet.
    let few = async {
        while disk.used_bytes() >= 700_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let few = tokio::time::timeout(Duration::from_secs(20), few).await;
    assert!(few.is_ok(), "{} bytes for nothing", disk.used_bytes());
    b.host.shutdown().await;
    let b = start(2, 23, Arc::new(disk.clone())).await;
    meet(&[&a, &b]);
    connected(&a, 2).await;
    let forgotten = on(&a, |env| async move { env.call(NodeId(2), Probe {}).await.unwrap().forgotten }).await;
    assert_eq!(forgotten, 4_000);
    b.host.shutdown().await;
    a.host.shutdown().await;
}

/// Regression test: a steady stream of results from the reader threads kept the node thread away from its sockets, so that a node received
/// nothing for seconds during a compaction.
#[tokio::test]
async fn sockets_are_heard_while_readers_answer() {
    let (a, b) = pair(Arc::new(MemDisk::new())).await;
    put_many(&a, 0..1).await;
    let (longest, reads) = on(&a, |env| async move {
        env.call(NodeId(2), Reread { n: 0, at_once: 128 }).await.unwrap();
        let (mut longest, begin) = (Duration::ZERO, env.now());
        while env.now().since(begin) < Duration::from_millis(500) {
            let asked = env.now();
            env.call(NodeId(2), Probe {}).await.unwrap();
            longest = longest.max(env.now().since(asked));
        }
        (longest, env.call(NodeId(2), Rest {}).await.unwrap().reads)
    })
    .await;
    assert!(reads > 1_000, "{reads} reads were answered meanwhile");
    assert!(longest < Duration::from_millis(200), "a question waited for {longest:?} and {reads} reads");
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn no_batch_waits_for_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let disk = GatedDisk::new(RealDisk::open(folder.path(), Syncs::Real).unwrap());
    let asides = disk.asides();
    asides.close();
    let (a, b) = pair(Arc::new(disk)).await;
    let mut done = 0;
    while asides.waiting() == 0 {
        assert!(done < 20_000, "no checkpoint was begun");
        put_many(&a, done..done + 100).await;
        done += 100;
        on(&a, |env| async move {
            env.call(NodeId(2), Forget { below: done }).await.unwrap();
        })
        .await;
    }
    put_many(&a, done..done + 1_000).await;
    assert_eq!((asides.waiting(), b.handle.stats().checkpoints), (1, 0), "it is being written");
    asides.open();
    in_time(async {
        while b.handle.stats().checkpoints == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    check_many(&a, done..done + 1_000).await;
    b.host.shutdown().await;
    a.host.shutdown().await;
}

#[tokio::test]
async fn a_broken_invariant_ends_the_node_for_all_to_see() {
    let (a, b) = pair(Arc::new(MemDisk::new())).await;
    let end = on(&a, |env| async move { env.call(NodeId(2), Panic {}).await.map(|_| ()) }).await;
    assert_eq!(end, Err(CallError::Lost(NodeId(2))));
    assert_eq!(in_time(b.handle.ended()).await, Ended::Panicked);
    assert!(in_time(b.handle.with_core(|_| ())).await.is_err());
    b.host.shutdown().await;
    a.host.shutdown().await;
    assert_eq!(in_time(a.handle.ended()).await, Ended::Stopped);
}

#[tokio::test]
async fn a_second_node_with_the_same_id_hears_of_it() {
    let (a, b) = pair(Arc::new(MemDisk::new())).await;
    let double = start(2, 99, Arc::new(MemDisk::new())).await;
    double.handle.net().set_peers([(NodeId(1), a.at.clone())].into());
    let (by, refusal) = in_time(double.handle.turned_away()).await;
    assert_eq!((by, refusal.code), (NodeId(1), RefusalCode::Duplicate));
    put_many(&a, 0..10).await;
    for node in [a, b, double] {
        node.host.shutdown().await;
    }
}

#[tokio::test]
async fn doors_see_the_core_between_turns() {
    let (a, b) = pair(Arc::new(MemDisk::new())).await;
    put_many(&a, 0..3).await;
    let space = in_time(b.handle.with_core(|core| core.role(ECHO).is_some())).await;
    assert_eq!(space, Ok(true));
    assert!(b.handle.queues().iter().all(|(name, n)| *n == 0 || *name == "send_bytes"));
    assert!(b.handle.stats().turns > 0 && b.handle.stats().events >= 3);
    let _ = Space::Plenty;
    b.host.shutdown().await;
    a.host.shutdown().await;
}
