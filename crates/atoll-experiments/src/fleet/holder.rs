//! Processes that hold sessions. A process may have too few files open for a whole crowd, so several share it. Each obeys lines of its
//! standard input, and answers each with one line; it ends with its input.

use std::io::{self, Write};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use super::crowd::Crowd;
use super::parts::{SEEN_BY_ALL, watched};

/// The most sessions of one process: below the limit of open files that systems have by default.
const MOST_SESSIONS: usize = 8_000;
/// All events of a change must have arrived by then.
const EVENTS_WITHIN: Duration = Duration::from_secs(60);

fn failed(words: impl std::fmt::Display) -> io::Error {
    io::Error::other(words.to_string())
}

/// Returns the time on the clock that all processes of a machine share, in nanoseconds.
pub fn shared_now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or(0)
}

/// One of the processes, as its parent sees it.
#[derive(Debug)]
struct Holder {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    sessions: usize,
    /// The number of its first session among all.
    first: usize,
}

/// All of them.
#[derive(Debug)]
pub struct Holders(Vec<Holder>);

impl Holders {
    /// Opens so many sessions, in turn at these servers.
    pub async fn open(addresses: &[String], sessions: usize) -> io::Result<Self> {
        let mut holders = Vec::new();
        for first in (0..sessions).step_by(MOST_SESSIONS) {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("fleet-holder").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let mut child = command.spawn()?;
            let pipes = child.stdin.take().zip(child.stdout.take());
            let (orders, answers) = pipes.ok_or_else(|| failed("a process without pipes"))?;
            let answers = BufReader::new(answers).lines();
            holders.push(Holder {
                child,
                orders,
                answers,
                sessions: MOST_SESSIONS.min(sessions - first),
                first,
            });
        }
        let mut holders = Holders(holders);
        holders.all("open", &json!({ "addresses": addresses })).await?;
        Ok(holders)
    }

    /// Returns how many sessions there are.
    pub fn len(&self) -> usize {
        self.0.iter().map(|holder| holder.sessions).sum()
    }

    /// Sends the same order to each process, and waits for their answers.
    async fn all(&mut self, order: &str, settings: &Value) -> io::Result<Vec<Value>> {
        for holder in &mut self.0 {
            let line = json!({ "do": order, "sessions": holder.sessions, "first": holder.first, "settings": settings });
            holder.orders.write_all(format!("{line}\n").as_bytes()).await?;
        }
        let mut answers = Vec::new();
        for holder in &mut self.0 {
            let line = holder
                .answers
                .next_line()
                .await?
                .ok_or_else(|| failed("a process that holds sessions has ended"))?;
            let answer: Value = serde_json::from_str(&line).map_err(failed)?;
            if let Some(why) = answer.get("failed") {
                return Err(failed(why));
            }
            answers.push(answer);
        }
        Ok(answers)
    }

    /// Lets each session watch so many nodes of its own share.
    pub async fn watch(&mut self, each: usize) -> io::Result<()> {
        self.all("watch", &json!({ "each": each })).await.map(drop)
    }

    /// Lets all watch the same node, and forgets the events so far.
    pub async fn watch_the_same(&mut self) -> io::Result<()> {
        self.all("watch_the_same", &Value::Null).await.map(drop)
    }

    /// Waits until each session has had an event. Returns when the first and the last one arrived, on the shared clock.
    pub async fn events(&mut self) -> io::Result<(u64, u64)> {
        let answers = self.all("events", &Value::Null).await?;
        let of = |name: &'static str| answers.iter().filter_map(move |answer| answer.get(name)?.as_u64());
        of("first_ns").min().zip(of("last_ns").max()).ok_or_else(|| failed("no events"))
    }

    /// Ends all sessions, and the processes.
    pub async fn close(mut self) -> io::Result<()> {
        self.all("close", &Value::Null).await?;
        for mut holder in self.0 {
            drop(holder.orders);
            holder.child.wait().await?;
        }
        Ok(())
    }
}

/// What such a process has.
#[derive(Default)]
struct Held {
    crowd: Option<Crowd>,
    alive: Option<JoinHandle<()>>,
}

impl Held {
    async fn obey(&mut self, order: &Value) -> io::Result<Value> {
        let number = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let first = number(&order["first"]).unwrap_or(0);
        let name = order["do"].as_str().unwrap_or_default();
        if name == "open" {
            let addresses = order["settings"]["addresses"].as_array().into_iter().flatten();
            let addresses: Vec<String> = addresses.filter_map(|a| a.as_str().map(str::to_owned)).collect();
            let crowd = Crowd::open(&addresses, number(&order["sessions"]).unwrap_or(0)).await?;
            self.alive = Some(crowd.keep_alive());
            self.crowd = Some(crowd);
            return Ok(json!({}));
        }
        let crowd = self.crowd.as_mut().ok_or_else(|| failed("no sessions are open"))?;
        match name {
            "watch" => {
                let each = number(&order["settings"]["each"]).unwrap_or(0);
                let nodes = |n: usize| (0..each).map(|m| watched((first + n) * each + m)).collect();
                crowd.watch(nodes).await?;
            }
            "watch_the_same" => {
                crowd.watch(|_| vec![SEEN_BY_ALL.to_owned()]).await?;
                crowd.events.take();
            }
            "events" => {
                let began = Instant::now();
                while crowd.events.count() < crowd.len() && began.elapsed() < EVENTS_WITHIN {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let times = crowd.events.take();
                if times.len() != crowd.len() {
                    return Err(failed(format!("{} of {} events arrived", times.len(), crowd.len())));
                }
                return Ok(json!({ "first_ns": times.iter().min(), "last_ns": times.iter().max() }));
            }
            "close" => {
                self.alive.take().inspect(JoinHandle::abort);
                if let Some(crowd) = self.crowd.take() {
                    crowd.close().await;
                }
            }
            other => return Err(failed(format!("no order {other:?}"))),
        }
        Ok(json!({}))
    }
}

/// Obeys the parent. A thread reads the orders, one at a time: reads of the standard input would hold up the sessions.
pub async fn obey() -> io::Result<()> {
    let (give, mut orders) = tokio::sync::mpsc::channel::<io::Result<String>>(1);
    std::thread::spawn(move || io::stdin().lines().all(|line| give.blocking_send(line).is_ok()));
    let mut held = Held::default();
    while let Some(line) = orders.recv().await {
        let order: Value = serde_json::from_str(&line?).map_err(failed)?;
        let answer = held.obey(&order).await.unwrap_or_else(|why| json!({ "failed": why.to_string() }));
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
