//! Znodes in the replicated state.

use super::support::{Outcome, Replica, proposer};
use atoll_zookeeper::command::{CloseSession, Command, Reap};
use atoll_zookeeper::event::Event;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::reply::{Create2Reply, PathReply};
use atoll_zookeeper::jute::request::{
    CreateRequest, CreateTtlRequest, Request, SetAclRequest, SetDataRequest, VersionRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};
use proptest::prelude::*;

fn open() -> Vec<Acl<'static>> {
    vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }]
}

fn create(path: &str, mode: CreateMode) -> CreateRequest<'_> {
    CreateRequest { path, data: Some(b"x"), acl: open(), flags: mode.number() }
}

fn path_of(outcome: Outcome) -> String {
    PathReply::parse(&outcome.unwrap().1).unwrap().path.to_owned()
}

#[test]
fn data_lies_in_the_node_or_apart_and_survives_its_children() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    for (path, length) in [("/in", 1024), ("/apart", 1025)] {
        let data = vec![7; length];
        let new = CreateRequest { data: Some(&data), ..create(path, CreateMode::Persistent) };
        replica.write(me, s, &Request::Create(new)).unwrap();
        let child = format!("{path}/child");
        replica.write(me, s, &Request::Create(create(&child, CreateMode::Persistent))).unwrap();
        assert_eq!(replica.node(path).unwrap().data.length(), length);
        replica.audit();
        let (long, longer) = (vec![3_u8; 1_000_001], vec![4_u8; 3_000_000]);
        for data in [
            Some(&[1_u8; 2000][..]),
            Some(b"small"),
            None,
            Some(&long),
            Some(&longer),
            Some(&long),
            Some(&[2; 1500]),
            Some(&longer),
        ] {
            let set = Request::SetData(SetDataRequest { path, data, version: -1 });
            replica.write(me, s, &set).unwrap();
            assert_eq!(replica.node(path).unwrap().data.length(), data.map_or(0, <[u8]>::len));
            replica.audit();
        }
        let delete = |path| Request::Delete(VersionRequest { path, version: -1 });
        assert_eq!(replica.write(me, s, &delete(path)), Err(ErrorCode::NotEmpty));
        replica.write(me, s, &delete(&child)).unwrap();
        replica.write(me, s, &delete(path)).unwrap();
        replica.audit();
    }
}

#[test]
fn numbers_count_what_was_made_not_what_is_there() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    replica.write(me, s, &Request::Create(create("/q", CreateMode::Persistent))).unwrap();
    let next = |replica: &mut Replica| {
        path_of(replica.write(me, s, &Request::Create(create("/q/n-", CreateMode::PersistentSequential))))
    };
    assert_eq!(next(&mut replica), "/q/n-0000000000");
    assert_eq!(next(&mut replica), "/q/n-0000000001");
    let delete = Request::Delete(VersionRequest { path: "/q/n-0000000001", version: 0 });
    replica.write(me, s, &delete).unwrap();
    assert_eq!(next(&mut replica), "/q/n-0000000002");
    let parent = replica.node("/q").unwrap().stat();
    assert_eq!((parent.cversion, parent.num_children), (4, 2));
    let only_number = Request::Create(create("/q/", CreateMode::EphemeralSequential));
    assert_eq!(path_of(replica.write(me, s, &only_number)), "/q/0000000003");
}

#[test]
fn a_transaction_is_done_as_a_whole_or_not_at_all() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    let before = replica.map.clone();
    let ops = vec![
        MultiOp::Create(create("/t", CreateMode::Persistent)),
        MultiOp::Create2(create("/t/a", CreateMode::Ephemeral)),
        MultiOp::Check(VersionRequest { path: "/t", version: 3 }),
        MultiOp::Delete(VersionRequest { path: "/t/a", version: 0 }),
    ];
    let (_, results) = replica.write(me, s, &Request::Multi(MultiRequest { ops: ops.clone() })).unwrap();
    let expected = [None, None, Some(ErrorCode::BadVersion), Some(ErrorCode::RuntimeInconsistency)];
    let results = MultiResult::read_row(&mut Reader::new(&results)).unwrap();
    assert_eq!(results, expected.map(MultiResult::Error));
    assert_eq!(replica.map, before, "keys and events are as they were");

    let mut ops = ops;
    ops[2] = MultiOp::Check(VersionRequest { path: "/t", version: 0 });
    let (zxid, _) = replica.write(me, s, &Request::Multi(MultiRequest { ops })).unwrap();
    let node = replica.node("/t").unwrap();
    assert_eq!((node.czxid, node.pzxid, node.created, node.children), (zxid, zxid, 1, 0));

    let checks = MultiRequest { ops: vec![MultiOp::Check(VersionRequest { path: "/t", version: 0 })] };
    let (checked, _) = replica.write(me, s, &Request::Multi(checks)).unwrap();
    assert_eq!((checked, replica.events().pop()), (zxid + 1, Some(Event::Counted { zxid: zxid + 1 })));
    replica.audit();
}

#[test]
fn containers_and_nodes_past_their_time_go_and_no_others() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    replica.time_ms = 1_000;
    let s = replica.open(me);
    replica.write(me, s, &Request::CreateContainer(create("/c", CreateMode::Container))).unwrap();
    let ttl = |path, ttl_ms| {
        let flags = CreateMode::PersistentWithTtl.number();
        Request::CreateTtl(CreateTtlRequest { path, data: None, acl: open(), flags, ttl_ms })
    };
    let (_, body) = replica.write(me, s, &ttl("/t", 500)).unwrap();
    assert_eq!(Create2Reply::parse(&body).unwrap().stat.ephemeral_owner, 0);
    for bad in [0, -1, 1 << 41] {
        assert_eq!(replica.write(me, s, &ttl("/bad", bad)), Err(ErrorCode::BadArguments));
    }
    replica.write(me, s, &Request::Create(create("/p", CreateMode::Persistent))).unwrap();
    let reap = Command::Reap(Reap { paths: vec!["/c", "/t", "/p", "/none", "/"] });
    replica.time_ms = 1_500;
    assert_eq!(
        replica.apply(me, &reap),
        Err(ErrorCode::NoNode),
        "a container that had no child, and a time not past"
    );
    replica.write(me, s, &Request::Create(create("/c/x", CreateMode::Persistent))).unwrap();
    replica.time_ms = 1_501;
    replica.apply(me, &reap).unwrap();
    assert!(replica.node("/c").is_some() && replica.node("/t").is_none());
    replica.write(me, s, &Request::Delete(VersionRequest { path: "/c/x", version: -1 })).unwrap();
    replica.apply(me, &reap).unwrap();
    assert!(replica.node("/c").is_none() && replica.node("/p").is_some());
    replica.audit();
}

#[test]
fn who_may_not_changes_nothing() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    replica.write(me, s, &Request::Create(create("/p", CreateMode::Persistent))).unwrap();
    let only = |perms, scheme, id| vec![Acl { perms, id: Id { scheme, id } }];
    let set = |acl| Request::SetAcl(SetAclRequest { path: "/p", acl, version: -1 });
    assert_eq!(replica.write(me, s, &set(only(31, "auth", ""))), Err(ErrorCode::InvalidAcl));
    replica.write(me, s, &set(only(1, "world", "anyone"))).unwrap();
    let refused = [
        set(open()),
        Request::SetData(SetDataRequest { path: "/p", data: None, version: -1 }),
        Request::Create(create("/p/x", CreateMode::Persistent)),
    ];
    for request in refused {
        assert_eq!(replica.write(me, s, &request), Err(ErrorCode::NoAuth), "{request:?}");
    }
    // Deleting a node requires the DELETE permission on its parent.
    replica.write(me, s, &Request::Delete(VersionRequest { path: "/p", version: -1 })).unwrap();
    assert_eq!(
        replica.write(me, s, &Request::Delete(VersionRequest { path: "/zookeeper", version: -1 })),
        Err(ErrorCode::BadArguments)
    );
}

#[derive(Clone, Debug)]
enum Step {
    Create(String, usize, usize),
    Delete(String, i32),
    Set(String, usize),
    Multi(Vec<Step>),
    Close,
    Reap(Vec<String>, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let path = "(/[ab]){1,3}";
    let leaf = prop_oneof![
        4 => (path, 0..6_usize, 0..2000_usize).prop_map(|(p, mode, n)| Step::Create(p, mode, n)),
        2 => (path, -1..2_i32).prop_map(|(p, v)| Step::Delete(p, v)),
        2 => (path, 0..3000_usize).prop_map(|(p, n)| Step::Set(p, n)),
    ];
    prop_oneof![
        8 => leaf.clone(),
        2 => proptest::collection::vec(leaf, 0..4).prop_map(Step::Multi),
        1 => Just(Step::Close),
        1 => (proptest::collection::vec(path, 0..4), 0..100_u64).prop_map(|(p, ms)| Step::Reap(p, ms)),
    ]
}

const DATA: [u8; 3000] = [3; 3000];

fn op(step: &Step) -> Option<MultiOp<'_>> {
    Some(match step {
        Step::Create(path, mode, n) => {
            let (path, data, acl) = (path.as_str(), Some(&DATA[..*n]), open());
            match CreateMode::ALL[*mode] {
                CreateMode::PersistentWithTtl => {
                    MultiOp::CreateTtl(CreateTtlRequest { path, data, acl, flags: 5, ttl_ms: 20 })
                }
                mode => MultiOp::Create(CreateRequest { path, data, acl, flags: mode.number() }),
            }
        }
        Step::Delete(path, version) => MultiOp::Delete(VersionRequest { path, version: *version }),
        Step::Set(path, n) => MultiOp::SetData(SetDataRequest { path, data: Some(&DATA[..*n]), version: -1 }),
        _ => return None,
    })
}

proptest! {
    #[test]
    fn whatever_is_done_the_keys_agree(steps in proptest::collection::vec(step(), 0..60)) {
        let me = proposer(1, 1);
        let mut replica = Replica::default();
        let mut session = replica.open(me);
        let mut newest = 0;
        for step in &steps {
            let before = replica.map.clone();
            let outcome = match step {
                Step::Close => {
                    let close = Command::Close(CloseSession { session, moves: 0 });
                    let closed = replica.apply(me, &close);
                    session = replica.open(me);
                    closed
                }
                Step::Reap(paths, ms) => {
                    replica.time_ms += ms;
                    replica.apply(me, &Command::Reap(Reap { paths: paths.iter().map(String::as_str).collect() }))
                }
                Step::Multi(parts) => {
                    let ops = parts.iter().filter_map(op).collect();
                    replica.write(me, session, &Request::Multi(MultiRequest { ops }))
                }
                single => {
                    let ops = op(single).into_iter().collect();
                    replica.write(me, session, &Request::Multi(MultiRequest { ops }))
                }
            };
            match outcome {
                Ok((zxid, _)) => {
                    prop_assert!(zxid >= newest);
                    newest = zxid;
                }
                Err(_) => prop_assert!(replica.map == before, "a refused command changed something"),
            }
            replica.audit();
        }
    }
}
