#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn unit(n: u32) -> UnitId {
    (NodeId(n), StorageId(u128::from(n)))
}

fn chain(base: u64, units: &[u32]) -> Chain {
    Chain { base, units: units.iter().map(|n| unit(*n)).collect() }
}

fn of(stretches: Vec<Stretch>) -> Projection {
    Projection { epoch: 1, sequencer: (NodeId(1), Incarnation(1)), stretches, wanted: (2, 1) }
}

fn stretch(start: u64, end: u64, chains: Vec<Chain>) -> Stretch {
    Stretch { start, end, stripe: 4, chains }
}

#[test]
fn wrong_projections_are_refused_by_name() {
    let open = |start, base| stretch(start, OPEN, vec![chain(base, &[1, 2])]);
    let closed = |start, end| stretch(start, end, vec![chain(start, &[1, 2])]);
    assert_eq!(of(vec![]).check(None), Err(ProjectionError::Empty));
    assert_eq!(of(vec![closed(0, 9)]).check(None), Err(ProjectionError::Ends(0, 9)));
    assert_eq!(of(vec![closed(0, 9), open(10, 20)]).check(None), Err(ProjectionError::Gap(9, 10)));
    assert_eq!(of(vec![closed(0, 9), open(8, 20)]).check(None), Err(ProjectionError::Overlap(8)));
    assert_eq!(of(vec![closed(3, 3), open(3, 20)]).check(None), Err(ProjectionError::Ends(3, 3)));
    let empty = of(vec![stretch(0, OPEN, vec![chain(0, &[])])]);
    assert_eq!(empty.check(None), Err(ProjectionError::ChainLength { start: 0, units: 0 }));
    let none = of(vec![stretch(0, OPEN, vec![])]);
    assert_eq!(none.check(None), Err(ProjectionError::ChainLength { start: 0, units: 0 }));
    let mut flat = of(vec![open(0, 0)]);
    flat.stretches[0].stripe = 0;
    assert_eq!(flat.check(None), Err(ProjectionError::NoStripe(0)));
    let strange = of(vec![open(0, 0)]).check(Some(&|u| u == unit(1)));
    assert_eq!(strange, Err(ProjectionError::UnknownUnit(unit(2))));
    assert!(strange.unwrap_err().to_string().starts_with("node 2 holds no unit"));
    let twice = of(vec![stretch(0, OPEN, vec![chain(0, &[1, 2]), chain(0, &[3, 1])])]);
    assert_eq!(twice.check(None), Err(ProjectionError::AddressTwice { start: 0, node: NodeId(1) }));
    let reused = of(vec![closed(0, 9), open(9, 8)]);
    assert_eq!(reused.check(None), Err(ProjectionError::AddressTwice { start: 9, node: NodeId(1) }));
    assert_eq!(of(vec![closed(0, 9), open(9, 9)]).check(None), Ok(()));
    let many = (0..=MAX_RANGES as u64).map(|i| closed(i, i + 1)).collect();
    assert_eq!(of(many).check(None), Err(ProjectionError::TooMany(MAX_RANGES + 1)));
}

#[test]
fn a_projection_survives_its_codec_and_no_truncation_is_read() {
    let one = of(vec![
        stretch(0, 9, vec![chain(0, &[1, 2])]),
        stretch(9, OPEN, vec![chain(9, &[1, 3]), chain(0, &[4, 5])]),
    ]);
    let bytes = one.to_bytes();
    assert_eq!(Projection::parse(&bytes), Ok(one));
    for n in 0..bytes.len() {
        assert!(Projection::parse(&bytes.slice(..n)).is_err(), "truncated at {n}");
    }
}

proptest! {
    /// Positions and addresses are each other's inverse, and addresses are dense.
    #[test]
    fn positions_have_places_of_their_own(stripe in 1u32..6, chains in 1usize..5, start in 0u64..20, length in 1u64..80) {
        let lists = (0..chains).map(|c| chain(100, &[c as u32 * 2 + 1, c as u32 * 2 + 2])).collect::<Vec<_>>();
        let next = (0..chains).map(|c| chain(500, &[c as u32 * 2 + 1])).collect();
        let first = Stretch { start, end: start + length, stripe, chains: lists };
        let all = of(vec![first, Stretch { start: start + length, end: OPEN, stripe, chains: next }]);
        prop_assert_eq!(all.check(None), Ok(()));
        let mut seen = BTreeMap::new();
        for position in start..start + length {
            let place = all.place(position).unwrap();
            prop_assert_eq!(place.stretch, 0);
            let s = &all.stretches[0];
            prop_assert_eq!(s.position_at(place.index, place.addr), position);
            prop_assert_eq!(s.address_from(place.index, position), place.addr);
            prop_assert!(s.addresses_of(place.index).contains(&place.addr));
            for other in 0..chains {
                let at = s.address_from(other, position);
                let expected = (position..).find(|p| all.place(*p).is_some_and(|q| q.stretch == 0 && q.index == other)
                    || *p >= start + length);
                if let Some(p) = expected && p < start + length {
                    prop_assert_eq!(all.place(p).unwrap().addr, at);
                }
            }
            for run in 0..place.run.min(20) {
                let next = all.place(position + run).unwrap();
                prop_assert_eq!((next.index, next.addr), (place.index, place.addr + run));
            }
            prop_assert!(seen.insert((place.index, place.addr), position).is_none());
            let heads: BTreeMap<UnitId, u64> = [(place.chain.units[0], place.addr + 1)].into();
            prop_assert_eq!(all.position_above(&heads), position + 1);
        }
        for index in 0..chains {
            let addresses: Vec<u64> = seen.keys().filter(|(i, _)| *i == index).map(|(_, a)| *a).collect();
            let expected: Vec<u64> = all.stretches[0].addresses_of(index).collect();
            prop_assert_eq!(addresses, expected);
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Projection::parse(&bytes.into());
    }
}
