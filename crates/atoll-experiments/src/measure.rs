//! How long messages take on the loopback while no processor works on them. Each is measured in several repetitions, and the fastest count,
//! because whatever else the machine does only adds to them.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::costs::{Costs, Waits};
use crate::model::Parameters;

/// Repetitions of each measurement.
const ROUNDS: usize = 9;
/// Messages in each repetition with sockets.
const MESSAGES: u32 = 2_000;
/// Bytes of a small message, and of each write of a stream.
const SMALL: usize = 64;
const LARGE: usize = 64 * 1024;
/// Bytes of a stream that shows what a link carries.
const STREAM: usize = 256 * 1024 * 1024;

/// Why the parameters could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A socket failed.
    #[error("a socket of the loopback failed: {0}")]
    Socket(#[from] io::Error),
    /// The parameters that were given are none.
    #[error("--parameters: expected the JSON object `parameters` of an earlier run's line")]
    Given,
}

/// Reads the parameters of an earlier run's line.
pub fn given(text: &str) -> Result<Parameters, MeasureError> {
    let value: Option<Value> = serde_json::from_str(text).ok();
    value.as_ref().and_then(Parameters::from_json).ok_or(MeasureError::Given)
}

/// Returns the parameters: what real nodes took of the processors and waited for their disks, and how long messages take beside that, which
/// is measured here.
pub fn with_costs(costs: &Costs, waits: &Waits) -> Result<Parameters, MeasureError> {
    let (took, worked) = round_trip()?;
    Ok(Parameters {
        turn_ns: whole(costs.turn_ns),
        step_ns: whole(costs.step_ns),
        wake_ns: whole(costs.wake_ns),
        batch_ns: whole(costs.batch_ns),
        batch_byte_ps: whole(costs.batch_byte_ns * 1e3),
        read_ns: whole(costs.read_ns),
        write_ns: whole(costs.write_ns),
        byte_ps: whole(costs.byte_ns * 1e3),
        step_crowd_ps: whole(costs.step_crowd_ns * 1e3),
        byte_crowd_fs: whole(costs.byte_crowd_ns * 1e6),
        step_neighbour_ps: whole(costs.step_neighbour_ns * 1e3),
        batch_byte_neighbour_ps: whole(costs.batch_byte_neighbour_ns * 1e3),
        latency_ns: whole((took - worked) / 2.0),
        link_bytes_s: whole(stream()?),
        sync_ns: whole(waits.sync_ns),
        disk_bytes_s: whole(1e9 / waits.byte_ns.max(1e-3)),
    })
}

fn whole(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn waiting(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

/// Returns what a clock of the system shows, in nanoseconds.
fn clock_ns(id: ClockId) -> f64 {
    let now = clock_gettime(id);
    now.tv_sec as f64 * 1e9 + now.tv_nsec as f64
}

/// Returns how long a small message to another thread and back takes, and for how long processors worked on it. Both threads wait as those
/// of nodes do.
fn round_trip() -> io::Result<(f64, f64)> {
    let (one, other) = pair()?;
    let echo = thread::spawn(move || -> io::Result<()> {
        runtime()?.block_on(async move {
            let mut other = waiting(other)?;
            let mut got = [0; SMALL];
            while other.read_exact(&mut got).await.is_ok() {
                other.write_all(&got).await?;
            }
            Ok(())
        })
    });
    // The caller may be in a runtime, in which no other one can be started.
    let client = thread::spawn(move || -> io::Result<(f64, f64)> { runtime()?.block_on(ping(one)) });
    let best = client.join().unwrap_or_else(|_| Err(io::Error::other("the client has panicked")));
    // The echo ends with its connection, whatever it then returns.
    let _ = echo.join();
    best
}

/// Sends small messages, and waits for each to come back. Returns how long that takes, and for how long processors worked on it.
async fn ping(one: TcpStream) -> io::Result<(f64, f64)> {
    let mut one = waiting(one)?;
    let mut got = [7; SMALL];
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (began, worked) = (Instant::now(), clock_ns(ClockId::ProcessCPUTime));
        for _ in 0..MESSAGES {
            one.write_all(&got).await?;
            one.read_exact(&mut got).await?;
        }
        let worked = clock_ns(ClockId::ProcessCPUTime) - worked;
        let each = |all: f64| all / f64::from(MESSAGES);
        best = (best.0.min(each(began.elapsed().as_nanos() as f64)), best.1.min(each(worked)));
    }
    Ok(best)
}

/// Returns how many bytes a second pass from one thread to another.
fn stream() -> io::Result<f64> {
    let mut best: f64 = 0.0;
    for _ in 0..3 {
        let (mut one, mut other) = pair()?;
        let writer = thread::spawn(move || -> io::Result<()> {
            let content = vec![7; LARGE];
            (0..STREAM / LARGE).try_for_each(|_| one.write_all(&content))
        });
        let mut got = vec![0; LARGE];
        let began = Instant::now();
        for _ in 0..STREAM / LARGE {
            other.read_exact(&mut got)?;
        }
        best = best.max(STREAM as f64 / began.elapsed().as_secs_f64().max(1e-9));
        // All its bytes have arrived.
        let _ = writer.join();
    }
    Ok(best)
}
