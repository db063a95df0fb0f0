//! Traces of a single unit (`traces/*.txt`): what goes in, what is journaled, what comes out, and what each answer waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! A paragraph is a turn. `unit` starts a new unit on node 1; the other commands are the protocol's messages, and those of
//! `atoll_core::traces::LoneRole`. The log is number 5 and the epoch is 1 unless others are named. Writes have tokens of client 1.

use std::path::{Path, PathBuf};

use atoll_contract::LogletId;
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::*;
use atoll_corfu::message::*;
use atoll_corfu::mutants;
use atoll_corfu::roles::UNIT;
use atoll_corfu::unit::facts::{CellHead, Fact};
use atoll_corfu::{Projection, Unit, UnitOptions};
use atoll_loglet_store::message::{Answer, Delete, Status, StatusPage};
use bytes::Bytes;

const NODE: NodeId = NodeId(1);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    traces::check(&folder(), player);
}

/// The traces are sensitive: every known bug of the unit alone changes one of them.
#[test]
fn known_bugs_show() {
    let unseen: Vec<Mutant> = [mutants::CORFU_C1, mutants::CORFU_C14, mutants::CORFU_C16]
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
                "unit" => role = Some(unit(&mut command)),
                name => give(role.as_mut().expect("a trace begins with a unit"), name, &mut command),
            }
            command.end();
        }
        role.as_mut().expect("a trace begins with a unit").end_turn()
    }
}

fn unit(command: &mut Command) -> LoneRole {
    let env = NodeCore::new(NODE, Incarnation(9), 1).env();
    let usual = UnitOptions::default();
    let options = UnitOptions {
        cache_bytes: command.number_of("cache", usual.cache_bytes as u64) as usize,
        window_bytes: command.number_of("window", usual.window_bytes as u64) as usize,
        ..usual
    };
    LoneRole::new(NODE, UNIT, Wording { message, record }, move || {
        Box::new(Unit::new(env.clone(), StorageId(1), options.clone()))
    })
}

fn give(role: &mut LoneRole, name: &str, command: &mut Command) {
    let from = NodeId(command.number_of("from", 2) as u32);
    let log = LogletId(command.number_of("log", 5).into());
    let config = match command.option("config") {
        None => projection(1),
        Some("none") => Bytes::new(),
        Some("other-disk") => projection(77),
        Some(other) => panic!("{other} is no configuration"),
    };
    let epoch = command.number_of("epoch", 1);
    let frame = match name {
        "write" => {
            let (first, data) = (command.number(), command.word());
            let token = Token { client: 1, number: command.number_of("token", first) };
            let count = command.number_of("count", 1) as u32;
            frame(Write { log, config, epoch, first, count, token, data: Bytes::from(data.to_owned()) })
        }
        "fill" | "erase" => {
            let (first, count) = (command.number(), command.number() as u32);
            let unwritten_too = command.flag("unwritten-too");
            match name {
                "fill" => frame(Fill { log, config, epoch, first, count }),
                _ => frame(Erase { log, config, epoch, first, count, unwritten_too }),
            }
        }
        "trim" => frame(TrimTo { log, config, epoch, to: command.number() }),
        "seal" => frame(SealTo { log, config, epoch: command.number() }),
        "probe" => frame(Probe { log, config, epoch, from: command.number() }),
        "await" => frame(Await { log, config, epoch, addr: command.number(), patience_ms: 100 }),
        "look" => {
            let (from, to) = (command.number(), command.number());
            let max_bytes = command.number_of("bytes", 1000) as u32;
            frame(Look { log, config, epoch, from, to, max_bytes })
        }
        "delete" => frame(Delete { loglet: log }),
        "status" => frame(Status { above: None }),
        "stranger" => Frame { kind: 999, target: UNIT, head: Bytes::new(), payloads: vec![] },
        _ => return role.command(name, command),
    };
    role.request(from, command.text(), frame);
}

fn projection(storage: u128) -> Bytes {
    let chain = vec![(NODE, StorageId(storage)), (NodeId(2), StorageId(2))];
    Projection::simple(1, (NODE, Incarnation(9)), 4, vec![chain]).to_bytes()
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(roles::NONE)
}

fn verdict(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Written { by: Some(token) } => format!("Written by {}/{}", token.client, token.number),
        Verdict::Written { by: None } => "Written: junk".to_owned(),
        Verdict::Damaged { reason } => format!("Damaged: {reason}"),
        other => format!("{other:?}"),
    }
}

fn message(f: Frame) -> String {
    match f.kind {
        UnitAnswer::KIND => {
            let m = UnitAnswer::from_frame(f).unwrap();
            format!("{}, epoch {}, next {}, missing {}", verdict(&m.verdict), m.epoch, m.next, m.missing)
        }
        Seen::KIND => {
            let m = Seen::from_frame(f).unwrap();
            let mut contents = m.contents.iter();
            let pieces = m.pieces.iter().map(|piece| {
                let (first, end) = piece.span();
                match piece {
                    Piece::Data { token, .. } => {
                        let text = contents.next().map(|c| String::from_utf8_lossy(c).into_owned());
                        format!(
                            " {first}..{end}={}/{}:{}",
                            token.client,
                            token.number,
                            text.unwrap_or("-".into())
                        )
                    }
                    Piece::Junk { .. } => format!(" {first}..{end}=junk"),
                    Piece::Unwritten { .. } => format!(" {first}..{end}=unwritten"),
                    Piece::Deleted { .. } => format!(" {first}..{end}=deleted"),
                    Piece::Erased { .. } => format!(" {first}..{end}=erased"),
                }
            });
            let pieces: String = pieces.collect();
            format!("{}{pieces}, epoch {}, next {}", verdict(&m.verdict), m.epoch, m.next)
        }
        Answer::KIND => format!("{:?}", Answer::from_frame(f).unwrap().verdict),
        StatusPage::KIND => {
            let page = StatusPage::from_frame(f).unwrap();
            let all = page.loglets.iter().map(|l| {
                let s = &l.state;
                let (sealed, runs, bytes) = (s.sealed, l.runs, l.bytes);
                format!(
                    " {}: next {}, missing {}, sealed {sealed}, cells {runs}, bytes {bytes}",
                    l.loglet.0, s.local_tail, l.missing
                )
            });
            format!("Status:{}", all.collect::<String>())
        }
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn record(r: &Record) -> String {
    match r.kind {
        RecordKind::Entry => {
            let head = CellHead::from_bytes(r.head.clone()).unwrap();
            let (first, end) = (head.first, head.first + u64::from(head.count));
            let data = String::from_utf8_lossy(&r.payload).into_owned();
            format!("data {first}..{end}={}/{}:{data}", head.token.client, head.token.number)
        }
        RecordKind::Fact => match Fact::from_bytes(r.head.clone()).unwrap() {
            Fact::Create { epoch, .. } => format!("create, epoch {epoch}"),
            Fact::Epoch { epoch, .. } => format!("epoch {epoch}"),
            Fact::Junk { ranges, .. } => format!("junk {ranges:?}"),
            Fact::Deleted { first, end, .. } => format!("deleted {first}..{end}"),
            Fact::Trimmed { to, .. } => format!("trimmed below {to}"),
            Fact::Tombstone { .. } => "tombstone".to_owned(),
        },
    }
}
