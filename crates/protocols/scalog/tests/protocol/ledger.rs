//! The ordering state machine against the oracle's ledger, which numbers records one by one: random entries, with proposals that are lost,
//! repeated, reordered and too low, shards that come and go, and seals. The known bugs of the state machine must show. Also the codec.

use atoll_contract::testing::Violations;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Decode, Encode, NodeId, StorageId};
use atoll_scalog::config::CONFIG_FORMAT;
use atoll_scalog::order::{Order, OrderEntry, ShardCut};
use atoll_scalog::testing::oracle::{Ledger, Spot};
use atoll_scalog::{OrderingSpec, ScalogConfig, Server, ShardSpec, mutants};
use bytes::Bytes;
use proptest::prelude::*;

fn shard(shard: u32, servers: u32) -> ShardSpec {
    let server =
        |n: u32| Server { node: NodeId(shard * 10 + n), storage: StorageId((shard * 10 + n).into()) };
    ShardSpec { shard, servers: (1..=servers).map(server).collect() }
}

fn config() -> ScalogConfig {
    ScalogConfig {
        format: CONFIG_FORMAT,
        shards: vec![shard(2, 2), shard(4, 3)],
        aggregators: Vec::new(),
        orderers: vec![NodeId(1)],
        interval_us: 100,
        added: Vec::new(),
        wanted: (2, 2),
        ordering: OrderingSpec { kind: "log".into(), config: Bytes::new() },
    }
}

fn cut() -> impl Strategy<Value = OrderEntry> {
    let one = (0..6u32, prop::collection::vec(0..40u64, 1..4));
    prop::collection::vec(one, 1..4).prop_map(|all| {
        let mut cut: Vec<ShardCut> = Vec::new();
        for (shard, counts) in all {
            if !cut.iter().any(|c| c.shard == shard) {
                cut.push(ShardCut { shard, counts });
            }
        }
        OrderEntry { cut, ..OrderEntry::nothing() }
    })
}

fn entry() -> impl Strategy<Value = OrderEntry> {
    prop_oneof![
        20 => cut(),
        2 => (0..6u32, 1..4u32).prop_map(|(n, size)| OrderEntry { add: vec![shard(n, size)], ..OrderEntry::nothing() }),
        2 => (0..6u32, 0..3u32).prop_map(|end| OrderEntry { finalize: vec![end], ..OrderEntry::nothing() }),
        1 => (cut(), 0..6u32).prop_map(|(cut, n)| OrderEntry { finalize: vec![(n, 0)], add: vec![shard(5, 2)], ..cut }),
        1 => (cut(), 0..6u32, 0..6u32).prop_map(|(cut, n, m)| OrderEntry { stuck: vec![n, m], ..cut }),
        1 => (0..99u64).prop_map(|trim| OrderEntry { trim, ..OrderEntry::nothing() }),
    ]
}

/// Returns the first difference between the state machine and the ledger.
fn difference(entries: &[OrderEntry]) -> Option<String> {
    let (mut order, mut ledger, mut verdict) =
        (Order::new(&config()), Ledger::default(), Violations::default());
    ledger.begin(&config());
    for (at, entry) in entries.iter().enumerate() {
        let before = ledger.records().len() as u64;
        let expected: Vec<(Spot, u64)> =
            ledger.entry(at as u64, &entry.to_bytes(), &mut verdict).into_iter().zip(before..).collect();
        let numbered = order.apply(entry).records;
        let found: Vec<(Spot, u64)> = numbered
            .iter()
            .flat_map(|r| (0..r.count).map(move |i| ((r.shard, r.segment, r.first + i), r.gsn + i)))
            .collect();
        if found != expected || order.base() != ledger.records().len() as u64 {
            return Some(format!("entry {at}: {found:?} instead of {expected:?}"));
        }
    }
    verdict.failures.pop()
}

proptest! {
    #[test]
    fn the_state_machine_numbers_as_the_oracle_does(
        mut entries in prop::collection::vec(entry(), 1..40),
        seal in prop::option::of(0..40usize),
    ) {
        if let Some(at) = seal && at < entries.len() {
            entries[at].seal = true;
        }
        prop_assert_eq!(difference(&entries), None);
    }

    #[test]
    fn entries_survive_the_codec(entry in entry(), cutoff in 0..64usize) {
        let bytes = entry.to_bytes();
        prop_assert_eq!(OrderEntry::from_bytes(bytes.clone()), Ok(entry));
        if cutoff < bytes.len() {
            prop_assert!(OrderEntry::from_bytes(bytes.slice(..cutoff)).is_err());
        }
    }
}

/// A new orderer that has heard of one server only, and an order of two cuts.
fn caught(mutant: Mutant) -> bool {
    let cut = |counts: &[u64]| OrderEntry {
        cut: vec![ShardCut { shard: 2, counts: counts.to_vec() }],
        ..OrderEntry::nothing()
    };
    let entries = [cut(&[2, 1]), cut(&[0, 0]), cut(&[3, 1])];
    assert_eq!(difference(&entries), None);
    set_mutant(mutant);
    let found = difference(&entries);
    set_mutant(Mutant::NONE);
    found.is_some()
}

#[test]
fn mutant_s2_is_caught() {
    assert!(caught(mutants::SCALOG_S2));
}

#[test]
fn mutant_s3_is_caught() {
    assert!(caught(mutants::SCALOG_S3));
}
