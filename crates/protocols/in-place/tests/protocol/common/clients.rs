//! Clients: procedures on the nodes that execute commands, and record what they are told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use atoll_contract::keyspace::{Attempt, Floor};
use atoll_contract::{ClientId, OpId};
use atoll_core::Env;
use atoll_in_place::{Command, CommandError, Content, InPlaceSpace, Outcome, Refusal, Reply, WireGuard};
use bytes::Bytes;

use super::history::{Ask, History, Model, Told};

pub type Shared = Arc<Mutex<History>>;

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn model(content: &Content) -> Model {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    match content {
        Content::Absent {} => Model::Nothing,
        Content::Register { value } => Model::Value(text(value)),
        Content::Counter { value } => Model::Count(*value),
        Content::Lock { owner, fence } => Model::Lock((!owner.is_empty()).then(|| text(owner)), *fence, true),
        other => panic!("no client makes {other:?}"),
    }
}

fn command(ask: &Ask) -> Command {
    let always = WireGuard::Always {};
    match ask {
        Ask::Read => Command::Get {},
        Ask::Put(value) => Command::Put { guard: always, value: bytes(value) },
        Ask::Swap(None, value) => Command::Put { guard: WireGuard::Absent {}, value: bytes(value) },
        Ask::Swap(Some(wanted), value) => {
            Command::Put { guard: WireGuard::Value { value: bytes(wanted) }, value: bytes(value) }
        }
        Ask::Delete => Command::Delete { guard: always },
        Ask::Add(amount) => Command::Add { amount: *amount },
        Ask::Acquire(owner) => Command::Acquire { owner: bytes(owner) },
        Ask::Release(fence) => Command::Release { fence: *fence },
    }
}

/// Returns what an outcome tells the client. None if it may still happen.
fn told(outcome: &Result<Reply, CommandError>) -> Option<Told> {
    Some(match outcome {
        Ok(Reply { outcome: Outcome::Done { number, .. }, .. }) => Told::Done(*number),
        Ok(Reply { outcome: Outcome::Same { number }, .. }) => Told::Same(*number),
        Ok(Reply { outcome: Outcome::Refused(_), content, .. }) => Told::Refused(Some(model(content))),
        // It was refused at some moment since its first attempt; what the key held then is not known.
        Err(CommandError::Refused(Refusal::Earlier)) => Told::No,
        Err(CommandError::Refused(_)) => Told::Refused(None),
        Err(CommandError::NotDone(_)) => Told::No,
        Err(CommandError::Unknown { .. } | CommandError::Forgotten) => return None,
        other => panic!("{other:?}"),
    })
}

/// Reads a key and records the result.
pub async fn read(space: InPlaceSpace, history: Shared, key: String) -> Option<Model> {
    let op = history.lock().unwrap().call(&key, Ask::Read);
    let content = space.read(bytes(&key)).await.ok().map(|reply| model(&reply.content));
    let answer = content.clone().map_or(Told::No, Told::Read);
    history.lock().unwrap().told(&op, answer);
    content
}

/// A command that a client has not finished.
#[derive(Clone, Debug)]
pub struct Pending {
    pub key: String,
    pub ask: Ask,
    pub op: OpId,
    pub floor: Floor,
    at: (String, usize),
}

/// Begins a command.
pub fn begin(space: &InPlaceSpace, history: &Shared, key: &str, ask: Ask, op: OpId) -> Pending {
    let at = history.lock().unwrap().call(key, ask.clone());
    Pending { key: key.to_owned(), ask, op, floor: space.floor(key.as_bytes()), at }
}

/// Makes one attempt at a command, and records the result.
pub async fn attempt(
    space: &InPlaceSpace,
    history: &Shared,
    pending: &Pending,
    attempt: Attempt,
) -> Result<Reply, CommandError> {
    let got = space.execute(pending.op, attempt, bytes(&pending.key), command(&pending.ask)).await;
    if let Some(told) = told(&got) {
        history.lock().unwrap().told(&pending.at, told);
    }
    got
}

/// What a client remembers when its node dies. The client is outside of the node, and continues when the node is back.
#[derive(Debug, Default)]
pub struct Memory {
    seq: u64,
    /// The numbers of the locks that it has held, by key.
    fences: BTreeMap<String, u64>,
    pending: Option<Pending>,
}

/// Runs a client that executes random commands until its node dies, and continues from its memory when the node is back.
pub async fn busy(
    env: Env,
    space: InPlaceSpace,
    history: Shared,
    memory: Arc<Mutex<Memory>>,
    id: u64,
    keys: u64,
) {
    let memory = || memory.lock().unwrap();
    let mut again = memory().pending.take();
    loop {
        let pending = match again.take() {
            Some(pending) => {
                let first = Attempt::Again(pending.floor);
                (pending, first)
            }
            None => {
                let dice = env.random();
                // Few values, so that equal ones occur at different times (rmw-T1).
                let value = |n: u64| ["a", "b"][(n % 2) as usize].to_owned();
                let (kind, n) = (dice % 4, (dice >> 8) % keys);
                let key = format!("{}{n}", ["value", "value", "count", "lock"][kind as usize]);
                let roll = (dice >> 32) % 10;
                if roll < 2 {
                    read(space.clone(), history.clone(), key).await;
                    env.sleep(env.jitter(Duration::from_millis(4))).await;
                    continue;
                }
                let ask = match kind {
                    0 | 1 => match roll {
                        2..5 => Ask::Put(value(dice >> 40)),
                        5 => Ask::Swap(None, value(dice >> 40)),
                        6 | 7 => Ask::Swap(Some(value(dice >> 41)), value(dice >> 40)),
                        _ => Ask::Delete,
                    },
                    2 => Ask::Add(1 + (dice >> 40) % 3),
                    _ => match roll {
                        2..6 => Ask::Acquire(format!("client {id}")),
                        _ => Ask::Release(memory().fences.get(&key).copied().unwrap_or(0)),
                    },
                };
                memory().seq += 1;
                let op = OpId { client: ClientId(id), seq: memory().seq };
                (begin(&space, &history, &key, ask, op), Attempt::First)
            }
        };
        let (pending, mut try_as) = pending;
        memory().pending = Some(pending.clone());
        for _ in 0..3 {
            match attempt(&space, &history, &pending, try_as).await {
                Err(CommandError::Unknown { floor, .. }) => try_as = Attempt::Again(floor),
                Ok(Reply { outcome: Outcome::Done { number, .. } | Outcome::Same { number }, .. }) => {
                    if matches!(pending.ask, Ask::Acquire(_)) {
                        memory().fences.insert(pending.key.clone(), number);
                    }
                    break;
                }
                _ => break,
            }
        }
        memory().pending = None;
        env.sleep(env.jitter(Duration::from_millis(4))).await;
    }
}
