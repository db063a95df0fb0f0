//! Fuzzes snapshots of ZooKeeper's tree. Whatever passes the check can be restored, and no command fails on what it contained.

use std::collections::BTreeMap;

use atoll_core::{Incarnation, NodeId};
use atoll_db::{ApplyAt, LogPos, Proposer};
use atoll_zookeeper::command::{AnswerHead, Command, ExpireSession, Restore, Stage, WriteHead};
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{CreateRequest, Request, SetDataRequest, VersionRequest};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::session::state::Session;
use atoll_zookeeper::testing::Map;
use atoll_zookeeper::tree::application::apply;
use atoll_zookeeper::tree::key;
use atoll_zookeeper::tree::restore::MAX_PIECE_BYTES;
use atoll_zookeeper::tree::snapshot::{Snapshot, Writer, is_carried};
use bytes::Bytes;

const ME: Proposer = Proposer { node: NodeId(1), incarnation: Incarnation(1) };

/// The first byte selects: the rest is a file, or entries from which a file with right checksums is made.
pub fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, file)) => {
            let _ = Snapshot::read(&Bytes::copy_from_slice(file));
        }
        Some((_, rest)) => packed(rest),
        None => {}
    }
}

/// Reads a zxid, followed by entries as `key length u8 | value length u16 | key | value`; all numbers are little endian. A later entry
/// replaces an earlier one with the same key.
fn packed(input: &[u8]) {
    let Some((zxid, mut rest)) = input.split_first_chunk::<8>() else { return };
    let mut entries = BTreeMap::new();
    while let Some((head, more)) = rest.split_first_chunk::<3>() {
        let (key, value) = (usize::from(head[0]), usize::from(u16::from_le_bytes([head[1], head[2]])));
        let Some((key, more)) = more.split_at_checked(key) else { break };
        let Some((value, more)) = more.split_at_checked(value) else { break };
        entries.insert(key.to_vec(), Bytes::copy_from_slice(value));
        rest = more;
    }
    let file = file(i64::from_le_bytes(*zxid), &entries);
    let Ok(snapshot) = Snapshot::read(&file) else { panic!("a file with right sums was refused") };
    assert_eq!(snapshot.entries.len(), entries.len());
    if snapshot.check().is_ok() {
        use_it(&file, &snapshot);
    }
}

fn file(zxid: i64, entries: &BTreeMap<Vec<u8>, Bytes>) -> Bytes {
    let (mut writer, head) = Writer::begin(zxid);
    let mut file = head.to_vec();
    for (key, value) in entries {
        file.extend(writer.push(Bytes::copy_from_slice(key), value.clone()).unwrap_or_default());
    }
    file.extend(writer.finish());
    file.into()
}

/// A replica without listeners for its events.
#[derive(Default)]
struct Replica {
    map: Map,
    position: u64,
}

impl Replica {
    /// Applies a command and returns the zxid. Returns None if the command is refused, and then restores the state from before it.
    fn apply(&mut self, command: &Command<'_>) -> Option<i64> {
        self.position += 1;
        let at = ApplyAt {
            position: LogPos(self.position),
            index: 0,
            proposer: ME,
            time_ms: self.position,
            version: 1,
        };
        self.map.events.clear();
        let before = self.map.clone();
        match apply(&at, &command.to_bytes(), &mut self.map) {
            Ok(answer) => AnswerHead::read(&mut Reader::new(&answer)).ok().map(|head| head.zxid),
            Err(_) => {
                self.map = before;
                None
            }
        }
    }

    fn write(&mut self, session: i64, request: &Request<'_>) {
        let mut body = Vec::new();
        request.write(&mut body);
        let ids = vec![Id { scheme: "super", id: "" }];
        let known =
            self.map.keys.get(&key::session(session)[..]).and_then(|bytes| Session::of_bytes(bytes).ok());
        let moves = known.map_or(0, |known| known.moves);
        let head = WriteHead { session, moves, ids, op: request.op().number(), enforce_quota: true };
        self.apply(&Command::Write(head, &body));
    }
}

fn use_it(file: &Bytes, snapshot: &Snapshot) {
    let mut replica = Replica::default();
    let mut pieces = 0;
    for data in file.chunks(MAX_PIECE_BYTES) {
        let stage = Command::Stage(Stage { upload: 1, piece: pieces, data: Some(data) });
        assert!(replica.apply(&stage).is_some(), "a piece was refused");
        pieces += 1;
    }
    let restore = Command::Restore(Restore { upload: 1, pieces, hash: Some(&snapshot.hash) });
    let Some(zxid) = replica.apply(&restore) else { panic!("what was checked was refused") };
    assert!(zxid > snapshot.zxid, "the zxid went back");
    let sessions: Vec<i64> = replica
        .map
        .keys
        .keys()
        .filter(|k| k.first() == Some(&b's'))
        .filter_map(|k| key::session_at_end(k))
        .collect();
    let paths: Vec<String> = replica.map.keys.keys().filter_map(|k| key::path_of_node(k)).collect();
    let me = sessions.first().copied().unwrap_or(0);
    for path in paths.iter().rev() {
        let below = format!("{}/x", path.trim_end_matches('/'));
        let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
        replica.write(me, &Request::Create(CreateRequest { path: &below, data: Some(b"x"), acl, flags: 2 }));
        replica.write(me, &Request::SetData(SetDataRequest { path, data: Some(&[7; 2000]), version: -1 }));
        replica.write(me, &Request::Delete(VersionRequest { path, version: -1 }));
    }
    for session in sessions {
        let expire = ExpireSession { session, moves: zxid };
        assert!(replica.apply(&Command::Expire(expire)).is_some(), "a session does not expire");
    }
    assert!(
        !replica.map.keys.keys().any(|k| matches!(k.first(), Some(b'e' | b's' | b'h'))),
        "sessions left something"
    );
}

/// Returns files and packed entries of a tree with all kinds of nodes.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut replica = Replica::default();
    let new = atoll_zookeeper::command::OpenSession { password: Some(&[7; 16]), timeout_ms: 9_000 };
    replica.apply(&Command::Open(new));
    let session =
        replica.map.keys.keys().find(|k| k.first() == Some(&b's')).and_then(|k| key::session_at_end(k));
    let session = session.unwrap_or_default();
    let mut seeds = Vec::new();
    for (path, length, flags) in
        [("/a", 3, 0), ("/a/b", 2_000, 0), ("/a/e", 0, 1), ("/c", 0, 4), ("/zookeeper/quota/a", 0, 0)]
    {
        let acl = vec![Acl { perms: 31, id: Id { scheme: "ip", id: "127.0.0.1" } }];
        let data = vec![7; length];
        replica.write(session, &Request::Create(CreateRequest { path, data: Some(&data), acl, flags }));
        let entries: BTreeMap<_, _> = replica
            .map
            .keys
            .iter()
            .filter(|(key, _)| is_carried(key))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect();
        let zxid = (1_i64 << 32) + i64::try_from(replica.position).unwrap_or_default();
        seeds.push([&[0], &file(zxid, &entries)[..]].concat());
        let mut packed = [&[1], &zxid.to_le_bytes()[..]].concat();
        for (key, value) in &entries {
            packed.push(u8::try_from(key.len()).unwrap_or(u8::MAX));
            packed.extend(u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes());
            packed.extend(key);
            packed.extend_from_slice(value);
        }
        seeds.push(packed);
    }
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seeds_are_put_in_place() {
        for seed in seeds().iter().filter(|seed| seed[0] == 0) {
            let file = Bytes::copy_from_slice(&seed[1..]);
            let snapshot = Snapshot::read(&file).expect("a seed is a snapshot");
            snapshot.check().expect("and a tree");
            use_it(&file, &snapshot);
        }
    }
}
