//! Traces of a single acceptor: what it answers, what it journals before, what the answer reveals.
//!
//! A line is `request => answer +facts @revealed`: `+facts` records staged by it, `@revealed` the record that must be durable
//! before the answer leaves. Ballots are `round.proposer`, 0.0 is zero, 1.0 genesis. `restart N` recovers from the records up
//! to N, `checkpoint` from a checkpoint of everything so far. `piece` takes a first piece of that, and then one more at a time; a
//! `checkpoint` after it takes the rest, and only what came after the first piece is replayed over it; or nothing, with `alone`, as if that
//! had been lost.
#![allow(clippy::unwrap_used)]

use atoll_core::testing::{Mutant, set_mutant};
use atoll_core::{Decode, Effects, Incarnation, Loc, Lsn, NodeId, Record, Role, StorageId, Stored, Tick};
use atoll_rmwpaxos::message::*;
use atoll_rmwpaxos::{Acceptor, Ballot, GroupConfig, Member, ProposerId};
use bytes::Bytes;

const STORAGE: StorageId = StorageId(7);

fn group(epoch: u64) -> GroupConfig {
    let other = Member { node: NodeId(2), storage: StorageId(2) };
    GroupConfig::new(epoch, vec![Member { node: NodeId(1), storage: STORAGE }, other]).unwrap()
}

struct Trace {
    acceptor: Acceptor,
    effects: Effects,
    records: Vec<(Lsn, Record)>,
    /// What the checkpoint covers whose pieces are being taken.
    covers: Option<Lsn>,
}

fn ballot(text: &str) -> Ballot {
    let (n, p) = text.split_once('.').unwrap();
    let p: u64 = p.parse().unwrap();
    Ballot { n: n.parse().unwrap(), pid: ProposerId { node: NodeId(p as u32), life: Incarnation(p) } }
}

fn show(b: &Ballot) -> String {
    format!("{}.{}", b.n, b.pid.life.0)
}

fn show_reject(why: &Reject) -> String {
    match why {
        Reject::WrongIdentity { mine } => format!("wrong-identity {}", mine.0),
        Reject::WrongEpoch { known } => format!("wrong-epoch {}", known.as_ref().map_or(0, |g| g.epoch)),
        Reject::Moved { to } => format!("moved {}", to.epoch),
        Reject::Fenced { next } => format!("fenced {}", next.epoch),
        Reject::NotOpen {} => "not-open".into(),
        Reject::Full {} => "full".into(),
        Reject::StorageFailed {} => "storage-failed".into(),
        Reject::Invalid {} => "invalid".into(),
    }
}

fn show_done(reply: &DoneReply) -> String {
    match &reply.answer {
        DoneAnswer::Done {} => "done".into(),
        DoneAnswer::Rejected { why } => show_reject(why),
    }
}

impl Trace {
    fn new() -> Self {
        set_mutant(Mutant::NONE);
        Trace {
            acceptor: Self::fresh(),
            effects: Self::detached(Lsn::NONE),
            records: Vec::new(),
            covers: None,
        }
    }

    fn fresh() -> Acceptor {
        Acceptor::new(NodeId(1), STORAGE, Some(group(1))).with_capacity_bytes(950)
    }

    fn detached(durable: Lsn) -> Effects {
        Effects::detached(NodeId(1), atoll_rmwpaxos::roles::ACCEPTOR, durable)
    }

    fn restart(&mut self, upto: u64) {
        self.records.retain(|(lsn, _)| lsn.0 <= upto);
        self.acceptor = Self::fresh();
        // Twice: replaying a fact again changes nothing.
        for _ in 0..2 {
            for (lsn, record) in &self.records {
                let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
                self.acceptor.recover(Stored { lsn: *lsn, loc, record: record.clone() }).unwrap();
            }
        }
        self.acceptor.recovered();
        self.effects = Self::detached(Lsn(upto));
    }

    fn checkpoint(&mut self, alone: bool) {
        let image = self.acceptor.checkpoint(usize::MAX).unwrap();
        self.acceptor = Self::fresh();
        self.acceptor.restore(image).unwrap();
        // Facts that it covers come again, unless it was taken in pieces.
        let last = self.records.last().map_or(0, |(lsn, _)| lsn.0);
        let covers = self.covers.take().unwrap_or(Lsn::NONE);
        for (lsn, record) in self.records.iter().filter(|(lsn, _)| *lsn > covers && !alone) {
            let loc = Loc { segment: 1, offset_bytes: 0, len_bytes: 1 };
            self.acceptor.recover(Stored { lsn: *lsn, loc, record: record.clone() }).unwrap();
        }
        self.acceptor.recovered();
        self.effects = Self::detached(Lsn(last));
    }

    fn step(&mut self, request: &str) -> String {
        let words: Vec<&str> = request.split_whitespace().collect();
        let flag = |name: &str| words.contains(&name);
        let after = |name: &str| words.iter().position(|w| *w == name).map(|i| words[i + 1]);
        let epoch = after("epoch").map_or(1, |e| e.parse().unwrap());
        let storage = after("as").map_or(STORAGE, |s| StorageId(s.parse().unwrap()));
        let to = Address { epoch, mark: group(epoch).mark(), storage };
        let name = words.get(1).copied().unwrap_or_default().to_owned();
        let state = after("state").map_or(Bytes::new(), |s| Bytes::copy_from_slice(s.as_bytes()));
        let out = &mut self.effects;
        let (answer, reveals) = match words[0] {
            "restart" => {
                self.restart(words[1].parse().unwrap());
                return String::new();
            }
            "checkpoint" => {
                self.checkpoint(flag("alone"));
                return String::new();
            }
            "piece" => {
                self.covers.get_or_insert(self.records.last().map_or(Lsn::NONE, |(lsn, _)| *lsn));
                assert!(self.acceptor.checkpoint(1).is_none(), "there is more");
                return String::new();
            }
            "prep" => {
                let mode = match words[2] {
                    "read" => Mode::ReadOnly {},
                    "inc" => Mode::Incremental {},
                    b => Mode::Explicit { ballot: ballot(b) },
                };
                let pid = ballot(&format!("0.{}", after("by").unwrap_or("0"))).pid;
                let request = after("#").map_or(0, |r| r.parse().unwrap());
                let m = Prep { to, name, request, pid, mode, moving: flag("moving") };
                let (reply, reveals) = self.acceptor.prep(&m, out);
                let shown = match &reply.answer {
                    PrepAnswer::Ack { ballot, voted } => {
                        let ballot = ballot.as_ref().map_or("read".into(), show);
                        format!(
                            "ack {ballot} voted {} {}",
                            show(voted),
                            String::from_utf8_lossy(&reply.state)
                        )
                    }
                    PrepAnswer::Nack { promised } => format!("nack {}", show(promised)),
                    PrepAnswer::Rejected { why } => show_reject(why),
                };
                (shown, reveals)
            }
            "write" => {
                let last = flag("last");
                let m = Write { to, name, ballot: ballot(words[2]), through: false, last, state };
                let (reply, reveals) = self.acceptor.write(&m, out);
                let shown = match &reply.answer {
                    WriteAnswer::Ack { next } => format!("ack {}", show(next)),
                    WriteAnswer::Nack { promised, voted } => {
                        format!("nack {} {}", show(promised), show(voted))
                    }
                    WriteAnswer::Rejected { why } => show_reject(why),
                };
                (shown, reveals)
            }
            "fence" => {
                let next = group(after("next").unwrap().parse().unwrap());
                let (reply, reveals) = self.acceptor.fence(&Fence { to, next }, out);
                (show_done(&reply), reveals)
            }
            "list" => {
                let m = List { to, prefix: String::new(), after: None, moving: flag("moving") };
                let (reply, reveals) = self.acceptor.list(&m, out);
                let shown = match &reply.answer {
                    ListAnswer::Names { names, .. } => {
                        names.iter().map(|(n, b)| format!("{n}@{}", show(b))).collect::<Vec<_>>().join(" ")
                    }
                    ListAnswer::Rejected { why } => show_reject(why),
                };
                (shown, reveals)
            }
            "install" => {
                let m = Install { storage, group: group(epoch), name, state };
                let (reply, reveals) = self.acceptor.install(&m, out);
                (show_done(&reply), reveals)
            }
            "open" => {
                let (reply, reveals) = self.acceptor.open(&Open { storage, group: group(epoch) }, out);
                (show_done(&reply), reveals)
            }
            other => panic!("{other}?"),
        };
        let staged = out.take_staged();
        let count = staged.len();
        for (_, record) in &staged {
            Fact::from_bytes(record.head.clone()).unwrap();
        }
        self.records.extend(staged);
        format!("{} +{count} @{}", answer.trim_end(), reveals.0)
    }
}

fn holds(trace: &str) {
    let mut t = Trace::new();
    for (i, line) in
        trace.lines().map(str::trim).enumerate().filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
    {
        let (request, expected) = line.split_once("=>").map_or((line, ""), |(r, e)| (r.trim(), e.trim()));
        assert_eq!(t.step(request), expected, "line {}: {request}", i + 1);
    }
}

#[test]
fn phase_one_and_two() {
    holds(
        "
        # A read writes nothing, not even the register.
        prep x read                 => ack read voted 0.0 +0 @0
        # The first fact brings the group with it: records 1 and 2.
        prep x inc by 1 # 1         => ack 1.1 voted 0.0 +2 @2
        # T15: a duplicate gets the same ballot, and reveals the same promise.
        prep x inc by 1 # 1         => ack 1.1 voted 0.0 +0 @2
        prep x inc by 2 # 1         => ack 2.2 voted 0.0 +1 @3
        # The first one's ballot is gone by now.
        write x 1.1 state a         => nack 2.2 0.0 +0 @3
        write x 2.2 state b         => ack 3.2 +1 @4
        # rmw-T3: a duplicate is acknowledged, although the promise is above it; and waits for the vote (X1).
        write x 2.2 state b         => ack 3.2 +0 @4
        prep x read                 => ack read voted 2.2 b +0 @4
        # The token: the next ballot of the same proposer, without a prepare.
        write x 3.2 state c         => ack 4.2 +1 @5
        # A late duplicate of an older write.
        write x 2.2 state b         => nack 4.2 3.2 +0 @5
        # T15: a duplicate whose ballot was used up.
        prep x inc by 2 # 1         => nack 4.2 +0 @5
        ",
    );
}

#[test]
fn explicit_ballots_compare_as_a_whole() {
    holds(
        "
        prep x 5.2                  => ack 5.2 voted 0.0 +2 @2
        # T6: the same number, another proposer.
        prep x 5.1                  => nack 5.2 +0 @2
        prep x 5.3                  => ack 5.3 voted 0.0 +1 @3
        # The same request again.
        prep x 5.3                  => ack 5.3 voted 0.0 +0 @3
        write x 5.2 state a         => nack 5.3 0.0 +0 @3
        # A laggard takes a vote that it promised nothing for.
        write x 9.1 state b         => ack 10.1 +1 @4
        prep x 10.1                 => ack 10.1 voted 9.1 b +0 @4
        prep x 9.1                  => nack 10.1 +0 @4
        prep x inc by 4 # 1         => ack 11.4 voted 9.1 b +1 @5
        # A read does not wait for a promise, only for the vote that it shows.
        prep x read                 => ack read voted 9.1 b +0 @4
        prep x 0.0                  => invalid +0 @1
        prep x 9223372036854775808.1 => invalid +0 @1
        write x 0.0 state a         => invalid +0 @1
        ",
    );
}

#[test]
fn a_restart_resumes_from_what_is_durable() {
    holds(
        "
        prep x inc by 1 # 1         => ack 1.1 voted 0.0 +2 @2
        write x 1.1 state a         => ack 2.1 +1 @3
        write x 2.1 state b         => ack 3.1 +1 @4
        # The last vote was not synced, so nobody saw it.
        restart 3
        prep x read                 => ack read voted 1.1 a +0 @0
        # T15's memory is gone: a duplicate gets a new ballot, which is safe.
        prep x inc by 1 # 1         => ack 3.1 voted 1.1 a +1 @4
        checkpoint
        prep x read                 => ack read voted 1.1 a +0 @0
        write x 3.1 state c         => ack 4.1 +1 @5
        restart 5
        write x 3.1 state c         => ack 4.1 +0 @0
        prep y inc by 1 # 9         => ack 1.1 voted 0.0 +1 @6
        ",
    );
}

#[test]
fn only_its_own_identity_and_group_are_answered() {
    holds(
        "
        # T9: a group that names another disk of this node.
        prep x inc by 1 # 1 as 6    => wrong-identity 7 +0 @0
        write x 1.1 state a as 6    => wrong-identity 7 +0 @0
        open x as 6 epoch 2         => wrong-identity 7 +0 @0
        prep x read epoch 2         => wrong-epoch 1 +0 @0
        install x epoch 2 state a   => done +2 @2
        prep x read epoch 2         => not-open +0 @1
        prep x read                 => ack read voted 0.0 +0 @1
        open x epoch 2              => done +1 @3
        open x epoch 2              => done +0 @3
        prep x read                 => moved 2 +0 @3
        prep x read epoch 2         => ack read voted 1.0 a +0 @3
        prep x inc by 1 # 1 epoch 2 => ack 2.1 voted 1.0 a +1 @4
        # Complete is complete.
        install y epoch 2 state b   => moved 2 +0 @3
        restart 4
        prep x read                 => moved 2 +0 @0
        prep x read epoch 2         => ack read voted 1.0 a +0 @0
        checkpoint
        prep x read                 => moved 2 +0 @0
        prep x inc by 1 # 2 epoch 2 => ack 3.1 voted 1.0 a +1 @5
        ",
    );
}

#[test]
fn a_fence_shuts_out_what_was_never_voted_for() {
    holds(
        "
        write x 1.1 state a         => ack 2.1 +2 @2
        prep y inc by 1 # 1         => ack 1.1 voted 0.0 +1 @3
        # Before the fence the list is for readers only; after it for the mover only.
        list                        => x@1.1 +0 @2
        list moving                 => invalid +0 @1
        fence next 3                => invalid +0 @1
        fence next 2                => done +1 @4
        fence next 2                => done +0 @4
        list                        => fenced 2 +0 @4
        list moving                 => x@1.1 +0 @4
        # Known: goes on. Promised only, or unknown: shut out, reads as well.
        write x 2.1 state b         => ack 3.1 +1 @5
        write y 1.1 state c         => fenced 2 +0 @4
        prep y read                 => fenced 2 +0 @4
        prep z inc by 1 # 1         => fenced 2 +0 @4
        # A mover passes with final values, and only with those.
        prep y inc by 3 # 1 moving  => ack 2.3 voted 0.0 +1 @6
        prep y read                 => fenced 2 +0 @4
        write y 2.3 state d         => fenced 2 +0 @4
        write y 2.3 state d last    => ack 3.3 +1 @7
        # A final vote opens no door for others: their majority would be complete without a fenced acceptor that knows.
        write y 9.9 state e         => fenced 2 +0 @4
        prep y read                 => fenced 2 +0 @4
        prep y inc by 9 # 1         => fenced 2 +0 @4
        prep y inc by 9 # 2 moving  => ack 4.9 voted 2.3 d +1 @8
        restart 8
        write y 9.9 state e         => fenced 2 +0 @0
        prep z read                 => fenced 2 +0 @0
        checkpoint
        prep z read                 => fenced 2 +0 @0
        ",
    );
}

#[test]
fn a_checkpoint_is_taken_in_pieces() {
    holds(
        "
        write a 1.1 state a         => ack 2.1 +2 @2
        write b 1.1 state b         => ack 2.1 +1 @3
        write c 1.1 state c         => ack 2.1 +1 @4
        piece
        piece
        # What the walk has passed, what it has not, and what is new in front of it and behind.
        write a 2.1 state aa        => ack 3.1 +1 @5
        write c 2.1 state cc        => ack 3.1 +1 @6
        write aa 1.1 state n        => ack 2.1 +1 @7
        write d 1.1 state d         => ack 2.1 +1 @8
        checkpoint
        prep a read                 => ack read voted 2.1 aa +0 @0
        prep b read                 => ack read voted 1.1 b +0 @0
        prep c read                 => ack read voted 2.1 cc +0 @0
        prep aa read                => ack read voted 1.1 n +0 @0
        prep d read                 => ack read voted 1.1 d +0 @0
        # A group that changes meanwhile does not fit what was taken of it: from the start.
        piece
        piece
        install x epoch 2 state a   => done +1 @9
        piece
        open x epoch 2              => done +1 @10
        checkpoint alone
        prep a read                 => moved 2 +0 @0
        prep x read epoch 2         => ack read voted 1.0 a +0 @0
        ",
    );
}

#[test]
fn room_is_bounded() {
    let long = "v".repeat(600);
    holds(&format!(
        "
        write x 1.1 state {long}    => ack 2.1 +2 @2
        write y 1.1 state {long}    => full +0 @1
        write y 1.1 state short     => ack 2.1 +1 @3
        # Replacing is not adding.
        write x 2.1 state {long}    => ack 3.1 +1 @4
        prep z inc by 1 # 1         => full +0 @1
        # A hand-over must get out of a group that is full.
        write z 1.1 state final last => ack 2.1 +1 @5
        "
    ));
}

#[test]
fn a_wiped_node_is_in_no_group() {
    let mut acceptor = Acceptor::new(NodeId(1), StorageId(8), Some(group(1)));
    let mut out = Trace::detached(Lsn::NONE);
    let to = Address { epoch: 1, mark: group(1).mark(), storage: StorageId(8) };
    let m = Prep {
        to,
        name: "x".into(),
        request: 1,
        pid: ProposerId::NOBODY,
        mode: Mode::ReadOnly {},
        moving: false,
    };
    let (reply, _) = acceptor.prep(&m, &mut out);
    assert_eq!(reply.answer, PrepAnswer::Rejected { why: Reject::WrongEpoch { known: None } });
    assert_eq!(acceptor.known_group().get(), None);
}

#[test]
fn what_is_no_message_is_refused_and_changes_nothing() {
    use atoll_core::{Caller, Class, Frame};
    let mut acceptor = Trace::fresh();
    let mut out = Trace::detached(Lsn::NONE);
    let from = Caller { node: NodeId(2), request: Some(1), class: Class::Control };
    for kind in [0, 200, 202, 204, 206, 208, 210, 299] {
        for head in
            [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"]
        {
            let head = Bytes::copy_from_slice(head);
            let frame = Frame { kind, target: atoll_rmwpaxos::roles::ACCEPTOR, head, payloads: Vec::new() };
            acceptor.on_frame(Tick(0), from, frame, &mut out);
            let frames = out.take_frames();
            assert_eq!(frames.len(), 1, "kind {kind}");
            assert_eq!(frames[0].2.kind, 1, "kind {kind} is answered with a refusal");
        }
    }
    assert!(out.take_staged().is_empty());
}
