//! `atoll log append`: one record, or one per line of a file, many in flight.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use atoll_client::{Appending, Error, Failure, Log, MAX_RECORD_BYTES, Reason};
use bytes::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::timeline::Timeline;
use super::{CliError, Common, grouped};

/// Lines that are read ahead of the appends: number of chunks, and lines per chunk.
const CHUNKS_AHEAD: usize = 8;
const CHUNK_LINES: usize = 512;

/// Arguments of `atoll log append`.
#[derive(Debug, clap::Args)]
pub struct AppendArgs {
    /// The record
    #[arg(required_unless_present = "lines", conflicts_with = "lines")]
    text: Option<String>,
    /// Append each line of this file as a record, without its line end; - is standard input
    #[arg(long, value_name = "FILE|-")]
    lines: Option<PathBuf>,
    /// Records in flight
    #[arg(long, value_name = "N", default_value_t = 64, requires = "lines", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// Write to this file when records were acknowledged; each line has microseconds since 1970 and a count
    #[arg(long, value_name = "FILE", requires = "lines")]
    timeline: Option<PathBuf>,
}

/// Runs `atoll log append`.
pub async fn run(common: &Common, log: &Log, args: &AppendArgs) -> Result<(), CliError> {
    match (&args.lines, &args.text) {
        (Some(file), _) => append_lines(common, log, file, args).await,
        (None, Some(text)) => {
            let position = log.append(text.clone()).await?;
            common.print_done(&json!({"log": log.name(), "position": position}), || position.to_string())
        }
        (None, None) => Err(CliError::Usage("give TEXT, or --lines FILE".to_owned())),
    }
}

/// Lines in flight, and the outcome of earlier ones.
#[derive(Default)]
struct Progress {
    /// The lines in flight, in order, with the length of each in bytes.
    in_flight: VecDeque<(u64, Appending)>,
    /// Number of lines that have an outcome.
    settled: u64,
    records: u64,
    bytes: u64,
    first: Option<u64>,
    last: u64,
    /// The first line that was not acknowledged, and why.
    failed: Option<(u64, Error)>,
    /// Why no further lines are taken: the file, the timeline, or a line that cannot be sent.
    stopped: Option<CliError>,
    timeline: Option<Timeline>,
}

impl Progress {
    /// Waits for the outcome of the oldest line in flight.
    async fn settle(&mut self, bar: &ProgressBar) {
        let Some((length, appending)) = self.in_flight.pop_front() else { return };
        let outcome = appending.await;
        self.settled += 1;
        match outcome {
            Ok(position) => {
                self.records += 1;
                self.bytes += length;
                self.first.get_or_insert(position);
                self.last = position;
                bar.inc(length + 1);
                if self.records.is_multiple_of(1024) {
                    bar.set_message(grouped(self.records));
                }
            }
            Err(error) => {
                self.failed.get_or_insert((self.settled, error));
                return;
            }
        }
        self.time(Timeline::note);
    }

    /// Writes to the timeline. An error ends the timeline, and later the appends. It must not hide the outcome of the lines in flight.
    fn time(&mut self, write: impl FnOnce(&mut Timeline) -> Result<(), CliError>) {
        if let Some(Err(error)) = self.timeline.as_mut().map(write) {
            self.timeline = None;
            self.stopped.get_or_insert(error);
        }
    }

    /// Appends lines, with `depth` in flight, until there are no more, one fails, or the timeline does.
    async fn feed(
        &mut self,
        log: &Log,
        lines: &mut mpsc::Receiver<Chunk>,
        depth: usize,
        bar: &ProgressBar,
    ) -> Result<(), CliError> {
        while let Some(chunk) = lines.recv().await {
            for line in chunk? {
                if self.in_flight.len() >= depth {
                    self.settle(bar).await;
                }
                if self.failed.is_some() || self.stopped.is_some() {
                    return Ok(());
                }
                let length = line.len() as u64;
                self.in_flight.push_back((length, log.submit(line).await?));
            }
        }
        Ok(())
    }
}

async fn append_lines(common: &Common, log: &Log, path: &Path, args: &AppendArgs) -> Result<(), CliError> {
    let (mut lines, total_bytes) = open(path)?;
    let timeline = args.timeline.as_deref().map(Timeline::create).transpose()?;
    let bar = progress_bar(total_bytes);
    let started = Instant::now();
    let mut progress = Progress { timeline, ..Progress::default() };
    if let Err(error) = progress.feed(log, &mut lines, args.depth as usize, &bar).await {
        progress.stopped = Some(error);
    }
    // Wait for lines in flight even after a failure, because their outcome belongs in the report.
    while !progress.in_flight.is_empty() {
        progress.settle(&bar).await;
    }
    bar.finish_and_clear();
    progress.time(Timeline::write);
    if let Some((line, error)) = progress.failed.take() {
        let behind = progress.records - (line - 1);
        return Err(at_line(error, line, behind).into());
    }
    let (value, text) = report(log, &progress, started.elapsed());
    match progress.stopped.take() {
        None => common.print_done(&value, || text),
        Some(CliError::Client(error)) => Err(at_line(error, progress.settled + 1, 0).into()),
        Some(error) if progress.records == 0 => Err(error),
        Some(error) => Err(error.after(&value, &text)),
    }
}

/// Adds to an error which line it was, and what happened to the others.
fn at_line(error: Error, line: u64, appended_behind: u64) -> Error {
    error.map(|failure| {
        let mut next = match line {
            1 => String::new(),
            _ => "the lines before it are appended".to_owned(),
        };
        if appended_behind > 0 {
            let and = if next.is_empty() { "" } else { ", and " };
            next.push_str(&format!("{and}{} after it", grouped(appended_behind)));
        }
        if !next.is_empty() && !failure.next.is_empty() {
            next.push_str("; ");
        }
        next.push_str(&failure.next);
        Failure { message: format!("line {}: {}", grouped(line), failure.message), next, ..failure }
    })
}

/// Returns what was appended, as JSON and as text.
fn report(log: &Log, done: &Progress, took: Duration) -> (Value, String) {
    let seconds = took.as_secs_f64();
    let per_second = done.records as f64 / seconds.max(1e-9);
    let megabytes_per_second = done.bytes as f64 / 1e6 / seconds.max(1e-9);
    let value = json!({
        "log": log.name(), "records": done.records, "bytes": done.bytes, "first": done.first,
        "last": done.first.map(|_| done.last), "seconds": seconds, "records_s": per_second,
    });
    let text = match done.first {
        None => "no lines".to_owned(),
        Some(first) => format!(
            "{} records at positions {first} to {} in {seconds:.2} s: {} records/s, {megabytes_per_second:.1} MB/s",
            grouped(done.records),
            done.last,
            grouped(per_second as u64),
        ),
    };
    (value, text)
}

fn progress_bar(total_bytes: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total_bytes {
        Some(n) => (
            ProgressBar::new(n),
            "{wide_bar} {bytes}/{total_bytes}  {msg} records  {bytes_per_sec}  {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}  {msg} records  {bytes_per_sec}"),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

type Chunk = Result<Vec<Bytes>, CliError>;

/// Starts to read lines, on a thread of its own, because a slow pipe must not hold up acknowledgements.
fn open(path: &Path) -> Result<(mpsc::Receiver<Chunk>, Option<u64>), CliError> {
    let (to, lines) = mpsc::channel(CHUNKS_AHEAD);
    if path == Path::new("-") {
        thread::spawn(move || {
            read_chunks(BufReader::with_capacity(1 << 18, io::stdin()), "standard input", &to)
        });
        return Ok((lines, None));
    }
    let what = path.display().to_string();
    let file = |error| CliError::File { what: what.clone(), error };
    let source = File::open(path).map_err(file)?;
    let total = source.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| m.len());
    thread::spawn(move || read_chunks(BufReader::with_capacity(1 << 18, source), &what, &to));
    Ok((lines, total))
}

/// Sends lines in chunks. A chunk is sent as soon as reading the next line would have to wait.
fn read_chunks<R: Read>(mut source: BufReader<R>, what: &str, to: &mpsc::Sender<Chunk>) {
    let mut chunk = Vec::new();
    loop {
        match read_line(&mut source) {
            Ok(Some(line)) => chunk.push(Bytes::from(line)),
            Ok(None) => {
                let _ = to.blocking_send(Ok(chunk));
                return;
            }
            Err(error) => {
                let _ = to.blocking_send(Ok(chunk));
                let error = match error.kind() {
                    io::ErrorKind::FileTooLarge => CliError::Client(too_long()),
                    _ => CliError::File { what: what.to_owned(), error },
                };
                let _ = to.blocking_send(Err(error));
                return;
            }
        }
        let send = chunk.len() >= CHUNK_LINES || !source.buffer().contains(&b'\n');
        if send && to.blocking_send(Ok(std::mem::take(&mut chunk))).is_err() {
            return;
        }
    }
}

/// Returns the next line without its line end; None at the end of the file. Fails if the line is longer than a record may be, before all
/// of it is in memory.
fn read_line<R: BufRead>(source: &mut R) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let limit = MAX_RECORD_BYTES as u64 + 1;
    if source.by_ref().take(limit).read_until(b'\n', &mut line)? == 0 {
        return Ok(None);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else if line.len() as u64 == limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(Some(line))
}

fn too_long() -> Error {
    Error::DidNotHappen(Failure::new(
        Reason::TooLarge,
        format!("the line has more than {MAX_RECORD_BYTES} bytes, the maximum of a record"),
        "split it",
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lines(input: &[u8]) -> Result<Vec<Vec<u8>>, io::ErrorKind> {
        let mut source = BufReader::with_capacity(7, input);
        let mut all = Vec::new();
        loop {
            match read_line(&mut source) {
                Ok(Some(line)) => all.push(line),
                Ok(None) => return Ok(all),
                Err(error) => return Err(error.kind()),
            }
        }
    }

    #[test]
    fn lines_lose_their_end_and_nothing_else() {
        assert_eq!(lines(b"").unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(
            lines(b"a\n\nb\r\nlast").unwrap(),
            [b"a".to_vec(), vec![], b"b\r".to_vec(), b"last".to_vec()]
        );
        assert_eq!(lines(b"\xff\x00\n").unwrap(), [b"\xff\x00".to_vec()]);
    }

    #[test]
    fn a_line_may_be_as_long_as_a_record_and_no_longer() {
        let mut longest = vec![b'x'; MAX_RECORD_BYTES];
        assert_eq!(lines(&longest).unwrap()[0].len(), MAX_RECORD_BYTES);
        longest.push(b'\n');
        assert_eq!(lines(&longest).unwrap()[0].len(), MAX_RECORD_BYTES);
        longest.insert(0, b'x');
        assert_eq!(lines(&longest), Err(io::ErrorKind::FileTooLarge));
    }

    #[test]
    fn a_failure_names_its_line() {
        let words = |line, behind| match at_line(too_long(), line, behind) {
            Error::DidNotHappen(failure) => (failure.message, failure.next),
            other => panic!("changed outcome: {other}"),
        };
        assert!(words(1235, 0).0.starts_with("line 1,235: "));
        assert_eq!(words(1235, 0).1, "the lines before it are appended; split it");
        assert_eq!(words(2, 63).1, "the lines before it are appended, and 63 after it; split it");
        assert_eq!(words(1, 0).1, "split it");
    }
}
