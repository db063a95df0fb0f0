#![allow(clippy::unwrap_used)]
use super::*;
use crate::members::table::{Member, MemberTable};
use atoll_core::{Envelope, Exchange, Identity, NodeCore, Outputs, StorageId};
use atoll_db::PeerClocks;
use atoll_door::DATABASE_LOG;

const MS: u64 = 1_000_000;

fn identity(n: u32) -> Identity {
    Identity {
        node: NodeId(n),
        incarnation: Incarnation(n.into()),
        storage: StorageId(n.into()),
        log: true,
        sequencer: true,
        meta: true,
        draining: false,
        failed: false,
    }
}

/// Returns a table of `count` members.
fn table_of(count: u32) -> MemberTable {
    let row = |n| (NodeId(n), Member::of(&identity(n), String::new(), String::new(), String::new()));
    MemberTable { version: 1, nodes: (1..=count).map(row).collect(), ..MemberTable::default() }
}

/// Node 1 of three nodes, with a clock that the test advances.
struct One {
    core: NodeCore,
    members: Members,
    now_ms: u64,
    sent: Vec<Heartbeat>,
    first_sent: usize,
    /// The durable position that the peers report for their journals.
    durable: u64,
    /// Added to the peers' incarnations.
    life: u64,
}

impl One {
    fn new() -> Self {
        let members = Members::new(identity(1), table_of(3));
        let mut core = NodeCore::new(NodeId(1), Incarnation(1), 7);
        let detector = Detector::new(core.env(), members.clone(), Timings::default());
        core.add_role(crate::members::roles::DETECTOR, Box::new(detector));
        for peer in [2, 3].map(NodeId) {
            for class in [Class::Control, Class::Data] {
                core.set_link(Tick(0), peer, class, Link::Up);
            }
        }
        One { core, members, now_ms: 0, sent: Vec::new(), first_sent: 0, durable: 5, life: 0 }
    }

    /// Advances the clock in steps of 10 ms, which is less than a heartbeat interval. Calls `each` before each step.
    fn pass(&mut self, ms: u64, each: impl Fn(&mut One)) {
        for _ in 0..ms / 10 {
            self.now_ms += 10;
            each(self);
            let mut out = Outputs::default();
            self.core.turn(Tick(self.now_ms * MS), &mut out);
            for frame in out.frames.into_iter().map(|o| o.envelope.frame) {
                match FirstHeartbeat::from_frame(frame.clone()) {
                    Ok(_) => self.first_sent += 1,
                    Err(_) => self.sent.push(Heartbeat::from_frame(frame).unwrap()),
                }
            }
        }
    }

    fn hear(&mut self, from: u32, hears: &[u32]) {
        self.hear_wall(from, hears, None);
    }

    fn hear_wall(&mut self, from: u32, hears: &[u32], wall_ms: Option<u64>) {
        self.hear_more(from, hears, &[], More { wall_ms, ..More::default() });
    }

    /// Delivers a heartbeat of a node whose replica of the database is delayed, and is in service or not.
    fn hear_delay(&mut self, from: u32, hears: &[u32], apply_delay_ms: u64, halted: &[&str]) {
        self.hear_more(from, hears, halted, More { apply_delay_ms, ..More::default() });
    }

    fn hear_more(&mut self, from: u32, hears: &[u32], halted: &[&str], more: More) {
        let beat = Heartbeat {
            incarnation: Incarnation(self.life + u64::from(from)),
            table_version: 1,
            leaving: false,
            health: 0,
            hears: hears.iter().map(|n| NodeId(*n)).collect(),
            reaches: Vec::new(),
            distrusts: Vec::new(),
            halted: halted.iter().map(|log| (*log).to_owned()).collect(),
            storage: StorageId(from.into()),
            durable: Lsn(self.durable),
            more,
        };
        self.deliver(from, beat.into_frame(crate::members::roles::DETECTOR));
    }

    /// Delivers a heartbeat of a program of the first level, with this incarnation.
    fn hear_first(&mut self, from: u32, life: u64) {
        let beat =
            FirstHeartbeat { incarnation: Incarnation(life), table_version: 1, leaving: false, full: true };
        self.deliver(from, beat.into_frame(crate::members::roles::DETECTOR));
    }

    fn deliver(&mut self, from: u32, frame: Frame) {
        let envelope = Envelope { exchange: Exchange::Post, frame };
        self.core.deliver(Tick(self.now_ms * MS), NodeId(from), Class::Control, envelope);
    }
}

#[test]
fn a_member_that_was_never_heard_of_is_gone_once_it_had_time_to_start() {
    let mut one = One::new();
    one.pass(800, |one| one.hear(2, &[1]));
    assert_eq!(one.members.liveness(NodeId(3)), None, "it may still be starting");
    one.pass(200, |one| one.hear(2, &[1]));
    assert!(one.members.liveness(NodeId(3)).is_some_and(|l| !l.alive));
    assert!(one.members.is_alive(NodeId(2)));
}

#[test]
fn a_peer_that_was_late_is_given_more_time_for_a_while() {
    let both = |one: &mut One| {
        one.hear(2, &[1, 3]);
        one.hear(3, &[1, 2]);
    };
    let silent = |one: &mut One, ms: u64| {
        one.pass(ms, |one| one.hear(3, &[1, 2]));
        !one.members.is_alive(NodeId(2))
    };
    let mut one = One::new();
    one.pass(500, both);
    assert!(silent(&mut one, 600), "it has never been late");
    one.pass(500, both);
    assert!(one.members.is_alive(NodeId(2)));
    assert!(!silent(&mut one, 600) && silent(&mut one, 900), "longer, but not forever");
    // A peer that was gone for that long was not late, and earlier lateness is forgotten after a while.
    one.pass(31_000, both);
    assert!(silent(&mut one, 600));
    // A peer that was restarted was not late either.
    one.life = 100;
    one.pass(500, both);
    assert!(silent(&mut one, 600));
}

#[test]
fn a_peer_that_does_not_hear_this_node_is_no_use_to_it() {
    let mut one = One::new();
    one.pass(500, |one| one.hear(2, &[1, 3]));
    assert!(one.members.is_alive(NodeId(2)));
    // Its heartbeats still arrive, but no longer name this node.
    one.pass(500, |one| one.hear(2, &[3]));
    assert!(!one.members.is_alive(NodeId(2)));
    let last = one.sent.last().unwrap();
    assert_eq!((last.hears.clone(), last.reaches.clone()), (vec![NodeId(2)], Vec::new()));
    one.pass(100, |one| one.hear(2, &[1, 3]));
    assert!(one.members.is_alive(NodeId(2)), "and it is when it hears this node again");
}

#[test]
fn a_peer_that_has_lost_this_node_is_no_use_from_its_first_word_on() {
    let mut one = One::new();
    let both = |one: &mut One| {
        one.hear(2, &[1, 3]);
        one.hear(3, &[1, 2]);
    };
    one.pass(500, both);
    let before = one.sent.len();
    one.pass(10, |one| one.hear(2, &[3]));
    assert!(!one.members.is_alive(NodeId(2)));
    assert_eq!(one.sent.last().unwrap().reaches, vec![NodeId(3)]);
    assert!(one.sent.len() > before, "the others hear of it at once");
    // After a pause of this node, its peers have lost it for a moment. This node does not suspect them for that.
    one.pass(500, both);
    one.now_ms += 1_000;
    one.pass(10, |one| {
        one.hear(2, &[3]);
        one.hear(3, &[2]);
    });
    assert!(one.members.is_alive(NodeId(2)) && one.members.is_alive(NodeId(3)));
}

#[test]
fn a_heartbeat_says_what_the_disk_is_good_for() {
    let mut one = One::new();
    one.pass(100, |_| ());
    assert_eq!(one.sent.last().unwrap().health, Health::Fine.code());
    one.members.set_full(Tick(0), true);
    one.pass(100, |_| ());
    assert_eq!(one.sent.last().unwrap().health, Health::Full.code());
    one.members.fail(Tick(0));
    one.members.set_halted("db", true);
    one.pass(100, |_| ());
    let last = one.sent.last().unwrap();
    assert_eq!((last.health, last.halted.clone()), (Health::Closed.code(), vec!["db".to_owned()]));
}

#[test]
fn clocks_are_said_and_heard() {
    let mut one = One::new();
    one.pass(100, |_| ());
    assert_eq!(one.sent.last().unwrap().more.wall_ms, None);
    one.members.say_wall(std::sync::Arc::new(|| 77));
    one.pass(100, |_| ());
    assert_eq!(one.sent.last().unwrap().more.wall_ms, Some(77));
    let peers = |one: &One| one.members.peer_clocks(Tick(one.now_ms * MS));
    assert_eq!(peers(&one), PeerClocks { silent: 2, ..PeerClocks::default() });
    // Peer 3 runs a program that does not report its clock.
    one.hear_wall(2, &[1, 3], Some(5_000));
    one.pass(100, |one| one.hear(3, &[1, 2]));
    assert_eq!(peers(&one), PeerClocks { reported: vec![(NodeId(2), 5_100)], unreported: 1, silent: 0 });
    one.pass(1_000, |one| one.hear(3, &[1, 2]));
    assert_eq!(peers(&one), PeerClocks { reported: Vec::new(), unreported: 1, silent: 1 });
}

#[test]
fn the_delay_of_the_slowest_replica_in_service_counts() {
    let mut one = One::new();
    one.pass(100, |_| ());
    assert_eq!(one.sent.last().unwrap().more.apply_delay_ms, 0, "this node has no replica");
    one.members.say_apply_delay(std::sync::Arc::new(|now| Duration::from_millis(now.0 / MS)));
    one.pass(100, |_| ());
    let said = one.sent.last().unwrap().more.apply_delay_ms;
    assert!((150..=200).contains(&said), "{said}");
    let longest_ms = |one: &One| one.members.longest_apply_delay().as_millis();
    assert_eq!(longest_ms(&one), 0, "nothing was heard");
    let both = |one: &mut One, delay_ms: u64, halted: &[&str]| {
        one.hear_delay(2, &[1, 3], 70, &[]);
        one.hear_delay(3, &[1, 2], delay_ms, halted);
    };
    one.pass(100, |one| both(one, 300, &[]));
    assert_eq!(longest_ms(&one), 300);
    one.pass(100, |one| both(one, 300, &[DATABASE_LOG]));
    assert_eq!(longest_ms(&one), 70, "a replica out of service slows nobody down");
    one.pass(100, |one| both(one, 0, &[]));
    assert_eq!(longest_ms(&one), 70);
    one.pass(1_000, |one| one.hear_delay(3, &[1, 2], 20, &[]));
    assert_eq!(longest_ms(&one), 20, "node 2 is silent");
}

#[test]
fn a_peer_without_a_connection_for_data_is_distrusted_although_it_lives() {
    let mut one = One::new();
    one.core.set_link(Tick(0), NodeId(2), Class::Data, Link::Down);
    one.pass(600, |one| {
        one.hear(2, &[1, 3]);
        one.hear(3, &[1, 2]);
    });
    assert!(one.members.is_alive(NodeId(2)));
    assert_eq!(one.sent.last().unwrap().distrusts, vec![NodeId(2)]);
    one.core.set_link(Tick(one.now_ms * MS), NodeId(2), Class::Data, Link::Up);
    one.pass(300, |one| one.hear(2, &[1, 3]));
    assert_eq!(one.sent.last().unwrap().distrusts, Vec::new());
}

#[test]
fn a_data_directory_that_has_gone_back_is_nobody() {
    let mut one = One::new();
    one.pass(500, |one| one.hear(2, &[1, 3]));
    assert!(one.members.is_alive(NodeId(2)));
    (one.life, one.durable) = (100, 4);
    one.pass(600, |one| one.hear(2, &[1, 3]));
    assert!(!one.members.is_alive(NodeId(2)));
    one.durable = 6;
    one.pass(100, |one| one.hear(2, &[1, 3]));
    assert!(one.members.is_alive(NodeId(2)));
}

#[test]
fn a_program_of_the_first_level_is_heard_and_told_as_it_reads() {
    let mut one = One::new();
    one.pass(500, |one| one.hear_first(2, 9));
    let life = one.members.liveness(NodeId(2)).unwrap();
    assert!(life.alive && one.members.is_alive(NodeId(2)));
    assert_eq!(one.first_sent, one.sent.len(), "each is sent in both forms");
    // The same life now sends full heartbeats, so its first-level heartbeats are ignored.
    one.pass(100, |one| {
        one.hear(2, &[1, 3]);
        one.hear_first(2, 2);
    });
    assert_eq!(one.members.liveness(NodeId(2)).unwrap().health, Health::Fine);
    // A peer that was rolled back has another incarnation, so its first-level heartbeats count again.
    one.pass(100, |one| one.hear_first(2, 3));
    assert_eq!(one.members.liveness(NodeId(2)).unwrap().health, Health::Full);
    one.core.env().levels().learn(since::WHOLE_HEARTBEATS).unwrap();
    let before = one.first_sent;
    one.pass(300, |one| one.hear(2, &[1, 3]));
    assert_eq!(one.first_sent, before, "all read the whole ones");
}

#[test]
fn a_peer_vouches_for_members_that_this_node_does_not_hear() {
    let reaches = |ids: &[u32]| ids.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
    let report = |ids: &[u32], vouches: &[u32]| Report {
        reaches: reaches(ids),
        vouches: reaches(vouches),
        ..Report::default()
    };
    // Nodes 1 and 2 do not hear 3 and 4. Node 5 hears all. So node 1 hears only 2 and 5.
    let seen_by_1 = Members::new(identity(1), table_of(5));
    let now = Tick(0);
    seen_by_1.note(now, NodeId(2), true, Some(report(&[1, 5], &[1, 5])));
    seen_by_1.note(now, NodeId(5), true, Some(report(&[1, 2, 3, 4], &[])));
    for lost in [3, 4] {
        seen_by_1.note(now, NodeId(lost), false, None);
    }
    assert!(!seen_by_1.is_up(NodeId(3)), "that one other node reaches it is not enough");
    seen_by_1.note(now, NodeId(5), true, Some(report(&[1, 2, 3, 4], &[1, 2, 3])));
    assert!(seen_by_1.is_up(NodeId(3)));
    assert!(!seen_by_1.is_up(NodeId(4)), "nobody vouches for it");
    // A peer's vouching counts only while the peer itself is heard.
    seen_by_1.note(now, NodeId(5), false, None);
    assert!(!seen_by_1.is_up(NodeId(3)));

    let seen_by_5 = Members::new(identity(5), table_of(5));
    seen_by_5.note(now, NodeId(3), true, Some(report(&[4, 5], &[])));
    seen_by_5.note(now, NodeId(4), true, Some(report(&[5], &[])));
    seen_by_5.note(now, NodeId(2), false, Some(report(&[1, 5], &[])));
    assert_eq!(seen_by_5.vouches(), [NodeId(3)], "4 reaches a minority, and 2 is not heard");
}

#[test]
fn a_removed_member_vouches_for_nobody_and_slows_nobody_down() {
    let ids = |ids: &[u32]| ids.iter().map(|n| NodeId(*n)).collect::<Vec<_>>();
    let report = |reaches: &[u32], vouches: &[u32]| Report {
        reaches: ids(reaches),
        vouches: ids(vouches),
        ..Report::default()
    };
    let last_of_5 =
        || Report { apply_delay: Duration::from_millis(900), ..report(&[1, 2, 3, 4], &[1, 2, 3, 4]) };
    let members = Members::new(identity(1), table_of(5));
    let now = Tick(0);
    members.note(now, NodeId(2), true, Some(report(&[1, 3, 4, 5], &[])));
    members.note(now, NodeId(5), true, Some(last_of_5()));
    members.heard_wall(now, NodeId(5), Some(77));
    members.distrust(NodeId(5), Tick(1));
    members.distrust(NodeId(1), Tick(1));
    assert!(members.adopt(MemberTable { version: 2, ..table_of(4) }));
    // Node 2 dies later. The others no longer reach it.
    for other in [3, 4] {
        members.note(now, NodeId(other), true, Some(report(&[1, 3, 4], &[1, 3, 4])));
    }
    members.note(now, NodeId(2), false, None);
    let forgotten = || {
        assert!(!members.is_up(NodeId(2)), "a removed member vouches for it");
        assert_eq!(members.liveness(NodeId(5)), None);
        assert!(!members.is_up(NodeId(5)));
        assert_eq!(members.longest_apply_delay(), Duration::ZERO);
        let row = members.own_row(now);
        assert_eq!((row.reaches, row.distrusts), (ids(&[3, 4]), ids(&[1])), "it may distrust itself");
        assert!(!members.reach().rows.contains_key(&NodeId(5)));
    };
    forgotten();
    // What arrives late does not bring it back.
    members.note(now, NodeId(5), true, Some(last_of_5()));
    members.gossip_says(now, NodeId(5), true);
    members.heard_wall(now, NodeId(5), Some(78));
    members.distrust(NodeId(5), Tick(1));
    forgotten();
    // If it is added again, nothing is known about it yet.
    assert!(members.adopt(MemberTable { version: 3, ..table_of(5) }));
    assert_eq!(members.liveness(NodeId(5)), None);
    assert!(members.peer_clocks(now).reported.is_empty());
}

#[test]
fn a_heartbeat_that_arrives_after_its_sender_was_removed_is_no_sign_of_life() {
    let mut one = One::new();
    let both = |one: &mut One| {
        one.hear(2, &[1, 3]);
        one.hear(3, &[1, 2]);
    };
    one.pass(500, both);
    assert!(one.members.is_alive(NodeId(3)));
    one.members.adopt(MemberTable { version: 2, ..table_of(2) });
    one.pass(500, both);
    assert_eq!(one.members.liveness(NodeId(3)), None);
    let last = one.sent.last().unwrap();
    assert_eq!((last.hears.clone(), last.reaches.clone()), (vec![NodeId(2)], vec![NodeId(2)]));
}

#[test]
fn what_came_to_heartbeats_later_may_be_missing() {
    let vouches = vec![NodeId(2), NodeId(7)];
    for more in [
        More::default(),
        More { wall_ms: Some(77), ..More::default() },
        More { vouches: vouches.clone(), ..More::default() },
        More { wall_ms: Some(77), vouches: vouches.clone(), apply_delay_ms: 0 },
        More { wall_ms: Some(77), vouches: vouches.clone(), apply_delay_ms: 250 },
        More { apply_delay_ms: 250, ..More::default() },
    ] {
        assert_eq!(More::from_bytes(more.to_bytes()).unwrap(), more);
    }
    // Programs of intermediate versions reported only the first of these fields.
    let said = More { wall_ms: Some(77), ..More::default() };
    assert_eq!(More::from_bytes(77_u64.to_bytes()).unwrap(), said);
    let mut first_two = BytesMut::new();
    77_u64.encode(&mut first_two);
    vouches.encode(&mut first_two);
    assert_eq!(More::from_bytes(first_two.freeze()).unwrap(), More { vouches, ..said });
}
