//! The codec: whatever is encoded can be decoded, and all other bytes result in an error.

use atoll_zookeeper::jute::codes::{ErrorCode, OpCode};
use atoll_zookeeper::jute::records::{Acl, ConnectRequest, ConnectResponse, Id, Stat};
use atoll_zookeeper::jute::request::{
    AddWatchRequest, AuthRequest, CreateRequest, CreateTtlRequest, ImportNode, ImportRequest, PathRequest,
    ReconfigRequest, Request, SaslRequest, SetAclRequest, SetDataRequest, SetWatches2Request,
    SetWatchesRequest, VersionRequest, WatchedRequest, WatcherRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiReadOp, MultiReadRequest, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, JuteError, Reader};
use proptest::prelude::*;

/// The values that requests borrow.
#[derive(Clone, Debug)]
struct Parts {
    paths: Vec<String>,
    data: Option<Vec<u8>>,
    acl: Vec<(i32, String, String)>,
    number: i32,
    long: i64,
    flag: bool,
}

fn parts() -> impl Strategy<Value = Parts> {
    let acl = proptest::collection::vec((any::<i32>(), "[a-z]{0,8}", "\\PC{0,12}"), 0..4);
    let paths = proptest::collection::vec("/\\PC{0,20}", 1..5);
    let data = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..64));
    (paths, data, acl, any::<i32>(), any::<i64>(), any::<bool>())
        .prop_map(|(paths, data, acl, number, long, flag)| Parts { paths, data, acl, number, long, flag })
}

fn requests(p: &Parts) -> Vec<Request<'_>> {
    let path = p.paths[0].as_str();
    let paths: Vec<&str> = p.paths.iter().map(String::as_str).collect();
    let data = p.data.as_deref();
    let acl: Vec<Acl<'_>> =
        p.acl.iter().map(|(perms, scheme, id)| Acl { perms: *perms, id: Id { scheme, id } }).collect();
    let create = CreateRequest { path, data, acl: acl.clone(), flags: p.number };
    let create_ttl = CreateTtlRequest { path, data, acl: acl.clone(), flags: p.number, ttl_ms: p.long };
    let version = VersionRequest { path, version: p.number };
    let set = SetDataRequest { path, data, version: p.number };
    let watched = WatchedRequest { path, watch: p.flag };
    let only = PathRequest { path };
    let watcher = WatcherRequest { path, kind: p.number };
    let one_time = SetWatchesRequest {
        relative_zxid: p.long,
        data: paths.clone(),
        exist: Vec::new(),
        child: paths.clone(),
    };
    let node = ImportNode {
        path,
        data,
        acl: acl.clone(),
        czxid: p.long,
        mzxid: p.long,
        pzxid: p.long,
        ctime: p.long,
        mtime: p.long,
        version: p.number,
        created: p.number,
        aversion: p.number,
        owner: p.long,
        counted: p.flag,
    };
    let ops = vec![
        MultiOp::Create(create.clone()),
        MultiOp::Create2(create.clone()),
        MultiOp::CreateContainer(create.clone()),
        MultiOp::CreateTtl(create_ttl.clone()),
        MultiOp::Delete(version),
        MultiOp::SetData(set),
        MultiOp::Check(version),
    ];
    vec![
        Request::Create(create.clone()),
        Request::Create2(create.clone()),
        Request::CreateContainer(create),
        Request::CreateTtl(create_ttl),
        Request::Delete(version),
        Request::DeleteContainer(only),
        Request::Check(version),
        Request::SetData(set),
        Request::SetAcl(SetAclRequest { path, acl, version: p.number }),
        Request::Multi(MultiRequest { ops }),
        Request::MultiRead(MultiReadRequest {
            ops: vec![MultiReadOp::GetData(watched), MultiReadOp::GetChildren(watched)],
        }),
        Request::Exists(watched),
        Request::GetData(watched),
        Request::GetChildren(watched),
        Request::GetChildren2(watched),
        Request::GetAcl(only),
        Request::GetEphemerals(only),
        Request::GetAllChildrenNumber(only),
        Request::Sync(only),
        Request::CheckWatches(watcher),
        Request::RemoveWatches(watcher),
        Request::AddWatch(AddWatchRequest { path, mode: p.number }),
        Request::SetWatches(one_time.clone()),
        Request::SetWatches2(SetWatches2Request { one_time, persistent: paths.clone(), recursive: paths }),
        Request::Auth(AuthRequest { kind: p.number, scheme: path, auth: data }),
        Request::Sasl(SaslRequest { token: data }),
        Request::Reconfig(ReconfigRequest {
            joining: path,
            leaving: path,
            new_members: path,
            config: p.long,
        }),
        Request::Import(ImportRequest { newest: p.long, replace: p.flag, nodes: vec![node.clone(), node] }),
        Request::WhoAmI,
        Request::Ping,
        Request::CloseSession,
    ]
}

fn read(op: OpCode, bytes: &[u8]) -> Result<Option<Request<'_>>, JuteError> {
    Request::read(op, &mut Reader::new(bytes))
}

proptest! {
    #[test]
    fn requests_come_back_and_their_parts_do_not(p in parts()) {
        let all = requests(&p);
        for op in OpCode::ALL {
            let known = all.iter().any(|r| r.op() == *op);
            prop_assert!(known || matches!(op, OpCode::Notification | OpCode::CreateSession), "{:?} is not tested", op);
        }
        for request in all {
            let mut bytes = Vec::new();
            request.write(&mut bytes);
            prop_assert_eq!(read(request.op(), &bytes), Ok(Some(request.clone())));
            for cut in 0..bytes.len() {
                prop_assert!(read(request.op(), &bytes[..cut]).is_err(), "{:?} at {}", request, cut);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for op in OpCode::ALL {
            if let Ok(Some(request)) = read(*op, &bytes) {
                let mut again = Vec::new();
                request.write(&mut again);
                prop_assert_eq!(read(*op, &again), Ok(Some(request)));
            }
        }
    }

    #[test]
    fn handshakes_come_back(
        seen in any::<i64>(), timeout_ms in any::<i32>(), session in any::<i64>(),
        password in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..20)),
        read_only in proptest::option::of(any::<bool>()),
    ) {
        let password = password.as_deref();
        let request =
            ConnectRequest { protocol_version: 0, last_zxid_seen: seen, timeout_ms, session, password, read_only };
        let bytes = request.to_vec();
        prop_assert_eq!(ConnectRequest::parse(&bytes), Ok(request));
        let response = ConnectResponse { protocol_version: 0, timeout_ms, session, password, read_only };
        let bytes = response.to_vec();
        prop_assert_eq!(ConnectResponse::parse(&bytes), Ok(response));
    }
}

#[test]
fn results_come_back() {
    let stat = Stat { czxid: 1, mzxid: 2, version: 3, ephemeral_owner: -4, pzxid: 5, ..Stat::default() };
    let results = vec![
        MultiResult::Create("/a"),
        MultiResult::Create2("/b", stat),
        MultiResult::Delete,
        MultiResult::SetData(stat),
        MultiResult::Check,
        MultiResult::GetData(Some(b"x"), stat),
        MultiResult::GetData(None, stat),
        MultiResult::GetChildren(vec!["a", "b"]),
        MultiResult::Error(None),
        MultiResult::Error(Some(ErrorCode::RuntimeInconsistency)),
    ];
    let mut bytes = Vec::new();
    results.iter().for_each(|r| r.write(&mut bytes));
    MultiResult::write_end(&mut bytes);
    assert_eq!(MultiResult::read_row(&mut Reader::new(&bytes)), Ok(results));
}

#[test]
fn lengths_are_checked_before_anything_is_made_of_them() {
    // A list of 2^31 - 1 strings in a frame of a few bytes.
    let huge = [i32::MAX.to_be_bytes(), [0; 4]].concat();
    assert!(matches!(Vec::<&str>::parse(&huge), Err(JuteError::Short { what: "list", .. })));
    assert!(matches!(Option::<&[u8]>::parse(&huge), Err(JuteError::Short { what: "buffer", .. })));
    let negative = (-2_i32).to_be_bytes();
    assert_eq!(<&str>::parse(&negative), Err(JuteError::Length { what: "string", length: -2 }));
    assert_eq!(<&str>::parse(&[0, 0, 0, 1, 0xff]), Err(JuteError::NotUtf8));
    assert_eq!(Vec::<&str>::parse(&(-1_i32).to_be_bytes()), Ok(vec![]));
}
