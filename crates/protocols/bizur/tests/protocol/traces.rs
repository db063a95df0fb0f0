//! Traces of a single node (`traces/*.txt`): what its replica answers and journals, what its leader sends, and what each waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! `node` starts a new one, as node 1 with disk 7; the other commands are the protocol's messages, and those of
//! `atoll_core::traces::LoneRole`. The only shard has the nodes 1, 2 and 3 as replicas, and four buckets. Elections are `round.node`. Keys
//! `a` and `e` are in the same bucket. Clients ask from node 9.

use std::path::{Path, PathBuf};

use atoll_bizur::message::*;
use atoll_bizur::roles::REPLICA;
use atoll_bizur::{BizurNode, Ver};
use atoll_bizur::{Bucket, ElectId, NodeOptions, mutants};
use atoll_contract::keyspace::{Durability, KeyspaceId, Replica, place_of};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::{
    Decode, Encode, Frame, Incarnation, Message, NodeCore, NodeId, Record, Refused, Role, StorageId,
    roles::NONE,
};
use bytes::Bytes;

const NODE: NodeId = NodeId(1);
const DISK: u64 = 7;
/// The incarnation of the node's process.
const LIFE: u64 = 8;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    set_mutant(Mutant::NONE);
    traces::check(&folder(), player);
}

/// The traces are sensitive: every mutant changes one of them. One shows only after more writes than a trace should have
/// (`buckets::an_attempt_that_comes_long_after_its_repeat_is_not_done_again`).
#[test]
fn known_bugs_show() {
    for bug in mutants::ALL.iter().filter(|bug| **bug != mutants::BIZUR_FORGETS_REPEATS) {
        set_mutant(*bug);
        let seen = traces::differ(&folder(), player);
        set_mutant(Mutant::NONE);
        assert!(seen, "no trace shows {bug:?}");
    }
}

fn player() -> impl FnMut(&[&str]) -> Vec<String> {
    let mut node: Option<LoneRole> = None;
    let mut disk = DISK;
    move |commands| {
        for text in commands {
            let mut command = Command::new(text);
            match command.word() {
                "node" => {
                    disk = DISK;
                    node = Some(new(&mut command));
                }
                name => {
                    let node = node.as_mut().expect("a trace begins with a node");
                    disk = command.number_of("disk", disk);
                    let from = NodeId(command.number_of("from", 2) as u32);
                    if let Some(frame) = request(name, &mut command) {
                        node.request(NodeId(9), command.text(), frame);
                    } else if let Some(frame) = post(name, from, &mut command) {
                        node.post(from, frame);
                    } else {
                        node.command(name, &mut command);
                    }
                }
            }
            command.end();
        }
        node.as_mut().expect("a trace begins with a node").end_turn()
    }
}

fn new(command: &mut Command) -> LoneRole {
    let capacity_bytes = command.number_of("capacity", 1_000_000) as usize;
    let make = move || -> Box<dyn Role> {
        let env = NodeCore::new(NODE, Incarnation(LIFE), 1).env();
        let options = NodeOptions { capacity_bytes, ..NodeOptions::default() };
        Box::new(BizurNode::new(env, StorageId(DISK.into()), options))
    };
    LoneRole::new(NODE, REPLICA, Wording { message, record }, make)
}

fn replica(node: u64) -> Replica {
    let identity = if node == 1 { DISK } else { node };
    Replica { node: NodeId(node as u32), identity: identity.into() }
}

fn elect(text: &str) -> ElectId {
    let (round, node) = text.split_once('.').unwrap();
    ElectId { round: round.parse().unwrap(), server: replica(node.parse().unwrap()) }
}

fn key(epoch: u64) -> ShardKey {
    ShardKey { keyspace: KeyspaceId(5), epoch, shard: 0 }
}

fn config(epoch: u64) -> ShardConfig {
    let replicas = vec![replica(1), replica(2), replica(3)];
    ShardConfig { key: key(epoch), durability: Durability::Disk, shards: 1, buckets: 4, replicas }
}

/// Returns the instance that takes over from the first one.
fn second() -> Instance {
    Instance { config: config(2), former: Some(config(1)) }
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(NONE)
}

/// Returns a message of a client or an operator; None if the command is not one.
fn request(name: &str, command: &mut Command) -> Option<Frame> {
    Some(match name {
        "create" => {
            let memory = command.flag("memory");
            let durability = if memory { Durability::Memory } else { Durability::Disk };
            let mut config = ShardConfig { durability, ..config(1) };
            let identity = if memory { LIFE } else { DISK };
            config.replicas[0].identity = command.number_of("identity", identity).into();
            frame(Create { shards: vec![config] })
        }
        "open" => frame(Open { shards: vec![second()] }),
        "seal" => frame(Seal { config: config(1), next: command.flag("next").then(second) }),
        "retire" => frame(Retire { config: config(1), next: second() }),
        "drop" => frame(DropKeyspace { keyspace: KeyspaceId(5), epoch: command.number_of("epoch", 1) }),
        "ask" => {
            let shard = key(command.number_of("epoch", 1));
            let insist = command.flag("insist");
            let repeat = command.flag("repeat");
            let question = match command.word() {
                "get" => Question::Get { key: text(command.word()) },
                "wait" => {
                    let (key, seen) = (text(command.word()), command.number());
                    Question::Wait { key, seen, for_ms: command.number_of("for", 60_000) as u32 }
                }
                "list" => {
                    let limit = command.number_of("limit", 10) as u32;
                    Question::List { prefix: Bytes::new(), after: command.option("after").map(text), limit }
                }
                what => {
                    let key = text(command.word());
                    let value = (what == "put").then(|| text(command.word()));
                    let value = value.map(|v| match command.number_of("bytes", 0) {
                        0 => v,
                        n => Bytes::from("v".repeat(n as usize)),
                    });
                    let guard = match command.option("if") {
                        None => WireGuard::Always {},
                        Some("absent") => WireGuard::Absent {},
                        Some(value) => WireGuard::Value { value: text(value) },
                    };
                    let op = OpId { client: ClientId(1), seq: command.number_of("seq", 1) };
                    let floor = command.number_of("floor", 0);
                    Question::Write { op, floor, repeat, key, guard, value }
                }
            };
            frame(Ask { shard, insist, question })
        }
        "junk" => {
            let kind = command.number() as u16;
            Frame { kind, target: REPLICA, head: Bytes::from_static(b"junk"), payloads: Vec::new() }
        }
        _ => return None,
    })
}

fn text(word: &str) -> Bytes {
    Bytes::copy_from_slice(word.as_bytes())
}

/// Returns a message of another replica; None if the command is not one.
fn post(name: &str, from: NodeId, command: &mut Command) -> Option<Frame> {
    let identity = command.number_of("as", u64::from(from.0));
    let identity = if from == NODE { DISK } else { identity };
    let me = command.number_of("to", DISK);
    let shard = key(command.number_of("epoch", 1));
    let to = Address { shard, from: identity.into(), to: me.into() };
    Some(match name {
        "please-vote" => frame(PleaseVote { to, elect: elect(command.word()) }),
        "voted" => {
            let e = elect(command.word());
            let voted = command.option("for").map_or(e, elect);
            frame(Vote { to, elect: e, voted })
        }
        "write" => {
            let recovery = command.flag("recovery");
            let elect = elect(command.word());
            let round = command.number_of("round", 1);
            let (mut items, mut buckets) = (Vec::new(), Vec::new());
            for word in command.words() {
                let mut parts = word.split(':');
                let mut next = || parts.next().unwrap();
                let (index, ctr, content) = (next().parse().unwrap(), next().parse().unwrap(), next());
                let bytes = content.len() as u32;
                items.push(WriteItem { index, ctr, bytes, content_bytes: bytes });
                buckets.extend_from_slice(content.as_bytes());
            }
            let writes = vec![ShardWrite { to, elect, round, recovery, items }];
            frame(ReplicaWrites { writes, buckets: buckets.into() })
        }
        "read" => {
            let (elect, round) = (elect(command.word()), command.number_of("round", 1));
            let indices = command.words().iter().map(|word| word.parse().unwrap()).collect();
            frame(ReplicaRead { to, elect, round, indices })
        }
        "wrote" => {
            let (elect, round) = (elect(command.word()), command.number());
            let answer = match command.word() {
                "ack" => WriteAnswer::Ack {},
                "full" => WriteAnswer::Full {},
                "sealed" => WriteAnswer::Sealed {},
                voted => WriteAnswer::Nack { voted: self::elect(voted) },
            };
            frame(WriteReplies { replies: vec![ShardWrote { to, elect, round, answer }] })
        }
        "readed" => {
            let (elect, round) = (elect(command.word()), command.number());
            let has = command.option("has").map(str::to_owned);
            let answer = match command.words().first() {
                Some(&"sealed") => ReadAnswer::Sealed {},
                Some(voted) => ReadAnswer::Nack { voted: self::elect(voted) },
                None => ReadAnswer::Ack { items: Vec::new() },
            };
            let (answer, buckets) = match has {
                Some(key) => has_key(&key),
                None => (answer, Bytes::new()),
            };
            frame(ReadReply { to, elect, round, answer, buckets })
        }
        "fetch" => {
            let (elect, round) = (elect(command.word()), command.number_of("round", 1));
            let indices = command.words().iter().map(|word| word.parse().unwrap()).collect();
            frame(Fetch { former: config(1), to: me.into(), shard: key(2), elect, round, indices })
        }
        "fetched" => {
            let (elect, round) = (elect(command.word()), command.number());
            let (items, buckets) = match command.option("has").map(has_key) {
                Some((ReadAnswer::Ack { items }, bytes)) => (items, bytes),
                _ => (Vec::new(), Bytes::new()),
            };
            let from = identity.into();
            frame(Fetched { shard: key(2), former: key(1), from, elect, round, items, buckets })
        }
        "beat" => {
            let failed = command.flag("failed");
            frame(Beat { storage: identity.into(), life: identity.into(), failed })
        }
        _ => return None,
    })
}

/// The answer of a replica whose bucket of a key has it, in version 1.2/1.
fn has_key(key: &str) -> (ReadAnswer, Bytes) {
    let mut bucket = Bucket::default();
    let write = atoll_bizur::BucketWrite {
        op: OpId { client: ClientId(7), seq: 1 },
        floor: 0,
        repeat: false,
        key: text(key),
        guard: atoll_contract::keyspace::Guard::Always,
        change: atoll_contract::keyspace::Change::Put(text("old")),
    };
    bucket.apply(&write, 0, usize::MAX);
    let bytes = bucket.to_bytes();
    let index = place_of(key.as_bytes(), 1, 4).bucket;
    let ver = Ver { elect: elect("1.2"), ctr: 1 };
    (ReadAnswer::Ack { items: vec![ReadItem { index, ver, bytes: bytes.len() as u32 }] }, bytes)
}

fn content(bytes: &Bytes) -> String {
    match Bucket::from_bytes(bytes.clone()) {
        Ok(bucket) => {
            let keys = bucket.keys().map(|(key, version)| {
                let value = bucket.get(key).map(|(_, v)| v.clone()).unwrap_or_default();
                let value = match value.len() {
                    0..=10 => String::from_utf8_lossy(&value).into_owned(),
                    n => format!("{n} bytes"),
                };
                format!("{}={value}@{version}", String::from_utf8_lossy(key))
            });
            format!("{{{}}}", keys.collect::<Vec<_>>().join(" "))
        }
        Err(_) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn copies(items: &[ReadItem], buckets: &Bytes) -> String {
    let mut at = 0;
    let items = items.iter().map(|item| {
        let bytes = buckets.slice(at..at + item.bytes as usize);
        at += item.bytes as usize;
        format!(" {}@{} {}", item.index, item.ver, content(&bytes))
    });
    items.collect()
}

fn message(f: Frame) -> String {
    match f.kind {
        PleaseVote::KIND => format!("please vote for {}", PleaseVote::from_frame(f).unwrap().elect),
        Vote::KIND => {
            let m = Vote::from_frame(f).unwrap();
            if m.voted == m.elect {
                format!("vote for {}", m.elect)
            } else {
                format!("voted for {}", m.voted)
            }
        }
        ReplicaWrites::KIND => {
            let ReplicaWrites { writes, mut buckets } = ReplicaWrites::from_frame(f).unwrap();
            let writes = writes.iter().map(|m| {
                let items = m.items.iter().map(|item| {
                    let bytes = buckets.split_to(item.bytes as usize);
                    format!("{}:{} {}", item.index, item.ctr, content(&bytes))
                });
                let items: Vec<String> = items.collect();
                let recovery = if m.recovery { "recovery " } else { "" };
                format!("round {} of {}: {recovery}write {}", m.round, m.elect, items.join(", "))
            });
            writes.collect::<Vec<_>>().join("; ")
        }
        WriteReplies::KIND => {
            let replies = WriteReplies::from_frame(f).unwrap().replies;
            let replies = replies.iter().map(|m| {
                let answer = match m.answer {
                    WriteAnswer::Ack {} => "ack".to_owned(),
                    WriteAnswer::Nack { voted } => format!("nack, voted for {voted}"),
                    WriteAnswer::Sealed {} => "sealed".to_owned(),
                    WriteAnswer::Full {} => "full".to_owned(),
                };
                format!("round {} of {}: {answer}", m.round, m.elect)
            });
            replies.collect::<Vec<_>>().join("; ")
        }
        ReplicaRead::KIND => {
            let m = ReplicaRead::from_frame(f).unwrap();
            let what =
                if m.indices.is_empty() { "confirm".to_owned() } else { format!("read {:?}", m.indices) };
            format!("round {} of {}: {what}", m.round, m.elect)
        }
        ReadReply::KIND => {
            let m = ReadReply::from_frame(f).unwrap();
            let answer = match m.answer {
                ReadAnswer::Ack { items } => "ack".to_owned() + &copies(&items, &m.buckets),
                ReadAnswer::Sealed {} => "sealed".to_owned(),
                ReadAnswer::Nack { voted } => format!("nack, voted for {voted}"),
            };
            format!("round {} of {}: {answer}", m.round, m.elect)
        }
        Fetch::KIND => {
            let m = Fetch::from_frame(f).unwrap();
            format!(
                "round {} of {}: fetch {:?} from epoch {}",
                m.round, m.elect, m.indices, m.former.key.epoch
            )
        }
        Fetched::KIND => {
            let m = Fetched::from_frame(f).unwrap();
            format!("round {} of {}: fetched{}", m.round, m.elect, copies(&m.items, &m.buckets))
        }
        Sealed::KIND => format!("{:?}", Sealed::from_frame(f).unwrap()),
        AskReply::KIND => match AskReply::from_frame(f).unwrap().answer {
            Answer::Moved { to } => format!("Moved to epoch {:?}", to.map(|to| to.config.key.epoch)),
            answer => format!("{answer:?}"),
        },
        Created::KIND => format!("{:?}", Created::from_frame(f).unwrap()),
        Beat::KIND => "beat".to_owned(),
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn record(r: &Record) -> String {
    match Fact::from_bytes(r.head.clone()).unwrap() {
        Fact::Shard { config } => format!("shard of {} replicas", config.replicas.len()),
        Fact::Voted { elect, .. } => format!("voted for {elect}"),
        Fact::Stood { elect, .. } => format!("stood in {elect}"),
        Fact::Sealed { .. } => "sealed".to_owned(),
        Fact::Bucket { voted, index, ver, .. } => {
            format!("bucket {index} {ver} {}, voted for {voted}", content(&r.payload))
        }
        Fact::Dropped { epoch, .. } => format!("dropped up to epoch {epoch}"),
        Fact::Opened { config, former } => {
            format!(
                "epoch {} of {} replicas, after epoch {}",
                config.key.epoch,
                config.replicas.len(),
                former.key.epoch
            )
        }
        Fact::Retired { shard } => format!("retired epoch {}", shard.epoch),
    }
}
