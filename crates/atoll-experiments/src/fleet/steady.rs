//! Writes at a fixed rate, and how long they take in each second. A write is due at its time, whether earlier ones have been answered or
//! not, so a server that stands still for a moment shows in all writes that were due then.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::{Client, Events};
use super::wire::{Request, Ticket};

/// How many sessions write in turn. As many writes can be late at once before further ones wait for them.
const SESSIONS: usize = 256;
const TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the load.
#[derive(Debug, clap::Args)]
pub struct SteadyArgs {
    /// The servers: HOST:PORT,...
    #[arg(long, value_delimiter = ',', required = true)]
    addresses: Vec<String>,
    /// Writes per second
    #[arg(long, default_value_t = 2_000)]
    rate: u32,
    /// How many seconds they last
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// How many nodes are written, in turn
    #[arg(long, default_value_t = 100_000)]
    nodes: usize,
    /// Bytes of a write
    #[arg(long, default_value_t = 1_024)]
    payload: usize,
}

/// The times of the writes that were due in each second, in microseconds.
type Seconds = Arc<Mutex<Vec<Vec<u32>>>>;

fn path(number: usize) -> String {
    format!("/steady/{number:06}")
}

async fn open(args: &SteadyArgs, number: usize) -> io::Result<Client> {
    let address = &args.addresses[number % args.addresses.len()];
    Client::open(address, &Ticket::default(), 0, TIMEOUT, &Arc::<Events>::default()).await
}

/// Creates the nodes, some at a time.
async fn prepare(args: &SteadyArgs) -> io::Result<()> {
    let (client, value) = (open(args, 0).await?, vec![7; args.payload]);
    client.one(Request::Create("/steady", b"")).await?;
    let paths: Vec<_> = (0..args.nodes).map(path).collect();
    for some in paths.chunks(256) {
        let requests: Vec<_> = some.iter().map(|path| Request::Create(path, &value)).collect();
        if client.ask(&requests).await?.iter().any(|reply| reply.error != 0) {
            return Err(io::Error::other("a node could not be created; are there some of an earlier run?"));
        }
    }
    client.ask(&[Request::Close]).await.map(drop)
}

/// One session: every so many writes of all are its own.
async fn writes(
    client: Client,
    number: usize,
    args: Arc<SteadyArgs>,
    began: Instant,
    seconds: Seconds,
) -> io::Result<()> {
    let all = u64::from(args.rate) * args.seconds;
    let mut value = vec![7; args.payload];
    for write in (number as u64..all).step_by(SESSIONS) {
        let due = began + Duration::from_nanos(write * 1_000_000_000 / u64::from(args.rate));
        tokio::time::sleep_until(due.into()).await;
        // Each write has other bytes, in an order without a pattern that a store could use.
        let mixed = (write + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        value.iter_mut().zip(mixed.to_le_bytes()).for_each(|(byte, new)| *byte = new);
        client.one(Request::SetData(&path((mixed >> 20) as usize % args.nodes), &value)).await?;
        let took = u32::try_from(due.elapsed().as_micros()).unwrap_or(u32::MAX);
        let second = (write / u64::from(args.rate)) as usize;
        if let Some(of_second) = seconds.lock().unwrap_or_else(PoisonError::into_inner).get_mut(second) {
            of_second.push(took);
        }
    }
    client.ask(&[Request::Close]).await.map(drop)
}

/// Returns figures of times, which it sorts.
fn figures(times: &mut [u32]) -> Value {
    times.sort_unstable();
    let at = |permille: usize| {
        let place = (times.len() * permille).div_ceil(1000).max(1) - 1;
        times.get(place).map_or(0.0, |us| f64::from(*us) / 1e3)
    };
    json!({ "writes": times.len(), "p50_ms": at(500), "p99_ms": at(990), "p999_ms": at(999), "max_ms": at(1000) })
}

/// Writes, and prints a line for each second and one for all.
pub async fn run(args: SteadyArgs) -> io::Result<()> {
    let args = Arc::new(args);
    prepare(&args).await?;
    let mut clients = Vec::with_capacity(SESSIONS);
    for number in 0..SESSIONS {
        clients.push(open(&args, number).await?);
    }
    let seconds: Seconds = Arc::new(Mutex::new(vec![Vec::new(); args.seconds as usize]));
    println!("{}", json!({ "part": "begins" }));
    let began = Instant::now();
    let mut under_way = tokio::task::JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        under_way.spawn(writes(client, number, args.clone(), began, seconds.clone()));
    }
    while let Some(ended) = under_way.join_next().await {
        ended.map_err(io::Error::other)??;
    }
    let mut all = Vec::new();
    for (second, times) in seconds.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().enumerate() {
        let mut line = figures(times);
        line["part"] = json!("second");
        line["at_s"] = json!(second);
        println!("{line}");
        all.append(times);
    }
    let mut line = figures(&mut all);
    line["part"] = json!("steady");
    line["rate"] = json!(args.rate);
    line["payload_bytes"] = json!(args.payload);
    line["nodes"] = json!(args.nodes);
    line["seconds"] = json!(args.seconds);
    println!("{line}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_part_of_few_times_is_the_longest_one() {
        let mut times: Vec<u32> = (1..=1000).rev().map(|ms| ms * 1000).collect();
        let line = figures(&mut times);
        assert_eq!(
            (line["p50_ms"].as_f64(), line["p999_ms"].as_f64(), line["max_ms"].as_f64()),
            (Some(500.0), Some(999.0), Some(1000.0))
        );
        assert_eq!(figures(&mut [7_000])["p50_ms"].as_f64(), Some(7.0));
        assert_eq!(figures(&mut [])["max_ms"].as_f64(), Some(0.0));
    }
}
