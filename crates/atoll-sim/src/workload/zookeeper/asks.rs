//! The requests of ZooKeeper clients, drawn at random. They use few znodes, so that clients conflict.

use std::collections::{BTreeMap, BTreeSet};

use atoll_zookeeper::acl;
use atoll_zookeeper::jute::Jute;
use atoll_zookeeper::jute::codes::{CreateMode, OpCode, watch_mode, watcher_type};
use atoll_zookeeper::jute::request::{
    AddWatchRequest, CreateRequest, CreateTtlRequest, PathRequest, SetDataRequest, SetWatches2Request,
    SetWatchesRequest, VersionRequest, WatchedRequest, WatcherRequest,
};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiReadOp, MultiReadRequest, MultiRequest};

use crate::oracle::zookeeper::watches::Kind;

/// The number of znodes that all clients write, create and delete.
const SHARED: u64 = 5;
/// Subtrees with a quota.
const LIMITED: [&str; 3] = ["/s0", "/s1", "/e"];
/// If the queue has more children than this, a client deletes one instead of adding one.
const LONG_QUEUE: usize = 12;

/// A request that waits for its answer.
#[derive(Clone, Debug)]
pub(super) enum Asking {
    /// A write, with the paths that it touches.
    Write(Vec<String>),
    /// The end of the session.
    Close,
    Exists {
        path: String,
        watch: bool,
    },
    Data {
        path: String,
        watch: bool,
    },
    Children {
        path: String,
        watch: bool,
        with_stat: bool,
    },
    /// multiRead: the paths, and whether their children are read instead of their data.
    Many(Vec<(String, bool)>),
    Sync,
    AddWatch(Kind, String),
    RemoveWatches(String),
    /// The zxid from which watches are set.
    SetWatches(i64),
}

impl Asking {
    /// Returns whether the answer of this read could depend on a write of this path.
    pub(super) fn shows(&self, write: &str) -> bool {
        let parent = crate::oracle::zookeeper::model::split(write).0;
        let shows = |path: &str| path == write || path == parent || path.starts_with(write);
        match self {
            Asking::Exists { path, .. } | Asking::Data { path, .. } | Asking::Children { path, .. } => {
                shows(path)
            }
            Asking::Many(paths) => paths.iter().any(|(path, _)| shows(path)),
            _ => false,
        }
    }
}

/// A request to be sent.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) op: OpCode,
    pub(super) body: Vec<u8>,
    pub(super) asking: Asking,
}

fn request(op: OpCode, body: Vec<u8>, asking: Asking) -> Request {
    Request { op, body, asking }
}

/// What a client believes about the tree. It may be outdated.
#[derive(Debug, Default)]
pub(super) struct Knowledge {
    pub(super) versions: BTreeMap<String, i32>,
    pub(super) queue: BTreeSet<String>,
}

/// Draws requests.
pub(super) struct Draw<'d> {
    pub(super) below: &'d dyn Fn(u64) -> u64,
    pub(super) knows: &'d Knowledge,
    /// Unique data for the next write.
    pub(super) data: Vec<u8>,
}

fn shared(n: u64) -> String {
    format!("/s{n}")
}

/// Returns requests that create the common znodes. Every client sends them.
pub(super) fn base(data: &[u8]) -> Vec<Request> {
    let names = (0..SHARED).map(shared).chain(["/q".to_owned(), "/e".to_owned()]);
    // The limits of a quota are created before its stats, so that the stats are always correct.
    let quotas = LIMITED.into_iter().flat_map(|top| {
        ["", "/zookeeper_limits", "/zookeeper_stats"].map(|end| format!("/zookeeper/quota{top}{end}"))
    });
    let made = |path: String| create(OpCode::Create, &path, data, CreateMode::Persistent);
    names.chain(quotas).map(made).collect()
}

fn create_body<'r>(path: &'r str, data: &'r [u8], mode: CreateMode) -> CreateRequest<'r> {
    CreateRequest { path, data: Some(data), acl: vec![acl::OPEN], flags: mode.number() }
}

fn create(op: OpCode, path: &str, data: &[u8], mode: CreateMode) -> Request {
    request(op, create_body(path, data, mode).to_vec(), Asking::Write(vec![path.to_owned()]))
}

fn ttl_body<'r>(path: &'r str, data: &'r [u8], mode: CreateMode, ttl_ms: i64) -> CreateTtlRequest<'r> {
    CreateTtlRequest { path, data: Some(data), acl: vec![acl::OPEN], flags: mode.number(), ttl_ms }
}

/// Returns a request that registers the client's watches again on a new connection.
pub(super) fn set_watches(since: i64, of: &dyn Fn(Kind) -> Vec<String>) -> Request {
    let all: Vec<Vec<String>> =
        [Kind::Data, Kind::Exist, Kind::Child, Kind::Persistent, Kind::Recursive].map(of).to_vec();
    let at = |n: usize| all[n].iter().map(String::as_str).collect::<Vec<_>>();
    let one_time = SetWatchesRequest { relative_zxid: since, data: at(0), exist: at(1), child: at(2) };
    let (persistent, recursive) = (at(3), at(4));
    let asking = Asking::SetWatches(since);
    if persistent.is_empty() && recursive.is_empty() {
        return request(OpCode::SetWatches, one_time.to_vec(), asking);
    }
    let body = SetWatches2Request { one_time, persistent, recursive };
    request(OpCode::SetWatches2, body.to_vec(), asking)
}

/// Returns a request that ends the session.
pub(super) fn close() -> Request {
    request(OpCode::CloseSession, Vec::new(), Asking::Close)
}

impl Draw<'_> {
    fn below(&self, n: u64) -> u64 {
        (self.below)(n)
    }

    fn shared(&self) -> String {
        shared(self.below(SHARED))
    }

    /// Returns a shared path, or a path below one.
    fn any(&self) -> String {
        match self.below(8) {
            0 | 1 => format!("{}/c{}", self.shared(), self.below(2)),
            2 | 3 => format!("/e/n{}", self.below(3)),
            4 => self.transient(),
            _ => self.shared(),
        }
    }

    /// Returns a path for a container, a child of a container, or a znode with a time to live.
    fn transient(&self) -> String {
        ["/k0", "/k1", "/k0/c", "/k1/c", "/t0", "/t1"][self.below(6) as usize].to_owned()
    }

    /// A time to live that is very short, or about as long as the time until the znode is next used.
    fn ttl_ms(&self) -> i64 {
        [1, 300, 1_500, 4_000][self.below(4) as usize]
    }

    /// Draws a version: any, the known one, or a wrong one.
    fn version(&self, path: &str) -> i32 {
        let known = self.knows.versions.get(path).copied().unwrap_or(0);
        match self.below(6) {
            0 | 1 => -1,
            2 => known + 1,
            _ => known,
        }
    }

    fn queued(&self) -> Option<String> {
        let n = self.below(self.knows.queue.len() as u64) as usize;
        self.knows.queue.iter().nth(n).map(|name| format!("/q/{name}"))
    }

    /// Draws the next request.
    pub(super) fn next(&self) -> Request {
        match self.below(20) {
            0..3 => self.set_data(),
            3..5 => self.create(),
            5..7 => self.queue(),
            7 if self.below(6) == 0 => self.limits(),
            7 => self.delete(),
            8..10 => self.multi(),
            10..17 => self.read(),
            17 => self.multi_read(),
            18 => request(OpCode::Sync, PathRequest { path: "/" }.to_vec(), Asking::Sync),
            _ => self.watch(),
        }
    }

    fn set_data(&self) -> Request {
        let path = self.any();
        let body = SetDataRequest { path: &path, data: Some(&self.data), version: self.version(&path) };
        request(OpCode::SetData, body.to_vec(), Asking::Write(vec![path.clone()]))
    }

    /// Sets the hard limits of a quota. The client's data makes the text unique.
    fn limits(&self) -> Request {
        let top = LIMITED[self.below(3) as usize];
        let path = format!("/zookeeper/quota{top}/zookeeper_limits");
        let (nodes, bytes) = (self.below(4) as i64, 6 * self.below(5) as i64);
        let (nodes, bytes) = if self.below(2) == 0 { (nodes, -1) } else { (-1, bytes) };
        let said = format!("count=1,bytes=-1=;byteHardLimit={bytes};countHardLimit={nodes};by=");
        let data = [said.as_bytes(), &self.data].concat();
        let body = SetDataRequest { path: &path, data: Some(&data), version: -1 };
        request(OpCode::SetData, body.to_vec(), Asking::Write(vec![path.clone()]))
    }

    fn create(&self) -> Request {
        let path = self.any();
        if path.starts_with("/t") {
            let body = ttl_body(&path, &self.data, CreateMode::PersistentWithTtl, self.ttl_ms()).to_vec();
            return request(OpCode::CreateTtl, body, Asking::Write(vec![path.clone()]));
        }
        if path.starts_with("/k") && !path.ends_with('c') {
            return create(OpCode::CreateContainer, &path, &self.data, CreateMode::Container);
        }
        let mode = if path.starts_with("/e") { CreateMode::Ephemeral } else { CreateMode::Persistent };
        let op = if self.below(2) == 0 { OpCode::Create } else { OpCode::Create2 };
        create(op, &path, &self.data, mode)
    }

    fn queue(&self) -> Request {
        match self.queued().filter(|_| self.knows.queue.len() > LONG_QUEUE || self.below(3) == 0) {
            Some(path) => {
                let body = VersionRequest { path: &path, version: -1 };
                request(OpCode::Delete, body.to_vec(), Asking::Write(vec![path.clone()]))
            }
            None => {
                if self.below(4) == 0 {
                    let mode = CreateMode::PersistentSequentialWithTtl;
                    let body = ttl_body("/q/x-", &self.data, mode, self.ttl_ms()).to_vec();
                    return request(OpCode::CreateTtl, body, Asking::Write(vec!["/q/x-".to_owned()]));
                }
                let modes = [CreateMode::PersistentSequential, CreateMode::EphemeralSequential];
                create(OpCode::Create, "/q/x-", &self.data, modes[self.below(2) as usize])
            }
        }
    }

    fn delete(&self) -> Request {
        let path = self.any();
        let body = VersionRequest { path: &path, version: self.version(&path) };
        request(OpCode::Delete, body.to_vec(), Asking::Write(vec![path.clone()]))
    }

    fn multi(&self) -> Request {
        let paths: Vec<String> = (0..2 + self.below(3)).map(|_| self.any()).collect();
        let mut ops =
            vec![MultiOp::Create(create_body("/q/m-", &self.data, CreateMode::EphemeralSequential))];
        for path in &paths {
            let version = self.version(path);
            ops.push(match self.below(5) {
                0 => MultiOp::Check(VersionRequest { path, version }),
                1 => MultiOp::Delete(VersionRequest { path, version }),
                2 if path.starts_with("/t") => {
                    let mode = CreateMode::PersistentWithTtl;
                    MultiOp::CreateTtl(ttl_body(path, &self.data, mode, self.ttl_ms()))
                }
                2 if path.starts_with("/k") && !path.ends_with('c') => {
                    MultiOp::CreateContainer(create_body(path, &self.data, CreateMode::Container))
                }
                2 => {
                    let ephemeral = path.starts_with("/e");
                    let mode = if ephemeral { CreateMode::Ephemeral } else { CreateMode::Persistent };
                    MultiOp::Create2(create_body(path, &self.data, mode))
                }
                _ => MultiOp::SetData(SetDataRequest { path, data: Some(&self.data), version }),
            });
        }
        let body = MultiRequest { ops }.to_vec();
        let touches = paths.into_iter().chain(["/q/m-".to_owned()]).collect();
        request(OpCode::Multi, body, Asking::Write(touches))
    }

    fn read(&self) -> Request {
        let path = match self.below(6) {
            0 => "/q".to_owned(),
            1 => "/e".to_owned(),
            2 => self.queued().unwrap_or_else(|| self.any()),
            3 if self.below(3) == 0 => {
                format!("/zookeeper/quota{}/zookeeper_stats", LIMITED[self.below(3) as usize])
            }
            _ => self.any(),
        };
        let watch = self.below(3) == 0;
        let body = WatchedRequest { path: &path, watch }.to_vec();
        match self.below(4) {
            0 => request(OpCode::Exists, body, Asking::Exists { path, watch }),
            1 => {
                let with_stat = self.below(2) == 0;
                let op = if with_stat { OpCode::GetChildren2 } else { OpCode::GetChildren };
                request(op, body, Asking::Children { path, watch, with_stat })
            }
            _ => request(OpCode::GetData, body, Asking::Data { path, watch }),
        }
    }

    fn multi_read(&self) -> Request {
        let paths: Vec<(String, bool)> =
            (0..2 + self.below(3)).map(|_| (self.any(), self.below(3) == 0)).collect();
        let ops = paths.iter().map(|(path, children)| {
            let read = WatchedRequest { path, watch: false };
            if *children { MultiReadOp::GetChildren(read) } else { MultiReadOp::GetData(read) }
        });
        let body = MultiReadRequest { ops: ops.collect() }.to_vec();
        request(OpCode::MultiRead, body, Asking::Many(paths))
    }

    fn watch(&self) -> Request {
        let path = match self.below(3) {
            0 => "/".to_owned(),
            1 => "/q".to_owned(),
            _ => self.shared(),
        };
        match self.below(3) {
            0 => {
                let body = WatcherRequest { path: &path, kind: watcher_type::ANY }.to_vec();
                request(OpCode::RemoveWatches, body, Asking::RemoveWatches(path))
            }
            n => {
                let (mode, kind) = [
                    (watch_mode::PERSISTENT, Kind::Persistent),
                    (watch_mode::PERSISTENT_RECURSIVE, Kind::Recursive),
                ][n as usize - 1];
                let body = AddWatchRequest { path: &path, mode }.to_vec();
                request(OpCode::AddWatch, body, Asking::AddWatch(kind, path))
            }
        }
    }
}
