//! Changes of the chain that meet other changes or fail half way: how long they take, and what they leave behind.

use std::sync::Arc;
use std::time::Duration;

use crate::common::Cluster;
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_core::{NodeId, Ticket};
use atoll_log::LogRecord;
use atoll_log::virtual_log::{ReconfigError, Step, VirtualLog};
use bytes::Bytes;

fn fill(c: &mut Cluster, log: &Arc<VirtualLog>, records: u64) {
    let record = |seq| LogRecord {
        op: OpId { client: ClientId(1), seq },
        floor: None,
        payload: Bytes::from_static(b"entry"),
    };
    let ticket = log.submit((1..=records).map(record).collect()).unwrap();
    c.run(1, ticket).unwrap().unwrap();
}

/// Trims record by record, with two trims under way at any time.
fn trim_all(c: &Cluster, node: u32, log: &Arc<VirtualLog>, records: u64) -> [Ticket<()>; 2] {
    [1, 2].map(|first| {
        let log = log.clone();
        c.env(node).launch("trims", async move {
            for to in (first..=records).step_by(2) {
                log.trim(LogPos(to)).await.unwrap().unwrap();
            }
        })
    })
}

#[test]
fn an_extend_gets_its_turn_among_trims() {
    let mut c = Cluster::new(45, 3);
    let log = c.created("memory");
    fill(&mut c, &log, 3_000);
    let trims = trim_all(&c, 1, &log, 3_000);
    c.driver.run_for(Duration::from_millis(20));
    let extend = log.extend(LogletSpec::default());
    c.run(1, extend).unwrap().unwrap();
    let trim = log.chain().unwrap().chain.trim();
    assert!(trim < LogPos(300), "the extend waited for the trims up to {trim}");
    for all in trims {
        c.run(1, all).unwrap();
    }
    assert_eq!(log.chain().unwrap().chain.trim(), LogPos(3_000));
}

/// A segment with few servers between two others does not make the log forget who had a place before it.
#[test]
fn a_plan_knows_who_holds_entries_of_the_newest_segments() {
    let mut c = Cluster::new(47, 5);
    let log = c.created("memory");
    let extend = |c: &mut Cluster, servers: &[u32]| {
        let log = c.log(1, "log");
        let spec = LogletSpec::default().place("server", servers.iter().map(|n| NodeId(*n)));
        let extend = log.extend(spec);
        c.run(1, extend).unwrap().unwrap();
        c.servers.last_held().into_iter().map(|node| node.0).collect::<Vec<_>>()
    };
    fill(&mut c, &log, 1);
    assert_eq!(extend(&mut c, &[4]), [1, 2, 3]);
    let record = LogRecord {
        op: OpId { client: ClientId(2), seq: 1 },
        floor: None,
        payload: Bytes::from_static(b"entry"),
    };
    let ticket = log.submit(vec![record]).unwrap();
    c.run(1, ticket).unwrap().unwrap();
    assert_eq!(extend(&mut c, &[1, 4, 5]), [4, 1, 2, 3], "the newest first, each once");
}

#[test]
fn an_extend_gives_up_in_time_when_another_node_trims() {
    let mut c = Cluster::new(49, 3);
    c.options.reconfigure_within = Duration::from_millis(100);
    let log = c.created("memory");
    fill(&mut c, &log, 6_000);
    let there = c.log(2, "log");
    let tail = there.check_tail();
    c.run(2, tail).unwrap().unwrap();
    let _trims = trim_all(&c, 2, &there, 6_000);
    c.driver.run_for(Duration::from_millis(20));
    let start = c.driver.now();
    let extend = log.extend(LogletSpec::default());
    let done = c.run(1, extend).unwrap();
    let took = c.driver.now().since(start);
    assert!(matches!(done, Err(ReconfigError::Unavailable { step: Step::CheckTail, .. })), "{done:?}");
    assert!(took < Duration::from_millis(150), "it took {took:?}");
    c.driver.run_for(Duration::from_secs(20));
    assert_eq!(c.servers.loglets(), 1, "the successor that was not installed is deleted");
}

/// The register stops to answer at some step after the copy was made.
#[test]
fn a_copy_that_was_not_put_in_place_is_deleted() {
    let (mut done, mut failed) = (0, 0);
    for steps in 0..40 {
        let mut c = Cluster::new(51, 3);
        c.options.reconfigure_within = Duration::from_millis(50);
        let log = c.created("memory");
        fill(&mut c, &log, 10);
        let first = log.chain().unwrap().chain.active().loglet;
        let extend = log.extend(LogletSpec::default());
        c.run(1, extend).unwrap().unwrap();
        c.driver.run_for(Duration::from_secs(1));
        let before = c.servers.loglets();
        let modify = log.modify(first, LogletSpec::default());
        let limit = c.driver.now().after(Duration::from_secs(10));
        while c.servers.loglets() == before {
            assert!(c.driver.step(limit), "no copy was made");
        }
        for _ in 0..steps {
            c.driver.step(limit);
        }
        c.servers.faults(|f| f.register_down = 1000);
        match c.run(1, modify).unwrap() {
            Ok(_) => done += 1,
            Err(_) => failed += 1,
        }
        c.servers.faults(|f| f.register_down = 0);
        c.driver.run_for(Duration::from_secs(60));
        assert_eq!(c.servers.loglets(), before, "{steps} steps after the copy: one too many");
    }
    assert!(done > 0 && failed > 0, "{done} done, {failed} failed");
}

/// Two nodes extend the log at nearly the same time, and nothing can be deleted at first. The second one soon learns of the first one's
/// chain, as from a heartbeat.
#[test]
fn what_was_planned_and_not_installed_is_deleted() {
    let mut late = 0;
    for between_us in (0..4_000).step_by(100) {
        let mut c = Cluster::new(55, 3);
        let log = c.created("memory");
        fill(&mut c, &log, 10);
        let there = c.log(2, "log");
        let tail = there.check_tail();
        c.run(2, tail).unwrap().unwrap();
        c.servers.faults(|f| f.undeleted = 1000);
        let first = log.extend(LogletSpec::default());
        c.driver.run_for(Duration::from_micros(between_us));
        let second = there.extend(LogletSpec::default());
        let _news = c.env(2).launch("news", async move {
            for _ in 0..50 {
                there.refresh().await.unwrap().unwrap();
            }
        });
        c.run(1, first).unwrap().unwrap();
        c.run(2, second).unwrap().unwrap();
        // The second plan was made, but too late to create its Loglet.
        late += usize::from(c.servers.planned() > c.servers.loglets());
        c.servers.faults(|f| f.undeleted = 0);
        c.driver.run_for(Duration::from_secs(20));
        let refresh = log.refresh();
        c.run(1, refresh).unwrap().unwrap();
        let segments = log.chain().unwrap().chain.segments().len();
        assert_eq!(c.servers.loglets(), segments, "{between_us} us between the two");
        assert_eq!(
            c.servers.planned(),
            segments,
            "{between_us} us between the two: a plan has left something"
        );
    }
    assert!(late > 0, "no plan was late");
}

/// What a node waits for at a Loglet whose server is dead when another node makes the log continue elsewhere.
#[test]
fn who_waits_at_a_loglet_goes_elsewhere_once_the_next_segment_is_there() {
    for is_told in [false, true] {
        let mut c = Cluster::new(53, 3);
        let log = c.created("memory");
        fill(&mut c, &log, 3);
        let there = c.log(2, "log");
        let tail = there.check_tail();
        assert_eq!(c.run(2, tail).unwrap(), Ok(LogPos(3)));
        let active = log.chain().unwrap().chain.active().loglet;
        c.servers.faults(|f| f.silent_until_sealed.extend([(NodeId(2), active)]));
        let mut below = there.read(LogPos(1)..LogPos(3), 1_000, ReadFrom::Anywhere);
        let mut check = there.check_tail();
        let mut above = there.read(LogPos(3)..LogPos(9), 1_000, ReadFrom::Anywhere);
        c.driver.run_for(Duration::from_millis(300));
        let nothing = below.try_take().is_none() && check.try_take().is_none() && above.try_take().is_none();
        assert!(nothing, "the dead server answers nothing");
        let extend = log.extend(LogletSpec::default());
        c.run(1, extend).unwrap().unwrap();
        let record = LogRecord {
            op: OpId { client: ClientId(2), seq: 1 },
            floor: None,
            payload: Bytes::from_static(b"next"),
        };
        let ticket = log.submit(vec![record]).unwrap();
        assert_eq!(c.run(1, ticket).unwrap().unwrap(), [LogPos(3)]);
        if is_told {
            let refresh = there.refresh();
            c.run(2, refresh).unwrap().unwrap();
        }
        let before = c.driver.now();
        assert_eq!(c.run(2, below).unwrap().unwrap().entries.len(), 2);
        assert_eq!(c.run(2, check).unwrap(), Ok(LogPos(4)));
        assert_eq!(c.run(2, above).unwrap().unwrap().entries[0].payload, Bytes::from_static(b"next"));
        let took = c.driver.now().since(before);
        // A node that is not told looks for itself, after ever longer pauses.
        let most = Duration::from_millis(if is_told { 10 } else { 150 });
        assert!(took <= most, "{took:?}; told: {is_told}");
    }
}
