//! Traces of single roles (`traces/*.txt`): what goes in, what is journaled, what comes out, and what each answer waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! A paragraph is a turn. `server`, `aggregator` and `orderer` start a new role on node 1, and `other-disk` a server there with another
//! data directory than the one that shard 0 names; the other commands are the protocol's messages, and those of
//! `atoll_core::traces::LoneRole`. The Loglet is number 5, with shard 0 on nodes 1 and 2, and shard 1 on nodes 3 and 4. Records are named
//! CLIENT/NUMBER. An entry of the ordering log is `-` for a pad, or `cut:SHARD:COUNTS`, `end:SHARD`, `trim:NUMBER` or `seal`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::*;
use atoll_loglet_store::message::{Answer, Delete};
use atoll_scalog::config::{Aggregator as Place, CONFIG_FORMAT};
use atoll_scalog::message::{
    Append, Appended, Fate, Fetch, Fetched, Follow, Followed, Outcome, Placed, Proposed, Receipt, Replicate,
    Replicated, Report, Reports,
};
use atoll_scalog::mutants;
use atoll_scalog::order::{OrderEntry, ShardCut};
use atoll_scalog::roles::{AGGREGATOR, ORDERER, SERVER};
use atoll_scalog::*;
use bytes::Bytes;

const NODE: NodeId = NodeId(1);

/// An ordering log that nobody runs in a trace.
#[derive(Debug)]
struct Absent;

impl Loglet for Absent {
    fn append(&self, _: Batch) -> Ticket<Result<Placement, AppendError>> {
        Ticket::ready(Err(AppendError::Sealed))
    }
    fn keeps_order(&self) -> bool {
        true
    }
    fn check_tail(&self) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async { Err(LogletError::Gone) })
    }
    fn wait_tail(&self, _: Offset) -> BoxFuture<'_, Result<Tail, LogletError>> {
        Box::pin(async { Err(LogletError::Gone) })
    }
    fn known_tail(&self) -> Offset {
        Offset::ZERO
    }
    fn read(
        &self,
        _: std::ops::Range<Offset>,
        _: usize,
        _: ReadFrom,
    ) -> BoxFuture<'_, Result<ReadBatch, ReadError>> {
        Box::pin(async { Err(ReadError::Gone) })
    }
    fn prefix_trim(&self, _: Offset) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Err(LogletError::Gone) })
    }
    fn seal(&self) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Err(LogletError::Gone) })
    }
}

#[derive(Debug)]
struct AbsentLogs;

impl OrderingLogs for AbsentLogs {
    fn open(&self, _: LogletId, _: &OrderingSpec) -> Result<Arc<dyn Loglet>, PlanError> {
        Ok(Arc::new(Absent))
    }
    fn plan<'a>(
        &'a self,
        _: &'a LogletSpec,
        _: Option<&'a OrderingSpec>,
    ) -> BoxFuture<'a, Result<OrderingSpec, PlanError>> {
        Box::pin(async { Ok(OrderingSpec { kind: "absent".into(), config: Bytes::new() }) })
    }
    fn provision(&self, _: LogletId, _: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Ok(()) })
    }
    fn delete(&self, _: LogletId, _: &OrderingSpec) -> BoxFuture<'_, Result<(), LogletError>> {
        Box::pin(async { Ok(()) })
    }
    fn duties(&self, _: &OrderingSpec) -> Duties {
        Duties::default()
    }
    fn can_end(&self, _: &OrderingSpec, _: &dyn Fn(NodeId) -> bool) -> bool {
        true
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    traces::check(&folder(), player);
}

/// The traces are sensitive: every known bug of a single role changes one of them.
#[test]
fn known_bugs_show() {
    let all = [mutants::SCALOG_S1, mutants::SCALOG_S5, mutants::SCALOG_S10, mutants::SCALOG_S12];
    let unseen: Vec<Mutant> = all
        .into_iter()
        .filter(|bug| {
            set_mutant(*bug);
            !traces::differ(&folder(), player)
        })
        .collect();
    set_mutant(Mutant::NONE);
    assert!(unseen.is_empty(), "no trace shows {unseen:?}");
}

fn player() -> impl FnMut(&[&str]) -> Vec<String> {
    let mut role: Option<LoneRole> = None;
    move |commands| {
        for text in commands {
            let mut command = Command::new(text);
            match command.word() {
                name @ ("server" | "other-disk" | "aggregator" | "orderer") => role = Some(start(name)),
                name => give(role.as_mut().expect("a trace begins with a role"), name, &mut command),
            }
            command.end();
        }
        role.as_mut().expect("a trace begins with a role").end_turn()
    }
}

fn start(name: &str) -> LoneRole {
    let env = NodeCore::new(NODE, Incarnation(9), 1).env();
    let logs: Arc<dyn OrderingLogs> = Arc::new(AbsentLogs);
    let wording = Wording { message, record };
    match name {
        "server" | "other-disk" => {
            let storage = StorageId(if name == "server" { 1 } else { 7 });
            LoneRole::new(NODE, SERVER, wording, move || {
                let options = ServerOptions::default();
                Box::new(StorageServer::new(env.clone(), storage, logs.clone(), options))
            })
        }
        "aggregator" => {
            LoneRole::new(NODE, AGGREGATOR, wording, move || Box::new(Aggregator::new(env.clone())))
        }
        _ => LoneRole::new(NODE, ORDERER, wording, move || {
            let options =
                OrdererOptions { stuck_after: Duration::from_millis(100), ..OrdererOptions::default() };
            Box::new(Orderer::new(env.clone(), logs.clone(), options))
        }),
    }
}

fn config() -> Bytes {
    let shard = |shard: u32, nodes: [u32; 2]| {
        let server = |n: u32| Server { node: NodeId(n), storage: StorageId(n.into()) };
        ShardSpec { shard, servers: nodes.map(server).to_vec() }
    };
    ScalogConfig {
        format: CONFIG_FORMAT,
        shards: vec![shard(0, [1, 2]), shard(1, [3, 4])],
        aggregators: vec![
            Place { node: NodeId(1), parent: None },
            Place { node: NodeId(1), parent: Some(0) },
        ],
        orderers: vec![NodeId(1), NodeId(3)],
        interval_us: 1000,
        added: Vec::new(),
        wanted: (2, 2),
        ordering: OrderingSpec { kind: "absent".into(), config: Bytes::new() },
    }
    .to_bytes()
}

fn numbers(text: &str) -> Vec<u64> {
    text.split(',').map(|n| n.parse().unwrap()).collect()
}

fn records(words: &[&str]) -> Batch {
    Batch::of(words.iter().map(|word| {
        let (client, seq) = word.split_once('/').unwrap();
        let op = OpId { client: ClientId(client.parse().unwrap()), seq: seq.parse().unwrap() };
        Entry { op, payload: Bytes::from((*word).to_owned()) }
    }))
}

fn entry(word: &str) -> Bytes {
    let mut entry = OrderEntry::nothing();
    let parts: Vec<&str> = word.split(':').collect();
    match parts[..] {
        ["-"] => return Bytes::new(),
        ["cut", shard, counts] => {
            entry.cut = vec![ShardCut { shard: shard.parse().unwrap(), counts: numbers(counts) }];
        }
        ["end", shard] => entry.finalize = vec![(shard.parse().unwrap(), 0)],
        ["trim", to] => entry.trim = to.parse().unwrap(),
        ["seal"] => entry.seal = true,
        _ => panic!("{word} is no entry"),
    }
    entry.to_bytes()
}

fn give(role: &mut LoneRole, name: &str, command: &mut Command) {
    let from = NodeId(command.number_of("from", 2) as u32);
    let loglet = LogletId(command.number_of("loglet", 5).into());
    let config = if command.flag("no-config") { Bytes::new() } else { config() };
    let frame = match name {
        "append" => {
            let (view, not_below) = (command.number_of("view", 0), command.number_of("floor", 0));
            let chosen = Some(command.number_of("shard", 0) as u32);
            let batch = records(&command.words()).bytes().clone();
            frame(Append { loglet, config, view, chosen, not_below, batch })
        }
        "replicate" => {
            let first = command.number();
            let (segment, round) = (command.number_of("segment", 1) as u32, command.number_of("round", 0));
            let words = command.words();
            let batch = if words.is_empty() { Bytes::new() } else { records(&words).bytes().clone() };
            let count = words.len() as u32;
            let m = Replicate { loglet, config, shard: 0, segment, first, count, round, batch };
            return role.post(from, frame(m));
        }
        "replicated" => {
            let receipt = match command.word() {
                "taken" => Receipt::Taken {},
                "out-of-order" => Receipt::OutOfOrder {},
                "unconfigured" => Receipt::Unconfigured {},
                other => panic!("{other} is no receipt"),
            };
            let (next, round) = (command.number(), command.number_of("round", 0));
            return role.post(from, frame(Replicated { loglet, shard: 0, segment: 0, receipt, next, round }));
        }
        "report" => {
            let (shard, replica) = (command.number() as u32, command.number() as u32);
            let at = command.option("at").map(|at| at.parse().unwrap());
            let reports = vec![Report { shard, replica, counts: numbers(command.word()) }];
            return role.post(from, frame(Reports { loglet, config, at, reports }));
        }
        "proposed" => {
            let fate = match (command.flag("lost"), command.flag("unknown")) {
                (true, _) => Fate::Lost {},
                (_, true) => Fate::Unknown {},
                _ => Fate::Written { at: 0 },
            };
            return role.post(from, frame(Proposed { loglet, fate }));
        }
        "follow" => {
            let (from, ended) = (command.number(), command.flag("ended"));
            let entries = command.words().into_iter().map(entry).collect();
            frame(Follow { loglet, from, ended, entries })
        }
        "fetch" => {
            let (from, to) = (command.number(), command.number());
            let shard = command.number_of("shard", 0) as u32;
            let patience_ms = command.number_of("patience", 0) as u32;
            frame(Fetch { loglet, config, shard, from, to, max_bytes: 1000, patience_ms })
        }
        "delete" => frame(Delete { loglet }),
        "stranger" => Frame { kind: 999, target: SERVER, head: Bytes::new(), payloads: vec![] },
        _ => return role.command(name, command),
    };
    role.request(from, command.text(), frame);
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(atoll_core::roles::NONE)
}

fn names(batch: &Bytes) -> String {
    let Ok(batch) = Batch::parse(batch.clone()) else { return "nothing".to_owned() };
    batch.ops().map(|op| format!("{}/{}", op.client.0, op.seq)).collect::<Vec<_>>().join(" ")
}

fn placed(all: &[Placed]) -> String {
    let one = |p: &Placed| match p.first {
        Some(first) => format!(" {first}..{}", first + u64::from(p.count)),
        None => format!(" {} never", p.count),
    };
    all.iter().map(one).collect()
}

fn message(f: Frame) -> String {
    match f.kind {
        Appended::KIND => match Appended::from_frame(f).unwrap().outcome {
            Outcome::Ordered { placed: all } => format!("Ordered{}", placed(&all)),
            Outcome::Finalized { placed: all, view } => format!("Finalized in view {view}:{}", placed(&all)),
            other => format!("{other:?}"),
        },
        Replicate::KIND => {
            let m = Replicate::from_frame(f).unwrap();
            let config = if m.config.is_empty() { "" } else { ", with configuration" };
            format!("Replicate {}: {}, round {}{config}", m.first, names(&m.batch), m.round)
        }
        Replicated::KIND => {
            let m = Replicated::from_frame(f).unwrap();
            format!("Replicated {:?}, next {}, round {}", m.receipt, m.next, m.round)
        }
        Reports::KIND => {
            let m = Reports::from_frame(f).unwrap();
            let one = |r: &Report| format!(" shard {} replica {} {:?}", r.shard, r.replica, r.counts);
            let config = if m.config.is_empty() { "" } else { ", with configuration" };
            let to = m.at.map_or("an orderer".to_owned(), |at| format!("aggregator {at}"));
            format!("Reports to {to}:{}{config}", m.reports.iter().map(one).collect::<String>())
        }
        Followed::KIND => format!("Followed {:?}", Followed::from_frame(f).unwrap().applied),
        Fetched::KIND => {
            let m = Fetched::from_frame(f).unwrap();
            let runs =
                m.runs.iter().zip(&m.batches).map(|((gsn, _), batch)| format!(" {gsn}={}", names(batch)));
            format!("Fetched {:?} upto {}{}", m.found, m.upto, runs.collect::<String>())
        }
        Answer::KIND => format!("{:?}", Answer::from_frame(f).unwrap().verdict),
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn record(r: &Record) -> String {
    match r.kind {
        RecordKind::Entry => format!("records {}", names(&r.payload)),
        RecordKind::Fact => format!("fact of {} bytes", r.head.len()),
    }
}
