//! Sessions in the replicated state: which node may expire them, and what is deleted with them (contracts X22).

use super::support::{Replica, proposer};
use atoll_core::Level;
use atoll_db::Application;
use atoll_zookeeper::ZooKeeper;
use atoll_zookeeper::command::{
    AttachSession, CloseSession, Command, EndSession, ExpireSession, SessionAnswer, TakeOver,
};
use atoll_zookeeper::event::{Change, Event};
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest};
use atoll_zookeeper::session::secret::Secret;
use atoll_zookeeper::session::state::Session;
use atoll_zookeeper::tree::key;

fn ephemeral(path: &str) -> Request<'_> {
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    Request::Create(CreateRequest { path, data: None, acl, flags: CreateMode::Ephemeral.number() })
}

fn attach(session: i64) -> Command<'static> {
    Command::Attach(AttachSession { session, password: Some(&[7; 16]), timeout_ms: 20_000 })
}

#[test]
fn only_the_holder_expires_a_session_and_only_by_the_move_that_it_judged() {
    let (a, b) = (proposer(1, 10), proposer(2, 20));
    let mut replica = Replica::default();
    let session = replica.open(a);
    replica.write(a, session, &ephemeral("/e")).unwrap();
    let expire = |moves| Command::Expire(ExpireSession { session, moves });
    assert_eq!(replica.apply(b, &expire(0)), Err(ErrorCode::SessionMoved), "not the holder");
    assert_eq!(
        replica.apply(proposer(1, 11), &expire(0)),
        Err(ErrorCode::SessionMoved),
        "a later life of it"
    );

    // The client moves to b and back. An expiry that was decided before has no effect.
    replica.apply(b, &attach(session)).unwrap();
    let (_, body) = replica.apply(a, &attach(session)).unwrap();
    assert_eq!(SessionAnswer::parse(&body), Ok(SessionAnswer { session, moves: 2, timeout_ms: 20_000 }));
    assert_eq!(replica.apply(a, &expire(0)), Err(ErrorCode::SessionMoved), "judged before it moved");
    assert!(replica.node("/e").is_some());
    replica.audit();

    replica.events();
    replica.apply(a, &expire(2)).unwrap();
    assert!(replica.node("/e").is_none());
    let events = replica.events();
    assert!(matches!(&events[0], Event::Node { change: Change::Deleted, path, .. } if path == "/e"));
    assert!(matches!(events[1], Event::SessionGone { session: gone, .. } if gone == session));
    assert_eq!(replica.apply(a, &expire(2)), Err(ErrorCode::SessionExpired));
    assert_eq!(replica.apply(b, &attach(session)), Err(ErrorCode::SessionExpired));
    replica.audit();
}

#[test]
fn a_session_with_many_ephemerals_ends_in_steps_and_is_lost_to_its_client_from_the_first_on() {
    let (a, b) = (proposer(1, 10), proposer(2, 20));
    let mut replica = Replica::default();
    let session = replica.open(a);
    let paths: Vec<String> = (0..5).map(|i| format!("/e{i}")).collect();
    for path in &paths {
        replica.write(a, session, &ephemeral(path)).unwrap();
    }
    replica.events();
    let end = |moves| Command::End(EndSession { session, moves, at_most: 2, closed: true });
    let left = |replica: &mut Replica| paths.iter().filter(|path| replica.node(path).is_some()).count();
    let nobody = EndSession { session, moves: 0, at_most: 0, closed: true };
    assert_eq!(replica.apply(a, &Command::End(nobody)), Err(ErrorCode::BadArguments));
    assert_eq!(replica.apply(b, &end(0)), Err(ErrorCode::SessionMoved), "not the holder");
    assert_eq!(replica.apply(a, &end(1)), Err(ErrorCode::SessionMoved), "another move");

    replica.apply(a, &end(0)).unwrap();
    assert_eq!(left(&mut replica), 3);
    let events = replica.events();
    assert!(matches!(events[2], Event::SessionHeld { moves: 0, timeout_ms: -1, by, .. } if by == a));
    replica.audit();
    assert_eq!(replica.write(a, session, &ephemeral("/more")), Err(ErrorCode::SessionExpired));
    assert_eq!(replica.apply(b, &attach(session)), Err(ErrorCode::SessionExpired));

    // The holder dies, and another node takes over the rest of the session.
    let take = Command::TakeOver(TakeOver { node: 1, incarnation: 10 });
    replica.apply(b, &take).unwrap();
    let events = replica.events();
    assert!(matches!(events[0], Event::SessionHeld { moves: 1, timeout_ms: -1, by, .. } if by == b));
    replica.apply(b, &end(1)).unwrap();
    assert_eq!(left(&mut replica), 1);
    assert!(replica.events().iter().all(|event| matches!(event, Event::Node { .. })));
    replica.apply(b, &end(1)).unwrap();
    assert_eq!(left(&mut replica), 0);
    assert!(matches!(replica.events()[..], [_, Event::SessionGone { .. }]));
    assert_eq!(replica.apply(b, &end(1)), Err(ErrorCode::SessionExpired));
    replica.audit();
}

/// If one step can delete all ephemerals, one command deletes them, so that nobody sees only some of them.
#[test]
fn a_session_with_as_many_ephemerals_as_a_step_deletes_ends_at_once() {
    let a = proposer(1, 10);
    let mut replica = Replica::default();
    let session = replica.open(a);
    for path in ["/e", "/f"] {
        replica.write(a, session, &ephemeral(path)).unwrap();
    }
    replica.events();
    replica.apply(a, &Command::End(EndSession { session, moves: 0, at_most: 2, closed: false })).unwrap();
    assert!(matches!(replica.events()[..], [_, _, Event::SessionGone { .. }]));
    replica.audit();
}

#[test]
fn writes_of_a_session_that_went_elsewhere_do_not_happen() {
    let (a, b) = (proposer(1, 10), proposer(2, 20));
    let mut replica = Replica::default();
    let session = replica.open(a);
    replica.apply(b, &attach(session)).unwrap();
    assert_eq!(replica.write(a, session, &ephemeral("/late")), Err(ErrorCode::SessionMoved));
    let close = |moves| Command::Close(CloseSession { session, moves });
    assert_eq!(replica.apply(a, &close(0)), Err(ErrorCode::SessionMoved));
    replica.write(b, session, &ephemeral("/here")).unwrap();
    replica.apply(b, &close(1)).unwrap();
    assert!(replica.node("/here").is_none());
    assert_eq!(replica.write(b, session, &ephemeral("/more")), Err(ErrorCode::SessionExpired));
    replica.audit();
}

#[test]
fn writes_of_a_connection_do_not_happen_once_the_client_is_back_by_another_one_of_the_same_node() {
    let me = proposer(1, 10);
    let mut replica = Replica::default();
    let session = replica.open(me);
    replica.apply(me, &attach(session)).unwrap();
    let late = replica.write_by_move(me, session, 0, &ephemeral("/late"));
    assert_eq!(late, Err(ErrorCode::SessionMoved), "in flight when the client came back");
    let close = |moves| Command::Close(CloseSession { session, moves });
    assert_eq!(replica.apply(me, &close(0)), Err(ErrorCode::SessionMoved));
    replica.write_by_move(me, session, 1, &ephemeral("/here")).unwrap();
    replica.audit();
    replica.apply(me, &close(1)).unwrap();
    replica.audit();
}

#[test]
fn a_wrong_password_gets_what_a_session_that_is_gone_gets() {
    let mut replica = Replica::default();
    let session = replica.open(proposer(1, 1));
    for password in [Some(&[8; 16][..]), Some(&[7; 15][..]), None] {
        let asked = AttachSession { session, password, timeout_ms: 20_000 };
        assert_eq!(replica.apply(proposer(2, 2), &Command::Attach(asked)), Err(ErrorCode::SessionExpired));
    }
    assert_eq!(replica.write(proposer(1, 1), session, &ephemeral("/e")).map(|_| ()), Ok(()));
}

/// Returns what is kept of a session.
fn kept(replica: &Replica, session: i64) -> Secret {
    Session::of_bytes(&replica.map.keys[&key::session(session)[..]]).unwrap().secret
}

#[test]
fn a_session_of_an_older_program_keeps_its_password_only_until_its_client_returns() {
    let (old, new) = (proposer(1, 1), proposer(2, 2));
    let mut replica = Replica::default();
    let [session, silent] = [replica.open(old), replica.open(old)];
    assert_eq!(kept(&replica, session), Secret::Plain([7; 16]));
    replica.version = Some(ZooKeeper::version_at(Level::CURRENT));
    let [right, wrong] = [7, 8].map(|byte| Secret::hash_of(&[byte; 16]));
    let by_hash = |password| AttachSession { session, password: Some(password), timeout_ms: 20_000 };
    let refused = replica.apply(new, &Command::Attach(by_hash(wrong.bytes())));
    assert_eq!(refused, Err(ErrorCode::SessionExpired));
    replica.apply(new, &Command::Attach(by_hash(right.bytes()))).unwrap();
    assert_eq!(kept(&replica, session), right);
    // A command that an older program has written may still be in the log.
    replica.apply(old, &attach(session)).unwrap();
    assert_eq!(kept(&replica, session), right);
    let gone = TakeOver { node: 1, incarnation: 1 };
    replica.apply(new, &Command::TakeOver(gone)).unwrap();
    assert_eq!(kept(&replica, silent), right, "another node holds the session now");
    let opened = replica.open(new);
    assert_eq!(kept(&replica, opened), right, "the password is not kept, even if it is in the command");
    replica.audit();
}

#[test]
fn sessions_of_a_node_that_is_gone_are_taken_over_and_only_those() {
    let (gone, other, taker) = (proposer(1, 10), proposer(2, 20), proposer(3, 30));
    let mut replica = Replica::default();
    let theirs: Vec<i64> = (0..3).map(|_| replica.open(gone)).collect();
    let kept = replica.open(other);
    replica.apply(other, &attach(theirs[2])).unwrap();
    replica.events();
    let take = Command::TakeOver(TakeOver { node: 1, incarnation: 10 });
    replica.apply(taker, &take).unwrap();
    let taken: Vec<i64> =
        replica
            .events()
            .into_iter()
            .map(|event| match event {
                Event::SessionHeld {
                    session, by, moves: 1, timeout_ms: 10_000, by_client: false, ..
                } if by == taker => session,
                event => panic!("{event:?}"),
            })
            .collect();
    assert_eq!(taken, theirs[..2]);
    // A second takeover finds no sessions and does not count as a change.
    assert_eq!(replica.apply(other, &take), Err(ErrorCode::UnknownSession));
    assert_eq!(replica.write(taker, kept, &ephemeral("/e")), Err(ErrorCode::SessionMoved));
    replica.write(taker, theirs[0], &ephemeral("/e")).unwrap();
    let expire = Command::Expire(ExpireSession { session: theirs[0], moves: 0 });
    assert_eq!(replica.apply(gone, &expire), Err(ErrorCode::SessionMoved), "the old holder wakes up");
    replica.audit();
}

#[test]
fn numbers_and_changes_rise_and_a_new_epoch_is_above_all_before() {
    let a = proposer(1, 1);
    let mut replica = Replica::default();
    let (first, second) = (replica.open(a), replica.open(a));
    assert!(first > 0 && second > first);
    let (before, _) = replica.write(a, first, &ephemeral("/e")).unwrap();
    let set = Request::SetData(SetDataRequest { path: "/none", data: None, version: -1 });
    assert_eq!(replica.write(a, first, &set), Err(ErrorCode::NoNode));
    let (raised, _) = replica.apply(a, &Command::RaiseEpoch).unwrap();
    assert_eq!(raised, ((before >> 32) + 1) << 32);
    let (after, _) = replica.write(a, first, &ephemeral("/f")).unwrap();
    assert_eq!(after, raised + 1);
    assert!(replica.open(a) > (second | 0xff_ffff_ffff), "sessions of another epoch have other numbers");
}
