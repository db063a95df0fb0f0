//! Traces of a single LogServer and a single sequencer (`traces/*.txt`): what goes in, what is journaled, what comes out, and what each
//! answer waits for. `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! A paragraph is a turn: the messages arrive in the order of their lines, then the role ends the turn. `log-server` or `sequencer` starts
//! a new role; the other commands are the protocol's messages, and those of `atoll_core::traces::LoneRole`. The role is on node 1, which
//! is also the configured sequencer, in its life 9; the servers are nodes 1 to 3, and clients have higher numbers.
//!
//! `lt` and `kt` are the local and the known tail. `0..2` are the offsets 0 and 1. The loglet is number 5 unless another one is named.

use std::path::{Path, PathBuf};

use atoll_contract::conformance::cluster::batch;
use atoll_contract::*;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::*;
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_native::message::*;
use atoll_native::mutants;
use atoll_native::roles::{LOG_SERVER, SEQUENCER};
use atoll_native::{LogServer, LogServerOptions, NativeConfig, Sequencer, SequencerOptions};
use bytes::Bytes;

const LIFE: u64 = 9;
const LOGLET: u128 = 5;
const NODE: NodeId = NodeId(1);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    traces::check(&folder(), player);
}

/// The traces are sensitive: every mutant of a role alone changes one of them.
#[test]
fn known_bugs_show() {
    let of_roles = [
        mutants::NATIVE_T1,
        mutants::NATIVE_T2,
        mutants::NATIVE_T3,
        mutants::NATIVE_T4,
        mutants::NATIVE_T5,
        mutants::NATIVE_T6,
        mutants::NATIVE_T8,
        mutants::NATIVE_T11,
        mutants::NATIVE_T18,
        mutants::NATIVE_N7,
        mutants::NATIVE_UNREAD_IS_TRIMMED,
        atoll_loglet_store::mutants::NATIVE_T10,
        atoll_loglet_store::mutants::NATIVE_T12,
    ];
    let unseen: Vec<Mutant> = of_roles
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
    let mut subject: Option<Subject> = None;
    move |commands| {
        for text in commands {
            let mut command = Command::new(text);
            match command.word() {
                "log-server" => subject = Some(Subject::log_server()),
                "sequencer" => subject = Some(Subject::sequencer(&mut command)),
                name => subject.as_mut().expect("a trace begins with a role").give(name, &mut command),
            }
            command.end();
        }
        subject.as_mut().expect("a trace begins with a role").role.end_turn()
    }
}

struct Subject {
    role: LoneRole,
    core: NodeCore,
}

impl Subject {
    fn log_server() -> Self {
        let core = NodeCore::new(NODE, Incarnation(LIFE), 1);
        let env = core.env();
        let make = move || -> Box<dyn Role> {
            Box::new(LogServer::new(env.clone(), StorageId(1), LogServerOptions::default()))
        };
        Subject { role: LoneRole::new(NODE, LOG_SERVER, WORDING, make), core }
    }

    fn sequencer(command: &mut Command) -> Self {
        let mut core = NodeCore::new(NODE, Incarnation(command.number_of("life", LIFE)), 1);
        for peer in [2, 3] {
            core.set_link(Tick(1), NodeId(peer), Class::Data, Link::Up);
        }
        let usual = SequencerOptions::default();
        let options = SequencerOptions {
            node_window_bytes: command.number_of("node-window", usual.node_window_bytes as u64) as usize,
            server_window_bytes: command.number_of("server-window", usual.server_window_bytes),
            window_bytes: command.number_of("window", usual.window_bytes),
            held_bytes: command.number_of("held", usual.held_bytes as u64) as usize,
            ..usual
        };
        let env = core.env();
        let make = move || -> Box<dyn Role> { Box::new(Sequencer::new(env.clone(), options.clone())) };
        Subject { role: LoneRole::new(NODE, SEQUENCER, WORDING, make), core }
    }

    fn give(&mut self, name: &str, command: &mut Command) {
        match name {
            "link" => {
                let peer = NodeId(command.number() as u32);
                let link = match command.word() {
                    "up" => Link::Up,
                    "full" => Link::Full,
                    "down" => Link::Down,
                    other => panic!("{other} is no state of a link"),
                };
                for class in [Class::Control, Class::Data] {
                    let was_up = self.core.env().link(peer, class) != Link::Down;
                    self.core.set_link(Tick(1), peer, class, link);
                    let up = link != Link::Down;
                    // As in a node: a role hears nothing of a queue that is full, or has room again.
                    if up != was_up {
                        self.role.link(peer, class, up);
                    }
                }
            }
            "append" | "stored" | "seal-ended" => self.give_sequencer(name, command),
            "store" | "advance" | "post-info" | "fill-ended" | "check-ended" => {
                self.post_server(name, command)
            }
            "seal" | "info" | "wait" | "repair" | "read" | "trim" | "delete" | "back-fill" | "fill"
            | "junk" => self.ask_server(name, command),
            _ => self.role.command(name, command),
        }
    }

    /// Passes the server a message of the sequencer, or of its own node.
    fn post_server(&mut self, name: &str, command: &mut Command) {
        let from = NodeId(command.number_of("from", NODE.0.into()) as u32);
        let (loglet, config) = loglet(command);
        let life = Incarnation(command.number_of("life", LIFE));
        let frame = match name {
            "store" => {
                let (first, round) = (command.number(), command.number_of("round", 1) as u32);
                let known_tail = Offset(command.number_of("kt", 0));
                let (count, batch) = entries(first, command);
                let first = Offset(first);
                frame(Store { loglet, config, life, round, first, count, known_tail, batch })
            }
            "advance" => {
                let (known_tail, confirm) = (Offset(command.number()), command.flag("confirm"));
                frame(Advance { loglet, life, known_tail, confirm })
            }
            "fill-ended" => frame(FillEnded { loglet }),
            "post-info" => frame(Info { loglet, config }),
            _ => frame(CheckEnded { loglet, done: command.flag("done") }),
        };
        self.role.post(from, frame);
    }

    fn ask_server(&mut self, name: &str, command: &mut Command) {
        let usual = if name == "fill" { NODE.0 } else { 2 };
        let from = NodeId(command.number_of("from", usual.into()) as u32);
        let (loglet, config) = loglet(command);
        let frame = match name {
            "seal" => frame(Seal { loglet, config }),
            "info" => frame(Info { loglet, config }),
            "wait" => {
                let (target, known_only) = (Offset(command.number()), command.flag("known"));
                let patience_ms = command.number_of("patience", 1000) as u32;
                frame(Wait { loglet, config, target, known_only, patience_ms })
            }
            "repair" => {
                let (first, known_tail) = (command.number(), Offset(command.number_of("kt", 0)));
                let (count, batch) = entries(first, command);
                frame(Repair { loglet, config, first: Offset(first), count, known_tail, batch })
            }
            "fill" => {
                let first = command.number();
                let (count, batch) = entries(first, command);
                frame(Fill { loglet, first: Offset(first), count, batch })
            }
            "read" => {
                let (from, to) = (Offset(command.number()), Offset(command.number()));
                frame(Read { loglet, from, to, max_bytes: 1000 })
            }
            "trim" => frame(Trim { loglet, config, to: Offset(command.number()) }),
            "delete" => frame(Delete { loglet }),
            "back-fill" => frame(BackFill { loglet, config, upto: Offset(command.number()) }),
            _ => {
                let kind = command.number() as u16;
                Frame { kind, target: LOG_SERVER, head: Bytes::from_static(b"junk"), payloads: vec![] }
            }
        };
        self.role.request(from, command.text(), frame);
    }

    fn give_sequencer(&mut self, name: &str, command: &mut Command) {
        let (loglet, config) = loglet(command);
        match name {
            "append" => {
                let from = NodeId(command.number_of("from", 4) as u32);
                let (number, first_op) = (command.number(), command.number());
                let place = HandlePlace {
                    handle: command.number_of("handle", 1),
                    epoch: command.number_of("epoch", 0),
                    number,
                };
                let life = Incarnation(command.number_of("life", LIFE));
                let long = "x".repeat(command.number_of("bytes", 0) as usize);
                let mut texts = command.words();
                if !long.is_empty() {
                    texts.push(&long);
                }
                let batch = batch(1, first_op, &texts).bytes().clone();
                let message = Append { loglet, config, life, place, not_below: NotBelow::default(), batch };
                self.role.request(from, command.text(), frame(message));
            }
            "stored" => {
                let from = NodeId(command.number() as u32);
                let state = ServerState {
                    sealed: command.flag("sealed"),
                    local_tail: Offset(command.number_of("lt", 0)),
                    known_tail: Offset(command.number_of("kt", 0)),
                    trim: Offset(0),
                };
                let verdict = match command.option("but") {
                    None if state.sealed => Verdict::Sealed {},
                    None => Verdict::Done {},
                    Some("out-of-order") => Verdict::OutOfOrder {},
                    Some("disk-full") => Verdict::DiskFull {},
                    Some("unconfigured") => Verdict::Unconfigured {},
                    Some("wrong-identity") => Verdict::WrongIdentity {},
                    Some("storage-failed") => Verdict::StorageFailed {},
                    Some("gone") => Verdict::Gone {},
                    Some(other) => panic!("{other} is no verdict"),
                };
                let round = command.number_of("round", 0) as u32;
                let expects = Offset(command.number_of("next", state.local_tail.0));
                self.role.post(from, frame(StoredUpTo { loglet, verdict, round, expects, state }));
            }
            _ => {
                let from = NodeId(command.number_of("from", NODE.0.into()) as u32);
                self.role.post(from, frame(SealEnded { loglet, sealed: command.flag("sealed") }));
            }
        }
    }
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(roles::NONE)
}

/// Returns the loglet that a message names, and its configuration: the right one unless the command says otherwise.
fn loglet(command: &mut Command) -> (LogletId, Bytes) {
    let loglet = LogletId(command.number_of("loglet", LOGLET as u64).into());
    let servers = match command.option("config") {
        None => (1..=3).map(|n| (NodeId(n), StorageId(n.into()))).collect(),
        Some("other-disk") => vec![(NODE, StorageId(77))],
        Some("none") => return (loglet, Bytes::new()),
        Some(other) => panic!("{other} is no configuration"),
    };
    (loglet, NativeConfig::new(servers, (NODE, Incarnation(LIFE))).unwrap().to_bytes())
}

/// Returns the entries in the remaining words, and how many the message claims there are.
fn entries(first: u64, command: &mut Command) -> (u32, Bytes) {
    let texts = command.words();
    let count = command.number_of("count", texts.len() as u64) as u32;
    (count, batch(1, first + 1, &texts).bytes().clone())
}

const WORDING: Wording = Wording { message, record };

fn message(f: Frame) -> String {
    match f.kind {
        StoredUpTo::KIND => {
            let m = StoredUpTo::from_frame(f).unwrap();
            let (of, state) = (of(m.loglet), state(&m.state));
            format!("StoredUpTo {:?}, round {}, next {}, {state}{of}", m.verdict, m.round, m.expects)
        }
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
        Store::KIND => {
            let m = Store::from_frame(f).unwrap();
            let config = if m.config.is_empty() { "" } else { ", config" };
            let range = range(m.first, m.count);
            format!("Store {range}, round {}, kt={}{config}{}", m.round, m.known_tail, of(m.loglet))
        }
        Advance::KIND => {
            let m = Advance::from_frame(f).unwrap();
            format!("Advance kt={}{}", m.known_tail, if m.confirm { ", confirm" } else { "" })
        }
        Info::KIND => {
            let m = Info::from_frame(f).unwrap();
            let config = if m.config.is_empty() { "" } else { " config" };
            format!("Info{config}{}", of(m.loglet))
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

/// Returns the name of a loglet that is not the usual one, otherwise nothing.
fn of(loglet: LogletId) -> String {
    if loglet == LogletId(LOGLET) { String::new() } else { format!(", loglet {}", loglet.0) }
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
    let of = of(LogletId::decode(&mut head).unwrap());
    match (r.kind, number) {
        (RecordKind::Entry, _) => {
            let range = range(offset(&mut head), u32::decode(&mut head).unwrap());
            let filled = if bool::decode(&mut head).unwrap() { "filled" } else { "entries" };
            format!("{filled} {range}: {}, kt={}{of}", texts(&r.payload), offset(&mut head))
        }
        (RecordKind::Fact, 0) => format!("create{of}"),
        (RecordKind::Fact, 1) => format!("seal{of}"),
        (RecordKind::Fact, 2) => format!("trim to {}, lt={}{of}", offset(&mut head), offset(&mut head)),
        (RecordKind::Fact, 3) => format!("tombstone{of}"),
        (RecordKind::Fact, 4) => format!("ends at {}{of}", offset(&mut head)),
        (RecordKind::Fact, other) => panic!("no wording for facts of number {other}"),
    }
}
