//! The replicated state without an engine: a map in memory, to which commands are applied as on every replica.

use std::collections::BTreeMap;

use atoll_core::{Incarnation, NodeId};
use atoll_db::{ApplyAt, LogPos, Proposer, Rejected};
use atoll_zookeeper::command::{AnswerHead, Command, OpenSession, SessionAnswer, WriteHead};
use atoll_zookeeper::event::Event;
use atoll_zookeeper::jute::codes::ErrorCode;
use atoll_zookeeper::jute::records::Id;
use atoll_zookeeper::jute::request::Request;
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::path;
use atoll_zookeeper::session::state::Session;
pub use atoll_zookeeper::testing::Map;
use atoll_zookeeper::tree::application::apply;
use atoll_zookeeper::tree::key::{self, Key};
use atoll_zookeeper::tree::node::{Data, Lifetime, Node};
use atoll_zookeeper::tree::state::{Counters, Keys};

/// Returns the proposer that is this life of this node.
pub fn proposer(node: u32, incarnation: u64) -> Proposer {
    Proposer { node: NodeId(node), incarnation: Incarnation(incarnation) }
}

/// The outcome of a command: its zxid and body, or its error.
pub type Outcome = Result<(i64, Vec<u8>), ErrorCode>;

/// A replica.
#[derive(Clone, Debug, Default)]
pub struct Replica {
    pub map: Map,
    pub time_ms: u64,
    pub enforce_quota: bool,
    /// The version of its commands, by default the first.
    pub version: Option<u8>,
    position: u64,
}

impl Replica {
    /// Applies a command that this node proposed.
    pub fn apply(&mut self, by: Proposer, command: &Command<'_>) -> Outcome {
        self.position += 1;
        let at = ApplyAt {
            position: LogPos(self.position),
            index: 0,
            proposer: by,
            time_ms: self.time_ms,
            version: self.version.unwrap_or(1),
        };
        let before = self.map.clone();
        let answer = match apply(&at, &command.to_bytes(), &mut self.map) {
            Ok(answer) => {
                let told = self.map.events[before.events.len()..].iter().map(Event::zxid).max();
                let zxid = AnswerHead::read(&mut Reader::new(&answer)).unwrap().zxid;
                assert_eq!(told, Some(zxid), "the doors are told of every zxid that is taken");
                answer
            }
            Err(Rejected(answer)) => {
                self.map = before;
                answer
            }
        };
        let mut from = Reader::new(&answer);
        let head = AnswerHead::read(&mut from).unwrap();
        match ErrorCode::of(head.err) {
            Some(code) => Err(code),
            None => Ok((head.zxid, from.rest().to_vec())),
        }
    }

    /// Opens a session with this node as its holder; returns its id.
    pub fn open(&mut self, by: Proposer) -> i64 {
        let new = OpenSession { password: Some(&[7; 16]), timeout_ms: 10_000 };
        let (_, body) = self.apply(by, &Command::Open(new)).unwrap();
        SessionAnswer::parse(&body).unwrap().session
    }

    /// Performs a session's write through this node at the session's current move count. The client has only its address as id.
    pub fn write(&mut self, by: Proposer, session: i64, request: &Request<'_>) -> Outcome {
        let known =
            self.map.keys.get(&key::session(session)[..]).map(|bytes| Session::of_bytes(bytes).unwrap());
        self.write_by_move(by, session, known.map_or(0, |known| known.moves), request)
    }

    /// Performs a session's write through this node at this move count.
    pub fn write_by_move(
        &mut self,
        by: Proposer,
        session: i64,
        moves: i64,
        request: &Request<'_>,
    ) -> Outcome {
        let mut body = Vec::new();
        request.write(&mut body);
        let ids = vec![Id { scheme: "ip", id: "127.0.0.1" }];
        let (op, enforce_quota) = (request.op().number(), self.enforce_quota);
        let head = WriteHead { session, moves, ids, op, enforce_quota };
        self.apply(by, &Command::Write(head, &body))
    }

    /// Returns a node, if it exists.
    pub fn node(&mut self, path: &str) -> Option<Node> {
        self.map.get(&key::node(path)).map(|bytes| Node::of_bytes(&bytes).unwrap())
    }

    /// Returns the number of nodes at and below a path, and the bytes of their data.
    pub fn subtree(&self, top: &str) -> (usize, usize) {
        let nodes = self.map.keys.iter().filter(|(key, _)| key.first() == Some(&b'n'));
        let within = nodes.filter(|(key, _)| path::is_within(&key::path_of_node(key).unwrap(), top));
        within.fold((0, 0), |(count, bytes), (_, value)| {
            (count + 1, bytes + Node::of_bytes(value).unwrap().data.length())
        })
    }

    /// Returns the events that were emitted since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.map.events)
    }

    /// Checks all relations that must hold between the keys.
    pub fn audit(&mut self) {
        let keys = self.map.keys.clone();
        let (mut nodes, mut ephemerals, mut bytes, mut quotas) = (0, 0, 0, 0);
        let mut expected: BTreeMap<Key, ()> = BTreeMap::new();
        for (key, value) in keys.iter().filter(|(key, _)| key.first() == Some(&b'n')) {
            let path = key::path_of_node(key).unwrap();
            let node = Node::of_bytes(value).unwrap();
            let children = keys.keys().filter(|k| key::children(&path).contains(k)).count();
            assert_eq!(i32::try_from(children).unwrap(), node.children, "children of {path}");
            assert!(
                node.created >= 0 && node.pzxid >= node.czxid && node.mzxid >= node.czxid,
                "{path}: {node:?}"
            );
            match node.lifetime {
                Lifetime::Persistent => {}
                Lifetime::Ephemeral(session) => {
                    ephemerals += 1;
                    assert!(keys.contains_key(&key::session(session)[..]), "the session of {path}");
                    expected.insert(key::ephemeral(session, &path), ());
                }
                Lifetime::Container | Lifetime::Ttl(_) => {
                    expected.insert(key::transient(&path), ());
                }
            }
            if let Data::Apart(length) = node.data {
                for (key, place) in key::data_pieces(&path, length as usize) {
                    assert_eq!(keys[&key[..]].len(), place.len(), "data of {path}");
                    expected.insert(key, ());
                }
            }
            quotas += i64::from(
                path.len() > 33
                    && path.starts_with("/zookeeper/quota/")
                    && path.ends_with("/zookeeper_limits"),
            );
            nodes += 1;
            bytes += i64::try_from(path.len() + node.data.length()).unwrap();
        }
        let indexed = |key: &&Vec<u8>| matches!(key.first(), Some(b'd' | b'e' | b't'));
        let found: Vec<&[u8]> = keys.keys().filter(indexed).map(Vec::as_slice).collect();
        assert_eq!(
            found,
            expected.keys().map(|key| &key[..]).collect::<Vec<_>>(),
            "what points to nodes, and what does not"
        );
        if let Some(found) = keys.get(key::COUNTERS) {
            let counters = Counters::of_bytes(found);
            assert_eq!(
                (counters.nodes, counters.ephemerals, counters.bytes, counters.quotas),
                (nodes, ephemerals, bytes, quotas),
                "counters"
            );
        }
        let sessions = keys.keys().filter(|k| k.first() == Some(&b's')).count();
        assert_eq!(
            sessions,
            keys.keys().filter(|k| k.first() == Some(&b'h')).count(),
            "each session has one holder"
        );
    }
}
