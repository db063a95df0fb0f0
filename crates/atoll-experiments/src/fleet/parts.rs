//! What is measured. Each part prints one line.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::Args;
use super::client::{Client, Events};
use super::crowd::Crowd;
use super::holder::{Holders, shared_now_ns};
use super::processes::Taken;
use super::wire::{Request, Ticket};
use crate::latency::Latencies;

/// The parts, in their order.
pub const NAMES: [&str; 7] = ["lone", "sessions", "idle", "watches", "notify", "children", "move"];

/// The node below which everything is.
const ROOT: &str = "/fleet";
/// The node that all sessions watch.
pub const SEEN_BY_ALL: &str = "/fleet/seen-by-all";
/// The parent of many children.
const LARGE: &str = "/fleet/large";
/// How many nodes the sessions watch together.
const WATCHED: usize = 10_000;
/// How often a change of the node that all watch is measured.
const CHANGES: usize = 5;
/// The sessions that create and delete children, and how many requests each has in flight.
const HANDS: usize = 8;
const IN_FLIGHT: usize = 128;
/// Clients that write while sessions move.
const WRITERS: usize = 4;
/// How long they write before and after.
const AROUND: Duration = Duration::from_secs(3);
/// Bytes of a write.
const VALUE: [u8; 100] = [7; 100];
const TIMEOUT: Duration = Duration::from_secs(30);

struct Run<'a> {
    args: &'a Args,
}

fn ms(took: Duration) -> f64 {
    (took.as_secs_f64() * 1e5).round() / 1e2
}

/// A client that writes one node, one write after the other.
struct Lone {
    stop: Arc<AtomicBool>,
    writes: JoinHandle<io::Result<Latencies>>,
}

impl Lone {
    fn start(client: Arc<Client>, path: String) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let ends = stop.clone();
        let writes = tokio::spawn(async move {
            let (mut latencies, began) = (Latencies::new(), Instant::now());
            while !ends.load(Ordering::Relaxed) {
                let at = Instant::now();
                client.one(Request::SetData(&path, &VALUE)).await?;
                latencies.add(at.elapsed());
            }
            latencies.busy = began.elapsed();
            Ok(latencies)
        });
        Lone { stop, writes }
    }

    async fn end(self) -> io::Result<Latencies> {
        self.stop.store(true, Ordering::Relaxed);
        self.writes.await.map_err(io::Error::other)?
    }
}

fn figures(latencies: &Latencies) -> Value {
    let at = |q| (latencies.quantile_us(q) / 10.0).round() / 100.0;
    json!({
        "writes": latencies.count(),
        "writes_s": (latencies.count() as f64 / latencies.busy.as_secs_f64().max(1e-9)).round(),
        "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0),
    })
}

impl Run<'_> {
    fn tell(&self, part: &str, mut figures: Value) -> io::Result<()> {
        if let Value::Object(fields) = &mut figures {
            fields.insert("system".to_owned(), json!(self.args.system));
            fields.insert("part".to_owned(), json!(part));
        }
        let mut out = io::stdout().lock();
        writeln!(out, "{figures}")?;
        out.flush()
    }

    fn taken(&self) -> Taken {
        Taken::now(&self.args.pids)
    }

    async fn one(&self, server: usize) -> io::Result<Arc<Client>> {
        let address = &self.args.addresses[server % self.args.addresses.len()];
        Client::open(address, &Ticket::default(), 0, TIMEOUT, &Arc::<Events>::default()).await.map(Arc::new)
    }

    /// Creates the nodes that all parts use.
    async fn prepare(&self) -> io::Result<()> {
        let client = self.one(0).await?;
        for path in [ROOT, SEEN_BY_ALL, LARGE, "/fleet/watched", "/fleet/written"] {
            client.one(Request::Create(path, &VALUE)).await?;
        }
        let mut paths: Vec<_> = (0..WATCHED).map(watched).collect();
        paths.extend((0..=WRITERS).map(written));
        for some in paths.chunks(IN_FLIGHT) {
            let requests: Vec<_> = some.iter().map(|path| Request::Create(path, &VALUE)).collect();
            all_done(client.ask(&requests).await?)?;
        }
        client.ask(&[Request::Close]).await.map(drop)
    }

    async fn lone(&self, part: &str, idle: usize) -> io::Result<()> {
        let client = self.one(1).await?;
        let writer = Lone::start(client, written(0));
        tokio::time::sleep(self.args.during()).await;
        let mut line = figures(&writer.end().await?);
        line["idle_sessions"] = json!(idle);
        self.tell(part, line)
    }

    async fn opened(&self) -> io::Result<Holders> {
        let (before, began) = (self.taken(), Instant::now());
        let crowd = Holders::open(&self.args.addresses, self.args.sessions).await?;
        let (took, taken) = (began.elapsed().as_secs_f64(), self.taken() - before);
        let sessions = crowd.len().max(1) as f64;
        self.tell(
            "sessions",
            json!({
                "sessions": crowd.len(), "seconds": took, "sessions_s": (sessions / took).round(), "taken": taken.to_json(),
                "bytes_of_session": (taken.resident_bytes / sessions).round(), "resident_mb": self.taken().to_json()["resident_mb"],
            }),
        )?;
        Ok(crowd)
    }

    /// What sessions cost that only stay alive.
    async fn idle(&self, crowd: &Holders) -> io::Result<()> {
        let before = self.taken();
        tokio::time::sleep(self.args.during()).await;
        let taken = self.taken() - before;
        let share = 100.0 * taken.processor_s / self.args.during().as_secs_f64();
        self.tell(
            "idle",
            json!({ "sessions": crowd.len(), "percent_of_a_processor": (share * 10.0).round() / 10.0 }),
        )?;
        self.lone("lone_beside_idle", crowd.len()).await
    }

    async fn watches(&self, crowd: &mut Holders) -> io::Result<()> {
        let each = self.args.watches;
        let (before, began) = (self.taken(), Instant::now());
        crowd.watch(each).await?;
        let (took, taken, watches) =
            (began.elapsed().as_secs_f64(), self.taken() - before, (crowd.len() * each).max(1));
        self.tell(
            "watches",
            json!({
                "watches": watches, "seconds": took, "watches_s": (watches as f64 / took).round(), "taken": taken.to_json(),
                "bytes_of_watch": (taken.resident_bytes / watches as f64).round(), "resident_mb": self.taken().to_json()["resident_mb"],
            }),
        )
    }

    /// How long it takes until all sessions know of one change.
    async fn notify(&self, crowd: &mut Holders) -> io::Result<()> {
        let (mut firsts, mut lasts) = (Vec::new(), Vec::new());
        let writer = self.one(0).await?;
        for _ in 0..CHANGES {
            crowd.watch_the_same().await?;
            let at = shared_now_ns();
            writer.one(Request::SetData(SEEN_BY_ALL, &VALUE)).await?;
            let (first, last) = crowd.events().await?;
            firsts.push(ms(Duration::from_nanos(first.saturating_sub(at))));
            lasts.push(ms(Duration::from_nanos(last.saturating_sub(at))));
        }
        self.tell("notify", json!({ "watchers": crowd.len(), "first_ms": firsts, "last_ms": lasts }))
    }

    /// A parent with very many children: created, listed, deleted, listed again.
    async fn children(&self) -> io::Result<()> {
        let client = self.one(1).await?;
        let mut line = json!({ "children": self.args.children });
        for (made, action, listed) in [(true, "create", "list"), (false, "delete", "list_empty")] {
            let at = Instant::now();
            self.each_child(made).await?;
            line[format!("{action}_s")] = json!(at.elapsed().as_secs_f64());
            let beside = Lone::start(self.one(2).await?, written(0));
            tokio::time::sleep(Duration::from_millis(200)).await;
            let at = Instant::now();
            let found = client.one(Request::GetChildren(LARGE)).await?.children();
            line[format!("{listed}_ms")] = json!(ms(at.elapsed()));
            line[format!("beside_{listed}")] = figures(&beside.end().await?);
            let wanted = if made { self.args.children as u64 } else { 0 };
            if found != Some(wanted) {
                return Err(io::Error::other(format!("{found:?} children are listed, of {wanted}")));
            }
        }
        line["resident_mb"] = self.taken().to_json()["resident_mb"].clone();
        self.tell("children", line)
    }

    async fn each_child(&self, made: bool) -> io::Result<()> {
        let mut hands = Vec::new();
        for hand in 0..HANDS {
            let (client, count) = (self.one(hand).await?, self.args.children);
            hands.push(tokio::spawn(async move {
                let mine: Vec<_> = (hand..count).step_by(HANDS).map(|n| format!("{LARGE}/c{n:07}")).collect();
                for some in mine.chunks(IN_FLIGHT) {
                    let request =
                        |path| if made { Request::Create(path, b"") } else { Request::Delete(path) };
                    let requests: Vec<_> = some.iter().map(|path| request(path)).collect();
                    all_done(client.ask(&requests).await?)?;
                }
                client.ask(&[Request::Close]).await.map(drop)
            }));
        }
        for hand in hands {
            hand.await.map_err(io::Error::other)??;
        }
        Ok(())
    }

    /// The first server is killed. Its sessions move to the others, while clients of those write.
    async fn moves(&self) -> io::Result<()> {
        let (first, others) = self.args.addresses.split_at(1);
        let mut crowd = Crowd::open(first, self.args.moving).await?;
        let each = self.args.watches;
        crowd.watch(|number| (0..each).map(|n| watched(number * each + n)).collect()).await?;
        let mut writers = Vec::new();
        for number in 0..WRITERS {
            writers.push(Lone::start(self.one(1 + number % others.len()).await?, written(1 + number)));
        }
        tokio::time::sleep(AROUND).await;
        let since = Instant::now();
        kill(self.args.pids[0])?;
        let (took, lost) = crowd.move_to(others, since).await;
        tokio::time::sleep(AROUND).await;
        let mut written = Latencies::new();
        for writer in writers {
            let own = writer.end().await?;
            written.busy = own.busy;
            written.merge(&own);
        }
        let at = |place: usize| took.get(place).copied().map(ms);
        self.tell(
            "move",
            json!({
                "sessions": crowd.len(), "watches_of_session": each, "moved": took.len(), "lost": lost, "median_ms": at(took.len() / 2),
                "last_ms": at(took.len().saturating_sub(1)), "others": figures(&written),
            }),
        )
    }
}

/// Returns a node that some sessions watch.
pub fn watched(number: usize) -> String {
    format!("/fleet/watched/w{:05}", number % WATCHED)
}

fn written(number: usize) -> String {
    format!("/fleet/written/{number}")
}

fn all_done(replies: Vec<super::wire::Reply>) -> io::Result<()> {
    match replies.iter().find(|reply| reply.error != 0) {
        Some(reply) => {
            Err(io::Error::other(format!("a request was answered with the error {}", reply.error)))
        }
        None => Ok(()),
    }
}

fn kill(pid: u32) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("--pids names no process"))?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
}

/// Runs the parts that are wanted, in their order.
pub async fn run(args: &Args) -> io::Result<()> {
    let run = Run { args };
    run.prepare().await?;
    if args.wants("lone") {
        run.lone("lone", 0).await?;
    }
    if ["sessions", "idle", "watches", "notify"].iter().any(|part| args.wants(part)) {
        let mut crowd = run.opened().await?;
        if args.wants("idle") {
            run.idle(&crowd).await?;
        }
        if args.wants("watches") {
            run.watches(&mut crowd).await?;
        }
        if args.wants("notify") {
            run.notify(&mut crowd).await?;
        }
        crowd.close().await?;
    }
    if args.wants("children") {
        run.children().await?;
    }
    if args.wants("move") {
        run.moves().await?;
    }
    Ok(())
}
