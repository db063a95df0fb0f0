//! The bound on what one command reads, judges and replaces. It holds from version 2 of the commands.

use super::support::{Outcome, Replica, proposer};
use atoll_db::Proposer;
use atoll_zookeeper::command::{Command, EndSession};
use atoll_zookeeper::jute::Reader;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode, perms};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest, VersionRequest};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use atoll_zookeeper::tree::weight::{MAX_WEIGHT_BYTES, STEP_WEIGHT_BYTES};

const LARGE_BYTES: usize = 900_000;

struct Client {
    replica: Replica,
    by: Proposer,
    session: i64,
}

impl Client {
    fn new(version: u8) -> Client {
        let (mut replica, by) = (Replica::default(), proposer(1, 10));
        replica.version = Some(version);
        let session = replica.open(by);
        Client { replica, by, session }
    }

    fn write(&mut self, request: &Request<'_>) -> Outcome {
        self.replica.write(self.by, self.session, request)
    }

    fn create(&mut self, path: &str, acl: Vec<Acl<'_>>, data: &[u8], mode: CreateMode) {
        let create = CreateRequest { path, data: Some(data), acl, flags: mode.number() };
        self.write(&Request::Create(create)).unwrap();
    }

    /// Performs the operations as one transaction; returns the place of the one that failed, and its error.
    fn multi(&mut self, ops: Vec<MultiOp<'_>>) -> Option<(usize, ErrorCode)> {
        let (_, body) =
            self.write(&Request::Multi(MultiRequest { ops })).unwrap_or_else(|code| panic!("{code:?}"));
        let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
        row.iter().enumerate().find_map(|(at, result)| match result {
            MultiResult::Error(code) => code.map(|code| (at, code)),
            _ => None,
        })
    }
}

fn open() -> Vec<Acl<'static>> {
    vec![Acl { perms: perms::ALL, id: Id { scheme: "world", id: "anyone" } }]
}

/// A list of almost 16 KiB that differs from those of other numbers.
fn long(number: i32) -> Vec<Acl<'static>> {
    let entry = |n| Acl { perms: (number * 1_000 + n) << 5, id: Id { scheme: "digest", id: ":" } };
    (1..850).map(entry).chain(open()).collect()
}

fn set(path: &str) -> MultiOp<'_> {
    MultiOp::SetData(SetDataRequest { path, data: Some(b"1"), version: -1 })
}

fn delete(path: &str) -> MultiOp<'_> {
    MultiOp::Delete(VersionRequest { path, version: -1 })
}

fn names(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("/p{n}")).collect()
}

/// The number of znodes whose records may be written in one transaction, if each has an ACL of 16 KiB. A look-up weighs a kilobyte then.
const MOST_RECORDS: usize = MAX_WEIGHT_BYTES / (17 * 1024);

#[test]
fn a_transaction_on_too_many_long_records_is_refused_at_the_operation_that_is_too_much() {
    for version in [1, 2] {
        let (mut client, paths) = (Client::new(version), names(MOST_RECORDS + 400));
        for (n, path) in (0..).zip(&paths) {
            client.create(path, long(n), b"", CreateMode::Persistent);
        }
        let refused = client.multi(paths.iter().map(|path| set(path)).collect());
        let versions = |client: &mut Client| -> i32 {
            paths.iter().map(|path| client.replica.node(path).unwrap().version).sum()
        };
        if version == 1 {
            assert_eq!((refused, versions(&mut client)), (None, i32::try_from(paths.len()).unwrap()));
            continue;
        }
        let (at, code) = refused.unwrap();
        assert_eq!((code, versions(&mut client)), (ErrorCode::BadArguments, 0));
        assert!((MOST_RECORDS - 100..MOST_RECORDS + 200).contains(&at), "{at}");
        // A znode counts once, however many operations concern it.
        let again = paths[..500].iter().cycle().take(20_000);
        assert_eq!(client.multi(again.map(|path| set(path)).collect()), None);
        client.replica.audit();
    }
}

#[test]
fn a_transaction_may_not_make_very_many_long_records() {
    let mut client = Client::new(2);
    let paths = names(MAX_WEIGHT_BYTES / (16 * 1024) + 100);
    let create = |path| CreateRequest { path, data: None, acl: long(1), flags: 0 };
    let mut all = |count| {
        client.multi(paths[..count].iter().map(|path| MultiOp::Create(create(path.as_str()))).collect())
    };
    let (at, code) = all(paths.len()).unwrap();
    assert_eq!(code, ErrorCode::BadArguments);
    assert!(at > MOST_RECORDS, "{at}");
    assert_eq!(all(MOST_RECORDS), None);
}

/// Quotas at all levels of two deep paths, and operations that concern one and the other in turn: each looks up hundreds of nodes.
#[test]
fn a_transaction_may_not_look_up_nodes_without_end() {
    let mut client = Client::new(2);
    let deep =
        |top: &str| (1..=200).map(|levels| format!("/{top}{}", "/d".repeat(levels - 1))).collect::<Vec<_>>();
    let (a, b) = (deep("a"), deep("b"));
    for path in a.iter().chain(&b) {
        client.create(path, open(), b"", CreateMode::Persistent);
        let quota = format!("/zookeeper/quota{path}");
        client.create(&quota, open(), b"", CreateMode::Persistent);
        client.create(&format!("{quota}/zookeeper_limits"), open(), b"count=-1", CreateMode::Persistent);
    }
    let texts = [&b"1"[..], b"22"];
    let in_turn = |count: usize| -> Vec<MultiOp<'_>> {
        let path = |n: usize| if n.is_multiple_of(2) { &a[199] } else { &b[199] };
        let set = |n: usize| SetDataRequest { path: path(n), data: Some(texts[n / 2 % 2]), version: -1 };
        (0..count).map(|n| MultiOp::SetData(set(n))).collect()
    };
    let (at, code) = client.multi(in_turn(2_000)).unwrap();
    assert_eq!(code, ErrorCode::BadArguments);
    assert!((400..900).contains(&at), "{at}");
    assert_eq!(client.multi(in_turn(400)), None);
}

#[test]
fn a_transaction_that_replaces_too_much_data_is_refused() {
    let (mut client, paths) = (Client::new(2), names(MAX_WEIGHT_BYTES / LARGE_BYTES + 1));
    for path in &paths {
        client.create(path, open(), &[7; LARGE_BYTES], CreateMode::Persistent);
    }
    let too_much = Some((paths.len() - 1, ErrorCode::BadArguments));
    assert_eq!(client.multi(paths.iter().map(|path| delete(path)).collect()), too_much);
    assert_eq!(client.multi(paths.iter().map(|path| set(path)).collect()), too_much);
    let checks = |path| MultiOp::Check(VersionRequest { path, version: 0 });
    assert_eq!(
        client.multi(paths.iter().map(|path| checks(path.as_str())).collect()),
        None,
        "nothing is replaced"
    );
    assert_eq!(client.multi(paths[1..].iter().map(|path| delete(path)).collect()), None);
    client.replica.audit();
}

#[test]
fn a_session_with_much_data_in_its_ephemerals_ends_in_steps() {
    let mut client = Client::new(2);
    let each = STEP_WEIGHT_BYTES / LARGE_BYTES + 1;
    let paths = names(2 * each + 1);
    for path in &paths {
        client.create(path, open(), &[7; LARGE_BYTES], CreateMode::Ephemeral);
    }
    let (by, session) = (client.by, client.session);
    let end = Command::End(EndSession { session, moves: 0, at_most: 1_000, closed: true });
    let mut left = Vec::new();
    while client.replica.apply(by, &end) != Err(ErrorCode::SessionExpired) {
        left.push(paths.iter().filter(|path| client.replica.node(path).is_some()).count());
        client.replica.audit();
    }
    assert_eq!(left, [each + 1, 1, 0]);
}
