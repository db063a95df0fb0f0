//! Quotas in the replicated state: what ZooKeeper's command line writes, and its effect on the tree.

use super::support::{Map, Outcome, Replica, proposer};
use atoll_db::{ApplyAt, KeyRange, LogPos, Proposer};
use atoll_zookeeper::command::{CloseSession, Command, WriteHead};
use atoll_zookeeper::event::Event;
use atoll_zookeeper::jute::Reader;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{
    CreateRequest, ImportNode, ImportRequest, Request, SetDataRequest, VersionRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use atoll_zookeeper::tree::application::apply;
use atoll_zookeeper::tree::node::{Data, Node};
use atoll_zookeeper::tree::state::Keys;
use bytes::Bytes;
use proptest::prelude::*;

const DATA: [u8; 3000] = [3; 3000];

fn open() -> Vec<Acl<'static>> {
    vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }]
}

fn creation<'a>(path: &'a str, data: &'a [u8], mode: CreateMode) -> CreateRequest<'a> {
    CreateRequest { path, data: Some(data), acl: open(), flags: mode.number() }
}

struct Bench {
    replica: Replica,
    me: Proposer,
    session: i64,
}

impl Bench {
    fn new(enforce: bool) -> Bench {
        let me = proposer(1, 1);
        let mut replica = Replica::default();
        replica.enforce_quota = enforce;
        let session = replica.open(me);
        Bench { replica, me, session }
    }

    fn write(&mut self, request: &Request<'_>) -> Outcome {
        let outcome = self.replica.write(self.me, self.session, request);
        self.replica.audit();
        outcome
    }

    fn create(&mut self, path: &str, bytes: usize) -> Outcome {
        self.write(&Request::Create(creation(path, &DATA[..bytes], CreateMode::Persistent)))
    }

    fn set(&mut self, path: &str, data: &[u8]) -> Outcome {
        self.write(&Request::SetData(SetDataRequest { path, data: Some(data), version: -1 }))
    }

    fn delete(&mut self, path: &str) -> Outcome {
        self.write(&Request::Delete(VersionRequest { path, version: -1 }))
    }

    /// Sets a quota the way ZooKeeper's `setquota` does.
    fn set_quota(&mut self, path: &str, limits: &str) {
        let top = format!("/zookeeper/quota{path}");
        let parts: Vec<usize> = top.match_indices('/').map(|(at, _)| at).collect();
        for end in parts.into_iter().skip(3).chain([top.len()]) {
            let made = self.write(&Request::Create(creation(&top[..end], b"", CreateMode::Persistent)));
            assert!(matches!(made, Ok(_) | Err(ErrorCode::NodeExists)), "{}", &top[..end]);
        }
        let (limit, stats) = (format!("{top}/zookeeper_limits"), format!("{top}/zookeeper_stats"));
        self.write(&Request::Create(creation(&limit, limits.as_bytes(), CreateMode::Persistent))).unwrap();
        let unset = b"count=-1,bytes=-1";
        self.write(&Request::Create(creation(&stats, unset, CreateMode::Persistent))).unwrap();
    }

    fn stats(&mut self, path: &str) -> String {
        let node = self.replica.node(&format!("/zookeeper/quota{path}/zookeeper_stats")).unwrap();
        assert_eq!((node.version, node.mzxid), (0, node.czxid), "counting is no change");
        match node.data {
            Data::Here(text) => String::from_utf8(text.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    fn told(&mut self) -> usize {
        self.replica.events().iter().filter(|e| matches!(e, Event::OverQuota { .. })).count()
    }
}

#[test]
fn what_is_there_is_counted_when_a_quota_is_set_and_from_then_on() {
    let mut bench = Bench::new(false);
    for (path, bytes) in [("/q", 1), ("/q/a", 3), ("/q/a/b", 1500), ("/other", 10)] {
        bench.create(path, bytes).unwrap();
    }
    bench.set_quota("/q", "count=3,bytes=-1=;byteHardLimit=-1;countHardLimit=-1");
    assert_eq!(bench.stats("/q"), "count=3,bytes=1504");
    bench.create("/q/c", 10).unwrap();
    assert_eq!((bench.stats("/q").as_str(), bench.told()), ("count=4,bytes=1514", 1));
    bench.set("/q/a/b", b"ab").unwrap();
    bench.delete("/q/c").unwrap();
    bench.create("/other/x", 10).unwrap();
    assert_eq!((bench.stats("/q").as_str(), bench.told()), ("count=3,bytes=6", 0));
    bench.write(&Request::Create(creation("/q/e", &DATA[..7], CreateMode::Ephemeral))).unwrap();
    assert_eq!(bench.stats("/q"), "count=4,bytes=13");
    let close = Command::Close(CloseSession { session: bench.session, moves: 0 });
    bench.replica.apply(bench.me, &close).unwrap();
    assert_eq!(bench.stats("/q"), "count=3,bytes=6", "what goes with a session is counted, too");
}

#[test]
fn hard_limits_refuse_what_goes_above_where_they_are_enforced() {
    for enforce in [true, false] {
        let mut bench = Bench::new(enforce);
        bench.create("/q", 0).unwrap();
        bench.create("/q/a", 15).unwrap();
        bench.set_quota("/q", "count=1,bytes=1=;byteHardLimit=20;countHardLimit=3");
        let expect = |outcome: Outcome| match outcome {
            Err(code) => enforce && code == ErrorCode::QuotaExceeded,
            Ok(_) => !enforce,
        };
        bench.create("/q/b", 5).unwrap();
        assert_eq!(bench.told(), 0, "a hard limit replaces the soft one");
        assert!(expect(bench.create("/q/c", 0)), "the fourth node");
        assert!(expect(bench.set("/q/a", &DATA[..16])), "the 21st byte");
        assert_eq!(bench.told() > 0, !enforce);
        bench.set("/q/a", b"").unwrap();
        bench.delete("/q/b").unwrap();
        bench.create("/elsewhere", 100).unwrap();
    }
}

#[test]
fn transactions_and_the_quota_s_end() {
    let mut bench = Bench::new(true);
    bench.create("/q", 0).unwrap();
    bench.set_quota("/q", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2");
    let ops = ["/q/a", "/q/b"].map(|path| MultiOp::Create(creation(path, b"", CreateMode::Persistent)));
    let (_, body) = bench.write(&Request::Multi(MultiRequest { ops: ops.to_vec() })).unwrap();
    let results = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    assert_eq!(results[1], MultiResult::Error(Some(ErrorCode::QuotaExceeded)), "{results:?}");
    assert_eq!(bench.stats("/q"), "count=1,bytes=0", "none of it was done");
    bench.delete("/zookeeper/quota/q/zookeeper_stats").unwrap();
    bench.delete("/zookeeper/quota/q/zookeeper_limits").unwrap();
    for path in ["/q/a", "/q/b", "/q/c"] {
        bench.create(path, 1).unwrap();
    }
    bench.set_quota("/q", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=4");
    assert_eq!(bench.create("/q/d", 0), Err(ErrorCode::QuotaExceeded));
    let imported = ImportNode {
        path: "/q/d",
        data: Some(b"12"),
        acl: open(),
        czxid: 1,
        mzxid: 1,
        pzxid: 1,
        ctime: 1,
        mtime: 1,
        version: 0,
        created: 0,
        aversion: 0,
        owner: 0,
        counted: false,
    };
    let import = ImportRequest { newest: 1, replace: false, nodes: vec![imported] };
    bench.write(&Request::Import(import)).unwrap();
    assert_eq!(bench.stats("/q"), "count=5,bytes=5", "imports are counted, and not stopped");
}

#[test]
fn the_nearest_limit_counts_and_the_root_has_none() {
    let mut bench = Bench::new(true);
    for path in ["/q", "/q/in"] {
        bench.create(path, 0).unwrap();
    }
    bench.set_quota("/q", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=2");
    bench.set_quota("/q/in", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=9");
    bench.create("/q/in/x", 0).unwrap();
    assert_eq!(
        (bench.stats("/q").as_str(), bench.stats("/q/in").as_str()),
        ("count=2,bytes=0", "count=2,bytes=0")
    );
    assert_eq!(bench.create("/q/x", 0), Err(ErrorCode::QuotaExceeded));
    bench.create("/zookeeper/quota/zookeeper_limits", 0).unwrap();
    bench.create("/free", 0).unwrap();
}

proptest! {
    #[test]
    fn counts_are_those_of_the_subtree(
        steps in proptest::collection::vec(("/[ab](/[ab]){0,2}", 0..5_usize, 0..1500_usize), 1..60),
        at in 0..20_usize,
    ) {
        let mut bench = Bench::new(false);
        for (number, (path, kind, bytes)) in steps.iter().enumerate() {
            if number == at {
                bench.set_quota("/a", "count=5,bytes=5=;byteHardLimit=-1;countHardLimit=-1");
            }
            // Many of these writes are refused.
            let _ = match kind {
                0 => bench.write(&Request::Create(creation(path, &DATA[..*bytes], CreateMode::Ephemeral))),
                1 => bench.delete(path),
                2 => bench.set(path, &DATA[..*bytes]),
                _ => bench.create(path, *bytes),
            };
            if number >= at {
                let (nodes, held) = bench.replica.subtree("/a");
                prop_assert_eq!(bench.stats("/a"), format!("count={nodes},bytes={held}"));
            }
        }
    }
}

/// The store of a replica that counts its lookups.
#[derive(Default)]
struct Counting {
    map: Map,
    /// The number of lookups, and the bytes of their keys.
    gets: usize,
    get_bytes: usize,
}

impl Counting {
    fn write(&mut self, me: Proposer, session: i64, request: &Request<'_>) {
        let mut body = Vec::new();
        request.write(&mut body);
        let ids = vec![Id { scheme: "ip", id: "127.0.0.1" }];
        let op = request.op().number();
        let head = WriteHead { session, moves: 0, ids, op, enforce_quota: true };
        let at = ApplyAt { position: LogPos(1_000_000), index: 0, proposer: me, time_ms: 0, version: 1 };
        apply(&at, &Command::Write(head, &body).to_bytes(), self).unwrap();
    }
}

impl Keys for Counting {
    fn get(&mut self, key: &[u8]) -> Option<Bytes> {
        (self.gets, self.get_bytes) = (self.gets + 1, self.get_bytes + key.len());
        self.map.get(key)
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>) {
        self.map.put(key, value);
    }

    fn delete(&mut self, key: &[u8]) {
        self.map.delete(key);
    }

    fn first(&mut self, range: &KeyRange, limit: usize) -> Vec<(Bytes, Bytes)> {
        self.map.first(range, limit)
    }

    fn emit(&mut self, event: Event) {
        self.map.emit(event);
    }
}

/// A client may write any number into the usage. Adding to it must not stop the replicas.
#[test]
fn usage_that_a_client_made_up_wraps_as_in_zookeeper() {
    for (count, next) in [(i64::MAX, i64::MIN), (i64::MIN, i64::MIN + 1)] {
        let mut bench = Bench::new(true);
        bench.create("/q", 0).unwrap();
        bench.set_quota("/q", "count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=-1");
        let stats = "/zookeeper/quota/q/zookeeper_stats";
        bench.set(stats, format!("count={count},bytes={count}").as_bytes()).unwrap();
        bench.create("/q/a", 1).unwrap();
        match bench.replica.node(stats).unwrap().data {
            Data::Here(text) => assert_eq!(text, format!("count={next},bytes={next}")),
            other => panic!("{other:?}"),
        }
        bench.delete("/q/a").unwrap();
    }
}

#[test]
fn the_search_for_a_quota_costs_no_more_with_the_depth_of_the_path() {
    let mut bench = Bench::new(false);
    bench.create("/q", 0).unwrap();
    bench.set_quota("/q", "count=3,bytes=-1");
    let mut counting = Counting { map: bench.replica.map.clone(), ..Counting::default() };
    let apply_one =
        |counting: &mut Counting, request: &Request<'_>| counting.write(bench.me, bench.session, request);
    let mut deep = String::new();
    for _ in 0..4_000 {
        deep.push_str("/x");
        apply_one(&mut counting, &Request::Create(creation(&deep, b"", CreateMode::Persistent)));
    }
    (counting.gets, counting.get_bytes) = (0, 0);
    let data = Some(&b"1"[..]);
    apply_one(&mut counting, &Request::SetData(SetDataRequest { path: &deep, data, version: -1 }));
    let (gets, bytes) = (counting.gets, counting.get_bytes);
    assert!(
        gets <= 20 && bytes <= 10 * deep.len(),
        "{gets} keys of {bytes} bytes for a path of {}",
        deep.len()
    );
}

#[test]
fn a_transaction_searches_a_deep_quota_once() {
    let mut bench = Bench::new(false);
    let (mut top, mut tops) = (String::new(), Vec::new());
    for _ in 0..250 {
        top.push_str("/x");
        tops.push(top.clone());
        bench.create(&top, 0).unwrap();
    }
    // Building the quotas is slow if everything is checked after each step.
    for top in &tops {
        let path = format!("/zookeeper/quota{top}");
        let paths = [path.clone(), format!("{path}/zookeeper_limits"), format!("{path}/zookeeper_stats")];
        let limits = creation(
            &paths[1],
            b"count=-1,bytes=-1=;byteHardLimit=9000;countHardLimit=9000",
            CreateMode::Persistent,
        );
        let ops = vec![
            MultiOp::Create(creation(&paths[0], b"", CreateMode::Persistent)),
            MultiOp::Create(limits),
            MultiOp::Create(creation(&paths[2], b"", CreateMode::Persistent)),
        ];
        bench.replica.write(bench.me, bench.session, &Request::Multi(MultiRequest { ops })).unwrap();
    }
    bench.replica.audit();
    let mut counting = Counting { map: bench.replica.map.clone(), ..Counting::default() };
    let set = |n: usize| SetDataRequest { path: &top, data: Some(&DATA[..n % 2]), version: -1 };
    let children: Vec<String> = (0..900).map(|n| format!("{top}/{n}")).collect();
    let create = |n: usize| creation(&children[n], b"x", CreateMode::Persistent);
    let ops = (0..900).flat_map(|n| [MultiOp::SetData(set(n)), MultiOp::Create(create(n))]).collect();
    counting.write(bench.me, bench.session, &Request::Multi(MultiRequest { ops }));
    bench.replica.map = counting.map;
    bench.replica.audit();
    let shown = bench.stats(&top);
    let (nodes, held) = bench.replica.subtree(&top);
    assert_eq!(shown, format!("count={nodes},bytes={held}"));
    // Two for each of the 250 levels once, and a few for each of the 1,800 operations.
    assert!(counting.gets < 500 + 1_800 * 12, "{} look-ups", counting.gets);
}

/// Returns an operation on one of a few nodes, or on their quotas.
fn any_op(kind: usize, path: &str, number: usize) -> MultiOp<'static> {
    let leak = |text: String| -> &'static str { text.leak() };
    let quota = format!("/zookeeper/quota{path}");
    let path = match kind % 8 {
        0..=3 => leak(path.to_owned()),
        4 => leak(quota),
        5 | 6 => leak(quota + "/zookeeper_limits"),
        _ => leak(quota + "/zookeeper_stats"),
    };
    let limits =
        format!("count=-1,bytes=-1=;byteHardLimit={};countHardLimit={}", 40 + number, 1 + number % 6);
    let is_limits = path.ends_with("limits");
    let data: &'static [u8] = if is_limits { leak(limits).as_bytes() } else { &DATA[..number % 30] };
    match kind / 8 {
        0 => MultiOp::Delete(VersionRequest { path, version: -1 }),
        1 => MultiOp::SetData(SetDataRequest { path, data: Some(data), version: -1 }),
        _ => MultiOp::Create(creation(path, data, CreateMode::Persistent)),
    }
}

/// Returns whether a transaction happened.
fn happens(bench: &mut Bench, ops: Vec<MultiOp<'_>>) -> bool {
    let (_, body) = bench.write(&Request::Multi(MultiRequest { ops })).unwrap();
    let results = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    !results.iter().any(|result| matches!(result, MultiResult::Error(_)))
}

proptest! {
    /// What a command remembers of quotas must never be out of date. A transaction of one operation has nothing to remember.
    #[test]
    fn a_transaction_has_the_outcome_of_its_operations_one_by_one(
        steps in proptest::collection::vec((0..32_usize, "/[ab](/[ab]){0,2}", 0..60_usize), 1..80),
    ) {
        let mut alone = Bench::new(true);
        let mut together = Bench::new(true);
        for bench in [&mut alone, &mut together] {
            for path in ["/a", "/a/b", "/b", "/zookeeper/quota/a", "/zookeeper/quota/a/b", "/zookeeper/quota/b"] {
                bench.create(path, 0).unwrap();
            }
        }
        let all = steps.iter().map(|(kind, path, number)| any_op(*kind, path, *number));
        let done: Vec<_> = all.filter(|op| happens(&mut alone, vec![op.clone()])).collect();
        prop_assert!(happens(&mut together, done));
        let nodes = |bench: &Bench| -> Vec<(Vec<u8>, Node)> {
            let rows = bench.replica.map.keys.iter().filter(|(key, _)| key.first() == Some(&b'n'));
            let node = |bytes| Node { czxid: 0, mzxid: 0, pzxid: 0, ..Node::of_bytes(bytes).unwrap() };
            rows.map(|(key, bytes)| (key.clone(), node(bytes))).collect()
        };
        prop_assert_eq!(nodes(&alone), nodes(&together));
        prop_assert_eq!(alone.told(), together.told());
    }
}
