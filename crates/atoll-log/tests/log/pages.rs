//! The byte form of index pages. It has no checksum of its own, because the journals of the acceptors have one. So a flipped bit may
//! produce another valid page, but never one for other positions than the chain says, and a truncated page is always rejected.

use atoll_contract::{LogPos, LogletId, Offset, Version};
use atoll_core::{NodeId, StorageId};
use atoll_log::Segment;
use atoll_log::page::{Page, PageId, PageRef};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

type Holders = Option<Vec<(NodeId, StorageId)>>;

/// Generates pages of contiguous sealed segments with few distinct configurations.
fn segments() -> impl Strategy<Value = Page> {
    let one = (1u64..1000, any::<u128>(), 0u64..1 << 40, 0u8..3);
    (0u64..1 << 50, vec(one, 1..24)).prop_map(|(mut at, all)| {
        let segment = |(len, id, base, setup): (u64, u128, u64, u8)| {
            let config = Bytes::from(vec![setup; 8 * usize::from(setup)]);
            let mut segment = Segment::open(LogPos(at), LogletId(id), "a kind", config);
            at += len;
            (segment.stop, segment.base) = (Some(LogPos(at)), Offset(base));
            segment
        };
        Page::Segments(all.into_iter().map(segment).collect())
    })
}

/// Generates pages of contiguous references.
fn references() -> impl Strategy<Value = Page> {
    let holder = (1u32..9, any::<u128>()).prop_map(|(node, storage)| (NodeId(node), StorageId(storage)));
    let holders = proptest::option::of(vec(holder, 0..4));
    let one = (1u64..1000, any::<u64>(), 1u64..64, holders);
    (1u8..60, 0u64..1 << 50, vec(one, 1..24)).prop_map(|(level, mut at, all)| {
        let reference = |(i, (len, random, segments, holders)): (usize, (u64, u64, u64, Holders))| {
            let start = LogPos(at);
            at += len;
            let id = PageId { made_at: Version(i as u64 + 1), random };
            PageRef { id, level: level - 1, start, stop: LogPos(at), segments, holders }
        };
        Page::Pages(level, all.into_iter().enumerate().map(reference).collect())
    })
}

fn reference(page: &Page) -> PageRef {
    page.reference(PageId { made_at: Version(7), random: 7 }, |_| None).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_page_is_read_as_it_was_written_and_nothing_that_is_cut(page in prop_oneof![segments(), references()]) {
        let (bytes, of) = (page.to_value().unwrap(), reference(&page));
        prop_assert_eq!(&Page::parse(bytes.clone(), &of).unwrap(), &page);
        for n in 0..bytes.len() {
            prop_assert!(Page::read(bytes.slice(..n)).is_err(), "cut at {}", n);
        }
        let longer = [&bytes[..], &[0]].concat();
        prop_assert!(Page::read(longer.into()).is_err());
    }

    #[test]
    fn a_flipped_bit_is_an_error_or_a_whole_page_of_the_same_positions(page in prop_oneof![segments(), references()]) {
        let (bytes, of) = (page.to_value().unwrap(), reference(&page));
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let Ok(read) = Page::parse(flipped.into(), &of) else { continue };
            let found = reference(&read);
            prop_assert_eq!((found.start, found.stop, found.level), (of.start, of.stop, of.level));
            prop_assert_eq!(Page::read(read.to_value().unwrap()).unwrap(), read);
        }
    }
}
