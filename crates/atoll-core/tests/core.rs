//! Tests of the node core alone: answers wait for the disk, procedures run in the order in which they were woken, and a failed call says
//! whether it happened.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_core::*;
use bytes::Bytes;

atoll_core::message! {
    /// Asks the toy role to remember a number.
    pub struct Add = 9001 {
        /// The number to add.
        pub n: u64,
    }
}
atoll_core::message! {
    /// The sum so far.
    pub struct Sum = 9002 {
        /// The sum.
        pub n: u64,
    }
}
const TOY: RoleKind = RoleKind(200);
const STRANGER: RoleKind = RoleKind(201);
const LARGE: RoleKind = RoleKind(202);

atoll_core::rpc!(Add => Sum, TOY, Control);

/// Sums numbers. Every answer reveals the record of the number that was added.
#[derive(Default)]
struct Toy {
    sum: u64,
}

impl Role for Toy {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let add = Add::from_frame(frame).unwrap();
        self.sum += add.n;
        let lsn = out.journal(RecordKind::Fact, add.to_bytes(), Bytes::new());
        out.reply(from, Sum { n: self.sum }, lsn);
    }

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn checkpoint(&mut self, _max_bytes: usize) -> Option<Bytes> {
        Some(self.sum.to_bytes())
    }

    fn restore(&mut self, checkpoint: Bytes) -> Result<(), DecodeError> {
        self.sum = u64::from_bytes(checkpoint)?;
        Ok(())
    }

    fn recover(&mut self, stored: Stored) -> Result<(), DecodeError> {
        self.sum += Add::from_bytes(stored.record.head)?.n;
        Ok(())
    }
}

fn node(id: u32) -> NodeCore {
    let mut core = NodeCore::new(NodeId(id), Incarnation(7), 42);
    core.add_role(TOY, Box::new(Toy::default()));
    core
}

fn turn(core: &mut NodeCore, now: u64) -> Outputs {
    let mut out = Outputs::default();
    core.turn(Tick(now), &mut out);
    out
}

fn places(batch: &JournalBatch) -> Vec<(Lsn, Loc)> {
    let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
    batch.records.iter().map(|(lsn, _)| (*lsn, loc)).collect()
}

fn request(n: u64, add: u64) -> Envelope {
    Envelope { exchange: Exchange::Request(n), frame: Add { n: add }.into_frame(TOY) }
}

#[test]
fn an_answer_waits_for_the_record_that_it_reveals() {
    let mut core = node(1);
    core.set_link(Tick(0), NodeId(2), Class::Control, Link::Up);
    core.deliver(Tick(1), NodeId(2), Class::Control, request(5, 10));
    let out = turn(&mut core, 1);
    assert!(out.frames.is_empty(), "nothing is synced yet");
    let batch = out.journal.unwrap();
    // More work while the writer is busy is staged, not handed out: one batch at a time (X2).
    core.deliver(Tick(2), NodeId(2), Class::Control, request(6, 1));
    assert!(turn(&mut core, 2).journal.is_none());
    core.durable(Tick(3), Ok(places(&batch)));
    let out = turn(&mut core, 3);
    assert_eq!(out.frames.len(), 1);
    assert_eq!(out.frames[0].envelope.exchange, Exchange::Reply(5));
    let second = out.journal.unwrap();
    core.durable(Tick(4), Ok(places(&second)));
    let out = turn(&mut core, 4);
    assert_eq!(Sum::from_frame(out.frames[0].envelope.frame.clone()), Ok(Sum { n: 11 }));
}

#[test]
fn a_failed_journal_kills_held_answers_and_takes_nothing_more() {
    let mut core = node(1);
    core.set_link(Tick(0), NodeId(2), Class::Control, Link::Up);
    core.deliver(Tick(1), NodeId(2), Class::Control, request(5, 10));
    assert!(turn(&mut core, 1).journal.is_some());
    core.durable(Tick(2), Err("sync failed".into()));
    core.deliver(Tick(3), NodeId(2), Class::Control, request(6, 10));
    let out = turn(&mut core, 3);
    assert!(out.frames.is_empty() && out.journal.is_none());
}

#[test]
fn recovery_gives_facts_back_and_numbers_go_on() {
    let mut core = node(1);
    core.recover_checkpoint(Checkpoint { covers: Lsn(4), states: vec![(TOY, 30u64.to_bytes())] }).unwrap();
    let record =
        Record { owner: TOY, kind: RecordKind::Fact, head: Add { n: 5 }.to_bytes(), payload: Bytes::new() };
    let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
    core.recover_record(Stored { lsn: Lsn(5), loc, record }).unwrap();
    core.recover_done(Lsn(5));
    core.deliver(Tick(1), NodeId(2), Class::Control, request(5, 1));
    let batch = turn(&mut core, 1).journal.unwrap();
    assert_eq!(batch.records[0].0, Lsn(6));
    core.request_checkpoint();
    let checkpoint = turn(&mut core, 2).checkpoint.unwrap();
    assert_eq!(checkpoint.covers, Lsn(5), "facts that are only staged are not covered");
    let stranger = Record { owner: STRANGER, ..batch.records[0].1.clone() };
    let stored = Stored { lsn: Lsn(9), loc, record: stranger };
    assert!(matches!(core.recover_record(stored), Err(RecoverError::NoRole { .. })));
}

/// A role that assembles ten bytes for a checkpoint.
#[derive(Default)]
struct Large {
    at: u8,
}

impl Role for Large {
    fn on_frame(&mut self, _now: Tick, _from: Caller, _frame: Frame, _out: &mut Effects) {}

    fn on_durable(&mut self, _now: Tick, _upto: Lsn, _mine: &[(Lsn, Loc)], _out: &mut Effects) {}

    fn checkpoint(&mut self, max_bytes: usize) -> Option<Bytes> {
        self.at += max_bytes.min(10) as u8;
        (self.at >= 10).then(|| Bytes::from(vec![std::mem::take(&mut self.at)]))
    }
}

#[test]
fn a_checkpoint_is_put_together_in_many_turns_with_other_work_between() {
    let mut core = node(1);
    core.add_role(LARGE, Box::new(Large::default()));
    core.set_link(Tick(0), NodeId(2), Class::Control, Link::Up);
    core.deliver(Tick(1), NodeId(2), Class::Control, request(1, 10));
    let batch = turn(&mut core, 1).journal.unwrap();
    core.durable(Tick(2), Ok(places(&batch)));
    core.set_checkpoint_step(3);
    core.request_checkpoint();
    let mut answers = 0;
    for now in 3..50 {
        core.deliver(Tick(now), NodeId(2), Class::Control, request(now, 1));
        // Requesting a checkpoint that is under construction has no effect.
        core.request_checkpoint();
        let out = turn(&mut core, now);
        answers += out.frames.len();
        if let Some(batch) = &out.journal {
            core.durable(Tick(now), Ok(places(batch)));
        }
        if let Some(checkpoint) = out.checkpoint {
            assert_eq!(checkpoint.covers, Lsn(1), "what was durable when it was begun");
            assert_eq!(checkpoint.states.len(), 2);
            assert!(answers >= 3, "{answers} answers meanwhile");
            return;
        }
        assert!(core.is_checkpointing());
        assert_eq!(core.next_deadline(), Some(Tick(now)), "the next piece does not wait for input");
    }
    panic!("it came to no end");
}

/// A turn that is cut off hands out what its first steps have made, with the records that it waits for. The rest follows without input.
#[test]
fn a_turn_hands_out_its_first_messages_before_it_takes_the_last_steps() {
    let mut core = node(1);
    core.set_turn_steps(4);
    let env = core.env();
    for n in 1..=3 {
        let caller = env.clone();
        env.spawn("caller", Box::pin(async move { drop(caller.call(NodeId(1), Add { n }).await) }));
    }
    // The poll of a caller and its message to the role are a step each.
    let out = turn(&mut core, 1);
    let batch = out.journal.unwrap();
    assert_eq!((batch.records.len(), out.steps, out.more), (2, 4, true));
    assert_eq!(core.next_deadline(), Some(Tick(1)));
    let out = turn(&mut core, 2);
    assert!(out.journal.is_none() && !out.more, "one batch at a time");
    core.durable(Tick(3), Ok(places(&batch)));
    assert_eq!(turn(&mut core, 3).journal.unwrap().records.len(), 1);
}

#[test]
fn calls_say_whether_they_happened() {
    let mut core = node(1);
    let env = core.env();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    env.clone().spawn(
        "caller",
        Box::pin(async move {
            let got = env.call(NodeId(2), Add { n: 1 }).await;
            log.lock().unwrap().push(got);
            env.sleep(Duration::from_nanos(10)).await;
            let got = env.call(NodeId(2), Add { n: 1 }).await;
            log.lock().unwrap().push(got);
            let local = env.call(NodeId(1), Add { n: 3 });
            assert!(
                env.within(Duration::from_nanos(5), local).await.is_err(),
                "its answer waits for the disk"
            );
        }),
    );
    turn(&mut core, 1);
    core.set_link(Tick(2), NodeId(2), Class::Control, Link::Up);
    let out = turn(&mut core, 11);
    assert_eq!(out.frames.len(), 1);
    core.set_link(Tick(12), NodeId(2), Class::Control, Link::Down);
    turn(&mut core, 13);
    turn(&mut core, 20);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0], Err(CallError::NotSent(Unsent::NotConnected(NodeId(2)))));
    assert_eq!(seen[1], Err(CallError::Lost(NodeId(2))));
    assert_eq!(core.next_deadline(), None, "timers leave the heap when their futures are dropped");
}

#[test]
fn procedures_run_in_the_order_of_their_wakes_and_abort_drops_them() {
    let mut core = node(1);
    let env = core.env();
    let order = Arc::new(Mutex::new(Vec::new()));
    for (i, nanos) in [(0, 30u64), (1, 10), (2, 20)] {
        let (e, order) = (env.clone(), order.clone());
        env.spawn(
            "sleeper",
            Box::pin(async move {
                e.sleep(Duration::from_nanos(nanos)).await;
                order.lock().unwrap().push(i);
            }),
        );
    }
    let never = env.spawn("never", Box::pin(std::future::pending()));
    turn(&mut core, 0);
    assert_eq!(core.running().count(), 4);
    never.abort();
    turn(&mut core, 30);
    assert_eq!(*order.lock().unwrap(), [1, 2, 0]);
    assert_eq!(core.running().count(), 0);
}

const SHELF: RoleKind = RoleKind(202);

/// A role that writes each number to a cell and to a record, and tells them apart after a restart.
#[derive(Default)]
struct Shelf {
    cells: u64,
    records: u64,
    durable: Vec<(Lsn, usize)>,
}

impl Role for Shelf {
    fn on_frame(&mut self, _now: Tick, from: Caller, frame: Frame, out: &mut Effects) {
        let Ok(Add { n }) = Add::from_frame(frame) else { return };
        // Odd numbers go to cells, and every third to a record, too.
        let mut reveals = Lsn::NONE;
        if n % 2 == 1 {
            reveals = out.write_cell(Bytes::from_static(b"n"), n.to_bytes());
        }
        if n % 3 == 0 {
            reveals = out.journal(RecordKind::Fact, n.to_bytes(), Bytes::new());
        }
        out.reply(from, Sum { n }, reveals);
    }

    fn on_durable(&mut self, _now: Tick, upto: Lsn, mine: &[(Lsn, Loc)], _out: &mut Effects) {
        self.durable.push((upto, mine.len()));
    }

    fn recover(&mut self, stored: Stored) -> Result<(), atoll_core::DecodeError> {
        self.records = u64::from_bytes(stored.record.head)?;
        Ok(())
    }

    fn recover_cell(&mut self, key: Bytes, value: Bytes) -> Result<(), atoll_core::DecodeError> {
        assert_eq!(key, "n");
        self.cells = u64::from_bytes(value)?;
        Ok(())
    }

    fn measure(&self, out: &mut Vec<atoll_core::Measure>) {
        for (upto, records) in &self.durable {
            let value = upto.0 as f64 + *records as f64 / 10.0;
            out.push(atoll_core::Measure { name: "durable", label: None, value });
        }
        out.push(atoll_core::Measure { name: "cells", label: None, value: self.cells as f64 });
        out.push(atoll_core::Measure { name: "records", label: None, value: self.records as f64 });
    }
}

fn shelf() -> NodeCore {
    let mut core = NodeCore::new(NodeId(1), Incarnation(7), 42);
    core.add_role(SHELF, Box::new(Shelf::default()));
    core.set_link(Tick(0), NodeId(2), Class::Control, Link::Up);
    core
}

fn measured(core: &NodeCore, name: &str) -> Vec<f64> {
    core.measures().into_iter().filter(|m| m.name == name).map(|m| m.value).collect()
}

fn put(core: &mut NodeCore, n: u64) {
    let envelope = Envelope { exchange: Exchange::Request(n), frame: Add { n }.into_frame(SHELF) };
    core.deliver(Tick(1), NodeId(2), Class::Control, envelope);
}

#[test]
fn an_answer_waits_for_the_cell_that_it_reveals() {
    let mut core = shelf();
    put(&mut core, 1);
    let out = turn(&mut core, 1);
    assert!(out.frames.is_empty(), "nothing is synced yet");
    let batch = out.journal.unwrap();
    assert_eq!((batch.records.len(), batch.cells.len(), batch.cells[0].number), (0, 1, 1));
    put(&mut core, 3);
    put(&mut core, 5);
    put(&mut core, 6);
    assert!(turn(&mut core, 2).journal.is_none(), "one batch at a time (X2)");
    core.durable(Tick(3), Ok(places(&batch)));
    let out = turn(&mut core, 3);
    assert_eq!(out.frames.len(), 1);
    assert_eq!(core.env().witness().own(), Lsn(1));
    // Positions: cell 2, record 3, cell 4, record 5. The journal numbers its records without gaps.
    let batch = out.journal.unwrap();
    let records: Vec<Lsn> = batch.records.iter().map(|(lsn, _)| *lsn).collect();
    let cells: Vec<u64> = batch.cells.iter().map(|cell| cell.number).collect();
    assert_eq!((records, cells), (vec![Lsn(1), Lsn(2)], vec![2, 3]));
    core.request_checkpoint();
    assert_eq!(turn(&mut core, 3).checkpoint.unwrap().covers, Lsn(0));
    core.durable(Tick(4), Ok(places(&batch)));
    assert_eq!(turn(&mut core, 4).frames.len(), 3);
    core.request_checkpoint();
    assert_eq!(turn(&mut core, 5).checkpoint.unwrap().covers, Lsn(2), "records, not positions");
    assert_eq!(measured(&core, "durable"), [1.0, 5.2]);
}

#[test]
fn recovery_gives_cells_back_and_positions_go_on() {
    let mut core = shelf();
    let key = Bytes::from_static(b"n");
    let record =
        Record { owner: SHELF, kind: RecordKind::Fact, head: 6u64.to_bytes(), payload: Bytes::new() };
    let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
    core.recover_record(Stored { lsn: Lsn(4), loc, record }).unwrap();
    let cell = |owner| atoll_core::Cell { owner, key: key.clone(), value: 5u64.to_bytes() };
    core.recover_cell(cell(SHELF)).unwrap();
    assert!(matches!(core.recover_cell(cell(STRANGER)), Err(RecoverError::NoRole { .. })));
    core.recover_cells_done(9);
    core.recover_done(Lsn(4));
    assert_eq!((measured(&core, "cells"), measured(&core, "records")), (vec![5.0], vec![6.0]));
    assert_eq!(core.env().witness().own(), Lsn(13), "other nodes remember records and cells");
    put(&mut core, 3);
    let batch = turn(&mut core, 1).journal.unwrap();
    assert_eq!((batch.cells[0].number, batch.records[0].0), (10, Lsn(5)));
    core.durable(Tick(2), Ok(places(&batch)));
    assert_eq!(core.env().witness().own(), Lsn(15));
    // A role that uses no cells is not given any.
    let mut toy = node(1);
    assert!(matches!(toy.recover_cell(cell(TOY)), Err(RecoverError::Cell { .. })));
}

#[test]
fn a_failure_kills_answers_that_wait_for_cells() {
    let mut core = shelf();
    put(&mut core, 1);
    put(&mut core, 5);
    assert!(turn(&mut core, 1).journal.is_some());
    core.durable(Tick(2), Err("sync failed".into()));
    put(&mut core, 7);
    let out = turn(&mut core, 3);
    assert!(out.frames.is_empty() && out.journal.is_none());
}
