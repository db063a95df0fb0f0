use atoll_core::{Envelope, Exchange, Frame, RoleKind};
use atoll_sim::world::envelope::{decode, encode};
use bytes::Bytes;

#[test]
fn envelopes_come_back_as_they_were() {
    for exchange in [Exchange::Post, Exchange::Request(7), Exchange::Reply(u64::MAX)] {
        let frame = Frame {
            kind: 103,
            target: RoleKind(2),
            head: Bytes::from_static(b"head"),
            payloads: vec![Bytes::from_static(b"one"), Bytes::new()],
        };
        let envelope = Envelope { exchange, frame };
        assert_eq!(decode(encode(&envelope)), Ok(envelope));
    }
    assert!(decode(Bytes::from_static(&[9; 40])).is_err());
}
