//! A custom replicated service: a map of named counters. Its state machine is `CounterMap`; the rest is a program that uses it.
//!
//! The same program runs on one node or many, and over any kind of Loglet. It moves its log from one kind to another while it runs.

use atoll_contract::LogletSpec;
use atoll_db::{AppId, Application, ApplyAt, Direction, Engine, KeyRange, Rejected, StoreError, Tx, View};
use atoll_node::database::LOG;
use atoll_node::{NodeConfig, embed, start_with};
use bytes::Bytes;

/// Counters by name. They are kept in the store, and nothing is cached here.
pub struct CounterMap;

/// Encodes a command: the number to add, followed by the name of the counter.
fn add(name: &str, n: u64) -> Bytes {
    let mut command = n.to_le_bytes().to_vec();
    command.extend_from_slice(name.as_bytes());
    command.into()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.try_into().map(u64::from_le_bytes).unwrap_or(0)
}

impl Application for CounterMap {
    type Event = ();
    const ID: AppId = AppId(100);
    const NAME: &'static str = "counter map";

    fn apply(&mut self, _: &ApplyAt, command: &[u8], tx: &mut Tx<'_, ()>) -> Result<Bytes, Rejected> {
        let Some((n, name)) = command.split_at_checked(8).filter(|(_, name)| !name.is_empty()) else {
            return Err(Rejected(Bytes::from_static(b"a counter needs a name")));
        };
        let now = tx.get(name).map_or(0, |value| number(&value));
        let Some(sum) = now.checked_add(number(n)) else {
            return Err(Rejected(Bytes::from_static(b"the counter would overflow")));
        };
        let sum = Bytes::copy_from_slice(&sum.to_le_bytes());
        tx.put(name, sum.clone());
        Ok(sum)
    }

    fn opened(&mut self, _: &View) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Any error.
pub type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Adds `n` to a counter, exactly once, and returns the sum. After an error, the command may or may not have been applied.
pub async fn count_up(counters: &Engine<CounterMap>, name: &str, n: u64) -> Result<u64, Failed> {
    let applied = counters.propose(add(name, n))?.await??;
    match applied.reply {
        Ok(sum) => Ok(number(&sum)),
        Err(rejected) => Err(String::from_utf8_lossy(&rejected.0).into()),
    }
}

/// Returns all counters. The barrier ensures that every acknowledged change is included.
pub async fn all(counters: &Engine<CounterMap>) -> Result<Vec<(String, u64)>, Failed> {
    counters.barrier().await??;
    let mut found = Vec::new();
    for item in counters.view().scan(&KeyRange::all(), Direction::Forward) {
        let (name, value) = item?;
        found.push((String::from_utf8_lossy(&name).into_owned(), number(&value)));
    }
    Ok(found)
}

/// Increments some counters in a data directory, over native and local Loglets, and returns all counters.
///
/// # Errors
/// The node does not start, or it stops.
pub async fn count(dir: &str) -> Result<Vec<(String, u64)>, Failed> {
    let (door, counters) = embed(CounterMap);
    let node = start_with(NodeConfig::alone(dir), vec![door])?;
    node.joined().await?;
    let counters = counters.await?;

    count_up(&counters, "kelp", 1).await?;
    for kind in ["native", "local"] {
        let spec = LogletSpec::of(kind);
        node.logs().open(LOG)?.extend(spec).await??;
        count_up(&counters, "kelp", 1).await?;
    }
    count_up(&counters, "reef", 1).await?;
    let found = all(&counters).await?;
    node.shutdown().await;
    Ok(found)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failed> {
    let dir = std::env::args().nth(1).ok_or("usage: counter_map DIR")?;
    for (name, n) in count(&dir).await? {
        println!("{name}: {n}");
    }
    Ok(())
}
