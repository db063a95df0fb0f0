//! Addresses for nodes that are stopped and started: where they were, they must be again.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

/// An address of loopback that is free now, and given to nobody else in this process. Its port is below those that systems give to
/// outgoing connections: one of these could be taken by any process while the node is away.
pub fn free_address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    let process = u16::try_from(std::process::id() % u32::from(PORTS)).unwrap();
    (0..PORTS)
        .map(|_| FIRST_PORT + process.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok())
        .unwrap()
}
