//! Imports of znodes from another ensemble into the replicated state.

use super::support::{Replica, proposer};
use atoll_db::Proposer;
use atoll_zookeeper::event::{Change, Event};
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id, Stat};
use atoll_zookeeper::jute::reply::ImportReply;
use atoll_zookeeper::jute::request::{
    CreateRequest, ImportNode, ImportRequest, Request, SetAclRequest, SetDataRequest,
};
use atoll_zookeeper::jute::{Jute, codes::perms};
use atoll_zookeeper::tree::node::{CONTAINER_OWNER, Lifetime};
use proptest::prelude::*;

const NEWEST: i64 = 0x7_0000_0123;

fn open() -> Vec<Acl<'static>> {
    vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }]
}

fn node(path: &str) -> ImportNode<'_> {
    ImportNode {
        path,
        data: Some(b"data"),
        acl: open(),
        czxid: 0x3_0000_0001,
        mzxid: 0x5_0000_0002,
        pzxid: NEWEST,
        ctime: 11,
        mtime: 12,
        version: 7,
        created: 2,
        aversion: 3,
        owner: 0,
        counted: true,
    }
}

fn import(
    replica: &mut Replica,
    by: Proposer,
    session: i64,
    replace: bool,
    nodes: &[ImportNode<'_>],
) -> Result<(i64, ImportReply), ErrorCode> {
    let asked = ImportRequest { newest: NEWEST, replace, nodes: nodes.to_vec() };
    let (zxid, body) = replica.write(by, session, &Request::Import(asked))?;
    Ok((zxid, ImportReply::parse(&body).unwrap()))
}

fn create<'a>(path: &'a str, mode: CreateMode) -> Request<'a> {
    Request::Create(CreateRequest { path, data: None, acl: open(), flags: mode.number() })
}

#[test]
fn stat_is_kept_and_later_changes_are_newer() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    let top = ImportNode { counted: false, created: 1, ..node("/a") };
    let (zxid, done) = import(&mut replica, me, s, false, &[top, node("/a/b")]).unwrap();
    assert_eq!(done, ImportReply { made: 2, replaced: 0, same: 0 });
    assert_eq!(zxid, 0x8_0000_0000, "above all that the other ensemble had");
    replica.audit();
    let expected = Stat {
        czxid: 0x3_0000_0001,
        mzxid: 0x5_0000_0002,
        ctime: 11,
        mtime: 12,
        version: 7,
        cversion: 1,
        aversion: 3,
        ephemeral_owner: 0,
        data_length: 4,
        num_children: 1,
        pzxid: NEWEST,
    };
    assert_eq!(replica.node("/a").unwrap().stat(), expected);
    let root = replica.node("/").unwrap();
    assert_eq!((root.pzxid, root.created, root.children), (zxid, 1, 2), "the root has got a child here");
    let set = SetDataRequest { path: "/a", data: None, version: 7 };
    let (later, _) = replica.write(me, s, &Request::SetData(set)).unwrap();
    assert_eq!(later, zxid + 1);
    assert!(replica.open(me) > 8 << 40, "and sessions have numbers of that epoch");
}

#[test]
fn what_is_there_is_an_error_unless_it_is_the_same_or_to_be_replaced() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    let long = vec![1_u8; 3000];
    let nodes =
        [ImportNode { counted: false, ..node("/a") }, ImportNode { data: Some(&long), ..node("/a/b") }];
    import(&mut replica, me, s, false, &nodes).unwrap();
    let before = replica.map.clone();
    let (_, again) = import(&mut replica, me, s, false, &nodes).unwrap();
    assert_eq!(again, ImportReply { made: 0, replaced: 0, same: 2 });
    let kept = replica.node("/a").unwrap();
    replica.map = before.clone();
    let other = [ImportNode { data: Some(b"other"), ..nodes[1].clone() }];
    assert_eq!(import(&mut replica, me, s, false, &other), Err(ErrorCode::NodeExists));
    assert_eq!(replica.map, before, "nothing of it was done");
    replica.events();
    let (zxid, done) = import(&mut replica, me, s, true, &other).unwrap();
    assert_eq!(done, ImportReply { made: 0, replaced: 1, same: 0 });
    assert!(
        matches!(&replica.events()[..], [Event::Node { change: Change::DataSet, path, zxid: z, .. }, Event::Counted { .. }] if path == "/a/b" && *z == zxid)
    );
    assert_eq!(replica.node("/a").unwrap(), kept);
    replica.audit();
}

#[test]
fn an_ephemeral_in_the_way_is_replaced_and_its_session_forgets_it() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    replica.write(me, s, &create("/a", CreateMode::Ephemeral)).unwrap();
    let below = ImportNode { counted: false, ..node("/a/b") };
    assert_eq!(import(&mut replica, me, s, true, &[below]), Err(ErrorCode::NoChildrenForEphemerals));
    let container = ImportNode { owner: CONTAINER_OWNER, ..node("/a") };
    import(&mut replica, me, s, true, &[container]).unwrap();
    assert_eq!(replica.node("/a").unwrap().lifetime, Lifetime::Container);
    replica.audit();
    import(&mut replica, me, s, true, &[node("/a")]).unwrap();
    assert_eq!(replica.node("/a").unwrap().lifetime, Lifetime::Persistent);
    replica.audit();
}

#[test]
fn what_no_state_may_have_is_refused_as_a_whole() {
    let me = proposer(1, 1);
    let mut replica = Replica::default();
    let s = replica.open(me);
    let good = ImportNode { counted: false, ..node("/good") };
    for (bad, code) in [
        (node("/a/"), ErrorCode::BadArguments),
        (node("/zookeeper/x"), ErrorCode::BadArguments),
        (ImportNode { owner: 0x1234, ..node("/e") }, ErrorCode::BadArguments),
        (ImportNode { czxid: -1, ..node("/z") }, ErrorCode::BadArguments),
        (ImportNode { pzxid: NEWEST + 1, ..node("/z") }, ErrorCode::BadArguments),
        (node("/none/x"), ErrorCode::NoNode),
        (ImportNode { acl: vec![open()[0]; 1025], ..node("/l") }, ErrorCode::InvalidAcl),
    ] {
        let before = replica.map.clone();
        assert_eq!(import(&mut replica, me, s, true, &[good.clone(), bad.clone()]), Err(code), "{bad:?}");
        assert_eq!(replica.map, before);
    }
    let far = ImportRequest { newest: i64::MAX, replace: false, nodes: Vec::new() };
    assert_eq!(
        replica.write(me, s, &Request::Import(far)),
        Err(ErrorCode::BadArguments),
        "no epoch is above"
    );
}

#[test]
fn who_has_not_all_permissions_on_the_root_imports_nothing() {
    let me = proposer(1, 1);
    for missing in [perms::READ, perms::WRITE, perms::CREATE, perms::DELETE, perms::ADMIN] {
        let mut replica = Replica::default();
        let s = replica.open(me);
        let acl = vec![Acl { perms: perms::ALL & !missing, id: Id { scheme: "world", id: "anyone" } }];
        replica.write(me, s, &Request::SetAcl(SetAclRequest { path: "/", acl, version: -1 })).unwrap();
        let top = ImportNode { counted: false, ..node("/a") };
        assert_eq!(import(&mut replica, me, s, false, &[top]), Err(ErrorCode::NoAuth));
    }
}

proptest! {
    /// However an import is divided into commands and repeated, the resulting state is the same.
    #[test]
    fn batches_do_not_matter(cuts in proptest::collection::vec(1_usize..5, 1..12), repeats in any::<bool>()) {
        let me = proposer(1, 1);
        let paths: Vec<String> = std::iter::once("/t".to_owned())
            .chain((0..12).map(|n| format!("/t/{n}")))
            .chain((0..6).map(|n| format!("/t/{n}/c")))
            .collect();
        let created = |path: &str| match path.matches('/').count() {
            1 => 12,
            2 if path.len() == 4 && path < "/t/6" => 1,
            _ => 0,
        };
        let nodes: Vec<ImportNode<'_>> = paths.iter()
            .map(|p| ImportNode { created: created(p), counted: p != "/t", ..node(p) })
            .collect();
        let run = |batches: &[&[ImportNode<'_>]]| {
            let mut replica = Replica::default();
            let s = replica.open(me);
            for batch in batches {
                import(&mut replica, me, s, false, batch).unwrap();
            }
            replica.audit();
            replica
        };
        let mut batches: Vec<&[ImportNode<'_>]> = Vec::new();
        let mut rest = &nodes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at((*cut).min(rest.len()));
            batches.push(now);
            if repeats {
                batches.push(now);
            }
            rest = later;
        }
        let (mut one, mut many) = (run(&[&nodes]), run(&batches));
        for path in &paths {
            prop_assert_eq!(one.node(path), many.node(path), "{}", path);
        }
    }
}
