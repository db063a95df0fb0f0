//! Traces of a single acceptor (`traces/*.txt`): what it answers, what it journals first, and what the answer waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! `acceptor` starts a new one, on node 1 and disk 7; the other commands are the protocol's messages, and those of
//! `atoll_core::traces::LoneRole`. Ballots are `round.proposer`; 0.0 is zero, 1.0 genesis. Group 1 comes from the configuration, and group
//! N + 1 is its successor.

use std::path::{Path, PathBuf};

use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::{
    Decode, Frame, Incarnation, Message, NodeId, Record, Refused, Role, StorageId, roles::NONE,
};
use atoll_rmwpaxos::message::*;
use atoll_rmwpaxos::mutants::{RMW_NO_RESERVE, RMW_T3, RMW_T9};
use atoll_rmwpaxos::roles::ACCEPTOR;
use atoll_rmwpaxos::{Acceptor, Ballot, GroupConfig, Member, ProposerId};
use bytes::Bytes;

const NODE: NodeId = NodeId(1);
const DISK: u64 = 7;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces")
}

#[test]
fn traces_hold() {
    traces::check(&folder(), player);
}

/// The traces are sensitive: every mutant of an acceptor alone changes one of them.
#[test]
fn known_bugs_show() {
    for bug in [RMW_T3, RMW_T9, RMW_NO_RESERVE] {
        set_mutant(bug);
        let seen = traces::differ(&folder(), player);
        set_mutant(Mutant::NONE);
        assert!(seen, "no trace shows {bug:?}");
    }
}

fn player() -> impl FnMut(&[&str]) -> Vec<String> {
    let mut acceptor: Option<LoneRole> = None;
    move |commands| {
        for text in commands {
            let mut command = Command::new(text);
            match command.word() {
                "acceptor" => acceptor = Some(new(&mut command)),
                name => {
                    let acceptor = acceptor.as_mut().expect("a trace begins with an acceptor");
                    match request(name, &mut command) {
                        Some(frame) => acceptor.request(NodeId(2), command.text(), frame),
                        None => acceptor.command(name, &mut command),
                    }
                }
            }
            command.end();
        }
        acceptor.as_mut().expect("a trace begins with an acceptor").end_turn()
    }
}

fn new(command: &mut Command) -> LoneRole {
    let disk = StorageId(command.number_of("disk", DISK).into());
    let capacity_bytes = command.number_of("capacity", 1_000_000) as usize;
    let make = move || -> Box<dyn Role> {
        Box::new(Acceptor::new(NODE, disk, Some(group(1))).with_capacity_bytes(capacity_bytes))
    };
    LoneRole::new(NODE, ACCEPTOR, Wording { message, record }, make)
}

fn group(epoch: u64) -> GroupConfig {
    let member = |node, storage: u64| Member { node, storage: StorageId(storage.into()) };
    GroupConfig::new(epoch, vec![member(NODE, DISK), member(NodeId(2), 2)]).unwrap()
}

fn ballot(text: &str) -> Ballot {
    let (n, proposer) = text.split_once('.').unwrap();
    Ballot { n: n.parse().unwrap(), pid: pid(proposer.parse().unwrap()) }
}

fn pid(proposer: u64) -> ProposerId {
    ProposerId { node: NodeId(proposer as u32), life: Incarnation(proposer) }
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(NONE)
}

/// Returns the protocol message of a command; None if the command is not one.
fn request(name: &str, command: &mut Command) -> Option<Frame> {
    let epoch = command.number_of("group", 1);
    let storage = StorageId(command.number_of("disk", DISK).into());
    let to = Address { epoch, mark: group(epoch).mark(), storage };
    let state = Bytes::from("v".repeat(command.number_of("bytes", 0) as usize));
    let state = command.option("state").map_or(state, |state| Bytes::copy_from_slice(state.as_bytes()));
    Some(match name {
        "prep" => {
            let name = command.word().to_owned();
            let mode = match command.word() {
                "read" => Mode::ReadOnly {},
                "inc" => Mode::Incremental {},
                explicit => Mode::Explicit { ballot: ballot(explicit) },
            };
            let (pid, request) = (pid(command.number_of("by", 0)), command.number_of("request", 0));
            frame(Prep { to, name, request, pid, mode, moving: command.flag("moving") })
        }
        "write" => {
            let (name, ballot) = (command.word().to_owned(), ballot(command.word()));
            let (through, last) = (command.flag("through"), command.flag("last"));
            frame(Write { to, name, ballot, through, last, state })
        }
        "fence" => frame(Fence { to, next: group(command.number()) }),
        "list" => {
            let moving = command.flag("moving");
            frame(List { to, prefix: String::new(), after: None, moving })
        }
        "install" => {
            let name = command.word().to_owned();
            frame(Install { storage, group: group(epoch), name, state })
        }
        "open" => frame(Open { storage, group: group(epoch) }),
        "status" => frame(Status {}),
        "junk" => {
            let kind = command.number() as u16;
            Frame { kind, target: ACCEPTOR, head: Bytes::from_static(b"junk"), payloads: Vec::new() }
        }
        _ => return None,
    })
}

fn message(f: Frame) -> String {
    match f.kind {
        PrepReply::KIND => {
            let reply = PrepReply::from_frame(f).unwrap();
            match &reply.answer {
                PrepAnswer::Ack { ballot, voted } => {
                    let ballot = ballot.as_ref().map_or("read".into(), show);
                    format!("ack {ballot}, voted {}{}", show(voted), show_state(&reply.state))
                }
                PrepAnswer::Nack { promised } => format!("nack, promised {}", show(promised)),
                PrepAnswer::Rejected { why } => show_reject(why),
            }
        }
        WriteReply::KIND => match WriteReply::from_frame(f).unwrap().answer {
            WriteAnswer::Ack { next } => format!("ack, next {}", show(&next)),
            WriteAnswer::Nack { promised, voted } => {
                format!("nack, promised {}, voted {}", show(&promised), show(&voted))
            }
            WriteAnswer::Rejected { why } => show_reject(&why),
        },
        DoneReply::KIND => match DoneReply::from_frame(f).unwrap().answer {
            DoneAnswer::Done {} => "done".into(),
            DoneAnswer::Rejected { why } => show_reject(&why),
        },
        ListReply::KIND => match ListReply::from_frame(f).unwrap().answer {
            ListAnswer::Names { names, .. } => {
                names.iter().fold("names".to_owned(), |s, (name, voted)| s + " " + name + "@" + &show(voted))
            }
            ListAnswer::Rejected { why } => show_reject(&why),
        },
        StatusReply::KIND => {
            let serving = StatusReply::from_frame(f).unwrap().serving;
            format!("serves {}", show_group(serving.as_ref()))
        }
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn record(r: &Record) -> String {
    let state = show_state(&r.payload);
    let of = |epoch: u64| if epoch == 1 { String::new() } else { format!(" in group {epoch}") };
    match Fact::from_bytes(r.head.clone()).unwrap() {
        Fact::First { group } => format!("first group {}", group.epoch),
        Fact::Promised { epoch, name, ballot } => format!("{name} promised {}{}", show(&ballot), of(epoch)),
        Fact::Voted { epoch, name, ballot, last } => {
            let last = if last { ", last" } else { "" };
            format!("{name} voted {}{state}{last}{}", show(&ballot), of(epoch))
        }
        Fact::Fenced { next, .. } => format!("fenced for group {}", next.epoch),
        Fact::Installed { group, name } => format!("{name} installed{state}{}", of(group.epoch)),
        Fact::Opened { group } => format!("opened group {}", group.epoch),
    }
}

fn show(b: &Ballot) -> String {
    format!("{}.{}", b.n, b.pid.life.0)
}

fn show_state(state: &Bytes) -> String {
    match state.len() {
        0 => String::new(),
        1..=20 => format!(" {}", String::from_utf8_lossy(state)),
        length => format!(" {length} bytes"),
    }
}

fn show_group(group: Option<&GroupConfig>) -> String {
    group.map_or("no group".to_owned(), |group| format!("group {}", group.epoch))
}

fn show_reject(why: &Reject) -> String {
    match why {
        Reject::WrongIdentity { mine } => format!("wrong identity, this is disk {}", mine.0),
        Reject::WrongEpoch { known } => format!("wrong epoch, knows {}", show_group(known.as_ref())),
        Reject::Moved { to } => format!("moved to group {}", to.epoch),
        Reject::Fenced { next } => format!("fenced for group {}", next.epoch),
        Reject::NotOpen {} => "not open".into(),
        Reject::Full {} => "full".into(),
        Reject::StorageFailed {} => "storage failed".into(),
        Reject::Invalid {} => "invalid".into(),
    }
}
