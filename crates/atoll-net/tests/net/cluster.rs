//! Two nodes over real sockets: order, separation of the classes, loss and return of a peer.

use crate::common::{book, frame, options, outgoing, pair, pair_of, start};
use atoll_core::{Class, Envelope, Exchange, Link, NodeId};
use atoll_net::NetEvent;
use bytes::Bytes;
use std::time::Duration;

fn answer(to: u32, class: Class, request: Envelope) -> atoll_core::Outgoing {
    let Exchange::Request(n) = request.exchange else { panic!("no request: {request:?}") };
    outgoing(to, class, Exchange::Reply(n), frame(2, request.frame.head, vec![]))
}

#[tokio::test]
async fn ten_thousand_requests_are_answered_in_order() {
    let (mut a, mut b) = pair().await;
    let server = tokio::spawn(async move {
        for n in 0..10_000u64 {
            let (from, class, request) = b.until_frame().await;
            assert_eq!((from, class), (NodeId(1), Class::Data));
            assert_eq!(request.frame.head, Bytes::copy_from_slice(&n.to_le_bytes()));
            assert_eq!(request.frame.payloads, vec![Bytes::from(vec![n as u8; 1024])]);
            b.net.send([answer(1, class, request)]);
        }
        b
    });
    let request = |n: u64| {
        let head = Bytes::copy_from_slice(&n.to_le_bytes());
        outgoing(2, Class::Data, Exchange::Request(n), frame(1, head, vec![vec![n as u8; 1024].into()]))
    };
    let mut sent = 0;
    for done in 0..10_000u64 {
        a.net.send((sent..(done + 64).min(10_000)).map(request));
        sent = (done + 64).min(10_000);
        let (from, class, reply) = a.until_frame().await;
        assert_eq!((from, class, reply.exchange), (NodeId(2), Class::Data, Exchange::Reply(done)));
        assert_eq!(reply.frame.head, Bytes::copy_from_slice(&done.to_le_bytes()));
    }
    let b = server.await.unwrap();
    let stats = b.net.stats();
    assert_eq!((stats.frames_in, stats.frames_out), (10_000, 10_000));
    assert!(stats.writes < 5_000, "writes coalesce: {} of them", stats.writes);
}

#[tokio::test]
async fn a_kept_payload_pins_nothing_but_its_frame() {
    let (a, mut b) = pair().await;
    let posts = (0..100u32).map(|n| {
        let payload = Bytes::from(vec![n as u8; 100]);
        outgoing(2, Class::Data, Exchange::Post, frame(1, Bytes::new(), vec![payload]))
    });
    a.net.send(posts);
    for _ in 0..100 {
        let (_, _, got) = b.until_frame().await;
        drop(got.frame.head);
        let payload = got.frame.payloads.into_iter().next().unwrap();
        // `try_into_mut` succeeds only for the sole holder of an allocation.
        assert!(payload.try_into_mut().is_ok());
    }
}

#[tokio::test]
async fn control_passes_by_data_that_nobody_reads() {
    let mut slow = options(2, 22);
    slow.inbox_bytes = 1 << 20;
    let (mut a, mut b) = pair_of(options(1, 11), slow).await;
    // This is far more than the inbox and the sockets hold, so the data connection stalls.
    let block = Bytes::from(vec![7; 1 << 20]);
    let post = |class, payload| outgoing(2, class, Exchange::Post, frame(1, Bytes::new(), vec![payload]));
    for _ in 0..40 {
        a.net.send([post(Class::Data, block.clone())]);
    }
    a.until_link(2, Class::Data, Link::Full).await;
    a.net.send([post(Class::Control, Bytes::from_static(b"seal"))]);
    // It is delivered first, although data was sent earlier and still waits.
    loop {
        let waiting = b.events.waiting();
        if waiting[0].1 > 0 && waiting[1].1 > 0 {
            break;
        }
        tokio::task::yield_now().await;
    }
    let (_, class, got) = b.until_frame().await;
    assert_eq!((class, &got.frame.payloads[0][..]), (Class::Control, &b"seal"[..]));
    // The memory of both sides is bounded, whatever was sent.
    let queued: usize = a.net.queued().iter().map(|(_, _, bytes)| bytes).sum();
    assert!(queued <= 2 * (16 << 20), "{queued} bytes queued");
    assert!(a.net.stats().dropped > 0, "the rest was dropped");
    // Once the data is read, the link is up again.
    let reader = tokio::spawn(async move {
        loop {
            b.next().await;
        }
    });
    a.until_link(2, Class::Data, Link::Up).await;
    reader.abort();
}

#[tokio::test]
async fn a_request_that_does_not_fit_is_refused_at_home() {
    let mut small = options(1, 11);
    small.queue_bytes = 100_000;
    let (mut a, _b) = pair_of(small, options(2, 22)).await;
    let payload = Bytes::from(vec![0; 60_000]);
    let request =
        |n| outgoing(2, Class::Data, Exchange::Request(n), frame(1, Bytes::new(), vec![payload.clone()]));
    // All of these are queued in one call, so none can be sent in between.
    a.net.send((0..6).map(request));
    let mut full = false;
    let refused = a
        .until(|e| match e {
            NetEvent::Link { link: Link::Full, .. } => {
                full = true;
                None
            }
            NetEvent::Frame { envelope, .. } => Some(envelope),
            _ => None,
        })
        .await;
    assert!(full, "the core hears of the full queue first");
    assert_eq!(refused.exchange, Exchange::Reply(3), "three fit");
    let huge = vec![Bytes::from(vec![0; 2 << 20])];
    a.net.send([outgoing(2, Class::Control, Exchange::Request(99), frame(1, Bytes::new(), huge))]);
    let refused = a.until(|e| match e {
        NetEvent::Frame { envelope, .. } if envelope.exchange == Exchange::Reply(99) => {
            Some(envelope.frame.kind)
        }
        _ => None,
    });
    assert_eq!(refused.await, <atoll_core::env::Refused as atoll_core::Message>::KIND);
}

#[tokio::test]
async fn a_restarted_peer_is_found_again_and_gets_no_old_replies() {
    let (mut a, b) = pair().await;
    b.net.send([outgoing(1, Class::Data, Exchange::Request(0), frame(1, "from the first life", vec![]))]);
    let (_, class, old) = a.until_frame().await;
    let (_, at) = b.at();
    b.net.shutdown(Duration::ZERO).await;
    drop(b);
    a.until_link(2, Class::Data, Link::Down).await;

    let mut second = options(2, 23);
    second.listen = at.to_string();
    let mut b = start(second).await;
    b.net.set_peers(book(&[a.at(), b.at()]));
    a.until_link(2, Class::Data, Link::Up).await;
    b.until_link(1, Class::Data, Link::Up).await;
    // The second life counts its requests from zero, too.
    b.net.send([outgoing(1, Class::Data, Exchange::Request(0), frame(1, "from the second life", vec![]))]);
    let (_, _, new) = a.until_frame().await;
    assert_ne!(old.exchange, new.exchange);
    a.net.send([answer(2, class, old), answer(2, class, new)]);
    let (_, _, reply) = b.until_frame().await;
    assert_eq!((reply.exchange, &reply.frame.head[..]), (Exchange::Reply(0), &b"from the second life"[..]));
    assert_eq!(a.net.stats().dropped_replies, 1);
}

#[tokio::test]
async fn peers_come_go_and_move() {
    let (mut a, b) = pair().await;
    a.net.set_peers(book(&[a.at()]));
    a.until_link(2, Class::Control, Link::Down).await;
    a.net.send([outgoing(2, Class::Control, Exchange::Post, frame(1, "nobody", vec![]))]);
    assert_eq!(a.net.stats().dropped, 1);
    // The peer moves to another address.
    let moved = start(options(2, 24)).await;
    b.net.shutdown(Duration::ZERO).await;
    let peers = book(&[a.at(), moved.at()]);
    moved.net.set_peers(peers.clone());
    a.net.set_peers(peers);
    a.until_link(2, Class::Control, Link::Up).await;
}

#[tokio::test]
async fn what_is_queued_is_written_before_a_clean_end() {
    let (a, mut b) = pair().await;
    let post = |n: u64| {
        let head = Bytes::copy_from_slice(&n.to_le_bytes());
        outgoing(2, Class::Data, Exchange::Post, frame(1, head, vec![vec![0; 10_000].into()]))
    };
    a.net.send((0..500).map(post));
    let (_, ()) = tokio::join!(
        async {
            for n in 0..500u64 {
                let (_, _, got) = b.until_frame().await;
                assert_eq!(got.frame.head, Bytes::copy_from_slice(&n.to_le_bytes()));
            }
        },
        a.net.shutdown(crate::common::PATIENCE)
    );
}
