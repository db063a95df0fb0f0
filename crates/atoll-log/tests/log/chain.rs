//! The chain: positions map one to one to offsets in Loglets (vlog-V12), and inconsistent chains are rejected.

use atoll_contract::register::MAX_VALUE_BYTES;
use atoll_contract::{LogPos, LogletId, Nonce, Offset, SealedConfig};
use atoll_core::NodeId;
use atoll_log::chain::{AUDIT_NONCES, MAX_CONFIG_BYTES, MAX_SEGMENTS};
use atoll_log::surgery::{Hold, Patch, Record, SurgeryFault, hash_of};
use atoll_log::{Chain, ChainError, Segment};
use bytes::Bytes;
use proptest::prelude::*;

fn first() -> Chain {
    Chain::first(Nonce(1), LogletId(1), "memory", Bytes::from_static(b"config")).unwrap()
}

/// Returns the chain after sealing the active segment `length` positions after its start, with the new segment's Loglet based at `base`.
fn extended(chain: &Chain, nonce: u128, length: u64, base: u64) -> Result<Chain, ChainError> {
    chain.next(Nonce(nonce), |segments, _| {
        let stop = segments.last().unwrap().start.plus(length);
        segments.last_mut().unwrap().stop = Some(stop);
        segments.push(Segment {
            start: stop,
            stop: None,
            loglet: LogletId(nonce),
            kind: "memory".to_owned(),
            base: Offset(base),
            config: Bytes::from_static(b"config"),
            sealed_config: SealedConfig::new(),
        });
    })
}

fn chains() -> impl Strategy<Value = Chain> {
    prop::collection::vec((prop_oneof![Just(0u64), 0..50u64], 0..1000u64), 0..20).prop_map(|parts| {
        let mut chain = first();
        for (i, (length, base)) in parts.into_iter().enumerate() {
            chain = extended(&chain, i as u128 + 2, length, base).unwrap();
        }
        chain
    })
}

fn hold(at: u64, id: u128, with: Option<Vec<u8>>) -> Hold {
    let record = Record {
        at: LogPos(at),
        time_ms: 7,
        node: NodeId(1),
        operator: "ann".into(),
        reason: "it stops every replica".into(),
        old_hash: 9,
        old_bytes: 3,
        new_hash: with.as_deref().map(hash_of),
    };
    Hold { patch: Patch { at: LogPos(at), id: Nonce(id), with: with.map(Bytes::from) }, record }
}

/// Chains with surgery on some entries of sealed segments. The last one may be under way.
fn operated() -> impl Strategy<Value = Chain> {
    let one = (any::<prop::sample::Index>(), prop::option::of(prop::collection::vec(any::<u8>(), 0..40)));
    (chains(), prop::collection::vec(one, 0..8), any::<bool>()).prop_map(|(chain, all, open)| {
        let sealed = chain.active().start.0;
        if sealed == 0 {
            return chain;
        }
        let last = all.len();
        let next = chain.next_with_pages(Nonce(99), |parts| {
            for (i, (at, with)) in all.into_iter().enumerate() {
                let id = i as u128 + 1;
                parts.surgery.begin(hold(at.index(sealed as usize) as u64, id, with));
                if !open || i + 1 < last {
                    parts.surgery.finish(Nonce(id));
                }
            }
        });
        next.unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_position_has_one_place_and_back(chain in chains(), beyond in 0..100u64) {
        let end = chain.active().start.plus(beyond);
        for v in 0..end.0 + 1 {
            let at = LogPos(v);
            let segment = chain.locate(at).unwrap();
            prop_assert!(segment.start <= at);
            prop_assert!(segment.stop.is_none_or(|stop| at < stop), "{at} is not in an empty segment");
            let offset = segment.offset_of(at);
            prop_assert!(offset >= segment.base);
            prop_assert_eq!(segment.position_of(offset), at);
            let owners = chain.segments().iter().filter(|s| s.start <= at && s.stop.is_none_or(|x| at < x));
            prop_assert_eq!(owners.count(), 1);
        }
    }

    #[test]
    fn the_byte_form_is_read_back(chain in chains()) {
        prop_assert_eq!(Chain::parse(chain.to_value().unwrap()), Ok(chain));
    }

    #[test]
    fn surgery_is_read_back_and_outlives_changes(chain in operated(), length in 0..50u64) {
        let bytes = chain.to_value().unwrap();
        let parsed = Chain::parse(bytes.clone());
        prop_assert_eq!(parsed.as_ref(), Ok(&chain));
        prop_assert_eq!(bytes[0] == 3, !chain.surgery().is_empty(), "older programs read what they can");
        let next = extended(&chain, 1000, length, 0).unwrap();
        prop_assert_eq!(next.surgery(), chain.surgery());
        let tail = next.active().start;
        let trimmed = next.next(Nonce(1001), |_, trim| *trim = tail).unwrap();
        prop_assert!(trimmed.surgery().patches().is_empty() && trimmed.surgery().held().is_none());
        prop_assert_eq!(trimmed.surgery().records(), chain.surgery().records());
        prop_assert_eq!(Chain::parse(trimmed.to_value().unwrap()), Ok(trimmed));
    }

    #[test]
    fn damaged_surgery_is_refused_or_still_holds(chain in operated(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = chain.to_value().unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(other) = Chain::parse(bytes.into()) {
            let patches = other.surgery().patches();
            prop_assert!(patches.windows(2).all(|w| w[0].at < w[1].at));
            prop_assert!(patches.iter().all(|p| p.at >= other.trim() && p.at < other.active().start));
        }
    }

    #[test]
    fn damage_is_refused_or_still_a_chain(chain in chains(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let mut bytes = chain.to_value().unwrap().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(other) = Chain::parse(bytes.into()) {
            prop_assert!(other.segments().windows(2).all(|w| w[0].stop == Some(w[1].start)));
            prop_assert!(other.active().stop.is_none());
        }
    }

    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Chain::parse(bytes.into()).is_err());
    }
}

#[test]
fn every_truncation_of_the_byte_form_is_refused() {
    let bytes = extended(&first(), 2, 5, 0).unwrap().to_value().unwrap();
    for n in 0..bytes.len() {
        assert!(Chain::parse(bytes.slice(..n)).is_err(), "cut at {n}");
    }
    let mut other_format = bytes.to_vec();
    other_format[0] = 4;
    assert_eq!(Chain::parse(other_format.into()), Err(ChainError::Format(4)));
    assert!(matches!(Chain::parse(vec![1; MAX_VALUE_BYTES + 1].into()), Err(ChainError::TooLong(_))));
}

fn changed(f: impl FnOnce(&mut Vec<Segment>, &mut LogPos)) -> Result<Chain, ChainError> {
    extended(&extended(&first(), 2, 5, 0).unwrap(), 3, 5, 0).unwrap().next(Nonce(9), f)
}

#[test]
fn a_change_that_breaks_a_rule_is_refused() {
    assert!(changed(|_, _| {}).is_ok());
    assert_eq!(changed(|s, _| s.clear()), Err(ChainError::Segments(0)));
    assert_eq!(changed(|s, _| s[1].start = LogPos(6)), Err(ChainError::Gap(1)));
    assert_eq!(changed(|s, _| s[2].stop = Some(LogPos(11))), Err(ChainError::Active(2)));
    assert_eq!(changed(|s, _| s[0].stop = None), Err(ChainError::Active(0)));
    assert_eq!(changed(|s, _| s[2].loglet = s[0].loglet), Err(ChainError::Twice(LogletId(1))));
    assert_eq!(changed(|s, _| s[0].start = LogPos(6)), Err(ChainError::Backwards(0)));
    assert_eq!(changed(|s, _| s[1].base = Offset(u64::MAX)), Err(ChainError::Overflow(1)));
    let long = Bytes::from(vec![0; MAX_CONFIG_BYTES + 1]);
    assert!(matches!(changed(|s, _| s[1].config = long), Err(ChainError::Config(1, _))));
    assert_eq!(changed(|s, _| s[1].kind.clear()), Err(ChainError::Kind(1, 0)));
    let dropped_too_early = changed(|s, _| {
        s.remove(0);
    });
    assert_eq!(
        dropped_too_early,
        Err(ChainError::Trim(LogPos(0))),
        "nothing below the first segment is untrimmed"
    );
    let truncated = changed(|s, trim| {
        s.remove(0);
        *trim = LogPos(5);
    });
    assert!(truncated.is_ok());
}

#[test]
fn surgery_is_on_readable_entries_of_sealed_segments() {
    let chain = extended(&first(), 2, 5, 0).unwrap();
    let held = |at| chain.next_with_pages(Nonce(9), |parts| parts.surgery.begin(hold(at, 1, None)));
    assert!(held(4).is_ok());
    assert_eq!(held(5), Err(ChainError::Surgery(SurgeryFault::Position(LogPos(5)))));
    let trimmed = held(3).unwrap().next(Nonce(10), |_, trim| *trim = LogPos(4)).unwrap();
    assert_eq!(trimmed.surgery().held(), None, "nobody can read it any more");
    let mut format = held(4).unwrap().to_value().unwrap().to_vec();
    assert_eq!(format[0], 3);
    format.truncate(format.len() - 1);
    assert!(Chain::parse(format.into()).is_err());
}

#[test]
fn a_chain_is_bounded() {
    let mut chain = first();
    for i in 1..MAX_SEGMENTS as u128 {
        chain = extended(&chain, i + 1, 1, 0).unwrap();
    }
    assert!(chain.to_value().is_ok());
    let error = extended(&chain, 5000, 1, 0).unwrap_err();
    assert_eq!(error, ChainError::Segments(MAX_SEGMENTS + 1));
    assert!(chain.was_installed(chain.nonce()));
    assert!(chain.was_installed(Nonce(MAX_SEGMENTS as u128 - AUDIT_NONCES as u128)));
    assert!(!chain.was_installed(Nonce(2)), "it forgets");
}
