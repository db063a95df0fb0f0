//! Fuzzes chains. A chain that parses is consistent (vlog-VL2), and is encoded as the same bytes.

use std::collections::BTreeSet;

use atoll_contract::{LogPos, LogletId, Nonce, Offset, Version};
use atoll_core::{Decode, Encode, NodeId};
use atoll_log::page::{PageId, PageRef};
use atoll_log::surgery::{Hold, Patch, Record, hash_of};
use atoll_log::{Chain, Segment};
use bytes::Bytes;

/// The input is the value of a register.
pub fn run(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    // Decoding without a check of the contents must not panic either.
    let decoded = Chain::from_bytes(bytes.clone());
    let Ok(chain) = Chain::parse(bytes.clone()) else { return };
    assert_eq!(decoded.as_ref(), Ok(&chain), "parse and decode differ");
    match chain.to_value() {
        // In a chain with pages or surgery, equal configurations are written only once, however they were read.
        Ok(value) if !(chain.pages().is_empty() && chain.surgery().is_empty()) => {
            assert_eq!(Chain::parse(value).as_ref(), Ok(&chain));
        }
        value => assert_eq!(value.as_ref(), Ok(&bytes), "written otherwise than it was read"),
    }
    holds_together(&chain);

    // The successor of a valid chain is checked as strictly. If nothing is changed, it differs only in its nonce.
    let nonce = Nonce(chain.nonce().0.wrapping_add(1));
    let Ok(next) = chain.next(nonce, |_, _| {}) else {
        panic!("a chain that holds together has a successor")
    };
    assert_eq!((next.segments(), next.trim()), (chain.segments(), chain.trim()));
    assert_eq!(next.surgery(), chain.surgery());
    assert!(next.was_installed(chain.nonce()) && next.was_installed(nonce));
    // A chain may have the maximum length, and its successor may exceed it.
    if let Ok(value) = next.to_value() {
        assert_eq!(Chain::parse(value).as_ref(), Ok(&next));
    }
}

fn holds_together(chain: &Chain) {
    let segments = chain.segments();
    let mut names = BTreeSet::new();
    let mut expected = segments[0].start;
    for (i, s) in segments.iter().enumerate() {
        assert!(names.insert(s.loglet), "a loglet is there twice");
        assert_eq!(s.start, expected, "a gap");
        assert_eq!(s.stop.is_none(), i + 1 == segments.len(), "only the last segment is open");
        assert_eq!(chain.segment(s.loglet), Some(s));
        let Some(stop) = s.stop else { continue };
        assert!(s.start <= stop, "backwards");
        // The mapping works in both directions at both ends, and nothing overflows (positions of sealed segments are all below 2^64).
        for at in [s.start, LogPos(s.start.0 + stop.since(s.start) / 2), stop] {
            assert_eq!(s.position_of(s.offset_of(at)), at);
        }
        if s.start < stop {
            let last = LogPos(stop.0 - 1);
            assert_eq!((chain.locate(s.start), chain.locate(last)), (Some(s), Some(s)));
        }
        expected = stop;
    }
    let active = chain.active();
    assert_eq!(chain.locate(LogPos(u64::MAX)), Some(active));
    assert_eq!(chain.sealed().count() + 1, segments.len());
    assert!(chain.start() <= chain.trim(), "trimmed below the first segment");
    let changed = chain.surgery().patches().iter().map(|p| p.at).chain(chain.surgery().held());
    changed.for_each(|at| assert!(chain.trim() <= at && at < active.start, "surgery on no sealed entry"));
    for page in chain.pages() {
        assert_eq!((chain.page_of(page.start), chain.locate(page.start)), (Some(page), None));
    }
    if let Some(before) = segments[0].start.0.checked_sub(1) {
        assert_eq!(chain.locate(LogPos(before)), None);
    }
}

fn hold(at: LogPos, id: Nonce, with: Option<&'static str>) -> Hold {
    let with = with.map(|text| Bytes::from_static(text.as_bytes()));
    let record = Record {
        at,
        time_ms: 1_700_000_000_000,
        node: NodeId(1),
        operator: "somebody".to_owned(),
        reason: "a test".to_owned(),
        old_hash: 1,
        old_bytes: 2,
        new_hash: with.as_deref().map(hash_of),
    };
    Hold { patch: Patch { at, id, with }, record }
}

/// Returns valid chains: a first one, one with an empty segment, a trimmed and truncated one, an ended one, one with an index page, one
/// with surgery.
pub fn seeds() -> Vec<Vec<u8>> {
    let config = Bytes::from_static(b"configuration");
    let Ok(first) = Chain::first(Nonce(1), LogletId(10), "one kind", config) else { return Vec::new() };
    let mut seeds = vec![first.clone()];
    let steps: [(u64, &str, u64); 4] =
        [(100, "one kind", 0), (100, "other", 0), (250, "one kind", 7), (300, atoll_log::chain::END_KIND, 0)];
    let mut chain = first;
    for (i, (stop, kind, base)) in steps.into_iter().enumerate() {
        let next = chain.next(Nonce(2 + i as u128), |segments, trim| {
            if let Some(last) = segments.last_mut() {
                last.stop = Some(LogPos(stop));
                last.sealed_config = Bytes::from_static(b"sealed");
            }
            segments.push(Segment {
                start: LogPos(stop),
                stop: None,
                loglet: LogletId(11 + i as u128),
                kind: kind.to_owned(),
                base: Offset(base),
                config: Bytes::new(),
                sealed_config: Bytes::new(),
            });
            if i == 2 {
                segments.remove(0);
                *trim = LogPos(120);
            }
        });
        let Ok(next) = next else { break };
        seeds.push(next.clone());
        chain = next;
    }
    let id = PageId { made_at: Version(7), random: 8 };
    let page = PageRef { id, level: 1, start: LogPos(20), stop: LogPos(100), segments: 5, holders: None };
    if let Ok(paged) = seeds[0].next_with_pages(Nonce(9), |parts| {
        parts.segments[0].start = page.stop;
        *parts.trim = page.start;
        parts.pages.push(page);
    }) {
        seeds.push(paged);
    }
    let surgery = [(1, 130, None), (2, 140, Some("other")), (3, 150, None)];
    if let Ok(operated) = chain.next_with_pages(Nonce(10), |parts| {
        for (id, at, with) in surgery {
            parts.surgery.begin(hold(LogPos(at), Nonce(id), with));
            if id < 3 {
                parts.surgery.finish(Nonce(id));
            }
        }
    }) {
        seeds.push(operated);
    }
    seeds.iter().map(|c| c.to_bytes().to_vec()).collect()
}
