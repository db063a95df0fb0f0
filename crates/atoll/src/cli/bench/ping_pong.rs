//! `atoll bench ping-pong`: one byte there and back between two processes over loopback TCP. Each round trip has two wake-ups, and no
//! protocol that needs a round trip between two processes can be faster on this machine. So figures at depth 1 mean little without it.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde_json::json;

use super::super::{CliError, Common};
use super::MAX_LATENCY_US;

/// How long `atoll bench log` measures it beside a figure at depth 1.
pub(super) const BESIDE_A_FIGURE: Duration = Duration::from_millis(300);
/// Round trips that are not counted, because both processes have just started.
const WARM_UP_TRIPS: u32 = 200;
/// How long the other process may take to start and to connect.
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, clap::Args)]
pub(super) struct PingPongArgs {
    /// How long to measure
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = super::super::seconds)]
    seconds: Duration,
    /// Be the process that answers, at this address; used by the command itself
    #[arg(long, value_name = "ADDRESS", hide = true)]
    answer: Option<String>,
}

/// Runs `atoll bench ping-pong`, or the process that answers it.
pub(super) fn run(common: &Common, args: &PingPongArgs) -> Result<(), CliError> {
    if let Some(address) = &args.answer {
        return answer(address).map_err(failed);
    }
    let times = measure(args.seconds).map_err(failed)?;
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    let report = json!({
        "bench": "ping-pong", "round_trips": times.len(), "seconds": args.seconds.as_secs_f64(),
        "p50_us": us(0.5), "p99_us": us(0.99), "max_us": times.max() as f64 / 1e3,
        "version": env!("CARGO_PKG_VERSION"),
    });
    common.print(&report, || {
        format!(
            "one byte to another process and back: p50 {:.1} µs  p99 {:.1}  max {:.1}  ({} round trips)\n\
             each has two wake-ups, so one takes about {:.1} µs on this machine",
            us(0.5),
            us(0.99),
            times.max() as f64 / 1e3,
            times.len(),
            us(0.5) / 2.0
        )
    })
}

fn failed(error: io::Error) -> CliError {
    CliError::Check(format!("the ping-pong between two processes failed: {error}"))
}

/// Stops the other process, however the measurement ends.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures round trips to a new process for this long. Returns their times in nanoseconds.
///
/// # Errors
/// The other process cannot be started, or a socket fails.
pub(super) fn measure(at_most: Duration) -> io::Result<Histogram<u64>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let address = listener.local_addr()?.to_string();
    let child = Command::new(std::env::current_exe()?)
        .args(["bench", "ping-pong", "--answer", &address])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()?;
    let mut other = Other(child);
    let mut stream = accept(&listener, &mut other.0)?;
    stream.set_nodelay(true)?;
    let mut times = Histogram::new_with_max(MAX_LATENCY_US * 1000, 3).map_err(io::Error::other)?;
    for _ in 0..WARM_UP_TRIPS {
        trip(&mut stream)?;
    }
    let began = Instant::now();
    while began.elapsed() < at_most {
        let ns = u64::try_from(trip(&mut stream)?.as_nanos()).unwrap_or(u64::MAX);
        times.saturating_record(ns);
    }
    Ok(times)
}

/// Waits until the other process connects.
fn accept(listener: &TcpListener, other: &mut Child) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let began = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if other.try_wait()?.is_some() => return Err(io::Error::other("the other process ended")),
            Err(_) if began.elapsed() > CONNECTS_WITHIN => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn trip(stream: &mut TcpStream) -> io::Result<Duration> {
    let sent = Instant::now();
    stream.write_all(b"x")?;
    stream.read_exact(&mut [0])?;
    Ok(sent.elapsed())
}

/// Sends every byte back until the other side ends.
fn answer(address: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut byte = [0];
    loop {
        match stream.read_exact(&mut byte) {
            Ok(()) => stream.write_all(&byte)?,
            // The measurement is over.
            Err(_) => return Ok(()),
        }
    }
}
