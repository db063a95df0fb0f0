//! `/zookeeper/config` in the replicated state.

use super::support::{Outcome, Replica, proposer};
use atoll_zookeeper::command::{Announce, Command, Forget};
use atoll_zookeeper::event::{Change, Event};
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::request::{Request, SetDataRequest};
use atoll_zookeeper::tree::node::Data;

fn announce(replica: &mut Replica, node: i64, peer: &str, client: &str) -> Outcome {
    let outcome = replica.apply(proposer(1, 1), &Command::Announce(Announce { node, peer, client }));
    replica.audit();
    outcome
}

fn text(replica: &mut Replica) -> String {
    match replica.node("/zookeeper/config").unwrap().data {
        Data::Here(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_text_follows_those_who_serve_and_is_told() {
    let mut replica = Replica::default();
    let (second, _) = announce(&mut replica, 2, "b:7412", "b:2181").unwrap();
    let (first, _) = announce(&mut replica, 1, "[::1]:7412", "[::1]:2181").unwrap();
    assert!(first > second);
    let both = "server.1=[::1]:7412:7412:participant;[::1]:2181\nserver.2=b:7412:7412:participant;b:2181\n";
    assert_eq!(text(&mut replica), format!("{both}version={first:x}"));
    let node = replica.node("/zookeeper/config").unwrap();
    assert_eq!((node.mzxid, node.version), (first, 2));
    let told = replica.events();
    assert!(
        told.iter().all(
            |e| matches!(e, Event::Node { change: Change::DataSet, path, .. } if path == "/zookeeper/config")
        ) && told.len() == 2
    );
    // Announcing the same addresses again changes nothing, and no watch fires.
    assert_eq!(announce(&mut replica, 2, "b:7412", "b:2181"), Err(ErrorCode::NodeExists));
    announce(&mut replica, 2, "b:7412", "b:2999").unwrap();
    let forget = Command::Forget(Forget { nodes: vec![1, 9] });
    let (third, _) = replica.apply(proposer(1, 1), &forget).unwrap();
    assert_eq!(text(&mut replica), format!("server.2=b:7412:7412:participant;b:2999\nversion={third:x}"));
    assert_eq!(replica.apply(proposer(2, 1), &forget), Err(ErrorCode::NoNode));
    replica.audit();
}

#[test]
fn clients_do_not_write_it_and_no_address_makes_a_line() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let session = replica.open(me);
    let set = Request::SetData(SetDataRequest { path: "/zookeeper/config", data: Some(b"x"), version: -1 });
    assert_eq!(replica.write(me, session, &set), Err(ErrorCode::NoAuth));
    for bad in ["", "b", "b:x", "b:1\nserver.9=c:1", "b:1;c"] {
        assert_eq!(announce(&mut replica, 2, bad, "b:1"), Err(ErrorCode::BadArguments));
        assert_eq!(announce(&mut replica, 2, "b:1", bad), Err(ErrorCode::BadArguments));
    }
    assert_eq!(announce(&mut replica, -1, "b:1", "b:1"), Err(ErrorCode::BadArguments));
    for node in 1..=255 {
        announce(&mut replica, node, "b:1", "b:1").unwrap();
    }
    assert_eq!(announce(&mut replica, 256, "b:1", "b:1"), Err(ErrorCode::BadArguments));
}
