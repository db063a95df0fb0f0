//! A client of ZooKeeper's door: reads after a sync, setData with and without a version, and multis over two znodes. In the history, the
//! version of a row is the zxid of its last write.

use std::collections::BTreeMap;

use atoll_client::Reason;
use atoll_zookeeper::client::{Client, ClientOptions, OnceError, Reply};
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::records::{Acl, Id, Stat};
use atoll_zookeeper::jute::reply::{Create2Reply, GetDataReply, StatReply};
use atoll_zookeeper::jute::request::{
    CreateRequest, PathRequest, Request, SetDataRequest, VersionRequest, WatchedRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiReadOp, MultiReadRequest, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};
use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::super::zookeeper::{client_error, code_words, did_not_happen};
use super::super::{CliError, Common};
use super::recorder::{Ended, row, step};
use super::run::{AFTER_ERROR, PATIENCE, Random, Shared, key_name, rotated};

/// The addresses of the first nodes of `atoll dev`.
const DEV_ADDRESSES: [&str; 5] =
    ["127.0.0.1:2181", "127.0.0.1:2182", "127.0.0.1:2183", "127.0.0.1:2184", "127.0.0.1:2185"];
/// All permissions.
const EVERYTHING: i32 = 31;

struct ZooKeeperClient {
    zookeeper: Client,
    root: String,
    client: u64,
    random: Random,
    shared: Shared,
    /// The version and the zxid of znodes that this client has seen last.
    known: BTreeMap<u64, (i32, i64)>,
}

/// How an operation on ZooKeeper ended, beside a result.
enum Fail {
    Once(OnceError),
    /// A condition did not hold.
    Conflict,
    /// An answer with another error, or one that cannot be decoded.
    Odd(String),
}

fn open_acl<'a>() -> Vec<Acl<'a>> {
    vec![Acl { perms: EVERYTHING, id: Id { scheme: "world", id: "anyone" } }]
}

fn create<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::Create2(CreateRequest { path, data: Some(data), acl: open_acl(), flags: 0 })
}

/// Creates the znodes, and starts the clients.
pub(super) async fn start(
    local: &LocalSet,
    common: &Common,
    addresses: &[String],
    clients: u64,
    shared: &Shared,
) -> Result<(), CliError> {
    let dev: Vec<String> = DEV_ADDRESSES.map(str::to_owned).to_vec();
    let addresses = if addresses.is_empty() { &dev } else { addresses };
    let within = common.timeout.min(PATIENCE);
    let make = |client: u64| ZooKeeperClient {
        zookeeper: Client::new(ClientOptions {
            servers: rotated(addresses, client),
            auth: Vec::new(),
            within,
        }),
        root: format!("/{}", shared.prefix),
        client,
        random: shared.random(client),
        shared: shared.clone(),
        known: BTreeMap::new(),
    };
    let mut first = make(0);
    first.create().await?;
    first.zookeeper.close().await;
    for client in 0..clients {
        local.spawn_local(make(client).run());
    }
    Ok(())
}

/// Returns the reply if it has no error.
fn fine(reply: Option<Reply>) -> Result<Reply, Fail> {
    let Some(reply) = reply else { return Err(Fail::Odd("no reply".to_owned())) };
    match ErrorCode::of(reply.err) {
        _ if reply.err == 0 => Ok(reply),
        Some(ErrorCode::BadVersion | ErrorCode::NoNode | ErrorCode::NodeExists) => Err(Fail::Conflict),
        _ => Err(Fail::Odd(code_words(reply.err))),
    }
}

fn odd(error: impl std::fmt::Display) -> Fail {
    Fail::Odd(error.to_string())
}

/// Returns the row of a znode, as a history has it.
fn shown(data: Option<&[u8]>, stat: &Stat) -> Value {
    let value = data.and_then(|data| std::str::from_utf8(data).ok()).and_then(|text| text.parse().ok());
    row(value.unwrap_or(-1), stat.mzxid)
}

impl ZooKeeperClient {
    /// Creates the parent and all znodes. They are part of the history.
    async fn create(&mut self) -> Result<(), CliError> {
        let root = self.root.clone();
        let next = "check --zookeeper";
        let refused = |code| {
            let words = format!("{root} cannot be created: {}", code_words(code));
            did_not_happen(Reason::Refused, words, next)
        };
        let reply = self.zookeeper.call(create(&root, b"")).await.map_err(|e| client_error(e, next))?;
        // Created by an attempt whose reply was lost.
        if reply.err != 0 && ErrorCode::of(reply.err) != Some(ErrorCode::NodeExists) {
            return Err(refused(reply.err));
        }
        for key in 0..self.shared.keys {
            let value = self.shared.recorder.borrow_mut().value();
            let (path, data) = (self.path(key), value.to_string());
            let call = self.shared.now();
            let reply = match self.zookeeper.calls_once(&[create(&path, data.as_bytes())]).await {
                Ok(mut replies) => replies.swap_remove(0),
                Err(OnceError::NotSent(error) | OnceError::Lost(error)) => {
                    return Err(client_error(error, "run it again"));
                }
            };
            let stat = match Create2Reply::parse(&reply.body) {
                Ok(created) if reply.err == 0 => created.stat,
                _ => return Err(refused(reply.err)),
            };
            let steps = [step("put", &key_name(key), Some(value), Some("absent".into()))];
            let result = json!({"done": {"version": stat.mzxid}});
            self.shared.recorder.borrow_mut().ended(self.client, call, &steps, Ended::Yes(result));
        }
        Ok(())
    }

    async fn run(mut self) {
        while !self.shared.is_over() {
            let answered = match self.random.below(100) {
                0..30 => self.get().await,
                30..45 => self.get_two().await,
                45..75 => self.set().await,
                _ => self.multi().await,
            };
            if !answered {
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
        self.zookeeper.close().await;
    }

    fn path(&self, key: u64) -> String {
        format!("{}/{}", self.root, key_name(key))
    }

    /// Notes how an operation ended. Returns whether it was answered.
    fn ended(&self, call: i64, steps: &[Value], writes: bool, ended: Result<Value, Fail>) -> bool {
        let mut recorder = self.shared.recorder.borrow_mut();
        let (ended, error) = match ended {
            Ok(result) => (Ended::Yes(json!({"done": result})), None),
            Err(Fail::Conflict) if writes => (Ended::Yes("conflict".into()), None),
            Err(Fail::Conflict) => (Ended::Unknown, Some("a znode is gone".to_owned())),
            Err(Fail::Odd(words)) => (Ended::Unknown, Some(words)),
            Err(Fail::Once(error @ OnceError::NotSent(_))) => (Ended::No, Some(error.to_string())),
            Err(Fail::Once(error @ OnceError::Lost(_))) => (Ended::Unknown, Some(error.to_string())),
        };
        let answered = error.is_none();
        if error.is_some() {
            recorder.last_error = error;
        }
        recorder.ended(self.client, call, steps, ended);
        answered
    }

    /// Sends requests, and returns the last reply.
    async fn send(&mut self, requests: &[Request<'_>]) -> Result<Reply, Fail> {
        fine(self.zookeeper.calls_once(requests).await.map_err(Fail::Once)?.pop())
    }

    async fn get(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let (path, call) = (self.path(key), self.shared.now());
        let sync = Request::Sync(PathRequest { path: &path });
        let get = Request::GetData(WatchedRequest { path: &path, watch: false });
        let ended = self.send(&[sync, get]).await.and_then(|reply| {
            let found = GetDataReply::parse(&reply.body).map_err(odd)?;
            Ok((found.stat, json!({"read": [shown(found.data, &found.stat)]})))
        });
        if let Ok((stat, _)) = &ended {
            self.known.insert(key, (stat.version, stat.mzxid));
        }
        let steps = [step("get", &key_name(key), None, None)];
        self.ended(call, &steps, false, ended.map(|(_, result)| result))
    }

    async fn get_two(&mut self) -> bool {
        let keys = self.random.some(2, self.shared.keys);
        let (paths, call) = ([self.path(keys[0]), self.path(keys[1])], self.shared.now());
        let sync = Request::Sync(PathRequest { path: &paths[0] });
        let ops =
            paths.iter().map(|path| MultiReadOp::GetData(WatchedRequest { path, watch: false })).collect();
        let ended =
            self.send(&[sync, Request::MultiRead(MultiReadRequest { ops })]).await.and_then(|reply| {
                let results = MultiResult::read_row(&mut Reader::new(&reply.body)).map_err(odd)?;
                let one = |result: &MultiResult<'_>| match result {
                    MultiResult::GetData(data, stat) => Ok(shown(*data, stat)),
                    other => Err(odd(format!("{other:?}"))),
                };
                Ok(json!({"read": results.iter().map(one).collect::<Result<Vec<_>, _>>()?}))
            });
        let steps: Vec<Value> = keys.iter().map(|key| step("get", &key_name(*key), None, None)).collect();
        self.ended(call, &steps, false, ended)
    }

    /// Draws a condition: the version for the request, and what the history says. No znode is ever deleted, so a version is one write.
    fn condition(&mut self, key: u64) -> (i32, Value) {
        match (self.random.below(4), self.known.get(&key)) {
            (1.., Some((version, zxid))) => (*version, json!({"version": zxid})),
            _ => (-1, "present".into()),
        }
    }

    async fn set(&mut self) -> bool {
        let key = self.random.below(self.shared.keys);
        let (version, expect) = self.condition(key);
        let value = self.shared.recorder.borrow_mut().value();
        let (path, data, call) = (self.path(key), value.to_string(), self.shared.now());
        let set = SetDataRequest { path: &path, data: Some(data.as_bytes()), version };
        let ended = self.send(&[Request::SetData(set)]).await.and_then(|reply| {
            let stat = StatReply::parse(&reply.body).map_err(odd)?.stat;
            Ok((stat, json!({"version": stat.mzxid})))
        });
        if let Ok((stat, _)) = &ended {
            self.known.insert(key, (stat.version, stat.mzxid));
        }
        let steps = [step("put", &key_name(key), Some(value), Some(expect))];
        self.ended(call, &steps, true, ended.map(|(_, result)| result))
    }

    /// Checks or writes one znode, and writes another one.
    async fn multi(&mut self) -> bool {
        let keys = self.random.some(2, self.shared.keys);
        let conditions = [self.condition(keys[0]), self.condition(keys[1])];
        let values = [0, 1].map(|_| self.shared.recorder.borrow_mut().value());
        let (paths, data) = ([self.path(keys[0]), self.path(keys[1])], values.map(|value| value.to_string()));
        let set = |n: usize| {
            let (path, data) = (paths[n].as_str(), Some(data[n].as_bytes()));
            MultiOp::SetData(SetDataRequest { path, data, version: conditions[n].0 })
        };
        let put = |n: usize| step("put", &key_name(keys[n]), Some(values[n]), Some(conditions[n].1.clone()));
        let checks = self.random.below(3) == 0;
        let (ops, steps) = if checks {
            let check = VersionRequest { path: &paths[0], version: conditions[0].0 };
            let checked = step("check", &key_name(keys[0]), None, Some(conditions[0].1.clone()));
            (vec![MultiOp::Check(check), set(1)], [checked, put(1)])
        } else {
            (vec![set(0), set(1)], [put(0), put(1)])
        };
        let call = self.shared.now();
        let ended = self.send(&[Request::Multi(MultiRequest { ops })]).await.and_then(|reply| {
            let results = MultiResult::read_row(&mut Reader::new(&reply.body)).map_err(odd)?;
            let mut version = None;
            for result in &results {
                match result {
                    MultiResult::SetData(stat) => version = Some(stat.mzxid),
                    MultiResult::Error(Some(ErrorCode::BadVersion | ErrorCode::NoNode)) => {
                        return Err(Fail::Conflict);
                    }
                    MultiResult::Error(Some(error)) => return Err(odd(code_words(error.number()))),
                    _ => {}
                }
            }
            version.map(|version| json!({"version": version})).ok_or_else(|| odd("no znode was written"))
        });
        for key in &keys {
            self.known.remove(key);
        }
        self.ended(call, &steps, true, ended)
    }
}
