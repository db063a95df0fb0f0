//! Which clients count as silent: clients whose sockets stall, in virtual time.

use std::time::Duration;

use super::client::create;
use super::served::alone;
use atoll_db::Engine;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::{CreateMode, OpCode};
use atoll_zookeeper::jute::records::{Acl, ConnectRequest, ConnectResponse, Id, RequestHeader};
use atoll_zookeeper::jute::request::{
    CreateRequest, Request, SetDataRequest, VersionRequest, WatchedRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest};
use atoll_zookeeper::tree::read;
use atoll_zookeeper::{Door, Options, ZooKeeper};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// The buffer between a client and the door in each direction. It is small, so that the door soon notices a client that does not
/// read.
const SOCKET_BYTES: usize = 16 * 1024;
const LARGE: &str = "/large";
const TIMEOUT_MS: i32 = 4_000;

fn framed(xid: i32, request: &Request<'_>) -> Vec<u8> {
    let mut frame = RequestHeader { xid, op: request.op().number() }.to_vec();
    request.write(&mut frame);
    with_length(&frame)
}

fn with_length(frame: &[u8]) -> Vec<u8> {
    [&i32::try_from(frame.len()).unwrap().to_be_bytes()[..], frame].concat()
}

/// Opens a connection to the door.
fn connect(door: &Door) -> DuplexStream {
    let (near, far) = tokio::io::duplex(SOCKET_BYTES);
    let door = door.clone();
    tokio::spawn(async move { door.serve_stream(far, "127.0.0.1:1".parse().unwrap()).await });
    near
}

async fn receive(stream: &mut DuplexStream) -> Vec<u8> {
    let mut frame = vec![0; usize::try_from(stream.read_i32().await.unwrap()).unwrap()];
    stream.read_exact(&mut frame).await.unwrap();
    frame
}

/// Opens a session, and creates a node whose data is larger than the buffer of a socket.
async fn client(door: &Door) -> (DuplexStream, i64) {
    let mut stream = connect(door);
    let first = ConnectRequest::first(TIMEOUT_MS);
    stream.write_all(&with_length(&first.to_vec())).await.unwrap();
    let session = ConnectResponse::parse(&receive(&mut stream).await).unwrap().session;
    stream.write_all(&framed(1, &create(LARGE, &vec![7; 500_000]))).await.unwrap();
    receive(&mut stream).await;
    (stream, session)
}

fn gets(count: i32) -> Vec<u8> {
    let get = Request::GetData(WatchedRequest { path: LARGE, watch: false });
    (0..count).flat_map(|n| framed(10 + n, &get)).collect()
}

fn lives(engine: &Engine<ZooKeeper>, session: i64) -> bool {
    read::session(&engine.view(), session).unwrap().is_some()
}

fn door() -> (Door, Engine<ZooKeeper>) {
    let (door, engine) = alone(Options::default());
    let keeping = door.clone();
    tokio::spawn(async move { keeping.keep().await });
    (door, engine)
}

/// Its requests are unanswered, but the client causes that itself, not the door.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_its_answers_is_silent() {
    let (door, engine) = door();
    let (mut stream, session) = client(&door).await;
    // The reads are queued behind the write, and are still unanswered when the write is answered.
    let write = Request::SetData(SetDataRequest { path: "/", data: None, version: -1 });
    let all = [framed(2, &write), gets(20)].concat();
    stream.write_all(&all).await.unwrap();
    let gone = async {
        while lives(&engine, session) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("its session expires");
}

/// Its pings stay in the socket meanwhile, because the door reads nothing.
#[tokio::test(start_paused = true)]
async fn a_client_that_takes_long_to_read_an_answer_is_not_silent() {
    let (door, engine) = door();
    let (mut stream, session) = client(&door).await;
    stream.write_all(&gets(5)).await.unwrap();
    let ping = with_length(&RequestHeader { xid: -2, op: OpCode::Ping.number() }.to_vec());
    // At 40 KB per second, an answer takes longer than three timeouts.
    let (mut left, mut some) = (5 * 500_000, vec![0; 4_000]);
    while left > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        left -= stream.read(&mut some).await.unwrap().min(left);
        stream.write_all(&ping).await.unwrap();
        assert!(lives(&engine, session), "its session expired, with {left} bytes to read");
    }
}

/// Others wait for the room of a large write, so a client must not keep it by not reading what comes before the write's answer.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_gives_back_the_room_of_its_large_writes() {
    let (door, engine) = door();
    let (mut slow, _) = client(&door).await;
    let (mut other, _) = client(&door).await;
    let acl = || vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    let flags = CreateMode::Persistent.number();
    for part in 0..20 {
        let paths: Vec<_> = (0..1_000).map(|n| format!("{LARGE}/{part:010}-{n:010}")).collect();
        let create = |path| MultiOp::Create(CreateRequest { path, data: None, acl: acl(), flags });
        let ops = paths.iter().map(|path| create(path.as_str())).collect();
        slow.write_all(&framed(100 + part, &Request::Multi(MultiRequest { ops }))).await.unwrap();
        receive(&mut slow).await;
    }
    // Another thread makes the long list. Meanwhile the transaction, which takes all of the room, is proposed and applied.
    let list = Request::GetChildren(WatchedRequest { path: LARGE, watch: false });
    let mark = CreateRequest { path: "/mark", data: None, acl: acl(), flags };
    let check = || MultiOp::Check(VersionRequest { path: LARGE, version: -1 });
    let ops = [MultiOp::Create(mark)].into_iter().chain((0..5_000).map(|_| check())).collect();
    let both = [framed(200, &list), framed(201, &Request::Multi(MultiRequest { ops }))].concat();
    slow.write_all(&both).await.unwrap();
    while read::node(&engine.view(), "/mark").unwrap().is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let large = Request::SetData(SetDataRequest { path: "/", data: Some(&[1; 4_000]), version: -1 });
    other.write_all(&framed(300, &large)).await.unwrap();
    // Well before the session of the first client expires, which ends its connection.
    let answered = tokio::time::timeout(Duration::from_secs(2), receive(&mut other));
    answered.await.expect("the other client's large write is answered");
}

/// Otherwise it would keep its place among the connections of its address.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_the_answer_to_a_word_is_cut_off() {
    let (door, _) = door();
    let (mut near, far) = tokio::io::duplex(64);
    near.write_all(b"mntr").await.unwrap();
    let served = door.serve_stream(far, "127.0.0.1:1".parse().unwrap());
    tokio::time::timeout(Duration::from_secs(60), served).await.expect("the connection ends");
}
