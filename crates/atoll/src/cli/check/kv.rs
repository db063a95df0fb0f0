//! A client of keyspaces: gets, puts and deletes with and without conditions, and transactions if the engine has them.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_client::keyspace_proto::transact_part::Change;
use atoll_client::keyspace_proto::{self as proto, condition::What};
use atoll_client::{Error, Failure, Keyspace, Keyspaces, Options, Reason};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::super::{CliError, Common, DEV_ADDRESSES};
use super::recorder::{Ended, row, step};
use super::run::{AFTER_ERROR, Random, Shared, key_name, rotated};

/// How long a client waits for an answer, if `--timeout` is not less. A node tries for 3 s before it says that nothing happened.
const PATIENCE: Duration = Duration::from_secs(4);
/// A client that pauses for so long after a failed attempt has no time for another one.
const ONE_ATTEMPT: Duration = Duration::from_secs(10);
/// A keyspace that is made for a check has few shards, each with one bucket, so that keys share them.
const SHARDS: u32 = 2;
/// Some writes have this value, so that keys return to what they held before.
const USUAL_VALUE: i64 = 0;

/// The keyspace to run clients of.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct KvArgs {
    /// The keyspace for `--against kv`; created if it does not exist, with 2 shards of one bucket
    #[arg(long, value_name = "NAME", default_value = "check")]
    keyspace: String,
    /// The engine of that keyspace [default: whatever it has; the first one of the node if it is created]
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
}

struct KvClient {
    /// A handle that repeats through other nodes what was not answered.
    repeats: Keyspace,
    /// For each address, a handle that tells how a single attempt ended.
    once: Vec<Keyspace>,
    /// Which of them is next.
    at: usize,
    has_transactions: bool,
    client: u64,
    random: Random,
    shared: Shared,
    /// The versions and values of keys that this client has seen last.
    known: BTreeMap<u64, (i64, i64)>,
}

/// Creates the keyspace if it does not exist, and starts the clients.
pub(super) async fn start(
    local: &LocalSet,
    common: &Common,
    args: &KvArgs,
    clients: u64,
    shared: &Shared,
) -> Result<(), CliError> {
    let keyspaces = common.client().await?.keyspaces();
    make_keyspace(&keyspaces, args).await?;
    let has_transactions = has_transactions(&keyspaces.open(&args.keyspace), shared).await?;
    let connect = common.connect.as_deref().unwrap_or(DEV_ADDRESSES);
    let addresses: Vec<String> = connect.split(',').map(str::to_owned).collect();
    let common = Common { timeout: common.timeout.min(PATIENCE), ..common.clone() };
    let mut once = Vec::new();
    for address in &addresses {
        let common = Common { connect: Some(address.clone()), ..common.clone() };
        let options = Options { backoff_min: ONE_ATTEMPT, backoff_max: ONE_ATTEMPT, ..common.options()? };
        once.push(common.client_with(options).await?.keyspaces());
    }
    for client in 0..clients {
        let connect = Some(rotated(&addresses, client).join(","));
        let common = Common { connect, ..common.clone() };
        let one = KvClient {
            repeats: common.client().await?.keyspaces().open(&args.keyspace),
            once: once.iter().map(|keyspaces| keyspaces.open(&args.keyspace)).collect(),
            at: usize::try_from(client).unwrap_or(0) % addresses.len(),
            has_transactions,
            client,
            random: shared.random(client),
            shared: shared.clone(),
            known: BTreeMap::new(),
        };
        local.spawn_local(one.run());
    }
    Ok(())
}

async fn make_keyspace(keyspaces: &Keyspaces, args: &KvArgs) -> Result<(), CliError> {
    let name = &args.keyspace;
    let found = match keyspaces.describe(name).await {
        Err(Error::DidNotHappen(Failure { reason: Reason::NoSuchKeyspace, .. })) => {
            let request = proto::CreateKeyspaceRequest {
                name: name.clone(),
                engine: args.engine.clone().unwrap_or_default(),
                durability: proto::Durability::Disk.into(),
                shards: Some(SHARDS),
                buckets: Some(1),
                ..proto::CreateKeyspaceRequest::default()
            };
            keyspaces.create(request).await?
        }
        described => described?,
    };
    match &args.engine {
        Some(engine) if *engine != found.engine => Err(CliError::Usage(format!(
            "keyspace {name} has the engine {}, not {engine}; choose another --keyspace",
            found.engine
        ))),
        _ => Ok(()),
    }
}

/// Returns whether the engine of the keyspace has transactions.
async fn has_transactions(keyspace: &Keyspace, shared: &Shared) -> Result<bool, CliError> {
    let key = Bytes::from(format!("{}/probe", shared.prefix));
    match keyspace.transact(vec![proto::TransactPart { key, ..proto::TransactPart::default() }]).await {
        Ok(_) => Ok(true),
        Err(error) if error.failure().reason == Reason::Invalid => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Returns what a key holds, as a history has it.
fn shown(held: Option<&proto::Held>) -> Value {
    held.map_or(Value::Null, |held| row(value_of(held), held.version.cast_signed()))
}

fn value_of(held: &proto::Held) -> i64 {
    std::str::from_utf8(&held.value).ok().and_then(|text| text.parse().ok()).unwrap_or(-1)
}

fn done(version: u64) -> Value {
    json!({"done": {"version": version.cast_signed()}})
}

/// A condition, for the request and for the history.
type Condition = (Option<What>, Value);

/// A key of a transaction: what the history says, and the request.
struct Part {
    key: u64,
    steps: Vec<Value>,
    asked: proto::TransactPart,
    /// What the key holds if the transaction is done; None if it is not written.
    written: Option<i64>,
}

impl KvClient {
    async fn run(mut self) {
        while !self.shared.is_over() {
            let transacts = if self.has_transactions { 70 } else { 100 };
            let answered = match self.random.below(100) {
                n if n >= transacts => self.transaction().await,
                0..35 => self.get().await,
                n if n % 5 == 0 => self.delete().await,
                _ => self.put().await,
            };
            if !answered {
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }

    /// Returns the handle for the next operation.
    fn handle(&mut self) -> Keyspace {
        if self.random.below(2) == 0 {
            return self.repeats.clone();
        }
        // Mostly the same node, so that nodes have clients of their own.
        if self.random.below(8) == 0 {
            self.at = (self.at + 1) % self.once.len();
        }
        self.once[self.at].clone()
    }

    fn key(&self, key: u64) -> Bytes {
        Bytes::from(format!("{}/{}", self.shared.prefix, key_name(key)))
    }

    fn learn(&mut self, key: u64, held: Option<&proto::Held>) {
        match held {
            Some(held) => self.known.insert(key, (held.version.cast_signed(), value_of(held))),
            None => self.known.remove(&key),
        };
    }

    /// Draws a value that nobody else writes, or one that many write.
    fn value(&mut self) -> i64 {
        match self.random.below(4) {
            0 => USUAL_VALUE,
            _ => self.shared.recorder.borrow_mut().value(),
        }
    }

    /// Draws a condition: mostly what this client would expect.
    fn condition(&mut self, key: u64) -> Condition {
        match (self.random.below(20), self.known.get(&key)) {
            (0..5, _) => (None, "any".into()),
            (5, _) => (Some(What::Present(true)), "present".into()),
            (_, None) => (Some(What::Absent(true)), "absent".into()),
            (6..10, Some((_, value))) => {
                (Some(What::Value(Bytes::from(value.to_string()))), json!({"value": value}))
            }
            (_, Some((version, _))) => {
                (Some(What::Version(version.cast_unsigned())), json!({"version": version}))
            }
        }
    }

    /// Draws a condition of a deletion. One without a condition is refused if there is nothing to delete, so one of a key that must be
    /// absent is always refused.
    fn condition_of_deletion(&mut self, key: u64) -> Condition {
        match self.condition(key) {
            (None | Some(What::Absent(_)), _) => (None, "present".into()),
            other => other,
        }
    }

    /// Notes an operation that was answered.
    fn answered(&self, call: i64, steps: &[Value], result: Value) {
        self.shared.recorder.borrow_mut().ended(self.client, call, steps, Ended::Yes(result));
    }

    /// Notes an operation that was not answered.
    fn failed(&self, call: i64, steps: &[Value], error: &Error) {
        let mut recorder = self.shared.recorder.borrow_mut();
        recorder.last_error = Some(error.to_string());
        let ended = match error {
            Error::DidNotHappen(_) => Ended::No,
            Error::Unknown(_) => Ended::Unknown,
            Error::Happened(_) => Ended::Yes(json!({"done": {}})),
        };
        recorder.ended(self.client, call, steps, ended);
    }

    /// Reads keys. Each read is an operation of its own, because together they are no snapshot.
    async fn get(&mut self) -> bool {
        let count = 1 + self.random.below(3);
        let keys = self.random.some(count, self.shared.keys);
        let steps = |key: &u64| [step("get", &key_name(*key), None, None)];
        let (handle, asked) = (self.handle(), keys.iter().map(|key| self.key(*key)).collect());
        let call = self.shared.now();
        match handle.get(asked).await {
            Ok(found) => {
                for (key, held) in keys.iter().zip(&found) {
                    self.learn(*key, held.as_ref());
                    let result = json!({"done": {"read": [shown(held.as_ref())]}});
                    self.answered(call, &steps(key), result);
                }
                true
            }
            Err(error) => {
                // A read that was not answered has no effect, whatever became of it.
                keys.iter().for_each(|key| self.failed(call, &steps(key), &error));
                false
            }
        }
    }

    async fn put(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let ((condition, expect), value) = (self.condition(key), self.value());
        let steps = [step("put", &key_name(key), Some(value), Some(expect))];
        let (handle, name) = (self.handle(), self.key(key));
        let call = self.shared.now();
        let reply = handle.put(name, Bytes::from(value.to_string()), condition).await;
        self.wrote(key, Some(value), call, &steps, reply)
    }

    async fn delete(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let (condition, expect) = self.condition_of_deletion(key);
        let steps = [step("delete", &key_name(key), None, Some(expect))];
        let (handle, name) = (self.handle(), self.key(key));
        let call = self.shared.now();
        let reply = handle.delete(name, condition).await;
        self.wrote(key, None, call, &steps, reply)
    }

    /// Notes how a write ended. A refusal shows what the key holds, so it is also a read.
    fn wrote(
        &mut self,
        key: u64,
        value: Option<i64>,
        call: i64,
        steps: &[Value],
        reply: Result<proto::WriteReply, Error>,
    ) -> bool {
        match reply {
            Ok(reply) if reply.done => {
                self.answered(call, steps, done(reply.version));
                match value {
                    Some(value) => self.known.insert(key, (reply.version.cast_signed(), value)),
                    None => self.known.remove(&key),
                };
                true
            }
            Ok(reply) => {
                let held = reply.current.as_ref();
                self.learn(key, held);
                self.answered(call, steps, "conflict".into());
                let read = json!({"done": {"read": [shown(held)]}});
                self.answered(call, &[step("get", &key_name(key), None, None)], read);
                true
            }
            Err(error) => {
                self.failed(call, steps, &error);
                false
            }
        }
    }

    /// Reads keys at one moment; or reads one of two, or writes it, and writes the other.
    async fn transaction(&mut self) -> bool {
        let kind = self.random.below(3);
        let count = if kind == 0 { 2 + self.random.below(2) } else { 2 };
        let keys = self.random.some(count, self.shared.keys);
        let mut parts = Vec::new();
        for (n, key) in keys.into_iter().enumerate() {
            parts.push(match kind {
                0 => self.read_part(key, false),
                1 if n == 0 => self.read_part(key, true),
                _ => self.write_part(key),
            });
        }
        self.transact(parts).await
    }

    fn read_part(&mut self, key: u64, checks: bool) -> Part {
        let mut asked = proto::TransactPart { key: self.key(key), ..proto::TransactPart::default() };
        let mut steps = vec![step("get", &key_name(key), None, None)];
        if checks {
            let (condition, expect) = self.condition(key);
            asked.condition = condition.map(|what| proto::Condition { what: Some(what) });
            steps.push(step("check", &key_name(key), None, Some(expect)));
        }
        Part { key, steps, asked, written: None }
    }

    fn write_part(&mut self, key: u64) -> Part {
        let name = key_name(key);
        let is_put = self.random.below(5) > 0;
        let (condition, step, change, written) = if is_put {
            let ((condition, expect), value) = (self.condition(key), self.value());
            let put = Change::Put(Bytes::from(value.to_string()));
            (condition, step("put", &name, Some(value), Some(expect)), put, Some(value))
        } else {
            let (condition, expect) = self.condition_of_deletion(key);
            (condition, step("delete", &name, None, Some(expect)), Change::Delete(true), None)
        };
        let condition = condition.map(|what| proto::Condition { what: Some(what) });
        let asked = proto::TransactPart { key: self.key(key), condition, floor: 0, change: Some(change) };
        Part { key, steps: vec![step], asked, written }
    }

    async fn transact(&mut self, parts: Vec<Part>) -> bool {
        let steps: Vec<Value> = parts.iter().flat_map(|part| part.steps.clone()).collect();
        let (handle, asked) = (self.handle(), parts.iter().map(|part| part.asked.clone()).collect());
        let call = self.shared.now();
        match handle.transact(asked).await {
            Ok(reply) => {
                let mut read = Vec::new();
                for (part, outcome) in parts.iter().zip(&reply.outcomes) {
                    match (reply.done, part.written) {
                        (true, Some(value)) => {
                            self.known.insert(part.key, (outcome.version.cast_signed(), value));
                        }
                        _ => self.learn(part.key, outcome.current.as_ref()),
                    }
                    if part.asked.change.is_none() {
                        read.push(shown(outcome.current.as_ref()));
                    }
                }
                // The keys that were written have versions of their own, which later reads show.
                let result = if reply.done { json!({"done": {"read": read}}) } else { "conflict".into() };
                self.answered(call, &steps, result);
                true
            }
            Err(error) => {
                self.failed(call, &steps, &error);
                false
            }
        }
    }
}
