//! Limits on what one client may cost the others: replies, state that is held, permissions, and requests that are refused before
//! they are replicated.

use super::client::{Client, create};
use super::served::{ask, door, door_and_engine, figure};
use atoll_zookeeper::Options;
use atoll_zookeeper::acl::digest_id;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode, xid};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::reply::{CountReply, GetAclReply, GetDataReply, ImportReply, NamesReply};
use atoll_zookeeper::jute::request::{
    AuthRequest, CreateRequest, CreateTtlRequest, ImportRequest, PathRequest, Request, SetAclRequest,
    SetDataRequest, SetWatches2Request, SetWatchesRequest, VersionRequest, WatchedRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiReadOp, MultiReadRequest, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::path::MAX_LEVELS;

fn watched(path: &str) -> WatchedRequest<'_> {
    WatchedRequest { path, watch: false }
}

fn get(path: &str) -> Request<'_> {
    Request::GetData(watched(path))
}

fn children(path: &str) -> Request<'_> {
    Request::GetChildren(watched(path))
}

fn add_auth(c: &mut Client, secret: &str) {
    let auth = AuthRequest { kind: 0, scheme: "digest", auth: Some(secret.as_bytes()) };
    c.send_as(xid::AUTH, &Request::Auth(auth));
    assert_eq!(c.answer(xid::AUTH).0, 0);
}

fn open() -> Vec<Acl<'static>> {
    vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }]
}

/// Creates many nodes in transactions.
fn create_many(c: &mut Client, paths: &[String], mode: CreateMode) {
    for some in paths.chunks(500) {
        let creation = |path| CreateRequest { path, data: None, acl: open(), flags: mode.number() };
        let ops = some.iter().map(|path| MultiOp::Create(creation(path.as_str()))).collect();
        assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, 0);
    }
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("/p/{n:05}")).collect()
}

fn many<'a>(op: MultiReadOp<'a>, times: usize) -> Request<'a> {
    Request::MultiRead(MultiReadRequest { ops: vec![op; times] })
}

#[test]
fn a_reply_that_would_be_too_long_is_an_error_and_the_connection_goes_on() {
    let mut c = Client::connect(door(Options { max_reply_bytes: 1 << 20, ..Options::default() }));
    let large = vec![7; 100_000];
    assert_eq!((c.create("/large", &large), c.create("/p", b"")), (0, 0));
    create_many(&mut c, &numbered(2_000), CreateMode::Persistent);
    let too_long = ErrorCode::MarshallingError.number();
    // The first request asks for 2 GB, with 20,000 operations in 360 kB.
    let asked = [
        many(MultiReadOp::GetData(watched("/large")), 20_000),
        many(MultiReadOp::GetData(watched("/large")), 11),
        many(MultiReadOp::GetChildren(watched("/p")), 1_000),
        many(MultiReadOp::GetData(watched("/large")), 10),
        many(MultiReadOp::GetData(watched("/none")), 10_000),
    ];
    // Send them one by one, then all at once: the replies keep their order.
    let expected = [too_long, too_long, too_long, 0, 0];
    let one_by_one: Vec<i32> = asked.iter().map(|request| c.call(request).0).collect();
    assert_eq!(one_by_one, expected);
    let xids: Vec<i32> = asked.iter().map(|request| c.ask(request)).collect();
    let piped: Vec<i32> = xids.into_iter().map(|xid| c.answer(xid).0).collect();
    assert_eq!(piped, expected);
    let (err, body) = c.call(&many(MultiReadOp::GetData(watched("/large")), 10));
    assert_eq!(err, 0);
    let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    assert!(row.iter().all(|r| matches!(r, MultiResult::GetData(Some(data), _) if *data == large)));
    assert_eq!((row.len(), c.call(&get("/large")).0), (10, 0));
}

#[test]
fn texts_of_quotas_are_short() {
    let mut c = Client::connect(door(Options::default()));
    let top = "/zookeeper/quota/a";
    let (limits, stats) = (format!("{top}/zookeeper_limits"), format!("{top}/zookeeper_stats"));
    let refused = ErrorCode::BadArguments.number();
    let (longest, long) = (vec![b','; 256], vec![b','; 257]);
    assert_eq!((c.create("/a", b""), c.create(top, b"")), (0, 0));
    for path in [&limits, &stats] {
        assert_eq!((c.create(path, &long), c.create(path, &longest)), (refused, 0), "{path}");
    }
    let set = |data| SetDataRequest { path: &limits, data: Some(data), version: -1 };
    assert_eq!(c.call(&Request::SetData(set(&long))).0, refused);
    assert_eq!(c.call(&Request::SetData(set(&longest))).0, 0);
    for ops in [
        vec![MultiOp::SetData(set(&long))],
        vec![MultiOp::Create(CreateRequest { path: &limits, data: Some(&long), acl: open(), flags: 0 })],
    ] {
        assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, refused);
    }
    assert_eq!(c.create("/a/zookeeper_limits", &long), 0, "no text of a quota");
}

/// A client with 63 proofs of its identity, each of which takes the place of `auth`. With duplicates, the length of the result is not
/// clear without making it, so few such lists are accepted.
#[test]
fn few_lists_of_a_transaction_are_made_whole_to_see_their_length() {
    let mut c = Client::connect(door(Options::default()));
    for n in 0..63 {
        add_auth(&mut c, &format!("a{n:02}:{}", "p".repeat(20)));
    }
    let auth = |perms| Acl { perms, id: Id { scheme: "auth", id: "" } };
    let acl: Vec<Acl<'_>> = [1, 2, 3, 4, 1, 2, 3, 4].map(auth).into();
    let many = |path, count| {
        let create = CreateRequest {
            path,
            data: None,
            acl: acl.clone(),
            flags: CreateMode::PersistentSequential.number(),
        };
        Request::Multi(MultiRequest { ops: vec![MultiOp::Create(create); count] })
    };
    assert_eq!(c.call(&many("/a", 65)).0, ErrorCode::InvalidAcl.number());
    let (err, body) = c.call(&many("/b", 64));
    let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    assert!(err == 0 && row.len() == 64 && row.iter().all(|r| matches!(r, MultiResult::Create(_))));
}

#[test]
fn no_watch_is_set_on_a_path_that_no_node_can_have() {
    let mut c = Client::connect(door(Options::default()));
    let path = format!("/{}", "p".repeat(16 * 1024));
    let exists = |path, watch| Request::Exists(WatchedRequest { path, watch });
    assert_eq!(c.call(&exists(&path, false)).0, ErrorCode::NoNode.number());
    assert_eq!(c.call(&exists(&path, true)).0, ErrorCode::SystemError.number());
    assert_eq!(c.call(&exists(&path[..16 * 1024], true)).0, ErrorCode::NoNode.number());
}

#[test]
fn lists_are_the_same_here_and_in_steps_elsewhere() {
    let mut c = Client::connect(door(Options::default()));
    assert_eq!(c.create("/p", b""), 0);
    let all = numbered(30_000);
    let names: Vec<&str> = all.iter().map(|path| &path[3..]).collect();
    let listed = |c: &mut Client, expected: &[&str]| {
        let (err, body) = c.call(&children("/p"));
        assert_eq!((err, NamesReply::parse(&body).unwrap().names == expected), (0, true));
        let (err, body) = c.call(&many(MultiReadOp::GetChildren(watched("/p")), 2));
        let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
        let is_whole =
            |r: &MultiResult<'_>| matches!(r, MultiResult::GetChildren(names) if names == expected);
        assert!(err == 0 && row.len() == 2 && row.iter().all(is_whole));
        let (err, body) = c.call(&Request::GetAllChildrenNumber(PathRequest { path: "/p" }));
        assert_eq!(
            (err, CountReply::parse(&body).unwrap().total),
            (0, i32::try_from(expected.len()).unwrap())
        );
        let (err, body) = c.call(&Request::GetEphemerals(PathRequest { path: "/p" }));
        let paths: Vec<String> = expected.iter().map(|name| format!("/p/{name}")).collect();
        let found = NamesReply::parse(&body).unwrap().names;
        assert_eq!((err, found == paths.iter().map(String::as_str).collect::<Vec<_>>()), (0, true));
    };
    create_many(&mut c, &all[..10], CreateMode::Ephemeral);
    listed(&mut c, &names[..10]);
    create_many(&mut c, &all[10..], CreateMode::Ephemeral);
    listed(&mut c, &names);
    // Deleted children are not listed, and do not slow down the lists.
    for some in all[10..].chunks(500) {
        let op = |path| MultiOp::Delete(VersionRequest { path, version: -1 });
        let ops = some.iter().map(|path| op(path.as_str())).collect();
        assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, 0);
    }
    for _ in 0..3 {
        listed(&mut c, &names[..10]);
    }
}

#[test]
fn a_client_that_has_read_and_is_idle_holds_no_state() {
    let (door, engine) = door_and_engine(Options { max_connections_of_address: 0, ..Options::default() });
    let mut writer = Client::connect(door);
    assert_eq!(writer.create("/hot", b""), 0);
    let idle: Vec<Client> = (0..100)
        .map(|n: u32| {
            let data = n.to_be_bytes();
            let set = SetDataRequest { path: "/hot", data: Some(&data), version: -1 };
            assert_eq!(writer.call(&Request::SetData(set)).0, 0);
            let mut reader = Client::connect(door);
            let (_, body) = reader.call(&get("/hot"));
            assert_eq!(GetDataReply::parse(&body).unwrap().data, Some(&data[..]));
            reader
        })
        .collect();
    // Every write comes after the reader's turn has ended.
    assert_eq!(writer.call(&get("/hot")).0, 0);
    let held = engine.held_versions();
    assert!(held <= 3, "{held} states are held for {} clients that wait for nothing", idle.len());
}

#[test]
fn only_the_superuser_imports_and_nobody_uses_up_the_epochs() {
    let super_digest = Some(digest_id("root:toor"));
    let mut c = Client::connect(door(Options { super_digest, ..Options::default() }));
    let import = |newest: i64| Request::Import(ImportRequest { newest, replace: true, nodes: Vec::new() });
    // Everybody has all permissions on / here.
    for newest in [1, i64::MAX] {
        assert_eq!(c.call(&import(newest)).0, ErrorCode::NoAuth.number());
    }
    add_auth(&mut c, "root:toor");
    for newest in [-1, i64::MAX, 0x40_0000 << 32] {
        assert_eq!(c.call(&import(newest)).0, ErrorCode::BadArguments.number(), "{newest:#x}");
    }
    let (err, body) = c.call(&import(0x3f_ffff << 32));
    assert_eq!((err, ImportReply::parse(&body).unwrap()), (0, ImportReply::default()));
    assert_eq!(c.create("/after", b""), 0);
    assert!(c.newest >> 32 == 0x40_0000, "{:#x}", c.newest);
}

#[test]
fn what_would_cost_every_node_much_is_refused_before_it_is_replicated() {
    let mut c = Client::connect(door(Options::default()));
    let mut path = String::new();
    for _ in 0..MAX_LEVELS {
        path.push_str("/x");
        assert_eq!(c.create(&path, b""), 0);
    }
    let deep = format!("{path}/x");
    let bad = ErrorCode::BadArguments.number();
    assert_eq!(c.create(&deep, b""), bad);
    let Request::Create(of_multi) = create(&deep, b"") else { panic!("a create") };
    let ops = vec![MultiOp::Create(of_multi)];
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, bad);
    assert_eq!(c.call(&get(&deep)).0, ErrorCode::NoNode.number());
    // A node's ACL is rewritten with each of its children.
    let long = format!("{}:x", "u".repeat(20_000));
    let acl = vec![Acl { perms: 31, id: Id { scheme: "digest", id: &long } }];
    let invalid = ErrorCode::InvalidAcl.number();
    let of_create = CreateRequest { path: "/l", data: None, acl: acl.clone(), flags: 0 };
    assert_eq!(c.call(&Request::Create(of_create.clone())).0, invalid);
    let ops = vec![MultiOp::Create(of_create)];
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, invalid);
    assert_eq!(c.call(&Request::SetAcl(SetAclRequest { path: "/x", acl, version: -1 })).0, invalid);
}

#[test]
fn auth_stands_for_no_more_entries_than_a_list_may_have() {
    let mut c = Client::connect(door(Options::default()));
    // With the address, these are all ids that a connection keeps.
    (0..63).for_each(|n| add_auth(&mut c, &format!("a{n}:p")));
    let auth = Id { scheme: "auth", id: "" };
    let auths = |count: i32| (1..=count).map(|perms| Acl { perms, id: auth }).collect::<Vec<_>>();
    let made = |acl: Vec<Acl<'static>>| CreateRequest { path: "/l", data: None, acl, flags: 0 };
    let invalid = ErrorCode::InvalidAcl.number();
    // 6.4 KB as it is sent, 1.2 MB as it would be kept, or 3 MB for the longest one.
    for count in [400, 1_024] {
        let ops = vec![MultiOp::Create2(made(open())), MultiOp::Create(made(auths(count)))];
        assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, invalid, "{count} in a transaction");
        assert_eq!(c.call(&Request::Create(made(auths(count)))).0, invalid, "{count}");
        let set = SetAclRequest { path: "/", acl: auths(count), version: -1 };
        assert_eq!(c.call(&Request::SetAcl(set)).0, invalid, "{count} in a setACL");
    }
    assert_eq!(c.call(&get("/l")).0, ErrorCode::NoNode.number(), "nothing of this happened");
    let ops = vec![MultiOp::Create(made(auths(5)))];
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, 0);
    let (err, body) = c.call(&Request::GetAcl(PathRequest { path: "/l" }));
    assert_eq!((err, GetAclReply::parse(&body).unwrap().acl.len()), (0, 5 * 63));
}

#[test]
fn a_superuser_can_set_the_list_that_it_is_shown() {
    let super_digest = Some(digest_id("root:toor"));
    let mut c = Client::connect(door(Options { super_digest, ..Options::default() }));
    add_auth(&mut c, "root:toor");
    add_auth(&mut c, "ann:p");
    let acl = vec![Acl { perms: 31, id: Id { scheme: "auth", id: "" } }];
    let made = |path| CreateRequest { path, data: None, acl: acl.clone(), flags: 0 };
    assert_eq!(c.call(&Request::Create(made("/one"))).0, 0);
    assert_eq!(c.create("/set", b""), 0);
    let set = SetAclRequest { path: "/set", acl: acl.clone(), version: -1 };
    assert_eq!(c.call(&Request::SetAcl(set)).0, 0);
    let ttl = CreateTtlRequest { path: "/many/b", data: None, acl: acl.clone(), flags: 5, ttl_ms: 1_000_000 };
    let ops = vec![MultiOp::Create2(made("/many")), MultiOp::CreateTtl(ttl)];
    let check = MultiOp::Check(VersionRequest { path: "/one", version: 0 });
    let ops = [ops, vec![check]].concat();
    assert_eq!(c.call(&Request::Multi(MultiRequest { ops })).0, 0);
    let (root, ann) = (digest_id("root:toor"), digest_id("ann:p"));
    for path in ["/one", "/set", "/many", "/many/b"] {
        let (err, body) = c.call(&Request::GetAcl(PathRequest { path }));
        let shown = GetAclReply::parse(&body).unwrap().acl;
        let expected = [&root, &ann].map(|id| Acl { perms: 31, id: Id { scheme: "digest", id } });
        assert_eq!((err, &shown[..]), (0, &expected[..]), "{path}");
        assert_eq!(c.call(&Request::SetAcl(SetAclRequest { path, acl: shown, version: -1 })).0, 0, "{path}");
    }
}

#[test]
fn as_many_watches_as_a_frame_holds_are_left_and_told() {
    let mut c = Client::connect(door(Options::default()));
    let paths: Vec<String> = (0..60_000).map(|n| format!("/w{n}")).collect();
    let all: Vec<&str> = paths.iter().map(String::as_str).collect();
    let exist = all[..30_000].to_vec();
    let data = all[59_990..].to_vec();
    let one_time = SetWatchesRequest { relative_zxid: 0, data, exist, child: Vec::new() };
    let persistent = all[30_000..59_000].to_vec();
    let asked = SetWatches2Request { one_time, persistent, recursive: Vec::new() };
    assert_eq!(c.call(&Request::SetWatches2(asked)).0, 0);
    // The data watches are on nodes that do not exist.
    assert_eq!(c.told().len(), 10);
    for path in ["/w0", "/w29999", "/w30000", "/w58999", "/w59000"] {
        assert_eq!(c.create(path, b""), 0);
    }
    assert_eq!(
        c.told().into_iter().map(|(_, path)| path).collect::<Vec<_>>(),
        ["/w0", "/w29999", "/w30000", "/w58999"]
    );
}

/// Returns a path of 10,000 bytes.
fn long(n: usize) -> String {
    format!("/{n:05}{}", "x".repeat(9_994))
}

fn watch(path: &str) -> Request<'_> {
    Request::Exists(WatchedRequest { path, watch: true })
}

#[test]
fn watches_have_a_bound_and_one_that_is_refused_is_an_error() {
    let limits =
        Options { max_watch_bytes_of_connection: 105_000, max_watch_bytes: 150_000, ..Options::default() };
    let at = door(limits);
    let (mut c, no_node) = (Client::connect(at), ErrorCode::NoNode.number());
    let full = ErrorCode::SystemError.number();
    let paths: Vec<String> = (0..12).map(long).collect();
    let asked: Vec<i32> = paths.iter().map(|path| c.call(&watch(path)).0).collect();
    assert_eq!(asked, [vec![no_node; 10], vec![full; 2]].concat());
    // A watch that already exists needs no more room, and a read without a watch needs none.
    assert_eq!(c.call(&watch(&paths[0])).0, no_node);
    assert_eq!(c.call(&Request::Exists(watched(&paths[11]))).0, no_node);
    assert_eq!(figure(at, "zk_watches_refused"), 2.0);
    // A second connection gets what is left of the total. A third one, whose setWatches does not fit, is closed, because clients
    // overlook an error in that reply.
    let mut other = Client::connect(at);
    let asked: Vec<i32> = paths.iter().take(5).map(|path| other.call(&watch(path)).0).collect();
    assert_eq!(asked, [no_node, no_node, no_node, no_node, full]);
    let brings = |paths: Vec<&'static str>| {
        let none = Vec::new();
        let one_time =
            SetWatchesRequest { relative_zxid: 0, data: none.clone(), exist: paths, child: none.clone() };
        Request::SetWatches2(SetWatches2Request { one_time, persistent: none.clone(), recursive: none })
    };
    let many: Vec<&'static str> = (20..30).map(|n| &*long(n).leak()).collect();
    let mut third = Client::connect(at);
    third.send_as(xid::SET_WATCHES, &brings(many));
    assert!(third.is_ended());
    // A connection that ends frees its room.
    drop(c);
    let made = std::iter::repeat_with(|| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        other.call(&watch(&paths[4])).0
    });
    assert_eq!(made.take(500).find(|err| *err != full), Some(no_node));
}

#[test]
fn texts_of_what_clients_have_left_end_and_say_what_is_left_out() {
    let at = door(Options { words: vec!["*".to_owned()], ..Options::default() });
    let mut c = Client::connect(at);
    assert_eq!(c.create("/p", b""), 0);
    let paths: Vec<String> = (0..110).map(long).collect();
    for path in &paths {
        assert_eq!(c.call(&watch(path)).0, ErrorCode::NoNode.number());
    }
    let texts = ["wchc", "wchp"].map(|word| ask(at, word));
    for (text, left) in texts.iter().zip(["1 of 1 connections", "6 of 110 paths"]) {
        assert!(text.len() < 1_050_000, "{}", text.len());
        let last = text.lines().next_back().unwrap();
        assert!(last.starts_with("LEFT OUT: ") && last.contains(left), "{last}");
    }
    let below: Vec<String> = paths.iter().map(|path| format!("/p{path}")).collect();
    for path in &below {
        assert_eq!(c.call(&create_ephemeral(path)).0, 0);
    }
    let text = ask(at, "dump");
    let last = text.lines().next_back().unwrap();
    assert!(text.len() < 1_050_000 && last.contains("1 of 1 sessions with their ephemerals"), "{last}");
    assert!(!ask(at, "srvr").contains("LEFT OUT"));
}

fn create_ephemeral(path: &str) -> Request<'_> {
    let flags = CreateMode::Ephemeral.number();
    Request::Create(CreateRequest { path, data: None, acl: open(), flags })
}
