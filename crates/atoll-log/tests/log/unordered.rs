//! Logs whose Loglets do not keep the order of appends in flight, and pads.

use atoll_contract::{ClientId, LogPos, OpId, ReadFrom};
use atoll_log::LogRecord;
use bytes::Bytes;

use crate::common::Cluster;

fn record(client: u64, seq: u64) -> LogRecord {
    LogRecord { op: OpId { client: ClientId(client), seq }, floor: None, payload: Bytes::from_static(b"x") }
}

#[test]
fn ordered_records_of_a_client_go_one_by_one_and_others_together() {
    for ordered in [true, false] {
        let mut c = Cluster::new(3, 3);
        let log = c.created("shuffled");
        let started = c.driver.now();
        let all: Vec<LogRecord> = (1..=24).map(|seq| record(7, seq)).collect();
        // Each is a submission of its own, as those of a pipelining client are.
        let tickets: Vec<_> = (all.into_iter())
            .map(|r| if ordered { log.submit(vec![r]) } else { log.submit_unordered(vec![r]) }.unwrap())
            .collect();
        let positions = c.run(1, async move {
            let mut positions = Vec::new();
            for ticket in tickets {
                positions.extend(ticket.await.unwrap().unwrap());
            }
            positions
        });
        let took = c.driver.now().0 - started.0;
        assert_eq!(positions.len(), 24);
        assert!(!ordered || positions.is_sorted(), "X15: in the order of the client: {positions:?}");
        let one = started_and_done(&mut c, 1).max(1);
        let at_once = took < 12 * one;
        assert_eq!(at_once, !ordered, "24 appends took {took} ns, one takes {one} ns");
    }
}

/// Returns how long one append takes, in nanoseconds.
fn started_and_done(c: &mut Cluster, seq: u64) -> u64 {
    let log = c.log(1, "log");
    let started = c.driver.now();
    let ticket = log.submit(vec![record(99, seq)]).unwrap();
    c.run(1, async move { ticket.await.unwrap().unwrap() });
    c.driver.now().0 - started.0
}

#[test]
fn records_named_like_pads_are_records() {
    let mut c = Cluster::new(3, 3);
    let log = c.created("memory");
    let ticket = log.submit(vec![record(0, 0), record(5, 1)]).unwrap();
    c.run(1, async move { ticket.await.unwrap().unwrap() });
    let read = log.read(LogPos(0)..LogPos(2), 1_000, ReadFrom::Anywhere);
    let read = c.run(1, async move { read.await.unwrap().unwrap() });
    assert_eq!(read.records().map(|(at, _)| at).collect::<Vec<_>>(), [LogPos(0), LogPos(1)]);
}
