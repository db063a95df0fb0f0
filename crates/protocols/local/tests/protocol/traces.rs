//! Traces of a single local store (`traces/*.txt`): what goes in, what is journaled, what comes out, and what each answer waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! A paragraph is a turn: the messages arrive in the order of their lines, then the role ends the turn. `store` starts a new role. The
//! other commands are the protocol's messages, and those of `atoll_core::traces::LoneRole`. The store is on node 1, and clients have higher
//! numbers. `lt` and `kt` are the local and the known tail. `0..2` are the offsets 0 and 1. The loglet is number 5.

use std::path::{Path, PathBuf};

use atoll_contract::conformance::cluster::batch;
use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::*;
use atoll_local::message::LocalAppend;
use atoll_local::roles::LOCAL_STORE;
use atoll_local::{LocalConfig, LocalStore, LocalStoreOptions, mutants};
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_loglet_store::message::*;
use bytes::Bytes;

const LOGLET: LogletId = LogletId(5);
const NODE: NodeId = NodeId(1);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    traces::check(&folder(), player);
}

/// The traces are sensitive: every mutant changes one of them.
#[test]
fn known_bugs_show() {
    let shared = [atoll_loglet_store::mutants::NATIVE_T10, atoll_loglet_store::mutants::NATIVE_T12];
    let all = mutants::ALL.iter().copied().chain(shared);
    let unseen: Vec<Mutant> = all
        .filter(|bug| {
            set_mutant(*bug);
            !traces::differ(&folder(), player)
        })
        .collect();
    set_mutant(Mutant::NONE);
    assert!(unseen.is_empty(), "no trace shows {unseen:?}");
}

fn player() -> impl FnMut(&[&str]) -> Vec<String> {
    let mut store: Option<LoneRole> = None;
    move |commands| {
        for text in commands {
            let mut command = Command::new(text);
            match command.word() {
                "store" => store = Some(begin(&mut command)),
                name => give(store.as_mut().expect("a trace begins with a store"), name, &mut command),
            }
            command.end();
        }
        store.as_mut().expect("a trace begins with a store").end_turn()
    }
}

fn begin(command: &mut Command) -> LoneRole {
    let env = NodeCore::new(NODE, Incarnation(9), 1).env();
    let usual = LocalStoreOptions::default();
    let window = command.number_of("window", usual.window_bytes as u64) as usize;
    let held = command.number_of("held", usual.held_bytes as u64) as usize;
    let options = LocalStoreOptions { window_bytes: window, held_bytes: held, ..usual };
    let make =
        move || -> Box<dyn Role> { Box::new(LocalStore::new(env.clone(), StorageId(1), options.clone())) };
    LoneRole::new(NODE, LOCAL_STORE, Wording { message, record }, make)
}

fn give(role: &mut LoneRole, name: &str, command: &mut Command) {
    let from = NodeId(command.number_of("from", 2) as u32);
    let (loglet, config) = (LOGLET, config(command));
    let frame = match name {
        "append" => {
            let (number, first_op) = (command.number(), command.number());
            let place = HandlePlace { handle: 1, epoch: command.number_of("epoch", 0), number };
            let batch = batch(1, first_op, &command.words()).bytes().clone();
            frame(LocalAppend { loglet, config, place, not_below: NotBelow::default(), batch })
        }
        "seal" => frame(Seal { loglet, config }),
        "info" => frame(Info { loglet, config }),
        "wait" => {
            let (target, patience_ms) =
                (Offset(command.number()), command.number_of("patience", 1000) as u32);
            frame(Wait { loglet, config, target, known_only: true, patience_ms })
        }
        "copy" => {
            let first = command.number();
            let texts = command.words();
            let batch = batch(1, first + 1, &texts).bytes().clone();
            let (first, count) = (Offset(first), texts.len() as u32);
            frame(Repair { loglet, config, first, count, known_tail: first, batch })
        }
        "read" => {
            let (from, to) = (Offset(command.number()), Offset(command.number()));
            frame(Read { loglet, from, to, max_bytes: 1000 })
        }
        "trim" => frame(Trim { loglet, config, to: Offset(command.number()) }),
        "delete" => frame(Delete { loglet }),
        "junk" => {
            let kind = command.number() as u16;
            Frame { kind, target: LOCAL_STORE, head: Bytes::from_static(b"junk"), payloads: vec![] }
        }
        _ => return role.command(name, command),
    };
    role.request(from, command.text(), frame);
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(roles::NONE)
}

/// Returns the configuration that a message carries: the right one unless the command says otherwise.
fn config(command: &mut Command) -> Bytes {
    let storage = match command.option("config") {
        None => StorageId(1),
        Some("other-disk") => StorageId(77),
        Some("none") => return Bytes::new(),
        Some(other) => panic!("{other} is no configuration"),
    };
    LocalConfig { node: NODE, storage }.to_bytes()
}

fn message(f: Frame) -> String {
    match f.kind {
        Answer::KIND => {
            let m = Answer::from_frame(f).unwrap();
            format!("{:?}, {}", m.verdict, state(&m.state))
        }
        Entries::KIND => {
            let m = Entries::from_frame(f).unwrap();
            let found: String = m.batches.iter().map(|batch| format!(" {}", texts(batch))).collect();
            let found = if found.is_empty() { found } else { format!(" from {}:{found}", m.first) };
            format!("{:?}{found}, {}", m.verdict, state(&m.state))
        }
        Appended::KIND => {
            let m = Appended::from_frame(f).unwrap();
            let outcome = match m.outcome {
                Ordered::Committed { runs } => {
                    runs.iter().fold("Committed".to_owned(), |s, (first, n)| s + " " + &range(*first, *n))
                }
                other => format!("{other:?}"),
            };
            format!("{outcome}, kt={}", m.known_tail)
        }
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn state(s: &ServerState) -> String {
    let sealed = if s.sealed { "sealed" } else { "open" };
    let trim = if s.trim == Offset(0) { String::new() } else { format!(" trim={}", s.trim) };
    format!("{sealed} lt={} kt={}{trim}", s.local_tail, s.known_tail)
}

fn range(first: Offset, count: u32) -> String {
    format!("{first}..{}", first.plus(count.into()))
}

fn texts(batch: &Bytes) -> String {
    let batch = Batch::parse(batch.clone()).unwrap();
    let texts = batch.entries().map(|entry| String::from_utf8(entry.payload.to_vec()).unwrap());
    texts.collect::<Vec<_>>().join(" ")
}

/// Decodes the byte form on the disk, which does not change.
fn record(r: &Record) -> String {
    let mut head = Reader::new(r.head.clone());
    let offset = |head: &mut Reader| Offset::decode(head).unwrap();
    let number = u8::decode(&mut head).unwrap();
    LogletId::decode(&mut head).unwrap();
    match (r.kind, number) {
        (RecordKind::Entry, _) => {
            let range = range(offset(&mut head), u32::decode(&mut head).unwrap());
            format!("entries {range}: {}", texts(&r.payload))
        }
        (RecordKind::Fact, 0) => "create".to_owned(),
        (RecordKind::Fact, 1) => "seal".to_owned(),
        (RecordKind::Fact, 2) => format!("trim to {}, lt={}", offset(&mut head), offset(&mut head)),
        (RecordKind::Fact, 3) => "tombstone".to_owned(),
        (RecordKind::Fact, other) => panic!("no wording for facts of number {other}"),
    }
}
