//! Tests that a step of background work and forgetting a client cost the same at the end as at the beginning, because earlier
//! deletions are not skipped again.
// The tests measure the real cost of a step, so they use the real clock.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::time::{Duration, Instant};

use crate::common::{Db, fish, put, text};
use atoll_tables::{Body, MAX_CLIENTS, Value, pending};

const NULL: Value = Value::Null;
/// The allowed ratio of the last times to the first. A step that skips everything that earlier steps deleted takes hundreds of
/// times as long.
const TIMES: u32 = 20;

/// Returns the median of some times.
fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

fn needs_no_longer(what: &str, times: &[Duration]) {
    let (first, last) = (median(&times[..20]), median(&times[times.len() - 20..]));
    assert!(last < first * TIMES, "{what}: {first:?} at first, {last:?} at last, of {}", times.len());
}

#[test]
fn a_step_of_a_large_deletion_takes_no_longer_at_its_end() {
    let db = Db::new();
    let fish = db.create(fish());
    for n in 0..60 {
        let rows = (0..500).map(|i| put(&fish, "cod", n * 500 + i, text("grey"), NULL, NULL));
        db.transact(rows.collect()).unwrap();
    }
    db.run(Body::DropTable { name: "fish".into() }).unwrap();
    let mut from = bytes::Bytes::new();
    let mut times = Vec::new();
    while let Some(work) = pending(&db.engine.view()).unwrap().first().cloned() {
        let began = Instant::now();
        let step = Body::Step { table: work.table, index: work.index, from, rows: 128 };
        let done = db.run(step).unwrap();
        times.push(began.elapsed());
        from = done.read.and_then(|read| read.into_iter().flatten().next()).unwrap_or_default();
    }
    assert!(times.len() > 400, "{} steps", times.len());
    // The last step is left out, because it may find nothing to delete.
    needs_no_longer("a step", &times[..times.len() - 1]);
}

#[test]
fn the_first_write_of_a_client_takes_no_longer_after_many_were_forgotten() {
    let db = Db::new();
    let fish = db.create(fish());
    let write = |client: u64| {
        let ops = vec![put(&fish, "cod", 1, NULL, NULL, NULL)];
        let began = Instant::now();
        db.named(client, 1, Body::Transaction { ops }).unwrap();
        began.elapsed()
    };
    let clients = u64::from(MAX_CLIENTS);
    for client in 1..=clients {
        write(client);
    }
    let times: Vec<Duration> = (1..=clients).map(|more| write(clients + more)).collect();
    needs_no_longer("a first write", &times);
}
