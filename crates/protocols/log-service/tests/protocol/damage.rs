//! Streams that somebody alters, and what is left in them.

use atoll_contract::conformance::LogletHarness;
use atoll_contract::{
    Batch, ClientId, Entry, Loglet, LogletProvider, Offset, OpId, PlanError, ReadError, ReadFrom,
};
use atoll_core::NodeId;
use atoll_log_service::testing::Memory;
use std::sync::Arc;
use std::time::Duration;

use crate::harness::{Harness, Over};

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);

fn batch(seq: u64) -> Batch {
    Batch::of([Entry { op: OpId { client: ClientId(1), seq }, payload: "x".into() }])
}

/// Appends so many records, one after the other, so that each is a message.
fn fill(h: &mut Harness, l: &Arc<dyn Loglet>, records: u64) {
    let writer = l.clone();
    h.driver.block_on(A, async move {
        for seq in 1..=records {
            writer.append(batch(seq)).await.unwrap().unwrap();
        }
    });
}

fn read(h: &mut Harness, l: &Arc<dyn Loglet>, at: u64) -> Result<usize, ReadError> {
    let reader = l.clone();
    let read = async move { reader.read(Offset(at)..Offset(at + 1), 100, ReadFrom::Anywhere).await };
    h.driver.block_on(B, read).map(|read| read.entries.len())
}

fn memory(h: &Harness) -> Memory {
    match &h.over {
        Over::Memory(memory) => memory.clone(),
        Over::Servers(..) => panic!("the service is in memory"),
    }
}

#[test]
fn a_changed_message_is_named_and_the_others_are_given() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let l = h.open(log, A);
    fill(&mut h, &l, 60);
    // The first message makes the stream a log.
    assert!(memory(&h).damage(&h.stream(log), 5));
    let reader = h.open(log, B);
    assert!(matches!(read(&mut h, &reader, 3), Err(ReadError::Damaged(_))));
    assert_eq!(read(&mut h, &reader, 50), Ok(1));
}

#[test]
fn a_message_that_somebody_removed_is_missed() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let l = h.open(log, A);
    fill(&mut h, &l, 60);
    assert!(memory(&h).lose(&h.stream(log), 5));
    let reader = h.open(log, B);
    assert_eq!(read(&mut h, &reader, 50), Ok(1));
    assert!(
        matches!(read(&mut h, &reader, 3), Err(ReadError::Damaged(_))),
        "a record is missing, and not trimmed"
    );
}

#[test]
fn a_trim_leaves_what_is_needed_and_a_deletion_leaves_nothing() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let l = h.open(log, A);
    fill(&mut h, &l, 20);
    let trimmer = l.clone();
    h.driver.block_on(A, async move { trimmer.prefix_trim(Offset(20)).await }).unwrap();
    h.driver.run_for(Duration::from_secs(1));
    assert_eq!(
        memory(&h).sequences(&h.stream(log)),
        [21, 22],
        "the newest record, and the trim; no mark yet"
    );
    let reader = h.open(log, B);
    let checker = reader.clone();
    h.driver.block_on(B, async move { checker.check_tail().await }).unwrap();
    assert_eq!(read(&mut h, &reader, 19), Err(ReadError::Trimmed(Offset(20))));
    h.delete(log);
    assert!(memory(&h).streams().is_empty());
}

/// The stream gets created after the plan has failed, or without an answer, and the first deletions are lost.
#[test]
fn a_plan_without_an_answer_leaves_nothing() {
    for (created_late, no_answer) in [(1000, 0), (0, 1000)] {
        let mut h = Harness::memory(false);
        let memory = memory(&h);
        memory.faults.set_delay(Duration::from_millis(300));
        memory.faults.set(0, no_answer, created_late, 0);
        let (provider, spec) = (h.provider(A), h.spec());
        let planned = h.driver.block_on(A, async move { provider.plan(&spec, None).await });
        assert!(matches!(planned, Err(PlanError::Invalid { .. })), "{planned:?}");
        memory.faults.set(1000, 0, 0, 0);
        h.driver.run_for(Duration::from_secs(30));
        h.heal();
        h.driver.run_for(Duration::from_secs(90));
        assert_eq!(memory.streams(), Vec::<String>::new());
    }
}

#[test]
fn a_tail_leaves_one_mark_however_often_it_is_checked() {
    let mut h = Harness::memory(false);
    let log = h.fresh();
    let l = h.open(log, A);
    h.driver.block_on(A, async move {
        for _ in 0..50 {
            l.check_tail().await.unwrap();
        }
    });
    assert_eq!(memory(&h).sequences(&h.stream(log)).len(), 2);
}

#[test]
fn wrong_options_are_refused_by_name() {
    let mut h = Harness::memory(false);
    for (option, value) in [
        ("servers", "user:secret@host:4222"),
        ("servers", "nats://host:4222"),
        ("prefix", "a.b"),
        ("replicas", "0"),
        ("replicas", "6"),
        ("replicas", "three"),
    ] {
        let (provider, mut spec) = (h.provider(A), h.spec());
        spec.options.insert(option.to_owned(), value.to_owned());
        let planned = h.driver.block_on(A, async move { provider.plan(&spec, None).await });
        let Err(PlanError::Invalid { what, allowed }) = planned else { panic!("{value} gave {planned:?}") };
        assert!(what.contains(option) && !allowed.contains("secret"), "{value}: {what}");
    }
    assert!(memory(&h).streams().is_empty());
}
