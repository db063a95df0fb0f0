//! Fuzzes the protocol of ZooKeeper's clients, and the commands made from it. What can be decoded is the same after it is encoded and
//! decoded again.

use atoll_zookeeper::command::Command;
use atoll_zookeeper::jute::codes::OpCode;
use atoll_zookeeper::jute::records::{Acl, ConnectRequest, Id};
use atoll_zookeeper::jute::request::{
    CreateRequest, Request, SetWatches2Request, SetWatchesRequest, VersionRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest};
use atoll_zookeeper::jute::{Jute, Reader};

/// The first byte selects how the rest is read: as an operation, the handshake, or a command of the log.
pub fn run(input: &[u8]) {
    let Some((kind, body)) = input.split_first() else { return };
    match OpCode::ALL.get(usize::from(*kind)) {
        Some(op) => request(*op, body),
        None if *kind == u8::MAX => command(body),
        None => {
            if let Ok(first) = ConnectRequest::parse(body) {
                assert_eq!(ConnectRequest::parse(&first.to_vec()), Ok(first), "a handshake changed");
            }
        }
    }
}

fn request(op: OpCode, body: &[u8]) {
    let Ok(Some(read)) = Request::read(op, &mut Reader::new(body)) else { return };
    assert_eq!(read.op(), op);
    let mut again = Vec::new();
    read.write(&mut again);
    assert!(again.len() <= body.len(), "it became longer: something was made up");
    assert_eq!(Request::read(op, &mut Reader::new(&again)), Ok(Some(read)), "a request changed");
}

fn command(body: &[u8]) {
    let Ok(read) = Command::read(body) else { return };
    let again = read.to_bytes();
    assert_eq!(Command::read(&again), Ok(read), "a command changed");
}

/// Returns valid inputs.
pub fn seeds() -> Vec<Vec<u8>> {
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    let create = CreateRequest { path: "/a/b", data: Some(b"data"), acl, flags: 2 };
    let one_time =
        SetWatchesRequest { relative_zxid: 7, data: vec!["/a", "/b"], exist: vec![], child: vec!["/"] };
    let multi =
        vec![MultiOp::Create(create.clone()), MultiOp::Check(VersionRequest { path: "/a", version: -1 })];
    let requests = [
        Request::Create(create),
        Request::Multi(MultiRequest { ops: multi }),
        Request::SetWatches2(SetWatches2Request { one_time, persistent: vec!["/p"], recursive: vec![] }),
    ];
    let kind = |op: OpCode| OpCode::ALL.iter().position(|known| *known == op).unwrap_or(0);
    let mut out: Vec<Vec<u8>> = requests
        .iter()
        .map(|request| {
            let mut bytes = vec![u8::try_from(kind(request.op())).unwrap_or(0)];
            request.write(&mut bytes);
            bytes
        })
        .collect();
    let first = ConnectRequest::first(10_000);
    out.push([&[254], first.to_vec().as_slice()].concat());
    let write = atoll_zookeeper::command::WriteHead {
        session: 1,
        moves: 1,
        ids: vec![Id { scheme: "ip", id: "127.0.0.1" }],
        op: OpCode::Delete.number(),
        enforce_quota: false,
    };
    out.push([&[u8::MAX], Command::Write(write, b"body").to_bytes().as_slice()].concat());
    out.push([&[u8::MAX], Command::RaiseEpoch.to_bytes().as_slice()].concat());
    out
}
