//! The frame codec accepts exactly what it encodes. Other bytes cause no panic and no allocation above the limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::{Envelope, Exchange, Frame, RoleKind};
use atoll_net::wire::{Assembler, HEADER_BYTES, Limits, REQUEST_BITS, Wire, WireError, WriteBatch};
use bytes::Bytes;
use proptest::prelude::*;

fn encode(frames: &[Wire]) -> Vec<u8> {
    let mut batch = WriteBatch::default();
    frames.iter().cloned().for_each(|f| batch.push(f));
    batch.to_vec()
}

/// Feeds `bytes` in pieces of `step`. Returns the frames, and whether the stream could end there.
fn decode(bytes: &[u8], step: usize) -> Result<(Vec<Wire>, bool), WireError> {
    let mut assembler = Assembler::new(Limits::OURS, Arc::default());
    let mut frames = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = assembler.feed(&rest[..rest.len().min(step)]);
        assert!(n > 0, "the assembler always has room after all frames are taken");
        rest = &rest[n..];
        while let Some(frame) = assembler.next()? {
            frames.push(frame);
        }
    }
    Ok((frames, assembler.is_empty()))
}

fn envelope(exchange: Exchange, head: usize, payloads: &[usize]) -> Wire {
    let bytes = |n: usize| Bytes::from((0..n).map(|i| (i * 7 + n) as u8).collect::<Vec<_>>());
    let payloads = payloads.iter().map(|n| bytes(*n)).collect();
    let frame = Frame { kind: 104, target: RoleKind(1), head: bytes(head), payloads };
    Wire::Envelope(Envelope { exchange, frame })
}

fn any_wire() -> impl Strategy<Value = Wire> {
    let number = 0..1u64 << REQUEST_BITS;
    let exchange = prop_oneof![
        Just(Exchange::Post),
        number.clone().prop_map(Exchange::Request),
        number.clone().prop_map(Exchange::Reply),
    ];
    let size = prop_oneof![3 => 0..100usize, 1 => 3_000..6_000usize, 1 => 60_000..200_000usize];
    prop_oneof![
        8 => (exchange, size.clone(), proptest::collection::vec(size, 0..5)).prop_map(|(e, h, p)| envelope(e, h, &p)),
        1 => number.clone().prop_map(Wire::Ping),
        1 => number.prop_map(Wire::Pong),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn round_trip_in_any_pieces(frames in proptest::collection::vec(any_wire(), 1..12), step in 1usize..70_000) {
        let bytes = encode(&frames);
        let total: usize = frames.iter().map(Wire::encoded_bytes).sum();
        prop_assert_eq!(bytes.len(), total);
        prop_assert_eq!(decode(&bytes, step), Ok((frames, true)));
    }

    #[test]
    fn a_batch_survives_any_partial_writes(
        frames in proptest::collection::vec(any_wire(), 1..6), steps in proptest::collection::vec(1usize..9_000, 1..20)
    ) {
        let mut batch = WriteBatch::default();
        frames.iter().cloned().for_each(|f| batch.push(f));
        let expected = batch.to_vec();
        let mut got = Vec::new();
        for step in steps.iter().cycle() {
            let rest = batch.to_vec();
            if rest.is_empty() {
                break;
            }
            let n = rest.len().min(*step);
            got.extend_from_slice(&rest[..n]);
            batch.advance(n);
        }
        prop_assert!(got == expected);
    }
}

#[test]
fn every_truncation_waits_for_more() {
    let wire = envelope(Exchange::Request(5), 40, &[10, 0, 5000]);
    let bytes = encode(std::slice::from_ref(&wire));
    for n in 0..bytes.len() {
        let (frames, may_end) = decode(&bytes[..n], usize::MAX).unwrap();
        assert!(frames.is_empty(), "a frame out of {n} bytes");
        assert_eq!(may_end, n == 0, "{n} bytes of a frame are not the end of a stream");
    }
}

#[test]
fn headers_that_lie_are_refused_before_the_body_comes() {
    let good = encode(&[envelope(Exchange::Request(5), 40, &[10])]);
    let header = |at: usize, value: &[u8]| {
        let mut bytes = good[..HEADER_BYTES].to_vec();
        bytes[at..at + value.len()].copy_from_slice(value);
        decode(&bytes, usize::MAX).expect_err("refused")
    };
    assert_eq!(header(7, &[5]), WireError::Exchange(5));
    assert_eq!(header(22, &[1, 0]), WireError::Reserved(1));
    assert_eq!(header(14, &[1]), WireError::Number { exchange: 1, number: 1 << 48 | 5 });
    assert_eq!(header(7, &[0]), WireError::Number { exchange: 0, number: 5 });
    assert_eq!(header(7, &[3]), WireError::PingBody);
    assert!(matches!(header(16, &u32::MAX.to_le_bytes()), WireError::Head { .. }));
    assert!(matches!(header(20, &u16::MAX.to_le_bytes()), WireError::Payloads { .. }));
    assert!(matches!(header(0, &u32::MAX.to_le_bytes()), WireError::PayloadBytes { .. }));
    assert!(
        matches!(header(0, &43u32.to_le_bytes()), WireError::Lengths { .. }),
        "no room for head and lengths"
    );
    assert!(matches!(header(20, &[0, 0]), WireError::Lengths { .. }), "bytes of no payload");
}

#[test]
fn payload_lengths_must_add_up() {
    let mut bytes = encode(&[envelope(Exchange::Post, 4, &[10, 20])]);
    for (first, second) in [(11u32, 20u32), (10, 19), (u32::MAX, 31), (31, u32::MAX)] {
        bytes[24..28].copy_from_slice(&first.to_le_bytes());
        bytes[28..32].copy_from_slice(&second.to_le_bytes());
        assert!(matches!(decode(&bytes, usize::MAX), Err(WireError::Lengths { .. })), "{first} + {second}");
    }
}

#[test]
fn frames_at_the_limits_pass() {
    let limits = Limits::OURS;
    let largest = envelope(Exchange::Post, limits.head_bytes as usize, &[limits.payload_bytes as usize]);
    let many = envelope(Exchange::Post, 0, &vec![1; limits.payloads.into()]);
    let frames = vec![largest, many];
    assert_eq!(decode(&encode(&frames), 50_000), Ok((frames, true)));
}

/// Streams to start from: frames of every shape, and bytes that are not frames.
fn corpus() -> [Vec<u8>; 11] {
    let stream: Vec<Wire> = (0..20).map(|i| envelope(Exchange::Request(i), 24, &[64])).collect();
    [
        encode(&[envelope(Exchange::Post, 16, &[])]),
        encode(&[envelope(Exchange::Request(1), 33, &[100])]),
        encode(&[envelope(Exchange::Reply((1 << 48) - 1), 0, &[])]),
        encode(&[envelope(Exchange::Request(7), 8, &[1, 0, 3, 40, 0])]),
        encode(&[envelope(Exchange::Post, 100, &[5_000, 3_000])]),
        encode(&[Wire::Ping(1), Wire::Pong(1)]),
        encode(&stream),
        b"GET / HTTP/1.1\r\nHost: reef\r\n\r\n".to_vec(),
        vec![0; 100],
        vec![255; 100],
        Vec::new(),
    ]
}

/// Every stream of the corpus, whole and mutated, must be accepted or refused without a panic. What is accepted must encode to the same
/// bytes again. `ATOLL_FUZZ_SECONDS` sets how long the test runs.
#[test]
fn corpus_and_mutations_do_no_harm() {
    let corpus = corpus();
    for bytes in &corpus {
        check(bytes, 7);
    }
    let seconds = std::env::var("ATOLL_FUZZ_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random(0x5eed);
    let (mut runs, mut refused) = (0u64, 0u64);
    while runs < 2_000 || Instant::now() < until {
        let mut bytes = corpus[random.below(corpus.len())].clone();
        for _ in 0..=random.below(4) {
            random.mutate(&mut bytes, &corpus);
        }
        refused += u64::from(!check(&bytes, 1 + random.below(5_000)));
        runs += 1;
    }
    assert!(
        refused > runs / 100 && refused < runs,
        "mutations neither all pass nor all fail: {refused} of {runs}"
    );
}

fn check(bytes: &[u8], step: usize) -> bool {
    let whole = decode(bytes, usize::MAX);
    assert_eq!(whole, decode(bytes, step), "the outcome does not depend on how the bytes come");
    if let Ok((frames, _)) = &whole {
        let again = encode(frames);
        assert_eq!(again, bytes[..again.len()], "one byte form per frame");
    }
    whole.is_ok()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n.max(1) as u64) as usize
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        let at = self.below(bytes.len());
        match self.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = [0, 1, 127, 128, 255][self.below(5)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, self.below(256) as u8),
            4 => {
                let other = &corpus[self.below(corpus.len())];
                bytes.truncate(at);
                bytes.extend_from_slice(&other[self.below(other.len())..]);
            }
            // Mutate the header more often, because most checks are there.
            _ if bytes.len() >= HEADER_BYTES => {
                let i = self.below(HEADER_BYTES);
                bytes[i] = self.below(256) as u8;
            }
            _ => {}
        }
    }
}
