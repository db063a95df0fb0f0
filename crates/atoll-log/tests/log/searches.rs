//! Searches of the log for records that may already be in it: what they must find, and whom they may hold up (vlog-V2, X15, X16).

use std::sync::Arc;
use std::time::Duration;

use crate::common::Cluster;
use atoll_contract::{ClientId, LogPos, LogletId, LogletSpec, Offset, OpId};
use atoll_core::NodeId;
use atoll_log::virtual_log::VirtualLog;
use atoll_log::{LogAppendError, LogError, LogRecord};
use bytes::Bytes;

/// Longer than an append takes whose records wait for no search.
const SOON: Duration = Duration::from_secs(1);

fn record(client: u64, seq: u64) -> LogRecord {
    let op = OpId { client: ClientId(client), seq };
    LogRecord { op, floor: None, payload: Bytes::from(format!("{client}/{seq}")) }
}

fn retry(client: u64, seq: u64, floor: u64) -> LogRecord {
    LogRecord { floor: Some(LogPos(floor)), ..record(client, seq) }
}

fn append(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, records: Vec<LogRecord>) -> Vec<LogPos> {
    let ticket = log.submit(records).unwrap();
    c.run(node, ticket).unwrap().unwrap()
}

/// Appends records of client 2 until the tail is there.
fn fill(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, tail: u64) {
    let from = log.known_tail().0;
    let all: Vec<LogRecord> = (from..tail).map(|seq| record(2, seq)).collect();
    for part in all.chunks(5_000) {
        append(c, node, log, part.to_vec());
    }
    assert_eq!(log.known_tail(), LogPos(tail));
}

fn extend(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>) {
    let extend = log.extend(LogletSpec::default());
    c.run(node, extend).unwrap().unwrap();
}

fn active(log: &VirtualLog) -> LogletId {
    log.chain().unwrap().chain.active().loglet
}

/// Waits for an answer that must come soon.
fn soon<T: Send + 'static>(c: &mut Cluster, node: u32, wait: impl Future<Output = T> + Send + 'static) -> T {
    let env = c.env(node);
    c.run(node, async move { env.within(SOON, wait).await }).expect("it waits for nobody's search")
}

/// Node 1 has a record that it cannot send. Its client sends the record through node 2. Then the log is trimmed above that copy.
fn late_first_attempt(
    c: &mut Cluster,
    known: bool,
) -> (Arc<VirtualLog>, Result<Vec<LogPos>, LogAppendError>) {
    let (here, there) = (c.created("memory"), c.log(2, "log"));
    append(c, 1, &here, vec![record(1, 1)]);
    c.servers.faults(|f| {
        f.cut_off.insert(NodeId(1));
    });
    let mine = vec![record(5, 1)];
    let late = if known { here.submit_known(mine, LogPos(1)) } else { here.submit(mine) }.unwrap();
    c.driver.run_for(Duration::from_millis(100));
    if known {
        assert_eq!(append(c, 2, &there, vec![retry(5, 1, 1)]), [LogPos(1)]);
    } else {
        append(c, 2, &there, vec![record(2, 1)]);
    }
    extend(c, 2, &there);
    append(c, 2, &there, vec![record(1, 2)]);
    let trim = there.trim(LogPos(2));
    c.run(2, trim).unwrap().unwrap();
    // The node first learns of the new chain, and can append only after that.
    c.servers.faults(|f| {
        f.append_busy = 1000;
        f.cut_off.clear();
    });
    let refresh = here.refresh();
    c.run(1, refresh).unwrap().unwrap();
    c.servers.faults(|f| f.append_busy = 0);
    let answer = soon(c, 1, late).unwrap();
    (there, answer)
}

#[test]
fn a_late_first_attempt_makes_no_second_copy_after_a_trim() {
    let mut c = Cluster::new(41, 3);
    let (log, answer) = late_first_attempt(&mut c, true);
    assert_eq!(answer, Err(LogAppendError::NotAppended(LogError::Outdated(LogPos(2)))));
    assert_eq!(c.names(2, &log), [(1, 2)], "the copy at position 1 was the only one");
}

#[test]
fn a_record_that_only_this_node_can_send_is_appended_after_a_trim() {
    let mut c = Cluster::new(41, 3);
    let (log, answer) = late_first_attempt(&mut c, false);
    assert_eq!(answer, Ok(vec![LogPos(3)]));
    assert_eq!(c.names(2, &log), [(1, 2), (5, 1)]);
}

#[test]
fn a_refused_record_of_a_caller_that_left_is_left_out() {
    let mut c = Cluster::new(42, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, vec![record(1, 1)]);
    c.servers.faults(|f| {
        f.cut_off.insert(NodeId(1));
    });
    let gone = log.submit(vec![record(5, 1)]).unwrap();
    let stays = log.submit(vec![record(6, 1)]).unwrap();
    c.driver.run_for(Duration::from_millis(100));
    drop(gone);
    c.servers.faults(|f| f.cut_off.clear());
    assert_eq!(soon(&mut c, 1, stays).unwrap(), Ok(vec![LogPos(1)]));
    assert_eq!(c.names(1, &log), [(1, 1), (6, 1)]);
}

#[test]
fn an_idle_stream_with_an_old_tail_holds_up_nobody_else() {
    let mut c = Cluster::new(43, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, vec![record(1, 1)]);
    fill(&mut c, 1, &log, 100);
    let old = active(&log);
    extend(&mut c, 1, &log);
    append(&mut c, 1, &log, vec![record(3, 1)]);
    // Reads of the old segment take forever.
    c.servers.faults(|f| {
        f.unread_below.insert(old, Offset(u64::MAX));
    });
    let before = c.servers.entries_read();
    let mut idle = log.submit_known(vec![record(1, 2)], LogPos(1)).unwrap();
    let behind = log.submit_known(vec![record(1, 3)], LogPos(1)).unwrap();
    let other = log.submit(vec![record(3, 2)]).unwrap();
    assert_eq!(soon(&mut c, 1, other).unwrap(), Ok(vec![LogPos(101)]));
    assert_eq!(c.servers.entries_read(), before, "nothing is read for the others");
    assert_eq!(idle.try_take(), None, "where its record may be was not read yet");
    c.servers.faults(|f| f.unread_below.clear());
    assert_eq!(soon(&mut c, 1, idle).unwrap(), Ok(vec![LogPos(102)]));
    assert_eq!(soon(&mut c, 1, behind).unwrap(), Ok(vec![LogPos(103)]), "in the order of the stream");
}

#[test]
fn a_retry_from_the_start_of_a_log_holds_up_no_other_retry() {
    let mut c = Cluster::new(44, 3);
    let (here, there) = (c.created("memory"), c.log(2, "log"));
    fill(&mut c, 1, &here, 5_000);
    let old = active(&here);
    extend(&mut c, 1, &here);
    append(&mut c, 1, &here, vec![record(3, 1)]);
    c.servers.faults(|f| {
        f.unread_below.insert(old, Offset(u64::MAX));
    });
    let before = c.servers.entries_read();
    let mut far = there.submit(vec![retry(9, 1, 0)]).unwrap();
    let near = there.submit(vec![retry(3, 1, 5_000), retry(3, 2, 5_000)]).unwrap();
    let first = there.submit(vec![record(4, 1)]).unwrap();
    assert_eq!(soon(&mut c, 2, first).unwrap().map(|at| at.len()), Ok(1));
    let found = soon(&mut c, 2, near).unwrap().unwrap();
    assert_eq!(found[0], LogPos(5_000), "the first attempt");
    assert!(found[1] > LogPos(5_000));
    let read = c.servers.entries_read() - before;
    assert!(read <= 3, "{read} entries were read for a retry from one entry back");
    assert_eq!(far.try_take(), None);
    // A search ends when nobody waits for it any more.
    drop(far);
    c.driver.run_for(SOON);
    assert!(there.is_idle(), "something still runs");
    c.servers.faults(|f| f.unread_below.clear());
    assert!(!c.names(2, &there).contains(&(9, 1)));
}

#[test]
fn retries_from_equally_far_back_share_one_search() {
    let mut c = Cluster::new(47, 3);
    let (here, there) = (c.created("memory"), c.log(2, "log"));
    fill(&mut c, 1, &here, 300);
    let tail = there.check_tail();
    c.run(2, tail).unwrap().unwrap();
    let before = c.servers.entries_read();
    let tickets: Vec<_> = (0..100).map(|n| there.submit(vec![retry(100 + n, 1, 200)]).unwrap()).collect();
    for ticket in tickets {
        soon(&mut c, 2, ticket).unwrap().unwrap();
    }
    let read = c.servers.entries_read() - before;
    assert!(read <= 400, "100 clients read {read} entries, of which each needs 100");
}

#[test]
fn the_lane_searches_no_long_way_for_one_client() {
    let mut c = Cluster::new(48, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, vec![record(1, 1)]);
    fill(&mut c, 1, &log, 70_000);
    let old = active(&log);
    // Two records are in flight when the segment ends: one of a stream that was idle for long, and one that is new.
    c.servers.faults(|f| {
        f.stopped.insert(NodeId(1));
    });
    let mut idle = log.submit_known(vec![record(1, 2)], LogPos(1)).unwrap();
    let behind = log.submit_known(vec![record(1, 3)], LogPos(1)).unwrap();
    let other = log.submit(vec![record(3, 1)]).unwrap();
    c.driver.run_for(Duration::from_millis(20));
    c.servers.faults(|f| {
        f.unread_below.insert(old, Offset(60_000));
    });
    let change = log.extend(LogletSpec { avoid: vec![NodeId(1)], ..LogletSpec::default() });
    c.run(1, change).unwrap().unwrap();
    assert_eq!(soon(&mut c, 1, other).unwrap(), Ok(vec![LogPos(70_000)]));
    assert_eq!(idle.try_take(), None, "where its record may be was not read yet");
    c.servers.faults(|f| f.unread_below.clear());
    assert_eq!(soon(&mut c, 1, idle).unwrap(), Ok(vec![LogPos(70_001)]));
    assert_eq!(soon(&mut c, 1, behind).unwrap(), Ok(vec![LogPos(70_002)]));
}

#[test]
fn nothing_of_a_client_is_appended_after_one_of_its_records_was_refused() {
    let mut c = Cluster::new(49, 3);
    let (here, there) = (c.created("memory"), c.log(2, "log"));
    append(&mut c, 1, &here, vec![record(1, 1)]);
    c.servers.faults(|f| {
        f.cut_off.insert(NodeId(1));
    });
    let first = here.submit_known(vec![record(5, 1)], LogPos(1)).unwrap();
    c.driver.run_for(Duration::from_millis(100));
    assert_eq!(append(&mut c, 2, &there, vec![retry(5, 1, 1)]), [LogPos(1)]);
    extend(&mut c, 2, &there);
    append(&mut c, 2, &there, vec![record(1, 2)]);
    let trim = there.trim(LogPos(2));
    c.run(2, trim).unwrap().unwrap();
    // The tail that the client knows by now is above the trim point. Nobody has this record, but it comes after the first one.
    let second = here.submit_known(vec![record(5, 2)], LogPos(3)).unwrap();
    c.servers.faults(|f| {
        f.append_busy = 1000;
        f.cut_off.clear();
    });
    let refresh = here.refresh();
    c.run(1, refresh).unwrap().unwrap();
    c.servers.faults(|f| f.append_busy = 0);
    let outdated = Err(LogAppendError::NotAppended(LogError::Outdated(LogPos(2))));
    assert_eq!(soon(&mut c, 1, first).unwrap(), outdated);
    assert_eq!(soon(&mut c, 1, second).unwrap(), outdated);
    assert_eq!(c.names(2, &there), [(1, 2)]);
}
