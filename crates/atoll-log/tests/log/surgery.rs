//! Surgery on single entries (virtuallog §7): a held entry stops readers, a changed one is changed for all of them, and a surgery that was
//! cut short ends neither way by itself.

use std::sync::Arc;
use std::time::Duration;

use crate::common::Cluster;
use atoll_contract::{ClientId, LogPos, LogletSpec, OpId, ReadFrom};
use atoll_log::surgery::{MAX_REPLACEMENT_BYTES, SurgeryFault, hash_of};
use atoll_log::virtual_log::{ReconfigError, SurgeryError, VirtualLog};
use atoll_log::{Held, Incision, LogError, LogReadError, LogRecord};
use bytes::Bytes;

fn fill(c: &mut Cluster, log: &Arc<VirtualLog>, seqs: std::ops::RangeInclusive<u64>) {
    let record = |seq| LogRecord {
        op: OpId { client: ClientId(1), seq },
        floor: None,
        payload: Bytes::from(format!("entry {seq}")),
    };
    let ticket = log.submit(seqs.map(record).collect()).unwrap();
    c.run(1, ticket).unwrap().unwrap();
}

/// Returns a cluster with a log of ten entries, at positions 0 to 9.
fn ten(seed: u64) -> (Cluster, Arc<VirtualLog>) {
    let mut c = Cluster::new(seed, 3);
    let log = c.created("memory");
    fill(&mut c, &log, 1..=10);
    (c, log)
}

fn incision(at: u64, with: Option<&'static str>) -> Incision {
    Incision {
        at: LogPos(at),
        with: with.map(|text| Bytes::from_static(text.as_bytes())),
        operator: "ann".into(),
        reason: "it stops every replica".into(),
        take_over: false,
    }
}

fn hold(c: &mut Cluster, log: &Arc<VirtualLog>, incision: Incision) -> Result<Held, SurgeryError> {
    let ticket = log.hold(incision, 7);
    c.run(1, ticket).unwrap()
}

fn operate(c: &mut Cluster, log: &Arc<VirtualLog>, incision: Incision) {
    let held = hold(c, log, incision).unwrap();
    let ticket = log.finish_surgery(&held);
    c.run(1, ticket).unwrap().unwrap();
}

/// Reads once, and returns what is there: payloads, and None for pads.
fn read(
    c: &mut Cluster,
    node: u32,
    log: &Arc<VirtualLog>,
    from: u64,
) -> Result<Vec<Option<String>>, LogReadError> {
    let ticket = log.read(LogPos(from)..LogPos(10), 100_000, ReadFrom::Anywhere);
    let read = c.run(node, ticket).unwrap()?;
    let text = |payload: &Bytes| String::from_utf8(payload.to_vec()).unwrap();
    Ok(read.entries.iter().map(|e| (!e.is_pad()).then(|| text(&e.payload))).collect())
}

fn entries(seqs: std::ops::RangeInclusive<u64>) -> Vec<Option<String>> {
    seqs.map(|seq| Some(format!("entry {seq}"))).collect()
}

#[test]
fn nobody_reads_a_held_entry_and_everybody_the_changed_one() {
    let (mut c, log) = ten(3);
    let other = c.log(2, "log");
    assert_eq!(read(&mut c, 2, &other, 0).unwrap(), entries(1..=10));
    let held = hold(&mut c, &log, incision(4, Some("other"))).unwrap();
    // The other node has read the chain before the hold, so it must be told.
    let fresh = other.refresh();
    assert!(c.run(2, fresh).unwrap().unwrap().version >= held.version);
    for (node, log) in [(1, &log), (2, &other)] {
        assert_eq!(read(&mut c, node, log, 0).unwrap(), entries(1..=4));
        assert_eq!(read(&mut c, node, log, 4), Err(LogError::Held(LogPos(4)).into()));
        assert_eq!(read(&mut c, node, log, 5).unwrap(), entries(6..=10), "only the entry itself is held");
    }
    let finish = log.finish_surgery(&held);
    c.run(1, finish).unwrap().unwrap();
    operate(&mut c, &log, incision(6, None));
    let mut expected = entries(1..=10);
    (expected[4], expected[6]) = (Some("other".to_owned()), None);
    // A reader that was held looks for itself.
    assert_eq!(read(&mut c, 2, &other, 4).unwrap(), expected[4..]);
    let third = c.log(3, "log");
    assert_eq!(read(&mut c, 3, &third, 0).unwrap(), expected);
    let chain = log.chain().unwrap();
    let records = chain.chain.surgery().records();
    let hashes: Vec<_> = records.iter().map(|r| (r.at.0, r.old_hash, r.new_hash)).collect();
    let old = |seq| hash_of(format!("entry {seq}").as_bytes());
    assert_eq!(hashes, [(4, old(5), Some(hash_of(b"other"))), (6, old(7), None)]);
}

#[test]
fn the_name_of_a_changed_entry_stays_and_its_append_is_found() {
    let (mut c, log) = ten(4);
    operate(&mut c, &log, incision(4, None));
    let ticket = log.read(LogPos(4)..LogPos(5), 100, ReadFrom::Anywhere);
    let read = c.run(1, ticket).unwrap().unwrap();
    let named: Vec<_> = read.patched.iter().map(|p| (p.at.0, p.op.seq, p.excised)).collect();
    assert_eq!((read.records().count(), named), (0, vec![(4, 5, true)]));
    // The client has got no answer and sends the record again, through another node.
    let (other, op) = (c.log(2, "log"), OpId { client: ClientId(1), seq: 5 });
    let again = LogRecord { op, floor: Some(LogPos(0)), payload: Bytes::from_static(b"entry 5") };
    let ticket = other.submit(vec![again]).unwrap();
    assert_eq!(c.run(2, ticket).unwrap(), Ok(vec![LogPos(4)]));
}

#[test]
fn a_change_outlives_extensions_and_a_rebuild_and_a_trim_drops_it() {
    let (mut c, log) = ten(5);
    operate(&mut c, &log, incision(4, Some("other")));
    for _ in 0..8 {
        let extend = log.extend(LogletSpec::of("shuffled"));
        c.run(1, extend).unwrap().unwrap();
        fill(&mut c, &log, 100..=101);
    }
    let loglet = {
        let page = log.segments_from(LogPos(0));
        c.run(1, page).unwrap().unwrap().segments[0].loglet
    };
    let modify = log.modify(loglet, LogletSpec::of("shuffled"));
    c.run(1, modify).unwrap().unwrap();
    c.driver.run_for(Duration::from_secs(15));
    let other = c.log(2, "log");
    let mut expected = entries(1..=10);
    expected[4] = Some("other".to_owned());
    assert_eq!(read(&mut c, 2, &other, 0).unwrap(), expected);
    for (to, patches) in [(4, 1), (5, 0)] {
        let trim = log.trim(LogPos(to));
        c.run(1, trim).unwrap().unwrap();
        let chain = log.chain().unwrap();
        let surgery = chain.chain.surgery();
        assert_eq!((surgery.patches().len(), surgery.records().len()), (patches, 1), "trimmed to {to}");
    }
    // A reader that still has the old chain never sees the entry as it was.
    assert_eq!(read(&mut c, 2, &other, 4).unwrap()[0], Some("other".to_owned()));
}

#[test]
fn a_surgery_that_was_cut_short_is_taken_over_or_given_up() {
    let (mut c, log) = ten(6);
    let first = hold(&mut c, &log, incision(4, None)).unwrap();
    let under_way =
        |e: Result<Held, SurgeryError>| matches!(e, Err(SurgeryError::UnderWay { at: LogPos(4), .. }));
    assert!(under_way(hold(&mut c, &log, incision(4, None))));
    assert!(under_way(hold(&mut c, &log, Incision { take_over: true, ..incision(5, None) })));
    let second = hold(&mut c, &log, Incision { take_over: true, ..incision(4, Some("other")) }).unwrap();
    let finish = log.finish_surgery(&first);
    assert_eq!(c.run(1, finish).unwrap(), Err(SurgeryError::Overtaken(LogPos(4))));
    let release = log.release_hold(first.id);
    c.run(1, release).unwrap().unwrap();
    assert_eq!(log.chain().unwrap().chain.surgery().held(), Some(LogPos(4)), "that was another one");
    for _ in 0..2 {
        let finish = log.finish_surgery(&second);
        c.run(1, finish).unwrap().unwrap();
    }
    assert_eq!(log.chain().unwrap().chain.surgery().records().len(), 1);
    let third = hold(&mut c, &log, incision(5, None)).unwrap();
    let release = log.release_hold(third.id);
    c.run(1, release).unwrap().unwrap();
    let mut expected = entries(5..=10);
    expected[0] = Some("other".to_owned());
    assert_eq!(read(&mut c, 1, &log, 4).unwrap(), expected);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let (mut c, log) = ten(7);
    let trim = log.trim(LogPos(2));
    c.run(1, trim).unwrap().unwrap();
    let before = log.chain().unwrap();
    let (at, tail, trim) = (LogPos(10), LogPos(10), LogPos(2));
    assert_eq!(hold(&mut c, &log, incision(10, None)), Err(SurgeryError::BeyondTail { at, tail }));
    let trimmed = SurgeryError::Trimmed { at: LogPos(1), trim };
    assert_eq!(hold(&mut c, &log, incision(1, None)), Err(trimmed));
    let no_reason = Incision { reason: " ".into(), ..incision(4, None) };
    assert_eq!(hold(&mut c, &log, no_reason), Err(SurgeryFault::Reason(0).into()));
    let long = Bytes::from(vec![0; MAX_REPLACEMENT_BYTES + 1]);
    let too_long = SurgeryFault::Replacement(MAX_REPLACEMENT_BYTES + 1);
    let long = Incision { with: Some(long), ..incision(4, None) };
    assert_eq!(hold(&mut c, &log, long), Err(too_long.into()));
    let after = log.refresh();
    assert_eq!(c.run(1, after).unwrap().unwrap().version, before.version);
    operate(&mut c, &log, incision(4, None));
    operate(&mut c, &log, incision(4, Some("a second thought")));
    assert_eq!(read(&mut c, 1, &log, 4).unwrap()[0], Some("a second thought".to_owned()));
}

#[test]
fn a_cluster_with_members_that_cannot_read_it_refuses() {
    let mut c = Cluster::at_first_level(8, 3);
    let log = c.created("memory");
    fill(&mut c, &log, 1..=10);
    let refused = hold(&mut c, &log, incision(4, None));
    assert!(matches!(refused, Err(SurgeryError::Chain(ReconfigError::Level { .. }))), "{refused:?}");
}
