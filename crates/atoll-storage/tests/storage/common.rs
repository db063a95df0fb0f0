//! Records for the journal's tests.

use atoll_core::{JournalBatch, Lsn, Record, RecordKind, RoleKind, StorageId};
use bytes::Bytes;

pub const STORAGE: StorageId = StorageId(0x5eed);

/// Returns a record whose bytes are determined by `n` and its size.
pub fn record(kind: RecordKind, n: u64, size: usize) -> Record {
    let fill = |salt: u64, len: usize| -> Bytes {
        (0..len as u64).map(|i| (n.wrapping_mul(31).wrapping_add(salt + i * 7) >> (i % 5)) as u8).collect()
    };
    let head = [n.to_le_bytes().as_slice(), &fill(1, size % 40)].concat();
    Record { owner: RoleKind(1 + (n % 3) as u8), kind, head: head.into(), payload: fill(2, size) }
}

/// Returns entries of this size, numbered from `first`.
pub fn entries(first: u64, count: u64, size: usize) -> JournalBatch {
    batch(RecordKind::Entry, first, count, size)
}

/// Returns facts of this size, numbered from `first`.
pub fn facts(first: u64, count: u64, size: usize) -> JournalBatch {
    batch(RecordKind::Fact, first, count, size)
}

fn batch(kind: RecordKind, first: u64, count: u64, size: usize) -> JournalBatch {
    JournalBatch::of((first..first + count).map(|n| (Lsn(n), record(kind, n, size))).collect())
}
