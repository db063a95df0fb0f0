//! The chain: positions map one to one to offsets in Loglets (vlog-V12), and inconsistent chains are rejected.

use atoll_contract::{LogPos, LogletId, Nonce, Offset, SealedConfig};
use atoll_log::chain::{AUDIT_NONCES, MAX_CHAIN_BYTES, MAX_CONFIG_BYTES, MAX_SEGMENTS};
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
    other_format[0] = 3;
    assert_eq!(Chain::parse(other_format.into()), Err(ChainError::Format(3)));
    assert!(matches!(Chain::parse(vec![1; MAX_CHAIN_BYTES + 1].into()), Err(ChainError::TooLong(_))));
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
