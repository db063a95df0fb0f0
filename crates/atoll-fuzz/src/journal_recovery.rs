//! Fuzzes the recovery of a data directory. No bytes make it panic, and what it hands out is durable. From a valid journal with flipped
//! bits it hands out only what was written, and everything before the last record that it hands out (native-T9).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};

use atoll_core::{Checkpoint, JournalBatch, Lsn, Record, RecordKind, RoleKind, StorageId};
use atoll_storage::{
    Disk, DiskPath, Journal, JournalError, JournalOptions, MemDisk, Open, RecoverError, Recovered,
};
use bytes::Bytes;

use crate::input::{Input, path, put};

const STORAGE: StorageId = StorageId(0x5eed);
const BLOCK_BYTES: usize = 512;
/// A 32-bit checksum detects this many wrong bits with certainty in records as short as these.
const MAX_FLIPS: usize = 3;
/// No record is appended after a number above this, which no journal reaches.
const MAX_LSN: u64 = 1 << 60;

fn options() -> JournalOptions {
    let mut options = JournalOptions::small(STORAGE);
    options.segment_bytes = 8 * BLOCK_BYTES as u32;
    options.first_segment_bytes = 8 * BLOCK_BYTES as u32;
    options.checkpoint_reserve_bytes = BLOCK_BYTES as u64;
    options
}

/// Everything that a recovery hands out.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    checkpoint: Option<Checkpoint>,
    records: Vec<(u64, Record)>,
    last: Lsn,
}

fn open(disk: &MemDisk) -> Result<(Journal, Found), JournalError> {
    let mut found = Found { checkpoint: None, records: Vec::new(), last: Lsn::NONE };
    let visit = &mut |recovered| {
        match recovered {
            Recovered::Checkpoint(checkpoint) => {
                assert!(
                    found.checkpoint.is_none() && found.records.is_empty(),
                    "the checkpoint comes first, once"
                );
                found.checkpoint = Some(checkpoint);
            }
            Recovered::Record(stored) => found.records.push((stored.lsn.0, stored.record)),
        }
        Ok::<_, Infallible>(())
    };
    let (journal, last) = match Journal::recover(Arc::new(disk.clone()), options(), visit) {
        Ok(opened) => opened,
        Err(RecoverError::Journal(error)) => return Err(error),
    };
    found.last = last;
    assert!(found.records.is_sorted_by(|a, b| a.0 < b.0), "numbers rise");
    assert!(found.records.iter().all(|(lsn, _)| *lsn <= last.0), "none above the last");
    Ok((journal, found))
}

/// A journal as the product wrote it.
struct Written {
    disk: MemDisk,
    records: BTreeMap<u64, Record>,
    whole: Found,
    files: Vec<DiskPath>,
}

fn record(kind: RecordKind, n: u64, size: usize) -> Record {
    let bytes = |salt: u64, len: usize| (0..len as u64).map(|i| (n * 31 + salt + i * 7) as u8).collect();
    let (head, payload) = (bytes(1, size % 40), bytes(2, size));
    Record { owner: RoleKind(1 + (n % 3) as u8), kind, head, payload }
}

fn segment(generation: u64) -> DiskPath {
    path(&format!("journal/{generation:016x}.seg"))
}

/// Writes three synced batches in two segments and a mark, with or without a checkpoint in between.
fn write(with_checkpoint: bool) -> Result<Written, JournalError> {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk)?;
    let mut records = BTreeMap::new();
    let batches =
        [(1, 2, RecordKind::Entry, 700), (3, 2, RecordKind::Fact, 300), (5, 2, RecordKind::Entry, 600)];
    for (first, count, kind, size) in batches {
        let batch: Vec<_> = (first..first + count).map(|n| (Lsn(n), record(kind, n, size))).collect();
        records.extend(batch.iter().map(|(lsn, record)| (lsn.0, record.clone())));
        journal.write(&JournalBatch::of(batch))?;
        journal.sync()?;
        if with_checkpoint && first == 3 {
            let states = vec![(RoleKind(1), Bytes::from_static(b"state"))];
            journal.write_checkpoint(&Checkpoint { covers: Lsn(4), states })?;
        }
    }
    journal.mark()?;
    journal.sync()?;
    drop(journal);
    let (_, whole) = open(&disk.fork())?;
    let names = disk.list(&path("journal"))?;
    let manifest = [path("journal.manifest")];
    let files = names.iter().map(|name| path(&format!("journal/{name}"))).chain(manifest).collect();
    Ok(Written { disk, records, whole, files })
}

fn written(with_checkpoint: bool) -> &'static Written {
    static WRITTEN: OnceLock<[Written; 2]> = OnceLock::new();
    let make = |with| match write(with) {
        Ok(written) => written,
        Err(error) => panic!("an undamaged disk takes a journal: {error}"),
    };
    &WRITTEN.get_or_init(|| [make(false), make(true)])[usize::from(with_checkpoint)]
}

/// Opens the journal and appends one more record. If that works, a second recovery must find everything again.
fn survives(disk: &MemDisk) -> Option<Found> {
    let (mut journal, found) = open(disk).ok()?;
    let mut expected: Vec<(u64, Record)> = found.records.clone();
    if found.last.0 < MAX_LSN {
        let lsn = Lsn(found.last.0 + 1);
        let one = record(RecordKind::Entry, lsn.0 % 1000, 10);
        let more = JournalBatch::of(vec![(lsn, one.clone())]);
        if journal.write(&more).is_ok() && journal.sync().is_ok() {
            expected.push((lsn.0, one));
        }
    }
    drop(journal);
    disk.crash(&mut || false);
    match open(disk) {
        Ok((_, again)) => {
            assert_eq!((again.checkpoint.as_ref(), again.records), (found.checkpoint.as_ref(), expected))
        }
        Err(error) => panic!("it was opened, and cannot be opened again: {error}"),
    }
    Some(found)
}

/// The first byte selects what is done, the second which journal is used; the rest says where.
pub fn run(input: &[u8]) {
    let mut input = Input(input);
    let (what, with_checkpoint) = (input.number(1) % 4, input.number(1) % 2 == 1);
    let base = written(with_checkpoint);
    match what {
        0 => any_files(&mut input),
        1 => overwritten(base, &mut input),
        2 => forged(base, &mut input),
        _ => flipped(base, &mut input),
    }
}

/// Tests files with arbitrary content.
fn any_files(input: &mut Input) {
    // The manifest lists the first segment. Without a manifest, most of what follows would be refused unread.
    let disk = MemDisk::new();
    assert!(open(&disk).is_ok(), "an empty directory takes a journal");
    for _ in 0..4 {
        let (name, len) = (input.number(1), input.number(2) as usize);
        let file = match name % 6 {
            0 => path("journal/checkpoint"),
            1 => path(&format!("journal/spare-{:016x}.seg", name / 6)),
            _ => segment(name % 6 - 1),
        };
        put(&disk, &file, 0, input.take(len % 8192), Open::Create);
    }
    assert!(disk.sync_dir(&path("journal")).is_ok());
    survives(&disk);
}

/// Tests a valid journal in which bytes are overwritten and files are cut.
fn overwritten(base: &Written, input: &mut Input) {
    let disk = base.disk.fork();
    while !input.is_empty() {
        let file = &base.files[input.number(1) as usize % base.files.len()];
        let (offset, len) = (input.number(2) % 4096, input.number(1) as usize);
        if len == 255 {
            let Ok(mut file) = disk.open(file, Open::Write) else { continue };
            assert!(file.set_len(offset).and_then(|()| file.sync_data()).is_ok());
        } else {
            put(&disk, file, offset, input.take(len), Open::Write);
        }
    }
    survives(&disk);
}

/// Tests headers, footers and records with wrong numbers and right checksums, in the format of `format.rs`.
fn forged(base: &Written, input: &mut Input) {
    let disk = base.disk.fork();
    for _ in 0..3 {
        let (what, generation) = (input.number(1), 1 + input.number(1) % 3);
        let seed = crc32c::crc32c_append(crc32c::crc32c(&STORAGE.0.to_le_bytes()), &generation.to_le_bytes());
        let block = BLOCK_BYTES as u64 * (input.number(1) % 8);
        let (offset, bytes) = match what % 4 {
            0 => {
                let mut bytes = b"ATOLSEG\n".to_vec();
                bytes.extend((1 + u32::from(what & 8 == 0)).to_le_bytes());
                bytes.extend((input.number(4) as u32).to_le_bytes());
                bytes.extend(if what & 4 == 0 { generation } else { input.number(8) }.to_le_bytes());
                bytes.extend(input.number(8).to_le_bytes());
                bytes.extend(STORAGE.0.to_le_bytes());
                bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
                (0, bytes)
            }
            1 => {
                let mut fields = (if what & 4 == 0 { block as u32 } else { input.number(4) as u32 })
                    .to_le_bytes()
                    .to_vec();
                fields.extend((input.number(4) as u32).to_le_bytes());
                fields.extend((input.number(4) as u32).to_le_bytes());
                fields.extend([0; 4]);
                fields.extend(input.number(8).to_le_bytes());
                fields.extend(input.number(8).to_le_bytes());
                (block, checked(b"BTCH", seed, &fields))
            }
            2 => {
                let mut fields = (input.number(4) as u32).to_le_bytes().to_vec();
                fields.extend([0; 4]);
                (0..3).for_each(|_| fields.extend(input.number(8).to_le_bytes()));
                (7 * BLOCK_BYTES as u64, checked(b"FOOT", seed, &fields))
            }
            _ => {
                let body = input.take(input.0.first().copied().unwrap_or(0).into());
                let mut fields = (24 + body.len() as u32).to_le_bytes().to_vec();
                fields.extend(input.number(8).to_le_bytes());
                fields.extend([1, input.number(1) as u8, 0, 0]);
                fields.extend((input.number(2) as u32).to_le_bytes());
                fields.extend(body);
                let crc = crc32c::crc32c_append(seed, &fields).to_le_bytes();
                (block + 40, [&crc, fields.as_slice()].concat())
            }
        };
        put(&disk, &segment(generation), offset, &bytes, Open::Write);
    }
    survives(&disk);
}

fn checked(magic: &[u8; 4], seed: u32, fields: &[u8]) -> Vec<u8> {
    [magic.as_slice(), &crc32c::crc32c_append(seed, fields).to_le_bytes(), fields].concat()
}

/// Tests bit rot in a valid journal: recovery refuses it, or hands out nothing except what was written.
fn flipped(base: &Written, input: &mut Input) {
    let disk = base.disk.fork();
    let mut flips = 0;
    while !input.is_empty() && flips < MAX_FLIPS {
        let file = &base.files[input.number(1) as usize % base.files.len()];
        let place = input.number(2);
        flips += usize::from(disk.flip_bit(file, place / 8 % 4096, (place % 8) as u8));
    }
    let Some(found) = survives(&disk) else { return };
    for (lsn, record) in &found.records {
        assert_eq!(base.records.get(lsn), Some(record), "record {lsn} was not written");
    }
    assert!(found.checkpoint.is_none() || found.checkpoint == base.whole.checkpoint, "another checkpoint");
    if flips <= 1 {
        // Every record was synced, and a mark after them says so. One wrong bit cannot hide any of that.
        assert_eq!(found, base.whole, "records are missing, and recovery went on");
    } else {
        // More wrong bits can hide the proof that the last batches were synced. These then look torn, but no record before them may be
        // missing.
        let whole = base.whole.records.iter().take_while(|(lsn, _)| *lsn <= found.last.0);
        assert!(whole.eq(&found.records), "a record is missing in the middle");
    }
}

/// Returns inputs for each test.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![0; 12], vec![3, 0], vec![3, 1]];
    for with_checkpoint in [false, true] {
        let base = written(with_checkpoint);
        let mut files = vec![0, 0];
        for (i, file) in base.files.iter().enumerate() {
            let Ok(open) = base.disk.open(file, Open::Read) else { continue };
            let mut bytes = vec![0; open.len().unwrap_or(0) as usize];
            let read = open.read_at(0, &mut bytes).unwrap_or(0);
            bytes.truncate(read.min(4096));
            let name = if file.as_str().ends_with("checkpoint") { 0 } else { 2 + i as u8 % 3 };
            files.push(name);
            files.extend((bytes.len() as u16).to_le_bytes());
            files.extend(bytes);
        }
        seeds.push(files);
        let with = u8::from(with_checkpoint);
        seeds.push([&[1, with, 0, 0, 2, 40], &[0x41; 40][..]].concat());
        seeds.push(vec![1, with, 1, 0, 6, 255]);
        seeds.push(vec![2, with, 1, 0, 1, 1, 0, 0, 0, 60, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 6]);
        seeds.push([&[2, with, 3, 1, 1, 30], &[9; 50][..]].concat());
        seeds.push(vec![2, with, 2, 0, 0, 0, 14, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 6]);
        seeds.push(vec![3, with, 0, 100, 20, 1, 3, 40, 2, 255, 8]);
    }
    seeds
}
