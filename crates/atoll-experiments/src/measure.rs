//! The parameters of the model, measured on this machine: what turns of real node cores, sockets of the loopback, and the journal on a real
//! disk take.
//!
//! Each is measured in several repetitions, and the fastest count, because whatever else the machine does only adds to them. For the disk
//! it is the fastest quarter: its times vary by themselves.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use atoll_core::{JournalBatch, Lsn, Record, RecordKind, StorageId};
use atoll_storage::{Journal, JournalError, JournalOptions, RealDisk, RecoverError, Syncs};
use bytes::Bytes;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use crate::model::{Parameters, Work};

/// Repetitions of each measurement.
const ROUNDS: usize = 9;
/// Messages in each repetition with sockets.
const MESSAGES: u32 = 2_000;
/// Bytes of a small and of a large message. A large one fits into the buffers of a socket.
const SMALL: usize = 64;
const LARGE: usize = 64 * 1024;
/// Bytes of a stream that shows what a link carries.
const STREAM: usize = 256 * 1024 * 1024;
/// Batches of the journal, and the records of 1 KiB in a small and in a large one.
const BATCHES: usize = 60;
const FEW: usize = 1;
const MANY: usize = 512;

/// The operations that are under way, together, while turns are measured: few and many make short and long turns.
const DEPTHS: [u32; 4] = [4, 16, 64, 256];

/// These shape the turns whose work is measured: how many messages each has. The result does not depend on them otherwise.
const WHILE_MEASURING: Parameters = Parameters {
    turn_ns: 1_000,
    step_ns: 1_000,
    wake_ns: 0,
    batch_ns: 0,
    batch_byte_ps: 0,
    read_ns: 1_000,
    write_ns: 2_000,
    byte_ps: 500,
    latency_ns: 10_000,
    link_bytes_s: 1_000_000_000,
    sync_ns: 50_000,
    disk_bytes_s: 500_000_000,
};

/// Why the parameters could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A socket failed.
    #[error("a socket of the loopback failed: {0}")]
    Socket(#[from] io::Error),
    /// The disk failed.
    #[error("the journal failed: {0}")]
    Journal(#[from] JournalError),
    /// The folder cannot be used.
    #[error("the folder cannot be used: {0}")]
    Disk(#[from] atoll_storage::DiskError),
    /// The node cores of the measurement did nothing.
    #[error("no append succeeded while turns were measured")]
    NoWork,
    /// The parameters that were given are none.
    #[error("--parameters: expected the JSON object `parameters` of an earlier run's line")]
    Given,
}

/// Returns the parameters that a run is given, as its line has them; measures them if none are given.
pub fn given_or_measured(
    given: Option<&str>,
    folder: &Path,
    work: &dyn Fn(&Parameters, u32) -> Work,
) -> Result<Parameters, MeasureError> {
    let Some(text) = given else { return measure(folder, work) };
    let value: Option<Value> = serde_json::from_str(text).ok();
    value.as_ref().and_then(Parameters::from_json).ok_or(MeasureError::Given)
}

/// Measures all parameters. `work` runs node cores in a model with these parameters and so many operations under way, and returns what
/// their turns had to do. The journal is in a new folder below `folder`, which is removed afterwards.
fn measure(folder: &Path, work: &dyn Fn(&Parameters, u32) -> Work) -> Result<Parameters, MeasureError> {
    let (turn_ns, step_ns) = turns(work)?;
    let sockets = Sockets::measure()?;
    let disk = disk(folder)?;
    Ok(Parameters {
        turn_ns: whole(turn_ns),
        step_ns: whole(step_ns),
        wake_ns: whole(sockets.wake_ns),
        batch_ns: whole(disk.batch_ns),
        batch_byte_ps: whole(disk.batch_byte_ns * 1e3),
        read_ns: whole(sockets.read_ns),
        write_ns: whole(sockets.write_ns),
        byte_ps: whole(sockets.byte_ns * 1e3),
        latency_ns: whole(sockets.latency_ns),
        link_bytes_s: whole(sockets.bytes_s),
        sync_ns: whole(disk.sync_ns),
        disk_bytes_s: whole(disk.bytes_s),
    })
}

fn whole(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

/// Returns the time of a turn and of a step, from loads with short and with long turns.
fn turns(work: &dyn Fn(&Parameters, u32) -> Work) -> Result<(f64, f64), MeasureError> {
    let mut points = Vec::new();
    for depth in DEPTHS {
        let runs: Vec<_> = (0..ROUNDS).map(|_| work(&WHILE_MEASURING, depth)).collect();
        let fastest = runs.into_iter().min_by_key(|work| work.took).filter(|work| work.turns > 0);
        let work = fastest.ok_or(MeasureError::NoWork)?;
        let turns = work.turns as f64;
        points.push((work.steps as f64 / turns, work.took.as_nanos() as f64 / turns));
    }
    Ok(line_through(&points))
}

/// Returns the height at 0 and the slope of the line that fits best, with a height of at least 0.
fn line_through(points: &[(f64, f64)]) -> (f64, f64) {
    let count = points.len().max(1) as f64;
    let mean = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let (xy, xx) = (mean(&|p| (p.0 - x) * (p.1 - y)), mean(&|p| (p.0 - x).powi(2)));
    let slope = if xx > 0.0 { xy / xx } else { 0.0 };
    if slope > 0.0 && y - slope * x >= 0.0 {
        return (y - slope * x, slope);
    }
    (0.0, y / x.max(1.0))
}

/// What sockets take.
struct Sockets {
    wake_ns: f64,
    read_ns: f64,
    write_ns: f64,
    byte_ns: f64,
    latency_ns: f64,
    bytes_s: f64,
}

impl Sockets {
    fn measure() -> Result<Self, MeasureError> {
        let small = both_ends(SMALL)?;
        let large = both_ends(LARGE)?;
        // A byte costs its writer and its reader; the model counts it at both.
        let byte_ns = ((large.0 + large.1) - (small.0 + small.1)) / 2.0 / (LARGE - SMALL) as f64;
        let byte_ns = byte_ns.max(0.0);
        let own = |whole: f64| (whole - byte_ns * SMALL as f64).max(0.0);
        let (write_ns, read_ns) = (own(small.0), own(small.1));
        let (took, worked) = round_trip()?;
        // A way takes a write, a read, and the waking of who reads; what is left is no processor time.
        let wake_ns = (worked / 2.0 - small.0 - small.1).max(0.0);
        let latency_ns = (took / 2.0 - small.0 - small.1 - wake_ns).max(0.0);
        Ok(Sockets { wake_ns, read_ns, write_ns, byte_ns, latency_ns, bytes_s: stream()? })
    }
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

/// Returns the time of a write and of a read of this many bytes, both by one thread, so that nobody is woken.
fn both_ends(bytes: usize) -> io::Result<(f64, f64)> {
    let (mut one, mut other) = pair()?;
    let (content, mut got) = (vec![7; bytes], vec![0; bytes]);
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        let (mut writing, mut reading) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..MESSAGES {
            let began = Instant::now();
            one.write_all(&content)?;
            let written = Instant::now();
            other.read_exact(&mut got)?;
            writing += written - began;
            reading += written.elapsed();
        }
        let each = |all: Duration| all.as_nanos() as f64 / f64::from(MESSAGES);
        best = (best.0.min(each(writing)), best.1.min(each(reading)));
    }
    Ok(best)
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

/// What the journal takes.
struct Disk {
    sync_ns: f64,
    /// Processor time of a batch, and of each of its bytes.
    batch_ns: f64,
    batch_byte_ns: f64,
    bytes_s: f64,
}

fn disk(folder: &Path) -> Result<Disk, MeasureError> {
    let folder = folder.join(format!("atoll-experiments-{}", std::process::id()));
    let measured = journal_batches(&folder);
    // What remains is only some disk space.
    let _ = std::fs::remove_dir_all(&folder);
    let [few, many] = measured?;
    let bytes = ((MANY - FEW) * 1024) as f64;
    let byte_ns = ((many.took - few.took) / bytes).max(1e-3);
    let batch_byte_ns = ((many.worked - few.worked) / bytes).max(0.0);
    let batch_ns = (few.worked - batch_byte_ns * (FEW * 1024) as f64).max(0.0);
    let sync_ns = (few.took - byte_ns * 4096.0).max(1.0);
    Ok(Disk { sync_ns, batch_ns, batch_byte_ns, bytes_s: 1e9 / byte_ns })
}

/// How long a batch takes, and for how long a processor works on it, in nanoseconds.
struct BatchTime {
    took: f64,
    worked: f64,
}

/// Returns what a batch of few and one of many records take.
fn journal_batches(folder: &Path) -> Result<[BatchTime; 2], MeasureError> {
    let mut options = JournalOptions::new(StorageId(7));
    options.ready_segments = 2;
    let disk = Arc::new(RealDisk::open(folder, Syncs::Real)?);
    let (mut journal, _) = match Journal::recover(disk, options, &mut |_| Ok::<_, Infallible>(())) {
        Ok(opened) => opened,
        Err(RecoverError::Journal(error)) => return Err(error.into()),
    };
    let mut times = [Vec::new(), Vec::new()];
    let mut worked = [Vec::new(), Vec::new()];
    for n in 0..2 * BATCHES {
        let records = if n % 2 == 0 { FEW } else { MANY };
        let batch = batch_after(journal.last(), records);
        let (began, work_began) = (Instant::now(), clock_ns(ClockId::ThreadCPUTime));
        let places = journal.write(&batch)?;
        journal.sync()?;
        times[n % 2].push(began.elapsed().as_nanos() as f64);
        worked[n % 2].push(clock_ns(ClockId::ThreadCPUTime) - work_began);
        // Nobody reads these entries.
        journal.free(&places.into_iter().map(|(_, loc)| loc).collect::<Vec<_>>())?;
        while let Some(job) = journal.next_job() {
            journal.prepared(job.run())?;
        }
    }
    let [[few, many], [few_worked, many_worked]] = [times, worked].map(|both| both.map(fastest_quarter));
    Ok([BatchTime { took: few, worked: few_worked }, BatchTime { took: many, worked: many_worked }])
}

fn batch_after(last: Lsn, records: usize) -> JournalBatch {
    let payload = Bytes::from(vec![7; 1024]);
    let record = || Record {
        owner: atoll_native::roles::LOG_SERVER,
        kind: RecordKind::Entry,
        head: Bytes::new(),
        payload: payload.clone(),
    };
    JournalBatch::of((1..=records as u64).map(|n| (Lsn(last.0 + n), record())).collect())
}

/// Returns the longest time of the fastest quarter.
fn fastest_quarter(mut times: Vec<f64>) -> f64 {
    times.sort_unstable_by(f64::total_cmp);
    times.get(times.len() / 4).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        let (height, slope) = line_through(&[(1.0, 12.0), (3.0, 16.0), (10.0, 30.0)]);
        assert!((height - 10.0).abs() < 1e-9 && (slope - 2.0).abs() < 1e-9, "{height} {slope}");
        let (height, slope) = line_through(&[(2.0, 2.0), (4.0, 8.0)]);
        assert!(height == 0.0 && slope > 0.0, "no time is negative: {height} {slope}");
    }
}
