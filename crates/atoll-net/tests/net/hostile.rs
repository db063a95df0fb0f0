//! Strangers, other versions, wrong addresses and duplicate ids each get a clear refusal and do not disturb the other nodes.

use crate::common::{Node, REQUESTS, book, frame, hello, options, outgoing, pair, start};
use atoll_core::level::since;
use atoll_core::{Class, Exchange, Incarnation, Link, Lsn, NodeId};
use atoll_net::{NetEvent, NetOptions, RefusalCode, StartError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends `bytes` and returns what the other side sends until it closes.
async fn say(to: &Node, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(to.net.local_addr()).await.unwrap();
    // The other side may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(crate::common::PATIENCE, stream.read_to_end(&mut answer));
    let _ = reading.await.expect("closed in time");
    answer
}

async fn still_works(a: &Node, b: &mut Node) {
    a.net.send([outgoing(b.id.0, Class::Control, Exchange::Post, frame(3, "well", vec![]))]);
    let (_, _, got) = b.until_frame().await;
    assert_eq!(&got.frame.head[..], b"well");
}

#[tokio::test]
async fn garbage_gets_no_answer_and_does_no_harm() {
    let (a, mut b) = pair().await;
    let garbage: [&[u8]; 5] =
        [b"GET / HTTP/1.1\r\n\r\n", &[0; 5000], &[255; 64], b"ATOLLnet", b"ATOLLneu12345678"];
    for bytes in garbage {
        let mut stream = TcpStream::connect(b.net.local_addr()).await.unwrap();
        let _ = stream.write_all(bytes).await;
        let _ = stream.shutdown().await;
        let mut answer = Vec::new();
        let _ = tokio::time::timeout(crate::common::PATIENCE, stream.read_to_end(&mut answer)).await.unwrap();
        assert!(answer.is_empty(), "{bytes:?} got {answer:?}");
    }
    assert_eq!(b.net.stats().rejected_garbage, 5);
    still_works(&a, &mut b).await;
}

#[tokio::test]
async fn a_stranger_that_begins_with_a_refusal_was_not_refused() {
    let (a, mut b) = pair().await;
    let mut body = 5u16.to_le_bytes().to_vec();
    body.extend(2u32.to_le_bytes());
    body.extend(b"no");
    let mut bytes = hello(2, "reef", 1, 2, 5)[..16].to_vec();
    bytes[10] = 1;
    bytes[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend(body);
    assert!(say(&b, &bytes).await.is_empty());
    let stats = b.net.stats();
    assert_eq!((stats.rejected_garbage, stats.rejected_handshakes), (1, 0));
    still_works(&a, &mut b).await;
}

#[tokio::test]
async fn refusals_say_why() {
    let (a, mut b) = pair().await;
    let mut long = hello(2, "reef", 1, 2, 5);
    long[12..16].copy_from_slice(&5000u32.to_le_bytes());
    for (bytes, code, words) in [
        (hello(9, "reef", 1, 2, 5), 1, "protocol version 2, not 9"),
        (hello(2, "atoll", 1, 2, 5), 2, "this is cluster \"reef\", not \"atoll\""),
        (hello(2, "reef", 1, 3, 5), 3, "this is node 2, not node 3"),
        (hello(2, "reef", 7, 2, 5), 4, "node 7 (from 127.0.0.1"),
        (hello(2, "reef", 2, 2, 5), 5, "two nodes have one id"),
        (hello(2, "reef", 1, 2, 5), 5, "node 1 is already connected from 127.0.0.1"),
        (long, 6, "length of a hello"),
    ] {
        let answer = say(&b, &bytes).await;
        assert_eq!(&answer[..8], b"ATOLLnet", "{words}");
        assert_eq!((answer[10], answer[16]), (1, code), "{words}");
        let text = String::from_utf8_lossy(&answer[22..]).into_owned();
        assert!(text.contains(words), "{text:?} does not say {words:?}");
    }
    assert_eq!(b.net.stats().rejected_handshakes, 7);
    still_works(&a, &mut b).await;
}

#[tokio::test]
async fn bad_frames_end_their_connection_only() {
    let (mut a, mut b) = pair().await;
    // Node 3 completes the handshake, then sends invalid frames.
    b.net.set_peers({
        let mut peers = book(&[a.at(), b.at()]);
        peers.insert(NodeId(3), "127.0.0.1:1".into());
        peers
    });
    let frames: [&[u8]; 3] = [
        &[255; 24],
        &[0xff, 0xff, 0xff, 0x7f, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        {
            // A reply on a connection that carries requests.
            &[0, 0, 0, 0, 1, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        },
    ];
    for bad in frames {
        let answer = say(&b, &[hello(2, "reef", 3, 2, 5), bad.to_vec()].concat()).await;
        assert_eq!((&answer[..8], answer[10]), (&b"ATOLLnet"[..], 0), "taken in at first");
    }
    assert_eq!(b.net.stats().broken_by_bad_frame, 3);
    still_works(&a, &mut b).await;
    still_works(&b, &mut a).await;
}

#[tokio::test]
async fn a_peer_with_too_many_requests_in_flight_loses_its_connection_only() {
    let (mut a, mut b) = pair().await;
    b.net.set_peers({
        let mut peers = book(&[a.at(), b.at()]);
        peers.insert(NodeId(3), "127.0.0.1:1".into());
        peers
    });
    let request = |number: u8| {
        let mut frame = [0; 24];
        (frame[4], frame[6], frame[7], frame[8]) = (1, 9, 1, number);
        frame
    };
    let with = |n: u8| [hello(2, "reef", 3, 2, 5), (0..n).flat_map(request).collect()].concat();
    // Send as many requests as both hellos allow, and one more. Nobody answers them.
    let answer = say(&b, &with(REQUESTS as u8 + 1)).await;
    assert_eq!((&answer[..8], answer[10]), (&b"ATOLLnet"[..], 0), "taken in at first");
    assert_eq!(b.net.stats().broken_by_too_many_requests, 1);
    for number in 0..u64::from(REQUESTS) {
        let (from, _, got) = b.until_frame().await;
        assert_eq!((from, number), (NodeId(3), request_number(&got)));
    }

    // A reply makes room for another request.
    let mut stream = TcpStream::connect(b.net.local_addr()).await.unwrap();
    stream.write_all(&with(REQUESTS as u8)).await.unwrap();
    let mut last = None;
    for _ in 0..REQUESTS {
        last = Some(b.until_frame().await.2);
    }
    let Exchange::Request(n) = last.unwrap().exchange else { panic!("a request") };
    b.net.send([outgoing(3, Class::Control, Exchange::Reply(n), frame(1, "", vec![]))]);
    stream.write_all(&request(REQUESTS as u8)).await.unwrap();
    let (_, _, got) = b.until_frame().await;
    assert_eq!(request_number(&got), u64::from(REQUESTS));
    assert_eq!(b.net.stats().broken_by_too_many_requests, 1);
    still_works(&a, &mut b).await;
    still_works(&b, &mut a).await;
}

/// Returns the number that the peer assigned to its request.
fn request_number(envelope: &atoll_core::Envelope) -> u64 {
    match envelope.exchange {
        Exchange::Request(n) => n & ((1 << 48) - 1),
        other => panic!("{other:?} is no request"),
    }
}

#[tokio::test]
async fn a_flood_of_strangers_is_bounded_and_keeps_nobody_out() {
    let mut few = options(2, 22);
    few.max_handshakes = 8;
    few.handshake_timeout = Duration::from_secs(3600);
    let mut b = start(few).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(b.net.local_addr()).await.unwrap());
    }
    let mut a = start(options(1, 11)).await;
    let peers = book(&[a.at(), b.at()]);
    b.net.set_peers(peers.clone());
    a.net.set_peers(peers);
    a.until_link(2, Class::Control, Link::Up).await;
    still_works(&a, &mut b).await;
    let stats = b.net.stats();
    assert!(stats.evicted_handshakes >= 92, "{stats:?}");
}

#[tokio::test]
async fn silence_times_out() {
    let mut hasty = options(2, 22);
    hasty.handshake_timeout = Duration::from_millis(50);
    let b = start(hasty).await;
    assert!(say(&b, b"").await.is_empty());
    assert_eq!(b.net.stats().rejected_garbage, 1);
}

#[tokio::test]
async fn the_second_of_two_nodes_with_one_id_hears_of_it() {
    let (mut a, mut b) = pair().await;
    let mut double = start(options(2, 99)).await;
    double.net.set_peers(book(&[a.at(), b.at()]));
    let (by, refusal) = double
        .until(|e| match e {
            NetEvent::Refused { by, refusal } => Some((by, refusal)),
            _ => None,
        })
        .await;
    assert_eq!((by, refusal.code), (NodeId(1), RefusalCode::Duplicate));
    assert!(refusal.reason.contains("node 2 is already connected from 127.0.0.1:"), "{refusal}");
    still_works(&a, &mut b).await;
    still_works(&b, &mut a).await;
}

#[tokio::test]
async fn a_data_directory_that_was_put_back_is_refused() {
    let remembers = options(1, 11);
    let back = options(2, 22);
    remembers.witness.check(NodeId(2), Incarnation(21), back.storage, Lsn(30)).unwrap();
    back.witness.set_own(Lsn(29));
    back.levels.learn(since::WITNESS).unwrap();
    let (a, mut back) = (start(remembers).await, start(back).await);
    a.net.set_peers([(NodeId(2), "127.0.0.1:1".into())].into());
    back.net.set_peers(book(&[a.at(), back.at()]));
    let refused = |e| match e {
        NetEvent::Refused { by, refusal } => Some((by, refusal)),
        _ => None,
    };
    let (by, refusal) = back.until(refused).await;
    assert_eq!((by, refusal.code), (NodeId(1), RefusalCode::PutBack));
    assert!(refusal.reason.contains("ends at record 29, and record 30 of it was durable"), "{refusal}");
}

#[tokio::test]
async fn a_node_of_a_cluster_that_was_rescued_without_it_is_told_so() {
    let mut rescued = options(1, 11);
    rescued.rescued_from = Some(std::mem::replace(&mut rescued.cluster, "again".into()));
    let (a, mut lost) = (start(rescued).await, start(options(2, 22)).await);
    lost.net.set_peers(book(&[a.at(), lost.at()]));
    let refused = |e| match e {
        NetEvent::Refused { by, refusal } => Some((by, refusal)),
        _ => None,
    };
    let (by, refusal) = lost.until(refused).await;
    assert_eq!((by, refusal.code), (NodeId(1), RefusalCode::PutBack));
    assert!(refusal.reason.contains("was rescued as \"again\" without node 2"), "{refusal}");
}

#[tokio::test]
async fn a_life_that_does_not_answer_makes_room_for_the_next() {
    let mut short = options(1, 11);
    short.duplicate_probe_timeout = Duration::from_millis(50);
    let mut a = start(short).await;
    a.net.set_peers([(NodeId(2), "127.0.0.1:1".into())].into());
    // A first life of node 2 that connects and then stays silent.
    let mut stopped = TcpStream::connect(a.net.local_addr()).await.unwrap();
    stopped.write_all(&hello(2, "reef", 2, 1, 5)).await.unwrap();
    let life = |e| match e {
        NetEvent::Peer { identity, .. } => Some(identity.incarnation.0),
        _ => None,
    };
    assert_eq!(a.until(life).await, 5);
    let b = start(options(2, 22)).await;
    b.net.set_peers(book(&[a.at()]));
    assert_eq!(a.until(life).await, 22);
    let mut rest = Vec::new();
    let _ = stopped.read_to_end(&mut rest).await;
    assert_eq!(rest[10], 0, "it was taken in, then closed");
}

async fn refused_start(change: impl FnOnce(&mut NetOptions)) -> StartError {
    let mut o = options(1, 11);
    change(&mut o);
    match atoll_net::Net::start(o).await {
        Ok(_) => panic!("started"),
        Err(e) => e,
    }
}

#[tokio::test]
async fn bad_options_are_refused_with_their_names() {
    let e = refused_start(|o| o.listen = "0.0.0.0:0".into()).await;
    assert!(matches!(e, StartError::Refused(_)), "{e}");
    assert!(e.to_string().contains("0.0.0.0:0 without TLS"), "{e}");
    let e = refused_start(|o| o.listen = "no port".into()).await;
    assert!(e.to_string().contains("no port"), "{e}");
    let e = refused_start(|o| o.cluster = String::new()).await;
    assert!(matches!(e, StartError::Cluster(0)));
    let taken = start(options(1, 11)).await;
    let at = taken.net.local_addr().to_string();
    let e = refused_start(|o| o.listen = at.clone()).await;
    assert!(e.to_string().contains(&at), "{e}");
    let mut allowed = options(1, 11);
    allowed.listen = "0.0.0.0:0".into();
    allowed.allow_plaintext_beyond_loopback = true;
    start(allowed).await;
}
