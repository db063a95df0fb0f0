//! Fuzzes frames from a socket. The codec reads the same frames however the stream is split, encodes them as they were received, and stays
//! within its limits.

use std::sync::Arc;

use atoll_core::{Envelope, Exchange, Frame, RoleKind};
use atoll_net::wire::{Assembler, Limits, Wire, WireError, WriteBatch};
use bytes::Bytes;

/// The frames of a stream, and the error that ended it.
type Decoded = (Vec<Wire>, Option<WireError>);

fn decode(stream: &[u8], limits: Limits, mut piece: impl FnMut() -> usize) -> Decoded {
    let mut assembler = Assembler::new(limits, Arc::default());
    let (mut frames, mut rest) = (Vec::new(), stream);
    while !rest.is_empty() {
        let n = assembler.feed(&rest[..piece().clamp(1, rest.len())]);
        assert!(n > 0, "there is room once all frames are taken");
        rest = &rest[n..];
        loop {
            match assembler.next() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// The first byte selects limits and the sizes of pieces; the rest is the stream.
pub fn run(input: &[u8]) {
    let Some((choice, stream)) = input.split_first() else { return };
    let small = Limits { head_bytes: 64, payload_bytes: 256, payloads: 3, requests: 1 };
    let limits = if choice & 1 == 0 { Limits::OURS } else { small };
    let whole = decode(stream, limits, || usize::MAX);
    let (mut step, pace) = (usize::from(choice >> 1), usize::from(choice >> 1) | 1);
    let pieces = decode(stream, limits, || {
        step = (step + pace) % 97;
        step
    });
    assert_eq!(whole, pieces, "pieces change what is read");

    let mut out = WriteBatch::default();
    for wire in &whole.0 {
        if let Wire::Envelope(envelope) = wire {
            assert!(limits.allow(&envelope.frame), "above the limits: {wire:?}");
        }
        out.push(wire.clone());
    }
    let written = out.to_vec();
    assert!(stream.starts_with(&written), "a frame is written otherwise than it was read");
    let frames_bytes: usize = whole.0.iter().map(Wire::encoded_bytes).sum();
    assert_eq!(written.len(), frames_bytes);
}

/// Returns streams of valid frames.
pub fn seeds() -> Vec<Vec<u8>> {
    let envelope = |exchange, kind, head: &'static [u8], payloads: &[usize]| {
        let payloads = payloads.iter().map(|n| Bytes::from(vec![0xa5; *n])).collect();
        let frame = Frame { kind, target: RoleKind(1), head: Bytes::from_static(head), payloads };
        Wire::Envelope(Envelope { exchange, frame })
    };
    let streams: [&[Wire]; 4] = [
        &[Wire::Ping(7), Wire::Pong(7)],
        &[envelope(Exchange::Post, 121, b"head", &[])],
        &[
            envelope(Exchange::Request(1), 100, b"", &[3, 0, 40]),
            envelope(Exchange::Reply(1), 101, b"ok", &[]),
        ],
        &[envelope(Exchange::Request(2), 120, b"large", &[6000]), Wire::Ping(1)],
    ];
    let mut seeds = Vec::new();
    for choice in [0u8, 1, 6, 27] {
        for stream in streams {
            let mut out = WriteBatch::default();
            stream.iter().cloned().for_each(|wire| out.push(wire));
            seeds.push([&[choice], out.to_vec().as_slice()].concat());
        }
    }
    seeds
}
