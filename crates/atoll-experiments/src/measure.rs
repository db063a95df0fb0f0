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

use crate::model::Parameters;
use crate::striping::{Load, Shape};

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

/// These shape the turns whose work is measured: how many messages each has. The result does not depend on them otherwise.
const WHILE_MEASURING: Parameters = Parameters {
    turn_ns: 1_000,
    step_ns: 1_000,
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
}

/// Measures all parameters. The journal is in a new folder below `folder`, which is removed afterwards.
pub fn measure(folder: &Path) -> Result<Parameters, MeasureError> {
    let (turn_ns, step_ns) = turns()?;
    let sockets = Sockets::measure()?;
    let (sync_ns, disk_bytes_s) = disk(folder)?;
    Ok(Parameters {
        turn_ns: whole(turn_ns),
        step_ns: whole(step_ns),
        read_ns: whole(sockets.read_ns),
        write_ns: whole(sockets.write_ns),
        byte_ps: whole(sockets.byte_ns * 1e3),
        latency_ns: whole(sockets.latency_ns),
        link_bytes_s: whole(sockets.bytes_s),
        sync_ns: whole(sync_ns),
        disk_bytes_s: whole(disk_bytes_s),
    })
}

fn whole(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

/// Returns the time of a turn and of a step, from loads with short and with long turns.
fn turns() -> Result<(f64, f64), MeasureError> {
    let mut points = Vec::new();
    for depth in [1, 4, 16, 64] {
        let load = Load {
            clients: 4,
            depth,
            payload: 1024,
            warm_up_ms: 5,
            measured_ms: 20,
            seed: 1,
            one_machine: None,
        };
        let runs: Vec<_> = (0..ROUNDS).map(|_| load.run(&WHILE_MEASURING, &Shape::sharded(1)).work).collect();
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
        let latency_ns = (round_trip()? / 2.0 - small.0 - small.1).max(0.0);
        Ok(Sockets { read_ns, write_ns, byte_ns, latency_ns, bytes_s: stream()? })
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

/// Returns how long a small message to another thread and back takes.
fn round_trip() -> io::Result<f64> {
    let (mut one, mut other) = pair()?;
    let echo = thread::spawn(move || -> io::Result<()> {
        let mut got = [0; SMALL];
        while other.read_exact(&mut got).is_ok() {
            other.write_all(&got)?;
        }
        Ok(())
    });
    let mut got = [7; SMALL];
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        for _ in 0..MESSAGES {
            one.write_all(&got)?;
            one.read_exact(&mut got)?;
        }
        best = best.min(began.elapsed().as_nanos() as f64 / f64::from(MESSAGES));
    }
    drop(one);
    // The echo ends with its connection, whatever it then returns.
    let _ = echo.join();
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

/// Returns the time of a sync in nanoseconds, and what the disk writes in bytes per second.
fn disk(folder: &Path) -> Result<(f64, f64), MeasureError> {
    let folder = folder.join(format!("atoll-experiments-{}", std::process::id()));
    let measured = journal_batches(&folder);
    // What remains is only some disk space.
    let _ = std::fs::remove_dir_all(&folder);
    let (few, many) = measured?;
    let bytes = ((MANY - FEW) * 1024) as f64;
    let byte_ns = ((many - few) / bytes).max(1e-3);
    Ok(((few - byte_ns * 4096.0).max(1.0), 1e9 / byte_ns))
}

/// Returns how long a batch of few and one of many records takes, in nanoseconds.
fn journal_batches(folder: &Path) -> Result<(f64, f64), MeasureError> {
    let mut options = JournalOptions::new(StorageId(7));
    options.ready_segments = 2;
    let disk = Arc::new(RealDisk::open(folder, Syncs::Real)?);
    let (mut journal, _) = match Journal::recover(disk, options, &mut |_| Ok::<_, Infallible>(())) {
        Ok(opened) => opened,
        Err(RecoverError::Journal(error)) => return Err(error.into()),
    };
    let mut times = [Vec::new(), Vec::new()];
    for n in 0..2 * BATCHES {
        let records = if n % 2 == 0 { FEW } else { MANY };
        let batch = batch_after(journal.last(), records);
        let began = Instant::now();
        let places = journal.write(&batch)?;
        journal.sync()?;
        times[n % 2].push(began.elapsed());
        // Nobody reads these entries.
        journal.free(&places.into_iter().map(|(_, loc)| loc).collect::<Vec<_>>())?;
        while let Some(job) = journal.next_job() {
            journal.prepared(job.run())?;
        }
    }
    let [few, many] = times.map(fastest_quarter);
    Ok((few, many))
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

/// Returns the longest time of the fastest quarter, in nanoseconds.
fn fastest_quarter(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 4).map_or(0.0, |time| time.as_nanos() as f64)
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
