//! The audit log: who has operated the cluster, and who was refused. One line of JSON for each, in a file of bounded size in the data
//! directory. A thread of its own writes, so nothing else waits for the disk. No line contains a secret.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_core::sync::lock;
use serde_json::{Value, json};

/// The name of the file. Older ones have a number behind it.
pub const AUDIT_FILE: &str = "audit.log";
/// A file that has reached this size is renamed, and another one begins.
const FILE_BYTES: u64 = 8 << 20;
/// How many older files are kept.
const OLDER_FILES: u32 = 3;
/// How many lines may wait for the disk. Further ones are counted only.
const WAITING: usize = 1024;
/// How many failures are written in a second. Further ones are counted only.
const FAILURES_PER_SECOND: u32 = 20;
/// How often the number of lines that were left out is written, if there are any.
const TELLS_EVERY: Duration = Duration::from_secs(1);

/// The audit log. Clones share the same file. The default writes nothing.
#[derive(Clone, Debug, Default)]
pub struct Audit(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    /// Taken when this is dropped.
    lines: Option<SyncSender<Value>>,
    left_out: Arc<AtomicU64>,
    failures: Mutex<Window>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    count: u32,
}

impl Audit {
    /// Opens the log in this folder, and appends to what is there.
    ///
    /// # Errors
    /// The file cannot be opened, or the thread cannot be started.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let mut files = Files::open(folder, FILE_BYTES)?;
        let (lines, waiting) = sync_channel(WAITING);
        let left_out = Arc::new(AtomicU64::new(0));
        let count = left_out.clone();
        let writer = std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write_all(&mut files, &waiting, &count))?;
        let failures = Mutex::new(Window { began: Instant::now(), count: 0 });
        Ok(Audit(Some(Arc::new(Inner { lines: Some(lines), left_out, failures, writer: Some(writer) }))))
    }

    /// Records an operation. `line` is an object, to which the time is added.
    pub fn operation(&self, line: Value) {
        if let Some(inner) = &self.0 {
            inner.put(line);
        }
    }

    /// Records that somebody was refused, unless there have been too many such lines in this second.
    pub fn failure(&self, line: Value) {
        let Some(inner) = &self.0 else { return };
        let room = {
            let mut window = lock(&inner.failures);
            if window.began.elapsed() >= Duration::from_secs(1) {
                *window = Window { began: Instant::now(), count: 0 };
            }
            window.count += 1;
            window.count <= FAILURES_PER_SECOND
        };
        if room { inner.put(line) } else { inner.leave_out() }
    }
}

impl Inner {
    fn leave_out(&self) {
        self.left_out.fetch_add(1, Ordering::Relaxed);
    }

    fn put(&self, mut line: Value) {
        let ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        line["time_ms"] = u64::try_from(ms).unwrap_or(u64::MAX).into();
        let sent = self.lines.as_ref().map(|lines| lines.try_send(line));
        if !matches!(sent, Some(Ok(()))) {
            self.leave_out();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.lines = None;
        if let Some(writer) = self.writer.take() {
            // It ends once it has written what waits. If it has panicked, the message is on stderr.
            let _ = writer.join();
        }
    }
}

/// Writes until there is nobody left who could send a line.
fn write_all(files: &mut Files, waiting: &Receiver<Value>, left_out: &AtomicU64) {
    let mut failed = atoll_socket::LimitedWarning::default();
    let mut put = |files: &mut Files, line: &Value| {
        if let Err(error) = files.append(&line.to_string())
            && let Some(times) = failed.pass()
        {
            tracing::warn!(%error, times, "the audit log cannot be written");
        }
    };
    loop {
        let next = waiting.recv_timeout(TELLS_EVERY);
        match left_out.swap(0, Ordering::Relaxed) {
            0 => {}
            lines => put(files, &json!({"event": "left-out", "lines": lines})),
        }
        match next {
            Ok(line) => put(files, &line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// The file, and the older ones.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
}

impl Files {
    fn open(folder: &Path, most: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(folder.join(AUDIT_FILE))?;
        let bytes = file.metadata()?.len();
        Ok(Files { folder: folder.to_owned(), file, bytes, most })
    }

    fn append(&mut self, line: &str) -> io::Result<()> {
        if self.bytes >= self.most {
            self.turn()?;
        }
        let line = format!("{line}\n");
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }

    /// Begins another file. The oldest one goes.
    fn turn(&mut self) -> io::Result<()> {
        let name = |n: u32| match n {
            0 => self.folder.join(AUDIT_FILE),
            n => self.folder.join(format!("{AUDIT_FILE}.{n}")),
        };
        for n in (0..OLDER_FILES).rev() {
            match std::fs::rename(name(n), name(n + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        *self = Files::open(&self.folder, self.most)?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn lines(folder: &Path, name: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(folder.join(name)).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn operations_are_all_written_and_failures_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let audit = Audit::open(folder.path()).unwrap();
        for n in 0..100 {
            audit.failure(json!({"event": "refused", "n": n}));
        }
        audit.operation(json!({"event": "operation"}));
        drop(audit);
        let all = lines(folder.path(), AUDIT_FILE);
        let count = |event: &str| all.iter().filter(|line| line["event"] == event).count() as u64;
        assert_eq!(count("operation"), 1);
        let told: u64 = all
            .iter()
            .filter(|line| line["event"] == "left-out")
            .map(|line| line["lines"].as_u64().unwrap())
            .sum();
        assert!(count("refused") >= u64::from(FAILURES_PER_SECOND));
        assert_eq!(count("refused") + told, 100);
        assert!(all.iter().all(|line| line["event"] == "left-out" || line["time_ms"].as_u64().unwrap() > 0));
        // Another start appends.
        Audit::open(folder.path()).unwrap().operation(json!({"event": "operation"}));
        assert_eq!(lines(folder.path(), AUDIT_FILE).len(), all.len() + 1);
    }

    #[test]
    fn the_files_together_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Files::open(folder.path(), 100).unwrap();
        for n in 0..100 {
            files.append(&json!({"n": n}).to_string()).unwrap();
        }
        let mut names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]);
        assert_eq!(lines(folder.path(), AUDIT_FILE).last().unwrap()["n"], 99);
    }
}
