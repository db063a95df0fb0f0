//! A second implementation of ZooKeeper's tree and sessions, written from ZooKeeper's documentation. It applies commands in log order and
//! returns the answers that they must have. It keeps all earlier states of every znode, by zxid.

mod quota;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use atoll_core::testing::hit;
use atoll_zookeeper::command::{AnswerHead, Command, SessionAnswer};
use atoll_zookeeper::jute::codes::{CreateMode, ErrorCode, EventType, OpCode};
use atoll_zookeeper::jute::records::Stat;
use atoll_zookeeper::jute::reply::{Create2Reply, PathReply, StatReply};
use atoll_zookeeper::jute::request::{CreateRequest, CreateTtlRequest, Request};
use atoll_zookeeper::jute::transaction::{MultiOp, MultiRequest, MultiResult};
use atoll_zookeeper::jute::{Jute, Reader};
use atoll_zookeeper::session::secret::Secret;

/// One life of a node: node id and incarnation.
pub type Holder = (u32, u64);

/// The zxid before the first change.
pub const FIRST_ZXID: i64 = 1 << 32;

/// When a znode that is not ephemeral is deleted without a request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goes {
    /// Never.
    Never,
    /// When its last child is deleted (a container).
    Empty,
    /// When it has no children and was not changed for this many milliseconds.
    After(i64),
}

/// A znode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Znode {
    /// Its stat, as clients see it.
    pub stat: Stat,
    /// Its data.
    pub data: Option<Vec<u8>>,
    /// Names of its children.
    pub children: Arc<BTreeSet<String>>,
    created: i32,
    goes: Goes,
}

impl Znode {
    fn new(zxid: i64, time_ms: i64, owner: i64, data: Option<Vec<u8>>) -> Znode {
        let data_length = data.as_ref().map_or(0, Vec::len) as i32;
        let stat = Stat {
            czxid: zxid,
            mzxid: zxid,
            ctime: time_ms,
            mtime: time_ms,
            ephemeral_owner: owner,
            data_length,
            pzxid: zxid,
            ..Stat::default()
        };
        Znode { stat, data, children: Arc::default(), created: 0, goes: Goes::Never }
    }

    /// Returns whether the znode may be deleted without a request of a client at this time.
    fn is_due(&self, time_ms: i64) -> bool {
        self.children.is_empty()
            && match self.goes {
                Goes::Never => false,
                Goes::Empty => self.created > 0,
                Goes::After(ms) => time_ms - self.stat.mtime > ms,
            }
    }

    /// Adds or removes a child.
    fn child(&mut self, zxid: i64, name: &str, is_there: bool) {
        let children = Arc::make_mut(&mut self.children);
        if is_there {
            children.insert(name.to_owned());
            self.created = self.created.wrapping_add(1);
        } else {
            children.remove(name);
        }
        self.stat.num_children = children.len() as i32;
        self.stat.cversion = self.created.wrapping_mul(2).wrapping_sub(self.stat.num_children);
        self.stat.pzxid = zxid;
    }
}

/// Returns the hash of a password, which commands of early versions carry as it is.
fn hashed(said: &[u8]) -> Vec<u8> {
    Secret::of(said).map_or_else(|| said.to_vec(), |secret| secret.hashed().bytes().to_vec())
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The hash of the password that a client must know to attach.
    pub password: Vec<u8>,
    /// In milliseconds. -1 if the session has ended but some of its ephemerals are not deleted yet.
    pub timeout_ms: i32,
    /// The node that holds it, in one life.
    pub holder: Holder,
    /// How often it was attached or taken over.
    pub moves: i64,
    ephemerals: BTreeSet<String>,
}

/// A change of a path, as watches report it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The zxid of the change.
    pub zxid: i64,
    /// The type of its event.
    pub kind: EventType,
    /// The path.
    pub path: String,
}

/// Whether a command expired a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// No session expired.
    Nothing,
    /// This session expired; the value is its state before.
    Expired(i64, Session),
}

/// The answer that a command must have.
pub struct Expected {
    /// Whether the command took effect.
    pub done: bool,
    /// The bytes of the answer: zxid, error, body.
    pub answer: Vec<u8>,
    /// Whether it expired a session.
    pub ended: SessionEnd,
}

/// See the module documentation.
#[derive(Debug)]
pub struct Model {
    now: BTreeMap<String, Znode>,
    was: BTreeMap<String, Vec<(i64, Option<Znode>)>>,
    /// All sessions.
    pub sessions: BTreeMap<i64, Session>,
    opened: i64,
    /// The zxid of the newest change.
    pub zxid: i64,
    /// All changes that watches may report, in order.
    pub changes: Vec<Change>,
    /// Paths that the current command has changed, with their earlier state, for a rollback.
    undo: Vec<(String, Option<Znode>)>,
    /// Whether the current command came through a door that enforces quotas.
    enforces_quota: bool,
}

/// Splits a path into parent and name.
pub fn split(path: &str) -> (&str, &str) {
    match path.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((parent, name)) => (parent, name),
        None => ("/", path),
    }
}

impl Default for Model {
    fn default() -> Self {
        let mut model = Model {
            now: BTreeMap::new(),
            was: BTreeMap::new(),
            sessions: BTreeMap::new(),
            opened: 0,
            zxid: FIRST_ZXID,
            changes: Vec::new(),
            undo: Vec::new(),
            enforces_quota: false,
        };
        for (path, children) in [
            ("/", vec!["zookeeper"]),
            ("/zookeeper", vec!["config", "quota"]),
            ("/zookeeper/quota", vec![]),
            ("/zookeeper/config", vec![]),
        ] {
            let mut node = Znode::new(0, 0, 0, Some(Vec::new()));
            node.children = Arc::new(children.iter().map(|c| (*c).to_owned()).collect());
            node.stat.num_children = children.len() as i32;
            node.stat.cversion = -node.stat.num_children;
            model.was.insert(path.to_owned(), vec![(0, Some(node.clone()))]);
            model.now.insert(path.to_owned(), node);
        }
        model
    }
}

impl Model {
    /// Returns all paths that have or had a znode.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.was.keys().map(String::as_str)
    }

    /// Returns whether a session is open.
    pub fn lives(&self, session: i64) -> bool {
        self.sessions.get(&session).is_some_and(|s| s.timeout_ms >= 0)
    }

    /// Returns the number of znodes, and how many of them are ephemeral.
    pub fn counts(&self) -> (usize, usize) {
        (self.now.len(), self.sessions.values().map(|s| s.ephemerals.len()).sum())
    }

    /// Returns the znodes that are due for deletion sooner or later: empty containers, and znodes with a time to live and no children.
    pub fn transients(&self) -> impl Iterator<Item = &str> {
        let goes = |node: &Znode| node.is_due(i64::MAX);
        self.now.iter().filter(move |(_, node)| goes(node)).map(|(path, _)| path.as_str())
    }

    /// Returns the znode as it was after the change `zxid`.
    pub fn at(&self, path: &str, zxid: i64) -> Option<&Znode> {
        let was = self.was.get(path)?;
        let behind = was.partition_point(|(z, _)| *z <= zxid);
        was[..behind].last()?.1.as_ref()
    }

    /// Returns the zxids at which a znode changed, above `zxid` and up to `most`.
    pub fn turns(&self, path: &str, zxid: i64, most: i64) -> impl Iterator<Item = i64> {
        let was = self.was.get(path).map(Vec::as_slice).unwrap_or_default();
        was.iter().map(|(z, _)| *z).filter(move |z| *z > zxid && *z <= most)
    }

    fn set(&mut self, path: &str, node: Option<Znode>) {
        let before = match node {
            Some(node) => self.now.insert(path.to_owned(), node),
            None => self.now.remove(path),
        };
        self.undo.push((path.to_owned(), before));
    }

    /// Applies a command that `by` proposed.
    pub fn apply(&mut self, by: Holder, time_ms: u64, command: &[u8]) -> Expected {
        let newest = self.zxid;
        let changes = self.changes.len();
        self.undo.clear();
        let refused = |err: i32, body: &[u8]| Expected {
            done: false,
            answer: [AnswerHead { zxid: newest, err }.to_vec(), body.to_vec()].concat(),
            ended: SessionEnd::Nothing,
        };
        let Ok(command) = Command::read(command) else {
            return refused(ErrorCode::MarshallingError.number(), &[]);
        };
        match self.command(by, time_ms as i64, &command) {
            Ok((body, ended)) => {
                self.zxid += 1;
                let mut touched: Vec<String> = self.undo.drain(..).map(|(path, _)| path).collect();
                touched.sort();
                touched.dedup();
                for path in touched {
                    let now = self.now.get(&path).cloned();
                    self.was.entry(path).or_default().push((self.zxid, now));
                }
                let head = AnswerHead { zxid: self.zxid, err: 0 }.to_vec();
                Expected { done: true, answer: [head, body].concat(), ended }
            }
            Err(refusal) => {
                self.changes.truncate(changes);
                while let Some((path, before)) = self.undo.pop() {
                    match before {
                        Some(node) => self.now.insert(path, node),
                        None => self.now.remove(&path),
                    };
                }
                match refusal {
                    Refusal::Because(code) => refused(code.number(), &[]),
                    Refusal::Multi(results) => refused(0, &results),
                }
            }
        }
    }

    fn command(
        &mut self,
        by: Holder,
        time_ms: i64,
        command: &Command<'_>,
    ) -> Result<(Vec<u8>, SessionEnd), Refusal> {
        let nothing = |body: Vec<u8>| Ok((body, SessionEnd::Nothing));
        match command {
            Command::Write(head, body) => {
                self.served(head.session, head.moves, by)?;
                self.enforces_quota = head.enforce_quota;
                nothing(self.write(head.session, time_ms, head.op, body)?)
            }
            Command::Open(new) => {
                self.opened += 1;
                let id = (self.zxid >> 32) << 40 | self.opened;
                let session = Session {
                    password: hashed(new.password.unwrap_or_default()),
                    timeout_ms: new.timeout_ms,
                    holder: by,
                    moves: 0,
                    ephemerals: BTreeSet::new(),
                };
                self.sessions.insert(id, session);
                nothing(SessionAnswer { session: id, moves: 0, timeout_ms: new.timeout_ms }.to_vec())
            }
            Command::Attach(asked) => {
                let known = self.sessions.get_mut(&asked.session);
                let given = asked.password.map(hashed);
                let session = known.filter(|s| given.as_ref() == Some(&s.password) && s.timeout_ms >= 0);
                let session = session.ok_or(ErrorCode::SessionExpired)?;
                session.moves += 1;
                (session.holder, session.timeout_ms) = (by, asked.timeout_ms);
                let (session, moves, timeout_ms) = (asked.session, session.moves, asked.timeout_ms);
                nothing(SessionAnswer { session, moves, timeout_ms }.to_vec())
            }
            Command::Close(asked) => {
                self.served(asked.session, asked.moves, by)?;
                self.end(asked.session);
                nothing(Vec::new())
            }
            Command::Expire(asked) => {
                if self.held(asked.session, by)?.moves != asked.moves {
                    return Err(ErrorCode::SessionMoved.into());
                }
                let was = self.sessions[&asked.session].clone();
                self.end(asked.session);
                Ok((Vec::new(), SessionEnd::Expired(asked.session, was)))
            }
            Command::End(asked) => {
                let was = self.held(asked.session, by)?.clone();
                if was.moves != asked.moves {
                    return Err(ErrorCode::SessionMoved.into());
                }
                self.end_a_step(asked.session, asked.at_most as usize);
                let expired = !asked.closed && was.timeout_ms >= 0;
                Ok((
                    Vec::new(),
                    if expired { SessionEnd::Expired(asked.session, was) } else { SessionEnd::Nothing },
                ))
            }
            Command::TakeOver(asked) => {
                let from = (asked.node as u32, asked.incarnation);
                let of = |s: &&mut Session| s.holder == from && from != by;
                let taken = self.sessions.values_mut().filter(of).map(|s| {
                    (s.holder, s.moves) = (by, s.moves + 1);
                });
                match taken.count() {
                    0 => Err(ErrorCode::UnknownSession.into()),
                    n => nothing((n as i32).to_vec()),
                }
            }
            Command::Reap(asked) => match self.reap(time_ms, &asked.paths) {
                0 => Err(ErrorCode::NoNode.into()),
                gone => nothing(gone.to_vec()),
            },
            // No load of the scenario sends these.
            Command::Announce(_)
            | Command::Forget(_)
            | Command::RaiseEpoch
            | Command::Stage(_)
            | Command::Restore(_)
            | Command::Discard(_) => Err(ErrorCode::Unimplemented.into()),
        }
    }

    fn served(&self, session: i64, moves: i64, by: Holder) -> Result<(), ErrorCode> {
        match self.held(session, by)? {
            held if held.timeout_ms < 0 => Err(ErrorCode::SessionExpired),
            held if held.moves == moves => Ok(()),
            _ => Err(ErrorCode::SessionMoved),
        }
    }

    fn held(&self, session: i64, by: Holder) -> Result<&Session, ErrorCode> {
        let session = self.sessions.get(&session).ok_or(ErrorCode::SessionExpired)?;
        if session.holder == by { Ok(session) } else { Err(ErrorCode::SessionMoved) }
    }

    /// Deletes up to `at_most` ephemerals of a session, and the session with the last of them. The client has lost the session from the
    /// first step.
    fn end_a_step(&mut self, id: i64, at_most: usize) {
        let Some(session) = self.sessions.get_mut(&id) else { return };
        session.timeout_ms = -1;
        let gone: Vec<String> = session.ephemerals.iter().take(at_most).cloned().collect();
        if gone.len() == session.ephemerals.len() {
            self.sessions.remove(&id);
        } else {
            hit("sim.zookeeper.ended_in_steps");
        }
        for path in gone {
            self.remove(&path);
        }
    }

    /// Deletes those of the paths that are due. Returns how many.
    fn reap(&mut self, time_ms: i64, paths: &[&str]) -> i32 {
        let mut gone = 0;
        for path in paths {
            let Some(node) = self.now.get(*path) else { continue };
            if !node.is_due(time_ms) {
                hit("sim.zookeeper.reap_came_too_late");
                continue;
            }
            hit(if node.goes == Goes::Empty {
                "sim.zookeeper.container_went"
            } else {
                "sim.zookeeper.ttl_ended"
            });
            self.remove(path);
            gone += 1;
        }
        gone
    }

    fn end(&mut self, id: i64) {
        let Some(session) = self.sessions.remove(&id) else { return };
        for path in session.ephemerals {
            self.remove(&path);
        }
    }

    fn change(&mut self, kind: EventType, path: &str) {
        self.changes.push(Change { zxid: self.zxid + 1, kind, path: path.to_owned() });
    }

    fn write(&mut self, session: i64, time_ms: i64, op: i32, body: &[u8]) -> Result<Vec<u8>, Refusal> {
        let op = OpCode::of(op).ok_or(ErrorCode::Unimplemented)?;
        let request = Request::read(op, &mut Reader::new(body)).ok().flatten();
        Ok(match request.ok_or(ErrorCode::MarshallingError)? {
            Request::Create(r) => PathReply { path: &self.create(session, time_ms, &r, None)? }.to_vec(),
            Request::Create2(r) | Request::CreateContainer(r) => {
                let path = self.create(session, time_ms, &r, None)?;
                Create2Reply { path: &path, stat: self.now[&path].stat }.to_vec()
            }
            Request::CreateTtl(r) => {
                let path = self.create(session, time_ms, &without_ttl(&r), Some(r.ttl_ms))?;
                Create2Reply { path: &path, stat: self.now[&path].stat }.to_vec()
            }
            Request::Delete(r) => {
                self.delete(r.path, r.version)?;
                Vec::new()
            }
            Request::SetData(r) => {
                StatReply { stat: self.set_data(time_ms, r.path, r.data, r.version)? }.to_vec()
            }
            Request::Multi(r) => self.multi(session, time_ms, &r)?,
            _ => return Err(ErrorCode::Unimplemented.into()),
        })
    }

    fn multi(&mut self, session: i64, time_ms: i64, request: &MultiRequest<'_>) -> Result<Vec<u8>, Refusal> {
        let ephemerals: Vec<(i64, BTreeSet<String>)> =
            self.sessions.iter().map(|(id, s)| (*id, s.ephemerals.clone())).collect();
        let mut out = Vec::new();
        for (n, op) in request.ops.iter().enumerate() {
            let Err(code) = self.one(session, time_ms, op, &mut out) else { continue };
            // The caller rolls back the znodes.
            for (id, before) in ephemerals {
                self.sessions.entry(id).and_modify(|s| s.ephemerals = before);
            }
            let mut results = Vec::new();
            for place in 0..request.ops.len() {
                let error = match place.cmp(&n) {
                    std::cmp::Ordering::Less => None,
                    std::cmp::Ordering::Equal => Some(code),
                    std::cmp::Ordering::Greater => Some(ErrorCode::RuntimeInconsistency),
                };
                MultiResult::Error(error).write(&mut results);
            }
            MultiResult::write_end(&mut results);
            return Err(Refusal::Multi(results));
        }
        MultiResult::write_end(&mut out);
        Ok(out)
    }

    fn one(
        &mut self,
        session: i64,
        time_ms: i64,
        op: &MultiOp<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), ErrorCode> {
        match op {
            MultiOp::Create(r) => MultiResult::Create(&self.create(session, time_ms, r, None)?).write(out),
            MultiOp::Create2(r) | MultiOp::CreateContainer(r) => {
                let path = self.create(session, time_ms, r, None)?;
                MultiResult::Create2(&path, self.now[&path].stat).write(out);
            }
            MultiOp::CreateTtl(r) => {
                let path = self.create(session, time_ms, &without_ttl(r), Some(r.ttl_ms))?;
                MultiResult::Create2(&path, self.now[&path].stat).write(out);
            }
            MultiOp::Delete(r) => {
                self.delete(r.path, r.version)?;
                MultiResult::Delete.write(out);
            }
            MultiOp::SetData(r) => {
                MultiResult::SetData(self.set_data(time_ms, r.path, r.data, r.version)?).write(out)
            }
            MultiOp::Check(r) => {
                let node = self.now.get(r.path).ok_or(ErrorCode::NoNode)?;
                fits(node, r.version)?;
                MultiResult::Check.write(out);
            }
        }
        Ok(())
    }

    fn create(
        &mut self,
        session: i64,
        time_ms: i64,
        r: &CreateRequest<'_>,
        ttl_ms: Option<i64>,
    ) -> Result<String, ErrorCode> {
        let mode = CreateMode::of(r.flags).ok_or(ErrorCode::BadArguments)?;
        let goes = match (mode.has_ttl(), ttl_ms) {
            (true, Some(ms)) if ms > 0 => Goes::After(ms),
            (true, _) | (false, Some(_)) => return Err(ErrorCode::BadArguments),
            (false, None) if mode == CreateMode::Container => Goes::Empty,
            (false, None) => Goes::Never,
        };
        let (parent_path, _) = split(r.path);
        let mut parent = self.now.get(parent_path).cloned().ok_or(ErrorCode::NoNode)?;
        let number = if mode.is_sequential() { format!("{:010}", parent.created) } else { String::new() };
        let path = format!("{}{number}", r.path);
        if self.now.contains_key(&path) {
            return Err(ErrorCode::NodeExists);
        }
        if parent.stat.ephemeral_owner != 0 {
            return Err(ErrorCode::NoChildrenForEphemerals);
        }
        self.allows(&path, 1, r.data.map_or(0, <[u8]>::len) as i64)?;
        let owner = if mode.is_ephemeral() { session } else { 0 };
        let zxid = self.zxid + 1;
        let node = Znode { goes, ..Znode::new(zxid, time_ms, owner, r.data.map(<[u8]>::to_vec)) };
        parent.child(zxid, split(&path).1, true);
        self.set(parent_path, Some(parent));
        self.set(&path, Some(node));
        if let Some(session) = self.sessions.get_mut(&owner) {
            session.ephemerals.insert(path.clone());
        }
        self.recount(&path);
        self.change(EventType::NodeCreated, &path);
        self.change(EventType::NodeChildrenChanged, parent_path);
        Ok(path)
    }

    fn delete(&mut self, path: &str, version: i32) -> Result<(), ErrorCode> {
        let node = self.now.get(path).ok_or(ErrorCode::NoNode)?;
        fits(node, version)?;
        if !node.children.is_empty() {
            return Err(ErrorCode::NotEmpty);
        }
        self.remove(path);
        Ok(())
    }

    fn remove(&mut self, path: &str) {
        let (parent_path, name) = split(path);
        let Some(owner) = self.now.get(path).map(|n| n.stat.ephemeral_owner) else { return };
        if let Some(session) = self.sessions.get_mut(&owner) {
            session.ephemerals.remove(path);
        }
        self.set(path, None);
        if let Some(mut parent) = self.now.get(parent_path).cloned() {
            parent.child(self.zxid + 1, name, false);
            self.set(parent_path, Some(parent));
        }
        self.recount(path);
        self.change(EventType::NodeDeleted, path);
        self.change(EventType::NodeChildrenChanged, parent_path);
    }

    fn set_data(
        &mut self,
        time_ms: i64,
        path: &str,
        data: Option<&[u8]>,
        version: i32,
    ) -> Result<Stat, ErrorCode> {
        let mut node = self.now.get(path).cloned().ok_or(ErrorCode::NoNode)?;
        let bytes = data.map_or(0, <[u8]>::len) as i64 - i64::from(node.stat.data_length);
        self.allows(path, 0, bytes)?;
        fits(&node, version)?;
        node.stat.version += 1;
        node.stat.mzxid = self.zxid + 1;
        node.stat.mtime = time_ms;
        node.stat.data_length = data.map_or(0, <[u8]>::len) as i32;
        node.data = data.map(<[u8]>::to_vec);
        let stat = node.stat;
        self.set(path, Some(node));
        self.recount(path);
        self.change(EventType::NodeDataChanged, path);
        Ok(stat)
    }
}

fn without_ttl<'r>(r: &CreateTtlRequest<'r>) -> CreateRequest<'r> {
    CreateRequest { path: r.path, data: r.data, acl: r.acl.clone(), flags: r.flags }
}

fn fits(node: &Znode, version: i32) -> Result<(), ErrorCode> {
    if version == -1 || version == node.stat.version { Ok(()) } else { Err(ErrorCode::BadVersion) }
}

enum Refusal {
    Because(ErrorCode),
    Multi(Vec<u8>),
}

impl From<ErrorCode> for Refusal {
    fn from(code: ErrorCode) -> Self {
        Refusal::Because(code)
    }
}
