//! Traces of a single acceptor (`traces/*.txt`): what it answers, which cells it writes first, and what the answer waits for.
//! `ATOLL_REWRITE_TRACES=1` rewrites them, see `atoll_core::traces`.
//!
//! `acceptor` starts a new one, on node 1 with disk 7 and life 8; the other commands are the protocol's messages, and those of
//! `atoll_core::traces::LoneRole`. The only group has the nodes 1, 2 and 3. Ballots are `number.proposer`. `put` and `delete` in a write
//! make a state whose clock is the ballot's number.

use std::path::{Path, PathBuf};

use atoll_contract::keyspace::{Durability, KeyspaceId, Replica};
use atoll_contract::{ClientId, OpId};
use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::traces::{self, Command, LoneRole, Wording};
use atoll_core::{
    Encode, Frame, Incarnation, Message, NodeCore, NodeId, Record, Refused, Role, StorageId, roles::NONE,
};
use atoll_in_place::message::*;
use atoll_in_place::mutants::{IN_PLACE_T3, IN_PLACE_T9, IN_PLACE_T11, IN_PLACE_UNSEALED};
use atoll_in_place::roles::ACCEPTOR;
use atoll_in_place::{Acceptor, AcceptorOptions, Ballot, Content, Done, KeyState, ProposerId};
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

/// The traces are sensitive: every mutant of an acceptor alone changes one of them.
#[test]
fn known_bugs_show() {
    for bug in [IN_PLACE_T3, IN_PLACE_T9, IN_PLACE_T11, IN_PLACE_UNSEALED] {
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
    let capacity_bytes = command.number_of("capacity", 1_000_000) as usize;
    let make = move || -> Box<dyn Role> {
        let env = NodeCore::new(NODE, Incarnation(LIFE), 1).env();
        Box::new(Acceptor::new(env, StorageId(DISK.into()), AcceptorOptions { capacity_bytes }))
    };
    LoneRole::new(NODE, ACCEPTOR, Wording { message, record }, make)
}

fn group() -> GroupKey {
    GroupKey { keyspace: KeyspaceId(5), epoch: 1, shard: 0 }
}

fn config(durability: Durability, identity: u64) -> GroupConfig {
    let replica = |node, identity: u64| Replica { node: NodeId(node), identity: identity.into() };
    let replicas = vec![replica(1, identity), replica(2, 2), replica(3, 3)];
    GroupConfig { key: group(), durability, shards: 1, replicas }
}

fn ballot(text: &str) -> Ballot {
    let (n, proposer) = text.split_once('.').unwrap();
    Ballot { n: n.parse().unwrap(), pid: pid(proposer.parse().unwrap()) }
}

fn pid(proposer: u64) -> ProposerId {
    ProposerId { node: NodeId(proposer as u32), life: proposer }
}

fn frame(message: impl Message) -> Frame {
    message.into_frame(NONE)
}

fn text(word: &str) -> Bytes {
    Bytes::copy_from_slice(word.as_bytes())
}

/// The state that a write of this ballot carries.
fn state(ballot: Ballot, content: Content) -> Bytes {
    let op = OpId { client: ClientId(1), seq: ballot.n };
    let done = vec![Done { op, clock: ballot.n, number: 0, refused: false }];
    let (clock, version) = (ballot.n, ballot.n);
    KeyState { version, forgotten: 0, content, done, ..KeyState::absent(clock) }.to_bytes()
}

/// Returns the protocol message of a command; None if the command is not one.
fn request(name: &str, command: &mut Command) -> Option<Frame> {
    let identity = command.number_of("identity", DISK);
    let ask = |key: Bytes, step| {
        frame(Ask { items: vec![Request { group: group(), identity: identity.into(), key, step }] })
    };
    Some(match name {
        "create" => {
            let memory = command.flag("memory");
            let durability = if memory { Durability::Memory } else { Durability::Disk };
            frame(Create { groups: vec![config(durability, identity)] })
        }
        "drop" => frame(DropKeyspace { keyspace: KeyspaceId(5), epoch: 1 }),
        "prep" => {
            let key = text(command.word());
            let (mut by, request) = (pid(command.number_of("by", 2)), command.number_of("request", 0));
            let mode = match command.word() {
                "read" => Mode::ReadOnly {},
                "inc" => Mode::Incremental {},
                explicit => {
                    by = ballot(explicit).pid;
                    Mode::Explicit { ballot: ballot(explicit) }
                }
            };
            ask(key, Step::Prep { pid: by, request, mode })
        }
        "write" => {
            let (key, ballot) = (text(command.word()), ballot(command.word()));
            let through = command.flag("through");
            let content = match command.word() {
                "delete" => Content::Absent {},
                value => match command.number_of("bytes", 0) {
                    0 => Content::Register { value: text(value) },
                    n => Content::Register { value: text(&value.repeat(n as usize)) },
                },
            };
            ask(key, Step::Write { ballot, through, state: state(ballot, content) })
        }
        "nonsense" => {
            let (key, ballot) = (text(command.word()), ballot(command.word()));
            ask(key, Step::Write { ballot, through: false, state: text("nonsense") })
        }
        "forget" => {
            let (key, ballot) = (text(command.word()), ballot(command.word()));
            ask(key, Step::Forget { ballot })
        }
        "list" => {
            let after = command.option("after").map(text);
            let limit = command.number_of("limit", 10) as u32;
            frame(List { group: group(), identity: identity.into(), prefix: Bytes::new(), after, limit })
        }
        "watch" => {
            let (key, seen) = (text(command.word()), ballot(command.word()));
            let for_ms = command.number_of("ms", 1000) as u32;
            frame(Watch { group: group(), identity: identity.into(), key, seen, for_ms })
        }
        "seal" => frame(Seal { config: config(Durability::Disk, identity) }),
        "fetch" => {
            let after = command.option("after").map(text);
            frame(Fetch { group: group(), identity: identity.into(), after })
        }
        "raise" => {
            let clock = command.number();
            frame(Raise { config: config(Durability::Disk, identity), clock })
        }
        "retire" => frame(Retire { config: config(Durability::Disk, identity) }),
        "junk" => {
            let kind = command.number() as u16;
            Frame { kind, target: ACCEPTOR, head: Bytes::from_static(b"junk"), payloads: Vec::new() }
        }
        _ => return None,
    })
}

fn content(state: &Bytes) -> String {
    match KeyState::read(state, 0) {
        Ok(state) => match state.content {
            Content::Absent {} if state.clock == 0 => "nothing".to_owned(),
            Content::Absent {} => "a tombstone".to_owned(),
            Content::Register { value } if value.len() > 10 => format!("{} bytes", value.len()),
            Content::Register { value } => String::from_utf8_lossy(&value).into_owned(),
            other => format!("{other:?}"),
        },
        Err(e) => format!("unreadable: {e}"),
    }
}

fn short(ballot: Ballot) -> String {
    format!("{}.{}", ballot.n, ballot.pid.node)
}

fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Promise { ballot, voted, clock, state } => {
            let promise = ballot.map_or("shows".to_owned(), |b| format!("promises {}, shows", short(b)));
            let above = if *clock > 0 { format!(", above clock {clock}") } else { String::new() };
            format!("{promise} {} in {}{above}", content(state), short(*voted))
        }
        Answer::Vote { next } => format!("voted, promises {}", short(*next)),
        Answer::Nack { promised, voted } => {
            format!("nack, promised {}, voted {}", short(*promised), short(*voted))
        }
        Answer::Forgotten {} => "forgotten".to_owned(),
        Answer::Rejected { why } => format!("rejected: {why:?}"),
    }
}

fn message(f: Frame) -> String {
    match f.kind {
        Answers::KIND => {
            let m = Answers::from_frame(f).unwrap();
            m.items.iter().map(answer).collect::<Vec<_>>().join("; ")
        }
        Created::KIND => format!("{:?}", Created::from_frame(f).unwrap()),
        Keys::KIND => {
            let m = Keys::from_frame(f).unwrap();
            let key = |listed: &Listed| {
                let version = listed.version.map_or("deleted".to_owned(), |v| v.to_string());
                format!("{}@{version} in {}", String::from_utf8_lossy(&listed.key), short(listed.voted))
            };
            let keys: Vec<String> = m.keys.iter().map(key).collect();
            let rejected = m.rejected.map(|why| format!("rejected: {why:?}")).unwrap_or_default();
            format!("[{}]{}{rejected}", keys.join(", "), if m.more { " and more" } else { "" })
        }
        Sealed::KIND => format!("{:?}", Sealed::from_frame(f).unwrap()),
        Fetched::KIND => {
            let m = Fetched::from_frame(f).unwrap();
            let vote = |vote: &Vote| {
                format!(
                    "{}: {} in {}",
                    String::from_utf8_lossy(&vote.key),
                    content(&vote.state),
                    short(vote.voted)
                )
            };
            let votes: Vec<String> = m.votes.iter().map(vote).collect();
            let rejected = m.rejected.map(|why| format!("rejected: {why:?}")).unwrap_or_default();
            format!("[{}], clock {}{rejected}", votes.join("; "), m.clock)
        }
        Watched::KIND => format!("{:?}", Watched::from_frame(f).unwrap()),
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => panic!("no wording for messages of kind {kind}"),
    }
}

fn record(_: &Record) -> String {
    panic!("an acceptor writes no records")
}
