//! Addresses for nodes that are restarted and must have the same address again.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

const FIRST_PORT: u16 = 20_000;
const PORTS: u16 = 10_000;

/// Returns a free loopback address, which no other caller in this process gets. Its port is below the range for outgoing connections. A
/// port in that range could be taken by any process while the node is stopped.
pub fn free_address() -> String {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Far from where the next process begins: it may run beside this one.
    let process = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(PORTS)).unwrap();
    (0..PORTS)
        .map(|_| FIRST_PORT + process.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed)) % PORTS)
        .map(|port| format!("127.0.0.1:{port}"))
        .find(|address| TcpListener::bind(address).is_ok())
        .unwrap()
}
