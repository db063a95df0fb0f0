//! Two replicas that apply the same commands have the same state, however their stores are committed in between.

use atoll_contract::conformance::application::conforms;
use atoll_core::{Incarnation, Level, NodeId};
use atoll_db::{
    Application, Applications, ApplyAt, Direction, Engine, KeyRange, LogPos, MemoryStore, Proposer, Solo,
};
use atoll_zookeeper::ZooKeeper;
use atoll_zookeeper::command::{Announce, Command, Forget, OpenSession, Reap, SessionAnswer, WriteHead};
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::CreateMode;
use atoll_zookeeper::jute::records::{Acl, Id};
use atoll_zookeeper::jute::request::{
    CreateRequest, ImportNode, ImportRequest, Request, SetDataRequest, VersionRequest,
};
use bytes::Bytes;
use futures_util::FutureExt;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Create(String, usize),
    Set(String, usize),
    Delete(String),
    Quota(String),
    Import(String, i64),
    Announce(i64, u16),
    Forget(i64),
    Reap(String),
    RaiseEpoch,
}

fn step() -> impl Strategy<Value = Step> {
    let path = "(/[ab]){1,3}";
    prop_oneof![
        6 => (path, 0..3000_usize).prop_map(|(p, n)| Step::Create(p, n)),
        3 => (path, 0..3000_usize).prop_map(|(p, n)| Step::Set(p, n)),
        3 => path.prop_map(Step::Delete),
        2 => "/[ab]".prop_map(Step::Quota),
        2 => (path, 0..1_i64 << 40).prop_map(|(p, z)| Step::Import(p, z)),
        1 => (1..4_i64, 1..3_u16).prop_map(|(n, p)| Step::Announce(n, p)),
        1 => (1..4_i64).prop_map(Step::Forget),
        1 => path.prop_map(Step::Reap),
        1 => Just(Step::RaiseEpoch),
    ]
}

struct Replica {
    solo: Solo,
    engine: Engine<ZooKeeper>,
    session: i64,
    time_ms: u64,
    /// The commands, with the time of each.
    commands: Vec<(u64, Bytes)>,
    answers: Vec<Vec<u8>>,
}

impl Replica {
    fn new() -> Replica {
        let mut applications = Applications::new();
        let slot = applications.add(ZooKeeper);
        let solo = Solo::open(applications, Box::new(MemoryStore::new())).unwrap();
        let mut replica = Replica {
            engine: solo.engine(&slot),
            solo,
            session: 0,
            time_ms: 0,
            commands: Vec::new(),
            answers: Vec::new(),
        };
        replica.set_time(0);
        replica.propose(&Command::Open(OpenSession { password: Some(&[7; 16]), timeout_ms: 10_000 }));
        replica.session = SessionAnswer::parse(&replica.answers[0][12..]).unwrap().session;
        replica
    }

    fn set_time(&mut self, time_ms: u64) {
        self.time_ms = time_ms;
        self.solo.clock().set_ms(time_ms);
    }

    fn propose(&mut self, command: &Command<'_>) {
        let command = Bytes::from(command.to_bytes());
        self.commands.push((self.time_ms, command.clone()));
        let proposed = self.engine.propose(command).unwrap();
        let applied = proposed.now_or_never().unwrap().unwrap().unwrap();
        self.answers.push(applied.reply.unwrap_or_else(|rejected| rejected.0).to_vec());
    }

    fn write(&mut self, request: &Request<'_>) {
        let mut body = Vec::new();
        request.write(&mut body);
        let ids = vec![Id { scheme: "ip", id: "127.0.0.1" }];
        let (session, op) = (self.session, request.op().number());
        let head = WriteHead { session, moves: 0, ids, op, enforce_quota: true };
        self.propose(&Command::Write(head, &body));
    }

    fn create(&mut self, path: &str, data: &[u8]) {
        let acl = vec![Acl { perms: 31, id: Id { scheme: "world", id: "anyone" } }];
        let flags = CreateMode::Persistent.number();
        self.write(&Request::Create(CreateRequest { path, data: Some(data), acl, flags }));
    }

    fn step(&mut self, step: &Step) {
        const DATA: [u8; 3000] = [3; 3000];
        match step {
            Step::Create(path, n) => self.create(path, &DATA[..*n]),
            Step::Set(path, n) => {
                self.write(&Request::SetData(SetDataRequest { path, data: Some(&DATA[..*n]), version: -1 }));
            }
            Step::Delete(path) => self.write(&Request::Delete(VersionRequest { path, version: -1 })),
            Step::Quota(path) => {
                let top = format!("/zookeeper/quota{path}");
                self.create(&top, b"");
                self.create(
                    &format!("{top}/zookeeper_limits"),
                    b"count=2,bytes=9=;byteHardLimit=4000;countHardLimit=5",
                );
                self.create(&format!("{top}/zookeeper_stats"), b"count=-1,bytes=-1");
            }
            Step::Import(path, zxid) => {
                let node = ImportNode {
                    path,
                    data: Some(b"imported"),
                    acl: Vec::new(),
                    czxid: *zxid,
                    mzxid: *zxid,
                    pzxid: *zxid,
                    ctime: 1,
                    mtime: 2,
                    version: 3,
                    created: 9,
                    aversion: 4,
                    owner: 0,
                    counted: false,
                };
                self.write(&Request::Import(ImportRequest {
                    newest: *zxid,
                    replace: true,
                    nodes: vec![node],
                }));
            }
            Step::Announce(node, port) => {
                let address = format!("host:{port}");
                self.propose(&Command::Announce(Announce { node: *node, peer: &address, client: &address }));
            }
            Step::Forget(node) => self.propose(&Command::Forget(Forget { nodes: vec![*node] })),
            Step::Reap(path) => self.propose(&Command::Reap(Reap { paths: vec![path] })),
            Step::RaiseEpoch => self.propose(&Command::RaiseEpoch),
        }
    }

    fn state(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let all = self.engine.view().scan(&KeyRange::all(), Direction::Forward);
        all.map(|found| found.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect()
    }
}

proptest! {
    #[test]
    fn commits_do_not_matter(
        steps in proptest::collection::vec((step(), any::<bool>(), any::<bool>(), 0..50_u64), 1..50),
    ) {
        let mut replicas = [Replica::new(), Replica::new()];
        let mut time_ms = 0;
        for (step, first, second, later) in &steps {
            time_ms += later;
            for (replica, commits) in replicas.iter_mut().zip([first, second]) {
                replica.set_time(time_ms);
                replica.step(step);
                if *commits {
                    replica.solo.commit();
                }
            }
        }
        prop_assert_eq!(&replicas[0].answers, &replicas[1].answers);
        prop_assert_eq!(replicas[0].state(), replicas[1].state());
        // Nor do starts of replicas, nor commands that are rolled back.
        let proposer = Proposer { node: NodeId(1), incarnation: Incarnation(1) };
        let version = ZooKeeper::version_at(Level::CURRENT);
        let commands: Vec<_> = (1..)
            .zip(&replicas[0].commands)
            .map(|(n, (time_ms, command))| {
                let at = ApplyAt { position: LogPos(n), index: 0, proposer, time_ms: *time_ms, version };
                (at, command.clone())
            })
            .collect();
        let replies = conforms(&|| ZooKeeper, &commands);
        let answers: Vec<_> = replies.into_iter().map(|r| r.unwrap_or_else(|rejected| rejected.0).to_vec()).collect();
        prop_assert_eq!(&answers, &replicas[0].answers);
    }
}
