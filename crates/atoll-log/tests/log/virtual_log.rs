//! The virtual log, one property at a time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Cluster, spec};
use atoll_contract::{ClientId, LogPos, LogletSpec, Offset, OpId, PlanError, ReadFrom, Version};
use atoll_core::Budget;
use atoll_core::NodeId;
use atoll_log::virtual_log::{ReconfigError, Trouble, TroubleObserver, VirtualLog};
use atoll_log::{Busy, LogAppendError, LogError, LogReadError, LogRecord, TrimError};
use bytes::Bytes;

fn record(client: u64, seq: u64) -> LogRecord {
    let op = OpId { client: ClientId(client), seq };
    LogRecord { op, floor: None, payload: Bytes::from(format!("{client}/{seq}")) }
}

fn append(c: &mut Cluster, node: u32, log: &Arc<VirtualLog>, client: u64, seq: u64) -> LogPos {
    let ticket = log.submit(vec![record(client, seq)]).unwrap();
    c.run(node, ticket).unwrap().unwrap()[0]
}

#[test]
fn of_two_creators_one_wins() {
    let mut c = Cluster::new(1, 3);
    let (a, b) = (c.log(1, "log"), c.log(2, "log"));
    let (ta, tb) = (a.create(spec("memory")), b.create(spec("shuffled")));
    let ca = c.run(1, ta).unwrap().unwrap();
    let cb = c.run(2, tb).unwrap().unwrap();
    assert_eq!(ca, cb);
    assert_eq!(ca.version, Version(1));
}

#[test]
fn a_log_that_nobody_made() {
    let mut c = Cluster::new(1, 1);
    let log = c.log(1, "none");
    let (refresh, tail, extend) = (log.refresh(), log.check_tail(), log.extend(spec("memory")));
    assert_eq!(c.run(1, refresh).unwrap(), Err(LogError::NoSuchLog));
    assert_eq!(c.run(1, tail).unwrap(), Err(LogError::NoSuchLog));
    assert_eq!(c.run(1, extend).unwrap(), Err(ReconfigError::NoSuchLog));
    let ticket = log.submit(vec![record(1, 1)]).unwrap();
    assert_eq!(c.run(1, ticket).unwrap(), Err(LogAppendError::NotAppended(LogError::NoSuchLog)));
    let wait = log.wait_tail(LogPos::ZERO);
    assert_eq!(c.run(1, wait).unwrap(), Err(LogError::NoSuchLog));
    // The log can be created and used afterwards.
    let made = log.create(spec("memory"));
    c.run(1, made).unwrap().unwrap();
    assert_eq!(append(&mut c, 1, &log, 1, 1), LogPos(0));
}

#[test]
fn records_keep_their_order_over_200_extends_under_load() {
    let mut c = Cluster::new(2, 3);
    let log = c.created("memory");
    let mut pauses = Vec::new();
    let mut tickets = Vec::new();
    let mut seq = 0;
    for round in 0..200u32 {
        for _ in 0..10 {
            seq += 1;
            tickets.push(log.submit(vec![record(1, seq)]).unwrap());
        }
        let change = spec("memory").place("sequencer", [NodeId(1 + round % 3)]);
        let start = c.driver.now();
        let extend = log.extend(change);
        c.run(1, extend).unwrap().unwrap();
        seq += 1;
        tickets.push(log.submit(vec![record(1, seq)]).unwrap());
        let last = tickets.pop().unwrap();
        c.run(1, last).unwrap().unwrap();
        pauses.push(c.driver.now().since(start));
        if round % 10 == 9 {
            let trim = log.trim(log.known_tail());
            c.run(1, trim).unwrap().unwrap();
            assert!(
                log.chain().unwrap().chain.segments().len() <= 2,
                "wholly trimmed segments leave the chain"
            );
        }
    }
    let mut last = None;
    for ticket in tickets {
        let at = c.run(1, ticket).unwrap().unwrap()[0];
        assert!(Some(at) > last, "positions rise with the order of submission");
        last = Some(at);
    }
    let slow = |part: &[Duration]| part.iter().sum::<Duration>() / part.len() as u32;
    assert!(slow(&pauses[180..]) < slow(&pauses[..20]) * 2, "the last extends take as long as the first");
    let tail = log.check_tail();
    assert_eq!(c.run(1, tail).unwrap(), Ok(LogPos(seq)), "none lost, none twice");
}

#[test]
fn a_refused_plan_seals_nothing() {
    let mut c = Cluster::new(3, 3);
    let log = c.created("memory");
    let no_kind = log.extend(spec("bogus"));
    assert!(matches!(c.run(1, no_kind).unwrap(), Err(ReconfigError::Plan(PlanError::UnknownKind { .. }))));
    let no_node = log.extend(LogletSpec::default().place("server", [NodeId(9)]));
    assert_eq!(c.run(1, no_node).unwrap(), Err(ReconfigError::Plan(PlanError::NodeDown(NodeId(9)))));
    append(&mut c, 1, &log, 1, 1);
    assert_eq!(log.chain().unwrap().version, Version(1));
}

#[test]
fn whoever_meets_a_sealed_segment_rolls_it_forward() {
    let mut c = Cluster::new(4, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, 1, 1);
    let chain = log.chain().unwrap();
    let active = chain.chain.active().clone();
    // A reconfigurer seals the active Loglet and dies.
    let provider = log.registry().provider("memory").unwrap().clone();
    let loglet = provider.open(active.loglet, &active.config).unwrap();
    c.run(1, async move { loglet.seal().await }).unwrap();
    let stale = c.log(3, "log");
    assert_eq!(append(&mut c, 3, &stale, 2, 1), LogPos(1));
    assert_eq!(append(&mut c, 1, &log, 1, 2), LogPos(2));
    assert_eq!(c.names(2, &stale), [(1, 1), (2, 1), (1, 2)]);
    assert_eq!(stale.chain().unwrap().version, Version(2), "one roll forward is enough");
}

#[test]
fn roll_forward_leaves_out_a_dead_sequencer() {
    let mut c = Cluster::new(5, 3);
    let log = c.created("memory");
    append(&mut c, 1, &log, 1, 1);
    c.servers.faults(|f| {
        f.stopped.insert(NodeId(1));
    });
    let ticket = log.submit(vec![record(1, 2)]).unwrap();
    let extend = log.extend(LogletSpec::default());
    c.run(1, extend).unwrap().unwrap();
    assert_eq!(c.run(1, ticket).unwrap().unwrap(), [LogPos(1)], "the append follows to the new segment");
}

#[derive(Debug, Default)]
struct TroubleList(Mutex<Vec<Trouble>>);

impl TroubleObserver for TroubleList {
    fn on_trouble(&self, log: &str, trouble: Trouble) {
        assert_eq!(log, "log");
        self.0.lock().unwrap().push(trouble);
    }
}

#[test]
fn the_policy_hears_of_troubles() {
    for (stopped, expected) in [(true, Trouble::NoSequencer), (false, Trouble::WrongSequencer)] {
        let mut c = Cluster::new(6, 3);
        let log = c.created("memory");
        let heard = Arc::new(TroubleList::default());
        log.observe(heard.clone());
        append(&mut c, 1, &log, 1, 1);
        c.servers.faults(|f| {
            let which = if stopped { &mut f.stopped } else { &mut f.restarted };
            which.insert(NodeId(1));
        });
        let ticket = log.submit(vec![record(1, 2)]).unwrap();
        c.driver.run_for(Duration::from_secs(1));
        let troubles = heard.0.lock().unwrap().clone();
        assert!(!troubles.is_empty() && troubles.iter().all(|t| *t == expected), "heard {troubles:?}");
        let extend = log.extend(LogletSpec { avoid: vec![NodeId(1)], ..LogletSpec::default() });
        c.run(1, extend).unwrap().unwrap();
        assert_eq!(c.run(1, ticket).unwrap().unwrap(), [LogPos(1)]);
    }
}

/// Nobody reads the log here, so this node learns of the new segment only because its lane looks for it.
#[test]
fn a_lane_without_answers_finds_the_segment_that_another_node_made() {
    let mut c = Cluster::new(6, 3);
    let (here, there) = (c.created("memory"), c.log(2, "log"));
    append(&mut c, 1, &here, 1, 1);
    c.servers.faults(|f| {
        f.stopped.insert(NodeId(1));
    });
    let ticket = here.submit(vec![record(1, 2)]).unwrap();
    c.driver.run_for(c.options.stall_after * 2);
    let extend = there.extend(LogletSpec { avoid: vec![NodeId(1)], ..LogletSpec::default() });
    c.run(2, extend).unwrap().unwrap();
    let (env, patience) = (c.env(1), c.options.stall_after);
    let placed = c.run(1, async move { env.within(patience, ticket).await });
    assert_eq!(placed.expect("in the time of a stall").unwrap().unwrap(), [LogPos(1)]);
}

#[test]
fn the_window_is_bounded_in_bytes() {
    let mut c = Cluster::new(7, 1);
    c.options.lane_window_bytes = 10_000;
    let log = c.created("memory");
    let big = |seq| LogRecord { payload: Bytes::from(vec![7; 4000]), ..record(1, seq) };
    let taken: Vec<_> = (1..=2).map(|seq| log.submit(vec![big(seq)]).unwrap()).collect();
    let busy = log.submit(vec![big(3)]).unwrap_err();
    assert!(matches!(busy, Busy::Log { waiting_bytes } if waiting_bytes >= 8000), "{busy}");
    for ticket in taken {
        c.run(1, ticket).unwrap().unwrap();
    }
    let ticket = log.submit(vec![big(3)]).unwrap();
    assert_eq!(c.run(1, ticket).unwrap(), Ok(vec![LogPos(2)]));
    // A submission larger than the window is sent alone. A record larger than the limit of an entry is refused.
    let ticket = log.submit((4..8).map(big).collect()).unwrap();
    assert_eq!(c.run(1, ticket).unwrap(), Ok((3..7).map(LogPos).collect()));
    let too_large = LogRecord { payload: Bytes::from(vec![7; 1_000_001]), ..record(1, 9) };
    let ticket = log.submit(vec![too_large]).unwrap();
    assert_eq!(c.run(1, ticket).unwrap(), Err(LogAppendError::TooLarge(1_000_001)));
}

/// Waits for room, and appends.
async fn append_with_room(log: Arc<VirtualLog>, record: LogRecord) -> LogPos {
    let size = record.payload.len();
    loop {
        if let Ok(ticket) = log.submit(vec![record.clone()]) {
            return ticket.await.unwrap().unwrap()[0];
        }
        log.room(1, size).await;
    }
}

#[test]
fn who_waits_for_room_is_woken_in_order() {
    let mut c = Cluster::new(17, 1);
    c.options.lane_window_bytes = 10_000;
    let log = c.created("memory");
    let big = |seq| LogRecord { payload: Bytes::from(vec![7; 4000]), ..record(1, seq) };
    let env = c.env(1);
    let tickets: Vec<_> =
        (1..=40).map(|seq| env.launch("append", append_with_room(log.clone(), big(seq)))).collect();
    // A caller that gives up, while it waits or after it was woken, holds up nobody.
    let gave_up = log.room(1, 4000);
    drop(env.launch("gives up", gave_up));
    for (n, ticket) in tickets.into_iter().enumerate() {
        assert_eq!(c.run(1, ticket).unwrap(), LogPos(n as u64));
    }
}

#[test]
fn who_waits_for_the_room_of_a_node_is_woken_by_other_logs() {
    let mut c = Cluster::new(18, 1);
    let budget = Arc::new(Budget::new(20_000));
    let logs: Vec<_> = (0..4).map(|n| c.log_within(&format!("log{n}"), budget.clone())).collect();
    for log in &logs {
        let made = log.create(spec("memory"));
        c.run(1, made).unwrap().unwrap();
    }
    let some = |seq| LogRecord { payload: Bytes::from(vec![7; 3000]), ..record(1, seq) };
    let env = c.env(1);
    let appends = (1..=20).flat_map(|seq| logs.iter().map(move |log| (seq, log.clone())));
    let tickets: Vec<_> =
        appends.map(|(seq, log)| env.launch("append", append_with_room(log, some(seq)))).collect();
    for ticket in tickets {
        c.run(1, ticket).unwrap();
    }
    assert_eq!(budget.used_bytes(), 0, "all is given back");
}

#[test]
fn all_logs_of_a_node_share_a_window() {
    let mut c = Cluster::new(9, 1);
    let budget = Arc::new(Budget::new(40_000));
    let logs: Vec<_> = (0..8).map(|n| c.log_within(&format!("log{n}"), budget.clone())).collect();
    for log in &logs {
        let made = log.create(spec("memory"));
        c.run(1, made).unwrap().unwrap();
    }
    let some = |seq| LogRecord { payload: Bytes::from(vec![7; 1000]), ..record(1, seq) };
    let mut taken = Vec::new();
    for log in &logs {
        let before = taken.len();
        // Each log takes as much as it can get, and none takes everything.
        let busy = (1..).find_map(|seq| log.submit(vec![some(seq)]).map(|t| taken.push(t)).err());
        assert!(matches!(busy, Some(Busy::Node { .. })) || taken.len() > before, "{busy:?}");
    }
    assert!(budget.used_bytes() <= 40_000, "{}", budget.used_bytes());
    assert!(taken.len() >= 20, "half of it is used by the first alone: {}", taken.len());
    for ticket in taken {
        c.run(1, ticket).unwrap().unwrap();
    }
    assert_eq!(budget.used_bytes(), 0, "all is given back");
}

#[test]
fn a_retry_through_another_node_is_found() {
    let mut c = Cluster::new(8, 3);
    let (a, b) = (c.created("memory"), c.log(2, "log"));
    for seq in 1..=3 {
        append(&mut c, 1, &a, 1, seq);
    }
    let extend = a.extend(LogletSpec::default());
    c.run(1, extend).unwrap().unwrap();
    append(&mut c, 1, &a, 1, 4);
    let retry = |seq| LogRecord { floor: Some(LogPos(1)), ..record(1, seq) };
    // One submission with a record from the sealed segment, one from the active segment, and one that never arrived.
    let ticket = b.submit(vec![retry(2), retry(4), retry(5)]).unwrap();
    let behind = b.submit(vec![record(1, 6)]).unwrap();
    assert_eq!(c.run(2, ticket).unwrap(), Ok(vec![LogPos(1), LogPos(3), LogPos(4)]));
    assert_eq!(c.run(2, behind).unwrap(), Ok(vec![LogPos(5)]), "later ones of this client wait behind");
    // Trimmed positions cannot be searched.
    let trim = a.trim(LogPos(3));
    assert_eq!(c.run(1, trim).unwrap(), Ok(LogPos(3)));
    let ticket = b.submit(vec![retry(7)]).unwrap();
    assert_eq!(c.run(2, ticket).unwrap(), Err(LogAppendError::Trimmed(LogPos(3))));
}

#[test]
fn readers_follow_over_segments_and_stop_at_stops() {
    let mut c = Cluster::new(9, 3);
    let log = c.created("memory");
    let other = c.log(2, "log");
    let env = c.env(2);
    let mut reader = other.reader(LogPos::ZERO, ReadFrom::Anywhere);
    let mut wait = env.launch("test.reader", async move {
        let mut seen = Vec::new();
        while seen.len() < 30 {
            let read = reader.next(20).await.unwrap();
            seen.extend(read.entries.into_iter().map(|e| e.op.seq));
        }
        seen
    });
    for seq in 1..=30 {
        append(&mut c, 1, &log, 1, seq);
        if seq.is_multiple_of(5) {
            // Two extends in a row leave an empty segment between them (vlog-V7).
            for _ in 0..2 {
                let extend = log.extend(LogletSpec::default());
                c.run(1, extend).unwrap().unwrap();
            }
        }
    }
    c.driver.run_for(Duration::from_secs(1));
    assert_eq!(wait.try_take(), Some(Ok((1..=30).collect::<Vec<u64>>())));
    assert_eq!(log.chain().unwrap().chain.segment_count(), 7, "empty ones leave the chain");
}

#[test]
fn a_stale_handle_reads_what_was_remapped_and_learns_of_trims() {
    let mut c = Cluster::new(10, 3);
    let log = c.created("memory");
    let stale = c.log(2, "log");
    let refresh = stale.refresh();
    c.run(2, refresh).unwrap().unwrap();
    for seq in 1..=10 {
        append(&mut c, 1, &log, 1, seq);
    }
    let first = log.chain().unwrap().chain.active().loglet;
    let extend = log.extend(LogletSpec::default());
    c.run(1, extend).unwrap().unwrap();
    // The first segment, whose head is trimmed, is rebuilt on another kind.
    let trim = log.trim(LogPos(4));
    assert_eq!(c.run(1, trim).unwrap(), Ok(LogPos(4)));
    let modify = log.modify(first, spec("shuffled"));
    let chain = c.run(1, modify).unwrap().unwrap();
    assert_eq!(chain.chain.segments()[0].kind, "shuffled");
    assert_eq!(chain.chain.segments()[0].start, LogPos(4));
    c.driver.run_for(Duration::from_secs(20));
    // The old Loglet is deleted by now. The stale handle gets "gone", refreshes its chain, and continues to read.
    let read = stale.read(LogPos(4)..LogPos(10), 10_000, ReadFrom::Anywhere);
    let read = c.run(2, read).unwrap().unwrap();
    assert_eq!(read.entries.iter().map(|e| e.op.seq).collect::<Vec<_>>(), [5, 6, 7, 8, 9, 10]);
    let read = stale.read(LogPos(3)..LogPos(10), 10_000, ReadFrom::Anywhere);
    assert_eq!(c.run(2, read).unwrap(), Err(LogReadError::Trimmed(LogPos(4))));
    let active = log.modify(chain.chain.active().loglet, LogletSpec::default());
    assert!(matches!(c.run(1, active).unwrap(), Err(ReconfigError::NotSealed(_))));
    let gone = log.modify(first, LogletSpec::default());
    assert_eq!(c.run(1, gone).unwrap(), Err(ReconfigError::NoSuchSegment(first)));
}

#[test]
fn a_planned_copy_is_tried_again_and_one_that_is_given_up_leaves_nothing() {
    let mut c = Cluster::new(12, 3);
    let log = c.created("memory");
    for seq in 1..=10 {
        append(&mut c, 1, &log, 1, seq);
    }
    let first = log.chain().unwrap().chain.active().loglet;
    let active = log.plan_remake(first, LogPos(0), spec("shuffled"));
    assert_eq!(c.run(1, active).unwrap(), Err(ReconfigError::NotSealed(first)));
    let extend = log.extend(LogletSpec::default());
    c.run(1, extend).unwrap().unwrap();
    let plan = log.plan_remake(first, LogPos(0), spec("shuffled"));
    let remake = c.run(1, plan).unwrap().unwrap();
    let planned = c.servers.planned();
    // Nobody has the end of the segment for now.
    c.servers.faults(|f| f.unread_below.extend([(first, Offset(10))]));
    let tried = log.remake(remake.clone());
    assert!(matches!(c.run(1, tried).unwrap(), Err(ReconfigError::Unavailable { .. })));
    c.servers.faults(|f| f.unread_below.clear());
    let again = log.remake(remake.clone());
    let chain = c.run(1, again).unwrap().unwrap();
    assert_eq!(chain.chain.segments()[0].kind, "shuffled");
    assert_eq!(c.servers.planned(), planned, "it is the same copy");
    let late = log.remake(remake);
    assert_eq!(c.run(1, late).unwrap(), Err(ReconfigError::NoSuchSegment(first)));
    // Another one is planned, tried in vain and given up.
    let copy = chain.chain.segments()[0].loglet;
    let plan = log.plan_remake(copy, LogPos(0), spec("memory"));
    let remake = c.run(1, plan).unwrap().unwrap();
    c.driver.run_for(Duration::from_secs(20));
    let before = c.servers.loglets();
    c.servers.faults(|f| f.damaged.extend([copy]));
    let tried = log.remake(remake.clone());
    assert!(c.run(1, tried).unwrap().is_err());
    c.servers.faults(|f| f.damaged.clear());
    log.give_up(&remake);
    c.driver.run_for(Duration::from_secs(20));
    assert!(c.servers.loglets() <= before);
    let read = log.read(LogPos(0)..LogPos(10), 10_000, ReadFrom::Anywhere);
    assert_eq!(c.run(1, read).unwrap().unwrap().entries.len(), 10);
}

#[test]
fn trims_are_bounded_by_the_tail_and_shared() {
    let mut c = Cluster::new(11, 2);
    let log = c.created("memory");
    for seq in 1..=10 {
        append(&mut c, 1, &log, 1, seq);
    }
    let beyond = log.trim(LogPos(11));
    assert_eq!(c.run(1, beyond).unwrap(), Err(LogError::BeyondTail(LogPos(10)).into()));
    let before = log.chain().unwrap().version.0;
    let trims: Vec<_> = (1..=9).map(|to| log.trim(LogPos(to))).collect();
    for trim in trims {
        c.run(1, trim).unwrap().unwrap();
    }
    assert_eq!(log.chain().unwrap().chain.trim(), LogPos(9));
    assert!(log.chain().unwrap().version.0 <= before + 2, "calls that come fast share a write");
    assert_eq!(c.names(1, &log), [(1, 10)]);
    let lower = log.trim(LogPos(3));
    assert_eq!(c.run(1, lower).unwrap(), Ok(LogPos(9)), "a trim is permanent");
}

#[test]
fn a_trim_whose_write_had_no_answer_may_have_happened() {
    let mut c = Cluster::new(19, 2);
    let log = c.created("memory");
    append(&mut c, 1, &log, 1, 1);
    let trouble = || LogError::Unavailable(atoll_contract::register::Unavailability::NoQuorum.into());
    c.servers.faults(|f| f.register_down = 1000);
    let trim = log.trim(LogPos(1));
    assert_eq!(c.run(1, trim).unwrap(), Err(TrimError::NotTrimmed(trouble())), "nothing was written");
    // Half of these writes take effect, and none is answered.
    c.servers.faults(|f| (f.register_down, f.register_unknown) = (0, 1000));
    let trim = log.trim(LogPos(1));
    assert_eq!(c.run(1, trim).unwrap(), Err(TrimError::Unknown(trouble())));
}

#[test]
fn an_ended_log_stays_ended() {
    let mut c = Cluster::new(12, 2);
    let (log, other) = (c.created("memory"), c.log(2, "log"));
    append(&mut c, 1, &log, 1, 1);
    let wait = other.wait_tail(LogPos(1));
    let (end, again) = (log.end(), log.end());
    assert_eq!(c.run(1, end).unwrap(), Ok(LogPos(1)));
    assert_eq!(c.run(1, again).unwrap(), Ok(LogPos(1)));
    let ticket = other.submit(vec![record(2, 1)]).unwrap();
    let ended = LogError::Ended(LogPos(1));
    match c.run(2, ticket).unwrap() {
        Err(LogAppendError::NotAppended(e) | LogAppendError::Unknown(e)) => assert_eq!(e, ended),
        other => panic!("appended to an ended log: {other:?}"),
    }
    assert_eq!(c.run(2, wait).unwrap(), Err(ended));
    let extend = log.extend(LogletSpec::default());
    assert_eq!(c.run(1, extend).unwrap(), Err(ReconfigError::Ended(LogPos(1))));
    assert_eq!(c.names(2, &other), [(1, 1)]);
}

#[test]
fn a_change_goes_on_when_its_ticket_is_dropped() {
    let mut c = Cluster::new(13, 2);
    let log = c.created("memory");
    drop(log.extend(LogletSpec::default()));
    c.driver.run_for(Duration::from_secs(1));
    assert_eq!(log.chain().unwrap().version, Version(2));
}

#[test]
fn dropped_submissions_that_were_not_sent_are_left_out() {
    let mut c = Cluster::new(14, 2);
    let log = c.created("memory");
    c.servers.faults(|f| {
        f.stopped.insert(NodeId(1));
    });
    // Eight batches are in flight without an answer. The caller of the next record gives up before it is sent.
    c.options.max_inflight_batches = 8;
    let mut sent = Vec::new();
    for seq in 1..=8 {
        sent.push(log.submit(vec![record(1, seq)]).unwrap());
        c.driver.run_for(Duration::from_millis(5));
    }
    drop(log.submit(vec![record(1, 9)]).unwrap());
    let last = log.submit(vec![record(1, 10)]).unwrap();
    let extend = log.extend(LogletSpec { avoid: vec![NodeId(1)], ..LogletSpec::default() });
    c.run(1, extend).unwrap().unwrap();
    assert_eq!(c.run(1, last).unwrap(), Ok(vec![LogPos(8)]));
    let names: Vec<u64> = c.names(1, &log).into_iter().map(|(_, seq)| seq).collect();
    assert_eq!(names, [1, 2, 3, 4, 5, 6, 7, 8, 10]);
}
