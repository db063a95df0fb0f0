//! Fuzzes a whole connection of a ZooKeeper client, from its first byte on: four-letter words, handshakes, requests in any order. Whatever
//! it sends, the door keeps working, and no command that it makes stops the replicas.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Waker};

use atoll_core::NodeId;
use atoll_db::{Applications, LogPos, MemoryStore, Observer, Solo};
use atoll_zookeeper::event::Event;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::OpCode;
use atoll_zookeeper::jute::records::{Acl, ConnectRequest, Id, RequestHeader};
use atoll_zookeeper::jute::request::{CreateRequest, Request, VersionRequest, WatchedRequest};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest};
use atoll_zookeeper::{Cluster, Door, Options, ZooKeeper};

struct Alone;

impl Cluster for Alone {
    fn living(&self) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
}

/// The first byte says whether a valid handshake precedes the rest. A second connection checks that the door still works.
pub fn run(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    let sent = if choice % 2 == 0 { rest.to_vec() } else { [&hello()[..], rest].concat() };
    let mut applications = Applications::new();
    let slot = applications.add(ZooKeeper);
    let solo = Solo::open(applications, Box::new(MemoryStore::new())).expect("a store in memory opens");
    let engine = solo.engine(&slot);
    let options = Options { words: vec!["*".to_owned()], ..Options::default() };
    let door = Door::open(engine.clone(), Arc::new(Alone), options).expect("a new state can be read");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        converse(&door, &sent).await;
        assert_eq!(engine.halted(), None, "a command stops all replicas");
        assert!(converse(&door, b"ruok").await.ends_with(b"imok"), "the door does not continue");
    });
    // The engine and the door refer to each other. Break the cycle, so that a run leaks nothing.
    engine.observe(Arc::new(Nobody));
    solo.close();
}

struct Nobody;

impl Observer<Event> for Nobody {
    fn on_events(&self, _below: LogPos, _events: Vec<Event>) {}
}

/// Returns what the door sends to a client that sends this and then closes.
async fn converse(door: &Door, sent: &[u8]) -> Vec<u8> {
    let mut said = Vec::new();
    let stream = tokio::io::join(sent, &mut said);
    let mut serving = Box::pin(door.serve_stream(stream, SocketAddr::from((Ipv4Addr::LOCALHOST, 1))));
    // Most connections end in the first poll. Reads on another thread take longer.
    if serving.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        serving.as_mut().await;
    }
    drop(serving);
    said
}

fn framed(bytes: &[u8]) -> Vec<u8> {
    [&i32::try_from(bytes.len()).unwrap_or(0).to_be_bytes()[..], bytes].concat()
}

fn hello() -> Vec<u8> {
    let first = ConnectRequest::first(10_000);
    framed(&first.to_vec())
}

fn request(xid: i32, request: &Request<'_>) -> Vec<u8> {
    let mut bytes = RequestHeader { xid, op: request.op().number() }.to_vec();
    request.write(&mut bytes);
    framed(&bytes)
}

/// Returns valid conversations.
pub fn seeds() -> Vec<Vec<u8>> {
    let acl = || vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    let create =
        |path, flags| Request::Create(CreateRequest { path, data: Some(b"data"), acl: acl(), flags });
    let looks = |path| Request::GetData(WatchedRequest { path, watch: true });
    let ops = vec![
        MultiOp::Create(CreateRequest { path: "/m", data: None, acl: acl(), flags: 0 }),
        MultiOp::Check(VersionRequest { path: "/m", version: 0 }),
    ];
    let close = RequestHeader { xid: 6, op: OpCode::CloseSession.number() }.to_vec();
    let conversation = [
        request(1, &create("/a", 0)),
        request(2, &create("/a/s", 3)),
        request(3, &looks("/a")),
        request(4, &Request::Multi(MultiRequest { ops })),
        request(5, &Request::Delete(VersionRequest { path: "/a", version: -1 })),
        framed(&close),
    ];
    let mut seeds = vec![[&[1][..], &conversation.concat()].concat()];
    seeds.extend(conversation.iter().map(|one| [&[1][..], one].concat()));
    seeds.push([&[0][..], &hello()].concat());
    let words =
        ["ruok", "srvr", "stat", "conf", "cons", "mntr", "dump", "wchs", "wchp", "wchc", "envi", "isro"];
    seeds.extend(words.map(|word| [&[0][..], word.as_bytes()].concat()));
    seeds
}
