//! Writes as long as `jute.maxbuffer` allows, with the usual setting and with the largest one.

use super::client::{Client, create};
use super::served::door;
use atoll_zookeeper::Options;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::reply::{Create2Reply, GetDataReply, StatReply};
use atoll_zookeeper::jute::request::{
    CreateRequest, CreateTtlRequest, Request, SetDataRequest, VersionRequest, WatchedRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};

const LARGEST: usize = 16 << 20;
/// What a setData of `/a` takes in its frame beside the data.
const AROUND: usize = 22;

fn set<'a>(path: &'a str, data: &'a [u8]) -> Request<'a> {
    Request::SetData(SetDataRequest { path, data: Some(data), version: -1 })
}

/// Data that differs everywhere, so that a piece in a wrong place shows.
fn data(bytes: usize, seed: u32) -> Vec<u8> {
    (0..bytes as u32).map(|n| (n.wrapping_mul(0x9e37_79b9).wrapping_add(seed) >> 24) as u8).collect()
}

fn get(c: &mut Client, path: &str) -> Vec<u8> {
    let (err, body) = c.call(&Request::GetData(WatchedRequest { path, watch: false }));
    assert_eq!(err, 0, "{path}");
    GetDataReply::parse(&body).unwrap().data.unwrap().to_vec()
}

fn acl() -> Vec<Acl<'static>> {
    vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }]
}

fn wide() -> Options {
    Options { max_buffer_bytes: LARGEST, ..Options::default() }
}

#[test]
fn by_default_a_frame_of_1_048_575_bytes_is_written_and_a_longer_one_ends_the_connection() {
    let door = door(Options::default());
    let mut c = Client::connect(door);
    assert_eq!(c.create("/a", b""), 0);
    for bytes in [999_900, 1_000_000, 1_048_540, 1_048_575 - AROUND] {
        let data = data(bytes, 1);
        let (err, body) = c.call(&set("/a", &data));
        assert_eq!(err, 0, "{bytes}");
        assert_eq!(StatReply::parse(&body).unwrap().stat.data_length, i32::try_from(bytes).unwrap());
        assert!(get(&mut c, "/a") == data, "{bytes}");
    }
    c.ask_too_much(&set("/a", &data(1_048_576 - AROUND, 2)));
    assert!(c.is_ended());
    let mut again = Client::attach(door, c.session, &c.password);
    assert_eq!(again.session, c.session, "the session continues");
    assert!(get(&mut again, "/a") == data(1_048_575 - AROUND, 1));
}

#[test]
fn with_the_largest_setting_every_form_of_write_takes_16_mib() {
    let mut c = Client::connect(door(wide()));
    let long = data(LARGEST - 200, 3);
    assert_eq!(c.create("/a", &long), 0);
    let request =
        |path, mode: CreateMode| CreateRequest { path, data: Some(&long), acl: acl(), flags: mode.number() };
    let container = Request::CreateContainer(request("/c", CreateMode::Container));
    let numbered = Request::Create2(request("/n-", CreateMode::EphemeralSequential));
    let CreateRequest { path, data: value, acl, .. } = request("/t", CreateMode::PersistentWithTtl);
    let flags = CreateMode::PersistentWithTtl.number();
    let ttl = Request::CreateTtl(CreateTtlRequest { path, data: value, acl, flags, ttl_ms: 1 << 30 });
    for (made, path) in [(container, "/c"), (numbered, "/n-0000000002"), (ttl, "/t")] {
        let (err, body) = c.call(&made);
        assert_eq!(err, 0, "{path}");
        assert_eq!(Create2Reply::parse(&body).unwrap().path, path);
        assert!(get(&mut c, path) == long, "{path}");
    }
    let other = data(LARGEST - AROUND, 4);
    assert_eq!(c.call(&set("/a", &other)).0, 0);
    assert!(get(&mut c, "/a") == other);
    assert_eq!(c.call(&set("/a", b"short")).0, 0);
    assert_eq!(get(&mut c, "/a"), b"short");
    for path in ["/a", "/c", "/t"] {
        assert_eq!(c.call(&Request::Delete(VersionRequest { path, version: -1 })).0, 0, "{path}");
    }
    c.ask_too_much(&set("/n-0000000002", &data(LARGEST, 5)));
    assert!(c.is_ended());
}

#[test]
fn a_transaction_of_many_writes_happens_as_a_whole() {
    let mut c = Client::connect(door(wide()));
    let paths: Vec<String> = (0..1_000).map(|n| format!("/m{n:04}")).collect();
    let values: Vec<Vec<u8>> = (0..1_000).map(|n| data(8 * 1024 + n as usize, n)).collect();
    let one = |(path, data)| MultiOp::Create(CreateRequest { path, data: Some(data), acl: acl(), flags: 0 });
    let ops: Vec<_> =
        paths.iter().map(String::as_str).zip(values.iter().map(Vec::as_slice)).map(one).collect();
    let mut failing = ops.clone();
    failing.push(MultiOp::Check(VersionRequest { path: "/none", version: -1 }));
    let (err, body) = c.call(&Request::Multi(MultiRequest { ops: failing }));
    let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    assert_eq!((err, row.last()), (0, Some(&MultiResult::Error(Some(ErrorCode::NoNode)))));
    assert_eq!(
        c.call(&Request::Exists(WatchedRequest { path: "/m0000", watch: false })).0,
        ErrorCode::NoNode.number()
    );
    let (err, body) = c.call(&Request::Multi(MultiRequest { ops }));
    let row = MultiResult::read_row(&mut Reader::new(&body)).unwrap();
    assert!(err == 0 && row.len() == 1_000 && row.iter().all(|r| matches!(r, MultiResult::Create(_))));
    assert!(paths.iter().zip(&values).all(|(path, value)| get(&mut c, path) == *value));
}

#[test]
fn what_is_sent_behind_a_long_write_is_done_behind_it() {
    let mut c = Client::connect(door(wide()));
    assert_eq!(c.create("/a", b""), 0);
    let long = data(5_000_000, 6);
    let read = Request::GetData(WatchedRequest { path: "/a", watch: true });
    let sent =
        [set("/a", &long), read.clone(), set("/a", b"short"), create("/b", b""), read].map(|r| c.ask(&r));
    let version = |body: &[u8]| StatReply::parse(body).unwrap().stat.version;
    assert_eq!(version(&c.answer(sent[0]).1), 1);
    let (_, body) = c.answer(sent[1]);
    assert!(GetDataReply::parse(&body).unwrap().data == Some(&long), "a read between the two");
    assert_eq!(version(&c.answer(sent[2]).1), 2);
    assert_eq!(c.events.len(), 1, "the watch of that read");
    assert_eq!(c.answer(sent[3]).0, 0);
    assert_eq!(GetDataReply::parse(&c.answer(sent[4]).1).unwrap().data, Some(&b"short"[..]));
}
