//! Fuzzes batches of entries. Bytes that parse consist of whole entries, and building the batch again gives the same bytes.

use atoll_contract::{Batch, ClientId, Entry, OpId};
use bytes::Bytes;

/// The input is the encoded batch.
pub fn run(input: &[u8]) {
    let Ok(batch) = Batch::parse(Bytes::copy_from_slice(input)) else { return };
    assert!(!batch.is_empty(), "a batch that parsed has an entry");
    assert_eq!(batch.bytes(), input);
    let entries: Vec<Entry> = batch.entries().collect();
    assert_eq!(entries.len(), batch.len());
    assert!(batch.ops().eq(entries.iter().map(|e| e.op)), "names differ from those of the entries");
    assert_eq!(Batch::of(entries.clone()), batch, "built anew, it is another batch");

    let n = batch.len();
    let cuts = [(0, n), (0, 1), (n - 1, n), (n / 2, n), (n / 3, n / 3 + 1)];
    for (from, to) in cuts.into_iter().filter(|(from, to)| from < to) {
        let part = batch.slice(from, to);
        assert!(part.entries().eq(entries[from..to].iter().cloned()), "slice {from} to {to} has others");
        assert_eq!(Batch::parse(part.bytes().clone()).as_ref(), Ok(&part));
    }
}

/// Returns valid batches.
pub fn seeds() -> Vec<Vec<u8>> {
    let batch = |sizes: &[usize]| {
        let entry = |(i, n): (usize, &usize)| {
            let op = OpId { client: ClientId(1 + i as u64 % 2), seq: i as u64 };
            Entry { op, payload: Bytes::from(vec![i as u8; *n]) }
        };
        Batch::of(sizes.iter().enumerate().map(entry)).bytes().to_vec()
    };
    vec![batch(&[0]), batch(&[5, 0, 300]), batch(&[1; 20]), batch(&[4000, 1])]
}
