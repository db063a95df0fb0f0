//! Restores: a tree snapshot replaces the tree in the replicated state.

use super::support::{Map, Replica, proposer};
use atoll_zookeeper::command::{AttachSession, Command, Discard, ExpireSession, Restore, Stage};
use atoll_zookeeper::event::Event;
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest, VersionRequest};
use atoll_zookeeper::tree::node::{Lifetime, Node};
use atoll_zookeeper::tree::restore::MAX_PIECE_BYTES;
use atoll_zookeeper::tree::snapshot::{Snapshot, SnapshotError, Writer, is_carried};
use bytes::Bytes;
use proptest::prelude::*;

fn create<'a>(path: &'a str, data: &'a [u8], mode: CreateMode) -> Request<'a> {
    let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
    Request::Create(CreateRequest { path, data: Some(data), acl, flags: mode.number() })
}

/// Returns the file that the admin command `snapshot` would send.
fn file(map: &Map) -> Bytes {
    let zxid = map.counters().zxid;
    let (mut writer, head) = Writer::begin(zxid);
    let mut out = head.to_vec();
    for (key, value) in map.keys.iter().filter(|(key, _)| is_carried(key)) {
        out.extend(writer.push(key.clone().into(), value.clone()).unwrap_or_default());
    }
    out.extend(writer.finish());
    out.into()
}

/// Uploads a file; returns the number of pieces.
fn bring(replica: &mut Replica, upload: i64, file: &Bytes) -> i32 {
    let mut pieces = 0;
    for data in file.chunks(MAX_PIECE_BYTES) {
        replica
            .apply(proposer(1, 1), &Command::Stage(Stage { upload, piece: pieces, data: Some(data) }))
            .unwrap();
        pieces += 1;
    }
    pieces
}

fn restore(replica: &mut Replica, file: &Bytes) -> Result<i64, ErrorCode> {
    let pieces = bring(replica, 5, file);
    let hash = Snapshot::read(file).map_or([0; 32], |snapshot| snapshot.hash);
    let command = Command::Restore(Restore { upload: 5, pieces, hash: Some(&hash) });
    replica.apply(proposer(2, 9), &command).map(|(zxid, _)| zxid)
}

/// Returns the nodes, which are all of the state that clients see except sessions and what depends on them.
fn nodes(map: &Map) -> Vec<(Vec<u8>, Bytes)> {
    let shown = map.keys.iter().filter(|(key, _)| matches!(key.first(), Some(b'n' | b'd' | b'e' | b't')));
    shown.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn filled() -> (Replica, i64) {
    let mut replica = Replica::default();
    let by = proposer(1, 1);
    let session = replica.open(by);
    // Data that compression cannot make shorter than a piece.
    let mut random = 1_u64;
    let large: Vec<u8> = std::iter::repeat_with(|| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 56) as u8
    })
    .take(400_000)
    .collect();
    for (path, data, mode) in [
        ("/a", &b"1"[..], CreateMode::Persistent),
        ("/a/b", &large, CreateMode::Persistent),
        ("/a/e", b"", CreateMode::Ephemeral),
        ("/c", b"", CreateMode::Container),
    ] {
        replica.write(by, session, &create(path, data, mode)).unwrap();
    }
    (replica, session)
}

#[test]
fn what_is_restored_is_the_snapshot_and_all_zxids_go_up() {
    let (mut replica, session) = filled();
    let (by, file, before) = (proposer(1, 1), file(&replica.map), nodes(&replica.map));
    Snapshot::read(&file).unwrap().check().unwrap();
    let later = replica.open(by);
    replica.write(by, later, &create("/later", b"", CreateMode::Ephemeral)).unwrap();
    replica.write(by, session, &Request::Delete(VersionRequest { path: "/a/b", version: -1 })).unwrap();
    let (newest, _) = replica
        .write(by, session, &Request::SetData(SetDataRequest { path: "/a", data: Some(b"2"), version: 0 }))
        .unwrap();
    replica.events();

    let zxid = restore(&mut replica, &file).unwrap();
    assert_eq!((zxid >> 32, zxid & 0xffff_ffff), ((newest >> 32) + 1, 0), "a new epoch");
    assert_eq!(nodes(&replica.map), before);
    replica.audit();
    assert!(!replica.map.keys.keys().any(|key| key.first() == Some(&b'u')), "no piece is left");
    let told: Vec<Event> =
        replica.events().into_iter().filter(|e| !matches!(e, Event::Counted { .. })).collect();
    assert_eq!(told.len(), 2);
    assert_eq!(told[0], Event::Restored { zxid });
    assert!(
        matches!(told[1], Event::SessionHeld { session: s, by, .. } if s == session && by == proposer(2, 9))
    );
    // The session from the snapshot exists and clients can attach to it. The later one does not exist.
    let attach = |session| AttachSession { session, password: Some(&[7; 16]), timeout_ms: 9_000 };
    assert_eq!(replica.apply(by, &Command::Attach(attach(later))), Err(ErrorCode::SessionExpired));
    let held = replica.write(by, session, &create("/x", b"", CreateMode::Persistent));
    assert_eq!(held, Err(ErrorCode::SessionMoved), "what was sent before is not done behind its back");
    replica.apply(by, &Command::Attach(attach(session))).unwrap();
    let (next, _) = replica.write(by, session, &create("/x", b"", CreateMode::Persistent)).unwrap();
    assert!(next > zxid);
    assert!(replica.open(by) >> 40 == zxid >> 32, "numbers of new sessions have the new epoch");
    replica.audit();
}

#[test]
fn a_judgement_of_before_does_not_expire_a_session_of_the_snapshot() {
    let (mut replica, session) = filled();
    let file = file(&replica.map);
    restore(&mut replica, &file).unwrap();
    for moves in 0..3 {
        let expire = Command::Expire(ExpireSession { session, moves });
        assert_eq!(replica.apply(proposer(2, 9), &expire), Err(ErrorCode::SessionMoved));
    }
    assert!(matches!(replica.node("/a/e").unwrap().lifetime, Lifetime::Ephemeral(s) if s == session));
}

#[test]
fn a_snapshot_of_another_cluster_raises_the_epoch_above_its_own() {
    let (mut replica, _) = filled();
    for _ in 0..20 {
        replica.apply(proposer(1, 1), &Command::RaiseEpoch).unwrap();
    }
    let (file, theirs) = (file(&replica.map), replica.map.counters().zxid);
    let mut fresh = Replica::default();
    let zxid = restore(&mut fresh, &file).unwrap();
    assert!(zxid > theirs && nodes(&fresh.map) == nodes(&replica.map));
    fresh.audit();
}

#[test]
fn data_in_pieces_is_restored_and_a_missing_piece_is_named() {
    use atoll_zookeeper::tree::key;
    let (mut replica, session) = filled();
    let by = proposer(1, 1);
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| (n / 1_000) as u8).collect();
    replica.write(by, session, &create("/long", &data, CreateMode::Persistent)).unwrap();
    let file = file(&replica.map);
    let snapshot = Snapshot::read(&file).unwrap();
    snapshot.check().unwrap();
    assert_eq!(snapshot.first_in_pieces().as_deref(), Some("/long"));
    let mut fresh = Replica::default();
    restore(&mut fresh, &file).unwrap();
    assert!(nodes(&fresh.map) == nodes(&replica.map));
    fresh.audit();
    let (last, _) = key::data_pieces("/long", data.len()).last().unwrap();
    replica.map.keys.remove(&key::data("/long")[..]).unwrap();
    let missing = Snapshot::read(&self::file(&replica.map)).unwrap().check().unwrap_err().to_string();
    assert!(missing.contains("what belongs to the node is missing"), "{missing}");
    fresh.map.keys.insert(last.to_vec(), vec![1].into());
    let short = Snapshot::read(&self::file(&fresh.map)).unwrap().check().unwrap_err().to_string();
    assert!(short.contains("data of a different length"), "{short}");
}

#[test]
fn an_upload_that_is_overtaken_or_given_up_changes_nothing() {
    let (mut replica, _) = filled();
    let (by, file, before) = (proposer(1, 1), file(&replica.map), nodes(&replica.map));
    let pieces = bring(&mut replica, 1, &file);
    assert!(pieces >= 2, "more than one piece");
    let hash = Snapshot::read(&file).unwrap().hash;
    let whole = |upload, pieces| Command::Restore(Restore { upload, pieces, hash: Some(&hash) });
    // When another upload begins, the first one loses its pieces.
    replica.apply(by, &Command::Stage(Stage { upload: 2, piece: 0, data: Some(&file[..10]) })).unwrap();
    assert_eq!(replica.apply(by, &whole(1, pieces)), Err(ErrorCode::NoNode));
    let stage = |upload, piece, data| Command::Stage(Stage { upload, piece, data });
    assert_eq!(replica.apply(by, &stage(1, pieces, Some(b"x"))), Err(ErrorCode::BadVersion));
    assert_eq!(replica.apply(by, &stage(2, 2, Some(b"x"))), Err(ErrorCode::BadVersion), "a gap");
    assert_eq!(replica.apply(by, &stage(2, 1, Some(b""))), Err(ErrorCode::BadArguments));
    assert_eq!(replica.apply(by, &stage(2, 1, None)), Err(ErrorCode::BadArguments));
    assert_eq!(replica.apply(by, &whole(2, 1)), Err(ErrorCode::MarshallingError), "not a whole snapshot");
    let discard = |pieces| Command::Discard(Discard { upload: 2, pieces });
    assert_eq!(replica.apply(by, &discard(0)), Err(ErrorCode::NoNode), "it is further");
    replica.apply(by, &discard(1)).unwrap();
    assert_eq!(replica.apply(by, &discard(1)), Err(ErrorCode::NoNode));
    assert_eq!(nodes(&replica.map), before);
    assert!(!replica.map.keys.keys().any(|key| key.first() == Some(&b'u')));
    // The hash of the file is not the one that was checked.
    let pieces = bring(&mut replica, 3, &file);
    let command = Command::Restore(Restore { upload: 3, pieces, hash: Some(&[0; 32]) });
    assert_eq!(replica.apply(by, &command), Err(ErrorCode::MarshallingError));
    assert_eq!(nodes(&replica.map), before);
}

#[test]
fn a_snapshot_in_which_something_does_not_fit_is_refused_by_name() {
    let (mut replica, session) = filled();
    let by = proposer(1, 1);
    replica.write(by, session, &create("/t", b"", CreateMode::Persistent)).unwrap();
    let whole = replica.map.clone();
    let fault = |change: &dyn Fn(&mut Map)| {
        let mut map = whole.clone();
        change(&mut map);
        match Snapshot::read(&file(&map)).unwrap().check() {
            Err(SnapshotError::Unfit { what, fault }) => format!("{what}: {fault}"),
            other => panic!("{other:?}"),
        }
    };
    use atoll_zookeeper::tree::key::{self, Key};
    let without = |key: Key| move |map: &mut Map| drop(map.keys.remove(&key[..]).unwrap());
    assert!(fault(&without(key::node("/a"))).contains("without its parent"));
    assert!(fault(&without(key::node("/t"))).contains("/: has a different number of children"));
    assert!(fault(&without(key::data("/a/b"))).contains("what belongs to the node is missing"));
    assert!(fault(&without(key::ephemeral(session, "/a/e"))).contains("what belongs to the node is missing"));
    assert!(fault(&without(key::session(session))).contains("an ephemeral without its session"));
    let with = |key: Key, value: Vec<u8>| {
        move |map: &mut Map| drop(map.keys.insert(key.to_vec(), value.clone().into()))
    };
    assert!(fault(&with(key::data("/zz"), b"x".to_vec())).contains("what points to nodes"));
    assert!(fault(&with(key::node("/t"), b"x".to_vec())).contains("no node that can be read"));
    assert!(fault(&with(Key::from_slice(b"n/a\0b/../c"), b"x".to_vec())).contains("no path of a node"));
    let newer = |map: &mut Map| {
        let node = Node::of_bytes(&map.keys[&key::node("/t")[..]]).unwrap();
        let newer = Node { mzxid: 1 << 50, ..node }.to_bytes();
        map.keys.insert(key::node("/t").to_vec(), newer.into());
    };
    assert!(fault(&newer).contains("newer than the snapshot"));
}

proptest! {
    /// A snapshot of the state after any sequence of writes passes its checks, and restores that state.
    #[test]
    fn snapshots_of_any_tree_come_back(
        steps in proptest::collection::vec(("(/[ab]){1,3}", 0..1500_usize, 0..6_usize), 1..60),
        after in 0..60_usize,
    ) {
        let mut replica = Replica::default();
        let by = proposer(1, 1);
        let session = replica.open(by);
        let mut taken = None;
        for (n, (path, length, what)) in steps.iter().enumerate() {
            if n == after {
                taken = Some((file(&replica.map), nodes(&replica.map)));
            }
            let data = vec![1; *length];
            let _ = match what {
                0 => replica.write(by, session, &Request::Delete(VersionRequest { path, version: -1 })),
                1 => replica.write(by, session, &create(path, &data, CreateMode::Ephemeral)),
                2 => replica.write(by, session, &create(path, &data, CreateMode::Container)),
                3 => replica.write(by, session, &Request::SetData(SetDataRequest { path, data: Some(&data), version: -1 })),
                4 => replica.write(by, session, &create(&format!("/zookeeper/quota{path}"), b"", CreateMode::Persistent))
                    .and_then(|_| replica.write(
                        by, session,
                        &create(&format!("/zookeeper/quota{path}/zookeeper_limits"), b"count=3", CreateMode::Persistent),
                    )),
                _ => replica.write(by, session, &create(path, &data, CreateMode::Persistent)),
            };
        }
        let (file, before) = taken.unwrap_or_else(|| (file(&replica.map), nodes(&replica.map)));
        Snapshot::read(&file).unwrap().check().unwrap();
        let newest = replica.map.counters().zxid;
        prop_assert!(restore(&mut replica, &file).unwrap() > newest);
        prop_assert_eq!(nodes(&replica.map), before);
        replica.audit();
    }
}
