//! Measures the cost of the host: `cargo test --release -p atoll-node --test node host::speed -- --ignored --nocapture`.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use atoll_core::{NodeId, StorageId};
use atoll_storage::{JournalOptions, MemDisk, RealDisk, Syncs};
use bytes::Bytes;

use super::echo::Put;
use super::{Node, connected, on, start, start_with};

/// Returns the CPU time of all threads of this process in milliseconds.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<u64> =
        stat.rsplit(')').next().unwrap_or("").split(' ').filter_map(|f| f.parse().ok()).collect();
    fields.get(10..12).map_or(0, |f| (f[0] + f[1]) * 10)
}

async fn load(from: &Node, start: u64, count: u64, depth: usize) -> Vec<u64> {
    on(from, move |env| async move {
        let (mut calls, mut taken) = (std::collections::VecDeque::new(), Vec::new());
        for n in start..start + count {
            if calls.len() == depth {
                let (began, call): (Instant, atoll_core::Call<Put>) = calls.pop_front().unwrap();
                call.await.unwrap();
                taken.push(began.elapsed().as_micros() as u64);
            }
            calls.push_back((
                Instant::now(),
                env.call(NodeId(2), Put { n, blob: Bytes::from(vec![7; 1024]) }),
            ));
        }
        for (began, call) in calls {
            call.await.unwrap();
            taken.push(began.elapsed().as_micros() as u64);
        }
        taken.sort_unstable();
        taken
    })
    .await
}

#[tokio::test]
#[ignore = "prints figures, asserts nothing"]
async fn speed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().to_owned();
    let (tell, hear) = mpsc::channel();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    // The node that stores records has its own thread and runtime, like a separate process.
    let keeper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let disk = Arc::new(RealDisk::open(&path, Syncs::Real).unwrap());
            let node = start_with(2, 22, disk, JournalOptions::new(StorageId(2))).await;
            tell.send((node.handle.clone(), node.at.clone())).unwrap();
            let _ = stopped.await;
            node.host.shutdown().await;
        });
    });
    let (handle, at) = hear.recv().unwrap();
    let a = start(1, 11, Arc::new(MemDisk::new())).await;
    let book: std::collections::BTreeMap<_, _> = [(NodeId(1), a.at.clone()), (NodeId(2), at)].into();
    a.handle.net().set_peers(book.clone());
    handle.net().set_peers(book);
    connected(&a, 2).await;
    let mut number = 0;
    for (depth, count) in [(1, 3_000), (64, 60_000), (256, 100_000), (1, 3_000), (64, 60_000), (256, 100_000)]
    {
        let (wall, cpu, before) = (Instant::now(), cpu_ms(), handle.stats());
        let taken = load(&a, number, count, depth).await;
        number += count;
        let (wall, cpu, after) = (wall.elapsed(), cpu_ms() - cpu, handle.stats());
        let syncs = after.syncs - before.syncs;
        println!(
            "depth {depth}: {:.0} ops/s, p50 {} us, p99 {} us, {:.1} us CPU per op (both nodes), {:.1} records per sync, \
             {:.0} syncs/s, {:.1} us per sync",
            count as f64 / wall.as_secs_f64(),
            taken[taken.len() / 2],
            taken[taken.len() * 99 / 100],
            cpu as f64 * 1000.0 / count as f64,
            count as f64 / syncs as f64,
            syncs as f64 / wall.as_secs_f64(),
            (after.sync_us.sum - before.sync_us.sum) as f64 / syncs as f64,
        );
    }
    let _ = stop.send(());
    let join = tokio::task::spawn_blocking(move || keeper.join());
    join.await.unwrap().unwrap();
    a.host.shutdown().await;
}
