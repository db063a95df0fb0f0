//! Tests of clients that forge headers of batches in their payloads. A forged header that recovery believed would claim that records beyond
//! the end were synced, and the node would refuse its directory as damaged.

use std::convert::Infallible;
use std::sync::Arc;

use crate::common::{STORAGE, entries};
use atoll_core::{JournalBatch, Lsn, Record, RecordKind, RoleKind, Stored};
use atoll_storage::{DiskPath, Journal, JournalError, JournalOptions, MemDisk, RecoverError, Recovered};
use bytes::Bytes;

const BLOCK: usize = 512;
/// The bytes before the payload of a batch's first record, if that record has no head.
const BEFORE: usize = 40 + 24;
/// The first block of a segment holds the segment's own header.
const FIRST_BATCH: usize = BLOCK;

fn open(disk: &MemDisk, generation_secret: Option<u64>) -> Result<(Journal, Vec<Stored>), JournalError> {
    let options = JournalOptions { generation_secret, ..JournalOptions::small(STORAGE) };
    let mut records = Vec::new();
    let mut visit = |r| {
        if let Recovered::Record(r) = r {
            records.push(r);
        }
        Ok::<_, Infallible>(())
    };
    match Journal::recover(Arc::new(disk.clone()), options, &mut visit) {
        Ok((journal, _)) => Ok((journal, records)),
        Err(RecoverError::Journal(error)) => Err(error),
    }
}

/// Returns a mark for this place that says that 2^62 records were synced.
fn forged_header(generation: u64, offset: usize) -> Vec<u8> {
    let seed = crc32c::crc32c_append(crc32c::crc32c(&STORAGE.0.to_le_bytes()), &generation.to_le_bytes());
    let fields = [
        (offset as u32).to_le_bytes().as_slice(),
        &[0; 12],
        &(1_u64 << 62).to_le_bytes(),
        &((1_u64 << 62) - 1).to_le_bytes(),
    ]
    .concat();
    let crc = crc32c::crc32c_append(seed, &fields).to_le_bytes();
    [b"BTCH".as_slice(), &crc, &fields].concat()
}

/// Returns a batch of one entry that is written at `offset`. Every block that begins in its payload holds a forged header, for one of
/// `generations` after the other.
fn forged(lsn: u64, offset: usize, bytes: usize, generations: std::ops::Range<u64>) -> JournalBatch {
    let start = offset + BEFORE;
    let mut payload = vec![0x5a; bytes];
    let blocks = (start.next_multiple_of(BLOCK)..start + bytes - 40).step_by(BLOCK);
    for (block, generation) in blocks.zip(generations.cycle()) {
        payload[block - start..][..40].copy_from_slice(&forged_header(generation, block));
    }
    let record =
        Record { owner: RoleKind(1), kind: RecordKind::Entry, head: Bytes::new(), payload: payload.into() };
    JournalBatch::of(vec![(Lsn(lsn), record)])
}

fn segment(generation: u64) -> DiskPath {
    DiskPath::new(&format!("journal/{generation:016x}.seg")).unwrap()
}

#[test]
fn a_payload_is_never_a_header() {
    for is_last in [false, true] {
        let disk = MemDisk::new();
        let (mut journal, _) = open(&disk, None).unwrap();
        let batch = forged(1, FIRST_BATCH, 20_000, 1..2);
        let place = journal.write(&batch).unwrap()[0].1;
        assert_eq!(
            (place.segment, place.offset_bytes as usize),
            (1, FIRST_BATCH + 40),
            "as the client guessed"
        );
        if !is_last {
            journal.sync().unwrap();
            journal.write(&entries(2, 1, 100)).unwrap();
        }
        // The process dies without a clean end.
        drop(journal);
        disk.kill_process();
        let (_, records) = open(&disk, None).unwrap();
        let whole: Vec<_> = records.iter().map(|stored| stored.lsn).collect();
        assert_eq!(whole, if is_last { vec![Lsn(1)] } else { vec![Lsn(1), Lsn(2)] });
        assert_eq!(records[0].record, batch.records[0].1);
    }
}

/// Returns what recovery says of a segment whose last batch a crash has torn in the middle of forged headers.
fn torn(secret: Option<u64>) -> Result<Vec<Stored>, JournalError> {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, secret).unwrap();
    journal.write(&entries(1, 1, 100)).unwrap();
    journal.sync().unwrap();
    // Only the second batch is forged, at the third block. The client guesses the generations of a journal that is new.
    let batch = forged(2, FIRST_BATCH + BLOCK, 20_000, 1..9);
    let place = journal.write(&batch).unwrap()[0].1;
    assert_eq!(place.offset_bytes as usize, FIRST_BATCH + BLOCK + 40);
    assert!(disk.flip_bit(&segment(place.segment), u64::from(place.offset_bytes) + 5_000, 1));
    drop(journal);
    disk.kill_process();
    open(&disk, secret).map(|(_, records)| records)
}

#[test]
fn with_a_secret_nobody_can_forge_what_a_torn_batch_holds() {
    assert_eq!(torn(Some(0xa7011)).unwrap().len(), 1);
    let without = torn(None);
    assert!(matches!(without, Err(JournalError::Damaged { .. })), "what the secret prevents: {without:?}");
}

/// Returns what recovery says of a segment in a file whose earlier use has left forged headers behind.
fn recycled(secret: Option<u64>) -> Result<Vec<Stored>, JournalError> {
    let disk = MemDisk::new();
    let (mut journal, _) = open(&disk, secret).unwrap();
    let first = journal.write(&entries(1, 1, 100)).unwrap()[0].1;
    journal.sync().unwrap();
    // Even a client that knows the current generation does not know the later ones.
    let guesses = first.segment + 1..first.segment + 8;
    let old = journal.write(&forged(2, FIRST_BATCH + BLOCK, 60_000, guesses)).unwrap()[0].1;
    journal.sync().unwrap();
    let mut next = 3;
    let mut write = |journal: &mut Journal, bytes| {
        if let Some(job) = journal.needs_segment() {
            journal.prepared(job.run()).unwrap();
        }
        let place = journal.write(&entries(next, 1, bytes)).unwrap()[0].1;
        next += 1;
        journal.sync().unwrap();
        place
    };
    let second = write(&mut journal, 60_000);
    assert!(first.segment == old.segment && second.segment > old.segment);
    journal.free(&[first, old]).unwrap();
    assert_eq!((journal.stats().recycled, journal.stats().spare_segments), (1, 1));
    // The next segment is made from the freed file. Most of it still holds what the client wrote.
    write(&mut journal, 10_000);
    assert_eq!((journal.stats().spare_segments, journal.stats().ready_segments), (0, 0));
    drop(journal);
    disk.kill_process();
    open(&disk, secret).map(|(_, records)| records)
}

#[test]
fn with_a_secret_nobody_can_forge_what_a_recycled_file_holds() {
    assert_eq!(recycled(Some(0xa7011)).unwrap().len(), 2);
    let without = recycled(None);
    assert!(matches!(without, Err(JournalError::Damaged { .. })), "what the secret prevents: {without:?}");
}

#[test]
fn generations_rise_whatever_the_secret() {
    for secret in [None, Some(0), Some(1), Some(u64::MAX)] {
        let disk = MemDisk::new();
        let mut generations = Vec::new();
        let mut next = 1;
        for _ in 0..3 {
            let (mut journal, _) = open(&disk, secret).unwrap();
            for _ in 0..4 {
                generations.push(journal.write(&entries(next, 1, 40_000)).unwrap()[0].1.segment);
                next += 1;
                journal.sync().unwrap();
            }
        }
        assert!(generations.windows(2).all(|pair| pair[0] < pair[1]), "{secret:?}: {generations:?}");
        let consecutive = generations.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        assert_eq!(consecutive, secret.is_none(), "{secret:?}: {generations:?}");
        let (_, records) = open(&disk, None).unwrap();
        assert_eq!(records.len(), generations.len(), "a program without the secret reads it");
    }
}
