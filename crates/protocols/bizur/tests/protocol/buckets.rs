//! Properties of buckets: codecs, limits, and writes that take effect once.

use std::collections::BTreeMap;

use atoll_bizur::{
    Applied, Bucket, BucketWrite, MAX_BUCKET_BYTES, MAX_CONTENT_BYTES, MAX_VALUE_BYTES, Outcome,
    REMEMBERED_REPEATS, REMEMBERED_WRITES, mutants,
};
use atoll_contract::keyspace::{Change, Guard, KeyVersion};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Decode, Encode};
use bytes::Bytes;
use proptest::prelude::*;

fn write(seq: u64, key: &str, guard: Guard, change: Change) -> BucketWrite {
    let op = OpId { client: ClientId(1), seq };
    BucketWrite { op, floor: 0, repeat: false, key: Bytes::copy_from_slice(key.as_bytes()), guard, change }
}

fn put(seq: u64, key: &str, value: Bytes) -> BucketWrite {
    write(seq, key, Guard::Always, Change::Put(value))
}

fn apply(bucket: &mut Bucket, write: &BucketWrite) -> Applied {
    let from = bucket.content_bytes();
    bucket.apply(write, from, usize::MAX)
}

fn guards() -> impl Strategy<Value = Guard> {
    prop_oneof![
        4 => Just(Guard::Always),
        1 => Just(Guard::Absent),
        1 => Just(Guard::Present),
        1 => (0u64..40).prop_map(|version| Guard::Version(KeyVersion(version))),
        1 => (0u8..4).prop_map(|v| Guard::Value(Bytes::from(vec![v; 3]))),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        3 => (0u8..4).prop_map(|v| Change::Put(Bytes::from(vec![v; 3]))),
        1 => Just(Change::Delete),
    ]
}

proptest! {
    /// A bucket does what a map does, comes back from its bytes at every step, and every truncation of them is refused.
    #[test]
    fn a_bucket_is_a_map(writes in prop::collection::vec((0u8..5, 0u64..3, guards(), changes()), 0..80)) {
        let (mut bucket, mut model) = (Bucket::default(), BTreeMap::<String, (u64, Bytes)>::new());
        for (n, (key, client, guard, change)) in writes.into_iter().enumerate() {
            let name = format!("key-{key}");
            let now = model.get(&name).cloned();
            let holds = guard.holds(now.as_ref().map(|(v, value)| (KeyVersion(*v), &value[..])));
            let mut request = write(n as u64 + 1, &name, guard, change.clone());
            request.op.client = ClientId(client);
            // The writer has seen the bucket before.
            request.floor = bucket.clock();
            let applied = apply(&mut bucket, &request);
            match (holds && (change != Change::Delete || now.is_some()), change) {
                (false, _) => prop_assert_eq!(applied, Applied::Not),
                (true, change) => {
                    let version = bucket.clock();
                    prop_assert_eq!(applied, Applied::Changed(Outcome::Done(version)));
                    match change {
                        Change::Put(value) => drop(model.insert(name.clone(), (version, value))),
                        Change::Delete => drop(model.remove(&name)),
                    }
                    prop_assert_eq!(apply(&mut bucket, &request), Applied::Before(Outcome::Done(version)));
                }
            }
            let held = bucket.get(name.as_bytes()).map(|(v, value)| (v, value.clone()));
            prop_assert_eq!(held, model.get(&name).cloned());
        }
        let bytes = bucket.to_bytes();
        prop_assert_eq!(Bucket::from_bytes(bytes.clone()), Ok(bucket));
        for n in 0..bytes.len() {
            prop_assert!(Bucket::from_bytes(bytes.slice(..n)).is_err());
        }
    }

    /// Bytes that are no bucket are refused or are one; nothing panics.
    #[test]
    fn damaged_buckets_are_refused_or_consistent(at in 0usize..250, bit in 0u8..8) {
        let mut bucket = Bucket::default();
        for n in 1..6 {
            let mut write = put(n, &format!("k{n}"), Bytes::from(vec![1; 5]));
            write.op.client = ClientId(n / 2);
            apply(&mut bucket, &write);
        }
        let mut bytes = bucket.to_bytes().to_vec();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(read) = Bucket::from_bytes(bytes.clone().into()) {
            prop_assert_eq!(read.to_bytes(), Bytes::from(bytes));
        }
    }
}

/// A full bucket refuses what is longer, before it is too long, and takes what is not. A deletion makes room.
#[test]
fn a_full_bucket_takes_what_is_as_long() {
    let mut bucket = Bucket::default();
    let value = |v: u8, n: usize| Bytes::from(vec![v; n]);
    let mut seq = 0;
    let mut next = |bucket: &mut Bucket, key: &str, value: Bytes| {
        seq += 1;
        let mut write = put(seq, key, value);
        write.floor = bucket.clock();
        apply(bucket, &write)
    };
    assert!(matches!(next(&mut bucket, "a", value(1, MAX_VALUE_BYTES)), Applied::Changed(_)));
    let rest = MAX_CONTENT_BYTES - bucket.content_bytes() - "b".len() - 16;
    assert_eq!(next(&mut bucket, "b", value(1, rest + 1)), Applied::Full { bucket: true });
    assert!(matches!(next(&mut bucket, "b", value(1, rest)), Applied::Changed(_)));
    assert_eq!(bucket.content_bytes(), MAX_CONTENT_BYTES);
    assert_eq!(next(&mut bucket, "c", value(1, 0)), Applied::Full { bucket: true });
    for n in 0..3 * REMEMBERED_WRITES {
        assert!(matches!(next(&mut bucket, "b", value(n as u8, rest)), Applied::Changed(_)));
    }
    let bytes = bucket.to_bytes();
    assert!(bytes.len() <= MAX_BUCKET_BYTES, "{} bytes", bytes.len());
    assert_eq!(Bucket::from_bytes(bytes), Ok(bucket.clone()));
    seq += 1000;
    let mut delete = write(seq, "b", Guard::Always, Change::Delete);
    delete.floor = bucket.clock();
    assert!(matches!(apply(&mut bucket, &delete), Applied::Changed(_)));
    let mut longer = put(seq + 1, "c", value(1, 10));
    longer.floor = bucket.clock();
    assert!(matches!(apply(&mut bucket, &longer), Applied::Changed(_)));
}

/// Replicas without room take no longer content, whatever the outcomes in the bucket.
#[test]
fn without_room_only_longer_content_is_refused() {
    let mut bucket = Bucket::default();
    apply(&mut bucket, &put(1, "a", Bytes::from_static(b"123")));
    let from = bucket.content_bytes();
    let longer = bucket.apply(&put(2, "a", Bytes::from_static(b"1234")), from, 0);
    assert_eq!(longer, Applied::Full { bucket: false });
    let same = bucket.apply(&put(3, "a", Bytes::from_static(b"456")), from, 0);
    assert!(matches!(same, Applied::Changed(_)));
    let shorter = bucket.apply(&put(4, "a", Bytes::new()), from, 0);
    assert!(matches!(shorter, Applied::Changed(_)));
}

/// A write whose outcome may have been forgotten is refused, unless its floor shows that it cannot have been.
#[test]
fn a_forgotten_write_is_not_done_again() {
    let mut bucket = Bucket::default();
    let first = put(1, "a", Bytes::from_static(b"first"));
    apply(&mut bucket, &first);
    for n in 0..REMEMBERED_WRITES as u64 {
        let mut next = put(100 + n, "b", Bytes::from_static(b"x"));
        next.floor = bucket.clock();
        apply(&mut bucket, &next);
    }
    assert_eq!(apply(&mut bucket, &first), Applied::Stale);
    assert_eq!(apply(&mut bucket, &put(2, "a", Bytes::new())), Applied::Stale, "it might be a repeat");
    let mut new = put(2, "a", Bytes::from_static(b"second"));
    new.floor = bucket.clock();
    assert!(matches!(apply(&mut bucket, &new), Applied::Changed(_)));
}

/// The attempt before a repeat may be held up, at a client that learns of the bucket's clock only afterwards. It is not done, however many
/// writes have followed, until as many repeats have.
#[test]
fn an_attempt_that_comes_long_after_its_repeat_is_not_done_again() {
    let late = |bug| {
        set_mutant(bug);
        let mut bucket = Bucket::default();
        let first = put(1, "a", Bytes::from_static(b"first"));
        apply(&mut bucket, &BucketWrite { repeat: true, ..first.clone() });
        let refused = write(2, "c", Guard::Present, Change::Put(Bytes::from_static(b"x")));
        apply(&mut bucket, &BucketWrite { repeat: true, ..refused.clone() });
        for n in 0..2 * REMEMBERED_WRITES as u64 {
            let key = if n == 0 { "c" } else { "b" };
            let next = BucketWrite { floor: bucket.clock(), ..put(100 + n, key, Bytes::from_static(b"x")) };
            apply(&mut bucket, &next);
        }
        let mut bucket = Bucket::from_bytes(bucket.to_bytes()).unwrap();
        let floor = bucket.clock();
        let done = [first, refused].map(|write| apply(&mut bucket, &BucketWrite { floor, ..write }));
        set_mutant(Mutant::NONE);
        (bucket, done)
    };
    let (mut bucket, done) = late(Mutant::NONE);
    assert_eq!(done, [Applied::Before(Outcome::Done(1)), Applied::Before(Outcome::Failed)]);
    let (_, done) = late(mutants::BIZUR_FORGETS_REPEATS);
    assert!(done.iter().all(|applied| matches!(applied, Applied::Changed(_))), "the bug shows");
    let before = bucket.to_bytes().len();
    for n in 0..REMEMBERED_REPEATS as u64 {
        let floor = bucket.clock();
        let next = put(1000 + n, "b", Bytes::from_static(b"x"));
        apply(&mut bucket, &BucketWrite { floor, repeat: true, ..next });
    }
    assert!(bucket.to_bytes().len() <= before + 25 * REMEMBERED_REPEATS, "bounded");
    let floor = bucket.clock();
    let first = BucketWrite { floor, ..put(1, "a", Bytes::from_static(b"first")) };
    assert!(matches!(apply(&mut bucket, &first), Applied::Changed(_)), "the bound");
}

/// A repeat whose condition does not hold is recorded, so that an attempt that is still under way does not take effect later.
#[test]
fn a_refused_repeat_stays_refused() {
    let mut bucket = Bucket::default();
    let present = write(1, "a", Guard::Present, Change::Put(Bytes::from_static(b"x")));
    let repeat = BucketWrite { repeat: true, ..present.clone() };
    assert_eq!(apply(&mut bucket, &present), Applied::Not);
    assert_eq!(apply(&mut bucket, &repeat), Applied::Changed(Outcome::Failed));
    apply(&mut bucket, &put(2, "a", Bytes::from_static(b"there")));
    let mut bucket = Bucket::from_bytes(bucket.to_bytes()).unwrap();
    assert_eq!(apply(&mut bucket, &present), Applied::Before(Outcome::Failed));
    assert_eq!(apply(&mut bucket, &repeat), Applied::Before(Outcome::Failed));
}

/// What a bucket remembers of the writes of one client takes few bytes. It is written with every change.
#[test]
fn outcomes_of_one_client_name_it_once() {
    let mut bucket = Bucket::default();
    for n in 0..2 * REMEMBERED_WRITES as u64 {
        let mut next = put(n, "a", Bytes::from_static(b"x"));
        next.floor = bucket.clock();
        apply(&mut bucket, &next);
    }
    let bytes = bucket.to_bytes().len();
    assert!(bytes <= bucket.content_bytes() + 30 + 9 * REMEMBERED_WRITES, "{bytes} bytes");
}
