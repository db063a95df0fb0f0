#![allow(clippy::unwrap_used)]

use atoll_core::StorageId;
use proptest::prelude::*;

use super::*;

fn unit(n: u32) -> UnitId {
    (NodeId(n), StorageId(u128::from(n)))
}

fn simple() -> Projection {
    let chains = vec![vec![unit(1), unit(2)], vec![unit(3), unit(4)]];
    Projection::simple(1, (NodeId(1), Incarnation(1)), 4, chains)
}

#[test]
fn a_replaced_unit_serves_above_the_boundary_only_until_it_is_rebuilt() {
    let next = simple().replacing(unit(2), unit(5), 13).unwrap();
    next.check(None).unwrap();
    assert_eq!(next.stretches.len(), 2);
    assert_eq!((next.stretches[0].end, next.stretches[1].start), (16, 16), "where a round begins");
    assert_eq!(next.stretches[0].chains[0].units, [unit(1)]);
    assert_eq!(next.stretches[1].chains[0], Chain { base: 8, units: vec![unit(1), unit(5)] });
    let whole = next.with_rebuilt(0, 0, unit(5)).unwrap();
    whole.check(None).unwrap();
    assert_eq!(whole.stretches[0].chains[0].units, [unit(1), unit(5)]);
    assert_eq!(whole.stretches[1].chains[1].units, [unit(3), unit(4)]);
    let one = whole.merged();
    assert_eq!(one.stretches.len(), 1);
    one.check(None).unwrap();
    let none = simple().replacing(unit(9), unit(5), 13).unwrap();
    assert_eq!(none.stretches, simple().stretches, "it serves nothing");
    let at_start = simple().replacing(unit(2), unit(5), 0).unwrap();
    assert_eq!(at_start.stretches.len(), 1, "nothing is written yet");
}

#[test]
fn other_chains_take_new_positions_at_addresses_of_their_own() {
    let next = simple().extended(&[vec![unit(1), unit(5)], vec![unit(6)]], 2, 3).unwrap();
    next.check(None).unwrap();
    assert_eq!((next.stretches[0].end, next.stretches[1].start), (8, 8));
    assert_eq!(next.place(8).unwrap().chain.units[0], unit(1));
    assert!(next.place(8).unwrap().addr >= 4);
}

proptest! {
    /// No change moves a position that was written before it.
    #[test]
    fn positions_keep_their_addresses(starts in proptest::collection::vec(0u64..30, 1..6), kinds in proptest::collection::vec(0u8..3, 6)) {
        let (mut now, mut start) = (simple(), 0);
        for (i, (more, kind)) in starts.into_iter().zip(kinds).enumerate() {
            start += more;
            let units = now.active().chains[0].units.clone();
            let next = match kind {
                0 => now.replacing(units[0], unit(20 + i as u32), start).unwrap(),
                1 => now.extended(&[vec![unit(40 + i as u32), unit(3)]], 3, start).unwrap(),
                _ => now.merged(),
            };
            prop_assert_eq!(next.check(None), Ok(()));
            for position in 0..start {
                let (before, after) = (now.place(position).unwrap(), next.place(position).unwrap());
                prop_assert_eq!(before.addr, after.addr);
                prop_assert!(after.chain.units.iter().all(|u| before.chain.units.contains(u)));
            }
            start = start.max(next.active().start);
            now = next;
        }
    }
}
