//! Times one write and sync after another, and prints one JSON line per payload size.
//!
//! `cargo run --release -p atoll-storage --example journal_bench -- DIR [SECONDS]`; DIR must be on the disk to be measured.
//! For comparison, the `probe_*` lines do the same without the journal: one aligned write of as many bytes to a zero-filled
//! file, made durable by fdatasync or by opening the file O_DIRECT and O_DSYNC.

use std::convert::Infallible;
use std::fs;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::{JournalBatch, Loc, Lsn, Record, RecordKind, RoleKind, StorageId};
use atoll_storage::{Journal, JournalOptions, RealDisk, Syncs};
use bytes::Bytes;

type Failure = Box<dyn std::error::Error>;

const PROBE_FILE_BYTES: usize = 64 << 20;
const SEGMENTS_KEPT: usize = 4;

fn main() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("usage: journal_bench DIR [SECONDS]")?;
    let run = Duration::from_secs(args.next().map_or(Ok(5), |s| s.parse())?);
    let dir = Path::new(&dir).join("journal_bench");
    for payload in [1024, 64 * 1024] {
        journal(&dir, payload, run)?;
        probe(&dir, "probe_fdatasync", 0, payload, run)?;
        probe(&dir, "probe_o_direct_o_dsync", libc_flags::DIRECT_DSYNC, payload, run)?;
    }
    fs::remove_dir_all(&dir)?;
    Ok(())
}

/// `O_DIRECT | O_DSYNC` of Linux on x86-64 and arm64.
mod libc_flags {
    #[cfg(target_arch = "x86_64")]
    pub const DIRECT_DSYNC: i32 = 0o40_000 | 0o10_000;
    #[cfg(not(target_arch = "x86_64"))]
    pub const DIRECT_DSYNC: i32 = 0o200_000 | 0o10_000;
}

fn journal(dir: &Path, payload: usize, run: Duration) -> Result<(), Failure> {
    let _ = fs::remove_dir_all(dir);
    let disk = Arc::new(RealDisk::open(dir, Syncs::Real)?);
    let opened = Instant::now();
    let options = JournalOptions::new(StorageId(1));
    let (mut journal, _) = Journal::recover(disk, options, &mut |_| Ok::<_, Infallible>(()))?;
    let start_ms = opened.elapsed().as_secs_f64() * 1e3;
    let payload_bytes = Bytes::from(vec![0xa5; payload]);
    let mut kept: Vec<Loc> = Vec::new();
    let mut times = Vec::new();
    let mut preparing: Option<std::thread::JoinHandle<_>> = None;
    let begin = Instant::now();
    while begin.elapsed() < run {
        let record = Record {
            owner: RoleKind(1),
            kind: RecordKind::Entry,
            head: Bytes::from_static(&[7; 24]),
            payload: payload_bytes.clone(),
        };
        let batch = JournalBatch::of(vec![(Lsn(journal.last().0 + 1), record)]);
        let at = Instant::now();
        let places = journal.write(&batch)?;
        journal.sync()?;
        times.push(at.elapsed());
        // Like a log, trim every few segments.
        kept.extend(places.iter().map(|(_, loc)| *loc));
        if journal.stats().used_segments > SEGMENTS_KEPT as u64 {
            journal.free(&std::mem::take(&mut kept))?;
        }
        if let Some(done) = preparing.take_if(|p| p.is_finished()) {
            journal.prepared(done.join().map_err(|_| "the preparing thread panicked")?)?;
        }
        if preparing.is_none()
            && let Some(job) = journal.next_job()
        {
            preparing = Some(std::thread::spawn(move || job.run()));
        }
    }
    let inline = journal.stats().inline_prepares;
    let extra = format!(",\"start_ms\":{start_ms:.1},\"inline_prepares\":{inline}");
    report("journal", payload, begin.elapsed(), times, &extra);
    Ok(())
}

fn probe(dir: &Path, name: &str, flags: i32, payload: usize, run: Duration) -> Result<(), Failure> {
    let path = dir.join("probe");
    let file = fs::File::create(&path)?;
    file.write_all_at(&vec![0; PROBE_FILE_BYTES], 0)?;
    file.sync_all()?;
    drop(file);
    let file = fs::OpenOptions::new().write(true).custom_flags(flags).open(&path)?;
    let len = payload.next_multiple_of(4096);
    // O_DIRECT requires aligned memory, too.
    let memory = vec![0xa5_u8; len + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let bytes = &memory[skip..skip + len];
    let (mut at, mut times) = (0, Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < run {
        let started = Instant::now();
        file.write_all_at(bytes, at as u64)?;
        if flags == 0 {
            file.sync_data()?;
        }
        times.push(started.elapsed());
        at = if at + 2 * len > PROBE_FILE_BYTES { 0 } else { at + len };
    }
    report(name, payload, begin.elapsed(), times, "");
    Ok(())
}

fn report(name: &str, payload: usize, took: Duration, mut times: Vec<Duration>, extra: &str) {
    times.sort_unstable();
    let us = |part: f64| {
        let index = ((times.len() - 1) as f64 * part) as usize;
        times[index].as_secs_f64() * 1e6
    };
    let seconds = took.as_secs_f64();
    let rate = times.len() as f64 / seconds;
    println!(
        "{{\"bench\":\"{name}\",\"payload_bytes\":{payload},\"seconds\":{seconds:.1},\"batches_s\":{rate:.0},\
         \"mb_s\":{:.1},\"p50_us\":{:.0},\"p99_us\":{:.0},\"p999_us\":{:.0},\"max_us\":{:.0}{extra}}}",
        rate * payload as f64 / 1e6,
        us(0.5),
        us(0.99),
        us(0.999),
        us(1.0),
    );
}
