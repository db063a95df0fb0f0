//! Measures the cost of a request: `cargo test --release -p atoll-net --test net throughput -- --ignored --nocapture`.

use std::time::Instant;

use crate::common::{frame, outgoing, pair};
use atoll_core::{Class, Exchange};
use atoll_net::NetEvent;
use bytes::Bytes;

/// Returns the CPU time of this thread, or None where the kernel does not report it.
fn cpu_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

#[tokio::test]
#[ignore = "prints figures, asserts nothing"]
async fn cpu_per_request() {
    const REQUESTS: u64 = 400_000;
    for (size, depth) in [(1024usize, 64u64), (1024, 1), (1024, 256), (32 * 1024, 64), (16, 64)] {
        let (mut a, mut b) = pair().await;
        let server = tokio::spawn(async move {
            let mut events = Vec::new();
            let mut replies = Vec::new();
            loop {
                std::future::poll_fn(|cx| b.events.poll_ready(cx)).await;
                b.events.drain(&mut events, 256, 1 << 20);
                for event in events.drain(..) {
                    let NetEvent::Frame { envelope, .. } = event else { continue };
                    let Exchange::Request(n) = envelope.exchange else { continue };
                    let head = Bytes::copy_from_slice(&[0; 16]);
                    replies.push(outgoing(1, Class::Data, Exchange::Reply(n), frame(2, head, vec![])));
                }
                b.net.send(replies.drain(..));
            }
        });
        let requests = if depth == 1 { REQUESTS / 20 } else { REQUESTS };
        let payload = Bytes::from(vec![7; size]);
        let request = |n| {
            let head = Bytes::copy_from_slice(&[0; 24]);
            outgoing(2, Class::Data, Exchange::Request(n), frame(1, head, vec![payload.clone()]))
        };
        let (wall, cpu) = (Instant::now(), cpu_ns());
        let (mut sent, mut done) = (0, 0);
        let mut events = Vec::new();
        while done < requests {
            let until = requests.min(done + depth);
            a.net.send((sent..until).map(request));
            sent = until;
            std::future::poll_fn(|cx| a.events.poll_ready(cx)).await;
            a.events.drain(&mut events, 256, 1 << 20);
            done += events.drain(..).filter(|e| matches!(e, NetEvent::Frame { .. })).count() as u64;
        }
        let wall = wall.elapsed().as_nanos() as u64;
        let cpu = cpu_ns().zip(cpu).map(|(after, before)| after - before);
        let stats = a.net.stats();
        println!(
            "{size} bytes, {depth} in flight: {:.2} us CPU per request, both ends; {:.2} us wall; {:.1} frames per write",
            cpu.unwrap_or(0) as f64 / requests as f64 / 1000.0,
            wall as f64 / requests as f64 / 1000.0,
            stats.frames_out as f64 / stats.writes as f64,
        );
        server.abort();
    }
}
