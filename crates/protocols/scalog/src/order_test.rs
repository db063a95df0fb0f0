use super::*;
use crate::config::tests::{config, shard};
use crate::config::{ScalogConfig, ShardError};

fn cut(shards: &[(u32, &[u64])]) -> OrderEntry {
    let cut =
        shards.iter().map(|(shard, counts)| ShardCut { shard: *shard, counts: counts.to_vec() }).collect();
    OrderEntry { cut, ..OrderEntry::nothing() }
}

fn gsns(applied: &Applied) -> Vec<((u32, usize, u64), u64)> {
    let all = applied.records.iter();
    all.flat_map(|r| (0..r.count).map(|i| ((r.shard, r.segment, r.first + i), r.gsn + i))).collect()
}

fn two_shards() -> ScalogConfig {
    config(vec![shard(0, &[1, 2]), shard(1, &[3, 4])])
}

/// The example of scalog.md §5.
#[test]
fn the_example_of_the_notes_holds() {
    let mut order = Order::new(&two_shards());
    let first = order.apply(&cut(&[(0, &[2, 2]), (1, &[1, 0])]));
    assert_eq!(
        gsns(&first),
        [((0, 0, 0), 0), ((0, 0, 1), 1), ((0, 1, 0), 2), ((0, 1, 1), 3), ((1, 0, 0), 4)]
    );
    let second = order.apply(&cut(&[(1, &[2, 2]), (0, &[3, 2])]));
    assert_eq!(gsns(&second), [((0, 0, 2), 5), ((1, 0, 1), 6), ((1, 1, 0), 7), ((1, 1, 1), 8)]);
    let ends = OrderEntry { finalize: vec![(0, 0)], add: vec![shard(2, &[5, 6])], ..OrderEntry::nothing() };
    let done = order.apply(&ends);
    assert_eq!((done.added, done.ended, order.view(), order.base()), (vec![2], vec![0], 1, 9));
    let third = order.apply(&cut(&[(0, &[4, 4]), (1, &[4, 2]), (2, &[1, 0])]));
    assert_eq!(gsns(&third), [((1, 0, 2), 9), ((1, 0, 3), 10), ((2, 0, 0), 11)]);
    assert_eq!((order.base(), order.applied()), (12, 4));
    assert_eq!(order.shards()[&0].counts, [3, 2], "(0, 0, 3) never gets a number");
}

#[test]
fn lost_repeated_and_reordered_proposals_change_no_number() {
    let mut order = Order::new(&two_shards());
    order.apply(&cut(&[(0, &[2, 2])]));
    // A new leader that has heard less.
    assert_eq!(order.apply(&cut(&[(0, &[1, 0])])), Applied::default());
    assert_eq!(order.apply(&cut(&[(0, &[2, 2])])), Applied::default());
    // Each component has its own maximum.
    assert_eq!(gsns(&order.apply(&cut(&[(0, &[1, 3])]))), [((0, 1, 2), 4)]);
    // Malformed, or of a shard that nobody knows (S13).
    assert_eq!(order.apply(&cut(&[(0, &[9]), (7, &[1, 1])])), Applied::default());
    assert_eq!(order.base(), 5);
}

#[test]
fn nothing_changes_after_a_seal_but_the_trim() {
    let mut order = Order::new(&two_shards());
    order.apply(&cut(&[(0, &[2, 2])]));
    let seal = OrderEntry { cut: cut(&[(1, &[1, 0])]).cut, seal: true, ..OrderEntry::nothing() };
    let done = order.apply(&seal);
    assert!(done.sealed && order.is_sealed() && order.base() == 5);
    let late = OrderEntry { add: vec![shard(9, &[9])], finalize: vec![(0, 0)], ..cut(&[(1, &[7, 7])]) };
    assert_eq!(order.apply(&late), Applied::default());
    let done = order.apply(&OrderEntry { trim: 3, ..OrderEntry::nothing() });
    assert!(done.trimmed && order.trim() == 3);
    order.apply(&OrderEntry { trim: 99, ..OrderEntry::nothing() });
    assert_eq!(order.trim(), 5, "what is not ordered cannot be given up");
}

#[test]
fn a_shard_can_end_after_some_cuts() {
    let mut order = Order::new(&two_shards());
    order.apply(&OrderEntry { finalize: vec![(0, 2)], ..OrderEntry::nothing() });
    assert!(order.apply(&cut(&[(0, &[1, 0])])).ended.is_empty());
    let done = order.apply(&cut(&[(0, &[3, 0])]));
    assert_eq!((done.ended, done.records.len()), (vec![0], 1), "the last cut still counts");
    assert!(order.apply(&cut(&[(0, &[5, 5])])).records.is_empty());
}

#[test]
fn shards_that_cannot_be_are_not_added() {
    let mut order = Order::new(&two_shards());
    assert_eq!(order.check_add(&shard(1, &[8])), Err(ShardError::Exists(1)));
    assert_eq!(order.check_add(&shard(5, &[8, 2])), Err(ShardError::Overlap(NodeId(2), 0)));
    assert_eq!(order.check_add(&shard(5, &[])), Err(ShardError::Size(5, 0)));
    let done =
        order.apply(&OrderEntry { add: vec![shard(1, &[8]), shard(5, &[8])], ..OrderEntry::nothing() });
    assert_eq!(done.added, [5]);
    order.apply(&OrderEntry { finalize: vec![(0, 0)], ..OrderEntry::nothing() });
    assert_eq!(order.check_add(&shard(0, &[9])), Err(ShardError::Exists(0)), "never again");
    assert_eq!(order.check_add(&shard(6, &[2])), Ok(()), "a node of a shard that has ended is free");
}

#[test]
fn clients_move_only_when_their_shard_ends() {
    let mut order = Order::new(&two_shards());
    let homes = |order: &Order| (1..200).map(|c| order.home(c).map(|h| h.shard)).collect::<Vec<_>>();
    let first = homes(&order);
    assert!(first.contains(&Some(0)) && first.contains(&Some(1)));
    order.apply(&OrderEntry { add: vec![shard(2, &[5])], ..OrderEntry::nothing() });
    assert_eq!(homes(&order), first);
    order.apply(&cut(&[(0, &[4, 0])]));
    order.apply(&OrderEntry { finalize: vec![(0, 0)], ..OrderEntry::nothing() });
    let second = homes(&order);
    for (before, after) in first.iter().zip(&second) {
        assert!(*after != Some(0) && (*before != Some(1) || *after == Some(1)));
    }
    assert!(second.contains(&Some(2)));
    let moved = (1..200).filter_map(|c| order.home(c)).filter(|h| h.shard == 2);
    assert!(moved.clone().count() > 0 && moved.clone().all(|h| h.since == 4));
    order.apply(&OrderEntry { add: vec![shard(3, &[7])], ..OrderEntry::nothing() });
    order.apply(&OrderEntry { finalize: vec![(1, 0), (2, 0)], ..OrderEntry::nothing() });
    assert!((1..200).all(|c| order.home(c).is_some_and(|h| h.shard == 3)));
}

/// Two orderers may end different shards at the same time, each because it is stuck and another one is live.
#[test]
fn the_last_shard_stays_if_orderers_find_all_of_them_stuck() {
    let stuck = |shards: &[u32]| OrderEntry { stuck: shards.to_vec(), ..OrderEntry::nothing() };
    let mut order = Order::new(&two_shards());
    assert_eq!(order.apply(&stuck(&[1])).ended, [1]);
    assert_eq!(order.apply(&stuck(&[0])).ended, []);
    assert!(order.shards()[&0].is_live() && order.home(7).is_some());
    let mut order = Order::new(&two_shards());
    assert_eq!(order.apply(&stuck(&[0, 1])).ended, [0]);
}

/// Two operators may end different shards at the same time, each because another one takes records.
#[test]
fn the_last_shard_stays_if_operators_end_all_of_them() {
    let end = |shards: &[(u32, u32)]| OrderEntry { finalize: shards.to_vec(), ..OrderEntry::nothing() };
    let mut order = Order::new(&two_shards());
    assert_eq!(order.apply(&end(&[(1, 0), (0, 0)])).ended, [1]);
    assert_eq!(order.apply(&end(&[(0, 0)])).ended, []);
    let mut order = Order::new(&two_shards());
    order.apply(&end(&[(0, 3)]));
    // Shard 0 takes records, but not for long.
    assert!(order.is_last(1) && order.apply(&end(&[(1, 0)])).ended.is_empty());
    assert_eq!(order.apply(&end(&[(0, 0)])).ended, [0], "sooner than it was said first");
}
