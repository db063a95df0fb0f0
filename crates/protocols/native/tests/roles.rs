//! Traces of single roles: what goes in, what is staged, what comes out, and what each answer waits for.
#![allow(clippy::unwrap_used)]

mod cluster;

use std::time::Duration;

use atoll_contract::*;
use atoll_core::*;
use atoll_loglet_store::handle_order::HandlePlace;
use atoll_native::message::*;
use atoll_native::{LogServer, LogServerOptions, NativeConfig, Sequencer, SequencerOptions};
use bytes::Bytes;
use cluster::batch;

const ID: LogletId = LogletId(5);
const LIFE: Incarnation = Incarnation(9);
const NODE: NodeId = NodeId(1);

fn config() -> Bytes {
    let servers = (1..=3).map(|n| (NodeId(n), StorageId(n.into()))).collect();
    NativeConfig::new(servers, (NODE, LIFE)).unwrap().to_bytes()
}

fn env() -> Env {
    NodeCore::new(NODE, LIFE, 1).env()
}

/// One role, fed by hand.
struct Trace<R> {
    role: R,
    out: Effects,
    now: Tick,
    durable: Lsn,
}

impl<R: Role> Trace<R> {
    fn new(role: R, kind: RoleKind) -> Self {
        Trace { role, out: Effects::detached(NODE, kind, Lsn(10)), now: Tick(1000), durable: Lsn(10) }
    }

    fn give<M: Message>(&mut self, from: u32, request: Option<u64>, message: M) {
        let caller = Caller { node: NodeId(from), request, class: Class::Data };
        self.role.on_frame(self.now, caller, message.into_frame(roles::NONE), &mut self.out);
    }

    /// Everything staged becomes durable, in one batch.
    fn sync(&mut self) {
        let staged = self.out.take_staged();
        let loc = |lsn: Lsn| Loc { segment: 1, offset_bytes: lsn.0 as u32, len_bytes: 1 };
        let mine: Vec<_> = staged.iter().map(|(lsn, _)| (*lsn, loc(*lsn))).collect();
        if let Some((last, _)) = mine.last() {
            self.durable = *last;
            self.role.on_durable(self.now, *last, &mine, &mut self.out);
        }
    }

    /// The end of the turn: what was sent, as (receiver, request, words, whether it leaves now).
    fn turn(&mut self) -> Vec<String> {
        self.role.flush(self.now, &mut self.out);
        let words = |(to, request, frame, reveals): (NodeId, Option<u64>, Frame, Lsn)| {
            let held = if reveals > self.durable { " held" } else { "" };
            let request = request.map(|r| format!("#{r}")).unwrap_or_default();
            format!("{to}{request} {}{held}", say(frame))
        };
        self.out.take_frames().into_iter().map(words).collect()
    }
}

fn state(s: &ServerState) -> String {
    let sealed = if s.sealed { "sealed" } else { "open" };
    format!("{sealed} lt={} kt={} trim={}", s.local_tail, s.known_tail, s.trim)
}

fn word(v: &Verdict) -> String {
    format!("{v:?}").split(' ').next().unwrap().to_owned()
}

fn say(f: Frame) -> String {
    match f.kind {
        StoredUpTo::KIND => {
            let m = StoredUpTo::from_frame(f).unwrap();
            format!("Stored {} r{} next={} {}", word(&m.verdict), m.round, m.expects, state(&m.state))
        }
        Answer::KIND => {
            let m = Answer::from_frame(f).unwrap();
            format!("{} {}", word(&m.verdict), state(&m.state))
        }
        Store::KIND => {
            let m = Store::from_frame(f).unwrap();
            let config = if m.config.is_empty() { "" } else { " config" };
            format!("Store {}+{} r{} kt={}{config}", m.first, m.count, m.round, m.known_tail)
        }
        Advance::KIND => {
            let m = Advance::from_frame(f).unwrap();
            format!("Advance {}{}", m.known_tail, if m.confirm { " confirm" } else { "" })
        }
        Appended::KIND => {
            let m = Appended::from_frame(f).unwrap();
            format!("{:?} kt={}", m.outcome, m.known_tail).replace("Offset", "")
        }
        Refused::KIND => format!("Refused: {}", Refused::from_frame(f).unwrap().reason),
        kind => format!("kind {kind}"),
    }
}

fn server() -> Trace<LogServer> {
    let role = LogServer::new(env(), StorageId(1), LogServerOptions::default());
    Trace::new(role, atoll_native::roles::LOG_SERVER)
}

fn store(first: u64, texts: &[&str], known_tail: u64) -> Store {
    let batch = batch(1, first + 1, texts);
    Store {
        loglet: ID,
        config: config(),
        life: LIFE,
        round: 1,
        first: Offset(first),
        count: texts.len() as u32,
        known_tail: Offset(known_tail),
        batch: batch.bytes().clone(),
    }
}

fn repair(first: u64, texts: &[&str], known_tail: u64) -> Repair {
    let batch = batch(1, first + 1, texts);
    Repair {
        loglet: ID,
        config: config(),
        first: Offset(first),
        count: texts.len() as u32,
        known_tail: Offset(known_tail),
        batch: batch.bytes().clone(),
    }
}

/// Store 2, 4, 5 (native §4): in order, staged before durable, once.
#[test]
fn stores_in_order_are_told_when_durable() {
    let mut t = server();
    t.give(1, None, store(0, &["a", "b"], 0));
    t.give(1, None, store(2, &["c"], 0));
    t.give(1, None, store(0, &["a", "b"], 0));
    assert_eq!(t.turn(), [] as [&str; 0], "nothing is told of what is only staged");
    t.sync();
    assert_eq!(t.turn(), ["1 Stored Done r1 next=3 open lt=3 kt=0 trim=0"], "one cumulative word per turn");
    t.give(1, None, store(0, &["a", "b"], 0));
    assert_eq!(t.turn(), ["1 Stored Done r1 next=3 open lt=3 kt=0 trim=0"], "again: told again");
    assert!(t.out.take_staged().is_empty(), "and not stored again");
    t.give(1, None, store(4, &["e"], 3));
    assert_eq!(t.turn(), ["1 Stored OutOfOrder r1 next=3 open lt=3 kt=3 trim=0"]);
    t.give(1, None, store(4, &["e"], 4));
    t.sync();
    assert_eq!(t.turn(), ["1 Stored Done r1 next=5 open lt=5 kt=4 trim=0"], "all of the gap is committed");
    t.give(1, None, store(3, &["d"], 4));
    assert_eq!(
        t.turn(),
        ["1 Stored OutOfOrder r1 next=5 open lt=5 kt=4 trim=0"],
        "never Stored for what is not there"
    );
    t.give(2, Some(1), Info { loglet: ID, config: Bytes::new() });
    assert_eq!(t.turn(), ["2#1 Done open lt=5 kt=4 trim=0"]);
}

/// native-T1, native-T4: a seal waits for the Stores before it, and nothing comes after it.
#[test]
fn a_seal_finishes_stores_and_ends_them() {
    let mut t = server();
    t.give(1, None, store(0, &["a"], 0));
    t.give(2, Some(1), Seal { loglet: ID, config: config() });
    t.give(2, Some(2), Info { loglet: ID, config: config() });
    t.give(1, None, store(1, &["b"], 0));
    t.give(3, Some(3), repair(1, &["b"], 0));
    assert_eq!(
        t.turn(),
        [
            "2#1 Done sealed lt=1 kt=0 trim=0 held",
            "2#2 Done open lt=0 kt=0 trim=0",
            "3#3 Sealing open lt=0 kt=0 trim=0",
            "1 Stored Sealed r1 next=1 sealed lt=1 kt=0 trim=0 held",
        ]
    );
    t.sync();
    assert_eq!(
        t.turn(),
        [
            "1 Stored Done r1 next=1 open lt=1 kt=0 trim=0",
            "1 Stored Sealed r1 next=1 sealed lt=1 kt=0 trim=0",
        ]
    );
    t.give(1, None, store(0, &["a"], 0));
    assert_eq!(
        t.turn(),
        ["1 Stored Sealed r1 next=1 sealed lt=1 kt=0 trim=0"],
        "T1: whatever is here already"
    );
    t.give(3, Some(4), repair(2, &["c"], 0));
    t.give(3, Some(5), repair(1, &["b"], 0));
    assert_eq!(t.turn(), ["3#4 OutOfOrder sealed lt=1 kt=0 trim=0", "3#5 Done sealed lt=1 kt=0 trim=0 held"]);
    t.sync();
    assert_eq!(
        t.turn(),
        ["1 Stored Sealed r1 next=2 sealed lt=2 kt=0 trim=0"],
        "a repair is no Stored (native-N6)"
    );
}

/// native-T6, native-T8, native-T10 and what is not known.
#[test]
fn strangers_are_refused() {
    let mut t = server();
    t.give(1, None, Store { config: Bytes::new(), ..store(0, &["a"], 0) });
    assert_eq!(t.turn(), ["1 Stored Unconfigured r1 next=0 open lt=0 kt=0 trim=0"]);
    t.give(1, None, Store { life: Incarnation(8), ..store(0, &["a"], 0) });
    assert_eq!(t.turn(), ["1 Stored WrongSequencer r1 next=0 open lt=0 kt=0 trim=0"]);
    t.give(2, None, store(0, &["a"], 0));
    assert_eq!(t.turn(), ["2 Stored WrongSequencer r1 next=0 open lt=0 kt=0 trim=0"]);
    t.give(2, Some(1), repair(0, &["a"], 0));
    assert_eq!(t.turn(), ["2#1 NotSealed open lt=0 kt=0 trim=0"]);
    let other = NativeConfig::new(vec![(NODE, StorageId(77))], (NODE, LIFE)).unwrap().to_bytes();
    t.give(2, Some(2), Info { loglet: LogletId(6), config: other });
    assert_eq!(t.turn(), ["2#2 WrongIdentity open lt=0 kt=0 trim=0"]);
    t.give(2, Some(3), Delete { loglet: ID });
    t.give(2, Some(4), Info { loglet: ID, config: config() });
    assert_eq!(t.turn(), ["2#3 Done open lt=0 kt=0 trim=0 held", "2#4 Gone open lt=0 kt=0 trim=0"]);
    t.give(
        2,
        Some(5),
        Fill { loglet: ID, first: Offset(0), count: 1, batch: batch(1, 1, &["a"]).bytes().clone() },
    );
    assert_eq!(t.turn(), ["2#5 WrongIdentity open lt=0 kt=0 trim=0"], "only the node fills itself");
    t.give(2, Some(6), Store { count: 2, ..store(0, &["a"], 0) });
    assert!(t.turn()[0].contains("Refused"), "a head that lies about its batch");
    let junk = Frame {
        kind: Store::KIND,
        target: atoll_native::roles::LOG_SERVER,
        head: Bytes::from_static(b"junk"),
        payloads: vec![],
    };
    let caller = Caller { node: NodeId(2), request: Some(7), class: Class::Data };
    t.role.on_frame(t.now, caller, junk, &mut t.out);
    assert!(t.turn()[0].contains("Refused"));
}

/// Waits end by progress, by the seal, by their patience.
#[test]
fn waits_end() {
    let mut t = server();
    let wait = |target, known_only, patience_ms| Wait {
        loglet: ID,
        config: config(),
        target: Offset(target),
        known_only,
        patience_ms,
    };
    t.give(2, Some(1), wait(1, false, 1000));
    t.give(2, Some(2), wait(1, true, 1000));
    t.give(2, Some(3), wait(9, false, 5));
    t.give(2, Some(4), wait(9, true, 1000));
    assert_eq!(t.turn(), [] as [&str; 0]);
    t.give(1, None, store(0, &["a"], 0));
    t.sync();
    assert_eq!(t.turn(), ["1 Stored Done r1 next=1 open lt=1 kt=0 trim=0", "2#1 Done open lt=1 kt=0 trim=0"]);
    t.give(1, None, Advance { loglet: ID, life: LIFE, known_tail: Offset(1), confirm: false });
    assert_eq!(t.turn(), ["2#2 Done open lt=1 kt=1 trim=0"]);
    t.now = t.now.after(Duration::from_millis(5));
    assert_eq!(t.role.deadline(), Some(t.now));
    t.role.on_deadline(t.now, &mut t.out);
    assert_eq!(t.turn(), ["2#3 Done open lt=1 kt=1 trim=0"]);
    t.give(2, Some(5), Seal { loglet: ID, config: config() });
    t.sync();
    assert_eq!(
        t.turn(),
        [
            "2#5 Done sealed lt=1 kt=1 trim=0",
            "1 Stored Sealed r1 next=1 sealed lt=1 kt=1 trim=0",
            "2#4 Done sealed lt=1 kt=1 trim=0"
        ]
    );
}

fn sequencer() -> Trace<Sequencer> {
    let core = NodeCore::new(NODE, LIFE, 1);
    let env = core.env();
    let mut core = core;
    for peer in [2, 3] {
        core.set_link(Tick(1), NodeId(peer), Class::Data, Link::Up);
    }
    Trace::new(Sequencer::new(env, SequencerOptions::default()), atoll_native::roles::SEQUENCER)
}

fn append(number: u64, seq: u64, texts: &[&str]) -> Append {
    Append {
        loglet: ID,
        config: config(),
        life: LIFE,
        place: HandlePlace { handle: 1, epoch: 0, number },
        not_below: NotBelow::default(),
        batch: batch(1, seq, texts).bytes().clone(),
    }
}

fn stored(sealed: bool, local_tail: u64, known_tail: u64) -> StoredUpTo {
    let verdict = if sealed { Verdict::Sealed {} } else { Verdict::Done {} };
    let (local_tail, known_tail) = (Offset(local_tail), Offset(known_tail));
    let state = ServerState { sealed, local_tail, known_tail, trim: Offset(0) };
    StoredUpTo { loglet: ID, verdict, round: 0, expects: local_tail, state }
}

/// Append at the sequencer: one Store per run and server, acks in order at a majority, the known tail at once when idle.
#[test]
fn appends_are_acked_in_order_by_a_majority() {
    let mut t = sequencer();
    t.give(4, Some(1), append(0, 1, &["a", "b"]));
    t.give(4, Some(2), append(1, 3, &["c"]));
    let sent = t.turn();
    let to = |n: u32| [format!("{n} Store 0+2 r0 kt=0 config"), format!("{n} Store 2+1 r0 kt=0 config")];
    assert_eq!(sent, [to(1), to(2), to(3)].concat());
    t.give(1, None, stored(false, 3, 0));
    assert_eq!(t.turn(), [] as [&str; 0], "one is no majority of three");
    t.give(3, None, stored(false, 2, 0));
    assert_eq!(t.turn(), ["4#1 Committed { runs: [((0), 2)] } kt=2"]);
    t.give(2, None, stored(false, 3, 0));
    assert_eq!(
        t.turn(),
        ["4#2 Committed { runs: [((2), 1)] } kt=3", "1 Advance 3", "2 Advance 3", "3 Advance 3"]
    );
    t.give(4, Some(3), append(2, 2, &["b", "c", "d"]));
    assert_eq!(t.turn(), ["1 Store 3+1 r0 kt=3", "2 Store 3+1 r0 kt=3", "3 Store 3+1 r0 kt=3"]);
    t.give(1, None, stored(false, 4, 3));
    t.give(2, None, stored(false, 4, 3));
    assert_eq!(t.turn()[0], "4#3 Committed { runs: [((1), 2), ((3), 1)] } kt=4", "old places, and one new");
}

/// What all loglets of a node have in flight together is bounded, and one of them leaves room for others.
#[test]
fn all_windows_together_are_bounded() {
    let mut core = NodeCore::new(NODE, LIFE, 1);
    let env = core.env();
    core.set_link(Tick(1), NodeId(2), Class::Data, Link::Up);
    let options = SequencerOptions { node_window_bytes: 10_000, ..SequencerOptions::default() };
    let mut t = Trace::new(Sequencer::new(env, options), atoll_native::roles::SEQUENCER);
    let text = "x".repeat(1000);
    for number in 0..10 {
        t.give(4, Some(number), append(number, 1 + number, &[&text]));
    }
    let busy = t.turn().into_iter().filter(|s| s.contains("Busy")).collect::<Vec<_>>();
    assert!((5..=6).contains(&busy.len()), "half of it for one: {busy:?}");
    let mut other = append(0, 1, &[&text]);
    other.loglet = LogletId(ID.0 + 1);
    t.give(4, Some(20), other);
    assert!(!t.turn().iter().any(|s| s.contains("Busy")), "there is room for another loglet");
}

/// X10: out of order goes back once per round; a silent server is sent to again.
#[test]
fn going_back_is_bounded() {
    let mut t = sequencer();
    for i in 0..3 {
        t.give(4, Some(i), append(i, 1 + i, &["x"]));
    }
    t.turn();
    let lost = StoredUpTo { verdict: Verdict::OutOfOrder {}, expects: Offset(1), ..stored(false, 0, 0) };
    t.give(2, None, lost.clone());
    t.give(2, None, lost.clone());
    assert_eq!(t.turn(), ["2 Store 1+1 r1 kt=0", "2 Store 2+1 r1 kt=0"]);
    t.give(2, None, lost);
    assert_eq!(t.turn(), [] as [&str; 0], "of a round that is over");
    t.now = t.role.deadline().unwrap();
    t.role.on_deadline(t.now, &mut t.out);
    let again = t.turn();
    assert_eq!(again.iter().filter(|s| s.starts_with("2 Store 0+1 r2")).count(), 1);
    assert_eq!(again.len(), 9, "everything unanswered, to everybody");
}

/// native-T1, native-T2, native-T5, native-T6, native-T15 at the sequencer.
#[test]
fn only_unsealed_copies_count() {
    let mut t = sequencer();
    t.give(4, Some(1), append(0, 1, &["a"]));
    t.give(4, Some(9), Append { life: Incarnation(1), ..append(1, 2, &["b"]) });
    t.give(4, Some(8), append(5, 2, &["b"]));
    let sent = t.turn();
    assert!(sent.contains(&"4#9 WrongSequencer kt=0".to_owned()), "{sent:?}");
    assert!(sent.contains(&"4#8 Busy kt=0".to_owned()), "a gap in the lane: {sent:?}");
    t.give(1, None, stored(false, 1, 0));
    t.give(2, None, stored(true, 1, 1));
    assert_eq!(t.turn(), [] as [&str; 0], "sealed, with the entry and a known tail above it: no ack");
    t.give(4, Some(2), append(1, 2, &["b"]));
    assert_eq!(t.turn(), ["4#2 Sealed kt=0"], "draining");
    t.give(3, None, stored(true, 0, 0));
    assert_eq!(t.turn(), ["4#1 Sealed kt=0"], "a majority is sealed");
}
