//! The journal against a model, under power cuts, kills, full disks and reuse: what was synced is there, in order and
//! unchanged; nothing else ever shows.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use atoll_core::{Checkpoint, JournalBatch, Loc, Lsn, Record, RecordKind, RoleKind, Space, Stored};
use atoll_storage::{Journal, JournalError, JournalOptions, MemDisk, PrepareJob, RecoverError, Recovered};
use bytes::Bytes;
use common::{STORAGE, record};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    /// Sizes of the records; even ones are entries.
    Write(Vec<u16>),
    Sync,
    /// Frees every n-th live entry, from the oldest.
    Free(u8),
    Checkpoint,
    TakeJob,
    FinishJob,
    Mark,
    ReadBack,
    /// A power cut with this seed.
    Cut(u64),
    /// `kill -9`.
    Kill,
    /// The disk is nearly full, or has space again.
    Fill(bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => prop::collection::vec(0u16..3000, 1..8).prop_map(Op::Write),
        1 => prop::collection::vec(0u16..12_000, 8..16).prop_map(Op::Write),
        8 => Just(Op::Sync),
        4 => (1u8..4).prop_map(Op::Free),
        3 => Just(Op::Checkpoint),
        4 => Just(Op::TakeJob),
        4 => Just(Op::FinishJob),
        1 => Just(Op::Mark),
        2 => Just(Op::ReadBack),
        2 => any::<u64>().prop_map(Op::Cut),
        1 => Just(Op::Kill),
        1 => any::<bool>().prop_map(Op::Fill),
    ]
}

struct Model {
    disk: MemDisk,
    options: JournalOptions,
    journal: Journal,
    job: Option<PrepareJob>,
    /// Written and not cut off, with the place once known.
    records: BTreeMap<u64, (Record, Loc)>,
    live: BTreeSet<u64>,
    synced: Lsn,
    checkpoint: Option<Checkpoint>,
    /// Makes every record's content its own, over all lives.
    counter: u64,
}

type Opened = (Journal, Lsn, Option<Checkpoint>, Vec<Stored>);

fn open(disk: &MemDisk, options: &JournalOptions) -> Result<Opened, RecoverError<Infallible>> {
    let (mut checkpoint, mut records) = (None, Vec::new());
    let mut visit = |r| {
        match r {
            Recovered::Checkpoint(c) => {
                assert!(checkpoint.is_none() && records.is_empty());
                checkpoint = Some(c);
            }
            Recovered::Record(r) => records.push(r),
        }
        Ok(())
    };
    let (journal, last) = Journal::recover(Arc::new(disk.clone()), options.clone(), &mut visit)?;
    Ok((journal, last, checkpoint, records))
}

impl Model {
    fn new(options: JournalOptions) -> Model {
        let disk = MemDisk::new();
        let (journal, last, ..) = open(&disk, &options).unwrap();
        assert_eq!(last, Lsn(0));
        Model {
            disk,
            options,
            journal,
            job: None,
            records: BTreeMap::new(),
            live: BTreeSet::new(),
            synced: Lsn(0),
            checkpoint: None,
            counter: 0,
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Write(sizes) => self.write(&sizes),
            Op::Sync => {
                self.synced = self.journal.sync().unwrap();
                assert_eq!(self.synced.0, self.records.keys().last().copied().unwrap_or(self.synced.0));
            }
            Op::Free(n) => {
                let freed: Vec<u64> = self.live.iter().copied().step_by(n.into()).collect();
                let locs: Vec<Loc> = freed.iter().map(|lsn| self.records[lsn].1).collect();
                self.journal.free(&locs).unwrap();
                // A second time does no harm.
                self.journal.free(&locs).unwrap();
                freed.iter().for_each(|lsn| assert!(self.live.remove(lsn)));
            }
            Op::Checkpoint => {
                let states = vec![(RoleKind(1), Bytes::from(vec![7; 100]))];
                let checkpoint = Checkpoint { covers: self.synced, states };
                match self.journal.write_checkpoint(&checkpoint) {
                    Ok(()) => self.checkpoint = Some(checkpoint),
                    Err(JournalError::NoSpace { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            Op::TakeJob => self.job = self.job.take().or_else(|| self.journal.needs_segment()),
            Op::FinishJob => {
                if let Some(job) = self.job.take() {
                    self.journal.prepared(job.run()).unwrap();
                }
            }
            Op::Mark => self.journal.mark().unwrap(),
            Op::ReadBack => self.read_back(),
            Op::Cut(seed) => {
                self.disk.crash_seeded(seed);
                self.recover();
            }
            Op::Kill => {
                self.disk.kill_process();
                self.recover();
            }
            Op::Fill(full) => self.disk.set_capacity(full.then(|| self.disk.used_bytes() + 1000)),
        }
        assert_ne!(self.journal.space(), Space::Closed);
    }

    fn write(&mut self, sizes: &[u16]) {
        let first = self.journal.last().0 + 1;
        let records: Vec<(Lsn, Record)> = sizes
            .iter()
            .zip(first..)
            .map(|(&size, lsn)| {
                self.counter += 1;
                let kind = if size % 2 == 0 { RecordKind::Entry } else { RecordKind::Fact };
                (Lsn(lsn), record(kind, self.counter, size.into()))
            })
            .collect();
        let places = match self.journal.write(&JournalBatch { records: records.clone() }) {
            Ok(places) => places,
            Err(JournalError::NoSpace { .. }) => return,
            Err(e) => panic!("{e}"),
        };
        assert_eq!(places.len(), records.len());
        for ((lsn, record), (place_lsn, loc)) in records.into_iter().zip(places) {
            assert_eq!(lsn, place_lsn);
            if record.kind == RecordKind::Entry {
                self.live.insert(lsn.0);
            }
            self.records.insert(lsn.0, (record, loc));
        }
    }

    fn read_back(&self) {
        let locs: Vec<Loc> = self.live.iter().map(|lsn| self.records[lsn].1).collect();
        let got = self.journal.reader().read(&locs).unwrap();
        for (lsn, stored) in self.live.iter().zip(got) {
            assert_eq!((stored.lsn, &stored.record), (Lsn(*lsn), &self.records[lsn].0));
        }
    }

    fn recover(&mut self) {
        self.job = None;
        let capacity = self.disk.free_bytes_now();
        let (journal, last, checkpoint, found) = match open(&self.disk, &self.options) {
            Ok(opened) => opened,
            // A start needs a segment; with a full disk it may say so, and succeed once space is back.
            Err(RecoverError::Journal(JournalError::NoSpace { .. })) if capacity.is_some() => {
                self.disk.set_capacity(None);
                open(&self.disk, &self.options).unwrap()
            }
            Err(e) => panic!("{e}"),
        };
        assert!(last >= self.synced, "{last} < {}, which was synced", self.synced);
        assert!(last.0 <= self.records.keys().last().copied().unwrap_or(0).max(self.synced.0));
        assert_eq!(checkpoint, self.checkpoint);
        let covers = checkpoint.map_or(0, |c| c.covers.0);
        drop(self.records.split_off(&(last.0 + 1)));
        drop(self.live.split_off(&(last.0 + 1)));
        assert!(found.is_sorted_by_key(|s| s.lsn.0));
        let mut missing_facts: BTreeSet<u64> = self
            .records
            .range(covers + 1..)
            .filter(|(_, (r, _))| r.kind == RecordKind::Fact)
            .map(|(lsn, _)| *lsn)
            .collect();
        let mut missing = self.live.clone();
        let mut again = Vec::new();
        for stored in found {
            let (record, loc) = &self.records[&stored.lsn.0];
            assert_eq!((&stored.record, stored.loc), (record, *loc), "{}", stored.lsn);
            match record.kind {
                RecordKind::Fact => assert!(missing_facts.remove(&stored.lsn.0)),
                RecordKind::Entry if missing.remove(&stored.lsn.0) => {}
                RecordKind::Entry => again.push(stored.loc),
            }
        }
        assert!(missing.is_empty() && missing_facts.is_empty(), "{missing:?} {missing_facts:?}");
        self.journal = journal;
        self.journal.free(&again).unwrap();
        self.synced = last;
        self.read_back();
    }
}

trait Capacity {
    fn free_bytes_now(&self) -> Option<u64>;
}

impl Capacity for MemDisk {
    fn free_bytes_now(&self) -> Option<u64> {
        use atoll_storage::Disk;
        Some(self.free_bytes().unwrap()).filter(|n| *n != u64::MAX)
    }
}

fn options(block_bytes: u32, first_blocks: u32) -> JournalOptions {
    let mut options = JournalOptions::small(STORAGE);
    options.block_bytes = block_bytes;
    options.first_segment_bytes = block_bytes * first_blocks;
    options
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn synced_records_survive_and_nothing_else_shows(
        ops in prop::collection::vec(op(), 1..120),
        block in prop_oneof![Just(512u32), Just(4096)],
        first_blocks in 4u32..16,
    ) {
        let mut model = Model::new(options(block, first_blocks));
        for op in ops {
            model.run(op);
        }
        model.run(Op::Cut(1));
        model.run(Op::Cut(2));
    }
}
