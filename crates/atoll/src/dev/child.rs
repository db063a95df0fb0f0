//! The life of one child: starts it, watches it, and restarts it when it dies.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};

use super::plan::PlannedNode;

/// A log of this size, in bytes, is renamed to `log.old` before the next start, and replaces an older one.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// How long a child may take to stop before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// A child that ended by itself sooner than this after its start counts as failed to start, and the next start waits.
const QUICK: Duration = Duration::from_secs(5);
/// The same for a child that was killed. Drills kill often, but never deliberately this soon after a start.
const QUICK_KILL: Duration = Duration::from_millis(100);
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Whether the children must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Keep running.
    No,
    /// Stop in an orderly way.
    Now,
    /// Kill them.
    Kill,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// By a signal from outside.
    Killed(i32),
    /// With exit status 0, as after SIGTERM.
    Stopped,
    /// In any other way, by its own fault, which is described.
    ByItself(String),
}

impl From<ExitStatus> for How {
    fn from(status: ExitStatus) -> Self {
        // SIGKILL, SIGTERM and SIGINT come from outside. Other signals are crashes.
        match (status.code(), status.signal()) {
            (Some(0), _) => How::Stopped,
            (_, Some(n @ (2 | 9 | 15))) => How::Killed(n),
            _ => How::ByItself(status.to_string()),
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Killed(9) => f.write_str("was killed (kill -9)"),
            How::Killed(n) => write!(f, "was killed (signal {n})"),
            How::Stopped => f.write_str("stopped in good order"),
            How::ByItself(words) => write!(f, "ended by itself ({words})"),
        }
    }
}

/// A change in the life of a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It was started.
    Started {
        /// The node.
        id: u32,
        /// The id of its process.
        pid: u32,
        /// Whether this is a restart.
        again: bool,
    },
    /// It has ended.
    Ended {
        /// The node.
        id: u32,
        /// How it ended.
        how: How,
        /// How long it lived.
        after: Duration,
        /// The time until it is restarted; None if it is not.
        again_in: Option<Duration>,
        /// The last line of its log, if it ended by itself.
        last_words: Option<String>,
    },
}

/// Everything that the watcher of one child needs.
pub struct Life {
    /// The node.
    pub node: PlannedNode,
    /// The program, which is this one.
    pub exe: PathBuf,
    /// Whether to restart it when it dies.
    pub restart: bool,
    /// Receives the events.
    pub events: mpsc::Sender<Event>,
    /// Changes when the child must end.
    pub stop: watch::Receiver<Stop>,
}

impl Life {
    /// Runs until it must stop, or until the child has died and must not be restarted.
    pub async fn run(mut self) {
        let id = self.node.id;
        let mut again = false;
        let mut backoff = Duration::ZERO;
        while *self.stop.borrow() == Stop::No {
            let began = Instant::now();
            let how = match self.start() {
                Ok(mut child) => {
                    let pid = child.id().unwrap_or(0);
                    let _ = self.events.send(Event::Started { id, pid, again }).await;
                    match self.watch(&mut child).await {
                        Some(how) => how,
                        None => return,
                    }
                }
                Err(error) => How::ByItself(format!("not started: {error}")),
            };
            again = true;
            let after = began.elapsed();
            let quick = match how {
                How::ByItself(_) => after < QUICK,
                How::Killed(_) | How::Stopped => after < QUICK_KILL,
            };
            backoff = match (quick, backoff.is_zero()) {
                (false, _) => Duration::ZERO,
                (true, true) => BACKOFF_MIN,
                (true, false) => (backoff * 2).min(BACKOFF_MAX),
            };
            let last_words = matches!(how, How::ByItself(_)).then(|| log_tail(&self.node.log(), 1));
            let again_in = self.restart.then_some(backoff);
            let _ = self.events.send(Event::Ended { id, how, after, again_in, last_words }).await;
            if !self.restart {
                return;
            }
            if !backoff.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(backoff) => {}
                    _ = self.stop.wait_for(|s| *s != Stop::No) => {}
                }
            }
        }
    }

    fn start(&self) -> std::io::Result<Child> {
        let log = self.node.log();
        if fs::metadata(&log).is_ok_and(|m| m.len() > MAX_LOG_BYTES) {
            fs::rename(&log, self.node.folder.join("log.old"))?;
        }
        let out = OpenOptions::new().create(true).append(true).open(&log)?;
        Command::new(&self.exe)
            .arg("serve")
            .arg("--config")
            .arg(self.node.config_file())
            .arg("--exit-with-stdin")
            // The child stops when this end of the pipe closes: on request, or when this process dies in any way.
            .stdin(Stdio::piped())
            .stdout(out.try_clone()?)
            .stderr(out)
            // Ctrl-C in the terminal must reach only this process.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
    }

    /// Waits for the child and returns how it ended; None if it ended on request.
    async fn watch(&mut self, child: &mut Child) -> Option<How> {
        let stdin = child.stdin.take();
        let ended = tokio::select! {
            ended = child.wait() => Some(ended),
            _ = self.stop.wait_for(|s| *s != Stop::No) => None,
        };
        match ended {
            Some(Ok(status)) => Some(status.into()),
            Some(Err(error)) => Some(How::ByItself(format!("lost: {error}"))),
            None => {
                drop(stdin);
                let in_time = tokio::select! {
                    _ = child.wait() => true,
                    () = tokio::time::sleep(STOP_WITHIN) => false,
                    _ = self.stop.wait_for(|s| *s == Stop::Kill) => false,
                };
                if !in_time {
                    let _ = child.kill().await;
                }
                None
            }
        }
    }
}

/// Returns the last lines of a log; empty if it cannot be read.
pub fn log_tail(log: &Path, lines: usize) -> String {
    const LOOK_AT_BYTES: u64 = 8 << 10;
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = fs::File::open(log)?;
        let size = file.metadata()?.len();
        file.seek(SeekFrom::Start(size.saturating_sub(LOOK_AT_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LOOK_AT_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).into_owned();
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
