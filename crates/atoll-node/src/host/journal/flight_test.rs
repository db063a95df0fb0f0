//! Batches that the disk writes while no thread waits for them.
#![allow(clippy::unwrap_used)]

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use atoll_core::{Space, StorageId};
use atoll_storage::{Fault, Journal, JournalOptions, MemDisk, Recovered};

use super::tests::{HOUR, Lone, cell, facts, lone, told};
use super::*;
use crate::host::incoming::Incoming;
use crate::host::port::Worker;
use crate::host::work::{JournalPort, Work};

/// Blocks that can be written directly, and one segment with room for everything that a test writes.
fn options() -> JournalOptions {
    let segment_bytes = 1024 * 1024;
    let small = JournalOptions::small(StorageId(1));
    JournalOptions { segment_bytes, first_segment_bytes: segment_bytes, block_bytes: 4096, ..small }
}

fn started(disk: &MemDisk) -> Lone {
    lone(disk, options())
}

fn begin(lone: &mut Lone, number: u64) {
    assert!(lone.writer.begin(facts(number, 1)).is_ok() && lone.writer.flight.is_some());
}

/// Returns the numbers of the records that a restart finds.
fn recovered(disk: &MemDisk) -> Vec<u64> {
    let mut found = Vec::new();
    let visit = &mut |item| {
        if let Recovered::Record(stored) = item {
            found.push(stored.lsn.0);
        }
        Ok::<_, Infallible>(())
    };
    Journal::recover(Arc::new(disk.clone()), options(), visit).unwrap();
    found
}

/// Returns the numbers of the records that were reported as durable, and whether the last report is a failure.
fn durable(lone: &Lone) -> (Vec<u64>, bool) {
    let (mut numbers, mut failed) = (Vec::new(), false);
    for incoming in told(lone) {
        match incoming {
            Incoming::Durable(Ok(written)) => numbers.extend(written.iter().map(|(lsn, _)| lsn.0)),
            Incoming::Durable(Err(_)) => failed = true,
            _ => {}
        }
    }
    (numbers, failed)
}

#[test]
fn a_batch_is_reported_when_its_write_has_ended_and_not_before() {
    let disk = MemDisk::new();
    let mut lone = started(&disk);
    disk.hold_direct_writes(true);
    let syncs = disk.syncs();
    begin(&mut lone, 1);
    lone.writer.land();
    assert_eq!(durable(&lone), (vec![], false));
    assert!(!lone.writer.may_take(&facts(2, 1)), "one batch at a time");
    disk.hold_direct_writes(false);
    lone.writer.land();
    assert_eq!((durable(&lone), disk.syncs() - syncs), ((vec![1], false), 1));
    lone.writer.land();
    assert_eq!(durable(&lone), (vec![], false), "once");
    let cut = disk.fork();
    cut.crash(&mut || false);
    assert_eq!(recovered(&cut), [1]);
}

#[test]
fn a_slow_disk_is_not_waited_for() {
    let disk = MemDisk::new();
    let lone = started(&disk);
    let port = JournalPort::default();
    let writer = Mutex::new(lone.writer);
    writer.lock().unwrap().usual = std::time::Duration::from_secs(1_000_000);
    assert!(matches!(write_here(&writer, &port, facts(1, 1), false), Here::Nothing(_)));
    disk.hold_direct_writes(true);
    assert!(matches!(write_here(&writer, &port, facts(1, 1), true), Here::Begun));
    assert!(land(&writer, &port) && writer.lock().unwrap().flight.is_some());
    disk.hold_direct_writes(false);
    assert!(land(&writer, &port) && writer.lock().unwrap().flight.is_none());
}

#[test]
fn a_quick_disk_is_waited_for() {
    let disk = MemDisk::new();
    let (port, writer) = (JournalPort::default(), Mutex::new(started(&disk).writer));
    // Only the end of the write can end this wait.
    writer.lock().unwrap().usual = HOUR / 4;
    disk.hold_direct_writes(true);
    std::thread::scope(|threads| {
        let written = threads.spawn(|| write_here(&writer, &port, facts(1, 1), true));
        disk.hold_direct_writes(false);
        assert!(matches!(written.join().unwrap(), Here::Done));
    });
    assert!(writer.lock().unwrap().flight.is_none());
}

#[test]
fn a_quick_disk_that_stalls_is_not_waited_for_any_longer() {
    let disk = MemDisk::new();
    let (port, writer) = (JournalPort::default(), Mutex::new(started(&disk).writer));
    writer.lock().unwrap().usual = Duration::from_millis(1);
    disk.hold_direct_writes(true);
    assert!(matches!(write_here(&writer, &port, facts(1, 1), true), Here::Begun));
    assert!(writer.lock().unwrap().flight.is_some());
    // Its end counts as a long write, and the next one is waited for no more.
    writer.lock().unwrap().quick = Duration::from_nanos(1);
    disk.hold_direct_writes(false);
    assert!(land(&writer, &port));
    disk.hold_direct_writes(true);
    assert!(matches!(write_here(&writer, &port, facts(2, 1), true), Here::Begun));
    disk.hold_direct_writes(false);
}

#[test]
fn while_the_journal_thread_has_the_writer_it_reports_the_batch() {
    let disk = MemDisk::new();
    let lone = started(&disk);
    let port = JournalPort::default();
    let writer = Mutex::new(lone.writer);
    disk.hold_direct_writes(true);
    assert!(matches!(write_here(&writer, &port, facts(1, 1), true), Here::Begun));
    {
        let _busy = writer.lock().unwrap();
        assert!(!land(&writer, &port));
    }
    assert!(
        port.take_over(&writer).is_none(),
        "there is work for the journal thread, so it wakes up and looks"
    );
}

#[test]
fn a_failed_write_closes_the_journal() {
    for fault in [Fault::Write, Fault::Sync] {
        let disk = MemDisk::new();
        let mut lone = started(&disk);
        lone.writer.write_alone(facts(1, 1));
        disk.fail_next(fault, 1);
        assert!(lone.writer.begin(facts(2, 1)).is_ok());
        lone.writer.land();
        assert_eq!(durable(&lone), (vec![1], true), "{fault:?}");
        assert!(lone.writer.space == Space::Closed && !lone.writer.may_take(&facts(3, 1)));
        // The journal thread can still be woken and stopped.
        lone.writer.round(Work::default());
        lone.writer.end();
        disk.crash(&mut || false);
        assert_eq!(recovered(&disk), [1]);
    }
}

#[test]
fn a_power_cut_during_the_write_keeps_what_was_reported() {
    for seed in 0..200 {
        let disk = MemDisk::new();
        let mut lone = started(&disk);
        for number in 1..=4 {
            begin(&mut lone, number);
            lone.writer.land();
        }
        // Batches of both kinds are next to each other.
        lone.writer.write_alone(facts(5, 1));
        disk.hold_direct_writes(true);
        begin(&mut lone, 6);
        lone.writer.land();
        assert_eq!(durable(&lone).0, [1, 2, 3, 4, 5]);
        disk.crash_seeded(seed);
        let found = recovered(&disk);
        assert!(found == [1, 2, 3, 4, 5] || found == [1, 2, 3, 4, 5, 6], "seed {seed}: {found:?}");
    }
}

/// The disk lets the write end while another thread does `f` with the writer.
fn meanwhile(disk: &MemDisk, lone: &mut Lone, f: impl FnOnce(&mut Writer) + Send) {
    disk.hold_direct_writes(true);
    begin(lone, 1);
    std::thread::scope(|threads| {
        let worker = threads.spawn(|| f(&mut lone.writer));
        disk.hold_direct_writes(false);
        worker.join().unwrap();
    });
}

#[test]
fn work_that_comes_meanwhile_is_done_after_the_batch() {
    let disk = MemDisk::new();
    let mut lone = started(&disk);
    meanwhile(&disk, &mut lone, |writer| {
        writer.round(Work { batch: Some(facts(2, 20)), ..Work::default() });
    });
    assert_eq!(durable(&lone), ((1..=21).collect(), false));
    disk.crash(&mut || false);
    assert_eq!(recovered(&disk), (1..=21).collect::<Vec<_>>());
}

#[test]
fn a_stop_waits_for_the_batch_and_marks_it() {
    let disk = MemDisk::new();
    let mut lone = started(&disk);
    meanwhile(&disk, &mut lone, |writer| writer.end());
    assert_eq!(durable(&lone), (vec![1], false));
    assert!(lone.writer.marked);
    disk.crash(&mut || false);
    assert_eq!(recovered(&disk), [1]);
}

#[test]
fn what_does_not_fit_is_written_as_before() {
    let mut lone = started(&MemDisk::new());
    assert!(lone.writer.begin(cell(1, 7)).is_err(), "cells");
    assert!(lone.writer.begin(facts(1, 17)).is_err(), "five blocks");
    let mut small = super::tests::lone(&MemDisk::new(), JournalOptions::small(StorageId(1)));
    assert!(small.writer.begin(facts(1, 1)).is_err(), "blocks that are not aligned");
    // The batch that follows a mark, and the last one of a segment.
    lone.writer.write_alone(facts(1, 1));
    lone.writer.mark();
    let mut number = 2;
    while lone.writer.journal.has_room_for(&facts(number, 1)) {
        begin(&mut lone, number);
        lone.writer.land();
        number += 1;
    }
    assert!(number > 200 && lone.writer.begin(facts(number, 1)).is_err(), "{number}");
    assert_eq!(durable(&lone), ((1..number).collect(), false));
}
